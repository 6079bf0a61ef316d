"""How far training moved the weights of a model from those it began with.

    length     ‖θ − θ₀‖, the Euclidean norm over all weights: the norm of the whole update
    relative   ‖θ − θ₀‖ / ‖θ₀‖
    share      of the weights, those that moved by more than a thousandth of what they were (full fine-tuning only)

The old weights are read from their files one tensor at a time, so that nothing but the largest of them is held twice.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from peft.utils.save_and_load import load_peft_weights
from safetensors import safe_open
from torch import Tensor

from recovery.loading import Loaded

_MOVED = 1e-3
# Weights compared at once: a sum in float64 holds its whole argument in it, eight bytes a weight.
_PIECE = 1 << 20


@dataclass(frozen=True)
class Movement:
    """An update's length; see the module."""

    length: float
    relative: float
    share: float | None = None

    def to_json(self) -> dict[str, float | None]:
        """By name."""
        return {"length": self.length, "relative": self.relative, "share": self.share}


def movement(loaded: Loaded, weights: Path, adapter: Path | None = None) -> Movement | None:
    """How far a trained model is from the ``weights`` (and the ``adapter``) its training began with.

    None where the files name their tensors otherwise than the model does.
    """
    return _of_adapter(loaded, adapter) if loaded.tuning == "lora" else _of_weights(loaded, weights)


def _of_weights(loaded: Loaded, weights: Path) -> Movement | None:
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
    return Movement(math.sqrt(moved), math.sqrt(moved / before), changed / count)


def _pieces(tensor: Tensor) -> Sequence[Tensor]:
    """A tensor in parts that are small beside it: what is made of each is let go before the next."""
    return tensor.reshape(-1).split(_PIECE)


def _squares(tensor: Tensor) -> float:
    return float(tensor.square().sum(dtype=torch.float64))


def _tensors(folder: Path) -> Iterator[tuple[str, Tensor]]:
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118  (not a mapping)
                yield name, file.get_tensor(name)


def _of_adapter(loaded: Loaded, adapter: Path | None) -> Movement | None:
    """The change of s·B·A over all adapted layers; it is 0 at first where the adapter is new.

    ‖s B A − s₀ B₀ A₀‖² comes from products of the thin matrices: tr(MᵀM NNᵀ) with M = [sB, −s₀B₀], N = [A; A₀].
    """
    old = _old_adapter(adapter) if adapter is not None else {}
    moved, weights = 0.0, loaded.weights()
    for name, module in loaded.model.named_modules():
        if not hasattr(module, "lora_A") or "default" not in module.lora_A:
            continue
        b, a = (weights[f"{name}.{part}.default.weight"] for part in ("lora_B", "lora_A"))
        parts = [(b * module.scaling["default"], a)]
        if name in old:
            parts.append((old[name][0].to(parts[0][0].device), old[name][1].to(parts[0][1].device)))
        wide = torch.cat([b.float() for b, _ in parts], dim=1)
        tall = torch.cat([a.float() for _, a in parts], dim=0)
        moved += max(0.0, float(((wide.T @ wide) * (tall @ tall.T)).sum(dtype=torch.float64)))
    frozen = (tensor for name, tensor in weights.items() if "lora_" not in name)
    before = sum(_squares(piece.float()) for tensor in frozen for piece in _pieces(tensor))
    return Movement(math.sqrt(moved), math.sqrt(moved / before)) if before else None


def _old_adapter(folder: Path) -> Mapping[str, tuple[Tensor, Tensor]]:
    """(−s₀B₀, A₀) of each layer of a saved adapter, by the layer's name in the model."""
    config = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
    scale = config["lora_alpha"] / (math.sqrt(config["r"]) if config.get("use_rslora") else config["r"])
    tensors = load_peft_weights(str(folder), device="cpu")
    names = [key.removesuffix(".lora_A.weight") for key in tensors if key.endswith(".lora_A.weight")]
    return {name: (-scale * tensors[f"{name}.lora_B.weight"], tensors[f"{name}.lora_A.weight"]) for name in names}
