"""Scoring of given responses from files: one correct and one wrong response to each of IFEval's 25 instructions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from evals.instruction_following import judge_file
from pipelines.cli.main import run
from recovery.errors import UsageError
from tests.recovery.test_checkers import KINDS  # for each instruction a response that follows it, and one that does not


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    """One prompt for each case, in IFEval's own format."""
    rows = [
        {"key": 2000 + i, "prompt": f"Request {i}.", "instruction_id_list": [kind], "kwargs": [kwargs]}
        for i, (kind, kwargs, _, _) in enumerate(KINDS)
    ]
    return lines(tmp_path / "prompts.jsonl", rows)


def lines(path: Path, rows: list[object]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def response_rows(answers: list[str]) -> list[object]:
    return [{"prompt": f"Request {i}.", "response": answer} for i, answer in enumerate(answers)]


def test_right_answers_to_all_25_instructions_score_1_and_wrong_ones_0(prompts: Path, tmp_path: Path) -> None:
    right = judge_file(prompts, lines(tmp_path / "right.jsonl", response_rows([kind[2] for kind in KINDS])))
    wrong = judge_file(prompts, lines(tmp_path / "wrong.jsonl", response_rows([kind[3] for kind in KINDS])))
    assert len(right.by_instruction) == len(wrong.by_instruction) == 25
    for found, value in ((right, 1.0), (wrong, 0.0)):
        assert found.scores["prompt_strict"].value == found.scores["instruction_strict"].value == value
        assert {both["strict"].value for both in found.by_instruction.values()} == {value}
        assert found.scores["prompt_strict"].n == len(KINDS)
        assert found.unanswered == found.problems == ()
    assert all(both["loose"].value == 1.0 for both in right.by_instruction.values())


def test_what_does_not_fit_together_is_said_and_counts_nowhere(prompts: Path, tmp_path: Path) -> None:
    rows = response_rows([kind[2] for kind in KINDS])[:-2]
    path = lines(tmp_path / "some.jsonl", [*rows, {"prompt": "Elsewhere.", "response": "x"}, rows[0], {"prompt": "y"}])
    path.write_text(path.read_text() + "{broken\n")
    found = judge_file(prompts, path)
    number = len(rows)
    assert found.unanswered == (str(2000 + len(KINDS) - 2), str(2000 + len(KINDS) - 1))
    assert found.scores["prompt_strict"].n == number
    named = [f"some.jsonl line {number + i}" for i in (4, 1, 2, 3)]
    assert [problem.split(": ")[0] for problem in found.problems] == named
    assert f"2 prompts have no response and are not counted: {2000 + len(KINDS) - 2}, " in found.text()
    with pytest.raises(UsageError, match="answers no prompt"):
        judge_file(prompts, lines(tmp_path / "none.jsonl", [{"prompt": "Elsewhere.", "response": "x"}]))


def test_the_command_needs_no_workspace_and_makes_none(
    prompts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = lines(tmp_path / "said.jsonl", response_rows([kind[2] for kind in KINDS[:-1]]))
    home = tmp_path / "elsewhere"
    home.mkdir()
    monkeypatch.chdir(home)
    assert run(["eval", "--ifeval", str(prompts), "--responses", str(path), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["scores"]["prompt_strict"] == {"value": 1.0, "stderr": 0.0, "n": len(KINDS) - 1}
    assert printed["unanswered"] == [str(2000 + len(KINDS) - 1)]
    assert set(printed["by_instruction"]["change_case:english_capital"]) == {"strict", "loose"}
    assert list(home.iterdir()) == []
    assert run(["eval", "--responses", str(path)]) == 1
    assert "give a file with --ifeval" in capsys.readouterr().err
