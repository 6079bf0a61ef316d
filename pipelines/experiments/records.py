"""Records of an experiment's runs as JSON files, and the bounds that their results are tested against. No torch."""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evals.beyond_constant import DETAIL, ECHO
from evals.paired_tests import Comparison, Judged, compare
from evals.statistics import holm
from recovery.errors import UsageError

IFEVAL, OWN, ASKED = "ifeval", "instruction_following", "domain_knowledge"  # suites whose items are recorded
FILE = "{arm}-seed-{seed}{suffix}.json"


@dataclass(frozen=True)
class Measured:
    """A checkpoint's figures. ``suites`` are {suite: {"value", "stderr", "n", "details"}}; ``items`` the verdicts of
    the paired suites by item, "1" and "0" in the order of its instructions (of questions: correct, contains), and as
    "ifeval/beyond_constant" those of the instructions that no constant reply follows (:func:`with_beyond`); ``cost``
    holds the tokens, floating-point operations and seconds of its stage.
    """

    name: str
    cycle: int
    kind: str
    suites: Mapping[str, Any]
    items: Mapping[str, Mapping[str, str]]
    cost: Mapping[str, float]


@dataclass(frozen=True)
class Record:
    """The results of an arm with a seed so far: ``cycles`` of ``wanted`` are done.

    ``instructions`` are the ids of the instructions of each item, in the order of its verdicts, by paired suite; older
    records have none.
    """

    arm: str
    title: str
    seed: int
    wanted: int
    model: str
    documents: str
    machine: str
    date: str
    short: bool
    checkpoints: tuple[Measured, ...] = ()
    answers: tuple[Mapping[str, str], ...] = ()
    cut: int = 1
    instructions: Mapping[str, Mapping[str, Sequence[str]]] = field(default_factory=dict)

    @property
    def cycles(self) -> int:
        """Number of finished cycles."""
        return max((c.cycle for c in self.checkpoints if c.kind != "base"), default=0)

    def at(self, cycle: int, kind: str) -> Measured | None:
        """Return the checkpoint of a cycle: "midtrained", "recovered", or "last" of the two; "base" of cycle 0."""
        kinds = ("recovered", "midtrained") if kind == "last" else (kind,)
        by_kind = {c.kind: c for c in self.checkpoints if c.cycle == cycle}
        return next((by_kind[k] for k in kinds if k in by_kind), None)


# A checkpoint's figure: (record, cycle, kind) → its value; None if not measured. Base is that of the cycle's corpus.
Value = Callable[[Record, int, str], float | None]


def with_beyond(record: Record, trivial: Mapping[str, Any]) -> Record:
    """Return an older record with what its verdicts say beyond constant replies (:mod:`evals.beyond_constant`).

    ``trivial`` holds by suite the share that an "echo" of the prompt gets, and the "trivial" instructions of each item,
    "1" and "0" in their order. An item that it does not know is left out.
    """
    return dataclasses.replace(record, checkpoints=tuple(_with_beyond(one, trivial) for one in record.checkpoints))


def _with_beyond(measured: Measured, trivial: Mapping[str, Any]) -> Measured:
    suites, items = dict(measured.suites), dict(measured.items)
    for name, entry in trivial.items():
        known = entry["trivial"]
        counted = {
            key: "".join(verdict for verdict, flag in zip(verdicts, known[key], strict=True) if flag == "0")
            for key, verdicts in measured.items.get(name, {}).items()
            if key in known
        }
        if (beyond := f"{name}/{DETAIL}") not in items and (every := "".join(counted.values())):
            items[beyond] = {key: verdicts for key, verdicts in counted.items() if verdicts}
            details = {**suites[name]["details"], DETAIL: every.count("1") / len(every), ECHO: entry["echo"]}
            suites[name] = {**suites[name], "details": details}
    return dataclasses.replace(measured, suites=suites, items=items)


def to_text(record: Record) -> str:
    """Return a record as JSON."""
    return json.dumps(dataclasses.asdict(record), ensure_ascii=False, indent=1) + "\n"


def read_records(folder: Path) -> list[Record]:
    """Read every record of a folder. Raises UsageError if one cannot be read."""
    return [read_record(path) for path in sorted(folder.glob("*.json"))]


