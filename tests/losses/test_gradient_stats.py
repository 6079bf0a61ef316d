"""Statistics of gradient vectors with known results."""

from __future__ import annotations

import math
import pickle

import pytest
import torch
from torch import Tensor

from recovery.errors import UsageError
from recovery.losses.token_stats import GradientStats

WIDTH = 64


def vectors(count: int, seed: int = 0) -> Tensor:
    return torch.randn(count, WIDTH, generator=torch.Generator().manual_seed(seed))


def measured(gradient_ND: Tensor, rows_N: Tensor | None = None, parts: int = 1) -> GradientStats:
    geometry = GradientStats(gradient_ND.shape[1], seed=0)
    rows_N = torch.arange(len(gradient_ND)) if rows_N is None else rows_N
    for piece_ND, piece_N in zip(gradient_ND.chunk(parts), rows_N.chunk(parts), strict=True):
        geometry.add(piece_ND, piece_N)
    return geometry


def test_equal_vectors_are_dense_biased_and_shared() -> None:
    found = measured(torch.ones(400, WIDTH), torch.arange(400) // 40).summary()
    assert found["density"] == pytest.approx(1.0)
    assert found["bias"] == pytest.approx(1.0)
    assert found["concentration"] == pytest.approx(1.0)
    assert found["top_1_percent"] == pytest.approx(0.01)
    assert found["shared"] == pytest.approx(1.0)
    # The length of a walk of N random steps is about sqrt(2N/pi) along one line.
    assert found["bias_null"] == pytest.approx(math.sqrt(2 / math.pi / 400), rel=0.6)


def test_a_single_vector_has_the_highest_concentration() -> None:
    gradient = torch.zeros(500, WIDTH)
    gradient[77] = 3.0
    found = measured(gradient).summary()
    assert found["density"] == pytest.approx(1 / 500)
    assert found["bias"] == pytest.approx(1.0), "a single vector has one direction"
    assert found["top_1_percent"] == pytest.approx(1.0)
    gradient += 0.01
    assert measured(gradient).summary()["concentration"] == pytest.approx(301.0)


def test_vectors_without_a_direction_are_as_biased_as_their_null_and_share_nothing() -> None:
    for count in (500, 8000):
        rows = torch.arange(count) // 50
        found = measured(vectors(count), rows).summary()
        assert found["bias"] == pytest.approx(found["bias_null"], rel=0.2)
        assert found["bias_null"] == pytest.approx(count**-0.5, rel=0.2)
        assert found["shared"] == pytest.approx(1 / 50, rel=0.3)
        assert found["density"] == pytest.approx(1 / (1 + 2 / WIDTH), rel=0.05)


def test_one_vector_a_response_is_what_is_shared() -> None:
    rows = torch.arange(1000) // 25
    one_each = vectors(40)[rows]
    assert measured(one_each).summary()["shared"] == pytest.approx(1.0), "with one token per row everything is shared"
    assert measured(one_each, rows).summary()["shared"] == pytest.approx(1.0)
    half = measured(one_each + vectors(1000, seed=1), rows).summary()["shared"]
    assert half == pytest.approx(0.5, abs=0.06)


def test_statistics_equal_their_definitions() -> None:
    gradient = vectors(300).double() * torch.rand(300, 1, dtype=torch.float64)
    rows = torch.arange(300) // 30
    norms = gradient.norm(dim=-1)
    means = torch.stack([gradient[rows == r].mean(0) for r in range(10)])
    found = measured(gradient, rows, parts=10).summary()
    assert found["density"] == pytest.approx(float(norms.square().sum() ** 2 / (300 * norms.pow(4).sum())))
    assert found["bias"] == pytest.approx(float(gradient.mean(0).norm() / norms.mean()))
    assert found["concentration"] == pytest.approx(float(norms.max() / norms.median()))
    assert found["top_1_percent"] == pytest.approx(
        float(norms.square().sort().values[-3:].sum() / norms.square().sum())
    )
    assert found["shared"] == pytest.approx(float(30 * means.square().sum() / gradient.square().sum()))


def test_micro_batches_change_nothing() -> None:
    gradient, rows = vectors(320), torch.arange(320) // 40
    whole, parts = measured(gradient, rows), measured(gradient, rows, parts=4)
    # Rows of a micro-batch are counted from 0: those of the later ones are further rows.
    again = GradientStats(WIDTH, seed=0)
    for piece, owners in zip(gradient.chunk(4), rows.chunk(4), strict=True):
        again.add(piece, owners - owners.min())
    expected = whole.summary()
    for other in (parts, again):
        found = other.summary()
        assert {key: found[key] for key in expected if key != "bias_null"} == pytest.approx(
            {key: value for key, value in expected.items() if key != "bias_null"}
        )
    assert again.sample() == [(pytest.approx(x), pytest.approx(y), row) for x, y, row in whole.sample()]


def test_the_sample_is_seeded_bounded_and_keeps_lengths_on_average() -> None:
    gradient, rows = vectors(5000), torch.arange(5000) // 50
    points = measured(gradient, rows).sample()
    assert points == measured(gradient, rows).sample()
    assert len(points) == 200
    assert len({row for _, _, row in points}) > 60, "drawn from many rows"
    lengths = torch.tensor([[x, y] for x, y, _ in points]).square().sum(-1)
    assert float(lengths.mean()) == pytest.approx(WIDTH, rel=0.4)
    other = GradientStats(WIDTH, seed=1)
    other.add(gradient, rows)
    assert other.sample() != points
    few = measured(gradient[:7], rows[:7]).sample()
    assert [row for _, _, row in few] == [0] * 7


def test_memory_does_not_grow_with_width_times_tokens() -> None:
    geometry = GradientStats(WIDTH, seed=0)
    for part in range(20):
        geometry.add(vectors(1000, seed=part), torch.arange(1000) // 50)
    kept = [value for value in vars(geometry).values() if isinstance(value, Tensor)] + geometry._norms
    assert sum(tensor.numel() for tensor in kept) < 20_000 + 20 * WIDTH + 1000


def test_no_gradients_give_zeros() -> None:
    empty = GradientStats(WIDTH, seed=0)
    empty.add(torch.zeros(0, WIDTH), torch.zeros(0, dtype=torch.long))
    still = measured(torch.zeros(30, WIDTH))
    for geometry in (empty, still):
        assert set(geometry.summary().values()) == {0.0}
    assert empty.sample() == []
    halves = measured(vectors(64).to(torch.bfloat16)).summary()
    assert halves["density"] == pytest.approx(measured(vectors(64)).summary()["density"], rel=0.01)
    with pytest.raises(UsageError, match="do not fit 30 tokens and a width of 64"):
        empty.add(torch.zeros(30, WIDTH + 1), torch.zeros(30, dtype=torch.long))


def test_parts_of_a_step_are_combined() -> None:
    gradient, rows = vectors(300), torch.arange(300) // 10
    gradient[:40] *= 5
    whole = measured(gradient, rows).summary()
    first, second = GradientStats(WIDTH, seed=0), GradientStats(WIDTH, seed=0, share=1)
    first.add(gradient[:120], rows[:120])
    second.add(gradient[120:], rows[120:] - 12)
    travelled = pickle.loads(pickle.dumps(second))  # as sent between processes
    first.add_all([travelled])
    found = first.summary()
    for name in ("density", "bias", "concentration", "top_1_percent", "shared"):
        assert found[name] == pytest.approx(whole[name]), name
    drawn = first.sample()
    assert len(drawn) == 200 and {row for _, _, row in drawn} >= {0, 29}, "tokens of both parts, with their row numbers"
