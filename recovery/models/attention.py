"""Attention function registered with transformers: torch's fused kernel, or matrix products where they are faster.

On a CPU the kernel reads the KV cache in place, which a plain product in bfloat16 copies first. Its backward pass in
bfloat16 takes three to ten times as long as the matrix products it consists of, so those are computed here, some
queries at a time: scores are never held for whole rows, and blocks of keys that a mask hides are skipped. In float32 it
is slower for short rows and documents alone, whose scores are formed whole. The kernel computes every score that a mask
hides, so documents packed into a row are passed to it one by one: the cost is the sum of T² over documents of T tokens,
not T² of the row.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from recovery.models.hardware import formed_whole

NAME = "sdpa_or_plain"
# Queries per block of the backward pass; a multiple where that would make over eight blocks, since oneDNN compiles
# kernels for each block's shapes and keeps few; fewer if a block has more scores (rows x heads x queries x keys) than
# SCORES.
QUERIES, MOST_BLOCKS = 128, 8
SCORES = 1 << 24
# Longest document of a packed row whose backward pass is in float32. Each document has its own shape, for which oneDNN
# would compile kernels in bfloat16: that takes longer than these products.
SHORT_DOCUMENT = 1024
# Documents are taken one by one if a mask hides more products of queries and keys than this for each of them: the calls
# for a document take 0.1 to 0.3 ms.
HIDDEN_PRODUCTS = 1 << 22
# Attributes set on a mask, which all layers share in a pass: its bias, and the lengths of the documents it separates.
_BIAS_ATTRIBUTE, _DOCUMENTS_ATTRIBUTE = "_recovery_bias", "_recovery_documents"


def attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Grouped-query attention. query [B, heads, Q, d]; key and value [B, groups, T, d]; mask True where attended.

    Return [B, Q, heads, d] and no weights. Masks that are not boolean, dropout, position biases and values of another
    width than the queries are handled by transformers' SDPA function, and so are other devices than the CPU, except for
    single queries.
    """
    supported = attention_mask is None or attention_mask.dtype == torch.bool
    supported = supported and dropout == 0 and kwargs.get("position_bias") is None
    supported = supported and query.shape[-1] == value.shape[-1]  # not so in latent attention (DeepSeek)
    implementation = _implementation(query, key, value) if supported else None
    if implementation is None:
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
    queries, keys = query.shape[2], key.shape[2]
    if attention_mask is None and 1 < queries < keys:
        attention_mask = torch.ones(queries, keys, dtype=torch.bool, device=query.device).tril(keys - queries)
    elif attention_mask is not None and attention_mask.shape[-1] != keys:
        attention_mask = attention_mask[..., :keys]
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    query, key = query.to(value.dtype), key.to(value.dtype)
    lengths = _document_lengths(attention_mask) if attention_mask is not None and _on_cpu(query) else None
    if lengths is not None and _pays(query, lengths):
        return _by_document(query, key, value, lengths, scale), None
    return implementation(query, key, value, attention_mask, scale).transpose(1, 2).contiguous(), None


def _implementation(query: Tensor, key: Tensor, value: Tensor) -> Callable[..., Tensor] | None:
    """Return the function of this module for these tensors; None for transformers' own."""
    rows, heads, length, _ = query.shape
    if not _on_cpu(query):
        return _plain if length == 1 else None
    if not torch.is_grad_enabled():
        return _fused
    if value.dtype == torch.bfloat16:
        return _recomputed
    return _plain if formed_whole(rows, heads, length, key.shape[2]) else _fused


def _on_cpu(query: Tensor) -> bool:
    return query.device.type == "cpu"


def _document_lengths(mask: Tensor) -> list[list[int]] | None:
    """Return the lengths of the documents packed into each row; None if the mask does more than separate them.

    It separates them if query q of a document that begins at b attends to the keys b to q. mask [B, 1, T, T].
    """
    if torch.compiler.is_compiling() or mask.shape[1] != 1 or not 1 < mask.shape[2] == mask.shape[3]:
        return None
    if not hasattr(mask, _DOCUMENTS_ATTRIBUTE):
        at_T = torch.arange(mask.shape[3], device=mask.device)
        first_BT = mask[:, 0].to(torch.uint8).argmax(-1)  # the first key that each query attends to
        begins_BT = first_BT == at_T
        lengths = None
        if torch.equal(first_BT, torch.where(begins_BT, at_T, 0).cummax(-1).values) and torch.equal(
            mask[:, 0], (at_T >= first_BT.unsqueeze(-1)) & (at_T <= at_T.unsqueeze(-1))
        ):
            bounds = [[*begins_T.nonzero().flatten().tolist(), mask.shape[3]] for begins_T in begins_BT]
            lengths = [[end - begin for begin, end in itertools.pairwise(row)] for row in bounds]
        setattr(mask, _DOCUMENTS_ATTRIBUTE, lengths)
    found: list[list[int]] | None = getattr(mask, _DOCUMENTS_ATTRIBUTE)
    return found


