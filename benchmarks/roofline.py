"""How near the machine's limit each phase of a cycle is.

Run: python -m benchmarks.roofline [--example examples/nextjs] [--name roofline-NAME] [--write]

A cycle with its defaults runs for a few steps in this process: mid-training, recovery, and the evaluation of the
recovered model on a few items. Of each phase the processor time is measured, without that of the phases inside it, and
its operations and bytes follow from the model's shapes and the tokens. Only tokens count that enter a loss or are
sampled: a forward pass is 2 operations per weight of the layers and of the head and 4 L A c of attention over c tokens
(L layers, A the width of all heads), training three times that. Prompts and padding count as waste, and so do passes
over a context. Bytes are the documents', the weights' (bfloat16) and the cached keys' and values' at each decoded step
of a batch, and 28 for each weight at an update (AdamW reads the weight, its gradient and two moments and writes three).

The time that this needs is at the machine's own best rates, measured in the same run before and after: the fastest
product of 1,024 tokens with the matrices of this model in the same data type, and the fastest sum over 256 MB. Decoding
needs the longer of both times, training their sum. The share reached is the needed time over the measured one. A
teacher's head is computed within the loss, and counted there.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks import _report, job
from evals import loglikelihood
from pipelines.cycle_plan import midtrain_config, new_plan, recovery_config
from pipelines.distillation.stage import distill
from pipelines.evaluation.stage import evaluate
from pipelines.midtraining import material
from pipelines.midtraining.stage import midtrain
from pipelines.planning.architecture import Architecture
from recovery.batching import Batch
from recovery.losses.objective import DistillationObjective
from recovery.models.hardware import pick_precision
from recovery.rollouts.transformers_engine import TransformersEngine
from recovery.teachers.teacher import LocalTeacher
from recovery.training.update import Updates

GOALS = {"mid-training": 0.5, "training": 0.5, "teachers' scores": 0.5, "sampling": 0.4}
PROFILED = "one step under the profiler"
UPDATED = 28  # bytes of AdamW per weight
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
class Work:
    """Operations and bytes of one model's tokens; ``layers`` are the weights of its matrices inside the layers."""

    layers: int
    width: int
    inner: int
    vocabulary: int
    depth: int
    heads: int
    cached: int

    @classmethod
    def of(cls, folder: Path) -> Work:
        """Read the sizes of a model."""
        size = Architecture.of((folder / "config.json").read_text(encoding="utf-8"))
        layers = sum(map(math.prod, size.matrices))
        heads = size.heads * size.head_width
        return cls(layers, size.width, size.inner, size.vocabulary, size.depth, heads, size.cached)

    @property
    def head(self) -> int:
        """The weights of the head."""
        return self.width * self.vocabulary

    def body(self, tokens: int, context: int) -> float:
        """Return the operations of the layers' forward pass; ``context`` is the sum over the tokens of what each sees.

        2 N tokens + 4 L A context: scores and sums of values, a product and a sum for each number of all heads.
        """
        return 2.0 * self.layers * tokens + 4.0 * self.depth * self.heads * context

    def trained(self, tokens: int, context: int) -> float:
        """Return the operations of training on targets: forward, and backward for inputs and for weights."""
        return 3 * (self.body(tokens, context) + 2.0 * self.head * tokens)

    @property
    def weights(self) -> float:
        """Bytes of the weights that a decoded step reads, in bfloat16."""
        return 2.0 * (self.layers + self.head)

    def cache(self, context: int) -> float:
        """Return the bytes of the cached keys and values that the tokens read, in bfloat16."""
        return 2.0 * self.depth * self.cached * context


