"""Distance of a model's weights from their values at the start of training.

    length     ‖θ − θ₀‖, the Euclidean norm over all weights: the norm of the whole update
    relative   ‖θ − θ₀‖ / ‖θ₀‖
    share      fraction of the weights that changed by more than 0.1% of their value (full fine-tuning only)

The old weights are read from their files one tensor at a time, so that only one tensor is held twice.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from peft.utils.save_and_load import load_peft_weights
from safetensors import safe_open
from torch import Tensor

from recovery.models import quantization
from recovery.models.loaded import Loaded

_MOVED = 1e-3
# Weights compared at once: a sum in float64 converts its whole argument, eight bytes per weight.
_PIECE = 1 << 20


@dataclass(frozen=True)
class WeightDelta:
    """The size of an update; see the module docstring."""

    length: float
    relative: float
    share: float | None = None

    def to_json(self) -> dict[str, float | None]:
        """Return the values by name."""
        return {"length": self.length, "relative": self.relative, "share": self.share}


def weight_delta(loaded: Loaded, weights: Path, adapter: Path | None = None) -> WeightDelta | None:
    """Return the distance of a trained model from its initial ``weights`` (and ``adapter``).

    None if the tensor names in the files differ from the model's, or its frozen weights are quantised otherwise than in
    4 bits.
    """
    return _of_adapter(loaded, adapter) if loaded.tuning == "lora" else _of_weights(loaded, weights)


def _of_weights(loaded: Loaded, weights: Path) -> WeightDelta | None:
    now = loaded.weights()
    moved = before = 0.0
    changed = count = 0
    for name, old in _tensors(weights):
        new = now.pop(name, None)
        if new is None or new.shape != old.shape:
            continue
        count += old.numel()
        for was, now_is in zip(_pieces(old), _pieces(new), strict=True):
            was = was.to(new.device, torch.float32)
            difference = (now_is.float() - was).abs_()
            moved += _squares(difference)
            before += _squares(was)
            changed += int((difference > _MOVED * was.abs()).sum())
    if now or not before:
        return None
    return WeightDelta(math.sqrt(moved), math.sqrt(moved / before), changed / count)


def _pieces(tensor: Tensor) -> Sequence[Tensor]:
    """Split a tensor into small parts, so that intermediate results of one are freed before the next."""
    return tensor.reshape(-1).split(_PIECE)


def _squares(tensor: Tensor) -> float:
    return float(tensor.square().sum(dtype=torch.float64))


def _tensors(folder: Path) -> Iterator[tuple[str, Tensor]]:
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118  (not a mapping)
                yield name, file.get_tensor(name)


def _of_adapter(loaded: Loaded, adapter: Path | None) -> WeightDelta | None:
    """Return the change of s·B·A over all adapted matrices; s·B·A of a new adapter is 0 at first."""
    old = _old_adapter(adapter) if adapter is not None else {}
    moved, weights = 0.0, loaded.weights()
    for name, module in loaded.model.named_modules():
        if not hasattr(module, "lora_A") or "default" not in module.lora_A:
            continue
        b, a = (weights[f"{name}.{part}.default.weight"] for part in ("lora_B", "lora_A"))
        experts = getattr(module, "num_experts", 1)
        scale = module.scaling["default"]  # is not trained
        parts = [_matrices(scale * b, a, experts)]
        if name in old:
            was_b, was_a = (tensor.to(b.device) for tensor in old[name])
            parts.append(_matrices(-scale * was_b, was_a, experts))
        moved += sum(_product_squares(one) for one in zip(*parts, strict=True))
    before = 0.0
    for name, parameter in loaded.model.named_parameters():
        if "lora_" not in name:
            values = weights[name] if parameter.is_floating_point() else quantization.values_of(parameter)
            if values is None:
                return None
            before += sum(_squares(piece.float()) for piece in _pieces(values))
    return WeightDelta(math.sqrt(moved), math.sqrt(moved / before)) if before else None


def _matrices(b: Tensor, a: Tensor, experts: int) -> list[tuple[Tensor, Tensor]]:
    """Return the factors of each adapted matrix: peft stacks those of all experts, by expert in A and by rank in B."""
    tall = a.reshape(experts, -1, a.shape[-1])
    wide = b.reshape(b.shape[0], -1, experts)
    return [(wide[..., number], tall[number]) for number in range(experts)]


def _product_squares(parts: Sequence[tuple[Tensor, Tensor]]) -> float:
    """Return ‖Σ B A‖² from products of the low-rank matrices: tr(MᵀM NNᵀ) with M = [B, B₀, ...], N = [A; A₀; ...]."""
    wide = torch.cat([b.float() for b, _ in parts], dim=1)
    tall = torch.cat([a.float() for _, a in parts], dim=0)
    return max(0.0, float(((wide.T @ wide) * (tall @ tall.T)).sum(dtype=torch.float64)))


def _old_adapter(folder: Path) -> Mapping[str, tuple[Tensor, Tensor]]:
    """Return (B₀, A₀) of each layer of a saved adapter, by the layer's name in the model."""
    tensors = load_peft_weights(str(folder), device="cpu")
    names = [key.removesuffix(".lora_A.weight") for key in tensors if key.endswith(".lora_A.weight")]
    return {name: (tensors[f"{name}.lora_B.weight"], tensors[f"{name}.lora_A.weight"]) for name in names}
