"""What is planned or was interrupted in a workspace, read from its plan file and the tracker.

Nothing here imports torch, so that a command that finds nothing to do ends at once.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from db import decide, queries, records
from db.schema import TRAINING
from evals.acceptance_rules import parse_rule
from pipelines.distillation.inputs import check_inputs
from pipelines.evaluation.acceptance import STANDARD_RULES, check_rules, rules_of
from pipelines.evaluation.plan import Scope, gather
from pipelines.evaluation.stored_results import IMPORTED
from pipelines.runtime.recorded_paths import read, recordable, recorded
from pipelines.runtime.registry import Registry
from pipelines.runtime.session import CONTENTS, EARLIER_CYCLES, FROM_RECIPES, Session
from pipelines.table import PlanRow
from recovery.config import (
    WRITER_FILE,
    CycleConfig,
    DistillConfig,
    FromRecipe,
    InterpolateConfig,
    MidtrainConfig,
    from_json,
)
from recovery.config.build import Config
from recovery.config.files import changed_since, check_files
from recovery.data.prompt_files import REPLAY_DATA, load_conversations
from recovery.data.rewritten_texts import has_questions, has_texts
from recovery.data.sources import given_beside
from recovery.errors import UsageError
from recovery.rewards import resolve_reward
from recovery.workspace import PLAN, Checkpoint, write_atomically

if TYPE_CHECKING:
    from pipelines.midtraining.plan import MidtrainPlan

STOPPED = ("interrupted", "failed")
GIVEN_UP = "given_up"
# Settings with which a stage reads what earlier cycles' documents left: their text, their questions, or their probes,
# which no made question may ask.
_OF_EARLIER_DOCUMENTS = {
    "midtrain": ("replay_documents", "augment"),
    "distill": ("knowledge_teacher", "document_loss"),
    "interpolate": ("questions",),
}
_CONFIGS = {"midtrain": MidtrainConfig, "distill": DistillConfig, "interpolate": InterpolateConfig}
ABANDON = "abandon"  # recorded as the one who decided, where no person and no gate did
CHECKSUM = "sha256"  # of the plan file's other values: a damaged digit would be another setting


@dataclass(frozen=True)
class CyclePlan:
    """The planned cycles: their settings, the number of the first, and the id of the last stage before them.

    Unfinished stages of earlier attempts at the same cycle numbers are ignored. ``rows`` are what the run was planned
    to take when it began. ``start`` is the checkpoint that they begin with, if not the latest: the cycles after it are
    rolled back when the plan begins.
    """

    first: int
    config: CycleConfig
    after: int = 0
    rows: tuple[PlanRow, ...] = ()
    start: str = ""

    @property
    def last(self) -> int:
        """The number of the last cycle."""
        return self.first + len(self.config.docs) - 1

    def with_verb(self, one: str, several: str) -> str:
        """Return the cycles with the verb for ``one`` or ``several``: "cycle 1 is", "cycles 1 to 2 are"."""
        several = f"cycles {self.first} to {self.last} {several}"
        return f"cycle {self.first} {one}" if self.first == self.last else several


def check_request(config: CycleConfig) -> None:
    """Check what needs no workspace. Raises UsageError if there are no documents, or if a rule is invalid."""
    if not config.docs:
        raise UsageError("no documents to train on: name a folder with --docs, once for each cycle")
    for rule in config.gate:
        if rule.strip() != STANDARD_RULES:
            parse_rule(rule)


def new_plan(session: Session, config: CycleConfig, *, abandon: bool = False, start: str = "") -> CyclePlan:
    """Return a plan for the next cycles; writes nothing. With ``abandon`` it is to replace an unfinished one. ``start``
    is that of :class:`CyclePlan`.

    What a later stage would fail for is found here. Raises UsageError if there are no documents, if another plan is
    unfinished, if a file does not exist or cannot be used, for a task that cannot be loaded, or for a rule of the gate
    that cannot be judged; CheckpointError or ModelError for a teacher that is no model.
    """
    check_request(config)
    if not abandon:
        check_no_plan(session)
    _check_documents(config)
    from_checkpoint = start_of(session, start)
    if not config.trial:
        _check_no_trial(session, from_checkpoint)
    check_tunings(config, from_checkpoint, session.next_cycle())
    for settings in (config.midtrain, config.distill, *((config.eval,) if config.evaluate else ())):
        check_files(settings)
    stages = queries.stages(session.tracker.database, session.experiment_id, limit=1)
    plan = CyclePlan(session.next_cycle(), config, stages[0].id if stages else 0, start=start)
    check_rules(session, rules_of(config.gate, session), config.eval, plan.first, plan.last)
    _check_teachers(session, plan.first, config.knowledge_teacher)  # also of a method that would not ask it
    check_recovery(session, planned_recovery(session, config, plan.first), plan.first)
    if config.midtrain.replay_data is not None:
        load_conversations(config.midtrain.replay_data, option=REPLAY_DATA)
    if config.evaluate:
        gather(session, config.eval, session.base, Scope(corpora=()))
    return dataclasses.replace(plan, config=recordable(config, session.registry))


def _check_documents(config: CycleConfig) -> None:
    """Raise UsageError if documents lack the texts that settings need, or if no teacher scores their text."""
    flag = f"--writer {WRITER_FILE}" if config.midtrain.writer == WRITER_FILE else "--document-texts"
    if config.midtrain.writer == WRITER_FILE or config.distill.document_texts:
        for docs in config.docs:
            beside = given_beside(docs, WRITER_FILE)
            if beside is None:
                raise UsageError(f"{flag}: there is no {WRITER_FILE} beside the documents of {docs}")
            if config.distill.document_texts and not has_texts(beside):
                raise UsageError(f"--document-texts: every line of {beside} has a question")
            if config.midtrain.writer_questions and not has_questions(beside):
                raise UsageError(f"--writer-questions: no line of {beside} has a question")
    if config.distill.document_teacher and config.knowledge_teacher is None:
        raise UsageError("--document-teacher: a knowledge teacher scores the text: omit --knowledge-teacher none")


def _check_no_trial(session: Session, start: Checkpoint) -> None:
    """Raise UsageError if a cycle would go on from a trial, which saw a small part of its documents."""
    below = {one.cycle for one in (start, *session.registry.ancestors(start))}
    for cycle in session.cycles().values():
        if cycle.number in below and queries.is_trial(session.tracker.database, session.experiment_id, cycle.id):
            raise UsageError(
                f"{start.name} builds on cycle {cycle.number}, {records.TRIAL}: name another --workspace, or start "
                f"before it: recover rollback {cycle.number} --why trial"
            )


def check_tunings(config: CycleConfig, start: Checkpoint, first: int) -> None:
    """Raise UsageError if a stage of cycles from ``first`` on is to train all weights of what will be an adapter.

    With --tuning auto it depends on the memory at hand, and on what it starts from.
    """
    adapter, remedy = "", "use one tuning in both stages: lora, or full without --quantize"
    if start.tuning == "lora":
        adapter = f"{start.name} is a LoRA adapter"
        remedy = (
            f"use lora, or export {start.name} with --merge and start a new workspace with it (`recover cycle --model "
            f"FOLDER --workspace OTHER`)"
        )
    undecided = not adapter and config.midtrain.tuning == "auto" and config.midtrain.quantize == "none"
    if undecided and config.distill.tuning == "lora" and config.distill.blend != 1.0:
        raise UsageError(
            f"--blend {config.distill.blend:g} moves all weights of the mid-trained model; if mid-training with "
            f"--tuning auto trains them, they are frozen below the new LoRA adapter of the recovery: use lora in both "
            f"stages, or omit --blend"
        )
    for number in range(first, first + len(config.docs)):
        for stage, settings in (("mid-training", config.midtrain), ("recovery", config.distill)):
            if adapter and settings.tuning == "full":
                raise UsageError(f"--tuning full: cycle {number}'s {stage} cannot use it, since {adapter}: {remedy}")
            if not adapter and (settings.tuning == "lora" or settings.quantize != "none"):
                adapter = f"cycle {number}'s {stage} makes a LoRA adapter"


def _full_for_recovery(config: CycleConfig) -> bool:
    """Whether --tuning auto means full in mid-training at any memory: a full recovery cannot continue an adapter."""
    auto = config.midtrain.tuning == "auto" and config.midtrain.quantize == "none"
    return auto and config.distill.tuning == "full"


def _full_for_next(config: CycleConfig) -> bool:
    """Whether --tuning auto means full in a recovery at any memory: a full mid-training cannot continue an adapter."""
    auto = config.distill.tuning == "auto" and config.distill.quantize == "none"
    return auto and config.midtrain.tuning == "full" and len(config.docs) > 1


def check_first_plan(config: CycleConfig, planned: MidtrainPlan) -> None:
    """Raise UsageError if the first mid-training trains all weights for the recovery alone, and does not fit."""
    if _full_for_recovery(config) and not planned.memory.fits:
        raise UsageError(
            f"--tuning full: the recovery cannot use it, since mid-training with --tuning auto makes a LoRA adapter "
            f"here: full fine-tuning does not fit ({planned.memory}): use lora in both stages, or full in both to try "
            f"it all the same"
        )


def start_of(session: Session, named: str = "") -> Checkpoint:
    """Return the checkpoint that new cycles start from: the ``named`` one, else ``latest`` before a replaced plan."""
    if named:
        return session.resolve(named)
    latest = session.registry.latest() or session.base
    old = _plan_to_replace(session)
    abandoned = set() if old is None else set(_abandoned_cycles(session, old))
    return next(one for one in (latest, *session.registry.ancestors(latest)) if one.cycle not in abandoned)


def check_recovery(session: Session, config: DistillConfig, number: int) -> None:
    """Check the names in the recovery after cycle ``number``'s mid-training before that is trained, which takes hours.

    Raises CheckpointError or ModelError for a teacher that is not a model, UsageError for an invalid reward, for
    prompts that the method cannot use, or if the only teacher will be the student.
    """
    student = {"latest", *to_make(number)}
    if config.needs_another and student.issuperset(config.teaching.weights):
        raise UsageError(
            f"--teacher {config.teacher}: at the recovery that is the model just mid-trained, its student, so there is "
            f"nothing to recover: name another checkpoint, such as base"
        )
    earlier = (config.knowledge_teacher, config.earlier_teacher)
    _check_teachers(session, number, *config.teaching.weights, *earlier, *config.routes.values())
    if config.rewarded:
        resolve_reward(config.reward)
    check_inputs(config, session.base.path)


def _check_teachers(session: Session, number: int, *names: str | None) -> None:
    """Check the names of teachers, except those of what cycle ``number`` is still to make; fetch those from a hub."""
    wanted = dict.fromkeys(name for name in names if name is not None and name not in to_make(number))
    session.check_names(*wanted)  # all of them, before one is fetched
    for name in wanted:
        session.locate(name)


def to_make(number: int) -> tuple[str, str]:
    """Return the names of what the mid-training of cycle ``number`` makes."""
    return "midtrained", f"cycle-{number}/midtrained"


def midtrain_config(plan: CyclePlan, number: int) -> MidtrainConfig:
    """Return the settings of the mid-training of a cycle."""
    config = plan.config
    share = config.midtrain.replay_documents
    return dataclasses.replace(
        config.midtrain,
        tuning="full" if _full_for_recovery(config) else config.midtrain.tuning,
        docs=config.docs[number - plan.first],
        student="latest",
        replay_documents=config.replay_documents if share is None else share,
    )


def planned_recovery(session: Session, config: CycleConfig, number: int) -> DistillConfig:
    """Return the settings of the recovery of a cycle that is not mid-trained yet."""
    trained = dataclasses.replace(session.base, name=f"cycle-{number}/midtrained", kind="midtrained")
    return recovery_config(config, trained, number)


def recovery_config(config: CycleConfig, trained: Checkpoint, number: int) -> DistillConfig:
    """Return the settings of a cycle's recovery after its mid-training, with the names of its teachers."""
    method = config.distill
    teacher = config.knowledge_teacher if method.scores_completions else None
    knowledge = trained.name if teacher == "midtrained" else teacher
    # The checkpoint before this mid-training has not lost earlier knowledge to it.
    earlier = trained.parent if teacher == "midtrained" and number > 1 else None
    before = config.distill.prompts_before
    if before is None and number > 1:  # all cycles have one seed: each would draw the same part of a long file
        before = (number - 1) * dataclasses.replace(method, knowledge_teacher=knowledge).behaviour_prompts_total
    return dataclasses.replace(
        config.distill,
        tuning="full" if _full_for_next(config) else config.distill.tuning,
        prompts_before=before,
        student=trained.name,
        knowledge_teacher=knowledge,
        earlier_teacher=config.distill.earlier_teacher or earlier,
        writer_questions=config.distill.writer_questions and knowledge is not None,
        document_teacher=config.distill.document_teacher and knowledge is not None,
    )


