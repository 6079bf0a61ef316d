"""What a cycle's figures answer: did it learn, did it keep its manners, did anything else break; and the verdict.

All sentences that the dashboard and the report say about a cycle as a whole are here. They rest on what the cycle's
comparison stored (:mod:`db.cycle_evidence`) and compute no statistics of their own. A state is claimed only where the
stored 95% interval, or the stored test, shows it; else the answer is "Undecided".
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from db import cycle_evidence, queries
from db.records import (
    BEYOND_CONSTANT,
    INSTRUCTIONS,
    NOT_OF_ANOTHER,
    PER_CORPUS,
    TRIAL,
    CycleRow,
    Event,
    Measured,
    Score,
    Scores,
    kind_of,
)
from db.session import Database

LEARN, MANNERS, OTHER = "Did it learn?", "Did it keep its manners?", "Did anything else break?"
GOOD, PART, BAD, UNSURE, UNKNOWN = "good", "part", "bad", "unsure", "unknown"
MARGIN = 0.03  # of the gate's standard rule on instructions
LEAST_GAIN = 0.05  # if a gain of this size in answers is ruled out, the cycle did not learn
LARGEST_FALL = 0.10  # other suites have some hundred items: a smaller fall than this can seldom be ruled out
ALPHA = 0.05
FEWEST_FACTS = 20  # questions; with fewer the gate's rule on K is undecided, too
FEWEST_ITEMS = 35  # of another suite: no change on fewer does not rule out a fall of 10 points
MOST_PROMPTS, IFEVAL_PROMPTS = 20_000, 541
ACCEPT, REJECT, UNDECIDED = "accept", "reject", "undecided"
_ASKED = "domain_knowledge"
_PHRASES = {
    (LEARN, GOOD): "it learnt",
    (LEARN, PART): "right answers became likelier, but it is not shown to answer more questions",
    (LEARN, BAD): "it learnt less than 5 points",
    (LEARN, UNSURE): "whether it learnt is undecided",
    (LEARN, UNKNOWN): "what it learnt was not measured",
    (MANNERS, GOOD): "it kept its manners",
    (MANNERS, BAD): "it lost its manners",
    (MANNERS, UNSURE): "whether it kept its manners is undecided",
    (MANNERS, UNKNOWN): "its manners were not measured",
    (OTHER, GOOD): "nothing else is shown to be broken",
    (OTHER, UNSURE): "whether anything else broke is undecided",
    (OTHER, UNKNOWN): "nothing else was measured",
}


@dataclass(frozen=True)
class Answer:
    """An answer to one of the three questions: a word, sentences, the first with the interval, and the suite whose
    items it is based on ("" if there is none). ``tone`` is empty if the interval includes no change.
    """

    question: str
    state: str
    word: str
    says: tuple[str, ...]
    suite: str = ""
    tone: str = ""


@dataclass(frozen=True)
class Verdict:
    """What the answers and the gate suggest: :data:`ACCEPT`, :data:`REJECT` or :data:`UNDECIDED`, and why."""

    word: str
    why: str

    @property
    def tone(self) -> str:
        """The colour of the word."""
        return {ACCEPT: "good", REJECT: "bad"}.get(self.word, "warn")


@dataclass(frozen=True)
class Judged:
    """The three answers about a cycle, the verdict, and both in one line."""

    answers: tuple[Answer, ...]
    verdict: Verdict
    headline: str


def judged(database: Database, row: CycleRow, recorded: Mapping[str, Any] | None = None) -> Judged | None:
    """Return the answers about a cycle from its stored comparison, and its gate's judgement if that is about its last
    checkpoint as it is now; None without such a checkpoint. ``recorded`` is a comparison that need not be stored.
    """
    if row.end is None:
        return None
    recorded = cycle_evidence.current(database, row) if recorded is None else recorded
    if queries.is_trial(database, row.cycle.experiment_id, row.cycle.id):
        number, name = row.cycle.number, row.end.checkpoint.name
        answered = concluded(number, name, recorded) if recorded else _uncompared(row, row.end)
        plain = tuple(replace(one, tone="") for one in answered.answers)  # no colour on figures that decide nothing
        return Judged(plain, Verdict(UNDECIDED, sentence(TRIAL)), f"Cycle {number} is {TRIAL}.")
    if not recorded:
        return _uncompared(row, row.end)
    judgement = queries.newest_event(database, cycle_evidence.GATE, row.cycle.experiment_id, row.cycle.id)
    if judgement is not None:
        applies = cycle_evidence.judges(database, judgement, row.end.checkpoint.id)
        judgement = judgement if applies and not cycle_evidence.outdated(database, judgement) else None
    return concluded(row.cycle.number, row.end.checkpoint.name, recorded, judgement)


def concluded(number: int, checkpoint: str, recorded: Mapping[str, Any], judgement: Event | None = None) -> Judged:
    """Return the answers about a cycle's last ``checkpoint`` from what is ``recorded`` with the cycle."""
    suites = _suites(recorded, "base")
    # Manners are read from IFEval's own prompts if they were evaluated.
    followed = next((name for name in reversed(INSTRUCTIONS) if name in suites), "")
    answers = (
        _learnt(number, recorded.get(cycle_evidence.KNOWLEDGE, {}).get(checkpoint, {}), suites),
        _kept(followed, suites, _suites(recorded, "midtrained")),
        _broken(number, followed, suites, _suites(recorded, "before")),
    )
    verdict = _verdict(answers, checkpoint, followed, suites, judgement)
    return Judged(answers, verdict, f"Cycle {number}: {'; '.join(map(_phrase, answers))}.")


