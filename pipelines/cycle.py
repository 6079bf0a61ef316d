"""Whole cycles: mid-train, evaluate, distil, evaluate, for each folder of documents; resumable at any point.

The workspace's plan file holds the settings; progress is read from the tracker, so a cycle that was stopped, killed or
failed resumes where it ended.
"""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Sequence

from db import DatabaseError, Decided, queries, records
from db.records import TRIAL
from evals.acceptance import Decision
from evals.acceptance_rules import PREFERENCE, Rule
from evals.suites import corpus_limits
from pipelines.certificate import certify
from pipelines.cycle_estimate import estimate
from pipelines.cycle_plan import (
    STOPPED,
    CyclePlan,
    config_of,
    drop_plan,
    interrupted,
    midtrain_config,
    new_plan,
    recovery_config,
    replace_plan,
    why_not_resumed,
)
from pipelines.data.corpus_snapshot import ABOUT, load_snapshot
from pipelines.distillation.resolve import require_texts
from pipelines.distillation.stage import distill
from pipelines.evaluation.acceptance import LEFT_TO_A_PERSON, conclude, enter, judge_cycle, references, rules_of
from pipelines.evaluation.plan import EVERYTHING, Scope
from pipelines.evaluation.stage import corpus_measured, evaluate, measured, newest_measured
from pipelines.evaluation.stored_results import IMPORTED, asked_prompts
from pipelines.interpolate import interpolate
from pipelines.midtraining.material import check_questions, open_cycle
from pipelines.midtraining.stage import midtrain
from pipelines.planning.memory import memory_counted
from pipelines.prune import plan_prune, prune
from pipelines.reports.cycle_report import write_report
from pipelines.runtime.recorded_paths import read
from pipelines.runtime.session import Session
from pipelines.runtime.teacher_server import NOT_BEGUN, reach_teacher
from pipelines.table import compared
from pipelines.withdrawal import begin, begun
from recovery.config import CycleConfig, DistillConfig, EvalConfig, InterpolateConfig, MidtrainConfig, from_json
from recovery.errors import UsageError
from recovery.models import quantization
from recovery.workspace import Checkpoint


def start_cycles(session: Session, config: CycleConfig) -> None:
    """Make a plan and run it; see :func:`~pipelines.cycle_plan.new_plan`."""
    start_plan(session, new_plan(session, config))


def start_plan(session: Session, plan: CyclePlan) -> None:
    """Store a new plan, instead of an unfinished one, and run it.

    Before anything is stored, raises CorpusError or UsageError for documents of any of its cycles that cannot be used,
    UsageError or ModelError for prompts and teachers that do not fit the tokenizer and the template of the student of
    its recovery, for a tuning of one stage that another cannot continue, or for a missing package of the recovery, and
    ServerError for a teacher's server that does not respond: they are needed only after hours.
    """
    with session.display.phase("reading the documents and planning"):
        planned = estimate(session, plan)
    for one in planned.midtrain:
        check_questions(session, plan.config.trial, one.few_questions)
    session.display.say(planned.table())
    if plan.config.distill.quantize != "none":
        quantization.require()
    reach_teacher(plan.config.distill, NOT_BEGUN)
    with memory_counted(planned.rows, plan.config.midtrain.device):
        for number in range(plan.first, plan.last + 1):
            shutil.rmtree(session.workspace.corpus(number), ignore_errors=True)  # left by a cycle that never trained
        begin(session, plan)
        plan = dataclasses.replace(plan, rows=planned.rows)
        replace_plan(session, plan)
        run_plan(session, plan)


def run_plan(session: Session, plan: CyclePlan) -> None:
    """Run the remaining cycles of a plan. Raise UsageError if another run leaves too little memory for them."""
    with memory_counted(plan.rows, plan.config.midtrain.device):
        for number in range(plan.first, plan.last + 1):
            one_cycle(session, plan, number)
            if plan.config.prune:
                _prune(session, plan.config.prune)
        _certify(session, plan)
    if plan.rows:
        stages = queries.stages(session.tracker.database, session.experiment_id, limit=10_000)
        run = [stage for stage in stages if stage.id > plan.after and IMPORTED not in stage.config]
        session.display.say(f"\n{compared(plan.rows, run)}")
    drop_plan(session)


def _certify(session: Session, plan: CyclePlan) -> None:
    """Measure what is left of the documents that the plan withdrew, with its last checkpoint."""
    withdrawn = begun(session, plan) if plan.config.evaluate and plan.config.midtrain.withdrawn else None
    after = _made(session, plan, plan.last, "recovered")
    if withdrawn is not None and after is not None:
        certify(session, *withdrawn, after, plan.config.eval, plan.last)


