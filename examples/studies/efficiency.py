"""On-policy distillation reaches a score with a fraction of the samples that reinforcement learning needs."""

from __future__ import annotations

from typing import Any

from examples.studies.study import INSTRUCTIONS, Figures, Part, Runner, Study, figure, gained, minus
from recovery.types import Score

OPD_STEPS, RL_STEPS, EVERY, LOOKED_AT = 40, 160, 4, 200
RATE = 3e-3  # of the mid-training: twice the usual one, so that there is much to bring back


def run(runner: Runner) -> Figures:
    """Run one seed: instruction following that mid-training has damaged, brought back by OPD from base and by GRPO."""
    runner.midtrained("documents", runner.corpora()[0], lr=RATE)

    def score(loaded: Any, engine: Any) -> Score:
        return runner.ask(loaded, engine, INSTRUCTIONS, most=LOOKED_AT).score

    own: dict[str, Any] = {
        "prompts_per_step": 16,
        "samples_per_prompt": 8,
        "check_every": EVERY,
        "observe": lambda _step, loaded, engine: {"score": score(loaded, engine).value},
    }
    runner.trained("opd", "documents", "opd", steps=runner.scale(OPD_STEPS, 8), **own)
    runner.trained("grpo", "documents", "grpo", steps=runner.scale(RL_STEPS, 16), lr=5e-4, **own)
    figures = {name: runner.value(name, INSTRUCTIONS) for name in ("base", "documents")}
    curves = {name: _score_by_tokens(runner, name) for name in ("opd", "grpo")}
    for name, curve in curves.items():
        figures[f"best, {name}"] = max(score for score, _ in curve)
    # Three quarters of the smaller gain, so that neither method's goal is its best outlier. A method without any gain
    # never reaches it: then all its sampled tokens count, a lower bound of what it would need.
    start = score(*runner.loaded("documents"))
    gain = max(1 / start.n, min(figures["best, opd"], figures["best, grpo"]) - start.value)
    figures["score asked of both"] = goal = start.value + 0.75 * gain
    for name, curve in curves.items():
        reached = [tokens for score, tokens in curve if score >= goal]
        figures[f"tokens sampled to it, {name}"] = min(reached, default=curve[-1][1])
        figures[f"reached it, {name}"] = float(bool(reached))
    figures["times as many for GRPO"] = figures["tokens sampled to it, grpo"] / figures["tokens sampled to it, opd"]
    return figures


def _score_by_tokens(runner: Runner, name: str) -> list[tuple[float, float]]:
    """Return the observed scores of a run, each with the tokens sampled until then."""
    sampled, total = {}, 0.0
    for step, tokens in runner.curve(name, "tokens_sampled"):
        total += tokens
        sampled[step] = total
    return [(seen["score"], sampled[seen["step"]]) for seen in runner.details(name)["observed"]]


BOTH = Part("that both bring behaviour back: the smaller gain over the mid-trained model",
            lambda f: min(f["best, opd"], f["best, grpo"]) - f["documents"], 0.05)  # fmt: skip


EFFICIENCY = Study(
    name="efficiency",
    claim="OPD reaches a score with a fraction of RL's samples (9 to 30 times less compute)",
    source="Thinking Machines, On-Policy Distillation (2025); Qwen3 report",
    setting="mid-training on documents at twice the usual rate; the lost instruction following is brought back by 40 "
    "steps of OPD from base (at 1.3e-3) and by 160 of GRPO (at 5e-4) with verified instructions as the reward, both at "
    "a rate that falls to the last step, 16 prompts x 8 each; tokens "
    "sampled until three quarters of the smaller gain, looked at every 4 steps",
    parts=(
        Part("GRPO needs more samples than OPD for the same score: times as many",
             figure("times as many for GRPO"), 1.0, given=BOTH),
        Part("nine times as many or more", figure("times as many for GRPO"), 9.0, given=BOTH),
        Part("OPD's best is above GRPO's best", minus("best, opd", "best, grpo"), 0.0,
             given=gained("OPD brings behaviour back", "best, opd", "documents")),
    ),
    run=run,
    minutes=8,
)  # fmt: skip
