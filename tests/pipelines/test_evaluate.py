"""Evaluation as a stage: every score with its answers in the tracker, under the names everyone reads."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from db import queries
from pipelines.evaluate import Scope, corpora_measured, evaluate, measured, plan_evaluate
from pipelines.midtrain import midtrain
from pipelines.session import Session
from recovery.config import EvalConfig, MidtrainConfig


def test_scores_and_answers_are_recorded(
    session: Session, midtrain_config: MidtrainConfig, eval_config: EvalConfig
) -> None:
    made = midtrain(session, midtrain_config)
    assert not measured(session, made)
    results = evaluate(session, eval_config)
    assert {"instruction_following", "domain_knowledge/1", "domain_knowledge_stored/1"} <= {r.suite for r in results}
    assert made.id is not None
    scores = queries.scores(session.tracker.database, made.id)
    assert scores.instruction_following is not None
    assert scores.instruction_following.n == 4
    assert set(scores.domain_knowledge_by_corpus) == set(scores.domain_knowledge_stored_by_corpus) == {1}
    evaluation = queries.evaluations(session.tracker.database, made.id)[-1]
    assert evaluation.suite == "instruction_following"
    page = queries.samples(session.tracker.database, evaluation.id)
    assert page.total == 4
    assert all(sample.verdicts for sample in page.samples)
    assert measured(session, made)
    assert corpora_measured(session, made) == {1}
    stage = queries.stages(session.tracker.database, session.experiment_id)[0]
    assert stage.details["recorded"]["decoding"] == "greedy"


def test_a_scope_asks_only_what_is_new(
    session: Session, midtrain_config: MidtrainConfig, eval_config: EvalConfig
) -> None:
    midtrain(session, midtrain_config)
    config = dataclasses.replace(eval_config, checkpoint="base")
    plan = plan_evaluate(session, config, Scope(behaviour=False, general=False, corpora=(1,)))
    assert (plan.instruction_prompts, plan.general_probes, set(plan.probes_by_corpus)) == (0, 0, {1})
    results = evaluate(session, config, scope=Scope(behaviour=False, general=False, corpora=(1,)))
    assert "instruction_following" not in {r.suite for r in results}
    assert corpora_measured(session, session.base) == {1}


def test_a_model_folder_brings_its_own_general_probes_and_tasks_can_be_added(
    open_session: Callable[..., Session], tiny_model: Path, tmp_path: Path, eval_config: EvalConfig
) -> None:
    model = shutil.copytree(tiny_model, tmp_path / "model")
    (model / "suites").mkdir()
    probe = {"question": "A boat is", "answers": ["green"], "choices": ["green", "seven"], "form": "choice"}
    (model / "suites" / "general.jsonl").write_text(json.dumps(probe) + "\n")
    with open_session(model) as session:
        results = evaluate(session, dataclasses.replace(eval_config, checkpoint="base"))
        assert {r.suite for r in results} == {"instruction_following", "general"}


def test_a_damaged_checkpoint_is_not_measured(
    session: Session, midtrain_config: MidtrainConfig, eval_config: EvalConfig
) -> None:
    made = midtrain(session, midtrain_config)
    (made.path / "config.json").write_text((made.path / "config.json").read_text() + " ")
    with pytest.raises(Exception, match="changed since it was registered"):
        evaluate(session, eval_config)
