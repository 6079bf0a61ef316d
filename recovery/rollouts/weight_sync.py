"""Synchronisation of engines that sample from a copy of the weights, with a check of every transfer.

vLLM samples with its own kernels from transferred weights. If these are outdated or incomplete, nothing fails: the
completions are drawn from a different model. After every transfer the engine therefore completes a few prompts, the
model in memory scores the same tokens, and a difference beyond a bound stops the run; so do tokens that show a cut or
another temperature that was not asked for (:mod:`recovery.rollouts.sampling_check`).
"""

from __future__ import annotations

import functools
import hashlib
import math
import random
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch

from recovery import distributed
from recovery.batching import Row, collate
from recovery.errors import EngineError
from recovery.losses.logprobs import token_logprobs
from recovery.models import fsdp
from recovery.models.loaded import Loaded
from recovery.rollouts.engine import Completion, Progress, Sampling, check_room
from recovery.rollouts.sampling_check import SamplingCheck, facts
from recovery.rollouts.transfer_folder import WEIGHTS
from recovery.teachers import LocalTeacher

SCORES = "scores for an engine"

# Both sides score completions: of so many prompts of the new batch, of as many contexts scored before (which may still
# be in the engine's cache), and so many tokens of each.
_PROMPTS, _TOKENS = 3, 24
_SCORED_AT_ONCE = 8192
# Sampled elements per tensor, at a regular stride: any optimizer step changes some of them.
_FINGERPRINT_SIZE = 64


class Sampler(Protocol):
    """Samples from a copy of a model's weights."""

    @property
    def name(self) -> str:
        """Name of the engine, for messages."""
        ...

    @property
    def window(self) -> int:
        """Maximum length of a prompt with its completion, in tokens."""
        ...

    def sync(self) -> None:
        """Transfer the current weights and reset all caches."""
        ...

    def sample(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling, progress: Progress | None = None
    ) -> list[Completion]:
        """Return one completion per prompt, in order, from the weights transferred last."""
        ...

    def close(self) -> None:
        """Release memory, connections and files."""
        ...


