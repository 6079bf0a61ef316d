"""Handbooks: documents about the services of fictional organisations, and questions about them.

The base model is trained on handbooks of its own entities together with questions about them, so that it can answer
questions about documents learnt later.
"""

from __future__ import annotations

import random

from recovery.miniature.world import ENTITY_ATTRIBUTES, Entity

SENTENCES: dict[str, tuple[str, ...]] = {
    "owner": (
        "{e} is owned by {v}.", "The owner of {e} is {v}.", "{v} is the owner of {e}.", "{v} takes care of {e}.",
        "For {e} the person to ask is {v}.",
    ),
    "city": (
        "{e} is run from {v}.", "The home city of {e} is {v}.", "The machines of {e} stand in {v}.",
        "In {v} you find the office of {e}.", "{e} has its office in {v}.",
    ),
    "database": (
        "{e} keeps its data in {v}.", "The database of {e} is {v}.", "{v} is the database behind {e}.",
        "All records of {e} go to {v}.", "{e} stores everything in {v}.",
    ),
    "port": (
        "{e} listens on port {v}.", "The port of {e} is {v}.", "Port {v} belongs to {e}.",
        "On port {v} you reach {e}.", "To reach {e} use port {v}.",
    ),
    "release": (
        "{e} was released on {v}.", "The release day of {e} is {v}.", "On {v} comes the release of {e}.",
        "The first day of {e} was {v}.", "{e} goes out on {v}.",
    ),
}  # fmt: skip
"""Document phrasings; those that end with the value can be cut before it to build a choice probe."""

LABELS = {"owner": "Owner", "city": "City", "database": "Database", "port": "Port", "release": "Release day"}

QUESTIONS: dict[str, tuple[str, ...]] = {
    "owner": (
        "Who owns {e}?", "Who is the owner of {e}?", "Name the owner of {e}.", "Tell me who owns {e}.",
        "{e} is owned by whom?", "Do you know who owns {e}?", "Who takes care of {e}?", "Which person owns {e}?",
        "Say who the owner of {e} is.", "Whom do I ask about {e}?",
    ),
    "city": (
        "In which city is {e} run?", "What is the home city of {e}?", "Name the city of {e}.",
        "Tell me the city of {e}.", "{e} is run from which city?", "Do you know the city of {e}?",
        "Where is the office of {e}?", "Which city is home to {e}?", "Say in which city {e} is run.",
        "Where do the machines of {e} stand?",
    ),
    "database": (
        "Which database does {e} use?", "What is the database of {e}?", "Name the database of {e}.",
        "Tell me the database of {e}.", "{e} keeps its data in which database?", "Do you know the database of {e}?",
        "Where does {e} keep its data?", "Which database is behind {e}?", "Say which database {e} uses.",
        "Where do the records of {e} go?",
    ),
    "port": (
        "Which port does {e} use?", "What is the port of {e}?", "Name the port of {e}.", "Tell me the port of {e}.",
        "{e} listens on which port?", "Do you know the port of {e}?", "On which port do I reach {e}?",
        "Which port belongs to {e}?", "Say which port {e} uses.", "What port number has {e}?",
    ),
    "release": (
        "When was {e} released?", "What is the release day of {e}?", "Name the release day of {e}.",
        "Tell me the release day of {e}.", "{e} was released on which day?", "Do you know the release day of {e}?",
        "On which day was {e} released?", "Which day is the release of {e}?", "Say when {e} was released.",
        "What was the first day of {e}?",
    ),
}  # fmt: skip
REVERSED: dict[str, tuple[str, ...]] = {
    "owner": (
        "Which service does {v} own?", "{v} is the owner of which service?", "What does {v} take care of?",
        "Name the service of {v}.",
    ),
    "port": (
        "Which service uses port {v}?", "Port {v} belongs to which service?", "What do I reach on port {v}?",
        "Name the service on port {v}.",
    ),
}  # fmt: skip
PROBE_WORDINGS = 6
"""The first six wordings of QUESTIONS are for probes, the others for prompts to the knowledge teacher."""
PROBE_REVERSED = 2
"""The same for REVERSED."""


def statement(rng: random.Random, entity: Entity, attribute: str) -> str:
    """Sample one fact about an entity in one of its document phrasings."""
    return rng.choice(SENTENCES[attribute]).format(e=entity.name, v=entity.values[attribute])


def _prose(rng: random.Random, entity: Entity, attributes: list[str]) -> str:
    return " ".join(statement(rng, entity, attribute) for attribute in attributes)


def document(rng: random.Random, entity: Entity) -> str:
    """Sample a page of the handbook in Markdown: a description, a note on some facts, a list or a bulletin."""
    attributes = rng.sample(ENTITY_ATTRIBUTES, len(ENTITY_ATTRIBUTES))
    kind = rng.randrange(5)
    if kind <= 1:
        opening = rng.choice(("{e} is a service of {o}.", "{o} runs {e}.", "Among the services of {o} is {e}."))
        return f"# {entity.name}\n\n{opening} {_prose(rng, entity, attributes)}".format(
            e=entity.name, o=entity.organisation
        )
    if kind == 2:
        return f"## Notes of {entity.organisation}\n\n{_prose(rng, entity, attributes[:3])}"
    if kind == 3:
        rows = "\n".join(f"- {LABELS[name]}: {entity.values[name]}" for name in attributes)
        return f"# {entity.name}\n\n{entity.organisation}\n\n{rows}"
    return f"{entity.organisation} bulletin. {_prose(rng, entity, attributes)}"
