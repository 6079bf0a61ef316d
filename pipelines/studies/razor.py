"""Forgetting follows the forward KL to base on the new task, whatever the method."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from pipelines.lab import Lab
from pipelines.studies.points import drifts, retention
from pipelines.studies.study import Part, Study
from pipelines.studies.tasks import demonstrations, mending

STEPS = 40


def run(lab: Lab) -> Mapping[str, float]:
    """One seed: a dozen runs on one task, on and off policy, gentle and hot; then the fit over them."""
    task = mending(lab)
    gold, steps = demonstrations(lab, task), lab.scale(STEPS, 5)
    own: dict[str, Any] = {"prompts": lab.folder / "prompts" / task, "max_new_tokens": 40}
    lab.trained("expert", "base", "sft", data=gold, steps=10 * steps, lr=2e-3)
    runs: dict[str, float] = {}
    for rate in (3e-4, 1e-3, 3e-3):
        for length in (1, 4):
            lab.trained(f"sft {rate:g} x{length}", "base", "sft", data=gold, steps=length * steps, lr=rate)
            runs[f"sft {rate:g} x{length}"] = 0.0
        lab.trained(f"opd {rate:g}", "base", "opd", teacher="expert", steps=steps, lr=rate, **own)
        lab.trained(f"grpo {rate / 2:g}", "base", "grpo", steps=steps, lr=rate / 2, **own)
        runs |= {f"opd {rate:g}": 1.0, f"grpo {rate / 2:g}": 1.0}
    names = ["expert", *runs]
    found = drifts(lab, names, task)
    kl = np.array([found[f"kl to base on the task, {name}"] for name in names])
    forgetting = np.array([1.0 - retention(lab, name) for name in names])
    gain = np.array([lab.value(name, task) for name in names]) - lab.value("base", task)
    mmd = np.array([found[f"hidden_mmd2, {name}"] for name in names])
    figures = {f"kl, {name}": value for name, value in zip(names, kl, strict=True)}
    figures |= {f"forgetting, {name}": value for name, value in zip(names, forgetting, strict=True)}
    figures |= {f"gain, {name}": value for name, value in zip(names, gain, strict=True)}
    on_policy = np.array([name.startswith(("opd", "grpo")) for name in names])
    return figures | {
        "share of forgetting explained by KL": _explained(kl, forgetting),
        "share of forgetting explained by MMD": _explained(mmd, forgetting),
        "gain at equal KL, on-policy minus off-policy": _advantage(kl, gain, on_policy),
    }


def _explained(x: np.ndarray[Any, Any], y: np.ndarray[Any, Any]) -> float:
    """R^2 of the quadratic fit that the paper draws."""
    fitted = np.polyval(np.polyfit(x, y, 2), x)
    return float(1 - ((y - fitted) ** 2).sum() / max(1e-12, ((y - y.mean()) ** 2).sum()))


def _advantage(kl: np.ndarray[Any, Any], gain: np.ndarray[Any, Any], on_policy: np.ndarray[Any, Any]) -> float:
    """Mean distance of the on-policy runs' gain from the off-policy runs' curve of gain over log KL."""
    x = np.log(np.maximum(kl, 1e-6))
    line = np.polyfit(x[~on_policy], gain[~on_policy], 1)
    x = np.clip(x, x[~on_policy].min(), x[~on_policy].max())  # no line is drawn beyond where there are runs
    return float((gain[on_policy] - np.polyval(line, x[on_policy])).mean())


RAZOR = Study(
    name="razor",
    claim="forgetting follows the forward KL to base on the new task across methods; on-policy methods lie on the "
    "better frontier of gain against KL; KL explains what MMD does not",
    source="RL's Razor, arXiv 2509.04259",
    setting="mending badly damaged sentences, from the clean model: SFT at three rates and two lengths, OPD and "
    "GRPO at three rates, an expert: thirteen runs, their KL on the task, their forgetting, a quadratic fit",
    parts=(
        Part("KL explains forgetting: R^2 of a quadratic fit", lambda f: f["share of forgetting explained by KL"], 0.7),
        Part("and more of it than MMD does: difference in R^2",
             lambda f: f["share of forgetting explained by KL"] - f["share of forgetting explained by MMD"], 0.0),
        Part("on-policy runs gain more at equal KL: difference",
             lambda f: f["gain at equal KL, on-policy minus off-policy"], 0.0),
    ),
    run=run,
)  # fmt: skip
