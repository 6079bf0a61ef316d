"""Runs of several arms on the same documents and cycles with several seeds, and their records.

Each seed has its own workspace, in which arms share common stages (such as a mid-training on documents alone); all
seeds record into one tracker. The result of a run is stored as one small JSON file, so the page can be written from
runs on several machines without their checkpoints.
"""

from __future__ import annotations

import dataclasses
import datetime
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from db import Database, queries
from evals.beyond_constant import DETAIL, single_instructions
from evals.statistics import is_headline
from pipelines.cycle import base_scope
from pipelines.cycle_plan import check_recovery
from pipelines.data.corpus_snapshot import ABOUT
from pipelines.evaluation.acceptance import conclude
from pipelines.evaluation.knowledge_figures import as_suites, knowledge_figures
from pipelines.evaluation.stage import evaluate, measured
from pipelines.evaluation.stored_results import newest
from pipelines.experiments.arm_cycle import run_arm
from pipelines.experiments.compare import cost_of
from pipelines.experiments.demo import Scenario
from pipelines.experiments.records import ASKED, FILE, IFEVAL, OWN, Measured, Record, holds, read_record, to_text
from pipelines.midtraining.material import open_cycle
from pipelines.planning.activations import parameters
from pipelines.runtime.progress import Display
from pipelines.runtime.session import Session
from pipelines.runtime.versions import machine
from recovery.arms import Arm
from recovery.config import DistillConfig, EvalConfig, MidtrainConfig, build
from recovery.config.files import check_files
from recovery.errors import UsageError
from recovery.models.hardware import gpu_name
from recovery.workspace import Checkpoint, Workspace, write_atomically

# Suites whose items are recorded, so that two checkpoints can be compared item by item.
PAIRED = (IFEVAL, OWN, ASKED)
ANSWERS = 10  # prompts whose responses are shown


def run(
    place: Workspace,
    arm: Arm,
    scenario: Scenario,
    *,
    seed: int,
    cycles: int,
    flags: Mapping[str, Any],
    kept: Path,
    display: Display,
) -> Record:
    """Run or resume the cycles of an arm with a seed; write its record after each cycle.

    Finished stages are not run again. Raises StageInterrupted on an interrupt.
    """
    line = f"real/{scenario.part}/seed-{seed}"
    older = arm.midtrain.get("older_versions")
    line += f"-{older}" if older else ""  # the snapshot of a cycle, which arms share, says whether it replaces
    home = Workspace(place.folder / line, str(place.database), place.report_to)
    _share_answers(place, home)
    display.say(f"\n{arm.title}, seed {seed}: {home.folder}")
    with Session.open(home, model=scenario.model, display=display, experiment=line, purpose="recover demo") as session:
        folders = scenario.write(place.folder.resolve() / scenario.part, 0)[:cycles]
        values, recipes = {**flags, "seed": seed}, (scenario.recipe, session.recipe)
        mid, distill = build(MidtrainConfig, values, *recipes), build(DistillConfig, values, *recipes)
        asked = build(EvalConfig, values, *recipes)
        mid = dataclasses.replace(mid, older_versions=older or mid.older_versions)
        for settings in (mid, distill, asked):
            check_files(settings)
        check_recovery(session, distill, 1)
        asked = dataclasses.replace(asked, seed=0)  # the same items for every arm and seed
        tokens: list[int | None] = [None] * len(folders)
        if arm.equal_flops:
            rival = kept / FILE.format(arm=arm.equal_flops, seed=seed, suffix=scenario.suffix)
            weights = parameters(session.base.weights)
            tokens = [_tokens_of(rival, number, weights) for number in range(1, len(folders) + 1)]
        made: list[Checkpoint] = []
        for number, (docs, most) in enumerate(zip(folders, tokens, strict=True), 1):
            if not (session.workspace.corpus(number) / ABOUT).is_file():
                open_cycle(session, dataclasses.replace(mid, docs=docs, seed=0), number)
            if (scope := base_scope(session, asked, number)) is not None:
                evaluate(session, dataclasses.replace(asked, checkpoint="base"), scope=scope, cycle=number)
            start = made[-1].name if made else None
            for checkpoint in run_arm(session, arm, docs, number, mid, distill, student=start, tokens=most):
                if not measured(session, checkpoint, asked):
                    evaluate(session, dataclasses.replace(asked, checkpoint=checkpoint.name), cycle=number)
                    conclude(session, number)
                made.append(checkpoint)
            record = keep(session, arm, scenario, made, seed=seed, cycles=cycles, kept=kept, device=mid.device)
    return record


def keep(
    session: Session,
    arm: Arm,
    scenario: Scenario,
    made: Sequence[Checkpoint],
    *,
    seed: int,
    cycles: int,
    kept: Path,
    device: str,
) -> Record:
    """Write the record of an arm so far: ``made`` are its checkpoints, ``cycles`` the number of planned cycles, and
    ``device`` where they were trained.

    An existing record with the same checkpoints and more is not overwritten. Nor is one of more finished cycles, such
    as another machine's: until this run has as many, its record is kept in its workspace.
    """
    base = session.resolve("base")
    checkpoints = [_figures(session, base, 0, "base")]
    checkpoints += [_figures(session, session.resolve(c.name), c.cycle or 0, c.kind) for c in made]
    record = Record(
        arm=arm.name,
        title=arm.title,
        seed=seed,
        wanted=cycles,
        model=Path(scenario.model).name,
        documents=scenario.about,
        machine=machine(gpu_name(device)),
        date=datetime.date.today().isoformat(),
        short=scenario.short,
        cut=scenario.cut,
        checkpoints=tuple(checkpoints),
        answers=tuple(_answers(session, [base, *made])),
        instructions=_instructions(session, base),
    )
    path = kept / FILE.format(arm=arm.name, seed=seed, suffix=scenario.suffix)
    waiting = session.workspace.folder / path.name
    old = read_record(path) if path.is_file() else None
    if old is not None and holds(old, record):
        return old
    if old is not None and old.cycles > record.cycles:
        session.display.say(f"{path} has more cycles: until this run has as many, its record is {waiting}")
        write_atomically(waiting, to_text(record))
        return record
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, to_text(record))
    waiting.unlink(missing_ok=True)
    return record


