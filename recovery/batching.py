"""Training rows, packing, and grouping into padded micro-batches.

Everything a stage trains on, documents and rollouts alike, is a :class:`Row`. Padding is on the right, where causal
attention ignores it. Several documents in one row are separated by positions that restart at 0, from which
transformers builds a block-diagonal attention mask; for a model that builds none, :func:`separate_rows` makes rows of
one document.
"""

from __future__ import annotations

import dataclasses
import itertools
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from recovery.errors import UsageError

# A CPU gains nothing from larger batches: their activations do not fit its cache. On a model of 135M parameters, a step
# of recovery in batches of 4,096 tokens took 7% longer and 1.2 GB more.
CPU_TOKENS = 2048
# Fixed cost of one more batch on a CPU, as a number of padded tokens: its gradients are added to those before it. On
# the same model the forward and backward passes of a step take 13% less time than with as few batches as possible; with
# a cost of 40 they also take 13% less, with 160 10%.
CPU_BATCH = 80
# Common to the rows of a batch: the teacher, and which optional fields they have.
Kind = tuple[str, tuple[bool, ...]]


@dataclass(frozen=True)
class Row:
    """One training row of T tokens.

    ``loss_mask[t]`` marks token t as a target (predicted from the tokens before it). ``segments`` are the
    lengths of the documents packed into the row, empty for a single one. ``teacher`` is the name of the scoring
    teacher; "label" means cross-entropy on the tokens themselves, "reward" a policy gradient on ``advantages`` only.

    ``teacher_ids`` is the teacher's own input, if its context differs: that context, then the same response; targets
    are aligned from the right. With ``spans`` it is in the tokens of another tokenizer: each span is (begin, end) in
    ``ids``, then (begin, end) in ``teacher_ids``, of the same text; targets outside them are not scored. ``advantages``
    and ``old_logprobs`` (the natural log-probability of each target when it was sampled) hold one entry per target, or
    none at all. ``prefix_logprobs`` are those of the response's tokens just before the first target: they are not
    trained on, but their importance ratios belong to the weights of the targets.
    """

    ids: Sequence[int]
    loss_mask: Sequence[bool] | bytearray
    segments: tuple[int, ...] = ()
    teacher: str = "label"
    teacher_ids: Sequence[int] | None = None
    advantages: Sequence[float] = ()
    old_logprobs: Sequence[float] = ()
    prefix_logprobs: Sequence[float] = ()
    spans: Sequence[Sequence[int]] | None = None

    @property
    def width(self) -> int:
        """Length of the longer input: the student's, or the teacher's with its own context."""
        return max(len(self.ids), len(self.teacher_ids or ()))

    @property
    def targets(self) -> int:
        """Number of tokens trained on; the first token of each document is never predicted."""
        starts = itertools.accumulate((0, *self.segments[:-1]))
        return sum(self.loss_mask) - sum(self.loss_mask[start] for start in starts if start < len(self.loss_mask))

    def window(self, begin: int, end: int, prefix: Sequence[int] = ()) -> Row:
        """Return tokens ``begin`` to ``end`` of a row of text; a cut document begins with ``prefix``, as all do."""
        bounds = [0, *itertools.accumulate(self.segments or (len(self.ids),))]
        cut = [min(end, stop) - max(begin, start) for start, stop in itertools.pairwise(bounds)]
        segments = [length for length in cut if length > 0]
        ids, mask = self.ids[begin:end], self.loss_mask[begin:end]
        if prefix and begin not in bounds:  # only the prefix would predict the first remaining token
            ids, mask = [*prefix, *ids], [False] * (len(prefix) + 1) + [bool(marked) for marked in mask[1:]]
            segments[0] += len(prefix)
        return Row(ids, mask, tuple(segments), self.teacher)

    @property
    def kind(self) -> Kind:
        """Key of rows that can share a batch: same teacher, same optional fields present."""
        fields = self.teacher_ids is not None, bool(self.advantages), bool(self.old_logprobs), self.spans is not None
        return self.teacher, fields


class Spans(NamedTuple):
    """The number of the span of each of N student targets (-1: none) and of M teacher targets; ``total`` spans."""

    student_N: torch.Tensor
    teacher_M: torch.Tensor
    total: int


class Prefix(NamedTuple):
    """M sampled tokens before the first targets of their rows: ``sources_M`` as in :class:`Batch`, the tokens, the
    natural log-probabilities they were sampled with, and the row each belongs to.
    """

    sources_M: torch.Tensor
    targets_M: torch.Tensor
    logprobs_M: torch.Tensor
    rows_M: torch.Tensor


