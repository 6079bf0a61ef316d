"""Measures shared by several studies: retention, drift, and the forward KL to base on the task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from evals.suites import sample
from pipelines.studies.measures import INSTRUCTIONS, RETAINED
from recovery.lazy_import import lazily

if TYPE_CHECKING:
    from pipelines.studies.experiment import ExperimentRunner

drift = lazily("evals.drift")
_ASKED, _TOKENS = 60, 64
# The measures of drift that are reported, of those in evals.drift.
_REPORTED = ("lexical_mmd2", "hidden_mmd2", "hidden_sliced_wasserstein", "token_jaccard")


def retention(runner: ExperimentRunner, name: str) -> float:
    """Return the mean of instruction following and general knowledge, each relative to base."""
    before, after = (runner.scores(which, INSTRUCTIONS, RETAINED) for which in ("base", name))
    kept = [after[suite].value / before[suite].value for suite in (INSTRUCTIONS, RETAINED)]
    return sum(kept) / len(kept)


def points(runner: ExperimentRunner, names: Sequence[str], task: str) -> dict[str, float]:
    """Return each run's gain on the task, forgetting, and drift from base."""
    before = runner.value("base", task)
    figures = {f"gain, {name}": runner.value(name, task) - before for name in names}
    figures |= {f"forgetting, {name}": 1.0 - retention(runner, name) for name in names}
    return figures | drifts(runner, names, task)


def drifts(runner: ExperimentRunner, names: Sequence[str], task: str) -> dict[str, float]:
    """Return the distance of each checkpoint's completions from base's on ordinary requests, the same for base against
    itself, and the forward KL to base on the task (RL's Razor, arXiv 2509.04259).
    """
    base, engine = runner.loaded("base")
    asked = sample(runner.asked(INSTRUCTIONS), _ASKED)
    reference = drift.rollouts(base.chat, engine, asked, max_new_tokens=_TOKENS, seed=runner.seed)
    on_task = drift.rollouts(
        base.chat, engine, sample(runner.asked(task), 4 * _ASKED), max_new_tokens=_TOKENS, seed=runner.seed
    )
    again = drift.rollouts(base.chat, engine, asked, max_new_tokens=_TOKENS, seed=runner.seed + 1000)
    null = drift.drift(reference, again, base, seed=runner.seed)
    figures = {f"{measure}, base against itself": null[measure] for measure in _REPORTED}
    for number, name in enumerate(names, 1):
        other, sampler = runner.loaded(name)
        theirs = drift.rollouts(other.chat, sampler, asked, max_new_tokens=_TOKENS, seed=runner.seed + 1000 + number)
        found = drift.drift(reference, theirs, base, seed=runner.seed)
        figures |= {f"{measure}, {name}": found[measure] for measure in _REPORTED}
        figures[f"kl to base on the task, {name}"] = drift.forward_kl(base, other, on_task).value
    return figures