def _uncompared(row: CycleRow, end: Measured) -> Judged:
    """Return the scores without an answer: no stored comparison is of the checkpoint and its newest evaluations."""
    sides = [one.scores if one is not None else Scores() for one in (row.base, end)]
    asked = [one.domain_knowledge_by_corpus.get(row.cycle.number) for one in sides]
    questions = (
        (LEARN, "Questions answered exactly", asked, f"{_ASKED}/{row.cycle.number}"),
        (MANNERS, "Prompts followed", [one.instruction_following for one in sides], INSTRUCTIONS[0]),
        (OTHER, "General knowledge", [one.general for one in sides], "general"),
    )
    answers = tuple(
        Answer(question, UNKNOWN, "Not compared", (f"{what}: {' → '.join(map(_level, scores))}.",), suite)
        if any(scores)
        else Answer(question, UNKNOWN, "Not measured", ())
        for question, what, scores, suite in questions
    )
    why = f"Not compared with base yet: `recover report {row.cycle.number}` does."
    return Judged(answers, Verdict(UNDECIDED, why), sentence(row.summary))


def _level(score: Score | None) -> str:
    if score is None:
        return "not measured"
    sure = "" if score.interval is None else f"{100 * score.interval[0]:.1f} to {100 * score.interval[1]:.1f}, "
    return f"{score.value:.1%} ({sure}n = {score.n:,})"


# --- the three answers ---------------------------------------------------------------------------------------


def _learnt(number: int, figures: Mapping[str, Any], suites: Mapping[str, Any]) -> Answer:
    """Whether right answers became likelier (K); if that was not measured, whether the gap to the open book closed;
    if that is not known either, whether more questions are answered. Likelier answers alone give "In part".
    """
    corpus = str(number) if str(number) in figures else cycle_evidence.POOLED
    gap, known = (figures.get(corpus, {}).get(name, {}) for name in ("gap_closed", "likelihood"))
    suite = f"{_ASKED}/{number}"
    asked = suites.get(suite)
    says = []
    if gap.get("value") is not None:
        words, _ = cycle_evidence.gap_words(figures, corpus)
        says.append(f"Gap to the open book closed: {words}, {gap['n']:,} questions.")
    elif "base" in gap:
        says.append(f"Gap to the open book: not defined. {sentence(str(gap['undefined']))}")
    if known.get("bits") is not None:
        says.append(f"Likelihood of right answers, K: {cycle_evidence.k_words(figures, corpus)[0]}.")
    if asked is not None:
        says.append(f"Questions answered exactly: {_change(asked)}.")
    if known.get("bits") is not None and known["n"] >= FEWEST_FACTS:
        shown = known["p_value"] < ALPHA and known["low"] > 0
    elif gap.get("value") is not None:
        shown = gap["low"] > 0
    elif asked is not None:
        shown = asked["low"] > 0
    else:
        return Answer(LEARN, UNKNOWN, "Not measured", ("No question about the cycle's documents was asked.",))
    answered = gap.get("value") is not None and gap["low"] > 0
    if shown and not answered and asked is not None and asked["low"] <= 0:
        return Answer(LEARN, PART, "In part", tuple(says), suite)
    if shown:
        return Answer(LEARN, GOOD, "Yes", tuple(says), suite, "good")
    if asked is not None and asked["high"] < LEAST_GAIN:
        says.append(f"A gain of {_margin(LEAST_GAIN)} is ruled out.")
        return Answer(LEARN, BAD, "No", tuple(says), suite, "bad" if asked["high"] < 0 else "")
    return Answer(LEARN, UNSURE, "Undecided", tuple(says), suite)


