"""Results of lm-eval and Inspect, written by the tools themselves and read back."""

from __future__ import annotations

import importlib.util
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lm_eval.tasks
import pytest
from lm_eval import simple_evaluate
from lm_eval.loggers import EvaluationTracker
from lm_eval.tasks import TaskManager
from lm_eval.tasks._yaml_loader import load_yaml

from evals.lm_eval_adapter import EngineLM, run_tasks
from evals.lm_eval_samples import _response
from evals.lm_eval_tasks import evaluate_ifeval, load_ifeval, load_tasks, on_local_data
from pipelines.evaluation import importing
from pipelines.evaluation.importing import Imported, _task, read_logs
from recovery.errors import UsageError
from recovery.models.loading import load_model
from recovery.rollouts.transformers_engine import TransformersEngine
from recovery.types import SuiteResult

QUIZ = {
    "task": "harbour_quiz",
    "dataset_path": "json",
    "test_split": "test",
    "output_type": "multiple_choice",
    "doc_to_text": "question",
    "doc_to_choice": "choices",
    "doc_to_target": "label",
    "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}],
}
PROMPTS = [
    {"key": 7, "prompt": "Say it without commas.", "instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]},
    {
        "key": 9,
        "prompt": "Answer in capitals, in two words.",
        "instruction_id_list": ["change_case:english_capital", "length_constraints:number_words"],
        "kwargs": [{}, {"relation": "less than", "num_words": 3}],
    },
]


@pytest.fixture(scope="module")
def logged(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[SuiteResult]]:
    """The folder that lm-eval wrote about two tasks, and the results of our own run of them."""
    folder = tmp_path_factory.mktemp("lm-eval")
    boats = [
        {"question": f"Boat {i} is", "choices": ["green", "white", "at the pier"], "label": i % 3} for i in range(5)
    ]
    files = {"quiz": folder / "quiz.jsonl", "ifeval": folder / "ifeval.jsonl"}
    for file, rows in zip(files.values(), (boats, PROMPTS), strict=True):
        file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    quiz = QUIZ | {"dataset_kwargs": {"data_files": {"test": str(files["quiz"])}}}
    packaged = load_yaml(Path(lm_eval.tasks.__file__).parent / "ifeval" / "ifeval.yaml")
    ifeval = packaged | on_local_data(packaged, files["ifeval"]) | {"generation_kwargs": {"max_gen_toks": 8}}
    loaded = load_model(tiny_llama, precision="float32", device="cpu")
    lm = EngineLM(loaded, TransformersEngine(loaded))
    tracker = EvaluationTracker(output_path=str(folder / "out"))
    manager = TaskManager(include_defaults=False)
    for task, chat in ((quiz, False), (ifeval, True)):  # as our own runs do
        found = simple_evaluate(lm, tasks=[task], task_manager=manager, log_samples=True, bootstrap_iters=0,
                                apply_chat_template=chat)  # fmt: skip
        samples = found.pop("samples")
        tracker.save_results_aggregated(results=found, samples=samples)
        for name, rows in samples.items():
            tracker.save_results_samples(task_name=name, samples=rows)
    ours = run_tasks(lm, load_tasks([quiz]))
    return folder / "out", [*ours, evaluate_ifeval(loaded, lm.engine, load_ifeval(files["ifeval"]), max_new_tokens=8)]


def of(imported: Imported) -> dict[str, SuiteResult]:
    return {result.suite: result for log in imported.logs for result in log.results}


def test_what_lm_eval_logged_is_what_our_own_run_of_the_task_records(logged: tuple[Path, list[SuiteResult]]) -> None:
    folder, ours = logged
    imported = read_logs(folder)
    assert imported.problems == []
    assert {log.tool for log in imported.logs} == {"lm-eval"} and all(log.version for log in imported.logs)
    for own in ours:
        found = of(imported)[own.suite]
        assert found.score == own.score
        assert [(i.id, i.prompt, i.response, i.score, dict(i.verdicts)) for i in found.items] == [
            (i.id, i.prompt, i.response, i.score, dict(i.verdicts)) for i in own.items
        ]
        assert {k: v for k, v in own.details.items() if k != "ended"} == dict(found.details), "tokens are not logged"


def test_what_cannot_be_used_is_said_in_one_line(logged: tuple[Path, list[SuiteResult]], tmp_path: Path) -> None:
    folder = tmp_path / "out"
    shutil.copytree(logged[0], folder)
    quiz = next(folder.rglob("samples_harbour_quiz_*"))
    kept = quiz.read_text(encoding="utf-8")
    quiz.unlink()
    imported = read_logs(folder)
    assert set(of(imported)) == {"ifeval"}
    (problem,) = imported.problems
    assert "harbour_quiz has no samples_harbour_quiz_" in problem and "--log_samples" in problem

    quiz.write_text(kept[: len(kept) // 2], encoding="utf-8")
    with pytest.raises(UsageError, match=r"samples_harbour_quiz_.*, line \d+: not valid JSON"):
        read_logs(folder)
    quiz.write_text('{"doc_id": 1}\n', encoding="utf-8")
    with pytest.raises(UsageError, match="not a file of samples as lm-eval writes it"):
        read_logs(folder)
    quiz.unlink()
    next(folder.rglob("results_*")).write_text("[]", encoding="utf-8")
    with pytest.raises(UsageError, match="is not a results file of lm-eval"):
        read_logs(folder)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match="neither results of lm-eval"):
        read_logs(tmp_path / "empty")
    with pytest.raises(UsageError, match="there is no file or folder"):
        read_logs(tmp_path / "missing")


@pytest.mark.parametrize("swapped", [False, True])
def test_samples_of_several_filters_of_an_older_release_are_told_apart_or_refused(
    tmp_path: Path, swapped: bool
) -> None:
    """Before 0.4.8 their lines did not say of which filter they are."""
    aggregates = {"exact_match,strict-match": 0.25, "exact_match_stderr,strict-match": 0.2}
    aggregates |= {"exact_match,flexible-extract": 0.75, "exact_match_stderr,flexible-extract": 0.2}
    right = [(1.0, 0.0, 0.0, 0.0), (1.0, 1.0, 1.0, 0.0)]
    lines = [
        {"doc_id": n, "doc": {}, "target": "1", "arguments": [["Q", {}]], "filtered_resps": ["1"], "exact_match": value}
        for values in (right[::-1] if swapped else right)
        for n, value in enumerate(values)
    ]
    file = tmp_path / "samples_gsm8k.jsonl"
    file.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    if swapped:
        with pytest.raises(UsageError, match="do not say of which filter they are"):
            _task("gsm8k", file, aggregates)
    else:
        result, problem = _task("gsm8k", file, aggregates)
        assert (result.score.value, result.score.n, problem) == (0.25, 4, "")
        assert len({item.id for item in result.items}) == len(result.items) == 4
        assert result.details["exact_match/flexible-extract"].value == 0.75


def test_several_texts_of_a_request_are_shown_as_text() -> None:
    assert _response([["def f", "def g"]], [["Write f."]]) == "def f\ndef g"
    assert _response([["-1.5", "False"], ["-0.5", "True"]], [["q", "no"], ["q", "yes"]]) == "yes"


def test_results_of_two_models_are_refused_and_older_ones_left_out(
    logged: tuple[Path, list[SuiteResult]], tmp_path: Path
) -> None:
    folder = tmp_path / "out"
    shutil.copytree(logged[0], folder)
    newest = max(folder.rglob("results_*"))
    later = newest.with_name("results_2999-01-01T00-00-00.000000.json")
    shutil.copy(newest, later)
    task = "ifeval" if "ifeval" in json.loads(newest.read_text(encoding="utf-8"))["results"] else "harbour_quiz"
    stem = newest.stem.removeprefix("results_")
    shutil.copy(newest.with_name(f"samples_{task}_{stem}.jsonl"),
                later.with_name(f"samples_{task}_2999-01-01T00-00-00.000000.jsonl"))  # fmt: skip
    imported = read_logs(folder)
    assert imported.newest[task].file == later
    assert [problem for problem in imported.problems if "a newer log has the same" in problem]

    written = json.loads(later.read_text(encoding="utf-8"))
    later.write_text(json.dumps(written | {"model_name": "another"}), encoding="utf-8")
    with pytest.raises(UsageError, match="results of several models"):
        read_logs(folder)


def test_a_log_of_inspect_without_its_package_names_the_extra(tmp_path: Path) -> None:
    (tmp_path / "one.eval").write_bytes(b"PK")
    expected = "is not a log of Inspect" if importlib.util.find_spec("inspect_ai") else r"recovery\[inspect\]"
    with pytest.raises(UsageError, match=expected):
        read_logs(tmp_path)


def test_epochs_of_one_sample_make_no_score_of_inspect_more_certain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Samples that are always right or always wrong: ten epochs say as much as one."""
    monkeypatch.setattr(importing, "_values", dict)  # Inspect's own package reads its values

    def read(epochs: int) -> SuiteResult:
        samples = [
            SimpleNamespace(
                id=f"q{number}", epoch=epoch, input="When?", target="seven", output=SimpleNamespace(completion="seven"),
                scores={"includes": float(number % 2), "match": float(number % 4 == 0)},
            )
            for epoch in range(epochs)
            for number in range(100)
        ]  # fmt: skip
        about = SimpleNamespace(config=SimpleNamespace(epochs=epochs), task="ferries")
        (result,), problems = importing._result(SimpleNamespace(eval=about, samples=samples))
        assert problems == []
        return result

    once, often = read(1), read(10)
    assert often.score.n == often.details["match"].n == 1000
    assert often.score == often.details["includes"]
    for name in ("includes", "match"):
        assert often.details[name].stderr == pytest.approx(once.details[name].stderr)


@pytest.mark.trackers
@pytest.mark.parametrize("kind", ["eval", "json"])
def test_a_log_that_inspect_wrote(
    kind: Any, tmp_path: Path, require_component: Callable[[bool, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    require_component(importlib.util.find_spec("inspect_ai") is not None, "inspect_ai")
    from inspect_ai import Task, eval
    from inspect_ai.dataset import Sample
    from inspect_ai.model import ModelOutput, ModelUsage, get_model
    from inspect_ai.scorer import includes, match

    answers = ["seven", "<b>eight</b>", "nine o'clock", "seven"]
    outputs = [ModelOutput.from_content("mockllm/model", text) for text in answers]
    for output in outputs:  # otherwise counted by a tokenizer that is fetched
        output.usage = ModelUsage(input_tokens=1, output_tokens=1, total_tokens=2)
    model = get_model("mockllm/model", custom_outputs=outputs)
    samples = [Sample(id=f"q{i}", input=f"When does ferry {i} leave?", target="seven") for i in range(4)]
    monkeypatch.chdir(tmp_path)
    (log,) = eval(
        Task(dataset=samples, scorer=[includes(), match()], name="ferries"), model=model, log_dir=str(tmp_path),
        log_format=kind, display="none", max_connections=1, max_samples=1,
    )  # fmt: skip
    assert log.status == "success"
    (read,) = read_logs(tmp_path if kind == "eval" else next(tmp_path.glob("*.json"))).logs
    (result,) = read.results
    assert (result.suite, read.model, result.score.value, result.score.n) == (
        "inspect/ferries",
        "mockllm/model",
        0.5,
        4,
    )
    assert {name: score.value for name, score in result.details.items()} == {"includes": 0.5, "match": 0.5}
    rows = {item.id: item for item in result.items}
    assert rows["q1"].prompt == "When does ferry 1 leave?" and rows["q1"].response == "<b>eight</b>"
    assert rows["q3"].verdicts == {"includes": True, "match": True} and rows["q1"].score == 0.0
