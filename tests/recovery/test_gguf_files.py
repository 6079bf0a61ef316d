"""GGUF files as models: same weights, same tokens, one-line errors."""

from __future__ import annotations

import json
import multiprocessing
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoTokenizer, GenerationConfig

from recovery.disk import user_cache
from recovery.errors import ModelError
from recovery.models.base_folder import resolve_base
from recovery.models.chat_template import ChatFormat
from recovery.models.gguf_files import conversion, is_gguf, origin_of, read_header, sha256_of
from recovery.models.gguf_files.conversion import config_of, converted, llama3_factors, tokenizer_of
from recovery.models.gguf_files.tokens import read_tokenizer
from recovery.models.loading import load_model
from tests.gguf_writing import TYPES, restored, stored, write_gguf

TEXT = "The ferry of 7:15 costs  12 crowns;\n\n* ünïcode 🚢 <|im_end|> don't   stop"
TALK = [{"role": "user", "content": "Where is the boat?"}, {"role": "assistant", "content": "At pier 3."}]


@pytest.fixture(params=["llama", "qwen3"])
def tiny(request: pytest.FixtureRequest) -> Path:
    """A tiny Llama and a tiny Qwen3."""
    folder: Path = request.getfixturevalue(f"tiny_{request.param}")
    return folder


def expected(model: Path, kind: TYPES) -> dict[str, np.ndarray]:
    """Every weight as dequantised by the gguf package, in transformers' order of rows."""
    config = AutoConfig.from_pretrained(model)
    found = {}
    for name, tensor in stored(model).items():
        own = kind if tensor.ndim > 1 else TYPES.F32
        value = gguf.dequantize(gguf.quantize(tensor, own), own)
        if config.model_type == "llama" and ".attn_q." in name:
            value = restored(value, config.num_attention_heads)
        if config.model_type == "llama" and ".attn_k." in name:
            value = restored(value, config.num_key_value_heads)
        found[name] = value
    return found


@pytest.mark.parametrize(
    ("tiny", "kind"),
    [("llama", TYPES.F16), ("llama", TYPES.Q8_0), ("llama", TYPES.Q4_1), ("qwen3", TYPES.Q8_0)],
    ids=lambda one: one if isinstance(one, str) else one.name,
    indirect=["tiny"],
)
def test_weights_are_those_of_the_file(tiny: Path, kind: TYPES, tmp_path: Path) -> None:
    folder = converted(write_gguf(tiny, tmp_path / "tiny.gguf", kind), tmp_path / "models")
    config = AutoConfig.from_pretrained(tiny)
    names = gguf.get_tensor_name_map(
        next(k for k, name in gguf.MODEL_ARCH_NAMES.items() if name == config.model_type), config.num_hidden_layers
    )
    weights = load_file(folder / "model.safetensors")
    wanted = expected(tiny, kind)
    assert {str(names.get_name(name, (".weight", ".bias"))) for name in weights} == set(wanted)
    for name, weight in weights.items():
        value = torch.from_numpy(np.array(wanted[str(names.get_name(name, (".weight", ".bias")))]))
        if kind is TYPES.F16 or weight.ndim < 2:
            assert torch.equal(weight.float(), value), name  # nothing is lost
        else:
            assert weight.dtype == torch.float16
            assert torch.equal(weight, value.half()), name
    ids = torch.tensor([[5, 9, 300, 17, 42, 8]])
    with torch.no_grad():
        loaded = load_model(folder, precision="float32", device="cpu").model(ids).logits
        original = load_model(tiny, precision="float32", device="cpu").model(ids).logits
    near = {TYPES.F16: 1e-3, TYPES.Q8_0: 2e-2, TYPES.Q4_1: 3e-1}[kind]
    assert (loaded - original).abs().max() < near * original.abs().max()


def test_float32_and_bfloat16_files_lose_nothing(tiny_llama: Path, tmp_path: Path) -> None:
    for kind, dtype in ((TYPES.F32, torch.float32), (TYPES.BF16, torch.bfloat16)):
        folder = converted(write_gguf(tiny_llama, tmp_path / f"{kind.name}.gguf", kind), tmp_path / "models")
        weight = load_file(folder / "model.safetensors")["model.layers.0.self_attn.q_proj.weight"]
        assert weight.dtype == dtype
        assert np.array_equal(weight.float().numpy(), expected(tiny_llama, kind)["blk.0.attn_q.weight"])


