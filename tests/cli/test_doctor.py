"""The findings of `recover doctor`."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch

from db import Database, DatabaseError, Tracker
from pipelines.cli import doctor
from pipelines.cli.doctor import Finding, describe
from pipelines.cli.main import run
from recovery._package_guard import ROOT
from recovery.losses import kernels
from recovery.models import hardware
from recovery.workspace import Workspace


def test_on_a_busy_machine_one_thread_is_recommended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(doctor.os, "sched_getaffinity", lambda _: range(4))
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _: SimpleNamespace(free=2**40))
    for load, threads, advised in ((3.0, "4", True), (3.0, "1", False), (0.1, "4", False)):
        monkeypatch.setattr(doctor.os, "getloadavg", lambda load=load: (load, load, load))
        monkeypatch.setenv("OMP_NUM_THREADS", threads)
        machine = doctor.look_at_machine(tmp_path / "a" / "b")
        assert machine.state == ("note" if advised else "ok")
        assert ("OMP_NUM_THREADS=1" in machine.advice) == advised


def test_little_room_on_the_disk_is_noted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _: SimpleNamespace(free=2**30))
    assert "choose another --workspace" in doctor.look_at_machine(tmp_path).advice


def test_a_kernel_that_does_not_run_is_noted_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hardware, "pick_device", lambda _: torch.device("cuda"))
    monkeypatch.setattr(hardware, "pick_precision", lambda *_: torch.bfloat16)
    for runs, state in ((True, "ok"), (False, "note")):
        monkeypatch.setattr(kernels, "available", lambda _, runs=runs: runs)
        found = doctor.look_at_device()
        assert found.state == state and ("install a C compiler" in found.advice) == (not runs)


def test_a_workspace_below_a_file_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    finding = doctor.look_at_workspace(tmp_path / "file" / "workspace")
    assert finding.state == "failed"
    assert "--workspace" in finding.advice
    assert doctor.look_at_workspace(tmp_path / "new").state == "ok"


def test_a_tracker_that_cannot_be_read_or_written_is_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "workspace"
    assert not doctor.look_at_tracker(Workspace(folder)), "there is none yet"
    new = doctor.look_at_tracker(Workspace(folder, str(tmp_path / "new.db")))
    assert [(one.state, one.line) for one in new] == [("ok", f"{tmp_path / 'new.db'} (does not exist yet)")]
    Tracker(tmp_path / "shared.db").close()
    shared = Workspace(folder, str(tmp_path / "shared.db"))
    assert [one.state for one in doctor.look_at_tracker(shared)] == ["ok"]
    with monkeypatch.context() as patch:
        patch.setattr(Database, "writing", Mock(side_effect=DatabaseError("is write-protected")))
        (found,) = doctor.look_at_tracker(shared)
        assert (found.state, found.line) == ("failed", "is write-protected")
    (tmp_path / "damaged.db").write_text("no database" * 1000)
    for address in (str(tmp_path / "damaged.db"), "postgresql://nobody:secret@127.0.0.1:1/x", "mysql://x/y"):
        (found,) = doctor.look_at_tracker(Workspace(folder, address))
        assert found.state == "failed" and "--database" in found.advice and "secret" not in found.line
    folder.mkdir()
    (folder / "tracker.db").write_text("no database" * 1000)
    assert [one.state for one in doctor.look_at_tracker(Workspace(folder))] == ["failed"]
    assert run(["doctor", "--workspace", str(folder), "--json"]) == 1
    findings = {one["name"]: one["state"] for one in json.loads(capsys.readouterr().out)["findings"]}
    assert findings["tracker"] == "failed"


def test_a_missing_extra_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "EXTRAS", {"docs": ("json", "nosuchreader"), "gguf": ("json",)})
    extras = doctor.look_at_extras()
    assert extras.line == "installed: gguf; not installed: docs"
    assert extras.advice.endswith("pip install 'recovery[NAME]'")
    assert extras.facts == {"docs": False, "gguf": True}


def test_all_extras_are_checked() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert doctor.EXTRAS.keys() == project["optional-dependencies"].keys() - {"dev"}


def test_advice_stands_under_its_line_and_a_failure_is_summed_up() -> None:
    text = describe([Finding("disk", "ok", "plenty"), Finding("torch", "failed", "broken", "reinstall")], ready=False)
    lines = text.splitlines()
    assert lines[1] == "! torch  broken"
    assert lines[2].strip() == "-> reinstall"
    assert lines[-1].startswith("Not ready")
