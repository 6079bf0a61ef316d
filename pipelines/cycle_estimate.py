"""What whole cycles take: the rows of every stage of a plan, before anything is trained, or after a short trial."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from db.records import TRIAL
from evals.suites import corpus_limits
from pipelines.cycle_plan import CyclePlan, check_first_plan, midtrain_config, planned_recovery, start_of, to_make
from pipelines.data.corpus_snapshot import CorpusSnapshot
from pipelines.distillation.plan import DistillPlan, make_plan
from pipelines.distillation.resolve import resolve_planned
from pipelines.evaluation.plan import EVERYTHING, Scope, gather, plan_rows
from pipelines.evaluation.stage import measured
from pipelines.midtraining.plan import MidtrainPlan, plan_in_turn
from pipelines.planning.work import Answering
from pipelines.runtime.progress import Display
from pipelines.runtime.session import Session
from pipelines.table import PlanRow, duration, table, total_of
from recovery.config import DistillConfig, MidtrainConfig
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

    A later cycle's recovery and evaluations are assumed to be as long as the first's. Raises UsageError or ModelError
    where a run would: for documents, prompts, teachers and tunings that do not fit together.
    """
    config, numbers = plan.config, range(plan.first, plan.last + 1)
    start = session.resolve(start_of(session, plan.start).name)  # its files are there
    mid_configs = [dataclasses.replace(midtrain_config(plan, n), student=start.name) for n in numbers]
    planned = plan_in_turn(session, mid_configs, plan.first)
    check_first_plan(config, planned[0][0])
    recovery = planned_recovery(session, config, plan.first)
    if recovery.tuning == "auto" and planned[0][0].tuning == "lora":
        recovery = dataclasses.replace(recovery, tuning="lora")  # it goes on training the adapter
    resolved = resolve_planned(session, recovery, start, {"latest", *to_make(plan.first)})
    rows: list[PlanRow] = []
    recoveries: list[DistillPlan] = []
    for at, number in enumerate(numbers):
        # A later cycle has one more teacher: the checkpoint before its mid-training.
        earlier = at > 0 and recovery.knowledge_teacher is not None and recovery.earlier_teacher is None
        distilled = make_plan(resolved, _made(recovery, plan.first) + earlier)
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


def _evaluations(
    session: Session, plan: CyclePlan, start: Checkpoint, corpora: Sequence[CorpusSnapshot], recovery: Sequence[PlanRow]
) -> list[PlanRow]:
    """Return what the evaluations of the newest of ``corpora`` take: of base as far as it is not measured, of what is
    mid-trained and what is recovered; and what an undecided gate may add.
    """
    config, number = plan.config.eval, corpora[-1].cycle
    answering = Answering.of(config, session.base)
    everything = gather(session, config, start, EVERYTHING)
    everything = dataclasses.replace(everything, corpora=everything.corpora | {one.cycle: one for one in corpora})
    known = number > plan.first or measured(session, session.base, config)
    first = gather(session, config, session.base, Scope(False, False, ())) if known else everything
    first = dataclasses.replace(first, corpora={number: corpora[-1]})
    parts = [plan_rows(first, config, answering, opened=True, cycle=number)]
    parts += [plan_rows(everything, config, answering, opened=False, cycle=number)] * 2
    flat = [row for part in parts for row in part]
    opened = {row.part for row in flat} - {"evaluation", "knowledge rulers"}
    summed: dict[str, tuple[str, ...]] = {"evaluations of base, mid-trained, recovered": ("evaluation",)}
    summed[next(iter(opened), "knowledge rulers")] = ("knowledge rulers", *opened)
    rows = []
    for name, own in summed.items():
        if group := [row for row in flat if row.part in own]:
            seconds, memory = total_of(group)
            rows.append(dataclasses.replace(group[0], part=name, seconds=seconds, memory=memory))
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
    more = 0.0 if asked is None else max(0.0, config.gate_budget / asked - 1)
    rows = []
    if more:
        items = seconds * (3 + config.gate_extend) * more
        rows.append(dataclasses.replace(evaluation[0], part="gate's further items", seconds=items, memory=memory))
    if config.gate_extend:
        again, peak = total_of(recovery)
        row = dataclasses.replace(recovery[0], part="gate's further recovery", memory=max(peak, memory))
        rows.append(dataclasses.replace(row, seconds=config.gate_extend * (again + seconds)))
    return rows


