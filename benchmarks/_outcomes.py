"""Estimators from samples, averaged over all outcomes of a small vocabulary, and statistics of tokens and gradients.

The model is a table: the logits after token t are row t. A response has two tokens after token 0, so that all of them
can be listed; the mean of an estimator is the sum over responses of probability times estimate, without sampling error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from benchmarks._definitions import WIDE, Array, Finding, finding, log_softmax, slope
from recovery.batching import Batch, Row, collate
from recovery.losses.config import LossConfig
from recovery.losses.fused import fused_loss
from recovery.losses.objective import DistillationObjective
from recovery.losses.sparse import top_entries
from recovery.losses.terms import Term
from recovery.losses.token_stats import GradientStats, token_logprobs, token_views
from recovery.models.lm_head import Head
from recovery.rewards import group_advantages
from recovery.teachers.teacher import Teacher

V = 5
FORMAT, UNIT = "float32", 2.0**-24
RESPONSES = [(first, second) for first in range(V) for second in range(V)]
ALL = "all responses of two tokens"
BASELINE = 0.25
Fields = Callable[[int, tuple[int, int]], dict[str, Any]]


class Table(Teacher):
    """A student or teacher with the logits of a table [V, V]; its head is the identity."""

    has_logits = True
    separates_documents = True  # a token's logits are its own row

    def __init__(self, table_VV: Array, *, trained: bool = False) -> None:
        super().__init__()
        self.table_VV, self.device = torch.as_tensor(table_VV).float().requires_grad_(trained), torch.device("cpu")

    @property
    def head(self) -> Head:
        """The identity."""
        return Head(torch.eye(V))

    head_in_training = head  # of a trained table, too

    def hidden(self, batch: Batch) -> torch.Tensor:
        """Return the logits as hidden states, [B, T, V]."""
        return self.table_VV[batch.ids_BT]


@dataclass(frozen=True)
class Mean:
    """An estimator, what its rows hold, and what its mean over responses should be.

    ``score`` returns what the mean gradient is the derivative of, from the student's log-probabilities [..., V, V];
    ``value`` is the mean of the loss. ``older``: the responses are those of an older student; ``skip`` tokens at their
    start are not scored.
    """

    name: str
    config: LossConfig
    fields: Fields
    value: Any
    score: Callable[[Array], Array]
    older: bool = False
    skip: int = 0


def along(log_VV: Array, response: tuple[int, int]) -> Array:
    """Return the log-probabilities of a response's tokens, [2]."""
    return np.array([log_VV[0, response[0]], log_VV[response[0], response[1]]])


def averages(seed: int) -> Iterator[Finding]:
    """Compare the mean of the objective's loss, and of its gradient, with what it estimates."""
    random = np.random.default_rng(seed)
    tables = (random.normal(size=(4, V, V)) * 1.5).astype(np.float32)
    log_p, log_old, log_q, log_base = (log_softmax(table.astype(WIDE)) for table in tables)
    reward_R = random.normal(size=len(RESPONSES)).astype(np.float32).astype(WIDE)
    flat = tables[0].reshape(1, -1).astype(WIDE)
    for mean in means(log_p, log_old, log_q, log_base, reward_R):
        student, teacher = Table(tables[0], trained=True), Table(tables[2])
        anchor = Table(tables[3]) if mean.config.anchor else None
        objective = DistillationObjective({"base": teacher}, mean.config, anchor)
        total, size, gradient_VV = WIDE(0), 0.0, np.zeros((V, V), WIDE)
        for at, response in enumerate(RESPONSES):
            fields: dict[str, Any] = {"teacher": "base"} | mean.fields(at, response)
            row = Row([0, *response], [False, mean.skip == 0, True], **fields)
            loss = objective(student, collate([row], 0)).loss  # type: ignore[arg-type]
            (slope_VV,) = torch.autograd.grad(loss, student.table_VV)
            probability = np.exp(along(log_old if mean.older else log_p, response).sum())
            total += probability * loss.item()
            gradient_VV += probability * slope_VV.double().numpy()
            size += float(probability) * max(1.0, abs(loss.item()), float(slope_VV.abs().max()))
        rounding = UNIT * size * max(1.0, float(-log_p.min()))
        exact = slope(lambda z, mean=mean: mean.score(log_softmax(z.reshape(-1, V, V)))[:, None], flat)  # type: ignore[misc]
        yield finding(f"mean of {mean.name}: value", ALL, FORMAT, total, mean.value, rounding)
        yield finding(f"mean of {mean.name}: gradient", ALL, FORMAT, gradient_VV.reshape(1, -1), exact, rounding)