def read_record(path: Path) -> Record:
    """Read one record. Raises UsageError if it cannot be read."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        checkpoints = tuple(Measured(**one) for one in data.pop("checkpoints"))
        return Record(**{**data, "checkpoints": checkpoints, "answers": tuple(data["answers"])})
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise UsageError(f"{path} is not a record of a run ({error}): delete it, or write it again") from error


def holds(old: Record, new: Record) -> bool:
    """Whether ``old`` contains every checkpoint of ``new`` with the same figures."""
    known = {one.name: one for one in old.checkpoints}
    return all(known.get(one.name) == one for one in new.checkpoints) and old.wanted >= new.wanted


# The figures of an experiment's checkpoints, and the bounds that they are compared with (docs/log.md, 2026-11-29).


def share_of_base(
    records: Sequence[Record], cycle: int, score: Value, name: str, kind: str = "last"
) -> tuple[float, float] | None:
    """Return the 95% interval of the mean over seeds of the share of base that a cycle's checkpoint of a ``kind`` has,
    by default its last; None without items.

    ``records`` are runs of one arm. Each is paired with its own base, which may answer otherwise on another machine.
    The interval is about the prompts alone: another sample of them, the same for every seed. **The spread over seeds is
    not in it**; the table of bounds shows that.

    The mean of the shares is 1 + the mean over items of (d_1/b_1 + … + d_S/b_S)/S, where d_s is what an item gained
    over base in run s and b_s is base's score there. So an item has one score a side, the mean of the runs with weights
    proportional to 1/b_s, and these are compared as those of one run are: by the paired score test, clustered by
    prompt, divided by the harmonic mean of b_s. Only items that all of these runs have count. The b_s are taken as
    known: for shares near 1, what they add to the error is small.
    """
    runs = []
    for record in records:
        base, last, below = record.at(0, "base"), record.at(cycle, kind), score(record, cycle, "base")
        if base is not None and last is not None and below:
            sides = judged(base, name), judged(last, name)
            if sides[0].keys() & sides[1].keys():
                runs.append((below, sides))
    if not runs:
        return None
    mean = statistics.harmonic_mean([below for below, _ in runs])
    weights = [mean / (len(runs) * below) for below, _ in runs]
    comparison = compare(name, *(_weighted([sides[at] for _, sides in runs], weights) for at in (0, 1)))
    return None if comparison is None else (1 + comparison.low / mean, 1 + comparison.high / mean)


def _weighted(runs: Sequence[dict[str, Judged]], weights: Sequence[float]) -> dict[str, Judged]:
    """Return the weighted mean of each item that all runs have."""
    return {
        # Rounding may lift the sum of the weights above 1, and the test is for scores of at most 1.
        key: Judged(min(1.0, sum(w * run[key].score for w, run in zip(weights, runs, strict=True))), one.group)
        for key, one in runs[0].items()
        if all(key in run for run in runs)
    }


def judged(measured: Measured, name: str) -> dict[str, Judged]:
    """Return the scores of a suite's instructions by ``ITEM#POSITION``, grouped by prompt."""
    items = measured.items.get(name, {})
    return {
        f"{key}#{at}": Judged(float(one), key) for key, verdicts in items.items() for at, one in enumerate(verdicts)
    }


def beside(record: Record, other: Record, cycle: int) -> list[Comparison]:
    """Return what a cycle's last checkpoint gains over another run's: instructions of our own prompts beyond constant
    replies, and answered questions about all corpora so far; p-values corrected over both (Holm). Empty if one of the
    runs lacks the cycle or its items.
    """
    mine, theirs = record.at(cycle, "last"), other.at(cycle, "last")
    if mine is None or theirs is None:
        return []
    name = f"{OWN}/{DETAIL}"
    found = [
        compare("instructions", judged(theirs, name), judged(mine, name)),
        compare("questions", _answered_items(theirs), _answered_items(mine)),
    ]
    measured = [one for one in found if one is not None and one.p_value is not None]
    corrected = holm([one.p_value for one in measured if one.p_value is not None])
    return [dataclasses.replace(one, p_adjusted=p) for one, p in zip(measured, corrected, strict=True)]


def _answered_items(measured: Measured) -> dict[str, Judged]:
    """Return by question whether the response holds an accepted answer."""
    suites = (name for name in measured.items if name.startswith(f"{ASKED}/"))
    return {
        f"{name}#{key}": Judged(float("1" in verdicts))
        for name in suites
        for key, verdicts in measured.items[name].items()
    }


HELD_FACT, HELD_FORM, CONTROL = "held-out fact/contains", "held-out form/contains", "control/contains"


def suite(name: str, detail: str = "", own_corpus: bool = False) -> Value:
    """Return a function that reads a suite's score of a checkpoint; ``own_corpus``: on the cycle's own corpus."""

    def value(record: Record, cycle: int, kind: str) -> float | None:
        measured = record.at(0 if kind == "base" else cycle, kind)
        row = None if measured is None else measured.suites.get(f"{name}/{cycle}" if own_corpus else name)
        if row is None:
            return None
        number = row["details"].get(detail) if detail else row["value"]
        return None if number is None else float(number)

    return value


def relative(value: Value, record: Record, cycle: int, kind: str) -> float | None:
    """Return a checkpoint's figure as a share of base's; None if one is not measured, or base's is 0."""
    above, below = value(record, cycle, kind), value(record, cycle, "base")
    return above / below if above is not None and below else None


def shares_by_run(value: Value, records: Sequence[Record], cycle: int, kind: str) -> list[float]:
    """Return :func:`relative` of every record in which it is known."""
    return [share for record in records if (share := relative(value, record, cycle, kind)) is not None]


