"""Attention through transformers' own interface for attention functions: SDPA, or two plain products.

A fused kernel saves memory where rows are long. Where they are short it loses on a CPU: with one query a row
most of its time is set-up, and its backward pass takes a third of a small model's training. There the scores
are formed whole.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

NAME = "sdpa_or_plain"
# Up to this many scores (rows x heads x queries x keys) are formed whole on a CPU: 64 MB in float32.
PLAIN_SCORES = 1 << 24


def attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Grouped-query attention. query [B, heads, Q, d]; key and value [B, groups, T, d]; mask True where seen.

    Returns [B, Q, heads, d] and no weights. A mask that is not boolean, dropout and position biases go to SDPA.
    """
    known = attention_mask is None or attention_mask.dtype == torch.bool
    plain = known and dropout == 0 and kwargs.get("position_bias") is None and _plain_pays(query, key)
    if not plain:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
    if attention_mask is None and query.shape[2] > 1:
        causal = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool, device=query.device)
        attention_mask = causal.tril(key.shape[2] - query.shape[2])
    return _plain(query, key, value, attention_mask, query.shape[-1] ** -0.5 if scaling is None else scaling), None


def _plain_pays(query: torch.Tensor, key: torch.Tensor) -> bool:
    scores = query.shape[0] * query.shape[1] * query.shape[2] * key.shape[2]
    return query.shape[2] == 1 or (query.device.type == "cpu" and scores <= PLAIN_SCORES)


def _plain(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, scale: float
) -> torch.Tensor:
    batch, heads, length, width = query.shape
    groups = key.shape[1]
    # The heads of a group share keys and values: they are laid along the query axis.
    grouped = (query * scale).to(value.dtype).reshape(batch, groups, (heads // groups) * length, width)
    scores = torch.matmul(grouped, key.to(value.dtype).transpose(2, 3))
    if mask is not None:
        # Added, not filled in: an addition costs nothing on the way back. Finite, so that a padding position,
        # which sees nothing, has no undefined weights.
        least = torch.finfo(scores.dtype).min / 2
        unseen = torch.zeros(mask.shape, dtype=scores.dtype, device=mask.device).masked_fill_(~mask, least)
        scores = scores.view(batch, groups, heads // groups, length, -1) + unseen[..., : key.shape[2]].unsqueeze(-3)
        scores = scores.view(batch, groups, -1, key.shape[2])
    weights = scores.softmax(-1, dtype=torch.float32).to(value.dtype)
    mixed = torch.matmul(weights, value).view(batch, heads, length, width)
    return mixed.transpose(1, 2).contiguous()


AttentionInterface.register(NAME, attention)
AttentionMaskInterface.register(NAME, sdpa_mask)