def means(log_p: Array, log_old: Array, log_q: Array, log_base: Array, reward_R: Array) -> Iterator[Mean]:
    """Yield the estimators, with tables of log-probabilities [V, V] and the reward of each response."""
    p_V, old_V, start_V = np.exp(log_p[0]), np.exp(log_old[0]), np.eye(V)[0]
    p_R = np.exp([along(log_p, one).sum() for one in RESPONSES])
    rewarded = (p_R * reward_R).sum()

    def states(visits_V: Array, log_t: Array = log_q) -> Callable[[Array], Array]:
        """The reverse KL at each state times its visits, which have no gradient."""
        return lambda log: ((np.exp(log) * (log - log_t)).sum(-1) * visits_V).sum(-1)

    def loss_of_reward(log: Array) -> Array:
        return -(np.exp(log[..., 0, :, None] + log).reshape(*log.shape[:-2], -1) * reward_R).sum(-1)

    def second_token(log: Array) -> Array:
        return -(old_V[:, None] * np.exp(log) * reward_R.reshape(V, V)).sum((-1, -2))

    def responses(log_t: Array) -> Any:
        """KL(student | teacher) between whole responses."""
        return sum(p * (along(log_p, one) - along(log_t, one)).sum() for p, one in zip(p_R, RESPONSES, strict=True))

    def old(_: int, one: tuple[int, int]) -> dict[str, Any]:
        return {"old_logprobs": along(log_old, one).astype(float).tolist()}

    def old_second(_: int, one: tuple[int, int]) -> dict[str, Any]:
        first, second = along(log_old, one).astype(float).tolist()
        return {"old_logprobs": [second], "prefix_logprobs": [first]}

    def log_ratios(_: int, one: tuple[int, int]) -> dict[str, Any]:
        return {"advantages": (along(log_q, one) - along(log_p, one)).astype(float).tolist()}

    def gains(at: int, _: tuple[int, int]) -> dict[str, Any]:
        return {"advantages": [float(reward_R[at]) - BASELINE] * 2}

    def older_gain(at: int, one: tuple[int, int]) -> dict[str, Any]:
        return {"teacher": "reward", "advantages": [float(reward_R[at])]} | old_second(at, one)

    whole, free, reward = states(start_V + p_V), LossConfig(ratio_cap=1e9), LossConfig(lam=0.0)
    yield Mean("the KL at sampled states", LossConfig(), lambda *_: {}, responses(log_q), whole)
    # The loss itself is the k1 estimate of the KL.
    yield Mean("the sampled KL", LossConfig(divergence="sampled"), log_ratios, responses(log_q), whole)
    yield Mean("importance weights", free, old, responses(log_q), whole, older=True)
    capped = states(start_V + old_V * np.minimum(p_V / old_V, 1.5))
    yield Mean("importance weights, capped", LossConfig(ratio_cap=1.5), old, capped(log_p), capped, older=True)
    later = states(p_V)
    yield Mean("importance weights, a token skipped", free, old_second, later(log_p), later, older=True, skip=1)
    loss = -2.0 * (rewarded - BASELINE)
    yield Mean("a reward", reward, lambda *one: {"teacher": "reward"} | gains(*one), loss, loss_of_reward)
    yield Mean("a reward, older", reward, older_gain, second_token(log_p), second_token, older=True, skip=1)
    anchor = states(start_V + p_V, log_base)
    yield Mean(
        "teacher, reward and anchor",
        LossConfig(lam=0.7, anchor=0.1),
        gains,
        0.7 * responses(log_q) + 0.3 * loss + 0.1 * responses(log_base),
        lambda log: 0.7 * whole(log) + 0.3 * loss_of_reward(log) + 0.1 * anchor(log),
    )


