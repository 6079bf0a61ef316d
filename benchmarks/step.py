"""A whole distillation step against TRL's DistillationTrainer: same model, teacher and prompts, alternating steps.

Run: python -m benchmarks.step [--model FOLDER_OR_GGUF] [--precision float32] [--name step-NAME] [--write]

Each side runs in its own process, with its own training loop, and waits for its turn: one step of ours, one of TRL's,
and so on, after a warm-up of each. A step is everything from the prompts to the updated weights: sampling one response
per prompt, scoring it with the teacher, reverse KL, backward, AdamW. The student is the model with slightly perturbed
weights, the teacher the model itself. TRL runs in its fastest configuration here: all prompts in one batch (32 at a
time was no faster), bfloat16 autocast if the processor supports it and --precision is not float32, no gradient
checkpointing. Without TRL in the running environment only ours is measured.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks import _peer, _report
from benchmarks._sides import Side, Turn, take_turns
from recovery.batching import Row
from recovery.data.prompts import behaviour_prompts
from recovery.disk import user_cache
from recovery.losses.objective import DistillationObjective
from recovery.miniature.package import materialise
from recovery.models.adapters import LoraSettings
from recovery.models.gguf_files.conversion import converted
from recovery.models.hardware import pick_precision
from recovery.models.loaded import Loaded
from recovery.models.loading import load_model
from recovery.rng import derive_seed
from recovery.rollouts.engine import Sampling
from recovery.rollouts.transformers_engine import TransformersEngine
from recovery.teachers.teacher import LocalTeacher
from recovery.training.interfaces import Hooks, StepBatch, TrainSettings
from recovery.training.loop import train
from recovery.types import Message

GOAL, REAL_GOAL = 4.0, 2.5  # TRL's step over ours: on the miniature, on a model of one's own
RATE = 3e-4
NOISE = 0.2
PEER_BATCH = 128


@dataclass(frozen=True)
class Job:
    """Input of both sides."""

    student: str
    teacher: str
    prompts: str
    prompts_per_step: int
    new_tokens: int
    steps: int
    threads: int
    seed: int
    peer_batch: int
    lora: bool = False
    precision: str = "auto"
    device: str = "cpu"

    def conversations(self, step: int) -> list[list[Message]]:
        """Return the prompts of a step (numbered from 1)."""
        lines = Path(self.prompts).read_text(encoding="utf-8").splitlines()
        start = (step - 1) * self.prompts_per_step
        return [json.loads(line) for line in lines[start : start + self.prompts_per_step]]


# --- one side, in its own process -----------------------------------------------------------------------------


def run_ours(job: Job) -> None:
    """Run this project's loop, one step per turn."""
    turn, seen = Turn(job.device), {"tokens": 0.0, "generating": 0.0}
    compute: dict[str, Any] = {"precision": job.precision, "device": job.device}
    student = load_model(job.student, tuning="lora" if job.lora else "full", **compute)
    teacher = LocalTeacher(student, "base") if job.lora else LocalTeacher(load_model(job.teacher, **compute))
    engine = TransformersEngine(student)

    def source(step: int) -> StepBatch:
        turn.wait()
        started = time.perf_counter()
        rows = sample(student, engine, job, step)
        seen["generating"] = time.perf_counter() - started
        seen["tokens"] = float(sum(sum(row.loss_mask) for row in rows))
        return StepBatch(rows)

    def log(_step: int, metrics: dict[str, float]) -> None:
        turn.report(loss=metrics["loss"], training=metrics["seconds_training"], **seen)

    settings = TrainSettings(steps=job.steps, lr=RATE, schedule="constant", seed=job.seed)
    train(student, source, DistillationObjective({"base": teacher}), settings, hooks=Hooks(log=log))


def sample(student: Loaded, engine: TransformersEngine, job: Job, step: int) -> list[Row]:
    """Sample the student's responses to a step's prompts, as rows for the teacher to score."""
    prompts = [student.chat.prompt_ids(messages) for messages in job.conversations(step)]
    sampling = Sampling(job.new_tokens, seed=derive_seed(job.seed, step))
    completions = engine.generate(prompts, sampling)
    return [
        Row([*prompt, *completion.ids], [False] * len(prompt) + [True] * len(completion.ids), teacher="base")
        for prompt, completion in zip(prompts, completions, strict=True)
        if completion.ids
    ]


def run_trl(job: Job) -> None:
    """Run TRL's trainer, one step per turn."""
    turn = Turn(job.device)
    half = pick_precision(job.precision, torch.device(job.device))

    def report() -> None:
        turn.report(tokens=_peer.mean_length(trainer) * job.prompts_per_step)

    trainer = _peer.trainer(
        job.student,
        job.teacher,
        [talk for step in range(1, job.steps + 1) for talk in job.conversations(step)],
        _peer.between_steps(turn.wait, report),
        per_device_train_batch_size=job.peer_batch,
        gradient_accumulation_steps=job.prompts_per_step // job.peer_batch,
        max_steps=job.steps,
        max_completion_length=job.new_tokens,
        learning_rate=RATE,
        seed=job.seed,
        use_cpu=job.device == "cpu",
        # With an adapter both models are in the low precision, as ours is.
        weights=half if job.lora else torch.float32,
        bf16=half == torch.bfloat16,
        lora=LoraSettings().config() if job.lora else None,
    )
    trainer.train()


SIDES: dict[str, Callable[[Job], None]] = {"ours": run_ours, "TRL": run_trl}


# --- the parent -------------------------------------------------------------------------------------------------


