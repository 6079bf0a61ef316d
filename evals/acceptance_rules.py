"""Rules of the acceptance gate, parsed: ``NAME >= TARGET``, as in ``ifeval >= 0.98*base``, ``domain(2) >= 0.9*first``,
``stored >= 0.85`` or ``retention(mmlu) >= 0.97*base - 0.5`` (the last number in points, hundredths of a score).

:mod:`evals.acceptance` judges them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NoReturn

from recovery.errors import UsageError

SOURCE = "source"
"""The checkpoint that an artifact was made from, as a reference of rules about the artifact."""
REFERENCES = ("base", "midtrained", "previous", "first", SOURCE)
RIVALS = ("base", "midtrained", "previous")
STUDENT = "student"
MOST_FACTOR = 10.0
LEAST_MARGIN = 0.1  # points; a smaller value is probably meant as a share
UNANSWERABLE = "unanswerable"
"""The rule about questions that no document answers, and its suite. It is not applied if the suite was not run, or
the reference declines none of them."""
_SUITES = {
    "ifeval": ("ifeval", "instruction_following"),  # IFEval's own prompts where they were evaluated
    "domain": ("domain_knowledge",),
    "stored": ("domain_knowledge_stored",),
    "general": ("general",),
    "refusal": ("behaviour/refusal",),
    "instruction_following": ("instruction_following",),
    "instructions": ("ifeval", "instruction_following"),  # single instructions that no constant reply follows
    "learnt": ("domain_knowledge_likelihood",),
    UNANSWERABLE: (UNANSWERABLE,),
}
_BY_CORPUS = ("domain", "stored", "learnt", UNANSWERABLE)
DECLINED, OF_ANOTHER = "declined", "of_another_subject"
"""Verdicts of an item of its suite: it declines (:func:`evals.suites.declines`), it gives another subject's value."""
LEARNT = "learnt"
"""K of the student over base is above 0 (:mod:`evals.domain_pmi`), or at least a share of another checkpoint's K."""
_WITH_ARGUMENT = {
    "retention": "a task, as in retention(mmlu)",
    "behaviour": "a suite, as in behaviour(refusal)",
    "preference": "base, midtrained or previous, as in preference(base) >= 0.45",
}
PREFERENCE = "preference"
"""The suite of human votes: its score is the share in which the student is preferred to a checkpoint, ties as half."""
NAMES = ", ".join(
    [name + extra for name in _SUITES for extra in (("", "(K)") if name in _BY_CORPUS else ("",))]
    + ["retention(TASK)", "behaviour(SUITE)", "preference(CHECKPOINT)"]
)


@dataclass(frozen=True)
class Rule:
    """``name(argument) >= factor*reference + shift``; with an empty reference, ``shift`` is the target itself.

    ``shift`` is a share: for "ifeval >= 0.98*base - 0.5" it is -0.005.
    """

    text: str
    name: str
    argument: str
    factor: float
    reference: str
    shift: float

    @property
    def corpus(self) -> int | None:
        """The number of the corpus that the rule names, or None."""
        return int(self.argument) if self.name in _BY_CORPUS and self.argument else None

    @property
    def of_new_corpus(self) -> bool:
        """Whether the rule is about the corpus of the judged cycle, whatever its number."""
        return self.name in _BY_CORPUS and not self.argument

    @property
    def beyond_constant(self) -> bool:
        """Whether it is about the single instructions that no constant reply follows."""
        return self.name == "instructions"

    @property
    def share_learnt(self) -> bool:
        """Whether it compares what the student learnt with what another checkpoint did."""
        return self.name == LEARNT and self.reference != "base"

    @property
    def rival(self) -> str | None:
        """The checkpoint that a rule about votes compares the student with, as in :class:`Need`, or None."""
        return self.argument if self.name == PREFERENCE else None


@dataclass(frozen=True)
class Need:
    """A measurement that a rule needs: any of ``suites`` on this checkpoint, in order of preference.

    ``checkpoint`` is "student", "base", "midtrained" (of this cycle), "previous" (the start of the cycle), "source" (of
    an artifact, which is then the student) or "first": the final checkpoint of the cycle that introduced ``corpus``.
    """

    checkpoint: str
    suites: tuple[str, ...]
    corpus: int | None = None


def parse_rule(text: str) -> Rule:
    """Parse a rule. Raises UsageError that names the position of the error and what is expected there."""
    reader = _Reader(" ".join(text.split()))
    name, argument = _name(reader)
    if name == LEARNT and reader.skip() == len(reader.text):
        return Rule(reader.text, name, argument, 1.0, "base", 0.0)
    reader.want(r">=", "'>=', as in ifeval >= 0.98*base")
    start = reader.skip()
    number = reader.number()
    factor, reference, shift = 1.0, "", 0.0
    if name == PREFERENCE and (number is None or reader.take(r"\*")):
        reader.fail("a number: the share itself compares with the checkpoint, and equally good is 0.5", start)
    if number is None:
        reference = _reference(reader, name, argument, " or a number")
    elif reader.take(r"\*"):
        if not 0 < number <= MOST_FACTOR:
            reader.fail(f"a factor above 0 and at most {MOST_FACTOR:g}, as in 0.98*base", start)
        factor, reference = number, _reference(reader, name, argument)
    else:
        factor, shift = 0.0, number
    points = _points(reader)
    if reader.skip() < len(reader.text):
        factor_may_follow = "" if reference else "'*' and a reference, "
        reader.fail("the end" if points else f"{factor_may_follow}'+' or '-' and points, or the end")
    shift = round(shift + points / 100, 12)
    if name == LEARNT and (shift or reference == "base"):
        reader.fail("a share of what a checkpoint learnt, as in learnt >= 0.67*midtrained, or learnt alone", start)
    if not reference and not 0 < shift < 1:
        reader.fail("a number above 0 and below 1 (a share: 0.85, not 85; a full 1 could never be shown)", start)
    return Rule(reader.text, name, argument, factor, reference, shift)