def _kept(suite: str, suites: Mapping[str, Any], recovery: Mapping[str, Any]) -> Answer:
    """Whether instructions are followed as by base: those that no constant reply follows, else whole prompts.

    ``recovery`` has the same comparisons against the mid-trained checkpoint: what the recovery alone changed.
    """
    beyond = suites.get(f"{suite}/{BEYOND_CONSTANT}")
    name = f"{suite}/{BEYOND_CONSTANT}" if beyond else suite
    one = suites.get(name)
    if one is None:
        return Answer(MANNERS, UNKNOWN, "Not measured", ("Base and this checkpoint share no suite of instructions.",))
    says = [f"{'Instructions beyond constant replies' if beyond else f'Prompts of {suite}'}: {_change(one)}."]
    if beyond is not None and (prompts := suites.get(suite)) is not None:
        says.append(f"Whole prompts of {suite}: {_change(prompts)}.")
    if (alone := recovery.get(name)) is not None:
        between = f"{points(alone['low'])} to {points(alone['high'])}"
        says.append(f"By the recovery alone: {points(alone['difference'])} points ({between}).")
    if one["high"] < 0 and one["difference"] <= -MARGIN:
        return Answer(MANNERS, BAD, "No", tuple(says), suite, "bad")
    tone = "warn" if one["high"] < 0 else ""  # no colour without a loss that the interval shows
    if one["low"] > -MARGIN:
        return Answer(MANNERS, GOOD, "Yes", (*says, f"A loss of {_margin(MARGIN)} is ruled out."), suite, tone)
    says.append(f"A loss of {_margin(MARGIN)} is not ruled out.")
    return Answer(MANNERS, UNSURE, "Undecided", tuple(says), suite, tone)


def _broken(number: int, followed: str, suites: Mapping[str, Any], before: Mapping[str, Any]) -> Answer:
    """Whether any other suite fell below base, replies gave more values of other subjects than base's, or the knowledge
    of an earlier corpus fell below what it was: by the interval, and the test corrected for the number of suites. The
    worst one is named. Suites too small to rule out a fall are named as such, and leave the answer as it is.
    """
    others = (name for name in suites if kind_of(name) not in (*PER_CORPUS, followed))
    comparisons = [suites[name] for name in others if not name.endswith(f"/{BEYOND_CONSTANT}")]
    comparisons += [one for name, one in before.items() if kind_of(name) == _ASKED and name != f"{_ASKED}/{number}"]
    comparisons += [
        one for name, one in suites.items() if name.endswith(NOT_OF_ANOTHER) and one["p_adjusted"] is not None
    ]
    if not comparisons:
        return Answer(OTHER, UNKNOWN, "Not measured", ("No other suite was asked of both.",))
    below = [one for one in comparisons if one["high"] < 0]
    # Graded scores have no p-value that could be corrected.
    fallen = [one for one in below if one["p_adjusted"] is None or one["p_adjusted"] < ALPHA]
    if fallen:
        fallen.sort(key=lambda one: one["difference"])
        each = tuple(f"{_named(one['name'])}: {_change(one)}." for one in fallen)
        return Answer(OTHER, BAD, "Yes", each, fallen[0]["name"], "bad")
    few = [one for one in comparisons if one["n"] < FEWEST_ITEMS and one["low"] <= -LARGEST_FALL]
    few_text = "Too few items to say: " + ", ".join(f"{_named(one['name'])} ({one['n']})" for one in few) + "."
    comparisons = [one for one in comparisons if one not in few]
    if not comparisons:
        return Answer(OTHER, UNSURE, "Undecided", (few_text,), few[0]["name"])
    # A fall that chance explains among so many suites still says more than a wide interval around no change.
    below = [one for one in below if one in comparisons]
    worst = min(below or comparisons, key=lambda one: one["difference"])
    suites_text = f"{len(comparisons)} other suites" if len(comparisons) > 1 else "1 other suite"
    says = [f"Worst of {suites_text}, {_named(worst['name'])}: {_change(worst)}."]
    if below:
        says.append(f"Among {suites_text} chance explains such a fall (corrected p = {worst['p_adjusted']:.2f}).")
    if few:
        says.append(few_text)
    if min(one["low"] for one in comparisons) > -LARGEST_FALL:
        says.append(f"A fall of {_margin(LARGEST_FALL)} is ruled out.")
        return Answer(OTHER, GOOD, "Nothing shown", tuple(says), worst["name"])
    says.append(f"A fall of {_margin(LARGEST_FALL)} is not ruled out.")
    return Answer(OTHER, UNSURE, "Undecided", tuple(says), worst["name"])


# --- the verdict ---------------------------------------------------------------------------------------------


