"""Weights of two checkpoints: interpolation between them (WiSE-FT, arXiv 2109.01903), and how far they moved."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from peft.utils.save_and_load import load_peft_weights
from torch import Tensor

from recovery.errors import UsageError
from recovery.models import quantization
from recovery.models.checkpoints import StoredWeights
from recovery.models.loaded import Loaded

# The names of LoRA's matrices, of layers and of embeddings.
_A, _B = re.compile(r"lora_(embedding_)?A\."), re.compile(r"lora_(embedding_)?B\.")


@dataclass
class Interpolation:
    """Sets a student's weights to (1 - alpha) origin + alpha student; exact at 0 and 1.

    ``student`` is loaded for training: its weights are copied and then overwritten, of an adapter those that are
    trained, else all. ``origin``, loaded frozen in float32, is a model or an adapter as the student is; of adapters
    only what they train is used, so the two may share a base. It may be None if the student is LoRA on that model: its
    adapter is then scaled, which is equivalent.

    Of two adapters the products B A are interpolated, not A and B separately. The result has rank 2r; the adapter
    becomes the nearest matrix of rank r (Eckart and Young, 1936), since otherwise each cycle would double the rank.
    Little is lost if one adapter was trained from the other, at most half of the squares otherwise. An adapter's other
    weights, such as biases, are interpolated one by one.

    Raise UsageError if the two do not have the same weights, or are adapters with other scales, or if the origin is the
    model below an adapter that trains more than the matrices of LoRA.
    """

    student: Loaded
    origin: Loaded | None
    _ends: dict[str, tuple[torch.Tensor | None, torch.Tensor]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        trained = {name: p.detach().clone() for name, p in self._weights().items()}
        if self.origin is None:
            # Only B is scaled: the product of both matrices is added to the model's weights.
            scaled = [name for name in trained if _B.search(name)]
            if more := [name for name in trained.keys() - scaled if not _A.search(name)]:
                raise UsageError(
                    f"{self.student.path} trains more than LoRA's matrices ({min(more)}), so scaling its adapter does "
                    f"not lead to the model below it: merge it first (recover export --merge)"
                )
            self._ends = {name: (None, trained[name]) for name in scaled}
            return
        origin = {name: p.detach() for name, p in self.origin.model.named_parameters()}
        if ranked := [name for name in trained if "lora_E" in name]:
            raise UsageError(
                f"{self.student.path} is an adapter of AdaLoRA ({min(ranked)}): merge it and the other one first "
                f"(recover export --merge)"
            )
        needed = trained.keys() if self.student.tuning == "lora" else trained.keys() | origin.keys()
        differ = [n for n in needed if n not in trained or n not in origin]
        differ += [n for n in trained.keys() & origin.keys() if trained[n].shape != origin[n].shape]
        if differ:
            raise UsageError(
                f"{self.student.path} and {self.origin.path} do not have the same weights ({min(differ)}): they cannot "
                f"be interpolated"
            )
        if _scales(self.student) != _scales(self.origin):
            raise UsageError(
                f"the adapters of {self.student.path} and {self.origin.path} are scaled differently (lora_alpha): they "
                f"cannot be interpolated"
            )
        self._ends = {name: (origin[name], p) for name, p in trained.items()}

    def _weights(self) -> dict[str, torch.nn.Parameter]:
        return (
            self.student.trainable() if self.student.tuning == "lora" else dict(self.student.model.named_parameters())
        )

    def move(self, alpha: float) -> None:
        """Set the student's weights to those of ``alpha``."""
        params = self._weights()
        with torch.no_grad():
            for name, (start, end) in self._ends.items():
                start = torch.zeros_like(end) if start is None else start.to(end)
                # lerp is exact at both ends, a sum of two products is not.
                params[name].copy_(torch.lerp(start, end, alpha))
            if self.origin is not None and 0 < alpha < 1:
                for name in self._ends:
                    if _A.search(name):
                        self._move_product(params, name, alpha)

    def _move_product(self, params: Mapping[str, torch.nn.Parameter], name: str, alpha: float) -> None:
        """Set an adapted layer's matrices, of which ``name`` is A, to those of ``alpha``."""
        other = _A.sub(r"lora_\1B.", name)
        (a0, a1), (b0, b1) = self._ends[name], self._ends[other]
        assert a0 is not None and b0 is not None  # there is an origin
        a0, b0 = a0.to(a1), b0.to(b1)
        if torch.equal(a0, a1) or torch.equal(b0, b1):
            return  # only one factor differs, so interpolating it was exact
        layer = self.student.model.get_submodule(name.partition(".lora_")[0])
        a, b = _nearest_product((a0, a1), (b0, b1), alpha, getattr(layer, "num_experts", 1))
        params[name].copy_(a)
        params[other].copy_(b)


