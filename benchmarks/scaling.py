"""How a distillation step grows, and how near its training half comes to the machine's matrix products.

Run: python -m benchmarks.scaling [--write]

Slopes. A step (sampling, then scoring and training) of a Qwen3 with random weights, full fine-tuning beside a frozen
teacher, over the number of answers, the vocabulary and the number of weights, all else kept. Reported is the slope of
log time over log size (1 is a straight line through zero, below 1 a line with a part that does not grow), by the
processor's count, with the least and the largest slope of several passes; and how much of the variance a straight
line explains.

Ceiling. The floating-point operations of the training half, counted from the shapes, over the time it took, against
this machine's own products: at its best size, and at the sizes of this very model, weighted by their operations.
Here the student carries a LoRA adapter and teaches itself with the adapter off, as benchmarks.lora does. What eats
the rest is read off torch's profiler: the time of the operators themselves, by what they are for.
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
from recovery.batches import Row
from recovery.loading import Loaded, LoraSettings, load_model
from recovery.objectives.estimator import Estimator
from recovery.rollouts import Sampling, TransformersEngine
from recovery.teachers import AdapterOff, Frozen, Teacher
from recovery.training import StepBatch, TrainSettings, train

PROMPT = 16
PARTS = ("step", "sampling", "training")
# What an operator is for, by the first name that its own name contains.
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
    """One size of a step."""

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
    """A student with its teacher and the engine that samples from it."""

    size: Size
    student: Loaded
    teacher: Teacher
    engine: TransformersEngine
    weights: int

    @classmethod
    def of(cls, size: Size, folder: Path, seed: int, lora: bool = False) -> Model:
        """A model with random weights; made once a shape."""
        path = folder / f"{size.width}-{size.layers}-{size.vocabulary}" / "model"
        weights = random_model(path, size.width, size.layers, size.vocabulary, seed)
        student = load_model(path, tuning="lora" if lora else "full")
        teacher = AdapterOff(student) if lora else Frozen(load_model(path))
        return cls(size, student, teacher, TransformersEngine(student), weights)

    def steps(self, count: int, seed: int) -> list[dict[str, float]]:
        """Processor seconds of each of ``count`` steps after one that does not count."""
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
        train(self.student, source, Estimator({"base": self.teacher}), settings, log=log)
        return found[1:]

    def rows(self, seed: int) -> list[Row]:
        """The student's answers to random prompts."""
        generator = torch.Generator().manual_seed(seed)
        prompts = torch.randint(256, 1024, (self.size.answers, PROMPT), generator=generator).tolist()
        said = self.engine.generate(prompts, Sampling(self.size.new_tokens, seed=seed))
        return [
            Row([*prompt, *answer.ids], [False] * PROMPT + [True] * len(answer.ids), teacher="base")
            for prompt, answer in zip(prompts, said, strict=True)
        ]


# --- slopes -----------------------------------------------------------------------------------------------------


def sweep(name: str, chosen: Sequence[Size], folder: Path, passes: int, steps: int, seed: int) -> dict[str, Any]:
    """Median times of each size in each pass, and the slopes."""
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
    """The slope of log time over log size: of the medians, and the least and largest of the passes."""
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
    """Of log seconds over log size, by least squares."""
    found = statistics.linear_regression([math.log(x) for x in sizes], [math.log(y) for y in seconds])
    return float(found.slope)


# --- the ceiling ------------------------------------------------------------------------------------------------


def products(size: Size) -> dict[tuple[int, int, int], float]:
    """The matrix products of the training half, as (rows, inner, columns) and how often; attention's are left out.

    Student forward, teacher forward, and the student's backward with respect to its inputs: each passes every matrix
    once. The head: student, teacher, gradient with respect to the hidden states. The adapter's own are a few percent.
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
    """Of the scores and the mixtures: two products of length x length a head, forward twice and back twice as much."""
    length, heads = PROMPT + size.new_tokens, max(2, size.width // 64)
    once = 2 * 2 * size.answers * heads * length * length * 64
    return size.layers * once * (2 + 2)


def adapter_operations(size: Size) -> float:
    """Of the adapter: forward, and back with respect to its input and its weights."""
    rank = LoraSettings().rank
    rows, width, heads = size.answers * (PROMPT + size.new_tokens), size.width, max(2, size.width // 64) * 64
    ends = [width + heads, 2 * (width + heads // 2), heads + width, 3 * (width + 3 * width)]
    return 3 * 2 * rows * rank * size.layers * sum(ends)


def rate(rows: int, inner: int, columns: int, seconds: float = 0.3) -> float:
    """Operations a processor second of this machine's bfloat16 product of that size."""
    a, b = torch.randn(rows, inner).bfloat16(), torch.randn(columns, inner).bfloat16()
    out, best, begun = torch.empty(rows, columns, dtype=torch.bfloat16), math.inf, time.process_time()
    while time.process_time() - begun < seconds or math.isinf(best):
        started = time.process_time()
        torch.mm(a, b.t(), out=out)
        best = min(best, time.process_time() - started)
    return 2 * rows * inner * columns / best


