"""The memory model: a stage's memory, part by part, from a model's configuration alone.

Weights, gradients and optimizer state follow from the shapes of the parameters, see
:mod:`pipelines.planning.architecture`; the memory of a micro-batch and of a rollout from the formulas in
:mod:`pipelines.planning.activations`. The accuracy against measured runs is in benchmarks/results/memory.md.

Who decides that a run does not fit: :class:`Needs` decides between full fine-tuning and LoRA
(:mod:`pipelines.planning.tuning`); :func:`memory_counted` refuses a run for which another one leaves too little; a
plan's table only warns (:mod:`pipelines.table`), and the run is tried. Where a GPU is full while it trains, the
micro-batches are halved (:class:`recovery.training.update.Updates`).

Two runs on one machine that begin together both find all memory free, and the system kills one when both reach their
peak. So a cycle, a mid-training or a recovery writes its planned peak into a file of its process, and one that begins
later counts it.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from pipelines.planning.activations import WIDE, Network, Rows, Setup, rollout_memory, training_memory
from pipelines.planning.architecture import count
from pipelines.table import GIB, PlanRow, size, total_of
from recovery import distributed
from recovery.batching import CPU_TOKENS
from recovery.config import DistillConfig, MidtrainConfig, ModelConfig, TrainingConfig
from recovery.disk import user_cache
from recovery.engines import cache_bytes, device_bytes
from recovery.errors import UsageError
from recovery.lazy_import import lazily
from recovery.models import hardware
from recovery.models.hardware import pick_device, pick_precision
from recovery.workspace import write_atomically

if TYPE_CHECKING:
    from db import liveness
else:
    liveness = lazily("db.liveness")  # SQLAlchemy, which an estimate for other machines does not need

# The share of a device's memory held in reserve: on a GPU for fragmentation; on a CPU for the system and other
# programs, and because freed memory is returned late: peaks a third above the live memory were measured.
MARGIN_GPU, MARGIN_CPU = 0.08, 0.25
# Bytes of a GPU that a process takes before any tensor: CUDA's context, libraries' workspace. Assumed, not measured.
CUDA_CONTEXT = GIB * 3 // 4
# Tokens of a prompt, if not known.
USUAL_PROMPT = 128
# Bytes of a weight in NF4: four bits, and a float32 constant for each block of 64 (bitsandbytes).
NF4_BITS, NF4_BLOCK = 4, 64


@dataclass(frozen=True)
class Rollouts:
    """Sampling settings: ``budget`` tokens of prompts and completions at once, at most ``most`` completions per step.

    ``vllm`` in this process holds its own copy of the weights and ``cache`` bytes of keys and values (None: vLLM's
    choice), permanently unless it ``sleeps`` while training.
    """

    budget: int
    new_tokens: int
    most: int
    prompt: int = USUAL_PROMPT
    vllm: bool = False
    sleeps: bool = False
    cache: int | None = None

    @property
    def at_once(self) -> int:
        """Completions sampled at once."""
        return max(1, min(self.most, self.budget // (self.prompt + self.new_tokens)))


@dataclass(frozen=True)
class TeacherFootprint:
    """The teachers loaded with a student: uses of a LoRA student's base model, adapters on it, and other models.

    ``copies`` are copies of the student. With a fully fine-tuned student, each teacher is a separate model. ``larger``
    is the number of parameters that the other models have beyond the student's.
    """

    bases: int = 0
    adapters: int = 0
    others: int = 0
    copies: int = 0
    larger: int = 0

    @property
    def count(self) -> int:
        """Number of teachers."""
        return self.bases + self.adapters + self.others + self.copies

    def separate_models(self, tuning: str) -> int:
        """Return how many share no weights with the student."""
        return self.others if tuning == "lora" else self.count


@dataclass(frozen=True)
class Plan:
    """The settings of a stage that determine its memory. ``shards`` processes hold one shard of the student's layers
    each, and with ``teachers_too`` of the teachers' layers; the whole student is gathered to sample, unless ``gather``
    is off. ``free`` is the memory of the empty device in bytes, if known: vLLM takes a share of the rest.
    ``documents`` are the micro-batches of a distillation's document text, if any.
    """

    setup: Setup
    rows: Rows
    optimizer: str = "adamw"
    rollouts: Rollouts | None = None
    beside: TeacherFootprint = TeacherFootprint()
    shards: int = 1
    teachers_too: bool = False
    gather: bool = True
    free: int | None = None
    documents: Rows | None = None


@dataclass(frozen=True)
class Memory:
    """Bytes by part: ``held`` throughout, and in addition during ``training`` or during ``sampling``."""

    held: dict[str, int] = field(default_factory=dict)
    training: dict[str, int] = field(default_factory=dict)
    sampling: dict[str, int] = field(default_factory=dict)

    @property
    def peak(self) -> int:
        """The maximum at any time, bytes."""
        return sum(self.held.values()) + max(sum(self.training.values()), sum(self.sampling.values()))

    @property
    def at_peak(self) -> dict[str, int]:
        """The parts at the peak, which add up to it."""
        return self.held | max(self.training, self.sampling, key=lambda parts: sum(parts.values()))


@dataclass(frozen=True)
class Needs:
    """The memory of a stage, and the bytes of its device: ``total``, of which some are reserved, and ``free`` now."""

    memory: Memory
    total: int
    free: int
    gpu: bool = False

    @property
    def fits(self) -> bool:
        """Whether the stage is expected to fit on the device, whatever runs there now."""
        return self.memory.peak <= usable(self.total, self.gpu)

    @property
    def fits_now(self) -> bool:
        """Whether the stage is expected to fit beside what runs there now."""
        return self.memory.peak <= usable(self.free, self.gpu)

    def __str__(self) -> str:
        reserve = size(self.total - usable(self.total, self.gpu))
        return f"about {size(self.memory.peak)} at the peak, {size(self.total)} in all, of which {reserve} stay free"


def usable(memory: int, gpu: bool) -> int:
    """Return the bytes of memory minus the reserve."""
    return round(memory * (1 - (MARGIN_GPU if gpu else MARGIN_CPU)))


@dataclass(frozen=True)
class ParameterBytes:
    """Bytes held for some parameters: weights, gradients, and the optimizer's state."""

    weights: int
    gradients: int
    adamw: int
    muon: int

    def optimizer(self, name: str) -> int:
        """Return the bytes of an optimizer's state."""
        return self.muon if name == "muon" else self.adamw