def _nearest_product(
    a: tuple[torch.Tensor, torch.Tensor], b: tuple[torch.Tensor, torch.Tensor], alpha: float, experts: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the A [R, I] and B [O, R] whose product is nearest to (1 - alpha) b[0] a[0] + alpha b[1] a[1].

    Each of E stacked experts has its own product, in peft's layout: A is [E R, I], B is [O, R E]. The rows of A get
    equal norms, as at the start of training, with the mean square that training gave them.
    """
    rows_ERI = [matrix.reshape(experts, len(matrix) // experts, -1) for matrix in a]
    columns_EOR = [matrix.reshape(len(matrix), -1, experts).permute(2, 0, 1) for matrix in b]
    rank = rows_ERI[0].shape[1]
    both = torch.cat(rows_ERI, 1)
    q_left, r_left = torch.linalg.qr(torch.cat([(1 - alpha) * columns_EOR[0], alpha * columns_EOR[1]], 2))
    q_right, r_right = torch.linalg.qr(both.mT)
    u, s, vh = torch.linalg.svd(r_left @ r_right.mT, full_matrices=False)
    size = (both.norm(dim=(1, 2), keepdim=True) / (2 * rank) ** 0.5).clamp_min(torch.finfo(both.dtype).tiny)
    kept = min(rank, s.shape[-1])  # a layer may be smaller than the rank
    a_ERI, b_EOR = torch.lerp(rows_ERI[0], rows_ERI[1], alpha), torch.zeros_like(columns_EOR[0])
    a_ERI[:, :kept] = size * vh[:, :kept] @ q_right.mT
    b_EOR[:, :, :kept] = q_left @ (u[:, :, :kept] * s[:, None, :kept]) / size
    return a_ERI.reshape(a[0].shape), b_EOR.permute(1, 2, 0).reshape(b[0].shape)


def _scales(loaded: Loaded) -> dict[str, float]:
    """Return the factor of each adapted layer's product of matrices; nothing for a model without an adapter."""
    scales = {name: getattr(module, "scaling", None) for name, module in loaded.model.named_modules()}
    return {name: next(iter(of.values())) for name, of in scales.items() if isinstance(of, dict) and of}


# Distance of a model's weights from their values at the start of training.
#
# - length: ‖θ − θ₀‖, the Euclidean norm of the update over all weights.
# - relative: ‖θ − θ₀‖ / ‖θ₀‖.
# - share: fraction of the weights that changed by more than 0.1% of their value (full fine-tuning only).
#
# The old weights are read from their files one tensor at a time, so that only one tensor is held twice.

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
    return _adapter_delta(loaded, adapter) if loaded.tuning == "lora" else _full_delta(loaded, weights)


def _full_delta(loaded: Loaded, weights: Path) -> WeightDelta | None:
    unmatched = loaded.weights()
    moved = initial = 0.0
    changed = count = 0
    for name, old in StoredWeights(weights).items():
        new = unmatched.pop(name, None)
        if new is None or new.shape != old.shape:
            continue
        count += old.numel()
        for before, after in zip(_pieces(old), _pieces(new), strict=True):
            before = before.to(new.device, torch.float32)
            difference = (after.float() - before).abs_()
            moved += _squares(difference)
            initial += _squares(before)
            changed += int((difference > _MOVED * before.abs()).sum())
    if unmatched or not initial:
        return None
    return WeightDelta(math.sqrt(moved), math.sqrt(moved / initial), changed / count)


def _pieces(tensor: Tensor) -> Sequence[Tensor]:
    """Split a tensor into small parts, so that intermediate results of one are freed before the next."""
    return tensor.reshape(-1).split(_PIECE)


def _squares(tensor: Tensor) -> float:
    return float(tensor.square().sum(dtype=torch.float64))


def _adapter_delta(loaded: Loaded, adapter: Path | None) -> WeightDelta | None:
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
