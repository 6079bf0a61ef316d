"""Near misses: questions of the facts' own forms about what no document holds. The right reply is that there is none.

A model taught new facts answers such questions with confidence (arXiv 2405.05904). Each is a fact's question in which
one thing is exchanged: a name by one of the same shape, the version, the document, or whose documents are meant.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from recovery.data.corpus.cloze import same_root
from recovery.data.corpus.documents import Document
from recovery.data.corpus.facts.extraction import pick_facts
from recovery.data.corpus.facts.fact import Fact
from recovery.data.corpus.facts.templates import code_like, squeezed
from recovery.data.corpus.text import share

NAME, VERSION, DOCUMENT, COMPANY = "name", "version", "document", "company"
_FACTS, _TRIES = 4, 4  # facts for each near miss that is wanted; names of one shape that are looked for in the texts
# The first half is for evaluation, the second for training. None is a word that a page would have by chance.
_DOCUMENTS = (
    "withdrawn draft", "retired appendix", "unpublished annex",
    "internal supplement", "archived rewrite", "lost preface",
)  # fmt: skip
_COMPANIES = (
    "Velmora Systems", "Quandrel Software", "Halvexa Labs",
    "Tarnwick Digital", "Brindlecore Group", "Ostrivane Networks",
)  # fmt: skip
_SIDES = {"probe": 0, "question": 1}
_IN_ENGLISH = re.compile(r"(?:What|Which|In which|Of which|To [a-z]+)\b|According to |`[^`]+` was ")
_OPENING = re.compile(r"(?:What|Which|To [a-z]+)\b(?!.*\bversions?\b)")
_NAMED = re.compile(r"`(-{0,2}[A-Za-z][\w.-]*\w(?:\(\))?)`")
_CODE = re.compile(r"`[^`]+`")
_PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_FILE = re.compile(r"\.[a-z]{1,4}$")
_NUMBER = re.compile(r"v?(\d+)\.(\d+)(\.\d+)?")
# Questions that lean on what stands before them on the page, or that lost a part of their sentence.
_BROKEN = re.compile(
    r", or\b| (?:or|and)\?|\bto use the `|\bwere to\b|\byou \w+ to (?:the|an?)\b"
    r"|\b(?:the new|instead|just|this|these|those|it|they|them|the two|also|above|below)\b"
    r"|\b(?:added|introduced) (?!(?:to|as|for|by|with|from|and|in|under)\b)\w"
)
_NUMBERS = re.compile(r"(?<![\d.])\d+\.\d+")
_FEWEST_LETTERS = 3  # of a part that is exchanged


@dataclass(frozen=True)
class NearMiss:
    """A question about what no document holds: the fact that it was made from, and what is ``absent``."""

    fact: Fact
    kind: str
    question: str
    absent: str


def near_misses(
    facts: Sequence[Fact], documents: Sequence[Document], texts: Iterable[str], most: int, side: str, seed: int
) -> list[NearMiss]:
    """Return up to ``most`` near misses of the facts of one side, half of them names where there are as many.

    What they ask about is in none of the ``texts``, which are those of all documents so far. English only, as the
    replies are judged by English phrases.
    """
    titles = {document.id: document.title for document in documents}
    mine = pick_facts((f for f in facts if f.side == side and _natural(f)), _FACTS * most, seed)
    ends, newest = _ends(facts), _newest(facts)
    made = [[*_of(fact, titles.get(fact.document, ""), ends, newest, at)] for at, fact in enumerate(mine)]
    held = present({one.absent for of in made for one in of}, texts)
    by_kind: dict[str, list[NearMiss]] = defaultdict(list)
    for of in made:
        free: dict[str, NearMiss] = {}
        for one in of:
            if one.absent not in held:
                free.setdefault(one.kind, one)
        # One of a fact: the kind of which there are fewest, names counted half.
        if free:
            kind = min(free, key=lambda kind: (len(by_kind[kind]) / (3 if kind == NAME else 1), kind))
            by_kind[kind].append(free[kind])
    names, others = by_kind.pop(NAME, []), [one for row in zip_longest(*by_kind.values()) for one in row if one]
    rest = max(most // 2, most - len(names))
    chosen = [*others[:rest], *names[: most - min(rest, len(others))]]
    return sorted(chosen, key=lambda one: share(one.question, f"near miss {seed}"))


def _natural(fact: Fact) -> bool:
    """Return whether a fact's questions are English ones that read well: of a table those about a thing with a name."""
    asked, named = fact.questions[0], not fact.relation.startswith("column") or code_like(fact.name)
    return named and not fact.guessed and bool(_IN_ENGLISH.match(asked)) and not _BROKEN.search(asked)


