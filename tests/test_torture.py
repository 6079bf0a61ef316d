"""The campaigns of tests/torture run, count what they tried and end with 0 if they find nothing."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.models import make_tiny
from tests.torture.outcome import Outcome
from tests.torture.page import write
from tests.torture.traps import Trap, _File

ROOT = Path(__file__).resolve().parents[1]


def torture(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.torture", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env={**os.environ})


@pytest.mark.slow
@pytest.mark.parametrize("campaign", ["kill", "disks", "postgresql", "upgrades", "models", "dashboard", "servers"])
def test_a_campaign_tries_and_finds_nothing(campaign: str) -> None:
    finished = torture("--seed", "0", "--minutes", "0.5", campaign)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    tries = re.search(rf"^{campaign}: (\d+) tries, 0 faults$", finished.stdout, re.MULTILINE)
    assert tries is not None and int(tries[1]) > 0


def test_an_unknown_campaign_is_refused_with_the_known_ones() -> None:
    finished = torture("nothing")
    assert finished.returncode == 2
    assert "there is no campaign nothing: use kill, disks, postgresql, upgrades" in finished.stderr


def test_a_model_is_for_the_campaign_that_kills(tmp_path: Path) -> None:
    finished = torture("--model", str(tmp_path), "disks")
    assert finished.returncode == 2
    assert "--model is for the campaign kill alone" in finished.stderr
    finished = torture("--model", str(tmp_path), "kill")
    assert finished.returncode == 2
    assert f"--model {tmp_path} is not a folder with a model" in finished.stderr


@pytest.mark.parametrize(
    "name", ["teacher: tokens that are none", "teacher: reset, then sound", "teacher: exchanged between two requests"]
)
def test_a_teacher_that_misbehaves_is_refused_or_asked_again(name: str, tmp_path: Path) -> None:
    from tests.torture import servers
    from tests.torture.misbehaving import Server, serving

    server = Server(make_tiny("qwen3", tmp_path / "teacher"))
    make_tiny("qwen3", tmp_path / "student", seed=9)
    with serving(server) as address:
        ended = servers.attempt(servers.tries_of(server, address, tmp_path)[name], random.Random(0))
    assert ended.partition(":")[0] == ("same" if name.endswith("sound") else "refused"), ended


def test_two_reviewers_at_once_and_hostile_values_leave_a_dashboard_sound(tmp_path: Path) -> None:
    from tests.torture import attacks
    from tests.torture.served import dashboard

    with dashboard(tmp_path / "workspace") as served:
        for attack in (attacks.decisions, attacks.votes, attacks.headers):
            assert attack(served, random.Random(0)) == [], attack.__name__
        assert served.faults() == []


def test_the_page_holds_the_runs_of_all_seeds_and_the_last_one_of_each(tmp_path: Path) -> None:
    page = tmp_path / "reliability.md"
    write({"kill": Outcome({"a kill": 3}, ["--only 2: lost"]), "numbers": Outcome({"nan": 5})}, 1, 60, page)
    write({"kill": Outcome({"a stop": 4})}, 2, 60, page)
    assert "- Seed 1: --only 2: lost" in page.read_text() and "| a kill | 3 | 0 |" in page.read_text()
    write({"kill": Outcome({"a kill": 7})}, 1, 10, page)
    text = page.read_text()
    assert "| a kill | 7 | 0 |" in text and "| a stop | 0 | 4 |" in text and "| nan | 5 |" in text
    assert "lost" not in text.split("## Found")[0] and "seed 1" in text


def test_a_write_that_is_only_disturbed_leaves_the_whole_text(tmp_path: Path) -> None:
    seen = []
    trap = Trap(tmp_path, "write", 1, lambda _kind, thing: seen.append(Path(thing).read_text()))
    with _File(trap, (tmp_path / "text").open("w"), str(tmp_path / "text")) as file:
        assert file.write("template") == 8
    assert (seen, (tmp_path / "text").read_text()) == (["temp"], "template")
