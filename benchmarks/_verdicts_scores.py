"""Comparisons of two checkpoints, intervals of scores, and effect sizes: how often they are wrong, or enough."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy import stats

from benchmarks._verdicts_model import (
    ALPHA,
    Array,
    Rate,
    Table,
    cells,
    counted,
    group_tests,
    in_groups,
    measured,
    more,
    names_of,
    score_tests,
)
from db.agreement import score_interval
from evals.measurement import Measurement
from evals.paired_tests import Judged, by_type, compare, mcnemar, paired_difference
from evals.statistics import holm, minimum_detectable_effect, score_of
from pipelines.evaluation.retention import forgetting, retention

SURE_OF = float(stats.norm.isf(ALPHA / 2))
FORGOTTEN = 300  # items of a measured forgetting


def tables(runs: int, seed: int) -> list[Table]:
    """Return all tables of this module."""
    few = max(200, runs // 10)
    return [
        differences(few, seed), by_types(few, seed), in_clusters(few, seed), intervals(few, seed),
        effects(runs, seed), more_items(few, seed),
    ]  # fmt: skip


def mcnemar_p(counts: Array) -> Array:
    """Return the p-value of the exact McNemar test of each sample of cells; one is compared with the product's."""
    won, lost = counts[:, 1], counts[:, 2]
    found = np.minimum(1.0, 2 * stats.binom.cdf(np.minimum(won, lost), won + lost, 0.5))
    student, base = (list(side.items.values()) for side in measured(np.repeat(np.arange(4), counts[0])))
    assert abs(mcnemar(base, student).p_value - found[0]) < 1e-9
    return found


def _judged(items: Array, groups: list[str] | None = None) -> tuple[dict[str, Judged], dict[str, Judged]]:
    """Return base's and the student's items, given the cell of each."""
    names = groups or [""] * len(items)
    student, base = (
        {key: Judged(score, names[int(key)]) for key, score in side.items.items()} for side in measured(items)
    )
    return base, student


# Items, and how many of them only base, or only the student, is expected to get right.
FEW = (
    (200, 1, 1), (200, 2, 2), (200, 4, 4), (200, 10, 10), (541, 43, 43),
    (100, 1, 0), (200, 1, 0), (200, 3, 0), (200, 8, 0), (200, 10, 2), (541, 60, 30),
)  # fmt: skip


def differences(runs: int, seed: int, cases: Sequence[tuple[int, int, int]] = FEW) -> Table:
    """Intervals and p-values of a difference where few items have different verdicts."""
    draw, rows = np.random.default_rng(seed), []
    for n, lost, won in cases:
        true = (won - lost) / n
        counts = draw.multinomial(n, [0.9 - lost / n, won / n, lost / n, 0.1 - won / n], size=runs)
        p_values = mcnemar_p(counts)
        _, z = score_tests(counts, 1.0, true)
        said = compare("", *_judged(np.repeat(np.arange(4), counts[0])))
        assert said is not None and (said.low <= true <= said.high) == (abs(z[0]) <= SURE_OF)
        rates = (
            Rate.of("p at most 0.05", p_values <= ALPHA, most=None if true else ALPHA),
            Rate.of("interval misses", np.abs(z) > SURE_OF, most=ALPHA),
        )
        rows.append(((f"{n:,}", f"{lost}", f"{won}", f"{100 * true:+.1f}"), rates))
    note = (
        "`lost` and `won` are the expected numbers of items that only base, or only the student, gets right. The exact "
        "McNemar test, and the interval of the score test beside it. Without a true difference a p-value of at most "
        "0.05 is an error, with one it is the power."
    )
    return Table("Comparison of two checkpoints", note, ("items", "lost", "won", "difference"), rows)


def by_types(runs: int, seed: int) -> Table:
    """Many instruction types at once."""
    draw, rows, types = np.random.default_rng(seed + 1), [], 15
    for n in (36, 150):
        for base, loss in ((0.9, 0.0), (0.3, 0.0), (0.9, 0.1), (0.9, 0.2)):
            found = np.empty((runs, types))
            for kind in range(types):
                counts = draw.multinomial(n, cells(base, base - (0 if kind else loss), 0.16), size=runs)
                found[:, kind] = mcnemar_p(counts)
            adjusted = np.array([holm(one) for one in found.tolist()]) <= ALPHA
            rates = (
                Rate.of("a type that lost nothing", adjusted[:, 1:].any(axis=1), most=ALPHA),
                Rate.of("the first type", adjusted[:, 0], most=None if loss else ALPHA),
                Rate.of("without Holm, any", (found <= ALPHA).any(axis=1)),
            )
            rows.append(((f"{n}", f"{base:g}", f"{100 * loss:g}"), rates))
    _agrees_by_type(draw)
    note = (
        f"{types} types, p-values of McNemar's test corrected by Holm: how often at most {ALPHA:g}. The first type has "
        "truly lost so many points, the others none."
    )
    return Table("Comparison by type", note, ("items of a type", "base", "lost by the first"), rows)


