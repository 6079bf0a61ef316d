"""What a teacher would have given the tokens that the student said."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from recovery.batches import Batch, Row, collate
from recovery.objectives.fused import fused_loss
from recovery.objectives.terms import Term
from recovery.teachers import Scorer, Teacher


def token_logprobs(
    teacher: Teacher | Scorer,
    rows: Sequence[Row],
    token_budget: int,
    pad_id: int,
    device: torch.device,
    temperature: float = 1.0,
) -> list[list[float]]:
    """Log-probabilities (nats) that a teacher gives the targets of each row, in the rows' order; nothing is learnt.

    Where a row brings what the teacher is to read, it reads that. At most ``token_budget`` padded tokens are read at
    once, or one row. ``temperature`` divides the logits of a teacher that has them; a scorer gives its own at 1.
    """
    found: list[list[float]] = [[] for _ in rows]
    order = sorted(range(len(rows)), key=lambda index: _width(rows[index]))
    while order:
        room = max(1, token_budget // _width(rows[order[-1]]))
        group, order = order[-room:], order[:-room]
        batch = collate([rows[index] for index in group], pad_id, device)
        seen = batch.seen_by_teacher or batch
        with torch.no_grad():
            values_N = _logprobs(teacher, seen, temperature)
        for number, value in zip(batch.rows_N.tolist(), values_N.tolist(), strict=True):
            found[group[number]].append(value)
    return found


def _logprobs(teacher: Teacher | Scorer, batch: Batch, temperature: float) -> torch.Tensor:
    if isinstance(teacher, Scorer):
        return teacher.logprobs(batch)
    terms = [Term("cross_entropy", targets_N=batch.targets_N)]
    hidden_NE = batch.gather(teacher.hidden(batch))
    return -fused_loss(hidden_NE, teacher.head, terms, temperature=temperature).per_token_N


def _width(row: Row) -> int:
    return max(len(row.ids), len(row.teacher_ids or ()))
