"""The campaigns of tests/torture run, count what they tried and end with 0 if they find nothing."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import os
import random
import re
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import delete, select

from tests.models import make_tiny
from tests.torture.__main__ import main
from tests.torture.outcome import NOT_DISTURBED, ORDER, Outcome, summary
from tests.torture.page import write
from tests.torture.traps import Trap, _File

ROOT = Path(__file__).resolve().parents[1]


def torture(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.torture", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env={**os.environ})


@pytest.mark.slow
@pytest.mark.parametrize(
    "campaign", ["kill", "disks", "postgresql", "upgrades", "models", "dashboard", "load", "servers"]
)
def test_a_campaign_tries_and_finds_nothing(campaign: str) -> None:
    finished = torture("--seed", "0", "--minutes", "0.5", campaign)
    assert finished.returncode == 0, finished.stdout + finished.stderr
    tries = re.search(rf"^{campaign}: (\d+) tries, 0 faults$", finished.stdout, re.MULTILINE)
    assert tries is not None and int(tries[1]) > 0


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """``here("--seed", "3", "numbers")``: the command in this process, its status and all that it printed."""

    def command(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["tests.torture", *arguments])
        try:
            status = main()
        except SystemExit as ended:
            status = int(str(ended.code))
        printed = capsys.readouterr()
        return status, printed.out + printed.err

    return command


def test_an_unknown_campaign_is_refused_with_the_known_ones(here: Callable[..., tuple[int, str]]) -> None:
    status, said = here("nothing")
    assert status == 2
    assert "there is no campaign nothing: use kill, disks, postgresql, upgrades" in said


def test_a_model_is_for_the_campaign_that_kills(here: Callable[..., tuple[int, str]], tmp_path: Path) -> None:
    status, said = here("--model", str(tmp_path), "disks")
    assert status == 2
    assert "--model is for the campaign kill alone" in said
    status, said = here("--model", str(tmp_path), "kill")
    assert status == 2
    assert f"--model {tmp_path} is not a folder with a model" in said


@pytest.mark.parametrize("campaign", ORDER)
def test_each_campaign_can_repeat_one_try(campaign: str) -> None:
    run = inspect.signature(importlib.import_module(f"tests.torture.{campaign}").run)
    run.bind(0, 1.0, print, only=3)
    assert run.parameters["only"].default is None


def test_one_try_is_repeated_by_its_number(here: Callable[..., tuple[int, str]]) -> None:
    status, said = here("--seed", "3", "--only", "7", "numbers")
    assert status == 0, said
    assert re.search(r"^numbers 7: \w+: (taken|refused)$", said, re.MULTILINE)
    assert "numbers: 1 tries, 0 faults" in said
    assert here("--seed", "3", "--only", "7", "numbers") == (0, said)


def test_tries_that_were_not_disturbed_are_counted_apart() -> None:
    outcome = Outcome()
    for name in ("kill -9, sync", NOT_DISTURBED, "kill -9, sync"):
        outcome.count(name)
    assert summary({"kill": outcome})[0] == "kill: 2 tries, 0 faults"
    assert outcome.tried == {"kill -9, sync": 2, NOT_DISTURBED: 1}


def test_a_stop_is_mostly_short_and_at_most_as_long_as_is_allowed() -> None:
    from tests.torture.kill import stop_for

    stops = [stop_for(random.Random(n), 60.0) for n in range(300)]
    assert sorted(stops)[150] < 2 and 20 < max(stops) <= 60


def test_a_refusal_of_a_damaged_tracker_gives_a_known_reason() -> None:
    from tests.torture.damage import TRACKER, said
    from tests.torture.process import Ended

    line = "recover: error: /tmp/workspace/tracker.db cannot be read: "
    assert said(Ended(1, "", f"{line}database disk image is malformed (the file is damaged)\n"), TRACKER) == []
    for wrong in (f"{line}nothing known\n", f"{line}no such table: stage\n{line}no such table: stage\n", "Traceback"):
        assert len(said(Ended(1, "", wrong), TRACKER)) == 1, wrong


def test_damage_that_sqlite_notices_is_told_from_another_value(tmp_path: Path) -> None:
    from tests.torture.damage import contents, settle

    tracker = tmp_path / "tracker.db"
    with contextlib.closing(sqlite3.connect(tracker)) as database:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("CREATE TABLE stage (name TEXT)")
        database.execute("INSERT INTO stage VALUES ('midtrain')")
        database.commit()
        settle(tracker)
    whole, data = contents(tracker), tracker.read_bytes()
    assert whole is not None and data.count(b"midtrain") == 1
    tracker.write_bytes(data.replace(b"midtrain", b"mudtrain"))
    assert contents(tracker) not in (None, whole)
    tracker.write_bytes(data[:5000])
    assert contents(tracker) is None


def test_there_are_a_thousand_different_hostile_files_and_more() -> None:
    from tests.torture.corpus import all_cases

    names = [case.name for case in all_cases(1, large=False)]
    assert len(names) == len(set(names)) > 1300


def test_hostile_models_are_others_with_another_seed_and_the_same_with_the_same(tmp_path: Path) -> None:
    from tests.torture.hostile_models.drawn import drawn

    make_tiny("qwen3", tmp_path / "sound")
    told = []
    for number, key in enumerate(("1 7", "1 7", "2 7", "3 7", "4 7")):
        for name in ("model", "base"):
            shutil.copytree(tmp_path / "sound", tmp_path / str(number) / name)
        case = drawn(key)
        told.append(f"{case.name}: {case.write(tmp_path / str(number) / 'model')}".replace(f"/{number}/", "/"))
    assert told[0] == told[1] and len(set(told)) == 4


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


@pytest.mark.slow
def test_two_reviewers_at_once_and_hostile_values_leave_a_dashboard_sound(tmp_path: Path) -> None:
    from tests.torture import attacks
    from tests.torture.served import dashboard

    with dashboard(tmp_path / "workspace") as served:
        for attack in (attacks.decisions, attacks.votes, attacks.headers):
            assert attack(served, random.Random(0)) == [], attack.__name__
        assert served.faults() == []


@pytest.mark.slow
def test_a_record_that_is_lost_or_doubled_is_a_fault_of_a_load_and_so_is_a_dashboard_that_ends(tmp_path: Path) -> None:
    from db import Tracker, decide, open_database
    from db.schema import MetricPoint, MetricSeries, Sample
    from tests.torture import load
    from tests.torture.served import Visitor, dashboard

    with dashboard(tmp_path / "workspace") as served, Visitor(served) as visitor:
        with Tracker(served.tracker) as tracker:
            made = load._cycle(tracker, tracker.experiment("load"), 1, time.monotonic() + 1, random.Random(0))
        with contextlib.closing(open_database(served.tracker)) as database:
            assert load.missing(database, visitor, made) == []
            with database.writing() as connection:
                curve = select(MetricSeries.id).where(MetricSeries.stage_id == made["stage"]).limit(1).scalar_subquery()
                connection.execute(delete(MetricPoint).where(MetricPoint.series_id == curve, MetricPoint.step == 2))
                answer = (Sample.evaluation_id == made["evaluation"], Sample.item == "item-7")
                connection.execute(delete(Sample).where(*answer))
            decide(database, made["cycle"], "accepted", who="x", why="twice")
            faults = load.missing(database, visitor, made)
        wanted = len(load._VALUES) * made["steps"]
        assert faults[:2] == [
            f"of {wanted} points of stage {made['stage']} 1 are lost",
            f"samples of stage {made['stage']}: 99 in place of 100",
        ]
        assert faults[2].startswith(f"decisions of stage {made['stage']}: ['twice', 'load 0.") and len(faults) == 3
        lasting = load.Load(served, "SQLite", 0, 3600.0, print)
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(lasting.run)
            served.process.kill()
            running.result()
        assert "the dashboard ended with -9" in lasting.faults[-1]


def test_the_page_holds_the_runs_of_all_seeds_and_the_last_one_of_each(tmp_path: Path) -> None:
    page = tmp_path / "reliability.md"
    write({"kill": Outcome({"a kill": 3}, ["--only 2: lost", "a\n<b>&"]), "numbers": Outcome({"nan": 5})}, 1, 60, page)
    write({"kill": Outcome({"a stop": 4})}, 2, 60, page)
    assert "- Seed 1: --only 2: lost\n- Seed 1: a &lt;b&gt;&amp;\n" in page.read_text()
    assert "| a kill | 3 | 0 |" in page.read_text()
    write({"kill": Outcome({"a kill": 7})}, 1, 10, page)
    text = page.read_text()
    assert "| a kill | 7 | 0 |" in text and "| a stop | 0 | 4 |" in text and "| nan | 5 |" in text
    assert "lost" not in text.split("## Found")[0] and "seed 1" in text


def test_runs_that_end_at_the_same_time_are_all_on_the_page(tmp_path: Path) -> None:
    page = tmp_path / "reliability.md"
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda seed: write({"kill": Outcome({"a kill": seed})}, seed, 60, page), range(1, 25)))
    text = page.read_text()
    assert all(f"seed {seed}, " in text for seed in range(1, 25))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["reliability.json", "reliability.md"]


def test_a_write_that_is_only_disturbed_leaves_the_whole_text(tmp_path: Path) -> None:
    seen = []
    trap = Trap(tmp_path, "write", 1, lambda _kind, thing: seen.append(Path(thing).read_text()))
    with _File(trap, (tmp_path / "text").open("w"), str(tmp_path / "text")) as file:
        assert file.write("template") == 8
    assert (seen, (tmp_path / "text").read_text()) == (["temp"], "template")
