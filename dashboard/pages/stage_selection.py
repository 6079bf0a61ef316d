"""Selection of stages on the pages that compare several: names, styles, address parameters, FLOPs, settings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gradio as gr

from dashboard import charts, theme
from dashboard.markup import STAGE_WORDS
from db import Database, queries
from db.records import Checkpoint, Stage

COLOURS = len(theme.SERIES)
DASHES = len(charts.DASHES)


@dataclass(frozen=True)
class Named:
    """A stage with the name of its experiment and the checkpoint it made, if any."""

    stage: Stage
    experiment: str
    checkpoint: Checkpoint | None

    @property
    def name(self) -> str:
        """The name of its checkpoint, else its kind, cycle and id."""
        if self.checkpoint is not None:
            return self.checkpoint.name
        cycle = f", cycle {self.stage.cycle}" if self.stage.cycle is not None else ""
        return f"{STAGE_WORDS[self.stage.kind]}{cycle} (stage {self.stage.id})"

    @property
    def method(self) -> str:
        """The training method."""
        if self.stage.kind != "distill":
            return STAGE_WORDS[self.stage.kind].lower()
        return str(self.stage.details.get("method") or self.stage.config.get("method") or "distillation")


def named(database: Database, stages: Sequence[Stage]) -> list[Named]:
    """Return stages with their names, in the same order."""
    made = queries.made_by(database, [stage.id for stage in stages])
    found = {number: queries.experiment(database, number) for number in {stage.experiment_id for stage in stages}}
    experiments = {number: one.name if one is not None else "" for number, one in found.items()}
    return [Named(stage, experiments[stage.experiment_id], made.get(stage.id)) for stage in stages]


def by_id(database: Database, numbers: Sequence[int]) -> list[Stage]:
    """Return the existing stages of these ids, in the given order."""
    found = {stage.id: stage for stage in queries.find_stages(database, ids=numbers)}
    return [found[number] for number in numbers if number in found]


def labels(entries: Sequence[Named]) -> list[str]:
    """Return a distinct label for each stage; with the experiment only if there are several."""
    experiments = {entry.experiment for entry in entries}
    shared = _shared(sorted(experiments)) if len(experiments) > 1 else ""
    names = [
        f"{entry.experiment.removeprefix(shared)}: {entry.name}" if len(experiments) > 1 else entry.name
        for entry in entries
    ]
    return [
        f"{name} (stage {entry.stage.id})" if names.count(name) > 1 else name
        for name, entry in zip(names, entries, strict=True)
    ]


def looks(entries: Sequence[Named]) -> list[tuple[int, int]]:
    """Return for each stage the indices of its colour and dash style. If experiments share stage names, as the seeds
    of a comparison do, the name selects the colour and the experiment the dash style."""
    names = list(dict.fromkeys(entry.name for entry in entries))
    experiments = list(dict.fromkeys(entry.experiment for entry in entries))
    found = [(names.index(entry.name), experiments.index(entry.experiment)) for entry in entries]
    distinct = len(set(found)) == len(found) and len(names) <= COLOURS and 1 < len(experiments) <= DASHES
    return found if distinct and len(names) < len(entries) else [(at, at) for at in range(len(entries))]


def asked(request: gr.Request, name: str, limit: int) -> list[str]:
    """Return the distinct values of a repeated parameter of the address, at most ``limit``."""
    parameters: Any = request.query_params
    pairs = parameters.multi_items() if hasattr(parameters, "multi_items") else list(parameters.items())
    values = [str(value) for key, value in pairs if key == name and value]
    return list(dict.fromkeys(values))[:limit]


def asked_stages(request: gr.Request, limit: int) -> list[int]:
    """Return the stage ids in the address: ``stage=4&stage=9``, or ``stage=4,9``."""
    words = [word.strip() for value in asked(request, "stage", limit) for word in value.split(",")]
    numbers = [int(word) for word in words if word.isdecimal() and len(word) < 10]
    return list(dict.fromkeys(numbers))[:limit]


def flops(stage: Stage) -> float | None:
    """Return estimated FLOPs: 2N per token read and 6N per token trained on; None if the size N is unknown."""
    size = stage.details.get("parameters")
    if not isinstance(size, int | float) or not size:
        return None
    return float(size) * (2 * (stage.tokens_sampled + stage.tokens_scored) + 6 * stage.tokens_trained)


def differing(entries: Sequence[Named]) -> Mapping[str, list[Any]]:
    """Return the settings that differ between stages, each with its value in every stage."""
    names = sorted({name for entry in entries for name in entry.stage.config})
    values = {name: [entry.stage.config.get(name) for entry in entries] for name in names}
    return {name: found for name, found in values.items() if any(value != found[0] for value in found)}


def _shared(names: Sequence[str]) -> str:
    """Return the common prefix of sorted names, up to a slash."""
    first, last = names[0], names[-1]
    same = next((at for at, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))
    return first[: first.rfind("/", 0, same) + 1]
