"""Packing, padding and micro-batches."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from recovery.batches import Row, collate, micro_batches, pack
from recovery.errors import UsageError
from recovery.loading import load_model

LENGTHS = st.lists(st.integers(1, 40), min_size=1, max_size=60)


@given(LENGTHS, st.integers(4, 32))
def test_packing_keeps_every_token_once_and_no_row_too_long(lengths: list[int], length: int) -> None:
    sequences = [([100 * i + j for j in range(n)], [True] * n) for i, n in enumerate(lengths)]
    rows = pack(sequences, length)
    assert sorted(t for row in rows for t in row.ids) == sorted(t for ids, _ in sequences for t in ids)
    assert all(len(row.ids) <= length and sum(row.segments) == len(row.ids) for row in rows)


@given(LENGTHS, st.integers(8, 200))
def test_micro_batches_hold_every_target_once_within_the_budget(lengths: list[int], budget: int) -> None:
    rows = [Row([1000 * i + j for j in range(n)], [True] * n) for i, n in enumerate(lengths)]
    batches = micro_batches(rows, budget, pad_id=0)
    targets = sorted(t for batch in batches for t in batch.targets_N.tolist())
    assert targets == sorted(t for row in rows for t in list(row.ids)[1:])
    for batch in batches:
        assert batch.ids_BT.numel() <= budget or batch.ids_BT.shape[0] == 1


def test_targets_are_predicted_from_the_position_before() -> None:
    batch = collate([Row([5, 6, 7, 8], [False, False, True, True]), Row([9, 10], [False, True])], pad_id=0)
    assert batch.targets_N.tolist() == [7, 8, 10]
    flat = batch.ids_BT.reshape(-1)
    assert flat[batch.sources_N].tolist() == [6, 7, 9]
    assert batch.rows_N.tolist() == [0, 0, 1]


def test_rows_of_two_teachers_never_share_a_batch() -> None:
    rows = [Row([1, 2], [False, True], teacher=t) for t in ("base", "knowledge", "base")]
    assert [(b.teacher, b.tokens) for b in micro_batches(rows, 100, 0)] == [("base", 2), ("knowledge", 1)]
    with pytest.raises(UsageError):
        collate(rows, 0)


def test_documents_in_one_row_do_not_see_each_other(tiny_family: Path) -> None:
    loaded = load_model(tiny_family, precision="float32")
    first, second, other = [5, 6, 7, 8, 9, 10], [20, 21, 22, 23], [30, 31, 32, 33, 34, 35]
    mask = [True] * 10
    with torch.no_grad():
        packed = loaded.hidden(collate([Row(first + second, mask, (6, 4))], 0))
        changed = loaded.hidden(collate([Row(other + second, mask, (6, 4))], 0))
        alone = loaded.hidden(collate([Row(second, [True] * 4)], 0))
    torch.testing.assert_close(packed[:, 6:], changed[:, 6:], atol=0, rtol=0)
    torch.testing.assert_close(packed[:, 6:], alone, atol=1e-5, rtol=1e-5)


def test_padding_is_not_seen(tiny_family: Path) -> None:
    loaded = load_model(tiny_family, precision="float32")
    long, short = Row(list(range(5, 25)), [True] * 20), Row([5, 9, 7], [True] * 3)
    with torch.no_grad():
        padded = loaded.hidden(collate([long, short], 0))[1, :3]
        alone = loaded.hidden(collate([short], 0))[0]
    torch.testing.assert_close(padded, alone, atol=1e-5, rtol=1e-5)
