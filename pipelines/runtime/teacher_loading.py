"""Loading teachers beside a student: its own base, a frozen copy, or the student itself."""

from __future__ import annotations

from dataclasses import replace

from pipelines.runtime.model_loading import load_frozen, load_student
from recovery import distributed
from recovery.config import DistillConfig, TrainingConfig
from recovery.errors import UsageError
from recovery.models.adapters import share_base_weights
from recovery.models.loaded import Loaded
from recovery.models.loading import shard_layers
from recovery.teachers.teacher import LocalTeacher
from recovery.workspace import Checkpoint


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
    whole = config if config.shard == "full" else replace(config, shard="none", offload=False, gather=True)
    shares = loaded.tuning == "lora" and not loaded.sharded and share_base_weights(student, student)
    if loaded.sharded and config.teaching.kind == "ema":
        raise UsageError("--teacher ema averages unsharded weights: use --shard none")
    copy = load_student(student, loaded.tuning, whole, sharing=loaded if shares else None)
    return LocalTeacher(copy, decay=config.ema_decay if config.teaching.kind == "ema" else 0.0)
