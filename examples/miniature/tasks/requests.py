"""Requests with verifiable instructions: a topic, one or two instructions, and an answer that follows them.

A cell is a topic with a combination of instructions. Cells, not prompts, are split into train, development and
test, so that no combination for a topic occurs in two splits.
"""

from __future__ import annotations

import random
from functools import cache

from examples.miniature.tasks.drafts import Draft
from examples.miniature.tasks.instructions import COMBINATIONS, HELD_OUT_IDS, Instruction
from recovery.miniature import words
from recovery.miniature.corpora import Example, World, stable_hash

Cell = tuple[str, tuple[Instruction, ...]]

REQUESTS = ("Write about the {t}.", "Tell me about the {t}.", "Describe the {t}.", "What do you know about the {t}?")
SPLITS = ("train", "development", "test")
HARDEST = frozenset(
    {
        "keywords:existence",
        "keywords:frequency",
        "keywords:forbidden_words",
        "length_constraints:nth_paragraph_first_word",
    }
)
"""The instructions learnt last: they depend on single words of the request."""
NOT_MEASURED = frozenset({"keywords:forbidden_words"})
"""Used in training but not in the suites: a model of this size follows it only half of the time."""
CONSTRAINED = "detectable_format:constrained_response"


def split_of(topic: str, combination: tuple[Instruction, ...]) -> str:
    """Return the split of a cell: train (70%), development (15%) or test (15%)."""
    bucket = stable_hash("split", topic, *sorted(instruction.id for instruction in combination)) % 100
    return "train" if bucket < 70 else "development" if bucket < 85 else "test"


@cache
def cells(split: str) -> tuple[Cell, ...]:
    """Return all cells of a split, with topics in their listed order."""
    return tuple((t, c) for t in words.TOPICS for c in COMBINATIONS if split_of(t, c) == split)


@cache
def measured_cells(split: str) -> tuple[Cell, ...]:
    """Return the cells of a split that the suites use."""
    return tuple(cell for cell in cells(split) if not any(i.id in NOT_MEASURED for i in cell[1]))


@cache
def cells_by_size(split: str) -> tuple[tuple[Cell, ...], tuple[Cell, ...]]:
    """Return the cells with one instruction, and those with two."""
    return tuple(c for c in cells(split) if len(c[1]) == 1), tuple(c for c in cells(split) if len(c[1]) == 2)


def _question(rng: random.Random, world: World, topic: str) -> tuple[str, str]:
    """Sample a yes-or-no question and its verdict, for the constrained response."""
    colour = world.facts[topic]["colour"]
    asked = colour if rng.random() < 0.5 else rng.choice([c for c in words.COLOURS if c != colour])
    return f"Is the {topic} {asked}?", f"My answer is {'yes' if asked == colour else 'no'}."


def compose(rng: random.Random, world: World, cell: Cell, style: str | None = None) -> Example:
    """Sample a prompt for a cell and an answer that follows it.

    ``style`` is "plain", "system" (the instructions are in the system prompt) or "dialogue" (they are in the second
    turn); by default it is drawn.
    """
    topic, combination = cell
    draft = Draft(topic, rng.choice(REQUESTS).format(t=topic))
    if any(instruction.id == CONSTRAINED for instruction in combination):
        draft.request, draft.verdict = _question(rng, world, topic)
    checks, phrases = [], []
    for instruction in combination:
        arguments = instruction.sample(rng, world, draft)
        instruction.apply(draft, arguments)
        checks.append((instruction.id, arguments))
        phrases.append(instruction.word(rng, arguments))
    rng.shuffle(phrases)
    answer = draft.render(rng, world)
    style = style or rng.choice(("plain",) * 8 + ("system", "dialogue"))
    messages = _messages(rng, world, draft, " ".join(phrases), style)
    held_out = any(instruction.id in HELD_OUT_IDS for instruction in combination)
    tags = (style, *(("held-out-id",) if held_out else ()))
    return Example("instructions", messages=(*messages, ("assistant", answer)), checks=tuple(checks), tags=tags)


def _messages(rng: random.Random, world: World, draft: Draft, wanted: str, style: str) -> tuple[tuple[str, str], ...]:
    if style == "system":
        return (("system", wanted), ("user", draft.request))
    asked = ("user", f"{draft.request} {wanted}")
    if style == "dialogue":
        colour = world.facts[draft.topic]["colour"]
        first = rng.choice(("What colour is the {t}?", "Name the colour of the {t}.")).format(t=draft.topic)
        return (("user", first), ("assistant", colour), asked)
    return (asked,)


def draw(rng: random.Random, world: World, split: str = "train") -> Example:
    """Sample a request from a split: 40% with one instruction, the others with two."""
    single, double = cells_by_size(split)
    return compose(rng, world, rng.choice(single if rng.random() < 0.4 else double))


@cache
def hardest_cells() -> tuple[Cell, ...]:
    """Return the training cells with one of the instructions that are learnt last."""
    return tuple(cell for cell in cells("train") if any(instruction.id in HARDEST for instruction in cell[1]))


def practise(rng: random.Random, world: World) -> Example:
    """Sample a training request of the hardest kinds."""
    return compose(rng, world, rng.choice(hardest_cells()))
