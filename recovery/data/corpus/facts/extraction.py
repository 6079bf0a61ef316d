"""Fact extraction: apply every rule to every block, drop ambiguous facts, and sample evenly over documents.

Facts from lists of options, parameters or tools ("`name` (default `x`): what it does") and their nested items.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain

from recovery.data.corpus.documents import Document
from recovery.data.corpus.facts import templates, translated
from recovery.data.corpus.facts.blocks import ListItem, Table, blocks, sentences_in
from recovery.data.corpus.facts.entries import name_of, of_entry, of_section
from recovery.data.corpus.facts.fact import Fact
from recovery.data.corpus.facts.grammar import noun_of
from recovery.data.corpus.facts.prose import from_text, kinds_in, titled
from recovery.data.corpus.facts.tables import described, from_table
from recovery.data.corpus.facts.templates import Source, bare, code_like, same
from recovery.data.corpus.languages import language_of, language_within
from recovery.data.corpus.text import normalise, share, with_other_decimals

# An option of a manual, with its value, which Markdown may take for a tag: "-s, --strategy=<strategy>".
_FLAG = r"(?:-\w, ?)?(?P<flag>--?[A-Za-z][\w-]*)(?:[ =]?(?:<[^<>]*>|\[[^\[\]]*\]|\([^()]*\)|[A-Z][A-Z_-]*))*=?"
_ENTRY = re.compile(
    rf"(?:`(?P<name>[^`]+)`|{_FLAG})"
    r"(?P<notes>(?:\s*\([^()]*(?:\([^()]*\)[^()]*)*\))*)\s*(?:[:–—]|-(?=\s))\s*(?P<rest>.*)"
)
_MENTIONED = re.compile(r"(?:The |An? )?`(?P<name>[^`]+)` (?P<noun>[a-z]+)\b")
_TYPED = re.compile(r"`(?P<type>[^`]+)`\s*[-–—:]\s*(?P<rest>.*)")
_IN_NOTES = re.compile(r"\(default(?:s to| is)?:?\s+([^()]+)\)", re.IGNORECASE)
# Of the option itself: behind another subject ("the starting point defaults to") it is the default of that.
_STATED = re.compile(
    r"(?:^|[.;,(:]\s*|(?:^|[.;]\s+)(?:It|This|This [a-z]+|The)\s|\b(?:and|which)\s)"
    r"(?:[Dd]efaults to|(?:the )?[Dd]efault(?: value)?(?: is|:))\s+"
    r"(`[^`]+`|[\w$-][\w$./ -]*?)(?=[.,;)]?\s*$|[.,;)]\s|\s\()"
)
# What holds only sometimes is no default, except where the option is left out.
_SOMETIMES = re.compile(
    r"\b(?:if|when|where|unless|otherwise|case)\b(?! (?:it is )?(?:omitted|unset|not (?:given|set|specified)))[^.]*$",
    re.I,
)
# A word alone may be what is the default: "(default bundler)".
_AT_THE_END = re.compile(r"\(default (`[^`]+`|[-$]?\d[\w$./-]*)\)\.?$")
_ONLY_DEFAULT = re.compile(r"\(default\)", re.IGNORECASE)
_TYPE_WORDS = re.compile(r"[A-Z][\w<>{}\[\], |]*|(?:string|boolean|number|object|function|any)\b.*", re.DOTALL)


def from_item(item: ListItem, source: Source) -> Iterator[Fact | None]:
    """Yield the facts of one list item."""
    noun = noun_of(item.intro.rstrip(":").split(". ")[-1], plural=True) or noun_of(item.heading, plural=True)
    match = _ENTRY.match(item.text)
    if match is None:
        mentioned = _MENTIONED.match(item.text)
        if mentioned and noun_of(mentioned["noun"]):
            yield from _below(item, templates.code(mentioned["name"]), noun_of(mentioned["noun"]), source)
        return
    name, rest = templates.code((match["name"] or match["flag"]).strip("'\"")), match["rest"]
    if match["flag"]:
        if match["flag"].startswith("--no-"):  # one of two, and the text tells of the other
            return
        noun = noun or "option"
    function = name_of(item.within) if noun in ("parameter", "argument") else ""
    if function.endswith("()"):  # other functions have parameters of this name
        source = replace(source, title=function)
    if len(name.split()) > 3 or re.search(r"[{:=]", name):
        return
    if _ONLY_DEFAULT.search(match["notes"]) and code_like(source.title) and not same(name, source.title):
        yield templates.default(source, source.title, "", name)
    if found := _IN_NOTES.search(match["notes"]):
        noun = noun or "option"
        yield templates.default(source, name, noun, found[1])
    elif (found := _STATED.search(rest) or _AT_THE_END.search(rest)) and not (
        found[1].startswith("to ") or _SOMETIMES.search(rest[: found.end(1)])
    ):
        yield templates.default(source, name, noun, found[1])
    if (typed := _TYPED.match(rest)) and _TYPE_WORDS.fullmatch(typed["type"]):
        yield templates.typed(source, name, noun, typed["type"])
        rest = typed["rest"]
    yield described(source, name, noun, _STATED.sub("", rest))
    yield from _below(item, name, noun, source)


def _below(item: ListItem, name: str, noun: str, source: Source) -> Iterator[Fact | None]:
    """Yield the default that a nested item states."""
    for text in item.below:
        if found := re.fullmatch(r"Default(?: value)?:\s*(.+?)(?:\s*\([^)]*\))?\.?", text):
            yield templates.default(source, name, noun, bare(found[1]))


MOST_A_DOCUMENT, ONE_DOCUMENT = 200, 20


def facts_of(documents: Sequence[Document]) -> list[Fact]:
    """Return the facts of the documents, in order, each key once.

    Ambiguous facts (a key or question with two answers, in one document or several) are dropped. Of a document with
    more than ``MOST_A_DOCUMENT`` facts, a sample by key is kept.
    """
    found = [_spread(list(_of(document))) for document in documents]
    return _unambiguous([fact for facts in found for fact in facts])


def pick_facts(facts: Iterable[Fact], count: int, seed: int) -> list[Fact]:
    """Return up to ``count`` facts, one per document in turn; facts with a guessable value come last.

    No document contributes more facts than all others together (at least ``ONE_DOCUMENT``), so that a long table does
    not dominate.
    """
    queues: dict[str, list[Fact]] = defaultdict(list)
    for fact in sorted(facts, key=lambda f: (f.guessed, share(f.key, f"fact {seed}"))):
        queues[fact.document].append(fact)
    total = sum(map(len, queues.values()))
    if len(queues) > 1:
        queues |= {d: found[: max(ONE_DOCUMENT, total - len(found))] for d, found in queues.items()}
    order = sorted(queues, key=lambda document: share(document, f"document {seed}"))
    ranked = [(f.guessed, turn, rank, f) for rank, d in enumerate(order) for turn, f in enumerate(queues[d])]
    return [f for *_, f in sorted(ranked, key=lambda entry: entry[:3])][:count]


def _of(document: Document) -> Iterator[Fact]:
    likely = language_of(document.text)
    kinds = kinds_in(document.text)
    first = True
    for block in blocks(document):
        source = Source(document.id, document.title, block.heading)
        extracted: Iterable[Fact | None]
        # Few words of a table are function words, and its header is translated first.
        language = likely if isinstance(block, Table) else language_within(block.text, likely)
        if language.fact:
            extracted = translated.from_block(block, source, language)
            if language.decimal_comma:
                extracted = map(_in_both_decimals, extracted)
        elif isinstance(block, Table):
            extracted = from_table(block, source)
        elif isinstance(block, ListItem):
            extracted = chain(from_item(block, source), from_text(block.text, source, kinds), of_entry(block, source))
        else:
            extracted = chain(from_text(block.text, source, kinds), of_section(block, source))
            if first and len(sentences_in(block.text)) == 1:
                extracted = chain(extracted, [titled(block.text, source, kinds)])
            first = False
        yield from (fact for fact in extracted if fact is not None)


def _in_both_decimals(fact: Fact | None) -> Fact | None:
    """Return a fact that accepts "1.5" for "1,5", and the other way round."""
    if fact is None:
        return None
    others = map(with_other_decimals, fact.answers)
    return replace(fact, answers=tuple(dict.fromkeys((*fact.answers, *others))))


def _spread(facts: list[Fact]) -> list[Fact]:
    if len(facts) <= MOST_A_DOCUMENT:
        return facts
    kept = set(sorted({f.key for f in facts}, key=lambda key: share(key, "spread"))[:MOST_A_DOCUMENT])
    return [f for f in facts if f.key in kept]


def _unambiguous(facts: list[Fact]) -> list[Fact]:
    """Return each key once, without facts whose key or a question of theirs has another answer elsewhere."""
    answers: dict[str, set[str]] = defaultdict(set)
    for fact in facts:
        for name in (fact.key, *map(normalise, fact.questions)):
            answers[name].add(normalise(fact.value))
    kept: dict[str, Fact] = {}
    for fact in facts:
        if all(len(answers[name]) == 1 for name in (fact.key, *map(normalise, fact.questions))):
            kept.setdefault(fact.key, fact)
    return list(kept.values())
