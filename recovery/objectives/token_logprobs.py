"""What a teacher would have given the tokens that the student said."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from recovery.batches import Row, collate
from recovery.objectives.fused import fused_loss
from recovery.objectives.terms import Term
from recovery.teachers import Teacher


def token_logprobs(
    teacher: Teacher, rows: Sequence[Row], token_budget: int, pad_id: int, device: torch.device
) -> list[list[float]]:
    """Log-probabilities (nats) that a teacher gives the targets of each row, in the rows' order; nothing is learnt.

    Where a row brings what the teacher is to read, it reads that. At most ``token_budget`` padded tokens are read at
    once, or one row.
    """
    found: list[list[float]] = [[] for _ in rows]
    order = sorted(range(len(rows)), key=lambda index: _width(rows[index]))
    while order:
        room = max(1, token_budget // _width(rows[order[-1]]))
        group, order = order[-room:], order[:-room]
        batch = collate([rows[index] for index in group], pad_id, device)
        seen = batch.seen_by_teacher or batch
        with torch.no_grad():
            terms = [Term("cross_entropy", targets_N=batch.targets_N)]
            values_N = -fused_loss(seen.gather(teacher.hidden(seen)), teacher.head, terms).per_token_N
        for number, value in zip(batch.rows_N.tolist(), values_N.tolist(), strict=True):
            found[group[number]].append(value)
    return found


def _width(row: Row) -> int:
    return max(len(row.ids), len(row.teacher_ids or ()))