@dataclass
class SyncedEngine:
    """An engine that transfers the weights of ``loaded`` to a :class:`Sampler` when they have changed, then compares.

    ``bound`` is the mean difference of log-probabilities, in nats a token, beyond which :meth:`generate` raises
    EngineError. ``figures`` are the results of the latest comparison: ``engine_ratio``, the mean of p(model) /
    p(engine), and ``engine_drift``, that mean difference.
    """

    loaded: Loaded
    sampler: Sampler
    bound: float
    figures: dict[str, float] = field(default_factory=dict)
    _followed: str | None = None
    _contexts: list[list[int]] = field(default_factory=list)
    _check: SamplingCheck = field(default_factory=SamplingCheck)
    _turn: threading.RLock = field(default_factory=threading.RLock, repr=False)

    @property
    def name(self) -> str:
        """Name of the sampler."""
        return self.sampler.name

    @property
    def window(self) -> int:
        """Maximum length of a prompt with its completion, in tokens."""
        return self.sampler.window

    def generate(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling, progress: Progress | None = None
    ) -> list[Completion]:
        """Return one completion per prompt, in order, from the current weights. Raise EngineError on drift."""
        check_room(prompts, self.window, self.name)
        with self._turn:
            self.follow(prompts, sampling)
            return self.sampler.sample(prompts, sampling, progress)

    def follow(self, prompts: Sequence[Sequence[int]], sampling: Sampling) -> None:
        """Transfer the weights and compare, if they have changed since the last transfer."""
        with self._turn:
            now = fingerprint(self.loaded)
            if now == self._followed or not prompts:
                return
            self._followed = None
            self.sampler.sync()
            self._compare(prompts, sampling)
            self._followed = now

    def fixed_weights(self) -> FixedWeightsEngine:
        """Return an engine that keeps sampling from the current weights, for use in another thread."""
        return FixedWeightsEngine(self)

    def close(self) -> None:
        """Release the sampler."""
        self.sampler.close()

    def _compare(self, prompts: Sequence[Sequence[int]], sampling: Sampling) -> None:
        """Score a few completions of the engine with the model. Raise EngineError if the engine has other weights."""
        step = max(1, len(prompts) // _PROMPTS)
        contexts = [*self._contexts, *map(list, prompts[::step][:_PROMPTS])]
        tokens = min(_TOKENS, sampling.max_new_tokens)
        drawn = Sampling(tokens, sampling.temperature, seed=sampling.seed)
        completions = self.sampler.sample(contexts, drawn)
        # The contexts that were just computed are the ones that a cache would return.
        self._contexts = [[*c, *s.ids[:-1]] for c, s in zip(contexts, completions, strict=True)][-_PROMPTS:]
        self._contexts = [c for c in self._contexts if len(c) + tokens < self.sampler.window]
        rows = [
            Row([*context, *one.ids], [False] * len(context) + [True] * len(one.ids))
            for context, one in zip(contexts, completions, strict=True)
            if one.ids
        ]
        mine = self._scores(rows, sampling.temperature or 1.0)
        theirs = [one.logprobs for one in completions if one.ids]
        gaps = [p - q for ps, qs in zip(mine, theirs, strict=True) for p, q in zip(ps, qs, strict=True)]
        drift = sum(map(abs, gaps)) / max(1, len(gaps))
        ratio = sum(math.exp(min(gap, 40.0)) for gap in gaps) / max(1, len(gaps))
        self.figures = {"engine_ratio": ratio, "engine_drift": drift}
        if not drift <= self.bound:  # written so that NaN raises
            raise EngineError(
                f"{self.name} does not sample from the weights in memory: over {len(gaps)} tokens its "
                f"log-probabilities differ by {drift:.3g} nats a token (--engine-drift {self.bound:g}): use --engine "
                f"transformers, or --precision float32 if the difference is small; restart a server whose weights "
                f"another run has replaced"
            )
        if sampling.temperature > 0:  # greedy tokens are not drawn
            self._check.add(gaps, self._facts(rows, sampling.temperature))
            if fault := self._check.fault:
                raise EngineError(
                    f"{self.name} does not draw as it was asked to, with top-p 1 at temperature "
                    f"{sampling.temperature:g}: {fault}. Start it without sampling settings of its own, and without a "
                    f"proxy that adds some; or use --engine transformers"
                )

    def _facts(self, rows: Sequence[Row], temperature: float) -> torch.Tensor | None:
        """Return what the model's distributions say of the rows' tokens; nothing of a model in pieces."""
        if self.loaded.in_pieces or not rows:
            return None
        student, found = LocalTeacher(self.loaded, "student"), []
        for row in rows:  # one at a time: whole distributions are large
            batch = collate([row], self.loaded.chat.pad_id, self.loaded.device)
            with torch.no_grad():
                hidden_NE = batch.gather(student.hidden(batch))
                logits_NV = student.head.logits(hidden_NE.to(student.head.weight_VD.dtype)).float() / temperature
                found.append(facts(logits_NV.log_softmax(-1), batch.targets_N))
        return torch.cat(found)

    def _scores(self, rows: Sequence[Row], temperature: float) -> list[list[float]]:
        """Return the model's log-probabilities of the targets; all processes score them if each has a part of it."""
        if not self.loaded.in_pieces:
            return _student_logprobs(self.loaded, rows, temperature)
        parts = [(rows, temperature)] * distributed.size()
        return distributed.ask(SCORES, parts, functools.partial(_student_logprobs, self.loaded))[0]


def helpers(loaded: Loaded) -> distributed.Helpers:
    """Return what the other processes do for a :class:`SyncedEngine` of the main one if a model is in pieces."""

    def give_weights() -> None:
        loaded.weights_for_engines()

    return {WEIGHTS: give_weights, SCORES: functools.partial(_student_logprobs, loaded)}


def _student_logprobs(loaded: Loaded, rows: Sequence[Row], temperature: float) -> list[list[float]]:
    student, pad = LocalTeacher(loaded, "student"), loaded.chat.pad_id
    with loaded.together():
        return token_logprobs(student, rows, _SCORED_AT_ONCE, pad, loaded.device, temperature=temperature)


@dataclass(frozen=True)
class FixedWeightsEngine:
    """A :class:`SyncedEngine` without transfers: it samples from the weights transferred last."""

    engine: SyncedEngine

    def generate(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling, progress: Progress | None = None
    ) -> list[Completion]:
        """Return one completion per prompt, in order."""
        check_room(prompts, self.engine.window, self.engine.name)
        with self.engine._turn:
            return self.engine.sampler.sample(prompts, sampling, progress)


def fingerprint(loaded: Loaded) -> str:
    """Return a hash over a few elements of every trained tensor, to detect changes.

    Version counters of tensors are not enough: a fused optimizer does not increment them. Of a model in pieces it is
    over those of this process.
    """
    if loaded.tuning == "frozen":
        return "frozen"
    with torch.no_grad():
        flat = [fsdp.local(p.detach()).reshape(-1) for p in loaded.trainable().values()]
        sampled = [p[:: max(1, p.numel() // _FINGERPRINT_SIZE)][: 2 * _FINGERPRINT_SIZE].float() for p in flat]
        on_one = torch.cat([p.to(loaded.device) for p in sampled])  # shards may be in CPU memory
        return hashlib.sha256(on_one.cpu().numpy().tobytes()).hexdigest()


def seeds(sampling: Sampling, count: int) -> list[int]:
    """Return a seed for each prompt: with a common seed, equal prompts would get equal completions."""
    draw = random.Random(sampling.seed)
    return [draw.getrandbits(62) for _ in range(count)]