@dataclass(frozen=True)
class Batch:
    """Rows of one teacher, padded to [B, T]; N target tokens in all. ``lengths_B`` are the rows' lengths.

    ``sources_N`` are flat indices (b·T + t − 1) of the positions whose hidden state predicts a target;
    ``targets_N`` the target tokens; ``rows_N`` the row each belongs to. ``advantages_N`` and ``old_logprobs_N`` are
    those of the rows, or None. ``seen_by_teacher`` holds the same N targets, in the same order, after the context that
    only the teacher reads; None if both sides read the same input. With ``spans`` it holds the teacher's own tokens of
    the same text instead, M targets. ``prefix`` are the sampled tokens before the targets, if any. An ``idle`` batch
    has no effect on the gradient: it only keeps this process in step with the others.
    """

    ids_BT: torch.Tensor
    positions_BT: torch.Tensor
    lengths_B: torch.Tensor
    sources_N: torch.Tensor
    targets_N: torch.Tensor
    rows_N: torch.Tensor
    teacher: str
    advantages_N: torch.Tensor | None = None
    old_logprobs_N: torch.Tensor | None = None
    seen_by_teacher: Batch | None = None
    prefix: Prefix | None = None
    spans: Spans | None = None
    idle: bool = False

    @property
    def tokens(self) -> int:
        """Number of target tokens in the batch."""
        return int(self.targets_N.numel())

    @property
    def real(self) -> torch.Tensor:
        """Which tokens are not padding, [B, T]."""
        return torch.arange(self.ids_BT.shape[1], device=self.ids_BT.device) < self.lengths_B.unsqueeze(1)

    def gather(self, hidden_BTD: torch.Tensor) -> torch.Tensor:
        """Return the hidden states that predict the targets: [B, T, D] to [N, D]."""
        return hidden_BTD.reshape(-1, hidden_BTD.shape[-1])[self.sources_N]


def collate(rows: Sequence[Row], pad_id: int, device: torch.device | str = "cpu") -> Batch:
    """Pad rows of one kind into a batch.

    Raise UsageError if a row is empty, if the rows differ in kind (teacher, teacher_ids, advantages, old_logprobs),
    or if the fields of a row do not fit its targets.
    """
    if not rows or any(not row.ids for row in rows):
        raise UsageError("a training row is empty: every row needs at least one token")
    if len({row.teacher for row in rows}) != 1:
        raise UsageError("rows of several teachers were put into one batch")
    if len({row.kind for row in rows}) != 1:
        raise UsageError("rows with and without teacher_ids, spans, advantages or old_logprobs were put into one batch")
    width = max(len(row.ids) for row in rows)
    ids = torch.full((len(rows), width), pad_id, dtype=torch.long)
    positions = torch.empty((len(rows), width), dtype=torch.long)
    sources, targets, owners = [], [], []
    for b, row in enumerate(rows):
        ids[b, : len(row.ids)] = torch.as_tensor(row.ids)
        positions[b] = _positions(row, width)
        at = torch.as_tensor(row.loss_mask, dtype=torch.bool).nonzero().squeeze(-1)
        at = at[positions[b, at] > 0]  # the first token of a document is never predicted
        sources.append(b * width + at - 1)
        targets.append(ids[b, at])
        owners.append(torch.full_like(at, b))
    batch = Batch(
        ids.to(device),
        positions.to(device),
        torch.tensor([len(row.ids) for row in rows], device=device),
        torch.cat(sources).to(device),
        torch.cat(targets).to(device),
        torch.cat(owners).to(device),
        rows[0].teacher,
    )
    counts = [len(tokens) for tokens in targets]
    return dataclasses.replace(
        batch,
        advantages_N=_per_target("advantages", [row.advantages for row in rows], counts, device),
        old_logprobs_N=_per_target("old_logprobs", [row.old_logprobs for row in rows], counts, device),
        seen_by_teacher=_seen_by_teacher(rows, batch, pad_id, device),
        spans=_spans(rows, device),
        prefix=_prefix(rows, ids, device),
    )


def _prefix(rows: Sequence[Row], ids: torch.Tensor, device: torch.device | str) -> Prefix | None:
    """Return the sampled tokens before the first target of each row; None if no row has any."""
    sources, owners, logprobs = [], [], []
    for b, row in enumerate(rows):
        count = len(row.prefix_logprobs)
        if not count:
            continue
        first = list(row.loss_mask).index(True)
        if count >= first:
            raise UsageError(f"a row has {count} prefix_logprobs and its first target at {first}: no context is left")
        sources += [b * ids.shape[1] + at - 1 for at in range(first - count, first)]
        owners += [b] * count
        logprobs += list(row.prefix_logprobs)
    if not logprobs:
        return None
    sources_M = torch.tensor(sources)
    prefix = Prefix(sources_M, ids.reshape(-1)[sources_M + 1], torch.tensor(logprobs), torch.tensor(owners))
    return Prefix(*(tensor.to(device) for tensor in prefix))


