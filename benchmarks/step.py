"""A whole distillation step against TRL's DistillationTrainer: same model, teacher and prompts, by turns in one run.

Run: python -m benchmarks.step [--write]

Each side runs in a process of its own, with its own training loop, and waits for its turn: one step of ours, one of
TRL's, and so on, after a warm-up of each. A step is everything from the prompts to the updated weights: sampling one
response a prompt, scoring it with the teacher, reverse KL, backward, AdamW. The student is the model with its weights
shaken a little, the teacher the model itself. TRL runs as fast as its settings allow here: all prompts in one batch
(32 at a time was no faster), bfloat16 autocast where the processor has it, no gradient checkpointing. TRL is looked
for in the running environment.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback

from benchmarks import _report
from recovery.batches import Row
from recovery.loading import Loaded, load_model, pick_precision
from recovery.miniature import materialise
from recovery.objectives.estimator import Estimator
from recovery.prompts import behaviour_prompts
from recovery.rollouts import Sampling, TransformersEngine
from recovery.teachers import Frozen
from recovery.training import StepBatch, TrainSettings, derive_seed, train
from recovery.types import Message

try:
    from datasets import Dataset
    from trl import DistillationConfig, DistillationTrainer
except ImportError:
    DistillationTrainer = None

GOAL = 1.5
RATE = 3e-4
NOISE = 0.2
PEER_BATCH = 128
MARK = "@"  # begins the lines that the parent reads; libraries print others


@dataclass(frozen=True)
class Job:
    """What both sides are given."""

    student: str
    teacher: str
    prompts: str
    prompts_per_step: int
    new_tokens: int
    steps: int
    threads: int
    seed: int
    peer_batch: int

    def conversations(self, step: int) -> list[list[Message]]:
        """The prompts of a step (from 1)."""
        lines = Path(self.prompts).read_text(encoding="utf-8").splitlines()
        start = (step - 1) * self.prompts_per_step
        return [json.loads(line) for line in lines[start : start + self.prompts_per_step]]


@dataclass
class Turn:
    """Waits for the word to go, and reports how long the step took."""

    started: float = 0.0
    worked: float = 0.0

    def wait(self) -> None:
        print(f"{MARK}{{}}", flush=True)
        if not sys.stdin.readline():
            sys.exit(0)
        self.started, self.worked = time.perf_counter(), time.process_time()

    def report(self, **facts: float) -> None:
        seconds, processor = time.perf_counter() - self.started, time.process_time() - self.worked
        print(MARK + json.dumps({"seconds": seconds, "processor seconds": processor, **facts}), flush=True)


# --- one side, in its own process -----------------------------------------------------------------------------


def run_ours(job: Job) -> None:
    """This project's loop, one step a turn."""
    student, teacher = load_model(job.student, tuning="full"), load_model(job.teacher)
    engine = TransformersEngine(student)
    turn, seen = Turn(), {"tokens": 0.0, "generating": 0.0}

    def source(step: int) -> StepBatch:
        turn.wait()
        started = time.perf_counter()
        rows = sample(student, engine, job, step)
        seen["generating"] = time.perf_counter() - started
        seen["tokens"] = float(sum(sum(row.loss_mask) for row in rows))
        return StepBatch(rows)

    def log(_step: int, metrics: dict[str, float]) -> None:
        turn.report(loss=metrics["loss"], training=metrics["seconds/training"], **seen)

    settings = TrainSettings(steps=job.steps, lr=RATE, schedule="constant", seed=job.seed)
    train(student, source, Estimator({"base": Frozen(teacher)}), settings, log=log)


def sample(student: Loaded, engine: TransformersEngine, job: Job, step: int) -> list[Row]:
    """The student's answers to a step's prompts, as rows that the teacher will score."""
    prompts = [student.chat.prompt_ids(messages) for messages in job.conversations(step)]
    sampling = Sampling(job.new_tokens, seed=derive_seed(job.seed, step))
    completions = engine.generate(prompts, sampling)
    return [
        Row([*prompt, *said.ids], [False] * len(prompt) + [True] * len(said.ids), teacher="base")
        for prompt, said in zip(prompts, completions, strict=True)
        if said.ids
    ]


