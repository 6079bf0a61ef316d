"""Access: passwords, other machines, other sites, security headers, downloads."""

from __future__ import annotations

import base64
import csv
import io
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from fastapi.testclient import TestClient

from dashboard import downloads
from dashboard.access import LONGEST_REQUEST, Access, add_user, hash_password, is_loopback, matches, read_users
from dashboard.app import build_app
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
    assert set(read_users(path)) == {"ada", "bob"}
    for name, password, words in (("a:b", "12345678", "colon"), ("", "12345678", "empty"), ("eve", "short", "8 char")):
        with pytest.raises(DatabaseError, match=words):
            add_user(path, name, password)
    path.write_text("ada:secret\n")
    with pytest.raises(DatabaseError, match="line 1 is not NAME:HASH"):
        read_users(path)
    path.write_text("# nobody\n")
    with pytest.raises(DatabaseError, match="contains no users"):
        read_users(path)
    with pytest.raises(DatabaseError, match="--add-user"):
        read_users(tmp_path / "missing")


def test_other_machines_need_a_name() -> None:
    with pytest.raises(DatabaseError, match="--auth-file"):
        Access(host="0.0.0.0")
    assert Access({"ada": hash_password("correct horse")}, host="0.0.0.0").user(None) is None
    assert [is_loopback(h) for h in ("localhost", "127.8.0.1", "::1", "0.0.0.0", "10.0.0.1", "example.org")] == [
        True, True, True, False, False, False,
    ]  # fmt: skip


def test_a_name_is_proven_once_and_a_wrong_one_never() -> None:
    access = Access({"ada": hash_password("correct horse")})
    good = basic("ada", "correct horse")["authorization"]
    assert access.user(good) == "ada" == access.user(good)
    for bad in (
        basic("ada", "wrong")["authorization"],
        basic("eve", "correct horse")["authorization"],
        "Basic ???",
        "",
    ):
        assert access.user(bad) is None
    assert Access().user(None) == ""


def test_every_answer_carries_the_policy(client: TestClient) -> None:
    for path in ("/", "/cycle", "/samples", "/live", "/download/overview.csv", "/nowhere"):
        headers = client.get(path).headers
        assert "frame-ancestors 'none'" in headers["content-security-policy"], path
        assert headers["x-content-type-options"] == "nosniff"


def test_another_name_or_another_site_is_turned_away(client: TestClient) -> None:
    assert client.get("/", headers={"host": "evil.example"}).status_code == 403
    posted = client.post("/gradio_api/queue/join", json={}, headers={"origin": "http://evil.example"})
    assert posted.status_code == 403 and "another site" in posted.text


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


def test_a_host_or_an_origin_that_is_none_is_refused_with_the_policy(client: TestClient) -> None:
    for host in ("[", "[::1", "a b", "evil.example@127.0.0.1", "127.0.0.1/evil", "127.0.0.1:7860:1"):
        answer = client.get("/", headers={"host": host})
        assert answer.status_code == 403 and "content-security-policy" in answer.headers, host
    for origin in ("http://[", "null", "x", "http://127.0.0.1:7860.evil.example"):
        assert client.post("/gradio_api/queue/join", json={}, headers={"origin": origin}).status_code == 403, origin
    assert client.get("/health", headers={"host": "localhost:7860"}).text == "ok"


def test_no_header_makes_another_machine_the_address_of_the_page(client: TestClient) -> None:
    for name in ("x-forwarded-host", "x-gradio-server"):
        assert "evil.example" not in client.get("/", headers={name: "http://evil.example"}).text, name


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


def test_a_key_that_is_no_text_is_refused_and_a_known_one_is_not_hashed_again() -> None:
    access = Access({"ada": hash_password("correct horse")})
    for bad in ("Basic é", "Basic /w==", "Basic"):
        assert access.user(bad) is None
    good = basic("ada", "correct horse")["authorization"]
    assert access.known(good) is None
    assert access.user(good) == "ada" == access.known(good)
    assert access.known(basic("ada", "wrong")["authorization"]) is None


def test_a_number_that_no_id_can_be_is_refused(client: TestClient) -> None:
    for path in ("stage/{}.csv", "evaluation/{}.json", "report/{}.html"):
        for number in ("9" * 30, "-1"):
            assert client.get(f"/download/{path.format(number)}").status_code == 422, path


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
