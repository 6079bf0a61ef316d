"""Forgetting depends on the forward KL to base on the new task, not on the method (RL's Razor)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from examples.studies.study import FIGURES, Figures, Part, Runner, Study, figure, minus, read
from recovery.config import DistillConfig, to_json
from recovery.lazy_import import lazily
from recovery.workspace import Workspace

cost = lazily("pipelines.experiments.compare")  # torch
STEPS = 40
RATES = (3e-4, 3e-3)
KL = "kl to base on the task, "
Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Point:
    """One run: its method, KL to base on the task, drift (MMD), forgetting, and gain."""

    name: str
    method: str
    kl: float
    mmd: float
    forgetting: float
    gain: float


def run(runner: Runner) -> Figures:
    """Run one seed: on-policy and off-policy runs on one task at two learning rates; fit them with those of other
    studies.
    """
    home = runner.session.workspace.folder  # studies/razor/budget-B/seed-S
    found = _points(runner, home, _own(runner))
    for other, figures in others(home).items():
        found += _points(runner, other, figures)
    kl, mmd, forgetting, gain = (np.array([getattr(p, n) for p in found]) for n in ("kl", "mmd", "forgetting", "gain"))
    methods = np.array([p.method for p in found])
    left = forgetting - _fitted(kl, forgetting)
    figures = {
        "runs": float(len(found)),
        "share of forgetting explained by KL": _explained(kl, forgetting),
        "share of forgetting explained by MMD": _explained(mmd, forgetting),
        "gain at equal KL, on-policy minus off-policy": _advantage(kl, gain, methods != "sft"),
    }
    for method in ("sft", "opd", "grpo"):
        figures[f"forgetting beyond what KL explains, {method}"] = float(left[methods == method].mean())
        figures[f"spread of what KL leaves, {method}"] = float(left[methods == method].std())
    for point in found:
        for name in ("kl", "forgetting", "gain"):
            figures[f"{name}, {point.name}"] = getattr(point, name)
    return figures


def _own(runner: Runner) -> dict[str, float]:
    """Run this study's own runs: an expert, and three methods at two learning rates."""
    prompts, steps = runner.mending(), runner.scale(STEPS, 5)
    gold = runner.demonstrations(prompts)
    own: dict[str, Any] = {"prompts": prompts, "max_new_tokens": 40, "steps": steps}
    runner.trained("expert", "base", "sft", data=gold, steps=10 * steps, lr=2e-3)
    names = ["expert"]
    for rate in RATES:
        for length in (1, 4):
            names.append(f"sft {rate:g} x{length}")
            runner.trained(names[-1], "base", "sft", data=gold, steps=length * steps, lr=rate)
        names.append(f"opd {rate:g}")
        runner.trained(names[-1], "base", "opd", teacher="expert", lr=rate, **own)
        names.append(f"grpo {rate / 2:g}")
        runner.trained(names[-1], "base", "grpo", lr=rate / 2, **own)
    return runner.points(names, prompts.name)


def _points(runner: Runner, home: Path, figures: Figures) -> list[Point]:
    """Return the runs for which a study's seed, whose folder is ``home``, has all four measures."""
    own, study = home == runner.session.workspace.folder, home.parents[1].name
    names = [key.removeprefix(KL) for key in figures if key.startswith(KL)]
    return [
        Point(
            name if own else f"{study}: {name}",
            method_family(runner, name, home),
            figures[KL + name],
            figures[f"hidden_mmd2, {name}"],
            figures[f"forgetting, {name}"],
            figures[f"gain, {name}"],
        )
        for name in names
    ]


def others(home: Path) -> dict[Path, Figures]:
    """Return the figures of other studies that have finished this seed at this budget, by the folder of their runs."""
    kept = {path.parent: read(path) for path in home.parents[2].glob(f"*/{home.parent.name}/{home.name}/{FIGURES}")}
    return {other: one.figures for other, one in sorted(kept.items()) if one.complete and other != home}


def method_family(runner: Runner, name: str, home: Path) -> str:
    """Return how the stage that made a checkpoint of a study's seed trained, by its settings: "sft" (imitates given
    responses), "opd" (a teacher scores the student's own), "grpo" (a reward does).
    """
    experiment = Workspace(home).settings().get("experiment")
    if not experiment:
        experiment = f"study/{home.parents[1].name}/{home.parent.name}/{home.name}"
    stage = cost.stage_of(runner.session, name, str(experiment))
    settings = {**to_json(DistillConfig()), **stage.config}
    if stage.kind != "distill" or settings["alpha"] == 0 or settings["teacher"] == "label":
        return "sft"
    return "grpo" if settings["lam"] == 0 else "opd"


def _fitted(x: Array, y: Array) -> Array:
    """Return the values of the paper's quadratic fit at ``x``."""
    fitted: Array = np.polyval(np.polyfit(x, y, 2), x)
    return fitted


def _explained(x: Array, y: Array) -> float:
    """Return R^2 of the quadratic fit."""
    return float(1 - ((y - _fitted(x, y)) ** 2).sum() / max(1e-12, ((y - y.mean()) ** 2).sum()))


def _advantage(kl: Array, gain: Array, on_policy: Array | Sequence[bool]) -> float:
    """Return the mean distance of the on-policy runs' gain from the off-policy runs' line of gain over log KL."""
    on = np.asarray(on_policy)
    x = np.log(np.maximum(kl, 1e-6))
    line = np.polyfit(x[~on], gain[~on], 1)
    x = np.clip(x, x[~on].min(), x[~on].max())  # no extrapolation
    return float((gain[on] - np.polyval(line, x[on])).mean())


RAZOR = Study(
    name="razor",
    claim="forgetting follows the forward KL to base on the new task across methods; on-policy methods lie on the "
    "better frontier of gain against KL; KL explains what MMD does not",
    source="RL's Razor, arXiv 2509.04259",
    setting="mending badly damaged sentences, from the clean model: SFT at two rates and two lengths, OPD and "
    "GRPO at two rates, an expert; and every run of the studies states, teachers and ceiling that this "
    "seed has done; their KL on the task, their forgetting, a quadratic fit",
    parts=(
        Part("KL explains forgetting: R^2 of a quadratic fit", figure("share of forgetting explained by KL"), 0.7),
        Part("and more of it than MMD does: difference in R^2",
             minus("share of forgetting explained by KL", "share of forgetting explained by MMD"), 0.0),
        Part("on-policy runs gain more at equal KL: difference",
             figure("gain at equal KL, on-policy minus off-policy"), 0.0),
    ),
    run=run,
)  # fmt: skip
