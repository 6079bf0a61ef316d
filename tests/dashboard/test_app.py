"""Serving: ports, error messages, order and amount of data sent to a browser."""

from __future__ import annotations

import importlib
import re
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from pkgutil import iter_modules
from typing import Any
from urllib.parse import urlsplit

import pytest

from benchmarks._dashboard import Answer, Visitor
from dashboard import app
from dashboard.app import SESSIONS
from dashboard.markup import ASK, PAGES, STYLE
from dashboard.pages import __path__ as PATH
from dashboard.tracker_source import Source
from db import DatabaseError, MissingDatabaseError, Tracker

ROOT = Path(__file__).resolve().parents[2]


def test_a_taken_port_gives_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert app.free_port("127.0.0.1", port) > port
        monkeypatch.setattr(app, "PORTS_TRIED", 1)
        with pytest.raises(DatabaseError, match="no free port"):
            app.free_port("127.0.0.1", port)


def test_a_dashboard_says_that_its_port_is_taken(tmp_path: Path) -> None:
    with Tracker(tmp_path / "tracker.db") as tracker:
        tracker.experiment("main")
    serve = f"from dashboard.app import launch_dashboard as launch; launch({str(tmp_path / 'tracker.db')!r}, port="
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        command = [sys.executable, "-c", f"{serve}{port})"]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            line = process.stdout.readline()
            process.terminate()
    assert line.startswith(f"port {port} is in use. Dashboard at http://127.0.0.1:")


def test_a_host_that_is_not_of_this_machine_is_named() -> None:
    with pytest.raises(DatabaseError, match=r"--host 192.0.2.1 cannot be used \(.*\): give an address of this machine"):
        app.free_port("192.0.2.1", 7860)  # of examples, nobody's


def test_a_malformed_address_is_refused_at_once() -> None:
    with pytest.raises(DatabaseError, match="address is malformed"):
        app.build_app("://nowhere")


def test_a_page_is_sent_its_words_then_its_figures(seeded: Any, serve: Callable[[Path], str]) -> None:
    visitor = Visitor(Place.of(serve(seeded.address)))
    words = visitor.ask("", "load")
    assert "Cycle 3: knowledge +95 points" in words.text and plots(words) == 0
    assert plots(visitor.ask("", "then")) == 2
    again = visitor.tick("")
    assert plots(again) == 0 and "Cycles" not in again.text, "unchanged outputs are not sent again"
    for page in ("geometry", "compare"):
        assert plots(visitor.ask(page, "load")) == 0
    assert plots(visitor.ask("compare", "then")) == 1


def test_only_the_latest_visitors_are_remembered(seeded: Any, serve: Callable[[Path], str]) -> None:
    place = Place.of(serve(seeded.address))
    visitors = [Visitor(place) for _ in range(SESSIONS + 1)]
    for visitor in visitors:
        visitor.load("")
    assert plots(visitors[-1].tick("")) == 0
    assert plots(visitors[0].tick("")) == 2, "a page whose state was evicted is sent in full"


@pytest.mark.parametrize("page", ["", *(pytest.param(name, marks=pytest.mark.slow) for name in ("live", "compare"))])
def test_a_page_has_its_figures_also_if_many_were_opened_since_its_words(
    seeded: Any, serve: Callable[[Path], str], page: str
) -> None:
    place = Place.of(serve(seeded.address))
    usual, waiting = Visitor(place), Visitor(place)
    usual.ask(page, "load")
    count = plots(usual.ask(page, "then"))
    waiting.ask(page, "load")
    for _ in range(SESSIONS):
        Visitor(place, known=usual.known).ask(page, "load")
    assert plots(waiting.ask(page, "then")) == count > 0


@dataclass(frozen=True)
class Place:
    """Host and port of a dashboard."""

    host: str
    port: int

    @classmethod
    def of(cls, address: str) -> Place:
        parts = urlsplit(address)
        return cls(str(parts.hostname), int(parts.port or 0))


def plots(answer: Answer) -> int:
    """Return the number of figures in an answer."""
    return sum(isinstance(one, dict) and one.get("type") == "plotly" for one in answer.outputs)


def test_every_page_is_in_the_navigation_under_its_own_name() -> None:
    found = {module.name: importlib.import_module(f"dashboard.pages.{module.name}") for module in iter_modules(PATH)}
    built = {name: module.NAME for name, module in found.items() if hasattr(module, "NAME")}
    assert set(built) == {*PAGES, ASK}
    assert all(shown == name.capitalize() and hasattr(found[name], "build") for name, shown in built.items())


def test_the_style_comes_with_the_package() -> None:
    assert STYLE.is_file()
    assert "http" not in STYLE.read_text()


def test_small_text_has_the_contrast_that_it_needs() -> None:
    """4.5 is what WCAG 2.2 asks of text below 24 px; faint text had 3.1 on white, two chips a little less than 4.5."""
    light, dark = re.findall(r"^(?::root|\.dark) \{(.*?)^\}", STYLE.read_text(), re.DOTALL | re.MULTILINE)
    for block in (light, dark):
        colours = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", block))
        pairs = [(name, f"{name}-bg") for name in ("good", "warn", "bad", "run")]
        pairs += [(name, ground) for name in ("ink", "soft", "faint") for ground in ("card", "hover")]
        low = {pair: found for pair in pairs if (found := contrast(*(colours[name] for name in pair))) < 4.5}
        assert low == {}


def contrast(one: str, other: str) -> float:
    """Return the contrast of two colours as WCAG defines it."""

    def luminance(colour: str) -> float:
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


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
