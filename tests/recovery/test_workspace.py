"""The workspace: paths, checkpoint names, and errors."""

from __future__ import annotations

import errno
import fcntl
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from pipelines.runtime.checkpoint_names import find, unknown_name
from recovery.errors import UsageError
from recovery.workspace import Checkpoint, Workspace, model_key, write_atomically


@dataclass
class Registered:
    """An index of the given checkpoints; the last one is the latest."""

    found: Sequence[Checkpoint]

    def all(self) -> Sequence[Checkpoint]:
        return self.found

    def latest(self) -> Checkpoint | None:
        return self.found[-1] if self.found else None


def checkpoint(name: str, kind: str, folder: Path = Path("/nowhere")) -> Checkpoint:
    return Checkpoint(name, kind, folder / name, "hash", folder / name)


def test_names_find_the_newest_of_their_kind(tmp_path: Path) -> None:
    names = [("base", "base"), ("cycle-1/midtrained", "midtrained"), ("cycle-1/recovered", "recovered")]
    names += [("cycle-2/midtrained", "midtrained")]
    index = Registered([checkpoint(name, kind, tmp_path) for name, kind in names])
    found = {name: find(name, index) for name in ("base", "latest", "midtrained", "recovered", "cycle-1/midtrained")}
    assert {name: c.name for name, c in found.items() if c is not None} == {
        "base": "base",
        "latest": "cycle-2/midtrained",
        "midtrained": "cycle-2/midtrained",
        "recovered": "cycle-1/recovered",
        "cycle-1/midtrained": "cycle-1/midtrained",
    }
    assert find("cycle-7/recovered", index) is None
    assert find("midtrained", Registered([])) is None
    (tmp_path / "base").mkdir()
    assert find(str(tmp_path / "base"), index) == index.all()[0]
    assert "latest, base, cycle-1/midtrained" in str(unknown_name("x", index))


def test_paths_inside_are_stored_relative_and_outside_absolute(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path / "w")
    inside = workspace.checkpoint("cycle-1/recovered")
    assert workspace.stored(inside) == "checkpoints/cycle-1/recovered"
    assert workspace.found("checkpoints/cycle-1/recovered") == inside
    assert workspace.stored(tmp_path / "model") == str(tmp_path / "model")
    assert workspace.found(str(tmp_path / "model")) == tmp_path / "model"


def test_a_workspace_has_one_model(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path / "w")
    assert not workspace.exists
    workspace.check_model("anything")
    workspace.remember("miniature")
    assert workspace.exists
    workspace.check_model(None)
    workspace.check_model("miniature")
    with pytest.raises(UsageError, match=r"is miniature, not ORG/MODEL: nothing was trained in it: delete it, or use "):
        workspace.check_model("ORG/MODEL")
    workspace.checkpoint("cycle-1/midtrained").mkdir(parents=True)
    with pytest.raises(UsageError, match=r"is miniature, not ORG/MODEL: omit --model, or use another --workspace"):
        workspace.check_model("ORG/MODEL")
    assert model_key(str(tmp_path / "w" / "..")) == str(tmp_path)


def test_a_damaged_or_newer_workspace_is_refused(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    (tmp_path / "workspace.json").write_text("{")
    with pytest.raises(UsageError, match="cannot be read"):
        workspace.settings()
    (tmp_path / "workspace.json").write_text(json.dumps({"format": 99, "model": "x"}))
    with pytest.raises(UsageError, match="newer version"):
        workspace.settings()


def test_a_lock_of_which_no_workspace_came_leaves_nothing(tmp_path: Path) -> None:
    """A refused command left a folder with nothing but a lock."""
    (tmp_path / "mine").mkdir()
    for folder in ("a/b/c", "mine"):
        with Workspace(tmp_path / folder).lock("recover midtrain"):
            assert (tmp_path / folder / "lock").is_file()
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
    assert not list((tmp_path / "mine").iterdir())
    with Workspace(tmp_path / "full").lock("recover midtrain"):
        (tmp_path / "full" / "tracker.db").touch()
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["tracker.db"]
    kept = Workspace(tmp_path / "kept")
    with kept.lock("recover midtrain"):
        kept.remember("miniature")
    assert sorted(path.name for path in kept.folder.iterdir()) == ["lock", "workspace.json"]


def test_a_lock_that_another_holds_is_left_alone(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path / "w")
    with workspace.lock("recover midtrain"):
        with pytest.raises(UsageError, match="recover midtrain .process"), workspace.lock("recover distill"):
            pass
        assert (tmp_path / "w" / "lock").is_file()
        with pytest.raises(UsageError, match="is using"), workspace.lock("recover distill"):
            pass
    assert not (tmp_path / "w").exists()


def test_a_lock_whose_file_its_holder_removes_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes would both hold one: that of a removed file, and a new one."""
    workspace, flock, ended = Workspace(tmp_path / "w"), fcntl.flock, []

    def as_another_ends(handle: int, operation: int) -> None:
        if not ended:
            shutil.rmtree(workspace.folder)
            ended.append(handle)
        flock(handle, operation)

    monkeypatch.setattr("fcntl.flock", as_another_ends)
    with workspace.lock("recover midtrain"):
        assert ended
        with pytest.raises(UsageError, match="recover midtrain .process"), workspace.lock("recover distill"):
            pass


def test_a_file_system_without_locks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(handle: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", refuse)
    with (
        pytest.raises(UsageError, match=r"cannot be locked, its file system has no locks \(No locks available\)"),
        Workspace(tmp_path).lock("recover midtrain"),
    ):
        pass


def test_files_are_written_atomically(tmp_path: Path) -> None:
    write_atomically(tmp_path / "deep" / "file", "one")
    write_atomically(tmp_path / "deep" / "file", "two")
    assert (tmp_path / "deep" / "file").read_text() == "two"
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["file"]
