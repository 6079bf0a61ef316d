"""Augmentation of documents for mid-training: paraphrases of their facts, and question-answer chats about them.

Training on plain documents stores facts but rarely makes them answerable (arXiv 2402.12847); several paraphrases and
question forms of each fact help (arXiv 2508.09494). Every fact is paraphrased, as text and in answers to requests to
describe a subject or a section, because a model rarely reproduces in a chat what it read only as text. Questions are
generated only for facts that no probe asks for in any wording, so that no test item is trained on.

The entries of a table or list are also named in sentences that enumerate them (:func:`enumerations`).
"""

from __future__ import annotations

import random
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from recovery.data.corpus.cloze import sections
from recovery.data.corpus.documents import Document
from recovery.data.corpus.facts.blocks import ListItem, Table, blocks
from recovery.data.corpus.facts.extraction import facts_of
from recovery.data.corpus.facts.fact import Fact, noun_of
from recovery.data.corpus.facts.templates import Source, bare, code, start
from recovery.data.corpus.languages import language_within, languages_of
from recovery.data.corpus.sentences import sentences
from recovery.data.corpus.text import join_sentences
from recovery.data.document_questions import ProbeGuard, askable_facts
from recovery.types import Message, Probe

_FEWEST, _MOST = 2, 12  # entries that one sentence names
_NAMED = re.compile(r"`([^`]+)`(?:\s*\([^()]*\))*\s*(?:[:–—]|-\s).*")


def enumerations(document: Document) -> list[tuple[str, ...]]:
    """Return, for every table or list of named entries of one kind, several wordings of a sentence that names them."""
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    for number, block in enumerate(blocks(document)):
        if isinstance(block, Table):
            noun = noun_of(bare(block.header[0]))
            names = [bare(row[0]) for row in block.rows if re.fullmatch(r"`[^`]+`(?: \(default\))?", row[0])]
            if noun and len(names) == len(block.rows):
                found[noun, f"{block.heading} {number}"] = [name.removesuffix(" (default)") for name in names]
        elif isinstance(block, ListItem) and (match := _NAMED.fullmatch(block.text)):
            noun = noun_of(block.intro, plural=True) or noun_of(block.heading, plural=True)
            if noun:
                found[noun, block.heading].append(match[1])
    source = Source(document.id, document.title)
    return [_wordings(source, noun, names) for (noun, _), names in found.items() if _FEWEST <= len(set(names)) <= _MOST]


def _wordings(source: Source, noun: str, names: list[str]) -> tuple[str, ...]:
    names = [code(name) for name in dict.fromkeys(names)]
    plural = f"{noun[:-1]}ies" if re.search(r"[^aeiou]y$", noun) else f"{noun}es" if noun.endswith("s") else f"{noun}s"
    several = f"{', '.join(names[:-1])} and {names[-1]}"
    back = f"{', '.join(names[:0:-1])} and {names[0]}"
    return (
        start(f"the {plural} of {source.shown} are {several}."),
        start(f"{source.shown} has {len(names)} {plural}: {several}."),
        start(f"{back} are {plural} of {source.shown}."),
    )


_PER_PARAGRAPH = 4  # statements

Conversation = tuple[Message, ...]


@dataclass(frozen=True)
class Augmented:
    """Generated training data: ``documents``, ``descriptions`` (chats that describe a subject or a
    section) and ``conversations`` (chats that ask for a fact). In chats only the answers are trained on.

    ``facts`` is the number of facts, ``askable`` the number of facts that ``conversations`` may ask for.
    """

    documents: tuple[Document, ...] = ()
    descriptions: tuple[Conversation, ...] = ()
    conversations: tuple[Conversation, ...] = ()
    facts: int = 0
    askable: int = 0

    @property
    def characters(self) -> tuple[int, int]:
        """Characters trained on per epoch: (documents and answers of descriptions, answers of conversations)."""
        kinds = self.descriptions, self.conversations
        described, asked = (sum(len(chat[-1]["content"]) for chat in chats) for chats in kinds)
        return sum(len(d.text) for d in self.documents) + described, asked


