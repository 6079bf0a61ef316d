"""Whether an engine draws from the whole distribution: without a cut (top-p, top-k, min-p) or another temperature.

A server may apply sampling settings of its own though others were asked for. Its tokens are then drawn from another
distribution q than the model's p, and the loss that rests on them is biased. Three sums over the tokens of all
comparisons tell it:

- **ratio**: the mean of p/q over tokens drawn from q is the mass that p has where q has any: 1 unless something was
  cut. It takes a few dozen tokens, and log-probabilities renormalised after the cut: vLLM's ``processed_logprobs``.
- **tail**: how many tokens lie outside each cut of p, against p's own mass there. It needs tokens alone, but
  about 17 over the mass that was cut: 210 for top-p 0.92, 1,700 for 0.99.
- **surprisal**: the mean of −log p against the entropy of p, for another temperature.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

TOP_P = (0.8, 0.85, 0.9, 0.92, 0.94, 0.95, 0.96, 0.97, 0.98, 0.99)
TOP_K = (5, 10, 20, 40, 50, 64, 100, 200)
MIN_P = (0.01, 0.02, 0.05, 0.1, 0.2)
CUTS = (*(f"top-p {p:g}" for p in TOP_P), *(f"top-k {k}" for k in TOP_K), *(f"min-p {m:g}" for m in MIN_P))

# Runs compare after every step: rarely a false alarm in a hundred thousand. Smaller effects than these are rounding.
_NATS = 17.0  # -log of the error of all cuts together, 1e-6
_DEVIATIONS, _KEPT, _SHARPER = 6.0, 0.998, 0.03


def facts(logprobs_NV: torch.Tensor, tokens_N: torch.Tensor) -> torch.Tensor:
    """Return what the model's log-probabilities say of tokens that were drawn there, [N, 2 + 2C] in float64: a token's
    surprisal minus the entropy (nats), the variance of the surprisal, the mass that each of the C :data:`CUTS` removes,
    and 1 if the token is in it.
    """
    logprobs_NV = logprobs_NV.double().clamp(min=-1e4)
    probs_NV = logprobs_NV.exp()
    entropy_N = -(probs_NV * logprobs_NV).sum(-1)
    variance_N = (probs_NV * (logprobs_NV + entropy_N[:, None]) ** 2).sum(-1)
    ranked_NV, order_NV = probs_NV.sort(dim=-1, descending=True)
    before_NV = ranked_NV.cumsum(-1) - ranked_NV
    ranks_V = torch.arange(ranked_NV.shape[-1], device=ranked_NV.device)
    removed_CNV = [
        *(before_NV >= p for p in TOP_P),
        *((ranks_V >= k).expand_as(ranked_NV) for k in TOP_K),
        *(ranked_NV < m * ranked_NV[:, :1] for m in MIN_P),
    ]
    place_N1 = (order_NV == tokens_N[:, None]).long().argmax(-1, keepdim=True)
    surplus_N = -logprobs_NV.gather(-1, tokens_N[:, None]).squeeze(-1) - entropy_N
    mass = [(ranked_NV * one_NV).sum(-1) for one_NV in removed_CNV]
    inside = [one_NV.gather(-1, place_N1).squeeze(-1).double() for one_NV in removed_CNV]
    return torch.stack([surplus_N, variance_N, *mass, *inside], dim=-1)


@dataclass
class SamplingCheck:
    """The sums over the tokens that an engine drew so far."""

    tokens: int = 0
    _ratios: float = 0.0
    _squares: float = 0.0
    _facts: list[float] = field(default_factory=lambda: [0.0] * (2 + 2 * len(CUTS)))

    def add(self, gaps: Sequence[float], found: torch.Tensor | None = None) -> None:
        """Count drawn tokens: ``gaps`` [N] are log p − log q, by the model and as the engine says; ``found`` their
        :func:`facts`, None where the model's whole distribution is not at hand.
        """
        ratios = [math.exp(min(gap, 40.0)) for gap in gaps]
        self.tokens += len(ratios)
        self._ratios += sum(ratios)
        self._squares += sum(ratio * ratio for ratio in ratios)
        if found is not None:
            self._facts = [a + b for a, b in zip(self._facts, found.sum(0).tolist(), strict=True)]

    @property
    def fault(self) -> str:
        """How the tokens show that they were drawn from another distribution than asked for; "" if they do not."""
        return self._renormalised or self._absent or self._tempered

    @property
    def _renormalised(self) -> str:
        if self.tokens < 2:
            return ""
        mean = self._ratios / self.tokens
        spread = math.sqrt(max(0.0, self._squares / self.tokens - mean * mean) / (self.tokens - 1))
        if mean > _KEPT or 1 - mean < _DEVIATIONS * spread:
            return ""
        return (
            f"by its log-probabilities it draws from {100 * mean:.1f}% of the model's probability only, so that some "
            "tokens cannot occur (top-p, top-k or min-p)"
        )

    @property
    def _absent(self) -> str:
        count = len(CUTS)
        for cut, mass, inside in zip(CUTS, self._facts[2 : 2 + count], self._facts[2 + count :], strict=True):
            # Chernoff's bound of the probability that so few of independent tokens are there
            if inside < mass / 2 and mass - inside - inside * math.log(mass / max(inside, 1)) > _NATS:
                return (
                    f"{inside:.0f} of its {self.tokens:,} tokens are among those that {cut} would remove, where the "
                    f"model's probabilities let {mass:.0f} expect"
                )
        return ""

    @property
    def _tempered(self) -> str:
        surplus, variance = self._facts[:2]
        if variance <= 0 or abs(surplus) < _DEVIATIONS * math.sqrt(variance):
            return ""
        sharper = surplus / variance  # d(mean surprisal)/d(log temperature) is the variance
        if abs(sharper) < _SHARPER:
            return ""
        return (
            f"its tokens are {'likelier' if sharper < 0 else 'less likely'} than the model's, as at a temperature "
            f"{100 * abs(sharper):.0f}% {'lower' if sharper < 0 else 'higher'}"
        )
