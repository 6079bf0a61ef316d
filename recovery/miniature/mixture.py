"""What the recipe trains on, and how much of each."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from recovery.miniature.tasks import arithmetic, conversation, editing, facts, handbook, reading, refusal, requests
from recovery.miniature.world import Entity, Example, World

Drawer = Callable[[random.Random, World], Example]

LATE = 0.6
"""From this share of the training on, instructions give way to documents: many entities, each read and asked less."""

SHARES: dict[str, tuple[Drawer, float, float]] = {
    "instructions": (requests.draw, 0.40, 0.33),
    "facts": (facts.ask, 0.05, 0.04),
    "facts-page": (facts.page, 0.02, 0.01),
    "open-book": (reading.open_book, 0.09, 0.09),
    "question-writing": (reading.write_question, 0.03, 0.05),
    "arithmetic": (arithmetic.draw, 0.04, 0.06),
    "editing": (editing.draw, 0.03, 0.02),
    "refusal": (refusal.draw, 0.02, 0.01),
    "dialogue": (conversation.two_turns, 0.02, 0.01),
    "system": (conversation.system_prompt, 0.02, 0.02),
    "rules": (conversation.rules, 0.03, 0.02),
    "demonstrations": (conversation.demonstrations, 0.02, 0.01),
    "echo": (conversation.echo, 0.05, 0.02),
}
"""Each task's share of the examples, first and late."""

DOCUMENT_SHARES, QUESTION_SHARES = (0.13, 0.22), (0.12, 0.14)
"""The shares of the base model's own handbooks and of questions about them, first and late."""
COPYING = ("echo", "open-book", "question-writing", "system", "rules")
"""Tasks given three times their share in the first tenth: copying is learnt first, everything else leans on it."""

STUDIED, STUDIED_LATE = 512, 600
"""How many entities of its own the base model would study in the whole of the training, and how many late."""
WINDOW = 32
"""How many are being studied at a time."""
QUESTION_DELAY = 10
"""Of these, how many of the newest are not asked about yet."""


@dataclass(frozen=True)
class Mixture:
    """Draws examples; a pure function of the random generator and the progress of training, from 0 to 1.

    Entities are studied in a sliding window: a new one is begun as the oldest is left, after some fifty to a
    hundred readings, as in mid-training. Questions about an entity begin when a third of its readings are done, so
    that they teach how to reach what documents have stored; the more entities, the less of it can be learnt from
    the questions themselves. ``revisit`` of the draws go back to any earlier entity.
    """

    world: World
    revisit: float = 0.2

    @cached_property
    def studied(self) -> tuple[list[Entity], list[Entity]]:
        """The base model's own entities, in the order in which they are studied: first and late."""
        return self.world.studied(STUDIED, STUDIED_LATE, set())

    def entity(self, rng: random.Random, progress: float, delay: int = 0) -> Entity:
        """An entity of the window without its ``delay`` newest, or at times any earlier one."""
        late = progress >= LATE
        found = self.studied[late]
        done = (progress - LATE) / (1 - LATE) if late else progress
        newest = min(int(done * (len(found) - WINDOW)) + WINDOW, len(found)) - 1
        if rng.random() < self.revisit:
            return found[rng.randrange(newest + 1 - delay)]
        return found[newest - rng.randrange(delay, WINDOW)]

    @cached_property
    def _weights(self) -> tuple[list[float], list[float], list[float]]:
        """The shares in the first tenth, then, and late."""
        first = [share for _, share, _ in SHARES.values()]
        copying = [share * (3.0 if name in COPYING else 1.0) for name, share in zip(SHARES, first, strict=True)]
        late = [share for _, _, share in SHARES.values()]
        handbook_first, handbook_late = zip(DOCUMENT_SHARES, QUESTION_SHARES, strict=True)
        return [*copying, *handbook_first], [*first, *handbook_first], [*late, *handbook_late]

    def draw(self, rng: random.Random, progress: float) -> Example:
        """One example at ``progress`` of the training."""
        copying, first, late = self._weights
        weights = copying if progress < 0.1 else late if progress >= LATE else first
        name = rng.choices([*SHARES, "documents", "questions"], weights)[0]
        if name == "documents":
            return handbook.study(rng, self.entity(rng, progress))
        if name == "questions":
            return handbook.ask(rng, self.entity(rng, progress, QUESTION_DELAY))
        return SHARES[name][0](rng, self.world)
