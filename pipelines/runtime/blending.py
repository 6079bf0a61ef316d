"""What lies between the weights of two checkpoints: where `recover interpolate` chooses, and where --blend starts."""

from __future__ import annotations

from pipelines.runtime.model_loading import share_base_weights
from recovery.config import ModelConfig
from recovery.errors import UsageError
from recovery.models.interpolation import Interpolation
from recovery.models.loaded import Loaded
from recovery.models.loading import load_model
from recovery.workspace import Checkpoint


def interpolation_between(
    loaded: Loaded, student: Checkpoint, origin: Checkpoint, config: ModelConfig
) -> Interpolation:
    """Return the interpolation from ``origin`` to the student, which is ``loaded`` for training. Its ends are those of
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
    """Raise UsageError, with ``advice``, if no weights lie between the two: an adapter needs its own base as the
    origin, or another adapter on it.
    """
    if "lora" in (student.tuning, origin.tuning) and (
        student.tuning != "lora" or student.weights.resolve() != origin.weights.resolve()
    ):
        raise UsageError(
            f"{student.name} and {origin.name} are neither one model's weights nor adapters on one base: {advice}"
        )
