"""The health check of a running dashboard, without a password."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dashboard import health
from dashboard.access import add_user
from db import Tracker

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def free() -> int:
    """A free port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def first_process(folder: Path, *words: str) -> Path:
    """Write a command line in the format of /proc."""
    file = folder / "cmdline"
    file.write_bytes(b"".join(word.encode() + b"\0" for word in words))
    return file


def asked(file: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """Return the exit status and the output of the check."""
    status = health.main(file)
    return status, capsys.readouterr().out.strip()


@pytest.fixture
def served(tmp_path: Path, free: int) -> Iterator[tuple[Path, Path]]:
    """`recover dashboard` with passwords, as in a container: its command line, and its tracker."""
    workspace, users = tmp_path / "workspace", tmp_path / "users"
    workspace.mkdir()
    (workspace / "workspace.json").write_text('{"format": 1, "model": "miniature"}')
    with Tracker(workspace / "tracker.db") as tracker:
        tracker.experiment("main")
    add_user(users, "ada", "correct horse")
    command = [sys.executable, "-m", "recovery", "dashboard", "--workspace", str(workspace), "--port", str(free)]
    process = subprocess.Popen(
        [*command, "--host", "0.0.0.0", "--auth-file", str(users)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None and "Dashboard at" in process.stdout.readline()
        yield Path(f"/proc/{process.pid}/cmdline"), workspace / "tracker.db"
    finally:
        process.terminate()
        process.wait(300)


def test_a_dashboard_that_works_is_healthy_and_one_without_its_tracker_is_not(
    served: tuple[Path, Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "SECONDS", 300.0)  # the timeout does not matter here
    command_line, tracker = served
    assert asked(command_line, capsys) == (0, "ok")
    tracker.unlink()
    assert asked(command_line, capsys) == (1, "the tracker cannot be read")


def test_a_dashboard_that_does_not_answer_is_not_healthy(
    free: int, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = first_process(tmp_path, "docker-init", "--", "recover", "dashboard", f"--port={free}")
    status, words = asked(file, capsys)
    assert status == 1 and "does not answer" in words
    monkeypatch.setattr(health, "SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", free)):  # accepts connections and never responds
        assert asked(file, capsys)[0] == 1


def test_another_command_has_nothing_to_ask(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (("recover", "demo"), ("recover", "midtrain", "--docs", "dashboard"), ("sleep", "9")):
        assert asked(first_process(tmp_path, *words), capsys) == (0, "no dashboard is served here")


@pytest.mark.parametrize(
    ("words", "port"),
    [
        ("recover dashboard --host 0.0.0.0", 7860),
        ("python3 -m recovery dashboard --port 8000", 8000),
        ("python3 /opt/recovery/bin/recover dashboard --port=8001 --read-only", 8001),
        ("recover report dashboard", None),
    ],
)
def test_the_port_is_the_command_lines(words: str, port: int | None) -> None:
    assert health.served(words.split()) == port
