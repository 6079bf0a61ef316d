"""The data of several cycles without what later documents replace.

A cycle often brings a newer version of a document that an earlier one had. Then the newer one counts: the older is not
rehearsed, no question is asked about it in training, and of its probes those are asked whose answers still hold
(:func:`fate`). A model that gives an answer of the older version is out of date, not right; one that no longer gives it
has not forgotten anything.

A cycle can also withdraw documents. What is withdrawn is named by document, file, folder or pattern; the same names
choose among the documents that questions and probes say they are about. A cycle is trained without it
(:func:`left_out`), and so are later ones.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from enum import Enum
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from evals.answer_matching import contains, normalise
from evals.probes import NATURAL, probes_hash
from pipelines.data.corpus_snapshot import CorpusSnapshot, saved_snapshots
from recovery.data.corpus.cloze import same_root
from recovery.data.corpus.documents import Document, corpus_hash
from recovery.data.corpus.facts.extraction import facts_of
from recovery.data.corpus.revisions import Revision, revised, whole_texts
from recovery.data.corpus.sentences import plain_text
from recovery.data.prompt_records import documents_of
from recovery.errors import UsageError
from recovery.types import Probe

if TYPE_CHECKING:
    from pipelines.runtime.session import Session

# Of the question's words in the old statement, the share from which a new statement with the answer says the same.
REWORDED = 0.75
# The least share of a statement's words, without the answer, in its counterpart. From npm 6 to 11 and Fastify 3 to 5
# it is 1 if a value was replaced, and 0.4 to 0.6 if the sentence was rewritten.
LEAST_LIKE = 0.75
LONGEST = 2  # times the words of a statement: a much longer one contains them by chance


class Fate(Enum):
    """What became of a probe: its answer holds, the newer version gives another one, or none."""

    CURRENT = "current"
    CHANGED = "changed"
    GONE = "gone"


def fate(probe: Probe, revision: Revision) -> Fate:
    """Return what became of a probe about a revised document.

    If the same question is made from the newer version, its answer decides, since a default may stand in another line
    than its name. Otherwise the statements that contain one of the answers are compared.

    - CURRENT: a statement of the newer version with the answer shares as many words with the question as the best one
    of the older version, or a new such statement shares most of those words.

    - CHANGED: no new statement with the answer shares a word with the question, and none shares half as many. Another
    statement takes the place of the old one: it has most of its words, at least one more, and no other form of the
    answer.

    - GONE: anything else, as nothing is known then.
    """
    if now_answered := _now_answered(probe, revision):
        same = not now_answered.isdisjoint(map(normalise, probe.answers))
        return Fate.CURRENT if same else Fate.CHANGED
    answers = words(" ".join(probe.answers))
    asked = words(f"{probe.question} {probe.passage}") - answers

    def common(statement: str) -> int:
        return len(asked & words(statement))

    old = _with_answer(revision.old, probe.answers)
    if not old:
        return Fate.GONE
    stated = max(old, key=common)
    known = set(map(words, revision.old))
    still = _with_answer(revision.new, probe.answers)
    now = max(map(common, still), default=-1)
    reworded = max((common(one) for one in still if words(one) not in known), default=-1)
    if now >= common(stated) or reworded >= REWORDED * common(stated):
        return Fate.CURRENT
    if reworded > 0 or now >= common(stated) / 2:  # it may say the same in other words
        return Fate.GONE
    instead = [one for one in revision.new if words(one) not in known and words(one) - words(stated)]
    instead = [one for one in instead if len(words(one)) <= LONGEST * len(words(stated))]
    likest = max(instead, key=lambda one: _overlap(stated, one, answers), default="")
    if _overlap(stated, likest, answers) < LEAST_LIKE:
        return Fate.GONE
    # "properties" is a form of "property", "behavior" of "behaviour".
    another_form = all(any(same_root(word, other) for other in words(likest)) for word in answers)
    return Fate.GONE if another_form else Fate.CHANGED


def _now_answered(probe: Probe, revision: Revision) -> frozenset[str]:
    """Return the answers that the newer version gives to a question which a rule made from the older one."""
    if revision.newer is None or NATURAL not in probe.tags:
        return frozenset()
    return _answers(revision.newer).get(normalise(probe.question), frozenset())


@lru_cache(maxsize=1000)
def _answers(document: Document) -> dict[str, frozenset[str]]:
    """Return the normalised answers to each question that the rules make from a document."""
    return {
        normalise(fact.brief_question(wording)): frozenset(map(normalise, fact.answers))
        for fact in facts_of([document])
        for wording in range(len(fact.questions))
    }


@lru_cache(maxsize=100_000)
def words(text: str) -> frozenset[str]:
    """Return the normalised words of a text without its markup: an address is no part of a link's word."""
    return frozenset(normalise(plain_text(text)).split())


