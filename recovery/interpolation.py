"""The straight line between the weights of two checkpoints (WiSE-FT, arXiv 2109.01903)."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from recovery.errors import UsageError
from recovery.loading import Loaded


@dataclass
class Line:
    """A student's weights moved along (1 - alpha) origin + alpha student; at 0 and 1 the ends, bit by bit.

    ``student`` is loaded to be trained: its trainable weights are kept as they were and then overwritten. Those of
    ``origin``, loaded frozen in float32, may be left out where the student is LoRA on that very model: its adapter is
    then scaled, which is the same line.

    Raises UsageError where the two do not have the same weights.
    """

    student: Loaded
    origin: Loaded | None
    _ends: dict[str, tuple[torch.Tensor | None, torch.Tensor]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        trained = {name: p.detach().clone() for name, p in self.student.trainable().items()}
        if self.origin is None:
            # B alone is scaled: the product of both matrices is what is added to the model's weights.
            scaled = (name for name in trained if "lora_B" in name or "lora_embedding_B" in name)
            self._ends = {name: (None, trained[name]) for name in scaled}
            return
        origin = {name: p.detach() for name, p in self.origin.model.named_parameters()}
        differ = [n for n in trained.keys() | origin.keys() if n not in trained or n not in origin]
        differ += [n for n in trained.keys() & origin.keys() if trained[n].shape != origin[n].shape]
        if differ:
            raise UsageError(
                f"{self.student.path} and {self.origin.path} do not have the same weights ({min(differ)}): no line "
                f"leads from one to the other"
            )
        self._ends = {name: (origin[name], p) for name, p in trained.items()}

    def move(self, alpha: float) -> None:
        """Put the student at a place of the line."""
        held = self.student.trainable()
        with torch.no_grad():
            for name, (start, end) in self._ends.items():
                start = torch.zeros_like(end) if start is None else start.to(end)
                # lerp is exact at both ends, the sum of two products is not.
                held[name].copy_(torch.lerp(start, end, alpha))
