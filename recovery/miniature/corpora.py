"""The miniature's fictional world, its handbook's wordings, and corpora of it: Markdown, questions and probes."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from recovery.data.corpus.json_lines import write_json_lines
from recovery.errors import UsageError
from recovery.miniature import words

# The fictional world: topics that the base model knows, and organisations with services that it does not know.
#
# Everything is a function of a seed. The base model is trained on topics and their facts. Entities (services of
# fictional organisations) are generated: some are taught to the base model, so that it learns to answer questions
# about documents; those of the corpora are never shown to it.

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
        entities = []
        for _ in range(count):
            name = _draw_unseen(lambda: random_name(rng), taken)
            values = random_values(rng)
            values["owner"] = _draw_unseen(lambda: random_values(rng)["owner"], taken)
            values["port"] = _draw_unseen(lambda: random_values(rng)["port"], taken)
            entities.append(Entity(name, organisation, values))
        return entities

    def studied(self, taken: set[str]) -> list[Entity]:
        """Return the entities that the base model studies, eight per organisation, and update ``taken``."""
        groups = [self.entities(f"studied-{number}", 8, taken) for number in range(STUDIED // 8)]
        return [entity for group in groups for entity in group]


# Handbooks: documents about the services of fictional organisations, and questions about them.
#
# The base model is trained on handbooks of its own entities together with questions about them, so that it can answer
# questions about documents learnt later.

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


MAX_ENTITIES = 800
"""Owners are unique in the world, and this many combinations of names are available for corpora."""
CONTROL_WORDINGS = 2
REVERSED_EVERY = 8
"""One in this many entities also has reversed probes: documents rarely state the value before the name."""

CHOICES = 24
"""Candidates of a choice probe."""

Record = dict[str, Any]


def write_corpora(folder: Path, count: int, seed: int = 0, *, entities: int = 34, documents: int = 12) -> list[Path]:
    """Write ``count`` corpora q1 ... to ``folder`` and return their folders.

    Each describes ``entities`` services of one organisation in ``documents`` Markdown files per service, with
    ``questions.jsonl`` (for the knowledge teacher) and ``probes.jsonl`` (question and choice probes, and control probes
    about services that no corpus describes). Questions and probes share no wording. The corpora of one call share no
    name, owner or port; the same arguments give the same files.
    Raises UsageError if more services are requested than the world has owners.
    """
    if count < 1 or entities < 1 or documents < 1 or count * entities > MAX_ENTITIES:
        raise UsageError(
            f"{count} corpora of {entities} services: there are names for {MAX_ENTITIES} services, so for 1 to "
            f"{MAX_ENTITIES // max(1, entities)} corpora of that size"
        )
    world = World(WORLD_SEED)
    taken: set[str] = set()
    world.studied(taken)
    control = world.entities(f"control-{seed}", 32, taken)
    folders = []
    for number in range(1, count + 1):
        rng = random.Random(stable_hash(seed, "corpus", number))
        members = world.entities(f"corpus-{seed}-{number}", entities, taken)
        target = folder / f"q{number}"
        _write_documents(target, rng, members, documents)
        write_json_lines(target / "questions.jsonl", questions(members))
        write_json_lines(target / "probes.jsonl", probes(rng, members, control, f"q{number}"))
        folders.append(target)
    return folders


def _write_documents(folder: Path, rng: random.Random, members: list[Entity], documents: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for entity in members:
        for number, text in enumerate(different_documents(rng, entity, documents), 1):
            (folder / f"{entity.name.lower()}-{number:02d}.md").write_text(f"{text}\n", encoding="utf-8")


def different_documents(rng: random.Random, entity: Entity, count: int) -> list[str]:
    """Return ``count`` different texts about a service."""
    texts: dict[str, None] = {}
    while len(texts) < count:
        texts[document(rng, entity)] = None
    return list(texts)


def questions(members: list[Entity]) -> list[Record]:
    """Return questions for the knowledge teacher, in wordings that no probe uses."""
    records = []
    for entity in members:
        for attribute, value in entity.values.items():
            for wording in QUESTIONS[attribute][PROBE_WORDINGS:]:
                question = wording.format(e=entity.name)
                records.append({"question": question, "answer": value, "source": entity.name})
            for wording in REVERSED.get(attribute, ())[PROBE_REVERSED:]:
                records.append({"question": wording.format(v=value), "answer": entity.name, "source": entity.name})
    return records


def probes(rng: random.Random, members: list[Entity], control: list[Entity], label: str) -> list[Record]:
    """Return question and choice probes of a corpus, and control probes about services that it does not describe."""
    records: list[Record] = []
    for number, entity in enumerate(members):
        records += _question_probes(entity, reverse=number % REVERSED_EVERY == 0)
        records += _choice_probes(rng, entity, members)
    for entity in control:
        records += [{**probe, "control": True} for probe in _question_probes(entity, CONTROL_WORDINGS)]
    return [{"id": f"{label}-{number}", **record} for number, record in enumerate(records)]


def _question_probes(entity: Entity, wordings: int = PROBE_WORDINGS, *, reverse: bool = False) -> list[Record]:
    records = []
    for attribute, value in entity.values.items():
        for wording in QUESTIONS[attribute][:wordings]:
            records.append(_question(wording.format(e=entity.name), value, entity, attribute))
        for wording in REVERSED.get(attribute, ())[: PROBE_REVERSED * reverse]:
            records.append(_question(wording.format(v=value), entity.name, entity, attribute, "reversed"))
    return records


def _question(text: str, answer: str, entity: Entity, *tags: str) -> Record:
    return {"form": "question", "question": text, "answers": [answer], "source": entity.name, "tags": list(tags)}


def _choice_probes(rng: random.Random, entity: Entity, members: list[Entity]) -> list[Record]:
    """Return document sentences cut before their value, alone and below the entity's title."""
    records = []
    for attribute, value in entity.values.items():
        options = _options(rng, attribute, members)
        for form in SENTENCES[attribute]:
            if not form.endswith("{v}."):
                continue
            stem = form.removesuffix("{v}.").format(e=entity.name)
            for opening in ("", f"# {entity.name}\n\n"):
                records.append(
                    {
                        "form": "choice",
                        "question": opening + stem,
                        "answers": [value],
                        "choices": choices(rng, value, options),
                        "source": entity.name,
                        "tags": [attribute],
                    }
                )
    return records


def choices(rng: random.Random, value: str, options: Iterable[str]) -> list[str]:
    """Return ``CHOICES`` candidates in random order, including the correct one."""
    others = rng.sample(sorted(set(options) - {value}), CHOICES - 1)
    candidates = [value, *others]
    rng.shuffle(candidates)
    return candidates


def _options(rng: random.Random, attribute: str, members: list[Entity]) -> tuple[str, ...]:
    """Return candidates of the same kind: values of other services, and unused values."""
    if attribute == "city":
        return words.CITIES
    if attribute == "database":
        return words.DATABASES
    members_values = [entity.values[attribute] for entity in members]
    if attribute == "port":
        return (*members_values, *(str(rng.randint(1000, 9999)) for _ in range(60)))
    if attribute == "owner":
        drawn = (f"{rng.choice(words.FIRST_NAMES)} {rng.choice(words.SURNAMES)}" for _ in range(60))
        return (*members_values, *drawn)
    return (*members_values, *(f"{rng.randint(1, 28)} {rng.choice(words.MONTHS)}" for _ in range(60)))
