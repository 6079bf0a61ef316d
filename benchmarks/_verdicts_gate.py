"""How often the gate is wrong about a student at a rule's bound, and how often it decides about a better one."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy import stats

from benchmarks._verdicts_knowledge import NOISES, REAL_K, kept_tests
from benchmarks._verdicts_model import (
    ALPHA,
    LOOKS,
    Array,
    Rate,
    Table,
    agree,
    cells,
    counted,
    decide,
    group_tests,
    in_groups,
    judged,
    more,
    names_of,
    score_tests,
)
from evals.acceptance_rules import LEARNT, UNANSWERABLE, Rule, parse_rule
from evals.contrasts import independent_contrast
from evals.statistics import minimum_detectable_effect, score_of
from pipelines.evaluation.acceptance import STANDARD
from recovery.config import CycleConfig, EvalConfig

DISAGREE = 0.16  # share of items on which two checkpoints of one model differ; fewer where the scores allow only that
CHECKED = 3  # samples of each entry that the product judges too
BATCH = 250
QUESTIONS = 150  # about a small corpus: those of the real examples have 127 to 150
COMPOSED = (1.068, 1575)  # instructions beyond constant replies per item of the composed test prompts, and all of them
SUITES = ("ifeval >= 0.96*base", "domain >= 0.96*midtrained", "general >= 0.96*base")
LEVELS = ((ALPHA, 1), (ALPHA / LOOKS, LOOKS))


def tables(runs: int, seed: int) -> list[Table]:
    """Return all tables of the gate."""
    return [
        one_rule(runs, seed), extremes(), grouped(max(200, runs // 5), seed), unpaired(max(200, runs // 5), seed),
        decisions(max(200, runs // 5), seed), standard(max(200, runs // 20), seed),
        knowledge_kept(max(200, runs // 40), seed), power(runs, seed),
    ]  # fmt: skip


def _both(passed: Array, failed: Array, level: float, runs: int | None = None, weights: Array | None = None) -> Any:
    """Return the rates of passing and of failing at the bound."""
    shares = [float(np.average(one.ravel(), weights=weights)) for one in (passed, failed)]
    return tuple(
        Rate(f"{word} at {level:g}", share, runs, most=level)
        for word, share in zip(("passed", "failed"), shares, strict=True)
    )


def one_rule(runs: int, seed: int) -> Table:
    """A student exactly at the bound of one rule, judged once."""
    draw, rows = np.random.default_rng(seed), []
    for text in (SUITES[0], "ifeval >= base - 2", "ifeval >= 0.96*base - 0.5", "ifeval >= 0.85"):
        rule = parse_rule(text)
        for base in (0.9, 0.3) if rule.reference else (0.9,):
            for n in (100, 541, 2000):
                at, rates = cells(base, rule.factor * base + rule.shift, DISAGREE), ()
                for level, looks in LEVELS:
                    counts = draw.multinomial(n, at, size=runs)
                    mean, z = score_tests(counts, rule.factor, rule.shift)
                    passed, failed = decide(mean[:, None], z[:, None], level)
                    for run in range(CHECKED):
                        said = judged([rule], [np.repeat(np.arange(4), counts[run])], alpha=ALPHA, looks=looks)
                        agree(said, passed[run], failed[run])
                    rates += _both(passed, failed, level, runs)
                rows.append(((text, f"{base:g}" if rule.reference else "", f"{n:,}"), rates))
    note = (
        f"A student exactly at the bound of one rule, judged once; its verdicts differ from base's on {DISAGREE:.0%} "
        f"of the items. `recover gate` judges at level {ALPHA:g}; a cycle may judge {LOOKS} times, each at "
        f"{ALPHA / LOOKS:g}."
    )
    return Table("Gate: one rule at its bound", note, ("rule", "base", "items"), rows)


def extremes(items: tuple[int, ...] = (20, 50, 100, 200, 541, 1000, 2000), until: int = 1000) -> Table:
    """The same where base is right, or wrong, on every item: calculated over all samples."""
    rows, every = [], sorted({*items, *range(20, until + 1)})
    worst = [(column, word) for column, word in enumerate(("passes", "failures") * len(LEVELS))]
    for text, base in ((SUITES[0], 1.0), ("ifeval >= 0.9*base", 1.0), ("ifeval >= base + 2", 0.0)):
        shown = dict(zip(every, _exact(text, base, every), strict=True))
        rows += [((text, f"{base:g}", f"{n:,}"), shown[n]) for n in items]
        for column, word in worst:
            n = max((shown[n][column].value, n) for n in range(20, until + 1))[1]
            rows.append(((f"{text}: most {word} at {LEVELS[column // 2][0]:g}", f"{base:g}", f"{n:,}"), shown[n]))
    note = (
        "A student exactly at the bound where base is right or wrong on all items, the probabilities calculated over "
        "all samples. Such a verdict depends on one number of items and moves in jumps, and the test is an "
        "approximation where few items are expected to differ. The numbers with the most errors are those among 20 "
        f"to {until:,} items."
    )
    return Table("Gate: base right or wrong on every item", note, ("rule", "base", "items"), rows)


def _exact(text: str, base: float, numbers: Sequence[int]) -> list[tuple[Rate, ...]]:
    """Return the rates for samples of these sizes in which base is right on all items, or on none."""
    rule, (same, other) = parse_rule(text), (0, 2) if base else (1, 3)
    samples, weights = [], []
    for n in numbers:
        right = np.arange(n + 1)
        chance = stats.binom.pmf(right, n, rule.factor * base + rule.shift)
        kept = chance > 1e-10
        counts = np.zeros((int(kept.sum()), 4), dtype=int)
        counts[:, same], counts[:, other] = right[kept], n - right[kept]
        samples.append(counts)
        weights.append(chance[kept])
    tested = np.stack(score_tests(np.concatenate(samples), rule.factor, rule.shift), axis=1)
    parts = np.split(tested, np.cumsum([len(counts) for counts in samples])[:-1])
    found = []
    for part, chance in zip(parts, weights, strict=True):
        rates: tuple[Rate, ...] = ()
        for level, _ in LEVELS:
            rates += _both(*decide(part[:, :1], part[:, 1:], level), level, None, chance)
        found.append(rates)
    return found


def grouped(runs: int, seed: int) -> Table:
    """Items that share a prompt or a document."""
    draw, rows, rule = np.random.default_rng(seed + 1), [], parse_rule(SUITES[0])
    shapes = (
        ("instructions in 541 prompts", np.resize([1, 1, 2, 1, 3], 541)),
        ("questions of 60 documents", np.full(60, 5)),
        ("questions of 15 documents", np.full(15, 20)),
    )
    for name, sizes in shapes:
        for base in (0.9, 0.3):
            rates: tuple[Rate, ...] = ()
            for level, looks in LEVELS:
                items = in_groups(cells(base, rule.factor * base, DISAGREE), sizes, runs, draw)
                mean, z = group_tests(items, sizes, rule.factor, rule.shift)
                passed, failed = decide(mean[:, None], z[:, None], level, len(sizes) - 1)
                for run in range(CHECKED):
                    said = judged([rule], [items[run]], alpha=ALPHA, looks=looks, groups=names_of(sizes))
                    agree(said, passed[run], failed[run])
                rates += _both(passed, failed, level, runs)
            rows.append(((name, f"{base:g}", f"{sizes.sum():,}"), rates))
    note = (
        f"`{SUITES[0]}`, a student at the bound. Half of the items have the verdicts of their group, the others their "
        "own."
    )
    return Table("Gate: items that belong together", note, ("items", "base", "number"), rows)


def unpaired(runs: int, seed: int) -> Table:
    """Two sets of items that cannot be paired."""
    draw, rows = np.random.default_rng(seed + 2), []

    @functools.cache
    def tested(right: int, n: int, other: int, m: int) -> tuple[float, float]:
        first, second = (score_of([1.0] * a + [0.0] * (b - a)) for a, b in ((right, n), (other, m)))
        found = independent_contrast(first, second, factor=0.96, alpha=ALPHA)
        return found.value, found.statistic

    for base, n, m in ((0.9, 200, 300), (0.3, 200, 300), (0.98, 200, 300), (0.9, 541, 2000)):
        for common in (0.0, 0.4):
            both = round(common * min(n, m))
            counts = draw.multinomial(both, cells(base, 0.96 * base, DISAGREE), size=runs)
            first = counts[:, :2].sum(axis=1) + draw.binomial(n - both, 0.96 * base, size=runs)
            second = counts[:, 0] + counts[:, 2] + draw.binomial(m - both, base, size=runs)
            pairs = np.array([tested(int(a), n, int(b), m) for a, b in zip(first, second, strict=True)])
            rates: tuple[Rate, ...] = ()
            for level, _ in LEVELS:
                rates += _both(*decide(pairs[:, :1], pairs[:, 1:], level), level, runs)
            rows.append(((f"{base:g}", f"{n:,} and {m:,}", f"{common:.0%}"), rates))
    note = (
        f"`{SUITES[0]}`, a student at the bound, on other items than base. Where less than half of the items are "
        "common, the gate compares the two scores; where half or more are, it compares the common items, as above."
    )
    return Table("Gate: other items on each side", note, ("base", "items", "of them common"), rows)


def decisions(runs: int, seed: int) -> Table:
    """Whole decisions of a cycle: growing samples, then an extension with a changed checkpoint."""
    draw, rows = np.random.default_rng(seed + 3), []
    config = CycleConfig()
    pool, first = config.gate_budget, EvalConfig().limit or 1000
    cases: list[tuple[str, tuple[float, ...], str]] = [
        ("at the bound", (0.96,), "most"),
        ("one at the bound, two as base", (0.96, 1.0, 1.0), "accept"),
        ("all three at the bound", (0.96, 0.96, 0.96), "most"),
        ("as base", (1.0,), "reject"),
        ("as base", (1.0, 1.0, 1.0), "reject"),
        ("one at 0.92, two as base", (0.92, 1.0, 1.0), "accept"),
    ]
    for base in (0.9, 0.3):
        for name, shares, promised in cases:
            for looks in (1, 2, LOOKS) if shares[0] == 0.96 else (LOOKS,):
                at = [cells(base, share * base, DISAGREE) for share in shares]
                most = pool if looks > 1 else first
                batches = [settle(at, looks, first, most, draw, BATCH, not b) for b in range(-(-runs // BATCH))]
                outcome = np.concatenate(batches)
                rates = (
                    Rate.of("accepted", outcome > 0, most=ALPHA if promised in ("most", "accept") else None),
                    Rate.of("rejected", outcome < 0, most=ALPHA if promised in ("most", "reject") else None),
                    Rate.of("left to the user", outcome == 0),
                )
                rows.append(((f"{base:g}", f"{len(shares)}", name, f"{looks}"), rates))
    note = (
        f"Rules of 0.96 of base, a level of {ALPHA:g} for the whole decision. 1 look: {first:,} items. 2 looks: an "
        f"undecided rule asks for as many more items as it says would decide it, up to {pool:,} in all, and all items "
        f"are judged again. {LOOKS} looks, the default of a cycle: then the distillation is extended, which changes "
        f"the verdicts of half of the items anew and leaves the score where it was, and the same is repeated. Accepted "
        "although a rule is broken or exactly at its bound, and rejected although all rules hold, are the errors."
    )
    return Table("Gate: whole decisions of a cycle", note, ("base", "rules", "student", "looks"), rows)


def standard(runs: int, seed: int, bases: Sequence[float] = (0.3, 0.8)) -> Table:
    """Whole decisions by the rules of `standard` that compare two checkpoints, with the default limits."""
    draw, rows = np.random.default_rng(seed + 5), []
    config = CycleConfig()
    pool, first = config.gate_budget, EvalConfig().limit or 1000
    # 100 questions about what no document holds: another number of items, and often not applied.
    apart = (LEARNT, UNANSWERABLE)
    rules = [rule for rule in map(parse_rule, STANDARD) if rule.reference and rule.name not in apart]
    suites = [COMPOSED if rule.beyond_constant else (1.0, pool) for rule in rules]
    kept = next(rule for rule in map(parse_rule, STANDARD) if rule.share_learnt)
    level = ALPHA / LOOKS
    share_kept = {
        share: kept_tests(draw, runs, QUESTIONS, NOISES["normal"], REAL_K, share, level) for share in (kept.factor, 1.0)
    }
    for base in bases:
        for broken in (None, *rules, kept):
            scores = [rule.factor * base + rule.shift if rule is broken else base for rule in rules]
            at = [cells(base, score, DISAGREE) for score in scores]
            batches = [
                settle(at, LOOKS, first, pool, draw, BATCH, not b, rules, suites) for b in range(-(-runs // BATCH))
            ]
            outcome = np.concatenate(batches)[:runs]
            passed, below = share_kept[kept.factor if broken is kept else 1.0]
            rejected = (outcome < 0) | (below <= level / (len(rules) + 1))
            accepted = (outcome > 0) & passed & ~rejected
            rates = (
                Rate.of("accepted", accepted, most=ALPHA if broken else None, least=None if broken else 0.8),
                Rate.of("rejected", rejected, most=ALPHA),
                Rate.of("left to the user", ~accepted & ~rejected),
            )
            rows.append(((f"{base:g}", "as base" if broken is None else f"at the bound of {broken.text}"), rates))
    note = (
        f"Rules {', '.join(f'`{rule.text}`' for rule in (*rules, kept))}, a level of {ALPHA:g} for the decision, "
        f"{LOOKS} looks as above; all scores that are compared with are `base`. A student as good is to be accepted in "
        f"at least 0.8, one at a bound in at most {ALPHA:g}. Of the composed prompts, {first:,} items are some "
        f"{first * COMPOSED[0]:,.0f} instructions beyond constant replies, and there are {COMPOSED[1]:,}; "
        f"of the other suite there are {first:,} items, and up to {pool:,}. What is kept is judged once, at the level "
        f"of one look, on {QUESTIONS} questions of 25 pages, as in `Learnt: what is kept`."
    )
    return Table("Gate: the standard rules", note, ("base", "student"), rows)


KEPT = ("0.9*midtrained", "0.75*midtrained", "0.67*midtrained", "0.5*midtrained", "midtrained - 10")


def knowledge_kept(runs: int, seed: int) -> Table:
    """How often a recovery that keeps all knowledge is accepted, by the rule on what mid-training taught."""
    draw, rows = np.random.default_rng(seed + 6), []
    following, pool, first = parse_rule(STANDARD[0]), CycleConfig().gate_budget, EvalConfig().limit or 1000
    for score in (0.12, 0.3, 0.8):
        at = [cells(0.3, 0.3, DISAGREE), cells(score, score, DISAGREE)]
        for questions in (QUESTIONS, 2 * QUESTIONS, 1000):
            rates = []
            for bound in KEPT:
                rules, suites = [following, parse_rule(f"domain >= {bound}")], [COMPOSED, (1.0, questions)]
                outcome = settle(at, LOOKS, first, pool, draw, runs, False, rules, suites)
                rates.append(Rate.of(bound, outcome > 0))
            rows.append(((f"{score:g}", f"{questions:,}"), tuple(rates)))
    note = (
        f"How often `{following.text}` (both score 0.3) and `domain >= BOUND`, a column each, accept a student that is "
        f"as good as the mid-trained model: {LOOKS} looks, {DISAGREE:.0%} of the items differ."
    )
    return Table("Gate: rules on what mid-training taught", note, ("score", "questions"), rows)


def settle(
    at: list[Array],
    looks: int,
    first: int,
    pool: int,
    draw: np.random.Generator,
    runs: int,
    check: bool = False,
    rules: Sequence[Rule] = (),
    suites: Sequence[tuple[float, int]] = (),
) -> Array:
    """Return 1 (accepted), -1 (rejected) or 0 for simulated decisions, by the steps of pipelines.cycle.

    ``suites`` are, of each rule, the scored items per item asked for, and the most there are; by default 1 and
    ``pool``.
    """
    level, rules = ALPHA / looks, rules or [parse_rule(text) for text in SUITES[: len(at)]]
    suites = suites or [(1.0, pool)] * len(at)
    outcome = np.zeros(runs, dtype=int)
    items = [
        np.searchsorted(np.cumsum(one)[:3], draw.random((runs, most))).astype(np.int8)
        for one, (_, most) in zip(at, suites, strict=True)
    ]

    def look(n: Array) -> Array:
        """Judge the undecided samples, ``n`` items asked; return the numbers to ask for next (0: no more)."""
        scored = [np.minimum(most, np.rint(n * each)).astype(int) for each, most in suites]
        found = [
            counted(np.where(np.arange(one.shape[1]) < inside[:, None], one, -1))
            for one, inside in zip(items, scored, strict=True)
        ]
        tests = [score_tests(counts, rule.factor, rule.shift) for counts, rule in zip(found, rules, strict=True)]
        mean, z = (np.stack(part, axis=1) for part in zip(*tests, strict=True))
        passed, failed = decide(mean, z, level)
        open_ = outcome == 0
        if check and open_.any():
            run = int(np.flatnonzero(open_)[0])
            said = judged(
                rules, [one[run, : n_[run]] for one, n_ in zip(items, scored, strict=True)], alpha=ALPHA, looks=looks
            )
            agree(said, passed[run], failed[run])
        outcome[open_ & passed.all(axis=1)] = 1
        outcome[open_ & failed.any(axis=1)] = -1
        asked = []
        for at, (counts, rule, inside, (_, most)) in enumerate(zip(found, rules, scored, suites, strict=True)):
            further = more(counts, rule.factor, rule.shift, mean[:, at], z[:, at], level, len(rules))
            wanted = np.ceil(n * (inside + further) / inside).astype(int)
            asked.append(np.where(passed[:, at] | (further == 0) | (inside >= most), 0, wanted))
        wanted = np.stack(asked, axis=1).max(axis=1)
        return np.where(wanted > n, np.minimum(pool, wanted), 0)

    for extension in range(max(1, looks // 2)):
        if extension:
            items = [_changed(one, cells_, draw) for one, cells_ in zip(items, at, strict=True)]
        further = look(np.full(runs, first))
        if looks > 1:
            closed = further == 0
            kept = outcome[closed]
            look(np.where(closed, first, further))
            outcome[closed] = kept
    return outcome


def _changed(items: Array, at: Array, draw: np.random.Generator) -> Array:
    """Draw half of the student's verdicts anew, given base's."""
    right = np.where(items % 2 == 0, at[0] / max(1e-12, at[0] + at[2]), at[1] / max(1e-12, at[1] + at[3]))
    again = np.where(draw.random(items.shape) < right, items % 2, items % 2 + 2)
    return np.where(draw.random(items.shape) < 0.5, again, items).astype(np.int8)


def power(runs: int, seed: int) -> Table:
    """How often a student as good as base passes, and the margin at which four of five do."""
    draw, rows, rule = np.random.default_rng(seed + 4), [], parse_rule(SUITES[0])
    for base, disagree in ((0.9, DISAGREE), (0.9, 0.09), (0.3, DISAGREE)):
        for n in (541, 1000, 2000, 4000):
            counts, margin = (
                draw.multinomial(n, cells(base, base, disagree), size=runs),
                minimum_detectable_effect(n, p=base),
            )
            rates = []
            for factor, shift, least in ((rule.factor, 0.0, None), (1.0, -margin, 0.8)):
                mean, z = score_tests(counts, factor, shift)
                for level, _ in LEVELS:
                    passed, _failed = decide(mean[:, None], z[:, None], level)
                    event = f"passed {'0.96*base' if least is None else 'base - M'} at {level:g}"
                    rates.append(Rate.of(event, passed, least=least))
            rows.append(((f"{base:g}", f"{disagree:.0%}", f"{n:,}", f"{100 * margin:.1f}"), tuple(rates)))
    note = (
        f"A student truly as good as base, judged once: how often it passes `{SUITES[0]}`, and `ifeval >= base - M`, M "
        "points being the difference that `recover eval --dry-run` says can be seen with so many prompts. That is "
        "calculated for one two-sided test of level 0.05, and for verdicts of two models with a correlation of 0.5: "
        "different on 9% of the items at a score of 0.9, on 21% at 0.3."
    )
    return Table("Gate: power", note, ("base", "differ", "items", "M"), rows)
