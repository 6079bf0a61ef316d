"""Many cycles: which way of training and recovering keeps behaviour and every corpus, and at what cost.

Each arm is a configuration of a cycle. Arms and the number of cycles can be chosen (``recover study horizon --arms
... --cycles ...``); a run that is done is not repeated, so later calls extend earlier ones.
"""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

from evals.statistics import spread
from examples.studies import line_plot
from examples.studies.page import statements, written_on
from examples.studies.study import INSTRUCTIONS, KNOWLEDGE, Figure, Figures, Outcome, Part, Runner, Study
from pipelines.reports.document import table_lines

CYCLES, EARLY, LATE, STEPS, ITEMS = 10, 4, 20, 80, 1000
DEFAULT = "rows-most-questions-180-steps"  # as `recover cycle` does
TODAY = "three-teachers"  # as it did up to November 2026
FELL, BEHAVIOUR, FIRST, LOWEST, MEAN = (
    "instructions after mid-training",
    "instructions",
    "first learnt",
    "kept, lowest corpus",
    "kept, mean",
)
TOKENS, MIDTRAIN_SECONDS, RECOVERY_SECONDS = "tokens", "seconds of mid-training", "seconds of recovery"
MEASURES = {
    BEHAVIOUR: "instructions followed after the cycle, relative to base",
    FELL: "instructions followed after mid-training, relative to base",
    FIRST: "questions on the cycle's corpus answered after its mid-training",
    LOWEST: "the corpus that is kept worst, share of what was first learnt",
    MEAN: "all corpora so far, share of what was first learnt",
    TOKENS: "tokens of the cycle: sampled, scored and trained",
    MIDTRAIN_SECONDS: "seconds of mid-training",
    RECOVERY_SECONDS: "seconds of recovery",
}


@dataclass(frozen=True)
class Arm:
    """A configuration of a cycle: settings of mid-training and, unless ``recovers`` is off, of the recovery after it.

    ``earlier`` is the share of earlier documents in mid-training from cycle 2 on. ``teachers`` of a recovery:
    1, base alone; 2, the mid-trained model scores all questions; 3, the checkpoint before this mid-training scores
    questions about earlier documents. ``root``: of the questions, those about n earlier corpora are to those about the
    newest as the root of n to 1. ``onward``: the ordinary prompts of a recovery begin where those of the cycle before
    it ended.
    """

    midtrain: Mapping[str, Any] = field(default_factory=dict)
    recovers: bool = True
    earlier: float = 0.5
    teachers: int = 3
    steps: int = STEPS
    distill: Mapping[str, Any] = field(default_factory=dict)
    root: bool = False
    onward: bool = False