# --- statistics -------------------------------------------------------------------------------------------------------


def statistics(seed: int) -> Iterator[Finding]:
    """Compare the statistics of tokens, of groups of rewards and of gradient vectors with their definitions."""
    random = np.random.default_rng(seed)
    tables = (random.normal(size=(2, V, V)) * 3.0).astype(np.float32)
    yield from tokens(Table(tables[0]), Table(tables[1]), [log_softmax(table.astype(WIDE)) for table in tables])
    yield from top(random)
    yield from groups(random)
    yield from geometry(random)


def tokens(student: Table, teacher: Table, logs: list[Array]) -> Iterator[Finding]:
    """Compare the statistics of a completion, rounded to four decimals, and a teacher's log-probabilities."""
    ids = [0, 3, 1, 1, 4]
    row = Row(ids, [False, False, True, True, True], teacher="base", advantages=[0.0, 0.0, 0.0])
    (view,) = token_views(student, teacher, [row], pad_id=0)  # type: ignore[arg-type]
    (log_p, log_q), next_N = (log[ids[1:-1]] for log in logs), np.array(ids[2:])[:, None]
    exact = {
        "reverse_kl": (np.exp(log_p) * (log_p - log_q)).sum(-1),
        "entropy": -(np.exp(log_p) * log_p).sum(-1),
        "teacher_entropy": -(np.exp(log_q) * log_q).sum(-1),
        "logprob": np.take_along_axis(log_p, next_N, -1)[:, 0],
        "teacher_logprob": np.take_along_axis(log_q, next_N, -1)[:, 0],
    }
    for name, values_N in exact.items():
        yield finding(f"token statistics: {name}", "four decimals", FORMAT, getattr(view, name), values_N, 5e-5)
    (found,) = token_logprobs(teacher, [row], 64, 0, teacher.device, temperature=0.7)
    tempered = log_softmax(teacher.table_VV.double().numpy().astype(WIDE)[ids[1:-1]] / WIDE(0.7))
    values_N = np.take_along_axis(tempered, next_N, -1)[:, 0]
    yield finding(
        "a teacher's log-probabilities", "temperature 0.7", FORMAT, found, values_N, UNIT * abs(tempered).max()
    )


def top(random: np.random.Generator) -> Iterator[Finding]:
    """Compare a local teacher's likeliest entries, half of them tied, with the sorted log-probabilities."""
    logits_NV = random.normal(size=(50, 12)).round().astype(np.float32)
    ids, found = top_entries(torch.as_tensor(logits_NV), Head(torch.eye(12)), 4, 0.5)
    log_q = log_softmax(logits_NV.astype(WIDE) / WIDE(0.5))
    assert all(len(set(row)) == 4 for row in ids.tolist())
    kept = np.take_along_axis(log_q, ids.numpy(), -1)
    rounding = UNIT * abs(log_q).max()
    yield finding("top_entries: of the kept ids", "ties", FORMAT, found.double().numpy(), kept, rounding)
    yield finding("top_entries: sorted", "ties", FORMAT, kept, -np.sort(-log_q, -1)[:, :4], 0.0)


