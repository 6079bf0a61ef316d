"""Access: passwords, other machines, other sites, security headers, downloads."""

from __future__ import annotations

import asyncio
import base64
import csv
import errno
import io
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from fastapi.testclient import TestClient

from dashboard import access, downloads
from dashboard.access import LONGEST_REQUEST, Access, Users, add_user, hash_password, is_loopback, matches, with_port
from dashboard.app import Forwarded, Guard, build_app
from dashboard.tracker_source import Source
from db import DatabaseError, Tracker

HERE = {"host": "127.0.0.1:7860"}


def basic(name: str, password: str) -> dict[str, str]:
    return {"authorization": "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()}


@pytest.fixture
def client(seeded: Any) -> Iterator[TestClient]:
    with TestClient(build_app(seeded.address), base_url="http://127.0.0.1:7860") as opened:
        yield opened


def test_passwords_are_kept_as_slow_hashes() -> None:
    kept = hash_password("correct horse")
    assert "correct" not in kept and matches("correct horse", kept) and not matches("correct hors", kept)
    assert hash_password("correct horse") != kept, "each with its own salt"


def test_a_file_of_users_is_private_and_shows_its_faults(tmp_path: Path) -> None:
    path = tmp_path / "users"
    add_user(path, "ada", "correct horse")
    add_user(path, "bob", "battery staple")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert set(Users(path)) == {"ada", "bob"}
    for name, password, words in (("a:b", "12345678", "colon"), ("", "12345678", "empty"), ("eve", "short", "8 char")):
        with pytest.raises(DatabaseError, match=words):
            add_user(path, name, password)
    for text, words in (("ada:secret", "line 1 is not"), ("ada:scrypt$abc$00", "line 1 is not"), ("# x", "no users")):
        path.write_text(f"{text}\n")
        with pytest.raises(DatabaseError, match=words):
            Users(path)
    with pytest.raises(DatabaseError, match="--add-user"):
        Users(tmp_path / "missing")


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_users_that_cannot_be_written_are_as_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    path = tmp_path / "users"
    add_user(path, "ada", "correct horse")
    before = path.read_bytes()

    def full(_: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DatabaseError, match=f"users cannot be written.*{os.strerror(number)}") as raised:
        add_user(path, "bob", "battery staple")
    assert "\n" not in str(raised.value)
    assert path.read_bytes() == before and [one.name for one in tmp_path.iterdir()] == ["users"]
    with pytest.raises(DatabaseError, match="cannot be written"):
        add_user(tmp_path / "nowhere" / "users", "ada", "correct horse")


def test_a_file_of_users_keeps_its_rights_its_comments_and_its_link(tmp_path: Path) -> None:
    path, link = tmp_path / "kept" / "users", tmp_path / "users"
    path.parent.mkdir()
    path.write_text("# who may decide\n\n")
    path.chmod(0o640)
    link.symlink_to(path)
    for name, password in (("ada", "correct horse"), ("bob", "battery staple"), ("ada", "another good one")):
        add_user(link, name, password)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640 and link.is_symlink()
    assert path.read_text().startswith("# who may decide\n\nbob:scrypt$")
    assert matches("another good one", Users(link)["ada"]) and set(Users(link)) == {"ada", "bob"}
    path.write_text("ada:secret\n")
    with pytest.raises(DatabaseError, match="line 1 is not NAME:HASH"):
        add_user(path, "bob", "battery staple")
    assert path.read_text() == "ada:secret\n"


def test_a_name_that_would_break_the_file_is_refused(tmp_path: Path) -> None:
    for name in ("a\u2028b", "a\rb", "a\x85b", "a\x00", "\ud800", " ada", "#ada"):
        with pytest.raises(DatabaseError, match="cannot be a name"):
            add_user(tmp_path / "users", name, "correct horse")
    assert not (tmp_path / "users").exists()


def test_users_added_at_the_same_time_are_all_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, real = tmp_path / "users", access.replace

    def slowly(*given: Any) -> None:
        time.sleep(0.05)  # between reading and writing
        real(*given)

    monkeypatch.setattr("dashboard.access.replace", slowly)
    names = [f"user {number}" for number in range(5)]
    adding = [threading.Thread(target=add_user, args=(path, name, "correct horse")) for name in names]
    for one in adding:
        one.start()
    for one in adding:
        one.join()
    assert sorted(Users(path)) == names


def test_a_user_who_is_removed_or_has_another_password_is_signed_out(tmp_path: Path) -> None:
    path = tmp_path / "users"
    add_user(path, "ada", "correct horse")
    add_user(path, "bob", "battery staple")
    access = Access(Users(path))
    ada, bob = (basic(*one)["authorization"] for one in (("ada", "correct horse"), ("bob", "battery staple")))
    assert (access.user(ada), access.user(bob)) == ("ada", "bob")
    add_user(path, "ada", "another good one")
    assert access.known(ada) is access.user(ada) is None
    assert access.known(bob) == "bob", "the others stay signed in"
    assert access.user(basic("ada", "another good one")["authorization"]) == "ada"
    path.write_text("".join(line for line in path.read_text().splitlines(True) if not line.startswith("bob:")))
    assert access.known(bob) is access.user(bob) is None


def test_while_the_users_cannot_be_read_nobody_has_access(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "users"
    add_user(path, "ada", "correct horse")
    access, key = Access(Users(path)), basic("ada", "correct horse")["authorization"]
    good = path.read_text()
    assert access.user(key) == "ada"
    for text in ("", "ada:secret\n"):
        path.write_text(text)
        assert access.known(key) is access.user(key) is None
    path.unlink()
    assert access.known(key) is None
    assert [one.message.partition(":")[0] for one in caplog.records] == ["nobody has access"] * 3
    path.write_text(good)
    assert access.known(key) == "ada"


def test_the_users_are_read_once_for_many_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "users"
    add_user(path, "ada", "correct horse")
    access, key = Access(Users(path)), basic("ada", "correct horse")["authorization"]
    monkeypatch.setattr(Path, "read_text", None)
    assert access.user(key) == "ada"
    assert [access.known(key) for _ in range(3)] == ["ada"] * 3


def test_a_stream_ends_with_its_users_access(tmp_path: Path) -> None:
    path = tmp_path / "users"
    add_user(path, "ada", "correct horse")
    headers = {"host": "127.0.0.1:7860", **basic("ada", "correct horse")}
    scope = {
        "type": "http", "method": "GET", "path": "/gradio_api/queue/data",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
    }  # fmt: skip
    sent: list[Any] = []

    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        await send({"type": "http.response.body", "body": b"first", "more_body": True})
        add_user(path, "ada", "another good one")
        for _ in range(2):
            await send({"type": "http.response.body", "body": b"later", "more_body": True})

    async def keep(message: Any) -> None:
        sent.append(message)

    async def nothing() -> Any:
        return {"type": "http.request"}

    asyncio.run(Guard(app, Access(Users(path)))(scope, nothing, keep))
    assert [one.get("body") for one in sent] == [None, b"first", b""] and not sent[-1].get("more_body")


def test_a_running_dashboard_signs_out_a_user_with_another_password(
    seeded: Any, tmp_path: Path, serve: Callable[..., str]
) -> None:
    path = tmp_path / "users"
    add_user(path, "ada", "correct horse")
    address = serve(seeded.address, Access(Users(path)))
    with httpx.Client(base_url=address, headers=basic("ada", "correct horse"), timeout=300) as http:
        assert http.get("/cycle").status_code == 200
        add_user(path, "ada", "another good one")
        assert http.get("/cycle").status_code == http.get("/download/overview.csv").status_code == 401
        assert http.get("/cycle", headers=basic("ada", "another good one")).status_code == 200


def test_other_machines_need_a_name() -> None:
    with pytest.raises(DatabaseError, match="--auth-file"):
        Access(host="0.0.0.0")
    assert Access({"ada": hash_password("correct horse")}, host="0.0.0.0").user(None) is None
    assert all(map(is_loopback, ("localhost", "127.8.0.1", "::1")))
    assert not any(map(is_loopback, ("0.0.0.0", "10.0.0.1", "example.org")))


def test_a_name_is_proven_once_and_a_wrong_one_never() -> None:
    access = Access({"ada": hash_password("correct horse")})
    good = basic("ada", "correct horse")["authorization"]
    wrong = [basic(*one)["authorization"] for one in (("ada", "wrong"), ("eve", "correct horse"))]
    for bad in (*wrong, "Basic ???", "Basic é", "Basic /w==", "Basic", ""):
        assert access.user(bad) is access.known(bad) is None, bad
    assert access.known(good) is None, "it was not hashed yet"
    assert access.user(good) == access.user(good) == access.known(good) == "ada"
    assert Access().user(None) == ""


def test_without_the_password_nothing_is_shown(seeded: Any) -> None:
    access = Access({"ada": hash_password("correct horse")})
    with TestClient(build_app(seeded.address, access), base_url="http://127.0.0.1:7860") as client:
        for path in ("/", "/cycle", "/download/overview.json", "/gradio_api/info", "/config"):
            answer = client.get(path)
            assert answer.status_code == 401 and "www-authenticate" in answer.headers, path
        assert client.get("/", headers=basic("ada", "wrong")).status_code == 401
        assert client.get("/", headers=basic("ada", "correct horse")).status_code == 200


@pytest.mark.differs
def test_downloads_hold_every_point_and_no_formula(seeded: Any, client: TestClient, tmp_path: Path) -> None:
    answer = client.get(f"/download/stage/{seeded.distill[0]}.csv")
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    assert len([row for row in rows if row["metric"] == "reverse_kl"]) == 60
    assert "attachment" in answer.headers["content-disposition"]
    scores = client.get("/download/overview.json").json()
    assert {row["checkpoint"] for row in scores} >= {"base", "cycle-1/midtrained", "cycle-3/recovered"}
    assert client.get("/download/stage/999.csv").status_code == 404
    assert client.get(f"/download/stage/{seeded.distill[0]}.xml").status_code == 404
    with Tracker(tmp_path / "t.db") as tracker:
        experiment = tracker.experiment("one")
        checkpoint = tracker.add_checkpoint(experiment, "base", "base", path="x")
        item = {"id": "=1+1", "prompt": "@SUM(A1)", "response": "plain", "score": 1.0}
        number = tracker.add_evaluation(checkpoint, "s", value=1, stderr=0, n=1, items=[item])
    with TestClient(build_app(tmp_path / "t.db"), base_url="http://127.0.0.1:7860") as other:
        (row,) = csv.DictReader(io.StringIO(other.get(f"/download/evaluation/{number}.csv").text))
        assert (row["item"], row["prompt"], row["response"]) == ("'=1+1", "'@SUM(A1)", "plain")
        assert other.get(f"/download/evaluation/{number}.json").json()[0]["prompt"] == "@SUM(A1)"


def test_another_host_or_origin_or_one_that_is_none_is_refused_with_the_policy(client: TestClient) -> None:
    for host in ("evil.example", "[", "[::1", "a b", "evil.example@127.0.0.1", "127.0.0.1/evil", "127.0.0.1:7860:1"):
        answer = client.get("/", headers={"host": host})
        assert answer.status_code == 403 and "content-security-policy" in answer.headers, host
    for origin in ("http://evil.example", "http://[", "null", "x", "http://127.0.0.1:7860.evil.example"):
        posted = client.post("/gradio_api/queue/join", json={}, headers={"origin": origin})
        assert posted.status_code == 403 and "another site" in posted.text, origin
    assert client.get("/health", headers={"host": "localhost:7860"}).text == "ok"


def test_no_header_makes_another_machine_the_address_of_the_page(client: TestClient) -> None:
    for name in ("x-forwarded-host", "x-gradio-server"):
        assert "evil.example" not in client.get("/", headers={name: "http://evil.example"}).text, name


_AT = {"host": "dash.example"}


@pytest.mark.parametrize(
    ("headers", "host"),
    [
        ({"x-forwarded-port": "8443"}, "dash.example:8443"),
        ({"x-forwarded-port": "8443, 80"}, "dash.example:8443"),
        ({"x-forwarded-host": "Dash.example:8443"}, "dash.example:8443"),
        ({"forwarded": 'for=10.0.0.1;Host="dash.example:8443";proto=https, for=10.0.0.2'}, "dash.example:8443"),
        ({"forwarded": "host=dash.example:8443", "x-forwarded-port": "443"}, "dash.example:8443"),
        ({"host": "[::2]", "x-forwarded-port": "8443"}, "[::2]:8443"),
        ({"x-forwarded-port": "443"}, "dash.example"),  # browsers leave it out of Origin
        ({"host": "dash.example:7860", "x-forwarded-port": "8443"}, "dash.example:7860"),
        ({"x-forwarded-host": "evil.example:8443"}, "dash.example"),
        ({"forwarded": "host=evil.example:8443"}, "dash.example"),
        *(({"x-forwarded-port": bad}, "dash.example") for bad in ("", "x", "0", "-1", "70000", "8443/x", "٨")),
    ],
)
def test_the_port_that_a_proxy_dropped_is_that_of_its_headers(headers: dict[str, str], host: str) -> None:
    assert with_port(_AT | headers) == host


@pytest.mark.parametrize(("peer", "status"), [("10.0.0.9", 200), ("10.0.0.8", 403)])
def test_only_a_trusted_proxy_says_the_port(seeded: Any, peer: str, status: int) -> None:
    access = Access({"ada": hash_password("correct horse")}, host="0.0.0.0")
    application = Forwarded(build_app(seeded.address, access), "10.0.0.9")
    headers = basic("ada", "correct horse") | {"origin": "https://dash.example:8443", "x-forwarded-proto": "https"}
    headers |= {"x-forwarded-port": "8443", "x-forwarded-for": "192.0.2.1"}
    with TestClient(application, base_url="http://dash.example", client=(peer, 5000)) as client:  # type: ignore[arg-type]
        answer = client.post(
            "/gradio_api/cancel", json={"session_hash": "x", "fn_index": 0, "event_id": "y"}, headers=headers
        )
        assert answer.status_code == status
        assert ("https://dash.example:8443" in client.get("/", headers=headers).text) is (status == 200)


def test_a_served_dashboard_believes_a_proxy_on_this_machine(seeded: Any, serve: Callable[..., str]) -> None:
    access = Access({"ada": hash_password("correct horse")}, host="0.0.0.0")
    headers = basic("ada", "correct horse") | _AT | {"forwarded": "host=dash.example:8443"}
    assert "http://dash.example:8443" in httpx.get(serve(seeded.address, access), headers=headers).text


def test_what_the_pages_do_not_use_of_gradio_is_not_there(client: TestClient) -> None:
    uploaded = client.post("/gradio_api/upload", files={"files": ("x.txt", b"x")})
    assert uploaded.status_code == 404 and uploaded.text == "there is no such page"
    for path in ("/gradio_api/file=/etc/passwd", "/gradio_api/proxy=http://x", "/monitoring/summary", "/openapi.json"):
        assert client.get(path).status_code == 404, path
    assert client.get("/gradio_api/info").status_code == client.get("/config").status_code == 200


def test_a_request_has_a_bounded_length_and_a_function_that_exists(client: TestClient) -> None:
    body = {"data": [], "fn_index": 100_000, "session_hash": "x"}
    answer = client.post("/gradio_api/queue/join", json=body)
    assert (answer.status_code, answer.text) == (404, "there is no such function: reload the page")
    json_type = {"content-type": "application/json"}
    answer = client.post("/gradio_api/queue/join", content=b'{"data": NaN}', headers=json_type)
    assert answer.status_code == 422 and "malformed" in answer.text
    assert client.post("/gradio_api/queue/join", content=b"x" * (LONGEST_REQUEST + 1)).status_code == 413
    assert client.post("/gradio_api/queue/join", content=iter([b"{}"])).status_code == 411


@pytest.mark.parametrize("path", ["/assets/" + "a" * 256, "/static/" + "a/" * 1000, "/" + "é" * 128, "/svelte/x\x00"])
def test_a_name_that_no_file_can_have_is_not_looked_for(client: TestClient, path: str) -> None:
    assert client.get(quote(path)).status_code == 404


def test_a_number_that_no_id_can_be_is_refused(client: TestClient) -> None:
    for path in ("stage/{}.csv", "evaluation/{}.json", "report/{}.html"):
        for number in ("9" * 30, "-1"):
            assert client.get(f"/download/{path.format(number)}").status_code == 422, path
    assert client.get("/download/report/0.html").status_code == 422, "cycles are counted from 1"


def test_a_report_is_not_written_for_another_site_or_read_only(
    client: TestClient, seeded: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`recover report` starts a process and stores the cycle's tests."""
    monkeypatch.setattr(Source, "workspace", lambda _: pytest.fail("the report was begun"))
    answer = client.get("/download/report/1.html", headers={"sec-fetch-site": "cross-site"})
    assert answer.status_code == 403 and "another site" in answer.text
    with TestClient(build_app(seeded.address, Access(read_only=True)), base_url="http://127.0.0.1:7860") as reading:
        answer = reading.get("/download/report/1.html")
    assert answer.status_code == 403 and "--read-only: run `recover report 1`" in answer.text


def test_no_more_than_two_reports_are_written_at_once(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Source, "workspace", lambda _: Path("there"))
    taken = [downloads._WRITING.acquire(blocking=False) for _ in range(2)]
    try:
        assert taken == [True, True]
        answer = client.get("/download/report/1.html")
        assert answer.status_code == 429 and "try again" in answer.text
    finally:
        for _ in taken:
            downloads._WRITING.release()
