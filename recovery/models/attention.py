"""Attention function registered with transformers: torch's fused kernel, or two matrix products.

The fused kernel saves memory for long rows, and on a CPU it reads the KV cache in place, which a plain product in
bfloat16 copies first. Its backward pass is slower for short rows, where it takes a third of a small model's training
time. If gradients are computed, the full score matrix is therefore formed for short rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from recovery.models.hardware import formed_whole

NAME = "sdpa_or_plain"


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
    """Grouped-query attention. query [B, heads, Q, d]; key and value [B, groups, T, d]; mask True where attended.

    Return [B, Q, heads, d] and no weights. Masks that are not boolean, dropout and position biases are handled by
    transformers' SDPA function, and so are other devices than the CPU, except for single queries.
    """
    supported = attention_mask is None or attention_mask.dtype == torch.bool
    supported = supported and dropout == 0 and kwargs.get("position_bias") is None
    implementation = _implementation(query, key) if supported else None
    if implementation is None:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
    if attention_mask is None and query.shape[2] > 1:
        causal = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool, device=query.device)
        attention_mask = causal.tril(key.shape[2] - query.shape[2])
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    return implementation(query, key, value, attention_mask, scale), None


def _implementation(query: torch.Tensor, key: torch.Tensor) -> Callable[..., torch.Tensor] | None:
    """Return the function of this module for these shapes; None for transformers' own."""
    rows, heads, length, _ = query.shape
    if not _on_cpu(query):
        return _plain if length == 1 else None
    return _plain if torch.is_grad_enabled() and formed_whole(rows, heads, length, key.shape[2]) else _fused


def _on_cpu(query: torch.Tensor) -> bool:
    return query.device.type == "cpu"


def _fused(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, scale: float
) -> torch.Tensor:
    """Call torch's kernel with grouped heads: transformers repeats keys and values for it if there is a mask."""
    query, key = query.to(value.dtype), key.to(value.dtype)
    if mask is not None:
        mask = mask[..., : key.shape[2]]
    mixed = F.scaled_dot_product_attention(query, key, value, mask, scale=scale, enable_gqa=True)
    return mixed.transpose(1, 2).contiguous()


def _plain(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, scale: float
) -> torch.Tensor:
    batch, heads, length, width = query.shape
    groups = key.shape[1]
    # The heads of a group share keys and values: they are concatenated along the query axis.
    grouped = (query * scale).to(value.dtype).reshape(batch, groups, (heads // groups) * length, width)
    scores = torch.matmul(grouped, key.to(value.dtype).transpose(2, 3))
    if mask is not None:
        # Added instead of filled in: an addition needs no work in the backward pass. Finite, so that the weights of a
        # padding position, which attends to nothing, are defined.
        lowest = torch.finfo(scores.dtype).min / 2
        bias = torch.zeros(mask.shape, dtype=scores.dtype, device=mask.device).masked_fill_(~mask, lowest)
        scores = scores.view(batch, groups, heads // groups, length, -1) + bias[..., : key.shape[2]].unsqueeze(-3)
        scores = scores.view(batch, groups, -1, key.shape[2])
    weights = scores.softmax(-1, dtype=torch.float32).to(value.dtype)
    mixed = torch.matmul(weights, value).view(batch, heads, length, width)
    return mixed.transpose(1, 2).contiguous()


AttentionInterface.register(NAME, attention)
AttentionMaskInterface.register(NAME, sdpa_mask)
