"""Reading a file of probes and changing it: dropped by id, added from another file, told before and after."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evals.probes import from_record, load_probes, probes_hash, to_record
from recovery.corpus.encodings import decode
from recovery.corpus.records import json_line
from recovery.errors import UsageError
from recovery.types import Probe
from recovery.workspace import write_atomically


@dataclass(frozen=True)
class Review:
    """A file of probes before and after a change, its bad lines, and the probes that are shown."""

    path: str
    before: tuple[Probe, ...]
    after: tuple[Probe, ...]
    shown: tuple[Probe, ...]
    problems: tuple[str, ...]

    @property
    def changed(self) -> bool:
        """Whether the file has to be written again."""
        return self.before != self.after


def review(
    path: Path, *, show: int, drawn: bool, seed: int, drop: Sequence[str] = (), add: Sequence[Path] = ()
) -> Review:
    """Read a file of probes, leave out those of ``drop``, put in those of the files ``add``; nothing is written.

    Raises UsageError for an id that is not there, or one that is there already under another wording.
    """
    problems: list[str] = []
    before = load_probes(path, problems=problems)
    unknown = [id for id in drop if id not in {p.id for p in before}]
    if unknown:
        raise UsageError(f'there is no probe "{unknown[0]}" in {path}: see the ids with `recover probes review {path}`')
    after = {p.id: p for p in before if p.id not in drop}
    for file in add:
        for probe in load_probes(file, problems=problems):
            if after.setdefault(probe.id, probe) != probe:
                raise UsageError(f'the id "{probe.id}" of {file} is taken in {path}: give it another, or --drop it')
    if not after:
        raise UsageError(f"nothing would be left in {path}: delete the file instead, and new probes are made")
    shown = list(after.values())
    if drawn:
        shown = random.Random(seed).sample(shown, min(show, len(shown)))
    return Review(str(path), tuple(before), tuple(after.values()), tuple(shown[:show]), tuple(problems))


def save(changed: Review) -> None:
    """Put the changes of a review into its file, whole or not at all.

    Only the lines of dropped probes go and those of added ones come: what the rest holds besides, and lines that could
    not be read, stay as they are.
    """
    if not changed.changed:
        return
    path = Path(changed.path)
    before, after = {p.id for p in changed.before}, {p.id: p for p in changed.after}
    kept = [
        line
        for line in decode(path.read_bytes()).text.rstrip("\n").split("\n")
        if _id_of(line) not in before - after.keys()
    ]
    added = [json_line(to_record(probe)) for key, probe in after.items() if key not in before]
    write_atomically(path, "".join(f"{line}\n" for line in (*kept, *added)))


def _id_of(line: str) -> str | None:
    """The id of the probe on a line, None where there is none to be read."""
    try:
        return from_record(json.loads(line)).id
    except (ValueError, RecursionError):
        return None


def counts(probes: Sequence[Probe]) -> dict[str, Any]:
    """How many probes of which form and kind, and their hash."""
    kinds = Counter(f"{p.form}: {p.tags[-1]}" if p.tags else p.form for p in probes if not p.control)
    return {
        "probes": len(probes),
        "control": sum(p.control for p in probes),
        "kinds": dict(kinds.most_common()),
        "hash": probes_hash(probes),
    }


def counts_text(probes: Sequence[Probe]) -> str:
    """The same in one line."""
    told = counts(probes)
    kinds = ", ".join(f"{n} {kind}" for kind, n in told["kinds"].items())
    control = f", {told['control']} control" if told["control"] else ""
    return f"{told['probes']} probes ({kinds}{control}), hash {told['hash'][:12]}"


def summary(found: Review) -> dict[str, Any]:
    """A review in JSON's types."""
    return {
        "path": found.path,
        "before": counts(found.before),
        "after": counts(found.after),
        "problems": list(found.problems),
        "probes": [to_record(p) for p in found.shown],
    }


def text(found: Review) -> str:
    """A review for a person: the probes shown, what could not be read, the counts."""
    lines = [shown(p) + "\n" for p in found.shown] + [f"not used: {problem}" for problem in found.problems]
    if not found.changed:
        return "\n".join([*lines, counts_text(found.after)])
    return "\n".join([*lines, f"before: {counts_text(found.before)}", f"after:  {counts_text(found.after)}"])


def shown(probe: Probe) -> str:
    """A probe to be judged: what is asked, the answer, the wrong ones, and where it comes from."""
    lines = [f"{probe.id}  {'control  ' if probe.control else ''}{' '.join(probe.tags)}  {probe.source}".rstrip()]
    parts = {
        "asked": probe.question,
        "answer": " | ".join(probe.answers),
        "wrong": " | ".join(c for c in probe.choices if c not in probe.answers),
        "passage": probe.passage,
    }
    for name, part in parts.items():
        if part:
            lines.append(f"  {name:8} " + part.strip("\n").replace("\n", "\n" + " " * 11))
    return "\n".join(lines)
