"""The gate: rules about a checkpoint, judged with their uncertainty into pass, fail or undecided.

A rule is ``NAME >= TARGET``, as in ``ifeval >= 0.98*base``, ``domain(2) >= 0.9*first``, ``stored >= 0.85`` or
``retention(mmlu) >= 0.97*base - 0.5`` (the last number in points, hundredths of a score). With d = student −
(factor·reference + shift) on the same items:

- **pass** where the lower one-sided bound of mean(d) lies at 0 or above: a student that breaks the rule passes with
  probability alpha at most;
- **fail** where the upper one-sided bound lies below 0: a student that keeps it fails with probability alpha at most;
- **undecided** between, with how many more items would probably decide it.

So a rule is a claim to be shown, not a guess: a student exactly at its bound stays undecided however many items it
answers. Set the bound below what is expected, by at least what the items at hand can show
(``evals.statistics.minimum_detectable_effect``).

Several rules at once. To accept, all must pass; a student that breaks one of them passes all with no greater
probability than that one, so passes need no correction (an intersection–union test: Berger, Technometrics 24 (1982)
295–300). To reject, one failure is enough, so failures are corrected by Holm's method: the probability that any rule
that holds is failed is at most alpha in all. Where one checkpoint is judged again and again on growing samples,
``looks`` divides alpha by the number of looks (Bonferroni).
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

NAMES = "ifeval, domain, domain(K), stored, stored(K), general, retention(TASK), behaviour(SUITE), refusal"
REFERENCES = ("base", "midtrained", "previous", "first")
STUDENT = "student"
MOST_FACTOR = 10.0
LEAST_MARGIN = 0.1  # points; below this, a share was meant
_SUITES = {
    "ifeval": ("ifeval", "instruction_following"),
    "domain": ("domain_knowledge",),
    "stored": ("domain_knowledge_stored",),
    "general": ("general",),
    "refusal": ("behaviour/refusal",),
}
_BY_CORPUS = ("domain", "stored")
_WITH_ARGUMENT = {"retention": "a task, as in retention(mmlu)", "behaviour": "a suite, as in behaviour(refusal)"}
_TIE = 1e-9


@dataclass(frozen=True)
class Rule:
    """``name(argument) >= factor*reference + shift``; with an empty reference, ``shift`` is the number itself.

    ``shift`` is a share: the rule "ifeval >= 0.98*base - 0.5" has the shift -0.005.
    """

    text: str
    name: str
    argument: str
    factor: float
    reference: str
    shift: float

    @property
    def corpus(self) -> int | None:
        """The corpus that is named, if one is."""
        return int(self.argument) if self.name in _BY_CORPUS and self.argument else None


@dataclass(frozen=True)
class Need:
    """A measurement that a rule rests on: any of ``suites`` of this checkpoint, the first being the best.

    ``checkpoint`` is "student", "base", "midtrained" (of this cycle), "previous" (what the cycle began with) or
    "first": the checkpoint that ended the cycle which took up ``corpus``.
    """

    checkpoint: str
    suites: tuple[str, ...]
    corpus: int | None = None


@dataclass(frozen=True)
class Measurement:
    """One suite on one checkpoint: scores in [0, 1] of its items by id, and the groups they cluster in by id.

    ``score`` is used where items are missing.
    """

    items: Mapping[str, float] = field(default_factory=dict)
    groups: Mapping[str, str] = field(default_factory=dict)
    score: Score | None = None

    @property
    def headline(self) -> Score | None:
        """The mean over the items, or ``score`` where there are none; None where nothing was measured."""
        if not self.items:
            return self.score if self.score is not None and self.score.n > 0 else None
        return score_of(list(self.items.values()), [self.groups.get(key, "") for key in self.items])


@dataclass(frozen=True)
class Evidence:
    """What was measured: checkpoint (as in :class:`Need`) → suite → measurement.

    ``corpus`` is the number of the cycle that is judged: what ``domain`` and ``stored`` without a number mean. Under
    "first" stand the suites of several checkpoints, each corpus's as it was when its own cycle ended.
    """

    measured: Mapping[str, Mapping[str, Measurement]]
    corpus: int | None = None


@dataclass(frozen=True)
class Verdict:
    """A rule's outcome. Scores are shares between 0 and 1; everything is None where nothing could be compared.

    ``bound`` is the score that the rule asks for, ``estimate`` the student's score less that. ``low`` and ``high``
    are its one-sided bounds at level ``alpha``. ``p_value`` belongs to "the rule holds" (small: broken), ``p_adjusted``
    is Holm's, where several rules were judged. ``more`` is how many further items would probably decide
    an undecided rule; None where no practical number would. ``missing`` names what was not measured.
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
    """All rules together. ``samples`` says for which suite how many more items are wanted, where undecided.

    With "undecided" and no samples, measuring more of the same will not decide it: train on, or ask a person.
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
        """Plain values, as they are stored as a decision's evidence."""
        return asdict(self)


