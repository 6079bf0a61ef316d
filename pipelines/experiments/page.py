"""The page of an experiment, written from the records of its runs."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from evals.comparison import Comparison, Judged, compare
from pipelines.data.question_splits import Question
from pipelines.experiments.run import Measured, Record
from pipelines.reports.document import table_lines
from recovery.errors import UsageError

IFEVAL, OWN, TEXT = "ifeval", "instruction_following", "unrelated_text"
ASKED, STORED = "domain_knowledge", "domain_knowledge_stored"
HELD_FACT, HELD_FORM, CONTROL = "held-out fact/contains", "held-out form/contains", "control/contains"
MISSING, MISSED = "–", "**missed**"
_SHORT = (
    "**One cycle on a part of the documents, with few items in each suite.** It shows that the whole pipeline runs on "
    "a real model; its figures are too coarse for the bounds, which are shown for reference."
)
_OWN_BASE = (
    "Each share is of the same run's own base. Base answers some prompts differently on another processor, so runs on "
    "different ones differ by that as well."
)
# IFEval's mean of strict and loose, prompts and instructions, on the model card, by prefix of the model's name; the
# tolerance of our own measurement. For full weights and responses of 1,280 tokens or more.
PUBLISHED = {"SmolLM2-135M-Instruct": 0.299}
NEAR = 0.04
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


INSTRUCTIONS = suite(IFEVAL, "instruction_strict")
OWN_PROMPTS = suite(OWN, "instruction_strict")
FACTS = suite(ASKED, HELD_FACT, own_corpus=True)
FORMS = suite(ASKED, HELD_FORM, own_corpus=True)
UNTAUGHT = suite(ASKED, CONTROL, own_corpus=True)


def of_earlier(record: Record, cycle: int) -> float | None:
    """Return the smallest retention over the earlier corpora: held-out facts now, relative to after mid-training."""
    now, shares = record.at(cycle, "last"), []
    for earlier in range(1, cycle):
        first = record.at(earlier, "midtrained")
        if now is None or first is None:
            continue
        above, below = (of(one, f"{ASKED}/{earlier}", HELD_FACT) for one in (now, first))
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
AFTER = (
    Bound("recovery: IFEval, instructions strict, relative to base", relative(INSTRUCTIONS, "last"), 0.97, 1.0),
    Bound("recovery: own prompts, instructions strict, relative to base", relative(OWN_PROMPTS, "last"), 0.98, 0.99),
    Bound("recovery: asked, share of what mid-training reached", relative(FACTS, "last", "midtrained"), 0.95, 1.0),
    Bound("recovery: every earlier corpus, asked, share of what was first reached", of_earlier, 0.90, 0.95, first=2),
)
BOUNDS = (
    Bound("mid-training: asked, held-out facts, gained over base", gained(FACTS, "midtrained"), 0.15, None, True),
    Bound("mid-training: asked, control questions, gained over base", gained(UNTAUGHT, "midtrained"), None, None, True),
    Bound("mid-training: own prompts, instructions strict, relative to base", relative(OWN_PROMPTS, "midtrained")),
    *AFTER,
)
# Headings of the bounds on the end of a cycle, by which every arm is compared.
ENDS = tuple(
    zip(("IFEval of base", "own prompts of base", "asked, of mid-training", "earlier corpora"), AFTER, strict=True)
)
BRIEF: tuple[tuple[str, Value], ...] = (
    ("IFEval, instr. strict", INSTRUCTIONS),
    ("own prompts, instr. strict", OWN_PROMPTS),
    ("answers ended", suite(OWN, "ended")),
    ("asked, held-out facts", FACTS),
    ("asked, held-out forms", FORMS),
    ("stored", suite(STORED, own_corpus=True)),
)
COLUMNS = (*BRIEF, ("asked, control", UNTAUGHT), ("bits a byte, plain English", suite(TEXT)))


def page(records: Sequence[Record], main: str, command: str, questions: Sequence[Question] = ()) -> str:
    """Return the page; ``main`` is the arm that is compared with the bounds.

    With the ``questions`` of the records, held-out facts are counted by form as well. Records of short and of whole
    runs are never mixed.
    """
    short = any(record.short for record in records)
    mine = [record for record in records if record.arm == main]
    parts = [
        "# A real instruct model and real documents",
        "",
        f"Written by `{command}` from {len(records)} recorded {'run' if len(records) == 1 else 'runs'}, the newest of "
        f"{max(record.date for record in records)}.",
        "",
        *([_SHORT, ""] if short else []),
        *_runs(records),
    ]
    if mine:
        parts += ["", "## Against the bounds", "", *_bounds(mine), *_base(mine[0])]
    parts += ["", "## Every arm, by the same bounds", "", _OWN_BASE, "", *_by_bounds(records)]
    parts += ["", "## Every arm", "", *_arms(records)]
    if forms := _by_form(records, questions):
        parts += ["", "## Held-out facts after mid-training, by form of question", "", *forms]
    if rivals := _rivals(mine, [record for record in records if record.arm != main]):
        parts += ["", "## Against the other arms, item by item", "", f"Of {mine[0].title}.", "", *rivals]
    for record in mine[:1]:
        parts += ["", "## Paired tests", "", *_paired(record), "", "## Ten prompts, answered", "", *_shown(record)]
    return "\n".join([*parts, ""])


def summary(records: Sequence[Record], main: str) -> str:
    """Return a short table of the arm ``main``: base and each checkpoint of its cycles, with date and machine.

    Raises UsageError if it has no record.
    """
    mine = [record for record in records if record.arm == main]
    if not mine:
        raise UsageError(f"there is no record of the arm {main}: run it with --arms {main}")
    rows = []
    for cycle in range(1, max((record.cycles for record in mine), default=0) + 1):
        for kind in ("base", "midtrained", "recovered"):
            there = [record for record in mine if record.at(0 if kind == "base" else cycle, kind)]
            cells = [[v for r in there if (v := value(r, cycle, kind)) is not None] for _, value in BRIEF]
            name = f"base, asked about corpus {cycle}" if kind == "base" else f"cycle {cycle}, {kind}"
            same = kind == "base" and all(len(set(cell)) <= 1 for cell in cells)
            rows.append([name, *(_cell(cell[:1] if same else cell) for cell in cells)])
    seeds, dates = {record.seed for record in mine}, sorted({record.date for record in mine})
    machines = sorted({record.machine.removeprefix("Machine: ").rstrip(".") for record in mine})
    count = "one seed" if len(seeds) == 1 else f"{len(seeds)} seeds, mean ± spread"
    part = ", **on a part of the documents**" if any(record.short for record in mine) else ""
    model = mine[0].model.removesuffix(".gguf")
    done, wanted = (max(getattr(record, name) for record in mine) for name in ("cycles", "wanted"))
    asked = [f"{row['n']:,} of {name}" for name, row in mine[0].checkpoints[0].suites.items() if name in (IFEVAL, OWN)]
    about = f"{model}, {mine[0].title}{part}: {count}, {done} of {wanted} cycles, prompts: {', '.join(asked)}"
    caption = f"{about}; {', '.join(dates)}; {'; '.join(machines)}."
    return "\n".join([*table_lines(["after", *(name for name, _ in BRIEF)], rows), "", caption])


def _runs(records: Sequence[Record]) -> list[str]:
    inputs = sorted({f"{r.model}, {r.documents.removeprefix('from ')}" for r in records})
    rows = [
        [r.title, str(r.seed), f"{r.cycles} of {r.wanted}", "a part" if r.short else "whole", r.date, r.machine]
        for r in records
    ]
    return [*inputs, "", *table_lines(["arm", "seed", "cycles done", "corpora", "date", "where"], rows)]


def _bounds(records: Sequence[Record]) -> list[str]:
    cycles = range(1, max(record.cycles for record in records) + 1)
    rows = []
    wanted = records[0].wanted
    for bound in (bound for bound in BOUNDS if bound.first <= wanted):
        cells = [[v for r in records if (v := bound.value(r, cycle)) is not None] for cycle in cycles]
        means = [statistics.fmean(cell) for cell in cells if cell]
        reached = "not measured" if not means else _reached(bound, means)
        if means and len(means) < wanted - bound.first + 1:
            reached += f" in {len(means)} of {wanted - bound.first + 1}"
        shown = [_number(bound.must, bound.percent), _number(bound.goal, bound.percent)]
        rows.append([bound.name, *shown, *(_cell(cell, bound.percent) for cell in cells), reached])
    return table_lines(["figure", "must", "goal", *(f"cycle {cycle}" for cycle in cycles), "reached"], rows)


def _base(record: Record) -> list[str]:
    """Return the clean model's IFEval scores next to the published mean."""
    base = record.at(0, "base")
    found = [of(base, IFEVAL, level) if base else None for level in LEVELS.values()]
    known = [value for value in found if value is not None]
    published = next((value for name, value in PUBLISHED.items() if record.model.startswith(name)), None)
    if base is None or len(known) < len(LEVELS):
        return []
    mean = statistics.fmean(known)
    parts = ", ".join(f"{name} {100 * value:.1f}" for name, value in zip(LEVELS, known, strict=True))
    text = f"The clean model on IFEval's {base.suites[IFEVAL]['n']:,} prompts: {parts}; mean {100 * mean:.1f}."
    if published is not None:
        word = "at most" if abs(mean - published) <= NEAR else "**more than**"
        text += (
            f" Its model card reports {100 * published:.1f}, for full weights and responses of any length: "
            f"{word} {100 * NEAR:.0f} points of difference with {record.model}."
        )
    return ["", text]