def one_cycle(session: Session, plan: CyclePlan, number: int) -> None:
    """Run the remaining parts of one cycle; parts that are done according to the tracker are skipped.

    A cycle that was rejected or rolled back is not continued: its model would become ``latest`` again.
    """
    if number in session.registry.discarded_cycles():
        decision = str(session.cycles()[number].decision).replace("_", " ")
        session.display.say(f"\ncycle {number} of {plan.last} was {decision}: it is not continued")
        if _made(session, plan, number, "recovered") is None:
            return  # there is no whole cycle to compare
    else:
        _train(session, plan, number)
    if plan.config.evaluate:
        conclude(session, number)
        if session.workspace.report_to:
            write_report(session, number)


def _train(session: Session, plan: CyclePlan, number: int) -> None:
    """Train, evaluate and judge one cycle, as far as this is not done."""
    config = plan.config
    mid_config = midtrain_config(plan, number)
    if not (session.workspace.corpus(number) / ABOUT).is_file():
        open_cycle(session, mid_config, number)
    if config.distill.document_texts:
        require_texts(load_snapshot(session.workspace, number))
    session.display.say(f"\ncycle {number} of {plan.last}: {mid_config.docs}")
    _evaluate_base(session, plan, number)
    trained = _made(session, plan, number, "midtrained")
    if trained is None:
        stopped = _unfinished(session, plan, "midtrain", number)
        mid_config = config_of(session, stopped, mid_config)
        trained = midtrain(session, mid_config, load_snapshot(session.workspace, number), resume=stopped)
    _evaluate(session, plan, trained, number)
    restored = _made(session, plan, number, "recovered")
    if restored is None:
        restored = _distill_to_end(session, plan, recovery_config(config, trained, number), number)
    _evaluate(session, plan, restored, number)
    if config.gate and config.trial:
        session.display.say(f"gate: cycle {number} is {TRIAL}")
    elif config.gate and not _is_settled(session, number):
        _settle(session, plan, trained, number)


def _prune(session: Session, names: Sequence[str]) -> None:
    """Delete what the policies allow, and say how much it was."""
    removals = plan_prune(session, names)
    if removals:
        freed = prune(session, removals)
        session.display.say(f"pruned: {', '.join(r.name for r in removals)} ({freed / 2**20:,.1f} MiB)")


def _is_settled(session: Session, number: int) -> bool:
    """Whether the cycle has a decision, was left to the user, or has a successor: then it is not judged again."""
    cycle = session.cycles()[number]
    events = queries.events(session.tracker.database, session.experiment_id, kind=LEFT_TO_A_PERSON, limit=1000)
    is_left = any(event.cycle_id == cycle.id for event in events)
    return is_left or cycle.decision is not None or any((c.cycle or 0) > number for c in session.registry.all())


def _settle(session: Session, plan: CyclePlan, trained: Checkpoint, number: int) -> None:
    """Accept or reject the cycle.

    While it is undecided, evaluate more items, then extend the distillation, then leave the decision to the user. A
    decision that the user enters meanwhile counts.
    """
    config, rules = plan.config, rules_of(plan.config.gate, session)
    # A workspace may hold more extensions than are allowed: it gets one round all the same.
    for extended in range(min(_extensions(session, number), config.gate_extend), config.gate_extend + 1):
        decision = _judged(session, config, rules, number)
        if _is_settled(session, number):
            break
        if decision.decision == "undecided" and _ask_more(session, config, rules, decision, number):
            decision = _judged(session, config, rules, number)
        # More training does not help if a measurement is missing, or only votes are.
        waits = all(one.suite.startswith(PREFERENCE) for one in decision.verdicts if one.verdict == "undecided")
        if decision.decision != "undecided" or decision.missing or waits or extended == config.gate_extend:
            break
        if _is_settled(session, number):  # while the further items were asked
            break
        session.display.say(f"gate: the distillation is extended ({extended + 1} of {config.gate_extend})")
        _extend(session, plan, trained, number)
    decided = _entered(session, number, decision)
    if decided is None and session.cycles()[number].decision is not None:
        word = str(session.cycles()[number].decision).replace("_", " ")
        session.display.say(f"gate: cycle {number} was {word} meanwhile by someone else, so the gate decides nothing")
    elif decided is None:
        commands = (f"`recover {word} {number} --why TEXT`" for word in ("accept", "reject"))
        words = f"cycle {number} is undecided: {' or '.join(commands)}"
        if any(rule.rival is not None for rule in rules):
            options = " ".join(f"--rule '{rule.text}'" for rule in rules)
            words += f"; after votes on the dashboard's page Review: `recover gate {number} {options} --enter`"
        cycle_id = session.cycle_id(number)
        session.tracker.event(session.experiment_id, words, kind=LEFT_TO_A_PERSON, cycle_id=cycle_id)
        session.display.say(f"gate: {words}")
    else:
        moved = f"; latest is {decided.after} again" if decided.moved else ""
        session.display.say(f"gate: cycle {number} {decided.decision}{moved}")


