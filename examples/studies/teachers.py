"""Students of an SFT teacher and of an RL teacher reach the same scores, and forget less than the SFT teacher."""

from __future__ import annotations

from typing import Any

from nltk import metrics

from evals.generation import answer
from examples.miniature.tasks.editing import CORRUPTIONS
from examples.studies.study import Figures, Part, Runner, Study, figure, gained, minus

TRAINED = ("swap-letters", "drop-letter", "double-letter", "shout", "two-slips")
HELD_OUT = tuple(name for name in ("split-word", "reverse-word", "drop-vowels", "three-slips") if name in CORRUPTIONS)
STEPS = 60
RUNS = ("sft-teacher", "rl-teacher", "opd-of-sft", "opd-of-rl")


def run(runner: Runner) -> Figures:
    """Run one seed: two teachers of minimal editing, and a student of each."""
    prompts, steps = runner.mending(TRAINED, "editing"), runner.scale(STEPS, 5)
    task, other = prompts.name, runner.mending(HELD_OUT, "editing-held-out").name
    own: dict[str, Any] = {"prompts": prompts, "max_new_tokens": 40}
    runner.trained("sft-teacher", "base", "sft", data=runner.demonstrations(prompts), steps=4 * steps, lr=2e-3)
    runner.trained("rl-teacher", "base", "grpo", steps=2 * steps, lr=5e-4, reward="exact", **own)
    runner.trained("opd-of-sft", "base", "opd", teacher="sft-teacher", steps=steps, **own)
    runner.trained("opd-of-rl", "base", "opd", teacher="rl-teacher", steps=steps, **own)
    figures: dict[str, float] = {}
    for name in ("base", *RUNS):
        for suite, label in ((task, "trained damage"), (other, "held-out damage")):
            figures[f"mended, {label}, {name}"] = runner.value(name, suite)
            figures[f"edit distance, {label}, {name}"] = _distance(runner, name, suite)
        if name != "base":
            figures[f"retention, {name}"] = runner.retention(name)
    for name in ("rl-teacher", "opd-of-rl"):
        figures[f"entropy after a quarter, {name}"] = _left(runner.curve(name, "entropy"))
    return figures | runner.points(RUNS, task)


def _distance(runner: Runner, name: str, suite: str) -> float:
    """Return the mean normalised Levenshtein distance from the response to the reference sentence; 0 is perfect."""
    loaded, engine = runner.loaded(name)
    asked = runner.asked(suite)[:200]
    responses = answer(loaded.chat, engine, [p.messages for p in asked], max_new_tokens=40, window=loaded.max_length)
    pairs = [(r.text, p.answer or "") for r, p in zip(responses, asked, strict=True)]
    return sum(metrics.edit_distance(*pair) / max(1, *map(len, pair)) for pair in pairs) / len(asked)


def _left(curve: list[tuple[int, float]]) -> float:
    """Return the entropy after a quarter of a run, relative to its start."""
    values = [value for _, value in curve]
    return values[len(values) // 4] / max(1e-9, values[0])


LOST = Part("that the SFT teacher has forgotten something: retention", figure("retention, sft-teacher"), 0.97,
            above=False)  # fmt: skip


TEACHERS = Study(
    name="teachers",
    claim="students of an SFT teacher and of an RL teacher end alike and forget less than the SFT teacher; entropy "
    "falls faster under OPD than under RL",
    source="SFT, RL, and On-Policy Distillation Through a Distributional Lens (minimal editing)",
    setting="mending damaged sentences (five kinds of damage trained, four held out): SFT on sound sentences (240 "
    "steps, 2e-3), GRPO with an exact-match reward (120 steps, 5e-4), then 60 steps of OPD from each into the clean "
    "model",
    parts=(
        Part("the student of the SFT teacher learns to mend, trained damage: above base by",
             minus("mended, trained damage, opd-of-sft", "mended, trained damage, base"), 0.0),
        Part("the two students mend alike, trained damage: absolute difference",
             lambda f: abs(f["mended, trained damage, opd-of-sft"] - f["mended, trained damage, opd-of-rl"]),
             0.05, above=False,
             given=gained("the RL teacher has learnt to mend", "mended, trained damage, rl-teacher",
                          "mended, trained damage, base")),
        Part("the student of the SFT teacher keeps more than its teacher: difference in retention",
             minus("retention, opd-of-sft", "retention, sft-teacher"), 0.0, given=LOST),
        Part("the student of the RL teacher keeps more than the SFT teacher: difference in retention",
             minus("retention, opd-of-rl", "retention, sft-teacher"), 0.0,
             given=gained("the student of the RL teacher has learnt to mend", "mended, trained damage, opd-of-rl",
                          "mended, trained damage, base")),
        Part("entropy falls faster under OPD than under RL: share left after a quarter, difference",
             minus("entropy after a quarter, rl-teacher", "entropy after a quarter, opd-of-rl"), 0.0),
    ),
    run=run,
)  # fmt: skip
