"""Declaration of a divergence: name, formula, settings, and the function that computes it. Does not import torch.

One position has the student's distribution p over the vocabulary and the teacher's, q. The gradient of any L(p) with
respect to the student's logits is p * (g - sum_v p_v g_v) with g = dL/dp, so that value and gradient are computed in
one pass and nothing is stored for a backward pass.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from recovery.errors import UsageError

if TYPE_CHECKING:
    from torch import Tensor

# Beyond a log-ratio of 60 the smaller probability is below 1e-26 of the larger: it no longer affects the value or the
# gradient of a divergence to a mixture, while its exponential would soon overflow.
LOG_RATIO_LIMIT = 60.0


@dataclass(frozen=True)
class Options:
    """Settings of a divergence: ``beta``, its mixture; ``entry_clip``, the maximum contribution of one entry (nats);
    ``floor``, the lower bound of log-probabilities. None is off.
    """

    beta: float = 0.5
    entry_clip: float | None = None
    floor: float | None = None


@dataclass(frozen=True)
class Divergence:
    """A divergence between student and teacher over the whole vocabulary, a sum over its entries.

    Its one free number is ``beta``; another needs a field here in :class:`Options`, in LossConfig and in DistillConfig.

    Attributes:
        name: the value of --divergence, and the name of the metric.
        title: what the figure on the live page is called.
        formula: the value at one position, for the documentation.
        source: where it is from.
        compute_: called with p_NV, log p_NV, log q_NV and the options; returns the value per position in nats, turns
            log p into the gradient with respect to the student's logits, and may overwrite log q. It applies the
            entry clip: an entry d_v counts min(d_v, clip), with g_v = 0 where d_v >= clip. p was computed by a softmax:
            take q as ``log_q_NV.softmax(-1)``, not by ``exp``, where equal sides must give exactly 0.
        ends: the divergences that it becomes at beta 0 and 1, after scaling; None for one that vanishes there.
            Without ends it has no mixture, and --beta is refused.
        bounded: whether it is bounded, so that --floor would have no effect; otherwise ``compute_`` applies the floor.
    """

    name: str
    title: str
    formula: str
    source: str
    compute_: Callable[[Tensor, Tensor, Tensor, Options], Tensor]
    ends: tuple[str | None, str | None] | None = None
    bounded: bool = False

    def at(self, beta: float) -> str:
        """Return the name of the divergence to compute at ``beta``. Raise UsageError if beta is out of range."""
        if self.ends is None:
            return self.name
        if not 0.0 <= beta <= 1.0:
            raise UsageError(f"--beta {beta} of {self.name} must lie between 0 and 1")
        found = {0.0: self.ends[0], 1.0: self.ends[1]}.get(float(beta), self.name)
        if found is None:
            raise UsageError(f"at --beta {beta} {self.name} is zero for every student: choose another between 0 and 1")
        return found
