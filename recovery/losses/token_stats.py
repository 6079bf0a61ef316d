"""Per-token statistics of a few completions under the student and its teacher."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from recovery.batching import Row, collate
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
