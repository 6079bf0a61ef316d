"""The page of an experiment, written from the records of its runs."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from pipelines.data.question_splits import Question
from pipelines.experiments.bounds import (
    ASKED,
    BOUNDS,
    BRIEF,
    COLUMNS,
    COMPARED,
    CONTROLS,
    IFEVAL,
    IFEVAL_KEPT,
    INSTRUCTIONS,
    LEVELS,
    MISSED,
    MISSING,
    OWN,
    OWN_PROMPTS,
    PROMPTS,
    Bound,
    Value,
    answered,
    held_out,
    reached,
    suite,
)
from pipelines.experiments.paired import Share, against_base, rivals, share_of_base
from pipelines.experiments.records import CleanScores, Record
from pipelines.reports.document import table_lines
from recovery.arms import arms
from recovery.errors import UsageError

_SHORT = (
    "**One cycle on a part of the documents, with few items in each suite.** It shows that the whole pipeline runs on "
    "a real model; its figures are too coarse for the bounds, which are shown for reference."
)
_CUT = (
    "**The pages of each corpus are dealt out to several pieces, with a cycle each**: the first piece of every corpus, "
    "then the second. A *corpus* is such a piece here."
)
_OWN_BASE = (
    "What is gained is gained over the same run's own base, and shares are of it. Base answers some prompts otherwise "
    "on another processor or with another release, whose products round differently, so runs differ by that as well. "
    "In bold: missed. An arm that ends with mid-training keeps all that it learnt by definition, and has no values in "
    "the last two columns."
)
_FEW = (
    "How many questions about held-out facts of each corpus are answered, all seeds together, and how many different "
    "*facts* they are about: some are asked in several forms. With fewer than ten answered, a share of them decides "
    "nothing: one question more or less moves it by a tenth and more."
)
_ALONE = (
    " They are about the choice of prompts alone, given these seeds; how far seeds differ is [in the table]"
    "(#against-the-bounds), and comes on top."
)
_PIECES = (
    "No other section uses these runs. The measures are those of the [table above](#every-arm-by-the-same-bounds), "
    "missed in bold; the counts those of the [next section](#{counts}). A cycle trains on less text and asks fewer "
    "questions than one of a whole corpus: these figures do not repeat those, and one question moves them further."
)
_IN_PIECES = "corpora-in-pieces-more-cycles"  # anchors of sections
_COUNTS = "questions-about-held-out-facts-corpus-by-corpus"
_TERMS = (
    "*Arm*: a complete configuration of a cycle ([list](methods.md#arms-recovery-and-its-baselines)).",
    "*Two teachers*: the clean model scores ordinary prompts, the mid-trained one questions about the documents.",
    "*Must, goal*: bounds that were written down before the first run.",
    "*Relative to base*: divided by the clean model's score.",
    "*Own prompts*: test prompts of the generator that also writes the recovery's training prompts: no prompt of them "
    "is trained on; their topics and nearly all their combinations of instructions are.",
    "*Instructions, prompts*: single instructions that are followed; prompts with all of theirs followed, which is "
    "what the gate's rule `ifeval` counts.",
    "*Ended*: the response ends by itself within the limit.",
    "*Asked*: the response contains an accepted answer. A *held-out fact* is asked in no training question, a "
    "*held-out form* is a trained fact asked in another form (figures of both count questions, of which several may "
    "ask one fact), a *control question* asks for a fact that is on no page.",
    "*Stored*: the right word is the most probable one in a gap of the text.",
)
_COSTS = (
    "Hours are those of the stage alone, without evaluations, on different machines and sometimes beside other work: "
    "compare tokens."
)
# IFEval's mean of strict and loose, prompts and instructions, on the model card, by prefix of the model's name; the
# tolerance of our own measurement. For full weights and responses of 1,280 tokens or more.
PUBLISHED = {"SmolLM2-135M-Instruct": 0.299}
NEAR = 0.04


def page(
    records: Sequence[Record],
    main: str,
    command: str,
    questions: Sequence[Question] = (),
    clean: Sequence[CleanScores] = (),
    notes: Sequence[str] = (),
    pieces: Sequence[Record] = (),
) -> str:
    """Return the page; ``main`` is the arm that is compared with the bounds.

    With the ``questions`` of the records, those about held-out facts are counted by form as well; ``clean`` are other
    measurements of the clean model, and ``notes`` say what the records do not. Records of short runs, of whole ones,
    and of those cut into pieces are never mixed; beside whole ones, ``pieces`` have a section of their own.
    """
    short = any(record.short for record in records)
    mine = [record for record in records if record.arm == main]
    parts = [
        "# A real instruct model and real documents",
        "",
        _written(command, records, pieces),
        "",
        *([_SHORT, ""] if short else []),
        *([_CUT, ""] if any(record.cut > 1 for record in records) else []),
        *in_short(records, main, notes),
        "## Terms",
        "",
        *(f"- {term}" for term in _TERMS),
        "",
        "## Runs",
        "",
        *_runs(records),
        *_not_run(records),
    ]
    if mine:
        parts += ["", "## Against the bounds", "", f"Arm `{main}`.", "", *_bounds(mine), *_base(mine[0], clean)]
    parts += ["", "## Every arm, by the same bounds", "", _OWN_BASE, "", *_by_bounds(records)]
    parts += _in_pieces(pieces, questions)
    if counted := _counted(records, questions):
        parts += ["", "## Questions about held-out facts, corpus by corpus", "", _FEW, "", *counted]
    parts += ["", "## Every arm", "", _COSTS, "", *_arms(records)]
    if forms := _by_form(records, questions):
        parts += ["", "## Questions about held-out facts after mid-training, by form of question", "", *forms]
    if others := rivals(mine, [record for record in records if record.arm != main]):
        parts += ["", "## Against the other arms, item by item", "", f"Of `{main}`.", "", *others]
    for record in mine[:1]:
        parts += ["", "## Paired tests", "", f"Of seed {record.seed}.", "", *against_base(record)]
        parts += ["", "## Ten prompts, answered", "", f"Of seed {record.seed}.", "", *_shown(record)]
    return "\n".join([*parts, ""])


def _written(command: str, records: Sequence[Record], pieces: Sequence[Record]) -> str:
    every = [*records, *pieces]
    runs = f"{len(every)} recorded run{'s' * (len(every) > 1)}"
    apart = f", {len(pieces)} of them on [corpora in pieces](#{_IN_PIECES})" if pieces else ""
    return f"Written by `{command}` from {runs}{apart}, the newest of {max(record.date for record in every)}."


def in_short(records: Sequence[Record], main: str, notes: Sequence[str] = ()) -> list[str]:
    """Return what the page says, in a few lines: the main arm, what it misses, its cost, and where the rest is."""
    mine = [record for record in records if record.arm == main]
    if not mine or any(record.short or record.cut > 1 for record in records):
        return []
    cycles, wanted = max(record.cycles for record in mine), mine[0].wanted
    seeds = len({record.seed for record in mine})
    count = "One seed" if seeds == 1 else f"{seeds} seeds"
    means_of = " Each figure is the mean of the seeds that have the cycle." if seeds > 1 else ""
    lines = [f"`make real` runs the arm `{main}`: {title(mine[0])}. {count}, {_done(mine)}.{means_of}"]
    for bound in BOUNDS:
        means = _means(bound, mine, cycles)
        if bound.must is not None and means:
            word = "Below its bound" if reached(bound, means) == MISSED else "At or above its bound"
            shown = ", ".join(_cell([mean], bound.percent) for mean in means)
            lines.append(f"{word}: {bound.name} {shown} (must: {_number(bound.must, bound.percent)}).")
    lines += [*_undecided(mine), *notes]
    lines.append(f"A share of fewer than ten answered questions decides nothing: [counts](#{_COUNTS}).")
    for bound in PROMPTS:
        if means := _means(bound, mine, cycles):
            lines.append(f"Shown beside them: {bound.name} {', '.join(_cell([mean]) for mean in means)}.")
    if controls := _means(CONTROLS, mine, cycles):
        shown = ", ".join(_cell([mean], percent=True) for mean in controls)
        lines.append(f"Control questions, whose answers are on no page, gained {shown} points: so much may be guessed.")
    hours = sum(one.cost.get("seconds", 0.0) for one in mine[0].checkpoints if one.kind != "base") / 3600
    whose = f"seed {mine[0].seed}, {_place(mine[0])}"
    lines.append(f"Its training took {hours:.1f} hours for {mine[0].cycles} cycles ({whose}); evaluations are extra.")
    whole = _reach_ifeval(records, wanted)
    lines.append(f"Arms with all {wanted} cycles whose IFEval is at or above its bound in each: {whole}.")
    lines.append("What was tried against what is missed: the [log](log.md).")
    return ["## In short", "", *(f"- {line}" for line in lines), ""]


def _undecided(records: Sequence[Record]) -> list[str]:
    """Return the line that says how well the runs of an arm know its shares of base; nothing without items to pair.

    The intervals are of the means over seeds, about the prompts alone; the spread over seeds is in the table of bounds.
    """
    shown: dict[str, list[str]] = {}  # by the seeds, should a run lack a suite
    for name, on, level, score in (
        ("IFEval, instructions", IFEVAL, "instructions", INSTRUCTIONS),
        ("own prompts, instructions", OWN, "instructions", OWN_PROMPTS),
        ("IFEval, prompts", IFEVAL, "prompts", suite(IFEVAL)),
        ("own prompts, prompts", OWN, "prompts", suite(OWN)),
    ):
        cycles = range(1, max(record.cycles for record in records) + 1)
        found = [share_of_base(records, cycle, score, on, level) for cycle in cycles]
        shares = [share for share in found if share is not None]
        if shares:
            ranges = ", ".join(f"{share.low:.2f} to {share.high:.2f}" for share in shares)
            shown.setdefault(_seeds(shares), []).append(f"{name} {ranges}")
    lines = [
        f"Paired 95% intervals of the shares of base, {seeds}: {'; '.join(those)}." for seeds, those in shown.items()
    ]
    return [f"{line} One that contains its bound does not decide it.{_ALONE * (len(records) > 1)}" for line in lines]


def _seeds(shares: Sequence[Share]) -> str:
    """Return whose shares they are: the seed if there is one, else how many there are in each cycle."""
    if len(seeds := {seed for share in shares for seed in share.seeds}) == 1:
        return f"seed {min(seeds)}"
    return f"mean over seeds ({', '.join(f'{len(share.seeds)} in cycle {share.cycle}' for share in shares)})"


def _done(records: Sequence[Record]) -> str:
    """Return how many cycles are finished: of each seed, if it is not the same number."""
    if len({(record.cycles, record.wanted) for record in records}) == 1:
        return f"{records[0].cycles} of {records[0].wanted} cycles"
    return ", ".join(f"seed {one.seed}: {one.cycles} of {one.wanted} cycles" for one in records)


def _fewer(there: int, records: Sequence[Record]) -> str:
    """Return the number of seeds that have a cycle, for its name; nothing if all have it."""
    return "" if there == len(records) else f", {_count(there)}"


def _reach_ifeval(records: Sequence[Record], wanted: int) -> str:
    """Return the arms with all cycles, and over how many seeds: those that reach the bound on IFEval, those that miss
    it, and those that were not measured by it.
    """
    reaching: list[str] = []
    others: list[str] = []
    unknown: list[str] = []
    for name in _names(records):
        full = [record for record in records if record.arm == name and record.cycles >= wanted]
        means, shown = _means(IFEVAL_KEPT, full, wanted), f"`{name}` ({_count(len(full))})"
        if means and reached(IFEVAL_KEPT, means) == MISSED:
            others.append(shown)
        elif full:
            (reaching if len(means) == wanted else unknown).append(shown)
    return (
        (", ".join(reaching) or "none")
        + (f"; below it in one or more: {', '.join(others)}" if others else "")
        + (f"; not measured: {', '.join(unknown)}" if unknown else "")
    )


def _count(seeds: int) -> str:
    return f"{seeds} seed{'s' * (seeds > 1)}"


def _not_run(records: Sequence[Record]) -> list[str]:
    missing = [name for name in arms() if name not in _names(records)]
    return ["", f"Not run: {', '.join(missing)}."] if missing else []


def _names(records: Sequence[Record]) -> list[str]:
    """Return the arms that were run, in the order of their records."""
    return list(dict.fromkeys(record.arm for record in records))


def title(record: Record) -> str:
    """Return what an arm is; of one that is known no more, what its record says."""
    return arms()[record.arm].title if record.arm in arms() else record.title


def _values(bound: Bound, records: Sequence[Record], cycles: int) -> list[list[float]]:
    """Return a bound's values after each cycle, one a seed."""
    return [[v for r in records if (v := bound.value(r, cycle)) is not None] for cycle in range(1, cycles + 1)]


