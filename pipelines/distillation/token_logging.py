"""Token scores of a few completions of a running stage, for review on the dashboard."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipelines.runtime.model_group import LoadedModels
from pipelines.runtime.stage import Stage
from recovery.batching import Row
from recovery.losses.objective import MAIN_TEACHER
from recovery.losses.token_stats import TokenView
from recovery.training.interfaces import StepBatch

RECORDED = 5  # times per stage, in addition to the first step


@dataclass
class TokenLogger:
    """Records, at some steps, token scores of ``count`` rows that a single teacher scores.

    ``main_teacher`` is the checkpoint that rows of :data:`~recovery.losses.objective.MAIN_TEACHER` mean.
    """

    stage: Stage
    models: LoadedModels
    steps: int
    count: int
    main_teacher: str
    rows: list[Row] = field(default_factory=list)

    def keep(self, step: int, batch: StepBatch) -> None:
        """Select rows of a step's batch, if the step is to be recorded."""
        if self._wanted(step):
            self.rows = _spread([row for row in batch.rows if self._viewed(row)], self.count)

    def record(self, step: int) -> None:
        """Score the selected rows with the updated student and store them, if the step is to be recorded."""
        if not self._wanted(step) or not self.rows:
            return
        views = [(row, view) for row in self.rows for view in self.models.token_views(row)]
        self.rows = []
        self.stage.session.tracker.add_token_scores(
            self.stage.recorder.id, step, [self._record(number, row, view) for number, (row, view) in enumerate(views)]
        )

    def _wanted(self, step: int) -> bool:
        return self.count > 0 and (step in (1, self.steps) or step % max(1, self.steps // RECORDED) == 0)

    def _viewed(self, row: Row) -> bool:
        """Whether a row is a response whose one teacher has logits at the student's tokens: it is no server, and has no
        other tokenizer.
        """
        if row.segments or row.spans is not None:  # text of documents, or another tokenizer
            return False
        return row.teacher in self.models.teachers and self.models.teachers[row.teacher].has_logits

    def _scored_by(self, row: Row) -> str:
        """Return the teacher of a row: the main one by its name, of a folder the last part; others by their part."""
        name = self.main_teacher if row.teacher == MAIN_TEACHER else row.teacher
        return Path(name).name if Path(name).is_absolute() else name

    def _record(self, number: int, row: Row, view: TokenView) -> dict[str, Any]:
        """Return a view as the tracker stores it, with tokens as text."""
        text = self.models.loaded.chat.raw_text
        shown = {
            name: [[(text([t]), p) for t, p in top] for top in getattr(view, name)] for name in ("top", "teacher_top")
        }
        numbers = ("reverse_kl", "entropy", "teacher_entropy", "logprob", "teacher_logprob", "advantage")
        values = {name: getattr(view, name) for name in numbers if getattr(view, name)}
        return {
            "item": f"{number}, {self._scored_by(row)}",
            "prompt": text(view.prompt_ids),
            "tokens": [text([token]) for token in view.ids],
            "values": values | shown,
        }


def _spread(rows: Sequence[Row], count: int) -> list[Row]:
    """Return ``count`` evenly spaced rows, so that several prompts and teachers are included."""
    if len(rows) <= count:
        return list(rows)
    return [rows[round(at * (len(rows) - 1) / max(1, count - 1))] for at in range(count)]
