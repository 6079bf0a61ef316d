"""Other wordings of what documents say, and questions with their answers: text to mid-train on beside the documents.

Plain documents store facts and hardly make them answerable (arXiv 2402.12847); several wordings and question forms of
each help (2508.09494). Wordings are statements, and made of every fact. They stand in texts, and in answers to requests
to tell about a subject or a section: what was only read as text is hardly said in a chat. Questions that ask for a fact
are made only of facts that no probe asks for, in any wording: what measures is never trained.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from recovery.corpus.documents import Document
from recovery.corpus.facts import Fact, enumerations, facts_of
from recovery.corpus.passages import sections
from recovery.corpus.sentences import sentences
from recovery.questions import ProbeGuard, askable_facts
from recovery.types import Message, Probe

_TOGETHER = 4  # statements in one paragraph
_ABOUT = (
    "What do you know about {subject}?",
    "Tell me about {subject}.",
    "What should I know about {subject}?",
    "Give me the facts about {subject}.",
)
_SECTION, _PAGE, _NEXT = (
    'What does "{title}" say about "{heading}"?',
    'What is "{title}" about?',
    'What comes after this in "{title}"? "{before}"',
)

Conversation = tuple[Message, ...]


@dataclass(frozen=True)
class Augmented:
    """Texts to learn as documents are, chats that tell the same, and chats that ask for a fact; of both the answers are
    learnt. ``facts`` and ``asked`` count facts.
    """

    documents: tuple[Document, ...] = ()
    told: tuple[Conversation, ...] = ()
    conversations: tuple[Conversation, ...] = ()
    facts: int = 0
    asked: int = 0

    @property
    def characters(self) -> tuple[int, int]:
        """Of what is learnt in one pass: of the texts and what is told, and of the answers that were asked for."""
        told, asked = (sum(len(c[-1]["content"]) for c in chats) for chats in (self.told, self.conversations))
        return sum(len(d.text) for d in self.documents) + told, asked


def augment(documents: Sequence[Document], probes: Sequence[Probe], *, wordings: int, seed: int = 0) -> Augmented:
    """Up to ``wordings`` other wordings of each fact of the documents, and as many questions about those that
    training may ask for: on the side of questions, and asked by none of ``probes`` in any words.

    The same documents, probes and seed give the same texts.
    """
    facts = facts_of(documents)
    guard = ProbeGuard(probes)
    mine = askable_facts(facts, guard)
    chats = [chat for turn in range(wordings) for fact in mine if (chat := _chat(fact, turn, guard))]
    told = [
        (request, said)
        for request, said in _told(documents, facts, wordings)
        if not guard.has_wording(request["content"]) and not guard.tells_the_answer(request["content"], said["content"])
    ]
    texts = _texts(documents, facts, wordings, seed)
    return Augmented(tuple(texts), tuple(told), tuple(chats), len(facts), len(mine))


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


def _told(documents: Sequence[Document], facts: Sequence[Fact], wordings: int) -> Iterator[tuple[Message, Message]]:
    """Requests to tell about each subject, in so many wordings, and about each section, passage by passage."""
    titles = {document.id: document.title for document in documents}
    of: dict[tuple[str, str], list[Fact]] = defaultdict(list)
    for fact in facts:
        described = not fact.subject or ": " in fact.subject  # to name what a fact says of it would ask for it
        of[fact.document, titles[fact.document] if described else fact.subject].append(fact)
    for turn in range(wordings):
        for (_, subject), about in of.items():
            said = [fact.statements[turn] for fact in about if turn < len(fact.statements)]
            name = subject if " " in subject or "`" in subject else f"`{subject}`"
            for at in range(0, len(said), _TOGETHER):
                yield _turns(_ABOUT[turn % len(_ABOUT)].format(subject=name), " ".join(said[at : at + _TOGETHER]))
    for section in sections(sentences(documents, alone=False)) if wordings else ():
        before = ""
        for passage in section:
            first = passage.sentences[0]
            form = _NEXT if before else _SECTION if first.heading else _PAGE
            yield _turns(form.format(title=first.title, heading=first.heading, before=before), passage.line)
            before = passage.sentences[-1].plain


def _turns(question: str, answer: str) -> tuple[Message, Message]:
    return (Message(role="user", content=question), Message(role="assistant", content=answer))


def _chat(fact: Fact, turn: int, guard: ProbeGuard) -> Conversation | None:
    """A question in one of its wordings: where it asks to be brief the value answers it, else a whole sentence."""
    if turn >= len(fact.questions):
        return None
    brief = turn % 2 == 0
    question = f"{fact.questions[turn]} {fact.brief}" if brief else fact.questions[turn]
    if guard.has_wording(question) or guard.asks_the_same(question, fact.value):
        return None
    answer = fact.value if brief else fact.statements[turn % len(fact.statements)]
    return _turns(question, answer)
