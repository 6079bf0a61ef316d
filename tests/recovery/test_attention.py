"""The attention function against scores formed in float64, for every implementation."""

from __future__ import annotations

import contextlib

import pytest
import torch

from recovery.models import attention
from recovery.models.attention import _fused, _implementation, _plain
from recovery.models.hardware import PLAIN_LENGTH


def reference(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attended: torch.Tensor, scale: float
) -> torch.Tensor:
    """[B, Q, heads, d]; ``attended`` [B, 1, Q, T]."""
    share = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(share, 1).double() for x in (key, value))
    scores = query.double() @ key.transpose(2, 3) * scale
    return (scores.masked_fill(~attended, -torch.inf).softmax(-1) @ value).transpose(1, 2)


def tensors(queries: int, keys: int, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    """Two rows of six heads in two groups, keys and values as views of a cache with more room."""
    generator = torch.Generator().manual_seed(queries + keys)
    query = torch.randn(2, 6, queries, 16, generator=generator, dtype=dtype)
    held = torch.randn(2, 2, 2, keys + 5, 16, generator=generator, dtype=dtype)
    return query, held[0, :, :, :keys], held[1, :, :, :keys]


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize(("queries", "keys"), [(1, 9), (7, 7), (3, 9), (PLAIN_LENGTH + 4, PLAIN_LENGTH + 4)])
@pytest.mark.parametrize(("dtype", "close"), [(torch.float32, 1e-5), (torch.bfloat16, 3e-2)])
def test_every_way_is_attention(queries: int, keys: int, dtype: torch.dtype, close: float, grad: bool) -> None:
    query, key, value = tensors(queries, keys, dtype)
    causal = torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries).expand(2, 1, -1, -1)
    padded = causal.clone()
    padded[0, ..., :2] = False
    with contextlib.nullcontext() if grad else torch.no_grad():
        for mask, attended, scaling in ((None, causal, None), (padded, padded, None), (padded, padded, 0.5)):
            found, _ = attention.attention(torch.nn.Module(), query, key, value, mask, scaling=scaling)
            wanted = reference(query, key, value, attended, 0.25 if scaling is None else scaling)
            attends = attended[:, 0].any(-1)
            assert found.dtype == dtype and found.isfinite().all(), "padding attends to nothing, and is finite"
            torch.testing.assert_close(found.double()[attends], wanted[attends], rtol=close, atol=close)


def test_both_ways_have_the_same_gradient() -> None:
    mask = torch.ones(12, 12, dtype=torch.bool).tril().expand(2, 1, -1, -1).clone()
    mask[1, ..., :3] = False
    found = []
    for implementation in (_plain, _fused):
        leaves = [x.clone().requires_grad_() for x in tensors(12, 12, torch.float32)]
        mixed = implementation(*leaves, mask, 0.25)
        mixed[0].square().sum().add(mixed[1, 3:].square().sum()).backward()
        found.append([leaf.grad for leaf in leaves])
    for plain, fused in zip(*found, strict=True):
        torch.testing.assert_close(plain, fused)


def test_what_is_not_on_a_cpu_goes_to_transformers_but_for_single_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "_on_cpu", lambda query: False)
    assert [_implementation(*tensors(queries, 8, torch.float32)[:2]) for queries in (1, 8)] == [_plain, None]


def test_scores_are_formed_whole_only_for_short_rows_with_gradients() -> None:
    short, long = tensors(8, 8, torch.float32), tensors(PLAIN_LENGTH + 1, PLAIN_LENGTH + 1, torch.float32)
    assert (_implementation(*short[:2]), _implementation(*long[:2])) == (_plain, _fused)
    with torch.no_grad():
        assert (_implementation(*short[:2]), _implementation(*long[:2])) == (_fused, _fused)
