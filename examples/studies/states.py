"""Effect of the source of training states on retention: mild and stressed SFT, RL, and OPD from the stressed model."""

from __future__ import annotations

from typing import Any

from examples.studies.study import Figures, Part, Runner, Study, figure, gained, minus

STEPS = 60
RUNS = ("mild-sft", "stress-sft", "grpo", "opd", "one-step-opd", "continuation-opd")


def run(runner: Runner) -> Figures:
    """Run one seed: six ways to learn to mend sentences from the clean model."""
    prompts, steps = runner.mending(), runner.scale(STEPS, 5)
    task, gold = prompts.name, runner.demonstrations(prompts)
    own: dict[str, Any] = {"prompts": prompts, "max_new_tokens": 40, "steps": steps}
    taught = own | {"teacher": "stress-sft"}
    runner.trained("mild-sft", "base", "sft", data=gold, steps=steps, lr=3e-4)
    runner.trained("stress-sft", "base", "sft", data=gold, steps=5 * steps, lr=3e-3)
    runner.trained("grpo", "base", "grpo", lr=5e-4, **own)
    runner.trained("opd", "base", "opd", **taught)
    runner.trained("one-step-opd", "base", "one-step-opd", **taught)
    runner.trained("continuation-opd", "base", "continuation-opd", continuation=8, **taught)
    figures = {"target, base": runner.value("base", task)}
    for name in RUNS:
        figures[f"target, {name}"] = runner.value(name, task)
        figures[f"retention, {name}"] = runner.retention(name)
    return figures | runner.points(RUNS, task)


STATES = Study(
    name="states",
    claim="RL keeps retention, mild SFT is gentle, stress SFT destroys; OPD from the stressed model beats it on "
    "target and retention at equal drift; one-step OPD collapses, continuation OPD works",
    source="arXiv 2605.22731",
    setting="mending badly damaged sentences, from the clean model: SFT on right answers mild (60 steps, 3e-4) and "
    "under stress (300 steps, 3e-3), GRPO (5e-4), and OPD in three forms with the stressed model as the teacher; "
    "retention is the mean of instruction following and general knowledge, relative to base",
    parts=(
        Part("GRPO keeps retention", figure("retention, grpo"), 0.97,
             given=gained("GRPO has learnt to mend", "target, grpo", "target, base")),
        Part("mild SFT keeps retention", figure("retention, mild-sft"), 0.95,
             given=gained("mild SFT has learnt to mend", "target, mild-sft", "target, base")),
        Part("stress SFT destroys it", figure("retention, stress-sft"), 0.80, above=False),
        Part("OPD from the stressed model keeps more than it: difference in retention",
             minus("retention, opd", "retention, stress-sft"), 0.0),
        Part("and beats it on the target: difference", minus("target, opd", "target, stress-sft"), 0.0),
        Part("one-step OPD collapses: on the target below base by", minus("target, base", "target, one-step-opd"), 0.0),
        Part("continuation OPD works: on the target above base by",
             minus("target, continuation-opd", "target, base"), 0.0),
        Part("drift is alike: hidden MMD of OPD and stress SFT, difference over the larger",
             lambda f: abs(f["hidden_mmd2, opd"] - f["hidden_mmd2, stress-sft"])
             / max(1e-9, abs(f["hidden_mmd2, opd"]), abs(f["hidden_mmd2, stress-sft"])), 0.25, above=False),
    ),
    run=run,
)  # fmt: skip
