"""Arms get the same documents and tokens, share finished stages, and an interruption changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from db import queries
from pipelines.data.corpus_snapshot import load_snapshot
from pipelines.data.mixing import schedule
from pipelines.experiments import arm_cycle
from pipelines.experiments.arm_cycle import run_arm
from pipelines.experiments.compare import cost_of
from pipelines.midtraining import material
from pipelines.midtraining.material import open_cycle
from pipelines.midtraining.plan import plan_midtrain
from pipelines.planning import tuning
from pipelines.runtime.session import Session, StageInterrupted
from recovery.arms import ARMS, DISTILL, INTERPOLATE, NONE, Arm, arm_named
from recovery.config import WRITER_FILE, DistillConfig, InterpolateConfig, MidtrainConfig, build
from recovery.data.corpus.folder import read_corpus
from recovery.errors import UsageError
from recovery.workspace import Checkpoint
from tests.pipelines.conftest import Bench, MakeCorpus, OpenSession, stages_of, write_corpus
from tests.support import stopped

Run = Callable[..., list[Checkpoint]]


@pytest.fixture
def run(corpus: Path, midtrain_config: MidtrainConfig, distill_config: DistillConfig) -> Run:
    """``run(session, name)``: the first cycle of an arm, small. Completions end within 160 tokens."""
    mid = replace(midtrain_config, steps=None, epochs=0.5, max_new_tokens=160)
    distill = replace(distill_config, steps=2, prompts_per_step=4, max_new_tokens=160)

    def one(session: Session, name: str, **more: Any) -> list[Checkpoint]:
        return run_arm(session, arm_named(name), corpus, 1, mid, distill, **more)

    return one


def test_every_arm_is_a_setting_of_the_stages() -> None:
    assert next(iter(ARMS)) == "documents"
    given = MidtrainConfig(augment=4, writer=WRITER_FILE, writer_questions=True)
    for arm in ARMS.values():
        build(MidtrainConfig, arm.midtrain)
        changed = replace(given, **arm.midtrain)  # settings that use a writer may be changed
        assert changed.writer_questions == (arm.name != "unaugmented")
        settings = {k: v for k, v in arm.settings.items() if v is not None}
        assert arm.follow in (NONE, DISTILL, INTERPOLATE)
        assert bool(settings) == (arm.follow != NONE)
        if settings:
            build(DistillConfig if arm.follow == DISTILL else InterpolateConfig, settings)  # type: ignore[type-var]
    with pytest.raises(UsageError, match="did you mean replay"):
        arm_named("replai")


@pytest.mark.slow
def test_replay_takes_its_share_within_the_same_tokens(session: Session, run: Run) -> None:
    (alone,) = run(session, "documents")
    made = {name: run(session, name)[0] for name in ("replay", "kl-replay", "lora")}
    tokens = {name: cost_of(session, found.name).trained for name, found in ({"documents": alone} | made).items()}
    longest = 64  # a row is not cut for it
    assert max(tokens.values()) - min(tokens.values()) <= 3 * longest, tokens
    assert cost_of(session, made["kl-replay"].name).scored > 0.2 * tokens["kl-replay"]
    assert cost_of(session, made["replay"].name).scored == 0
    assert made["lora"].tuning == "lora"


def test_every_arm_takes_the_tokens_that_the_defaults_take_with_their_replay(session: Session, bench: Bench) -> None:
    config = bench.midtraining(steps=None, epochs=3.0, replay=0.3, replay_loss="kl")
    start = session.registered(session.base)
    planned = plan_midtrain(session, config).length
    for name, replay in (("documents", 0.0), ("kl-replay-recovery", 0.3)):
        arm = arm_cycle._midtraining(session, arm_named(name), config, 1, start, None)
        assert (arm.steps, arm.batch_tokens, arm.replay) == (planned.steps, planned.per_step, replay), name
        assert arm.replay_loss == ("kl" if replay else "answers")


def test_smaller_steps_of_an_arm_are_more_steps_on_the_same_tokens(
    session: Session, bench: Bench, corpus: Path
) -> None:
    config = bench.midtraining(steps=None, epochs=0.5, batch_tokens=512)
    arm = arm_named("documents")
    run_arm(session, arm, corpus, 1, config, bench.distilling())
    run_arm(session, replace(arm, midtrain={"batch_tokens": 256}), corpus, 1, config, bench.distilling())
    small, usual = (stage.config for stage in stages_of(session, "midtrain"))
    assert (usual["batch_tokens"], small["batch_tokens"]) == (512, 256)
    assert small["steps"] == 2 * usual["steps"]


@pytest.mark.slow
def test_arms_share_their_mid_training_and_each_has_its_own_end(session: Session, run: Run) -> None:
    made = {name: run(session, name) for name in ("documents", "one-teacher", "recovery", "own-answers")}
    assert len(stages_of(session, "midtrain")) == 1
    assert {found[0].hash for found in made.values()} == {made["documents"][0].hash}
    ends = [found[1] for found in made.values() if len(found) > 1]
    assert len({end.hash for end in ends}) == len(ends) == 3
    by_teacher = [s.config["knowledge_teacher"] for s in reversed(stages_of(session, "distill"))]
    assert by_teacher == [None, "documents/cycle-1/midtrained", None]
    own = stages_of(session, "distill")[0].config
    assert (own["method"], own["prompts_per_step"], own["samples_per_prompt"]) == ("sequence-kd", 8, 1)
    assert run(session, "one-teacher")[1].hash == made["one-teacher"][1].hash
    assert len(stages_of(session, "distill")) == 3, "what is done is not done again"
    with pytest.raises(UsageError, match="ended with 3 recovered"):
        run_arm(session, arm_named("recovery"), Path("more"), 2, MidtrainConfig(), DistillConfig())


def test_arms_with_other_seeds_train_on_the_split_of_the_cycle(session: Session, bench: Bench, tmp_path: Path) -> None:
    docs = write_corpus(tmp_path / "many", "Harbour", documents=20)  # enough to hold out whole documents
    mid = bench.midtraining(docs=docs, held_out=0.2, seed=0, epochs=None, steps=2)
    opened = open_cycle(session, mid, 1)
    assert opened.hash != read_corpus(docs, held_out=0.2, seed=1).hash, "seed 1 would have another split"
    (made,) = run_arm(session, arm_named("documents"), docs, 1, replace(mid, seed=1), DistillConfig())
    assert made.cycle == 1
    assert load_snapshot(session.workspace, 1) == opened


def test_a_cycle_keeps_its_documents(session: Session, run: Run, corpus: Path, make_corpus: MakeCorpus) -> None:
    run(session, "documents")
    page = corpus / "later.md"
    page.write_text("# Cranes\n\nThe crane of Vorna lifts nine crates an hour when the tide is low.\n")
    with pytest.raises(UsageError, match="has changed since cycle 1"):
        run(session, "documents")
    page.unlink()
    with pytest.raises(UsageError, match=r"began with the documents in .*, not with .*: use another --workspace"):
        run_arm(session, arm_named("replay"), make_corpus("Orchid"), 1, MidtrainConfig(), DistillConfig())


@pytest.mark.slow
def test_an_arm_stopped_in_each_of_its_stages_goes_on_to_the_same_weights(
    open_session: OpenSession, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_session(name="whole") as session:
        expected = [c.hash for c in run(session, "blend-recovery")]
    with open_session(name="stopped") as session:

        class Stops(list[Any]):
            """A schedule that requests a stop at the third step, which is discarded."""

            def __getitem__(self, at: Any) -> Any:
                session.interrupts.requested |= at == 2
                return super().__getitem__(at)

        monkeypatch.setattr(material, "schedule", lambda *given: Stops(schedule(*given)))
        with pytest.raises(StageInterrupted, match="midtrain interrupted at step 2"):
            run(session, "blend-recovery")
        monkeypatch.undo()
    with open_session(name="stopped") as session:
        run(session, "documents")  # the rest of the mid-training that both arms share
        with stopped(session, "distill interrupted"):
            run(session, "blend-recovery")
    with open_session(name="stopped") as session:
        assert [c.hash for c in run(session, "blend-recovery")] == expected
        assert [s.attempts for s in (*stages_of(session, "midtrain"), *stages_of(session, "distill"))] == [2, 2]


def test_an_arm_resumes_with_the_tuning_it_began_with(
    session: Session, bench: Bench, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mid, distill = bench.midtraining(tuning="auto"), bench.distilling(tuning="auto")

    def run(name: str, memory: int) -> list[str]:
        monkeypatch.setattr(tuning, "total_memory", lambda _: memory)
        return [made.tuning for made in run_arm(session, arm_named(name), corpus, 1, mid, distill)]

    for name, kind, expected in (
        ("documents", "midtrain", ["full"]),
        ("one-teacher", "distill", ["full", "full"]),
    ):
        with stopped(session, f"^{kind} interrupted while"):
            run(name, 1 << 40)
        assert run(name, 1 << 20) == expected, "auto would train an adapter now"


def test_an_arm_without_a_tuning_does_not_take_the_stages_of_one_with_lora(
    session: Session, bench: Bench, corpus: Path
) -> None:
    """Neither a finished stage nor a stopped one."""
    mid, distill = bench.midtraining(tuning="auto"), bench.distilling(tuning="auto")
    lora = replace(arm_named("documents"), name="documents-lora", midtrain={"tuning": "lora"})

    def run(arm: Arm) -> str:
        return run_arm(session, arm, corpus, 1, mid, distill)[0].tuning

    with stopped(session):
        run(lora)
    assert run(arm_named("documents")) == "full"
    assert run(lora) == "lora"
    assert run(replace(arm_named("documents"), name="again")) == "full"
    assert [stage.status for stage in stages_of(session, "midtrain")] == ["finished"] * 2


def test_a_setting_that_came_later_or_is_gone_runs_no_finished_arm_again(
    session: Session, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    (made,) = run(session, "documents")
    found = queries.stages

    def older(*given: Any, **more: Any) -> list[Any]:
        rows = found(*given, **more)
        return [
            replace(s, config={k: v for k, v in s.config.items() if not k.startswith("augment")} | {"recognise": True})
            for s in rows
        ]

    monkeypatch.setattr(queries, "stages", older)
    (again,) = run(session, "documents")
    assert again.name == made.name and len(stages_of(session, "midtrain")) == 1
