"""Scaling of a distillation step, and its scoring and training time against the machine's matrix products.

Run: python -m benchmarks.scaling [--write]

Slopes. A step (sampling, then scoring and training) of a Qwen3 model with random weights, full fine-tuning with a
frozen teacher, as a function of the number of responses, the vocabulary and the number of weights, each varied alone.
Reported are the slope of log CPU time over log size (1 means proportional, below 1 a constant part), the smallest and
the largest slope of several passes, and the variance explained by a straight line.

Ceiling. The floating-point operations of scoring and training, counted from the shapes, over their time, against this
machine's own matrix products: at its best size, and at the sizes of this model, weighted by their operations. Here the
student has a LoRA adapter and is its own teacher with the adapter off, as in benchmarks.lora. torch's profiler shows
the remaining time: the operators' own time by purpose.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks import _report
from benchmarks.lora import random_model
from recovery.batching import Row
from recovery.losses.objective import DistillationObjective
from recovery.models.adapters import LoraSettings
from recovery.models.loaded import Loaded
from recovery.models.loading import load_model
from recovery.rollouts.engine import Sampling
from recovery.rollouts.transformers_engine import TransformersEngine
from recovery.teachers.teacher import LocalTeacher, Teacher
from recovery.training.interfaces import Hooks, StepBatch, TrainSettings
from recovery.training.loop import train

PROMPT = 16
PARTS = ("step", "sampling", "training")
# Purpose of an operator: the first entry with a part that its name contains.
SHARES = {
    "matrix products": ("::mm", "addmm", "bmm", "baddbmm", "mkldnn", "linear"),
    "attention": ("scaled_dot_product",),
    "softmax": ("softmax",),
    "copies and changes of type": ("copy_", "cat", "clone", "contiguous", "fill_", "zero_", "index", "embedding"),
    "sums over the vocabulary and norms": ("vecdot", "sum", "norm", "mean", "dot", "mv"),
    "optimizer": ("adam",),
    "other elementwise": ("mul", "add", "sub", "div", "neg", "silu", "sigmoid", "rsqrt", "pow", "exp", "square"),
}


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
CEILING = Size(answers=8, vocabulary=151_936, width=512, layers=8, new_tokens=112)


@dataclass
class Model:
    """A student with its teacher and its sampling engine."""

    size: Size
    student: Loaded
    teacher: Teacher
    engine: TransformersEngine
    weights: int

    @classmethod
    def of(cls, size: Size, folder: Path, seed: int, lora: bool = False) -> Model:
        """Create a model with random weights."""
        path = folder / f"{size.width}-{size.layers}-{size.vocabulary}" / "model"
        weights = random_model(path, size.width, size.layers, size.vocabulary, seed)
        student = load_model(path, tuning="lora" if lora else "full")
        teacher = LocalTeacher(student, "base") if lora else LocalTeacher(load_model(path))
        return cls(size, student, teacher, TransformersEngine(student), weights)

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


# --- the ceiling ------------------------------------------------------------------------------------------------


def products(size: Size) -> dict[tuple[int, int, int], float]:
    """Return the matrix products of scoring and training, as (rows, inner, columns) -> count, without attention.

    Student forward, teacher forward, and the student's backward with respect to its inputs use every matrix once each.
    The head: student, teacher, gradient with respect to the hidden states. The adapter's own are a few percent.
    """
    rows = size.answers * (PROMPT + size.new_tokens)
    targets, wide = size.answers * size.new_tokens, 3 * size.width
    heads = max(2, size.width // 64) * 64
    found: dict[tuple[int, int, int], float] = {}
    matrices = [(size.width, heads), (size.width, heads // 2), (size.width, heads // 2), (heads, size.width),
                (size.width, wide), (size.width, wide), (wide, size.width)]  # fmt: skip
    for inner, columns in matrices:
        found[rows, inner, columns] = found.get((rows, inner, columns), 0.0) + 2 * size.layers
        found[rows, columns, inner] = found.get((rows, columns, inner), 0.0) + size.layers
    found[targets, size.width, size.vocabulary] = 2.0
    found[targets, size.vocabulary, size.width] = 1.0
    return found


def attention_operations(size: Size) -> float:
    """Return the operations of attention: two length x length products per head; backward counts as two forwards."""
    length, heads = PROMPT + size.new_tokens, max(2, size.width // 64)
    once = 2 * 2 * size.answers * heads * length * length * 64
    return size.layers * once * (2 + 2)


def adapter_operations(size: Size) -> float:
    """Return the operations of the adapter: forward, and backward with respect to its input and its weights."""
    rank = LoraSettings().rank
    rows, width, heads = size.answers * (PROMPT + size.new_tokens), size.width, max(2, size.width // 64) * 64
    ends = [width + heads, 2 * (width + heads // 2), heads + width, 3 * (width + 3 * width)]
    return 3 * 2 * rows * rank * size.layers * sum(ends)


def rate(rows: int, inner: int, columns: int, seconds: float = 0.3) -> float:
    """Return the operations per CPU second of a bfloat16 product of this size on this machine."""
    a, b = torch.randn(rows, inner).bfloat16(), torch.randn(columns, inner).bfloat16()
    out, best, begun = torch.empty(rows, columns, dtype=torch.bfloat16), math.inf, time.process_time()
    while time.process_time() - begun < seconds or math.isinf(best):
        started = time.process_time()
        torch.mm(a, b.t(), out=out)
        best = min(best, time.process_time() - started)
    return 2 * rows * inner * columns / best


def ceiling(size: Size, folder: Path, steps: int, seed: int) -> dict[str, Any]:
    """Return operations, time, this machine's product rates, and the time by purpose."""
    model = Model.of(size, folder, seed, lora=True)
    found = model.steps(steps, seed)
    seconds = min(step["training"] for step in found)
    shapes = products(size)
    dense = sum(2 * n * k * m * count for (n, k, m), count in shapes.items())
    operations = dense + attention_operations(size) + adapter_operations(size)
    taken = sum(2 * n * k * m * count / rate(n, k, m) for (n, k, m), count in shapes.items())
    best = max(rate(side, side, side) for side in (512, 1024, 2048))
    return {
        "size": vars(size),
        "weights": model.weights,
        "operations": operations,
        "seconds": seconds,
        "best": best,
        "at these sizes": dense / taken,
        "share of best": operations / seconds / best,
        "share at these sizes": operations / seconds / (dense / taken),
        "shares": profiled(model, seed),
    }


