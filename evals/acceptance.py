"""The acceptance gate: rules about a checkpoint, tested for statistical significance: pass, fail or undecided.

With d = student − (factor·reference + shift) of a rule (:mod:`evals.acceptance_rules`) on the same items:

- **pass** if the lower one-sided bound of mean(d) is at least 0: a student that breaks the rule passes with
  probability alpha at most;
- **fail** if the upper one-sided bound is below 0: a student that satisfies it fails with probability alpha at most;
- **undecided** otherwise, with an estimate of how many more items would decide it.

The rule ``learnt`` passes if K of the student over base is above 0 by its permutation test at level alpha
(:mod:`evals.domain_pmi`), and fails if it is below. ``learnt >= factor*reference`` compares the K of both, with
Fieller's bounds of K(student) / K(reference) − factor.

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
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from evals.acceptance_rules import LEARNT, STUDENT, UNANSWERABLE, Rule, needs
from evals.contrasts import Contrast, independent_contrast, paired_contrast
from evals.domain_pmi import FEWEST_FACTS, Gain, blocks_of, gain, share_kept
from evals.measurement import Evidence, Measurement
from evals.statistics import holm
from recovery.errors import UsageError

Outcome = Literal["pass", "fail", "undecided"]

_TIE = 1e-9


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

    @property
    def p_below(self) -> float:
        return self.contrast.p_below


@dataclass(frozen=True)
class _Learnt:
    """The student's gain over base on a suite with the likelihood of candidates."""

    suite: str
    gain: Gain

    @property
    def p_below(self) -> float:
        return self.gain.p_below


@dataclass(frozen=True)
class _Kept:
    """The student's share of what the reference learnt about a suite's questions, minus the rule's factor."""

    suite: str
    contrast: Contrast

    @property
    def p_below(self) -> float:
        return self.contrast.p_below


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
    results = [_compare(rule, evidence, level) for rule in rules]
    tested = [result.p_below for result in results if not isinstance(result, Verdict)]
    adjusted = iter(holm(tested))
    verdicts = tuple(
        result if isinstance(result, Verdict) else _outcome(rule, result, level, next(adjusted), len(tested))
        for rule, result in zip(rules, results, strict=True)
    )
    samples: dict[str, int] = {}
    for verdict in verdicts:
        if verdict.more is not None:
            samples[verdict.suite] = max(samples.get(verdict.suite, 0), verdict.more)
    missing = tuple(dict.fromkeys(name for verdict in verdicts for name in verdict.missing))
    failed = [verdict.rule for verdict in verdicts if verdict.verdict == "fail"]
    undecided = [verdict.rule for verdict in verdicts if verdict.verdict == "undecided"]
    method = _method(len(rules), alpha, looks)
    if failed:
        return Decision("reject", f"broken: {'; '.join(failed)}", verdicts, {}, missing, alpha, looks, method)
    if undecided:
        reason = f"undecided: {'; '.join(undecided)}"
        return Decision("undecided", reason, verdicts, samples, missing, alpha, looks, method)
    reason = "the rule holds" if len(rules) == 1 else f"all {len(rules)} rules hold"
    return Decision("accept", reason, verdicts, {}, missing, alpha, looks, method)


def _compare(rule: Rule, evidence: Evidence, alpha: float) -> _Comparison | _Learnt | _Kept | Verdict:
    """Compare both sides of a rule on the first suite that both have, or return a verdict naming what is missing."""
    required = needs(rule, evidence.corpus)
    sides = [evidence.measured.get(need.checkpoint, {}) for need in required]
    if rule.beyond_constant:
        sides = [{name: part.beyond_constant or Measurement() for name, part in side.items()} for side in sides]
    for suite in required[0].suites:
        parts = [side[suite] for side in sides if suite in side]
        if len(parts) == len(sides) and all(part.headline is not None for part in parts):
            return _by_gain(rule, suite, parts, alpha) if rule.name == LEARNT else _by_score(rule, suite, parts, alpha)
    if rule.name == UNANSWERABLE and not any(suite in side for side in sides for suite in required[0].suites):
        return _not_applied(
            rule, required[0].suites[0], alpha, "there are no near misses of this corpus, or none were asked"
        )
    missing = tuple(
        f"{' or '.join(need.suites)} of {need.checkpoint}"
        for need, side in zip(required, sides, strict=True)
        if not any(suite in side and side[suite].headline is not None for suite in need.suites)
    ) or (f"one of {', '.join(required[0].suites)} on both {STUDENT} and {rule.reference}",)
    reason = f"{rule.text}: not measured: {'; '.join(missing)}"
    if rule.beyond_constant:
        reason += ": no items beyond what a constant reply follows: evaluate again with this release, or other prompts"
    if rule.name == LEARNT:
        reason += ": too few different answers of a kind, or not evaluated with this release"
    untestable = (side[suite].untestable for side in sides for suite in required[0].suites if suite in side)
    if why := next(filter(None, untestable), ""):
        reason = f"{rule.text}: cannot be tested, as {why}: {'; '.join(missing)}"
    if rule.rival is not None:
        reason = (
            f"{rule.text}: no votes yet: open the dashboard's page Review (recover dashboard), and compare the "
            f"responses with those of {rule.rival}"
        )
    return Verdict(rule.text, "undecided", reason, required[0].suites[0], alpha, missing=missing)