def _means(bound: Bound, records: Sequence[Record], cycles: int) -> list[float]:
    """Return a bound's value after each cycle that has one, the mean of the seeds."""
    return [statistics.fmean(cell) for cell in _values(bound, records, cycles) if cell]


def summary(records: Sequence[Record], main: str, questions: Sequence[Question] = ()) -> str:
    """Return a short table of the arm ``main``: base and each checkpoint of its cycles, with date and machine.

    With the ``questions`` of the records, it says how many are about held-out facts. Raises UsageError if the arm has
    no record.
    """
    mine = [record for record in records if record.arm == main]
    if not mine:
        raise UsageError(f"there is no record of the arm {main}: run it with --arms {main}")
    rows = []
    for cycle in range(1, max((record.cycles for record in mine), default=0) + 1):
        for kind in ("base", "midtrained", "recovered"):
            # Base of the seeds that have the cycle, so that its figures can be divided by base's.
            there = [r for r in mine if r.cycles >= cycle and r.at(0 if kind == "base" else cycle, kind)]
            cells = [[v for r in there if (v := value(r, cycle, kind)) is not None] for _, value in BRIEF]
            name = f"base, asked about corpus {cycle}" if kind == "base" else f"cycle {cycle}, {kind}"
            name += _fewer(len(there), mine)
            same = kind == "base" and all(len(set(cell)) <= 1 for cell in cells)
            rows.append([name, *(_cell(cell[:1] if same else cell) for cell in cells)])
    seeds, dates = {record.seed for record in mine}, sorted({record.date for record in mine})
    machines = sorted({record.machine.removeprefix("Machine: ").rstrip(".") for record in mine})
    count = "one seed" if len(seeds) == 1 else f"{len(seeds)} seeds, mean ± spread"
    part = ", **on a part of the documents**" if any(record.short for record in mine) else ""
    model = mine[0].model.removesuffix(".gguf")
    asked = [f"{row['n']:,} of {name}" for name, row in mine[0].checkpoints[0].suites.items() if name in (IFEVAL, OWN)]
    about = f"{model}, {title(mine[0])}{part}: {count}, {_done(mine)}, prompts: {', '.join(asked)}"
    facts = [answered(mine[0], 0, "base", cycle, questions)[1] for cycle in range(1, mine[0].cycles + 1)]
    about += f", questions about held-out facts: {', '.join(map(str, facts))} by corpus" if any(facts) else ""
    caption = f"{about}; {', '.join(dates)}; {'; '.join(machines)}."
    return "\n".join([*table_lines(["after", *(name for name, _ in BRIEF)], rows), "", caption])


