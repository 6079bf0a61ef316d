"""The plan and the output of `recover eval` on the built-in model."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evals.behaviour import SUITES
from pipelines.cli.main import run

Say = Callable[..., tuple[str, str]]


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Say:
    """``say("eval", ...)``: run a command in an empty folder; return its standard output and standard error."""
    monkeypatch.chdir(tmp_path)

    def saying(*arguments: str | Path) -> tuple[str, str]:
        capsys.readouterr()
        assert run([str(argument) for argument in arguments]) in (0, None)
        captured = capsys.readouterr()
        return captured.out, captured.err

    return saying


def test_a_dry_run_says_what_is_asked_and_what_can_be_seen(say: Say) -> None:
    text, _ = say("eval", "base", "--limit", "200", "--dry-run")
    assert text.startswith("evaluate base: 200 instruction prompts; ")
    assert "with 200 prompts you can see a difference of 10 points in instruction_following\n" in text
    plan: dict[str, Any] = json.loads(say("eval", "base", "--limit", "200", "--dry-run", "--json")[0])
    assert plan["behaviour"]["refusal"] == 20, "the test prompts have none: a tenth of the limit is added"
    assert plan["further_prompts"] <= 40
    assert set(plan["behaviour"]) == {suite.name for suite in SUITES}
    assert len(plan["effects"]) == 2 + len(SUITES)


def test_an_evaluation_names_every_suite_and_the_models_own_tasks(say: Say, tmp_path: Path) -> None:
    (tmp_path / "house.jsonl").write_text('{"prompt": "Name a colour.", "answer": "red"}\n{"prompt": "x"}\n')
    printed, noted = say(
        "eval", "base", "--limit", "20", "--behaviour", "house.jsonl", "--tasks", "miniature_facts,miniature_arithmetic"
    )
    assert noted.splitlines()[1] == "with 20 prompts you can see a difference of 31 points in instruction_following"
    assert "house.jsonl line 2: the prompt cannot be judged" in noted
    suites = {line.split()[0] for line in printed.splitlines()[1:]}
    assert suites == {
        "instruction_following",
        *(f"behaviour/{suite.name}" for suite in SUITES),
        "behaviour/house",
        "general",
        "miniature_facts",
        "miniature_arithmetic",
    }
    again, noted = say("eval", "base", "--limit", "20", "--json")
    value = json.loads(again)
    assert value["scores"]["behaviour/refusal"] == {"value": 1.0, "stderr": 0.0, "n": 2}
    assert value["kept"] == {}
    status = json.loads(say("status", "--json")[0])
    assert status["base"]["behaviour/house"]["n"] == 1
