"""A distillation stage whose completions come from an SGLang server."""

from __future__ import annotations

import dataclasses

from db import queries
from pipelines.distillation.stage import distill
from pipelines.midtraining.stage import midtrain
from pipelines.runtime.session import Session
from recovery.config import DistillConfig, MidtrainConfig
from tests.sglang_stub import SglangStub


def test_a_stage_samples_on_the_server_and_sends_it_each_step(
    session: Session, midtrain_config: MidtrainConfig, distill_config: DistillConfig
) -> None:
    midtrain(session, midtrain_config)
    stub = SglangStub(session.base.path)
    try:
        distill(session, dataclasses.replace(distill_config, engine=f"sglang+{stub.start()}", overlap=True))
    finally:
        stub.stop()
    stage = queries.stages(session.tracker.database, session.experiment_id)[0]
    curves = queries.series(session.tracker.database, stage.id)
    assert (stage.kind, stage.status, stage.steps_done) == ("distill", "finished", 4)
    assert all(point.value < 1e-3 for point in curves["engine_drift"])
    assert len(stub.updates) == 3, "with --overlap the weights after the third update sample nothing"
