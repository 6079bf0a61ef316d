"""Records of an experiment's runs: what was measured, as JSON files. Does not import torch."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evals.beyond_constant import DETAIL, ECHO
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
    answers: tuple[Mapping[str, str], ...] = field(default=())
    cut: int = 1
    instructions: Mapping[str, Mapping[str, Sequence[str]]] = field(default_factory=dict)

    @property
    def cycles(self) -> int:
        """Number of finished cycles."""
        return max((c.cycle for c in self.checkpoints if c.kind != "base"), default=0)

    def at(self, cycle: int, kind: str) -> Measured | None:
        """Return the checkpoint of a cycle: "midtrained", "recovered", or "last" of the two; "base" of cycle 0."""
        kinds = ("recovered", "midtrained") if kind == "last" else (kind,)
        found = {c.kind: c for c in self.checkpoints if c.cycle == cycle}
        return next((found[k] for k in kinds if k in found), None)


# A checkpoint's figure: (record, cycle, kind) → its value; None if not measured. Base is that of the cycle's corpus.
Value = Callable[[Record, int, str], float | None]


def of(measured: Measured, name: str, detail: str = "") -> float | None:
    """Return a checkpoint's score of a suite, or one of its details."""
    row = measured.suites.get(name)
    if row is None:
        return None
    found = row["details"].get(detail) if detail else row["value"]
    return None if found is None else float(found)


def with_beyond(record: Record, trivial: Mapping[str, Any]) -> Record:
    """Return an older record with what its verdicts say beyond constant replies (:mod:`evals.beyond_constant`).

    ``trivial`` holds by suite the share that an "echo" of the prompt gets, and the "trivial" instructions of each item,
    "1" and "0" in their order. An item that it does not know is left out.
    """
    return dataclasses.replace(record, checkpoints=tuple(_with_beyond(one, trivial) for one in record.checkpoints))


def _with_beyond(measured: Measured, trivial: Mapping[str, Any]) -> Measured:
    suites, items = dict(measured.suites), dict(measured.items)
    for name, of in trivial.items():
        known = of["trivial"]
        found = {
            key: "".join(verdict for verdict, flag in zip(verdicts, known[key], strict=True) if flag == "0")
            for key, verdicts in measured.items.get(name, {}).items()
            if key in known
        }
        if (beyond := f"{name}/{DETAIL}") not in items and (every := "".join(found.values())):
            items[beyond] = {key: verdicts for key, verdicts in found.items() if verdicts}
            details = {**suites[name]["details"], DETAIL: every.count("1") / len(every), ECHO: of["echo"]}
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