def _runs(records: Sequence[Record]) -> list[str]:
    inputs = sorted({f"{r.model}, {r.documents.removeprefix('from ')}" for r in records})
    rows = [
        [
            *(f"`{r.arm}`", title(r), str(r.seed), f"{r.cycles} of {r.wanted}"),
            *("a part" if r.short else f"each in {r.cut}" if r.cut > 1 else "whole", r.date, r.machine),
        ]
        for r in records
    ]
    return [*inputs, "", *table_lines(["arm", "what it is", "seed", "cycles done", "corpora", "date", "where"], rows)]


def _bounds(records: Sequence[Record]) -> list[str]:
    cycles = range(1, max(record.cycles for record in records) + 1)
    rows = []
    wanted = records[0].wanted
    for bound in (bound for bound in BOUNDS if bound.first <= wanted):
        cells, means = _values(bound, records, len(cycles)), _means(bound, records, len(cycles))
        result = "not measured" if not means else reached(bound, means)
        if means and len(means) < wanted - bound.first + 1:
            result += f" in {len(means)} of {wanted - bound.first + 1}"
        shown = [_number(bound.must, bound.percent), _number(bound.goal, bound.percent)]
        rows.append([bound.name, *shown, *(_cell(cell, bound.percent) for cell in cells), result])
    there = [sum(record.cycles >= cycle for record in records) for cycle in cycles]
    unequal = len(set(there)) > 1
    names = [f"cycle {n}" + (f", {_count(one)}" if unequal else "") for n, one in enumerate(there, 1)]
    return table_lines(["figure", "must", "goal", *names, "reached"], rows)


