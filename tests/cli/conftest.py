"""Fixtures of the commands' tests: a document, a workspace that was begun, and what a refused command says."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from pipelines.cli.main import run
from pipelines.runtime.progress import Display
from pipelines.runtime.session import Session

Refused = Callable[..., str]


def write_prompts(folder: Path, count: int) -> Path:
    """Write prompts that ask for an answer without a comma."""
    records = [
        {"key": f"p{n}", "prompt": f"Name boat {n}. Use no comma.", "instruction_id_list": ["punctuation:no_comma"],
         "kwargs": [{}]}
        for n in range(count)
    ]  # fmt: skip
    (folder / "prompts.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return folder / "prompts.jsonl"


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    """The folder ``docs`` with one document, in the test's own folder."""
    folder = tmp_path / "docs"
    folder.mkdir()
    (folder / "a.md").write_text("The harbour office opens at seven. " * 40)
    return folder


@pytest.fixture
def begun(tmp_path: Path, tiny_model: Path) -> Path:
    """The commands' default workspace in the test's own folder, on the tiny model."""
    folder = tmp_path / "recovery-workspace"
    Session.open(folder, model=str(tiny_model), display=Display(quiet=True)).tracker.close()
    return folder


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Refused:
    """``refused("midtrain", ...)``: run a command in the test's own folder; return the one line it was refused with."""
    monkeypatch.chdir(tmp_path)

    def say(*arguments: str | Path) -> str:
        capsys.readouterr()
        assert run([str(argument) for argument in arguments]) == 1
        printed = capsys.readouterr()
        (line,) = [line for line in printed.err.splitlines() if line.startswith("recover: error:")]
        assert printed.out == "", "standard output is for results"
        return line

    return say
