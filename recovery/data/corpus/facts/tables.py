"""Facts from tables: version histories, option tables, value descriptions, and other columns."""

from __future__ import annotations

import re
from collections.abc import Iterator

from recovery.data.corpus.facts import templates
from recovery.data.corpus.facts.blocks import Table, sentences_in
from recovery.data.corpus.facts.fact import Fact, imperative, noun_of, noun_phrase_start, third_person
from recovery.data.corpus.facts.templates import Source, bare, code_like, is_same_name
from recovery.data.corpus.text import words

VERSION = re.compile(r"v?\d+(?:\.\d+){1,3}")
_VERSIONS, _CHANGES = words("version versions release since"), words("change changes description notes what")
_DESCRIPTIONS = words("description meaning behavior behaviour purpose explanation effect summary")
_DEFAULTS = frozenset({"default", "defaults", "default value"})
_TYPES = words("type types")
_SKIPPED = words(
    "required optional requirement example examples see link links docs change changes details notes comment does"
)
_DONE = (
    r"introduced|added|removed|deprecated|stabili[sz]ed|released|renamed|supported|changed|moved|promoted|"
    r"enabled by default|disabled by default|dropped|replaced|marked"
)
_HAPPENED = re.compile(
    rf"(?P<subject>.+?),? (?:(?P<was>was|were|is|are|has been|have been) )?(?:now )?(?P<done>{_DONE})\b(?P<rest>.*)"
)
_BEGINS = re.compile(r"(?P<done>Added|Introduced|Removed|Deprecated|Renamed) (?P<subject>.+)")
_VERB_INSIDE = re.compile(r"\b(?:is|are|was|were|has|have|had|will|can|must|be|detects?|uses?|removes?)\b")
_IS_DEFAULT = re.compile(r"\s*\((?:the )?default\)|\s*\(recommended\)", re.IGNORECASE)
_SAYS_DEFAULT = re.compile(r"\bThis is the default\b")
_YES_NO = re.compile(r"(?:yes|no|-|n/a|✓|✗|✅|❌)\b|[-–—✓✗✅❌]", re.IGNORECASE)
_TYPE_NAMES = words("string number boolean object function array any integer float int str bool list dict")
_MOST_WORDS, _FEWEST_WORDS = 26, 3


def from_table(table: Table, source: Source) -> Iterator[Fact | None]:
    """Yield the facts of a table; None for a value that cannot be graded."""
    head = [bare(h).lower() for h in table.header]
    if head[0] in _VERSIONS and (head[1] in _CHANGES or len(head) == 2):
        for row in table.rows:
            yield from from_change(row[1], bare(row[0]), source)
        return
    kinds = [kind_of(h) or _type_if_names(table, column) for column, h in enumerate(head)]
    for row in table.rows if any(kinds[1:]) else ():
        yield from _option_facts(table, row, kinds, source)
    first = "" if head[0] in ("name", "") else bare(table.header[0])
    for column, kind in enumerate(kinds):
        title = head[column]
        if column == 0 or kind or not title or "|" in title or re.fullmatch("[a-z]", title):  # the letter of a sheet
            continue
        if title.split()[0] in _SKIPPED or third_person(f"{title} x"):
            continue
        for row in table.rows:
            key = _IS_DEFAULT.sub("", row[0])
            if 0 < len(key.split()) <= 5 and row[column] and not _YES_NO.match(bare(row[column])):
                yield templates.listed(source, bare(key), first, bare(table.header[column]), row[column])


def kind_of(header: str) -> str:
    """Return "description", "default" or "type" by the column header, or "" for any other."""
    kinds = {"description": _DESCRIPTIONS, "default": _DEFAULTS, "type": _TYPES}
    return next((kind for kind, headers in kinds.items() if header in headers), "")


def _type_if_names(table: Table, column: int) -> str:
    """Return "type" if all values of a column are type names, else ""."""
    cells = [bare(row[column]).lower() for row in table.rows]
    return "type" if column and all(cell.split("[")[0] in _TYPE_NAMES for cell in cells) else ""