def _reached(bound: Bound, means: Sequence[float]) -> str:
    if bound.must is None:
        return "shown"
    if not all(mean >= bound.must for mean in means):
        return MISSED
    return "goal" if bound.goal is not None and all(mean >= bound.goal for mean in means) else "must"


def _number(value: float | None, percent: bool) -> str:
    if value is None:
        return ""
    return f"{100 * value:+.0f} points" if percent else f"≥ {value:.2f}"


def _cell(values: Sequence[float], percent: bool = False) -> str:
    """Format the mean ± spread over seeds; of one seed its value."""
    if not values:
        return MISSING
    scale, form = (100, "+.1f") if percent else (1, ".3f")
    spread = f" ± {scale * statistics.stdev(values):{form.removeprefix('+')}}" if len(values) > 1 else ""
    return f"{scale * statistics.fmean(values):{form}}{spread}"


def _by_bounds(records: Sequence[Record]) -> list[str]:
    """Compare the end of each cycle of every arm with the bounds: the means over the seeds, in bold if missed."""
    rows = []
    for arm in dict.fromkeys(record.arm for record in records):
        mine = [record for record in records if record.arm == arm]
        for cycle in range(1, max(record.cycles for record in mine) + 1):
            there = [record for record in mine if record.cycles >= cycle]
            rows.append([mine[0].title, str(cycle), str(len(there)), *(_end(b, there, cycle) for _, b in ENDS)])
    head = [f"{name} {_number(bound.must, bound.percent)}" for name, bound in ENDS]
    return table_lines(["arm", "cycle", "seeds", *head], rows)


