"""Drawing of tokens from logits, with random numbers that depend only on the seed and the prompt's index."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from recovery.rng import derive_seed
from recovery.rollouts.engine import Sampling

# Vocabulary entries per block of the inverse-CDF search, see _search.
BLOCK = 256


def uniform_numbers(numbers: Sequence[int], sampling: Sampling) -> torch.Tensor:
    """Return a uniform number for each prompt and token, [B, T] in float64; zeros if greedy.

    The numbers of a prompt depend only on the seed and its index in the request, not on the batch or the number of
    processes.
    """
    if sampling.temperature == 0:
        return torch.zeros(len(numbers), 1, dtype=torch.float64)
    rows = []
    for number in numbers:
        generator = torch.Generator().manual_seed(derive_seed(sampling.seed, sampling.first + number))
        rows.append(torch.rand(sampling.max_new_tokens, generator=generator, dtype=torch.float64))
    return torch.stack(rows)


def draw(logits_BV: torch.Tensor, sampling: Sampling, uniform_B: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw one token per row: (tokens_B, log-probabilities_B under the tempered distribution).

    Each row's uniform number is searched in its cumulative probabilities.
    """
    logits_BV = logits_BV.float()
    if sampling.temperature == 0:
        best = logits_BV.max(-1)
        return best.indices, best.values - logits_BV.logsumexp(-1)
    if sampling.temperature != 1:
        logits_BV = logits_BV / sampling.temperature
    probs_BV = logits_BV.softmax(-1)
    drawn_BV = _nucleus(probs_BV, sampling.top_p) if sampling.top_p < 1 else probs_BV
    tokens_B = _search(drawn_BV, uniform_B)
    chosen_B = tokens_B[:, None]
    return tokens_B, (logits_BV.gather(-1, chosen_B) - logits_BV.logsumexp(-1, keepdim=True)).squeeze(-1)


def _search(probs_BV: torch.Tensor, uniform_B: torch.Tensor) -> torch.Tensor:
    """Return the token at which the cumulative probabilities of each row exceed its uniform number.

    The search is over blocks of tokens, then within one, both in float64: rare tokens of a large vocabulary keep their
    probability, and the full cumulative sum, which costs more than the model's own head, is not needed.
    """
    padded_BV = F.pad(probs_BV, (0, -probs_BV.shape[-1] % BLOCK))
    blocks_BNK = padded_BV.view(len(padded_BV), -1, BLOCK)
    sums_BN = blocks_BNK.sum(-1).double()
    ends_BN = sums_BN.cumsum(-1)
    # In [0, total): a block or token with probability 0 is never selected.
    wanted_B1 = uniform_B[:, None] * ends_BN[:, -1:]
    block_B1 = torch.searchsorted(ends_BN, wanted_B1, right=True).clamp_(max=ends_BN.shape[-1] - 1)
    within_B1 = wanted_B1 - (ends_BN - sums_BN).gather(-1, block_B1)
    rows_B = torch.arange(len(blocks_BNK), device=block_B1.device)
    inner_BK = blocks_BNK[rows_B, block_B1.squeeze(-1)].double().cumsum(-1)
    # The block's sum was rounded: a number beyond its last token selects that token.
    within_B1 = torch.minimum(within_B1, torch.nextafter(inner_BK[:, -1:], inner_BK.new_zeros(())))
    inner_B1 = torch.searchsorted(inner_BK, within_B1, right=True)
    return (block_B1 * BLOCK + inner_B1).squeeze(-1).clamp_(max=probs_BV.shape[-1] - 1)


def _nucleus(probs_BV: torch.Tensor, top_p: float) -> torch.Tensor:
    ranked, order = probs_BV.sort(dim=-1, descending=True)
    outside = ranked.cumsum(-1) - ranked >= top_p
    return probs_BV.masked_fill(outside.gather(-1, order.argsort(-1)), 0.0)