@dataclass
class Phase:
    """A phase's processor seconds, what it needs, the tokens that count, those that were read with their contexts, and
    those that were computed with padding.
    """

    seconds: float = 0.0
    operations: float = 0.0
    bytes: float = 0.0
    tokens: int = 0
    read: int = 0
    computed: int = 0

    def count(self, tokens: int, read: int, computed: int) -> None:
        """Add tokens."""
        self.tokens, self.read, self.computed = self.tokens + tokens, self.read + read, self.computed + computed

    def needed(self, rates: Rates, together: bool) -> float:
        """Return the least seconds at these rates; ``together``: reading and computing at the same time."""
        parts = self.operations / rates.products, self.bytes / rates.stream
        return max(parts) if together else sum(parts)


@dataclass(frozen=True)
class Rates:
    """The machine's operations of products, and bytes of memory read, per processor second."""

    products: float
    stream: float

    @classmethod
    def measured(cls, work: Work, precision: torch.dtype, seconds: float) -> Rates:
        """Return the best rates of the model's products, each tried for ``seconds``, and of reading memory."""
        shapes = [(work.width, work.inner), (work.inner, work.width), (work.width, work.vocabulary)]
        products = []
        for inner, columns in shapes:
            a, b = torch.randn(1024, inner).to(precision), torch.randn(columns, inner).to(precision)
            out = torch.empty(1024, columns, dtype=precision)
            taken = _fastest(functools.partial(torch.mm, a, b.t(), out=out), seconds)
            products.append(2 * 1024 * inner * columns / taken)
        block = torch.zeros(64 << 20)
        return cls(max(products), block.numel() * 4 / _fastest(block.sum, seconds))


def _fastest(run: Callable[[], object], seconds: float) -> float:
    best, begun = math.inf, time.process_time()
    while time.process_time() - begun < seconds or math.isinf(best):
        started = time.process_time()
        run()
        best = min(best, time.process_time() - started)
    return best


