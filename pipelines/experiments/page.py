"""The page of an experiment and the table of all its figures, written from the records of its runs."""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Collection, Sequence

from db.cycle_evidence import POOLED
from evals.beyond_constant import DETAIL
from pipelines.experiments.records import (
    BEYOND,
    BOUNDS,
    COLUMNS,
    ENDED,
    IFEVAL,
    OWN,
    OWN_BEYOND,
    Record,
    Value,
    answered,
    beside,
    gained,
    gap_on_held_out,
    share_of_base,
    shares_by_run,
)
from pipelines.reports.document import table_lines
from recovery.arms import ARMS

MISSING = "–"
LONGEST = 180  # characters shown of a response
_SHORT = (
    "**One cycle on a part of the documents, with few items in each suite.** It shows that the whole pipeline runs on "
    "a real model; its figures are too coarse for the bounds."
)
_CUT = "**The pages of each corpus are dealt out to several pieces, with a cycle each.** A corpus is such a piece here."
_MEASURES = (
    "*Beyond constant replies*: single instructions that none of four constant replies follows, as a share of the "
    "clean model's score ([list](../evals/beyond_constant.py)). *Held-out facts*: questions about facts that no "
    "training question asks. *Gap closed*: (answered after - before) / (answered by the clean model with the page "
    "before it - before), all corrected for guessing. *K*: bits by which right answers gained on the right answers of "
    "other questions. [Formulas](evidence.md). In brackets: 95% intervals about the prompts or the pages, given the "
    "seeds. A dash: not measured, or not defined: of a gap, if the clean model answers too few more with the page."
)
_REGISTERED = (
    "The bounds and their day are in the [log](log.md); older runs were there before them. A bound on an interval is "
    "missed where too few prompts leave it open, too."
)
SAME_OPERATIONS = "replay-equal-flops"
_REPLAY = (
    "Mid-training alone, with 30% of its tokens the clean model's own answers, for as many operations as a whole cycle "
    "of the defaults: sampling and teachers' scores counted. Differences are those of the defaults, in points, on the "
    "same items, paired; p is corrected over both figures of a cycle (Holm)."
)
_KINDS = ("midtrained", "recovered")
_NAMES = {"midtrained": "mid-trained", "recovered": "recovered"}


def page(records: Sequence[Record], main: str, command: str, held_out: Collection[str] = (), picture: str = "") -> str:
    """Return the page; ``main`` is the arm that is compared with the bounds, ``picture`` the path of one to show.

    ``held_out``: the ids of the questions about held-out facts. Records of short runs and of corpora cut into pieces
    stand in :func:`figures` alone, unless there are no others.
    """
    shown = [record for record in records if not record.short and record.cut == 1] or list(records)
    main_records = [record for record in shown if record.arm == main]
    parts = ["# A real instruct model and real documents", ""]
    parts += [
        f"Written by `{command}` from {len(records)} recorded runs, the newest of {max(r.date for r in records)}."
    ]
    parts += ["", _SHORT] if any(record.short for record in shown) else []
    parts += ["", _CUT] if any(record.cut > 1 for record in shown) else []
    if main_records:
        parts += ["", headline(shown, main), "", *([f"![{headline(shown, main)}]({picture})", ""] if picture else [])]
        parts += ["## The defaults", "", _about(main_records), "", *_table(main_records, held_out), "", _MEASURES]
        parts += ["", "## Against the bounds", "", _REGISTERED, "", *_bounds(main_records)]
        if rows := _beside_replay(main_records, [record for record in shown if record.arm == SAME_OPERATIONS]):
            parts += ["", "## Beside replay at the same operations", "", _REPLAY, "", *rows]
    parts += ["", "## Beside the other arms", "", *_arms(shown, held_out)]
    for record in main_records[:1]:
        parts += ["", "## Ten prompts, answered", "", *_answers(record)]
    parts += ["", "## Run it, and the rest", "", *_rest(shown)]
    return "\n".join([*parts, ""])


def headline(records: Sequence[Record], main: str) -> str:
    """Return what the experiment shows, in one or two sentences: by IFEval; by our own prompts if it was not scored."""
    main_runs = [record for record in records if record.arm == main]
    scored = bool(shares_by_run(BEYOND, main_runs, 1, "recovered"))
    value, name, title = (BEYOND, IFEVAL, "IFEval") if scored else (OWN_BEYOND, OWN, "own prompts")
    at = ((cycle, share(main_runs, cycle, "recovered", value, name)) for cycle in range(1, _cycles(main_runs) + 1))
    kept = "; ".join(f"{cell} after cycle {cycle}" for cycle, cell in at if cell != MISSING)
    without = share([record for record in records if record.arm == "documents"], 1, "midtrained", value, name)
    beside = f" After documents and questions alone it is {without}." if without != MISSING else ""
    return f"Of the clean model's score on {title}, beyond constant replies, the defaults leave {kept}.{beside}"