_REPLAY = {"replay": 0.3}
_KL = {"replay": 0.3, "replay_loss": "kl"}
_FALLING = {"schedule": "cosine"}  # of the rate; the miniature's own mid-training ends at its peak
_LESS = _FALLING | _KL | {"lr": 1e-3, "replay_focus": 0.5}
_GENTLE = {"lr": 3e-4}
_ROWS, _LAYERS = {"embeddings": "documents"}, {"embeddings": "none"}
_QUESTIONS = _LAYERS | {"earlier_share": 0.5}
_KEEPING = _FALLING | _KL | {"replay_focus": 0.5} | _ROWS
ARMS: dict[str, Arm] = {
    "documents": Arm(recovers=False),
    "replay": Arm(_REPLAY, recovers=False),
    "one-teacher": Arm(teachers=1),
    "two-teachers": Arm(teachers=2),
    "two-teachers-documents": Arm(teachers=2, distill={"document_loss": 0.3}),
    TODAY: Arm(),
    "three-teachers-160-steps": Arm(steps=160),
    "three-teachers-focus": Arm(distill={"focus": 0.5}),
    "replay-two-teachers": Arm(_REPLAY, teachers=2),
    "replay-three-teachers": Arm(_REPLAY),
    "replay-three-teachers-40-steps": Arm(_REPLAY, steps=40),
    "kl-replay-three-teachers": Arm(_KL),
    "cosine-three-teachers": Arm(_FALLING),
    "cosine-kl-replay": Arm(_FALLING | _KL, recovers=False),
    "cosine-kl-replay-two-teachers": Arm(_FALLING | _KL, teachers=2),
    "cosine-kl-replay-three-teachers": Arm(_FALLING | _KL),
    "cosine-kl-replay-three-teachers-gentle": Arm(_FALLING | _KL, steps=40, distill=_GENTLE),
    "rows": Arm(_FALLING | _ROWS, recovers=False),
    "rows-three-teachers": Arm(_FALLING | _ROWS, distill=_LAYERS),
    "rows-questions": Arm(_FALLING | _ROWS, distill=_QUESTIONS | {"knowledge_share": 0.4}),
    "rows-questions-120-steps": Arm(_FALLING | _ROWS, steps=120, distill=_QUESTIONS | {"knowledge_share": 0.3}),
    "rows-questions-150-steps": Arm(_FALLING | _ROWS, steps=150, distill=_QUESTIONS | {"knowledge_share": 0.36}),
    "rows-more-questions-150-steps": Arm(_FALLING | _ROWS, steps=150, distill=_QUESTIONS | {"knowledge_share": 0.45}),
    "rows-most-questions-180-steps": Arm(_FALLING | _ROWS, steps=180, distill=_QUESTIONS | {"knowledge_share": 0.6}),
    "rows-most-questions-blend": Arm(
        _FALLING | _ROWS, steps=180, distill=_QUESTIONS | {"knowledge_share": 0.6, "blend": 0.7}
    ),
    "rows-questions-120-steps-root": Arm(
        _FALLING | _ROWS, steps=120, distill=_QUESTIONS | {"knowledge_share": 0.3}, root=True
    ),
    # As many ordinary prompts and questions about the newest corpus as 120 steps with 30%, and 2.7 times as many about
    # earlier ones.
    "rows-earlier-questions-150-steps": Arm(
        _FALLING | _ROWS, steps=150, distill=_LAYERS | {"earlier_share": 0.73, "knowledge_share": 0.44}
    ),
    # As many tokens as 120, and below 180, steps without the documents: these are neither sampled nor scored.
    "rows-questions-documents": Arm(
        _FALLING | _ROWS, steps=105, distill=_QUESTIONS | {"knowledge_share": 0.3, "document_loss": 0.3}
    ),
    "rows-most-questions-documents": Arm(
        _FALLING | _ROWS, steps=157, distill=_QUESTIONS | {"knowledge_share": 0.6, "document_loss": 0.3}
    ),
    "rows-most-questions-documents-onward": Arm(
        _FALLING | _ROWS,
        steps=157,
        distill=_QUESTIONS | {"knowledge_share": 0.6, "document_loss": 0.3},
        onward=True,
    ),
    "rows-questions-rehearsal": Arm(
        _FALLING | _ROWS, earlier=2 / 3, steps=100, distill=_QUESTIONS | {"knowledge_share": 0.3}
    ),
    "rows-questions-10-epochs": Arm(
        _FALLING | _ROWS | {"epochs": 10.0}, steps=100, distill=_QUESTIONS | {"knowledge_share": 0.3}
    ),
    "rows-kl-three-teachers": Arm(_KEEPING, steps=40, distill=_LAYERS | {"lr": 6e-4, "focus": 0.5}),
    "gentle": Arm(_LESS, recovers=False),
    "gentle-three-teachers": Arm(_LESS, steps=40, distill=_GENTLE | {"focus": 0.5}),
}


def run(runner: Runner) -> Figures:
    """Run one seed of the chosen arms and cycles."""
    count = runner.scale(runner.cycles or CYCLES, least=2)
    docs = runner.corpora(max(count, CYCLES), entities=16)[:count]
    figures: dict[str, float] = {"base": runner.value("base", INSTRUCTIONS)}
    for arm in runner.arms or (DEFAULT,):
        first: list[float] = []
        student = "base"
        for number in range(1, count + 1):
            start, trained = student, f"{arm}, {number}, midtrained"
            student = run_cycle(runner, ARMS[arm], arm, docs[number - 1], start, number)
            first.append(runner.value(trained, f"{KNOWLEDGE}/{number}"))
            found = _figures(runner, trained, student, first, figures["base"])
            figures |= {of(measure, arm, number): value for measure, value in found.items()}
            runner.record(figures)
    return figures