# The sizes of a trial: a first look in a quarter of an hour on this machine, by the plan's own estimate.

SECONDS = 15 * 60.0
_TARGET_SHARE = 0.9  # the share of SECONDS that a round aims at
_ROUNDS = 5  # one estimate is not enough: some parts do not shrink (a floor, the reading of prompts)
# Sizes by stage as (power, least): for a share s of the time a size is multiplied by s**power, down to the least that
# shows anything. The powers of sizes whose product is the stage's work add up to 1: it then takes about s of its time.
_SIZES: Mapping[str, Mapping[str, tuple[float, float]]] = {
    "midtrain": {"steps": (1.0, 2), "epochs": (1.0, 0.001), "replay_prompts": (1.0, 32)},
    "distill": {"steps": (0.5, 8), "prompts_per_step": (0.25, 8), "max_new_tokens": (0.25, 64)},
    "eval": {"limit": (0.75, 50), "max_new_tokens": (0.25, 64)},
}

Stages = Mapping[str, Any]


def fitted(
    stages: Stages, given: Collection[str], rows_of: Callable[[Stages], Sequence[PlanRow]], display: Display
) -> dict[str, Any]:
    """Return the configurations of ``stages`` ("midtrain", "distill", "eval") at the sizes of a trial, and say them.

    ``rows_of`` estimates a run at given sizes. What the user has ``given`` as flags stays: NAME, or STAGE_NAME in a
    cycle.
    """
    share, sized = 1.0, _sized(stages, given, 1.0)
    took = total_of(rows_of(sized))[0]
    for _ in range(_ROUNDS):
        if took <= SECONDS:
            break
        share *= _TARGET_SHARE * SECONDS / took
        smaller = _sized(stages, given, share)
        if smaller == sized:  # every size is at its floor
            break
        sized, took = smaller, total_of(rows_of(smaller))[0]
    changed = [
        f"{stage} {name} {value:g}"
        for stage, config in sized.items()
        for name, value in vars(config).items()
        if value != getattr(stages[stage], name)
    ]
    sizes = f": {', '.join(changed)}" if changed else ""
    display.say(f"{TRIAL}; about {duration(took)} here{sizes}. Begin again without --trial, in another --workspace")
    return sized


def _sized(stages: Stages, given: Collection[str], share: float) -> dict[str, Any]:
    """Return the configurations of stages for a ``share`` of their time.

    A recovery is not tested on the way: each test of --until asks 1,000 development prompts.
    """
    sized = {}
    for stage, config in stages.items():
        own = {name.removeprefix(f"{stage}_") for name in given}
        names = _SIZES[stage].keys() - own
        if isinstance(config, MidtrainConfig):  # one of the two sets its length
            unused = "epochs" if config.steps else "steps"
            names -= {"steps", "epochs"} if own & {"steps", "epochs"} else {unused}
        values: dict[str, Any] = {"until": 0.0} if isinstance(config, DistillConfig) and "until" not in own else {}
        for name in names:
            power, least = _SIZES[stage][name]
            full = config.passes if name == "epochs" else getattr(config, name)
            if name == "prompts_per_step" and config.knowledge_share:  # one of them is a question
                least = max(least, math.ceil(1 / config.knowledge_share))
            scaled = max(min(least, full), full * share**power)
            values[name] = float(f"{scaled:.2g}") if name == "epochs" else round(scaled)
        sized[stage] = dataclasses.replace(config, **values)
    return sized
