"""The tables of an experiment's page: runs, bounds, arms, questions by corpus and by form."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from evals.beyond_constant import DETAIL, ECHO
from pipelines.data.question_splits import Question
from pipelines.experiments.bounds import (
    ASKED,
    BEYOND,
    BOUNDS,
    CHANCE,
    COLUMNS,
    COMPARED,
    IFEVAL,
    LEVELS,
    MISSED,
    MISSING,
    OWN,
    OWN_BEYOND,
    RECOGNISED_FACT,
    Bound,
    Value,
    answered,
    held_out,
    of,
    reached,
    relative,
)
from pipelines.experiments.page_cells import (
    arm_names,
    at_each,
    bound_means,
    bound_values,
    checkpoint_name,
    machine_name,
    mean_cell,
    number,
    percent_cell,
    row_cells,
    seed_count,
    title,
)
from pipelines.experiments.paired import share_of_base
from pipelines.experiments.records import CleanScores, Record
from pipelines.reports.document import table_lines

# IFEval's mean of strict and loose, prompts and instructions, on the model card, by prefix of the model's name; the
# tolerance of our own measurement. For full weights and responses of 1,280 tokens or more.
PUBLISHED = {"SmolLM2-135M-Instruct": 0.299}
NEAR = 0.04
_HOURS = ("hours, CPU", "hours, GPU")


def runs_table(records: Sequence[Record]) -> list[str]:
    inputs = sorted({f"{r.model}, {r.documents.removeprefix('from ')}" for r in records})
    rows = [
        [
            *(f"`{r.arm}`", title(r), str(r.seed), f"{r.cycles} of {r.wanted}"),
            *("a part" if r.short else f"each in {r.cut}" if r.cut > 1 else "whole", r.date, r.machine),
        ]
        for r in records
    ]
    return [*inputs, "", *table_lines(["arm", "what it is", "seed", "cycles done", "corpora", "date", "where"], rows)]


def bounds_table(records: Sequence[Record]) -> list[str]:
    cycles = range(1, max(record.cycles for record in records) + 1)
    rows = []
    wanted = records[0].wanted
    for bound in (bound for bound in BOUNDS if bound.first <= wanted):
        cells, means = bound_values(bound, records, len(cycles)), bound_means(bound, records, len(cycles))
        if bound.must is None and not means:
            continue
        result = "not measured" if not means else reached(bound, means)
        if means and len(means) < wanted - bound.first + 1:
            result += f" in {len(means)} of {wanted - bound.first + 1}"
        shown = [number(bound.must, bound.percent), number(bound.goal, bound.percent)]
        rows.append([bound.name, *shown, *(mean_cell(cell, bound.percent) for cell in cells), result])
    there = [sum(record.cycles >= cycle for record in records) for cycle in cycles]
    unequal = len(set(there)) > 1
    names = [f"cycle {n}" + (f", {seed_count(one)}" if unequal else "") for n, one in enumerate(there, 1)]
    return table_lines(["figure", "must", "goal", *names, "reached"], rows)


def clean_model(record: Record, clean: Sequence[CleanScores]) -> list[str]:
    """Return the clean model's IFEval scores next to the published mean: the record's, and others of the same model."""
    base = record.at(0, "base")
    found = _levels(base.suites[IFEVAL]) if base and IFEVAL in base.suites else None
    if base is None or found is None:
        return []
    published = next((value for name, value in PUBLISHED.items() if record.model.startswith(name)), None)
    prompts = f"{base.suites[IFEVAL]['n']:,} prompts, in the run of seed {record.seed}"
    text = f"The clean model on IFEval's {prompts}: {found[0]}."
    if published is None:
        return ["", text]
    text += (
        f" Its model card reports {100 * published:.1f}, for full weights and responses of 1,280 tokens or more; "
        f"this is {record.model} with shorter ones. {_near(found[1], published)}"
    )
    for one in clean:
        alike = one.model == record.model and one.ifeval["n"] == base.suites[IFEVAL]["n"]
        again = _levels(one.ifeval) if alike else None
        if again is not None:
            text += (
                f" With responses of at most {one.tokens:,} tokens ({one.date}. {one.machine.rstrip('.')}): {again[0]}."
                f" {_near(again[1], published)}"
            )
    return ["", text]


def _levels(suite: Mapping[str, Any]) -> tuple[str, float] | None:
    """Return IFEval's four scores and their mean as text, and the mean; None if one is missing."""
    scores = {"": suite["value"], **suite["details"]}
    if any(scores.get(level) is None for level in LEVELS.values()):
        return None
    mean = statistics.fmean(scores[level] for level in LEVELS.values())
    parts = ", ".join(f"{name} {100 * scores[level]:.1f}" for name, level in LEVELS.items())
    return f"{parts}; mean {100 * mean:.1f}", mean


def _near(mean: float, published: float) -> str:
    word = "At most" if abs(mean - published) <= NEAR else "**More than**"
    return f"{word} {100 * NEAR:.0f} points of difference."