def _end(bound: Bound, records: Sequence[Record], cycle: int) -> str:
    values = [value for record in records if (value := bound.value(record, cycle)) is not None]
    missed = values and _reached(bound, [statistics.fmean(values)]) == MISSED
    return f"**{_cell(values)}**" if missed else _cell(values)


def _arms(records: Sequence[Record]) -> list[str]:
    head = ["arm", "after", "seeds", *(name for name, _ in COLUMNS), "tokens trained", "sampled", "hours"]
    rows = []
    with_base = [record for record in records if record.at(0, "base")]
    for cycle in range(1, max((record.cycles for record in with_base), default=0) + 1):
        rows += _base_rows([record for record in with_base if record.cycles >= cycle], cycle)
    for arm in dict.fromkeys(record.arm for record in records):
        mine = [record for record in records if record.arm == arm]
        for cycle in range(1, max(record.cycles for record in mine) + 1):
            for kind in ("midtrained", "recovered"):
                there = [record for record in mine if record.at(cycle, kind)]
                if there:
                    rows.append(_row(there, cycle, kind))
    return table_lines(head, rows)


def _by_form(records: Sequence[Record], questions: Sequence[Question]) -> list[str]:
    """Count the held-out facts that mid-trained models answer, by form of question and by words of the answer."""
    asked = {q.id: q for q in questions if q.use == "test" and not q.control}
    counted: list[tuple[Counter[str], Counter[str]]] = []
    runs: list[int] = []
    for cycle in range(1, max(record.cycles for record in records) + 1):
        name, won, total = f"{ASKED}/{cycle}", Counter[str](), Counter[str]()
        found = [m.items.get(name, {}) for record in records if (m := record.at(cycle, "midtrained"))]
        # Several arms share one mid-training: the same verdicts count once.
        different = [dict(items) for items in {tuple(sorted(one.items())) for one in found}]
        for key, verdicts in ((key, verdicts) for items in different for key, verdicts in items.items()):
            for row in _rows_of(asked[key]) if key in asked else ():
                total[row] += 1
                won[row] += "1" in verdicts
        counted.append((won, total))
        runs.append(len(different))
    names = dict.fromkeys(row for question in asked.values() for row in _rows_of(question))
    rows = [
        [name, *(f"{won[name]} of {total[name]}" if total[name] else MISSING for won, total in counted)]
        for name in sorted(names, key=lambda name: (not name.startswith("form"), name))
    ]
    head = [f"cycle {cycle}: {count} mid-trainings" for cycle, count in enumerate(runs, 1)]
    return table_lines(["questions", *head], rows) if any(total for _, total in counted) else []


