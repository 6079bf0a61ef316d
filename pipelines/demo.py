"""The demo: three corpora as real files, a cycle for each on documents alone, and what came of it.

It runs any :class:`Scenario`: the miniature in its made-up world, or a real model on real documents (pipelines.real).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from db import queries
from pipelines.cycle import read_plan, run_plan, start_cycles
from pipelines.progress import Display
from pipelines.results import Run
from pipelines.session import Session
from recovery.config import CycleConfig, Recipe, build_cycle
from recovery.errors import UsageError
from recovery.miniature import write_corpora
from recovery.workspace import Workspace

CYCLES = 3
MINIATURE = "miniature"


@dataclass(frozen=True)
class Scenario:
    """A clean model and the corpora that it learns, one a cycle.

    ``write`` (folder, seed) writes the corpora and returns their folders; ``about`` describes them; ``part`` names the
    folder that they lie in; ``recipe`` holds settings that win over the model's own.
    """

    model: str
    cycles: int
    write: Callable[[Path, int], list[Path]]
    about: str
    part: str = "corpora"
    recipe: Recipe = field(default_factory=Recipe)


MINIATURE_SCENARIO = Scenario(
    MINIATURE,
    CYCLES,
    lambda folder, seed: write_corpora(folder, CYCLES, seed),
    "of a fictional world as Markdown",
)


@dataclass(frozen=True)
class DemoVariant:
    """A way of running the demo: what it is called, and the flags of ``recover cycle`` that make it."""

    name: str
    folder: str
    flags: dict[str, Any]


TWO_TEACHERS = DemoVariant("documents alone, two teachers", "two-teachers", {})
REPLAY = DemoVariant("with 30% chat replay", "replay", {"replay": 0.3})
ONE_TEACHER = DemoVariant("documents alone, one teacher", "one-teacher", {"knowledge_teacher": "none"})


def demo(session: Session, *, seed: int, flags: dict[str, Any], scenario: Scenario = MINIATURE_SCENARIO) -> None:
    """Run a scenario's cycles in an open workspace, or go on with them; done is done.

    ``flags`` are those of ``recover cycle``. Raises UsageError where the workspace was used for something else.
    """
    corpora = _home(session, scenario)
    _check_same(session, seed, corpora)
    plan = read_plan(session)
    if plan is not None:
        run_plan(session, plan)
        return
    if finished(session, scenario):
        session.display.say("these cycles are done already; here is what came of them")
        return
    if session.next_cycle() > 1:
        raise UsageError(
            f"{session.workspace.folder} already holds cycles of another kind: name another --workspace for the demo"
        )
    folders = scenario.write(corpora, seed)
    word = "corpus" if len(folders) == 1 else "corpora"
    session.display.say(f"{len(folders)} {word} {scenario.about} in {corpora}: have a look at them")
    start_cycles(session, demo_config(session, folders, seed, flags, scenario))


def demo_config(
    session: Session,
    folders: list[Path],
    seed: int,
    flags: dict[str, Any],
    scenario: Scenario = MINIATURE_SCENARIO,
) -> CycleConfig:
    """The demo's settings: what the model and the scenario recommend, documents alone, and ``flags`` over them."""
    given = {"replay": 0.0} | flags | {"docs": tuple(folders), "seed": seed}
    return build_cycle(given, scenario.recipe, session.recipe)


def finished(session: Session, scenario: Scenario = MINIATURE_SCENARIO) -> bool:
    """Whether this workspace holds the scenario's finished cycles."""
    made = {c.name for c in session.registry.all()}
    documents = [cycle.documents for cycle in session.cycles().values()]
    home = _home(session, scenario)
    return f"cycle-{scenario.cycles}/recovered" in made and all(home in Path(text).parents for text in documents)


def _home(session: Session, scenario: Scenario) -> Path:
    """Where the scenario's corpora lie."""
    return (session.workspace.folder / "demo" / scenario.part).resolve()


def _check_same(session: Session, seed: int, home: Path) -> None:
    """Raise UsageError where the workspace holds, or has begun, cycles of another seed or of another scenario."""
    plan, where = read_plan(session), session.workspace.folder
    stages = queries.stages(session.tracker.database, session.experiment_id, kind="midtrain", limit=1000)
    seeds = {int(stage.config["seed"]) for stage in stages} | ({plan.config.midtrain.seed} if plan else set())
    if others := sorted(seeds - {seed}):
        raise UsageError(f"{where} holds a run with seed {others[0]}: name another --workspace for seed {seed}")
    if plan is not None and any(home not in Path(docs).resolve().parents for docs in plan.config.docs):
        raise UsageError(
            f"{where} holds unfinished cycles of another kind (`recover resume` goes on with them): name another "
            f"--workspace for the demo"
        )


def run_variant(
    place: Workspace,
    variant: DemoVariant,
    *,
    seed: int,
    flags: dict[str, Any],
    display: Display,
    scenario: Scenario = MINIATURE_SCENARIO,
) -> Run:
    """One variant with one seed in a workspace of its own below ``place``."""
    line = f"demo/{variant.folder}/seed-{seed}"
    home = Workspace(place.folder / line, place.tracker)
    display.say(f"\n{variant.name}, seed {seed}: {home.folder}")
    shared = line if place.tracker is not None else None
    with Session.open(
        home, model=scenario.model, display=display, experiment=shared, purpose="recover demo"
    ) as session:
        demo(session, seed=seed, flags=flags | variant.flags, scenario=scenario)
        return run_of(session, seed)


def run_of(session: Session, seed: int) -> Run:
    """What a finished run is judged by."""
    status = queries.status_json(session.tracker.database, session.experiment_id)
    stages = queries.stages(session.tracker.database, session.experiment_id, limit=1000)
    return Run(seed, status, sum(stage.wall_seconds for stage in stages))