def test_tokens_and_template_are_those_of_the_tokenizer(tiny: Path, tmp_path: Path) -> None:
    folder = converted(write_gguf(tiny, tmp_path / "tiny.gguf"), tmp_path / "models")
    theirs, ours = AutoTokenizer.from_pretrained(tiny), AutoTokenizer.from_pretrained(folder)
    assert ours(TEXT)["input_ids"] == theirs(TEXT)["input_ids"]
    assert ours(TEXT, add_special_tokens=False)["input_ids"] == theirs(TEXT, add_special_tokens=False)["input_ids"]
    assert (ours.eos_token, ours.bos_token, ours.pad_token) == (theirs.eos_token, theirs.bos_token, theirs.pad_token)
    for opening in (False, True):
        rendered = [t.apply_chat_template(TALK, tokenize=False, add_generation_prompt=opening) for t in (ours, theirs)]
        assert rendered[0] == rendered[1]
    chat = load_model(folder, device="cpu").chat
    assert chat.conversation(TALK) == ChatFormat.of(theirs, GenerationConfig.from_pretrained(tiny)).conversation(TALK)


def test_what_ends_an_answer_is_in_the_generation_settings(tiny_llama: Path, tmp_path: Path) -> None:
    vocabulary = AutoTokenizer.from_pretrained(tiny_llama).get_vocab()
    values = {"tokenizer.ggml.eom_token_id": vocabulary["<|eom_id|>"], "general.sampling.temp": 0.5}
    path = write_gguf(tiny_llama, tmp_path / "m.gguf", values=values)
    said = GenerationConfig.from_pretrained(converted(path, tmp_path / "models"))
    assert said.eos_token_id == [vocabulary["<|eot_id|>"], vocabulary["<|eom_id|>"]]
    assert said.bos_token_id == vocabulary["<|begin_of_text|>"]
    assert said.temperature == 0.5 and said.do_sample


def test_digits_are_split_where_the_file_says_so(tiny_qwen3: Path, tmp_path: Path) -> None:
    path = write_gguf(tiny_qwen3, tmp_path / "a.gguf", pre="smollm")
    pieces = tokenizer_of(path).backend_tokenizer.pre_tokenizer.pre_tokenize_str("a  12")
    assert [piece for piece, _ in pieces] == ["a", "ĠĠ", "1", "2"]
    said: list[str] = []
    read_tokenizer(read_header(write_gguf(tiny_qwen3, tmp_path / "b.gguf", pre="runes")), said.append)
    assert len(said) == 1 and "'runes'" in said[0]


def test_positions_of_llama_3_are_taken_over(make_tiny: Callable[..., Path], tmp_path: Path) -> None:
    rope = {"rope_type": "default", "rope_theta": 500000.0}
    tiny_llama = make_tiny("llama", tmp_path / "model", rope_parameters=rope)
    factors = llama3_factors(8.0, 500000.0, 8).astype(np.float32)
    path = write_gguf(tiny_llama, tmp_path / "a.gguf", change=lambda t: t.update({"rope_freqs.weight": factors}))
    rope = config_of(path).rope_parameters
    assert (rope["rope_type"], rope["factor"], rope["original_max_position_embeddings"]) == ("llama3", 8.0, 8192)
    converted(path, tmp_path / "models")
    odd = np.full(4, 3.0, np.float32) * np.arange(1, 5, dtype=np.float32)
    path = write_gguf(tiny_llama, tmp_path / "b.gguf", change=lambda t: t.update({"rope_freqs.weight": odd}))
    with pytest.raises(ModelError, match=r"b\.gguf has a RoPE scaling \(rope_freqs\)"):
        config_of(path)
    path = write_gguf(tiny_llama, tmp_path / "c.gguf", values={"llama.rope.scaling.type": "yarn"})
    with pytest.raises(ModelError, match=r"c\.gguf has a RoPE scaling \(yarn\)"):
        config_of(path)
    values = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 2.0}
    rope = config_of(write_gguf(tiny_llama, tmp_path / "d.gguf", values=values)).rope_parameters
    assert (rope["rope_type"], rope["factor"]) == ("linear", 2.0)


def test_a_gemma_3_with_scaled_positions_is_the_same_model(make_tiny: Callable[..., Path], tmp_path: Path) -> None:
    """Only layers with full attention are scaled, as in those of 4B and more; every sixth layer is one."""
    rope = {
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
    }
    tiny = make_tiny("gemma3", tmp_path / "model", num_hidden_layers=6, rope_parameters=rope)
    values = {"gemma3.rope.scaling.type": "linear", "gemma3.rope.scaling.factor": 8.0}
    values |= {"gemma3.attention.sliding_window": 64}
    folder = converted(write_gguf(tiny, tmp_path / "a.gguf", TYPES.F32, values=values), tmp_path / "models")
    ids = torch.arange(8, 108)[None]
    with torch.no_grad():
        ours, theirs = (load_model(f, precision="float32", device="cpu").model(ids).logits for f in (folder, tiny))
    assert torch.allclose(ours, theirs, atol=1e-5)


