"""The figures of an experiment's checkpoints, and the bounds that they are compared with."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from evals.beyond_constant import DETAIL
from pipelines.data.question_splits import Question
from pipelines.experiments.records import Measured, Record

IFEVAL, OWN, TEXT = "ifeval", "instruction_following", "unrelated_text"
ASKED, STORED, STALE = "domain_knowledge", "domain_knowledge_stored", "stale_answers"
HELD_FACT, HELD_FORM, CONTROL = "held-out fact/contains", "held-out form/contains", "control/contains"
RECOGNISED_FACT, CHANCE = "held-out fact/recognised", "recognised/chance"
MISSED = "**missed**"
MISSING = "–"
Value = Callable[[Record, int, str], float | None]


@dataclass(frozen=True)
class Bound:
    """A row of the table of bounds: a value of each cycle from ``first``, its required bound and its goal."""

    name: str
    value: Callable[[Record, int], float | None]
    must: float | None = None
    goal: float | None = None
    percent: bool = False
    first: int = 1


def suite(name: str, detail: str = "", own_corpus: bool = False) -> Value:
    """Return a function that reads a suite's score of a checkpoint; ``own_corpus``: on the cycle's own corpus."""

    def value(record: Record, cycle: int, kind: str) -> float | None:
        found = record.at(0 if kind == "base" else cycle, kind)
        return None if found is None else of(found, f"{name}/{cycle}" if own_corpus else name, detail)

    return value


def of(measured: Measured, name: str, detail: str = "") -> float | None:
    """Return a checkpoint's score of a suite, or one of its details."""
    row = measured.suites.get(name)
    if row is None:
        return None
    found = row["details"].get(detail) if detail else row["value"]
    return None if found is None else float(found)


def relative(value: Value, kind: str, to: str = "base") -> Callable[[Record, int], float | None]:
    """Return a function for a cycle's score as a share of another checkpoint's."""

    def ratio(record: Record, cycle: int) -> float | None:
        above, below = value(record, cycle, kind), value(record, cycle, to)
        return above / below if above is not None and below else None

    return ratio


def gained(value: Value, kind: str) -> Callable[[Record, int], float | None]:
    """Return a function for a cycle's score minus base's."""

    def difference(record: Record, cycle: int) -> float | None:
        after, before = value(record, cycle, kind), value(record, cycle, "base")
        return after - before if after is not None and before is not None else None

    return difference


def kept(record: Record, cycle: int, detail: str = HELD_FACT) -> float | None:
    """Return the share of what mid-training reached, held-out facts, that the recovery leaves; None without one."""
    if record.at(cycle, "recovered") is None:
        return None
    return relative(suite(ASKED, detail, own_corpus=True), "recovered", "midtrained")(record, cycle)


INSTRUCTIONS = suite(IFEVAL, "instruction_strict")
OWN_PROMPTS = suite(OWN, "instruction_strict")
BEYOND, OWN_BEYOND = suite(IFEVAL, DETAIL), suite(OWN, DETAIL)
FACTS = suite(ASKED, HELD_FACT, own_corpus=True)
FORMS = suite(ASKED, HELD_FORM, own_corpus=True)
UNTAUGHT = suite(ASKED, CONTROL, own_corpus=True)


def of_earlier(record: Record, cycle: int, detail: str = HELD_FACT) -> float | None:
    """Return the smallest retention over the earlier corpora: held-out facts now, relative to after mid-training."""
    now, shares = record.at(cycle, "last"), []
    for earlier in range(1, cycle):
        first = record.at(earlier, "midtrained")
        if now is None or first is None:
            continue
        above, below = (of(one, f"{ASKED}/{earlier}", detail) for one in (now, first))
        if above is not None and below:
            shares.append(above / below)
    return min(shares, default=None)