def _pays(query: Tensor, lengths: list[list[int]]) -> bool:
    """Return whether documents of these lengths are faster one by one than whole rows with their mask.

    A row of T tokens costs T² products for each head and number of its width, a document of t tokens t²/2.
    """
    rows, heads, tokens, width = query.shape
    seen = sum(length * length for row in lengths for length in row) / 2 / len(lengths)
    return rows * heads * width * (tokens * tokens - seen) > HIDDEN_PRODUCTS * sum(map(len, lengths))


def _by_document(query: Tensor, key: Tensor, value: Tensor, lengths: list[list[int]], scale: float) -> Tensor:
    """Return attention within each document, [B, Q, heads, d]: with ``lengths`` [[2, 3]] that of tokens 0 and 1, then
    of 2 to 4.
    """
    if any(row != lengths[0] for row in lengths):
        rows = zip(*(x.split(1) for x in (query, key, value)), lengths, strict=True)
        return torch.cat([_by_document(q, k, v, [row], scale) for q, k, v, row in rows])
    mixed = []
    for q, k, v in zip(*(x.split(lengths[0], 2) for x in (query, key, value)), strict=True):
        implementation = _implementation(q, k, v)
        assert implementation is not None  # on a CPU
        if implementation is _recomputed and q.shape[2] <= SHORT_DOCUMENT:
            mixed.append(_recomputed(q, k, v, None, scale, torch.float32).transpose(1, 2))
        else:
            mixed.append(implementation(q, k, v, None, scale).transpose(1, 2))
    return torch.cat(mixed, 1)


