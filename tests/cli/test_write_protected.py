"""Commands that only read work in a workspace that they may not write to; others say in one line why they do not."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from db import DatabaseError
from pipelines.cli.main import run
from pipelines.runtime.progress import Display
from pipelines.runtime.session import Session
from recovery.workspace import Workspace
from tests.torture.disks import can_mount, mounted


@pytest.fixture(scope="module")
def protected(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[Path]:
    """A workspace with one cycle, on a file system that is mounted for reading only: root may write elsewhere."""
    if not can_mount():
        pytest.skip("a file system cannot be mounted here")
    folder = tmp_path_factory.mktemp("protected") / "w"
    with mounted(folder, "size=32m") as remount:
        with Session.open(Workspace(folder), model=str(tiny_model), display=Display(quiet=True)) as session:
            tracker, experiment, base = session.tracker, session.experiment_id, session.base
            cycle = tracker.cycle(experiment, 1, documents="./q5", corpus_hash="c" * 64)
            known = {"path": str(base.path), "content_hash": base.hash, "parent_id": base.id, "cycle_id": cycle}
            tracker.add_checkpoint(experiment, "cycle-1/recovered", "recovered", **known)
        remount("ro")
        yield folder


def test_commands_that_only_read_do(protected: Path, tmp_path: Path) -> None:
    where = ["--workspace", str(protected)]
    assert not os.access(protected, os.W_OK)
    assert run(["report", "1", "--no-figures", "--out", str(tmp_path / "reports"), *where]) == 0
    assert (tmp_path / "reports" / "cycle-1.md").read_text().startswith("# ")
    assert run(["export", "cycle-1/recovered", str(tmp_path / "model"), *where]) == 0
    assert (tmp_path / "model" / "model.safetensors").is_file()
    assert run(["status", *where]) == 0


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("gate", "is write-protected, and a judgement is recorded there: judge a copy"),
        ("report", "is write-protected: name another folder for the report with --out FOLDER"),
        ("accept 1 --why good", "tracker.db cannot be opened: unable to open database file (check that the folder"),
        ("eval base", "tracker.db cannot be opened: unable to open database file (check that the folder"),
        ("midtrain --docs docs --dry-run", "is write-protected: use --workspace"),
        ("cycle --docs docs --dry-run", "is write-protected: use --workspace"),
        ("midtrain --docs docs", "(Read-only file system): check the folder, its rights and the disk"),
    ],
)
def test_what_is_recorded_there_is_refused_in_one_line(
    protected: Path,
    command: str,
    words: str,
    tmp_path: Path,
    docs: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run([*command.split(), "--workspace", str(protected)]) == 1
    said = capsys.readouterr().err
    assert words in said and said.count("recover: error:") == 1 and "Traceback" not in said


def test_a_session_that_reads_refuses_each_write(protected: Path) -> None:
    with (
        Session.open(Workspace(protected), reads=True, display=Display(quiet=True)) as session,
        pytest.raises(DatabaseError, match="opened for reading only"),
    ):
        session.tracker.event(session.experiment_id, "words")
