"""Rows of tokens, packed and grouped into padded micro-batches.

Everything a stage trains on, documents and rollouts alike, is a :class:`Row`. Padding is on the right, where a
causal model cannot see it. Several documents in one row are kept apart by positions that start again at 0,
which transformers turns into a block-diagonal attention mask.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from recovery.errors import UsageError

# A CPU gains nothing from larger batches: their activations leave its cache, and rows of very different lengths
# end up padded to one. Measured on a model of 2M parameters, 16,384 tokens took twice as long a row.
CPU_TOKENS = 4096


@dataclass(frozen=True)
class Row:
    """One training row of T tokens.

    ``loss_mask[t]`` says that token t is a target (predicted from the tokens before it). ``segments`` are the
    lengths of the documents packed into the row, empty for a single one. ``teacher`` names who scores it;
    "label" means the tokens themselves are the targets.
    """

    ids: Sequence[int]
    loss_mask: Sequence[bool]
    segments: tuple[int, ...] = ()
    teacher: str = "label"


@dataclass(frozen=True)
class Batch:
    """Rows of one teacher, padded to [B, T]; N target tokens in all.

    ``sources_N`` are flat indices (b·T + t − 1) of the positions whose hidden state predicts a target;
    ``targets_N`` the target tokens; ``rows_N`` the row each belongs to.
    """

    ids_BT: torch.Tensor
    positions_BT: torch.Tensor
    sources_N: torch.Tensor
    targets_N: torch.Tensor
    rows_N: torch.Tensor
    teacher: str

    @property
    def tokens(self) -> int:
        """How many target tokens the batch holds."""
        return int(self.targets_N.numel())

    def gather(self, hidden_BTD: torch.Tensor) -> torch.Tensor:
        """The hidden states that predict the targets: [B, T, D] to [N, D]."""
        return hidden_BTD.reshape(-1, hidden_BTD.shape[-1])[self.sources_N]


def collate(rows: Sequence[Row], pad_id: int, device: torch.device | str = "cpu") -> Batch:
    """Pad rows of one teacher into a batch.

    Raises UsageError where a row is empty or the rows name several teachers.
    """
    if not rows or any(not row.ids for row in rows):
        raise UsageError("a training row is empty: every row needs at least one token")
    if len({row.teacher for row in rows}) != 1:
        raise UsageError("rows of several teachers were put into one batch")
    width = max(len(row.ids) for row in rows)
    ids = torch.full((len(rows), width), pad_id, dtype=torch.long)
    positions = torch.empty((len(rows), width), dtype=torch.long)
    sources, targets, owners = [], [], []
    for b, row in enumerate(rows):
        ids[b, : len(row.ids)] = torch.as_tensor(row.ids)
        positions[b] = _positions(row, width)
        at = torch.as_tensor(row.loss_mask, dtype=torch.bool).nonzero().squeeze(-1)
        at = at[positions[b, at] > 0]  # the first token of a document has nothing to be predicted from
        sources.append(b * width + at - 1)
        targets.append(ids[b, at])
        owners.append(torch.full_like(at, b))
    return Batch(
        ids.to(device),
        positions.to(device),
        torch.cat(sources).to(device),
        torch.cat(targets).to(device),
        torch.cat(owners).to(device),
        rows[0].teacher,
    )


def micro_batches(
    rows: Iterable[Row], token_budget: int, pad_id: int, device: torch.device | str = "cpu"
) -> list[Batch]:
    """Group rows by teacher and length into batches of at most ``token_budget`` padded tokens each.

    A single row longer than the budget is a batch of its own. The grouping does not change any sum over
    target tokens, so the budget is a matter of memory and speed only. On a CPU batches stay within
    ``CPU_TOKENS`` whatever the budget.
    """
    if torch.device(device).type == "cpu":
        token_budget = min(token_budget, CPU_TOKENS)
    by_teacher: dict[str, list[Row]] = {}
    for row in rows:
        by_teacher.setdefault(row.teacher, []).append(row)
    batches = []
    for group in by_teacher.values():
        group.sort(key=lambda row: len(row.ids), reverse=True)
        start = 0
        while start < len(group):
            size = max(1, token_budget // len(group[start].ids))
            batches.append(collate(group[start : start + size], pad_id, device))
            start += size
    return batches


def pack(sequences: Iterable[tuple[Sequence[int], Sequence[bool]]], length: int) -> list[Row]:
    """Pack sequences of (ids, target mask) into rows of at most ``length`` tokens, first fit, in order.

    Sequences longer than ``length`` are cut into pieces; each piece counts as a document of its own.
    """
    open_rows: list[tuple[list[int], list[bool], list[int]]] = []
    full: list[tuple[list[int], list[bool], list[int]]] = []
    for ids, mask in sequences:
        for start in range(0, len(ids), length):
            piece, marks = list(ids[start : start + length]), list(mask[start : start + length])
            row = next((r for r in open_rows if len(r[0]) + len(piece) <= length), None)
            if row is None:
                row = ([], [], [])
                open_rows.append(row)
            row[0].extend(piece)
            row[1].extend(marks)
            row[2].append(len(piece))
            # A short list of open rows keeps packing linear; a row with little room left is closed.
            if len(row[0]) > length - 8 or len(open_rows) > 32:
                closed = row if len(row[0]) > length - 8 else open_rows[0]
                open_rows = [r for r in open_rows if r is not closed]
                full.append(closed)
    return [Row(ids, mask, tuple(segments)) for ids, mask, segments in full + open_rows]


def _positions(row: Row, width: int) -> torch.Tensor:
    segments = row.segments or (len(row.ids),)
    if sum(segments) != len(row.ids):
        raise UsageError(f"a row's segments hold {sum(segments)} tokens, the row {len(row.ids)}")
    # Padding goes on counting in the last segment: a row of one document then needs no mask at all.
    spans = [*segments[:-1], segments[-1] + width - len(row.ids)]
    return torch.cat([torch.arange(span) for span in spans])
