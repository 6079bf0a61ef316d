"""Mitigations of forgetting during mid-training, each with and without recovery afterwards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from examples.miniature.tasks import requests
from examples.studies.study import INSTRUCTIONS, KNOWLEDGE, Figure, Figures, Part, Runner, Study, figure, minus
from recovery.types import Prompt

ASKED, STEPS, REPLAYED = f"{KNOWLEDGE}/1", 40, 1000
ARMS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "own replay": {"replay": 0.3, "replay_prompts": REPLAYED},
    "proxy replay": {"replay": 0.3, "replay_prompts": REPLAYED},
    "anchor": {"anchor": 0.3},
    "projection": {"project": True},
    "lora-8": {"tuning": "lora", "lora_rank": 8, "lora_alpha": 16, "lr": 5e-3},
    "lora-32": {"tuning": "lora", "lora_rank": 32, "lora_alpha": 64, "lr": 5e-3},
}


def run(runner: Runner) -> Figures:
    """Run one seed: seven mid-trainings on the same documents, and a recovery after each."""
    docs, steps = runner.corpora()[0], runner.scale(STEPS, 5)
    prompts = runner.prompts("replayed", lambda: _prompts(runner))
    proxy = runner.demonstrations(prompts, "proxy")
    base = runner.value("base", INSTRUCTIONS)
    figures = {"base": base}
    for name, settings in ARMS.items():
        given = settings | ({"replay_data": proxy} if name == "proxy replay" else {})
        runner.midtrained(name, docs, prompts=prompts, **given)
        rate: dict[str, Any] = {"lr": 3e-3} if "lora_rank" in settings else {}
        runner.trained(f"{name}, then opd", name, "opd", knowledge_teacher=name, steps=steps, **rate)
        for which in (name, f"{name}, then opd"):
            found = runner.scores(which, INSTRUCTIONS, ASKED)
            figures[f"relative to base, {which}"] = found[INSTRUCTIONS].value / base
            figures[f"asked, {which}"] = found[ASKED].value
    return figures


def _prompts(runner: Runner) -> dict[str, Sequence[Prompt]]:
    """Return requests with verifiable instructions: base's own replay answers them, proxy replay has the reference."""
    asked = runner.draw("instructed", requests.draw, {"train": REPLAYED})
    own = runner.own_prompts()
    return {"train": asked["train"], "development": own.development, "test": own.test}


def _relative(first: str, second: str) -> Figure:
    return minus(f"relative to base, {first}", f"relative to base, {second}")


def _best(figures: Mapping[str, float]) -> float:
    """Return the best of the mitigations alone."""
    return max(figures[f"relative to base, {name}"] for name in ARMS if name != "nothing")


MITIGATIONS = Study(
    name="mitigations",
    claim="replay of the model's own answers beats proxy replay; LoRA learns less and forgets less; an anchor or a "
    "projection helps; OPD after the fact beats them all",
    source="the provenance gap of replay; LoRA Learns Less and Forgets Less, arXiv 2405.09673; A-GEM, arXiv "
    "1812.00420",
    setting="seven passes over one corpus, with 30% replay (base's own answers, or the world's reference answers), a "
    "KL anchor of 0.3, gradient projection, LoRA of rank 8 and 32; after each 40 steps of OPD with two teachers",
    parts=(
        Part("own replay above proxy replay, relative to base", _relative("own replay", "proxy replay"), 0.0,
             given=Part("that proxy replay leaves room above it, relative to base",
                        figure("relative to base, proxy replay"), 0.97, above=False)),
        Part("LoRA of rank 8 forgets less than full tuning, relative to base", _relative("lora-8", "nothing"), 0.0),
        Part("and learns less: asked, difference", minus("asked, nothing", "asked, lora-8"), 0.0),
        Part("the anchor helps, relative to base", _relative("anchor", "nothing"), 0.0),
        Part("the projection helps, relative to base", _relative("projection", "nothing"), 0.0),
        Part("OPD after the fact is above every mitigation alone, relative to base",
             lambda f: f["relative to base, nothing, then opd"]
             - _best(f), 0.0,
             given=Part("that the best mitigation leaves room above it, relative to base", _best, 0.97, above=False)),
    ),
    run=run,
)  # fmt: skip
