"""Forgetting, retention and the knowledge matrix against values computed by hand."""

from __future__ import annotations

import pytest

from evals.contrasts import paired_contrast
from evals.measurement import Measurement
from pipelines.evaluation.knowledge_figures import KnowledgeMatrix
from pipelines.evaluation.retention import forgetting, retention


def measured(*scores: float, groups: dict[str, str] | None = None) -> Measurement:
    return Measurement({str(i): score for i, score in enumerate(scores)}, groups or {})


def test_forgetting_is_what_the_best_one_before_had_more() -> None:
    now = measured(1, 0, 0, 0, 1, 0, 0, 0, 0, 0)
    base, best = measured(1, 1, 1, 0, 1, 0, 0, 0, 0, 0), measured(1, 1, 1, 1, 1, 0, 0, 0, 0, 1)
    found = forgetting(now, {"base": base, "cycle-1/recovered": best})
    since, lost = found
    assert (since, lost.n) == ("cycle-1/recovered", 10)
    assert lost.value == pytest.approx(0.6 - 0.2)
    assert 0 < lost.low < lost.value < lost.high < 1
    again = forgetting(now, {"base": base})
    assert again is not None and again[1].value == pytest.approx(0.2)
    won = forgetting(best, {"base": base})
    assert won is not None and won[1].value == pytest.approx(-0.2)


def test_retention_is_the_share_that_is_left() -> None:
    now, base = measured(*[1] * 60, *[0] * 40), measured(*[1] * 80, *[0] * 20)
    found = retention(now, base)
    assert (found.value, found.n) == (pytest.approx(0.75), 100)
    # the bounds are the ratios at the rejection limit of the paired test
    for ratio, side in ((found.low, "low"), (found.high, "high")):
        contrast = paired_contrast([*[1] * 60, *[0] * 40], [*[1] * 80, *[0] * 20], factor=ratio, alpha=0.025)
        assert getattr(contrast, side) == pytest.approx(0.0, abs=1e-4)
    # close to the linearised error of a ratio: residuals now − 0.75·base are 0.25 (60 times), −0.75 (20) and 0 (20)
    stderr = (60 * 0.25**2 + 20 * 0.75**2) ** 0.5 / 80
    assert found.low == pytest.approx(0.75 - 1.96 * stderr, abs=0.02)
    assert found.high == pytest.approx(0.75 + 1.96 * stderr, abs=0.02)


def test_where_nothing_changed_the_interval_still_has_a_width() -> None:
    same = measured(*[1] * 50)
    share, lost = retention(same, same), forgetting(same, {"base": same})
    assert share.value == 1.0 and 0.9 < share.low < 1.0
    assert lost[1].value == 0.0 and lost[1].low < 0.0 < lost[1].high < 0.1
    gone = retention(measured(*[0] * 50), same)
    assert gone is not None and (gone.value, gone.low) == (0.0, 0.0) and 0 < gone.high < 0.1


def test_items_of_a_group_count_together() -> None:
    scores = [1, 1, 0, 0, 1, 1, 0, 0] * 10
    now, base = measured(*scores), measured(*[1] * 80)
    pairs = {str(i): f"document {i // 2}" for i in range(80)}
    alone, together = retention(now, base), retention(Measurement(now.items, pairs), base)
    assert alone.value == together.value
    assert together.high - together.low > 1.2 * (alone.high - alone.low)


def test_only_common_items_are_compared() -> None:
    now, base = measured(1, 0, 1), measured(1, 1)
    found = retention(now, base)
    assert found is not None and (found.value, found.n) == (0.5, 2)
    assert forgetting(now, {}) is None
    assert forgetting(now, {"base": Measurement({"other": 1.0})}) is None
    assert retention(now, measured(0, 0, 0)) is None


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