def profiled(model: Model, seed: int) -> dict[str, float]:
    """Return the shares of the scoring and training time by purpose of the operators."""
    rows = model.rows(seed)
    settings = TrainSettings(steps=2, lr=1e-4, schedule="constant", seed=seed)
    watched = profile(activities=[ProfilerActivity.CPU])

    def source(step: int) -> StepBatch:
        if step == 2:
            watched.start()
        return StepBatch(rows)

    train(
        model.student,
        source,
        DistillationObjective({"base": model.teacher}),
        settings,
        hooks=Hooks(log=lambda *_: None),
    )
    watched.stop()
    totals = dict.fromkeys([*SHARES, "all else"], 0.0)
    for event in watched.key_averages():
        totals[purpose(event.key)] += event.self_cpu_time_total
    whole = sum(totals.values())
    return {name: total / whole for name, total in sorted(totals.items(), key=lambda entry: -entry[1])}


def purpose(operator: str) -> str:
    """Return the purpose of an operator."""
    name = operator.lower()
    return next((use for use, parts in SHARES.items() if any(part in name for part in parts)), "all else")


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


def ceiling_text(found: dict[str, Any]) -> str:
    """Return the share reached, and the time by purpose, as Markdown."""
    size, tera = Size(**found["size"]), 1e12
    rows = [(name, f"{share:.1%}") for name, share in found["shares"].items() if share >= 0.001]
    tokens = size.answers * (PROMPT + size.new_tokens)
    return "\n".join(
        [
            f"{found['weights'] / 1e6:.0f}M weights ({size.layers} layers of width {size.width}, vocabulary "
            f"{size.vocabulary:,}), {tokens:,} tokens: {found['operations'] / tera:.2f} teraflop in "
            f"{found['seconds']:.2f} CPU seconds, {found['operations'] / found['seconds'] / 1e9:,.0f} gigaflop "
            f"per second.",
            "",
            f"- of the best product of this machine ({found['best'] / 1e9:,.0f}): {found['share of best']:.0%}",
            f"- of its products at these sizes ({found['at these sizes'] / 1e9:,.0f}): "
            f"{found['share at these sizes']:.0%}",
            "",
            _report.table(("purpose", "share of time"), rows),
        ]
    )


def main() -> int:
    """Measure and print; write with --write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--steps", type=int, default=2, help="measured steps per pass, after one warm-up step")
    parser.add_argument("--tiny", action="store_true", help="a tiny model, only to check that the benchmark runs")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/scaling.md and .json")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    shape = tiny if options.tiny else replace
    facts = _report.machine(("torch", "transformers", "peft"))
    facts |= {"threads": str(options.threads), "seed": str(options.seed)}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        reached = ceiling(shape(CEILING), folder, options.steps, options.seed)
        print(ceiling_text(reached), flush=True)
        found = {
            axis: sweep(axis, [shape(size) for size in sizes], folder, options.passes, options.steps, options.seed)
            for axis, sizes in SWEEPS.items()
        }
    body = f"## Slopes\n\n{slopes_text(found)}\n\n## Ceiling\n\n{ceiling_text(reached)}"
    print(slopes_text(found))
    if options.write:
        fixed = Size()
        size = (
            f"Unless varied: {fixed.answers} responses of {fixed.new_tokens} tokens, {fixed.layers} layers of "
            f"width {fixed.width}, vocabulary {fixed.vocabulary:,}; {options.passes} passes of {options.steps} steps."
        )
        note = (__doc__ or "").split("\n\n", 2)[2]
        title = "Scaling of a step, and the ceiling of scoring and training"
        print(
            _report.write("scaling", title, f"{note}\n{size}\n\n{body}", facts, {"slopes": found, "ceiling": reached})
        )
    return 0


def tiny(size: Size) -> Size:
    """Return a tiny version of a size, to check that the benchmark runs."""
    return Size(max(1, size.answers // 8), max(2048, size.vocabulary // 8), 64, size.layers, new_tokens=4)


if __name__ == "__main__":
    sys.exit(main())