def arms_by_bounds(records: Sequence[Record]) -> list[str]:
    """Compare each cycle of every arm with the bounds: the means over the seeds, in bold if missed."""
    rows = []
    for arm in arm_names(records):
        mine = [record for record in records if record.arm == arm]
        for cycle in range(1, max(record.cycles for record in mine) + 1):
            there = [record for record in mine if record.cycles >= cycle]
            rows.append([f"`{arm}`", str(cycle), str(len(there)), *(judged(b, there, cycle) for _, b in COMPARED)])
    head = [f"{name} {number(bound.must, bound.percent)}" for name, bound in COMPARED]
    return table_lines(["arm", "cycle", "seeds", *head], rows)


def judged(bound: Bound, records: Sequence[Record], cycle: int) -> str:
    values = [value for record in records if (value := bound.value(record, cycle)) is not None]
    missed = values and reached(bound, [statistics.fmean(values)]) == MISSED
    shown = mean_cell(values, bound.percent)
    return f"**{shown}**" if missed else shown


def beyond_table(records: Sequence[Record]) -> list[str]:
    """Return each arm's instructions beyond constant replies, relative to base: IFEval after each stage, with the 95%
    interval about the prompts, and own prompts; no lines if no record has them.
    """
    rows = []
    for arm in arm_names(records):
        mine = [record for record in records if record.arm == arm]
        for cycle in range(1, max(record.cycles for record in mine) + 1):
            cells = [
                _share_cell(mine, cycle, kind, value, name)
                for name, value in ((IFEVAL, BEYOND), (OWN, OWN_BEYOND))
                for kind in ("midtrained", "recovered")
            ]
            if set(cells) != {MISSING}:
                rows.append([f"`{arm}`", str(cycle), str(sum(r.cycles >= cycle for r in mine)), *cells])
    head = [f"{name}, {kind}" for name in ("IFEval", "own prompts") for kind in ("mid-trained", "recovered")]
    return table_lines(["arm", "cycle", "seeds", *head], rows) if rows else []


def _share_cell(records: Sequence[Record], cycle: int, kind: str, value: Value, name: str) -> str:
    shares = [share for record in records if (share := relative(value, kind)(record, cycle)) is not None]
    found = share_of_base(records, cycle, value, f"{name}/{DETAIL}", "instructions", kind)
    return MISSING if found is None else f"{statistics.fmean(shares):.2f} ({found.low:.2f} to {found.high:.2f})"


def about_beyond(records: Sequence[Record]) -> str:
    """Return how many instructions they are, and what base and an echo of the prompt get, of the first record."""
    base, parts = records[0].at(0, "base"), []
    for name, title_ in ((IFEVAL, "IFEval"), (OWN, "own prompts")):
        items = {} if base is None else base.items.get(f"{name}/{DETAIL}", {})
        if base is not None and items:
            shares = [f"{100 * (of(base, name, detail) or 0):.1f}%" for detail in (DETAIL, ECHO)]
            total, count = sum(map(len, base.items[name].values())), sum(map(len, items.values()))
            parts.append(f"{title_} {count:,} of {total:,} (base {shares[0]}, an echo of the prompt {shares[1]})")
    return "; ".join(parts)


def arms_table(records: Sequence[Record]) -> list[str]:
    head = ["arm", "after", "seeds", *(name for name, _ in COLUMNS), "tokens trained", "sampled", *_HOURS]
    rows = []
    with_base = [record for record in records if record.at(0, "base")]
    for cycle in range(1, max((record.cycles for record in with_base), default=0) + 1):
        rows += _base_rows([record for record in with_base if record.cycles >= cycle], cycle)
    for arm in arm_names(records):
        mine = [record for record in records if record.arm == arm]
        for cycle in range(1, max(record.cycles for record in mine) + 1):
            for kind in ("midtrained", "recovered"):
                there = [record for record in mine if record.at(cycle, kind)]
                if there:
                    rows.append(_row(there, cycle, kind))
    return table_lines(head, rows)


def _base_rows(records: Sequence[Record], cycle: int) -> list[list[str]]:
    """Return a row for each distinct result of base: one model, but processors and releases round differently, and so
    it answers some prompts differently. Results of one processor are told apart by their first date.
    """
    found: dict[tuple[str, ...], list[Record]] = {}
    for record in records:
        found.setdefault(tuple(row_cells(COLUMNS, [record], cycle, "base")), []).append(record)
    names = [f"base, on {' and '.join(sorted({machine_name(one) for one in those}))}" for those in found.values()]
    names = [
        f"{name}, {min(one.date for one in those)}" if names.count(name) > 1 else name
        for name, those in zip(names, found.values(), strict=True)
    ]
    about = f"asked about corpus {cycle}"
    return [
        [name if len(found) > 1 else "base", about, "", *cells, "", "", *("" for _ in _HOURS)]
        for name, cells in zip(names, found, strict=True)
    ]