def _per_target(
    name: str, entries: Sequence[Sequence[float]], counts: Sequence[int], device: torch.device | str
) -> torch.Tensor | None:
    """Concatenate one number per target over all rows; None if the rows have none."""
    if not any(entries):
        return None
    for numbers, count in zip(entries, counts, strict=True):
        if len(numbers) != count:
            raise UsageError(f"a row has {len(numbers)} {name} for {count} targets: each target needs one")
    return torch.tensor([value for numbers in entries for value in numbers], dtype=torch.float32).to(device)


def _seen_by_teacher(rows: Sequence[Row], batch: Batch, pad_id: int, device: torch.device | str) -> Batch | None:
    """Return the batch of the same targets after the teacher's own context."""
    if rows[0].teacher_ids is None:
        return None
    if rows[0].spans is not None:
        return collate([_aligned_row(row) for row in rows], 0, device)  # the student's padding may not be a token there
    seen = collate([_teacher_row(row) for row in rows], pad_id, device)
    if not torch.equal(seen.targets_N, batch.targets_N):
        raise UsageError("teacher_ids of a row do not end in its response: both sides must read the same targets")
    return seen


def _teacher_row(row: Row) -> Row:
    """Return the teacher's input as a row, with the student's targets marked from the right."""
    if len(row.segments) > 1:
        raise UsageError("a row of several documents cannot have teacher_ids: put each document in its own row")
    ids = row.teacher_ids or ()
    # The student's first token is not a target: nothing precedes it, even if the teacher has a context before it.
    mask = [False, *row.loss_mask[1:]]
    extra = len(ids) - len(mask)
    if not ids or any(mask[: max(0, 1 - extra)]):
        raise UsageError(f"teacher_ids of a row hold {len(ids)} tokens: they need a context and the whole response")
    return Row(ids, [False] * extra + mask if extra >= 0 else mask[-extra:], teacher=row.teacher)


def _aligned_row(row: Row) -> Row:
    """Return the teacher's input in its own tokens as a row: its tokens of every span are targets."""
    ids, mask = row.teacher_ids or (), [False] * len(row.teacher_ids or ())
    for _, _, begin, end in row.spans or ():
        mask[begin:end] = [True] * (end - begin)
    return Row(ids, mask, teacher=row.teacher)


def _spans(rows: Sequence[Row], device: torch.device | str) -> Spans | None:
    """Return the span of each target on both sides; None if the rows have none.

    Raise UsageError if a span is empty or out of order, or holds a token that is not a target.
    """
    if rows[0].spans is None:
        return None
    student: list[int] = []
    teacher: list[int] = []
    count = 0
    for row in rows:
        numbers = [-1] * len(row.ids)
        ends = (1, 1)  # the first token of either side is never predicted
        for begin, end, their_begin, their_end in row.spans or ():
            targets = begin >= ends[0] and begin < end <= len(row.ids) and all(row.loss_mask[begin:end])
            if not targets or not ends[1] <= their_begin < their_end <= len(row.teacher_ids or ()):
                raise UsageError(f"the span {(begin, end, their_begin, their_end)} of a row is not within its targets")
            numbers[begin:end] = [count] * (end - begin)
            teacher += [count] * (their_end - their_begin)
            ends, count = (end, their_end), count + 1
        student += [number for at, number in enumerate(numbers) if at and row.loss_mask[at]]
    return Spans(torch.tensor(student, device=device), torch.tensor(teacher, dtype=torch.long, device=device), count)


def micro_batches(
    rows: Iterable[Row],
    token_budget: int,
    pad_id: int,
    device: torch.device | str = "cpu",
    *,
    share: tuple[int, int] = (0, 1),
    even: bool = False,
) -> list[Batch]:
    """Group rows by kind and length into batches of at most ``token_budget`` padded tokens each.

    The length of a row is that of its longer input, the student's or the teacher's. A single row longer than the
    budget is a batch of its own. The grouping does not change any sum over target tokens, so the budget affects only
    memory and speed. On a CPU it is at most ``CPU_TOKENS``.

    ``share`` (number, count) selects the rows of one process out of ``count``. With ``even`` every process gets the
    same number of batches of each kind, padded with idle batches.
    """
    cost = token_budget
    if torch.device(device).type == "cpu":
        token_budget, cost = min(token_budget, CPU_TOKENS), CPU_BATCH
    number, count = share
    parts = [_grouped(part, token_budget, cost) for part in deal(rows, count)]
    batches = []
    for kind in dict.fromkeys(kind for part in parts for kind in part):
        mine = parts[number].get(kind, [])
        batches += [collate(group, pad_id, device) for group in mine]
        if even:
            groups = [group for part in parts for group in part.get(kind, [])]
            least = min((row for group in groups for row in group), key=lambda row: row.width)
            missing = max(len(part.get(kind, [])) for part in parts) - len(mine)
            batches += [dataclasses.replace(collate([least], pad_id, device), idle=True)] * missing
    return batches


