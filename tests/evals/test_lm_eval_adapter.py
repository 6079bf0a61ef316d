"""lm-eval's three kinds of request on the rollout engine and scorer, and lm-eval tasks that use them."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from lm_eval.api.instance import Instance

from evals.knowledge import bits_per_byte, choose
from evals.lm_eval_adapter import EngineLM, run_tasks
from evals.lm_eval_tasks import load_tasks
from recovery.batching import Row
from recovery.losses.token_stats import token_logprobs
from recovery.models.loaded import Loaded
from recovery.models.loading import load_model
from recovery.rollouts.engine import Sampling
from recovery.rollouts.transformers_engine import TransformersEngine
from recovery.teachers.teacher import LocalTeacher
from recovery.types import Message, Probe
from tests.models import make_tiny
from tests.support import continuation_logprobs


@pytest.fixture(scope="module")
def loaded(tiny_llama: Path) -> Loaded:
    """A model whose template and tokenizer both add a beginning-of-text token, which must not be doubled."""
    return load_model(tiny_llama, precision="float32", device="cpu")


@pytest.fixture(scope="module")
def lm(loaded: Loaded) -> EngineLM:
    return EngineLM(loaded, TransformersEngine(loaded))


def request(kind: str, *arguments: Any) -> Instance:
    return Instance(kind, {}, arguments, 0)


def test_loglikelihood_is_plain_scoring(lm: EngineLM, loaded: Loaded) -> None:
    context, continuation = "The ferry leaves", " at seven"
    ((total, greedy),) = lm.loglikelihood([request("loglikelihood", context, continuation)])
    ids = loaded.tokenizer(context)["input_ids"]
    assert ids[0] == loaded.tokenizer.bos_token_id
    whole = loaded.tokenizer(context + continuation)["input_ids"]
    assert total == pytest.approx(sum(continuation_logprobs(loaded, [(ids, whole[len(ids) :])])[0]), abs=1e-4)
    assert greedy is False


def test_an_empty_context_is_the_beginning_of_a_text(lm: EngineLM, loaded: Loaded) -> None:
    ((total, _),) = lm.loglikelihood([request("loglikelihood", "", "at seven")])
    (rolling,) = lm.loglikelihood_rolling([request("loglikelihood_rolling", "at seven")])
    assert total == pytest.approx(rolling, abs=1e-4)


def test_rolling_counts_every_token_of_a_long_text(loaded: Loaded, lm: EngineLM) -> None:
    text = "The harbour office opens at seven. " * 120
    tokens = lm.tok_encode(text, add_special_tokens=False)
    assert len(tokens) > loaded.max_length
    (total,) = lm.loglikelihood_rolling([request("loglikelihood_rolling", text)])
    assert -total / len(tokens) == pytest.approx(6.2, abs=0.4)  # a random model over 512 entries: ln 512 = 6.24


def test_greedy_generation_stops_where_asked(lm: EngineLM, loaded: Loaded) -> None:
    ids = loaded.tokenizer("The ferry")["input_ids"]
    (direct,) = TransformersEngine(loaded).generate([ids], Sampling(12, temperature=0.0))
    whole = loaded.tokenizer.decode([i for i in direct.ids if i not in loaded.chat.end_ids], skip_special_tokens=True)
    stop = whole[3:5]
    plain = {"until": [], "max_gen_toks": 12, "do_sample": False}
    settings = (plain, {**plain, "until": [stop]}, {**plain, "until": stop})
    responses = lm.generate_until([request("generate_until", "The ferry", one) for one in settings])
    assert responses == [whole, whole.split(stop)[0], whole.split(stop)[0]]


def test_sampling_arguments_are_passed_on(lm: EngineLM) -> None:
    hot = {"until": [], "max_gen_toks": 12, "do_sample": True, "temperature": 5.0}
    cold = {"until": [], "max_gen_toks": 12, "temperature": 5.0}
    sampled, greedy = lm.generate_until([request("generate_until", "The ferry", a) for a in (hot, cold)])
    assert sampled != greedy
    assert greedy == lm.generate_until([request("generate_until", "The ferry", {**cold, "temperature": 0.0})])[0]


def test_chat_prompts_are_the_models_own_tokens(tiny_family: Path) -> None:
    loaded = load_model(tiny_family, precision="float32", device="cpu")
    lm = EngineLM(loaded, TransformersEngine(loaded))
    messages = [Message(role="user", content="Name a colour.")]
    text = lm.apply_chat_template(messages)
    assert lm.tok_encode(text) == loaded.chat.prompt_ids(messages)
    ids, rest = lm._encode_pair(text, "red")
    assert (ids, rest) == (loaded.chat.prompt_ids(messages), loaded.chat.encode("red"))
    begun = lm.apply_chat_template([*messages, Message(role="assistant", content="It is")], add_generation_prompt=False)
    assert begun.startswith(text) and begun.endswith("It is")
    assert [one in lm._begun for one in (text, begun)] == [False, True], "so it is not cut within thinking"


def with_processor(folder: Path, before: Sequence[str], after: Sequence[str]) -> Loaded:
    """Return a tiny model whose tokenizer puts these tokens before and after every text."""
    path = make_tiny("llama", folder) / "tokenizer.json"
    made = json.loads(path.read_text(encoding="utf-8"))
    ids = {token["content"]: token["id"] for token in made["added_tokens"]}
    parts = [{"SpecialToken": {"id": one, "type_id": 0}} for one in (*before, "", *after)]
    parts[len(before)] = {"Sequence": {"id": "A", "type_id": 0}}
    pair = [{"Sequence": {"id": name, "type_id": 0}} for name in "AB"]
    special = {one: {"id": one, "ids": [ids[one]], "tokens": [one]} for one in (*before, *after)}
    made["post_processor"] = {"type": "TemplateProcessing", "single": parts, "pair": pair, "special_tokens": special}
    path.write_text(json.dumps(made), encoding="utf-8")
    loaded = load_model(folder, precision="float32", device="cpu")
    assert loaded.tokenizer("a")["input_ids"][-1:] == [ids[after[-1]] if after else loaded.chat.encode("a")[-1]]
    return loaded


BEGIN, END, TURN = "<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"


@pytest.mark.parametrize(
    ("before", "after"),
    [((BEGIN,), (END,)), ((), (END,)), ((BEGIN,), (TURN, END)), ((BEGIN,), (BEGIN,)), ((END,), (END,))],
)
def test_what_a_tokenizer_puts_after_a_text_is_in_no_context_and_is_not_scored(
    tmp_path: Path, tasks: Path, before: tuple[str, ...], after: tuple[str, ...]
) -> None:
    """T5's, some Llama conversions and many embedding models' tokenizers append an end token to every text."""
    plain, appending = with_processor(tmp_path / "a", before, ()), with_processor(tmp_path / "b", before, after)
    pairs = [("The ferry leaves", " at seven"), ("The ferry ", "leaves"), ("", "at seven"), ("Boat 1 is", " ")]
    asked = [request("loglikelihood", *pair) for pair in pairs]
    whole = [request("loglikelihood_rolling", "The harbour office opens at seven. " * times) for times in (1, 200)]
    greedy = [request("generate_until", "The ferry", {"until": [], "max_gen_toks": 8})]
    probes = [
        Probe("a", "choice", "The ferry leaves", ("at seven",), ("at seven", "never")),
        Probe("b", "choice", "", ("green",), ("green", "at the pier")),
    ]
    found = []
    for loaded in (plain, appending):
        lm = EngineLM(loaded, TransformersEngine(loaded))
        assert lm.tok_encode("The ferry leaves")[-1] == loaded.chat.encode("The ferry leaves")[-1]
        quiz = run_tasks(lm, load_tasks(["harbour_quiz"], include_path=tasks))[0]
        ids = loaded.chat.prompt_ids([Message(role="user", content="Hi.")])
        rows = [Row([*ids, 5, 6], [False] * len(ids) + [True] * 2)]
        found.append(
            {
                "continuations": lm.loglikelihood(asked),
                "whole texts": lm.loglikelihood_rolling(whole),
                "responses": lm.generate_until(greedy),
                "a task": [(item.response, item.score) for item in quiz.items],
                "stored knowledge": [(item.response, item.extra) for item in choose(loaded, probes).items],
                "bits per byte": bits_per_byte(loaded, ["The ferry leaves at seven."]).score,
                "a teacher": token_logprobs(LocalTeacher(loaded, "student"), rows, 100, 0, loaded.device),
            }
        )
    for name, one in found[0].items():
        assert found[1][name] == one, name


def test_a_long_plain_prompt_keeps_its_end(lm: EngineLM, loaded: Loaded) -> None:
    text = "word " * 3000 + "The ferry"
    (response,) = lm.generate_until([request("generate_until", text, {"until": [], "max_gen_toks": 5})])
    kept = lm.tok_encode(text)[-(loaded.max_length - 5) :]
    (direct,) = TransformersEngine(loaded).generate([kept], Sampling(5, temperature=0.0))
    ids = [i for i in direct.ids if i not in loaded.chat.end_ids]
    assert response == loaded.tokenizer.decode(ids, skip_special_tokens=True)


TASKS: dict[str, dict[str, Any]] = {
    "quiz": {
        "output_type": "multiple_choice",
        "doc_to_text": "question",
        "doc_to_choice": "choices",
        "doc_to_target": "label",
        "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}],
    },
    "echo": {
        "output_type": "generate_until",
        "doc_to_text": "question",
        "doc_to_target": "never said",
        "generation_kwargs": {"until": ["\n"], "max_gen_toks": 6},
        "metric_list": [{"metric": "exact_match"}],
    },
    "log": {
        "output_type": "loglikelihood_rolling",
        "doc_to_text": "",
        "doc_to_target": "question",
        "metric_list": [{"metric": "word_perplexity"}],
    },
}


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    rows = [
        {"question": f"Boat {i} is", "choices": ["green", "white", "at the pier"], "label": i % 3} for i in range(9)
    ]
    data = tmp_path / "quiz.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    folder = tmp_path / "tasks"
    folder.mkdir()
    about = {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(data)}}, "test_split": "test"}
    for name, task in TASKS.items():
        (folder / f"{name}.yaml").write_text(json.dumps({"task": f"harbour_{name}"} | about | task))  # JSON is YAML
    return folder


def test_local_tasks_run_and_keep_their_items(
    lm: EngineLM, loaded: Loaded, tasks: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    echo, quiz = run_tasks(lm, load_tasks(["harbour_quiz", "harbour_echo"], include_path=tasks))
    assert (echo.suite, quiz.suite) == ("harbour_echo", "harbour_quiz")
    assert capsys.readouterr().err == ""
    assert quiz.score == quiz.details["acc_norm"]
    assert quiz.score.n == len(quiz.items) == 9
    right = []
    for i in range(9):
        context = loaded.tokenizer(f"Boat {i} is")["input_ids"]
        pairs = [(context, loaded.chat.encode(c)) for c in (" green", " white", " at the pier")]
        totals = [sum(row) for row in continuation_logprobs(loaded, pairs)]
        right.append(float(max(range(3), key=totals.__getitem__) == i % 3))
    assert quiz.details["acc"].value == pytest.approx(sum(right) / 9)
    assert [item.prompt for item in quiz.items] == [f"Boat {i} is" for i in range(9)]
    assert all(item.verdicts == {"correct": item.score == 1.0} for item in quiz.items)
    assert {item.response for item in quiz.items} <= {" green", " white", " at the pier"}
    assert echo.score.value == 0.0
    assert all("\n" not in item.response for item in echo.items)


def test_items_have_no_score_where_only_the_whole_corpus_has(lm: EngineLM, tasks: Path) -> None:
    (log,) = run_tasks(lm, load_tasks(["harbour_log"], include_path=tasks))
    assert log.score.value > 1 and log.score.n == len(log.items) == 9
    assert all(math.isnan(item.score) and not item.verdicts for item in log.items)


def test_a_task_file_and_the_chat_template(lm: EngineLM, tasks: Path) -> None:
    results = run_tasks(lm, load_tasks([tasks / "echo.yaml", tasks / "quiz.yaml"]), limit=2)
    assert [result.score.n for result in results] == [2, 2]
    assert [result.items[0].prompt.startswith("<|begin_of_text|>") for result in results] == [True, False]
