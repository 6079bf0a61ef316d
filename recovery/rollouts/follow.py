"""Engines that sample from a copy of the weights: kept up to date, and believed only after a look.

vLLM samples in kernels of its own, from weights that were handed over. If they are old, or only part of them arrived,
nothing fails: answers are merely drawn from another model. So after every handover the engine answers a few prompts,
the model in memory scores the same tokens, and a difference beyond a bound stops the run.
"""

from __future__ import annotations

import hashlib
import math
import random
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch

from recovery.batches import Row
from recovery.errors import EngineError
from recovery.loading import Loaded
from recovery.objectives.token_logprobs import token_logprobs
from recovery.rollouts.engine import Completion, Progress, Sampling, check_room
from recovery.teachers import Live

# A prompt and its answer are scored by both sides: so many prompts of the new batch, as many that were scored before
# (what the engine may still have in a cache), and tokens of each answer.
_PROMPTS, _TOKENS = 3, 24
_SCORED_AT_ONCE = 8192
# A strided handful of every tensor: any optimizer step moves some of it.
_LOOKED_AT = 64


class Sampler(Protocol):
    """Samples from a copy of a model's weights."""

    @property
    def name(self) -> str:
        """What answers, for messages."""
        ...

    @property
    def window(self) -> int:
        """Tokens that a prompt and its answer may have together."""
        ...

    def sync(self) -> None:
        """Take over the weights as they are now, and forget everything computed from others."""
        ...

    def sample(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling, progress: Progress | None = None
    ) -> list[Completion]:
        """One completion a prompt, in order, from the weights taken over last."""
        ...

    def close(self) -> None:
        """Give back what it holds: memory, connections, files."""
        ...


@dataclass
class FollowingEngine:
    """An engine over a :class:`Sampler`: hands it the weights of ``loaded`` when they have changed, then compares.

    ``bound`` is the mean difference of log-probabilities, in nats a token, beyond which :meth:`generate` raises
    EngineError. ``figures`` are those of the newest comparison: ``engine_ratio``, the mean of p(model) / p(engine),
    and ``engine_drift``, that mean difference.
    """

    loaded: Loaded
    sampler: Sampler
    bound: float
    figures: dict[str, float] = field(default_factory=dict)
    _followed: str | None = None
    _contexts: list[list[int]] = field(default_factory=list)
    _turn: threading.RLock = field(default_factory=threading.RLock, repr=False)

    @property
    def name(self) -> str:
        """What the answers were sampled by."""
        return self.sampler.name

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling,
        progress: Progress | None = None,
    ) -> list[Completion]:
        """One completion a prompt, in order, from the weights as they are now. Raises EngineError on a drift."""
        check_room(prompts, self.sampler.window)
        with self._turn:
            self.follow(prompts, sampling)
            return self.sampler.sample(prompts, sampling, progress)

    def follow(self, prompts: Sequence[Sequence[int]], sampling: Sampling) -> None:
        """Bring the sampler up to date and compare, if the weights have changed since the last time."""
        with self._turn:
            now = fingerprint(self.loaded)
            if now == self._followed or not prompts:
                return
            self._followed = None
            self.sampler.sync()
            self._compare(prompts, sampling)
            self._followed = now

    def as_it_is(self) -> AsItIs:
        """The same engine with the weights it has now, whatever becomes of the model: for another thread."""
        return AsItIs(self)

    def close(self) -> None:
        """Give back what the sampler holds."""
        self.sampler.close()

    def _compare(self, prompts: Sequence[Sequence[int]], sampling: Sampling) -> None:
        """Score a few answers of the engine with the model, and refuse an engine that samples from other weights."""
        step = max(1, len(prompts) // _PROMPTS)
        contexts = [*self._contexts, *map(list, prompts[::step][:_PROMPTS])]
        tokens = min(_TOKENS, sampling.max_new_tokens)
        drawn = Sampling(tokens, sampling.temperature, seed=sampling.seed)
        said = self.sampler.sample(contexts, drawn)
        # What was just computed is what a cache would give again.
        self._contexts = [[*c, *s.ids[:-1]] for c, s in zip(contexts, said, strict=True)][-_PROMPTS:]
        self._contexts = [c for c in self._contexts if len(c) + tokens < self.sampler.window]
        rows = [
            Row([*context, *one.ids], [False] * len(context) + [True] * len(one.ids))
            for context, one in zip(contexts, said, strict=True)
            if one.ids
        ]
        mine = token_logprobs(
            Live(self.loaded),
            rows,
            _SCORED_AT_ONCE,
            self.loaded.chat.pad_id,
            self.loaded.device,
            temperature=sampling.temperature or 1.0,
        )
        theirs = [one.logprobs for one in said if one.ids]
        gaps = [p - q for ps, qs in zip(mine, theirs, strict=True) for p, q in zip(ps, qs, strict=True)]
        drift = sum(map(abs, gaps)) / max(1, len(gaps))
        ratio = sum(math.exp(min(gap, 40.0)) for gap in gaps) / max(1, len(gaps))
        self.figures = {"engine_ratio": ratio, "engine_drift": drift}
        if not drift <= self.bound:  # so that a NaN is one
            raise EngineError(
                f"{self.name} does not sample from the weights in memory: over {len(gaps)} tokens its "
                f"log-probabilities differ by {drift:.3g} nats a token (--engine-drift {self.bound:g}): use --engine "
                f"transformers, or --precision float32 where the difference is small; start a server again whose "
                f"weights another run replaced"
            )


@dataclass(frozen=True)
class AsItIs:
    """A :class:`FollowingEngine` that takes over nothing: it samples from the weights it was last given."""

    engine: FollowingEngine

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling,
        progress: Progress | None = None,
    ) -> list[Completion]:
        """One completion a prompt, in order."""
        check_room(prompts, self.engine.sampler.window)
        with self.engine._turn:
            return self.engine.sampler.sample(prompts, sampling, progress)


def fingerprint(loaded: Loaded) -> str:
    """Tells whether trained weights have changed: a hash over a few numbers of every one of them.

    Tensors count their in-place changes, but a fused optimizer does not tell them of its own.
    """
    if loaded.tuning == "frozen":
        return "frozen"
    with torch.no_grad():
        seen = [
            p.detach().reshape(-1)[:: max(1, p.numel() // _LOOKED_AT)][: 2 * _LOOKED_AT].float()
            for p in loaded.trainable().values()
        ]
        return hashlib.sha256(torch.cat(seen).cpu().numpy().tobytes()).hexdigest()


def seeds(sampling: Sampling, count: int) -> list[int]:
    """A seed for each prompt: with one for all, equal prompts would get equal answers."""
    draw = random.Random(sampling.seed)
    return [draw.getrandbits(62) for _ in range(count)]