def separate_rows(rows: Iterable[Row]) -> list[Row]:
    """Return rows of one document each, with the same targets, for a model that does not keep packed ones apart."""
    found = []
    for row in rows:
        bounds = [0, *itertools.accumulate(row.segments)]
        cut = len(row.segments) > 1
        found += [row.window(begin, end) for begin, end in itertools.pairwise(bounds)] if cut else [row]
    return found


def deal(rows: Iterable[Row], count: int) -> list[list[Row]]:
    """Split rows over processes: longest first, each to the process with the fewest tokens so far."""
    if count == 1:
        return [list(rows)]
    assigned: list[list[Row]] = [[] for _ in range(count)]
    tokens = [0] * count
    for row in sorted(rows, key=lambda row: row.width, reverse=True):
        least = tokens.index(min(tokens))
        assigned[least].append(row)
        tokens[least] += row.width
    return assigned


def _grouped(rows: Iterable[Row], token_budget: int, cost: int) -> dict[Kind, list[list[Row]]]:
    """Return rows by kind, longest first, in groups within the budget with the least padding.

    A group of n rows as wide as its first costs n x width + ``cost``; best[e] is the least cost of the first e rows.
    """
    by_kind: dict[Kind, list[Row]] = {}
    for row in rows:
        by_kind.setdefault(row.kind, []).append(row)
    groups = {}
    for kind, same_kind in by_kind.items():
        same_kind.sort(key=lambda row: row.width, reverse=True)
        widths, best, begins = [row.width for row in same_kind], [0], [0]
        for end in range(1, len(same_kind) + 1):
            least = end - 1
            while least and (end - least + 1) * widths[least - 1] <= token_budget:
                least -= 1
            costs = {begin: best[begin] + (end - begin) * widths[begin] for begin in range(least, end)}
            begin = min(costs, key=costs.__getitem__)
            best.append(costs[begin] + cost)
            begins.append(begin)
        ends = [len(same_kind)]
        while ends[-1]:
            ends.append(begins[ends[-1]])
        groups[kind] = [same_kind[begin:end] for begin, end in itertools.pairwise(reversed(ends))]
    return groups


def pack(sequences: Iterable[tuple[Sequence[int], Sequence[bool]]], length: int) -> list[Row]:
    """Pack sequences of (ids, target mask) into rows of at most ``length`` tokens, first fit, in order.

    Sequences longer than ``length`` are split; each piece counts as a document of its own. The rows are arrays: five
    bytes a token, where lists take 44.
    """
    open_rows: list[_Packed] = []
    full: list[_Packed] = []
    for ids, mask in sequences:
        for start in range(0, len(ids), length):
            piece, marks = ids[start : start + length], mask[start : start + length]
            row = next((r for r in open_rows if len(r.ids) + len(piece) <= length), None)
            if row is None:
                row = _Packed()
                open_rows.append(row)
            row.ids.extend(piece)
            row.mask.extend(marks)
            row.segments.append(len(piece))
            # At most 32 open rows keep packing linear in time; a row with little room left is closed.
            if len(row.ids) > length - 8 or len(open_rows) > 32:
                closed = row if len(row.ids) > length - 8 else open_rows[0]
                open_rows = [r for r in open_rows if r is not closed]
                full.append(closed)
    return [Row(packed.ids, packed.mask, tuple(packed.segments)) for packed in full + open_rows]


class _Packed:
    """A row that is being filled: token ids (32 bits), target mask (bytes), lengths of the documents."""

    def __init__(self) -> None:
        self.ids, self.mask, self.segments = array("i"), bytearray(), list[int]()


def _positions(row: Row, width: int) -> torch.Tensor:
    segments = row.segments or (len(row.ids),)
    if sum(segments) != len(row.ids):
        raise UsageError(f"the segments of a row hold {sum(segments)} tokens, the row has {len(row.ids)}")
    # Padding continues the positions of the last segment, so a row of one document needs no mask.
    spans = [*segments[:-1], segments[-1] + width - len(row.ids)]
    return torch.cat([torch.arange(span) for span in spans])