def _agrees_by_type(draw: np.random.Generator) -> None:
    """Compare the corrected p-values with those of the product."""
    items = draw.integers(0, 4, size=(4, 30))
    sides: tuple[dict[str, Judged], ...] = ({}, {})
    for at in range(items.shape[1]):
        for side, right in zip(sides, ((0, 2), (0, 1)), strict=True):
            side[str(at)] = Judged(0.0, "", {f"type {kind}": int(items[kind, at]) in right for kind in range(4)})
    said = {one.name: one.p_adjusted for one in by_type(sides[0], sides[1])}
    own = holm(mcnemar_p(counted(items)).tolist())
    assert np.allclose([said[f"type {kind}"] or 0.0 for kind in range(4)], own)


def in_clusters(runs: int, seed: int) -> Table:
    """Comparisons of items that share a prompt or a document."""
    draw, rows, fewer = np.random.default_rng(seed + 2), [], max(50, runs // 5)
    for name, sizes in (("541 prompts", np.resize([1, 1, 2, 1, 3], 541)), ("15 documents", np.full(15, 20))):
        items, groups = in_groups(cells(0.9, 0.9, 0.16), sizes, runs, draw), names_of(sizes)
        _, z = group_tests(items, sizes, 1.0, 0.0)
        below = stats.t.cdf(z, len(sizes) - 1)
        p_values = 2 * np.minimum(below, 1 - below)
        said = compare("", *_judged(items[0], groups))
        assert said is not None and said.p_value is not None and abs(said.p_value - p_values[0]) < 1e-6
        away = np.array([0.0, 1.0, -1.0, 0.0])[items[:fewer]]
        sides = [((one < 0).astype(float), (one > 0).astype(float)) for one in away]
        spans = [paired_difference(*pair, groups) for pair in sides]
        rates = (
            Rate.of("p at most 0.05", p_values <= ALPHA, most=ALPHA),
            Rate.of("McNemar's would be", mcnemar_p(counted(items)) <= ALPHA),
            Rate.of("interval misses", [not span.low <= 0.0 <= span.high for span in spans], most=ALPHA),
        )
        rows.append(((name, f"{sizes.sum():,}"), rates))
    note = (
        "No true difference, base at 0.9, verdicts different on 16% of the items; half of the items have the verdicts "
        "of their group. The clustered score test, and its interval."
    )
    return Table("Comparison of items that belong together", note, ("groups", "items"), rows)


def intervals(runs: int, seed: int) -> Table:
    """Intervals of a score, of a retention and of a forgetting."""
    draw, rows = np.random.default_rng(seed + 3), []
    for share, n in ((0.5, 100), (0.9, 100), (0.9, 541), (0.98, 100), (0.98, 541)):
        right = np.arange(n + 1)
        spans = [score_of([1.0] * int(k) + [0.0] * int(n - k)) for k in right]
        limits = [score_interval(span.value, span.stderr, span.n) for span in spans]
        misses = [not low <= share <= high for low, high in limits]
        missed = float(np.average(misses, weights=stats.binom.pmf(right, n, share)))
        rows.append(((f"score {share:g}", f"{n}"), (Rate("misses", missed, None, most=ALPHA),)))
    for base, ratio, n in ((0.9, 0.96, 541), (0.3, 1.0, 541), (0.98, 1.0, 200)):
        counts = draw.multinomial(n, cells(base, ratio * base, 0.16), size=runs)
        _, z = score_tests(counts, ratio, 0.0)
        student, reference = measured(np.repeat(np.arange(4), counts[0]))
        said = retention(student, reference)
        assert said is not None and (said.low <= ratio <= said.high) == (abs(z[0]) <= SURE_OF)
        rate = Rate.of("misses", np.abs(z) > SURE_OF, most=ALPHA)
        rows.append(((f"retention of {ratio:g} of {base:g}", f"{n}"), (rate,)))
    for earlier in (1, 3, 8):
        rate = Rate.of("misses", _forgotten(earlier, runs, draw), most=ALPHA if earlier == 1 else None)
        rows.append(((f"forgetting: none since the best of {earlier} checkpoints", f"{FORGOTTEN}"), (rate,)))
    note = (
        "95% intervals: of a score as dashboard and report print it (calculated over all samples), of the share of a "
        "task's score that was kept, and of what was lost since the best earlier checkpoint. The last promises its "
        "level for one earlier checkpoint: it does not account for choosing the best."
    )
    return Table("Intervals of scores", note, ("interval", "items"), rows)


def _forgotten(earlier: int, runs: int, draw: np.random.Generator) -> Array:
    """Return whether the interval of what was lost misses 0, although all checkpoints are equally good, [runs]."""
    right = draw.random((runs, 1, FORGOTTEN)) < 0.9
    fresh = draw.random((runs, earlier + 1, FORGOTTEN)) < 0.9
    found = np.where(draw.random((runs, earlier + 1, FORGOTTEN)) < 0.1, fresh, right)
    best = found[np.arange(runs), 1 + found[:, 1:].sum(axis=2).argmax(axis=1)]
    cell = np.where(best, 0, 2) + np.where(found[:, 0], 0, 1)
    _, z = score_tests(counted(cell), 1.0, 0.0)
    sides = [Measurement({str(i): float(v) for i, v in enumerate(side)}) for side in found[0]]
    said = forgetting(sides[0], {str(k): side for k, side in enumerate(sides[1:])})
    assert said is not None and (said[1].low <= 0 <= said[1].high) == (abs(z[0]) <= SURE_OF)
    missed: Array = np.abs(z) > SURE_OF
    return missed


def effects(runs: int, seed: int) -> Table:
    """A true difference of the size that is said to be detectable."""
    draw, rows = np.random.default_rng(seed + 4), []
    for p, correlation in ((0.5, 0.5), (0.9, 0.5), (0.3, 0.5), (0.9, 0.11), (0.3, 0.62)):
        for n in (100, 541, 2000):
            effect = minimum_detectable_effect(n, p=p)
            one, two = p + effect / 2, p - effect / 2
            if not 0 < two < one < 1:
                continue
            both = one * two + correlation * np.sqrt(one * (1 - one) * two * (1 - two))
            at = np.array([both, two - both, one - both, 1 - one - two + both])
            if at.min() < 0:
                continue
            counts = draw.multinomial(n, at, size=runs)
            _, z = score_tests(counts, 1.0, 0.0)
            least = 0.8 if correlation == 0.5 else None
            rates = (
                Rate.of("found by the score test", np.abs(z) > SURE_OF, least=least),
                Rate.of("by McNemar's", mcnemar_p(counts) <= ALPHA, least=least),
            )
            differ = 2 * p * (1 - p) * (1 - correlation)
            rows.append(((f"{p:g}", f"{correlation:g}", f"{differ:.0%}", f"{n:,}", f"{100 * effect:.1f}"), rates))
    note = (
        "Two models whose true scores differ by `minimum_detectable_effect`, here in points, around a score, and how "
        "often a two-sided test of level 0.05 finds it (promised: 80%). It is calculated for verdicts with a "
        "correlation of 0.5; the last two scores have models whose verdicts differ on 16% of the items."
    )
    return Table("Detectable differences", note, ("score", "correlation", "differ", "items", "difference"), rows)


def more_items(runs: int, seed: int) -> Table:
    """Whether an undecided rule is decided by the number of further items that it asks for."""
    draw, rows, factor = np.random.default_rng(seed + 5), [], 0.96
    for base, share in ((0.9, 1.0), (0.9, 0.98), (0.9, 0.94), (0.3, 1.0)):
        for n in (200, 1000):
            for level in (ALPHA, ALPHA / 4):
                at, bound = cells(base, share * base, 0.16), stats.norm.isf(level)
                counts = draw.multinomial(n, at, size=runs)
                mean, z = score_tests(counts, factor, 0.0)
                asked = more(counts, factor, 0.0, mean, z, level, 1)
                kept = (np.abs(z) < bound) & (asked > 0)
                counts, mean, asked = counts[kept], mean[kept], asked[kept]
                alike = counts / counts.sum(axis=1, keepdims=True)
                samples = (
                    draw.multinomial(n + asked, alike),
                    counts + draw.multinomial(asked, alike),
                    counts + draw.multinomial(asked, at),
                )
                words = ("new items, estimate right", "with the old, estimate right", "with the old, in truth")
                rates = []
                for word, sample in zip(words, samples, strict=True):
                    _, again = score_tests(sample, factor, 0.0)
                    decided = np.where(mean > 0, again, -again) >= bound
                    rates.append(Rate.of(word, decided, least=0.8 if "right" in word else None))
                _, again = score_tests(samples[2], factor, 0.0)
                rates.append(Rate.of("undecided, in truth", np.abs(again) < bound))
                label = (f"{base:g}", f"{share:g}", f"{n:,}", f"{level:g}", f"{np.median(asked):,.0f}")
                rows.append((label, tuple(rates)))
    note = (
        "Samples that leave the rule `ifeval >= 0.96*base` undecided, and how often as many more items as its verdict "
        "asks for decide it on the side of the estimate: if the estimate is right (promised: 80%), for new items alone "
        "and for old and new together, as a cycle judges them; and in truth, where the estimate may be far off, even "
        "on the other side of the bound."
    )
    return Table("More items", note, ("base", "share of base", "items", "level", "median asked"), rows)
