"""What several studies measure of a run beside its task: retention, drift, and the KL that the razor is about."""

from __future__ import annotations

from collections.abc import Sequence

from evals.drift import drift, forward_kl, null_drift, rollouts
from evals.suites import sample
from pipelines.lab import INSTRUCTIONS, RETAINED, Lab

_ASKED, _TOKENS = 60, 64
# The measures of drift that are reported; the others are in the tracker's reach through evals.drift.
_REPORTED = ("lexical_mmd2", "hidden_mmd2", "hidden_sliced_wasserstein", "token_jaccard")


def retention(lab: Lab, name: str) -> float:
    """What a checkpoint kept: instruction following and general knowledge, each relative to base, their mean."""
    before, after = (lab.scores(which, INSTRUCTIONS, RETAINED) for which in ("base", name))
    kept = [after[suite].value / before[suite].value for suite in (INSTRUCTIONS, RETAINED)]
    return sum(kept) / len(kept)


def points(lab: Lab, names: Sequence[str], task: str) -> dict[str, float]:
    """A run's place in the razor's picture: gain on the task, forgetting, and how far it went from base."""
    before = lab.value("base", task)
    figures = {f"gain, {name}": lab.value(name, task) - before for name in names}
    figures |= {f"forgetting, {name}": 1.0 - retention(lab, name) for name in names}
    return figures | drifts(lab, names, task)


def drifts(lab: Lab, names: Sequence[str], task: str) -> dict[str, float]:
    """How far each checkpoint's answers are from base's on ordinary requests, beside base's from itself, and the
    forward KL to base on the task (RL's Razor, arXiv 2509.04259).
    """
    base, engine = lab.loaded("base")
    asked = sample(lab.asked(INSTRUCTIONS), _ASKED)
    said = rollouts(base.chat, engine, asked, max_new_tokens=_TOKENS, seed=lab.seed)
    on_task = rollouts(base.chat, engine, sample(lab.asked(task), 4 * _ASKED), max_new_tokens=_TOKENS, seed=lab.seed)
    null = null_drift(
        base.chat, engine, asked, base, max_new_tokens=_TOKENS, seeds=(lab.seed, lab.seed + 1000), seed=lab.seed
    )
    figures = {f"{measure}, base against itself": null[measure] for measure in _REPORTED}
    for number, name in enumerate(names, 1):
        other, speaker = lab.loaded(name)
        theirs = rollouts(other.chat, speaker, asked, max_new_tokens=_TOKENS, seed=lab.seed + 1000 + number)
        found = drift(said, theirs, base, seed=lab.seed)
        figures |= {f"{measure}, {name}": found[measure] for measure in _REPORTED}
        figures[f"kl to base on the task, {name}"] = forward_kl(base, other, on_task).value
    return figures