BEYOND, OWN_BEYOND = suite(IFEVAL, DETAIL), suite(OWN, DETAIL)
ENDED = suite(OWN, "ended")
FACTS = suite(ASKED, HELD_FACT, own_corpus=True)
OPENED = suite("open_book", HELD_FACT, own_corpus=True)
# The columns of the table of all figures.
COLUMNS: Mapping[str, Value] = {
    "IFEval, instructions strict": suite(IFEVAL, "instruction_strict"),
    "IFEval, prompts strict": suite(IFEVAL),
    "IFEval, beyond constant replies": BEYOND,
    "own prompts, instructions strict": suite(OWN, "instruction_strict"),
    "own prompts, prompts strict": suite(OWN),
    "own prompts, beyond constant replies": OWN_BEYOND,
    "responses that end": ENDED,
    "held-out facts answered": FACTS,
    "held-out forms answered": suite(ASKED, HELD_FORM, own_corpus=True),
    "control questions answered": suite(ASKED, CONTROL, own_corpus=True),
    "held-out facts, open book": OPENED,
    "gap closed": suite("gap_closed", own_corpus=True),
    "K, bits": suite("k", own_corpus=True),
    "centred top-1": suite("domain_knowledge_likelihood", own_corpus=True),
    "stored": suite("domain_knowledge_stored", own_corpus=True),
    "bits per byte, plain English": suite("unrelated_text"),
    "prompts of two turns": suite("behaviour/dialogue"),
    "refusals": suite("behaviour/refusal"),
    "no loops": suite("behaviour/no_loops"),
}


@dataclass(frozen=True)
class Bound:
    """A registered bound: its name, with the required value in words, and whether a cycle of the ``records`` keeps it.

    The latter is None where it was not measured.
    """

    name: str
    kept: Callable[[Sequence[Record], int, str], bool | None]
    kinds: tuple[str, ...] = ("recovered",)


def _beyond(name: str, value: Value) -> Callable[[Sequence[Record], int, str], bool | None]:
    def kept(records: Sequence[Record], cycle: int, kind: str) -> bool | None:
        interval = share_of_base(records, cycle, value, f"{name}/{DETAIL}", kind)
        if interval is None:
            return None
        return statistics.fmean(shares_by_run(value, records, cycle, kind)) >= 0.95 and interval[0] >= 0.85

    return kept


def _gap(records: Sequence[Record], cycle: int, kind: str) -> bool | None:
    rows = [row for record in records if (row := gained(record, cycle, kind, "gap_closed"))]
    means = [
        statistics.fmean(column) for column in zip(*((r["value"], r["details"]["low"]) for r in rows), strict=True)
    ]
    return means[0] >= 0.30 and means[1] > 0.05 if rows else None


def _learnt(records: Sequence[Record], cycle: int, kind: str) -> bool | None:
    p_values = [row["details"]["p_value"] for record in records if (row := gained(record, cycle, kind, "k"))]
    return all(p < 0.05 for p in p_values) if p_values else None


def _ended(records: Sequence[Record], cycle: int, kind: str) -> bool | None:
    ended = shares_by_run(ENDED, records, cycle, kind)
    return statistics.fmean(ended) >= 0.95 if ended else None


def gained(record: Record, cycle: int, kind: str, name: str, corpus: str = "") -> Mapping[str, Any] | None:
    """Return what a checkpoint gained over base, "gap_closed" or "k", on its cycle's ``corpus`` or on "pooled", all so
    far; None if not measured, or not defined.
    """
    measured = record.at(cycle, kind)
    return None if measured is None else measured.suites.get(f"{name}/{corpus or cycle}")


def gap_on_held_out(record: Record, cycle: int, kind: str) -> float | None:
    """Return the gap closed on questions about held-out facts alone (no interval is recorded); None if not measured.

    Other questions ask a trained question's fact in another form.
    """
    before, after = FACTS(record, cycle, "base"), FACTS(record, cycle, kind)
    opened = OPENED(record, cycle, "base")
    if before is None or after is None or opened is None or opened - before <= 0.1:  # as :mod:`evals.open_book` asks
        return None
    return (after - before) / (opened - before)


BOUNDS = (
    Bound("IFEval beyond constant replies: 0.95 of base, lower bound 0.85", _beyond(IFEVAL, BEYOND)),
    Bound("own prompts beyond constant replies: 0.95 of base, lower bound 0.85", _beyond(OWN, OWN_BEYOND)),
    Bound("gap closed: 0.30, lower bound above 0.05", _gap, ("midtrained", "recovered")),
    Bound("K above 0: p below 0.05", _learnt),
    Bound("responses that end: 0.95 of base", _ended),
)


def answered(record: Record, cycle: int, kind: str, corpus: int, held_out: Collection[str]) -> tuple[int, int]:
    """Return how many questions about held-out facts of a corpus a checkpoint answers, and how many it was asked.

    ``held_out``: the ids of such questions.
    """
    measured = record.at(cycle, kind)
    items = {} if measured is None else measured.items.get(f"{ASKED}/{corpus}", {})
    asked = [verdicts for name, verdicts in items.items() if name in held_out]
    return sum("1" in verdicts for verdicts in asked), len(asked)
