"""How often the test that ends a recovery calls a student recovered, by what the student truly reaches.

Run: python -m benchmarks.stopping [--write]

A recovery is tested every few steps on the same development prompts and ends at the first test that is passed
(`--until 0.99`). Here a student stays at a fixed share of base's score for the whole run. An item is answered right if
its difficulty plus noise is below the student's ability; base is judged on the same items without noise. Half of the
noise's variance is the student's own and the same in every test, half is fresh, as responses differ a little with the
weights. Each entry is the share of simulated runs in which at least one test calls the student recovered; it should be
low below 0.99.

A test is passed if the estimate reaches the share, and the lower 95% bound is no more than the margin (0.02 of the
score) below it. That promises a level for a student at the margin only: a little below the wanted share it passes
often, and the more tests a run has, the more often. Its verdict ends a run, and is not evidence: that is the gate's, on
test prompts.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from benchmarks import _report
from evals.paired_tests import CONFIDENCE, non_inferiority
from evals.paired_tests import ENOUGH_TO_DECIDE as ITEMS

UNTIL, MARGIN = 0.99, 0.02
TRUE = (0.96, 0.97, 0.98, 0.985, 0.99, 1.0)
LOOKS = (1, 8, 20)
Verdicts = np.ndarray[Any, np.dtype[np.bool_]]


@dataclass(frozen=True)
class Task:
    """Development prompts: base's score, and the noise of one test."""

    name: str
    base: float
    noise: float


# The second has the score of a model of 135 million parameters, whose verdicts differ from base's on every sixth item.
TASKS = (
    Task("base at 0.90", 0.90, 0.10),
    Task("base at 0.30", 0.30, 0.20),
)


def draw(task: Task, true: float, looks: int, random: np.random.Generator) -> tuple[Verdicts, Verdicts]:
    """Return base's verdicts [items] and the student's [looks, items]; its expected score is ``true`` of base's."""
    ease = random.random(ITEMS)
    noise = (random.normal(size=ITEMS) + random.normal(size=(looks, ITEMS))) * (task.noise / np.sqrt(2))
    right = ease < task.base
    return right, ease + noise < _bound(task.noise, true * task.base)


@functools.cache
def _bound(noise: float, expected: float) -> float:
    """Return the bound b with P(uniform + normal of deviation ``noise`` < b) = ``expected``."""
    ease = (np.arange(2000) + 0.5) / 2000
    grid = np.linspace(-1.0, 2.0, 601)
    means = [float(stats.norm.cdf((b - ease) / noise).mean()) for b in grid]
    return float(np.interp(expected, means, grid))


def passes(base: Verdicts, student: Verdicts) -> Verdicts:
    """Return whether each test [looks] is passed."""
    # The formula of `tested` for all tests at once; `rates` compares some of them with it.
    difference = student - UNTIL * base
    mean = difference.mean(axis=1)
    error = difference.std(axis=1, ddof=1) / np.sqrt(len(base))
    found: Verdicts = (mean >= -1e-12) & (mean - stats.norm.isf(1 - CONFIDENCE) * error > -MARGIN)
    return found


def tested(base: Verdicts, student: Verdicts) -> bool:
    """Return the verdict of the function that ends a recovery."""
    return non_inferiority(base, student, until=UNTIL, margin=MARGIN).recovered


def rates(task: Task, runs: int, seed: int) -> dict[tuple[float, int], float]:
    """Return the share of runs called recovered, by true share and number of tests."""
    random = np.random.default_rng(seed)
    found = {}
    for true in TRUE:
        for looks in LOOKS:
            passed = 0
            for run in range(runs):
                base, student = draw(task, true, looks, random)
                verdicts = passes(base, student)
                if run < 2:
                    assert verdicts.tolist() == [tested(base, one) for one in student]
                passed += bool(verdicts.any())
            found[true, looks] = passed / runs
    return found


def main() -> None:
    """Simulate and print; write with --write."""
    parser = _report.parser(__doc__, "stopping", "seed")
    parser.add_argument("--runs", type=int, default=2000)
    options = parser.parse_args()
    facts = _report.machine(("scipy",), seed=options.seed, runs=f"{options.runs:,} for each entry")
    parts, data = [], []
    for task in TASKS:
        found = rates(task, options.runs, options.seed)
        rows = [(f"{true:g}", *(f"{found[true, looks]:.3f}" for looks in LOOKS)) for true in TRUE]
        header = ("true share of base", *(f"{n} test{'s' * (n > 1)}" for n in LOOKS))
        parts += [f"{task.name}, {ITEMS:,} prompts, {options.runs:,} runs:\n", _report.table(header, rows), ""]
        data += [
            {"task": task.name, "items": ITEMS, "runs": options.runs, "true": true, "looks": n, "rate": rate}
            for (true, n), rate in found.items()
        ]
    body = "\n".join(parts)
    print(body)
    if options.write:
        text = f"{_report.note(__doc__)}\n{body}"
        _report.write("stopping", "The test that ends a recovery", text, facts, {"rows": data})


if __name__ == "__main__":
    main()