def figures(records: Sequence[Record]) -> str:
    """Return every figure of every checkpoint as CSV, a row each."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    costs = ("trained", "sampled", "scored", "seconds")
    writer.writerow(
        ["documents", "arm", "seed", "pieces", "short", "cycle", "checkpoint", *COLUMNS, *costs, "date", "machine"]
    )
    for record in records:
        documents, machine = record.documents.removeprefix("from "), record.machine.removeprefix("Machine: ")
        about = [documents, record.arm, record.seed, record.cut, int(record.short)]
        for one in record.checkpoints:
            # Base is asked about the first corpus; its questions about later ones are in the JSON files.
            cells = [value(record, max(one.cycle, 1), one.kind) for value in COLUMNS.values()]
            shown = ["" if cell is None else f"{cell:.4f}" for cell in cells]
            spent = [round(one.cost[name], 1) if name in one.cost else "" for name in costs]
            writer.writerow([*about, one.cycle, one.kind, *shown, *spent, record.date, machine])
    return text.getvalue()


def share(records: Sequence[Record], cycle: int, kind: str, value: Value, name: str) -> str:
    """Return the mean over seeds of the share of base, beyond constant replies, with its interval.

    The number of scored seeds is added if some seeds that have the cycle were not scored.
    """
    interval = share_of_base(records, cycle, value, f"{name}/{DETAIL}", kind)
    if interval is None:
        return MISSING
    scored = shares_by_run(value, records, cycle, kind)
    fewer = len(scored) < sum(record.cycles >= cycle for record in records)
    seeds = f", {len(scored)} seed{'s' * (len(scored) > 1)}" if fewer else ""
    return f"{statistics.fmean(scored):.2f} ({interval[0]:.2f} to {interval[1]:.2f}{seeds})"


def _cycles(records: Sequence[Record]) -> int:
    return max((record.cycles for record in records), default=0)


def _about(records: Sequence[Record]) -> str:
    title = ARMS[records[0].arm].title if records[0].arm in ARMS else records[0].title
    machines = (r.machine.removeprefix("Machine: ").split(",")[0] for r in records)
    done = (f"seed {r.seed}: {r.cycles} of {r.wanted} cycles, {r.date}" for r in records)
    runs = "; ".join(map(", ".join, zip(done, machines, strict=True)))
    documents = records[0].documents.removeprefix("from ")
    return f"`{records[0].arm}`: {title}. {records[0].model}, {documents}. {runs}."


def _table(records: Sequence[Record], held_out: Collection[str]) -> list[str]:
    """Return the figures of the main arm, a column for each checkpoint."""
    at = [(cycle, kind) for cycle in range(1, _cycles(records) + 1) for kind in _KINDS]
    rows = [
        ["IFEval beyond constant replies, of base", *(share(records, *place, BEYOND, IFEVAL) for place in at)],
        ["own prompts beyond constant replies, of base", *(share(records, *place, OWN_BEYOND, OWN) for place in at)],
        ["responses that end, of base", *(_mean(shares_by_run(ENDED, records, *place)) for place in at)],
        ["held-out facts answered", *(_counts(records, *place, held_out) for place in at)],
        ["gap closed, the cycle's corpus", *(gain_cell(records, *place, "gap_closed") for place in at)],
        ["gap closed, all corpora so far", *(gain_cell(records, *place, "gap_closed", POOLED) for place in at)],
        ["gap closed, held-out facts alone", *(_mean([gap_on_held_out(r, *place) for r in records]) for place in at)],
        ["K, bits", *(gain_cell(records, *place, "k") for place in at)],
    ]
    names = (
        "control questions answered",
        "centred top-1",
        "bits per byte, plain English",
        "prompts of two turns",
        "refusals",
        "no loops",
    )
    for name in names:
        base = _mean([COLUMNS[name](record, 1, "base") for record in records])
        rows.append([f"{name} (base {base})", *(_mean([COLUMNS[name](r, *place) for r in records]) for place in at)])
    return table_lines(["figure", *(f"cycle {cycle}, {_NAMES[kind]}" for cycle, kind in at)], rows)


def _mean(values: Sequence[float | None]) -> str:
    """Return the mean over seeds, with their standard deviation where there are several."""
    measured = [value for value in values if value is not None]
    spread = f" ± {statistics.stdev(measured):.3f}" if len(measured) > 1 else ""
    return f"{statistics.fmean(measured):.3f}{spread}" if measured else MISSING


def _counts(records: Sequence[Record], cycle: int, kind: str, held_out: Collection[str]) -> str:
    counts = [answered(record, cycle, kind, cycle, held_out) for record in records]
    won, total = sum(one for one, _ in counts), sum(one for _, one in counts)
    return f"{won} of {total}" if total else MISSING


def gain_cell(records: Sequence[Record], cycle: int, kind: str, name: str, corpus: str = "") -> str:
    """Return gap closed or K: the means over seeds of value and interval."""
    rows = [row for record in records if (row := gained(record, cycle, kind, name, corpus))]
    if not rows:
        return MISSING
    value, low, high = (
        statistics.fmean(column)
        for column in zip(*((row["value"], row["details"]["low"], row["details"]["high"]) for row in rows), strict=True)
    )
    return f"{value:.2f} ({low:.2f} to {high:.2f})"


def _bounds(records: Sequence[Record]) -> list[str]:
    """Return for each registered bound in which cycles it is kept, missed, or not measured."""
    words = {True: "kept", False: "**missed**", None: MISSING}
    cycles = range(1, max(record.wanted for record in records) + 1)
    rows = [
        [f"{bound.name} ({', '.join(_NAMES[kind] for kind in bound.kinds)})"]
        + [", ".join(words[bound.kept(records, cycle, kind)] for kind in bound.kinds) for cycle in cycles]
        for bound in BOUNDS
    ]
    return table_lines(["must", *(f"cycle {cycle}" for cycle in cycles)], rows)


def _beside_replay(records: Sequence[Record], replayed: Sequence[Record]) -> list[str]:
    """Return how the main arm differs from replay, a row for each cycle of a seed that both have and each figure."""
    names = {"instructions": "own prompts beyond constant replies", "questions": "questions answered, all corpora"}
    rows = [
        [
            str(cycle), str(record.seed), names[one.name], f"{one.first:.3f}", f"{one.second:.3f}",
            f"{100 * one.difference:+.1f} ({100 * one.low:+.1f} to {100 * one.high:+.1f})",
            "–" if one.p_adjusted is None else f"{one.p_adjusted:.3f}", f"{one.n:,}",
        ]
        for record in records
        for other in replayed
        if record.seed == other.seed
        for cycle in range(1, min(record.cycles, other.cycles) + 1)
        for one in beside(record, other, cycle)
    ]  # fmt: skip
    return (
        table_lines(["after cycle", "seed", "figure", "replay", "the defaults", "difference", "p", "items"], rows)
        if rows
        else []
    )


def _arms(records: Sequence[Record], held_out: Collection[str]) -> list[str]:
    """Return each arm at the end of each cycle: its instructions beyond constant replies, and what it answers."""
    rows = []
    for name in dict.fromkeys(record.arm for record in records):
        of_arm = [record for record in records if record.arm == name]
        title = ARMS[name].title if name in ARMS else of_arm[0].title
        for cycle in range(1, _cycles(of_arm) + 1):
            finished = [record for record in of_arm if record.cycles >= cycle]
            kind = _KINDS[any(record.at(cycle, "recovered") is not None for record in finished)]
            cells = [share(finished, cycle, kind, BEYOND, IFEVAL), share(finished, cycle, kind, OWN_BEYOND, OWN)]
            cells.append(gain_cell(finished, cycle, kind, "gap_closed"))
            about = f"`{name}`: {title}" if cycle == 1 else f"`{name}`"
            rows.append([about, str(cycle), str(len(finished)), *cells, _counts(finished, cycle, kind, held_out)])
    head = [
        "arm",
        "after cycle",
        "seeds",
        "IFEval, of base",
        "own prompts, of base",
        "gap closed",
        "held-out facts answered",
    ]
    return table_lines(head, rows)


def _answers(record: Record) -> list[str]:
    """Return the first cycle's responses side by side, in code so that nothing in them is read as markup."""
    names = ["prompt", *(one.name for one in record.checkpoints if one.cycle <= 1)]
    rows = [[_cell(responses.get(name, "")) for name in names] for responses in record.answers]
    heads = ["prompt", *("clean" if n == "base" else n.rpartition("/")[2] for n in names[1:])]
    about = f"Seed {record.seed}. Every k-th of our own test prompts by their ids, cut after {LONGEST} characters."
    return [about, "", *table_lines(heads, rows)]


def _cell(text: str) -> str:
    """Return a response as a cell of inline code: one line, without the characters that end a cell or a code."""
    line = " ".join(text.split())
    cut = line if len(line) <= LONGEST else line[: LONGEST - 1] + "…"
    return f"`{cut.replace('|', '¦').replace('`', 'ʼ')}`" if cut else "(nothing)"


def _rest(records: Sequence[Record]) -> list[str]:
    missing = [name for name in ARMS if name not in {record.arm for record in records}]
    return [
        "`make real` runs the defaults on the same pages: hours on two cores. `recover demo --example examples/nextjs",
        "--arms NAMES` runs [arms](methods.md#arms-recovery-and-its-baselines). Every figure of every run is in",
        "[real.csv](real.csv), short ones, those of corpora in pieces and of two releases of npm's pages included;",
        "the verdicts on every item are in `docs/real/*.json`. What did not work is in the [log](log.md).",
        *(["", f"Not run: {', '.join(missing)}."] if missing else []),
    ]