def _by_score(rule: Rule, suite: str, parts: Sequence[Measurement], alpha: float) -> _Comparison | Verdict:
    first, second = parts[0], parts[-1] if rule.reference else None
    options: dict[str, float] = {"factor": rule.factor, "shift": rule.shift, "alpha": alpha}
    if second is not None and rule.name == UNANSWERABLE and _declined_at_bound(rule, second) < 1:
        n, total = second.declined, len(second.items)
        return _not_applied(rule, suite, alpha, f"{rule.reference} declines {n} of {total}: too few to lose any")
    if second is not None and (reason := _why_no_target(rule, second)):
        return Verdict(rule.text, "undecided", reason, suite, alpha)
    common = [key for key in first.items if second is None or key in second.items]
    fewest_items = len(first.items) if second is None else min(len(first.items), len(second.items))
    if common and 2 * len(common) >= fewest_items:
        first_scores = [first.items[key] for key in common]
        second_scores = [0.0 if second is None else second.items[key] for key in common]
        second_groups = {} if second is None else second.groups
        groups = [first.groups.get(key, "") or second_groups.get(key, "") for key in common]
        contrast = paired_contrast(first_scores, second_scores, groups, **options)
        reference = None if second is None else math.fsum(second_scores) / len(second_scores)
        return _Comparison(suite, contrast, math.fsum(first_scores) / len(first_scores), reference, second is not None)
    scores = [part.headline for part in parts]
    student, other_score = scores[0], scores[-1] if rule.reference else None
    assert student is not None  # checked by the caller
    contrast = independent_contrast(student, other_score, **options)
    return _Comparison(suite, contrast, student.value, None if other_score is None else other_score.value, False)


def _not_applied(rule: Rule, suite: str, alpha: float, why: str) -> Verdict:
    """Return a passing verdict for a rule that is not applied, so that it does not affect the others."""
    return Verdict(rule.text, "pass", f"{rule.text}: not applied: {why}", suite, alpha)


def _declined_at_bound(rule: Rule, reference: Measurement) -> float:
    """Return how many questions a student exactly at the bound declines; 0 if the reference declines none."""
    if not reference.declined or reference.headline is None:
        return 0.0
    return (rule.factor * reference.headline.value + rule.shift) * len(reference.items)


def _why_no_target(rule: Rule, reference: Measurement) -> str:
    """Return why any student would satisfy a rule, if its reference scores too low; else ""."""
    score = reference.headline
    assert score is not None  # checked by the caller
    target = rule.factor * score.value + rule.shift
    if target > _TIE:
        return ""
    return (
        f"{rule.text}: {rule.reference} scores {_points(score.value)}, so that {_points(max(0.0, target))} is "
        "required, which any student has: name another suite or reference, or a number as the target"
    )


def _by_gain(rule: Rule, suite: str, parts: Sequence[Measurement], alpha: float) -> _Learnt | _Kept | Verdict:
    student, *others, base = (blocks_of(part.cells) for part in parts)
    if others:
        n, contrast = share_kept(base, others[0], student, rule.factor, alpha)
        if contrast is not None and n >= FEWEST_FACTS:
            return _Kept(suite, contrast)
    else:
        learnt_gain = gain(base, student)
        n = 0 if learnt_gain is None else learnt_gain.n
        if learnt_gain is not None and n >= FEWEST_FACTS:
            return _Learnt(suite, learnt_gain)
    if n >= FEWEST_FACTS:
        reason = f"{rule.text}: {rule.reference} is not shown to have learnt, so that there is no share of it to keep"
        return Verdict(rule.text, "undecided", reason, suite, alpha, n=n, missing=(f"a K of {rule.reference} above 0",))
    asked = " and ".join(need.checkpoint for need in needs(rule))
    reason = (
        f"{rule.text}: not measured: {n} questions with enough answers of their kind were put to {asked}, and "
        f"{FEWEST_FACTS} are needed: build more probes (recover probes build --count)"
    )
    return Verdict(rule.text, "undecided", reason, suite, alpha, n=n, missing=(f"{FEWEST_FACTS} questions of {suite}",))


def _outcome(rule: Rule, result: _Comparison | _Learnt | _Kept, alpha: float, adjusted: float, rules: int) -> Verdict:
    if isinstance(result, _Comparison):
        return _verdict(rule, result, alpha, adjusted, rules)
    if isinstance(result, _Learnt):
        n, (outcome, more, reason) = result.gain.n, _learnt_words(rule, result.gain, alpha, adjusted)
    else:
        n, (outcome, more, reason) = result.contrast.n, _kept_words(rule, result.contrast, alpha, adjusted, rules)
    return Verdict(
        rule=rule.text,
        verdict=outcome,
        reason=f"{rule.text}: {outcome}: {reason}",
        suite=result.suite,
        alpha=alpha,
        n=n,
        paired=True,
        p_value=result.p_below,
        p_adjusted=adjusted,
        more=more,
    )