def needs(rule: Rule, corpus: int | None = None) -> tuple[Need, ...]:
    """Return the measurements that a rule needs: of the student, and of the reference if there is one.

    ``corpus`` is the current corpus, to which ``domain`` and ``stored`` without a number refer.
    """
    number = rule.corpus if rule.corpus is not None else corpus if rule.name in _BY_CORPUS else None
    if rule.name in _WITH_ARGUMENT:
        suites: tuple[str, ...] = (rule.argument if rule.name == "retention" else f"{rule.name}/{rule.argument}",)
    elif number is None:
        suites = _SUITES[rule.name]
    else:
        # Without the number a checkpoint's score is about its own newest corpus: of `previous`, another one.
        suites = (f"{_SUITES[rule.name][0]}/{number}",)
    checkpoints = [STUDENT, *filter(None, [rule.reference])]
    if rule.share_learnt:
        checkpoints.append("base")  # what both learnt is measured from
    return tuple(Need(checkpoint, suites, number) for checkpoint in checkpoints)


@dataclass
class _Reader:
    """Scanner over a text; spaces are skipped."""

    text: str
    position: int = 0

    def skip(self) -> int:
        """Skip spaces and return the position of the next character."""
        while self.text[self.position : self.position + 1] == " ":
            self.position += 1
        return self.position

    def take(self, pattern: str) -> str | None:
        """Consume and return a match of ``pattern`` at this position; None if there is none."""
        match = re.compile(pattern).match(self.text, self.skip())
        if match is None:
            return None
        self.position = match.end()
        return match.group()

    def want(self, pattern: str, allowed: str) -> str:
        """Consume and return a match of ``pattern``; raise UsageError naming what is allowed if there is none."""
        match = self.take(pattern)
        if match is None:
            self.fail(allowed)
        return match

    def number(self) -> float | None:
        """Consume and return an unsigned number; None if there is none."""
        digits = self.take(r"[0-9]+(?:\.[0-9]*)?|\.[0-9]+")
        return None if digits is None else float(digits)

    def fail(self, allowed: str, position: int | None = None) -> NoReturn:
        """Raise UsageError in one line: position, text found there, text expected."""
        place = self.skip() if position is None else position
        match = re.compile(r"[\w./%]+|[<>=!≥≤]+|.|$").match(self.text, place)
        text = repr(match.group()) if match and match.group() else "nothing"
        raise UsageError(f"gate rule {self.text!r}: found {text} at character {place + 1}; expected {allowed}")


def _name(reader: _Reader) -> tuple[str, str]:
    """Parse the name on the left-hand side and its argument in parentheses."""
    start = reader.skip()
    name = reader.take(r"[A-Za-z_]+") or ""
    if name not in _SUITES and name not in _WITH_ARGUMENT:
        reader.fail(NAMES, start)
    inside = _WITH_ARGUMENT.get(name)
    if inside is not None:
        reader.want(r"\(", f"'(' and {inside}")
        start = reader.skip()
        argument = reader.want(r"[^()<>=*]*[^()<>=* ]", inside)
        if name == PREFERENCE and argument not in RIVALS:
            reader.fail(inside, start)
        reader.want(r"\)", "')'")
        return name, argument
    if name not in _BY_CORPUS or not reader.take(r"\("):
        return name, ""
    start = reader.skip()
    number = reader.take(r"[0-9]{1,6}")
    if number is None or int(number) < 1:
        reader.fail(f"the number of a corpus, as in {name}(2)", start)
    reader.want(r"\)", "')'")
    return name, str(int(number))


def _reference(reader: _Reader, name: str, argument: str, alternative: str = "") -> str:
    start = reader.skip()
    reference = reader.take(r"[A-Za-z_]+") or ""
    if reference not in REFERENCES:
        reader.fail(", ".join(REFERENCES) + alternative, start)
    if reference == "first" and not (name in _BY_CORPUS and argument):
        forms = " or ".join(f"{rule}(K)" for rule in _BY_CORPUS)
        reader.fail(f"'first' with {forms} only: use base, midtrained or previous", start)
    return reference


def _points(reader: _Reader) -> float:
    """Parse the margin after the target: a sign and points; 0 if there is none."""
    sign = reader.take(r"[+-]")
    if sign is None:
        return 0.0
    start = reader.skip()
    points = reader.number()
    if points is None or not LEAST_MARGIN <= points < 100:
        reader.fail(f"points from {LEAST_MARGIN:g} to 100, hundredths of a score: 2 for 0.02", start)
    reader.take(r"points?\b")
    return -points if sign == "-" else points