@dataclass(frozen=True)
class Parameters:
    """Parameter counts of a model, and the bytes held for those inside its layers and for the others.

    ``multiplied`` counts the parameters in a token's matrix products: all but an untied input embedding and the experts
    that it does not take.
    """

    total: int
    trainable: int
    multiplied: int
    layers: int
    inside: ParameterBytes
    outside: ParameterBytes


def parameters_of(setup: Setup) -> Parameters:
    """Count the parameters and an adapter's; tied heads are counted once."""
    size, adapter = setup.architecture, setup.adapter
    inside, outside = count(size.inside), count(size.outside)
    total = inside + outside + adapter
    # An embedding or a head has a row for every entry of the vocabulary; a norm beside them is trained with the layers.
    embeddings = count(shape for shape in size.outside if shape[0] == size.vocabulary)
    frozen = embeddings if setup.frozen_embeddings else 0
    return Parameters(
        total=total,
        trainable=total - frozen if setup.full else adapter,
        multiplied=(total if size.tied else total - size.vocabulary * size.width) - size.unused,
        layers=size.depth,
        inside=_bytes_for(setup, inside, adapter, count(size.matrices)),
        outside=_bytes_for(setup, outside, frozen=frozen),
    )


def _bytes_for(setup: Setup, weights: int, adapter: int = 0, matrices: int = 0, frozen: int = 0) -> ParameterBytes:
    """Return the bytes held for so many weights: AdamW keeps two moments of each trained one, Muon one for matrices
    inside the layers, which all of an adapter's are. ``frozen`` of them are not trained by full fine-tuning.
    """
    gradients = WIDE * (weights - frozen if setup.full else adapter)
    by_muon = WIDE * (matrices if setup.full else adapter)
    held = (WIDE if setup.full else setup.itemsize) * weights + WIDE * adapter
    if setup.quantized:
        held -= setup.itemsize * matrices - (matrices * NF4_BITS // 8 + WIDE * matrices // NF4_BLOCK)
    return ParameterBytes(held, gradients, 2 * gradients, 2 * gradients - by_muon)


def _frozen_bytes(setup: Setup) -> int:
    size = setup.architecture
    return setup.itemsize * (count(size.inside) + count(size.outside))


def network_of(setup: Setup) -> Network:
    """Return the properties of the model that determine its speed."""
    counts = parameters_of(setup)
    return Network(counts.multiplied, counts.layers, _frozen_bytes(setup))


def midtraining(
    config: MidtrainConfig,
    model: str,
    tuning: str,
    gpu: bool,
    *,
    beside: TeacherFootprint,
    row_length: int | None = None,
    step: int | None = None,
) -> Plan:
    """Return a mid-training's memory plan. ``model`` is its configuration as JSON, ``tuning`` full or lora.

    A micro-batch holds at most ``step`` tokens, those of the largest step with padding, if they are known.
    """
    length = row_length or config.row_length
    setup = _setup(config, model, tuning, gpu, beside)
    rows = Rows(_rows(config, length, gpu, step), length, length, packed=True)
    return Plan(setup, rows, config.optimizer, beside=beside)


def distilling(
    config: DistillConfig,
    model: str,
    tuning: str,
    gpu: bool,
    *,
    beside: TeacherFootprint,
    prompt: int = USUAL_PROMPT,
    step: int | None = None,
) -> Plan:
    """Return a distillation's memory plan. ``prompt`` is a prompt's usual tokens; ``step``: see :func:`midtraining`."""
    setup = _setup(config, model, tuning, gpu, beside, itself=config.teaching.kind == "self")
    length = prompt + config.max_new_tokens
    rows = Rows(_rows(config, length, gpu, step), length, config.max_new_tokens)
    most = config.prompts_per_step * config.samples_per_prompt
    documents = _document_rows(config, setup, most * config.max_new_tokens) if config.document_loss else None
    if config.alpha == 0 or config.served:  # nothing is sampled in this process
        return Plan(setup, rows, config.optimizer, beside=beside, documents=documents)
    rollouts = Rollouts(
        config.rollout_tokens,
        config.max_new_tokens,
        most,
        prompt,
        vllm=config.engine == "vllm",
        sleeps=config.engine_sleep,
        cache=None if config.engine_memory is None else int(config.engine_memory * GIB),
    )
    return Plan(setup, rows, config.optimizer, rollouts, beside, documents=documents)


def _document_rows(config: DistillConfig, setup: Setup, responses: int) -> Rows:
    """Return a distillation's micro-batches of packed document text, beside at most ``responses`` tokens in a step."""
    text = math.ceil(responses * config.document_loss / (1 - config.document_loss))
    length = max(1, min(config.row_length, setup.architecture.context, text))
    return Rows(min(_rows(config, length, setup.gpu), math.ceil(text / length)), length, length, packed=True)


def _rows(config: ModelConfig, length: int, gpu: bool, step: int | None = None) -> int:
    most = max(1, (config.token_budget if gpu else min(config.token_budget, CPU_TOKENS)) // length)
    return most if step is None else min(most, math.ceil(step / length))


def _setup(
    config: TrainingConfig, model: str, tuning: str, gpu: bool, beside: TeacherFootprint, *, itself: bool = False
) -> Setup:
    precision = precision_of(config, gpu)
    separate = beside.separate_models(tuning)
    own = itself or beside.count > separate
    quantized = config.quantize != "none" and tuning == "lora"
    frozen = tuning == "full" and not config.trains_embeddings
    return Setup(
        model, tuning, precision, gpu, config.gradient_checkpointing, config.lora_rank, separate, own, quantized, frozen
    )


def precision_of(config: ModelConfig, gpu: bool) -> str:
    """Return the precision of products by name; a GPU that is not here is assumed to support bfloat16."""
    if config.precision != "auto":
        return config.precision
    return "bfloat16" if gpu else str(pick_precision("auto", torch.device("cpu"))).removeprefix("torch.")


def answering_memory(setup: Setup, answers: int, prompt: int, new_tokens: int) -> int:
    """Return the peak of a frozen model, bytes, that samples ``answers`` completions at once, or scores texts."""
    return _frozen_bytes(setup) + sum(rollout_memory(setup, answers, prompt, new_tokens).values())


def memory_of(plan: Plan) -> Memory:
    """Return the memory of a stage's process by part. Raises ModelError if the model has no sizes to count with."""
    setup, rollouts = plan.setup, plan.rollouts
    counts, frozen = parameters_of(setup), _frozen_bytes(setup)
    inside, outside = counts.inside, counts.outside
    held = {
        "weights": outside.weights + inside.weights // plan.shards,
        "optimizer": outside.optimizer(plan.optimizer) + inside.optimizer(plan.optimizer) // plan.shards,
        "teachers": _teachers(plan, counts, frozen),
    }
    if setup.gpu:
        held["CUDA"] = CUDA_CONTEXT
    training = {"gradients": outside.gradients + inside.gradients // plan.shards}
    batches = [training_memory(setup, rows) for rows in (plan.rows, plan.documents) if rows is not None]
    largest = max(batches, key=lambda parts: sum(parts.values()))
    training |= largest
    if setup.quantized:  # the matrix that is multiplied with, in the precision of the product
        training["dequantised"] = setup.itemsize * max(map(math.prod, setup.architecture.matrices))
    if plan.shards > 1:  # the current layer and the prefetched next one
        training["gathered"] = 2 * inside.weights // counts.layers
    sampling: dict[str, int] = {}
    if rollouts is not None and rollouts.vllm:
        # The optimizer's state is allocated in the first step, after vLLM has started.
        before = sum(bytes_ for name, bytes_ in held.items() if name != "optimizer")
        free = None if plan.free is None else max(0, plan.free - before)
        size = setup.architecture
        each = size.depth * size.cached * setup.itemsize
        cache = rollouts.cache or cache_bytes(each, rollouts.budget, size.context, free)
        (sampling if rollouts.sleeps else held)["vLLM"] = device_bytes(frozen, cache)
    elif rollouts is not None:
        sampling = rollout_memory(setup, rollouts.at_once, rollouts.prompt, rollouts.new_tokens)
        copied = setup.full and setup.precision != "float32"
        if plan.shards > 1 and plan.gather:
            sampling["sampling copy"] = frozen
        elif plan.shards > 1:
            sampling["gathered"] = 2 * frozen // counts.layers
        elif copied:
            held["sampling copy"] = frozen
    return Memory(held, training, sampling)


def _teachers(plan: Plan, counts: Parameters, frozen: int) -> int:
    """Return the bytes of the teachers' weights; a LoRA student's base is shared, unless it is sharded."""
    beside = plan.beside
    larger = beside.larger * plan.setup.itemsize
    full = counts.inside.weights + counts.outside.weights  # in the student's precision, with its adapter, if any
    if plan.setup.tuning != "lora":
        return _per_process(plan, counts, (beside.count - beside.copies) * frozen + beside.copies * full + larger)
    adapter = counts.inside.gradients + counts.outside.gradients if plan.shards == 1 else full
    if plan.setup.quantized:  # a separate teacher is not
        full = frozen + adapter
    return _per_process(plan, counts, (beside.adapters + beside.copies) * adapter + beside.others * full + larger)


def _per_process(plan: Plan, counts: Parameters, held: int) -> int:
    """Return what one process holds of ``held`` bytes of teachers: their layers are sharded with ``teachers_too``."""
    if not plan.teachers_too:
        return held
    inside = held * counts.inside.weights // (counts.inside.weights + counts.outside.weights)
    return held - inside + inside // plan.shards


@dataclass(frozen=True)
class PlannedRun:
    """What a process has planned on a device: its ``peak`` above what was held ``before``, bytes: by the process, or of
    a GPU by all.
    """

    pid: int
    peak: int
    before: int

    @property
    def rest(self) -> int:
        """The bytes of a CPU's memory that it will still take."""
        return max(0, self.peak - max(0, hardware.resident(self.pid) - self.before))


def free_memory(device: str) -> int:
    """Return the free bytes of a device, less what other runs have planned and do not hold yet."""
    free, runs = hardware.free_memory(device), planned_by_others(device)
    if not device.startswith("cuda"):
        return max(0, free - sum(run.rest for run in runs))
    # What a process holds of a GPU is known to itself alone; to others, what all took since the first of them began.
    used = hardware.total_memory(device) - free - torch.cuda.memory_reserved(torch.device(device))
    held = max(0, used - min((run.before for run in runs), default=used))
    return max(0, free - max(0, sum(run.peak for run in runs) - held))


@contextlib.contextmanager
def memory_counted(rows: Sequence[PlanRow], device: str) -> Iterator[None]:
    """Let other runs count the peak of a plan's ``rows`` while the block runs.

    Within another such block the outer plan counts, since it covers the whole run. Raise UsageError, before anything
    begins, if another run leaves too little memory for this one. A run whose folder cannot be written is not counted,
    and neither are several processes of one run.
    """
    own, peak = _folder() / f"{os.getpid()}.json", total_of(rows)[1]
    if not rows or distributed.size() > 1 or _living(own) is not None:
        yield
        return
    device = str(pick_device(device))
    try:
        with _one_at_a_time():
            others, free = planned_by_others(device), free_memory(device)
            if others and peak > free:
                first = max(others, key=lambda run: run.peak)
                raise UsageError(
                    f"this run needs {size(peak)} and {size(free)} are left beside process {first.pid}, another run "
                    f"that has planned {size(first.peak)}: wait until it ends"
                )
            gpu = device.startswith("cuda")
            before = hardware.total_memory(device) - hardware.free_memory(device) if gpu else hardware.resident()
            plan = {"device": _name(device), "peak": peak, "before": before, "started": liveness.started(os.getpid())}
            with contextlib.suppress(OSError, UsageError):
                write_atomically(own, json.dumps(plan))
        yield
    finally:
        with contextlib.suppress(OSError):
            own.unlink(missing_ok=True)


def planned_by_others(device: str) -> list[PlannedRun]:
    """Return what other living processes of this user on this machine have planned on a device."""
    runs = []
    for file in sorted(_folder().glob("[0-9]*.json")):
        run = _living(file)
        if run is None:
            with contextlib.suppress(OSError):
                file.unlink()  # its process was killed
        elif run["device"] == _name(device) and file.stem != str(os.getpid()):
            runs.append(PlannedRun(int(file.stem), run["peak"], run["before"]))
    return runs


def _folder() -> Path:
    """The folder of this user's processes that see each other's ids."""
    try:
        return user_cache("runs") / liveness.place()
    except RuntimeError:  # a user without a home: no file can be under this path
        return Path(os.devnull) / "runs"


@contextlib.contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Hold a lock, so that of two runs that begin together the second sees the first."""
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError):
            _folder().mkdir(parents=True, exist_ok=True)
            fcntl.flock(held.enter_context((_folder() / "lock").open("w")), fcntl.LOCK_EX)
        yield


def _living(file: Path) -> dict[str, Any] | None:
    """Return what a living process wrote; None if there is no such file, it is damaged, or its process has ended."""
    try:
        run = json.loads(file.read_text(encoding="utf-8"))
        known = {"device": str(run["device"]), "peak": int(run["peak"]), "before": int(run["before"])}
        return None if liveness.has_ended(liveness.place(), int(file.stem), str(run["started"])) else known
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _name(device: str) -> str:
    """Return a name of a device that does not depend on which GPUs a process sees."""
    return str(torch.cuda.get_device_properties(torch.device(device)).uuid) if device.startswith("cuda") else device
