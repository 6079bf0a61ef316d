"""Lightweight evaluation of the miniature, used by the recipe and its tests.

Decoding is greedy. Instructions are scored by lm-eval's unmodified checkers.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from examples.miniature.mixture import Mixture, ask
from examples.miniature.tasks import arithmetic, conversation, editing, facts, reading, refusal, requests
from recovery.data.checkers import judge
from recovery.miniature.corpora import Example, stable_hash
from recovery.models.loaded import Loaded
from recovery.rollouts.engine import Sampling
from recovery.rollouts.transformers_engine import TransformersEngine
from recovery.types import Check, Message, Prompt, Score

MAX_NEW_TOKENS = 128


def follows(example: Example, response: str) -> list[bool]:
    """Return one strict verdict per instruction, by lm-eval's checkers."""
    checks = tuple(Check(instruction, arguments) for instruction, arguments in example.checks)
    messages = tuple(Message(role=role, content=content) for role, content in example.messages[:-1])
    return list(judge(Prompt("miniature", messages, checks=checks), response).strict)


def respond(loaded: Loaded, examples: Sequence[Example]) -> list[str]:
    """Return greedy responses to the last request of each example."""
    prompts = []
    for example in examples:
        messages = [Message(role=role, content=content) for role, content in example.messages[:-1]]
        prompts.append(loaded.chat.prompt_ids(messages))
    sampling = Sampling(max_new_tokens=MAX_NEW_TOKENS, temperature=0.0)
    completions = TransformersEngine(loaded).generate(prompts, sampling)
    return [loaded.chat.text(completion.ids) for completion in completions]


@dataclass(frozen=True)
class Suite:
    """A named measurement: functions to sample an example and score a response, and the required range."""

    name: str
    draw: Callable[[random.Random, Mixture], Example]
    judge: Callable[[Example, str], bool]
    low: float = 0.0
    high: float = 1.0


def exact(example: Example, response: str) -> bool:
    """Return whether the response is exactly the reference answer."""
    return response.strip() == example.answer


def _unseen(rng: random.Random, mixture: Mixture) -> Example:
    return ask(rng, rng.choice(mixture.world.entities("unseen", 64, set())))


def _request(rng: random.Random, mixture: Mixture) -> Example:
    return requests.compose(rng, mixture.world, rng.choice(requests.measured_cells("test")))


def _written(example: Example, response: str) -> bool:
    return reading.answerable(example.messages[0][1], response)


SUITES: tuple[Suite, ...] = (
    Suite("instructions", _request, lambda e, a: all(follows(e, a)), 0.95),
    Suite("facts", lambda r, m: facts.ask(r, m.world), exact, 0.97),
    Suite("open-book", lambda r, m: reading.open_book(r), exact, 0.95),
    Suite("question-writing", lambda r, m: reading.write_question(r), _written, 0.9),
    Suite("refusal", lambda r, m: refusal.draw(r), lambda e, a: refusal.refused(a), 0.95),
    Suite("unseen-facts", _unseen, exact, 0.0, 0.05),
    Suite("arithmetic", lambda r, m: arithmetic.draw(r), exact, 0.3, 0.7),
    Suite("editing", lambda r, m: editing.draw(r, m.world, editing.MEASURED), exact, 0.3, 0.7),
    Suite("studied-facts", lambda r, m: ask(r, m.entity(r, 1.0)), exact),
    Suite("dialogue", lambda r, m: conversation.two_turns(r, m.world), exact),
    Suite("system", lambda r, m: conversation.system_prompt(r, m.world), exact),
    Suite("rules", lambda r, m: conversation.rules(r, m.world), exact),
    Suite("demonstrations", lambda r, m: conversation.demonstrations(r, m.world), exact),
)


def measure(loaded: Loaded, mixture: Mixture, suite: Suite, count: int, seed: int = 0) -> tuple[Score, list[str]]:
    """Return a suite's accuracy over ``count`` examples, and up to five wrong responses to read."""
    rng = random.Random(stable_hash(seed, "score", suite.name))
    examples = [suite.draw(rng, mixture) for _ in range(count)]
    responses = respond(loaded, examples)
    verdicts = [suite.judge(e, a) for e, a in zip(examples, responses, strict=True)]
    value = sum(verdicts) / count
    wrong = [(e, a) for e, a, right in zip(examples, responses, verdicts, strict=True) if not right]
    shown = [f"{e.messages[:-1]} -> {a!r}, not {e.answer!r}" for e, a in wrong[:5]]
    return Score(value, math.sqrt(value * (1 - value) / count), count), shown