def _rows_of(question: Question) -> tuple[str, str, str]:
    """Return the rows in which a question counts; of several accepted answers the shortest decides."""
    single = min(len(answer.split()) for answer in question.answers) == 1
    return f"form: {question.form}", "answer: one word" if single else "answer: more than one word", "in all"


def _base_rows(records: Sequence[Record], cycle: int) -> list[list[str]]:
    """Return a row for each distinct result of base: one model, but processors round differently, and so it answers
    some prompts differently.
    """
    found: dict[tuple[str, ...], set[str]] = {}
    for record in records:
        cells = tuple(_cells(COLUMNS, [record], cycle, "base"))
        found.setdefault(cells, set()).add(record.machine.removeprefix("Machine: ").split(",")[0])
    about = f"asked about corpus {cycle}"
    return [
        [f"base, on {' and '.join(sorted(where))}" if len(found) > 1 else "base", about, "", *cells, "", "", ""]
        for cells, where in found.items()
    ]


def _cells(columns: Sequence[tuple[str, Value]], records: Sequence[Record], cycle: int, kind: str) -> list[str]:
    """Return a checkpoint's cells of some columns over the seeds."""
    return [_cell([v for r in records if (v := value(r, cycle, kind)) is not None]) for _, value in columns]


def _row(records: Sequence[Record], cycle: int, kind: str) -> list[str]:
    cells = _cells(COLUMNS, records, cycle, kind)
    found = [measured.cost for record in records if (measured := record.at(cycle, kind)) is not None]
    costs = [_mean(found, "trained"), _mean(found, "sampled"), _mean(found, "seconds")]
    shown = [f"{value:,.0f}" for value in costs[:2]] + [f"{costs[2] / 3600:.2f}"]
    return [records[0].title, f"cycle {cycle}, {kind}", str(len(records)), *cells, *shown]


