"""Mid-training as a stage: what is planned, what is trained on, what is kept."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from db import queries
from pipelines.midtrain import midtrain, plan_midtrain
from pipelines.session import Session
from recovery.checkpoints import content_hash, read_checkpoint
from recovery.config import MidtrainConfig
from recovery.errors import UsageError
from recovery.loading import load_model


def test_documents_end_up_in_a_checkpoint_with_parent_hash_and_account(
    session: Session, midtrain_config: MidtrainConfig
) -> None:
    made = midtrain(session, midtrain_config)
    assert (made.name, made.kind, made.parent, made.tuning) == ("cycle-1/midtrained", "midtrained", "base", "full")
    assert made.hash == content_hash(made.path) != session.base.hash
    assert read_checkpoint(made.path).parent == session.base.hash
    assert session.resolve("latest").name == made.name
    (stage,) = queries.stages(session.tracker.database, session.experiment_id)
    assert (stage.kind, stage.status, stage.steps_done, stage.cycle) == ("midtrain", "finished", 6, 1)
    assert stage.tokens_trained > 6 * 100
    assert stage.peak_memory_bytes > 0
    assert stage.versions["torch"]
    assert stage.config["lr"] == 3e-3
    losses = queries.series(session.tracker.database, stage.id, ["loss"])["loss"]
    assert len(losses) == 6
    assert losses[-1].value < losses[0].value
    assert not session.workspace.stage(stage.id, "midtrain").exists(), "states go once the checkpoint is kept"


def test_the_same_seed_gives_the_same_weights_and_another_gives_others(
    open_session: Callable[..., Session], midtrain_config: MidtrainConfig
) -> None:
    hashes = []
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        with open_session(name=name) as session:
            hashes.append(midtrain(session, dataclasses.replace(midtrain_config, seed=seed, tuning="lora")).hash)
    assert hashes[0] == hashes[1] != hashes[2]


def test_an_adapter_is_carried_on_untouched_base_weights(
    session: Session, midtrain_config: MidtrainConfig, make_corpus: Callable[[str], Path]
) -> None:
    lora = dataclasses.replace(midtrain_config, tuning="lora", lora_rank=4)
    first = midtrain(session, lora)
    second = midtrain(session, dataclasses.replace(lora, docs=make_corpus("Orchid"), tuning="auto"))
    assert [c.tuning for c in (first, second)] == ["lora", "lora"]
    assert first.weights == second.weights == session.base.path
    assert second.parent == first.name
    assert not (second.path / "model.safetensors").exists()
    assert load_model(second.weights, adapter=second.adapter, device="cpu").tuning == "frozen"
    with pytest.raises(UsageError, match="is a LoRA adapter"):
        midtrain(session, dataclasses.replace(lora, tuning="full"))


def test_replay_and_earlier_documents_take_their_shares(
    session: Session, midtrain_config: MidtrainConfig, make_corpus: Callable[[str], Path]
) -> None:
    midtrain(session, midtrain_config)
    mixed = dataclasses.replace(
        midtrain_config,
        docs=make_corpus("Orchid"),
        replay=0.3,
        replay_documents=0.5,
        max_new_tokens=160,
        student="base",
    )
    plan = plan_midtrain(session, mixed)
    assert (plan.cycle, plan.earlier_documents, plan.earlier_share, plan.replay_share) == (2, 4, 0.5, 0.3)
    assert "30% chat" in plan.text()
    made = midtrain(session, mixed)
    assert made.name == "cycle-2/midtrained"
    stage = queries.stages(session.tracker.database, session.experiment_id)[0]
    assert stage.details["replay"] > 0
    assert (session.workspace.folder / "cache" / "answers.db").is_file()


def test_a_plan_loads_no_weights_and_writes_no_cycle(session: Session, midtrain_config: MidtrainConfig) -> None:
    plan = plan_midtrain(session, dataclasses.replace(midtrain_config, steps=None, epochs=2.0))
    assert plan.documents == 4
    assert plan.tokens >= 2 * plan.document_tokens
    assert plan.row_length <= plan.tokens_per_step
    assert session.cycles() == {}
    assert not session.workspace.corpus(1).exists()


def test_a_second_try_at_a_cycle_that_never_trained_takes_its_number(
    session: Session, midtrain_config: MidtrainConfig, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match="none of the clean model's answers ended"):
        midtrain(session, dataclasses.replace(midtrain_config, replay=0.5, max_new_tokens=1))
    stage = queries.stages(session.tracker.database, session.experiment_id)[0]
    assert stage.status == "failed"
    assert "raise --max-new-tokens" in stage.error
    assert midtrain(session, midtrain_config).name == "cycle-1/midtrained"


def test_nothing_to_learn_is_said(session: Session) -> None:
    with pytest.raises(UsageError, match="--docs"):
        midtrain(session, MidtrainConfig())
