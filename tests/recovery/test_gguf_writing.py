"""GGUF files that are written: read back as the same model, understood by llama.cpp, or refused with one line."""

from __future__ import annotations

import json
import shutil
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Regex, normalizers, pre_tokenizers
from transformers import AutoTokenizer, GenerationConfig

from recovery.errors import ModelError
from recovery.models.chat_template import PLAIN_TEMPLATE
from recovery.models.gguf_files import read_header
from recovery.models.gguf_files.conversion import Silent, config_of, converted, tokenizer_of
from recovery.models.gguf_files.tokens import PRE_TOKENIZERS
from recovery.models.gguf_files.writing import Source, write_gguf
from recovery.models.loaded import Loaded
from recovery.models.loading import load_model

CARD = {"name": "Tiny", "license": "mit", "base_model": "nobody/tiny", "language": ["en"], "tags": ["one"]}
TEXT = "The ferry of 7:15 costs  12 crowns;\n\n* ünïcode 🚢 <|im_end|>don't   stop <|eot_id|>\t\t1234567 x=3.14\r\n   "
TALK = [{"role": "user", "content": "Where is the boat?"}, {"role": "assistant", "content": "At pier 3."}]
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
Make = Callable[..., Path]


class Heard(Silent):
    """Progress output that keeps its lines."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, text: str) -> None:
        """Keep a line."""
        self.lines.append(text)


@pytest.fixture(params=["llama", "qwen3", "qwen2"])
def tiny(request: pytest.FixtureRequest, make_tiny: Make, tmp_path: Path) -> Path:
    """A tiny model of each architecture, every tensor random: norms and biases are not what a reader would invent."""
    rope = {"rope_parameters": LLAMA3} if request.param == "llama" else {}
    folder = make_tiny(request.param, tmp_path / "tiny", **rope)
    weights = load_file(folder / "model.safetensors")
    torch.manual_seed(0)
    noise = {name: w + 0.1 * torch.randn_like(w) if w.ndim == 1 else w for name, w in weights.items()}
    save_file(noise, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def write(model: Path, target: Path, kind: str = "f16", showing: Silent | None = None) -> Path:
    write_gguf(Source.of("tiny", model), target, kind, CARD, showing or Silent())
    return target


def changed(model: Path, target: Path, **settings: Any) -> Path:
    """A copy of a model with other settings in its configuration."""
    shutil.copytree(model, target)
    config = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(config | settings))
    return target


def with_tokenizer(model: Path, target: Path, change: Callable[[Any], None]) -> Path:
    """A copy of a model with a changed tokenizer."""
    shutil.copytree(model, target)
    tokenizer = AutoTokenizer.from_pretrained(model)
    change(tokenizer)
    tokenizer.save_pretrained(target)
    return target


def with_pre_tokenizer(model: Path, target: Path, name: str) -> Path:
    def change(tokenizer: Any) -> None:
        split, whole = PRE_TOKENIZERS[name]
        tokenizer.backend_tokenizer.pre_tokenizer = split
        tokenizer.backend_tokenizer.model.ignore_merges = whole

    return with_tokenizer(model, target, change)


def load(path: Path) -> Loaded:
    return load_model(path, precision="float32", device="cpu")


def answer(loaded: Loaded, text: str, count: int = 16) -> list[int]:
    """Greedy tokens after a text, none of them an end."""
    ids = torch.tensor([loaded.tokenizer(text)["input_ids"]])
    with torch.no_grad():
        for _ in range(count):
            logits = loaded.model(ids).logits[:, -1:]
            logits[..., list(loaded.chat.end_ids)] = -torch.inf
            ids = torch.cat([ids, logits.argmax(-1)], dim=1)
    return ids[0, -count:].tolist()


@pytest.mark.parametrize(
    ("tiny", "kind"),
    [*(("llama", kind) for kind in ("f32", "f16", "bf16", "q8_0")), ("qwen3", "q8_0"), ("qwen2", "q8_0")],
    indirect=["tiny"],
)
def test_weights_come_back_within_the_error_of_the_type(tiny: Path, kind: str, tmp_path: Path) -> None:
    folder = converted(write(tiny, tmp_path / "m.gguf", kind), tmp_path / "models")
    ours, theirs = load_file(tiny / "model.safetensors"), load_file(folder / "model.safetensors")
    assert ours.keys() == theirs.keys()
    for name, weight in ours.items():
        error = (theirs[name].float() - weight).abs()
        if kind == "f32" or weight.ndim == 1:
            assert not error.any(), name
            continue
        if kind == "q8_0":  # half a step of each block of 32, whose scale and values are stored in float16
            largest = weight.reshape(*weight.shape[:-1], -1, 32).abs().amax(-1).repeat_interleave(32, -1)
            bound = largest * (0.5 / 127 + 2**-9)
        else:
            bound = weight.abs() * {"f16": 2**-11, "bf16": 2**-8}[kind] + 2**-25
        assert (error <= bound).all(), name
    assert set(read_header(tmp_path / "m.gguf").types) == {kind.upper(), "F32"}


def test_answers_and_conversations_are_the_same(tiny: Path, tmp_path: Path) -> None:
    ours, theirs = load(tiny), load(converted(write(tiny, tmp_path / "m.gguf"), tmp_path / "models"))
    for text in ("The ferry leaves", "Write three sentences", "42"):
        assert answer(ours, text) == answer(theirs, text)
    for opening in (False, True):
        assert ours.chat.render(TALK, generation_prompt=opening) == theirs.chat.render(TALK, generation_prompt=opening)
    assert ours.chat.conversation(TALK) == theirs.chat.conversation(TALK)
    assert ours.chat.end_ids == theirs.chat.end_ids
    assert ours.tokenizer.chat_template == theirs.tokenizer.chat_template
    assert ours.tokenizer(TEXT)["input_ids"] == theirs.tokenizer(TEXT)["input_ids"]


@pytest.mark.parametrize("name", PRE_TOKENIZERS)
def test_the_pre_tokenizer_is_recognised_in_any_vocabulary(tiny_qwen3: Path, name: str, tmp_path: Path) -> None:
    model = with_pre_tokenizer(tiny_qwen3, tmp_path / "model", name)
    path = write(model, tmp_path / "m.gguf")
    assert read_header(path).metadata["tokenizer.ggml.pre"] == name
    ours, theirs = AutoTokenizer.from_pretrained(model), tokenizer_of(path)
    assert ours(TEXT)["input_ids"] == theirs(TEXT)["input_ids"]


def test_a_tokenizer_that_llama_cpp_does_not_have_is_refused(
    tiny_qwen3: Path, shipped_miniature: Path, tmp_path: Path
) -> None:
    def refused(change: Callable[[Any], None]) -> str:
        model = with_tokenizer(tiny_qwen3, tmp_path / f"model-{len(list(tmp_path.iterdir()))}", change)
        with pytest.raises(ModelError) as caught:
            write(model, tmp_path / "m.gguf")
        assert not list(tmp_path.glob("*m.gguf"))
        return str(caught.value)

    def pairs(tokenizer: Any) -> None:
        split = pre_tokenizers.Split(Regex(r"\p{N}{1,2}| ?\p{L}+|\s+|."), "isolated")
        level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, level])

    def lower(tokenizer: Any) -> None:
        tokenizer.backend_tokenizer.normalizer = normalizers.Lowercase()

    def whole(tokenizer: Any) -> None:
        tokenizer.backend_tokenizer.model.ignore_merges = True

    def greedy(tokenizer: Any) -> None:
        tokenizer.add_tokens([AddedToken("<swallows>", lstrip=True, rstrip=True)])

    assert "splits text like none of gpt-2, smollm" in refused(pairs)
    assert "changes text (Lowercase())" in refused(lower)
    assert "splits text like none of" in refused(whole)
    assert "tokens of 'a  <swallows> b" in refused(greedy)
    with pytest.raises(ModelError, match=r"\(Unigram\) is not byte-level BPE"):
        write(shipped_miniature, tmp_path / "m.gguf")


def test_unicode_normalisation_is_reported(tiny_qwen3: Path, tmp_path: Path) -> None:
    def change(tokenizer: Any) -> None:
        tokenizer.backend_tokenizer.normalizer = normalizers.NFC()

    heard = Heard()
    write(with_tokenizer(tiny_qwen3, tmp_path / "model", change), tmp_path / "m.gguf", showing=heard)
    assert len(heard.lines) == 1 and "NFC" in heard.lines[0]


def test_positions_are_written(make_tiny: Make, tmp_path: Path) -> None:
    linear = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}
    for rope in (LLAMA3, linear):
        model = make_tiny("llama", tmp_path / rope["rope_type"], rope_parameters=rope)
        path = write(model, tmp_path / f"{rope['rope_type']}.gguf")
        assert config_of(path).rope_parameters == pytest.approx(rope)
        ids = torch.arange(5, 400)[None]  # far enough for the slowed frequencies to matter
        with torch.no_grad():
            ours, theirs = load(model).model(ids).logits, load(converted(path, tmp_path / "models")).model(ids).logits
        assert torch.allclose(ours, theirs, atol=1e-3)


@pytest.mark.parametrize(
    ("kind", "settings", "match"),
    [
        ("gemma2", {}, "is a gemma2_text model|is a gemma2 model, and GGUF files are written for llama, qwen2, qwen3"),
        ("llama", {"attention_bias": True}, "its attention_bias True would be read as False"),
        ("llama", {"hidden_act": "gelu"}, "its hidden_act gelu would be read as silu"),
        ("qwen3", {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}, "its layer_types"),
        (
            "qwen3",
            {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0}},
            "its rope_parameters .*yarn.* would be read as",
        ),
    ],
)
def test_a_model_that_a_file_cannot_express_is_refused(
    make_tiny: Make, kind: str, settings: dict[str, Any], match: str, tmp_path: Path
) -> None:
    model = make_tiny(kind, tmp_path / "model", **settings)
    with pytest.raises(ModelError, match=match) as caught:
        write(model, tmp_path / "m.gguf")
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.glob("*m.gguf"))


def test_metadata(tiny_llama: Path, tmp_path: Path) -> None:
    model = changed(tiny_llama, tmp_path / "model")
    ends = GenerationConfig.from_pretrained(model)
    GenerationConfig(do_sample=True, temperature=0.5, top_p=0.9, eos_token_id=ends.eos_token_id).save_pretrained(model)
    path = write(model, tmp_path / "m.gguf", "q8_0")
    found = read_header(path).metadata
    vocabulary = AutoTokenizer.from_pretrained(model).get_vocab()
    wanted = {
        "general.architecture": "llama",
        "general.type": "model",
        "general.name": "Tiny",
        "general.license": "mit",
        "general.base_model.count": 1,
        "general.base_model.0.repo_url": "https://huggingface.co/nobody/tiny",
        "general.file_type": 7,
        "general.quantization_version": 2,
        "general.sampling.temp": 0.5,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.add_bos_token": True,
        "tokenizer.ggml.bos_token_id": vocabulary["<|begin_of_text|>"],
        "tokenizer.ggml.eos_token_id": vocabulary["<|eot_id|>"],
        "tokenizer.ggml.eot_token_id": vocabulary["<|end_of_text|>"],
        "tokenizer.ggml.eom_token_id": vocabulary["<|eom_id|>"],
        "tokenizer.ggml.tokens": 512,
    }
    assert {key: found.get(key) for key in wanted} == wanted
    assert "tokenizer.ggml.padding_token_id" not in found
    kinds = found["tokenizer.ggml.token_type"]
    special = {vocabulary[t] for t in vocabulary if t.startswith("<|")}
    assert {n for n, kind in enumerate(kinds) if kind == gguf.TokenType.CONTROL} == special
    assert [n for n, kind in enumerate(kinds) if kind == gguf.TokenType.UNUSED] == [*range(len(vocabulary), 512)]
    folder = converted(path, tmp_path / "models")
    assert "license: mit" in (folder / "README.md").read_text()
    said = GenerationConfig.from_pretrained(folder)
    assert (said.do_sample, said.temperature, said.top_p) == (True, 0.5, pytest.approx(0.9))
    assert set(said.eos_token_id) == set(ends.eos_token_id)


def test_a_base_model_takes_along_the_template_it_was_trained_with(make_tiny: Make, tmp_path: Path) -> None:
    path = write(make_tiny("llama", tmp_path / "model", template=False), tmp_path / "m.gguf")
    assert tokenizer_of(path).chat_template == PLAIN_TEMPLATE


def test_nothing_is_left_of_a_file_that_failed(tiny_llama: Path, tmp_path: Path) -> None:
    weights = load_file(tiny_llama / "model.safetensors")
    large = {**weights, "model.embed_tokens.weight": weights["model.embed_tokens.weight"] * 1e8}
    lacking = {name: weight for name, weight in weights.items() if "layers.1.mlp.up" not in name}
    packed = {**weights, "lm_head.weight": torch.zeros(512, 32, dtype=torch.uint8)}
    for content, match in ((large, "beyond F16: use --type bf16"), (lacking, "is missing"), (packed, "torch.uint8")):
        model = changed(tiny_llama, tmp_path / match[:5])
        save_file(content, model / "model.safetensors", metadata={"format": "pt"})
        with pytest.raises(ModelError, match=match):
            write(model, tmp_path / "m.gguf")
        assert not list(tmp_path.glob("*m.gguf"))
    write(tiny_llama, tmp_path / "m.gguf")
    with pytest.raises(ModelError, match="name a new file"):
        write(tiny_llama, tmp_path / "m.gguf", "f32")
    assert [path.name for path in tmp_path.glob("*m.gguf")] == ["m.gguf"]


def test_rows_that_do_not_divide_into_blocks_are_kept_in_f16(make_tiny: Make, tmp_path: Path) -> None:
    heard = Heard()
    model = make_tiny("llama", tmp_path / "model", intermediate_size=80)
    path = write(model, tmp_path / "m.gguf", "q8_0", heard)
    assert heard.lines == ["2 tensors have rows that do not divide into blocks of q8_0: they are written as f16"]
    assert read_header(path).types["F16"] == 2
    converted(path, tmp_path / "models")


@pytest.fixture
def llama_cpp() -> Iterator[Callable[[Path], Callable[..., Any]]]:
    """llama.cpp on a file: a function that posts to its server."""
    engine = pytest.importorskip("xllamacpp", reason="needs llama.cpp: pip install xllamacpp")
    servers = []

    def start(path: Path) -> Callable[..., Any]:
        settings = engine.CommonParams()
        settings.model.path, settings.n_gpu_layers, settings.n_ctx, settings.use_jinja = str(path), 0, 256, True
        settings.port, settings.warmup, settings.cpuparams.n_threads = 0, False, 1
        servers.append(engine.Server(settings))
        address = servers[-1].listening_address

        def post(what: str, **body: Any) -> Any:
            kind = {"Content-Type": "application/json"}
            request = urllib.request.Request(f"{address}/{what}", json.dumps(body).encode(), kind)
            with urllib.request.urlopen(request) as reply:
                return json.load(reply)

        return post

    yield start
    servers.clear()


@pytest.mark.slow
@pytest.mark.parametrize("pre", [*PRE_TOKENIZERS])
def test_llama_cpp_reads_the_same_model(tiny: Path, pre: str, llama_cpp: Any, tmp_path: Path) -> None:
    model = with_pre_tokenizer(tiny, tmp_path / "model", pre)
    ours, post = load(model), llama_cpp(write(model, tmp_path / "m.gguf", "f32"))
    theirs = post("tokenize", content=TEXT, add_special=True, parse_special=True)["tokens"]
    assert theirs == ours.tokenizer(TEXT)["input_ids"]
    for text in ("The ferry leaves", "Write three sentences about " * 8):
        prompt = ours.tokenizer(text)["input_ids"]
        given = post("completion", prompt=prompt, n_predict=16, temperature=0, ignore_eos=True, return_tokens=True)
        assert given["tokens"] == answer(ours, text)
