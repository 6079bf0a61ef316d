"""The attention function against scores formed in float64, for every implementation."""

from __future__ import annotations

import contextlib
import itertools

import pytest
import torch

from recovery.models import attention
from recovery.models.attention import (
    QUERIES,
    SCORES,
    SHORT_DOCUMENT,
    _bias,
    _blocks,
    _document_lengths,
    _fused,
    _implementation,
    _pays,
    _plain,
    _recomputed,
)
from recovery.models.hardware import PLAIN_LENGTH


def reference(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attended: torch.Tensor, scale: float
) -> torch.Tensor:
    """[B, Q, heads, d]; ``attended`` [B, 1, Q, T]."""
    share = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(share, 1).double() for x in (key, value))
    scores = query.double() @ key.transpose(2, 3) * scale
    return (scores.masked_fill(~attended, -1e30).softmax(-1) @ value).transpose(1, 2)


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


def test_a_single_query_may_have_a_mask_for_each_head() -> None:
    query, key, value = tensors(1, 9, torch.float32)
    attended = torch.ones(2, 6, 1, 9, dtype=torch.bool)
    for head in range(6):
        attended[:, head, :, :head] = False
    with torch.no_grad():
        found, _ = attention.attention(torch.nn.Module(), query, key, value, attended)
    torch.testing.assert_close(found.double(), reference(query, key, value, attended, 0.25), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("queries", [12, QUERIES + 20])
@pytest.mark.parametrize("kind", ["causal", "packed", "padded", "window"])
def test_the_backward_pass_is_that_of_attention(
    queries: int, kind: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    attended = torch.ones(queries, queries, dtype=torch.bool).tril().expand(2, 1, -1, -1).clone()
    if kind == "packed":
        attended[..., 5:, :5] = False
    if kind == "window":
        attended &= torch.ones(queries, queries, dtype=torch.bool).triu(-6)
    if kind == "padded":
        attended[1, ..., :3] = False
    mask = None if kind == "causal" else attended
    attends = attended[:, 0].any(-1)
    leaves = [x.double().requires_grad_() for x in tensors(queries, queries, dtype)]
    reference(*leaves, attended, 0.25)[attends].square().sum().backward()
    wanted = [leaf.grad for leaf in leaves]
    for scores in (SCORES, 2 * 6 * queries * 7):  # blocks of all queries, and of seven
        monkeypatch.setattr(attention, "SCORES", scores)
        found = [x.clone().requires_grad_() for x in tensors(queries, queries, dtype)]
        mixed, _ = attention.attention(torch.nn.Module(), *found, mask)
        mixed[attends].float().square().sum().backward()
        for leaf, gradient in zip(found, wanted, strict=True):
            assert leaf.grad is not None and gradient is not None
            assert (leaf.grad - gradient).norm() < (0.02 if dtype == torch.bfloat16 else 1e-5) * gradient.norm()


def packed(*rows: list[int]) -> torch.Tensor:
    """The mask of rows of documents of these lengths, [B, 1, T, T]."""
    documents = torch.stack([torch.arange(len(row)).repeat_interleave(torch.tensor(row)) for row in rows])
    return ((documents.unsqueeze(2) == documents.unsqueeze(1)).tril()).unsqueeze(1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [([5, 1, 30], [5, 1, 30]), ([5, 1, 30], [20, 16]), ([36], [36])])
def test_a_document_in_a_packed_row_is_computed_as_if_alone(
    rows: tuple[list[int], ...], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "HIDDEN_PRODUCTS", 0)
    query, key, value = (x.requires_grad_() for x in tensors(36, 36, dtype))
    found, _ = attention.attention(torch.nn.Module(), query, key, value, packed(*rows))
    found.float().square().sum().backward()
    for number, row in enumerate(rows):
        for end, length in zip(itertools.accumulate(row), row, strict=True):
            at = (slice(number, number + 1), slice(None), slice(end - length, end))
            alone = [x.detach()[at].clone().requires_grad_() for x in (query, key, value)]
            mixed, _ = attention.attention(torch.nn.Module(), *alone, torch.ones(1, 1, length, length).bool().tril())
            mixed.float().square().sum().backward()
            close = {"rtol": 1e-2, "atol": 1e-2} if dtype == torch.bfloat16 else {"rtol": 1e-5, "atol": 1e-5}
            torch.testing.assert_close(found[at[0], at[2]], mixed, **close)
            for whole, part in zip((query, key, value), alone, strict=True):
                assert whole.grad is not None
                torch.testing.assert_close(whole.grad[at], part.grad, **close)


def test_documents_are_read_from_a_mask_that_does_nothing_else() -> None:
    assert _document_lengths(packed([2, 3, 1], [1, 5])) == [[2, 3, 1], [1, 5]]
    assert _document_lengths(packed([6])) == [[6]]
    for change in ((0, 0, 4, 3), (0, 0, 4, 0), (0, 0, 1, 1), (0, 0, 5, 3), (0, 0, 2, 5)):
        mask = packed([2, 3, 1])
        mask[change] = ~mask[change]
        assert _document_lengths(mask) is None, change
    window = torch.ones(1, 1, 6, 6, dtype=torch.bool).tril().triu(-2)
    by_head, one_query = packed([2, 4]).expand(-1, 3, -1, -1), packed([6])[..., -1:, :]
    padded = packed([2, 4], [2, 4])
    padded[1, :, :2] = False  # queries that attend to nothing
    assert [_document_lengths(mask) for mask in (window, by_head, one_query, padded)] == [None] * 4


def test_a_long_document_of_a_packed_row_has_the_gradients_of_a_short_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "HIDDEN_PRODUCTS", 0)
    mask, found = packed([30, 6], [30, 6]), []
    for longest in (SHORT_DOCUMENT, 10):
        monkeypatch.setattr(attention, "SHORT_DOCUMENT", longest)
        leaves = [x.requires_grad_() for x in tensors(36, 36, torch.bfloat16)]
        attention.attention(torch.nn.Module(), *leaves, mask)[0].float().square().sum().backward()
        found.append([leaf.grad for leaf in leaves])
    for exact, rounded in zip(*found, strict=True):
        assert exact is not None and rounded is not None and not torch.equal(exact, rounded)
        assert (exact - rounded).norm() < 0.02 * exact.norm()


def test_documents_are_taken_one_by_one_where_the_mask_hides_much() -> None:
    def pays(rows: int, heads: int, width: int, *lengths: list[int]) -> bool:
        return _pays(torch.empty(rows, heads, sum(lengths[0]), width, device="meta"), list(lengths))

    assert pays(1, 9, 64, [50] * 40) and pays(4, 9, 64, *[[100] * 5] * 4), "a model of 135M parameters"
    assert pays(1, 9, 64, [2048]), "the kernel skips what comes later if there is no mask"
    assert not pays(8, 4, 32, *[[50] * 5] * 8), "the miniature"


def test_blocks_leave_out_the_keys_that_no_query_attends_to() -> None:
    query, key, _ = tensors(2 * QUERIES, 2 * QUERIES, torch.bfloat16)
    halves = torch.zeros(2, 1, 2 * QUERIES, 2 * QUERIES, dtype=torch.bool)
    halves[..., :QUERIES, :QUERIES] = halves[..., QUERIES:, QUERIES:] = True
    keys = [(begin, end) for _, begin, end in _blocks(query, key, halves)]
    assert keys == [(0, QUERIES), (QUERIES, 2 * QUERIES)]
    assert [end for _, _, end in _blocks(query, key, None)] == [QUERIES, 2 * QUERIES]


def test_other_devices_are_left_to_transformers_but_for_single_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "_on_cpu", lambda query: False)
    chosen = [_implementation(*tensors(queries, 8, torch.float32)) for queries in (1, 8)]
    assert chosen == [_plain, None]
    query, key, value = tensors(1, 9, torch.float32)
    mask = torch.ones(2, 1, 1, 9, dtype=torch.bool)
    mask[0, ..., :4] = False
    found, _ = attention.attention(torch.nn.Module(), query, key, value, mask)
    torch.testing.assert_close(found.double(), reference(query, key, value, mask, 0.25), rtol=1e-5, atol=1e-5)