def of(measure: str, arm: str, cycle: int) -> str:
    """Return the name of a figure."""
    return f"{measure}, {arm}, cycle {cycle}"


def run_cycle(runner: Runner, arm: Arm, name: str, docs: Path, start: str, number: int) -> str:
    """Run one cycle: mid-training, partly on earlier documents, then the recovery; return its last checkpoint."""
    trained = f"{name}, {number}, midtrained"
    earlier = arm.earlier if number > 1 else 0.0
    runner.midtrained(trained, docs, student=start, cycle=number, replay_documents=earlier, **arm.midtrain)
    if not arm.recovers:
        return trained
    teachers: dict[str, Any] = {"knowledge_teacher": trained} if arm.teachers > 1 else {}
    if arm.teachers > 2 and number > 1:
        teachers["earlier_teacher"] = start
    settings = dict(arm.distill)
    if arm.root and number > 1:
        root = math.sqrt(number - 1)
        settings["earlier_share"] = root / (1 + root)
    settings |= {"steps": arm.steps, **teachers}
    if arm.onward:
        each = runner.distilling(trained, "opd", settings).behaviour_prompts_total
        settings["prompts_before"] = (number - 1) * each
    recovered = f"{name}, {number}, recovered"
    runner.trained(recovered, trained, "opd", cycle=number, **settings)
    return recovered


def _figures(runner: Runner, trained: str, student: str, first: Sequence[float], base: float) -> dict[str, float]:
    """Return the figures of one cycle, whose corpora were first learnt as ``first``."""
    kept = [runner.value(student, f"{KNOWLEDGE}/{k}") / max(1e-9, value) for k, value in enumerate(first, 1)]
    costs = {name: runner.cost_of(name) for name in (trained, student)}
    return {
        BEHAVIOUR: runner.value(student, INSTRUCTIONS) / base,
        FELL: runner.value(trained, INSTRUCTIONS) / base,
        FIRST: first[-1],
        LOWEST: min(kept),
        MEAN: sum(kept) / len(kept),
        TOKENS: float(sum(cost.sampled + cost.scored + cost.trained for cost in costs.values())),
        MIDTRAIN_SECONDS: costs[trained].seconds,
        RECOVERY_SECONDS: costs[student].seconds if student != trained else 0.0,
    }


def _after(measure: str, arm: str, cycle: int) -> Figure:
    """Return a function for a figure after a cycle."""
    return lambda figures: figures[of(measure, arm, cycle)]


def _learnt(arm: str) -> Figure:
    """Return a function for what is first learnt, the mean over ten corpora."""
    return lambda figures: sum(figures[of(FIRST, arm, number)] for number in range(1, CYCLES + 1)) / CYCLES


def _growth(arm: str) -> Figure:
    """Return a function for the tokens of the tenth cycle relative to the second."""
    return lambda figures: figures[of(TOKENS, arm, CYCLES)] / figures[of(TOKENS, arm, 2)]


def _kept_more(figures: Figures) -> float:
    two, one = (_after(MEAN, arm, EARLY)(figures) for arm in ("two-teachers", "one-teacher"))
    return two - one


def _parts(arm: str) -> tuple[Part, ...]:
    return (
        Part(f"{arm}: instructions after ten cycles, relative to base", _after(BEHAVIOUR, arm, CYCLES), 0.98),
        Part(f"{arm}: the worst of ten corpora, share of what was first learnt", _after(LOWEST, arm, CYCLES), 0.95),
        Part(f"{arm}: asked when first learnt, mean over ten corpora", _learnt(arm), 0.90),
        Part(f"{arm}: tokens of cycle 10 over cycle 2", _growth(arm), 1.3, above=False),
    )


