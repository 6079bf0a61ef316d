"""Access: passwords, other machines, other sites, security headers, downloads."""

from __future__ import annotations

import base64
import csv
import io
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from dashboard.access import Access, add_user, hash_password, is_loopback, matches, read_users
from dashboard.app import build_app
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