@dataclass(frozen=True)
class _Comparison:
    """Both sides of a rule, set against each other."""

    suite: str
    contrast: Contrast
    student: float
    reference: float | None
    paired: bool


def measurement(rows: Iterable[tuple[str, float | None, str, Any]]) -> Measurement:
    """Items as (id, score, group, extra), as they come from a suite or the tracker, those of the headline only.

    Items without a score are left out. Raises UsageError where two share an id.
    """
    items: dict[str, float] = {}
    groups: dict[str, str] = {}
    for key, score, group, extra in rows:
        if score is None or not is_headline(extra):
            continue
        if key in items:
            raise UsageError(f"two items share the id {key!r}: a paired comparison needs them distinct")
        items[key], groups[key] = float(score), group
    return Measurement(items, groups)


def together(parts: Mapping[str, Measurement]) -> Measurement:
    """Several suites as one, every item counting the same, as lm-eval does for a group of tasks such as mmlu."""
    items = {f"{suite}/{key}": score for suite, part in parts.items() for key, score in part.items.items()}
    groups = {
        f"{suite}/{key}": group and f"{suite}/{group}" for suite, m in parts.items() for key, group in m.groups.items()
    }
    return Measurement(items, groups)


def parse_rule(text: str) -> Rule:
    """Read a rule. Raises UsageError that says at which character the text is wrong, and what may stand there."""
    reader = _Reader(" ".join(text.split()))
    name, argument = _name(reader)
    reader.want(r">=", "'>=', as in ifeval >= 0.98*base")
    start = reader.skip()
    number = reader.number()
    factor, reference, shift = 1.0, "", 0.0
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
    """What must have been measured: of the student, and of the reference if there is one.

    ``corpus`` is the current one, which ``domain`` and ``stored`` without a number are about.
    """
    number = rule.corpus if rule.corpus is not None else corpus if rule.name in _BY_CORPUS else None
    if rule.name in _WITH_ARGUMENT:
        suites: tuple[str, ...] = ((f"behaviour/{rule.argument}") if rule.name == "behaviour" else rule.argument,)
    elif number is None:
        suites = _SUITES[rule.name]
    else:
        plain = _SUITES[rule.name][0]
        suites = (f"{plain}/{number}", plain) if not rule.argument else (f"{plain}/{number}",)
    checkpoints = (STUDENT, rule.reference) if rule.reference else (STUDENT,)
    return tuple(Need(checkpoint, suites, number) for checkpoint in checkpoints)


def judge(rule: Rule, evidence: Evidence, *, alpha: float = 0.05) -> Verdict:
    """One rule by itself; see the module's text for what the verdicts mean.

    Items are paired by id where at least half of the smaller side's ids are known to the other, and clustered by
    group; else the two scores are compared as independent ones, which takes more items. Raises RecoveryError for
    scores outside [0, 1] (a perplexity, say).
    """
    found = _compare(rule, evidence, alpha)
    if isinstance(found, Verdict):
        return found
    return _verdict(rule, found, alpha, None, 1)


def judge_all(rules: Sequence[Rule], evidence: Evidence, *, alpha: float = 0.05, looks: int = 1) -> Decision:
    """Accept when every rule passes, reject when any fails (Holm-corrected), else undecided.

    ``looks`` is how often at most this gate will be asked about these rules before it is settled (a first
    sample and one extension: 2). Raises UsageError without rules, and what :func:`judge` raises.
    """
    if not rules:
        raise UsageError("a gate needs at least one rule, as in ifeval >= 0.98*base")
    if looks < 1:
        raise UsageError(f"looks is {looks}, but must be at least 1")
    level = alpha / looks
    found = [_compare(rule, evidence, level) for rule in rules]
    tested = [one.contrast.p_below for one in found if isinstance(one, _Comparison)]
    adjusted = iter(holm(tested, level).adjusted)
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
    """The two sides of the rule in the first suite that both have, or the verdict that something is missing."""
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
    assert student is not None  # looked at before
    contrast = independent_contrast(student, other_score, **options)
    return _Comparison(suite, contrast, student.value, None if other_score is None else other_score.value, False)