_KNOWN = "after the first runs of twenty cycles"


def _late_parts(arm: str) -> tuple[Part, ...]:
    return (
        Part(
            f"{arm}: instructions after twenty cycles, relative to base",
            _after(BEHAVIOUR, arm, LATE),
            0.98,
            added=_KNOWN,
        ),
        Part(f"{arm}: the worst of twenty corpora, kept", _after(LOWEST, arm, LATE), 0.95, added=_KNOWN),
    )


# The statements of the first version of this study, after four cycles.
_FIRST_PARTS = (
    Part("two-teachers: instructions after four cycles", _after(BEHAVIOUR, "two-teachers", EARLY), 0.99),
    Part("two-teachers: the worst of four corpora, kept", _after(LOWEST, "two-teachers", EARLY), 0.95),
    Part(f"{TODAY}: the worst of four corpora, kept", _after(LOWEST, TODAY, EARLY), 0.95),
    Part("one-teacher keeps less than two after four cycles: difference of the means", _kept_more, 0.0),
    Part("documents alone end far below base after four cycles", _after(BEHAVIOUR, "documents", EARLY), 0.5, False),
)


# --- the page ----------------------------------------------------------------------------------------------

DRAWN = {
    BEHAVIOUR: "Instructions followed, relative to base",
    LOWEST: "Worst corpus, share of what was first learnt",
}
_SETTINGS = ("arm", "settings of mid-training", "earlier documents", "teachers", "steps", "settings of the recovery")
BOUNDS = {DRAWN[BEHAVIOUR]: 0.98, DRAWN[LOWEST]: 0.95}


def page(outcome: Outcome, command: str, picture: str) -> str:
    """Return the page; ``picture`` is the address of its picture."""
    arms = arms_of(outcome)
    runs = [f"{arm}: {_seeds(outcome, arm)}" for arm in arms]
    unrun = [f"`{arm}`" for arm in outcome.study.arms if arm not in arms]
    lines = [
        "# Many cycles",
        "",
        f"Written by `{command}` on {datetime.date.today().isoformat()}, on the miniature. {outcome.study.setting}. "
        f"Suites have at most {outcome.items:,} items.",
        "",
        f"![Behaviour and knowledge over the cycles, by arm]({picture})",
        "",
        *statements(outcome),
        "",
        "Bounds were written down before the first run, except where a statement says otherwise.",
        "",
        f"Cycles by seed: {'; '.join(runs)}. A mean of later cycles is of the seeds that reached them; what ended "
        "early was stopped for another arm ([log](log.md)).",
        "",
        f"Not run: {', '.join(unrun)}." if unrun else "Every arm was run.",
        "",
        "## Arms",
        "",
        *table_lines(_SETTINGS, [_settings(arm, ARMS[arm]) for arm in arms]),
    ]
    for measure, title in MEASURES.items():
        lines += ["", f"## {title[0].upper()}{title[1:]}", "", *_table(outcome, measure)]
    return "\n".join([*lines, "", written_on(outcome.dates), ""])


def picture(outcome: Outcome) -> str:
    """Return the curves of all arms as an SVG file."""
    return line_plot.picture({title: curves(outcome, measure) for measure, title in DRAWN.items()}, BOUNDS)


def arms_of(outcome: Outcome) -> list[str]:
    """Return the arms that were run, in the study's order."""
    return [arm for arm in outcome.study.arms if any(of(BEHAVIOUR, arm, 1) in run for run in outcome.runs.values())]


def curves(outcome: Outcome, measure: str) -> line_plot.Curves:
    """Return a measure's means over the seeds that have each cycle, by arm."""
    return {
        arm: [
            sum(values) / len(values)
            for n in range(1, _cycles(outcome) + 1)
            if (values := _at(outcome, measure, arm, n))
        ]
        for arm in arms_of(outcome)
    }