def run_trl(job: Job) -> None:
    """TRL's trainer, one step a turn."""
    turn = Turn()

    class Gate(TrainerCallback):  # type: ignore[misc]
        """Stops the trainer before each step until it is its turn."""

        def on_step_begin(self, *_args: Any, **_kwargs: Any) -> None:
            turn.wait()

        def on_step_end(self, *_args: Any, **_kwargs: Any) -> None:
            length = trainer._metrics["train"]["completions/mean_length"][-1]
            turn.report(tokens=float(length) * job.prompts_per_step)

    half = pick_precision("auto", torch.device("cpu")) == torch.bfloat16
    config = DistillationConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=job.peer_batch,
        gradient_accumulation_steps=job.prompts_per_step // job.peer_batch,
        gradient_checkpointing=False,
        max_steps=job.steps,
        max_completion_length=job.new_tokens,
        learning_rate=RATE,
        lr_scheduler_type="constant",
        beta=1.0,
        bf16=half,
        use_cpu=True,
        shuffle_dataset=False,
        disable_tqdm=True,
        report_to="none",
        save_strategy="no",
        logging_steps=job.steps + 1,
        seed=job.seed,
    )
    rows = [{"prompt": talk} for step in range(1, job.steps + 1) for talk in job.conversations(step)]
    trainer = DistillationTrainer(
        model=AutoModelForCausalLM.from_pretrained(job.student, dtype=torch.float32),
        teacher_model=AutoModelForCausalLM.from_pretrained(job.teacher, dtype=torch.float32),
        args=config,
        train_dataset=Dataset.from_list(rows),
        processing_class=AutoTokenizer.from_pretrained(job.student, padding_side="left"),
        callbacks=[Gate()],
    )
    trainer.train()


SIDES: dict[str, Callable[[Job], None]] = {"ours": run_ours, "TRL": run_trl}


# --- the parent -------------------------------------------------------------------------------------------------


@dataclass
class Side:
    """A running side, and what its steps reported."""

    name: str
    process: subprocess.Popen[str]
    errors: Path
    steps: list[dict[str, float]] = field(default_factory=list)

    @classmethod
    def start(cls, name: str, job: Job, folder: Path) -> Side:
        """Start a side and wait until it is ready for its first step."""
        command = [sys.executable, "-m", "benchmarks.step", "--side", name, "--job", json.dumps(vars(job))]
        environment = {**os.environ, "OMP_NUM_THREADS": str(job.threads), "HF_HUB_OFFLINE": "1"}
        errors = folder / f"{name}.log"
        with errors.open("w", encoding="utf-8") as log:
            process = subprocess.Popen(
                command, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log
            )
        side = cls(name, process, errors)
        side._read()
        return side

    def take_turn(self, last: bool) -> None:
        """One step."""
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        self.steps.append(self._read())
        if not last:
            self._read()

    def counted(self) -> list[dict[str, float]]:
        """The steps after the warm-up."""
        return self.steps[1:]

    def fastest(self, key: str) -> float:
        """The least of a figure over the steps that count."""
        return min(step[key] for step in self.counted())

    def middle(self, key: str) -> float:
        """Its median."""
        return statistics.median(step[key] for step in self.counted())

    def _read(self) -> dict[str, float]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(MARK):
                found: dict[str, float] = json.loads(line[len(MARK) :])
                return found
        raise SystemExit(f"{self.name} ended early:\n{self.errors.read_text(encoding='utf-8')[-3000:]}")