def write_plan(session: Session, plan: CyclePlan) -> None:
    """Store the plan, until its cycles are done."""
    values = {"first": plan.first, "after": plan.after, "config": recorded(plan.config, session.registry)}
    values["rows"] = [dataclasses.asdict(row) for row in plan.rows]
    text = json.dumps({**values, CHECKSUM: _checksum(values)}, indent=2)
    write_atomically(session.workspace.folder / PLAN, text + "\n")


def _checksum(values: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()


def replace_plan(session: Session, plan: CyclePlan) -> None:
    """Store a new plan. The training stages of one that it replaces are given up: they are not resumed, ever.

    Its cycles that were trained and not recovered are rolled back, first: a process that is killed in between leaves
    the old plan, which does not continue them.
    """
    old = _plan_to_replace(session)
    if old is not None:
        _roll_back(session, old)
    write_plan(session, plan)
    if old is not None:
        data = {"after": old.after, "until": plan.after}
        gone = f"{old.with_verb('was', 'were')} given up"
        session.tracker.event(session.experiment_id, gone, kind=GIVEN_UP, data=data)
        session.display.say(f"{gone}; `recover prune --yes` deletes what it saved to be resumed")


def _plan_to_replace(session: Session) -> CyclePlan | None:
    """Return the unfinished plan that a new one replaces; None if there is none, or if it cannot be read."""
    try:
        return read_plan(session)
    except UsageError:
        return None


def _abandoned_cycles(session: Session, plan: CyclePlan) -> list[int]:
    """Return the cycles of a plan that have a checkpoint, but neither a recovered one nor a decision."""
    checkpoints, cycles = session.registry.all(), session.cycles()
    kinds = {k: {one.kind for one in checkpoints if one.cycle == k} for k in range(plan.first, plan.last + 1)}
    return [k for k, made in kinds.items() if made and "recovered" not in made and cycles[k].decision is None]


def _roll_back(session: Session, plan: CyclePlan) -> None:
    """Roll back the cycles of a plan that were trained and not recovered."""
    cycles = session.cycles()
    for number in _abandoned_cycles(session, plan):
        latest = session.resolve("latest")
        inside = number in session.registry.lineage_cycles(latest)
        # Killed before its checkpoint became the latest, a cycle has nothing to undo.
        word = "rolled_back" if inside else "rejected"
        done = decide(session.tracker.database, cycles[number].id, word, who=ABANDON, why="given up")
        moved = f"; latest is {done.after} again" if done.moved else ""
        session.display.say(f"cycle {number} was given up{moved}")


def read_plan(session: Session) -> CyclePlan | None:
    """Return the unfinished plan, if there is one. Its paths in the workspace are where that is now.

    Raises UsageError for a file that is damaged; those of older releases have no checksum.
    """
    path = session.workspace.folder / PLAN
    if not path.is_file():
        return None
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data.pop(CHECKSUM, None) not in (None, _checksum(data)):
            raise ValueError("it has been changed or damaged since it was written")
        config = from_json(CycleConfig, read(data["config"], session.workspace))
        rows = tuple(PlanRow(**row) for row in data.get("rows", ()))
        return CyclePlan(int(data["first"]), config, int(data.get("after", 0)), rows)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(
            f"{path} cannot be read ({error}): `recover cycle --abandon` starts others in place of its cycles"
        ) from error
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error


def check_no_plan(session: Session) -> None:
    """Raise UsageError if cycles are unfinished: what a stage made beside them would be taken for a part of one."""
    plan = read_plan(session)
    if plan is not None:
        raise UsageError(
            f"{plan.with_verb('is', 'are')} unfinished here: `recover resume` goes on; `recover cycle --abandon` gives "
            "up what is unfinished and starts again"
        )


def drop_plan(session: Session) -> None:
    """Delete the unfinished plan; its checkpoints stay."""
    (session.workspace.folder / PLAN).unlink(missing_ok=True)


def interrupted(session: Session) -> tuple[CyclePlan | None, records.Stage | None]:
    """Return the unfinished plan and the stage that was interrupted. Raises UsageError if there is neither."""
    plan, stage = read_plan(session), resumable(session)
    if plan is None and stage is None:
        discarded = ", ".join(map(str, sorted(session.registry.discarded_cycles())))
        beside = f", except in cycles that were rejected or rolled back ({discarded})" if discarded else ""
        newest = next(iter(queries.stages(session.tracker.database, session.experiment_id, limit=1)), None)
        if newest is not None and newest.status in STOPPED and (why := why_not_resumed(session.registry, newest)):
            beside = f", except stage {newest.id}: {why}"
        raise UsageError(f"nothing in {session.workspace.folder} was interrupted{beside}: there is nothing to resume")
    return plan, stage


def begun_from_recipes(session: Session, plan: CyclePlan | None, stage: records.Stage | None) -> list[FromRecipe]:
    """Return what recipes set of an unfinished plan or an interrupted stage, as its newest stage recorded it."""
    recent = queries.stages(session.tracker.database, session.experiment_id, limit=100)
    own = [one for one in recent if (one.id > plan.after if plan else stage is not None and one.id == stage.id)]
    return next(([FromRecipe(*one) for one in s.details[FROM_RECIPES]] for s in own if FROM_RECIPES in s.details), [])


def config_of(session: Session, stopped: records.Stage | None, config: Config) -> Config:
    """Return the settings of a stopped stage, since its saved states fit no others; without one, ``config``."""
    return config if stopped is None else from_json(type(config), read(stopped.config, session.workspace))


def why_not_resumed(registry: Registry, stage: records.Stage) -> str:
    """Return why a stopped training stage cannot go on after later changes or decisions; "" if it can.

    At its end it would make a discarded cycle ``latest`` again, or replace an accepted checkpoint or a later cycle's.
    Or it would continue with other documents, questions or prompts than it began with.
    """
    if stage.kind not in TRAINING:
        return ""
    student = next((c for c in registry.all() if c.id == stage.student_id), None)
    if not registry.discarded_cycles().isdisjoint({stage.cycle, *registry.lineage_cycles(student)}):
        return "its cycle, or one that it started from, was rejected or rolled back"
    if _replaces_accepted(registry, stage):
        return "its cycle was accepted since it began, and its end would take the place of what was accepted"
    if further := _later_training(registry, stage, student):
        return f"cycle {further} goes on from the model that it started from, and its end would take the place of that"
    values = read(stage.config, registry.workspace)
    if changed := changed_since(_CONFIGS[stage.kind], values, stage.details.get(CONTENTS, {})):
        return f"the data of {changed} has changed since it began"
    begun = stage.details.get(EARLIER_CYCLES)
    if begun is None or student is None:  # of an older release
        return ""
    now = registry.earlier_cycles(student, stage.cycle)
    reads = any(stage.config.get(name) for name in _OF_EARLIER_DOCUMENTS[stage.kind])
    beside = not registry.lineage_cycles(registry.latest()).isdisjoint(set(now) - set(begun))
    if (reads and begun != now) or beside:
        return "earlier cycles were decided about since it began, so that other documents come before it"
    return ""


def _later_training(registry: Registry, stage: records.Stage, student: Checkpoint | None) -> int | None:
    """Return the newest of the later cycles in which ``latest`` was trained further from a stage's student."""
    latest = registry.latest()
    if latest is None or student is None or student.id not in {one.id for one in registry.ancestors(latest)}:
        return None
    return max((k for k in registry.lineage_cycles(latest) if k > (stage.cycle or k)), default=None)


def _replaces_accepted(registry: Registry, stage: records.Stage) -> bool:
    """Whether the cycle of a stage was accepted with a recovered checkpoint after the stage began."""
    recovered = any(one.cycle == stage.cycle and one.kind == "recovered" for one in registry.all())
    if stage.cycle_id is None or not recovered:
        return False
    newest = max(queries.decisions(registry.database, stage.cycle_id), key=lambda one: one.id, default=None)
    return newest is not None and newest.decision == "accepted" and newest.created_at > stage.started_at


def resumable(session: Session) -> records.Stage | None:
    """Return the newest stage that can be continued, if there is one."""
    return next(unfinished(session.registry), None)


def unfinished(registry: Registry) -> Iterator[records.Stage]:
    """Yield the stages that `recover resume` can still continue, newest first.

    They were interrupted or failed, and were neither replaced by a finished one nor given up with their cycles, and
    nothing keeps them from going on (:func:`why_not_resumed`). An import is not resumed: the same command starts it
    again.
    """
    database, experiment = registry.database, registry.experiment_id
    events = queries.events(database, experiment, kind=GIVEN_UP, limit=1000)
    given_up = [range(event.data["after"] + 1, event.data["until"] + 1) for event in events]
    done: set[tuple[Any, ...]] = set()
    for stage in queries.stages(database, experiment, limit=10_000):
        key = (stage.kind, stage.cycle, stage.student_id if stage.kind == "evaluate" else None)
        if IMPORTED in stage.config:
            continue
        if stage.status == "finished":
            done.add(key)
        elif stage.status not in STOPPED or key in done:
            continue
        else:
            abandoned = stage.kind in TRAINING and any(stage.id in ids for ids in given_up)
            if not abandoned and not why_not_resumed(registry, stage):
                yield stage
