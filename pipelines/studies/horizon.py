"""Many cycles: two teachers keep behaviour and the knowledge of every corpus; one teacher loses the knowledge."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipelines.studies.experiment import INSTRUCTIONS, KNOWLEDGE, ExperimentRunner
from pipelines.studies.study import Figure, Figures, Part, Study

LONG, SHORT, STEPS = 10, 4, 80
ARMS: dict[str, dict[str, Any]] = {
    "naive": {},
    "replay": {"replay": 0.3},
    "one teacher": {"recover": True},
    "two teachers": {"recover": True, "knowledge": True},
    "two teachers, documents": {"recover": True, "knowledge": True, "document_loss": 0.3},
    "three teachers": {"recover": True, "knowledge": True, "earlier": True},
}


def run(runner: ExperimentRunner) -> Mapping[str, float]:
    """Run one seed: six arms, with ten cycles for seed 0 and four for the others."""
    longest = LONG if runner.seed == 0 else SHORT
    count = max(2, runner.scale(longest))
    docs = runner.corpora(count, entities=16)
    figures: dict[str, float] = {"cycles": count, "base": runner.value("base", INSTRUCTIONS)}
    for arm, settings in ARMS.items():
        first: list[float] = []
        student = "base"
        for number in range(1, count + 1):
            student = _cycle(runner, arm, docs[number - 1], settings, student, number)
            first.append(runner.value(f"{arm}, {number}, midtrained", f"{KNOWLEDGE}/{number}"))
            relative = runner.value(student, INSTRUCTIONS) / figures["base"]
            figures[f"after cycle {number}, relative to base, {arm}"] = relative
            if number in (min(count, SHORT), count):
                figures |= _matrix_row(runner, arm, student, first)
    return figures


def _cycle(
    runner: ExperimentRunner, arm: str, docs: Path, settings: Mapping[str, Any], student: str, number: int
) -> str:
    """Run one cycle of an arm: mid-training, half of it on earlier documents, then recovery if the arm has one."""
    trained = f"{arm}, {number}, midtrained"
    replay, earlier = settings.get("replay", 0.0), 0.5 if number > 1 else 0.0
    runner.midtrained(trained, docs, student=student, cycle=number, replay=replay, replay_documents=earlier)
    if not settings.get("recover"):
        return trained
    given: dict[str, Any] = {name: settings[name] for name in ("document_loss",) if name in settings}
    if settings.get("knowledge"):
        given["knowledge_teacher"] = trained
    if settings.get("earlier") and number > 1:
        given["earlier_teacher"] = student
    recovered = f"{arm}, {number}, recovered"
    runner.trained(recovered, trained, "opd", cycle=number, steps=STEPS, **given)
    return recovered


def _matrix_row(runner: ExperimentRunner, arm: str, student: str, first: Sequence[float]) -> dict[str, float]:
    """Return the knowledge of every corpus so far, relative to right after its mid-training."""
    last = len(first)
    kept = [runner.value(student, f"{KNOWLEDGE}/{k}") / max(1e-9, value) for k, value in enumerate(first, 1)]
    row = {f"after cycle {last}, corpus {k} kept, {arm}": value for k, value in enumerate(kept, 1)}
    return row | {
        f"after cycle {last}, first learnt, mean, {arm}": sum(first) / last,
        f"after cycle {last}, kept, lowest corpus, {arm}": min(kept),
        f"after cycle {last}, kept, mean, {arm}": sum(kept) / last,
    }


def _after(name: str) -> Figure:
    """Return a function for a figure after the number of cycles that every seed runs."""
    return lambda f: f[f"after cycle {min(SHORT, round(f['cycles']))}, {name}"]


def _kept_more(f: Figures) -> float:
    return _after("kept, mean, two teachers")(f) - _after("kept, mean, one teacher")(f)


HORIZON = Study(
    name="horizon",
    claim="over many cycles behaviour stays at base and every corpus stays known with two teachers routed by "
    "prompt; one teacher loses the knowledge",
    source="an observation made while this project was planned, put to the test",
    setting="corpora of 16 services, earlier documents half of each mid-training, 80 steps of recovery: naive, 30% "
    "replay, recovery by one teacher, by two (the mid-trained model scores all questions), by two with document "
    "loss, by three (the model before this mid-training scores questions about earlier documents). Every seed lives "
    "four cycles, by which the statements are judged; seed 0 goes on to ten, whose figures stand for one seed. A "
    "corpus is kept by what is answered of it, as a share of what was when it was learnt",
    parts=(
        Part("two teachers: instructions, relative to base", _after("relative to base, two teachers"), 0.99),
        Part("two teachers: the worst kept corpus, share of what was first learnt",
             _after("kept, lowest corpus, two teachers"), 0.95),
        Part("three teachers: the worst kept corpus, share of what was first learnt",
             _after("kept, lowest corpus, three teachers"), 0.95),
        Part("one teacher keeps less: difference of the means", _kept_more, 0.0),
        Part("naive cycles end far below base", _after("relative to base, naive"), 0.5, above=False),
    ),
    run=run,
    minutes=60.0,
    heavy=True,
)  # fmt: skip
