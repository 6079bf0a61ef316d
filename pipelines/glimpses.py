"""Looks into a few answers of a running stage, token by token, for whoever reviews it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pipelines.stage import Stage
from pipelines.watch import Timed
from recovery.batches import Row
from recovery.loading import Loaded
from recovery.objectives.views import TokenView, token_views
from recovery.teachers import Teacher
from recovery.training import StepBatch

LOOKS = 5  # a stage is looked into at its first step, and so often again


@dataclass
class Glimpses:
    """Keeps the first rows of each step that a single teacher scores, and shows them at some steps.

    ``teachers`` are those by the names rows carry. Use it as the stage's source of steps.
    """

    stage: Stage
    source: Callable[[int], StepBatch]
    loaded: Loaded
    teachers: Mapping[str, object]
    steps: int
    count: int
    rows: list[Row] = field(default_factory=list)

    def __call__(self, step: int) -> StepBatch:
        """The step's rows, from the source."""
        batch = self.source(step)
        if self._wanted(step):
            self.rows = _spread([row for row in batch.rows if self._teacher(row) is not None], self.count)
        return batch

    def look(self, step: int) -> None:
        """Record what the model as it is now makes of the rows it was last trained on, if this step is one to show."""
        if not self._wanted(step) or not self.rows:
            return
        views = []
        with self.loaded.inference(), self.loaded.autocast():
            for row in self.rows:
                teacher = self._teacher(row)
                if teacher is not None:
                    views += [(row, v) for v in token_views(self.loaded, teacher, [row], self.loaded.chat.pad_id)]
        self.rows = []
        self.stage.session.tracker.add_token_scores(
            self.stage.recorder.id, step, [self._record(number, row, view) for number, (row, view) in enumerate(views)]
        )

    def _wanted(self, step: int) -> bool:
        return self.count > 0 and (step in (1, self.steps) or step % max(1, self.steps // LOOKS) == 0)

    def _teacher(self, row: Row) -> Teacher | None:
        """The one teacher of a row, without its clock: what is only looked at costs the stage nothing."""
        found = self.teachers.get(row.teacher)
        return found.teacher if isinstance(found, Timed) else None

    def _record(self, number: int, row: Row, view: TokenView) -> dict[str, Any]:
        """As the tracker keeps it: tokens as the text they stand for."""
        text = self.loaded.chat.raw_text
        shown = {
            name: [[(text([t]), p) for t, p in top] for top in getattr(view, name)] for name in ("top", "teacher_top")
        }
        numbers = ("reverse_kl", "entropy", "teacher_entropy", "logprob", "teacher_logprob", "advantage")
        values = {name: getattr(view, name) for name in numbers if getattr(view, name)}
        return {
            "item": f"{number}, {row.teacher}",
            "prompt": text(view.prompt_ids),
            "tokens": [text([token]) for token in view.ids],
            "values": values | shown,
        }


def _spread(rows: Sequence[Row], count: int) -> list[Row]:
    """``count`` rows from the whole list, so that several prompts and teachers are among them."""
    if len(rows) <= count:
        return list(rows)
    return [rows[round(at * (len(rows) - 1) / max(1, count - 1))] for at in range(count)]
