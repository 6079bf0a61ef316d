"""The commands gate, accept, reject, rollback, report, prune and export; a gate that waits for votes."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from db import open_database, queries, reviews
from pipelines.cli.main import recover, run
from tests.cli.conftest import write_prompts
from tests.pipelines.conftest import write_corpus

ROOT = Path(__file__).resolve().parents[2]
Ask = Callable[..., tuple[int, Any]]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    """A folder with a workspace of two small cycles on a tiny model."""
    home = tmp_path_factory.mktemp("deciding")
    prompts = write_prompts(home, 40)
    small = ["--midtrain-steps", "2", "--distill-steps", "1", "--max-new-tokens", "8", "--limit", "20", "--until", "0"]
    for name in ("Harbour", "Orchid"):
        docs = write_corpus(home / name, name)
        command = ["cycle", "--docs", docs, "--model", tiny_model, "--workspace", home / "w", "--prompts"]
        assert run([str(word) for word in [*command, prompts, *small]]) == 0
    return home


@pytest.fixture
def ask(home: Path, capsys: pytest.CaptureFixture[str]) -> Ask:
    """``ask("gate", 1)``: the status and the JSON that a command printed, or its line of error."""

    def say(*arguments: str | int | Path) -> tuple[int, Any]:
        capsys.readouterr()
        status = run([*map(str, arguments), "--workspace", str(home / "w"), "--json"])
        printed = capsys.readouterr()
        return status, json.loads(printed.out) if printed.out else printed.err.strip()

    return say


def test_a_gate_says_its_verdict_and_exits_by_it(ask: Ask) -> None:
    status, result = ask("gate", 1, "--rule", "ifeval >= 0.999*base + 60")
    assert (status, result["decision"], result["cycle"]) == (3, "reject", 1)
    status, result = ask("gate", 1, "--rule", "ifeval >= 0.01")
    assert (status, result["decision"]) in ((0, "accept"), (4, "undecided"))
    assert result["verdicts"][0]["n"] == 8 and result["entered"] is None
    status, result = ask("gate", "--rule", "retention(mmlu) >= 0.97*base")
    assert (status, result["decision"], result["cycle"]) == (4, "undecided", 2)
    status, error = ask("gate", 1, "--rule", "ifeval >> 0.9")
    assert status == 1 and "'>='" in error


def test_a_gate_and_its_evidence_are_files_of_a_pipeline(ask: Ask, tmp_path: Path) -> None:
    junit, summary, bundle = tmp_path / "gate.xml", tmp_path / "summary.md", tmp_path / "evidence.zip"
    summary.write_text("# Earlier\n")
    assert ask("gate", 1, "--rule", "ifeval >= 0.999*base + 60", "--junit", junit, "--markdown", summary)[0] == 3
    assert "<failure" in junit.read_text() and summary.read_text().startswith("# Earlier\n## Cycle 1: reject")
    status, written = ask("report", 1, "--bundle", bundle)
    assert status == 0 and written["bytes"] == bundle.stat().st_size
    assert run(["report", "--verify", str(bundle)]) == 0
    for wrong, words in {
        ("gate", "--junit", summary / "x.xml"): "x.xml cannot be written (File exists)",
        ("gate", "--markdown", tmp_path / "no" / "x.md"): "cannot be written (No such file",
        ("report", "--bundle", summary / "x.zip"): "x.zip cannot be written (File exists)",
        ("report", 1, "--verify", bundle): "--verify and CYCLE exclude each other",
        ("report", "--bundle", bundle, "--no-figures"): "--bundle and --figures exclude each other",
        ("report", "--responses"): "--responses is for --bundle",
        ("report", "--verify", junit): "gate.xml: not a complete evidence bundle",
    }.items():
        status, error = ask(*wrong)
        assert status == 1 and words in error.splitlines()[-1], error


def test_the_commands_of_the_example_workflow_exist_with_their_options(tmp_path: Path) -> None:
    workflow = yaml.safe_load((ROOT / "examples" / "ci" / "recovery-gate.yml").read_text())
    lines = [line for step in workflow["jobs"]["gate"]["steps"] for line in step.get("run", "").splitlines()]
    calls = [shlex.split(line)[1:] for line in lines if line.split()[:1] == ["recover"]]
    assert [call[0] for call in calls] == ["gate", "report", "report"]
    (tmp_path / "evidence.zip").touch()  # made by the second, read by the third
    for name, *arguments in calls:
        given = [word.replace("$CYCLE", "1").replace("$RUNNER_TEMP", str(tmp_path)) for word in arguments]
        command = recover.get_command(click.Context(recover), name)
        command.make_context(name, given)  # raises UsageError


@pytest.mark.slow  # each of its steps is a process
def test_the_example_workflow_does_what_it_says(home: Path, tmp_path: Path) -> None:
    workflow = yaml.safe_load((ROOT / "examples" / "ci" / "recovery-gate.yml").read_text())
    job = workflow["jobs"]["gate"]
    (tmp_path / "recover").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m recovery "$@"\n')
    (tmp_path / "recover").chmod(0o755)
    values = {"${{ inputs.cycle }}": "1", "${{ inputs.rule }}": "ifeval >= 0.999*base + 60"}
    environment = {
        **os.environ,
        **{name: values.get(value, value) for name, value in job["env"].items()},
        "RECOVER_WORKSPACE": str(home / "w"),
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "RUNNER_TEMP": str(tmp_path),
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md"),
    }
    statuses = []
    for step in job["steps"]:
        if "run" in step and (not any(statuses) or step.get("if") == "${{ !cancelled() }}"):
            assert "${{" not in step["run"], "an input in a command would be run as one"
            shell = [*"bash --noprofile --norc -eo pipefail -c".split(), step["run"]]  # as GitHub's `shell: bash`
            done = subprocess.run(shell, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
            statuses.append(done.returncode)
    assert statuses == [3, 0, 0], done.stderr
    assert "ok  decision on cycle 1: reject" in done.stdout
    assert "| ifeval" in (tmp_path / "summary.md").read_text()
    kept = job["steps"][-1]["with"]["path"].replace("${{ runner.temp }}", str(tmp_path)).split()
    assert len(kept) == 2 and all(Path(path).is_file() for path in kept)


def test_people_decide_and_latest_follows(ask: Ask) -> None:
    assert ask("accept", 1)[0] == 2  # a decision has a reason
    status, result = ask("accept", 1, "--why", "it knows the ferries", "--who", "Ada")
    assert (status, result["decision"], result["after"], result["also"]) == (0, "accepted", "cycle-2/recovered", [])
    status, error = ask("reject", 1, "--why", "x")
    assert status == 1 and "recover rollback 1" in error
    status, result = ask("rollback", 1, "--why", "wrong documents", "--who", "Ben")
    assert result["replaced"] == "accepted by Ada"
    assert (status, result["before"], result["after"], result["also"]) == (0, "cycle-2/recovered", "base", [2])
    assert ask("status")[1]["latest"] == "base"
    status, error = ask("accept", 2, "--why", "they were right")
    assert status == 1 and "accept cycle 1 first" in error
    status, result = ask("accept", 1, "--why", "it was right")
    assert (result["after"], result["replaced"]) == ("cycle-1/recovered", "rolled back by Ben")
    assert ask("accept", 2, "--why", "they were right")[1]["after"] == "cycle-2/recovered"


def test_a_report_is_two_files_that_need_nothing_else(ask: Ask, home: Path, tmp_path: Path) -> None:
    status, result = ask("report", 2, "--out", tmp_path / "out")
    assert status == 0
    html, markdown = (Path(result[kind]).read_text() for kind in ("html", "markdown"))
    assert "they were right" in html and "they were right" in markdown
    assert "<script" in html and "src=" not in html.split("</style>")[1].split("<script")[0]
    plain = Path(ask("report", 1, "--out", tmp_path / "plain", "--no-figures")[1]["html"]).read_text()
    assert "<script" not in plain and "http" not in plain.replace("http-equiv", "")
    assert ask("report", 9)[0] == 1


@pytest.mark.parametrize(
    "command", [("report",), ("gate",), ("accept", "--why", "x"), ("reject", "--why", "x"), ("rollback", "--why", "x")]
)
@pytest.mark.parametrize("cycle", ["9", "0", "x", "latest", ""])
def test_what_is_no_cycle_is_said_with_the_cycles_there_are(ask: Ask, command: tuple[str, ...], cycle: str) -> None:
    """It was called no valid integer range."""
    status, error = ask(*command, cycle)
    assert (status, error) == (1, f"recover: error: there is no cycle {cycle or repr(cycle)}: the cycles are 1, 2")


def test_prune_only_reports_until_it_is_asked_to_delete(ask: Ask, home: Path) -> None:
    status, result = ask("prune")
    names = [removal["name"] for removal in result["removals"]]
    assert status == 0 and result["freed"] == 0 and result["bytes"] > 0
    # Cycle 1's end stays, too: the accepted cycle 2 started from it, so a rollback would return there.
    assert sorted(names) == ["cycle-1/midtrained", "cycle-2/midtrained"]
    assert (home / "w" / "checkpoints" / "cycle-1" / "midtrained").is_dir()
    assert ask("prune", "--yes")[1]["freed"] == result["bytes"]
    assert not (home / "w" / "checkpoints" / "cycle-1" / "midtrained").exists()
    status, error = ask("eval", "cycle-1/midtrained")
    assert status == 1 and "pruned on" in error
    assert ask("checkpoints")[0] == 0
    assert ask("prune", "--policy", "everything") == (1, ask("prune", "--policy", "everything")[1])


def test_an_exported_model_carries_its_card(ask: Ask, tmp_path: Path) -> None:
    assert ask("rollback", 2, "--why", "the card should say so")[0] == 0
    assert ask("export", "cycle-2/recovered", tmp_path / "out")[0] == 0
    card = (tmp_path / "out" / "README.md").read_text()
    assert card.startswith("---\nbase_model: ") and "| instruction_following |" in card
    decisions = [line.split(" | ")[-1] for line in card.splitlines() if line.startswith(("| 1 |", "| 2 |"))]
    assert decisions == ["accepted |", "rolled back |"]


def test_a_cycle_waits_for_votes_and_they_accept_it(
    tmp_path: Path, tiny_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    docs, workspace = write_corpus(tmp_path / "Harbour", "Harbour"), ["--workspace", str(tmp_path / "w")]
    rule = "preference(base) >= 0.45"
    small = (
        "--midtrain-steps 4 --distill-steps 1 --max-new-tokens 8 --until 0 --midtrain-lr 0.05 --embeddings all".split()
    )
    arguments = ["cycle", "--docs", docs, "--model", tiny_model, "--prompts", write_prompts(tmp_path, 80)]
    assert run([*map(str, arguments), *small, *workspace, "--gate", rule]) == 0
    printed = capsys.readouterr()
    shown = " ".join((printed.out + printed.err).split())
    assert f"gate: {rule}: no votes yet: open the dashboard's page Review" in shown
    assert f"`recover gate 1 --rule '{rule}' --enter`" in shown

    database = open_database(tmp_path / "w" / "tracker.db")
    experiment = queries.experiments(database)[0].id
    base, end = (queries.checkpoint(database, experiment, name) for name in ("base", "cycle-1/recovered"))
    suite = "instruction_following"
    evaluations = [reviews.answered(database, experiment)[one.id][suite] for one in (base, end)]
    review = reviews.open_review(database, base.id, end.id, suite, reviews.DIFFERING)
    pairs = reviews.pairs(database, evaluations[0], evaluations[1], reviews.DIFFERING)
    for pair in pairs:
        reviews.vote(database, review, pair, "Ada", "second")
    database.close()
    assert len(pairs) > 5, "mid-training at this rate changes responses"

    assert run(["gate", "1", "--rule", rule, "--enter", "--json", *workspace]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["decision"], result["entered"]["decision"]) == ("accept", "accepted")
    assert result["verdicts"][0]["n"] == len(pairs)
    assert run(["report", "1", "--no-figures", "--json", *workspace]) == 0
    report = Path(json.loads(capsys.readouterr().out)["markdown"]).read_text()
    assert "Votes: cycle-1/recovered against base" in report and "| Ada |" in report
    assert run(["report", "1", "--bundle", str(tmp_path / "e.zip"), *workspace]) == 0
    assert run(["report", "--verify", str(tmp_path / "e.zip")]) == 0
    assert f"ok  review: {len(pairs)} votes, each on the side of its seed" in capsys.readouterr().out
