"""Weighted prompt sampling: kinds of instruction, and earlier corpora, that were failed of late are drawn more often.

Each completion is judged when it is sampled, which costs no tokens: of a prompt with checks by these, of a question by
whether its answer occurs. The weight of a kind of instruction, or of a corpus, is the failure rate of its recent
completions. Prompts without checks and questions without an answer are drawn only in the even share.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from evals.knowledge import contains
from pipelines.data.mixing import choose
from pipelines.runtime.generation import CompletedConversation, SampledTurn
from recovery.data.checkers import judge
from recovery.rng import RandomStream, derive_seed
from recovery.training.resumable import Resumable
from recovery.types import Message, Prompt

# Weight of a batch's counts relative to the next batch's: kinds that have recovered soon lose their weight. Of a corpus
# few questions are asked in a batch, so its counts last longer.
_DECAY, _DECAY_OF_QUESTIONS = 0.9, 0.98
# Prior counts of each kind and corpus: two completions, one of them failed.
_PRIOR_COUNT, _PRIOR_FAILED = 2.0, 1.0
_EARLIER = "earlier-cycle:"
_TINY = 5e-324  # of a draw of 0, which has no logarithm


@dataclass
class FocusState(Resumable):
    """For each kind of instruction, and each earlier corpus, the decayed counts of completions and of failures."""

    focus: dict[str, list[float]] = field(default_factory=dict)
    forgotten: dict[str, list[float]] = field(default_factory=dict)


@dataclass
class PromptSampler:
    """Draws prompts: a ``share`` of them in proportion to the failure rate of their worst kind, the rest evenly.

    Of questions about earlier documents, the share ``forgotten`` is drawn in proportion to the failure rate of their
    corpus.
    """

    share: float
    forgotten: float = 0.0
    state: FocusState = field(default_factory=FocusState)

    def choose(self, pool: Sequence[Prompt], count: int, batch: int, seed: int) -> list[Prompt]:
        """Return the prompts of a batch (from 1): a function of (seed, batch, state)."""
        checked = [prompt for prompt in pool if prompt.checks]
        drawn = min(round(self.share * count), len(checked))
        even = choose(pool, count - drawn, batch, seed, stream=RandomStream.BEHAVIOUR_PROMPTS)
        weights = {id(prompt): self.failure_rate(prompt) for prompt in checked if drawn}
        return [*even, *_weighted(checked, weights, drawn, derive_seed(seed, batch, RandomStream.WEIGHTED_PROMPTS))]

    def choose_earlier(self, pool: Sequence[Prompt], count: int, batch: int, seed: int) -> list[Prompt]:
        """Return a batch's questions about earlier documents: a function of (seed, batch, state)."""
        answerable = [question for question in pool if _corpus(question)] if self.forgotten else []
        drawn = min(round(self.forgotten * count), len(answerable))
        even = choose(pool, count - drawn, batch, seed, stream=RandomStream.EARLIER_QUESTIONS)
        sizes = Counter(map(_corpus, answerable))
        rates = {corpus: _rate(self.state.forgotten.get(corpus)) / size for corpus, size in sizes.items()}
        weights = {id(question): rates[_corpus(question)] for question in answerable}
        return [*even, *_weighted(answerable, weights, drawn, derive_seed(seed, batch, RandomStream.FORGOTTEN))]

    def failure_rate(self, prompt: Prompt) -> float:
        """Return the failure rate of the prompt's worst kind of instruction, between 0 and 1."""
        return max(_rate(self.state.focus.get(check.instruction)) for check in prompt.checks)

    def update(self, turns: Sequence[SampledTurn | CompletedConversation]) -> None:
        """Judge a batch's completions; of a conversation only the last, to which checks and answer apply."""
        counts, forgotten = self.state.focus, self.state.forgotten
        for decay, entries in ((_DECAY, counts), (_DECAY_OF_QUESTIONS, forgotten)):
            for entry in entries.values():
                entry[:] = [decay * value for value in entry]
        for turn in turns:
            prompt, response = turn.prompt, turn.messages[-1]["content"]
            if _user_turns(turn.messages) != _user_turns(prompt.messages):
                continue
            if prompt.checks:
                passed = judge(prompt, response).strict
                for check, good in zip(prompt.checks, passed, strict=True):
                    _count(counts, check.instruction, good)
            if corpus := _corpus(prompt):
                _count(forgotten, corpus, contains(response, [prompt.answer or ""]))


def earlier_tag(cycle: int) -> str:
    """Return the tag of questions about the documents of an earlier cycle."""
    return f"{_EARLIER}{cycle}"


def _corpus(prompt: Prompt) -> str:
    """Return the tag of the earlier corpus that a question with a known answer is about; empty for other prompts."""
    return next((tag for tag in prompt.tags if tag.startswith(_EARLIER)), "") if prompt.answer else ""


def _weighted(pool: Sequence[Prompt], weights: Mapping[int, float], count: int, seed: int) -> list[Prompt]:
    """Weighted sampling without replacement (Efraimidis and Spirakis, 2006): the largest of log(u) / w."""
    if not count:
        return []
    dice = random.Random(seed)
    ranked = sorted(pool, key=lambda prompt: math.log(dice.random() or _TINY) / weights[id(prompt)], reverse=True)
    return ranked[:count]


def _count(counts: dict[str, list[float]], kind: str, good: bool) -> None:
    entry = counts.setdefault(kind, [0.0, 0.0])
    entry[0] += 1
    entry[1] += not good


def _rate(counts: Sequence[float] | None) -> float:
    count, failed = counts or (0.0, 0.0)
    return (failed + _PRIOR_FAILED) / (count + _PRIOR_COUNT)


def weakest(answered: Sequence[CompletedConversation], pool: Sequence[Prompt], count: int, seed: int) -> list[Prompt]:
    """Return ``count`` more prompts of the pool, drawn by the failure rates of the kinds in these conversations."""
    sampler, used = PromptSampler(1.0), {one.prompt.id for one in answered}
    sampler.update(answered)
    left = [prompt for prompt in pool if prompt.id not in used]
    return sampler.choose(left, min(count, len(left)), 1, seed) if left else []


def _user_turns(messages: Sequence[Message]) -> int:
    return sum(message["role"] == "user" for message in messages)
