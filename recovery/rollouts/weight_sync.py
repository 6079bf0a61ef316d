"""Synchronisation of engines that sample from a copy of the weights, with a check of every transfer.

vLLM samples with its own kernels from transferred weights. If these are outdated or incomplete, nothing fails: the
completions are drawn from a different model. After every transfer the engine therefore completes a few prompts, the
model in memory scores the same tokens, and a difference beyond a bound stops the run; so do tokens that show a cut or
another temperature that was not asked for (:class:`SamplingCheck`).
"""

from __future__ import annotations

import functools
import hashlib
import math
import random
import shutil
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import torch

from recovery import distributed
from recovery.batching import Row, collate
from recovery.errors import EngineError
from recovery.losses.token_stats import token_logprobs
from recovery.models import fsdp
from recovery.models.loaded import Loaded
from recovery.rollouts.engine import Completion, Progress, Sampling, check_room
from recovery.teachers.teacher import LocalTeacher

# The folder through which a server gets weights: both sides can read it.

WEIGHTS = "weights for an engine"


class TransferFolder:
    """A temporary folder inside ``root``, by default the system's; created at its first use."""

    def __init__(self, root: Path | None) -> None:
        self._root = root
        self._folder: Path | None = None

    @property
    def path(self) -> Path:
        """The folder."""
        if self._folder is None:
            if self._root is not None:
                self._root.mkdir(parents=True, exist_ok=True)
            self._folder = Path(tempfile.mkdtemp(prefix="recovery-weights-", dir=self._root))
        return self._folder

    def save(self, loaded: Loaded) -> None:
        """Save the weights of a model: the adapter alone, if engines take it.

        If the model is split over processes, the other processes serve their helper ``WEIGHTS``.
        """
        state: dict[str, torch.Tensor] | None = None
        if loaded.runs_collectively:
            state = {}
            # Kept here: what a helper returns is sent to every process.
            distributed.ask(WEIGHTS, [()] * distributed.size(), lambda: state.update(loaded.weights_for_engines()))
        weights = loaded.model if loaded.adapts_layers else loaded.merged_weights()
        weights.save_pretrained(self.path, safe_serialization=True, state_dict=state)

    def close(self) -> None:
        """Delete the folder."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None


# Whether an engine draws from the whole distribution: without a cut (top-p, top-k, min-p) or another temperature. A
# server may apply sampling settings of its own instead of those requested. Its tokens are then drawn from another
# distribution q than the model's p, and the loss that is computed from them is biased. Three sums over the tokens of
# all comparisons detect it:
# - ratio: the mean of p/q over tokens drawn from q is the mass that p has where q has any: 1 unless something was cut.
#   It takes a few dozen tokens, and log-probabilities renormalised after the cut: vLLM's ``processed_logprobs``.
# - tail: how many tokens lie outside each cut of p, against p's own mass there. It needs only tokens, but about 17 over
#   the mass that was cut: 210 for top-p 0.92, 1,700 for 0.99.
# - surprisal: the mean of −log p against the entropy of p, for another temperature.

TOP_P = (0.8, 0.85, 0.9, 0.92, 0.94, 0.95, 0.96, 0.97, 0.98, 0.99)
TOP_K = (5, 10, 20, 40, 50, 64, 100, 200)
MIN_P = (0.01, 0.02, 0.05, 0.1, 0.2)
CUTS = (*(f"top-p {p:g}" for p in TOP_P), *(f"top-k {k}" for k in TOP_K), *(f"min-p {m:g}" for m in MIN_P))

# Runs compare after every step, so a false alarm must be rare in a hundred thousand. Smaller effects are rounding.
_NATS = 17.0  # -log of the error of all cuts together, 1e-6
_DEVIATIONS, _KEPT, _SHARPER = 6.0, 0.998, 0.03


def facts(logprobs_NV: torch.Tensor, tokens_N: torch.Tensor) -> torch.Tensor:
    """Return statistics of drawn tokens under the model's log-probabilities, [N, 2 + 2C] in float64.

    Per token: its surprisal minus the entropy (nats), the variance of the surprisal, the mass that each of the C
    :data:`CUTS` removes, and 1 if that cut removes the token.
    """
    logprobs_NV = logprobs_NV.double().clamp(min=-1e4)
    probs_NV = logprobs_NV.exp()
    entropy_N = -(probs_NV * logprobs_NV).sum(-1)
    variance_N = (probs_NV * (logprobs_NV + entropy_N[:, None]) ** 2).sum(-1)
    ranked_NV, order_NV = probs_NV.sort(dim=-1, descending=True)
    before_NV = ranked_NV.cumsum(-1) - ranked_NV
    ranks_V = torch.arange(ranked_NV.shape[-1], device=ranked_NV.device)
    removed_CNV = [
        *(before_NV >= p for p in TOP_P),
        *((ranks_V >= k).expand_as(ranked_NV) for k in TOP_K),
        *(ranked_NV < m * ranked_NV[:, :1] for m in MIN_P),
    ]
    place_N1 = (order_NV == tokens_N[:, None]).long().argmax(-1, keepdim=True)
    surplus_N = -logprobs_NV.gather(-1, tokens_N[:, None]).squeeze(-1) - entropy_N
    mass = [(ranked_NV * removed_NV).sum(-1) for removed_NV in removed_CNV]
    inside = [removed_NV.gather(-1, place_N1).squeeze(-1).double() for removed_NV in removed_CNV]
    return torch.stack([surplus_N, variance_N, *mass, *inside], dim=-1)


@dataclass
class SamplingCheck:
    """The sums over the tokens that an engine drew so far."""

    tokens: int = 0
    _ratios: float = 0.0
    _squares: float = 0.0
    _facts: list[float] = field(default_factory=lambda: [0.0] * (2 + 2 * len(CUTS)))

    def add(self, gaps: Sequence[float], token_facts: torch.Tensor | None = None) -> None:
        """Count drawn tokens: ``gaps`` [N] are log p − log q, of the model and of the engine; ``token_facts`` their
        :func:`facts`, or None where the model's whole distribution is not available.
        """
        ratios = [math.exp(min(gap, 40.0)) for gap in gaps]
        self.tokens += len(ratios)
        self._ratios += sum(ratios)
        self._squares += sum(ratio * ratio for ratio in ratios)
        if token_facts is not None:
            self._facts = [a + b for a, b in zip(self._facts, token_facts.sum(0).tolist(), strict=True)]

    @property
    def fault(self) -> str:
        """How the tokens show that they were drawn from another distribution than asked for; "" if they do not."""
        return self._renormalised or self._absent or self._tempered

    @property
    def _renormalised(self) -> str:
        if self.tokens < 2:
            return ""
        mean = self._ratios / self.tokens
        spread = math.sqrt(max(0.0, self._squares / self.tokens - mean * mean) / (self.tokens - 1))
        if mean > _KEPT or 1 - mean < _DEVIATIONS * spread:
            return ""
        return (
            f"by its log-probabilities it draws from {100 * mean:.1f}% of the model's probability only, so that some "
            "tokens cannot occur (top-p, top-k or min-p)"
        )

    @property
    def _absent(self) -> str:
        count = len(CUTS)
        for cut, mass, inside in zip(CUTS, self._facts[2 : 2 + count], self._facts[2 + count :], strict=True):
            # Chernoff's bound of the probability that so few of independent tokens are there
            if inside < mass / 2 and mass - inside - inside * math.log(mass / max(inside, 1)) > _NATS:
                return (
                    f"{inside:.0f} of its {self.tokens:,} tokens are among those that {cut} would remove, where the "
                    f"model's probabilities let {mass:.0f} expect"
                )
        return ""

    @property
    def _tempered(self) -> str:
        surplus, variance = self._facts[:2]
        if variance <= 0 or abs(surplus) < _DEVIATIONS * math.sqrt(variance):
            return ""
        sharper = surplus / variance  # d(mean surprisal)/d(log temperature) is the variance
        if abs(sharper) < _SHARPER:
            return ""
        return (
            f"its tokens are {'likelier' if sharper < 0 else 'less likely'} than the model's, as at a temperature "
            f"{100 * abs(sharper):.0f}% {'lower' if sharper < 0 else 'higher'}"
        )


SCORES = "scores for an engine"

# The engine and the model score the same completions: of _PROMPTS prompts of the new batch and of as many contexts that
# were scored before, which the engine's cache may still hold; _TOKENS tokens of each.
_PROMPTS, _TOKENS = 3, 24
_SCORED_AT_ONCE = 8192
# Sampled elements per tensor, at a regular stride: any optimizer step changes some of them.
_FINGERPRINT_SIZE = 64


class Sampler(Protocol):
    """Samples from a copy of a model's weights."""

    @property
    def name(self) -> str:
        """Name of the engine, for messages."""

    @property
    def window(self) -> int:
        """Maximum length of a prompt with its completion, in tokens."""

    def sync(self) -> None:
        """Transfer the current weights and reset all caches."""

    def sample(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling, progress: Progress | None = None
    ) -> list[Completion]:
        """Return one completion per prompt, in order, from the weights transferred last."""

    def close(self) -> None:
        """Release memory, connections and files."""


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
            current = fingerprint(self.loaded)
            if current == self._followed or not prompts:
                return
            self._followed = None
            self.sampler.sync()
            self._compare(prompts, sampling)
            self._followed = current

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
        probe_sampling = Sampling(tokens, sampling.temperature, seed=sampling.seed)
        completions = self.sampler.sample(contexts, probe_sampling)
        # The contexts that were just computed are the ones that a cache would return.
        self._contexts = [[*c, *s.ids[:-1]] for c, s in zip(contexts, completions, strict=True)][-_PROMPTS:]
        self._contexts = [c for c in self._contexts if len(c) + tokens < self.sampler.window]
        rows = [
            Row([*context, *completion.ids], [False] * len(context) + [True] * len(completion.ids))
            for context, completion in zip(contexts, completions, strict=True)
            if completion.ids
        ]
        ours = self._scores(rows, sampling.temperature or 1.0)
        theirs = [completion.logprobs for completion in completions if completion.ids]
        gaps = [p - q for ps, qs in zip(ours, theirs, strict=True) for p, q in zip(ps, qs, strict=True)]
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
        """Return the :func:`facts` of the rows' tokens; None if the model is split over processes."""
        if self.loaded.runs_collectively or not rows:
            return None
        student, rows_facts = LocalTeacher(self.loaded, "student"), []
        for row in rows:  # one at a time: whole distributions are large
            batch = collate([row], self.loaded.chat.pad_id, self.loaded.device)
            with torch.no_grad():
                hidden_NE = batch.gather(student.hidden(batch))
                logits_NV = student.head.logits(hidden_NE.to(student.head.weight_VD.dtype)).float() / temperature
                rows_facts.append(facts(logits_NV.log_softmax(-1), batch.targets_N))
        return torch.cat(rows_facts)

    def _scores(self, rows: Sequence[Row], temperature: float) -> list[list[float]]:
        """Return the model's log-probabilities of the targets; all processes score them if each has a part of it."""
        if not self.loaded.runs_collectively:
            return _student_logprobs(self.loaded, rows, temperature)
        parts = [(rows, temperature)] * distributed.size()
        return distributed.ask(SCORES, parts, functools.partial(_student_logprobs, self.loaded))[0]


def helpers(loaded: Loaded) -> distributed.Helpers:
    """Return what the other processes of a sharded model do for the main one's :class:`SyncedEngine`."""

    def gather_weights() -> None:
        loaded.weights_for_engines()

    return {WEIGHTS: gather_weights, SCORES: functools.partial(_student_logprobs, loaded)}


def _student_logprobs(loaded: Loaded, rows: Sequence[Row], temperature: float) -> list[list[float]]:
    student, pad = LocalTeacher(loaded, "student"), loaded.chat.pad_id
    with loaded.in_step():
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

    Version counters of tensors are not enough: a fused optimizer does not increment them. Of a sharded model the hash
    covers the tensors of this process.
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