def _base(record: Record, clean: Sequence[CleanScores]) -> list[str]:
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
    """Compare each cycle of every arm with the bounds: the means over the seeds, in bold if missed."""
    rows = []
    for arm in _names(records):
        mine = [record for record in records if record.arm == arm]
        for cycle in range(1, max(record.cycles for record in mine) + 1):
            there = [record for record in mine if record.cycles >= cycle]
            rows.append([f"`{arm}`", str(cycle), str(len(there)), *(_judged(b, there, cycle) for _, b in COMPARED)])
    head = [f"{name} {_number(bound.must, bound.percent)}" for name, bound in COMPARED]
    return table_lines(["arm", "cycle", "seeds", *head], rows)


def _in_pieces(records: Sequence[Record], questions: Sequence[Question]) -> list[str]:
    """Return the section about corpora in pieces: of each arm and cut the cycles that were run, bounds and counts."""
    if not records:
        return []
    parts = ["", "## Corpora in pieces: more cycles", "", _CUT, "", _PIECES.format(counts=_COUNTS)]
    for arm, cut in dict.fromkeys((record.arm, record.cut) for record in records):
        mine = [record for record in records if (record.arm, record.cut) == (arm, cut)]
        parts += ["", f"### `{arm}`, each corpus in {cut} pieces", "", " ".join(map(_how_far, mine))]
        parts += ["", *_by_bounds(mine)]
        if counted := _counted(mine, questions):
            parts += ["", *counted]
    return parts


