"""Collapse detection: no alarm in a normal run, a named signal in a collapse."""

from __future__ import annotations

import json

import pytest

from pipelines.distillation.early_stopping import PATIENCE, WINDOW, CollapseDetector, CollapseState

WELL = {"entropy": 0.6, "response_length": 40.0, "end_rate": 0.98, "geometry/density": 0.2, "ratio": 1.0}


def run(alarm: CollapseDetector, *steps: dict[str, float]) -> list[str | None]:
    return [alarm.update(WELL | step) for step in steps]


def stored(alarm: CollapseDetector) -> CollapseState:
    """The state of an alarm as a resumed run reads it."""
    state = CollapseState()
    state.restore(json.loads(json.dumps(alarm.state.state())))
    return state


def test_no_alarm_in_a_normal_run() -> None:
    alarm = CollapseDetector()
    assert not any(run(alarm, *[{}] * 50))
    assert not any(alarm.update({"loss": 1.0}) for _ in range(30)), "metrics that are missing are ignored"
    assert alarm.healthy


@pytest.mark.parametrize(
    ("metric", "value", "description"),
    [
        ("entropy", 0.001, "entropy fell"),
        ("entropy", 5.0, "entropy rose"),
        ("response_length", 128.0, "response length rose"),
        ("response_length", 2.0, "response length fell"),
        ("end_rate", 0.1, "end-token rate fell"),
        ("geometry/density", 0.004, "gradient density fell"),
        ("ratio", 4.0, "importance ratio rose"),
    ],
)
def test_each_signal_raises_the_alarm_by_name(metric: str, value: float, description: str) -> None:
    alarm = CollapseDetector()
    assert not any(run(alarm, *[{}] * WINDOW))
    reasons = run(alarm, *[{metric: value}] * (WINDOW + PATIENCE))
    assert not alarm.healthy
    assert [words.startswith(f"{description} to ") for words in alarm.breaches.values()] == [True]
    found = [reason for reason in reasons if reason]
    assert found and found[0].startswith(f"collapse: {description} to ")
    assert reasons[0] is None, "a single step is not a collapse"


def test_values_of_the_teacher_are_no_collapse() -> None:
    brief = {"entropy": 0.1, "response_length": 16.0, "end_rate": 0.95}
    teacher = {"entropy": 0.9, "response_length": 90.0, "end_rate": 0.2}
    calls = []

    def ask() -> dict[str, float]:
        calls.append(1)
        return teacher

    alarm = CollapseDetector(frozen_teacher=True, teacher=ask)
    run(alarm, *[brief] * WINDOW, *[brief] * 3)
    assert not calls, "the teacher is not sampled without a breach"
    assert not any(run(alarm, *[teacher] * 30)) and alarm.healthy
    resumed = CollapseDetector(frozen_teacher=True, teacher=ask, state=stored(alarm))
    assert not any(run(resumed, *[teacher] * 30))
    assert len(calls) == 1, "once, even in a resumed run"
    reasons = run(resumed, *[teacher | {"response_length": 300.0}] * 10)
    assert any(reason and "response length rose to 300" in reason for reason in reasons), (
        "beyond the teacher's value it is a collapse"
    )
    assert any(run(CollapseDetector(frozen_teacher=True), *[brief] * WINDOW, *[teacher] * 30)), (
        "without a teacher the run stops"
    )


def test_a_short_breach_has_no_effect() -> None:
    alarm = CollapseDetector()
    run(alarm, *[{}] * WINDOW)
    assert not any(run(alarm, *[{"entropy": 20.0}] * 2, *[{}] * 2 * WINDOW))
    assert alarm.healthy


def test_settling_on_the_teacher_is_no_collapse() -> None:
    worse = {"entropy": 3.0, "response_length": 120.0, "end_rate": 0.4}
    better = {"entropy": 0.05, "response_length": 15.0, "end_rate": 0.99}
    for frozen_teacher, expected in ((True, False), (False, True)):
        alarm = CollapseDetector(frozen_teacher=frozen_teacher)
        run(alarm, *[worse] * WINDOW)
        assert any(run(alarm, *[better] * 30)) is expected


def test_a_resume_changes_nothing() -> None:
    whole, halves = CollapseDetector(), CollapseDetector()
    steps = [{}] * WINDOW + [{"end_rate": 0.1}] * 12
    expected = run(whole, *steps)
    found = run(halves, *steps[:9])
    found += run(CollapseDetector(state=stored(halves)), *steps[9:])
    assert found == expected and any(expected)
