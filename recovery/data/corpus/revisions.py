"""Documents that a later corpus has in a newer version.

A document is a newer version of an earlier one with the same name and title if half of the shorter text is common but
the texts differ: unrelated folders, or folders of other quarters, may also have an index.md or report.md. So is a
document of the same title and file name in another folder, if the earlier path is gone, the later one is new, and two
fifths of all text are in both.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from recovery.data.corpus.documents import Document
from recovery.data.corpus.holdout import PART, contained, in_common
from recovery.data.corpus.sentences import split_sentences
from recovery.data.corpus.text import normalise

Name = tuple[str, str]  # id and title
Texts = Mapping[Name, str]

LEAST = 0.5  # of the sequences of five words of the shorter version
# Of all sequences of both. Of two pages of one title in one release 1 of 112 pairs has as many in common (Next.js 16:
# the shorter ones repeat an introduction), of the same page in two releases that moved it 36 of 44 (Fastify 2 and 3,
# undici 5 and 7).
LEAST_MOVED = 0.4
# Records of a file are named by their number, which an inserted record changes for all later ones.
_NUMBERED = re.compile(r"#\d+\Z")
_FIELD = re.compile(r"(?:[-*+]\s+)?[*_]{0,2}(?:Default|Type|(?:New|Added|Changed|Removed) in|Deprecated since)\b")
_WORD = re.compile(r"\w")
# A line that is a statement by itself: a row of a table, an entry of a list, a heading.
_OWN_LINE = re.compile(r"\s*(?:\||[-*+]\s|#{1,6}\s|\d+[.)]\s|```|~~~)")


@dataclass(frozen=True)
class Revision:
    """The statements (sentences, rows, headings) of the older and of the newer version of a document, and the
    newer version itself.
    """

    old: tuple[str, ...]
    new: tuple[str, ...]
    newer: Document | None = None


def whole_texts(documents: Iterable[Document]) -> Texts:
    """Return the text of each document by (id, title), including held-out paragraphs."""
    parts: dict[tuple[str, str], list[str]] = {}
    for document in documents:
        parts.setdefault((document.id.removesuffix(PART), document.title), []).append(document.text)
    return {name: "\n\n".join(texts) for name, texts in parts.items()}


def revised(
    corpora: Mapping[int, Texts], replacing: Collection[int], unread: Collection[tuple[int, Name]] = ()
) -> dict[int, dict[str, Revision]]:
    """Return, by corpus, the documents, by id, that have a newer version in a later one of the ``replacing`` corpora.

    Each is compared with its newest version, so that a text that was restored counts as valid again. Each version is
    matched with the one before it, since many small changes may leave little of the first. ``unread`` documents were
    not trained on; they replace nothing, but later versions are matched with them.
    """
    links = _links(corpora, sorted(replacing))
    revisions: dict[int, dict[str, Revision]] = {}
    for number, texts in corpora.items():
        revisions[number] = {}
        for name, text in texts.items():
            at, newest = (number, name), text
            while at in links:
                at = links[at]
                newest = newest if at in unread else corpora[at[0]][at[1]]
            if newest != text and (revision := _revision(name, text, newest)):
                revisions[number][name[0]] = revision
    return revisions


def _links(corpora: Mapping[int, Texts], replacing: Sequence[int]) -> dict[tuple[int, Name], tuple[int, Name]]:
    """Return the next version of each document, both by the number of the corpus and name."""
    links: dict[tuple[int, Name], tuple[int, Name]] = {}
    for number, texts in corpora.items():
        unlinked = {name for name in texts if not _NUMBERED.search(name[0])}
        for k in (k for k in replacing if k > number):
            later = corpora[k]
            common = ((name, texts[name], later[name]) for name in unlinked & later.keys())
            moves = {name: name for name, text, newer in common if text == newer or contained(text, newer) >= LEAST}
            moves |= {name: new for name, new in moved(texts, later).items() if name in unlinked}
            links |= {(number, name): (k, new) for name, new in moves.items()}
            unlinked -= moves.keys()
            if not unlinked:
                break
    return links


def _revision(name: Name, text: str, newer: str) -> Revision | None:
    """Return the revision by a newer text; None if both make the same statements."""
    old, new = statements(text), statements(newer)
    if set(map(normalise, old)) == set(map(normalise, new)):
        return None
    return Revision(old, new, Document(*name, newer, name[0]))


def moved(earlier: Texts, later: Texts) -> dict[Name, Name]:
    """Return the documents that moved to another folder, from the earlier to the later name.

    Paths that differ in a number do not count: they are about another year, quarter or version.
    """
    removed, added = _by_file(earlier, {id for id, _ in later}), _by_file(later, {id for id, _ in earlier})
    new_names = {}
    for file in removed.keys() & added.keys():
        if len(removed[file]) == len(added[file]) == 1:  # several candidates would be ambiguous
            (old,), (name,) = removed[file], added[file]
            if in_common(earlier[old], later[name]) >= LEAST_MOVED:
                new_names[old] = name
    return new_names


def _by_file(texts: Texts, known: Collection[str]) -> dict[tuple[str, ...], list[Name]]:
    """Return the documents with none of the ``known`` ids by file name, title and the numbers of the path."""
    by_file: dict[tuple[str, ...], list[Name]] = {}
    for id, title in texts:
        if id not in known and not _NUMBERED.search(id):
            path, _, part = id.partition("#")
            file = PurePosixPath(path)
            by_file.setdefault((file.stem, part, title, *re.findall(r"\d+", str(file.parent))), []).append((id, title))
    return by_file


def statements(text: str) -> tuple[str, ...]:
    """Return the sentences of a text, however its lines are broken, and its rows, list entries and headings.

    "Default: 50" says nothing without the name above it, so it begins with the heading.
    """
    found_statements, heading = [], ""
    for part in _parts(text):
        heading = part.lstrip("# ") if part.startswith("#") else heading
        for sentence in split_sentences(part):
            if _WORD.search(sentence):
                found_statements.append(f"{heading}: {sentence}" if heading and _FIELD.match(sentence) else sentence)
    return tuple(found_statements)


def _parts(text: str) -> Iterator[str]:
    for block in re.split(r"\n\s*\n", text):
        lines: list[str] = []
        for line in block.splitlines():
            if lines and _OWN_LINE.match(line):
                yield " ".join(lines)
                lines = []
            lines.append(line.strip())
            if line.lstrip().startswith(("|", "#")):  # nothing continues a row or a heading
                yield " ".join(lines)
                lines = []
        if lines:
            yield " ".join(lines)
