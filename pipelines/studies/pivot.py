"""Self-distillation with the answer key collapses without the per-entry clip, and is stable with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from evals.suites import sample
from pipelines.lab import Lab
from pipelines.studies.study import Part, Study
from pipelines.studies.tasks import demonstrations, exact_share, mending, reading

STEPS, EVERY = 100, 10
CLIP = 0.05
FORMS: dict[str, dict[str, Any]] = {
    "jsd, clip": {"divergence": "jsd", "entry_clip": CLIP},
    "jsd": {"divergence": "jsd"},
    "forward, clip": {"divergence": "forward_kl", "entry_clip": CLIP},
    "forward": {"divergence": "forward_kl"},
    "reverse, clip": {"divergence": "reverse_kl", "entry_clip": CLIP},
    "reverse": {"divergence": "reverse_kl"},
    "sampled": {"divergence": "sampled", "clip": 0.2},
    "jsd, live": {"divergence": "jsd", "teacher": "self"},
    "jsd, small batch": {"divergence": "jsd", "prompts_per_step": 16},
}


def run(lab: Lab) -> Mapping[str, float]:
    """One seed: nine forms of OPSD over 100 steps, and the geometry of SFT, RL, OPD and OPSD at the same start."""
    task = reading(lab)
    asked = sample(lab.asked(task), 200)
    own: dict[str, Any] = {
        "prompts": lab.folder / "prompts" / task,
        "context": "document",
        "max_new_tokens": 16,
        "geometry_every": 5,
        "check_every": EVERY,
        "observe": lambda _step, loaded, engine: {"score": exact_share(loaded, engine, asked)},
    }
    figures = {"base": exact_share(*lab.loaded("base"), asked)}
    for name, form in FORMS.items():
        given: dict[str, Any] = {"entry_clip": 0.0, "steps": lab.scale(STEPS, 20), "alarm": False} | own | form
        lab.trained(name, "base", "opsd", **given)
        scores = [seen["score"] for seen in lab.details(name)["observed"]]
        figures[f"best, {name}"], figures[f"last, {name}"] = max(figures["base"], *scores), scores[-1]
        entropy = [value for _, value in lab.curve(name, "entropy")]
        figures[f"entropy at the end over at first, {name}"] = entropy[-1] / max(1e-9, entropy[0])
    return figures | _geometry(lab, own)


def _geometry(lab: Lab, own: Mapping[str, Any]) -> dict[str, float]:
    """The first five steps of four methods from the clean model: their gradients' shape.

    SFT, RL and OPD mend sentences, which the clean model does half of the time: there is something to reward.
    """
    task = mending(lab)
    steps: dict[str, Any] = {"steps": 5, "geometry_every": 1}
    mends = steps | {"prompts": lab.folder / "prompts" / task, "max_new_tokens": 40}
    lab.trained("expert", "base", "sft", data=demonstrations(lab, task), steps=lab.scale(300, 20), lr=2e-3)
    lab.trained("geometry, sft", "base", "sft", data=demonstrations(lab, task), **steps)
    lab.trained("geometry, grpo", "base", "grpo", **mends)
    lab.trained("geometry, opd", "base", "opd", teacher="expert", **mends)
    lab.trained("geometry, opsd", "base", "opsd", **(dict(own) | steps | {"entry_clip": 0.0, "observe": None}))
    figures = {}
    for method in ("sft", "grpo", "opd", "opsd"):
        for measure in ("density", "bias", "bias_null", "top_1_percent", "shared"):
            values = [value for _, value in lab.curve(f"geometry, {method}", f"geometry/{measure}")]
            figures[f"{measure}, {method}"] = sum(values) / max(1, len(values))
    return figures


PIVOT = Study(
    name="pivot",
    claim="self-distillation with an answer key collapses without the per-token clip within about 100 steps and is "
    "stable with it; RL is sparse and unbiased, SFT and OPD dense, OPSD concentrated",
    source="Will Brown's three dials (OPSD, clip 0.05)",
    setting="questions about services the model never read of, a passage with the answer before the teacher's eyes "
    "alone; JSD, forward and reverse KL with and without the clip of 0.05 an entry, the sampled form, a live "
    "teacher, a small batch; 100 steps, exact answers to 200 questions in other wordings; geometry of SFT, GRPO and "
    "OPD on mending",
    parts=(
        Part("without the clip JSD loses half of its best score by step 100: last over best",
             lambda f: f["last, jsd"] / max(1e-9, f["best, jsd"]), 0.5, above=False),
        Part("without the clip the forward KL does", lambda f: f["last, forward"] / max(1e-9, f["best, forward"]),
             0.5, above=False),
        Part("with the clip JSD keeps it: last over best",
             lambda f: f["last, jsd, clip"] / max(1e-9, f["best, jsd, clip"]), 0.9),
        Part("RL is sparser than SFT: density over SFT's", lambda f: f["density, grpo"] / f["density, sft"],
             1.0, above=False),
        Part("RL is unbiased: bias over its null", lambda f: f["bias, grpo"] / max(1e-9, f["bias_null, grpo"]),
             2.0, above=False),
        Part("OPSD is more concentrated than OPD: share of the top 1%, difference",
             lambda f: f["top_1_percent, opsd"] - f["top_1_percent, opd"], 0.0),
    ),
    run=run,
)  # fmt: skip
