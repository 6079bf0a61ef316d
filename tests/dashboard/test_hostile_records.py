"""Hostile texts of documents and models in pages, downloads and reports; what every response must keep to."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from fastapi.testclient import TestClient

from benchmarks._dashboard import Visitor
from dashboard.access import Access, hash_password
from dashboard.app import build_app
from dashboard.markup import ASK, PAGES
from pipelines.reports.cycle_report import cycle_report
from pipelines.reports.document import to_html
from pipelines.runtime.progress import Display
from pipelines.runtime.session import Session
from tests.dashboard.hostile_records import NAME, fill, stored, unsafe, unsafe_csv, unsafe_html, unsafe_report
from tests.dashboard.test_access import basic
from tests.dashboard.test_app import Place
from tests.dashboard.web_rules import broken, links

USER = ("ada", "correct horse")
COMPARED = {"experiment": NAME, "first": "base", "second": "cycle-1/midtrained"}
ASKED = [
    *((page, {"experiment": NAME}) for page in ("", *PAGES[1:], ASK) if page not in ("knowledge", "samples", "review")),
    *((page, {"experiment": NAME, "show": "all"}) for page in ("knowledge", "samples")),
    *(("review", COMPARED | {"view": view, "reviewer": f"Bo {NAME}"[:80]}) for view in ("compare", "lost", "results")),
]


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[int]]:
    """A workspace whose every text is hostile, and its evaluations."""
    folder = tmp_path_factory.mktemp("hostile")
    _, evaluations = fill(folder / "tracker.db")
    settings = {"format": 1, "model": "miniature", "experiment": NAME}
    (folder / "workspace.json").write_text(json.dumps(settings))
    return folder, evaluations


@pytest.fixture(scope="module")
def client(hostile: tuple[Path, list[int]]) -> Iterator[TestClient]:
    """A signed-in user of a dashboard on a network."""
    access = Access({"ada": hash_password("correct horse")}, host="0.0.0.0", ask_seconds=100)
    application = build_app(hostile[0] / "tracker.db", access)
    with TestClient(application, base_url="http://dashboard.example", headers=basic(*USER)) as opened:
        yield opened


def test_the_checks_find_what_is_unsafe() -> None:
    link = '<a href="//evil.example">'
    for html in ("<script>", "<p onclick=x>", '<a href=" javascript:x">', link, "<p>\u202ea</p>"):
        assert unsafe_html(html), html
    assert not unsafe_html('<p>\u202ea\u202c <a href="cycle?a=b">x</a> &lt;script&gt;</p>')
    assert unsafe("plot", {"plot": '{"data": [{"name": "<a href=x>"}]}'}) and unsafe_csv("a,b\n1,=1+1\n2\n")
    reply = httpx.Response(200, headers={"set-cookie": "a=b; Path=/"}, html='<script src="http://evil.example/x.js">')
    reply.request = httpx.Request("GET", "http://127.0.0.1/")
    faults = "\n".join(broken(reply))
    for word in ("nosniff", "frame-ancestors", "cache-control", "HttpOnly", "loads <script>"):
        assert word.replace("nosniff", "x-content-type-options") in faults, word
    form = '<form action="samples"><input name="search" value="a b"></form>'
    assert links("http://a/cycle", f'<a href="live#x"></a><a href="http://b/"></a>{form}') == [
        "http://a/live", "http://a/samples?search=a+b",
    ]  # fmt: skip


def test_no_page_interprets_a_hostile_text(hostile: tuple[Path, list[int]], serve: Callable[..., str]) -> None:
    address = serve(hostile[0] / "tracker.db", Access(ask_seconds=100))
    visitor = Visitor(Place.of(address))
    for page, asked in ASKED:
        query = list(asked.items())
        outputs = visitor.ask(page, "load", query).outputs
        if "then" in visitor.known[page]:
            outputs += visitor.ask(page, "then", query).outputs
        shown = [("html" if isinstance(one, str) else "plot", one) for one in outputs]
        assert [fault for kind, one in shown for fault in unsafe(kind, one)] == [], page
        words = "".join(one for one in outputs if isinstance(one, str))
        assert "&lt;script&gt;" in words or quote("<script>") in words, page


def test_no_sheet_has_a_formula_and_the_rest_is_as_recorded(
    hostile: tuple[Path, list[int]], client: TestClient
) -> None:
    folder, evaluations = hostile
    names = ["overview", "votes", "labels", *(f"evaluation/{number}" for number in evaluations), "stage/1", "stage/5"]
    for name in names:
        answer = client.get(f"/download/{name}.csv", params=COMPARED)
        assert (answer.status_code, unsafe_csv(answer.text)) == (200, []), name
    rows = client.get(f"/download/evaluation/{evaluations[1]}.json").json()
    kept = stored(folder / "tracker.db", evaluations[1])
    assert [{key: row[key] for key in kept[0]} for row in rows] == kept and len(rows) > 30


def test_a_report_shows_hostile_texts_as_texts(hostile: tuple[Path, list[int]]) -> None:
    with Session.open(hostile[0], display=Display(quiet=True)) as session:
        html = to_html(*cycle_report(session, 1))
    assert unsafe_report(html) == [] and "&lt;script&gt;alert(1)" in html
    assert unsafe_report("<body><script>alert(1)</script><figure onclick=x>") == [
        "<script>", "figure onclick='x'", "<script>alert",
    ]  # fmt: skip


def test_every_response_keeps_to_the_rules(client: TestClient) -> None:
    replies = [
        client.get(f"/{page}") for page in ("", *PAGES[1:], ASK, "health", "config", "nowhere", "static/", "cycle/")
    ]
    replies += [client.get(f"/download/{name}") for name in ("overview.csv", "stage/999.csv", "x.csv", "stage/x.csv")]
    replies += [client.get("/", headers={"authorization": ""}), client.get("/", headers={"host": "a b"})]
    nothing = {"content-length": "0"}
    for method in ("TRACE", "PUT", "DELETE", "OPTIONS", "PATCH", "POST"):
        replies += [client.request(method, path, headers=nothing) for path in ("/", "/cycle", "/config")]
    for path in ("/cycle", "/config", "/download/overview.csv"):
        about = nothing | {"origin": "http://evil.example", "access-control-request-method": "GET"}
        replies += [client.request(method, path, headers=about) for method in ("GET", "OPTIONS")]
    assert [(str(one.url), fault) for one in replies for fault in broken(one)] == []


def test_only_files_that_are_the_same_for_everyone_are_kept_by_a_browser(client: TestClient) -> None:
    page = client.get("/")
    (script,) = [one for one in links("http://dashboard.example/", page.text) if one.endswith(".js")]
    assert "cache-control" not in client.get(script).headers
    assert client.get("/assets/none.js").headers["cache-control"] == page.headers["cache-control"] == "no-store"


def test_a_report_that_fails_tells_only_the_commands_own_words(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    said = ["loading\nrecover: error: there is no cycle 7\n", 'File "/secret/x.py"\nKeyError: secret\n', ""]

    def end(*_given: Any, **_more: Any) -> Any:
        return SimpleNamespace(returncode=1, stderr=said.pop(0))

    monkeypatch.setattr(subprocess, "run", end)
    answers = [client.get("/download/report/7.html") for _ in range(3)]
    assert [one.status_code for one in answers] == [404, 500, 500]
    assert answers[0].json() == {"detail": "there is no cycle 7"}
    assert not any("secret" in one.text for one in answers) and "KeyError: secret" in caplog.text