def test_on_a_gpu_layers_share_the_bias_of_a_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "_on_cpu", lambda query: False)
    made = []
    monkeypatch.setattr(attention, "_bias", lambda *args: made.append(args) or bias_of(*args))
    bias_of = _bias
    mask = torch.ones(2, 1, 1, 9, dtype=torch.bool)
    mask[0, ..., :4] = False
    for dtype, close in ((torch.float32, 1e-5), (torch.float32, 1e-5), (torch.bfloat16, 3e-2)):
        query, key, value = tensors(1, 9, dtype)
        found, _ = attention.attention(torch.nn.Module(), query, key, value, mask)
        torch.testing.assert_close(found.double(), reference(query, key, value, mask, 0.25), rtol=close, atol=close)
    assert len(made) == 2, "once for both layers in float32, once in bfloat16"
    query, key, value = tensors(1, 9, torch.float32)
    attention.attention(torch.nn.Module(), query, key, value, mask.clone())
    assert len(made) == 3, "another mask has another bias"


def test_the_way_depends_on_precision_length_and_gradients() -> None:
    wide, long, narrow = (
        tensors(8, 8, torch.float32),
        tensors(PLAIN_LENGTH + 1, PLAIN_LENGTH + 1, torch.float32),
        tensors(8, 8, torch.bfloat16),
    )
    assert [_implementation(*each) for each in (wide, long, narrow)] == [_plain, _fused, _recomputed]
    with torch.no_grad():
        assert [_implementation(*each) for each in (wide, long, narrow)] == [_fused] * 3
