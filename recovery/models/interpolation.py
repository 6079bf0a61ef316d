"""Linear interpolation between the weights of two checkpoints (WiSE-FT, arXiv 2109.01903)."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from recovery.errors import UsageError
from recovery.models.loaded import Loaded


@dataclass
class Interpolation:
    """Sets a student's weights to (1 - alpha) origin + alpha student; exact at 0 and 1.

    ``student`` is loaded for training: its weights are copied and then overwritten, of an adapter those that are
    trained, else all. ``origin``, loaded frozen in float32, is a model or an adapter as the student is. It may be None
    if the student is LoRA on that model: its adapter is then scaled, which is equivalent.

    Of two adapters both matrices are interpolated, A and B, and their product is not the interpolation of the products:
    it differs by alpha (1 - alpha) times the product of the two matrices' changes, which is small for an adapter that
    was trained from the other, and not for two with beginnings of their own.

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
            scaled = [name for name in trained if "lora_B." in name or "lora_embedding_B." in name]
            if more := [n for n in trained.keys() - scaled if "lora_A." not in n and "lora_embedding_A." not in n]:
                raise UsageError(
                    f"{self.student.path} trains more than LoRA's matrices ({min(more)}), so scaling its adapter does "
                    f"not lead to the model below it: merge it first (recover export --merge)"
                )
            self._ends = {name: (None, trained[name]) for name in scaled}
            return
        origin = {name: p.detach() for name, p in self.origin.model.named_parameters()}
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


def _scales(loaded: Loaded) -> dict[str, float]:
    """Return the factor of each adapted layer's product of matrices; nothing for a model without an adapter."""
    scales = {name: getattr(module, "scaling", None) for name, module in loaded.model.named_modules()}
    return {name: next(iter(of.values())) for name, of in scales.items() if isinstance(of, dict) and of}
