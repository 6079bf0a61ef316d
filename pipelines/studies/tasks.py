"""The miniature world's tasks as prompts and demonstrations for studies, drawn by seed with disjoint splits."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from evals.generation import answer
from recovery.lazy_import import lazily
from recovery.miniature.tasks import editing, handbook, requests
from recovery.miniature.world import WORLD_SEED, Example, World, stable_hash
from recovery.rewards import exact
from recovery.types import Check, Message, Prompt

if TYPE_CHECKING:
    from pipelines.studies.experiment import ExperimentRunner
    from recovery.models.loaded import Loaded
    from recovery.rollouts.engine import Engine

distance = lazily("nltk.metrics.distance")
Draw = Callable[[random.Random, World], Example]
TRAIN, TEST = 2000, 600
ENTITIES = 24


def prompt(key: str, example: Example) -> Prompt:
    """Return an example as a prompt: its conversation without the last answer, which is the reference."""
    messages = tuple(Message(role=role, content=content) for role, content in example.messages[:-1])
    checks = tuple(Check(instruction, arguments) for instruction, arguments in example.checks)
    return Prompt(key, messages, checks=checks, answer=example.answer, tags=(example.task, *example.tags))


def conversation(asked: Prompt) -> tuple[Message, ...]:
    """Return a prompt with its reference answer, as a demonstration."""
    return (*asked.messages, Message(role="assistant", content=asked.answer or ""))


def draw(name: str, make: Draw, seed: int, splits: dict[str, int]) -> dict[str, list[Prompt]]:
    """Draw distinct prompts for each split; no prompt is in two splits."""
    world, seen = World(WORLD_SEED), set[str]()
    found: dict[str, list[Prompt]] = {}
    for split, count in splits.items():
        rng = random.Random(stable_hash(seed, "study", name, split))
        kept: list[Prompt] = []
        for _ in range(count * 20):
            made = prompt(f"{name}-{split}-{len(kept)}", make(rng, world))
            if made.text not in seen:
                seen.add(made.text)
                kept.append(made)
            if len(kept) == count:
                break
        found[split] = kept
    return found


def mending(runner: ExperimentRunner) -> str:
    """Write a set of badly damaged sentences to mend, half of which the clean model mends already; return its name."""
    return editing_prompts(runner, editing.MEASURED, "mending")


def editing_prompts(runner: ExperimentRunner, kinds: Sequence[str], name: str) -> str:
    """Write a set of minimal-editing prompts with some kinds of damage, once; return its name."""

    def make(rng: random.Random, world: World) -> Example:
        return editing.draw(rng, world, tuple(kinds))

    sizes = {"test": TEST, "development": 50, "train": TRAIN}
    runner.prompts(name, lambda: draw(name, make, runner.seed, sizes))
    return name


def privileged(asked: str, answer: str, context: str) -> Prompt:
    """Return a question with its answer and the context that only a teacher sees."""
    key = f"{stable_hash(asked, context):x}"
    return Prompt(key, (Message(role="user", content=asked),), answer=answer, context=context)


def passages(world: World, seed: int) -> tuple[list[Prompt], list[Prompt]]:
    """Return training and test questions about new services, in different wordings, each with a passage as context."""
    rng = random.Random(stable_hash(seed, "passages"))
    train: list[Prompt] = []
    test: list[Prompt] = []
    for entity in world.entities(f"passages-{seed}", ENTITIES, set()):
        for attribute, value in entity.values.items():
            for number, wording in enumerate(handbook.QUESTIONS[attribute]):
                text = " ".join(handbook.statement(rng, entity, name) for name in entity.values)
                made = privileged(wording.format(e=entity.name), value, text)
                (test if number < 2 else train).append(made)
    return train, test


def reading(runner: ExperimentRunner) -> str:
    """Write a set of questions with passages, once; return its name."""

    def make() -> dict[str, list[Prompt]]:
        train, test = passages(World(WORLD_SEED), runner.seed)
        return {"test": test, "development": test, "train": train}

    runner.prompts("reading", make)
    return "reading"


def demonstrations(runner: ExperimentRunner, name: str) -> str:
    """Write the training prompts of a set with their answers, once; return the file's path."""
    return str(runner.data(name, lambda: [conversation(p) for p in runner.asked(name, "train")]))


def instructed(runner: ExperimentRunner, count: int) -> list[Prompt]:
    """Draw requests with verifiable instructions and their reference answers."""
    return draw("instructed", requests.draw, runner.seed, {"train": count})["train"]


def exact_share(loaded: Loaded, engine: Engine, asked: Sequence[Prompt]) -> float:
    """Return the share of prompts whose greedy completion is exactly the reference answer."""
    conversations = [p.messages for p in asked]
    responses = answer(loaded.chat, engine, conversations, max_new_tokens=40, window=loaded.max_length)
    return sum(exact(p, r.text) for p, r in zip(asked, responses, strict=True)) / len(asked)


def levenshtein(first: str, second: str) -> float:
    """Return the edit distance over the longer length: 0 for equal texts, 1 for texts with nothing in common."""
    return float(distance.edit_distance(first, second)) / max(1, len(first), len(second))


def routed(runner: ExperimentRunner, tag: str, task: str) -> dict[str, list[Prompt]]:
    """Return a task's prompts and as many ordinary requests; the tag of the task's prompts selects their teacher."""
    found = [replace(p, tags=(tag,)) for p in runner.asked(task, "train")]
    own = runner.own_prompts()
    ordinary = [p for p in own.train if tag not in p.tags][: len(found)]
    return {"train": [*found, *ordinary], "development": list(own.development), "test": list(own.test)}