def _verdict(rule: Rule, found: _Comparison, alpha: float, adjusted: float | None, rules: int) -> Verdict:
    contrast = found.contrast
    outcome: Outcome = "undecided"
    if contrast.low >= -_TIE and contrast.value > _TIE:
        outcome = "pass"
    elif (contrast.p_below if adjusted is None else adjusted) <= alpha:
        outcome = "fail"
    # a failure has to be shown against the corrected level
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
    wanted = f"{_points_of(found.student - contrast.value)} wanted"
    if found.reference is not None:
        wanted += f" ({rule.reference}: {_points_of(found.reference)})"
    one_sided, two_sided = f"{100 * (1 - alpha):.4g}%", f"{100 * (1 - 2 * alpha):.4g}%"
    sure = {
        "pass": f"at least {_signed(contrast.low)} with {one_sided} confidence",
        "fail": f"at most {_signed(contrast.high)} with {one_sided} confidence",
        "undecided": f"between {_signed(contrast.low)} and {_signed(contrast.high)} with {two_sided} confidence",
    }[outcome]
    how = "" if found.reference is None else "paired " if found.paired else "unpaired "
    words = (
        f"{rule.text}: {outcome}: {_points_of(found.student)}, {wanted}: {_signed(contrast.value)} points, {sure}, "
        f"on {contrast.n} {how}items"
    )
    if outcome == "undecided" and contrast.p_below <= alpha:
        words += "; broken by itself, but not once corrected for several rules"
    if more is not None:
        words += f"; about {more} more would decide it, if the estimate is right"
    elif outcome == "undecided":
        words += "; so near its bound that no practical number of items decides it"
    return words


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
    """A text read from left to right, spaces skipped."""

    text: str
    position: int = 0

    def skip(self) -> int:
        """The place of the next character that is not a space."""
        while self.text[self.position : self.position + 1] == " ":
            self.position += 1
        return self.position

    def take(self, pattern: str) -> str | None:
        """What matches here, which is then read; None and nothing read if nothing does."""
        found = re.compile(pattern).match(self.text, self.skip())
        if found is None:
            return None
        self.position = found.end()
        return found.group()

    def want(self, pattern: str, allowed: str) -> str:
        """What matches here, or an error that says what is allowed."""
        taken = self.take(pattern)
        if taken is None:
            self.fail(allowed)
        return taken

    def number(self) -> float | None:
        """A number without a sign."""
        taken = self.take(r"[0-9]+(?:\.[0-9]*)?|\.[0-9]+")
        return None if taken is None else float(taken)

    def fail(self, allowed: str, position: int | None = None) -> NoReturn:
        """One line: where the text is wrong, what stands there, and what may."""
        place = self.skip() if position is None else position
        found = re.compile(r"[\w./%]+|[<>=!≥≤]+|.|$").match(self.text, place)
        stands = repr(found.group()) if found and found.group() else "nothing"
        raise UsageError(f"gate rule {self.text!r}: at character {place + 1} stands {stands}; allowed is {allowed}")


def _name(reader: _Reader) -> tuple[str, str]:
    """The name on the left and what stands in its parentheses."""
    start = reader.skip()
    name = reader.take(r"[A-Za-z_]+") or ""
    if name not in _SUITES and name not in _WITH_ARGUMENT:
        reader.fail(NAMES, start)
    inside = _WITH_ARGUMENT.get(name)
    if inside is not None:
        reader.want(r"\(", f"'(' and {inside}")
        argument = reader.want(r"[^()<>=*]*[^()<>=* ]", inside)
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
        reader.fail("'first' with domain(K) or stored(K) only: use base, midtrained or previous", start)
    return reference


def _points(reader: _Reader) -> float:
    """What follows the target: a sign and points, or nothing (0)."""
    sign = reader.take(r"[+-]")
    if sign is None:
        return 0.0
    start = reader.skip()
    points = reader.number()
    if points is None or not LEAST_MARGIN <= points < 100:
        reader.fail(f"points from {LEAST_MARGIN:g} to 100, hundredths of a score: 2 for 0.02", start)
    reader.take(r"points?\b")
    return -points if sign == "-" else points