def _row(records: Sequence[Record], cycle: int, kind: str) -> list[str]:
    cells = row_cells(COLUMNS, records, cycle, kind)
    found = [(_used_gpu(r), measured.cost) for r in records if (measured := r.at(cycle, kind)) is not None]
    tokens = [f"{_mean_cost([cost for _, cost in found], name):,.0f}" for name in ("trained", "sampled")]
    # A GPU takes a hundredth of a CPU's time: a mean over both would be the time of neither.
    on_each = [[cost for gpu, cost in found if gpu == wanted] for wanted in (False, True)]
    hours = [f"{_mean_cost(costs, 'seconds') / 3600:.2f}" if costs else MISSING for costs in on_each]
    return [f"`{records[0].arm}`", f"cycle {cycle}, {kind}", str(len(records)), *cells, *tokens, *hours]


def questions_by_corpus(records: Sequence[Record], questions: Sequence[Question]) -> list[str]:
    """Count the questions about held-out facts of each corpus that base and every checkpoint of each arm answer, seeds
    together, and the facts that they ask.
    """
    at = at_each(records)
    rows = []
    for arm in arm_names(records):
        mine = [record for record in records if record.arm == arm]
        for corpus in range(1, max(record.cycles for record in mine) + 1):
            cells = []
            for cycle, kind in at:
                found = [answered(record, cycle, kind, corpus, questions) for record in mine]
                won, total = (sum(column) for column in zip(*found, strict=True))
                cells.append(f"{won} of {total}" if total else MISSING)
            if set(cells) != {MISSING}:
                rows.append([f"`{arm}`", str(corpus), str(_facts(mine, corpus, questions)), *cells])
    head = ["arm", "corpus", "facts", *(checkpoint_name(cycle, kind) for cycle, kind in at)]
    return table_lines(head, rows) if rows else []


def recognised_by_corpus(records: Sequence[Record]) -> list[str]:
    """Return the shares of questions about held-out facts of each corpus that base and every checkpoint recognise, mean
    of the seeds that measured it; no lines if none did.
    """
    at = at_each(records)
    rows = []
    for arm in arm_names(records):
        mine = [record for record in records if record.arm == arm]
        for corpus in range(1, max(record.cycles for record in mine) + 1):
            found = [_values(mine, cycle, kind, corpus, RECOGNISED_FACT) for cycle, kind in at]
            if seeds := len(max(found, key=len)):
                chance = _values(mine, *at[0], corpus, CHANCE)
                rows.append([f"`{arm}`", str(corpus), str(seeds), *map(percent_cell, [chance, *found])])
    head = ["arm", "corpus", "seeds", "by chance", *(checkpoint_name(cycle, kind) for cycle, kind in at)]
    return table_lines(head, rows) if rows else []


def _values(records: Sequence[Record], cycle: int, kind: str, corpus: int, detail: str) -> list[float]:
    checkpoints = [found for record in records if (found := record.at(cycle, kind)) is not None]
    values = [of(checkpoint, f"{ASKED}/{corpus}", detail) for checkpoint in checkpoints]
    return [value for value in values if value is not None]


def _facts(records: Sequence[Record], corpus: int, questions: Sequence[Question]) -> int:
    """Return the number of different held-out facts of a corpus that any checkpoint was asked."""
    asked = {key for r in records for one in r.checkpoints for key in one.items.get(f"{ASKED}/{corpus}", {})}
    return len({q.fact for q in questions if q.id in held_out(dict.fromkeys(asked, ""), questions)})


def questions_by_form(records: Sequence[Record], questions: Sequence[Question]) -> list[str]:
    """Count the questions about held-out facts that mid-trained models answer, by their form and by words of the
    answer.
    """
    facts = {q.id: q for q in questions}
    counted: list[tuple[Counter[str], Counter[str]]] = []
    runs: list[int] = []
    for cycle in range(1, max(record.cycles for record in records) + 1):
        name, won, total = f"{ASKED}/{cycle}", Counter[str](), Counter[str]()
        found = [m.items.get(name, {}) for record in records if (m := record.at(cycle, "midtrained"))]
        # Several arms share one mid-training: the same verdicts count once.
        different = [dict(items) for items in {tuple(sorted(one.items())) for one in found}]
        for key, verdicts in (
            (key, verdicts) for items in different for key, verdicts in held_out(items, questions).items()
        ):
            for row in _rows_of(facts[key]):
                total[row] += 1
                won[row] += "1" in verdicts
        counted.append((won, total))
        runs.append(len(different))
    names = dict.fromkeys(row for question in questions for row in _rows_of(question))
    names = {name: None for name in names if any(total[name] for _, total in counted)}
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


def _mean_cost(costs: Sequence[Mapping[str, float]], name: str) -> float:
    """Return the mean of one kind of cost over runs."""
    return statistics.fmean([cost.get(name, 0.0) for cost in costs])


def _used_gpu(record: Record) -> bool:
    """Whether the run used a GPU: :func:`pipelines.planning.machine.machine` names it before the processor."""
    return record.machine.split(";")[0].count(",") > 1