@lru_cache(maxsize=100_000)
def _with_and_without_markup(text: str) -> tuple[str, frozenset[str]]:
    """Return a text in both forms, as an answer may hold markup, and its normalised words."""
    both = f"{text}\n{plain_text(text)}"
    return both, frozenset(normalise(both).split())


def _with_answer(statements: Sequence[str], answers: Sequence[str]) -> list[str]:
    wanted = [frozenset(normalise(answer).split()) for answer in answers]
    holding = []
    for statement in statements:
        both, present = _with_and_without_markup(statement)
        if any(tokens <= present for tokens in wanted) and contains(both, answers):
            holding.append(statement)
    return holding


def _overlap(one: str, other: str, answers: frozenset[str]) -> float:
    """Return the share of one statement's words, without the answers', in the other; 0 if nearly all are answers."""
    remaining = words(one) - answers
    return len(remaining & words(other)) / len(remaining) if len(remaining) > len(words(one)) / 4 else 0.0


# Normalised answers by document and normalised question.
Asked = Mapping[tuple[str, str], frozenset[str]]


def current_snapshots(session: Session, cycles: Iterable[int], trained: Collection[int]) -> dict[int, CorpusSnapshot]:
    """Return the snapshots of those ``cycles`` that have documents, as :func:`up_to_date` for a model."""
    return up_to_date(saved_snapshots(session, cycles), trained)


def up_to_date(corpora: Mapping[int, CorpusSnapshot], trained: Collection[int]) -> dict[int, CorpusSnapshot]:
    """Return corpora without the documents, questions and probes that later ones replace, for a model that was
    ``trained`` on the documents of those cycles: what it never read replaces nothing, also of those cycles what is
    held out whole.

    Documents that one of them withdraws are left out with all that is about them.

    Probes of which the newer version gives another answer are ``outdated``. Held-out texts stay as they are, so that
    bits per byte are measured on the same text in every cycle.
    """
    texts = {number: whole_texts((*corpus.documents, *corpus.held_out)) for number, corpus in corpora.items()}
    later = [number for number in sorted(corpora) if number in trained and corpora[number].replaces]
    unread = {(number, name) for number in later for name in whole_texts(corpora[number].held_out)}
    unread -= {(number, name) for number in later for name in whole_texts(corpora[number].documents)}
    replaced = revised(texts, later, unread)
    current = {}
    for number, corpus in corpora.items():
        after = [corpora[k] for k in sorted(corpora) if k > number and k in trained]
        removed = withdrawn(corpus, after)
        if replaced[number] or removed:
            corpus = _without(corpus, replaced[number], removed, _asked(one for one in after if one.replaces))
        current[number] = corpus
    return current


def withdrawn(corpus: CorpusSnapshot, later: Iterable[CorpusSnapshot]) -> set[str]:
    """Return what later corpora withdraw, as :func:`named`."""
    return named(corpus, {name for one in later for name in one.withdrawn})


def named(corpus: CorpusSnapshot, names: Collection[str]) -> set[str]:
    """Return the ids of the documents with one of the names, and of what questions and probes say they are about."""
    ids = {document.id for document in (*corpus.documents, *corpus.held_out)} if names else set()
    ids |= {probe.source for probe in corpus.probes if names and not probe.control}
    ids |= {id for question in corpus.questions if names for id in documents_of(question)}
    return {id for id in ids if _is_named(id, names)}


def left_out(corpus: CorpusSnapshot, names: Collection[str]) -> CorpusSnapshot:
    """Return a corpus as if what is named had never been in its folder."""
    if not (removed := named(corpus, names)):
        return corpus
    remaining = _without(corpus, {}, removed, {})
    held = tuple(document for document in corpus.held_out if document.id not in removed)
    count = len(corpus.documents) + len(corpus.held_out) - len(remaining.documents) - len(held)
    return replace(
        remaining,
        held_out=held,
        gone=(),
        hash=corpus_hash(remaining.documents, held),
        probes_hash=probes_hash(remaining.probes),
        lines=(*corpus.lines, f"left out {count} documents that are withdrawn, with the questions about them"),
    )


