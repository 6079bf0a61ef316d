"""Training mixture of the recipe: the tasks and their weights."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from examples.miniature.tasks import arithmetic, conversation, editing, facts, reading, refusal, requests
from recovery.miniature import corpora
from recovery.miniature.corpora import ENTITY_ATTRIBUTES, STUDIED, Entity, Example, World

Drawer = Callable[[random.Random, World], Example]

SHARES: dict[str, tuple[Drawer, float]] = {
    "instructions": (requests.draw, 0.37),
    "facts": (facts.ask, 0.04),
    "facts-page": (facts.page, 0.01),
    "open-book": (reading.open_book, 0.09),
    "question-writing": (reading.write_question, 0.04),
    "arithmetic": (arithmetic.draw, 0.06),
    "editing": (editing.draw, 0.02),
    "refusal": (refusal.draw, 0.01),
    "dialogue": (conversation.two_turns, 0.01),
    "system": (conversation.system_prompt, 0.02),
    "rules": (conversation.rules, 0.02),
    "demonstrations": (conversation.demonstrations, 0.01),
    "echo": (conversation.echo, 0.03),
}
"""The weight of each task in the mixture."""

DOCUMENT_SHARE, QUESTION_SHARE = 0.17, 0.13
"""The weights of the handbooks that the base model studies, and of questions about them."""
COPYING = ("echo", "open-book", "question-writing", "system", "rules")
"""Tasks with three times their weight in the first tenth: copying is learnt first, and other tasks depend on it."""

WINDOW = 32
"""Number of entities studied at a time."""
QUESTION_DELAY = 10
"""Number of the newest of these for which there are no questions yet."""


@dataclass(frozen=True)
class Mixture:
    """Samples examples; a pure function of the random generator and the progress of training, from 0 to 1.

    Entities are studied in a sliding window: a new one enters when the oldest leaves, after about fifty documents, as
    in mid-training. Questions about an entity begin after a third of its documents, so that they train access to facts
    stored from documents; with many entities, little can be learnt from the questions themselves. The share
    ``revisit`` of the draws is of any earlier entity, the share ``practice`` of the requests of the hardest kinds.
    """

    world: World
    revisit: float = 0.15
    practice: float = 0.0

    @cached_property
    def studied(self) -> list[Entity]:
        """The entities that the base model studies, in order."""
        return self.world.studied(set())

    def entity(self, rng: random.Random, progress: float, delay: int = 0) -> Entity:
        """Sample an entity of the window without its ``delay`` newest, or sometimes any earlier one."""
        newest = min(int(progress * (STUDIED - WINDOW)) + WINDOW, STUDIED) - 1
        if rng.random() < self.revisit:
            return self.studied[rng.randrange(newest + 1 - delay)]
        return self.studied[newest - rng.randrange(delay, WINDOW)]

    @cached_property
    def _weights(self) -> tuple[list[float], list[float]]:
        """The weights in the first tenth of training, and after it."""
        plain = [weight for _, weight in SHARES.values()]
        copying = [weight * (3.0 if name in COPYING else 1.0) for name, weight in zip(SHARES, plain, strict=True)]
        return [*copying, DOCUMENT_SHARE, QUESTION_SHARE], [*plain, DOCUMENT_SHARE, QUESTION_SHARE]

    def draw(self, rng: random.Random, progress: float) -> Example:
        """Sample one example at ``progress`` of the training."""
        name = rng.choices([*SHARES, "documents", "questions"], self._weights[progress >= 0.1])[0]
        if name == "documents":
            return Example("handbook", text=corpora.document(rng, self.entity(rng, progress)))
        if name == "questions":
            return ask(rng, self.entity(rng, progress, QUESTION_DELAY))
        if name == "instructions" and self.practice and rng.random() < self.practice:
            return requests.practise(rng, self.world)
        return SHARES[name][0](rng, self.world)


def ask(rng: random.Random, entity: Entity) -> Example:
    """Sample a closed-book question about an entity in any wording, one in six reversed, and its bare answer."""
    if rng.random() < 1 / 6:
        attribute = rng.choice(list(corpora.REVERSED))
        text, answer = rng.choice(corpora.REVERSED[attribute]).format(v=entity.values[attribute]), entity.name
    else:
        attribute = rng.choice(ENTITY_ATTRIBUTES)
        text, answer = rng.choice(corpora.QUESTIONS[attribute]).format(e=entity.name), entity.values[attribute]
    return Example("handbook-question", messages=(("user", text), ("assistant", answer)))