def _how_far(record: Record) -> str:
    """Return how many of its cycles a run has, when and where; said in words if it is not all of them."""
    text = f"Seed {record.seed}: {record.cycles} of {record.wanted} cycles were run"
    where = f"({record.date}; {record.machine.removeprefix('Machine: ').rstrip('.')})."
    if record.cycles >= record.wanted:
        return f"{text} {where}"
    return f"{text}, **fewer than planned** {where} Of the others nothing is known."


def _judged(bound: Bound, records: Sequence[Record], cycle: int) -> str:
    values = [value for record in records if (value := bound.value(record, cycle)) is not None]
    missed = values and reached(bound, [statistics.fmean(values)]) == MISSED
    shown = _cell(values, bound.percent)
    return f"**{shown}**" if missed else shown


_HOURS = ("hours, CPU", "hours, GPU")


def _arms(records: Sequence[Record]) -> list[str]:
    head = ["arm", "after", "seeds", *(name for name, _ in COLUMNS), "tokens trained", "sampled", *_HOURS]
    rows = []
    with_base = [record for record in records if record.at(0, "base")]
    for cycle in range(1, max((record.cycles for record in with_base), default=0) + 1):
        rows += _base_rows([record for record in with_base if record.cycles >= cycle], cycle)
    for arm in _names(records):
        mine = [record for record in records if record.arm == arm]
        for cycle in range(1, max(record.cycles for record in mine) + 1):
            for kind in ("midtrained", "recovered"):
                there = [record for record in mine if record.at(cycle, kind)]
                if there:
                    rows.append(_row(there, cycle, kind))
    return table_lines(head, rows)


