"""The Ask page: real answers from a subprocess, and messages for every failure."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from dashboard.access import Access, hash_password
from dashboard.app import build_app
from dashboard.ask_process import Asker, Asking
from dashboard.pages import ask
from dashboard.tracker_source import Source
from db import DatabaseError, Tracker, queries
from pipelines.cli.main import run

ROOT = Path(__file__).resolve().parents[2]
ADDRESS = "http://127.0.0.1:7860"
HOSTILE = "Write <img src=x onerror=alert(1)> --checkpoint=nowhere '\"$(id)"
PROMPT = "Write two words about the harbour."
LONG = 500.0  # seconds: a busy machine is slow
NAMES = ["base", "cycle-1/midtrained"]


@pytest.fixture
def source(small_workspace: Path) -> Source:
    return Source(small_workspace / "tracker.db", asking=True)


def asked(
    source: Source, asker: Asker, prompt: str = PROMPT, names: list[str] | None = None, tokens: int | None = 8
) -> list[str]:
    """Return everything the page shows, in order."""
    return list(ask._ask(source, asker, prompt, NAMES if names is None else names, tokens))


def offered(source: Source) -> tuple[str, Any]:
    """Return the text above the form, and the choice of checkpoints."""
    _, summary, form, choice = ask._show(source)
    return summary, choice if form["visible"] else None


def text_of(html: str) -> str:
    return unescape(re.sub(r"<[^>]*>", "", html))


def test_without_being_asked_for_there_is_no_such_page(small_workspace: Path) -> None:
    database = small_workspace / "tracker.db"
    with TestClient(build_app(database), base_url=ADDRESS) as client:
        assert client.get("/ask").status_code == 404
        assert client.get("/cycle").status_code == 200
        assert '"ask"' not in client.get("/config").text and 'href=\\"ask' not in client.get("/cycle").text
    with TestClient(build_app(database, Access(ask_seconds=LONG)), base_url=ADDRESS) as client:
        assert client.get("/ask").status_code == 200
        assert 'href=\\"ask' in client.get("/cycle").text, "every page links to it"
    with pytest.raises(DatabaseError, match=r"--ask .* --read-only .*: leave one out"):
        Access(read_only=True, ask_seconds=LONG)


def test_nobody_asks_without_the_password(small_workspace: Path) -> None:
    access = Access({"ada": hash_password("correct horse")}, ask_seconds=LONG)
    with TestClient(build_app(small_workspace / "tracker.db", access), base_url=ADDRESS) as client:
        assert client.get("/ask").status_code == 401
        assert client.post("/gradio_api/queue/join", json={}).status_code == 401


def test_base_and_the_newest_are_chosen_and_pruned_ones_not_offered(
    source: Source, small_workspace: Path, tmp_path: Path
) -> None:
    summary, choice = offered(source)
    assert "One prompt to several checkpoints" in summary
    assert choice["choices"] == choice["value"] == NAMES
    copy = Source(shutil.copytree(small_workspace, tmp_path / "copy") / "tracker.db")
    with Tracker(copy.url) as tracker:
        experiment = queries.experiment(tracker.database, "main")
        assert experiment is not None
        for checkpoint in queries.checkpoints(tracker.database, experiment.id)[::-1]:
            tracker.describe_checkpoint(checkpoint.id, dict(checkpoint.details) | {"pruned": "2026-01-01"})
            summary, choice = offered(copy)
            if checkpoint.name != "base":
                assert choice["value"] == ["base"] and len(choice["choices"]) == 1
    assert "No checkpoint with weights" in summary and choice is None
    assert "No checkpoint with weights" in asked(copy, Asker(LONG))[-1]


def test_every_pages_empty_state_says_what_to_do(seeded: Any, tmp_path: Path) -> None:
    for source, words in (
        (Source(seeded.address), "No workspace for this database"),
        (Source(tmp_path / "tracker.db"), "No experiment here yet"),
    ):
        summary, choice = offered(source)
        assert words in summary and choice is None
        assert words in asked(source, Asker(LONG))[-1]


@pytest.mark.slow
def test_answers_stand_beside_each_other_as_the_command_gives_them(
    source: Source, small_workspace: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []  # every line of the process: polling may miss one
    recorded = property(lambda _: lines[-1], lambda _, line: lines.append(line))
    monkeypatch.setattr(Asking, "last_line", recorded, raising=False)
    *progress, last = asked(source, Asker(LONG), HOSTILE, NAMES[::-1])
    capsys.readouterr()
    assert run(["ask", HOSTILE, "--workspace", str(small_workspace), "--max-new-tokens", "8", "--json"]) == 0
    replies = json.loads(capsys.readouterr().out)
    shown = re.findall(r"<h3>(.*?)</h3><pre>(.*?)</pre>", last, re.DOTALL)
    assert [(name, text_of(text)) for name, text in shown] == [(r["checkpoint"], r["answer"]) for r in replies]
    assert "<mark>" not in shown[0][1] and "<mark>" in shown[1][1], "what differs from base is marked"
    assert last.count("8 tokens in") == last.count("cut off") == 2
    assert "<img" not in last and HOSTILE in text_of(last)
    assert {"asking base (1 of 2)", "asking cycle-1/midtrained (2 of 2)"} <= set(lines)
    assert progress and all(any(line in one for line in lines) for one in progress)


def test_what_is_missing_is_said_before_anything_starts(source: Source, tiny_model: Path) -> None:
    asker = Asker(LONG)
    for words, outputs in (
        ("Give a prompt", asked(source, asker, " \n")),
        ("at most 8,000", asked(source, asker, "a" * 8001)),
        ("Choose one to 4", asked(source, asker, names=[])),
        (
            "Choose one to 4",
            asked(source, asker, names=[str(tiny_model), "nobody/nothing"]),
        ),  # only offered checkpoints
        ("1 to 4,096", asked(source, asker, tokens=0)),
        ("1 to 4,096", asked(source, asker, tokens=None)),
    ):
        assert len(outputs) == 1 and words in outputs[0]


def begin(source: Source, asker: Asker, tokens: int = 8) -> Asking:
    workspace = source.workspace()
    assert workspace is not None
    asking = asker.begin(workspace, NAMES, PROMPT, tokens, source.environment())
    assert asking is not None
    return asking


def started(asking: Asking) -> subprocess.Popen[bytes]:
    """Return the process of a prompt, which another thread starts."""
    while asking._process is None:
        assert not asking.wait(0.01), asking.problem
    return asking._process


def test_one_prompt_at_a_time_and_no_list_of_processes_shows_it(source: Source) -> None:
    asker = Asker(LONG)
    first = begin(source, asker)
    assert "One prompt at a time" in asked(source, asker)[-1]
    process = started(first)
    if Path("/proc/self/cmdline").exists():
        words = Path(f"/proc/{process.pid}/cmdline").read_bytes().split(b"\0")
        assert b"ask" in words and not any(b"harbour" in word for word in words)
    first.stop()
    assert first.wait(LONG)
    begin(source, asker).stop()  # then the next prompt is accepted


def test_out_of_time_it_is_ended_and_the_next_may_ask(source: Source) -> None:
    asker = Asker(1)
    asking = begin(source, asker, tokens=1000)
    assert asking.wait(LONG)
    assert asking._process is not None and asking._process.returncode == -9
    begin(source, asker).stop()
    assert "no answer within 1 s" in asking.problem and "--ask-timeout" in asking.problem


def test_who_leaves_the_page_leaves_no_process_behind(source: Source) -> None:
    asker = Asker(LONG)
    shown = ask._ask(source, asker, PROMPT, NAMES, 8)
    assert 'class="progress"' in next(shown)  # "starting", or the first line of the process
    shown.close()  # as Gradio does when the browser is gone
    assert asker._now is not None and asker._now.wait(LONG)
    assert asker._now._process is not None and asker._now._process.returncode == -9


def test_closing_the_dashboard_ends_what_is_asked(
    source: Source, small_workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Asker] = []
    monkeypatch.setattr("dashboard.app.Asker", lambda seconds: made.append(Asker(seconds)) or made[-1])
    with TestClient(build_app(small_workspace / "tracker.db", Access(ask_seconds=LONG)), base_url=ADDRESS):
        asking = begin(source, made[0])
    assert asking.wait(LONG)
    assert asking._process is not None and asking._process.returncode == -9


@pytest.mark.slow
def test_what_the_command_says_is_what_the_page_says(small_workspace: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(small_workspace, tmp_path / "copy")
    with (copy / "checkpoints/cycle-1/midtrained/config.json").open("a") as stream:
        stream.write(" ")
    last = asked(Source(copy / "tracker.db"), Asker(LONG), names=["cycle-1/midtrained"])[-1]
    assert "No answer" in last and "has changed since it was registered" in last and "recover: error" not in last
    last = asked(Source(copy / "tracker.db"), Asker(LONG), "word " * 1500, ["base"])[-1]
    assert "no room to answer" in last


@pytest.mark.slow
def test_asking_brings_no_torch_into_the_dashboard(small_workspace: Path) -> None:
    code = (
        "import sys\n"
        "from dashboard.ask_process import Asker\n"
        "from dashboard.pages import ask\n"
        "from dashboard.tracker_source import Source\n"
        f"source = Source({str(small_workspace / 'tracker.db')!r})\n"
        "*_, last = ask._ask(source, Asker(500), 'Write two words.', ['base'], 4)\n"
        "assert '<article' in last, last\n"
        "print(sorted({name.split('.')[0] for name in sys.modules} & {'torch', 'transformers', 'recovery'}))"
    )
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
