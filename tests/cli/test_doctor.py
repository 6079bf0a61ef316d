"""The findings of `recover doctor`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from db import Tracker
from pipelines.cli import doctor
from pipelines.cli.doctor import Finding, billions, describe, existing_parent
from pipelines.cli.main import run
from recovery.workspace import Workspace


def test_on_a_busy_machine_one_thread_is_recommended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.os, "getloadavg", lambda: (3.0, 3.0, 3.0))
    busy = doctor.look_at_threads(threads=4, cores=4)
    assert busy.state == "note"
    assert "OMP_NUM_THREADS=1" in busy.advice
    assert doctor.look_at_threads(threads=1, cores=4).state == "ok"
    monkeypatch.setattr(doctor.os, "getloadavg", lambda: (0.1, 0.1, 0.1))
    assert doctor.look_at_threads(threads=4, cores=4).state == "ok"


def test_a_kernel_that_does_not_run_is_noted_with_its_remedy() -> None:
    assert doctor.look_at_kernel(True).state == "ok"
    missing = doctor.look_at_kernel(False)
    assert missing.state == "note" and "install a C compiler" in missing.advice


def test_what_fits_leaves_a_quarter_of_the_memory() -> None:
    facts = doctor.look_at_sizes(32 * 2**30, "bfloat16").facts
    assert facts["full_parameters"] == 0.75 * 32 * 2**30 / 16
    assert facts["lora_parameters"] == 0.75 * 32 * 2**30 / 2


def test_a_workspace_below_a_file_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    finding = doctor.look_at_workspace(tmp_path / "file" / "workspace")
    assert finding.state == "failed"
    assert "--workspace" in finding.advice
    assert doctor.look_at_workspace(tmp_path / "new").state == "ok"


def test_a_tracker_that_cannot_be_read_is_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "workspace"
    assert not doctor.look_at_tracker(Workspace(folder)), "there is none yet"
    new = doctor.look_at_tracker(Workspace(folder, str(tmp_path / "new.db")))
    assert [(one.state, one.line) for one in new] == [("ok", f"{tmp_path / 'new.db'} (does not exist yet)")]
    Tracker(tmp_path / "shared.db").close()
    assert [one.state for one in doctor.look_at_tracker(Workspace(folder, str(tmp_path / "shared.db")))] == ["ok"]
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
    monkeypatch.setattr(doctor, "EXTRAS", {"docs": ("nosuchreader",)})
    missing = doctor.look_at_extras()[0]
    assert missing.state == "missing"
    assert missing.advice == "pip install 'recovery[docs]'"
    assert missing.facts == {"installed": False}


def test_the_nearest_existing_folder(tmp_path: Path) -> None:
    assert existing_parent(tmp_path / "a" / "b") == tmp_path.resolve()
    assert existing_parent(tmp_path) == tmp_path.resolve()


def test_sizes_in_words() -> None:
    assert billions(1.26e9) == "1.3B"
    assert billions(6e8) == "600M"


def test_advice_stands_under_its_line_and_a_failure_is_summed_up() -> None:
    text = describe([Finding("disk", "ok", "plenty"), Finding("torch", "failed", "broken", "reinstall")], ready=False)
    lines = text.splitlines()
    assert lines[1] == "! torch  broken"
    assert lines[2].strip() == "-> reinstall"
    assert lines[-1].startswith("Not ready")