def prepare(options: argparse.Namespace, folder: Path) -> Job:
    """Write the input of both sides: the prompts of all steps, and the student."""
    teacher = _model(options.model, folder)
    steps = options.steps + 1
    prompts = folder / "prompts.jsonl"
    # For a model without its own prompts, generate more than needed: some go to the other splits.
    chosen = behaviour_prompts(teacher, count=2 * steps * options.prompts + 50).train[: steps * options.prompts]
    if len(chosen) < steps * options.prompts:
        raise SystemExit(f"{teacher} has only {len(chosen)} prompts: lower --steps or --prompts")
    prompts.write_text("".join(json.dumps(list(p.messages)) + "\n" for p in chosen), encoding="utf-8")
    student = folder / "student"
    shake(teacher, student, options.seed)
    paths = (str(student), str(teacher), str(prompts))
    numbers = (options.prompts, options.new_tokens, steps, options.threads, options.seed, options.peer_batch)
    return Job(*paths, *numbers, precision=options.precision)


def _model(given: str | None, folder: Path) -> Path:
    """Return the folder of the clean model; converts a GGUF file. None is the miniature."""
    if given is None:
        return materialise(folder / "miniature")
    return converted(given, user_cache("models")) if given.endswith(".gguf") else Path(given)


def shake(model: Path, out: Path, seed: int) -> None:
    """Write a copy of a model with relative noise ``NOISE`` on every matrix: a student to recover."""
    loaded = load_model(model, precision="float32")
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in loaded.model.parameters():
            if weight.dim() == 2:
                weight += torch.randn(weight.shape, generator=generator) * weight.std() * NOISE
    loaded.save(out)


def markdown(sides: Sequence[Side], goal: float) -> str:
    """Return the table and the ratio, compared with its goal, as Markdown."""
    rows = []
    for side in sides:
        tokens = statistics.mean(step["tokens"] for step in side.counted())
        rate = tokens / side.middle("seconds")
        rows.append(
            (
                side.name,
                f"{side.fastest('seconds'):.3f} s",
                f"{side.middle('seconds'):.3f} s",
                f"{side.middle('processor seconds'):.3f} s",
                f"{tokens:,.0f}",
                f"{rate:,.0f}",
            )
        )
    header = ("step of", "fastest", "median", "CPU time, median", "tokens a step", "tokens/s")
    lines = [_report.table(header, rows), ""]
    ours = next(side for side in sides if side.name == "ours")
    parts = f"{ours.middle('generating'):.3f} s sampling, {ours.middle('training'):.3f} s scoring and training"
    lines += [f"Ours consists of {parts} (medians). Loss per token {ours.steps[0]['loss']:.4f} at the first step, "
              f"{ours.steps[-1]['loss']:.4f} at the last.", ""]  # fmt: skip
    found = ratios(sides)
    if found:
        word = "met" if min(found["processor seconds"], found["seconds"]) >= goal else "MISSED"
        lines.append(
            f"TRL's step over ours: {found['seconds']:.2f} in wall time, {found['processor seconds']:.2f} in CPU "
            f"time (medians); goal {goal}: {word}."
        )
    return "\n".join(lines)


def ratios(sides: Sequence[Side]) -> dict[str, float]:
    """Return TRL's median times over ours."""
    named = {side.name: side for side in sides}
    if "TRL" not in named:
        return {}
    return {key: named["TRL"].middle(key) / named["ours"].middle(key) for key in ("seconds", "processor seconds")}


def main() -> int:
    """Measure and print; write with --write. Return 1 if the goal was missed."""
    parser = _report.parser(__doc__, "step", "seed", "threads", named=True)
    parser.add_argument("--model", help="a model folder or a GGUF file; default: the built-in miniature")
    parser.add_argument("--prompts", type=int, default=128, help="prompts per step")
    parser.add_argument("--new-tokens", type=int, default=80)
    parser.add_argument("--steps", type=int, default=10, help="measured steps, after one warm-up step")
    parser.add_argument("--peer-batch", type=int, default=PEER_BATCH, help="TRL's batch size, in prompts")
    parser.add_argument("--precision", choices=("auto", "float32"), default="auto", help="of matrix products")
    parser.add_argument("--side", choices=sorted(SIDES), help=argparse.SUPPRESS)
    parser.add_argument("--job", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.peer_batch = min(options.peer_batch, options.prompts)
    if options.prompts % options.peer_batch:
        parser.error(f"--peer-batch {options.peer_batch} does not divide --prompts {options.prompts}")
    torch.set_num_threads(options.threads)
    if options.side:
        SIDES[options.side](Job(**json.loads(options.job)))
        return 0
    facts = _report.machine(threads=options.threads, seed=options.seed)
    facts |= {"matrix products": str(pick_precision(options.precision, torch.device("cpu"))).removeprefix("torch.")}
    with tempfile.TemporaryDirectory() as name:
        job = prepare(options, Path(name))
        sides = take_turns("benchmarks.step", _peer.SIDES, vars(job), Path(name), job.steps)
    body = markdown(sides, REAL_GOAL if options.model else GOAL)
    print(body)
    if options.write:
        model = Path(options.model).name.removesuffix(".gguf") if options.model else "the built-in miniature"
        size = f"{model}: {options.prompts} prompts per step, at most {options.new_tokens} new tokens"
        data = {"steps": {side.name: side.counted() for side in sides}, "ratios": ratios(sides)}
        text = f"{_report.note(__doc__)}\n{size}, {options.steps} steps.\n\n{body}"
        print(_report.write(options.name, "A distillation step", text, facts, data))
    return int("MISSED" in body)


if __name__ == "__main__":
    sys.exit(main())