def groups(random: np.random.Generator) -> Iterator[Finding]:
    """Compare advantages with (R - mean) / (deviation + 1e-4) in each group, with n - 1 in the deviation."""
    groups_R = [name for name, count in {"many": 40, "equal": 3, "one": 1, "tiny": 4}.items() for _ in range(count)]
    rewards_R = np.concatenate([random.normal(size=40), [0.1] * 3, [7.0], 1e6 + random.normal(size=4)])
    found, names_R = np.array(group_advantages(rewards_R.tolist(), groups_R)), np.array(groups_R)
    for name in dict.fromkeys(groups_R):
        mine = rewards_R[names_R == name].astype(WIDE)
        spread = (mine.std(ddof=1) if len(mine) > 1 else 0.0) + WIDE(1e-4)
        exact, rounding = (mine - mine.mean()) / spread, 2.0**-53 * abs(mine).max() / spread
        yield finding("group advantages", f"rewards: {name}", "float64", found[names_R == name], exact, rounding)


def geometry(random: np.random.Generator) -> Iterator[Finding]:
    """Compare the statistics of gradient vectors with their definitions, over two micro-batches."""
    gradient_ND = (random.normal(size=(301, 16)) * random.exponential(size=(301, 1)) + 0.1).astype(np.float32)
    rows_N, wide_ND = np.arange(301) // 30, gradient_ND.astype(WIDE)
    measured = GradientStats(16, seed=0)
    for part in (slice(0, 150), slice(150, 301)):
        owners = torch.as_tensor(rows_N[part] - rows_N[part].min())
        measured.add(torch.as_tensor(gradient_ND[part]), owners)
    squares_N = (wide_ND**2).sum(-1)
    norms_N, total = np.sqrt(squares_N), squares_N.sum()
    shares = [(rows_N == row).sum() * (wide_ND[rows_N == row].mean(0) ** 2).sum() for row in range(11)]
    exact = {
        "density": total**2 / (301 * (squares_N**2).sum()),
        "bias": np.sqrt((wide_ND.mean(0) ** 2).sum()) / norms_N.mean(),
        "concentration": norms_N.max() / np.median(norms_N),
        "top_1_percent": np.sort(squares_N)[-4:].sum() / total,
        "shared": sum(shares) / total,
    }
    for name, value in exact.items():
        yield finding(
            f"gradient statistics: {name}", "301 vectors", FORMAT, measured.summary()[name], value, UNIT * value
        )


def nothing() -> Iterator[Finding]:
    """Check that no token, tokens without weight, and rows without a target give a loss and a gradient of exactly 0."""
    fields: dict[str, tuple[str, ...]] = {
        "reverse_kl": ("teacher_hidden_NE",),
        "jsd": ("teacher_hidden_NE",),
        "cross_entropy": ("targets_N",),
        "policy_gradient": ("targets_N", "advantages_N"),
        "top_k": ("top_ids_NK", "top_logprobs_NK"),
    }
    for name, needed in fields.items():
        for case, count in (("no token", 0), ("no weight", 3)):
            hidden_ND = torch.arange(float(count * V)).reshape(count, V).requires_grad_()
            given = {
                "teacher_hidden_NE": -hidden_ND.detach(),
                "targets_N": torch.zeros(count, dtype=torch.long),
                "advantages_N": torch.ones(count),
                "top_ids_NK": torch.zeros(count, 1, dtype=torch.long),
                "top_logprobs_NK": -torch.ones(count, 1),
            }
            term = Term(name, **{field: given[field] for field in needed})  # type: ignore[arg-type]
            loss = fused_loss(hidden_ND, Head(torch.eye(V)), [term], weights_N=torch.zeros(count)).loss
            yield _zero(f"{name}: loss and gradient", case, loss, hidden_ND)
    student = Table(np.ones((V, V)), trained=True)
    objective = DistillationObjective({"base": Table(np.eye(V))})
    loss = objective(student, collate([Row([0, 1, 2], [False] * 3, teacher="base")], 0)).loss  # type: ignore[arg-type]
    yield _zero("objective: loss and gradient", "a row without targets", loss, student.table_VV)


def _zero(quantity: str, case: str, loss: torch.Tensor, leaf: torch.Tensor) -> Finding:
    (gradient,) = torch.autograd.grad(loss, leaf)
    found = np.array([loss.item(), *gradient.flatten().tolist()])
    return finding(quantity, case, FORMAT, found, np.zeros_like(found))