def from_change(text: str, version: str, source: Source) -> Iterator[Fact | None]:
    """Yield the fact of one line of a version history: what was added, removed or changed in that version."""
    if not VERSION.fullmatch(version) or not text:
        return
    sentence = sentences_in(text)[0].rstrip(".").strip()
    if len(sentence.split()) > _MOST_WORDS:
        return
    if match := _BEGINS.fullmatch(sentence):
        subject, change = templates.lowered(match["subject"]), match["done"].lower()
        if not _VERB_INSIDE.search(subject) and _can_be_subject(subject):
            yield templates.dated(source, _with_article(subject), change, version, plural=_is_plural(subject))
            return
    if match := _HAPPENED.fullmatch(sentence):
        subject, rest = templates.lowered(match["subject"]), match["rest"]
        if not _VERB_INSIDE.search(subject) and not re.search(r"[;:]", rest) and _can_be_subject(subject):
            plural = match["was"] in ("were", "are", "have been") or _is_plural(subject)
            yield templates.dated(source, _with_article(subject), f"{match['done']}{rest}", version, plural=plural)
            return
    yield templates.changed(source, sentence, version)


def _can_be_subject(subject: str) -> bool:
    """Return whether a subject can stand before "was" or "were": a name, a plural, or a noun with its article."""
    if re.match(r"(?:this|it|these|previously|now|also|no longer)\b", subject, re.IGNORECASE):
        return False
    return bool(re.match(r"`|(?:the|an?|support|all|new|experimental)\b", subject)) or _is_plural(subject)


def _with_article(subject: str) -> str:
    """Return the subject with the article that version histories omit: "`x` option" -> "the `x` option"."""
    has_noun = re.fullmatch(r"(?:new |experimental |`[^`]+`(?:, | and |, and )?)*`[^`]+` (?P<rest>[a-z].*)", subject)
    has_noun = has_noun or re.fullmatch(r"(?:new|experimental) `.*", subject)
    return f"the {subject}" if has_noun else subject


def _is_plural(subject: str) -> bool:
    """Return whether a subject takes "were": an enumeration, or a plural last word that is not code."""
    head = re.split(r"\s(?:for|of|to|in|from|with|that|via)\s", subject)[0]
    last = head.split()[-1]
    return bool(re.search(r"`[^`]*`,? and |, `", head)) or bool(re.fullmatch(r"[a-z]+[^s]s", last))


def _option_facts(table: Table, row: tuple[str, ...], known: list[str], source: Source) -> Iterator[Fact | None]:
    """Yield the facts of one row of an option table: its type, its default, and its name by its description."""
    name = re.sub(r"(`[^`]+`) or .*", r"\1", _IS_DEFAULT.sub("", row[0])).strip()
    if not name or len(name.split()) > 4 or "{" in name:
        return
    first = bare(table.header[0]).lower()
    noun = noun_of(first) or noun_of(table.heading, plural=True) or noun_of(table.intro, plural=True)
    is_own_value = code_like(source.title) and noun == "value"
    if is_own_value and (_IS_DEFAULT.search(row[0]) or any(_SAYS_DEFAULT.search(cell) for cell in row)):
        yield templates.default(source, source.title, "", name)
    for column, kind in enumerate(known):
        cell = row[column]
        if kind == "default" and is_own_value and bare(cell).lower() in ("yes", "true", "✓", "✅"):
            yield templates.default(source, source.title, "", name)
        elif kind == "default" and not is_own_value and bare(cell).lower() not in ("-", "", "none", "n/a", "no", "yes"):
            yield templates.default(source, name, noun, cell)
        elif kind == "type" and not is_own_value and not re.match(r"\d", bare(name)):
            yield templates.typed(source, name, noun, cell)
        elif kind == "description":
            yield described(source, name, noun, cell)


def described(source: Source, name: str, noun: str, text: str) -> Fact | None:
    """Return the fact that asks for a name by its description, or None if the description reveals the name."""
    text = re.sub(r"^\([^)]*\)\s*", "", text)
    sentence = sentences_in(text)[0].rstrip(".").strip() if text else ""
    if not _FEWEST_WORDS <= len(sentence.split()) <= _MOST_WORDS or reveals_name(sentence, name):
        return None
    if re.search(r"\b(?:described|mentioned|listed) (?:above|below)\b|:$|\bthis\b", sentence, re.IGNORECASE):
        return None
    if is_same_name(name, source.title) or re.match(r"[`\d(]", sentence):
        return None
    if third_person(sentence):
        return templates.described(source, name, noun, sentence[0].lower() + sentence[1:])
    if imperative(sentence) and noun:
        return templates.used(source, name, noun, "use", sentence[0].lower() + sentence[1:], scope=True)
    if noun_phrase_start(sentence) or len(sentence.split()) >= 5:
        return templates.summarised(source, name, noun, sentence)
    return None


def reveals_name(text: str, name: str) -> bool:
    return templates.squeezed(name) in templates.squeezed(text) or bare(name).lower().rstrip("()") in bare(text).lower()
