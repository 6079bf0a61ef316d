"""Disks that are full or damaged, and what killed processes leave: one line, and nothing half-written is used."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors.torch
import torch
from safetensors import SafetensorError
from tokenizers import Tokenizer

from recovery.disk import replace_folder, sweep, sync, user_cache, written
from recovery.errors import UsageError
from recovery.training.resume_state import States, resume_step
from recovery.workspace import write_atomically


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_what_killed_processes_left_is_removed_or_put_back(tmp_path: Path) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    for name in (f".writing-{ended.pid}-plan.json", f".writing-{os.getppid()}-plan.json", ".writing-recovered"):
        (tmp_path / name).touch()
    for name in (".old-midtrained", ".old-recovered", "recovered"):
        (tmp_path / name).mkdir()
    sweep([tmp_path, tmp_path / "nowhere"])
    assert names(tmp_path) == {f".writing-{os.getppid()}-plan.json", "midtrained", "recovered"}


def test_a_file_that_cannot_be_written_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UsageError, match=r"plan\.json cannot be written \(No space left on device\): check"):
        write_atomically(tmp_path / "plan.json", "{}")
    assert names(tmp_path) == set()


def test_a_disk_that_fails_at_the_last_moment_is_not_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some file systems report only then that there is no space; some cannot do it for folders."""

    def failing(number: int) -> Callable[[int], None]:
        def fail(_handle: int) -> None:
            raise OSError(number, os.strerror(number))

        return fail

    monkeypatch.setattr(os, "fsync", failing(errno.EIO))
    with pytest.raises(OSError, match="Input/output error"):
        sync(tmp_path)
    monkeypatch.setattr(os, "fsync", failing(errno.EINVAL))
    sync(tmp_path)


def test_a_state_that_does_not_fit_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_tensors: object, name: Path, **_: object) -> None:
        Path(name).write_bytes(b"half")
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(safetensors.torch, "serialize_file", full)
    with pytest.raises(UsageError, match=r"step-000002 cannot be written \(.*No space left.*\): check"):
        States(tmp_path, 2).write(2, {"w": torch.ones(3)}, {})
    assert names(tmp_path) == set()


@pytest.mark.parametrize("name", ["state.safetensors", "state.json", "sums.json"])
def test_a_state_with_one_wrong_bit_is_not_read(tmp_path: Path, name: str) -> None:
    saved = States(tmp_path, 2)
    for step in (2, 4):
        saved.write(step, {"w": torch.full((3,), float(step))}, {"trained": step})
    path = tmp_path / "step-000004" / name
    data = bytearray(path.read_bytes())
    data[-2] ^= 1
    path.write_bytes(data)
    found = saved.read()
    assert found is not None
    assert (resume_step(tmp_path), found[0]["trained"], found[1].get("w").tolist()) == (2, 2, [2.0] * 3)
    saved.write(4, {"w": torch.full((3,), 4.0)}, {"trained": 4})
    assert resume_step(tmp_path) == 4, "it is replaced by the step's new state"


@pytest.mark.parametrize(
    ("keep", "before", "damaged", "written", "left"),
    [
        (2, [50, 100], [], 150, {100, 150}),
        (2, [50, 57], [], 61, {50, 61}),
        (2, [50, 61], [], 100, {61, 100}),
        (2, [50, 100], [100], 60, {50, 60}),
        (1, [50], [], 57, {50, 57}),
    ],
)
def test_the_newest_regular_state_and_the_one_just_written_stay(
    tmp_path: Path, keep: int, before: list[int], damaged: list[int], written: int, left: set[int]
) -> None:
    for step in before:
        States(tmp_path, 9, 50).write(step, {"w": torch.ones(3)}, {})
    for step in damaged:
        (tmp_path / f"step-{step:06d}" / "state.safetensors").write_bytes(b"torn")
    (tmp_path / ".writing-000055").mkdir()  # a kill left it
    States(tmp_path, keep, 50).write(written, {"w": torch.ones(3)}, {})
    assert names(tmp_path) == {f"step-{step:06d}" for step in left}
    assert resume_step(tmp_path) == max(left)


def test_a_tokenizer_that_does_not_fit_leaves_nothing_and_says_so(tmp_path: Path) -> None:
    """Its library raises a plain Exception; other plain exceptions stay what they are."""
    writing, line = tmp_path / ".writing", r"midtrained cannot be written \(No space left on device.*\): check"
    writing.mkdir()
    with pytest.raises(UsageError, match=line), written(tmp_path / "midtrained", writing):
        raise Exception("No space left on device (os error 28)")
    assert names(tmp_path) == set()
    with pytest.raises(Exception, match="^a fault of ours$"), written(tmp_path / "a", tmp_path / "b"):
        raise Exception("a fault of ours")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_the_tokenizers_library_says_which_error_of_the_system_it_met(tiny_model: Path) -> None:
    with pytest.raises(Exception, match="os error 28") as caught:
        Tokenizer.from_file(str(tiny_model / "tokenizer.json")).save("/dev/full")
    assert caught.type is Exception


def test_without_a_readable_state_a_run_begins_anew(tmp_path: Path) -> None:
    (tmp_path / "step-000004").mkdir()
    assert resume_step(tmp_path) == 0


def test_the_state_of_a_step_is_written_once(tmp_path: Path) -> None:
    for value in (1.0, 2.0):
        States(tmp_path, 2).write(4, {"w": torch.full((3,), value)}, {})
    found = States(tmp_path, 2).read()
    assert found is not None and found[1].get("w").tolist() == [1.0] * 3


@pytest.mark.parametrize("left", [(), ("folder",), ("folder", ".old-folder")])
def test_a_complete_folder_takes_the_place_of_another(tmp_path: Path, left: tuple[str, ...]) -> None:
    for name in (".writing-folder", *left):
        (tmp_path / name / name).mkdir(parents=True)
    replace_folder(tmp_path / ".writing-folder", tmp_path / "folder")
    assert names(tmp_path) == {"folder"} and names(tmp_path / "folder") == {".writing-folder"}


def test_the_cache_is_where_the_user_has_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert user_cache("runs") == tmp_path / "recovery" / "runs"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert user_cache("runs") == tmp_path / ".cache" / "recovery" / "runs"
