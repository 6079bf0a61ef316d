"""Review and editing of a probe file: drop probes by id, add them from other files, show counts and samples."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from typing import Any

from evals.probes import NATURAL, NEAR_MISS, asked, from_record, load_probes, probes_hash, to_record
from recovery.data.corpus.encodings import decode
from recovery.data.corpus.json_lines import as_list, json_line
from recovery.errors import UsageError, printable
from recovery.types import Probe
from recovery.workspace import write_atomically

_DRAWN, _LONGEST_SHOWN = 10, 300


@dataclass(frozen=True)
class Review:
    """A probe file before and after a change, its invalid lines, and the probes to show."""

    path: str
    before: tuple[Probe, ...]
    after: tuple[Probe, ...]
    shown: tuple[Probe, ...]
    problems: tuple[str, ...]

    @property
    def changed(self) -> bool:
        """Whether the file must be rewritten."""
        return self.before != self.after


def review(
    path: Path, *, show: int, drawn: bool, seed: int, drop: Sequence[str] = (), add: Sequence[Path] = ()
) -> Review:
    """Read a probe file, remove the ids in ``drop`` and add the probes of the files ``add``, without writing.

    Raises UsageError for an unknown id, or an added id that already belongs to a different probe.
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
                raise UsageError(f'the id "{probe.id}" of {file} is taken in {path}: give it another id, or --drop it')
    if not after:
        raise UsageError(f"nothing would be left in {path}: delete the file instead, and new probes are built")
    # As before a cycle, what is asked first: a file of several hundred begins with choices.
    shown = sorted(after.values(), key=lambda probe: (probe.form != "question", probe.control))
    if drawn:
        shown = random.Random(seed).sample(shown, min(show, len(shown)))
    return Review(str(path), tuple(before), tuple(after.values()), tuple(shown[:show]), tuple(problems))


def save(changed: Review) -> None:
    """Write the changes of a review to its file, atomically.

    Only dropped probes are removed and added ones appended; all other lines or records, including invalid ones and
    unknown fields, stay unchanged.
    """
    if not changed.changed:
        return
    path = Path(changed.path)
    before, after = {p.id for p in changed.before}, {p.id: p for p in changed.after}
    dropped = before - after.keys()
    added = [to_record(probe) for key, probe in after.items() if key not in before]
    text = decode(path.read_bytes()).text
    whole = _whole(text) if path.suffix.lower() == ".json" else None
    if whole is None:
        lines = [line for line in text.rstrip("\n").split("\n") if _id_of(_whole(line)) not in dropped]
        write_atomically(path, "".join(f"{line}\n" for line in (*lines, *map(json_line, added))))
        return
    records = as_list(whole)
    alone = records[:1] == [whole]
    records[:] = [*(record for record in records if _id_of(record) not in dropped), *added]  # in place, within whole
    write_atomically(path, json.dumps(records if alone else whole, indent=2, ensure_ascii=False) + "\n")


def _whole(text: str) -> Any:
    """Return the value of a JSON text; None if it is invalid."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _id_of(record: Any) -> str | None:
    """Return the id of the probe of a record, or None if it is invalid."""
    try:
        return from_record(record).id
    except ValueError:
        return None


def counts(probes: Sequence[Probe]) -> dict[str, Any]:
    """Return the number of probes by form and kind, and their hash."""
    kinds = Counter(_kind(p) for p in probes if not p.control)
    return {
        "probes": len(probes),
        "control": sum(p.control for p in probes),
        "kinds": dict(kinds.most_common()),
        "hash": probes_hash(probes),
    }


def _kind(probe: Probe) -> str:
    """Return the form of a probe with its kind: of a question about a fact what it asks for."""
    asked_for = probe.tags[-2:-1] if probe.tags[-1:] == (NATURAL,) and len(probe.tags) > 1 else probe.tags[-1:]
    return ": ".join((probe.form, *asked_for))


def drawn_lines(probes: Sequence[Probe], seed: int) -> tuple[str, ...]:
    """Return how many probes there are of each kind, and at random ten of the questions with their answers, and of the
    near misses, whose right reply is that there is no such thing.
    """
    questions, missed = asked(probes), [p for p in probes if p.form == NEAR_MISS]
    drawn, near = (random.Random(seed).sample(of, min(_DRAWN, len(of))) for of in (questions, missed))
    lines = [f"  {shorten(p.question, _LONGEST_SHOWN, placeholder=' ...')} -> {p.answers[0]}" for p in drawn]
    head = f"{counts_text(probes)}; of {len(questions)} questions {len(drawn)} at random, to read before training:"
    if near:
        lines.append(f"of {len(missed)} questions about what no document holds {len(near)} at random:")
        lines += [f"  {shorten(p.question, _LONGEST_SHOWN, placeholder=' ...')} -> no {p.absent}" for p in near]
    return tuple(map(printable, [head, *lines]))


def counts_text(probes: Sequence[Probe]) -> str:
    """Return :func:`counts` in one line."""
    found = counts(probes)
    kinds = ", ".join(f"{n} {kind}" for kind, n in found["kinds"].items())
    control = f", {found['control']} control" if found["control"] else ""
    return f"{found['probes']} probes ({kinds}{control}), hash {found['hash'][:12]}"


def summary(found: Review) -> dict[str, Any]:
    """Return a review as JSON values."""
    return {
        "path": found.path,
        "before": counts(found.before),
        "after": counts(found.after),
        "problems": list(found.problems),
        "probes": [to_record(p) for p in found.shown],
    }


def text(found: Review) -> str:
    """Return a review as text: the shown probes, invalid lines, and counts."""
    lines = [shown(p) + "\n" for p in found.shown] + [f"not used: {problem}" for problem in found.problems]
    if not found.changed:
        return "\n".join([*lines, counts_text(found.after)])
    return "\n".join([*lines, f"before: {counts_text(found.before)}", f"after:  {counts_text(found.after)}"])


def shown(probe: Probe) -> str:
    """Return a probe as text: question, answers, distractors and source passage."""
    lines = [f"{probe.id}  {'control  ' if probe.control else ''}{' '.join(probe.tags)}  {probe.source}".rstrip()]
    parts = {
        "asked": probe.question,
        "answer": " | ".join(probe.answers),
        "wrong": " | ".join(c for c in probe.choices if c not in probe.answers),
        "absent": probe.absent,
        "passage": probe.passage,
    }
    for name, part in parts.items():
        if part:
            lines.append(f"  {name:8} " + part.strip("\n").replace("\n", "\n" + " " * 11))
    return "\n".join(lines)
