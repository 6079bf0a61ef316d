"""The plan and the output of `recover eval` on the built-in model."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from db import Tracker, queries
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
    assert set(value["details"]["instruction_following"]) > {"prompt_loose", "instruction_strict", "instruction_loose"}
    assert value["recorded"]["model"] == "miniature" and value["recorded"]["max_new_tokens"] == 128
    assert value["recorded"]["machine"].startswith("Machine: ") and len(value["recorded"]["date"]) == 10
    status = json.loads(say("status", "--json")[0])
    assert status["base"]["behaviour/house"]["n"] == 1


def test_a_model_in_a_folder_is_measured(say: Say, tiny_model: Path) -> None:
    given = "--limit 4 --max-new-tokens 4 --json --prompts composer --seed 1"
    printed, _ = say("eval", tiny_model, *given.split())
    value = json.loads(printed)
    assert value["checkpoint"] == "base", "the new workspace's clean model is the one that is measured"
    assert value["scores"]["instruction_following"]["n"] <= 4
    assert value["recorded"]["max_new_tokens"] == 4 and value["recorded"]["seed"] == 1


def test_results_of_lm_eval_are_recorded_for_a_model_that_is_not_here(
    say: Say, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "out" / "their-model"
    log.mkdir(parents=True)
    aggregates = {"acc,none": 0.5, "acc_stderr,none": "N/A", "sample_len": 2}
    written = {"results": {"quiz": aggregates}, "model_name": "their-model", "lm_eval_version": "0.4.13"}
    (log / "results_2026-11-22T10-00-00.json").write_text(json.dumps(written), encoding="utf-8")
    sample = {"doc": {}, "target": "0", "filter": "none", "metrics": ["acc"],
              "arguments": {"gen_args_0": {"arg_0": "Boat?", "arg_1": " green"}},
              "filtered_resps": [["-0.2", "False"]]}  # fmt: skip
    rows = [sample | {"doc_id": number, "acc": float(number)} for number in (0, 1)]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (log / "samples_quiz_2026-11-22T10-00-00.jsonl").write_text(text, encoding="utf-8")

    home = tmp_path / "recovery-workspace"
    for refused, status, reason in (
        (["eval", "theirs", "--import", "nowhere"], 1, "there is no file or folder nowhere"),
        (["eval", "", "--import", "out"], 2, "the name is empty."),
        (["eval", " ", "--import", "out"], 2, "the name is empty."),
        (["eval", "external/", "--import", "out"], 1, "the name 'external/' is empty: say whose results are in out"),
    ):
        assert run(refused) == status
        assert reason in capsys.readouterr().err
        assert not home.exists(), "no workspace is made for a mistake"
    printed, said = say("eval", "theirs", "--import", "out", "--dry-run")
    assert printed.startswith("external/theirs\nquiz") and "0.500" in printed
    assert "nothing is recorded; these results would be recorded for external/theirs, a new checkpoint" in said
    assert "recorded for base\n" in say("eval", "base", "--import", "out", "--dry-run")[1]
    assert not home.exists(), "nor for a dry run"
    for name in ("theirs", "external/theirs", "base"):
        printed, _ = say("eval", name, "--import", "out")
        first, quiz = printed.splitlines()
        assert first == ("base" if name == "base" else "external/theirs")
        assert quiz.startswith("quiz") and "0.500  (95%: 0.055 to 0.945, n = 2)" in quiz
    with Tracker(tmp_path / "recovery-workspace" / "tracker.db") as tracker:
        (experiment,) = queries.experiments(tracker.database)
        names = [one.name for one in queries.checkpoints(tracker.database, experiment.id)]
        stages = queries.stages(tracker.database, experiment.id, kind="evaluate")
    assert names == ["base", "external/theirs"], "one checkpoint for both spellings"
    assert [stage.config["logs"][0]["model"] for stage in stages] == ["their-model"] * 3
    say("eval", "others", "--import", "out", "--dry-run")
    with Tracker(home / "tracker.db") as tracker:
        assert [one.name for one in queries.checkpoints(tracker.database, experiment.id)] == names
        assert len(queries.stages(tracker.database, experiment.id)) == len(stages)
    for refused, reason in (
        (["eval", "--import", "out"], "name the checkpoint whose results are in out:"),
        (["eval", "cycle-7/recovered", "--import", "out"], "there is no checkpoint 'cycle-7/recovered' yet"),
        (["eval", "theirs", "--import", "nowhere"], "there is no file or folder nowhere"),
        (["ask", "--checkpoint", "external/theirs", "Hi"], "results that were imported, and no weights here"),
    ):
        assert run(refused) == 1
        assert reason in capsys.readouterr().err


def test_the_status_has_intervals_and_sums_up_many_earlier_corpora(say: Say, tmp_path: Path) -> None:
    say("eval", "base", "--limit", "2")
    with Tracker(tmp_path / "recovery-workspace" / "tracker.db") as tracker:
        (experiment,) = queries.experiments(tracker.database)
        (base,) = queries.checkpoints(tracker.database, experiment.id)
        cycle = tracker.cycle(experiment.id, 5, documents="./q5", corpus_hash="c" * 64)
        made = tracker.add_checkpoint(
            experiment.id, "cycle-5/recovered", "recovered", path="r", content_hash="d" * 64, parent_id=base.id,
            cycle_id=cycle,
        )  # fmt: skip
        for corpus, value in enumerate((0.9, 1.0, 0.8, 0.9, 1.0), start=1):
            tracker.add_evaluation(made, "domain_knowledge", corpus=corpus, value=value, stderr=0.0, n=20)
    line = next(line for line in say("status")[0].splitlines() if "cycle-5/recovered" in line)
    assert "0.80 to 1.00" in line
    assert "(0.839-1.000)" in say("status")[0], "all of 20 right"
