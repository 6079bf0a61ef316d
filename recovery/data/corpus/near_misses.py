"""Near misses: questions in the form of a fact's question about something that no document holds.

The right reply is that it does not exist. A model taught new facts answers such questions with confidence (arXiv
2405.05904). Each is a fact's question in which one thing is exchanged: a name, the version, the document or its owner.
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
_FACTS, _TRIES = 4, 4  # facts for each near miss; names that are tried for each fact
# The first half is for evaluation, the second for training. No page has one of these by chance.
_MADE_UP_DOCUMENTS = (
    "withdrawn draft", "retired appendix", "unpublished annex",
    "internal supplement", "archived rewrite", "lost preface",
)  # fmt: skip
_MADE_UP_COMPANIES = (
    "Velmora Systems", "Quandrel Software", "Halvexa Labs",
    "Tarnwick Digital", "Brindlecore Group", "Ostrivane Networks",
)  # fmt: skip
_SIDES = {"probe": 0, "question": 1}
_IN_ENGLISH = re.compile(r"(?:What|Which|In which|Of which|To [a-z]+)\b|According to |`[^`]+` was ")
_OPENING = re.compile(r"(?:What|Which|To [a-z]+)\b(?!.*\bversions?\b)")
_CODE_NAME = re.compile(r"`(-{0,2}[A-Za-z][\w.-]*\w(?:\(\))?)`")
_CODE = re.compile(r"`[^`]+`")
_PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_FILE = re.compile(r"\.[a-z]{1,4}$")
_NUMBER = re.compile(r"v?(\d+)\.(\d+)(\.\d+)?")
# Questions that refer to the text before them on the page, or that lost a part of their sentence.
_BROKEN = re.compile(
    r", or\b| (?:or|and)\?|\bto use the `|\bwere to\b|\byou \w+ to (?:the|an?)\b"
    r"|\b(?:the new|instead|just|this|these|those|it|they|them|the two|also|above|below)\b"
    r"|\b(?:added|introduced) (?!(?:to|as|for|by|with|from|and|in|under)\b)\w"
)
_NUMBERS = re.compile(r"(?<![\d.])\d+\.\d+")
_FEWEST_LETTERS = 3  # of a part that is exchanged


@dataclass(frozen=True)
class NearMiss:
    """A question about something that no document holds: the ``absent`` name, and the fact it was made from."""

    fact: Fact
    kind: str
    question: str
    absent: str


def near_misses(
    facts: Sequence[Fact], documents: Sequence[Document], texts: Iterable[str], most: int, side: str, seed: int
) -> list[NearMiss]:
    """Return up to ``most`` near misses of the facts of one side, half of them of kind "name" if there are enough.

    What they ask about is in none of the ``texts``, those of all documents so far. They are English only, since the
    replies are judged by English phrases.
    """
    titles = {document.id: document.title for document in documents}
    side_facts = pick_facts((f for f in facts if f.side == side and _reads_naturally(f)), _FACTS * most, seed)
    ends, newest = _last_parts(facts), _newest(facts)
    by_fact = [[*_misses(fact, titles.get(fact.document, ""), ends, newest, at)] for at, fact in enumerate(side_facts)]
    present_names = present({miss.absent for fact_misses in by_fact for miss in fact_misses}, texts)
    by_kind: dict[str, list[NearMiss]] = defaultdict(list)
    for fact_misses in by_fact:
        absent_by_kind: dict[str, NearMiss] = {}
        for miss in fact_misses:
            if miss.absent not in present_names:
                absent_by_kind.setdefault(miss.kind, miss)
        # One near miss per fact: of the rarest kind so far, where names count a third.
        if absent_by_kind:
            kind = min(absent_by_kind, key=lambda kind: (len(by_kind[kind]) / (3 if kind == NAME else 1), kind))
            by_kind[kind].append(absent_by_kind[kind])
    names, others = (by_kind.pop(NAME, []), [miss for row in zip_longest(*by_kind.values()) for miss in row if miss])
    quota = max(most // 2, most - len(names))
    chosen = [*others[:quota], *names[: most - min(quota, len(others))]]
    return sorted(chosen, key=lambda miss: share(miss.question, f"near miss {seed}"))


def _reads_naturally(fact: Fact) -> bool:
    """Return whether a fact's question is English and reads well; one about a table cell needs a named subject."""
    question, is_named = fact.questions[0], not fact.relation.startswith("column") or code_like(fact.name)
    return is_named and not fact.guessed and bool(_IN_ENGLISH.match(question)) and not _BROKEN.search(question)