@pytest.mark.parametrize(("kind", "layers", "scalar"), [("gemma2", 46, 8), ("gemma2", 2, 16), ("gemma3", 62, 8)])
def test_the_largest_gemmas_scale_their_queries_otherwise(
    make_tiny: Callable[..., Path], tmp_path: Path, kind: str, layers: int, scalar: int
) -> None:
    small = {"hidden_size": 32, "intermediate_size": 8, "num_hidden_layers": layers}
    tiny = make_tiny(kind, tmp_path / "model", **small)
    assert config_of(write_gguf(tiny, tmp_path / "a.gguf")).query_pre_attn_scalar == scalar


def test_a_file_is_converted_once_and_again_when_it_changes(tiny_llama: Path, tmp_path: Path) -> None:
    path, cache = write_gguf(tiny_llama, tmp_path / "m.gguf"), tmp_path / "models"
    folder = converted(path, cache)
    made = (folder / "model.safetensors").stat().st_mtime_ns
    assert converted(path, cache) == folder
    moved = path.rename(tmp_path / "elsewhere.gguf")
    assert (folder / "model.safetensors").stat().st_mtime_ns == made
    origin = origin_of(folder)
    assert origin is not None
    assert origin["file"] == "m.gguf"
    assert origin["sha256"] == sha256_of(moved)
    assert (origin["architecture"], origin["name"], origin["stored"]) == ("llama", "Tiny of the tests", "float16")
    assert set(origin["types"]) == {"F16", "F32"}
    write_gguf(tiny_llama, path, TYPES.Q8_0)
    other = converted(path, cache)
    assert other != folder and folder.is_dir()
    assert sorted(entry.name for entry in cache.iterdir() if not entry.name.startswith(".lock-")) == sorted(
        (folder.name, other.name)
    )


def test_two_processes_convert_the_same_file_at_once(tiny_llama: Path, tmp_path: Path) -> None:
    path, cache = write_gguf(tiny_llama, tmp_path / "m.gguf"), tmp_path / "models"
    cache.mkdir()
    left = cache / f".writing-1-m-{sha256_of(path)[:12]}"
    left.mkdir()  # by a process that was killed
    fork = multiprocessing.get_context("fork")
    with fork.Pool(2) as pool:
        folder, other = pool.starmap(converted, [(path, cache)] * 2, chunksize=1)
    assert folder == other
    assert [entry.name for entry in cache.iterdir() if not entry.name.startswith(".lock-")] == [folder.name]
    load_model(folder, device="cpu")


