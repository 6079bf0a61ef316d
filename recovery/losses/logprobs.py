"""Log-probabilities that a teacher assigns to given responses."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch

from recovery import distributed
from recovery.batching import Batch, Row, collate
from recovery.losses.fused import fused_loss
from recovery.losses.terms import Term
from recovery.teachers.teacher import Teacher


def token_logprobs(
    teacher: Teacher,
    rows: Sequence[Row],
    token_budget: int,
    pad_id: int,
    device: torch.device,
    temperature: float = 1.0,
    *,
    even: bool = False,
) -> list[list[float]]:
    """Return a teacher's log-probabilities (nats) of the targets of each row, in the order of the rows, without
    gradients.

    The teacher reads ``teacher_ids`` of a row if it has them. At most ``token_budget`` padded tokens are read at once,
    or one row. ``temperature`` divides the logits of a local teacher; a server always uses temperature 1.
    ``even``: all processes call this at the same time, each with rows of its own, and score equally many batches, since
    the teacher is sharded.
    """
    found: list[list[float]] = [[] for _ in rows]
    groups = _groups(rows, token_budget)
    idle = max(distributed.gather(lambda: len(groups))) - len(groups) if even else 0
    for group in groups:
        batch = collate([rows[index] for index in group], pad_id, device)
        seen = batch.seen_by_teacher or batch
        with torch.no_grad():
            values_N = _logprobs(teacher, seen, temperature)
        for number, value in zip(batch.rows_N.tolist(), values_N.tolist(), strict=True):
            found[group[number]].append(value)
    if idle:
        batch = collate([Row(ids=[pad_id] * 2, loss_mask=[False, True])], pad_id, device)
        for _ in range(idle):
            with torch.no_grad():
                _logprobs(teacher, dataclasses.replace(batch, idle=True), temperature)
    return found


def _groups(rows: Sequence[Row], token_budget: int) -> list[list[int]]:
    """Return the numbers of the rows in groups of similar length, the longest first."""
    order = sorted(range(len(rows)), key=lambda index: rows[index].width)
    groups = []
    while order:
        room = max(1, token_budget // rows[order[-1]].width)
        groups.append(order[-room:])
        order = order[:-room]
    return groups


def _logprobs(teacher: Teacher, batch: Batch, temperature: float) -> torch.Tensor:
    if not teacher.has_logits:
        return teacher.logprobs(batch)
    terms = [Term("cross_entropy", targets_N=batch.targets_N)]
    hidden_NE = batch.gather(teacher.hidden(batch))
    return -fused_loss(hidden_NE, teacher.head, terms, temperature=temperature).per_token_N
