"""Packing, padding and micro-batches."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from recovery.batching import CPU_BATCH, Row, collate, deal, micro_batches, pack, separate_rows
from recovery.errors import UsageError
from recovery.models.loading import load_model

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


@pytest.mark.parametrize("device", ["cpu", "meta"])
@given(lengths=st.lists(st.integers(1, 300), min_size=1, max_size=8), budget=st.integers(8, 900))
def test_micro_batches_waste_the_least(device: str, lengths: list[int], budget: int) -> None:
    """No other cut of the rows by length costs less: padded tokens, and on a CPU CPU_BATCH for each batch, elsewhere
    as much as a full one.
    """
    cost = CPU_BATCH if device == "cpu" else budget
    batches = micro_batches([Row([1] * n, [False] * n) for n in lengths], budget, 0, device)
    ranked, costs = sorted(lengths, reverse=True), []
    for cuts in itertools.product((False, True), repeat=len(ranked) - 1):
        bounds = [0, *(at + 1 for at, cut in enumerate(cuts) if cut), len(ranked)]
        groups = [ranked[begin:end] for begin, end in itertools.pairwise(bounds)]
        if all(len(group) == 1 or len(group) * group[0] <= budget for group in groups):
            costs.append(sum(len(group) * group[0] + cost for group in groups))
    assert sum(batch.ids_BT.numel() + cost for batch in batches) == min(costs)


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


def answered(context: list[int], response: list[int], teacher_context: list[int] | None = None, **extra: Any) -> Row:
    """A row whose targets are the response, which the teacher reads after its own context."""
    mask = [False] * len(context) + [True] * len(response)
    teacher_ids = None if teacher_context is None else [*teacher_context, *response]
    return Row([*context, *response], mask, teacher="base", teacher_ids=teacher_ids, **extra)


def test_the_teacher_reads_its_own_context_before_the_same_targets() -> None:
    rows = [
        answered([1, 2], [7, 8, 9], [1, 50, 51, 52, 2]),
        answered([3, 4, 5, 6], [10, 11], [60]),
        answered([1], [12], [2]),
    ]
    batch = collate(rows, pad_id=0)
    seen = batch.seen_by_teacher
    assert seen is not None
    assert seen.targets_N.tolist() == batch.targets_N.tolist() == [7, 8, 9, 10, 11, 12]
    assert seen.rows_N.tolist() == batch.rows_N.tolist()
    assert batch.ids_BT.reshape(-1)[batch.sources_N].tolist() == [2, 7, 8, 6, 10, 1]
    assert seen.ids_BT.reshape(-1)[seen.sources_N].tolist() == [2, 7, 8, 60, 10, 2]
    assert seen.seen_by_teacher is seen.advantages_N is None


@given(st.data())
def test_targets_of_both_sides_agree_whatever_is_masked(data: st.DataObject) -> None:
    tokens = data.draw(st.lists(st.integers(1, 99), min_size=2, max_size=12))
    mask = data.draw(st.lists(st.booleans(), min_size=len(tokens), max_size=len(tokens)))
    context = data.draw(st.lists(st.integers(100, 199), min_size=1, max_size=6))
    first = mask[1:].index(True) + 1 if any(mask[1:]) else len(tokens)
    shared = data.draw(st.integers(0, first))
    batch = collate([Row(tokens, mask, teacher_ids=[*context, *tokens[shared:]])], pad_id=0)
    seen = batch.seen_by_teacher
    assert seen is not None
    assert seen.targets_N.tolist() == [t for t, on in zip(tokens[1:], mask[1:], strict=True) if on]
    last = seen.ids_BT.shape[1] - len(tokens)
    assert (seen.sources_N - batch.sources_N).tolist() == [last] * batch.tokens


def test_numbers_of_a_target_follow_it() -> None:
    rows = [
        answered([1, 2], [7, 8], advantages=[0.5, -0.5], old_logprobs=[-1.0, -2.0]),
        answered([3], [9], advantages=[2.0], old_logprobs=[-3.0]),
    ]
    batch = collate(rows, pad_id=0)
    assert batch.advantages_N is not None and batch.old_logprobs_N is not None
    assert batch.advantages_N.tolist() == [0.5, -0.5, 2.0]
    assert batch.old_logprobs_N.tolist() == [-1.0, -2.0, -3.0]
    plain = collate([answered([1, 2], [7, 8])], pad_id=0)
    assert plain.advantages_N is plain.old_logprobs_N is plain.seen_by_teacher is None


def test_rows_of_other_kinds_never_share_a_batch_and_the_wider_side_counts() -> None:
    rows = [
        answered([1], [2, 3]),
        answered([1], [2, 3], [4] * 8),
        answered([1], [2, 3], advantages=[1.0, 1.0]),
        answered([1], [2, 3], [4] * 3),
        answered([1], [2, 3]),
    ]
    batches = micro_batches(rows, 1000, 0)
    assert [batch.ids_BT.shape[0] for batch in batches] == [2, 2, 1]
    assert [batch.seen_by_teacher is not None for batch in batches] == [False, True, False]
    assert [batch.ids_BT.shape[0] for batch in micro_batches(rows, 12, 0)] == [2, 1, 1, 1]
    with pytest.raises(UsageError, match="with and without teacher_ids"):
        collate(rows[:2], 0)


def test_what_does_not_fit_a_rows_targets_is_refused() -> None:
    mask = [False, True, True]
    refusals = [
        ("1 advantages for 2 targets: each target needs one", Row([1, 2, 3], mask, advantages=[1.0])),
        ("3 old_logprobs for 2 targets", Row([1, 2, 3], mask, old_logprobs=[1.0] * 3)),
        ("do not end in its response", Row([1, 2, 3], mask, teacher_ids=[9, 9, 2, 4])),
        ("need a context and the whole response", Row([1, 2, 3], mask, teacher_ids=[2, 3])),
        ("need a context and the whole response", Row([1, 2, 3], mask, teacher_ids=[])),
        ("several documents", Row([1, 2, 3], mask, (1, 2), teacher_ids=[9, 1, 2, 3])),
    ]
    for words, row in refusals:
        with pytest.raises(UsageError, match=words) as caught:
            collate([row], 0)
        assert "\n" not in str(caught.value)


def test_documents_in_one_row_do_not_see_each_other(tiny_family: Path) -> None:
    loaded = load_model(tiny_family, precision="float32")
    first, second, other = [5, 6, 7, 8, 9, 10], [20, 21, 22, 23], [30, 31, 32, 33, 34, 35]
    mask = [True] * 10
    with torch.no_grad():
        packed = loaded.hidden(collate([Row(first + second, mask, (6, 4))], 0))
        changed = loaded.hidden(collate([Row(other + second, mask, (6, 4))], 0))
        alone = loaded.hidden(collate([Row(second, [True] * 4)], 0))
    rounding = 0 if loaded.router is None else 1e-6  # experts get batches of other sizes
    torch.testing.assert_close(packed[:, 6:], changed[:, 6:], atol=rounding, rtol=rounding)
    torch.testing.assert_close(packed[:, 6:], alone, atol=1e-5, rtol=1e-5)
    assert loaded.separates_documents


def test_rows_are_taken_apart_with_the_same_targets() -> None:
    packed = Row(list(range(10)), [True] * 4 + [False] * 3 + [True] * 3, (4, 3, 3), teacher="base")
    single = Row([1, 2], [False, True])
    rows = separate_rows([packed, single])
    assert [list(row.ids) for row in rows] == [[0, 1, 2, 3], [4, 5, 6], [7, 8, 9], [1, 2]]
    assert [row.targets for row in rows] == [3, 0, 2, 1] and {row.teacher for row in rows[:3]} == {"base"}
    assert sum(row.targets for row in rows) == packed.targets + single.targets


def test_padding_is_not_seen(tiny_family: Path) -> None:
    loaded = load_model(tiny_family, precision="float32")
    long, short = Row(list(range(5, 25)), [True] * 20), Row([5, 9, 7], [True] * 3)
    with torch.no_grad():
        padded = loaded.hidden(collate([long, short], 0))[1, :3]
        alone = loaded.hidden(collate([short], 0))[0]
    torch.testing.assert_close(padded, alone, atol=1e-5, rtol=1e-5)


@given(LENGTHS, st.integers(8, 200), st.integers(2, 5))
def test_shares_of_several_processes_hold_every_target_once(lengths: list[int], budget: int, count: int) -> None:
    rows = [Row([1000 * i + j for j in range(n)], [True] * n) for i, n in enumerate(lengths)]
    parts = deal(rows, count)
    held = [sum(row.width for row in part) for part in parts]
    assert max(held) - min(held) <= max(lengths), "the load is balanced"
    shares = [micro_batches(rows, budget, pad_id=0, share=(number, count)) for number in range(count)]
    targets = sorted(t for share in shares for batch in share for t in batch.targets_N.tolist())
    assert targets == sorted(t for row in rows for t in list(row.ids)[1:])


@given(LENGTHS, st.integers(8, 200), st.integers(2, 5))
def test_even_shares_run_alike_and_their_padding_is_idle(lengths: list[int], budget: int, count: int) -> None:
    names = ("label", "base", "knowledge")
    rows = [Row([1000 * i + j for j in range(n)], [True] * n, teacher=names[i % 3]) for i, n in enumerate(lengths)]
    shares = [micro_batches(rows, budget, pad_id=0, share=(number, count), even=True) for number in range(count)]
    assert len({tuple(batch.teacher for batch in share) for share in shares}) == 1, "the same models in the same order"
    targets = sorted(t for share in shares for batch in share if not batch.idle for t in batch.targets_N.tolist())
    assert targets == sorted(t for row in rows for t in list(row.ids)[1:])


def test_a_window_of_a_packed_row_cuts_the_documents_at_its_ends() -> None:
    row = Row(list(range(10)), [True] * 10, (4, 3, 3))
    assert row.window(2, 9) == Row(list(range(2, 9)), [True] * 7, (2, 3, 2))
    assert row.window(4, 7) == Row([4, 5, 6], [True] * 3, (3,))
    assert Row([1, 2, 3], [True] * 3).window(1, 3) == Row([2, 3], [True] * 2, (2,))
    assert row.window(2, 9).targets == 4, "the first token of each document has none"
    cut = row.window(2, 9, [99])  # a model like Gemma has never seen text without its first token
    assert cut.ids == [99, *range(2, 9)] and cut.segments == (3, 3, 2) and cut.targets == 4
    assert not any(cut.loss_mask[:2]) and all(cut.loss_mask[2:])
    assert row.window(0, 9, [99]) == row.window(0, 9), "where a document begins the text has it"
