"""The facts of documents: every rule on every block, what is ambiguous left out, spread over the documents."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from recovery.corpus.documents import Document
from recovery.corpus.facts.blocks import ListItem, Table, blocks, sentences_in
from recovery.corpus.facts.lists import from_item
from recovery.corpus.facts.prose import from_text, kinds_in, titled
from recovery.corpus.facts.record import Fact
from recovery.corpus.facts.tables import from_table
from recovery.corpus.facts.wording import Source
from recovery.corpus.text import normalise, share

MOST_A_DOCUMENT, ONE_DOCUMENT = 200, 20


def facts_of(documents: Sequence[Document]) -> list[Fact]:
    """The facts of the documents, in their order, each key once.

    Left out is what is ambiguous: a key or a question that has two answers, in one document or over several. Of a
    document that states more than ``MOST_A_DOCUMENT`` a choice by their keys is kept.
    """
    found = [_spread(list(_of(document))) for document in documents]
    return _unambiguous([fact for facts in found for fact in facts])


def pick_facts(facts: Iterable[Fact], count: int, seed: int) -> list[Fact]:
    """Up to ``count`` facts, one of each document in turn; those whose value anybody would guess come last.

    No document gives more than all others together (or ``ONE_DOCUMENT``): a long table swamps nothing.
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
    kinds = kinds_in(document.text)
    first = True
    for block in blocks(document):
        source = Source(document.id, document.title, block.heading)
        if isinstance(block, Table):
            made = from_table(block, source)
        elif isinstance(block, ListItem):
            made = _all(from_item(block, source), from_text(block.text, source, kinds))
        else:
            made = from_text(block.text, source, kinds)
            if first and len(sentences_in(block.text)) == 1:
                made = _all(made, iter([titled(block.text, source, kinds)]))
            first = False
        yield from (fact for fact in made if fact is not None)


def _all(*parts: Iterator[Fact | None]) -> Iterator[Fact | None]:
    for part in parts:
        yield from part


def _spread(facts: list[Fact]) -> list[Fact]:
    if len(facts) <= MOST_A_DOCUMENT:
        return facts
    chosen = sorted({f.key for f in facts}, key=lambda key: share(key, "spread"))[:MOST_A_DOCUMENT]
    kept = set(chosen)
    return [f for f in facts if f.key in kept]


def _unambiguous(facts: list[Fact]) -> list[Fact]:
    """Each key once, without those whose key, or a wording of theirs, has another answer elsewhere."""
    answers: dict[str, set[str]] = defaultdict(set)
    for fact in facts:
        for name in (fact.key, *map(normalise, fact.questions)):
            answers[name].add(normalise(fact.value))
    kept: dict[str, Fact] = {}
    for fact in facts:
        if all(len(answers[name]) == 1 for name in (fact.key, *map(normalise, fact.questions))):
            kept.setdefault(fact.key, fact)
    return list(kept.values())
