"""A trial fits a quarter of an hour by the plan's own estimate, keeps what the user set, and decides nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from db import cycle_answers, decide, queries
from db.errors import DatabaseError
from db.records import TRIAL
from pipelines import cycle_estimate
from pipelines.cycle import one_cycle
from pipelines.cycle_plan import CyclePlan, new_plan, read_plan, start_of, write_plan
from pipelines.evaluation.acceptance import judge_cycle
from pipelines.midtraining.plan import plan_midtrain
from pipelines.runtime.progress import Display
from pipelines.runtime.session import Session
from pipelines.table import PlanRow, total_of
from recovery.config import CycleConfig, DistillConfig, EvalConfig, MidtrainConfig, build_cycle
from recovery.errors import UsageError
from tests.pipelines.conftest import Bench

FULL = {"midtrain": MidtrainConfig(), "distill": DistillConfig(knowledge_share=0.1), "eval": EvalConfig()}


def _answers(config: Any) -> float:
    return float(config.steps * config.prompts_per_step * config.max_new_tokens)


def rows_of(stages: cycle_estimate.Stages) -> Sequence[PlanRow]:
    """An hour of mid-training, three of recovery and one of evaluations at the full sizes, and a minute to begin."""
    midtrain, distill, evaluation = (stages[name] for name in ("midtrain", "distill", "eval"))
    answers = _answers(distill) / _answers(FULL["distill"])
    parts = {
        "midtrain": midtrain.passes / FULL["midtrain"].passes,
        "distill": 3 * answers,
        "evaluate": evaluation.limit * evaluation.max_new_tokens / (1000 * 256),
        "begin": 1 / 60,
    }
    return [PlanRow(name, name, 3600 * hours, 0) for name, hours in parts.items()]


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ((), {}),
        (("distill_steps",), {"distill": {"steps": FULL["distill"].steps}}),
        (
            ("max_new_tokens", "until"),
            {"distill": {"max_new_tokens": FULL["distill"].max_new_tokens, "until": FULL["distill"].until}},
        ),
        (("limit",), {"eval": {"limit": 1000}}),
        (("epochs",), {"midtrain": {"epochs": None, "steps": None}}),
    ],
)
def test_sizes_fit_a_quarter_of_an_hour_and_what_was_given_stays(given: Sequence[str], kept: dict[str, Any]) -> None:
    sized = cycle_estimate.fitted(FULL, given, rows_of, Display(quiet=True))
    if not kept:
        assert 0.5 * cycle_estimate.SECONDS < total_of(rows_of(sized))[0] <= cycle_estimate.SECONDS
        assert sized["distill"].until == 0 and sized["distill"].questions_per_step >= 1
    for stage, values in kept.items():
        assert {name: getattr(sized[stage], name) for name in values} == values
    assert sized["distill"].lr == FULL["distill"].lr and sized["eval"].seed == 0, "nothing but sizes"


def test_a_trial_that_cannot_fit_takes_its_least_sizes_and_says_how_long(capsys: pytest.CaptureFixture[str]) -> None:
    sized = cycle_estimate.fitted(
        FULL, (), lambda stages: [PlanRow("x", "x", 40 * row.seconds, 0) for row in rows_of(stages)], Display()
    )
    assert (sized["eval"].limit, sized["distill"].steps, sized["distill"].max_new_tokens) == (50, 8, 64)
    said = " ".join(capsys.readouterr().err.split())
    assert said.startswith(f"{TRIAL}; about ") and "distill steps 8" in said


def test_a_flag_or_a_recipe_makes_every_stage_a_trial_and_the_plan_file_keeps_it(
    session: Session, corpus: Path
) -> None:
    config = build_cycle({"docs": (corpus,), "trial": True})
    assert config.trial and config.midtrain.trial and config.distill.trial and config.eval.trial
    write_plan(session, CyclePlan(1, config))
    stored = read_plan(session)
    assert stored is not None and stored.config.trial


def test_nothing_is_decided_by_a_trial(session: Session, bench: Bench, corpus: Path) -> None:
    config = CycleConfig(
        docs=(corpus,),
        evaluate=False,
        knowledge_teacher=None,
        midtrain=bench.midtraining(docs=None, trial=True),
        distill=bench.distilling(trial=True),
    )
    one_cycle(session, CyclePlan(1, config), 1)
    found = queries.overview(session.tracker.database, session.experiment_id)
    judged = cycle_answers.judged(session.tracker.database, found.cycles[0])
    assert judged is not None and judged.headline == f"Cycle 1 is {TRIAL}."
    assert (judged.verdict.word, judged.verdict.why) == (
        cycle_answers.UNDECIDED,
        "A trial: its figures decide nothing.",
    )
    with pytest.raises(UsageError, match=TRIAL):
        judge_cycle(session, [], 1)
    with pytest.raises(DatabaseError, match="cycle 1 is a trial: its figures decide nothing; run it without --trial"):
        decide(session.tracker.database, found.cycles[0].cycle.id, "accepted", who="Ada", why="all works")
    plain = replace(
        config,
        midtrain=replace(config.midtrain, trial=False),
        distill=replace(config.distill, trial=False),
    )
    with pytest.raises(UsageError, match="recover rollback 1 --why trial"):
        new_plan(session, plain)
    decide(session.tracker.database, found.cycles[0].cycle.id, "rolled_back", who="Ada", why="a trial")
    assert start_of(session).name == "base"


def test_a_plan_says_what_share_of_the_documents_it_trains_on(session: Session, bench: Bench) -> None:
    for epochs in (0.25, 2.0):
        plan = plan_midtrain(session, bench.midtraining(steps=None, epochs=epochs))
        assert plan.length.passes == pytest.approx(epochs, rel=0.5), "in whole steps"
        assert (f", {plan.length.passes:.0%} of the documents, peak" in plan.text()) == (epochs < 1)
