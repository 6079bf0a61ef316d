"""Whole stages through vLLM: the miniature recovers as it does through transformers; the next answers come ahead."""

from __future__ import annotations

import dataclasses
import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from db import queries
from examples.studies.runner import Runner
from examples.studies.study import INSTRUCTIONS
from pipelines.data.probe_build import writer_of
from pipelines.distillation.stage import distill
from pipelines.runtime.engines import engine_of
from pipelines.runtime.model_loading import load_frozen
from pipelines.runtime.progress import Display
from pipelines.runtime.session import Session
from recovery.config import DistillConfig, EvalConfig, build
from recovery.data.corpus.folder import read_corpus
from recovery.miniature.corpora import write_corpora
from tests.vllm.conftest import SHAPE

pytestmark = [pytest.mark.vllm, pytest.mark.slow]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    """A laboratory on the miniature, with a model that has read documents and lost its manners."""
    with Session.open(tmp_path_factory.mktemp("recovery") / "w", model="miniature") as session:
        made = Runner(session, 0, items=100)
        made.midtrained("documents", made.corpora(entities=8)[0], steps=60, lr=3e-3)
        yield made


def test_the_miniature_recovers_through_vllm_as_through_transformers(lab: Runner) -> None:
    session = lab.session
    settings: dict[str, Any] = {
        "student": "documents",
        "steps": 30,
        "prompts_per_step": 24,
        "samples_per_prompt": 1,
        "max_new_tokens": 48,
        "lr": 1e-3,
        "until": 0,
        "plateau": 0,
        "precision": "float32",
    }
    scores = {}
    for engine in ("transformers", "vllm"):
        made = distill(session, build(DistillConfig, settings | {"engine": engine}, session.recipe), name=engine)
        asked = build(EvalConfig, {"engine": engine, "precision": "float32"}, session.recipe)
        loaded = load_frozen(made, asked)
        with engine_of(loaded, asked) as answering:
            scores[engine] = lab.ask(loaded, answering, INSTRUCTIONS).score
    degraded = lab.ask(*lab.loaded("documents"), INSTRUCTIONS).score
    ours, theirs = scores["vllm"], scores["transformers"]
    assert ours.value > degraded.value + 0.1 and theirs.value > degraded.value + 0.1
    spread = (ours.stderr**2 + theirs.stderr**2) ** 0.5
    assert abs(ours.value - theirs.value) < 2 * spread
    stage = next(
        s
        for s in queries.stages(session.tracker.database, session.experiment_id, kind="distill")
        if s.config["engine"] == "vllm"
    )
    curves = queries.series(session.tracker.database, stage.id)
    assert max(point.value for point in curves["engine_drift"]) < 1e-3
    assert [round(point.value, 2) for point in curves["ratio"]] == [1.0] * 30


def test_a_model_writes_questions_through_vllm(lab: Runner, tmp_path: Path) -> None:
    (folder,) = write_corpora(tmp_path, 1, 3, entities=6, documents=6)
    asked = build(EvalConfig, {"engine": "vllm", "precision": "float32"}, lab.session.recipe)
    probes = writer_of(lab.session, lab.session.base, asked)(read_corpus(folder), 12)
    assert len(probes) >= 6
    assert all(probe.question and probe.answers for probe in probes)


def test_evaluation_through_vllm_gives_the_answers_of_transformers(
    recover: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    flags = ["--workspace", tmp_path / "w", "--limit", "30", "--precision", "float32", "--json"]
    told = [
        json.loads(recover("eval", "base", *flags, "--engine", engine, timeout=900).stdout)
        for engine in ("transformers", "vllm")
    ]
    assert told[0]["scores"] == told[1]["scores"]


@pytest.mark.parametrize("tuning", ["lora", "full"])
def test_the_next_answers_are_sampled_while_a_batch_trains(
    engine_server: Any,
    make_tiny: Callable[..., Path],
    tied: Path,
    tmp_path: Path,
    tuning: str,
) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(f'{{"key": "{n}", "prompt": "Name a boat of pier {n}."}}\n' for n in range(24)))
    student = tied if tuning == "lora" else make_tiny("qwen3", tmp_path / "student", seed=3, **SHAPE)
    config = DistillConfig(
        student="base",
        teacher=str(make_tiny("qwen3", tmp_path / "teacher", seed=4, **SHAPE)),
        engine=engine_server.address,
        overlap=True,
        steps=6,
        prompts_per_step=4,
        samples_per_prompt=2,
        max_new_tokens=12,
        lr=1e-2,
        precision="float32",
        tuning=tuning,
        lora_rank=8,
        prompts=prompts,
        until=0,
        plateau=0,
        alarm=False,
    )
    with Session.open(tmp_path / "workspace", model=str(student), display=Display(quiet=True)) as session:
        distill(session, config)
        stage = queries.stages(session.tracker.database, session.experiment_id)[0]
        curves = {
            name: [point.value for point in points]
            for name, points in queries.series(session.tracker.database, stage.id).items()
        }
        assert curves["staleness"] == [0.0, *[1.0] * 5]
        assert max(curves["engine_drift"]) < 1e-3, "when it took the weights over, the engine had them"
        assert curves["ratio"][0] == pytest.approx(1, abs=1e-3)
        assert max(abs(ratio - 1) for ratio in curves["ratio"][1:]) > 1e-3, "older weights are told by their ratio"
        alone = distill(session, dataclasses.replace(config, overlap=False), name="alone")
        assert alone.name == "alone"
        newest = queries.stages(session.tracker.database, session.experiment_id)[0]
        ratios = [point.value for point in queries.series(session.tracker.database, newest.id)["ratio"]]
        assert ratios == pytest.approx([1.0] * 6, abs=1e-3), "in turn, nothing is stale"