def _verdict(
    answers: Sequence[Answer], checkpoint: str, followed: str, suites: Mapping[str, Any], judgement: Event | None
) -> Verdict:
    """Return the verdict: the gate's rules, the user's own, take precedence; a broken suite is named with them."""
    learnt, kept, other = answers
    broke = sentence(_phrase(other)) if other.state == BAD else ""
    if judgement is not None:
        decision = str(judgement.data.get("decision"))
        if decision == ACCEPT:
            passed = "The gate's rules pass."
            return Verdict(REJECT, f"{passed} But {_phrase(other)}.") if broke else Verdict(ACCEPT, passed)
        rules = judgement.data.get("verdicts", [])
        words = ("fail",) if decision == REJECT else ("fail", "undecided")
        at: Mapping[str, Any] = next((one for one in rules if one.get("verdict") in words), {})
        rule = f"{at.get('rule')}: "
        further = [line.removeprefix(rule) for line in cycle_evidence.notes(judgement) if line.startswith(rule)]
        why = f"The gate's rule {'; '.join([at.get('reason') or at['rule'], *further])}" if at else ""
        return Verdict(REJECT if decision == REJECT else UNDECIDED, ". ".join(filter(None, (why, broke))))
    bad = [_phrase(one) for one in answers if one.state == BAD]
    if bad:
        return Verdict(REJECT, sentence("; ".join(bad)))
    unsure = [one for one in answers if one.state in (UNSURE, PART) or (one.state == UNKNOWN and one is not other)]
    if not unsure:
        return Verdict(ACCEPT, "No answer speaks against it.")
    if kept in unsure and kept.state == UNSURE:
        return Verdict(UNDECIDED, _more_prompts(checkpoint, followed, suites))
    if learnt in unsure and (asked := suites.get(learnt.suite)) is not None:
        return Verdict(UNDECIDED, f"{asked['n']:,} questions: {_phrase(learnt)}.")
    return Verdict(UNDECIDED, sentence("; ".join(map(_phrase, unsure))))


def _more_prompts(checkpoint: str, suite: str, suites: Mapping[str, Any]) -> str:
    """Return how many prompts would decide if the difference d stays: n (h / a)², as the half-width h is ~ 1 / √n.

    The interval must exclude −MARGIN, a = MARGIN + d; while it includes 0, excluding 0 would do if −d is larger.
    """
    one = suites.get(f"{suite}/{BEYOND_CONSTANT}") or suites[suite]
    n = suites.get(suite, one)["n"]
    away = MARGIN + one["difference"]
    away = max(away, -one["difference"]) if one["high"] >= 0 else away
    needed = n * ((one["high"] - one["low"]) / 2 / max(away, 1e-6)) ** 2
    if max(needed, n + 1) > (IFEVAL_PROMPTS if suite == INSTRUCTIONS[1] else MOST_PROMPTS):
        return f"{n:,} prompts do not tell the loss from {_margin(MARGIN)}, and there are too few more: you decide."
    limit = 100 * math.ceil(max(needed, n + 1) / 100)
    commands = " and ".join(f"`recover eval {name} --limit {limit}`" for name in ("base", checkpoint))
    return f"{n:,} prompts are too few: {commands}, if there are so many."


def _phrase(answer: Answer) -> str:
    more = f" and {len(answer.says) - 1} more" if len(answer.says) > 1 else ""  # a sentence each
    others = answer.suite.endswith(NOT_OF_ANOTHER)
    broke = "its replies give more values of other subjects" if others else f"it broke {answer.suite}"
    return _PHRASES.get((answer.question, answer.state)) or broke + more


def _named(suite: str) -> str:
    """Return a suite's name in the tracker, in words if it says nothing to a reader."""
    other = suite.endswith(NOT_OF_ANOTHER)
    return f"replies without another subject's value, corpus {suite.split('/')[1]}" if other else suite


# --- words ---------------------------------------------------------------------------------------------------


def _suites(recorded: Mapping[str, Any], against: str) -> dict[str, Mapping[str, Any]]:
    comparisons = recorded.get("compared_with", {}).get(against, {}).get("suites", ())
    return {one["name"]: one for one in comparisons}


def _change(one: Mapping[str, Any]) -> str:
    interval = f"{points(one['low'])} to {points(one['high'])}, n = {one['n']:,}"
    return f"{one['first']:.1%} → {one['second']:.1%}, {points(one['difference'])} points ({interval})"


def points(difference: float) -> str:
    """Format a difference of shares in percentage points, with its sign."""
    shown = f"{abs(100 * difference):.1f}"
    return "±0" if float(shown) == 0 else f"{'+' if difference > 0 else '−'}{shown}"


def _margin(margin: float) -> str:
    return f"{100 * margin:.0f} points"


def sentence(words: str) -> str:
    """Return words with an initial capital and one full stop."""
    return f"{words[:1].upper()}{words[1:].rstrip('.')}."
