"""The collapse alarm: quiet while a run is well, and sure of what it says when it is not."""

from __future__ import annotations

import json

import pytest

from recovery.alarm import PATIENCE, WINDOW, Alarm

WELL = {"entropy": 0.6, "response_length": 40.0, "end_rate": 0.98, "geometry/density": 0.2, "ratio": 1.0}


def run(alarm: Alarm, *steps: dict[str, float]) -> list[str | None]:
    return [alarm.look(WELL | step) for step in steps]


def test_quiet_while_nothing_happens() -> None:
    alarm = Alarm()
    assert not any(run(alarm, *[{}] * 50))
    assert alarm.sound


@pytest.mark.parametrize(
    ("metric", "value", "said"),
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
def test_each_signal_trips_it_by_name(metric: str, value: float, said: str) -> None:
    alarm = Alarm()
    assert not any(run(alarm, *[{}] * WINDOW))
    reasons = run(alarm, *[{metric: value}] * (WINDOW + PATIENCE))
    assert not alarm.sound
    assert [words.startswith(f"{said} to ") for words in alarm.breaches.values()] == [True]
    found = [reason for reason in reasons if reason]
    assert found and found[0].startswith(f"collapse: {said} to ")
    assert reasons[0] is None, "one bad step is no collapse"


def test_a_student_that_becomes_as_its_teacher_is_no_collapse() -> None:
    brief = {"entropy": 0.1, "response_length": 16.0, "end_rate": 0.95}
    teacher = {"entropy": 0.9, "response_length": 90.0, "end_rate": 0.2}
    asked = []

    def ask() -> dict[str, float]:
        asked.append(1)
        return teacher

    alarm = Alarm(settling=True, teacher=ask)
    run(alarm, *[brief] * WINDOW, *[brief] * 3)
    assert not asked, "nobody is asked while nothing is wrong"
    assert not any(run(alarm, *[teacher] * 30)) and alarm.sound
    memory = json.loads(json.dumps(alarm.memory))
    assert not any(run(Alarm(memory, settling=True, teacher=ask), *[teacher] * 30))
    assert len(asked) == 1, "once, also in a run that is resumed"
    reasons = run(Alarm(memory, settling=True, teacher=ask), *[teacher | {"response_length": 300.0}] * 10)
    assert any(reason and "response length rose to 300" in reason for reason in reasons), "beyond the teacher it is one"
    assert any(run(Alarm(settling=True), *[brief] * WINDOW, *[teacher] * 30)), "who knows no teacher stops"


def test_a_short_breach_passes_and_is_forgotten() -> None:
    alarm = Alarm()
    run(alarm, *[{}] * WINDOW)
    assert not any(run(alarm, *[{"entropy": 20.0}] * 2, *[{}] * 2 * WINDOW))
    assert alarm.sound


def test_a_student_that_settles_on_its_teacher_is_no_collapse() -> None:
    worse = {"entropy": 3.0, "response_length": 120.0, "end_rate": 0.4}
    better = {"entropy": 0.05, "response_length": 15.0, "end_rate": 0.99}
    for settling, expected in ((True, False), (False, True)):
        alarm = Alarm(settling=settling)
        run(alarm, *[worse] * WINDOW)
        assert any(run(alarm, *[better] * 30)) is expected


def test_it_goes_on_after_a_resume_as_if_nothing_had_been() -> None:
    whole, halves = Alarm(), Alarm()
    steps = [{}] * WINDOW + [{"end_rate": 0.1}] * 12
    expected = run(whole, *steps)
    found = run(halves, *steps[:9])
    found += run(Alarm(json.loads(json.dumps(halves.memory))), *steps[9:])
    assert found == expected and any(expected)


def test_missing_metrics_say_nothing() -> None:
    alarm = Alarm()
    assert not any(alarm.look({"loss": 1.0}) for _ in range(30))
    assert alarm.sound
