"""Training stages that record what they would and train nothing, and short words for what is decided about them."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from db import queries
from pipelines import cycle
from pipelines.data.corpus_snapshot import CorpusSnapshot
from pipelines.evaluation.acceptance import decide_cycle
from pipelines.prune import plan_prune
from pipelines.runtime.checkpoint_names import free_name
from pipelines.runtime.session import Session, StageInterrupted
from pipelines.runtime.stage import running
from recovery.config import DistillConfig, MidtrainConfig
from recovery.workspace import Checkpoint


def pruned(session: Session, *policies: str) -> set[str]:
    """Return what would be pruned, by all policies of decided cycles if none is given."""
    return {removal.name for removal in plan_prune(session, policies or ("rejected", "midtrained", "replaced"))}


def accept(session: Session, number: int) -> None:
    """Accept a cycle."""
    decide_cycle(session, number, "accepted", who="Ada", why="good")


def with_a_state(session: Session) -> str:
    """Give the newest stage, which was stopped before its first step, a training state; return prune's name for it."""
    stage = queries.stages(session.tracker.database, session.experiment_id, limit=1)[0]
    state = session.workspace.stage(stage.id, stage.kind) / "states" / "step-000001"
    state.mkdir(parents=True)
    (state / "state.safetensors").write_bytes(b"weights")
    return f"stage {stage.id} ({stage.kind})"


class Recorded:
    """Stands for both training stages of cycles: they record what they would record, train nothing, and stop once."""

    def __init__(self, session: Session, monkeypatch: pytest.MonkeyPatch, stop: str) -> None:
        self.session, self.stop, self.tuning = session, stop, "full"
        monkeypatch.setattr(cycle, "midtrain", self.midtrain)
        monkeypatch.setattr(cycle, "distill", self.distill)
        monkeypatch.setattr("pipelines.runtime.stage.release_memory", lambda: None)  # a second on a busy machine

    def midtrain(self, _: Session, config: MidtrainConfig, own: CorpusSnapshot, **given: Any) -> Checkpoint:
        return self.stage("midtrain", "midtrained", config, own.cycle, **given)

    def distill(self, _: Session, config: DistillConfig, cycle: int = 1, **given: Any) -> Checkpoint:
        return self.stage("distill", "recovered", config, cycle, **given)

    def stage(
        self, kind: str, made: str, config: MidtrainConfig | DistillConfig, cycle: int, resume: Any = None
    ) -> Checkpoint:
        session, name = self.session, free_name(f"cycle-{cycle}/{made}", self.session.registry)
        student = session.resolve(config.student)
        config = dataclasses.replace(config, student=student.name)
        with running(session, kind, config, cycle=cycle, student=student, resume=resume) as stage:
            if self.stop == f"{kind} {cycle}":
                self.stop = ""
                raise StageInterrupted("here")
            (folder := session.workspace.checkpoint(name)).mkdir(parents=True)
            number = session.tracker.add_checkpoint(
                session.experiment_id, name, made, path=session.workspace.stored(folder), content_hash=name,
                parent_id=student.id, cycle_id=session.cycle_id(cycle), by=stage.recorder, tuning=self.tuning,
                details={"weights": session.workspace.stored(session.base.path)},  # a later plan reads its tokenizer
            )  # fmt: skip
            session.tracker.set_latest(session.experiment_id, number, by=stage.recorder)
            if self.stop == f"{kind} {cycle} saved":
                self.stop = ""
                raise StageInterrupted("here")
        return session.resolve(name)


def made(session: Session, cycle: int, kind: str = "recovered", *, more: str = "", parent: int | None = None) -> int:
    """Record a checkpoint of a cycle, of which only the tracker knows; its parent is base unless another is given."""
    name = f"cycle-{cycle}/{kind}{more}"
    return session.tracker.add_checkpoint(
        session.experiment_id, name, kind, path=name, content_hash=f"{cycle}{kind[0]}" * 32,
        parent_id=session.base.id if parent is None else parent, cycle_id=session.cycle_id(cycle),
    )  # fmt: skip


def leave(session: Session, number: int, decision: str) -> None:
    """Reject a cycle, or roll it back."""
    decide_cycle(session, number, decision, who="Ada", why="wrong documents")


def line(*cycles: int) -> list[str]:
    """Return the names of the checkpoints of cycles, given from the first to the last one, newest first, and base."""
    return [*(f"cycle-{number}/{kind}" for number in cycles[::-1] for kind in ("recovered", "midtrained")), "base"]


def line_of(session: Session, name: str) -> list[str]:
    """Return the names of a checkpoint and its ancestors."""
    checkpoint = session.resolve(name)
    return [checkpoint.name, *(one.name for one in session.registry.ancestors(checkpoint))]
