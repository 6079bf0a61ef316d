"""Configurations with code of their own, absurd sizes, wrong types."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.torture.hostile_models.case import TEXTS, Case, Write, changed_json, code, filled
from tests.torture.hostile_models.tokenizers import custom_tokenizer


def _config(**values: Any) -> Write:
    return changed_json("config.json", lambda config, _: config.update(values))


def _custom(**values: Any) -> Write:
    def write(folder: Path) -> None:
        (folder / "custom.py").write_text(code(folder))
        _config(**values)(folder)

    return write


_SIZES = {
    "hidden_size": (10**9, 10**18, 10**30, 0, -32, 33),
    "num_hidden_layers": (10**6, 10**9, 10**18, 0, -1, 3, 1),
    "vocab_size": (10**9, 10**18, 0, -1, 10),
    "intermediate_size": (10**9, 10**18, 0, -1),
    "num_attention_heads": (10**9, 10**18, 0, -1, 3),
    "num_key_value_heads": (10**9, 0, -1, 3),
    "head_dim": (10**9, 10**18, 0, -1, 2 * 10**8, 15),
    "max_position_embeddings": (10**18, 0, -1),
    "rope_theta": (0, -1, 1e308),
    "rms_norm_eps": (-1, 1e308),
    "sliding_window": (10**18, -1),
    "pad_token_id": (10**9, -5),
}


_WRONG: tuple[Any, ...] = (None, "x", "10**9", [], [1], {}, {"a": 1}, True, 1.5, math.nan, math.inf)


def configs() -> Iterator[Case]:
    auto = {"AutoConfig": "custom.Custom", "AutoModelForCausalLM": "custom.Custom"}
    yield Case("custom code", _custom(auto_map=auto, model_type="custom"))
    yield Case("custom code of a known family", _custom(auto_map=auto), fine=None)
    yield Case(
        "custom code elsewhere", _custom(auto_map={"AutoConfig": "org/repo--custom.Custom"}, model_type="custom")
    )
    yield Case("custom code as a path", _custom(auto_map={"AutoConfig": "../model/custom.Custom"}, model_type="x"))
    yield Case("custom tokenizer", changed_json("tokenizer_config.json", custom_tokenizer), fine=None)
    yield Case("custom kernel", _config(_attn_implementation="org/kernel"), fine=None)
    yield Case("custom kernel, public", _config(attn_implementation="org/kernel:run"), fine=None)
    for method in (*"gptq awq bitsandbytes quanto fp8 aqlm torchao ../x".split(), None, 7, [], "compressed-tensors"):
        yield Case(f"quantised by {method!r}", _config(quantization_config={"quant_method": method}), fine=None)
    for kind in ("../../x", "os", "", None, 7, [], {}, "clip", "t5", "whisper", "qwen3_moe", "llama", "mamba", "gpt2"):
        yield Case(f"model_type {kind!r}", _config(model_type=kind), fine=None)
    for dtype in ("float9", "os.system", 7, None, [], "int8", "complex64", "bfloat16"):
        yield Case(f"dtype {dtype!r} of the configuration", _config(dtype=dtype, torch_dtype=dtype), fine=None)
    yield from _sizes()
    yield from _contents()


def _sizes() -> Iterator[Case]:
    for name, sizes in _SIZES.items():
        for size in sizes:
            yield Case(f"{name} {size}", _config(**{name: size}), fine=None)
        for wrong in _WRONG if name in ("hidden_size", "num_hidden_layers", "pad_token_id") else _WRONG[:1]:
            yield Case(f"{name} {wrong!r}", _config(**{name: wrong}), fine=None)
    everything = {"hidden_size": 10**6, "intermediate_size": 10**6, "vocab_size": 10**6, "num_hidden_layers": 100}
    yield Case("all sizes", _config(**everything))
    yield Case("layers of 20 GiB", _config(hidden_size=4096, intermediate_size=16384, num_hidden_layers=16))
    yield Case("vocabulary of 20 GiB", _config(vocab_size=160_000_000))
    kinds = ["full_attention"]
    yield Case("10^6 kinds of layers", lambda f: _config(layer_types=kinds * 10**6)(f), fine=None)
    yield Case("layers and their kinds 10^6", lambda f: _config(layer_types=kinds * 10**6, num_hidden_layers=10**6)(f))
    yield Case("10^6 labels", lambda f: _config(id2label={str(n): "x" for n in range(10**6)})(f), fine=None)
    yield Case("10^9 labels", _config(num_labels=10**9), fine=None)
    unknown, huge = {"rope_type": "x"}, {"rope_type": "longrope", "rope_theta": 1, "factor": 10**18}
    factors = {"short_factor": [1] * 10**6, "long_factor": [1] * 10**6}
    yield Case("RoPE unknown", _config(rope_scaling={"rope_type": "../x"}, rope_parameters=unknown), fine=None)
    yield Case("RoPE huge", _config(rope_parameters=huge | factors), fine=None)


def _contents() -> Iterator[Case]:
    itself = changed_json("config.json", lambda c, _: c.update(text_config=dict(c)))
    methods = _config(to_dict=1, get_text_config="x", save_pretrained=None, _name_or_path="/etc")
    yield Case("configuration within itself", itself, fine=None)
    yield Case("configuration of another", _config(architectures=["os.system"]), fine=None)
    yield Case("entries of methods", methods, fine=None)
    for what, text in TEXTS.items():
        for name in ("config.json", "generation_config.json", "tokenizer_config.json", "special_tokens_map.json"):
            fine = None if name != "config.json" else False
            yield Case(f"{name} {what}", lambda f, n=name, t=text: filled(f / n, t), fine=fine)
    for key in ("eos_token_id", "max_length", "max_new_tokens", "temperature", "cache_implementation", "pad_token_id"):
        for value in (10**18, -1, "x", [], {}, [10**9], None, math.nan):
            change = changed_json("generation_config.json", lambda c, _, key=key, value=value: c.update({key: value}))
            yield Case(f"generation {key} {value!r}", change, fine=None)
    crowd = changed_json("generation_config.json", lambda c, _: c.update(eos_token_id=list(range(10**6))))
    yield Case("10^6 end tokens", crowd, fine=None)