@dataclass
class Meter:
    """Counts the phases of a cycle in this process; ``stage`` is the running one, ``profiled`` a step of recovery."""

    work: Work
    documents: int
    profiled: int
    stage: str = ""
    phases: dict[str, Phase] = field(default_factory=dict)
    shares: dict[str, float] = field(default_factory=dict)
    _open: list[str] = field(default_factory=list)
    _since: float = 0.0

    @contextlib.contextmanager
    def __call__(self, name: str) -> Iterator[Phase]:
        """Measure the block as a phase, and not as the one around it."""
        self._turn()
        self._open.append(name)
        try:
            yield self.phases.setdefault(name, Phase())
        finally:
            self._turn()
            self._open.pop()

    def _turn(self) -> None:
        now = time.process_time()
        if self._open:
            self.phases.setdefault(self._open[-1], Phase()).seconds += now - self._since
        self._since = now

    # The replacements of the functions that the phases call: each measures the original, ``run``, and returns what it
    # returned.

    def read(self, run: Callable[..., Any], *given: Any, **more: Any) -> Any:
        """Reading the documents, asking questions about them, packing."""
        with self("reading") as phase:
            phase.bytes = float(self.documents)
            return run(*given, **more)

    def update(self, run: Callable[..., Any], updates: Updates, step: int, *given: Any) -> Any:
        """One update of the weights."""
        profiling = self.stage == "recovery" and step == self.profiled
        with self(PROFILED if profiling else "mid-training" if self.stage == "mid-training" else "training") as phase:
            phase.bytes += UPDATED * sum(p.numel() for p in updates.params.values())
            if not profiling:
                return run(updates, step, *given)
            with profile(activities=[ProfilerActivity.CPU]) as watched:
                made = run(updates, step, *given)
            times = {event.key: event.self_cpu_time_total for event in watched.key_averages()}
            self.shares = by_purpose(times)
            return made

    def loss(self, run: Callable[..., Any], objective: Any, student: Any, batch: Batch) -> Any:
        """The loss of a batch, within an update."""
        phase = self.phases[self._open[-1]]
        phase.count(batch.tokens, int(batch.lengths_B.sum()), batch.ids_BT.numel())
        phase.operations += self.work.trained(batch.tokens, _context(batch))
        teachers = len(objective.teachers[batch.teacher].parts) if batch.teacher in objective.teachers else 0
        phase.operations += 2.0 * self.work.head * batch.tokens * teachers
        return run(objective, student, batch)

    def score(self, run: Callable[..., Any], teacher: LocalTeacher, batch: Batch) -> Any:
        """A teacher's pass over a batch."""
        if PROFILED in self._open:
            return run(teacher, batch)
        with self("teachers' scores") as phase:
            phase.count(batch.tokens, int(batch.lengths_B.sum()), batch.ids_BT.numel())
            phase.operations += self.work.body(batch.tokens, _context(batch))
            return run(teacher, batch)

    def generate(self, run: Callable[..., Any], engine: Any, prompts: Sequence[Sequence[int]], *given: Any) -> Any:
        """Sampled responses to prompts."""
        with self("evaluation: answers" if self.stage == "evaluation" else "sampling") as phase:
            made = run(engine, prompts, *given)
            lengths = [(len(prompt), len(one.ids)) for prompt, one in zip(prompts, made, strict=True)]
            tokens, context = sum(n for _, n in lengths), sum(p * n + n * (n + 1) // 2 for p, n in lengths)
            phase.operations += self.work.body(tokens, context) + 2.0 * self.work.head * tokens
            phase.bytes += self.work.cache(context)
            read = sum(map(len, prompts)) + tokens
            phase.count(tokens, read, read)
            return made

    def decode(self, run: Callable[..., Any], *given: Any) -> Any:
        """One decoded step of a batch, which reads all weights."""
        self.phases[self._open[-1]].bytes += self.work.weights
        return run(*given)

    def likelihood(self, run: Callable[..., Any], loaded: Any, group: Any, budget: int) -> Any:
        """Likelihoods of continuations."""
        with self("evaluation: likelihoods") as phase:
            for context, continuations in group:
                before = len(context)
                for n in map(len, continuations):
                    phase.operations += self.work.body(n, before * n + n * (n + 1) // 2) + 2.0 * self.work.head * n
                read = before + sum(len(one) - 1 for one in continuations)
                phase.count(sum(map(len, continuations)), read, read)
            return run(loaded, group, budget)

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Measure what is called in the block."""
        watched: list[tuple[Any, str, Callable[..., Any]]] = [
            (material, "gather_cycle", self.read), (material, "gather_material", self.read),
            (Updates, "update", self.update), (DistillationObjective, "__call__", self.loss),
            (LocalTeacher, "hidden", self.score), (TransformersEngine, "generate", self.generate),
            (TransformersEngine, "_decode", self.decode), (loglikelihood, "_score_group", self.likelihood),
        ]  # fmt: skip
        found = [getattr(owner, name) for owner, name, _ in watched]
        for (owner, name, measure), run in zip(watched, found, strict=True):
            setattr(owner, name, _in_its_place(measure, run))
        try:
            yield
        finally:
            for (owner, name, _), run in zip(watched, found, strict=True):
                setattr(owner, name, run)


def _in_its_place(measure: Callable[..., Any], run: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *given, **more: measure(run, *given, **more)


def _context(batch: Batch) -> int:
    """Return the sum over a batch's targets of the tokens that predict each."""
    return int(batch.positions_BT.reshape(-1)[batch.sources_N].sum()) + batch.tokens


def by_purpose(times: dict[str, float]) -> dict[str, float]:
    """Return the shares of operators' own times by purpose, largest first."""
    totals = dict.fromkeys([*SHARES, "all else"], 0.0)
    for operator, taken in times.items():
        name = operator.lower()
        use = next((use for use, parts in SHARES.items() if any(part in name for part in parts)), "all else")
        totals[use] += taken
    whole = sum(totals.values()) or 1.0
    return {name: total / whole for name, total in sorted(totals.items(), key=lambda entry: -entry[1])}


def cycle(given: job.Job, meter: Meter) -> float:
    """Run the cycle under the meter; return its processor seconds."""
    begun = time.process_time()
    with meter.watching(), job.our_session(given) as session:
        plan = new_plan(session, given.cycle(session.recipe))
        meter.stage = "mid-training"
        trained = midtrain(session, midtrain_config(plan, plan.first))
        meter.stage = "recovery"
        recovered = distill(session, recovery_config(plan.config, trained, plan.first))
        meter.stage = "evaluation"
        evaluate(session, dataclasses.replace(plan.config.eval, checkpoint=recovered.name))
    return time.process_time() - begun


def markdown(meter: Meter, rates: Rates, whole: float) -> str:
    """Return the table of phases, largest loss first, and what stands between, as Markdown."""
    rows: list[tuple[str, ...]] = []
    lost = {}
    for name, phase in meter.phases.items():
        if name == PROFILED:
            continue
        needed = phase.needed(rates, together="training" not in name)
        lost[name], share = phase.seconds - needed, needed / max(phase.seconds, 1e-9)
        goal = GOALS.get(name)
        word = "" if goal is None else f"{goal:.1f}: {'met' if share >= goal else 'MISSED'}"
        tokens = f"{phase.tokens:,} / {phase.read:,} / {phase.computed:,}" if phase.computed else ""
        every = f"{share * phase.computed / phase.tokens:.2f}" if phase.tokens else ""
        by = [value / max(phase.seconds, 1e-9) for value in (phase.operations / 1e9, phase.bytes / 1e9)]
        figures = (f"{phase.seconds:.1f}", tokens, f"{by[0]:,.0f}", f"{by[1]:.1f}", f"{share:.2f}", every, word)
        rows.append((name, *figures))
    rest = whole - sum(phase.seconds for phase in meter.phases.values())
    rows.append(("loading, planning, storing", f"{rest:.1f}", *[""] * 6))
    counts = "tokens that count / with contexts / with padding"
    header = ("phase", "processor s", counts, "gigaflop/s", "GB/s", "share reached", "if every token counted", "bound")
    largest = max(lost, key=lambda name: lost[name])
    shares = [(name, f"{share:.1%}") for name, share in meter.shares.items() if share >= 0.001]
    return "\n".join(
        [
            f"This machine's best: {rates.products / 1e9:,.0f} gigaflop/s of products, {rates.stream / 1e9:.1f} GB/s.",
            "",
            _report.table(header, rows),
            "",
            f"Largest gap: {largest}, {lost[largest]:.1f} of {whole:.1f} s are above what it needs. By purpose, one "
            "step of recovery (scoring and training):",
            "",
            _report.table(("purpose", "share of time"), shares),
        ]
    )


def main() -> int:
    """Measure and print; write with --write. Return 1 if a bound was missed."""
    parser = _report.parser(__doc__, "roofline", "seed", "threads", named=True)
    job.add_input(parser)
    parser.add_argument("--rates", type=float, default=0.5, help="seconds for which each product is tried")
    parser.set_defaults(midtrain_steps=3, distill_steps=3, limit=24)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    precision = pick_precision("auto", torch.device("cpu"))
    machine = job.facts(options)
    with tempfile.TemporaryDirectory() as name:
        given = job.prepare(options, Path(name))
        work = Work.of(Path(given.model))
        documents = sum(path.stat().st_size for path in Path(given.docs).rglob("*.md"))
        meter = Meter(work, documents, given.distill_steps or 0)
        before = Rates.measured(work, precision, options.rates)
        whole = cycle(given, meter)
        after = Rates.measured(work, precision, options.rates)
    rates = Rates(max(before.products, after.products), max(before.stream, after.stream))
    body = markdown(meter, rates, whole)
    print(body)
    if options.write:
        data: dict[str, Any] = {
            "rates": vars(rates),
            "phases": {name: vars(phase) for name, phase in meter.phases.items()},
        }
        data |= {"shares": meter.shares, "seconds": whole}
        text = f"{_report.note(__doc__)}\n{job.sizes(options)}\n\n{body}"
        print(_report.write(options.name, "The phases of a cycle beside the machine", text, machine, data))
    return int("MISSED" in body)


if __name__ == "__main__":
    sys.exit(main())
