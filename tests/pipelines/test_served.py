"""What is served is measured on the same items as its source; a server that differs is found before it is asked."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from db import queries
from db.schema import ARTIFACT
from evals.paired_tests import judged
from pipelines.cycle import resume
from pipelines.evaluation.artifacts import source_of
from pipelines.evaluation.stage import evaluate
from pipelines.evaluation.stored_results import newest
from pipelines.export import export
from pipelines.runtime.progress import Display
from pipelines.runtime.session import Session
from recovery.config import EvalConfig
from recovery.errors import CheckpointError, EngineError, RecoveryError, ServerError, UsageError
from recovery.models.chat_loading import load_chat
from recovery.models.gguf_files import sha256_of
from recovery.models.gguf_files.writing import differing_folder
from recovery.rollouts.served_engine import _difference, started
from tests.pipelines.conftest import stages_of
from tests.served import Forward, before, of_folder, write

ARGS = {"enable_thinking": False}


@pytest.fixture
def file(session: Session, tiny_model: Path, tmp_path: Path) -> Path:
    """The clean model as a file."""
    return write(tiny_model, tmp_path / "tiny.gguf", digest=session.base.hash)


@pytest.fixture
def config(eval_config: EvalConfig) -> EvalConfig:
    """A few items of base, whose template opens no thought."""
    return replace(eval_config, checkpoint="base", template_args=ARGS, server_wait=0.0, limit=6)


@pytest.fixture
def address(file: Path) -> Iterator[str]:
    """llama.cpp's server on the file."""
    with started(file, 512) as (address, _):
        yield address


def artifacts(session: Session) -> list[Any]:
    rows = queries.checkpoints(session.tracker.database, session.experiment_id)
    return [row for row in rows if row.kind == ARTIFACT]