def augment(documents: Sequence[Document], probes: Sequence[Probe], *, wordings: int, seed: int = 0) -> Augmented:
    """Return up to ``wordings`` paraphrases of each fact in the documents, and as many questions about each fact
    that training may ask for: one assigned to the question side and asked for by none of ``probes`` in any wording.

    Deterministic for the same documents, probes and seed.
    """
    facts = facts_of(documents)
    guard = ProbeGuard(probes)
    askable = askable_facts(facts, guard)
    chats = [chat for turn in range(wordings) for fact in askable if (chat := _chat(fact, turn, guard))]
    descriptions = []
    for turns in _descriptions(documents, facts, wordings):
        request, answer = (turn["content"] for turn in turns)
        if not guard.has_wording(request) and not guard.tells_the_answer(request, answer):
            descriptions.append(turns)
    texts = _texts(documents, facts, wordings, seed)
    return Augmented(tuple(texts), tuple(descriptions), tuple(chats), len(facts), len(askable))


def _texts(documents: Sequence[Document], facts: Sequence[Fact], wordings: int, seed: int) -> list[Document]:
    """Return one text per document and wording: its facts in that wording, shuffled, under its title."""
    by_document: dict[str, list[Fact]] = defaultdict(list)
    for fact in facts:
        by_document[fact.document].append(fact)
    texts = []
    for document in documents:
        lists = enumerations(document)
        for turn in range(wordings):
            lines = [fact.statements[turn] for fact in by_document[document.id] if turn < len(fact.statements)]
            lines += [wording[turn] for wording in lists if turn < len(wording)]
            random.Random(f"{seed}:{turn}:{document.id}").shuffle(lines)
            parts = [join_sentences(lines[n : n + _PER_PARAGRAPH]) for n in range(0, len(lines), _PER_PARAGRAPH)]
            if parts:
                text = "\n\n".join([f"# {document.title}", *parts])
                texts.append(replace(document, id=f"{document.id}#wording-{turn + 1}", text=text))
    return texts


def _descriptions(
    documents: Sequence[Document], facts: Sequence[Fact], wordings: int
) -> Iterator[tuple[Message, Message]]:
    """Yield chats that describe each subject, in each of the wordings, and each section, passage by passage."""
    titles = {document.id: document.title for document in documents}
    likely = languages_of(documents)
    by_subject: dict[tuple[str, str], list[Fact]] = defaultdict(list)
    for fact in facts:
        is_unusable = not fact.subject or ": " in fact.subject  # such a subject in a request would ask for the fact
        by_subject[fact.document, titles[fact.document] if is_unusable else fact.subject].append(fact)
    for turn in range(wordings):
        for (document, subject), subject_facts in by_subject.items():
            asks = likely[document].describe.subject
            lines = [fact.statements[turn] for fact in subject_facts if turn < len(fact.statements)]
            name = subject if " " in subject or "`" in subject else f"`{subject}`"
            request = asks[turn % len(asks)].format(subject=name)
            for at in range(0, len(lines), _PER_PARAGRAPH):
                yield _turns(request, join_sentences(lines[at : at + _PER_PARAGRAPH]))
    for section in sections(sentences(documents, alone=False)):
        before = ""
        for passage in section:
            first = passage.sentences[0]
            forms = language_within(passage.line, likely[first.document]).describe
            form = forms.next if before else forms.section if first.heading else forms.page
            yield _turns(form.format(title=first.title, heading=first.heading, before=before), passage.line)
            before = passage.sentences[-1].plain


def _turns(question: str, answer: str) -> tuple[Message, Message]:
    return (Message(role="user", content=question), Message(role="assistant", content=answer))


def _chat(fact: Fact, turn: int, guard: ProbeGuard) -> Conversation | None:
    """Return the fact's question in one wording: a brief form answered by the value, or a plain one by a sentence."""
    if turn >= len(fact.questions):
        return None
    brief = turn % 2 == 0
    question = fact.brief_question(turn) if brief else fact.questions[turn]
    if guard.asks_the_same(question, fact.value):
        return None
    answer = fact.value if brief else fact.statements[turn % len(fact.statements)]
    return _turns(question, answer)