def test_what_is_a_gguf_file(tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_gguf(tiny_llama, tmp_path / "m.gguf")
    bare = path.rename(tmp_path / "weights")
    (tmp_path / "folder.gguf").mkdir()
    assert is_gguf(bare) and is_gguf("nowhere.gguf")
    assert not is_gguf(tmp_path / "folder.gguf") and not is_gguf(__file__) and not is_gguf("ORG/MODEL")
    assert not is_gguf("x" * 5000)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    base, adapter = resolve_base(bare)
    assert adapter is None
    assert Path(base).parent == user_cache("models") == tmp_path / "user" / "recovery" / "models"


def test_one_line_for_each_file_that_is_no_model(tiny_llama: Path, tmp_path: Path) -> None:
    whole = write_gguf(tiny_llama, tmp_path / "m.gguf")
    data, size = whole.read_bytes(), whole.stat().st_size
    for length in (*range(4, 2000, 97), size // 2, size - 40):
        (tmp_path / "half.gguf").write_bytes(data[:length])
        with pytest.raises(ModelError, match=r"half\.gguf is truncated: .*download it again"):
            read_header(tmp_path / "half.gguf")
    for name, content, match in (
        ("empty", b"", "is not a GGUF file"),
        ("text", b"# A model", "is not a GGUF file"),
        ("old", b"GGUF\1\0\0\0" + data[8:], "is GGUF version 1"),
        ("big", b"GGUF\0\0\0\3" + data[8:], "big-endian"),
    ):
        (tmp_path / f"{name}.gguf").write_bytes(content)
        with pytest.raises(ModelError, match=match):
            read_header(tmp_path / f"{name}.gguf")
    with pytest.raises(ModelError, match="there is no file"):
        read_header(tmp_path / "nowhere.gguf")
    for without, match in (("template", "has no chat template"), ("tokenizer", "has no tokenizer")):
        path = write_gguf(tiny_llama, tmp_path / f"no-{without}.gguf", without=(without,))
        with pytest.raises(ModelError, match=match):
            converted(path, tmp_path / "models")
    path = write_gguf(tiny_llama, tmp_path / "part.gguf", values={"split.count": 3})
    with pytest.raises(ModelError, match="one of 3 parts"):
        read_header(path)
    values: tuple[tuple[str, Any, str], ...] = (
        ("llama.rope.scaling.factor", "x", "of type str, not float"),
        ("general.sampling.temp", "x", "of type str, not float"),
        ("tokenizer.ggml.eot_token_id", 1.5, "of type float, not int"),
        ("llama.rope.scaling.type", 1, "of type int, not str"),
    )
    for key, value, match in values:
        path = write_gguf(tiny_llama, tmp_path / "kind.gguf", values={key: value})
        with pytest.raises(ModelError, match=f"its {key} is {match}"):
            read_header(path)
    path = write_gguf(tiny_llama, tmp_path / "whole.gguf", values={"general.sampling.temp": 1})
    assert read_header(path).metadata["general.sampling.temp"] == 1, "a whole number is a number"
    assert not (tmp_path / "models").exists()


def test_weights_that_would_be_other_ones_or_are_no_numbers_are_refused(tiny_llama: Path, tmp_path: Path) -> None:
    def refused(name: str, change: Callable[[dict[str, np.ndarray]], object]) -> str:
        path = write_gguf(tiny_llama, tmp_path / name, change=lambda tensors: (change(tensors), None)[1])
        with pytest.raises(ModelError) as caught:
            converted(path, tmp_path / "models")
        assert [entry.name for entry in (tmp_path / "models").iterdir() if entry.name[:6] != ".lock-"] == []
        return str(caught.value)

    assert "lacks weights of a llama model" in refused("a.gguf", lambda t: t.pop("blk.1.ffn_up.weight"))
    biased = refused("b.gguf", lambda t: t.update({"blk.0.attn_q.bias": np.ones(32, np.float32)}))
    assert "the model would differ" in biased
    broken = refused("c.gguf", lambda t: np.put(t["blk.1.ffn_up.weight"], 7, np.nan))
    assert "c.gguf: its weights are not all finite numbers" in broken


def test_an_architecture_that_cannot_be_read(tiny_llama: Path, tmp_path: Path) -> None:
    path = write_gguf(tiny_llama, tmp_path / "m.gguf", architecture="rwkv6")
    with pytest.raises(ModelError, match=r"architecture 'rwkv6' is not one that transformers .* can read"):
        config_of(path)


def test_the_extra_is_named_where_it_is_missing(
    tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_gguf(tiny_llama, tmp_path / "m.gguf")
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(ModelError, match=r"pip install 'recovery\[gguf\]'"):
        read_header(path)


def test_origin_of_a_folder_that_comes_from_no_file(tiny_llama: Path, tmp_path: Path) -> None:
    assert origin_of(tiny_llama) is None
    (tmp_path / "gguf.json").write_text(json.dumps([1]))
    assert origin_of(tmp_path) is None


def test_a_long_array_that_no_configuration_has_is_not_read(
    tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """transformers' reader takes over half a minute for a million texts."""
    plain = write_gguf(tiny_llama, tmp_path / "plain.gguf").read_bytes()
    keys = int.from_bytes(plain[16:24], "little")
    long = struct.pack("<Q", 3) + b"x.y" + struct.pack("<IIQ", 9, 8, 10**6) + bytes(8 * 10**6)
    whole = tmp_path / "long.gguf"
    # Data begins at a multiple of 32, which this array does not move.
    long += (
        struct.pack("<Q", 3) + b"x.z" + struct.pack("<IQ", 8, -(len(long) + 23) % 32) + bytes(-(len(long) + 23) % 32)
    )
    whole.write_bytes(plain[:16] + struct.pack("<Q", keys + 2) + long + plain[24:])
    read, sizes = conversion.AutoConfig.from_pretrained, []

    def counted(folder: Path, gguf_file: str) -> Any:
        sizes.append((folder / gguf_file).stat().st_size)
        return read(folder, gguf_file=gguf_file)

    monkeypatch.setattr(conversion.AutoConfig, "from_pretrained", counted)
    named = {"_name_or_path": ""}  # a temporary folder
    assert config_of(whole).to_dict() | named == config_of(tmp_path / "plain.gguf").to_dict() | named
    assert max(sizes) < 10**6 < whole.stat().st_size


def test_the_names_of_a_file_are_mapped_once(tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers makes the map again for each module, which took half a minute before the first weight."""
    made: list[object] = []
    path = write_gguf(tiny_llama, tmp_path / "tiny.gguf")
    known = gguf.get_tensor_name_map
    monkeypatch.setattr(gguf, "get_tensor_name_map", lambda *given: made.append(given) or known(*given))
    converted(path, tmp_path / "cache")
    assert len(made) == 1