def _counted(records: Sequence[Record], questions: Sequence[Question]) -> list[str]:
    """Count the questions about held-out facts of each corpus that base and every checkpoint of each arm answer, seeds
    together, and the facts that they ask.
    """
    cycles = max(record.cycles for record in records)
    at = [(0, "base"), *((cycle, kind) for cycle in range(1, cycles + 1) for kind in ("midtrained", "recovered"))]
    rows = []
    for arm in _names(records):
        mine = [record for record in records if record.arm == arm]
        for corpus in range(1, max(record.cycles for record in mine) + 1):
            cells = []
            for cycle, kind in at:
                found = [answered(record, cycle, kind, corpus, questions) for record in mine]
                won, total = (sum(column) for column in zip(*found, strict=True))
                cells.append(f"{won} of {total}" if total else MISSING)
            if set(cells) != {MISSING}:
                rows.append([f"`{arm}`", str(corpus), str(_facts(mine, corpus, questions)), *cells])
    head = [kind if kind == "base" else f"cycle {cycle}, {kind}" for cycle, kind in at]
    return table_lines(["arm", "corpus", "facts", *head], rows) if rows else []


def _facts(records: Sequence[Record], corpus: int, questions: Sequence[Question]) -> int:
    """Return the number of different held-out facts of a corpus that any checkpoint was asked."""
    asked = {key for r in records for one in r.checkpoints for key in one.items.get(f"{ASKED}/{corpus}", {})}
    return len({q.fact for q in questions if q.id in held_out(dict.fromkeys(asked, ""), questions)})


def _by_form(records: Sequence[Record], questions: Sequence[Question]) -> list[str]:
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


def _base_rows(records: Sequence[Record], cycle: int) -> list[list[str]]:
    """Return a row for each distinct result of base: one model, but processors and releases round differently, and so
    it answers some prompts differently. Results of one processor are told apart by their first date.
    """
    found: dict[tuple[str, ...], list[Record]] = {}
    for record in records:
        found.setdefault(tuple(_cells(COLUMNS, [record], cycle, "base")), []).append(record)
    names = [f"base, on {' and '.join(sorted({_place(one) for one in those}))}" for those in found.values()]
    names = [
        f"{name}, {min(one.date for one in those)}" if names.count(name) > 1 else name
        for name, those in zip(names, found.values(), strict=True)
    ]
    about = f"asked about corpus {cycle}"
    return [
        [name if len(found) > 1 else "base", about, "", *cells, "", "", *("" for _ in _HOURS)]
        for name, cells in zip(names, found, strict=True)
    ]


def _place(record: Record) -> str:
    return record.machine.removeprefix("Machine: ").split(",")[0]


def _on_gpu(record: Record) -> bool:
    """Whether the run used a GPU: :func:`pipelines.planning.machine.machine` names it before the processor."""
    return record.machine.split(";")[0].count(",") > 1


def _cells(columns: Sequence[tuple[str, Value]], records: Sequence[Record], cycle: int, kind: str) -> list[str]:
    """Return a checkpoint's cells of some columns over the seeds."""
    return [_cell([v for r in records if (v := value(r, cycle, kind)) is not None]) for _, value in columns]


def _row(records: Sequence[Record], cycle: int, kind: str) -> list[str]:
    cells = _cells(COLUMNS, records, cycle, kind)
    found = [(_on_gpu(r), measured.cost) for r in records if (measured := r.at(cycle, kind)) is not None]
    tokens = [f"{_mean([cost for _, cost in found], name):,.0f}" for name in ("trained", "sampled")]
    # A GPU takes a hundredth of a CPU's time: a mean over both would be the time of neither.
    on_each = [[cost for gpu, cost in found if gpu == wanted] for wanted in (False, True)]
    hours = [f"{_mean(costs, 'seconds') / 3600:.2f}" if costs else MISSING for costs in on_each]
    return [f"`{records[0].arm}`", f"cycle {cycle}, {kind}", str(len(records)), *cells, *tokens, *hours]


def _mean(costs: Sequence[Mapping[str, float]], name: str) -> float:
    return statistics.fmean([cost.get(name, 0.0) for cost in costs])


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
