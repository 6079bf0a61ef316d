"""Hostile model folders, adapters and GGUF files: the faults that tests/torture/models.py found, each refused."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from pipelines.planning.model_config import model_text
from recovery.errors import ModelError
from recovery.memory_limit import memory_limit
from recovery.models import adapters, chat_loading, folder_check
from recovery.models.chat_loading import load_chat
from recovery.models.loading import load_model
from tests.torture.hostile_models import Case, adapter, cases

CASES = {case.name: case for case in cases(False)}


def made(case: Case, tiny: Path, folder: Path) -> Path:
    """Write a case into a folder and return what is loaded."""
    for name in ("model", "base", "outside"):
        shutil.copytree(tiny, folder / name)
    (folder / "outside" / "secret.txt").write_text("secret")
    case.write(folder / "model")
    return folder / case.target


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("pickle for weights", r"holds no weights in \*.safetensors, and pickles"),
        ("weight missing", "lacks weights of its model, for example model.layers.0.self_attn.q_proj.weight"),
        ("shape overflow to what is there", "not a sound safetensors file"),
        ("offsets of another tensor", "not a sound safetensors file"),
        ("index up and out", "names '../outside/model.safetensors', which is not a safetensors file of the folder"),
        ("index with a list", "has no usable weight_map"),
        ("index of None", "names None"),
        ("model.safetensors linked out", "is a link to a place outside the folder"),
        ("chat_template.jinja linked to a text", "is a link to a place outside the folder"),
        ("config.json linked to /etc/passwd", "is a link to a place outside the folder"),
        ("tokenizer.json a pipe", "is not a regular file"),
        ("config.json deep", "config.json cannot be read as JSON"),
        ("num_hidden_layers 1000000", "has num_hidden_layers 1000000, more than the model can hold"),
        ("10^9 labels", "has num_labels 1000000000"),
        ("vocabulary of 20 GiB", "describes a model of [0-9,]+ parameters, and its weights hold"),
        ("hidden_size 'x'", "cannot load the model in"),
        ("custom code", "cannot load the model in"),
        ("normaliser that doubles", "makes texts more than 1,000 times longer"),
        ("normaliser in front", "has [0-9,]+ bytes, more than any model needs|times longer"),
        ("adapter of a pickle", "holds no adapter_model.safetensors"),
        ("adapter on itself", "is an adapter on an adapter"),
        ("adapter on an adapter", "is an adapter on an adapter"),
        ("adapter of rank 1000000000", "has the rank 1000000000, and its weights have 2"),
        ("adapter with a library", "asks for code of its own"),
        ("adapter of other tensors", "Found missing adapter keys"),
        ("adapter_config.json deep", "cannot be read as JSON"),
        ("GGUF alignment 0", "is damaged: its header cannot be read"),
        ("GGUF block_count 1000000", "tensors for 1,000,000 layers"),
        ("GGUF key twice", "the key 'filler' is there twice"),
        ("GGUF tensor twice", "a tensor is there twice"),
        ("GGUF a pipe", "is not a regular file"),
        ("GGUF shape zero", "has the shape"),
    ],
)
def test_a_hostile_model_is_refused_in_one_line(tiny_qwen3: Path, tmp_path: Path, name: str, reason: str) -> None:
    target = made(CASES[name], tiny_qwen3, tmp_path)
    with pytest.raises(ModelError, match=reason) as caught:
        load_model(target, device="cpu")
    assert str(tmp_path) in str(caught.value)
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize(
    "name", ["pickle beside weights", "index", "weights linked within", "model itself a link", "adapter"]
)
def test_a_sound_model_beside_them_is_loaded(tiny_qwen3: Path, tmp_path: Path, name: str) -> None:
    assert load_model(made(CASES[name], tiny_qwen3, tmp_path), device="cpu").chat.prompt_ids(
        [{"role": "user", "content": "a"}]
    )
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("name", ["endless", "tree of macros", "memory by product", "memory by doubling"])
def test_a_template_that_never_ends_is_stopped(
    tiny_qwen3: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(chat_loading, "_SECONDS", 0.5)
    folder = made(CASES[f"template: {name}"], tiny_qwen3, tmp_path)
    with pytest.raises(ModelError, match="does not end within|chat template"):
        load_chat(str(folder))


def test_a_template_that_writes_too_much_is_refused(tiny_qwen3: Path, tmp_path: Path) -> None:
    folder = made(CASES["template: lipsum"], tiny_qwen3, tmp_path)
    (folder / "chat_template.jinja").write_text("{{ 'x' * 2000000 }}")
    with pytest.raises(ModelError, match="writes 2,000,000 characters around two words"):
        load_chat(str(folder))


def test_a_template_that_fails_is_a_line(tiny_qwen3: Path, tmp_path: Path) -> None:
    chat = load_chat(str(made(CASES["template: types"], tiny_qwen3, tmp_path)))
    with pytest.raises(ModelError, match="the chat template fails: can only concatenate list"):
        chat.prompt_ids([{"role": "user", "content": "a"}])


def test_a_template_that_is_cut_short_is_named(tiny_qwen3: Path, tmp_path: Path) -> None:
    folder = made(CASES["untouched"], tiny_qwen3, tmp_path)
    template = folder / "chat_template.jinja"
    template.write_text(template.read_text()[:-3])
    with pytest.raises(ModelError, match=f"the chat template in {folder} cannot be read .*: restore its file"):
        load_chat(str(folder))


def test_a_pattern_that_never_ends_is_stopped(
    tiny_qwen3: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adapters, "_SECONDS", 0.5)
    made(CASES["untouched"], tiny_qwen3, tmp_path)
    adapter(tmp_path / "model", target_modules=r"((a|.)+)+\d#")
    with pytest.raises(ModelError, match="has a pattern that cannot be matched"):
        load_model(tmp_path / "model", device="cpu")


def test_too_many_tensors_are_refused(tiny_qwen3: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_check, "MOST_TENSORS", 10)
    with pytest.raises(ModelError, match="tensors, no model has so many"):
        load_model(tiny_qwen3, device="cpu")


def test_the_links_of_the_hubs_cache_are_followed(tiny_qwen3: Path, tmp_path: Path) -> None:
    folder = tmp_path / "models--org--model" / "snapshots" / "abc"
    shutil.copytree(tiny_qwen3, folder)
    (tmp_path / "models--org--model" / "blobs").mkdir()
    (folder / "model.safetensors").rename(tmp_path / "models--org--model" / "blobs" / "123")
    (folder / "model.safetensors").symlink_to("../../blobs/123")
    assert load_model(folder, device="cpu")


def test_a_plan_refuses_counts_that_never_end(tiny_qwen3: Path, tmp_path: Path) -> None:
    folder = made(CASES["num_hidden_layers 1000000000"], tiny_qwen3, tmp_path)
    for target in (folder, folder / "config.json"):
        with pytest.raises(ModelError, match="more than the model can hold"):
            model_text(str(target))


def test_memory_is_limited_and_then_no_more() -> None:
    with pytest.raises(MemoryError), memory_limit(1 << 28):
        bytearray(1 << 30)
    assert len(bytearray(1 << 29))
