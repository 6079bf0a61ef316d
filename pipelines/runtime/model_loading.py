"""Loading one model for a stage: a student for training, a frozen model, a teacher beside a student.

A teacher is the student's own base, a frozen copy, or the student itself.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from pipelines.runtime.engines import engine_of
from pipelines.runtime.session import Session
from recovery import distributed
from recovery.config import DistillConfig, ModelConfig, TrainingConfig
from recovery.errors import UsageError
from recovery.models.adapters import LoraSettings, only_lora
from recovery.models.hardware import release_memory
from recovery.models.interpolation import Interpolation
from recovery.models.loaded import Loaded
from recovery.models.loading import load_model, shard_layers
from recovery.rng import RandomStream, derive_seed
from recovery.rollouts.engine import Engine
from recovery.teachers.teacher import LocalTeacher
from recovery.workspace import Checkpoint


def load_student(student: Checkpoint, tuning: str, config: TrainingConfig, sharing: Loaded | None = None) -> Loaded:
    """Load the student for training. A new adapter is initialised from the seed, so that runs are reproducible.

    An adapter can share the base weights of ``sharing``, a model that is already loaded.
    """
    torch.manual_seed(derive_seed(config.seed, 0, RandomStream.ADAPTER))
    return load_model(
        student.weights,
        tuning=tuning,  # type: ignore[arg-type]  # resolved by choose_tuning
        adapter=student.adapter,
        lora=LoraSettings(config.lora_rank, config.lora_alpha),
        embeddings=config.trains_embeddings,
        gradient_checkpointing=config.gradient_checkpointing,
        shard=config.shard != "none",
        offload=config.offload,
        compiled=config.compile,
        beside=sharing,
        quantize=config.quantize,
        **_place(config),
    )


def load_frozen(
    checkpoint: Checkpoint,
    config: ModelConfig,
    sharing: Loaded | None = None,
    *,
    shard: bool = False,
    offload: bool = False,
) -> Loaded:
    """Load a checkpoint that is not trained, perhaps in shards (:func:`load_model`). An adapter can share the base
    weights of the loaded model ``sharing``.
    """
    return load_model(
        checkpoint.weights,
        tuning="frozen",
        adapter=checkpoint.adapter,
        beside=sharing,
        shard=shard,
        offload=offload,
        **_place(config),
    )


def teacher_of(
    student: Checkpoint, loaded: Loaded, teacher: Checkpoint, config: TrainingConfig, held: Loaded | None = None
) -> LocalTeacher:
    """Load a teacher: the student's weights with the adapter off if they are the same model, else a frozen copy.

    If the teacher is an adapter on the student's base, only the adapter is loaded; ``held`` is the teacher's model if
    it is in memory already. The base weights of a quantised student are not shared, unless the configuration says so.
    With ``--shard full`` and several processes the layers of a copy are sharded, unless it is sampled from.
    """
    shared = loaded.tuning == "lora" and not config.clean_teacher and share_base_weights(student, teacher)
    if shared and teacher.adapter is None:
        return LocalTeacher(loaded, "base")
    sharded = config.shard == "full" and distributed.size() > 1 and not getattr(config, "continuation", 0)
    if held is not None:
        return LocalTeacher(shard_layers(held, config.offload) if sharded else held)
    sharing = loaded if shared and not loaded.sharded else None
    return LocalTeacher(load_frozen(teacher, config, sharing, shard=sharded, offload=config.offload))


def self_teacher(student: Checkpoint, loaded: Loaded, config: DistillConfig) -> LocalTeacher:
    """Return the student as its own teacher: its current weights, or a copy that stays fixed or is a moving average."""
    if config.teaching.kind == "self":
        return LocalTeacher(loaded, "student")
    unsharded = config if config.shard == "full" else replace(config, shard="none", offload=False, gather=True)
    shares = loaded.tuning == "lora" and not loaded.sharded and share_base_weights(student, student)
    if loaded.sharded and config.teaching.kind == "ema":
        raise UsageError("--teacher ema averages unsharded weights: use --shard none")
    copy = load_student(student, loaded.tuning, unsharded, sharing=loaded if shares else None)
    return LocalTeacher(copy, decay=config.ema_decay if config.teaching.kind == "ema" else 0.0)


@dataclass
class FrozenModel:
    """The frozen model that a stage holds before its training: loaded when another is asked for, one at a time."""

    session: Session
    config: ModelConfig
    _held: tuple[Checkpoint, Loaded] | None = None

    def of(self, checkpoint: Checkpoint) -> Loaded:
        """Return the model of a checkpoint, whose files are verified before they are read."""
        if self._held is None or self._held[0] != checkpoint:
            self.release()
            with self.session.at_once(f"loading {checkpoint.name}"):
                self._held = checkpoint, load_frozen(self.session.verified(checkpoint), self.config)
        return self._held[1]

    @contextlib.contextmanager
    def sampling(self, checkpoint: Checkpoint) -> Iterator[tuple[Loaded, Engine]]:
        """Yield the model of a checkpoint and an engine that samples from it."""
        loaded = self.of(checkpoint)
        with engine_of(loaded, self.config) as engine:
            yield loaded, engine

    def release(self, wanted: Collection[Checkpoint] = ()) -> dict[Checkpoint, Loaded]:
        """Release the model; return it instead if it is one of those ``wanted``."""
        held, self._held = self._held, None
        if held is not None and held[0] in wanted:
            return dict([held])
        if held is not None:
            del held
            release_memory()
        return {}


def share_base_weights(one: Checkpoint, other: Checkpoint) -> bool:
    """Whether both can share their base weights in memory while one is trained by LoRA."""
    return one.weights.resolve() == other.weights.resolve() and only_lora(one.adapter) and only_lora(other.adapter)


def _place(config: ModelConfig) -> dict[str, Any]:
    return {"precision": config.precision, "device": config.device, "template_args": config.template_args}


# What lies between the weights of two checkpoints: where `recover interpolate` chooses, and where --blend starts.


def interpolation_between(
    loaded: Loaded, student: Checkpoint, origin: Checkpoint, config: ModelConfig
) -> Interpolation:
    """Return the interpolation from ``origin`` to the student, ``loaded`` for training; see
    :func:`check_interpolatable`.
    """
    if student.tuning == "lora" and origin.tuning != "lora":
        return Interpolation(loaded, None)
    shared = student.tuning == "lora" and share_base_weights(student, origin)
    # Of two adapters nothing but what they train is used: the base is not loaded again, or not on the GPU.
    other = load_model(
        origin.weights,
        adapter=origin.adapter,
        precision="float32",
        device=config.device if shared or student.tuning != "lora" else "cpu",
        beside=loaded if shared else None,
    )
    return Interpolation(loaded, other)


def check_interpolatable(student: Checkpoint, origin: Checkpoint, advice: str) -> None:
    """Raise UsageError, with ``advice``, if the two cannot be mixed: an adapter needs its base, or another adapter on
    it.
    """
    if "lora" in (student.tuning, origin.tuning) and (
        student.tuning != "lora" or student.weights.resolve() != origin.weights.resolve()
    ):
        raise UsageError(
            f"{student.name} and {origin.name} are neither one model's weights nor adapters on one base: {advice}"
        )
