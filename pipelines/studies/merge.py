"""Experts trained apart are merged into one student by distillation from several teachers, each for its own prompts."""

from __future__ import annotations

from collections.abc import Mapping

from pipelines.lab import INSTRUCTIONS, Lab
from pipelines.studies.study import Part, Study
from pipelines.studies.tasks import arithmetic_prompts, demonstrations, editing_prompts, routed
from pipelines.studies.teachers import TRAINED

STEPS = 80


def run(lab: Lab) -> Mapping[str, float]:
    """One seed: an expert of arithmetic, one of mending, the clean model for the rest; then one student of all."""
    sums, mends = arithmetic_prompts(lab), editing_prompts(lab, TRAINED, "editing")
    steps = lab.scale(STEPS, 10)
    for name, task in (("arithmetic expert", sums), ("editing expert", mends)):
        lab.trained(name, "base", "sft", data=demonstrations(lab, task), steps=4 * steps, lr=2e-3)
    both = lab.prompts("merge", lambda: routed(lab, {"arithmetic": sums, "editing": mends}))
    lab.trained(
        "merged",
        "base",
        "opd",
        prompts=both,
        steps=steps,
        experts=("arithmetic=arithmetic expert", "editing=editing expert"),
    )
    figures: dict[str, float] = {}
    for label, suite, expert in (
        ("arithmetic", sums, "arithmetic expert"),
        ("editing", mends, "editing expert"),
        ("instructions", INSTRUCTIONS, "base"),
    ):
        for name in dict.fromkeys(("base", "arithmetic expert", "editing expert", "merged")):
            figures[f"{label}, {name}"] = lab.value(name, suite)
        figures[f"{label}, merged over its expert"] = figures[f"{label}, merged"] / figures[f"{label}, {expert}"]
    return figures


MERGE = Study(
    name="merge",
    claim="experts trained apart are merged by OPD from several teachers with little loss",
    source="multi-teacher on-policy distillation, as reported of several 2025 and 2026 post-training recipes",
    setting="an expert of arithmetic and one of mending sentences (SFT, 320 steps each), the clean model for "
    "everything else; 80 steps of OPD from the clean model, each prompt scored by the expert its tag names",
    parts=(
        Part("arithmetic: merged over its expert", lambda f: f["arithmetic, merged over its expert"], 0.95),
        Part("editing: merged over its expert", lambda f: f["editing, merged over its expert"], 0.95),
        Part("instructions: merged over the clean model", lambda f: f["instructions, merged over its expert"], 0.97),
    ),
    run=run,
)  # fmt: skip
