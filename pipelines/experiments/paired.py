"""Paired comparisons of recorded checkpoints on the same items."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from evals.comparison import Judged, compare
from pipelines.experiments.records import Measured, Record, Value


@dataclass(frozen=True)
class Share:
    """The 95% interval of the mean, over the ``seeds``, of a score after a cycle as a share of base's."""

    cycle: int
    low: float
    high: float
    seeds: tuple[int, ...]


def share_of_base(records: Sequence[Record], cycle: int, score: Value, name: str, kind: str = "last") -> Share | None:
    """Return the interval of the mean over seeds of the share of base that a cycle's checkpoint of a ``kind`` has, by
    default its last; None without items.

    ``records`` are runs of one arm. Each is paired with its own base, which may answer otherwise on another machine.
    The interval is about the prompts alone: another sample of them, the same for every seed. **The spread over seeds is
    not in it**; the table of bounds shows that.

    The mean of the shares is 1 + the mean over items of (d_1/b_1 + … + d_S/b_S)/S, where d_s is what an item gained
    over base in run s and b_s is base's score there. So an item has one score a side, the mean of the runs with weights
    proportional to 1/b_s, and these are compared as those of one run are: by the paired score test, clustered by
    prompt, divided by the harmonic mean of b_s. Only items that all of these runs have count. The b_s are taken as
    known: for shares near 1, what they add to the error is small.
    """
    runs = []
    for record in records:
        base, last, below = record.at(0, "base"), record.at(cycle, kind), score(record, cycle, "base")
        if base is not None and last is not None and below:
            sides = judged(base, name), judged(last, name)
            if sides[0].keys() & sides[1].keys():
                runs.append((record.seed, below, sides))
    if not runs:
        return None
    mean = statistics.harmonic_mean([below for _, below, _ in runs])
    weights = [mean / (len(runs) * below) for _, below, _ in runs]
    first, second = (_weighted([sides[at] for _, _, sides in runs], weights) for at in (0, 1))
    found = compare(name, first, second)
    if found is None:
        return None
    return Share(cycle, 1 + found.low / mean, 1 + found.high / mean, tuple(seed for seed, _, _ in runs))


def _weighted(runs: Sequence[dict[str, Judged]], weights: Sequence[float]) -> dict[str, Judged]:
    """Return the weighted mean of each item that all runs have."""
    return {
        # Rounding may lift the sum of the weights above 1, and the test is for scores of at most 1.
        key: Judged(min(1.0, sum(w * run[key].score for w, run in zip(weights, runs, strict=True))), one.group)
        for key, one in runs[0].items()
        if all(key in run for run in runs)
    }


def judged(measured: Measured, name: str) -> dict[str, Judged]:
    """Return the scores of a suite's instructions by ``ITEM#POSITION``, grouped by prompt."""
    items = measured.items.get(name, {})
    return {
        f"{key}#{at}": Judged(float(one), key) for key, verdicts in items.items() for at, one in enumerate(verdicts)
    }
