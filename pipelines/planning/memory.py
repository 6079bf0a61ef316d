"""The memory model: a stage's memory, part by part, from a model's configuration alone.

Weights, gradients and optimizer state follow from the parameter counts of the model built without weights; the memory
of a micro-batch and of a rollout is counted by :mod:`pipelines.planning.memory_trace`. The accuracy against measured
runs is in benchmarks/results/memory.md.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch

from pipelines.planning.memory_trace import Rows, Taken, Trial, rollout_memory, training_memory
from pipelines.planning.throughput import GIB, Network, size
from recovery.batching import CPU_TOKENS
from recovery.config import DistillConfig, MidtrainConfig, ModelConfig, TrainingConfig
from recovery.models.loading import Loaded, pick_precision
from recovery.rollouts.vllm_engine import cache_bytes, device_bytes
from recovery.training.loop import inside_layers

# The share of free memory held in reserve: on a GPU for fragmentation; on a CPU because freed memory is returned late:
# peaks a third above the live memory were measured.
MARGIN_GPU, MARGIN_CPU = 0.08, 0.25
# Bytes of a GPU that a process takes before any tensor: CUDA's context, libraries' workspace. Assumed, not measured.
CUDA_CONTEXT = GIB * 3 // 4
# Tokens of a prompt, if not known.
USUAL_PROMPT = 128


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

    ``copies`` are copies of the student. With a fully fine-tuned student, each teacher is a separate model.
    """

    bases: int = 0
    adapters: int = 0
    others: int = 0
    copies: int = 0

    @property
    def count(self) -> int:
        """Number of teachers."""
        return self.bases + self.adapters + self.others + self.copies

    def apart(self, tuning: str) -> int:
        """Return how many share no weights with the student."""
        return self.others if tuning == "lora" else self.count


@dataclass(frozen=True)
class Plan:
    """The settings of a stage that determine its memory. ``shards`` processes hold one shard of the student's layers
    each. ``free`` is the memory of the empty device in bytes, if known: vLLM takes a share of the rest.
    """

    trial: Trial
    rows: Rows
    optimizer: str = "adamw"
    rollouts: Rollouts | None = None
    beside: TeacherFootprint = TeacherFootprint()
    shards: int = 1
    free: int | None = None


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
    """The memory of a stage, and the free bytes of its device, of which a margin is reserved."""

    memory: Memory
    free: int
    gpu: bool = False

    @property
    def fits(self) -> bool:
        """Whether the stage is expected to fit."""
        return self.memory.peak <= usable(self.free, self.gpu)

    def __str__(self) -> str:
        return f"about {size(self.memory.peak)} at the peak, {size(self.free)} free"


def usable(free: int, gpu: bool) -> int:
    """Return the free bytes minus the reserve."""
    return round(free * (1 - (MARGIN_GPU if gpu else MARGIN_CPU)))


@dataclass(frozen=True)
class Kept:
    """Bytes held for some parameters: weights, gradients, and the optimizer's state."""

    weights: int
    gradients: int
    adamw: int
    muon: int

    @classmethod
    def of(cls, parameters: Iterable[tuple[str, torch.nn.Parameter]]) -> Kept:
        """Count bytes: AdamW keeps two moments in the parameter's type, Muon one for matrices inside the layers."""
        found = list(parameters)
        trained = [(name, p) for name, p in found if p.requires_grad]
        gradients = _bytes(p for _, p in trained)
        matrices = _bytes(p for name, p in trained if p.ndim == 2 and inside_layers(name))
        return cls(_bytes(p for _, p in found), gradients, 2 * gradients, 2 * gradients - matrices)

    def optimizer(self, name: str) -> int:
        """Return the bytes of an optimizer's state."""
        return self.muon if name == "muon" else self.adamw


@dataclass(frozen=True)
class Parameters:
    """Parameter counts of a model, and the bytes held for those inside its layers and for the others.

    ``multiplied`` counts the parameters in matrix products: all but an untied input embedding.
    """

    total: int
    trainable: int
    multiplied: int
    layers: int
    inside: Kept
    outside: Kept


def parameters_of(trial: Trial) -> Parameters:
    """Count the parameters of the model built without weights; tied heads are counted once."""
    return _count(trial.alone)


def _frozen_bytes(trial: Trial) -> int:
    return _bytes(_frozen(trial.config, trial.precision).model.parameters())


@functools.lru_cache(maxsize=8)
def _frozen(config: str, precision: str) -> Loaded:
    return Trial(config, "frozen", precision, gpu=False).frozen()


@functools.lru_cache(maxsize=64)
def _count(trial: Trial) -> Parameters:
    loaded = trial.student()
    named = list(loaded.model.named_parameters())
    total = sum(p.numel() for _, p in named)
    embedding = loaded.core.get_input_embeddings().weight
    tied = embedding is loaded.head.weight_VD or embedding is loaded.core.get_output_embeddings().weight
    return Parameters(
        total=total,
        trainable=sum(p.numel() for p in loaded.trainable().values()),
        multiplied=total if tied else total - embedding.numel(),
        layers=loaded.core.config.get_text_config().num_hidden_layers,
        inside=Kept.of((name, p) for name, p in named if inside_layers(name)),
        outside=Kept.of((name, p) for name, p in named if not inside_layers(name)),
    )