def _fused(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """Call torch's kernel with grouped heads: transformers repeats keys and values for it if there is a mask. Without
    a mask there are as many keys as queries, or one query that attends to all.

    The kernel makes two products for each head, and most of the time of a single query is their start. The heads of a
    group attend to the same keys, so they are passed as the queries of one head.
    """
    rows, _, queries, width = query.shape
    if queries == 1 and (mask is None or mask.shape[1] == 1):
        grouped = query.reshape(rows, key.shape[1], -1, width)
        return F.scaled_dot_product_attention(grouped, key, value, mask, scale=scale).reshape(query.shape)
    causal = mask is None and queries > 1
    return F.scaled_dot_product_attention(query, key, value, mask, is_causal=causal, scale=scale, enable_gqa=True)


@torch.compiler.disable
def _recomputed(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    scale: float,
    products: torch.dtype | None = None,
) -> Tensor:
    """Return the kernel's result, with a backward pass that computes the scores again, in ``products`` or as they were
    computed.
    """
    return _Recomputed.apply(query, key, value, mask, scale, products or value.dtype)


class _Recomputed(torch.autograd.Function):
    """Attention whose backward pass is matrix products, block by block of queries."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float, products: torch.dtype
    ) -> Tensor:
        ctx.save_for_backward(query, key, value, mask)
        ctx.scale, ctx.products = scale, products
        return _fused(query, key, value, mask, scale)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        *saved, mask = ctx.saved_tensors
        query, key, value, grad = (x.to(ctx.products) for x in (*saved, grad))
        rows, heads, queries, width = query.shape
        groups = key.shape[1]
        # The heads of a group share keys and values: [rows, groups, heads of a group, queries, width].
        by_group = (rows, groups, heads // groups, queries, width)
        scaled, grad = (query * ctx.scale).reshape(by_group), grad.reshape(by_group)
        grad_query = query.new_empty(by_group)
        grad_key, grad_value = torch.zeros_like(key), torch.zeros_like(value)
        for block, begin, end in _blocks(query, key, mask):
            bias = _bias(mask, block, begin, end, query)
            q, g = (x[..., block, :].reshape(rows, groups, -1, width) for x in (scaled, grad))
            k, v = key[:, :, begin:end], value[:, :, begin:end]
            scores = torch.matmul(q, k.transpose(2, 3))
            scores.view(rows, groups, heads // groups, -1, end - begin).add_(bias)
            weights = scores.softmax(-1)
            grad_value[:, :, begin:end] += torch.matmul(weights.transpose(2, 3), g)
            grad_scores = torch._softmax_backward_data(torch.matmul(g, v.transpose(2, 3)), weights, -1, weights.dtype)
            grad_query[..., block, :] = torch.matmul(grad_scores, k).view(grad_query[..., block, :].shape)
            grad_key[:, :, begin:end] += torch.matmul(grad_scores.transpose(2, 3), q)
        gradients = grad_query.mul_(ctx.scale).view(query.shape), grad_key, grad_value
        return *(x.to(saved[0].dtype) for x in gradients), None, None, None


def _blocks(query: Tensor, key: Tensor, mask: Tensor | None) -> Iterator[tuple[slice, int, int]]:
    """Yield blocks of queries, each with the first and the last (excluded) key that any of them attends to."""
    rows, heads, queries, _ = query.shape
    size = QUERIES * math.ceil(queries / (QUERIES * MOST_BLOCKS))
    size = max(1, min(size, SCORES // (rows * heads * key.shape[2])))
    for start in range(0, queries, size):
        block = slice(start, min(start + size, queries))
        if mask is None:
            yield block, 0, block.stop if queries > 1 else key.shape[2]
            continue
        attended = mask[..., block, :].flatten(0, -2).any(0).nonzero()
        if len(attended):
            yield block, int(attended[0]), int(attended[-1]) + 1
        else:
            yield block, 0, key.shape[2]


def _bias(mask: Tensor | None, block: slice, begin: int, end: int, query: Tensor) -> Tensor:
    """Return 0 where a query attends to a key, else the lowest number: finite, so that the weights of a padding
    position, which attends to nothing, are defined. Broadcast over [rows, groups, heads of a group, Q, T].
    """
    shape = (block.stop - block.start, end - begin)
    if mask is not None:
        hidden = ~mask[..., block, begin:end].unsqueeze(-3)
    else:
        hidden = torch.ones(shape, dtype=torch.bool, device=query.device).triu_(block.start + 1 - begin)
        if query.shape[2] == 1:
            hidden.fill_(False)
    bias = torch.zeros(hidden.shape, dtype=query.dtype, device=query.device)
    return bias.masked_fill_(hidden, torch.finfo(query.dtype).min / 2)


def _full_bias(mask: Tensor | None, query: Tensor, keys: int) -> Tensor:
    """Return the bias of all queries. A token's layers attend with one mask: on a GPU it is computed for the first."""
    block = slice(0, query.shape[2])
    if mask is None or _on_cpu(query) or query.shape[2] > 1:
        return _bias(mask, block, 0, keys, query)
    bias: Tensor | None = getattr(mask, _BIAS_ATTRIBUTE, None)
    if bias is None or bias.dtype != query.dtype:
        bias = _bias(mask, block, 0, keys, query)
        setattr(mask, _BIAS_ATTRIBUTE, bias)
    return bias


def _plain(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """Attention by two products, without repeating keys and values for the heads of a group."""
    rows, heads, queries, width = query.shape
    groups = key.shape[1]
    # The heads of a group share keys and values: they are concatenated along the query axis.
    grouped = (query * scale).reshape(rows, groups, (heads // groups) * queries, width)
    scores = torch.matmul(grouped, key.transpose(2, 3)).view(rows, groups, heads // groups, queries, -1)
    # Added instead of filled in: an addition needs no work in the backward pass.
    if mask is not None or queries > 1:
        scores = scores + _full_bias(mask, query, key.shape[2])
    # On a GPU, where each operation is a kernel, one that computes in float32 and rounds its result.
    weights = scores.softmax(-1, dtype=torch.float32).to(value.dtype) if _on_cpu(query) else scores.softmax(-1)
    mixed = torch.matmul(weights.view(rows, groups, -1, key.shape[2]), value)
    return mixed.view(rows, heads, queries, width)


AttentionInterface.register(NAME, attention)
AttentionMaskInterface.register(NAME, sdpa_mask)