def _entered(session: Session, number: int, decision: Decision) -> Decided | None:
    """Enter the gate's decision; None if it is undecided, or if a person decided while the cycle was judged."""
    try:
        return enter(session, number, decision, seen=0)
    except DatabaseError:
        if session.cycles()[number].decision is None:
            raise
        return None


def _judged(session: Session, config: CycleConfig, rules: Sequence[Rule], number: int) -> Decision:
    """Judge the cycle once; alpha is divided among all possible judgements (before and after more items, each time)."""
    looks = 2 * (1 + config.gate_extend)
    decision = judge_cycle(session, rules, number, alpha=config.gate_alpha, looks=looks)
    for verdict in decision.verdicts:
        session.display.say(f"gate: {verdict.reason}")
    return decision


def _ask_more(session: Session, config: CycleConfig, rules: Sequence[Rule], decision: Decision, number: int) -> bool:
    """Evaluate every checkpoint that the rules are about on more items, if there are more and the budget allows it."""
    names = references(session, rules, number)
    student = session.resolve(names[0])
    corpora = session.learnt_cycles(student, number)
    asked = config.eval.limit
    limits = corpus_limits(corpora, asked, config.eval.earlier_limit)
    wanted = []
    for verdict in decision.verdicts:
        limit = limits.get(_corpus(verdict.suite), asked)
        if limit is None or verdict.more is None or verdict.suite.startswith(PREFERENCE):  # votes are not evaluated
            continue
        sampled = asked_prompts(session.tracker.database, student.id, verdict)
        if limit <= sampled < config.gate_budget:  # a suite that has fewer than its limit has no more
            wanted.append(-(-sampled * (verdict.n + verdict.more) // verdict.n))
    if not wanted:
        return False
    most = min(config.gate_budget, max(wanted))
    session.display.say(
        f"gate: undecided, so up to {most:,} items of a suite are evaluated (budget {config.gate_budget:,})"
    )
    larger = dataclasses.replace(
        config.eval,
        limit=None if asked is None else max(asked, most),
        earlier_limit=config.eval.earlier_limit and max(config.eval.earlier_limit, most * (len(corpora) - 1)),
    )
    for name in names:
        evaluate(session, dataclasses.replace(larger, checkpoint=name), cycle=number)
    return True


def _corpus(suite: str) -> int:
    """Return the number of the corpus that a suite is about; 0 if it has none."""
    name, _, number = suite.partition("/")
    return int(number) if name in records.PER_CORPUS and number else 0


def _extend(session: Session, plan: CyclePlan, trained: Checkpoint, number: int) -> None:
    """Continue the distillation from its last checkpoint, on prompts in another order."""
    last = _made(session, plan, number, "recovered")
    assert last is not None  # the gate judges what is recovered
    again = recovery_config(plan.config, trained, number)
    seed = again.seed + 1000 * (1 + _extensions(session, number))
    # A blend with the mid-trained model, the parent of ``last``, would undo part of the recovery.
    again = dataclasses.replace(again, student=last.name, seed=seed, blend=1.0)
    restored = _distill_to_end(session, plan, again, number)
    _evaluate(session, plan, restored, number)


def _extensions(session: Session, number: int) -> int:
    """Return how often the cycle's distillation has been extended."""
    return max(0, sum(c.cycle == number and c.kind == "recovered" for c in session.registry.all()) - 1)


def _distill_to_end(session: Session, plan: CyclePlan, config: DistillConfig, number: int) -> Checkpoint:
    """Run the distillation to its end; a stopped one resumes with its own settings."""
    stopped = _unfinished(session, plan, "distill", number)
    return distill(session, config_of(session, stopped, config), cycle=number, resume=stopped)


def resume(session: Session) -> str:
    """Resume what was interrupted and return one line about it. Raises UsageError if nothing was."""
    session.remove_finished()
    plan, stage = interrupted(session)
    if plan is not None:
        run_plan(session, plan)
        return f"{plan.with_verb('is', 'are')} done"
    assert stage is not None
    session.display.say(f"resuming {stage.kind} (stage {stage.id}), which was {stage.status}{stage.at_step}")
    return resume_stage(session, stage)


def resume_stage(session: Session, stage: records.Stage) -> str:
    """Resume one stage and return one line about it. Raises UsageError if its cycle was rejected or rolled back."""
    if why := why_not_resumed(session.registry, stage):
        raise UsageError(f"stage {stage.id} ({stage.kind}) cannot be resumed: {why}; start it again")
    settings = read(stage.config, session.workspace)
    if stage.kind == "midtrain":
        assert stage.cycle is not None  # it was recorded with the cycle of its documents
        own = load_snapshot(session.workspace, stage.cycle)
        made = midtrain(session, from_json(MidtrainConfig, settings), own, resume=stage)
    elif stage.kind == "distill":
        made = distill(session, from_json(DistillConfig, settings), resume=stage)
    elif stage.kind == "interpolate":
        made = interpolate(session, from_json(InterpolateConfig, settings), resume=stage)
    elif stage.kind == "evaluate":
        config = from_json(EvalConfig, settings)
        results = evaluate(session, config, cycle=stage.cycle, resume=stage)
        return f"evaluated {newest_measured(session).name}: {len(results)} suites"
    else:
        raise UsageError(f"stage {stage.id} ({stage.kind}) cannot be resumed: start it again")
    return f"made {made.name} ({made.hash[:12]})"


def base_scope(session: Session, config: EvalConfig, number: int) -> Scope | None:
    """Return what is still to be measured on the clean model before cycle ``number``: all, its corpus, or nothing."""
    if not measured(session, session.base, config):
        return EVERYTHING
    asked = load_snapshot(session.workspace, number)
    if (asked.probes or asked.held_out) and not corpus_measured(session, session.base, asked, config):
        return Scope(behaviour=False, general=False, corpora=(number,))
    return None


def _evaluate_base(session: Session, plan: CyclePlan, number: int) -> None:
    """Evaluate the clean model on each corpus's probes before mid-training, and once on the rest for each setting."""
    scope = base_scope(session, plan.config.eval, number)
    if plan.config.evaluate and scope is not None:
        config = dataclasses.replace(plan.config.eval, checkpoint="base")
        stopped = _unfinished(session, plan, "evaluate", number, session.base)
        evaluate(session, config, scope=scope, cycle=number, resume=stopped)


def _evaluate(session: Session, plan: CyclePlan, checkpoint: Checkpoint, number: int) -> None:
    if plan.config.evaluate and not measured(session, checkpoint, plan.config.eval):
        config = dataclasses.replace(plan.config.eval, checkpoint=checkpoint.name)
        stopped = _unfinished(session, plan, "evaluate", number, checkpoint)
        evaluate(session, config, cycle=number, resume=stopped)


def _made(session: Session, plan: CyclePlan, number: int, kind: str) -> Checkpoint | None:
    """Return the cycle's newest checkpoint of that kind; None if its stage was stopped and goes on, or begins again.

    A stopped extension of a distillation does not count in a cycle that a person has accepted since. Of one that cannot
    go on counts what it had saved, which is ``latest``, else what was recovered before.
    """
    made = [c for c in session.registry.all() if c.cycle == number and c.kind == kind]
    stopped = _stopped(session, plan, "midtrain" if kind == "midtrained" else "distill", number)
    if stopped is not None and session.cycles()[number].decision != "accepted":
        own = session.registry.of_stage(stopped.id)  # saved before it was killed
        goes_on = not why_not_resumed(session.registry, stopped)
        # Nothing was made before it, so that it begins again, although it had saved a checkpoint.
        only_its_own = own is not None and [c.id for c in made] == [own.id]
        if goes_on or only_its_own:
            return None
    return made[-1] if made else None


def _unfinished(
    session: Session, plan: CyclePlan, kind: str, number: int, checkpoint: Checkpoint | None = None
) -> records.Stage | None:
    """Return the stage of that kind to resume in the cycle; None if decisions prevent it, so that it starts again."""
    stopped = _stopped(session, plan, kind, number, checkpoint)
    if stopped is not None and (why := why_not_resumed(session.registry, stopped)):
        session.display.say(f"stage {stopped.id} ({kind}) starts again: {why}")
        return None
    return stopped


def _stopped(
    session: Session, plan: CyclePlan, kind: str, number: int, checkpoint: Checkpoint | None = None
) -> records.Stage | None:
    """Return the plan's newest stage of that kind in the cycle, if it was stopped before its end."""
    cycle_id = session.cycle_id(number)
    stages = queries.stages(session.tracker.database, session.experiment_id, cycle_id=cycle_id, kind=kind)
    planned = [s for s in stages if s.id > plan.after and IMPORTED not in s.config]
    selected = [s for s in planned if checkpoint is None or s.student_id == checkpoint.id]
    return selected[0] if selected and selected[0].status in STOPPED else None
