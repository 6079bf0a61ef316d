"""Verdicts over the seeds of a study, and the alarm of a run: how often they are wrong, and how often they decide."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from benchmarks._verdicts_model import Array, Noise, Rate, Table
from evals.statistics import spread
from examples.studies.study import CONFIDENCE, Outcome, Part, Study, figure
from pipelines.distillation.early_stopping import CollapseDetector, on_plateau
from recovery.config import DistillConfig

ONE_SIDE = round((1 - CONFIDENCE) / 2, 6)
RESPONSES = 32  # default number of responses of a step


def tables(runs: int, seed: int) -> list[Table]:
    """Return all tables of this module."""
    few, fewer = max(200, runs // 4), max(100, runs // 50)
    return [
        statements(few, seed), claims(few // 2, seed), study_power(few // 2, seed),
        false_alarms(fewer, seed), alarms(fewer // 2, seed), plateaus(fewer, seed),
    ]  # fmt: skip


def _share(p: float, n: int) -> Noise:
    return lambda draw, shape: draw.binomial(n, p, size=shape) / n - p


NOISES: dict[str, Noise] = {
    "normal": lambda draw, shape: draw.normal(size=shape),
    "exponential, tail above": lambda draw, shape: draw.exponential(size=shape) - 1,
    "exponential, tail below": lambda draw, shape: 1 - draw.exponential(size=shape),
    "share of 300 items, 0.97": _share(0.97, 300),
    "share of 300 items, 0.995": _share(0.995, 300),
    "share of 50 items, 0.97": _share(0.97, 50),
    "share of 50 items, 0.995": _share(0.995, 50),
    "0.7 in a tenth of the seeds, else 1": lambda draw, shape: np.where(draw.random(shape) < 0.1, -0.27, 0.03),
}
ITEMS = {name: int(name.split()[2]) for name in NOISES if name.startswith("share of")}


def outcomes(found: Array, items: int = 1_000_000) -> Iterator[Outcome]:
    """Return the product's outcome for figures [runs, seeds, statements], which must be above 0; each is measured on
    ``items`` items.
    """
    parts = tuple(Part(f"{at}", figure(f"{at}"), 0.0) for at in range(found.shape[2]))
    study = Study("", "", "", "", parts, lambda runner: {})
    for run in found.round(9).tolist():
        runs = {seed: {f"{at}": v for at, v in enumerate(one)} for seed, one in enumerate(run)}
        yield Outcome(study, runs, items, 0.0)


def statements(runs: int, seed: int) -> Table:
    """One statement truly at its bound."""
    draw, rows = np.random.default_rng(seed), []
    for name, noise in NOISES.items():
        for seeds in (3, 5, 10) if name in list(NOISES)[:3] else (3,):
            found = noise(draw, (runs, seeds, 1))
            words = np.array([one.verdict for one in outcomes(found, ITEMS.get(name, 1_000_000))])
            alike = np.ptp(found[:, :, 0], axis=1) < 1e-9
            spreads = [spread(one) for one in found[:, :, 0].tolist()]
            rates = (
                Rate.of("holds", words == "holds", most=ONE_SIDE),
                Rate.of("does not hold", words == "does not hold", most=ONE_SIDE),
                Rate.of("all seeds alike", alike),
                Rate.of("alike, and decided", alike & (words != "undecided")),
                Rate.of("mean ± spread covers the truth", [abs(m) <= s for m, s in spreads]),
            )
            rows.append(((name, f"{seeds}"), rates))
    note = (
        f"A statement whose figure is truly at its bound, over seeds: a {CONFIDENCE:.0%} interval by Student's t, so "
        f"that each side is to be wrong in {ONE_SIDE:.1%} of studies. The interval takes the seeds' figures as normal; "
        "where all are alike, as shares of few items often are, the spread counts as one item. The spread printed "
        "beside a mean is the standard deviation over seeds, not an interval."
    )
    return Table("Studies: one statement at its bound", note, ("noise of a seed", "seeds"), rows)


def claims(runs: int, seed: int) -> Table:
    """Claims of several statements, three seeds."""
    draw, rows = np.random.default_rng(seed + 1), []
    for count in (1, 3, 6, 8):
        for name, away in (("all at their bounds", 0.0), ("one at its bound, the others far above", 100.0)):
            found = draw.normal(size=(runs, 3, count))
            found[:, :, 1:] += away
            parts = list(outcomes(found))
            words = np.array([one.verdict for one in parts])
            wrong = np.array(
                [any(word != "undecided" for _, word in one.parts[: 1 if away else None]) for one in parts]
            )
            rates = (
                Rate.of("a statement is wrongly decided", wrong),
                Rate.of("the claim holds", words == "holds", most=ONE_SIDE),
                Rate.of("does not hold", words == "does not hold", most=ONE_SIDE),
            )
            if count > 1 or not away:
                rows.append(((f"{count}", name), rates))
    note = (
        "Three seeds, normal noise, independent statements. A claim holds if all of its statements do, which needs no "
        "correction; it does not hold if one of them does not at a level shared by all. The promise is that of one "
        f"statement, {ONE_SIDE:.1%}."
    )
    return Table("Studies: claims of several statements", note, ("statements", "of which"), rows)


def study_power(runs: int, seed: int) -> Table:
    """How often a true statement is found to hold."""
    draw, rows = np.random.default_rng(seed + 2), []
    for effect in (1.0, 2.0, 3.0, 5.0):
        rates = []
        for seeds, count in ((2, 1), (3, 1), (5, 1), (10, 1), (3, 6)):
            found = draw.normal(size=(runs, seeds, count)) + effect
            words = np.array([one.verdict for one in outcomes(found)])
            event = f"{seeds} seeds" + (f", {count} statements" if count > 1 else "")
            rates.append(Rate.of(event, words == "holds"))
        rows.append(((f"{effect:g}",), tuple(rates)))
    note = (
        "How often a claim holds whose statements are truly beyond their bounds, by so many standard deviations over "
        "seeds; independent statements, normal noise."
    )
    return Table("Studies: power", note, ("beyond the bound by",), rows)


# --- the alarm ---------------------------------------------------------------------------------------------------


def signals(steps: int, end_rate: float, noise: float, draw: np.random.Generator) -> dict[str, Array]:
    """Return the metrics of a run in which nothing changes: autocorrelated, from 32 responses a step.

    With a ``noise`` of 1 the figures of one step vary about as in recoveries of a model of 135 million parameters.
    """

    def wave(deviation: float, correlation: float) -> Array:
        found, value = np.empty(steps), draw.normal()
        for step, fresh in enumerate(draw.normal(size=steps) * np.sqrt(1 - correlation**2)):
            found[step] = value = correlation * value + fresh
        return found * deviation * noise

    ended = 1 / (1 + np.exp(-np.log(end_rate / (1 - end_rate)) - wave(0.55, 0.6)))
    return {
        "entropy": 2.2 * np.exp(wave(0.13, 0.8)),
        "response_length": 45 * np.exp(wave(0.18, 0.5)),
        "end_rate": draw.binomial(RESPONSES, ended) / RESPONSES,
        "geometry/density": 0.2 * np.exp(wave(0.3, 0.5)),
        "ratio": 1 + wave(0.05, 0.3),
    }


def stops(metrics: dict[str, Array], end_rate: float, taught: bool) -> tuple[int | None, int | None]:
    """Return the steps at which the product first reports a signal, and stops the run.

    ``taught``: the student is trained towards a frozen teacher, whose own values are those usual in these runs.
    """
    usual = {"entropy": 2.2, "response_length": 45.0, "end_rate": end_rate}
    alarm, reported = CollapseDetector(taught, (lambda: usual) if taught else None), None
    for step in range(len(metrics["entropy"])):
        stopped = alarm.update({name: float(found[step]) for name, found in metrics.items()})
        reported = step if reported is None and not alarm.healthy else reported
        if stopped:
            return reported, step
    return reported, None


def false_alarms(runs: int, seed: int) -> Table:
    """Runs in which nothing changes."""
    draw, rows, steps = np.random.default_rng(seed + 3), [], 200
    for taught in (True, False):
        for end_rate, noise in ((0.98, 1.0), (0.75, 1.0), (0.55, 1.0), (0.75, 2.0)):
            found = [stops(signals(steps, end_rate, noise, draw), end_rate, taught) for _ in range(runs)]
            rates = [
                Rate.of(f"stopped by step {by}", [b is not None and b < by for _, b in found])
                for by in (60, 120, steps)
            ]
            rates.append(Rate.of(f"reported by {steps}", [a is not None for a, _ in found]))
            rows.append((("yes" if taught else "no", f"{end_rate:g}", f"{noise:g}"), tuple(rates)))
    note = (
        "Runs in which nothing changes, all five signals autocorrelated from step to step, the end-token rate from "
        f"{RESPONSES} responses. A noise of 1 is about that of recoveries of a model of 135 million parameters. "
        "Towards a frozen teacher, as by default, signals may settle on its values. No rate is promised."
    )
    labels = ("frozen teacher", "end-token rate", "noise")
    return Table("Alarm: runs in which nothing changes", note, labels, rows)


def alarms(runs: int, seed: int) -> Table:
    """Runs that collapse."""
    draw, rows, start, steps = np.random.default_rng(seed + 4), [], 40, 120
    later = np.maximum(0, np.arange(steps) - start + 1)
    cases: tuple[tuple[str, str, Array], ...] = (
        ("responses four times as long", "response_length", np.where(later > 0, 4.0, 1.0)),
        ("responses six times as long", "response_length", np.where(later > 0, 6.0, 1.0)),
        ("responses 5% longer every step", "response_length", 1.05**later),
        ("entropy six times as high", "entropy", np.where(later > 0, 6.0, 1.0)),
        ("hardly a response ends", "end_rate", np.where(later > 0, 0.1, 1.0)),
        ("a third of the ends", "end_rate", np.where(later > 0, 1 / 3, 1.0)),
        ("responses a sixth as long, no teacher", "response_length", np.where(later > 0, 1 / 6, 1.0)),
        ("entropy a twentieth, no teacher", "entropy", np.where(later > 0, 0.05, 1.0)),
        ("entropy a tenth less every step, no teacher", "entropy", 0.9**later),
        ("gradient density a fiftieth, no teacher", "geometry/density", np.where(later > 0, 0.02, 1.0)),
    )
    for name, metric, change in cases:
        delays: list[int] = []
        while len(delays) < runs:
            metrics = signals(steps, 0.75, 1.0, draw)
            metrics[metric] = metrics[metric] * change
            stopped = stops(metrics, 0.75, "no teacher" not in name)[1]
            delay = steps if stopped is None else stopped - start + 1
            delays += [delay] if delay > 0 else []
        rates = tuple(Rate.of(f"within {by} steps", [d <= by for d in delays]) for by in (5, 10, 40))
        rows.append(((name, f"{np.median(delays):g}"), rates))
    note = (
        f"Runs in which one signal changes at step {start + 1}, with the noise of 1 and an end-token rate of 0.75, and "
        "which were not stopped before: how many are stopped within so many steps. A signal is the median of five "
        "steps, out of range three times."
    )
    return Table("Alarm: runs that collapse", note, ("change", "median delay"), rows)


def plateaus(runs: int, seed: int) -> Table:
    """The divergence of a run, and when it is called a plateau."""
    draw, rows, steps, window = np.random.default_rng(seed + 5), [], 200, DistillConfig().plateau
    for fall in (0.0, 0.0003, 0.0006, 0.001, 0.002):
        for deviation in (0.1, 0.3):
            noise, wave = draw.normal(size=(runs, steps)) * np.sqrt(0.75), np.empty((runs, steps))
            for step in range(steps):
                wave[:, step] = noise[:, step] + (0.5 * wave[:, step - 1] if step else 0.0)
            found = np.exp(deviation * wave - fall * np.arange(steps)).tolist()
            ended = [_ended(one, window) for one in found]
            rates = tuple(
                Rate.of(f"ended by step {by}", [end <= by for end in ended]) for by in (2 * window, 150, steps)
            )
            rows.append(((f"{100 * fall:g}%", f"{deviation:g}"), rates))
    note = (
        f"A divergence that falls by so much every step, with autocorrelated noise (its logarithm's deviation): how "
        f"often it is called a plateau, at the default of {window} steps. A run ends where the mean of so many steps "
        "is less than 3% below that of as many before. No rate is promised."
    )
    return Table("Plateau", note, ("fall a step", "noise"), rows)


def _ended(history: list[float], window: int) -> float:
    return next((s for s in range(2 * window, len(history) + 1) if on_plateau(history[:s], window)), np.inf)
