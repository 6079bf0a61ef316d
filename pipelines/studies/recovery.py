"""Mid-training costs instruction following; on-policy distillation gives it back and keeps the knowledge."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipelines.lab import INSTRUCTIONS, KNOWLEDGE, Lab
from pipelines.studies.study import Part, Study

ASKED = f"{KNOWLEDGE}/1"
STEPS = 50


def run(lab: Lab) -> Mapping[str, float]:
    """One seed: two mid-trainings, and three ways back from the one on documents alone."""
    docs = lab.corpora()[0]
    lab.midtrained("documents", docs)
    lab.midtrained("replay", docs, replay=0.3)
    steps = lab.scale(STEPS, 5)
    both: dict[str, Any] = {"knowledge_teacher": "documents", "steps": steps}
    lab.trained("opd", "documents", "opd", **both)
    lab.trained("opd-replay", "replay", "opd", **(both | {"knowledge_teacher": "replay"}))
    lab.trained("sft", "documents", "sft", answers="teacher", steps=steps)
    lab.trained("grpo", "documents", "grpo", steps=steps, prompts_per_step=8, samples_per_prompt=8, lr=5e-4)
    base = lab.value("base", INSTRUCTIONS)
    figures = {"base": base, "asked, base": lab.value("base", ASKED)}
    for name in ("documents", "replay", "opd", "opd-replay", "sft", "grpo"):
        found = lab.scores(name, INSTRUCTIONS, ASKED)
        figures[f"relative to base, {name}"] = found[INSTRUCTIONS].value / base
        figures[f"asked, {name}"] = found[ASKED].value
    return figures


RECOVERY = Study(
    name="recovery",
    claim="mid-training costs instruction following; OPD gives it back and keeps the knowledge, better than SFT or "
    "RL",
    source="Thinking Machines, On-Policy Distillation (2025): 85 to 45 to 83 on IFEval, 18 to 43 to 41 on internal "
    "QA",
    setting="34 services in 12 documents each, with and without 30% replay of base's own answers; then 50 steps of "
    "64 answers by OPD (two teachers), by SFT on base's answers to the same prompts, by GRPO (8 prompts x 8)",
    parts=(
        Part("mid-training on documents alone costs instruction following: relative to base",
             lambda f: f["relative to base, documents"], 0.98, above=False),
        Part("replay keeps most of it: relative to base", lambda f: f["relative to base, replay"], 0.97),
        Part("OPD gives it back: relative to base", lambda f: f["relative to base, opd"], 0.97),
        Part("OPD keeps the knowledge: share of what was learnt",
             lambda f: f["asked, opd"] / max(1e-9, f["asked, documents"]), 0.95),
        Part("OPD against SFT on the same prompts, relative to base",
             lambda f: f["relative to base, opd"] - f["relative to base, sft"], 0.0),
        Part("OPD against GRPO, relative to base",
             lambda f: f["relative to base, opd"] - f["relative to base, grpo"], 0.0),
    ),
    run=run,
)  # fmt: skip