def ceiling(size: Size, folder: Path, steps: int, seed: int) -> dict[str, Any]:
    """Operations, time, this machine's products, and where the rest goes."""
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
    """The shares of the training half's time by what the operators are for."""
    rows = model.rows(seed)
    settings = TrainSettings(steps=2, lr=1e-4, schedule="constant", seed=seed)
    watched = profile(activities=[ProfilerActivity.CPU])

    def source(step: int) -> StepBatch:
        if step == 2:
            watched.start()
        return StepBatch(rows)

    train(model.student, source, Estimator({"base": model.teacher}), settings, log=lambda *_: None)
    watched.stop()
    totals = dict.fromkeys([*SHARES, "all else"], 0.0)
    for event in watched.key_averages():
        totals[purpose(event.key)] += event.self_cpu_time_total
    whole = sum(totals.values())
    return {name: total / whole for name, total in sorted(totals.items(), key=lambda entry: -entry[1])}


def purpose(operator: str) -> str:
    """What an operator is for."""
    name = operator.lower()
    return next((use for use, parts in SHARES.items() if any(part in name for part in parts)), "all else")


# --- the pages --------------------------------------------------------------------------------------------------


def slopes_text(found: dict[str, dict[str, Any]]) -> str:
    """A table of slopes, and one of the times they come from."""
    rows, times = [], []
    for name, swept in found.items():
        for part in PARTS:
            entry = swept["parts"][part]
            spread = f"{entry['least']:.2f} to {entry['largest']:.2f}"
            rows.append((name, part, f"{entry['slope']:.2f}", spread, f"{entry['straight']:.3f}"))
        seconds = swept["parts"]["step"]["seconds"]
        told = ", ".join(f"{size:,.0f}: {value:.2f} s" for size, value in zip(swept["sizes"], seconds, strict=True))
        times.append(f"- step over {name}: {told}")
    head = ("over", "part", "slope", "of the passes", "variance a straight line explains")
    return "\n".join([_report.table(head, rows), "", *times])


def ceiling_text(found: dict[str, Any]) -> str:
    """The share reached, and what eats the rest."""
    size, tera = Size(**found["size"]), 1e12
    rows = [(name, f"{share:.1%}") for name, share in found["shares"].items() if share >= 0.001]
    tokens = size.answers * (PROMPT + size.new_tokens)
    return "\n".join(
        [
            f"{found['weights'] / 1e6:.0f}M weights ({size.layers} layers of width {size.width}, vocabulary "
            f"{size.vocabulary:,}), {tokens:,} tokens: {found['operations'] / tera:.2f} teraflop in "
            f"{found['seconds']:.2f} processor seconds, {found['operations'] / found['seconds'] / 1e9:,.0f} gigaflop "
            f"a second.",
            "",
            f"- of the best product of this machine ({found['best'] / 1e9:,.0f}): {found['share of best']:.0%}",
            f"- of its products at these sizes ({found['at these sizes'] / 1e9:,.0f}): "
            f"{found['share at these sizes']:.0%}",
            "",
            _report.table(("where the time goes", "share"), rows),
        ]
    )


def main() -> int:
    """Measure, print, write where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--steps", type=int, default=2, help="steps that count in a pass, after one that does not")
    parser.add_argument("--tiny", action="store_true", help="a model of no use but to see that everything runs")
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
            f"Unless it is what grows: {fixed.answers} answers of {fixed.new_tokens} tokens, {fixed.layers} layers of "
            f"width {fixed.width}, vocabulary {fixed.vocabulary:,}; {options.passes} passes of {options.steps} steps."
        )
        note = (__doc__ or "").split("\n\n", 2)[2]
        title = "Scaling of a step, and the ceiling of its training half"
        print(
            _report.write("scaling", title, f"{note}\n{size}\n\n{body}", facts, {"slopes": found, "ceiling": reached})
        )
    return 0


def tiny(size: Size) -> Size:
    """A size that runs in no time, and tells nothing."""
    return Size(max(1, size.answers // 8), max(2048, size.vocabulary // 8), 64, size.layers, new_tokens=4)


if __name__ == "__main__":
    sys.exit(main())
