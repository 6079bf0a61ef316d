"""Scaling of a distillation step with tokens, vocabulary and weights.

Run: python -m benchmarks.scaling [--write]

A step (sampling, then scoring and training) of a Qwen3 model with random weights, full fine-tuning with a
frozen teacher, as a function of the number of responses, the vocabulary and the number of weights, each varied alone.
Reported are the slope of log CPU time over log size (1 means proportional, below 1 a constant part), the smallest and
the largest slope of several passes, and the variance explained by a straight line.
"""

from __future__ import annotations

import math
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks import _report
from benchmarks.lora import random_model
from recovery.batching import Row
from recovery.losses.objective import DistillationObjective
from recovery.models.loaded import Loaded
from recovery.models.loading import load_model
from recovery.rollouts.engine import Sampling
from recovery.rollouts.transformers_engine import TransformersEngine
from recovery.teachers.teacher import LocalTeacher, Teacher
from recovery.training.interfaces import Hooks, StepBatch, TrainSettings
from recovery.training.loop import train

PROMPT = 16
PARTS = ("step", "sampling", "training")


@dataclass(frozen=True)
class Size:
    """Size of a step."""

    answers: int = 16
    vocabulary: int = 8192
    width: int = 256
    layers: int = 4
    new_tokens: int = 64


SWEEPS: dict[str, list[Size]] = {
    "tokens": [Size(answers=count) for count in (8, 16, 32, 64)],
    "vocabulary": [Size(vocabulary=count) for count in (8192, 16384, 32768, 65536)],
    "weights": [Size(width=width, layers=layers) for width, layers in ((192, 3), (256, 4), (384, 6), (512, 8))],
}


@dataclass
class Model:
    """A student with its teacher and its sampling engine."""

    size: Size
    student: Loaded
    teacher: Teacher
    engine: TransformersEngine
    weights: int

    @classmethod
    def of(cls, size: Size, folder: Path, seed: int) -> Model:
        """Create a model with random weights."""
        path = folder / f"{size.width}-{size.layers}-{size.vocabulary}" / "model"
        weights = random_model(path, size.width, size.layers, size.vocabulary, seed)
        student = load_model(path, tuning="full")
        return cls(size, student, LocalTeacher(load_model(path)), TransformersEngine(student), weights)

    def steps(self, count: int, seed: int) -> list[dict[str, float]]:
        """Return the CPU seconds of ``count`` steps, after one warm-up step."""
        found: list[dict[str, float]] = []
        clock = {"begun": 0.0, "sampled": 0.0}

        def source(step: int) -> StepBatch:
            clock["begun"] = time.process_time()
            rows = self.rows(seed + step)
            clock["sampled"] = time.process_time()
            return StepBatch(rows)

        def log(_step: int, _metrics: dict[str, float]) -> None:
            now = time.process_time()
            parts = {"sampling": clock["sampled"] - clock["begun"], "training": now - clock["sampled"]}
            found.append({"step": sum(parts.values()), **parts})

        settings = TrainSettings(steps=count + 1, lr=1e-4, schedule="constant", seed=seed)
        train(self.student, source, DistillationObjective({"base": self.teacher}), settings, hooks=Hooks(log=log))
        return found[1:]

    def rows(self, seed: int) -> list[Row]:
        """Sample the student's responses to random prompts."""
        generator = torch.Generator().manual_seed(seed)
        prompts = torch.randint(256, 1024, (self.size.answers, PROMPT), generator=generator).tolist()
        completions = self.engine.generate(prompts, Sampling(self.size.new_tokens, seed=seed))
        return [
            Row([*prompt, *completion.ids], [False] * PROMPT + [True] * len(completion.ids), teacher="base")
            for prompt, completion in zip(prompts, completions, strict=True)
        ]


# --- slopes -----------------------------------------------------------------------------------------------------