def changed(model: Path, folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> Path:
    """Copy a model, with other weights."""
    shutil.copytree(model, folder)
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.fixture
def lines(session: Session, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the session says."""
    said: list[str] = []
    monkeypatch.setattr(session.display, "say", said.append)
    return said


def test_a_file_is_measured_as_an_artifact_of_its_source(
    session: Session, config: EvalConfig, file: Path, lines: list[str]
) -> None:
    evaluate(session, config)
    lines.clear()
    assert source_of(session, file) == session.base
    evaluate(session, replace(config, runtime="llama.cpp", file=file))
    (artifact,) = artifacts(session)
    assert artifact.name == "artifact/tiny@llama.cpp" and artifact.parent == "base" and artifact.cycle is None
    about = artifact.details[ARTIFACT]
    assert about["sha256"] == sha256_of(file) and about["runtime"] == "llama.cpp" and about["template"]
    database = session.tracker.database
    ours, theirs = newest(database, session.base.id or 0), newest(database, artifact.id)
    one, two = (judged(queries.judged_items(database, of["instruction_following"].id)) for of in (ours, theirs))
    assert one.keys() == two.keys() and len(one) == 6
    assert not any("differs" in line for line in lines)
    assert any(line.startswith("not measured: stored knowledge, K") for line in lines)
    assert lines[-1] == "recorded as artifact/tiny@llama.cpp, made from base"
    same = {row.item: row.response for row in queries.samples(database, ours["instruction_following"].id).samples}
    served = {row.item: row.response for row in queries.samples(database, theirs["instruction_following"].id).samples}
    assert same == served, "in 32 bits greedy answers are the same"
    with pytest.raises(CheckpointError, match="is an artifact, which can only be served: name the checkpoint"):
        session.resolve(artifact.name)


def test_a_template_broken_on_purpose_and_a_missing_token_are_found_before_sampling(
    session: Session, config: EvalConfig, tiny_model: Path, tmp_path: Path, lines: list[str]
) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(tiny_model, broken)
    for name in ("chat_template.jinja", "tokenizer_config.json"):
        if (broken / name).is_file():
            text = (broken / name).read_text()
            (broken / name).write_text(text.replace("<|im_start|>assistant", "<|im_start|>user"))
    path = write(broken, tmp_path / "broken.gguf", digest=session.base.hash)
    path.write_bytes(path.read_bytes().replace(b"</think>", b"</thinq>"))
    with pytest.raises(UsageError, match="is not what was accepted"):
        evaluate(session, replace(config, runtime="llama.cpp", file=path))
    differences = [line for line in lines if line.startswith("differs: ")]
    assert any("one turn" in line and "assistant" in line for line in differences)
    assert any("added tokens that its tokenizer lacks: </think>" in line for line in differences)
    assert not stages_of(session) and not artifacts(session)


def test_a_tensor_that_is_not_its_sources_is_named_before_sampling(
    session: Session, config: EvalConfig, tiny_model: Path, tmp_path: Path, lines: list[str]
) -> None:
    """Also a scale that no greedy answer shows: that of the last norm, and a factor of two."""

    def wrong(weights: dict[str, torch.Tensor]) -> None:
        weights["model.norm.weight"] *= 16
        weights["model.layers.1.mlp.down_proj.weight"] *= 2
        weights["model.layers.0.self_attn.q_proj.weight"] = weights["model.layers.0.self_attn.q_proj.weight"].flip(0)

    broken = changed(tiny_model, tmp_path / "broken", wrong)
    for kind in ("f32", "q8_0"):
        file = write(broken, tmp_path / f"{kind}.gguf", kind, digest=session.base.hash)
        with pytest.raises(UsageError, match="is not what was accepted .* template, tokenizer or weights"):
            evaluate(session, replace(config, runtime="llama.cpp", file=file))
        assert sorted(line for line in lines if "weights" in line and line.startswith("differs")) == [
            "differs: weights: blk.0.attn_q.weight is not its source's",
            "differs: weights: blk.1.ffn_down.weight is 2 times its source's",
            "differs: weights: output_norm.weight is 16 times its source's",
        ]
        lines.clear()
    evaluate(session, replace(config, runtime="llama.cpp", file=file, despite_differences=True))
    assert artifacts(session), "measured so if that is asked for"


def test_a_folder_whose_weights_are_not_its_sources_is_found_before_sampling(
    session: Session, config: EvalConfig, tiny_model: Path, tmp_path: Path, lines: list[str]
) -> None:
    broken = changed(tiny_model, tmp_path / "broken", lambda weights: weights["model.norm.weight"].mul_(16))
    with of_folder(broken) as address, pytest.raises(UsageError, match="is not what was accepted"):
        evaluate(session, replace(config, served_at=address))
    found = [line for line in lines if line.startswith("differs: weights")]
    assert found == ["differs: weights: model.norm.weight is 16 times its source's"] and not artifacts(session)
    partial = changed(tiny_model, tmp_path / "partial", lambda weights: weights.pop("model.norm.weight"))
    assert differing_folder(tiny_model, None, partial) == ["model.norm.weight is missing"]
    rounded = changed(
        tiny_model, tmp_path / "rounded", lambda weights: weights.update({k: v.bfloat16() for k, v in weights.items()})
    )
    assert differing_folder(tiny_model, None, rounded) == []
    (rounded / "config.json").write_text(json.dumps({"quantization_config": {"quant_method": "fp8"}}))
    assert differing_folder(tiny_model, None, rounded) is None


def test_an_adapter_is_compared_as_it_is_served_alone_or_merged(
    session: Session, tiny_model: Path, tmp_path: Path
) -> None:
    settings = LoraConfig(r=4, target_modules=["q_proj"], init_lora_weights=False, task_type="CAUSAL_LM")
    get_peft_model(AutoModelForCausalLM.from_pretrained(tiny_model), settings).save_pretrained(tmp_path / "adapter")
    for name, merge in (("alone", False), ("merged", True)):
        export(session, str(tmp_path / "adapter"), tmp_path / name, merge=merge)
        assert differing_folder(tiny_model, tmp_path / "adapter", tmp_path / name) == []
    unmerged = differing_folder(tiny_model, tmp_path / "adapter", tiny_model)
    assert unmerged is not None and unmerged and all("q_proj" in line for line in unmerged)


def test_a_file_of_a_family_that_is_not_written_here_is_measured_without_comparing_its_weights(
    make_tiny: Any, config: EvalConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """llama.cpp's own converter gives Mistral's weights the architecture llama, and other names to their rows."""
    folder = make_tiny("llama", tmp_path / "mistral")
    file = write(folder, tmp_path / "mistral.gguf")
    about = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(about | {"model_type": "mistral"}))
    with Session.open(tmp_path / "w", model=str(folder), display=Display(quiet=True)) as session:
        lines: list[str] = []
        monkeypatch.setattr(session.display, "say", lines.append)
        with started(file, 512) as (address, _):
            evaluate(session, replace(config, served_at=address, despite_differences=True))
        assert artifacts(session) and not any("weights" in line for line in lines if line.startswith("differs"))


def test_a_server_with_another_model_is_refused(
    session: Session, config: EvalConfig, tmp_path: Path, make_tiny: Any
) -> None:
    other = write(make_tiny("qwen3", tmp_path / "other", hidden_size=64), tmp_path / "other.gguf", digest="another")
    with started(other, 512) as (address, _):
        with pytest.raises(UsageError, match="was made from tiny, not from base"):
            evaluate(session, replace(config, served_at=address))

        def elsewhere(path: str, body: Any, forward: Forward) -> tuple[int, Any]:
            return (404, {}) if path == "/props" else forward(path, body)

        with before(address, elsewhere) as remote, pytest.raises(UsageError, match="is not what was accepted"):
            evaluate(session, replace(config, served_at=remote))
    assert not artifacts(session)
    with pytest.raises(CheckpointError, match="made from tiny of other weights than any here"):
        source_of(session, other)


def test_a_server_that_only_has_openais_form_is_compared_by_numbers_of_tokens(
    session: Session, config: EvalConfig, address: str, lines: list[str]
) -> None:
    def plain(path: str, body: Any, forward: Forward) -> tuple[int, Any]:
        if path not in ("/v1/models", "/v1/chat/completions"):
            return 404, {"error": "no such path"}
        return forward(path, {key: value for key, value in (body or {}).items() if key != "logit_bias"} or None)

    with before(address, plain) as remote:
        evaluate(session, replace(config, served_at=remote))
    assert [line for line in lines if line.startswith("not compared: ")] == [
        "not compared: its tokens: it has no /tokenize; of conversations the number of tokens was compared",
        "not compared: its end tokens: it takes no logit_bias",
    ]
    assert artifacts(session)[0].details[ARTIFACT]["sha256"] == ""


def test_a_server_that_tells_tokens_as_vllm_does_is_compared(
    session: Session, config: EvalConfig, address: str, lines: list[str]
) -> None:
    def vllm(path: str, body: Any, forward: Forward) -> tuple[int, Any]:
        if path in ("/props", "/apply-template"):
            return 404, {"error": "no such path"}
        if path != "/tokenize":
            return forward(path, body)
        if "content" in body:
            return 400, {"error": "Field required: prompt"}
        content = forward("/apply-template", body)[1]["prompt"] if "messages" in body else body["prompt"]
        return forward(path, {"content": content, "add_special": False, "parse_special": True})

    with before(address, vllm) as remote:
        evaluate(session, replace(config, served_at=remote))
    assert not [line for line in lines if line.startswith(("differs: ", "not compared: "))]


def test_a_template_that_fails_at_the_server_is_a_difference(
    session: Session, config: EvalConfig, address: str, lines: list[str]
) -> None:
    def failing(path: str, body: Any, forward: Forward) -> tuple[int, Any]:
        return (500, {"error": "unknown filter"}) if path == "/apply-template" else forward(path, body)

    with before(address, failing) as remote, pytest.raises(UsageError, match="is not what was accepted"):
        evaluate(session, replace(config, served_at=remote))
    assert any("one turn: it refuses the conversation" in line and "unknown filter" in line for line in lines)


def test_a_double_beginning_is_named(tiny_llama: Path) -> None:
    chat = load_chat(str(tiny_llama))
    bos = chat.tokenizer.bos_token_id
    assert "it begins twice, with '<|begin_of_text|>'" in _difference(chat, [bos, 50], [bos, bos, 50])


def test_an_end_token_that_does_not_end_an_answer_is_named(
    session: Session, config: EvalConfig, address: str, lines: list[str]
) -> None:
    end = session_end(session)

    def going_on(path: str, body: Any, forward: Forward) -> tuple[int, Any]:
        status, answer = forward(path, body)
        if end in (body or {}).get("logit_bias", {}):
            answer["choices"][0]["finish_reason"] = "length"
        return status, answer

    with before(address, going_on) as remote, pytest.raises(UsageError, match="is not what was accepted"):
        evaluate(session, replace(config, served_at=remote))
    assert "differs: <|im_end|> does not end an answer" in lines


def session_end(session: Session) -> str:
    vocabulary = json.loads((session.base.path / "tokenizer.json").read_text())["added_tokens"]
    return str(next(token["id"] for token in vocabulary if token["content"] == "<|im_end|>"))


def test_a_server_that_cuts_answers_is_refused(session: Session, config: EvalConfig, address: str) -> None:
    def cut(path: str, body: Any, forward: Forward) -> tuple[int, Any]:
        asked = body if body is None or body.get("max_tokens", 0) < 4 else {**body, "max_tokens": 3}
        return forward(path, asked)

    with before(address, cut) as remote, pytest.raises(ServerError, match="cut an answer after 3 of 8 tokens"):
        evaluate(session, replace(config, served_at=remote))


def test_a_server_that_goes_down_costs_what_is_unanswered(
    session: Session, config: EvalConfig, address: str, lines: list[str]
) -> None:
    asked: list[str] = []
    answered, most, counted, down = 0, 4, threading.Lock(), threading.Event()

    def counting(path: str, body: Any, forward: Forward) -> tuple[int, Any]:
        nonlocal answered
        if path != "/v1/chat/completions" or body["max_tokens"] <= 2:
            return forward(path, body)
        with counted:
            is_up = len(asked) < most
            if is_up:
                asked.append(json.dumps(body["messages"]))
        if not is_up:
            # Until those before are answered: one on its way would be asked again. The server is waited for longer
            # than the last of these answers takes to arrive.
            down.wait(60)
            return 503, {"error": "down"}
        answer = forward(path, body)
        with counted:
            answered += 1
            if answered == most:
                down.set()
        return answer

    with before(address, counting) as remote:
        with pytest.raises(ServerError, match="start it again and repeat the command"):
            evaluate(session, replace(config, served_at=remote, server_wait=2.0))
        assert any(line.endswith("waiting up to 2 seconds (--server-wait)") for line in lines)
        most = 100
        assert resume(session).startswith("evaluated artifact/tiny@llama.cpp: ")
    assert len(set(asked)) == len(asked) > 4, "what was answered before is not asked again"
    (stage,) = stages_of(session)
    assert stage.status == "finished" and stage.student_id == artifacts(session)[0].id


def test_a_file_that_cannot_be_served_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(b"GGUF")
    with (
        pytest.raises(EngineError, match="llama.cpp cannot serve .*a.gguf: ") as raised,
        started(tmp_path / "a.gguf", 64),
    ):
        pass
    assert "\n" not in str(raised.value)


def test_settings_that_contradict_one_another_are_refused() -> None:
    for given, said in (
        ({"served_at": "http://a:1", "runtime": "llama.cpp"}, "omit one of them"),
        ({"despite_differences": True}, "needs --served or --runtime"),
        ({"served_at": "http://a:1", "engine": "http://b:1"}, "not from what is served"),
        ({"served_at": "http://key@a:1"}, "must not contain a key"),
    ):
        with pytest.raises(RecoveryError, match=said):
            EvalConfig(**given)  # type: ignore[arg-type]
