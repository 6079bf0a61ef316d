"""SFT flattens at its teacher, RL starts slower, OPD reaches the teacher cheaply, and RL after OPD goes beyond."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from evals.suites import sample
from examples.studies.study import Figures, Part, Runner, Study, figure, gained, minus, over
from recovery.data.prompt_files import load_prompts
from recovery.lazy_import import lazily
from recovery.rollouts.engine import Sampling
from recovery.types import Message

generation = lazily("pipelines.runtime.generation")  # torch
STEPS, EVERY = 60, 10
METHODS = ("sft", "opd", "grpo", "sft-grpo", "grpo-opd", "opd-grpo")


def run(runner: Runner) -> Figures:
    """Run one seed: a stronger teacher, and six ways to learn its task."""
    prompts, steps = runner.mending(), runner.scale(STEPS, 10)
    task = prompts.name
    runner.trained("teacher", "base", "sft", data=runner.demonstrations(prompts), steps=6 * steps, lr=2e-3)
    asked = sample(runner.asked(task), 200)
    seen: dict[str, Any] = {
        "check_every": EVERY,
        "observe": lambda _step, loaded, engine: {"score": runner.exact_share(asked, loaded, engine)},
    }
    short: dict[str, Any] = {"prompts": prompts, "max_new_tokens": 40, "steps": steps, **seen}
    rl: dict[str, Any] = short | {"lr": 5e-4, "steps": 2 * steps}
    runner.trained("sft", "base", "sft", data=_completions(runner, prompts), steps=steps, max_new_tokens=40, **seen)
    runner.trained("opd", "base", "opd", teacher="teacher", **short)
    runner.trained("grpo", "base", "grpo", **rl)
    runner.trained("sft-grpo", "sft", "grpo", **rl)
    runner.trained("grpo-opd", "grpo", "opd", teacher="teacher", **short)
    runner.trained("opd-grpo", "opd", "grpo", **rl)
    before = {"sft-grpo": "sft", "grpo-opd": "grpo", "opd-grpo": "opd"}
    figures = {"score, base": runner.value("base", task), "score, teacher": runner.value("teacher", task)}
    for name in METHODS:
        figures[f"score, {name}"] = runner.value(name, task)
        figures[f"early score, {name}"] = runner.details(name)["observed"][0]["score"]
        earlier = runner.cost_of(before[name]).flops if name in before else 0.0
        figures[f"FLOPs, {name}"] = runner.cost_of(name).flops + earlier
    observed = runner.details("opd")["observed"]
    done = runner.details("grpo")["observed"][-1]["score"]
    reached = next((seen["step"] for seen in observed if seen["score"] >= done), None)
    share = 10.0 if reached is None else reached / observed[-1]["step"]  # 10: never reached
    figures["FLOPs of OPD to GRPO's last score, over GRPO's"] = share * figures["FLOPs, opd"] / figures["FLOPs, grpo"]
    return figures | runner.points(("teacher", *METHODS), task)


def _completions(runner: Runner, prompts: Path) -> Path:
    """Return a file of the teacher's completions (temperature 1) of the training prompts, sampled once."""

    def make() -> list[tuple[Message, ...]]:
        loaded, engine = runner.loaded("teacher")
        answered, _ = generation.conversations(
            loaded,
            engine,
            load_prompts(prompts / "train.jsonl"),
            content_hash=runner.session.resolve("teacher").hash,
            sampling=Sampling(40, seed=runner.seed),
            cache=runner.session.workspace.folder / "cache",
        )
        return [a.messages for a in answered]

    return runner.data(f"answers-teacher-{prompts.name}", make)


RL_LEARNS = gained("GRPO has learnt to mend", "score, grpo", "score, base")


CEILING = Study(
    name="ceiling",
    claim="SFT flattens at its teacher, RL starts slower and crosses it, OPD reaches the teacher cheaply, RL then "
    "OPD is best",
    source="'PhD for Dummies: On SFT, RL, and on-policy distillation'; "
    "Thinking Machines (2025), AIME'24: SFT 60.0, GRPO 67.6, OPD 74.4",
    setting="mending badly damaged sentences with a named teacher (SFT on right answers, 360 steps): SFT on its "
    "answers, OPD, GRPO (120 steps), SFT then GRPO, GRPO then OPD, OPD then GRPO; FLOPs by 2N and 6N of the tokens "
    "that are sampled, scored or trained on, without prompts and without the teacher's answers that SFT learns; GRPO "
    "at 5e-4",
    parts=(
        Part("SFT does not pass its teacher: above it by", minus("score, sft", "score, teacher"), 0.02, above=False,
             given=Part("that SFT has come near its teacher: score over the teacher's",
                        over("score, sft", "score, teacher"), 0.9)),
        Part("RL starts slower than SFT: first look, difference", minus("early score, sft", "early score, grpo"), 0.0),
        Part("RL crosses SFT in the end: difference", minus("score, grpo", "score, sft"), 0.0, given=RL_LEARNS),
        Part("OPD reaches the teacher: score over the teacher's", over("score, opd", "score, teacher"), 0.95),
        Part("and GRPO's last score with fewer FLOPs: share",
             figure("FLOPs of OPD to GRPO's last score, over GRPO's"), 1.0, above=False, given=RL_LEARNS),
        Part("RL then OPD is best: above the best of the others by",
             lambda f: f["score, grpo-opd"] - max(f[f"score, {m}"] for m in METHODS if m != "grpo-opd"), 0.0,
             given=RL_LEARNS),
    ),
    run=run,
)  # fmt: skip