def _settings(name: str, arm: Arm) -> list[str]:
    """Return all that an arm sets; what is not named is as the miniature's recipe says."""
    recovery = {**arm.distill, **({"earlier_share": "by root"} if arm.root else {})}
    recovery |= {"prompts_before": "by cycle"} if arm.onward else {}
    cells = [name, _named(arm.midtrain), str(Fraction(arm.earlier).limit_denominator(10))]
    if not arm.recovers:
        return [*cells, "–", "–", "none"]
    return [*cells, str(arm.teachers), str(arm.steps), _named(recovery)]


def _named(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in sorted(settings.items())) or "–"


def _table(outcome: Outcome, measure: str) -> list[str]:
    """Return a measure as a table: arms down, cycles across; the mean and the spread over seeds."""
    cycles = range(1, _cycles(outcome) + 1)
    rows = [[arm, *(_cell(_at(outcome, measure, arm, number)) for number in cycles)] for arm in arms_of(outcome)]
    return table_lines(["arm", *map(str, cycles)], rows)


def _cell(values: Sequence[float]) -> str:
    if not values:
        return "–"
    mean, deviation = spread(values)
    if mean >= 100:
        return f"{mean:,.0f}"
    return f"{mean:.3f}" if len(values) == 1 else f"{mean:.3f} ± {deviation:.3f}"


def _at(outcome: Outcome, measure: str, arm: str, cycle: int) -> list[float]:
    name = of(measure, arm, cycle)
    return [run[name] for run in outcome.runs.values() if name in run]


def _cycles(outcome: Outcome) -> int:
    """Return the largest number of cycles of any arm and seed."""
    found = [re.search(r", cycle (\d+)$", name) for run in outcome.runs.values() for name in run]
    return max(int(match[1]) for match in found if match)


def _seeds(outcome: Outcome, arm: str) -> str:
    """Return the seeds of an arm, each with its number of cycles."""
    last = {
        seed: max((n for n in range(1, _cycles(outcome) + 1) if of(BEHAVIOUR, arm, n) in run), default=0)
        for seed, run in outcome.runs.items()
    }
    return ", ".join(f"seed {seed}: {number}" for seed, number in last.items() if number)


HORIZON = Study(
    name="horizon",
    claim="over many cycles behaviour stays at base and every corpus stays known, at a cost that does not grow",
    source="an observation made while this project was planned, put to the test",
    setting="corpora of 16 services; from the second cycle on, earlier documents are half of each mid-training. "
    f"`three-teachers`: {STEPS} steps of recovery, in which base scores ordinary prompts, the mid-trained model "
    "questions about the newest documents, and the model before this mid-training questions about earlier ones. The "
    "other arms are named by what they change most; the table of arms has all of it. "
    "`rows`: mid-training at a falling rate trains, of the embeddings, only "
    "the rows of the documents' tokens, and the recovery none. `questions`: 30 to 40% of the prompts are questions, "
    "half of them about the newest corpus; `more-questions`: 45%; `most-questions`: 60%. `N-steps`: steps of recovery. "
    "`rehearsal`: two thirds earlier documents. `documents`: 30% of a recovery's trained tokens are text of all "
    "documents. `10-epochs`: ten passes. `onward`: a recovery begins behind the ordinary "
    "prompts of those before it. `root`: questions about n earlier corpora and about the newest are in the "
    "ratio of the root of n to 1. `kl`: KL replay. `gentle`: KL replay and lower rates. `blend`: a recovery from 70% "
    f"of mid-training's change. On the miniature `recover cycle` is the arm `{DEFAULT}`. *Kept*: questions about a "
    "corpus that are answered now, "
    "divided by those answered when it was learnt; the recovery asks about the same facts, in other wordings. Settings "
    "were chosen on the seeds that are shown: 120 steps were the default, then 150, then 180",
    parts=(
        *_parts(DEFAULT),
        *_late_parts(DEFAULT),
        *_FIRST_PARTS,
        *(part for arm in ARMS if arm != DEFAULT for part in (*_parts(arm), *_late_parts(arm))),
    ),
    run=run,
    minutes=60.0,
    heavy=True,
    arms=tuple(ARMS),
    items=ITEMS,
    page=page,
    picture=picture,
)