def prepare(options: argparse.Namespace, folder: Path) -> Job:
    """Write what both sides read: the prompts of all steps, and the student."""
    teacher = Path(options.model) if options.model else materialise(folder / "miniature")
    steps = options.steps + 1
    prompts = folder / "prompts.jsonl"
    # Where a model brings no prompts of its own, more are made than needed: some are kept for the other splits.
    chosen = behaviour_prompts(teacher, count=2 * steps * options.prompts + 50).train[: steps * options.prompts]
    if len(chosen) < steps * options.prompts:
        raise SystemExit(f"{teacher} has {len(chosen)} prompts: lower --steps or --prompts")
    prompts.write_text("".join(json.dumps(list(p.messages)) + "\n" for p in chosen), encoding="utf-8")
    student = folder / "student"
    shake(teacher, student, options.seed)
    paths = (str(student), str(teacher), str(prompts))
    numbers = (options.prompts, options.new_tokens, steps, options.threads, options.seed, options.peer_batch)
    return Job(*paths, *numbers)


def shake(model: Path, out: Path, seed: int) -> None:
    """A copy of a model with every matrix changed by a relative ``NOISE``: something to be distilled back."""
    loaded = load_model(model, precision="float32")
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in loaded.model.parameters():
            if weight.dim() == 2:
                weight += torch.randn(weight.shape, generator=generator) * weight.std() * NOISE
    loaded.save(out)


def take_turns(sides: Sequence[Side], steps: int) -> None:
    """One step of each, in an order that turns round, until all are done."""
    for step in range(steps):
        for side in sides if step % 2 == 0 else reversed(sides):
            side.take_turn(last=step == steps - 1)
    for side in sides:
        side.process.communicate()


def markdown(sides: Sequence[Side]) -> str:
    """The table and the ratio."""
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
    header = ("step of", "fastest", "median", "processor, median", "tokens a step", "tokens/s")
    lines = [_report.table(header, rows), ""]
    ours = next(side for side in sides if side.name == "ours")
    parts = f"{ours.middle('generating'):.3f} s sampling, {ours.middle('training'):.3f} s scoring and training"
    lines += [f"Of ours: {parts} (medians). Loss a token {ours.steps[0]['loss']:.4f} at the first step, "
              f"{ours.steps[-1]['loss']:.4f} at the last.", ""]  # fmt: skip
    found = ratios(sides)
    if found:
        word = "met" if found["processor seconds"] >= GOAL and found["seconds"] >= GOAL else "MISSED"
        lines.append(
            f"TRL's step over ours: {found['seconds']:.2f} by the clock, {found['processor seconds']:.2f} by the "
            f"processor's count (medians); goal {GOAL}: {word}."
        )
    return "\n".join(lines)


def ratios(sides: Sequence[Side]) -> dict[str, float]:
    """TRL's medians over ours, for as many tokens."""
    named = {side.name: side for side in sides}
    if "TRL" not in named:
        return {}
    return {key: named["TRL"].middle(key) / named["ours"].middle(key) for key in ("seconds", "processor seconds")}


def main() -> int:
    """Measure, print, write where asked; status 1 where the goal was missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a model folder; the built-in miniature where left out")
    parser.add_argument("--prompts", type=int, default=128, help="prompts a step")
    parser.add_argument("--new-tokens", type=int, default=80)
    parser.add_argument("--steps", type=int, default=10, help="steps that count, after one that does not")
    parser.add_argument("--peer-batch", type=int, default=PEER_BATCH, help="prompts TRL trains on at once")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/step.md and .json")
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
    facts = _report.machine() | {"threads": str(options.threads), "seed": str(options.seed)}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        job = prepare(options, folder)
        present = ["ours"] if DistillationTrainer is None else ["ours", "TRL"]
        sides = [Side.start(side, job, folder) for side in present]
        take_turns(sides, job.steps)
    body = markdown(sides)
    print(body)
    if options.write:
        size = f"{options.prompts} prompts a step, at most {options.new_tokens} new tokens, {options.steps} steps."
        data = {"steps": {side.name: side.counted() for side in sides}, "ratios": ratios(sides)}
        note = (__doc__ or "").split("\n\n", 2)[2]
        print(_report.write("step", "A distillation step", f"{note}\n{size}\n\n{body}", facts, data))
    return int("MISSED" in body)


if __name__ == "__main__":
    sys.exit(main())