def _mean(costs: Sequence[Mapping[str, float]], name: str) -> float:
    return statistics.fmean([cost.get(name, 0.0) for cost in costs])


def _rivals(mine: Sequence[Record], others: Sequence[Record]) -> list[str]:
    """Compare the main arm with each other arm at the end of each cycle that both have, on the same items and seed."""
    rows = []
    for other in others:
        for record in (record for record in mine if record.seed == other.seed):
            for cycle in range(1, min(record.cycles, other.cycles) + 1):
                rows += _against(record, other, cycle)
    head = ["against", "seed", "after cycle", "on", "items", "points (95%)", "lost/won", "p"]
    return table_lines(head, rows) if rows else []


def _against(record: Record, other: Record, cycle: int) -> list[list[str]]:
    """Return the rows of one cycle: instructions, and all questions on the corpora so far."""
    ours, theirs = record.at(cycle, "last"), other.at(cycle, "last")
    if ours is None or theirs is None:
        return []
    on = [(IFEVAL, "instructions"), (OWN, "instructions")]
    on += [(f"{ASKED}/{corpus}", "questions") for corpus in range(1, cycle + 1)]
    found = [_compared(theirs, ours, name, level) for name, level in on]
    return [[other.title, str(record.seed), str(cycle), *_outcome(one)] for one in found if one is not None]


def _outcome(found: Comparison) -> list[str]:
    """Return the cells of a paired comparison: what was compared, items, difference, items lost and won, p."""
    p_value = MISSING if found.p_value is None else f"{found.p_value:.2g}" if found.p_value else "< 1e-15"
    change = f"{100 * found.difference:+.1f} ({100 * found.low:+.1f} to {100 * found.high:+.1f})"
    return [found.name, str(found.n), change, f"{found.lost}/{found.won}", p_value]


def _paired(record: Record) -> list[str]:
    """Compare each checkpoint with base on the same items of the first seed, one row per suite and level."""
    base = record.at(0, "base")
    rows = []
    for measured in record.checkpoints:
        for name, level in ((IFEVAL, "instructions"), (IFEVAL, "prompts"), (OWN, "instructions"), (OWN, "prompts")):
            found = None if base is None or measured is base else _compared(base, measured, name, level)
            if found is not None:
                rows.append([measured.name, *_outcome(found)])
    return table_lines(["checkpoint", "on", "items", "points against base (95%)", "lost/won", "p"], rows)


def _compared(base: Measured, other: Measured, name: str, level: str) -> Comparison | None:
    """Paired comparison of prompts (all instructions followed), of questions (the response contains an accepted
    answer), or of instructions, clustered by prompt.
    """
    sides = []
    for measured in (base, other):
        items: dict[str, Judged] = {}
        for key, verdicts in measured.items.get(name, {}).items():
            if level == "prompts":
                items[key] = Judged(float("0" not in verdicts))
            elif level == "questions":
                items[key] = Judged(float("1" in verdicts))
            else:
                items |= {f"{key}#{at}": Judged(float(word), key) for at, word in enumerate(verdicts)}
        sides.append(items)
    return compare(f"{name}, {level}", *sides)


def _shown(record: Record) -> list[str]:
    """Show the checkpoints' responses as quoted text, so that nothing in them is read as markup."""
    lines = [
        "Every k-th of our own test prompts in the order of their ids, k such that there are ten; not hand-picked."
    ]
    for responses in record.answers:
        lines += ["", *_quoted("prompt", responses["prompt"])]
        for name in (key for key in responses if key != "prompt"):
            lines += ["", *_quoted(name, responses[name])]
        lines += ["", "---"]
    return lines


def _quoted(name: str, text: str) -> list[str]:
    shown = text.strip() or "(nothing)"
    return [f"**{name}**", "", *(f"    {line}" for line in shown.splitlines())]
