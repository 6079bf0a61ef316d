"""Other wordings of what documents say, and questions with their answers: text to mid-train on beside the documents.

Plain documents store facts and hardly make them answerable (arXiv 2402.12847); several wordings and question forms of
each help (2508.09494). Wordings are statements, and made of every fact. Questions are made only of facts that no probe
asks for, in any wording: what measures is never trained.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from recovery.corpus.documents import Document
from recovery.corpus.facts import Fact, enumerations, facts_of
from recovery.questions import ProbeGuard, askable_facts
from recovery.types import Message, Probe

_TOGETHER = 4  # statements in one paragraph

Conversation = tuple[Message, ...]


@dataclass(frozen=True)
class Augmented:
    """Texts to learn as documents are, and chats whose answers are learnt; ``facts`` and ``asked`` count facts."""

    documents: tuple[Document, ...] = ()
    conversations: tuple[Conversation, ...] = ()
    facts: int = 0
    asked: int = 0

    @property
    def characters(self) -> tuple[int, int]:
        """Of what is learnt in one pass: of the texts, and of the answers."""
        return sum(len(d.text) for d in self.documents), sum(len(c[-1]["content"]) for c in self.conversations)


def augment(documents: Sequence[Document], probes: Sequence[Probe], *, wordings: int, seed: int = 0) -> Augmented:
    """Up to ``wordings`` other wordings of each fact of the documents, and as many questions about those that
    training may ask for: on the side of questions, and asked by none of ``probes`` in any words.

    The same documents, probes and seed give the same texts.
    """
    facts = facts_of(documents)
    guard = ProbeGuard(probes)
    mine = askable_facts(facts, guard)
    chats = [chat for turn in range(wordings) for fact in mine if (chat := _chat(fact, turn, guard))]
    return Augmented(tuple(_texts(documents, facts, wordings, seed)), tuple(chats), len(facts), len(mine))


def _texts(documents: Sequence[Document], facts: Sequence[Fact], wordings: int, seed: int) -> list[Document]:
    """One text a document and turn: its facts in their next wording, in another order, under its title."""
    of: dict[str, list[Fact]] = defaultdict(list)
    for fact in facts:
        of[fact.document].append(fact)
    made = []
    for document in documents:
        lists = enumerations(document)
        for turn in range(wordings):
            said = [fact.statements[turn] for fact in of[document.id] if turn < len(fact.statements)]
            said += [wording[turn] for wording in lists if turn < len(wording)]
            random.Random(f"{seed}:{turn}:{document.id}").shuffle(said)
            parts = [" ".join(said[n : n + _TOGETHER]) for n in range(0, len(said), _TOGETHER)]
            if parts:
                text = "\n\n".join([f"# {document.title}", *parts])
                made.append(replace(document, id=f"{document.id}#wording-{turn + 1}", text=text))
    return made


def _chat(fact: Fact, turn: int, guard: ProbeGuard) -> Conversation | None:
    """A question in one of its wordings: where it asks to be brief the value answers it, else a whole sentence."""
    if turn >= len(fact.questions):
        return None
    brief = turn % 2 == 0
    question = f"{fact.questions[turn]} {fact.brief}" if brief else fact.questions[turn]
    if guard.has_wording(question) or guard.asks_the_same(question, fact.value):
        return None
    answer = fact.value if brief else fact.statements[turn % len(fact.statements)]
    return (Message(role="user", content=question), Message(role="assistant", content=answer))
