"""A shortened demo on the miniature: every part runs, and its table can be written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pipelines import cycle
from pipelines.cli.main import run as recover
from pipelines.cycle_plan import CyclePlan, drop_plan, planned_recovery
from pipelines.experiments import demo as experiments_demo
from pipelines.experiments.demo import MINIATURE, ONE_TEACHER, REPLAY, TWO_TEACHERS, demo, demo_config, run_variant
from pipelines.runtime.progress import Display
from pipelines.runtime.session import Session
from recovery.errors import UsageError
from recovery.workspace import Workspace

SHORT = {"midtrain_steps": 3, "distill_steps": 1, "until": 0.0, "limit": 20, "max_new_tokens": 16}


@pytest.mark.slow
def test_three_cycles_and_the_table_over_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    display = Display(quiet=True)
    run = run_variant(Workspace(tmp_path), TWO_TEACHERS, seed=0, flags=SHORT, display=display)
    assert len(run.status["cycles"]) == 3
    last = run.status["cycles"][2]["recovered"]
    assert set(last["domain_knowledge_by_corpus"]) == {"1", "2", "3"}
    assert last["general"]["n"] == 20
    assert len(list((tmp_path / "demo" / "two-teachers" / "seed-0" / "demo" / "corpora").glob("q*/*.md"))) > 100
    again = run_variant(Workspace(tmp_path), TWO_TEACHERS, seed=0, flags=SHORT, display=display)
    assert again.status == run.status, "what is done is not done again"
    page = tmp_path / "docs" / "results.md"
    capsys.readouterr()
    assert recover(["demo", "--seeds", "0", "--workspace", str(tmp_path), "--write-docs", str(page), "--json"]) == 0
    (variant,) = json.loads(capsys.readouterr().out)
    assert variant["variant"] == "documents alone, two teachers"
    assert len(variant["figures"]) == 8
    assert "recover demo --seeds 0" in page.read_text()
    assert "not measured" not in page.read_text()
    home = str(tmp_path / "demo" / "two-teachers" / "seed-0")
    assert recover(["demo", "--workspace", home]) == 0
    printed = capsys.readouterr().out
    assert "How to read it" in printed
    n = last["instruction_following"]["n"]
    assert f"Smaller differences may be chance: with {n} prompts you can see a difference of" in printed


def test_variants_change_what_their_names_say(tmp_path: Path) -> None:
    with Session.open(tmp_path / "w", model=MINIATURE, display=Display(quiet=True)) as session:
        plain, replay, one = (
            demo_config(session, [tmp_path], 4, variant.flags) for variant in (TWO_TEACHERS, REPLAY, ONE_TEACHER)
        )
        assert (plain.midtrain.replay, plain.knowledge_teacher, plain.midtrain.seed) == (0.0, "midtrained", 4)
        assert (replay.midtrain.replay, replay.knowledge_teacher) == (0.3, "midtrained")
        assert (one.midtrain.replay, one.knowledge_teacher) == (0.0, None)
        # The recorded runs had the same ordinary prompts in all cycles.
        assert [planned_recovery(session, plain, number).prompts_before for number in (1, 2, 3)] == [0, 0, 0]


def test_a_workspace_that_was_moved_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    display, ran = Display(quiet=True), list[CyclePlan]()
    with Session.open(tmp_path / "w", model=MINIATURE, display=display) as session:
        with monkeypatch.context() as patch:
            patch.setattr(cycle, "run_plan", lambda _session, plan: ran.append(plan))
            demo(session, seed=0, flags=SHORT)
        for number, docs in enumerate(ran[0].config.docs, 1):
            session.tracker.cycle(session.experiment_id, number, documents=str(docs))
    (tmp_path / "w").rename(tmp_path / "moved")
    with Session.open(tmp_path / "moved", display=display) as session:
        monkeypatch.setattr(experiments_demo, "run_plan", lambda _session, plan: ran.append(plan))
        demo(session, seed=0, flags=SHORT)
        corpora = tmp_path / "moved" / "demo" / "corpora"
        assert ran[1].config.docs == (corpora / "q1", corpora / "q2", corpora / "q3")
        drop_plan(session)
        session.tracker.add_checkpoint(
            session.experiment_id, "cycle-3/recovered", "recovered", path="x", content_hash="1" * 64
        )
        demo(session, seed=0, flags=SHORT)
        assert len(ran) == 2, "they are finished"


def test_every_stage_of_the_demo_gets_the_settings_of_an_engine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / "w"
    assert recover(["demo", "--workspace", str(home), "--limit", "2", "--engine-memory", "2"]) == 1
    assert "--engine-memory needs --engine vllm" in capsys.readouterr().err
    assert not home.exists(), "nothing is begun"
    given = {"engine_drift": 0.25, "server_wait": 7.0, "server_timeout": 8.0}
    with Session.open(home, model=MINIATURE, display=Display(quiet=True)) as session:
        config = demo_config(session, [tmp_path], 0, given)
    for settings in (config.midtrain, config.distill, config.eval):
        assert {name: getattr(settings, name) for name in given} == given


@pytest.mark.parametrize("engine", ["vllm", "http://127.0.0.1:9"])
def test_the_engine_of_the_demo_is_the_one_that_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    given: list[dict[str, Any]] = []
    monkeypatch.setattr(experiments_demo, "demo", lambda session, **named: given.append(named["flags"]))
    own = ["--engine-memory", "2", "--engine-sleep"] if engine == "vllm" else ["--engine-folder", str(tmp_path)]
    recover(["demo", "--workspace", str(tmp_path / "w"), "--engine", engine, *own])
    wanted = {"engine_memory": 2.0, "engine_sleep": True} if engine == "vllm" else {"engine_folder": tmp_path}
    assert given == [{"engine": engine} | wanted]


def test_a_workspace_with_other_cycles_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Session.open(tmp_path / "w", model=MINIATURE, display=Display(quiet=True)) as session:
        monkeypatch.setattr(Session, "next_cycle", lambda self: 2)
        with pytest.raises(UsageError, match="already holds cycles of another kind"):
            demo(session, seed=0, flags=SHORT)
