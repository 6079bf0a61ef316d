"""Test helpers: plain reference implementations of the losses, and recording engines and callbacks."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

import pytest
import torch

from pipelines.runtime.session import Session, StageInterrupted, StopSignals
from recovery.losses.divergences import DIVERGENCES
from recovery.losses.terms import Term
from recovery.models.lm_head import Head
from recovery.models.loaded import Loaded
from recovery.rollouts.engine import Completion, Engine, Progress, Sampling


def continuation_logprobs(loaded: Loaded, pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[list[float]]:
    """Return the natural log-probability of every continuation token, from whole logits, one pair at a time.

    ``pairs`` are (context ids, continuation ids); a context needs at least one token.
    """
    found = []
    with loaded.inference(), loaded.autocast():
        for context, continuation in pairs:
            ids = torch.tensor([[*context, *continuation]], device=loaded.device)
            logprobs_TV = loaded.model(ids).logits[0, len(context) - 1 : -1].float().log_softmax(-1)
            targets_T1 = ids[0, len(context) :, None]
            found.append(logprobs_TV.gather(-1, targets_T1)[:, 0].tolist())
    return found


def plain_term(term: Term, head: Head, hidden_ND: torch.Tensor, temperature: float = 1.0) -> torch.Tensor:
    """Return a term's value at each token by its definition, over whole logits; differentiable."""
    log_p = (head.logits(hidden_ND) / temperature).log_softmax(-1)
    if term.divergence == "cross_entropy":
        assert term.targets_N is not None
        return -log_p.gather(-1, term.targets_N[:, None])[:, 0]
    if term.divergence == "policy_gradient":
        return _plain_policy(term, log_p)
    if term.divergence == "top_k":
        return _plain_top_k(term, log_p)
    assert term.teacher_hidden_NE is not None
    log_q = ((term.teacher_head or head).logits(term.teacher_hidden_NE) / temperature).log_softmax(-1).detach()
    return plain_divergence(term.divergence, log_p, log_q, term.beta, term.entry_clip, term.floor)


def plain_divergence(
    name: str,
    log_p: torch.Tensor,
    log_q: torch.Tensor,
    beta: float = 0.5,
    entry_clip: float | None = None,
    floor: float | None = None,
) -> torch.Tensor:
    """Return a divergence between distributions at each position, entry by entry."""
    least = -torch.inf if floor is None else floor
    computed = DIVERGENCES[name].at(beta) if name in DIVERGENCES else name
    assert computed in ENTRIES, f"{computed}: write its definition in ENTRIES of tests/support.py"
    entries = ENTRIES[computed](log_p, log_q, beta, least)
    return entries.clamp(max=torch.inf if entry_clip is None else entry_clip).sum(-1)


def _jsd(log_p: torch.Tensor, log_q: torch.Tensor, beta: float, _floor: float) -> torch.Tensor:
    p, q = log_p.exp(), log_q.exp()
    log_m = (beta * q + (1 - beta) * p).log()
    return beta * q * (log_q - log_m) + (1 - beta) * p * (log_p - log_m)


# The definition of each divergence, entry by entry: (log p, log q, beta, floor).
ENTRIES: dict[str, Callable[[torch.Tensor, torch.Tensor, float, float], torch.Tensor]] = {
    "reverse_kl": lambda log_p, log_q, _beta, floor: log_p.exp() * (log_p - log_q.clamp(min=floor)),
    "forward_kl": lambda log_p, log_q, _beta, floor: log_q.exp() * (log_q - log_p.clamp(min=floor)),
    "jsd": _jsd,
    "skew_kl": lambda log_p, log_q, beta, _: log_q.exp() * (log_q - _mixed(log_q, log_p, beta)),
    "skew_reverse_kl": lambda log_p, log_q, beta, _: log_p.exp() * (log_p - _mixed(log_p, log_q, beta)),
}


def _mixed(log_one: torch.Tensor, log_other: torch.Tensor, share: float) -> torch.Tensor:
    return (share * log_one.exp() + (1 - share) * log_other.exp()).log()


def _plain_policy(term: Term, log_p: torch.Tensor) -> torch.Tensor:
    assert term.targets_N is not None and term.advantages_N is not None
    chosen = log_p.gather(-1, term.targets_N[:, None])[:, 0]
    old = chosen.detach() if term.old_logprobs_N is None else term.old_logprobs_N
    ratio = (chosen - old).exp()
    gain = ratio * term.advantages_N
    if term.clip is not None:
        gain = torch.minimum(gain, ratio.clamp(1 - term.clip, 1 + term.clip) * term.advantages_N)
    if term.drop is not None:
        gain = torch.where((ratio > term.drop) | (ratio < 1 / term.drop), torch.zeros_like(gain), gain)
    return -gain


def _plain_top_k(term: Term, log_p: torch.Tensor) -> torch.Tensor:
    assert term.top_ids_NK is not None and term.top_logprobs_NK is not None
    p, q = log_p.exp().gather(-1, term.top_ids_NK), term.top_logprobs_NK.exp()
    if p.shape[-1] < log_p.shape[-1]:
        p, q = (torch.cat([side, 1 - side.sum(-1, keepdim=True)], -1) for side in (p, q))
    return (p * (p / q).log() if term.reverse else q * (q / p).log()).sum(-1)


def brevity(_prompt: object, response: str) -> float:
    """Custom reward function: shorter responses score higher."""
    return 1.0 / (1.0 + len(response) / 20)


class Heard:
    """Progress callback that records its calls."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, int]] = []

    def __call__(self, answers: int, tokens: int) -> None:
        self.calls.append((answers, tokens))

    @property
    def answers(self) -> int:
        """Total of finished responses."""
        return sum(answers for answers, _ in self.calls)

    @property
    def tokens(self) -> int:
        """Total of sampled and read tokens."""
        return sum(tokens for _, tokens in self.calls)


class Noting:
    """Wrapper of an engine that records the prompts of every call, and the completions."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.calls: list[list[tuple[int, ...]]] = []
        self.completions: list[Completion] = []

    @property
    def asked(self) -> list[tuple[int, ...]]:
        """All prompts so far."""
        return [prompt for call in self.calls for prompt in call]

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling,
        progress: Progress | None = None,
    ) -> list[Completion]:
        self.calls.append([tuple(prompt) for prompt in prompts])
        completions = self.engine.generate(prompts, sampling, progress)
        self.completions += completions
        return completions


class Saying:
    """An engine whose completions of each turn are given texts; one is finished if it ends with an end token."""

    def __init__(self, loaded: Loaded, turns: Sequence[Sequence[str]]) -> None:
        self.loaded, self.turns = loaded, list(turns)

    def generate(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling, progress: Progress | None = None
    ) -> list[Completion]:
        texts = self.turns.pop(0)
        assert len(texts) == len(prompts)
        said = [self.loaded.tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
        return [Completion(list(ids), [-1.0] * len(ids), ids[-1] in self.loaded.chat.end_ids) for ids in said]


class AlreadyAsked(StopSignals):
    """Stop signals that behave as if Ctrl-C was pressed just after a stage's start."""

    @contextlib.contextmanager
    def deferred(self) -> Iterator[None]:
        with super().deferred():
            self.requested = True
            yield


@contextlib.contextmanager
def stopped(session: Session, said: str = "") -> Iterator[None]:
    """Stop the first stage that is begun here, as Ctrl-C just after its start does."""
    usual, session.interrupts = session.interrupts, AlreadyAsked()
    with pytest.raises(StageInterrupted, match=said):
        yield
    session.interrupts = usual
