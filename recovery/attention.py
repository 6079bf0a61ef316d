"""Attention for the decoding step, through transformers' own interface for attention functions.

With a single query a row, the fused kernels spend most of their time on set-up (on a CPU, over half of a small
model's decoding); two batched products over the cache do the same. Everything else goes to SDPA as before.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

NAME = "sdpa_or_decode"


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
    """SDPA, but for one query a row. query [B, heads, Q, d]; key and value [B, groups, T, d]; mask True = seen.

    Returns [B, Q, heads, d] and no weights. Any option it does not know falls back to SDPA.
    """
    single = query.shape[2] == 1 and not torch.is_grad_enabled() and kwargs.get("position_bias") is None
    if not single or (attention_mask is not None and attention_mask.dtype != torch.bool):
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
    batch, heads, _, width = query.shape
    groups = key.shape[1]
    scale = width**-0.5 if scaling is None else scaling
    # The heads of a group share keys and values: they take the place of the query axis.
    grouped = (query * scale).view(batch, groups, heads // groups, width).to(key.dtype)
    scores = torch.matmul(grouped, key.transpose(2, 3)).float()
    if attention_mask is not None:
        scores = scores.masked_fill(~attention_mask[:, :, :, : key.shape[2]], float("-inf"))
    weights = scores.softmax(-1).to(value.dtype)
    return torch.matmul(weights, value).view(batch, 1, heads, width), None


AttentionInterface.register(NAME, attention)
AttentionMaskInterface.register(NAME, sdpa_mask)
