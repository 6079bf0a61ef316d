"""Where instruction following goes over cycles: which kinds, lost in which stage, given back by what."""

from __future__ import annotations

from typing import Any

from examples.studies.horizon import ARMS, STEPS, TODAY, run_cycle
from examples.studies.study import INSTRUCTIONS, KNOWLEDGE, Figures, Part, Runner, Study, figure, gained, minus

CYCLES, ITEMS = 4, 2000
COPYING = ("keywords:existence", "length_constraints:nth_paragraph_first_word")  # words of the prompt, to be said again
GENTLER: dict[str, dict[str, Any]] = {
    "as today": {},
    "rows of the documents' tokens": {"embeddings": "documents"},
    "no embeddings": {"embeddings": "none"},
    "falling rate": {"schedule": "cosine"},
    "a third of the rate": {"lr": 5e-4},
    "a third of the rate, twice the passes": {"lr": 5e-4, "epochs": 14.0},
    "30% replay": {"replay": 0.3},
    "30% KL replay": {"replay": 0.3, "replay_loss": "kl"},
    "falling rate, 30% KL replay": {"schedule": "cosine", "replay": 0.3, "replay_loss": "kl"},
    "anchor": {"anchor": 0.3},
    "projection": {"project": True},
    "LoRA": {"tuning": "lora"},
}


def run(runner: Runner) -> Figures:
    """Run one seed: four cycles, recoveries of the last student with all else off, gentler second mid-trainings."""
    docs = runner.corpora(CYCLES, entities=16)
    figures: dict[str, float] = {}
    _kinds(runner, "base", "base", figures)
    student = "base"
    for number in range(1, CYCLES + 1):
        student = run_cycle(runner, ARMS[TODAY], TODAY, docs[number - 1], student, number)
        for stage in ("midtrained", "recovered"):
            _kinds(runner, f"{TODAY}, {number}, {stage}", f"cycle {number}, {stage}", figures)
            runner.record(figures)
    copying = _prompts_of(runner, COPYING)
    for name, settings in {"base alone": {}, "base alone, copying prompts": {"prompts": copying}}.items():
        again = f"again: {name}"
        runner.trained(again, student, "opd", cycle=CYCLES, steps=STEPS, **settings)
        _kinds(runner, again, f"{STEPS} more steps, {name}", figures)
        runner.record(figures)
    for name, settings in GENTLER.items():
        trained = f"gentler: {name}"
        runner.midtrained(trained, docs[1], student=f"{TODAY}, 1, recovered", cycle=2, replay_documents=0.5, **settings)
        _kinds(runner, trained, f"mid-training, {name}", figures)
        figures[f"asked, mid-training, {name}"] = runner.value(trained, f"{KNOWLEDGE}/2")
        runner.record(figures)
    return figures


def _prompts_of(runner: Runner, kinds: tuple[str, ...]) -> Any:
    """Return a folder of the model's own prompts that ask for one of some kinds of instruction."""
    own = runner.own_prompts()
    splits = {"train": own.train, "development": own.development, "test": own.test}
    return runner.prompts(
        "copying",
        lambda: {
            name: [p for p in ps if {c.instruction for c in p.checks} & set(kinds)] for name, ps in splits.items()
        },
    )


def _kinds(runner: Runner, name: str, label: str, figures: dict[str, float]) -> None:
    """Add the share of instructions that were followed: all, copying, all others (means over kinds)."""
    by_type = runner.by_type(name, INSTRUCTIONS)
    copying = [by_type[kind] for kind in COPYING if kind in by_type]
    others = [value for kind, value in by_type.items() if kind not in COPYING]
    figures[f"all, {label}"] = runner.value(name, INSTRUCTIONS)
    figures[f"copying, {label}"] = sum(copying) / len(copying)
    figures[f"other kinds, {label}"] = sum(others) / len(others)


LAST = f"cycle {CYCLES}, recovered"
SLIDE = Study(
    name="slide",
    claim="what slides over cycles is the copying of words from the prompt; it is lost in mid-training, where the "
    "embeddings of words that no document contains drift, and more steps of recovery do not give it back",
    source="an observation of the horizon's first cycles of seed 0, which is among the seeds here, put to the test",
    setting=f"{CYCLES} cycles of 16 services with three teachers as in the horizon; from the last student {STEPS} more "
    "steps with base alone, on all prompts and on copying prompts alone; the second mid-training again from the same "
    "student with gentler settings. Copying: keywords:existence and length_constraints:nth_paragraph_first_word",
    parts=(
        Part(
            "copying falls over the cycles, recovered: base less the last",
            minus("copying, base", f"copying, {LAST}"),
            0.05,
        ),
        Part(
            "all other kinds hardly do: base less the last",
            minus("other kinds, base", f"other kinds, {LAST}"),
            0.02,
            above=False,
        ),
        Part(
            f"{STEPS} more steps with base alone do not give copying back: base less that",
            minus("copying, base", f"copying, {STEPS} more steps, base alone"),
            0.03,
            given=gained("copying had fallen", "copying, base", f"copying, {LAST}"),
        ),
        Part(
            "without that drift mid-training loses less of it: copying, gained",
            minus("copying, mid-training, rows of the documents' tokens", "copying, mid-training, as today"),
            0.05,
        ),
        Part(
            "at no cost in knowledge: asked, gained",
            minus("asked, mid-training, rows of the documents' tokens", "asked, mid-training, as today"),
            -0.02,
        ),
        Part(
            "a falling rate loses less in mid-training: all instructions, gained",
            minus("all, mid-training, falling rate", "all, mid-training, as today"),
            0.03,
        ),
        Part(
            "at no cost in knowledge: asked, gained",
            minus("asked, mid-training, falling rate", "asked, mid-training, as today"),
            -0.02,
        ),
        Part(
            "the second mid-training costs much as it is today: all", figure("all, mid-training, as today"), 0.93, False
        ),
    ),
    run=run,
    minutes=40.0,
    heavy=True,
    items=ITEMS,
)
