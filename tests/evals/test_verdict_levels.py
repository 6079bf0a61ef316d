"""Error rates and power of verdicts by simulation, in short; `python -m benchmarks.verdicts` has the whole."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import _verdicts_gate, _verdicts_runs, _verdicts_scores, verdicts
from benchmarks._verdicts_model import Rate, Table, cells, group_tests, in_groups, score_tests, values
from evals.acceptance import judge_all
from evals.acceptance_rules import parse_rule
from evals.contrasts import paired_contrast
from evals.measurement import Evidence, Measurement


def rates(table: Table, *labels: str) -> dict[str, float]:
    """The rates by event of the only row with these labels."""
    found = [rates for row, rates in table.rows if all(label in row for label in labels)]
    assert len(found) == 1, f"{len(found)} rows of {table.title} have {labels}"
    return {rate.event: rate.value for rate in found[0]}


@pytest.mark.parametrize(("base", "factor", "shift"), [(0.9, 0.96, 0.0), (1.0, 0.96, 0.0), (0.3, 1.0, -0.02)])
def test_the_second_score_test_is_the_products(base: float, factor: float, shift: float) -> None:
    counts = np.random.default_rng(0).multinomial(80, cells(base, factor * base + shift, 0.16), size=4)
    for one, mean, statistic in zip(counts, *score_tests(counts, factor, shift), strict=True):
        away = np.repeat(values(factor, shift), one)
        student = np.repeat([1.0, 1.0, 0.0, 0.0], one)
        reference = np.repeat([1.0, 0.0, 1.0, 0.0], one)
        contrast = paired_contrast(student, reference, factor=factor, shift=shift)
        assert (contrast.value, contrast.statistic) == (pytest.approx(away.mean()), pytest.approx(statistic))
        assert mean == pytest.approx(contrast.value)


def test_and_so_it_is_for_groups() -> None:
    draw, sizes = np.random.default_rng(1), np.array([1, 4, 2, 6, 3] * 4)
    items = in_groups(cells(0.8, 0.8, 0.2), sizes, 3, draw)
    groups = np.repeat(np.arange(len(sizes)), sizes).astype(str)
    for one, statistic in zip(items, group_tests(items, sizes, 0.96, 0.0)[1], strict=True):
        contrast = paired_contrast(one < 2, one % 2 == 0, list(groups), factor=0.96)
        assert contrast.statistic == pytest.approx(statistic)


@pytest.mark.parametrize("base", [0.9, 0.3])
def test_a_rule_at_its_bound_is_passed_and_failed_in_one_of_twenty(base: float) -> None:
    counts = np.random.default_rng(2).multinomial(1000, cells(base, 0.96 * base, 0.16), size=8000)
    _, statistic = score_tests(counts, 0.96, 0.0)
    assert (statistic >= 1.645).mean() == pytest.approx(0.05, abs=0.01)
    assert (statistic <= -1.645).mean() == pytest.approx(0.05, abs=0.01)


def test_few_expected_errors_are_judged_by_an_approximation() -> None:
    table = _verdicts_gate.extremes(items=(20,), until=200)
    worst = max(rate.value / (rate.most or 1) for _, found in table.rows for rate in found)
    assert 1 < worst < 2.6, "beyond the level where base is right on all items, by no more than is documented"


@pytest.mark.parametrize(("score", "rule"), [(1.0, "ifeval >= 0.96*base"), (0.0, "ifeval >= 0.96*base")])
def test_twenty_items_alike_decide_nothing(score: float, rule: str) -> None:
    items = Measurement({str(at): score for at in range(20)})
    decision = judge_all([parse_rule(rule)], Evidence({"student": {"ifeval": items}, "base": {"ifeval": items}}))
    assert decision.decision == "undecided"


def test_items_that_only_base_has_change_nothing() -> None:
    draw, rule = np.random.default_rng(3), parse_rule("ifeval >= 0.96*base")
    right, same = draw.random(900) < 0.9, draw.random(900) < 0.9
    base = {str(at): float(one) for at, one in enumerate(right)}
    student = {str(at): float(right[at] if same[at] else not right[at]) for at in range(541)}
    found = [
        judge_all([rule], Evidence({"student": {"ifeval": Measurement(student)}, "base": {"ifeval": Measurement(one)}}))
        for one in (base, {key: base[key] for key in student})
    ]
    assert found[0].verdicts == found[1].verdicts


@pytest.mark.parametrize(("shares", "looks"), [((0.96,), 2), ((0.96,), 4), ((0.96, 0.96, 0.96), 4)])
def test_a_whole_decision_about_students_at_the_bound(shares: tuple[float, ...], looks: int) -> None:
    draw, at = np.random.default_rng(4), [cells(0.9, share * 0.9, 0.16) for share in shares]
    outcome = _verdicts_gate.settle(at, looks, 250, 1000, draw, 500, check=True)
    assert (outcome > 0).mean() < 0.05 + 0.03
    assert (outcome < 0).mean() < 0.05 + 0.03


def test_a_whole_decision_about_a_good_and_a_bad_student() -> None:
    draw = np.random.default_rng(5)
    for share, word in ((1.02, 1), (0.85, -1)):
        outcome = _verdicts_gate.settle([cells(0.9, share * 0.9, 0.16)], 4, 1000, 4000, draw, 100)
        assert (outcome == word).mean() > 0.95


@pytest.mark.parametrize("base", [0.3, 0.8])
def test_the_standard_rules_accept_a_student_as_good_as_base_and_none_at_a_bound(base: float) -> None:
    table = _verdicts_gate.standard(250, 0, [base])
    assert rates(table, "as base")["accepted"] >= 0.8
    for row, found in table.rows:
        assert not any(rate.broken for rate in found), row


def test_comparisons_keep_their_level_where_the_gates_interval_does() -> None:
    table = _verdicts_scores.differences(400, 0, [(200, 4, 4), (200, 8, 0), (100, 1, 0)])
    for _, found in table.rows:
        assert next(one for one in found if "interval" in one.event).value < 0.05 + 0.04
    assert rates(table, "200", "4", "+0.0")["p at most 0.05"] < 0.05
    # rare losses of which none is observed, where a bootstrap would have no width
    assert rates(table, "100", "-1.0")["interval misses"] < 0.05


def test_types_are_corrected_together() -> None:
    table = _verdicts_scores.by_types(400, 0)
    for _, found in table.rows:
        assert found[0].value < 0.05 + 0.03
    assert rates(table, "150", "20")["the first type"] > 0.95


def test_what_is_said_to_be_detectable_is_found_four_times_in_five() -> None:
    table = _verdicts_scores.effects(2000, 0)
    for labels, found in table.rows:
        if labels[1] == "0.5":
            assert found[0].value == pytest.approx(0.8, abs=0.04)


def test_as_many_more_items_as_asked_for_decide_four_times_in_five() -> None:
    for _, found in _verdicts_scores.more_items(400, 0).rows:
        assert found[0].value == pytest.approx(0.8, abs=0.12)


def test_a_statement_at_its_bound_holds_in_one_study_of_forty() -> None:
    draw = np.random.default_rng(7)

    def holds(noise: str) -> float:
        found = _verdicts_runs.NOISES[noise](draw, (1000, 3, 1))
        return float(np.mean([one.verdict == "holds" for one in _verdicts_runs.outcomes(found)]))

    assert holds("normal") < 0.025 + 0.015
    assert holds("exponential, tail below") > 0.06, "three seeds with a tail are another matter"


def test_no_alarm_where_responses_end_and_one_where_they_do_not() -> None:
    draw = np.random.default_rng(6)
    for taught in (True, False):
        runs = [_verdicts_runs.signals(60, 0.98, 1.0, draw) for _ in range(40)]
        assert not any(_verdicts_runs.stops(one, 0.98, taught)[1] for one in runs)
        for one in runs[:10]:
            one["end_rate"][30:] = 0.1
            assert (_verdicts_runs.stops(one, 0.98, taught)[1] or 99) <= 36


def test_entries_beyond_their_promise_are_marked_and_counted() -> None:
    row = (Rate("a", 0.2, 100, most=0.05), Rate("b", 0.09, 100, most=0.05), Rate("c", 0.7, 1000, least=0.8))
    table = Table("T", "note", ("x",), [(("y",), row)])
    assert [rate.broken for rate in row] == [True, False, True]
    assert "**0.2000 ± 0.0400**" in table.text() and "| 0.0900" in table.text()
    assert "2 of 3 entries beyond their promise; the furthest: x y: a" in verdicts.summary([table])
    assert [one["beyond"] for one in table.data()] == [True, False, True]