def _learnt_words(rule: Rule, gain: Gain, alpha: float, adjusted: float) -> tuple[Outcome, int | None, str]:
    outcome: Outcome = "pass" if gain.p_value < alpha else "fail" if adjusted <= alpha else "undecided"
    more = gain.more(alpha) if outcome == "undecided" else None
    reason = (
        f"K {gain.bits:+.2f} bits over {rule.reference} ({gain.low:+.2f} to {gain.high:+.2f}, "
        f"95% by page), p = {gain.p_value:.2g} on {gain.n} questions; the right answer is first among eight for "
        f"{_points(gain.first[1])}% ({rule.reference}: {_points(gain.first[0])}%)"
    )
    if more is not None:
        reason += f"; about {more} more items would decide it, if the estimate is right"
    return outcome, more, reason


def _decided(contrast: Contrast, alpha: float, adjusted: float, rules: int) -> tuple[Outcome, int | None]:
    """Return the outcome, and how many more items would decide it if it is undecided."""
    if contrast.low >= -_TIE and contrast.value > _TIE:
        return "pass", None
    if adjusted <= alpha:
        return "fail", None
    # a failure must be significant at the corrected level
    return "undecided", contrast.more(alpha=alpha / rules if contrast.value < 0 else alpha)


def _kept_words(
    rule: Rule, contrast: Contrast, alpha: float, adjusted: float, rules: int
) -> tuple[Outcome, int | None, str]:
    outcome, more = _decided(contrast, alpha, adjusted, rules)
    share, low, high = (100 * (one + rule.factor) for one in (contrast.value, contrast.low, contrast.high))
    reason = (
        f"{share:.0f}% of what {rule.reference} learnt ({low:.0f} to {high:.0f}, "
        f"{100 * (1 - 2 * alpha):.4g}% interval by page), at least {100 * rule.factor:.4g}% required, in K of "
        f"{contrast.n} questions{_further(outcome, contrast, alpha, more)}"
    )
    return outcome, more, reason


def _verdict(rule: Rule, comparison: _Comparison, alpha: float, adjusted: float, rules: int) -> Verdict:
    contrast = comparison.contrast
    outcome, more = _decided(contrast, alpha, adjusted, rules)
    return Verdict(
        rule=rule.text,
        verdict=outcome,
        reason=_reason(rule, comparison, outcome, alpha, more),
        suite=comparison.suite,
        alpha=alpha,
        student=comparison.student,
        reference=comparison.reference,
        bound=comparison.student - contrast.value,
        estimate=contrast.value,
        low=contrast.low,
        high=contrast.high,
        n=contrast.n,
        paired=comparison.paired,
        p_value=contrast.p_below,
        p_adjusted=adjusted,
        more=more,
    )


def _reason(rule: Rule, result: _Comparison, outcome: Outcome, alpha: float, more: int | None) -> str:
    """Say the score, or its difference from the reference, with its interval and the least that the rule requires."""
    contrast, least = result.contrast, f"{100 * rule.shift:.6g}"
    value, low, high = (one + rule.shift for one in (contrast.value, contrast.low, contrast.high))
    interval = f"{100 * (1 - 2 * alpha):.4g}% interval"
    if result.reference is None:
        words = f"{_points(value)} ({_points(low)} to {_points(high)}, {interval}), at least {least} required, on"
    else:
        target = rule.reference if rule.factor == 1 else f"{rule.factor:g} * {rule.reference}"
        words = f"{_signed(value)} points against {target} ({_signed(low)} to {_signed(high)}, {interval}), at least "
        words += f"{least} required: {_points(result.student)} ({rule.reference}: {_points(result.reference)}) on"
    pairing = "" if result.reference is None else "paired " if result.paired else "unpaired "
    items = "{} more items" if rule.rival is None else "votes on {} more prompts"
    return (
        f"{rule.text}: {outcome}: {words} {contrast.n} {pairing}items{_further(outcome, contrast, alpha, more, items)}"
    )


def _further(outcome: Outcome, contrast: Contrast, alpha: float, more: int | None, items: str = "{} more items") -> str:
    """Return what an undecided rule lacks; "" if it is decided."""
    if outcome != "undecided":
        return ""
    corrected = (
        "; fails on its own, but not after the correction for several rules" if contrast.p_below <= alpha else ""
    )
    if more is None:
        return f"{corrected}; too close to the bound for any practical number of items to decide it"
    return f"{corrected}; {items.format(f'about {more}')} would decide it, if the estimate is right"


def _method(rules: int, alpha: float, looks: int) -> str:
    parts = [f"one-sided bounds at level {alpha / looks:.4g}"]
    if looks > 1:
        parts.append(f"{alpha:g} shared by {looks} looks (Bonferroni)")
    if rules > 1:
        parts.append(
            f"failures of {rules} rules corrected by Holm's method; passes need no correction, as all must pass"
        )
    return "; ".join(parts)


def _points(share: float) -> str:
    return f"{100 * share:.1f}"


def _signed(share: float) -> str:
    return f"{round(100 * share, 1) + 0.0:+.1f}"  # -0.0 is none
