"""Statistics of the loss: per token of a few completions, and of the gradient of a step."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from recovery import distributed
from recovery.batching import Batch, Row, collate
from recovery.errors import UsageError
from recovery.losses.fused import fused_loss
from recovery.losses.terms import Term
from recovery.models.loaded import Loaded
from recovery.teachers.teacher import Teacher

TOP = 5
# Tokens whose whole distributions are held at once.
TOKENS = 32


@dataclass(frozen=True)
class TokenView:
    """One completion of n tokens: ``prompt_ids`` of its prompt, and a list of n entries in each other field.

    ``reverse_kl`` is KL(student | teacher) at each position, the entropies are those of both distributions (nats),
    ``logprob`` and ``teacher_logprob`` those of the sampled token; ``top`` and ``teacher_top`` are the most likely
    tokens as (id, probability), in descending order.
    """

    prompt_ids: list[int]
    ids: list[int]
    reverse_kl: list[float]
    entropy: list[float]
    teacher_entropy: list[float]
    logprob: list[float]
    teacher_logprob: list[float]
    top: list[list[tuple[int, float]]]
    teacher_top: list[list[tuple[int, float]]]
    advantage: list[float]


def token_views(student: Loaded, teacher: Teacher, rows: Sequence[Row], pad_id: int) -> list[TokenView]:
    """Return the statistics of ``rows``, one row at a time, over the whole vocabulary of a few tokens at once."""
    return [_view(student, teacher, row, pad_id) for row in rows if any(row.loss_mask[1:])]


def _view(student: Loaded, teacher: Teacher, row: Row, pad_id: int) -> TokenView:
    batch = collate([row], pad_id, student.device)
    seen = batch.seen_by_teacher or batch
    size = min(student.head.vocabulary, teacher.head.vocabulary)  # beyond it one of them has padding rows
    with torch.no_grad():
        theirs_NE, mine_ND = seen.gather(teacher.hidden(seen)), batch.gather(student.hidden(batch))
        heads = student.head.first(size), teacher.head.first(size)
        figures: dict[str, list[Any]] = {}
        for mine_MD, theirs_ME, targets_M in zip(
            mine_ND.split(TOKENS), theirs_NE.split(TOKENS), batch.targets_N.split(TOKENS), strict=True
        ):
            mine_MV, theirs_MV = heads[0].logits(mine_MD).float(), heads[1].logits(theirs_ME).float()
            for name, values in _figures(
                mine_MV.log_softmax(-1), theirs_MV.log_softmax(-1), targets_M[:, None]
            ).items():
                figures.setdefault(name, []).extend(values)
    first = next(t for t, target in enumerate(row.loss_mask) if target and t > 0)
    return TokenView(
        prompt_ids=list(row.ids[:first]),
        ids=batch.targets_N.tolist(),
        advantage=[round(float(a), 4) for a in row.advantages],
        **figures,
    )


def _figures(mine_MV: torch.Tensor, theirs_MV: torch.Tensor, targets_M1: torch.Tensor) -> dict[str, list[Any]]:
    """Return the per-token lists of M tokens from the log-probabilities of both sides."""
    return {
        "reverse_kl": _kl(mine_MV, theirs_MV),
        "entropy": _entropy(mine_MV),
        "teacher_entropy": _entropy(theirs_MV),
        "logprob": _rounded(mine_MV.gather(-1, targets_M1)[:, 0]),
        "teacher_logprob": _rounded(theirs_MV.gather(-1, targets_M1)[:, 0]),
        "top": _top(mine_MV),
        "teacher_top": _top(theirs_MV),
    }


def _kl(log_p: torch.Tensor, log_q: torch.Tensor) -> list[float]:
    """Return Σ_v p (log p − log q) at each position; an entry with probability 0 adds nothing."""
    terms = torch.where(log_p > -torch.inf, log_p.exp() * (log_p - log_q), 0.0)
    return _rounded(terms.sum(-1).clamp_min(0.0))


def _entropy(log_p: torch.Tensor) -> list[float]:
    return _rounded(-torch.where(log_p > -torch.inf, log_p.exp() * log_p, 0.0).sum(-1))


def _top(log_p: torch.Tensor) -> list[list[tuple[int, float]]]:
    probabilities, ids = log_p.exp().topk(min(TOP, log_p.shape[-1]), -1)
    pairs = zip(ids.tolist(), probabilities.tolist(), strict=True)
    return [[(token, round(p, 4)) for token, p in zip(*pair, strict=True)] for pair in pairs]


def _rounded(values: torch.Tensor) -> list[float]:
    return [round(value, 4) for value in values.tolist()]


# Log-probabilities that a teacher assigns to given responses.


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


# Statistics over the gradient vectors of a step's tokens.
#
# With g_t [D] the gradient of token t's loss with respect to its hidden state, over all N tokens of a step:
#
#     density         (sum |g|^2)^2 / (N sum |g|^4), the participation ratio: 1 if all norms are equal, 1/N if only one
#                     token has a gradient
#     bias            |mean g| / mean |g|: 1 if all vectors have the same direction
#     bias_null       the bias with random signs, which falls as N^(-1/2)
#     concentration   largest |g| over the median of the nonzero ones
#     top_1_percent   share of sum |g|^2 in the 1% of the tokens with the largest norms
#     shared          share of sum |g|^2 in the mean vectors of the responses, sum_r n_r |mean of r|^2 / sum |g|^2: R/N
#                     for uncorrelated vectors, with R responses
#
# Each vector is read once, a micro-batch at a time: only the norms, a few sums of vectors, and the projections of a
# small sample are stored.

_NULL_DRAWS = 8


class GradientStats:
    """Accumulates the statistics of one step; create a new one for every step."""

    def __init__(self, width: int, seed: int, keep: int = 200, share: int = 0) -> None:
        """``width`` is D; ``seed`` determines signs, sample and projection; ``keep`` is the largest sample size.

        Instances that measure parts of one step have the same seed and different numbers ``share``.
        """
        self.width = width
        self.keep = keep
        self._draw = torch.Generator().manual_seed(seed)
        self._toss = torch.Generator().manual_seed(seed + 1)
        # Two random directions, scaled so that lengths are preserved on average.
        self._plane_D2 = torch.randn(width, 2, generator=self._draw) / math.sqrt(2.0)
        if share:  # the plane is the same for all parts; signs and sample differ
            self._draw.manual_seed(seed + 2 * share)
            self._toss.manual_seed(seed + 2 * share + 1)
        self._norms: list[Tensor] = []
        self._rows = 0
        self._sum_D = torch.zeros(width, dtype=torch.float64)
        self._null_D = torch.zeros(_NULL_DRAWS, width, dtype=torch.float64)
        self._between = 0.0
        # The sample: tokens with the smallest random keys, independent of the micro-batches.
        self._keys = torch.empty(0)
        self._points = torch.empty(0, 2)
        self._owners = torch.empty(0, dtype=torch.long)

    def add(self, gradient_ND: Tensor, rows_N: Tensor) -> None:
        """Add a micro-batch: a gradient vector for each token, and the row of the batch it belongs to.

        Raises:
            UsageError: the shapes do not fit the width or each other.
        """
        tokens = rows_N.shape[0]
        if gradient_ND.shape != (tokens, self.width):
            raise UsageError(
                f"gradients of shape {tuple(gradient_ND.shape)} do not fit {tokens} tokens and a width of {self.width}"
            )
        if not tokens:
            return
        found_ND = gradient_ND.detach().float() if gradient_ND.dtype == torch.bfloat16 else gradient_ND.detach()
        self._norms.append(torch.linalg.vector_norm(found_ND, dim=-1).double().cpu())
        self._sum_D += found_ND.sum(0, dtype=torch.float64).cpu()
        signs = torch.randint(2, (_NULL_DRAWS, tokens), generator=self._toss).mul_(2).sub_(1)
        self._null_D += (signs.to(found_ND) @ found_ND).double().cpu()
        self._add_responses(found_ND, rows_N)
        self._add_sample(found_ND, rows_N)
        self._rows += int(rows_N.max()) + 1

    def add_all(self, others: Iterable[GradientStats]) -> None:
        """Add the statistics of other parts of the same step."""
        for other in others:
            self._norms += other._norms
            self._sum_D += other._sum_D
            self._null_D += other._null_D
            self._between += other._between
            self._keep_smallest(other._keys, other._points, other._owners + self._rows)
            self._rows += other._rows

    def __getstate__(self) -> dict[str, Any]:
        """Return the state to send to another process, without the random generators."""
        return {name: value for name, value in vars(self).items() if name not in ("_draw", "_toss")}

    def summary(self) -> dict[str, float]:
        """Return the statistics by name; all 0 if no token has a gradient."""
        norms_N = torch.cat(self._norms) if self._norms else torch.zeros(0, dtype=torch.float64)
        squares_N = norms_N.square()
        tokens, total = len(norms_N), float(squares_N.sum())
        names = ("density", "bias", "bias_null", "concentration", "top_1_percent", "shared")
        if total == 0.0:
            return dict.fromkeys(names, 0.0)
        length = float(norms_N.sum())
        values = (
            total**2 / (tokens * float(squares_N.square().sum())),
            float(self._sum_D.norm()) / length,
            float(self._null_D.norm(dim=-1).mean()) / length,
            float(norms_N.max() / norms_N[norms_N > 0].median()),
            float(squares_N.topk(math.ceil(tokens / 100)).values.sum()) / total,
            self._between / total,
        )
        return dict(zip(names, values, strict=True))

    def sample(self) -> list[tuple[float, float, int]]:
        """Return at most ``keep`` uniformly sampled tokens: two coordinates and the row number."""
        rows = self._owners.tolist()
        return [(x, y, row) for (x, y), row in zip(self._points.tolist(), rows, strict=True)]

    def _add_responses(self, found_ND: Tensor, rows_N: Tensor) -> None:
        """Add the shared part; a response is always whole within a micro-batch, so one number each is enough."""
        count = int(rows_N.max()) + 1
        sums_RD = found_ND.new_zeros(count, self.width).index_add_(0, rows_N, found_ND)
        lengths_R = torch.bincount(rows_N, minlength=count).clamp(min=1)
        self._between += float((sums_RD.double().square().sum(-1) / lengths_R).sum())

    def _add_sample(self, found_ND: Tensor, rows_N: Tensor) -> None:
        keys = torch.rand(rows_N.shape[0], generator=self._draw)
        points = (found_ND @ self._plane_D2.to(found_ND)).float().cpu()
        self._keep_smallest(keys, points, rows_N.cpu() + self._rows)

    def _keep_smallest(self, keys: Tensor, points: Tensor, owners: Tensor) -> None:
        keys = torch.cat([self._keys, keys])
        points = torch.cat([self._points, points])
        owners = torch.cat([self._owners, owners])
        kept = keys.argsort()[: self.keep].sort().values  # in order of arrival
        self._keys, self._points, self._owners = keys[kept], points[kept], owners[kept]
