"""The demo: a cycle on documents alone for each corpus of a scenario.

A :class:`Scenario` is the miniature in its fictional world, or a real model on real documents
(pipelines.experiments.example).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from db import queries
from pipelines.cycle import run_plan, start_cycles
from pipelines.cycle_plan import read_plan
from pipelines.experiments.results_table import Run
from pipelines.runtime.progress import Display
from pipelines.runtime.session import Session
from recovery.config import CycleConfig, Recipe, build_cycle
from recovery.errors import UsageError
from recovery.miniature.corpora import write_corpora
from recovery.workspace import MINIATURE, Workspace

CYCLES = 3


@dataclass(frozen=True)
class Scenario:
    """A clean model and its corpora, one per cycle.

    ``write`` (folder, seed) writes the corpora and returns their folders; ``about`` describes them; ``recipe`` holds
    settings that override the model's own. ``short``: of each corpus only a part; ``cut``: into how many pieces each
    was cut. Runs that differ in these are never mixed. ``alone``: the stages are those of `recover midtrain` and
    `recover distill`, not those of `recover cycle`.
    """

    model: str
    cycles: int
    write: Callable[[Path, int], list[Path]]
    about: str
    recipe: Recipe = field(default_factory=Recipe)
    short: bool = False
    cut: int = 1
    alone: bool = False

    @property
    def suffix(self) -> str:
        """The end of the names of a run's folders and files; empty for whole corpora."""
        if self.short:
            return "-short"
        return f"-cut-{self.cut}" if self.cut > 1 else ""

    @property
    def part(self) -> str:
        """The name of the corpora's parent folder."""
        return f"corpora{self.suffix}"


MINIATURE_SCENARIO = Scenario(
    MINIATURE,
    CYCLES,
    lambda folder, seed: write_corpora(folder, CYCLES, seed),
    "of a fictional world as Markdown",
    alone=True,
)
# The same in minutes, for who sees it for the first time: a falling rate of mid-training, which loses less, so that
# fewer steps of recovery restore it, and of each suite fewer items. What is recorded over seeds has the full sizes.
SHORT_SCENARIO = replace(
    MINIATURE_SCENARIO,
    recipe=Recipe(
        "recover demo",
        {
            "midtrain": {"schedule": "cosine"},
            "distill": {"steps": 75},
            "eval": {"limit": 500, "earlier_limit": 300},
        },
    ),
)


@dataclass(frozen=True)
class DemoVariant:
    """A variant of the demo: its name, its folder, and its flags of ``recover cycle``."""

    name: str
    folder: str
    flags: dict[str, Any]


TWO_TEACHERS = DemoVariant("documents alone, two teachers", "two-teachers", {})
REPLAY = DemoVariant("with 30% chat replay", "replay", {"replay": 0.3})
ONE_TEACHER = DemoVariant("documents alone, one teacher", "one-teacher", {"knowledge_teacher": "none"})


def demo(session: Session, *, seed: int, flags: dict[str, Any], scenario: Scenario = MINIATURE_SCENARIO) -> None:
    """Run or resume a scenario's cycles in an open workspace; finished ones are not repeated.

    ``flags`` are those of ``recover cycle``. Raises UsageError if the workspace was used for something else.
    """
    corpora = _home(session, scenario)
    _check_same(session, seed, corpora)
    plan = read_plan(session)
    if plan is not None:
        run_plan(session, plan)
        return
    if finished(session, scenario):
        session.display.say("these cycles are done already; these are their results")
        return
    if session.next_cycle() > 1:
        raise UsageError(
            f"{session.workspace.folder} already holds cycles of another kind: name another --workspace for the demo"
        )
    folders = scenario.write(corpora, seed)[: scenario.cycles]
    word = "corpus" if len(folders) == 1 else "corpora"
    session.display.say(f"{len(folders)} {word} {scenario.about} in {corpora}")
    start_cycles(session, demo_config(session, folders, seed, flags, scenario))


def demo_config(
    session: Session, folders: list[Path], seed: int, flags: dict[str, Any], scenario: Scenario = MINIATURE_SCENARIO
) -> CycleConfig:
    """Return the demo's settings: ``flags``, the scenario's recipe and the model's, and the defaults.

    The miniature's demo shows a loss and how it is given back: its stages are those of `recover midtrain` and `recover
    distill` on documents alone, not the gentler ones of `recover cycle`, and all cycles have the same ordinary prompts.
    """
    values = flags | {"docs": tuple(folders), "seed": seed}
    if scenario.alone:
        values = {"replay": 0.0, "prompts_before": 0} | values
    return build_cycle(values, scenario.recipe, session.recipe, alone=scenario.alone)


def finished(session: Session, scenario: Scenario = MINIATURE_SCENARIO) -> bool:
    """Whether this workspace holds the scenario's finished cycles."""
    made = {c.name for c in session.registry.all()}
    folders = [Path(cycle.documents).parent for cycle in session.cycles().values()]
    home = _home(session, scenario).parts[-2:]  # the workspace may have been elsewhere
    return f"cycle-{scenario.cycles}/recovered" in made and all(folder.parts[-2:] == home for folder in folders)


def _home(session: Session, scenario: Scenario) -> Path:
    """Return the folder of the scenario's corpora."""
    return (session.workspace.folder / "demo" / scenario.part).resolve()


def _check_same(session: Session, seed: int, home: Path) -> None:
    """Raise UsageError if the workspace has finished or unfinished cycles of another seed or another scenario."""
    plan, where = read_plan(session), session.workspace.folder
    stages = queries.stages(session.tracker.database, session.experiment_id, kind="midtrain", limit=1000)
    seeds = {int(stage.config["seed"]) for stage in stages} | ({plan.config.midtrain.seed} if plan else set())
    if others := sorted(seeds - {seed}):
        raise UsageError(f"{where} holds a run with seed {others[0]}: name another --workspace for seed {seed}")
    if plan is not None and any(home not in Path(docs).resolve().parents for docs in plan.config.docs):
        raise UsageError(
            f"{where} holds unfinished cycles of another kind (`recover resume` continues them): name another "
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
    """Run one variant with one seed in its own workspace below ``place``; return its status and its duration."""
    line = f"demo/{variant.folder}/seed-{seed}"
    home = Workspace(place.folder / line, place.tracker, place.report_to)
    display.say(f"\n{variant.name}, seed {seed}: {home.folder}")
    shared = line if place.tracker is not None else None
    with Session.open(
        home, model=scenario.model, display=display, experiment=shared, purpose="recover demo"
    ) as session:
        demo(session, seed=seed, flags=flags | variant.flags, scenario=scenario)
        status = queries.status_json(session.tracker.database, session.experiment_id)
        stages = queries.stages(session.tracker.database, session.experiment_id, limit=1000)
        return Run(seed, status, sum(stage.wall_seconds for stage in stages))
