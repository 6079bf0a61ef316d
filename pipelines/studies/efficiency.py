"""On-policy distillation reaches a score with a fraction of the samples that reinforcement learning needs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from evals.suites import sample
from pipelines.studies.points import points
from pipelines.studies.study import Part, Study, figure, gained, minus
from pipelines.studies.tasks import demonstrations, exact_share, mending

if TYPE_CHECKING:
    from pipelines.studies.experiment import ExperimentRunner

OPD_STEPS, RL_STEPS, EVERY = 40, 160, 4


def run(runner: ExperimentRunner) -> Mapping[str, float]:
    """Run one seed: OPD from an expert in mending sentences, and GRPO on the same task."""
    task = mending(runner)
    runner.trained("expert", "base", "sft", data=demonstrations(runner, task), steps=runner.scale(600, 20), lr=2e-3)
    asked = sample(runner.asked(task), 200)
    own: dict[str, Any] = {
        "prompts": runner.folder / "prompts" / task,
        "max_new_tokens": 40,
        "prompts_per_step": 16,
        "samples_per_prompt": 8,
        "check_every": EVERY,
        "observe": lambda _step, loaded, engine: {"score": exact_share(loaded, engine, asked)},
    }
    runner.trained("opd", "base", "opd", teacher="expert", steps=runner.scale(OPD_STEPS, 8), **own)
    runner.trained("grpo", "base", "grpo", steps=runner.scale(RL_STEPS, 16), lr=5e-4, **own)
    figures = {"base": runner.value("base", task), "expert": runner.value("expert", task)}
    curves = {name: _score_by_tokens(runner, name) for name in ("opd", "grpo")}
    for name, curve in curves.items():
        figures[f"best, {name}"] = max(score for score, _ in curve)
    # Three quarters of the smaller gain, so that neither method's goal is its best outlier. A method without any gain
    # never reaches it: then all its sampled tokens count, a lower bound of what it would need.
    start = exact_share(*runner.loaded("base"), asked)
    gain = max(1 / len(asked), min(figures["best, opd"], figures["best, grpo"]) - start)
    figures["score asked of both"] = goal = start + 0.75 * gain
    for name, curve in curves.items():
        reached = [tokens for score, tokens in curve if score >= goal]
        figures[f"tokens sampled to it, {name}"] = min(reached, default=curve[-1][1])
        figures[f"reached it, {name}"] = float(bool(reached))
    figures["times as many for GRPO"] = figures["tokens sampled to it, grpo"] / figures["tokens sampled to it, opd"]
    return figures | points(runner, ("expert", "opd", "grpo"), task)


def _score_by_tokens(runner: ExperimentRunner, name: str) -> list[tuple[float, float]]:
    """Return the observed scores of a run, each with the tokens sampled until then."""
    sampled, total = {}, 0.0
    for step, tokens in runner.curve(name, "tokens_sampled"):
        total += tokens
        sampled[step] = total
    return [(seen["score"], sampled[seen["step"]]) for seen in runner.details(name)["observed"]]


BOTH = Part("that both have learnt to mend: the smaller gain over base",
            lambda f: min(f["best, opd"], f["best, grpo"]) - f["base"], 0.05)  # fmt: skip


EFFICIENCY = Study(
    name="efficiency",
    claim="OPD reaches a score with a fraction of RL's samples (9 to 30 times less compute)",
    source="Thinking Machines, On-Policy Distillation (2025); Qwen3 report",
    setting="mending badly damaged sentences: 40 steps of OPD from an expert (SFT, 600 steps) against 160 of GRPO, "
    "16 prompts x 8 each; tokens sampled until three quarters of the smaller gain, looked at every 4 steps; the "
    "expert's own training is left out",
    parts=(
        Part("GRPO needs more samples than OPD for the same score: times as many",
             figure("times as many for GRPO"), 1.0, given=BOTH),
        Part("nine times as many or more", figure("times as many for GRPO"), 9.0, given=BOTH),
        Part("OPD's best is above GRPO's best", minus("best, opd", "best, grpo"), 0.0,
             given=gained("OPD has learnt to mend", "best, opd", "base")),
    ),
    run=run,
)  # fmt: skip
