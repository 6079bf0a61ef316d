"""lm-eval tasks: lookup by name and loading, also from local data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from evals.lm_eval_adapter import EngineLM, run_tasks
from evals.lm_eval_tasks import _manager, _near_spelling, load_tasks
from recovery.errors import UsageError
from recovery.miniature.package import materialise
from recovery.models.loading import load_model
from recovery.rollouts.transformers_engine import TransformersEngine


@pytest.fixture(scope="module")
def lm(tiny_llama: Path) -> EngineLM:
    loaded = load_model(tiny_llama, precision="float32", device="cpu")
    return EngineLM(loaded, TransformersEngine(loaded))


def lines(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def mmlu(subject: str, count: int = 2) -> list[dict[str, Any]]:
    names = ["red", "blue", "green", "white"]
    return [
        {"question": f"Boat {i} of {subject}?", "subject": subject, "choices": names, "answer": i} for i in range(count)
    ]


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ("no_such.yaml", "no lm-eval task file no_such.yaml"),
        ({"task": "x", "inclde": "y"}, "cannot load the lm-eval task x"),
        ({"task": "x", "dataset_path": "json", "dataset_kwargs": {"data_files": "none.jsonl"}}, "cannot load"),
        ("gsm8k=none.jsonl", "there is no file or folder none.jsonl"),
    ],
)
def test_a_task_that_cannot_be_loaded_is_one_line(task: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        load_tasks([task])
    assert "\n" not in str(caught.value)


def test_only_a_task_that_is_spelt_nearly_like_an_unknown_one_is_suggested() -> None:
    """`helloworld` was taken for haerae_loan_word, and MMLU for tinyMMLU."""
    names = ["gsm8k", "mmlu", "tinyMMLU", "arc_challenge", "haerae_loan_word", "xlsum_tasks", "m_mmlu_ru", "eq_bench"]
    near = {"gsm8": "gsm8k", "MMLU": "mmlu", "arc-chalenge": "arc_challenge", "tinymmlu": "tinyMMLU"}
    far = ("helloworld", "my_task", "mmlu_redux", "swebench")
    assert {name: _near_spelling(name, names) for name in (*near, *far)} == near | dict.fromkeys(far)
    with pytest.raises(UsageError, match="'helloworld': give the name of a task, or .*`lm-eval ls tasks` lists them"):
        load_tasks(["helloworld"])


def test_data_that_cannot_be_fetched_is_one_line_with_what_helps(tmp_path: Path) -> None:
    text = "task: far\ndataset_path: nobody/no-such-data\noutput_type: generate_until\ntest_split: test\n"
    (tmp_path / "far.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match="nobody/no-such-data.*give its data as --task far=PATH") as caught:
        load_tasks(["far"], include_path=tmp_path)
    assert "\n" not in str(caught.value)


def test_a_packaged_task_is_found_without_reading_them_all() -> None:
    manager = _manager(["gsm8k", "truthfulqa_mc2"], None)
    assert {"gsm8k", "truthfulqa_mc2"} <= set(manager.all_tasks)
    assert len(manager.all_tasks) < 100


def test_a_group_reads_each_subject_from_one_file_or_from_its_folder(lm: EngineLM, tmp_path: Path) -> None:
    one = lines(tmp_path / "mmlu.jsonl", [*mmlu("anatomy", 3), *mmlu("astronomy")])
    lines(tmp_path / "folder" / "anatomy" / "test.jsonl", mmlu("anatomy", 3))
    lines(tmp_path / "folder" / "anatomy" / "dev.jsonl", mmlu("anatomy"))
    from_file, from_folder = load_tasks([f"mmlu={one}"]), load_tasks([f"mmlu={tmp_path / 'folder'}"])
    assert set(from_file) == {"mmlu_anatomy", "mmlu_astronomy"}
    assert set(from_folder) == {"mmlu_anatomy"}
    anatomy, astronomy = run_tasks(lm, from_file)
    assert (anatomy.score.n, astronomy.score.n) == (3, 2)
    assert all("anatomy" in item.prompt for item in anatomy.items)
    assert [item.score for item in run_tasks(lm, from_folder)[0].items] == [item.score for item in anatomy.items]
    with pytest.raises(UsageError, match='every line needs its "subject"'):
        load_tasks([f"mmlu={lines(tmp_path / 'bare.jsonl', [{'question': 'x'}])}"])


def test_examples_to_show_come_from_a_folder(lm: EngineLM, tmp_path: Path) -> None:
    def rows(count: int) -> list[dict[str, Any]]:
        return [{"question": f"{i} + 1?", "answer": f"So #### {i + 1}"} for i in range(count)]

    test = lines(tmp_path / "test.jsonl", rows(2))
    with pytest.raises(UsageError, match=r"shows 5 examples .* give a folder with test\.jsonl and train\.jsonl"):
        load_tasks([f"gsm8k={test}"])
    lines(tmp_path / "train.jsonl", rows(9))
    (result,) = run_tasks(lm, load_tasks([f"gsm8k={tmp_path}"]))
    assert result.score.n == 2
    assert result.items[0].prompt.count("Question:") == 6  # five examples and the question
    assert result.items[0].prompt.count("<|start_header_id|>user") == 6, "turns of a chat, as lm-eval's command asks"
    (again,) = run_tasks(lm, load_tasks([f"gsm8k={tmp_path}"]))
    assert [item.prompt for item in again.items] == [item.prompt for item in result.items], "the same examples"
    (tmp_path / "train.jsonl").rename(tmp_path / "other.jsonl")
    with pytest.raises(UsageError, match=r"shows examples: it needs a file train\.jsonl"):
        load_tasks([f"gsm8k={tmp_path}"])


def test_a_task_of_several_splits_runs_on_a_file_of_the_evaluated_one(lm: EngineLM, tmp_path: Path) -> None:
    choices = {"text": ["red", "blue"], "label": ["A", "B"]}
    rows = [{"id": str(n), "question": f"Which is {n}?", "choices": choices, "answerKey": "A"} for n in range(3)]
    data = lines(tmp_path / "one" / "test.jsonl", rows)
    for place in (data, data.parent):
        (result,) = run_tasks(lm, load_tasks([f"arc_easy={place}"]))
        assert (result.suite, result.score.n) == ("arc_easy", 3)


def test_a_task_that_runs_written_code_is_refused_before_anything_is_asked(tmp_path: Path) -> None:
    data = lines(tmp_path / "q.jsonl", [{"question": "Which?"}])
    config = {
        "task": "code", "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(data)}},
        "test_split": "test", "doc_to_text": "{{question}}", "doc_to_target": "x", "output_type": "generate_until",
        "unsafe_code": True,
    }  # fmt: skip
    with pytest.raises(UsageError, match="the lm-eval task code runs code that the model writes"):
        load_tasks([config])


def test_truthfulqa_runs_on_a_file(lm: EngineLM, tmp_path: Path) -> None:
    choices = {"choices": ["red", "at the pier"], "labels": [1, 0]}
    data = lines(tmp_path / "q.jsonl", [{"question": "Which?", "mc1_targets": choices, "mc2_targets": choices}] * 3)
    results = run_tasks(lm, load_tasks([f"truthfulqa_mc1={data}", f"truthfulqa_mc2={data}"]))
    assert [(result.suite, result.score.n) for result in results] == [("truthfulqa_mc1", 3), ("truthfulqa_mc2", 3)]


def test_the_miniatures_own_tasks_are_found_by_name(lm: EngineLM, tmp_path: Path) -> None:
    own = materialise(tmp_path) / "suites" / "lm_eval"
    tasks = load_tasks(["miniature_facts", "miniature_arithmetic"], include_path=own)
    results = {result.suite: result for result in run_tasks(lm, tasks, limit=8)}
    assert {name: one.score.n for name, one in results.items()} == {"miniature_facts": 8, "miniature_arithmetic": 8}
    assert results["miniature_arithmetic"].score.value == 0.0