def sweep(name: str, chosen: Sequence[Size], folder: Path, passes: int, steps: int, seed: int) -> dict[str, Any]:
    """Return the median times of each size in each pass, and the slopes."""
    sizes: list[float] = []
    passed: list[dict[str, list[float]]] = [{part: [] for part in PARTS} for _ in range(passes)]
    for size in chosen:
        model = Model.of(size, folder, seed)
        sizes.append({"tokens": size.answers * size.new_tokens, "vocabulary": size.vocabulary}.get(name, model.weights))
        for times in passed:
            found = model.steps(steps, seed)
            for part in PARTS:
                times[part].append(statistics.median(step[part] for step in found))
    return {"sizes": sizes, "passes": passed, "parts": {part: fit(sizes, [t[part] for t in passed]) for part in PARTS}}


def fit(sizes: Sequence[float], passes: Sequence[Sequence[float]]) -> dict[str, Any]:
    """Return the slope of log time over log size: of the medians, and the smallest and largest of the passes."""
    middle = [statistics.median(times) for times in zip(*passes, strict=True)]
    slopes = [slope(sizes, times) for times in passes]
    return {
        "seconds": middle,
        "slope": slope(sizes, middle),
        "least": min(slopes),
        "largest": max(slopes),
        "straight": statistics.correlation(sizes, middle) ** 2,
    }


def slope(sizes: Sequence[float], seconds: Sequence[float]) -> float:
    """Return the slope of log seconds over log size, by least squares."""
    found = statistics.linear_regression([math.log(x) for x in sizes], [math.log(y) for y in seconds])
    return float(found.slope)


# --- the pages --------------------------------------------------------------------------------------------------


def slopes_text(found: dict[str, dict[str, Any]]) -> str:
    """Return a table of slopes, and the times they are computed from."""
    rows, times = [], []
    for name, swept in found.items():
        for part in PARTS:
            entry = swept["parts"][part]
            spread = f"{entry['least']:.2f} to {entry['largest']:.2f}"
            rows.append((name, part, f"{entry['slope']:.2f}", spread, f"{entry['straight']:.3f}"))
        seconds = swept["parts"]["step"]["seconds"]
        points = ", ".join(f"{size:,.0f}: {value:.2f} s" for size, value in zip(swept["sizes"], seconds, strict=True))
        times.append(f"- step over {name}: {points}")
    head = ("over", "part", "slope", "range of the passes", "variance explained by a straight line")
    return "\n".join([_report.table(head, rows), "", *times])


def main() -> None:
    """Measure and print; write with --write."""
    parser = _report.parser(__doc__, "scaling", "seed", "threads")
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--steps", type=int, default=2, help="measured steps per pass, after one warm-up step")
    parser.add_argument("--tiny", action="store_true", help="a tiny model, only to check that the benchmark runs")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    shape = tiny if options.tiny else replace
    facts = _report.machine(("torch", "transformers", "peft"), threads=options.threads, seed=options.seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        found = {
            axis: sweep(axis, [shape(size) for size in sizes], folder, options.passes, options.steps, options.seed)
            for axis, sizes in SWEEPS.items()
        }
    body = slopes_text(found)
    print(body)
    if options.write:
        fixed = Size()
        size = (
            f"Unless varied: {fixed.answers} responses of {fixed.new_tokens} tokens, {fixed.layers} layers of "
            f"width {fixed.width}, vocabulary {fixed.vocabulary:,}; {options.passes} passes of {options.steps} steps."
        )
        title = "Scaling of a step, and the ceiling of scoring and training"
        text = f"{_report.note(__doc__)}\n{size}\n\n{body}"
        print(_report.write("scaling", title, text, facts, {"slopes": found}))


def tiny(size: Size) -> Size:
    """Return a tiny version of a size, to check that the benchmark runs."""
    return Size(max(1, size.answers // 8), max(2048, size.vocabulary // 8), 64, size.layers, new_tokens=4)


if __name__ == "__main__":
    main()
