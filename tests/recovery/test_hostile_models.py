"""Hostile model folders, adapters and GGUF files: the faults that tests/torture/models.py found, each refused."""

from __future__ import annotations

import contextlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from tokenizers.models import BPE, WordLevel
from transformers import ByT5Tokenizer, PreTrainedTokenizerFast

from pipelines.plan import model_text
from recovery.errors import ModelError
from recovery.limits import memory_limit
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
        ("without tokenizer.json", "has no tokenizer, neither tokenizer.json nor another vocabulary"),
        ("without tokenizer*", "has no tokenizer, neither tokenizer.json nor another vocabulary"),
        ("tokenizer without words", "makes nothing of ordinary text"),
        ("quantised by 'bitsandbytes'", r"quantised \(bitsandbytes\), and they are stored as F32, .*: remove the key"),
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


@pytest.mark.parametrize(
    "files", [["tokenizer.json"], ["tokenizer.model"], ["vocab.json", "merges.txt"], ["vocab.txt"]]
)
def test_any_vocabulary_is_a_tokenizer(files: list[str], tmp_path: Path) -> None:
    for name in files:
        with pytest.raises(ModelError, match=f"{tmp_path} has no tokenizer"):
            folder_check.check_tokenizer(tmp_path)
        (tmp_path / name).touch()
    folder_check.check_tokenizer(tmp_path)


def test_a_tokenizer_that_knows_no_word_is_refused(tiny_qwen3: Path, tmp_path: Path) -> None:
    folder = made(CASES["untouched"], tiny_qwen3, tmp_path)
    core = Tokenizer(WordLevel({"<unk>": 0, "<|im_end|>": 1, "harbour": 2}, unk_token="<unk>"))
    PreTrainedTokenizerFast(tokenizer_object=core, unk_token="<unk>", eos_token="<|im_end|>").save_pretrained(folder)
    with pytest.raises(ModelError, match="makes only <unk> of ordinary text"):
        load_chat(str(folder))


def test_a_tokenizer_of_one_script_is_a_tokenizer(tiny_qwen3: Path, tmp_path: Path) -> None:
    folder = made(CASES["untouched"], tiny_qwen3, tmp_path)
    words = {"<unk>": 0, "<|im_end|>": 1, **{letter: 2 + n for n, letter in enumerate("办公室七点开门")}}
    core = Tokenizer(BPE(words, [], unk_token="<unk>"))
    PreTrainedTokenizerFast(tokenizer_object=core, unk_token="<unk>", eos_token="<|im_end|>").save_pretrained(folder)
    assert len(load_chat(str(folder)).encode("办公室")) == 3


def test_a_slow_tokenizer_is_refused_by_its_name(tiny_qwen3: Path, tmp_path: Path) -> None:
    """It was mid-trained, and then "a text spells a control token" where none did."""
    folder = made(CASES["untouched"], tiny_qwen3, tmp_path)
    for file in folder.glob("tokenizer*"):
        file.unlink()
    ByT5Tokenizer().save_pretrained(folder)
    with pytest.raises(
        ModelError, match="has no tokenizer, .* if its ByT5Tokenizer needs none, it has no fast version"
    ):
        load_chat(str(folder))
    (folder / "vocab.txt").touch()  # of a slow one with a vocabulary
    with pytest.raises(ModelError, match=r"is a ByT5Tokenizer, which has no fast version \(tokenizer.json\)"):
        load_chat(str(folder))


TENSORS = {"quant_method": "compressed-tensors"}


def quantised(method: str) -> dict[str, Any]:
    return {"quantization_config": {"quant_method": method}}


@pytest.mark.parametrize(
    ("given", "weight", "dtype", "reason"),
    [
        (quantised("gptq"), "weight", "float16", "stored as F16.* key quantization_config"),
        (quantised("awq"), "weight", "float32", "stored as F32.* key quantization_config"),
        (quantised("fp8"), "weight", "bfloat16", "stored as BF16"),
        ({"compression_config": TENSORS}, "weight", "bfloat16", "key compression_config"),
        ({"compression_config": TENSORS | {"format": "dense"}}, "weight", "bfloat16", ""),
        ({"text_config": quantised("gptq")}, "weight", "float32", "key text_config.quan"),
        (quantised("bitnet"), "weight", "bfloat16", ""),  # quantised while it is loaded
        (quantised("gptq"), "qweight", "int32", ""),
        (quantised("fp8"), "weight", "float8_e4m3fn", ""),
        ({}, "weight", "float32", ""),
        ({}, "qweight", "int32", r"holds quantised weights \(a.qweight: I32\), and its config.json does not say how"),
        ({}, "weight", "uint8", r"quantised weights \(a.weight: U8\)"),
        ({}, "weight", "float8_e4m3fn", r"quantised weights \(a.weight: F8_E4M3\)"),
        ({}, "bias", "uint8", ""),  # a mask
    ],
)
def test_a_configuration_says_whether_the_weights_are_quantised(
    tmp_path: Path, given: dict[str, Any], weight: str, dtype: str, reason: str
) -> None:
    tensors = {f"a.{weight}": torch.ones(4, 4).to(getattr(torch, dtype))}
    if dtype.startswith(("int", "float8")):
        tensors["a.weight_scale"] = torch.ones(4)
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(given))
    with pytest.raises(ModelError, match=reason) if reason else contextlib.nullcontext():
        folder_check.check_model(tmp_path)


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
