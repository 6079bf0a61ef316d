"""What the recipe trains on, and how much of each."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from recovery.miniature.tasks import arithmetic, conversation, editing, facts, handbook, reading, refusal, requests
from recovery.miniature.world import Entity, Example, World

Drawer = Callable[[random.Random, World], Example]

SHARES: dict[str, tuple[Drawer, float]] = {
    "instructions": (requests.draw, 0.40),
    "facts": (facts.ask, 0.05),
    "facts-page": (facts.page, 0.02),
    "open-book": (reading.open_book, 0.09),
    "question-writing": (reading.write_question, 0.03),
    "arithmetic": (arithmetic.draw, 0.04),
    "editing": (editing.draw, 0.03),
    "refusal": (refusal.draw, 0.02),
    "dialogue": (conversation.two_turns, 0.02),
    "system": (conversation.system_prompt, 0.02),
    "rules": (conversation.rules, 0.03),
    "demonstrations": (conversation.demonstrations, 0.02),
    "echo": (conversation.echo, 0.05),
}
"""Share of examples by task; what is missing to one goes to the handbooks of the current cohort."""

DOCUMENT_SHARE = 0.12
QUESTION_SHARE = 0.11
COPYING = ("echo", "open-book", "question-writing", "system", "rules")
"""Tasks given three times their share in the first tenth: copying is learnt first, everything else leans on it."""


COHORTS = 16
COHORT_SIZE = 32


@dataclass(frozen=True)
class Mixture:
    """Draws examples; a pure function of the random generator and the progress of training, from 0 to 1.

    ``cohorts`` groups of ``cohort_size`` entities are studied one after the other, earlier ones being revisited in
    ``revisit`` of the draws: facts must be learnt from a hundred readings, as in mid-training.
    """

    world: World
    cohorts: int = COHORTS
    cohort_size: int = COHORT_SIZE
    revisit: float = 0.25

    @cached_property
    def _entities(self) -> list[list[Entity]]:
        return self.world.cohorts(self.cohorts, self.cohort_size, set())

    def entity(self, rng: random.Random, progress: float) -> Entity:
        """An entity of the current cohort or, at times, of an earlier one."""
        current = min(int(progress * self.cohorts), self.cohorts - 1)
        if current and rng.random() < self.revisit:
            current = rng.randrange(current)
        return rng.choice(self._entities[current])

    @cached_property
    def _early(self) -> tuple[list[str], list[float]]:
        return [*SHARES, "documents", "questions"], self._weights(3.0)

    @cached_property
    def _late(self) -> tuple[list[str], list[float]]:
        return [*SHARES, "documents", "questions"], self._weights(1.0)

    def _weights(self, copying: float) -> list[float]:
        shares = [share * (copying if name in COPYING else 1.0) for name, (_, share) in SHARES.items()]
        return [*shares, DOCUMENT_SHARE, QUESTION_SHARE]

    def draw(self, rng: random.Random, progress: float) -> Example:
        """One example at ``progress`` of the training."""
        names, weights = self._early if progress < 0.1 else self._late
        name = rng.choices(names, weights)[0]
        if name == "documents":
            return handbook.study(rng, self.entity(rng, progress))
        if name == "questions":
            return handbook.ask(rng, self.entity(rng, progress))
        return SHARES[name][0](rng, self.world)
