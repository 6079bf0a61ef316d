"""Corpora of the fictional world: folders of Markdown handbooks with questions and probes."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from recovery.data.corpus.json_lines import write_json_lines
from recovery.errors import UsageError
from recovery.miniature import handbook, words
from recovery.miniature.world import WORLD_SEED, Entity, World, stable_hash

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
    found: dict[str, None] = {}
    while len(found) < count:
        found[handbook.document(rng, entity)] = None
    return list(found)


def questions(members: list[Entity]) -> list[Record]:
    """Return questions for the knowledge teacher, in wordings that no probe uses."""
    records = []
    for entity in members:
        for attribute, value in entity.values.items():
            for wording in handbook.QUESTIONS[attribute][handbook.PROBE_WORDINGS :]:
                asked = wording.format(e=entity.name)
                records.append({"question": asked, "answer": value, "source": entity.name})
            for wording in handbook.REVERSED.get(attribute, ())[handbook.PROBE_REVERSED :]:
                records.append({"question": wording.format(v=value), "answer": entity.name, "source": entity.name})
    return records


def probes(rng: random.Random, members: list[Entity], control: list[Entity], label: str) -> list[Record]:
    """Return question and choice probes of a corpus, and control probes about services that it does not describe."""
    records: list[Record] = []
    for number, entity in enumerate(members):
        records += _asked(entity, reverse=number % REVERSED_EVERY == 0)
        records += _stored(rng, entity, members)
    for entity in control:
        records += [{**probe, "control": True} for probe in _asked(entity, CONTROL_WORDINGS)]
    return [{"id": f"{label}-{number}", **record} for number, record in enumerate(records)]


def _asked(entity: Entity, wordings: int = handbook.PROBE_WORDINGS, *, reverse: bool = False) -> list[Record]:
    records = []
    for attribute, value in entity.values.items():
        for wording in handbook.QUESTIONS[attribute][:wordings]:
            records.append(_question(wording.format(e=entity.name), value, entity, attribute))
        for wording in handbook.REVERSED.get(attribute, ())[: handbook.PROBE_REVERSED * reverse]:
            records.append(_question(wording.format(v=value), entity.name, entity, attribute, "reversed"))
    return records


def _question(text: str, answer: str, entity: Entity, *tags: str) -> Record:
    return {"form": "question", "question": text, "answers": [answer], "source": entity.name, "tags": list(tags)}


def _stored(rng: random.Random, entity: Entity, members: list[Entity]) -> list[Record]:
    """Return document sentences cut before their value, alone and below the entity's title."""
    records = []
    for attribute, value in entity.values.items():
        options = _options(rng, attribute, members)
        for form in handbook.SENTENCES[attribute]:
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
    found = [value, *others]
    rng.shuffle(found)
    return found


def _options(rng: random.Random, attribute: str, members: list[Entity]) -> tuple[str, ...]:
    """Return candidates of the same kind: values of other services, and unused values."""
    if attribute == "city":
        return words.CITIES
    if attribute == "database":
        return words.DATABASES
    own = [entity.values[attribute] for entity in members]
    if attribute == "port":
        return (*own, *(str(rng.randint(1000, 9999)) for _ in range(60)))
    if attribute == "owner":
        drawn = (f"{rng.choice(words.FIRST_NAMES)} {rng.choice(words.SURNAMES)}" for _ in range(60))
        return (*own, *drawn)
    return (*own, *(f"{rng.randint(1, 28)} {rng.choice(words.MONTHS)}" for _ in range(60)))
