"""The miniature world's tasks as prompts and demonstrations for studies: drawn by seed, test drawn apart from train."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace

from nltk.metrics.distance import edit_distance

from evals.asking import answer
from pipelines.lab import Lab
from recovery.loading import Loaded
from recovery.miniature.tasks import editing, handbook, requests
from recovery.miniature.world import WORLD_SEED, Example, World, stable_hash
from recovery.prompts import behaviour_prompts
from recovery.rewards import exact
from recovery.rollouts import Engine
from recovery.types import Check, Message, Prompt

Draw = Callable[[random.Random, World], Example]
TRAIN, TEST = 2000, 600
ENTITIES = 24


def prompt(key: str, example: Example) -> Prompt:
    """An example as a prompt: its conversation without the last answer, which is its reference."""
    messages = tuple(Message(role=role, content=content) for role, content in example.messages[:-1])
    checks = tuple(Check(instruction, arguments) for instruction, arguments in example.checks)
    return Prompt(key, messages, checks=checks, answer=example.answer, tags=(example.task, *example.tags))


def conversation(asked: Prompt) -> tuple[Message, ...]:
    """A prompt with its reference answer: a demonstration."""
    return (*asked.messages, Message(role="assistant", content=asked.answer or ""))


def draw(name: str, make: Draw, seed: int, splits: dict[str, int]) -> dict[str, list[Prompt]]:
    """Different prompts for each split; none is in two."""
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


def mending(lab: Lab) -> str:
    """The name of a set of badly damaged sentences to mend, half of which the clean model mends already, made once."""
    return editing_prompts(lab, editing.MEASURED, "mending")


def editing_prompts(lab: Lab, kinds: Sequence[str], name: str, splits: dict[str, int] | None = None) -> str:
    """The name of a set of minimal-editing prompts with some kinds of damage, made once."""

    def make(rng: random.Random, world: World) -> Example:
        return editing.draw(rng, world, tuple(kinds))

    sizes = splits or {"test": TEST, "development": 50, "train": TRAIN}
    lab.prompts(name, lambda: draw(name, make, lab.seed, sizes))
    return name


def privileged(asked: str, answer: str, context: str) -> Prompt:
    """A question with its answer and what only a teacher may read."""
    key = f"{stable_hash(asked, context):x}"
    return Prompt(key, (Message(role="user", content=asked),), answer=answer, context=context)


def passages(world: World, seed: int) -> tuple[list[Prompt], list[Prompt]]:
    """Questions about new services, to train on and in other wordings to test by; each brings a passage to read."""
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


def reading(lab: Lab) -> str:
    """The name of a set of such questions, made once."""

    def make() -> dict[str, list[Prompt]]:
        train, test = passages(World(WORLD_SEED), lab.seed)
        return {"test": test, "development": test, "train": train}

    lab.prompts("reading", make)
    return "reading"


def demonstrations(lab: Lab, name: str) -> str:
    """The path of a file with the training prompts of a set and their answers, made once."""
    return str(lab.data(name, lambda: [conversation(p) for p in lab.asked(name, "train")]))


def instructed(lab: Lab, count: int) -> list[Prompt]:
    """Requests with verifiable instructions and the world's own answers to them."""
    return draw("instructed", requests.draw, lab.seed, {"train": count})["train"]


def exact_share(loaded: Loaded, engine: Engine, asked: Sequence[Prompt]) -> float:
    """Share of prompts answered greedily with exactly their reference answer."""
    conversations = [p.messages for p in asked]
    said = answer(loaded.chat, engine, conversations, max_new_tokens=40, window=loaded.max_length)
    return sum(exact(p, s.text) for p, s in zip(asked, said, strict=True)) / len(asked)


def levenshtein(first: str, second: str) -> float:
    """Edit distance over the longer length: 0 for equal texts, 1 for texts with nothing in common."""
    return float(edit_distance(first, second)) / max(1, len(first), len(second))


def routed(lab: Lab, tag: str, task: str) -> dict[str, list[Prompt]]:
    """A task's prompts and ordinary requests, half and half; the task's carry its tag, and have a teacher by it."""
    found = [replace(p, tags=(tag,)) for p in lab.asked(task, "train")]
    splits = behaviour_prompts(lab.session.base.path, None, 0)
    ordinary = [p for p in splits.train if tag not in p.tags][: len(found)]
    return {"train": [*found, *ordinary], "development": list(splits.development), "test": list(splits.test)}
