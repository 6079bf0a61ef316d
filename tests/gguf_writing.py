"""Writes small GGUF files from a Hugging Face checkpoint, in the format of llama.cpp's converter."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors.numpy import load_file
from transformers import AutoConfig, AutoTokenizer

TYPES = gguf.GGMLQuantizationType
_SPECIAL, _USUAL = 3, 1


def write_gguf(
    model: Path,
    target: Path,
    kind: TYPES = TYPES.F16,
    *,
    architecture: str | None = None,
    pre: str = "gpt-2",
    without: tuple[str, ...] = (),
    values: Mapping[str, Any] | None = None,
    change: Callable[[dict[str, np.ndarray]], None] = lambda tensors: None,
) -> Path:
    """Write the checkpoint in ``model`` to ``target``, its matrices as ``kind`` and its norms in float32.

    ``pre`` is the pre-tokenizer's name (the tiny tokenizers use GPT-2's); ``without`` omits parts ("tokenizer",
    "template"); ``values`` are further keys with text, numbers or booleans; ``change`` may modify the tensors, which
    have llama.cpp's names.
    """
    config = AutoConfig.from_pretrained(model)
    rope = config.rope_parameters
    writer = gguf.GGUFWriter(target, architecture or _architecture(config))
    writer.add_name("Tiny of the tests")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(rope.get("full_attention", rope)["rope_theta"])
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_key_length(config.head_dim)
    if "tokenizer" not in without:
        _vocabulary(writer, model, config, pre, template="template" not in without)
    for key, value in (values or {}).items():
        add = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
        add[type(value)](key, value)
    tensors = stored(model)
    change(tensors)
    for name, tensor in tensors.items():
        own = kind if tensor.ndim > 1 else TYPES.F32
        writer.add_tensor(name, gguf.quantize(tensor, own), raw_dtype=own)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def stored(model: Path) -> dict[str, np.ndarray]:
    """Return the weights of a checkpoint with llama.cpp's names and row order, in float32."""
    config = AutoConfig.from_pretrained(model)
    architecture = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == _architecture(config))
    names = gguf.get_tensor_name_map(architecture, config.num_hidden_layers)
    found = {}
    for name, tensor in load_file(model / "model.safetensors").items():
        if config.model_type == "llama" and name.endswith(("q_proj.weight", "k_proj.weight")):
            heads = config.num_attention_heads if "q_proj" in name else config.num_key_value_heads
            tensor = permuted(tensor, heads)
        if config.model_type.startswith("gemma") and name.endswith("norm.weight"):
            tensor = tensor + 1
        found[str(names.get_name(name, (".weight", ".bias")))] = tensor
    return found


def _architecture(config: Any) -> str:
    return str(config.model_type).removesuffix("_text")


def permuted(tensor: np.ndarray, heads: int) -> np.ndarray:
    """Return the rows of queries or keys in llama.cpp's order: the halves of each head interleaved."""
    halves = tensor.reshape(heads, 2, tensor.shape[0] // heads // 2, *tensor.shape[1:])
    return halves.swapaxes(1, 2).reshape(tensor.shape)


def restored(tensor: np.ndarray, heads: int) -> np.ndarray:
    """The inverse of :func:`permuted`."""
    pairs = tensor.reshape(heads, tensor.shape[0] // heads // 2, 2, *tensor.shape[1:])
    return pairs.swapaxes(1, 2).reshape(tensor.shape)


def _vocabulary(writer: gguf.GGUFWriter, model: Path, config: Any, pre: str, *, template: bool) -> None:
    tokenizer = AutoTokenizer.from_pretrained(model)
    by_id = {number: token for token, number in tokenizer.get_vocab().items()}
    tokens = [by_id.get(number, f"[PAD{number}]") for number in range(config.vocab_size)]
    special = {token.content for token in tokenizer.added_tokens_decoder.values() if token.special}
    merges = tokenizer.backend_tokenizer.to_str()
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    kinds = [_SPECIAL if t in special else _USUAL if n in by_id else 5 for n, t in enumerate(tokens)]
    writer.add_token_types(kinds)
    writer.add_token_merges([" ".join(pair) for pair in _merges(merges)])
    writer.add_eos_token_id(tokenizer.eos_token_id)
    if tokenizer.bos_token_id is not None:
        writer.add_bos_token_id(tokenizer.bos_token_id)
        writer.add_add_bos_token(True)
    if tokenizer.pad_token_id is not None:
        writer.add_pad_token_id(tokenizer.pad_token_id)
    if template:
        writer.add_chat_template(tokenizer.chat_template)


def _merges(text: str) -> list[list[str]]:
    return [pair if isinstance(pair, list) else pair.split(" ") for pair in json.loads(text)["model"]["merges"]]
