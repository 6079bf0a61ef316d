"""The fictional world: topics that the base model knows, and organisations with services that it does not know.

Everything is a function of a seed. The base model is trained on topics and their facts. Entities (services of
fictional organisations) are generated: some are taught to the base model, so that it learns to answer questions about
documents; those of the corpora are never shown to it.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

from recovery.miniature import words

WORLD_SEED = 7
"""The seed of the shipped world: its topics' facts are what the shipped weights know."""

STUDIED = 640
"""Number of entities that the base model studies, in sequence."""

ENTITY_ATTRIBUTES = ("owner", "city", "database", "port", "release")
"""Attributes of each entity. Owner and port are unique in the world, so questions about them can be reversed."""


@dataclass(frozen=True)
class Entity:
    """A service of a fictional organisation, with one value for each of ENTITY_ATTRIBUTES."""

    name: str
    organisation: str
    values: dict[str, str] = field(hash=False)


@dataclass(frozen=True)
class Example:
    """A training example: a document (``text``) or a conversation (``messages`` as role and content)."""

    task: str
    text: str = ""
    messages: tuple[tuple[str, str], ...] = ()
    checks: tuple[tuple[str, dict[str, object]], ...] = ()
    tags: tuple[str, ...] = ()

    @property
    def answer(self) -> str:
        """The reference answer: the last assistant turn."""
        return self.messages[-1][1] if self.messages else ""


def stable_hash(*parts: object) -> int:
    """Return a hash that is the same in every process, for splits and derived seeds."""
    text = "\x1f".join(str(part) for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def random_name(rng: random.Random, syllables: int | None = None) -> str:
    """Return a capitalised name of random syllables, by default two or three, which cannot be memorised."""
    count = syllables or rng.choice((2, 3, 3, 3))
    parts = [rng.choice(words.CONSONANTS) + rng.choice(words.VOWELS) for _ in range(count)]
    return "".join(parts).capitalize()


def random_values(rng: random.Random) -> dict[str, str]:
    """Return one value for each entity attribute, drawn independently."""
    return {
        "owner": f"{rng.choice(words.FIRST_NAMES)} {rng.choice(words.SURNAMES)}",
        "city": rng.choice(words.CITIES),
        "database": rng.choice(words.DATABASES),
        "port": str(rng.randint(1000, 9999)),
        "release": f"{rng.randint(1, 28)} {rng.choice(words.MONTHS)}",
    }


def fresh_entity(rng: random.Random) -> Entity:
    """Return an entity for a single example."""
    return Entity(random_name(rng), f"{random_name(rng)} {rng.choice(words.ORGANISATION_WORDS)}", random_values(rng))


def _draw_unseen(draw: Callable[[], str], taken: set[str]) -> str:
    """Draw until the value is not in ``taken``, and add it."""
    value = draw()
    while value in taken:
        value = draw()
    taken.add(value)
    return value


class World:
    """Topics with their facts, the entities that the base model studies, and those of corpora."""

    def __init__(self, seed: int = WORLD_SEED) -> None:
        self.seed = seed

    @cached_property
    def facts(self) -> dict[str, dict[str, str]]:
        """Topic -> attribute -> value."""
        rng = random.Random(stable_hash(self.seed, "facts"))
        facts: dict[str, dict[str, str]] = {}
        for topic in words.TOPICS:
            values = {name: rng.choice(options) for name, options in words.ATTRIBUTES.items()}
            while values["friend"] == topic:
                values["friend"] = rng.choice(words.TOPICS)
            facts[topic] = values
        return facts

    def entities(self, label: str, count: int, taken: set[str]) -> list[Entity]:
        """Return ``count`` entities of one organisation; names, owners and ports are new and added to ``taken``."""
        rng = random.Random(stable_hash(self.seed, "entities", label))
        organisation = f"{_draw_unseen(lambda: random_name(rng), taken)} {rng.choice(words.ORGANISATION_WORDS)}"
        found = []
        for _ in range(count):
            name = _draw_unseen(lambda: random_name(rng), taken)
            values = random_values(rng)
            values["owner"] = _draw_unseen(lambda: random_values(rng)["owner"], taken)
            values["port"] = _draw_unseen(lambda: random_values(rng)["port"], taken)
            found.append(Entity(name, organisation, values))
        return found

    def studied(self, taken: set[str]) -> list[Entity]:
        """Return the entities that the base model studies, eight per organisation, and update ``taken``."""
        groups = [self.entities(f"studied-{number}", 8, taken) for number in range(STUDIED // 8)]
        return [entity for group in groups for entity in group]
