"""Documents that come again in a newer version: what is answered about facts that changed, and about the others."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from evals import knowledge
from examples.studies.study import INSTRUCTIONS, Figures, Part, Runner, Study, figure, minus, over
from pipelines.data.corpus_snapshot import load_snapshots
from pipelines.data.revisions import up_to_date
from recovery.data.corpus.json_lines import write_json_lines
from recovery.miniature import words
from recovery.miniature.corpora import (
    WORLD_SEED,
    Entity,
    Record,
    World,
    different_documents,
    probes,
    questions,
    stable_hash,
)
from recovery.types import Probe

STEPS = 50
# The two arms are cycles of their own, so that each has its own snapshot of the second release.
ARMS = {"replace": 2, "keep": 3}


def run(runner: Runner) -> Figures:
    """Run one seed: a cycle on the first release, then one on the second, which replaces it or stands beside it."""
    first, second = write_releases(runner.folder / "releases", runner.seed)
    steps = runner.scale(STEPS, 5)
    runner.midtrained("first", first)
    runner.trained("first-recovered", "first", "opd", knowledge_teacher="first", steps=steps)
    given: dict[str, Any] = {"student": "first-recovered", "replay_documents": 0.5}
    for arm, cycle in ARMS.items():
        runner.midtrained(arm, second, cycle=cycle, older_versions=arm, **given)
        runner.trained(f"{arm}-recovered", arm, "opd", knowledge_teacher=arm, cycle=cycle, steps=steps)
    asked, base = _questions(runner), runner.value("base", INSTRUCTIONS)
    figures = {}
    for name in ("first-recovered", *ARMS, *(f"{arm}-recovered" for arm in ARMS)):
        loaded, engine = runner.loaded(name)
        for kind, about in asked.items():
            result = knowledge.ask(loaded.chat, engine, about, suite=kind, seed=runner.seed)
            figures[f"{kind}, {name}"] = result.details["contains"].value
        figures[f"relative to base, {name}"] = runner.value(name, INSTRUCTIONS) / base
    return figures


def _questions(runner: Runner) -> dict[str, Sequence[Probe]]:
    """Return the questions about changed facts with their old and their new answers, and those about the others."""
    corpora = load_snapshots(runner.session.workspace, (1, ARMS["replace"]))
    left = up_to_date(corpora, corpora)[1]
    old = [probe for probe in left.outdated if probe.form == "question"]
    changed = {probe.question for probe in old}
    new = [p for p in corpora[ARMS["replace"]].probes if p.form == "question" and p.question in changed]
    return {"old": old, "new": new, "unchanged": [p for p in left.probes if p.form == "question"]}


# --- the documents -----------------------------------------------------------------------------------------


def write_releases(folder: Path, seed: int = 0, *, entities: int = 16, documents: int = 12) -> tuple[Path, Path]:
    """Write the releases v1 and v2 to ``folder`` and return their folders.

    Each has a page per service, of ``documents`` texts. In v2 every other service has another port and another
    database; all else is word for word as before. Probes and questions name the page.
    """
    world, taken = World(WORLD_SEED), set[str]()
    world.studied(taken)
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


RELEASES = Study(
    name="releases",
    claim="after a cycle on a newer version of the documents, questions about what changed are answered by the newer "
    "version, and what did not change is kept",
    source="what users of a model expect; no published figure",
    setting="16 services, a page of 12 texts each; in the second release every other one has another port and another "
    "database; two cycles of mid-training (in the second half of the tokens from earlier documents) and 50 steps of "
    "OPD with two teachers; the second replaces older versions, or keeps them beside the newer ones",
    parts=(
        Part("outdated questions are answered as before", figure("old, replace-recovered"), 0.05, above=False,
             given=Part("that the first cycle taught the old answers", figure("old, first-recovered"), 0.8)),
        Part("they are answered by the newer version: share of what the first cycle taught",
             over("new, replace-recovered", "old, first-recovered"), 0.95),
        Part("what did not change is kept: share of the answers after the first cycle",
             over("unchanged, replace-recovered", "unchanged, first-recovered"), 0.95),
        Part("instruction following, relative to base", figure("relative to base, replace-recovered"), 0.97),
        Part("if older versions are kept, more is answered as before: difference",
             minus("old, keep-recovered", "old, replace-recovered"), 0.0),
    ),
    run=run,
)  # fmt: skip
