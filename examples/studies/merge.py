"""Separately trained experts are merged into one student by distillation from several teachers, routed by prompt."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from examples.studies.study import INSTRUCTIONS, KNOWLEDGE, Figures, Part, Runner, Study, figure
from recovery.types import Prompt

STEPS = 80


def run(runner: Runner) -> Figures:
    """Run one seed: a model mid-trained on documents, one that mends sentences, the clean one; a student of all."""
    prompts, steps = runner.mending(), runner.scale(STEPS, 10)
    mends = prompts.name
    runner.midtrained("documents", runner.corpora()[0])
    runner.trained("mending", "base", "sft", data=runner.demonstrations(prompts), steps=2 * steps, lr=2e-3)
    runner.trained(
        "merged",
        "documents",
        "opd",
        prompts=runner.prompts("merge", lambda: _routed(runner, "mending", mends)),
        steps=steps,
        experts=("mending=mending",),
        knowledge_teacher="documents",
    )
    alone: dict[str, Any] = {"prompts": prompts, "max_new_tokens": 40, "steps": steps}
    runner.trained("mending alone", "base", "opd", teacher="mending", **alone)
    figures: dict[str, float] = {}
    for suite, expert in ((f"{KNOWLEDGE}/1", "documents"), (mends, "mending"), (INSTRUCTIONS, "base")):
        for name in ("base", "documents", "mending", "merged"):
            figures[f"{suite}, {name}"] = runner.value(name, suite)
        figures[f"{suite}, merged over its expert"] = figures[f"{suite}, merged"] / max(
            1e-9, figures[f"{suite}, {expert}"]
        )
    figures["mending, student of its expert alone, over the expert"] = runner.value("mending alone", mends) / max(
        1e-9, figures[f"{mends}, mending"]
    )
    return figures


def _routed(runner: Runner, tag: str, task: str) -> dict[str, list[Prompt]]:
    """Return a task's prompts and as many ordinary requests; the tag of the task's prompts selects their teacher."""
    found = [replace(p, tags=(tag,)) for p in runner.asked(f"{task}/train")]
    own = runner.own_prompts()
    ordinary = [p for p in own.train if tag not in p.tags][: len(found)]
    return {"train": [*found, *ordinary], "development": list(own.development), "test": list(own.test)}


MERGE = Study(
    name="merge",
    claim="experts trained apart are merged by OPD from several teachers with little loss",
    source="multi-teacher on-policy distillation, as post-training recipes report it",
    setting="a model mid-trained on documents, one trained to mend sentences (SFT, 160 steps, 2e-3), the clean "
    "model for everything else; 80 steps of OPD from the mid-trained model, each prompt scored by its own teacher",
    parts=(
        Part("knowledge: merged over its expert", figure("domain_knowledge/1, merged over its expert"), 0.95),
        Part("mending: merged over its expert", figure("mending, merged over its expert"), 0.95,
             given=Part("that a student of this expert alone comes so far in as many steps: over the expert",
                        figure("mending, student of its expert alone, over the expert"), 0.95)),
        Part("instructions: merged over the clean model",
             figure("instruction_following, merged over its expert"), 0.97),
    ),
    run=run,
)  # fmt: skip
