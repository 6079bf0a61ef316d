"""The schedule of mid-training: exact shares, every document seen, determined by the seed."""

from __future__ import annotations

import pytest

from pipelines.data.mixing import Stream, schedule, step_count, step_size
from recovery.batching import Row
from recovery.config import MidtrainConfig


def row(length: int, start: int = 0) -> Row:
    return Row(list(range(start, start + length)), [True] * length)


def stream(name: str, rows: int, share: float, length: int = 11) -> Stream:
    return Stream(name, [row(length, 100 * i + ord(name[0]) * 10_000) for i in range(rows)], share)


def test_targets_leave_out_the_first_token_of_every_document() -> None:
    assert Row([1, 2, 3, 4, 5], [True] * 5).targets == 4
    assert Row([1, 2, 3, 4, 5], [True] * 5, segments=(2, 3)).targets == 3
    assert Row([1, 2, 3, 4], [False, False, True, True]).targets == 2


def test_shares_hold_over_the_run_although_rows_differ_in_length() -> None:
    mixed = [Stream("a", [row(n) for n in (5, 9, 40)], 0.7), Stream("b", [row(21, 900)], 0.3)]
    plan = schedule(mixed, steps=50, per_step=100, seed=3)
    tokens = [r.targets for step in plan for r in step]
    second = [r.targets for step in plan for r in step if r.ids[0] == 900]
    assert sum(second) / sum(tokens) == pytest.approx(0.3, abs=0.01)
    assert sum(tokens) == pytest.approx(5000, rel=0.02)


def test_every_row_is_seen_once_before_any_is_seen_twice() -> None:
    plan = schedule([stream("a", 10, 1.0)], steps=5, per_step=20, seed=0)
    seen = [r.ids[0] for step in plan for r in step]
    assert len(seen) == 10
    assert len(set(seen)) == 10


def test_the_seed_decides_the_order_and_nothing_else_does() -> None:
    first = schedule([stream("a", 10, 0.5), stream("b", 7, 0.5)], 8, 60, seed=1)
    assert first == schedule([stream("a", 10, 0.5), stream("b", 7, 0.5)], 8, 60, seed=1)
    assert first != schedule([stream("a", 10, 0.5), stream("b", 7, 0.5)], 8, 60, seed=2)


def test_a_row_longer_than_a_step_leaves_no_step_without_rows() -> None:
    plan = schedule([stream("a", 2, 1.0, length=500)], steps=6, per_step=50, seed=0)
    assert all(plan)


def test_step_size_follows_the_corpus_within_bounds() -> None:
    assert step_size(MidtrainConfig(batch_tokens=1234), 10**9, 1.0) == 1234
    once = MidtrainConfig(epochs=1)
    assert step_size(once, 1_000, 1.0) == 512
    assert step_size(once, 100_000, 1.0) == step_size(once, 50_000, 0.5) == 1_000
    assert step_size(MidtrainConfig(steps=7), 100_000, 1.0) == 3_000, "three passes, also where the steps are set"
    assert step_size(once, 10**9, 1.0) == 8192


def test_steps_grow_with_what_is_mixed_in() -> None:
    assert step_count(MidtrainConfig(epochs=3), 1_000, 1.0, 100) == 30
    assert step_count(MidtrainConfig(epochs=3), 1_000, 0.5, 100) == 60
    assert step_count(MidtrainConfig(epochs=0.01), 10, 1.0, 100) == 1
    assert step_count(MidtrainConfig(steps=7), 1_000, 1.0, 100) == 7
