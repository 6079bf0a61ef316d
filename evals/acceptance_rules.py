"""The acceptance gate: rules about a checkpoint, tested for statistical significance: pass, fail or undecided.

A rule is ``NAME >= TARGET``, as in ``ifeval >= 0.98*base``, ``domain(2) >= 0.9*first``, ``stored >= 0.85`` or
``retention(mmlu) >= 0.97*base - 0.5`` (the last number in points, hundredths of a score). With d = student −
(factor·reference + shift) on the same items:

- **pass** if the lower one-sided bound of mean(d) is at least 0: a student that breaks the rule passes with
  probability alpha at most;
- **fail** if the upper one-sided bound is below 0: a student that satisfies it fails with probability alpha at most;
- **undecided** otherwise, with an estimate of how many more items would decide it.

A student whose true score is exactly at the bound stays undecided however many items are evaluated. Set the bound
below the expected score, by at least the smallest difference that the available items can detect
(``evals.statistics.minimum_detectable_effect``).

Several rules at once: to accept, all must pass. A student that breaks one rule passes all of them with at most the
probability of passing that one, so passes need no correction (intersection–union test: Berger, Technometrics 24 (1982)
295–300). To reject, one failure is enough, so failures are corrected by Holm's method: the family-wise probability of
failing a rule that holds is at most alpha. If one checkpoint is judged repeatedly on growing samples, alpha is divided
by the number of ``looks`` (Bonferroni).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, NoReturn

from evals.statistics import Contrast, holm, independent_contrast, is_headline, paired_contrast, score_of
from recovery.errors import UsageError
from recovery.types import Score

Outcome = Literal["pass", "fail", "undecided"]

REFERENCES = ("base", "midtrained", "previous", "first")
RIVALS = ("base", "midtrained", "previous")
STUDENT = "student"
MOST_FACTOR = 10.0
LEAST_MARGIN = 0.1  # points; a smaller value is probably meant as a share
_SUITES = {
    "ifeval": ("ifeval", "instruction_following"),
    "domain": ("domain_knowledge",),
    "stored": ("domain_knowledge_stored",),
    "general": ("general",),
    "refusal": ("behaviour/refusal",),
}
_BY_CORPUS = ("domain", "stored")
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
_TIE = 1e-9


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
    def rival(self) -> str | None:
        """The checkpoint that a rule about votes compares the student with, as in :class:`Need`, or None."""
        return self.argument if self.name == PREFERENCE else None


@dataclass(frozen=True)
class Need:
    """A measurement that a rule needs: any of ``suites`` on this checkpoint, in order of preference.

    ``checkpoint`` is "student", "base", "midtrained" (of this cycle), "previous" (the start of the cycle) or "first":
    the final checkpoint of the cycle that introduced ``corpus``.
    """

    checkpoint: str
    suites: tuple[str, ...]
    corpus: int | None = None


@dataclass(frozen=True)
class Measurement:
    """Results of one suite on one checkpoint: item scores in [0, 1] and the items' clusters, both by id.

    ``score`` is used if there are no items. ``unscored``: there are items, but only the whole suite has a score, as
    with BLEU or a perplexity. Such a score cannot be tested: how far it varies with the items is unknown.
    """

    items: Mapping[str, float] = field(default_factory=dict)
    groups: Mapping[str, str] = field(default_factory=dict)
    score: Score | None = None
    unscored: bool = False

    @property
    def untestable(self) -> str:
        """Why it cannot be tested although it was measured; "" if it can."""
        if self.unscored:
            return "its items have no scores of their own"
        values = list(self.items.values()) or ([] if self.score is None else [self.score.value])
        return "" if all(0 <= value <= 1 for value in values) else "its scores are not between 0 and 1"

    @property
    def headline(self) -> Score | None:
        """The mean over the items, or ``score`` if there are none; None if nothing can be tested."""
        if self.untestable:
            return None
        if not self.items:
            return self.score if self.score is not None and self.score.n > 0 else None
        return score_of(list(self.items.values()), [self.groups.get(key, "") for key in self.items])


@dataclass(frozen=True)
class Evidence:
    """All measurements: checkpoint (as in :class:`Need`) → suite → measurement.

    ``corpus`` is the number of the cycle being judged, to which ``domain`` and ``stored`` without a number refer.
    "first" combines suites of several checkpoints: for each corpus those measured at the end of its own cycle.
    """

    measured: Mapping[str, Mapping[str, Measurement]]
    corpus: int | None = None


@dataclass(frozen=True)
class Verdict:
    """A rule's outcome. Scores are shares between 0 and 1; all are None if nothing could be compared.

    ``bound`` is the score that the rule requires, ``estimate`` the student's score minus the bound, ``low`` and
    ``high`` the one-sided confidence bounds of the estimate at level ``alpha``. ``p_value`` is that of the null
    hypothesis "the rule holds", ``p_adjusted`` is corrected by Holm's method if several rules were judged. ``more`` is
    the estimated number of further items that would decide an undecided rule; None if no practical number would.
    ``missing`` names the measurements that are missing.
    """

    rule: str
    verdict: Outcome
    reason: str
    suite: str
    alpha: float
    student: float | None = None
    reference: float | None = None
    bound: float | None = None
    estimate: float | None = None
    low: float | None = None
    high: float | None = None
    n: int = 0
    paired: bool = False
    p_value: float | None = None
    p_adjusted: float | None = None
    more: int | None = None
    missing: tuple[str, ...] = ()


@dataclass(frozen=True)
class Decision:
    """The decision over all rules. ``samples`` maps suites to the number of further items needed, if undecided.

    "undecided" without samples means that more items will not decide it: train further, or decide by hand.
    """

    decision: Literal["accept", "reject", "undecided"]
    reason: str
    verdicts: tuple[Verdict, ...]
    samples: Mapping[str, int]
    missing: tuple[str, ...]
    alpha: float
    looks: int
    method: str

    def to_json(self) -> dict[str, Any]:
        """Return plain values, as stored with the decision as its evidence."""
        return asdict(self)


@dataclass(frozen=True)
class _Comparison:
    """Both sides of a rule and their contrast."""

    suite: str
    contrast: Contrast
    student: float
    reference: float | None
    paired: bool


def measurement(rows: Iterable[tuple[str, float | None, str, Any]]) -> Measurement:
    """Return the headline items of (id, score, group, extra) rows, as a suite or the tracker returns them.

    Items without a score (None or nan) are skipped. Raises UsageError if two items share an id.
    """
    items: dict[str, float] = {}
    groups: dict[str, str] = {}
    skipped = False
    for key, score, group, extra in rows:
        if not is_headline(extra):
            continue
        if score is None or math.isnan(score):
            skipped = True
            continue
        if key in items:
            raise UsageError(f"two items share the id {key!r}: a paired comparison needs them distinct")
        items[key], groups[key] = float(score), group
    return Measurement(items, groups, unscored=skipped and not items)


def evidence_of(found: Mapping[str, Mapping[str, Mapping[str, Measurement]]], corpus: int | None = None) -> Evidence:
    """Return the evidence of checkpoint → suite → results by name: the suite itself, else the tasks of a group."""
    measured = {
        checkpoint: {suite: parts[suite] if suite in parts else together(parts) for suite, parts in suites.items()}
        for checkpoint, suites in found.items()
    }
    return Evidence(measured, corpus)


def together(parts: Mapping[str, Measurement]) -> Measurement:
    """Merge several suites into one with equal weight per item, as lm-eval does for a task group such as mmlu."""
    items = {f"{suite}/{key}": score for suite, part in parts.items() for key, score in part.items.items()}
    groups = {
        f"{suite}/{key}": group and f"{suite}/{group}" for suite, m in parts.items() for key, group in m.groups.items()
    }
    return Measurement(items, groups, unscored=any(part.unscored for part in parts.values()))


def parse_rule(text: str) -> Rule:
    """Parse a rule. Raises UsageError that names the position of the error and what is expected there."""
    reader = _Reader(" ".join(text.split()))
    name, argument = _name(reader)
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
    checkpoints = (STUDENT, rule.reference) if rule.reference else (STUDENT,)
    return tuple(Need(checkpoint, suites, number) for checkpoint in checkpoints)


def judge_all(rules: Sequence[Rule], evidence: Evidence, *, alpha: float = 0.05, looks: int = 1) -> Decision:
    """Accept if every rule passes, reject if any fails (Holm-corrected), otherwise undecided.

    See the module's docstring for the meaning of the verdicts. Items are paired by id if at least half of the smaller
    side's ids occur on the other side, and clustered by group; otherwise the two scores are compared as independent
    samples, which needs more items. A rule about scores outside [0, 1] (a perplexity) is undecided. ``looks`` is the
    maximum number of times that these rules are judged on one checkpoint (2 for a first sample and one extension).
    Raises UsageError without rules.
    """
    if not rules:
        raise UsageError("a gate needs at least one rule, as in ifeval >= 0.98*base")
    if looks < 1:
        raise UsageError(f"looks is {looks}, but must be at least 1")
    level = alpha / looks
    found = [_compare(rule, evidence, level) for rule in rules]
    tested = [one.contrast.p_below for one in found if isinstance(one, _Comparison)]
    adjusted = iter(holm(tested))
    verdicts = tuple(
        one if isinstance(one, Verdict) else _verdict(rule, one, level, next(adjusted), len(tested))
        for rule, one in zip(rules, found, strict=True)
    )
    samples: dict[str, int] = {}
    for verdict in verdicts:
        if verdict.more is not None:
            samples[verdict.suite] = max(samples.get(verdict.suite, 0), verdict.more)
    missing = tuple(dict.fromkeys(name for verdict in verdicts for name in verdict.missing))
    failed = [verdict.rule for verdict in verdicts if verdict.verdict == "fail"]
    open_ = [verdict.rule for verdict in verdicts if verdict.verdict == "undecided"]
    method = _method(len(rules), alpha, looks)
    if failed:
        return Decision("reject", f"broken: {'; '.join(failed)}", verdicts, {}, missing, alpha, looks, method)
    if open_:
        wanted = ", ".join(f"about {count} more items of {suite}" for suite, count in samples.items())
        reason = f"undecided: {'; '.join(open_)}" + (f" ({wanted})" if wanted else "")
        return Decision("undecided", reason, verdicts, samples, missing, alpha, looks, method)
    held = "the rule holds" if len(rules) == 1 else f"all {len(rules)} rules hold"
    return Decision("accept", held, verdicts, {}, missing, alpha, looks, method)


def _compare(rule: Rule, evidence: Evidence, alpha: float) -> _Comparison | Verdict:
    """Compare both sides of a rule on the first suite that both have, or return a verdict naming what is missing."""
    wanted = needs(rule, evidence.corpus)
    sides = [evidence.measured.get(need.checkpoint, {}) for need in wanted]
    for suite in wanted[0].suites:
        parts = [side[suite] for side in sides if suite in side]
        if len(parts) == len(sides) and all(part.headline is not None for part in parts):
            return _contrast(rule, suite, parts, alpha)
    missing = tuple(
        f"{' or '.join(need.suites)} of {need.checkpoint}"
        for need, side in zip(wanted, sides, strict=True)
        if not any(suite in side and side[suite].headline is not None for suite in need.suites)
    ) or (f"one of {', '.join(wanted[0].suites)} on both {STUDENT} and {rule.reference}",)
    reason = f"{rule.text}: not measured: {'; '.join(missing)}"
    found = (side[suite].untestable for side in sides for suite in wanted[0].suites if suite in side)
    if why := next(filter(None, found), ""):
        reason = f"{rule.text}: cannot be tested, as {why}: {'; '.join(missing)}"
    if rule.rival is not None:
        reason = (
            f"{rule.text}: no votes yet: open the dashboard's page Review (recover dashboard), and compare the "
            f"responses with those of {rule.rival}"
        )
    return Verdict(rule.text, "undecided", reason, wanted[0].suites[0], alpha, missing=missing)


def _contrast(rule: Rule, suite: str, parts: Sequence[Measurement], alpha: float) -> _Comparison:
    first, second = parts[0], parts[-1] if rule.reference else None
    options: dict[str, float] = {"factor": rule.factor, "shift": rule.shift, "alpha": alpha}
    common = [key for key in first.items if second is None or key in second.items]
    least = len(first.items) if second is None else min(len(first.items), len(second.items))
    if common and 2 * len(common) >= least:
        one = [first.items[key] for key in common]
        two = [0.0 if second is None else second.items[key] for key in common]
        other = {} if second is None else second.groups
        groups = [first.groups.get(key, "") or other.get(key, "") for key in common]
        contrast = paired_contrast(one, two, groups, **options)
        reference = None if second is None else math.fsum(two) / len(two)
        return _Comparison(suite, contrast, math.fsum(one) / len(one), reference, second is not None)
    scores = [part.headline for part in parts]
    student, other_score = scores[0], scores[-1] if rule.reference else None
    assert student is not None  # checked by the caller
    contrast = independent_contrast(student, other_score, **options)
    return _Comparison(suite, contrast, student.value, None if other_score is None else other_score.value, False)


def _verdict(rule: Rule, found: _Comparison, alpha: float, adjusted: float, rules: int) -> Verdict:
    contrast = found.contrast
    outcome: Outcome = "undecided"
    if contrast.low >= -_TIE and contrast.value > _TIE:
        outcome = "pass"
    elif adjusted <= alpha:
        outcome = "fail"
    # a failure must be significant at the corrected level
    level = alpha / rules if contrast.value < 0 else alpha
    more = contrast.more(alpha=level) if outcome == "undecided" else None
    return Verdict(
        rule=rule.text,
        verdict=outcome,
        reason=_reason(rule, found, outcome, alpha, more),
        suite=found.suite,
        alpha=alpha,
        student=found.student,
        reference=found.reference,
        bound=found.student - contrast.value,
        estimate=contrast.value,
        low=contrast.low,
        high=contrast.high,
        n=contrast.n,
        paired=found.paired,
        p_value=contrast.p_below,
        p_adjusted=adjusted,
        more=more,
    )


def _reason(rule: Rule, found: _Comparison, outcome: Outcome, alpha: float, more: int | None) -> str:
    contrast = found.contrast
    required = f"{_points_of(found.student - contrast.value)} required"
    if found.reference is not None:
        required += f" ({rule.reference}: {_points_of(found.reference)})"
    one_sided, two_sided = f"{100 * (1 - alpha):.4g}%", f"{100 * (1 - 2 * alpha):.4g}%"
    bounds = {
        "pass": f"at least {_signed(contrast.low)} with {one_sided} confidence",
        "fail": f"at most {_signed(contrast.high)} with {one_sided} confidence",
        "undecided": f"between {_signed(contrast.low)} and {_signed(contrast.high)} with {two_sided} confidence",
    }[outcome]
    pairing = "" if found.reference is None else "paired " if found.paired else "unpaired "
    reason = (
        f"{rule.text}: {outcome}: {_points_of(found.student)}, {required}: {_signed(contrast.value)} points, {bounds}, "
        f"on {contrast.n} {pairing}items"
    )
    if outcome == "undecided" and contrast.p_below <= alpha:
        reason += "; fails on its own, but not after the correction for several rules"
    if more is not None and rule.rival is not None:
        reason += f"; votes on about {more} more prompts would decide it, if the estimate is right"
    elif more is not None:
        reason += f"; about {more} more items would decide it, if the estimate is right"
    elif outcome == "undecided":
        reason += "; too close to the bound for any practical number of items to decide it"
    return reason


def _method(rules: int, alpha: float, looks: int) -> str:
    parts = [f"one-sided bounds at level {alpha / looks:.4g}"]
    if looks > 1:
        parts.append(f"{alpha:g} shared by {looks} looks (Bonferroni)")
    if rules > 1:
        parts.append(
            f"failures of {rules} rules corrected by Holm's method; passes need no correction, as all must pass"
        )
    return "; ".join(parts)


def _points_of(share: float) -> str:
    return f"{100 * share:.1f}"


def _signed(share: float) -> str:
    return f"{100 * share:+.1f}"


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
        found = re.compile(pattern).match(self.text, self.skip())
        if found is None:
            return None
        self.position = found.end()
        return found.group()

    def want(self, pattern: str, allowed: str) -> str:
        """Consume and return a match of ``pattern``; raise UsageError naming what is allowed if there is none."""
        taken = self.take(pattern)
        if taken is None:
            self.fail(allowed)
        return taken

    def number(self) -> float | None:
        """Consume and return an unsigned number; None if there is none."""
        taken = self.take(r"[0-9]+(?:\.[0-9]*)?|\.[0-9]+")
        return None if taken is None else float(taken)

    def fail(self, allowed: str, position: int | None = None) -> NoReturn:
        """Raise UsageError in one line: position, text found there, text expected."""
        place = self.skip() if position is None else position
        found = re.compile(r"[\w./%]+|[<>=!≥≤]+|.|$").match(self.text, place)
        text = repr(found.group()) if found and found.group() else "nothing"
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


def _reference(reader: _Reader, name: str, argument: str, other: str = "") -> str:
    start = reader.skip()
    reference = reader.take(r"[A-Za-z_]+") or ""
    if reference not in REFERENCES:
        reader.fail(", ".join(REFERENCES) + other, start)
    if reference == "first" and not (name in _BY_CORPUS and argument):
        named = " or ".join(f"{one}(K)" for one in _BY_CORPUS)
        reader.fail(f"'first' with {named} only: use base, midtrained or previous", start)
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
