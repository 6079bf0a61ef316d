"""Two releases of one handbook of the fictional world: in the second some values of the first have changed."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

from recovery.data.corpus.json_lines import write_json_lines
from recovery.miniature import mixture, words
from recovery.miniature.corpora import Record, different_documents, probes, questions
from recovery.miniature.world import WORLD_SEED, Entity, World, stable_hash


def write_releases(folder: Path, seed: int = 0, *, entities: int = 16, documents: int = 12) -> tuple[Path, Path]:
    """Write the releases v1 and v2 to ``folder`` and return their folders.

    Each has a page per service, of ``documents`` texts. In v2 every other service has another port and another
    database; all else is word for word as before. Probes and questions name the page.
    """
    world, taken = World(WORLD_SEED), set[str]()
    world.studied(mixture.STUDIED, taken)
    members = world.entities(f"releases-{seed}", entities, taken)
    later = [_changed(entity, taken) if number % 2 == 0 else entity for number, entity in enumerate(members)]
    return _write(folder / "v1", seed, members, documents), _write(folder / "v2", seed, later, documents)


def _changed(entity: Entity, taken: set[str]) -> Entity:
    """Return a service with another port and another database."""
    rng = random.Random(stable_hash("release", entity.name))
    port = next(one for one in iter(lambda: str(rng.randint(1000, 9999)), "") if one not in taken)
    taken.add(port)
    database = rng.choice([one for one in words.DATABASES if one != entity.values["database"]])
    return replace(entity, values={**entity.values, "port": port, "database": database})


def _write(folder: Path, seed: int, members: list[Entity], documents: int) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for entity in members:
        rng = random.Random(stable_hash(seed, "release", entity.name))  # the same texts in both
        text = "\n\n".join(_without_title(one) for one in different_documents(rng, entity, documents))
        (folder / _page(entity.name)).write_text(f"# {entity.name}\n\n{text}\n", encoding="utf-8")
    asked = [_of_page(record) for record in questions(members)]
    write_json_lines(folder / "questions.jsonl", asked)
    made = probes(random.Random(stable_hash(seed, "release")), members, [], folder.name)
    write_json_lines(folder / "probes.jsonl", [{**one, "source": _page(one["source"])} for one in made])
    return folder


def _of_page(question: Record) -> Record:
    given = {name: value for name, value in question.items() if name != "source"}
    return {**given, "tags": [f"document:{_page(question['source'])}"]}


def _page(name: str) -> str:
    return f"{name.lower()}.md"


def _without_title(text: str) -> str:
    return text.partition("\n\n")[2] if text.startswith("#") else text