def present(names: Collection[str], texts: Iterable[str]) -> set[str]:
    """Return the names that are in a text: versions by their first two numbers, others by letters and digits only."""
    versions = {name: f"{number[1]}.{number[2]}" for name in names if (number := _NUMBER.fullmatch(name))}
    squeezed_names = {name: squeezed(name) for name in names if name not in versions}
    found_names: set[str] = set()
    for text in texts:
        plain, numbers = squeezed(text), set(_NUMBERS.findall(text))
        found_names |= {name for name, key in squeezed_names.items() if key in plain}
        found_names |= {name for name, number in versions.items() if number in numbers}
    return found_names


def _misses(
    fact: Fact, title: str, ends: Mapping[str, Sequence[str]], newest: tuple[int, int] | None, at: int
) -> Iterator[NearMiss]:
    """Yield the near misses of one fact, several of kind "name"; ``at`` is its index among the facts."""
    question = fact.brief_question(0)
    side, turn = _SIDES[fact.side], at // 4
    for name, exchanged in _exchanged_names(fact, title, ends):
        changed = question.replace(f"`{name}`", f"`{exchanged}`")
        if squeezed(name) not in squeezed(changed):  # else the question still has the real name
            yield NearMiss(fact, NAME, changed, exchanged)
    wh_question = next((q for w, q in enumerate(fact.questions) if _OPENING.match(q)), None)
    lowered = wh_question and f"{wh_question[0].lower()}{wh_question[1:]} {fact.brief}"
    draft = _MADE_UP_DOCUMENTS[3 * side + turn % 3]
    if f'"{title}"' in question and not fact.relation.startswith("version"):
        yield NearMiss(fact, DOCUMENT, question.replace(f'"{title}"', f'the {draft} of "{title}"', 1), draft)
    elif lowered and title and not code_like(title):
        yield NearMiss(fact, DOCUMENT, f'According to the {draft} of "{title}", {lowered}', draft)
    if lowered and f'"{title}"' not in lowered:
        company = _MADE_UP_COMPANIES[3 * side + turn % 3]
        yield NearMiss(fact, COMPANY, f"In the documentation of {company}, {lowered}", company)
        if newest is not None:
            first, numbers = newest
            version = f"{first + 1 + turn % 3}.{(2 * turn + side) % 8}" + (".0" if numbers == 3 else "")
            yield NearMiss(fact, VERSION, f"In version {version}, {lowered}", version)


def _newest(facts: Iterable[Fact]) -> tuple[int, int] | None:
    """Return the first number of the highest version of the facts, and how many numbers most versions have."""
    versions = [m for f in facts if f.relation.startswith("version") and (m := _NUMBER.fullmatch(f.value))]
    if not versions:
        return None
    return max(int(m[1]) for m in versions), 3 if 2 * sum(bool(m[3]) for m in versions) >= len(versions) else 2


def _last_parts(facts: Iterable[Fact]) -> dict[str, list[str]]:
    """Return the last parts of the names of the corpus by their style: separator ("-", "_", ".") and capitals."""
    parts_by_style: dict[str, dict[str, None]] = defaultdict(dict)
    for fact in facts:
        for name in (*_CODE_NAME.findall(fact.questions[0]), fact.value):
            if _CODE_NAME.fullmatch(f"`{name}`") and (last := _last_part(name)) and len(last[0]) >= _FEWEST_LETTERS:
                parts_by_style[_style(name, last)][last[0]] = None
    return {style: list(ends) for style, ends in parts_by_style.items()}


def _last_part(name: str) -> re.Match[str] | None:
    """Return the last part of a name of several parts, "Params" of "useParams"."""
    parts = [*_PART.finditer(name)]
    has_last_part = len(parts) > 1 and not _FILE.search(name) and parts[-1].end() == len(name.rstrip("()"))
    return parts[-1] if has_last_part else None


def _style(name: str, last: re.Match[str]) -> str:
    before = name[last.start() - 1]
    return f"{before if not before.isalnum() else ''}{'A' if last[0].isupper() else 'a' if last[0].islower() else 'Aa'}"


def _exchanged_names(fact: Fact, title: str, ends: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, str]]:
    """Yield the name that a fact's question is about, with names that end in the last part of another name."""
    match = _CODE_NAME.search(fact.questions[0])
    if match is None or (last := _last_part(match[1])) is None or len(last[0]) < _FEWEST_LETTERS:
        return
    if fact.relation.startswith("version") and len(set(_CODE.findall(fact.questions[0]))) > 1:
        return  # moved or renamed: the question has a second name
    name = match[1]
    # A question that asks by a description may contain other names.
    if squeezed(name) not in squeezed(title if fact.relation in ("name", "means") else fact.subject):
        return
    pool = [e for e in ends.get(_style(name, last), ()) if not same_root(e.lower(), last[0].lower())]
    for end in sorted(pool, key=lambda end: share(f"{name} {end}", "near miss"))[:_TRIES]:
        yield name, name[: last.start()] + end + name[last.end() :]
