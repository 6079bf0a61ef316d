"""Pruning deletes what accepted cycles no longer need, and nothing that a later command may read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from db import DatabaseError
from pipelines import cycle
from pipelines.cycle import start_cycles
from pipelines.cycle_plan import CyclePlan, write_plan
from pipelines.distillation.stage import distill
from pipelines.evaluation.acceptance import decide_cycle
from pipelines.prune import _referred, plan_prune, prune
from pipelines.runtime.session import Session, StageInterrupted
from recovery.config import CycleConfig
from recovery.errors import UsageError
from recovery.workspace import Checkpoint
from tests.pipelines.conftest import Bench, Cycles, MakeCorpus, Record
from tests.recorded_stages import accept, pruned, with_a_state
from tests.support import stopped


def test_weights_under_an_accepted_adapter_stay(session: Session, bench: Bench, midtrained: Checkpoint) -> None:
    made = bench.distill(tuning="lora")
    assert made.weights == midtrained.path
    accept(session, 1)
    assert pruned(session) == set()


def test_what_was_accepted_stays_whatever_was_tried_beside_it(
    session: Session, bench: Bench, midtrained: Checkpoint
) -> None:
    bench.distill()
    assert pruned(session) == set(), "nobody decided yet"
    accept(session, 1)
    assert pruned(session) == {"cycle-1/midtrained"}
    bench.distill(student="cycle-1/midtrained", seed=7)
    assert "cycle-1/recovered" not in pruned(session)


def test_a_prune_that_was_killed_is_finished_by_the_next(
    session: Session, bench: Bench, midtrained: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.distill()
    accept(session, 1)

    def killed(_: Path) -> None:
        raise KeyboardInterrupt

    planned = plan_prune(session, ["midtrained"])
    with monkeypatch.context() as patch:
        patch.setattr("shutil.rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            prune(session, planned)
    with pytest.raises(Exception, match="pruned on"):
        session.resolve("cycle-1/midtrained")
    (left,) = plan_prune(session, ["midtrained"])
    assert left.policy == "interrupted" and left.bytes > 0
    assert prune(session, [left]) == left.bytes and not left.path.exists()
    assert plan_prune(session) == []


def test_pruned_weights_are_not_gone_on_from(session: Session, bench: Bench, midtrained: Checkpoint) -> None:
    bench.distill()
    decide_cycle(session, 1, "rejected", who="Ada", why="no")
    prune(session, plan_prune(session, ["rejected"]))
    with pytest.raises(DatabaseError, match="were pruned on"):
        accept(session, 1)
    assert session.resolve("latest").name == "base"


def test_a_stopped_stage_is_needed_until_a_later_one_has_done_its_work(
    session: Session, bench: Bench, midtrained: Checkpoint
) -> None:
    bench.distill()
    accept(session, 1)
    again = bench.distilling(student="cycle-1/midtrained")
    with stopped(session):
        distill(session, again)
    states = with_a_state(session)
    assert pruned(session, "all") == set(), "`recover resume` would continue it"
    distill(session, again)
    assert pruned(session, "all") == {states, "cycle-1/midtrained"}


def test_a_checkpoint_that_a_plan_names_by_its_folder_is_kept(
    session: Session, bench: Bench, cycles: Cycles, record: Record
) -> None:
    record()
    start_cycles(session, cycles("First"))
    assert "cycle-1/midtrained" not in _referred(session)
    taught = bench.distilling(teacher=str(session.workspace.checkpoint("cycle-1/midtrained")))
    write_plan(session, CyclePlan(2, cycles("Second", distill=taught)))
    assert "cycle-1/midtrained" in _referred(session)


def test_training_states_that_a_killed_prune_left_are_deleted_by_the_next(session: Session) -> None:
    left = session.workspace.folder / "stages" / "0007-distill" / ".removing-states"
    left.mkdir(parents=True)
    (left / "weights").write_bytes(b"x" * 10)
    assert [removal.path for removal in plan_prune(session, ["states"])] == [left]


@pytest.mark.slow
def test_cycles_delete_what_accepted_ones_no_longer_need(
    session: Session, small: CycleConfig, make_corpus: MakeCorpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    def left() -> set[str]:
        return {c.name for c in session.registry.all() if (c.path / "config.json").is_file()}

    left_after: list[set[str]] = []
    deleting = cycle._prune

    def watched(session: Session, names: Sequence[str]) -> None:
        deleting(session, names)
        left_after.append(left())
        if len(left_after) == 1:
            raise StageInterrupted("after the first cycle")

    monkeypatch.setattr(cycle, "_prune", watched)
    rules: dict[str, Any] = {"gate": ("stored >= 0.01",), "prune": ("midtrained", "states")}
    rules |= {"knowledge_teacher": "midtrained", "distill": replace(small.distill, knowledge_share=0.5)}
    docs = (make_corpus("First"), make_corpus("Second"))
    with pytest.raises(StageInterrupted):
        start_cycles(session, replace(small, docs=docs, **rules))
    cycle.resume(session)
    accepted = {"base", "cycle-1/recovered"}
    assert left_after == [accepted, accepted, accepted | {"cycle-2/recovered"}]
    assert [one.decision for one in session.cycles().values()] == ["accepted", "accepted"]
    assert plan_prune(session) == [], "the training states are gone too"
    with pytest.raises(UsageError, match="--prune"):
        replace(small, prune=("everything",))
