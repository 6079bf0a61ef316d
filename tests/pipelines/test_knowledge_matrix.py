"""The knowledge matrix against values computed by hand."""

from __future__ import annotations

import pytest

from pipelines.evaluation.knowledge_figures import KnowledgeMatrix

THREE = KnowledgeMatrix(
    cycles=(1, 2, 4),  # cycle 3 was rejected
    rows=({1: 0.9}, {1: 0.8, 2: 0.6}, {1: 0.7, 2: 0.65, 4: 0.9}),
    chance={1: 0.1, 2: 0.0, 4: 0.1},
)


def test_the_figures_are_those_of_the_papers() -> None:
    assert THREE.average == pytest.approx((0.7 + 0.65 + 0.9) / 3)
    assert THREE.backward_transfer == pytest.approx(((0.7 - 0.9) + (0.65 - 0.6)) / 2)
    assert THREE.forgetting(1) == pytest.approx(0.2)
    assert THREE.forgetting(2) == pytest.approx(-0.05)
    assert THREE.forgetting(4) is None
    assert THREE.kept(1) == pytest.approx(0.6 / 0.8)


def test_chance_is_taken_off() -> None:
    assert THREE.corrected(0.1, 1) == 0.0
    assert THREE.corrected(1.0, 1) == 1.0
    record = THREE.to_json()
    assert record["average_corrected"] == pytest.approx(((0.6 / 0.9) + 0.65 + (0.8 / 0.9)) / 3)
    assert record["forgetting"] == {"1": pytest.approx(0.2), "2": pytest.approx(-0.05)}


def test_nothing_learnt_is_said_as_nothing() -> None:
    empty = KnowledgeMatrix((), (), {})
    assert (empty.average, empty.backward_transfer, empty.forgetting(1)) == (None, None, None)
    assert empty.to_json()["average_corrected"] is None
    one = KnowledgeMatrix((1,), ({1: 0.5},), {})
    assert (one.average, one.backward_transfer) == (0.5, None)
