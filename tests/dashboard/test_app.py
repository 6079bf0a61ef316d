"""Serving: a port of one's own choice or the next, and errors in words."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from dashboard import app
from dashboard.source import Source
from dashboard.theme import STYLE
from db import DatabaseError, MissingDatabaseError, Tracker


def test_a_taken_port_gives_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert app.free_port("127.0.0.1", port) > port
        monkeypatch.setattr(app, "PORTS_TRIED", 1)
        with pytest.raises(DatabaseError, match="no free port"):
            app.free_port("127.0.0.1", port)


def test_a_malformed_address_is_refused_at_once() -> None:
    with pytest.raises(DatabaseError, match="address is malformed"):
        app.build_app("://nowhere")


def test_the_style_comes_with_the_package() -> None:
    assert STYLE.is_file()
    assert "http" not in STYLE.read_text()


def test_a_workspace_made_anew_is_opened_anew(tmp_path: Path) -> None:
    path = tmp_path / "tracker.db"
    source = Source(path)
    with pytest.raises(MissingDatabaseError):
        source.database()
    with Tracker(path) as tracker:
        tracker.experiment("first")
    assert source.experiment(None).name == "first"  # type: ignore[union-attr]
    for file in tmp_path.iterdir():
        file.unlink()
    with Tracker(path) as tracker:
        tracker.experiment("second")
    assert source.experiment(None).name == "second"  # type: ignore[union-attr]