LEVELS = {
    "prompts strict": "",
    "prompts loose": "prompt_loose",
    "instructions strict": "instruction_strict",
    "instructions loose": "instruction_loose",
}
# The bounds on the end of a cycle.
IFEVAL_KEPT = Bound(
    "recovery: IFEval, instructions strict, relative to base", relative(INSTRUCTIONS, "last"), 0.97, 1.0
)
AFTER = (
    IFEVAL_KEPT,
    Bound("recovery: own prompts, instructions strict, relative to base", relative(OWN_PROMPTS, "last"), 0.98, 0.99),
    Bound("recovery: held-out facts answered, relative to mid-trained", kept, 0.95, 1.0),
    Bound(
        "recovery: held-out facts of every earlier corpus, relative to first learnt", of_earlier, 0.90, 0.95, first=2
    ),
)
# The same by whole prompts, as a gate counts them: shown beside the bounds.
PROMPTS = tuple(
    Bound(f"recovery: {title}, prompts strict, relative to base", relative(suite(name), "last"))
    for name, title in ((IFEVAL, "IFEval"), (OWN, "own prompts"))
)
# Of the instructions that no constant reply follows: what a model follows, not what its replies keep by chance.
BEYOND_CONSTANT = tuple(
    Bound(f"recovery: {title}, instructions beyond constant replies, relative to base", relative(value, "last"))
    for value, title in ((BEYOND, "IFEval"), (OWN_BEYOND, "own prompts"))
)
CONTROLS = Bound(
    "mid-training: asked, control questions, gained over base", gained(UNTAUGHT, "midtrained"), percent=True
)
# The same facts where the right answer has only to be preferred to those to other questions.
RECOGNISED = (
    Bound(
        "mid-training: recognised among up to eight answers, held-out facts, gained over base",
        gained(suite(ASKED, RECOGNISED_FACT, own_corpus=True), "midtrained"),
        percent=True,
    ),
    Bound("recovery: held-out facts recognised, relative to mid-trained", partial(kept, detail=RECOGNISED_FACT)),
    Bound(
        "recovery: held-out facts of every earlier corpus recognised, relative to first learnt",
        partial(of_earlier, detail=RECOGNISED_FACT),
        first=2,
    ),
)
LEARNT = Bound("mid-training: asked, held-out facts, gained over base", gained(FACTS, "midtrained"), 0.15, None, True)
BOUNDS = (
    LEARNT,
    CONTROLS,
    Bound("mid-training: own prompts, instructions strict, relative to base", relative(OWN_PROMPTS, "midtrained")),
    *AFTER,
    *PROMPTS,
    *BEYOND_CONSTANT,
    *RECOGNISED,
)
# Headings of the bounds by which every arm is compared.
COMPARED = (
    ("held-out facts gained in mid-training", LEARNT),
    *zip(("IFEval of base", "own prompts of base", "asked, of mid-training", "earlier corpora"), AFTER, strict=True),
)
COLUMNS: tuple[tuple[str, Value], ...] = (
    ("IFEval, instr. strict", INSTRUCTIONS),
    ("IFEval, beyond constant", BEYOND),
    ("own prompts, instr. strict", OWN_PROMPTS),
    ("answers ended", suite(OWN, "ended")),
    ("asked, held-out facts", FACTS),
    ("asked, held-out forms", FORMS),
    ("asked, control", UNTAUGHT),
    ("stored", suite(STORED, own_corpus=True)),
    ("bits per byte, plain English", suite(TEXT)),
)


def reached(bound: Bound, means: Sequence[float]) -> str:
    """Return whether the means of all cycles reach the goal or the bound; "shown" if there is none."""
    if bound.must is None:
        return "shown"
    if not all(mean >= bound.must for mean in means):
        return MISSED
    return "goal" if bound.goal is not None and all(mean >= bound.goal for mean in means) else "must"


def answered(record: Record, cycle: int, kind: str, corpus: int, questions: Sequence[Question]) -> tuple[int, int]:
    """Return how many questions about held-out facts of a corpus a checkpoint answers, and how many it was asked."""
    found = record.at(cycle, kind)
    asked = {} if found is None else held_out(found.items.get(f"{ASKED}/{corpus}", {}), questions)
    return sum("1" in verdicts for verdicts in asked.values()), len(asked)


def held_out(items: Mapping[str, str], questions: Sequence[Question]) -> dict[str, str]:
    """Return the verdicts of the questions about held-out facts."""
    facts = {question.id for question in questions if question.use == "test" and not question.control}
    return {name: verdicts for name, verdicts in items.items() if name in facts}
