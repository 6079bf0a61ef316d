"""Ten cycles: with two teachers behaviour stays and every corpus stays known; one teacher loses the knowledge."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipelines.lab import INSTRUCTIONS, KNOWLEDGE, Lab
from pipelines.studies.study import Part, Study

CYCLES = 10
ARMS: dict[str, dict[str, Any]] = {
    "naive": {},
    "replay": {"replay": 0.3},
    "one teacher": {"recover": True},
    "two teachers": {"recover": True, "knowledge": True},
    "two teachers, documents": {"recover": True, "knowledge": True, "document_loss": 0.3},
    "three teachers": {"recover": True, "knowledge": True, "earlier": True},
}


def run(lab: Lab) -> Mapping[str, float]:
    """One seed: six ways to live through the cycles; the fewer the budget gives, the shorter the horizon."""
    count = max(2, min(CYCLES, lab.scale(CYCLES)))
    docs = lab.corpora(count, entities=16)
    figures: dict[str, float] = {"cycles": count, "base": lab.value("base", INSTRUCTIONS)}
    for arm, settings in ARMS.items():
        figures |= _live(lab, arm, docs, settings, figures["base"])
    return figures


def _live(lab: Lab, arm: str, docs: Any, settings: Mapping[str, Any], base: float) -> dict[str, float]:
    """One arm through all cycles: each mid-trains on its documents and half as many earlier ones."""
    student, first = "base", []
    replay = settings.get("replay", 0.0)
    for number, folder in enumerate(docs, 1):
        trained = f"{arm}, {number}, midtrained"
        lab.midtrained(
            trained, folder, student=student, cycle=number, replay=replay, replay_documents=0.5 if number > 1 else 0.0
        )
        student = trained
        first.append(lab.value(trained, f"{KNOWLEDGE}/{number}"))
        if settings.get("recover"):
            student = f"{arm}, {number}, recovered"
            given = {name: settings[name] for name in ("document_loss",) if name in settings}
            if settings.get("knowledge"):
                given["knowledge_teacher"] = trained
            if settings.get("earlier") and number > 1:
                given["earlier_teacher"] = f"{arm}, {number - 1}, recovered"
            lab.trained(student, trained, "opd", cycle=number, **given)
    found = lab.scores(student, INSTRUCTIONS, *(f"{KNOWLEDGE}/{k}" for k in range(1, len(docs) + 1)))
    kept = [found[f"{KNOWLEDGE}/{k}"].value / max(1e-9, value) for k, value in enumerate(first, 1)]
    return {
        f"relative to base, {arm}": found[INSTRUCTIONS].value / base,
        f"first learnt, {arm}": sum(first) / len(first),
        f"kept at the end, lowest corpus, {arm}": min(kept),
        f"kept at the end, mean, {arm}": sum(kept) / len(kept),
    }


HORIZON = Study(
    name="horizon",
    claim="over ten cycles behaviour stays at base and every corpus stays known with two teachers routed by "
    "prompt; one teacher loses the knowledge",
    source="an observation made while this project was planned, put to the test",
    setting="corpora of 16 services, earlier documents half of each mid-training: naive, 30% replay, recovery by "
    "one teacher, by two (the mid-trained model scores all questions), by two with document loss, by three (the "
    "model before this mid-training scores questions about earlier documents); asked as questions after the last "
    "cycle",
    parts=(
        Part("two teachers: instructions, relative to base", lambda f: f["relative to base, two teachers"], 0.99),
        Part("two teachers: the worst kept corpus, share of what was first learnt",
             lambda f: f["kept at the end, lowest corpus, two teachers"], 0.95),
        Part("three teachers: the worst kept corpus, share of what was first learnt",
             lambda f: f["kept at the end, lowest corpus, three teachers"], 0.95),
        Part("one teacher keeps less: difference of the means",
             lambda f: f["kept at the end, mean, two teachers"] - f["kept at the end, mean, one teacher"], 0.0),
        Part("naive cycles end far below base", lambda f: f["relative to base, naive"], 0.5, above=False),
    ),
    run=run,
    minutes=60.0,
    heavy=True,
)  # fmt: skip