def network_of(trial: Trial) -> Network:
    """Return the properties of the model that determine its speed."""
    counts = parameters_of(trial)
    return Network(counts.multiplied, counts.layers, _frozen_bytes(trial))


def _bytes(tensors: Iterable[torch.Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def midtraining(
    config: MidtrainConfig,
    model: str,
    tuning: str,
    gpu: bool,
    *,
    beside: TeacherFootprint,
    row_length: int | None = None,
) -> Plan:
    """Return a mid-training's memory plan. ``model`` is its configuration as JSON, ``tuning`` full or lora."""
    length = row_length or config.row_length
    trial = _trial(config, model, tuning, gpu, beside)
    rows = Rows(_rows(config, length, gpu), length, length, packed=True)
    return Plan(trial, rows, config.optimizer, beside=beside)


def distilling(
    config: DistillConfig, model: str, tuning: str, gpu: bool, *, beside: TeacherFootprint, prompt: int = USUAL_PROMPT
) -> Plan:
    """Return a distillation's memory plan. ``prompt`` is the usual length of a prompt in tokens."""
    trial = _trial(config, model, tuning, gpu, beside, itself=config.teaching.kind == "self")
    length = prompt + config.max_new_tokens
    rows = Rows(_rows(config, length, gpu), length, config.max_new_tokens)
    most = config.prompts_per_step * config.samples_per_prompt
    if config.alpha == 0 or config.served:  # nothing is sampled in this process
        return Plan(trial, rows, config.optimizer, beside=beside)
    rollouts = Rollouts(
        config.rollout_tokens,
        config.max_new_tokens,
        most,
        prompt,
        vllm=config.engine == "vllm",
        sleeps=config.engine_sleep,
        cache=None if config.engine_memory is None else int(config.engine_memory * GIB),
    )
    return Plan(trial, rows, config.optimizer, rollouts, beside)


def _rows(config: ModelConfig, length: int, gpu: bool) -> int:
    return max(1, (config.token_budget if gpu else min(config.token_budget, CPU_TOKENS)) // length)


def _trial(
    config: TrainingConfig, model: str, tuning: str, gpu: bool, beside: TeacherFootprint, *, itself: bool = False
) -> Trial:
    if config.precision == "auto":  # a GPU that is not here is assumed to support bfloat16
        precision = "bfloat16" if gpu else str(pick_precision("auto", torch.device("cpu"))).removeprefix("torch.")
    else:
        precision = config.precision
    apart = beside.apart(tuning)
    own = itself or beside.count > apart
    return Trial(model, tuning, precision, gpu, config.gradient_checkpointing, config.lora_rank, apart, own)


def memory_of(plan: Plan) -> Memory:
    """Return the memory of a stage's process by part. Raises ModelError if the model cannot be built or run."""
    trial, rollouts = plan.trial, plan.rollouts
    counts, frozen = parameters_of(trial), _frozen_bytes(trial)
    inside, outside = counts.inside, counts.outside
    held = {
        "weights": outside.weights + inside.weights // plan.shards,
        "optimizer": outside.optimizer(plan.optimizer) + inside.optimizer(plan.optimizer) // plan.shards,
        "teachers": _teachers(plan, counts, frozen),
    }
    if trial.gpu:
        held["CUDA"] = CUDA_CONTEXT
    training = {"gradients": outside.gradients + inside.gradients // plan.shards}
    training |= _parts(training_memory(trial, plan.rows))
    if plan.shards > 1:  # the current layer and the prefetched next one
        training["gathered"] = 2 * inside.weights // counts.layers
    sampling: dict[str, int] = {}
    if rollouts is not None and rollouts.vllm:
        before = sum(
            bytes_ for name, bytes_ in held.items() if name != "optimizer"
        )  # it is allocated in the first step
        free = None if plan.free is None else max(0, plan.free - before)
        cache = rollouts.cache or cache_bytes(_frozen(trial.config, trial.precision), rollouts.budget, free)
        (sampling if rollouts.sleeps else held)["vLLM"] = device_bytes(frozen, cache)
    elif rollouts is not None:
        sampling = _parts(rollout_memory(trial, rollouts.at_once, rollouts.prompt, rollouts.new_tokens))
        copied = trial.tuning == "full" and trial.precision != "float32"
        if plan.shards > 1:
            sampling["sampling copy"] = frozen
        elif copied:
            held["sampling copy"] = frozen
    return Memory(held, training, sampling)


def _teachers(plan: Plan, counts: Parameters, frozen: int) -> int:
    """Return the bytes of the teachers' weights; a LoRA student's base is shared, unless it is sharded."""
    beside = plan.beside
    whole = counts.inside.weights + counts.outside.weights  # in the student's precision, with its adapter, if any
    if plan.trial.tuning != "lora":
        return (beside.count - beside.copies) * frozen + beside.copies * whole
    adapter = counts.inside.gradients + counts.outside.gradients if plan.shards == 1 else whole
    return (beside.adapters + beside.copies) * adapter + beside.others * whole


def _parts(taken: Taken) -> dict[str, int]:
    named = {
        "activations": taken.activations,
        "logits": taken.logits,
        "casts": taken.passing,
        "KV cache": taken.cache,
    }
    return {name: round(size) for name, size in named.items() if size}
