"""Mid-training costs instruction following; on-policy distillation recovers it and keeps the knowledge."""

from __future__ import annotations

from typing import Any

from examples.studies.study import INSTRUCTIONS, KNOWLEDGE, Figures, Part, Runner, Study, figure, minus, over

ASKED = f"{KNOWLEDGE}/1"
STEPS = 50


def run(runner: Runner) -> Figures:
    """Run one seed: mid-training with and without replay, then recovery by OPD, SFT and GRPO."""
    docs = runner.corpora()[0]
    runner.midtrained("documents", docs)
    runner.midtrained("replay", docs, replay=0.3)
    steps = runner.scale(STEPS, 5)
    both: dict[str, Any] = {"knowledge_teacher": "documents", "steps": steps}
    runner.trained("opd", "documents", "opd", **both)
    runner.trained("opd-replay", "replay", "opd", **(both | {"knowledge_teacher": "replay"}))
    runner.trained("sft", "documents", "sft", answers="teacher", steps=steps)
    runner.trained("grpo", "documents", "grpo", steps=steps, prompts_per_step=8, samples_per_prompt=8, lr=5e-4)
    base = runner.value("base", INSTRUCTIONS)
    figures = {"base": base, "asked, base": runner.value("base", ASKED)}
    for name in ("documents", "replay", "opd", "opd-replay", "sft", "grpo"):
        found = runner.scores(name, INSTRUCTIONS, ASKED)
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
    "64 answers by OPD (two teachers; 13 of the 64 are to questions about the documents), by SFT on base's answers to "
    "ordinary prompts, by GRPO (8 prompts x 8, at 5e-4; the others at 1.3e-3)",
    parts=(
        Part("mid-training on documents alone costs instruction following: relative to base",
             figure("relative to base, documents"), 0.98, above=False),
        Part("replay keeps most of it: relative to base", figure("relative to base, replay"), 0.97),
        Part("OPD gives it back: relative to base", figure("relative to base, opd"), 0.97),
        Part("OPD keeps the knowledge: share of what was learnt", over("asked, opd", "asked, documents"), 0.95),
        Part("OPD against SFT, relative to base",
             minus("relative to base, opd", "relative to base, sft"), 0.0,
             given=Part("that SFT leaves room above it, relative to base", figure("relative to base, sft"), 0.98,
                        above=False)),
        Part("OPD against GRPO, relative to base", minus("relative to base, opd", "relative to base, grpo"), 0.0,
             given=Part("that GRPO leaves room above it, relative to base", figure("relative to base, grpo"), 0.98,
                        above=False)),
    ),
    run=run,
)  # fmt: skip