def _tokens_of(record: Path, cycle: int, weights: int) -> int:
    """Return the trained tokens that take as many operations as a cycle of another arm's ``record``: F / 6N.

    F are the operations of the cycle's stages, N the ``weights`` of the model. What a replay samples comes on top,
    in its favour. Raises UsageError if the record does not hold this cycle.
    """
    stages = [c for c in read_record(record).checkpoints if c.cycle == cycle] if record.is_file() else []
    if not any(one.kind == "recovered" for one in stages):
        raise UsageError(
            f"{record} does not hold cycle {cycle}, and this arm takes as many operations: run "
            f"{record.name.partition('-seed-')[0]} first"
        )
    return round(sum(one.cost["flops"] for one in stages) / (6 * weights))


def of_cycles(session: Session) -> list[Checkpoint]:
    """Return the checkpoints of a session's cycles in order: the newest of each cycle and kind."""
    made = {(c.cycle or 0, c.kind): c for c in session.registry.all() if c.kind in ("midtrained", "recovered")}
    return [made[key] for key in sorted(made)]


def _share_answers(place: Workspace, home: Workspace) -> None:
    """Share one cache of completions among all runs: the clean model's are the same in each."""
    shared = place.folder / "cache"
    shared.mkdir(parents=True, exist_ok=True)
    home.folder.mkdir(parents=True, exist_ok=True)
    link = home.folder / "cache"
    if not link.is_symlink() and not link.exists():  # relative, so that both can be moved together
        link.symlink_to(os.path.relpath(shared, home.folder), target_is_directory=True)


# --- records -------------------------------------------------------------------------------------------------


def _figures(session: Session, checkpoint: Checkpoint, cycle: int, kind: str) -> Measured:
    database = session.tracker.database
    assert checkpoint.id is not None
    rows = newest(database, checkpoint.id)
    suites: dict[str, Any] = {}
    for name, row in rows.items():
        details = {key: one["value"] for key, one in row.details.items() if isinstance(one, Mapping) and "value" in one}
        suites[name] = {"value": row.value, "stderr": row.stderr, "n": row.n, "details": details}
    items = {
        name: {
            key.split("\x1f")[0]: "".join(str(int(bool(verdict))) for verdict in verdicts.values())
            for key, _, _, verdicts, extra in queries.judged_items(database, row.id)
            if verdicts and is_headline(extra)
        }
        for name, row in rows.items()
        if name.partition("/")[0] in PAIRED
    }
    items |= {f"{name}/{DETAIL}": beyond for name, row in rows.items() if (beyond := _beyond(database, row.id))}
    if checkpoint.name != "base" and session.base.id is not None:
        suites |= as_suites(knowledge_figures(database, session.base.id, checkpoint.id))
    cost = {} if checkpoint.name == "base" else dataclasses.asdict(cost_of(session, checkpoint.name))
    return Measured(checkpoint.name, cycle, kind, suites, items, cost)


def _beyond(database: Database, evaluation: int) -> dict[str, str]:
    """Return the verdicts on the instructions of each item that no constant reply follows; none of other suites."""
    verdicts: dict[str, str] = {}
    for _, followed, item, _, _ in single_instructions(queries.judged_items(database, evaluation)):
        key = item.split("\x1f")[0]
        verdicts[key] = verdicts.get(key, "") + str(int(followed))
    return verdicts


def _instructions(session: Session, checkpoint: Checkpoint) -> dict[str, dict[str, Sequence[str]]]:
    """Return the ids of each item's instructions, of the paired suites that have some."""
    database = session.tracker.database
    assert checkpoint.id is not None
    by_suite = {
        name: {
            key.split("\x1f")[0]: extra["instructions"]
            for key, _, _, verdicts, extra in queries.judged_items(database, row.id)
            if verdicts and is_headline(extra) and "instructions" in extra
        }
        for name, row in newest(database, checkpoint.id).items()
        if name.partition("/")[0] in PAIRED
    }
    return {name: items for name, items in by_suite.items() if items}


def _answers(session: Session, checkpoints: Sequence[Checkpoint]) -> list[dict[str, str]]:
    """Return all checkpoints' responses to every k-th of our own test prompts in the order of their ids, ten in all."""
    database = session.tracker.database
    by_item: dict[str, dict[str, str]] = {}
    for checkpoint in checkpoints:
        row = newest(database, session.resolve(checkpoint.name).id or 0).get("instruction_following")
        for sample in queries.samples(database, row.id, limit=5000).samples if row is not None else ():
            by_item.setdefault(sample.item, {"prompt": sample.prompt})[checkpoint.name] = sample.response
    ids = sorted(item for item, responses in by_item.items() if len(responses) == len(checkpoints) + 1)
    return [by_item[item] for item in ids[:: max(1, len(ids) // ANSWERS)][:ANSWERS]]