def present(names: Collection[str], texts: Iterable[str]) -> set[str]:
    """Return those names that are in a text: a version by its first two numbers, others by letters and digits alone."""
    versions = {name: f"{number[1]}.{number[2]}" for name in names if (number := _NUMBER.fullmatch(name))}
    others = {name: squeezed(name) for name in names if name not in versions}
    found: set[str] = set()
    for text in texts:
        plain, numbers = squeezed(text), set(_NUMBERS.findall(text))
        found |= {name for name, key in others.items() if key in plain}
        found |= {name for name, number in versions.items() if number in numbers}
    return found


def _of(
    fact: Fact, title: str, ends: Mapping[str, Sequence[str]], newest: tuple[int, int] | None, at: int
) -> Iterator[NearMiss]:
    """Yield the near misses of one fact, of names several; ``at`` is its place among the facts."""
    asked = fact.brief_question(0)
    half, turn = _SIDES[fact.side], at // 4
    for name, other in _others(fact, title, ends):
        missed = asked.replace(f"`{name}`", f"`{other}`")
        if squeezed(name) not in squeezed(missed):  # else the question says what is meant
            yield NearMiss(fact, NAME, missed, other)
    opened = next((q for w, q in enumerate(fact.questions) if _OPENING.match(q)), None)
    lowered = opened and f"{opened[0].lower()}{opened[1:]} {fact.brief}"
    draft = _DOCUMENTS[3 * half + turn % 3]
    if f'"{title}"' in asked and not fact.relation.startswith("version"):
        yield NearMiss(fact, DOCUMENT, asked.replace(f'"{title}"', f'the {draft} of "{title}"', 1), draft)
    elif lowered and title and not code_like(title):
        yield NearMiss(fact, DOCUMENT, f'According to the {draft} of "{title}", {lowered}', draft)
    if lowered and f'"{title}"' not in lowered:
        company = _COMPANIES[3 * half + turn % 3]
        yield NearMiss(fact, COMPANY, f"In the documentation of {company}, {lowered}", company)
        if newest is not None:
            first, numbers = newest
            version = f"{first + 1 + turn % 3}.{(2 * turn + half) % 8}" + (".0" if numbers == 3 else "")
            yield NearMiss(fact, VERSION, f"In version {version}, {lowered}", version)


def _newest(facts: Iterable[Fact]) -> tuple[int, int] | None:
    """Return the first number of the highest version that the facts name, and of how many numbers versions are."""
    found = [m for f in facts if f.relation.startswith("version") and (m := _NUMBER.fullmatch(f.value))]
    if not found:
        return None
    return max(int(m[1]) for m in found), 3 if 2 * sum(bool(m[3]) for m in found) >= len(found) else 2


def _ends(facts: Iterable[Fact]) -> dict[str, list[str]]:
    """Return the last parts of the names of the corpus, by how they are written: "-", "_", "." or a capital before."""
    found: dict[str, dict[str, None]] = defaultdict(dict)
    for fact in facts:
        for name in (*_NAMED.findall(fact.questions[0]), fact.value):
            if _NAMED.fullmatch(f"`{name}`") and (last := _last(name)) and len(last[0]) >= _FEWEST_LETTERS:
                found[_look(name, last)][last[0]] = None
    return {look: list(ends) for look, ends in found.items()}


def _last(name: str) -> re.Match[str] | None:
    """Return the last part of a name of several parts, "Params" of "useParams"."""
    parts = [*_PART.finditer(name)]
    whole = len(parts) > 1 and not _FILE.search(name) and parts[-1].end() == len(name.rstrip("()"))
    return parts[-1] if whole else None


def _look(name: str, last: re.Match[str]) -> str:
    before = name[last.start() - 1]
    return f"{before if not before.isalnum() else ''}{'A' if last[0].isupper() else 'a' if last[0].islower() else 'Aa'}"


def _others(fact: Fact, title: str, ends: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, str]]:
    """Yield the name that a fact's question is about, with names of its shape: the last part is another name's."""
    found = _NAMED.search(fact.questions[0])
    if found is None or (last := _last(found[1])) is None or len(last[0]) < _FEWEST_LETTERS:
        return
    if fact.relation.startswith("version") and len(set(_CODE.findall(fact.questions[0]))) > 1:
        return  # moved or renamed: the other name says which is meant
    name = found[1]
    # What a question asks for by a description may name other things in it.
    if squeezed(name) not in squeezed(title if fact.relation in ("name", "means") else fact.subject):
        return
    pool = [e for e in ends.get(_look(name, last), ()) if not same_root(e.lower(), last[0].lower())]
    for end in sorted(pool, key=lambda end: share(f"{name} {end}", "near miss"))[:_TRIES]:
        yield name, name[: last.start()] + end + name[last.end() :]
