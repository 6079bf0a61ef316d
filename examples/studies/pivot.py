"""Self-distillation with the answer key collapses without the per-entry clip, and is stable with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from evals.suites import sample
from examples.studies.contexts import passages
from examples.studies.study import Figures, Part, Runner, Study, gained, minus, over
from recovery.miniature.corpora import WORLD_SEED, World
from recovery.types import Prompt

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


def run(runner: Runner) -> Figures:
    """Run one seed: nine forms of OPSD over 100 steps, and the gradient geometry of SFT, RL, OPD and OPSD."""
    prompts = runner.prompts("reading", lambda: _reading(runner.seed))
    asked = sample(runner.asked(prompts.name), 200)
    own: dict[str, Any] = {
        "prompts": prompts,
        "context": "document",
        "max_new_tokens": 16,
        "geometry_every": 5,
        "check_every": EVERY,
        "observe": lambda _step, loaded, engine: {"score": runner.exact_share(asked, loaded, engine)},
    }
    figures = {"base": runner.exact_share(asked, *runner.loaded("base"))}
    for name, form in FORMS.items():
        given: dict[str, Any] = {"entry_clip": 0.0, "steps": runner.scale(STEPS, 20), "alarm": False} | own | form
        runner.trained(name, "base", "opsd", **given)
        scores = [seen["score"] for seen in runner.details(name)["observed"]]
        figures[f"best, {name}"], figures[f"last, {name}"] = max(figures["base"], *scores), scores[-1]
        entropy = [value for _, value in runner.curve(name, "entropy")]
        figures[f"entropy at the end over at first, {name}"] = entropy[-1] / max(1e-9, entropy[0])
    return figures | _geometry(runner, own)


def _reading(seed: int) -> dict[str, list[Prompt]]:
    """Return questions about new services, each with a passage that only the teacher sees."""
    train, test = passages(World(WORLD_SEED), seed)
    return {"test": test, "development": test, "train": train}


def _geometry(runner: Runner, own: Mapping[str, Any]) -> dict[str, float]:
    """Measure the gradient geometry of four methods over their first five steps from the clean model.

    SFT, RL and OPD mend sentences, which the clean model solves half of the time, so that there is a reward signal.
    """
    prompts = runner.mending()
    steps: dict[str, Any] = {"steps": 5, "geometry_every": 1}
    mends = steps | {"prompts": prompts, "max_new_tokens": 40}
    runner.trained("expert", "base", "sft", data=runner.demonstrations(prompts), steps=runner.scale(300, 20), lr=2e-3)
    runner.trained("geometry, sft", "base", "sft", data=runner.demonstrations(prompts), **steps)
    runner.trained("geometry, grpo", "base", "grpo", **mends)
    runner.trained("geometry, opd", "base", "opd", teacher="expert", **mends)
    runner.trained("geometry, opsd", "base", "opsd", **(dict(own) | steps | {"entry_clip": 0.0, "observe": None}))
    figures = {}
    for method in ("sft", "grpo", "opd", "opsd"):
        for measure in ("density", "bias", "bias_null", "top_1_percent", "shared"):
            values = [value for _, value in runner.curve(f"geometry, {method}", f"geometry/{measure}")]
            figures[f"{measure}, {method}"] = sum(values) / max(1, len(values))
    return figures


PIVOT = Study(
    name="pivot",
    claim="self-distillation with an answer key collapses without the per-token clip within about 100 steps and is "
    "stable with it; RL is sparse and unbiased, SFT and OPD dense, OPSD concentrated",
    source="OPSD with a clip of 0.05, as retold in 'PhD for Dummies: On SFT, RL, and on-policy distillation'",
    setting="questions about services the model never read of, a passage with the answer before the teacher's eyes "
    "alone; JSD, forward and reverse KL with and without the clip of 0.05 an entry, the sampled form, a live "
    "teacher, a small batch; 100 steps, exact answers to 200 questions in other wordings; geometry of SFT, GRPO and "
    "OPD on mending",
    parts=(
        Part("without the clip JSD loses half of its best score by step 100: last over best",
             over("last, jsd", "best, jsd"), 0.5, above=False),
        Part("without the clip the forward KL does", over("last, forward", "best, forward"), 0.5, above=False),
        Part("with the clip JSD keeps it: last over best", over("last, jsd, clip", "best, jsd, clip"), 0.9,
             given=gained("it has learnt something with the clip", "best, jsd, clip", "base")),
        Part("RL is sparser than SFT: density over SFT's", over("density, grpo", "density, sft"), 1.0, above=False),
        Part("RL is unbiased: bias over its null", over("bias, grpo", "bias_null, grpo"), 2.0, above=False,
             given=Part("that the measure finds a bias in SFT: over its null", over("bias, sft", "bias_null, sft"),
                        2.0)),
        Part("OPSD is more concentrated than OPD: share of the top 1%, difference",
             minus("top_1_percent, opsd", "top_1_percent, opd"), 0.0),
    ),
    run=run,
)  # fmt: skip
