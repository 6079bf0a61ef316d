"""The router of a mixture of experts, and the loss that keeps its experts evenly used.

    E Σ_e f_e P_e        Switch Transformer, arXiv 2101.03961, equations 4 to 6

For E experts, f_e is the mean number of times that a token is sent to expert e (they sum to k, the experts per token)
and P_e the mean probability that the router gives it, both over all layers and the real tokens of a batch; k if the
experts are used evenly. It is computed by transformers' own function for the model's family. Since it is a product of
two means, a sum over batches depends on how a step is split into them, unlike every other term of the loss.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Router:
    """The routers of a model: E ``experts`` of which each token takes ``per_token``.

    ``weight`` is that of their loss in the model's configuration.
    """

    experts: int
    per_token: int
    weight: float
    _loss: Callable[..., torch.Tensor]

    @classmethod
    def of(cls, core: Any) -> Router | None:
        """Return the routers of a causal language model; None if transformers has no such loss for its family."""
        loss = getattr(sys.modules[type(core).__module__], "load_balancing_loss_func", None)
        experts, per_token = getattr(core, "num_experts", None), getattr(core, "num_experts_per_tok", None)
        if loss is None or not experts or not per_token:
            return None
        return cls(int(experts), int(per_token), float(getattr(core, "router_aux_loss_coef", None) or 0.0), loss)

    def loss(self, logits: tuple[torch.Tensor, ...], real_BT: torch.Tensor) -> torch.Tensor:
        """Return the loss over the real tokens, a scalar; ``logits`` are those of each layer, [B·T, E]."""
        return self._loss(tuple(layer.float() for layer in logits), self.experts, self.per_token, real_BT)
