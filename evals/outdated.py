"""Probes whose document was revised: whether their answers still hold.

A model that gives the old answer to such a question is not right but out of date, and one that does not has not
forgotten anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from functools import lru_cache

from evals.answer_matching import contains, normalise
from evals.probe_formats import NATURAL
from recovery.data.corpus.cloze import same_root
from recovery.data.corpus.documents import Document
from recovery.data.corpus.facts.extraction import facts_of
from recovery.data.corpus.revisions import Revision
from recovery.data.corpus.sentences import plain_text
from recovery.types import Probe

REWORDED = 0.75  # of the words of the question that the old statement has: a new one with the answer says the same
# Of the words of a statement, without the answer, those that its counterpart has too. Of npm 6 and 11 and Fastify 3 and
# 5 the counterparts of values that were replaced have all of them, those of sentences that were rewritten 0.4 to 0.6.
LEAST_LIKE = 0.75
LONGEST = 2  # times the words of a statement: one that is much longer has its few words by chance


class Fate(Enum):
    """What became of a probe: its answer holds, the newer version gives another one, or none."""

    CURRENT = "current"
    CHANGED = "changed"
    GONE = "gone"


def fate(probe: Probe, revision: Revision) -> Fate:
    """Return what became of a probe about a revised document.

    If the same question is made from the newer version, its answer decides: a default stands in another line than the
    name that it is of. Else the statements that contain one of the answers do.
    The answer holds if the newer version has a statement with it that has as many words of the question as the one in
    the older version, or a new one that has most of them. It changed if no new statement with it has any, none has half
    as many, and another one is in the place of the old: a new one with most of its words, with one that this lacks, and
    without another form of the answer. Else nothing is known.
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
    likest = max(instead, key=lambda one: _alike(stated, one, answers), default="")
    if _alike(stated, likest, answers) < LEAST_LIKE or _in_another_form(answers, words(likest)):
        return Fate.GONE
    return Fate.CHANGED


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
    found = []
    for statement in statements:
        both, present = _with_and_without_markup(statement)
        if any(of <= present for of in wanted) and contains(both, answers):
            found.append(statement)
    return found


def _in_another_form(answers: frozenset[str], statement: frozenset[str]) -> bool:
    """Return whether a statement has a form of each word of the answers: "properties", "behavior" for "behaviour"."""
    return all(any(same_root(word, other) for other in statement) for word in answers)


def _alike(one: str, other: str, answers: frozenset[str]) -> float:
    """Return the share of the words of a statement, without those of the answers, that the other has too; 0 if it is
    nearly all answer.
    """
    rest = words(one) - answers
    return len(rest & words(other)) / len(rest) if len(rest) > len(words(one)) / 4 else 0.0
