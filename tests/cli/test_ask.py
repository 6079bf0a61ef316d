"""`recover ask`: each checkpoint's response, in the given order, one model at a time, and nothing written."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import shutil
import sqlite3
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from db import Tracker
from pipelines.cli.main import run
from pipelines.evaluation import ask as asking
from pipelines.runtime.registry import reading
from recovery.models.loaded import Loaded
from recovery.models.loading import load_model
from recovery.rollouts.engine import Sampling
from recovery.rollouts.transformers_engine import TransformersEngine
from recovery.types import Message
from recovery.workspace import Workspace
from tests.cli.conftest import Refused

PROMPT = "Write two words about the harbour."


@pytest.fixture
def place(small_workspace: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The small workspace, as the commands' default."""
    monkeypatch.setenv("RECOVER_WORKSPACE", str(small_workspace))
    return small_workspace


@pytest.fixture
def ask_json(capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """``ask_json("PROMPT", ...)``: the output of `recover ask --json`."""

    def ask(*arguments: str) -> Any:
        capsys.readouterr()
        assert run(["ask", *arguments, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    return ask


def greedy(folder: Path, prompt: str, tokens: int) -> dict[str, Any]:
    """The greedy completion of a model's own engine."""
    loaded = load_model(folder)
    ids = loaded.chat.prompt_ids([Message(role="user", content=prompt)])
    (completion,) = TransformersEngine(loaded).generate([ids], Sampling(tokens, temperature=0.0))
    return {"answer": loaded.chat.text(completion.ids), "tokens": len(completion.ids), "finished": completion.finished}


def contents(folder: Path) -> dict[str, Any]:
    """Every file of a workspace by its hash, and the tracker's rows: reading changes SQLite's own files."""
    files = [path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("tracker.db")]
    with contextlib.closing(sqlite3.connect(folder / "tracker.db")) as connection:
        rows = list(connection.iterdump())
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files} | {"tracker": rows}


def test_the_answers_are_the_engines_own_and_nothing_is_written(place: Path, ask_json: Callable[..., Any]) -> None:
    before = contents(place)
    base, midtrained = ask_json(PROMPT, "--max-new-tokens", "24")
    assert (base["checkpoint"], midtrained["checkpoint"]) == ("base", "cycle-1/midtrained")
    for reply, folder in ((base, "models/miniature"), (midtrained, "checkpoints/cycle-1/midtrained")):
        assert reply.items() >= greedy(place / folder, PROMPT, 24).items()
        assert reply["seconds"] > 0
    assert base["answer"] != midtrained["answer"], "training has changed what it says"
    assert contents(place) == before


def test_they_are_asked_as_named_and_each_once(
    place: Path, ask_json: Callable[..., Any], tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ("latest", "base", "midtrained", str(tiny_model))
    replies = ask_json(PROMPT, "--max-new-tokens", "3", *(f"--checkpoint={name}" for name in names))
    outside = f"external/{tiny_model.name}"
    assert [reply["checkpoint"] for reply in replies] == ["cycle-1/midtrained", "base", outside]
    assert [(reply["tokens"], reply["finished"]) for reply in replies[:2]] == [(3, False)] * 2
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(f"\n{PROMPT}\n".encode())))
    assert ask_json("-", "--max-new-tokens", "3", "--checkpoint", "base")[0]["answer"] == replies[1]["answer"]


def test_one_model_is_in_memory_at_a_time(
    place: Path, ask_json: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[weakref.ref[Any]] = []
    alive: list[int] = []
    load = asking.load_frozen

    def watched(*arguments: Any) -> Loaded:
        alive.append(sum(one() is not None for one in made))
        loaded = load(*arguments)
        made.append(weakref.ref(loaded.core))
        return loaded

    monkeypatch.setattr(asking, "load_frozen", watched)
    ask_json(PROMPT, "--max-new-tokens", "2", "--checkpoint=base", "--checkpoint=latest")
    assert alive == [0, 0]


def test_a_person_reads_a_block_for_each(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["ask", PROMPT, "--max-new-tokens", "4"]) == 0
    printed = capsys.readouterr()
    blocks = [block.splitlines() for block in printed.out.strip().split("\n\n")]
    assert [block[0].partition(" (4 tokens in ")[0] for block in blocks] == ["base", "cycle-1/midtrained"]
    assert all(block[0].endswith("cut off)") and set(block[1]) == {"-"} and block[2] for block in blocks)
    assert printed.err.splitlines() == ["asking base (1 of 2)", "asking cycle-1/midtrained (2 of 2)"]


def test_what_cannot_be_asked_costs_one_line(
    place: Path, tmp_path: Path, refused: Refused, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "the prompt is empty" in refused("ask", " \n")
    assert "use latest, base, cycle-1/midtrained" in refused("ask", PROMPT, "--checkpoint", "cycle-9/recovered")
    assert "no room to answer: its window holds 1,024 tokens" in refused("ask", "word " * 2000)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\xff\xfe")))
    assert "the prompt on standard input is not UTF-8 text" in refused("ask", "-")
    assert "the prompt is not UTF-8 text" in refused("ask", "\udcff"), "what Python makes of such a byte"
    nowhere = tmp_path / "nowhere"
    assert "there is no workspace" in refused("ask", PROMPT, "--workspace", str(nowhere))
    assert not nowhere.exists()


def test_pruned_weights_are_not_asked_unless_named_and_changed_ones_never(
    small_workspace: Path, tmp_path: Path, ask_json: Callable[..., Any], refused: Refused
) -> None:
    copy = shutil.copytree(small_workspace, tmp_path / "copy")
    home = ["--workspace", str(copy), "--max-new-tokens", "2"]
    with (copy / "checkpoints/cycle-1/midtrained/config.json").open("a") as stream:
        stream.write(" ")
    assert "has changed since it was registered" in refused("ask", PROMPT, *home, "--checkpoint", "latest")
    with reading(Workspace(copy)) as registry:
        (made,) = [one for one in registry.all() if one.name == "cycle-1/midtrained"]
    with Tracker(copy / "tracker.db") as tracker:
        tracker.describe_checkpoint(made.id or 0, {"pruned": "2026-01-01"})
    shutil.rmtree(made.path)
    assert [reply["checkpoint"] for reply in ask_json(PROMPT, *home)] == ["base"]
    assert "its weights were pruned on 2026-01-01" in refused("ask", PROMPT, *home, "--checkpoint", "midtrained")


@pytest.mark.slow
def test_as_a_process_only_json_is_on_standard_output(recover: Callable[..., Any], place: Path) -> None:
    finished = recover("ask", PROMPT, "--checkpoint", "base", "--max-new-tokens", "2", "--json", env=dict(os.environ))
    assert [reply["checkpoint"] for reply in json.loads(finished.stdout)] == ["base"]
    assert finished.stderr == "loading torch and transformers\nasking base (1 of 1)\n"
