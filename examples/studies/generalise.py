"""Behaviour recovered on some kinds of instruction transfers to kinds that no recovery prompt has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from examples.studies.study import INSTRUCTIONS, Figures, Part, Runner, Study, figure, minus
from recovery.types import Prompt

HELD_OUT, STEPS = f"{INSTRUCTIONS}/held-out", 50


def run(runner: Runner) -> Figures:
    """Run one seed: a long mid-training, then recovery on prompts without the held-out kinds, by OPD and by SFT."""
    runner.midtrained("documents", runner.corpora()[0], epochs=10.0)
    held_out = _held_out(runner)
    prompts = runner.prompts("without-held-out", lambda: _without(runner, held_out))
    steps = runner.scale(STEPS, 5)
    runner.trained("opd", "documents", "opd", prompts=prompts, steps=steps)
    runner.trained("sft", "documents", "sft", prompts=prompts, steps=steps, answers="teacher")
    runner.trained("opd-all", "documents", "opd", steps=steps)
    figures: dict[str, float] = {}
    for suite, label in ((f"{INSTRUCTIONS}/trained", "trained kinds"), (HELD_OUT, "held-out kinds")):
        base = runner.value("base", suite)
        figures[f"{label}, base"] = base
        for name in ("documents", "opd", "sft", "opd-all"):
            figures[f"{label}, {name}, relative to base"] = runner.value(name, suite) / base
    for name in ("base", "documents", "opd", "sft", "opd-all"):
        types = runner.by_type(name, HELD_OUT)
        figures |= {f"{kind}, {name}": types[kind] for kind in sorted(held_out)}
        trained = runner.by_type(name, f"{INSTRUCTIONS}/trained")
        figures[f"mean over {len(trained)} trained types, {name}"] = sum(trained.values()) / len(trained)
    return figures


def _held_out(runner: Runner) -> set[str]:
    """Return the instruction ids that only held-out test prompts have."""
    test = [p for p in runner.own_prompts().test if p.checks]
    plain = {c.instruction for p in test if "held-out-id" not in p.tags for c in p.checks}
    return {c.instruction for p in test if "held-out-id" in p.tags for c in p.checks} - plain


def _without(runner: Runner, held_out: set[str]) -> dict[str, Sequence[Prompt]]:
    splits = runner.own_prompts()

    def kept(prompts: Sequence[Prompt]) -> list[Prompt]:
        return [p for p in prompts if not held_out & {c.instruction for c in p.checks}]

    return {"train": kept(splits.train), "development": kept(splits.development), "test": splits.test}


def recovered(figures: Mapping[str, float], kind: str, name: str) -> float:
    """Return the share of the loss that was recovered, (r - m) / (b - m), all relative to base."""
    lost = figures[f"{kind}, documents, relative to base"]
    return (figures[f"{kind}, {name}, relative to base"] - lost) / max(1e-9, 1.0 - lost)


GENERALISE = Study(
    name="generalise",
    claim="behaviour recovered on some kinds of instruction carries to held-out kinds, with OPD more than with SFT",
    source="the question behind on-policy distillation's recovery claims; arXiv 2605.22731 on retention",
    setting="mid-training on documents alone (10 passes); 50 steps of recovery on prompts without the held-out "
    "kinds of instruction, which are then measured; beside it recovery on all prompts",
    parts=(
        Part("mid-training costs the held-out kinds: relative to base",
             figure("held-out kinds, documents, relative to base"), 0.95, above=False),
        Part("OPD without them gives back more than half of what they lost",
             lambda f: recovered(f, "held-out kinds", "opd"), 0.5),
        Part("on held-out kinds OPD is above SFT, relative to base",
             minus("held-out kinds, opd, relative to base", "held-out kinds, sft, relative to base"), 0.0),
    ),
    run=run,
)  # fmt: skip
