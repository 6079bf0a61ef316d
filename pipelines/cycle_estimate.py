"""What whole cycles take: the rows of every stage of a plan, before anything is trained."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from evals.suites import corpus_limits
from pipelines.cycle_plan import (
    CyclePlan,
    check_first_plan,
    midtrain_config,
    planned_recovery,
    start_of,
    to_make,
)
from pipelines.data.corpus_snapshot import CorpusSnapshot
from pipelines.distillation.plan import DistillPlan, make_plan
from pipelines.distillation.resolve import foreseen
from pipelines.evaluation.plan import EVERYTHING, Scope, gather, plan_rows
from pipelines.evaluation.stage import measured
from pipelines.midtraining.plan import MidtrainPlan, plan_in_turn
from pipelines.planning.work import Answering
from pipelines.runtime.session import Session
from pipelines.table import PlanRow, table, total_of
from recovery.config import DistillConfig
from recovery.workspace import Checkpoint


@dataclass(frozen=True)
class CycleEstimate:
    """The plan of each mid-training and of the first recovery, and what every stage takes, with ``free`` bytes now."""

    midtrain: tuple[MidtrainPlan, ...]
    recovery: DistillPlan
    rows: tuple[PlanRow, ...]
    free: int

    def table(self) -> str:
        """Return the rows as text."""
        return table(self.rows, self.free)


def estimate(session: Session, plan: CyclePlan) -> CycleEstimate:
    """Return the estimate of all cycles of a plan; writes nothing and loads no weights.

    Raises UsageError or ModelError for what a run would refuse: documents, prompts, teachers and tunings that do not
    go together. A later cycle's recovery and evaluations are taken to be as long as the first's.
    """
    config, numbers = plan.config, range(plan.first, plan.last + 1)
    start = session.resolve(start_of(session, plan.start).name)  # its files are there
    mid_configs = [dataclasses.replace(midtrain_config(plan, n), student=start.name) for n in numbers]
    planned = plan_in_turn(session, mid_configs, plan.first)
    check_first_plan(config, planned[0][0])
    recovery = planned_recovery(session, config, plan.first)
    if recovery.tuning == "auto" and planned[0][0].tuning == "lora":
        recovery = dataclasses.replace(recovery, tuning="lora")  # it goes on training the adapter
    resolved = foreseen(session, recovery, start, {"latest", *to_make(plan.first)})
    rows: list[PlanRow] = []
    recoveries: list[DistillPlan] = []
    for at, number in enumerate(numbers):
        distilled = make_plan(resolved, _made(recovery, plan.first) + (at > 0 and _keeps_earlier(recovery, number)))
        recoveries.append(distilled)
        own = [dataclasses.replace(row, cycle=number) for row in distilled.rows]
        rows += [*planned[at][0].rows, *own]
        if config.evaluate:
            rows += _evaluations(session, plan, start, [corpus for _, corpus in planned[: at + 1]], own)
    return CycleEstimate(tuple(one for one, _ in planned), recoveries[0], tuple(rows), planned[0][0].memory.free)


def _made(config: DistillConfig, number: int) -> int:
    """Return how many different teachers of a recovery the mid-training of cycle ``number`` makes."""
    names = {*config.teaching.weights, config.knowledge_teacher, *config.routes.values()} if config.lam else set()
    return int(not names.isdisjoint(to_make(number)))


def _keeps_earlier(config: DistillConfig, number: int) -> int:
    """Whether a later cycle has one more teacher: the checkpoint before its mid-training."""
    return int(config.knowledge_teacher is not None and config.earlier_teacher is None and number > 1)


def _evaluations(
    session: Session, plan: CyclePlan, start: Checkpoint, corpora: Sequence[CorpusSnapshot], recovery: Sequence[PlanRow]
) -> list[PlanRow]:
    """Return what the evaluations of the newest of ``corpora`` take: of base as far as it is not measured, of what is
    mid-trained and what is recovered; and what an undecided gate may add.
    """
    config, number = plan.config.eval, corpora[-1].cycle
    answering = Answering.of(config, session.base)
    whole = gather(session, config, start, EVERYTHING)
    whole = dataclasses.replace(whole, corpora=whole.corpora | {one.cycle: one for one in corpora})
    known = number > plan.first or measured(session, session.base, config)
    first = gather(session, config, session.base, Scope(False, False, ())) if known else whole
    first = dataclasses.replace(first, corpora={number: corpora[-1]})
    parts = [plan_rows(first, config, answering, opened=True, cycle=number)]
    parts += [plan_rows(whole, config, answering, opened=False, cycle=number)] * 2
    flat = [row for part in parts for row in part]
    opened = {row.part for row in flat} - {"evaluation", "knowledge rulers"}
    summed: dict[str, tuple[str, ...]] = {"evaluations of base, mid-trained, recovered": ("evaluation",)}
    summed[next(iter(opened), "knowledge rulers")] = ("knowledge rulers", *opened)
    rows = []
    for name, own in summed.items():
        if found := [row for row in flat if row.part in own]:
            rows.append(dataclasses.replace(found[0], part=name, seconds=total_of(found)[0], memory=total_of(found)[1]))
    return [*rows, *_gate(plan, parts[1], recovery, corpora)]


def _gate(
    plan: CyclePlan, evaluation: Sequence[PlanRow], recovery: Sequence[PlanRow], corpora: Sequence[CorpusSnapshot]
) -> list[PlanRow]:
    """Return what an undecided gate may add, at most: further items of all models at each look, and recoveries."""
    config = plan.config
    if not config.gate or config.trial:
        return []
    limit = corpus_limits({one.cycle for one in corpora}, config.eval.limit, config.eval.earlier_limit)
    asked = limit[corpora[-1].cycle]
    seconds, memory = total_of(evaluation)
    more = 0.0 if asked is None else max(0.0, config.gate_samples / asked - 1)
    looks = 1 + config.gate_extend
    first = evaluation[0]
    rows = (
        []
        if not more
        else [
            dataclasses.replace(
                first, part="gate's further items", seconds=seconds * (3 + config.gate_extend) * more, memory=memory
            )
        ]
    )
    if looks > 1:
        again, peak = total_of(recovery)
        rows.append(
            dataclasses.replace(
                recovery[0],
                part="gate's further recovery",
                memory=max(peak, memory),
                seconds=config.gate_extend * (again + seconds),
            )
        )
    return rows