def check_withdrawn(corpora: Mapping[int, CorpusSnapshot], own: CorpusSnapshot) -> None:
    """Raise UsageError for a name that a corpus withdraws, and neither it nor an earlier one has."""
    known = {d.id for one in (*corpora.values(), own) for d in (*one.documents, *one.held_out)}
    before = {name for one in corpora.values() for name in one.withdrawn}
    for name in own.withdrawn:
        if name not in before and not any(_is_named(id, {name}) for id in known):
            raise UsageError(
                f"--withdraw {name}: no document of an earlier cycle, or of these, has this name, nor is in it"
                f"{near_name(name, known)}"
            )


def near_name(name: str, known: Collection[str]) -> str:
    """Return a question after the documents that may be meant; "" if none has a name like it."""
    begin = f"{name.casefold()}*"
    if count := sum(_is_named(id, {begin}) for id in known):
        return f": did you mean '{begin}' ({count} documents)?"
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return f": did you mean {close[0]}?" if close else ""


def _is_named(id: str, names: Collection[str]) -> bool:
    """Whether a document, the document it is a part of, or its folder is named or fits a pattern, ignoring case."""
    path = id.partition("#")[0]
    own = {id, path, *(parent.as_posix() for parent in PurePosixPath(path).parents)} - {"."}
    if not own.isdisjoint(name.rstrip("/") for name in names):
        return True
    patterns = [name.casefold() for name in names if any(mark in name for mark in "*?")]
    return any(fnmatchcase(one.casefold(), pattern) for pattern in patterns for one in own)


def revision_lines(original: Mapping[int, CorpusSnapshot], current: Mapping[int, CorpusSnapshot]) -> list[str]:
    """Return a line for each corpus of which later ones replace or withdraw documents; ``current`` is what remains."""
    lines = []
    for number, remaining in current.items():
        documents, probes = {d.id for d in original[number].documents}, original[number].probes
        if remaining is original[number]:
            continue
        gone = documents & withdrawn(original[number], (one for k, one in original.items() if k > number))
        newer = documents - gone - {document.id for document in remaining.documents}
        what = {"have a newer version, which counts": newer, "are withdrawn": gone}
        parts = [
            f"{len(ids)} of the {len(documents)} documents of cycle {number} {how}" for how, ids in what.items() if ids
        ]
        if not parts:  # what is withdrawn was held out
            continue
        lines.append(
            f"{'; '.join(parts)}: {'they are' if gone else 'the older one is'} neither rehearsed nor "
            f"asked about in training; of {len(probes)} probes of that cycle {len(remaining.outdated)} are outdated, "
            f"and {len(remaining.gone)} no longer asked"
        )
    return lines


def _asked(later: Iterable[CorpusSnapshot]) -> Asked:
    """Return the normalised answers to each question that comes with the newest version of a document."""
    answers_to: dict[tuple[str, str], frozenset[str]] = {}
    for corpus in later:
        own = {document.id for document in corpus.documents}
        answers_to = {key: answers for key, answers in answers_to.items() if key[0] not in own}
        for probe in corpus.probes:
            if probe.form == "question" and not probe.control:
                key = (probe.source, normalise(probe.question))
                answers_to[key] = answers_to.get(key, frozenset()) | frozenset(map(normalise, probe.answers))
    return answers_to


def _without(
    corpus: CorpusSnapshot, replaced: Mapping[str, Revision], out: Collection[str], asked: Asked
) -> CorpusSnapshot:
    fates = {
        probe.id: Fate.GONE if probe.source in out and not probe.control else _fate(probe, replaced, asked)
        for probe in corpus.probes
    }
    removed = {*replaced, *out}
    return replace(
        corpus,
        documents=tuple(document for document in corpus.documents if document.id not in removed),
        questions=tuple(question for question in corpus.questions if documents_of(question).isdisjoint(removed)),
        texts=tuple(text for text in corpus.texts if text.document not in removed),
        probes=tuple(probe for probe in corpus.probes if fates[probe.id] is Fate.CURRENT),
        outdated=tuple(probe for probe in corpus.probes if fates[probe.id] is Fate.CHANGED),
        gone=tuple(probe for probe in corpus.probes if fates[probe.id] is Fate.GONE),
    )


def _fate(probe: Probe, replaced: Mapping[str, Revision], asked: Asked) -> Fate:
    """Return what became of a probe; if the newer version comes with the same question, its answers decide."""
    if probe.control or probe.absent or probe.source not in replaced:
        return Fate.CURRENT
    now = asked.get((probe.source, normalise(probe.question))) if probe.form == "question" else None
    if now is None:
        return fate(probe, replaced[probe.source])
    return Fate.CHANGED if now.isdisjoint(map(normalise, probe.answers)) else Fate.CURRENT
