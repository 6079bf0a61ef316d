"""Writing of a model as a GGUF file, as llama.cpp's converter does it, one tensor at a time.

Format and keys: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md and llama.cpp's convert_hf_to_gguf.py. The
header of each file is read back by this package's own reader before any weight is written: a model that would come
back with another configuration, other tokens or another template is refused.
"""

from __future__ import annotations

import json
import math
import shutil
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import normalizers
from transformers import AutoConfig, GenerationConfig

from recovery.disk import WRITING
from recovery.errors import ModelError
from recovery.lazy_import import lazily
from recovery.models.chat_loading import load_chat
from recovery.models.chat_template import PLAIN_TEMPLATE, ChatFormat
from recovery.models.checkpoints import StoredWeights
from recovery.models.control_tokens import TURN_ENDS
from recovery.models.gguf_files.conversion import Showing, Silent, config_of, llama3_factors
from recovery.models.gguf_files.header import CHECKPOINT, CONTENT_HASH, SAMPLING, Header, read_header
from recovery.models.gguf_files.tokens import PRE_TOKENIZERS, end_ids, read_tokenizer
from recovery.models.loading import load_merged, outline

gguf = lazily("gguf")

ARCHITECTURES = ("llama", "qwen2", "qwen3")
"""Model types that can be written; llama.cpp gives the architectures the same names."""
TYPES = {"f16": "MOSTLY_F16", "q8_0": "MOSTLY_Q8_0", "bf16": "MOSTLY_BF16", "f32": "ALL_F32"}
"""Types of the matrices, with llama.cpp's name of such a file. Vectors (norms, biases) are always in float32."""
_FOLDER = "export a folder, and serve that with vLLM or SGLang, or convert it with llama.cpp's convert_hf_to_gguf.py"
_FACTORS = "rope_freqs.weight"
_FLOATS = (torch.float32, torch.float16, torch.bfloat16)
# What a configuration must still say after the file is read: everything else does not change the output.
_SETTINGS = (
    "hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads head_dim vocab_size "
    "max_position_embeddings rms_norm_eps rope_parameters tie_word_embeddings hidden_act attention_bias mlp_bias "
    "layer_types"
).split()
# llama.cpp's converter tells pre-tokenizers apart by the token ids of one text, which identify a vocabulary. This text
# has the same kinds of content, but the pieces it is split into are compared, so that any vocabulary can be written.
_SAMPLE = (
    "a \n \n\n \n\n\n \t \t\t \t\n  \n   \n    \n     \n🚀 (normal) 😶\u200d🌫️ (multiple emojis) ✅ 🦙🦙 3 33 333 3333 "
    "33333333 3.3 3..3 3...3 កាន់តែពិសេសអាច😁 ?我想在apple工作1314151天～ ------======= нещо на Български ''''''```````"
    "\"\"\"\"......!!!!!!?????? I've been 'told he's there, 'RE you sure? 'M not sure I'LL make it. We'Ve a'lL\r\n"
    "x²½ Ⅳ camelCase snake_case  def f(x):\r\n\treturn x\u00a0+\u30001 ünïcödé   "
)


@dataclass(frozen=True)
class Source:
    """A model to be written. ``weight`` returns one of its weights by transformers' name; None if there is none.

    ``hash`` is that of the checkpoint's content, by which what is served is traced back to it.
    """

    name: str
    config: Any
    chat: ChatFormat
    generation: GenerationConfig
    weight: Callable[[str], torch.Tensor | None]
    hash: str = ""

    @classmethod
    def of(cls, name: str, folder: Path, adapter: Path | None = None, digest: str = "") -> Source:
        """Return the model in a folder, whose weights are read when they are written; with an adapter it is loaded and
        merged. Raise ModelError if it cannot be written at all.
        """
        config = AutoConfig.from_pretrained(folder)
        _check_architecture(config.model_type, name)
        try:
            generation = GenerationConfig.from_pretrained(folder)
        except OSError:
            generation = GenerationConfig()
        if adapter is None:
            return cls(name, config, load_chat(str(folder)), generation, StoredWeights(folder).get, digest)
        merged = load_merged(folder, adapter)
        return cls(name, merged.model.config, merged.chat, generation, merged.model.state_dict().get, digest)

    @property
    def exact(self) -> str:
        """The type of :data:`TYPES` that holds its weights without rounding."""
        stored = str(getattr(self.config, "dtype", None)).removeprefix("torch.")
        return {"bfloat16": "bf16", "float16": "f16"}.get(stored, "f32")


@dataclass(frozen=True)
class _Planned:
    """A tensor of the file: transformers' and llama.cpp's name, shape and ggml type."""

    source: str
    name: str
    shape: tuple[int, ...]
    kind: Any

    @property
    def bytes(self) -> int:
        return math.prod(gguf.quant_shape_to_byte_shape(self.shape, self.kind))


def write_gguf(source: Source, target: Path, kind: str, card: Mapping[str, Any], showing: Showing) -> None:
    """Write the model to ``target`` with matrices of type ``kind``, one of :data:`TYPES`, atomically.

    ``card`` is the metadata of a model card: name, description, base_model, license, tags. Raise ModelError, before any
    weight is written, if the model cannot be expressed; an existing file is never replaced.
    """
    planned = _plan(source, kind, showing)
    writing = target.with_name(f"{WRITING}{target.name}")
    try:
        writer = gguf.GGUFWriter(writing, source.config.model_type)
        writer.add_type(gguf.GGUFType.MODEL)
        metadata = gguf.Metadata.apply_metadata_heuristic(gguf.Metadata(), dict(card))
        metadata.size_label = gguf.size_label(sum(math.prod(tensor.shape) for tensor in planned), 0, 0, 0)
        metadata.set_gguf_meta_model(writer)
        writer.add_string(CHECKPOINT, source.name)
        writer.add_string(CONTENT_HASH, source.hash)
        _write_settings(writer, source, kind)
        _write_vocabulary(writer, source, showing)
        factors = _factors(source.config)
        if factors is not None:
            writer.add_tensor_info(_FACTORS, factors.shape, factors.dtype, factors.nbytes)
        for tensor in planned:
            writer.add_tensor_info(tensor.name, tensor.shape, np.dtype(np.float32), tensor.bytes, tensor.kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        if factors is not None:
            writer.write_tensor_data(factors)
        writer.flush()
        _extend(writing, target, sum(_padded(tensor.bytes) for tensor in planned))
        _check_header(writing, source)
        with showing.bar(f"writing {target.name}, tensors", len(planned)) as bar:
            for tensor in planned:
                writer.write_tensor_data(_quantised_values(source, tensor))
                bar.advance()
        writer.close()
        if target.exists():
            raise ModelError(f"{target} was written by another process meanwhile: name a new file")
        writing.rename(target)
    finally:
        writing.unlink(missing_ok=True)


# --- what is written ------------------------------------------------------------------------------------------------


def _check_architecture(model_type: str, name: str) -> None:
    try:
        gguf.GGUFWriter  # noqa: B018  (imports the package)
    except ImportError:
        raise ModelError("writing a GGUF file needs: pip install 'recovery[gguf]'") from None
    if model_type not in ARCHITECTURES:
        raise ModelError(
            f"{name} is a {model_type} model, and GGUF files are written for {', '.join(ARCHITECTURES)} only: {_FOLDER}"
        )


def _plan(source: Source, kind: str, showing: Showing) -> list[_Planned]:
    """Return the tensors of the file in the model's order; raise ModelError for a weight without a name in GGUF."""
    config, matrix_type = source.config, gguf.GGMLQuantizationType[kind.upper()]
    names = gguf.get_tensor_name_map(
        next(number for number, name in gguf.MODEL_ARCH_NAMES.items() if name == config.model_type),
        config.num_hidden_layers,
    )
    planned, uneven = [], 0
    for name, weight in outline(config).core.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        target = names.get_name(name, (".weight", ".bias"))
        if target is None:
            raise ModelError(f"{source.name} has a weight that GGUF has no name for: {name}")
        tensor_type = matrix_type if weight.ndim > 1 else gguf.GGMLQuantizationType.F32
        if weight.shape[-1] % gguf.GGML_QUANT_SIZES[tensor_type][0]:
            tensor_type, uneven = gguf.GGMLQuantizationType.F16, uneven + 1
        planned.append(_Planned(name, target, tuple(weight.shape), tensor_type))
    if uneven:
        showing.say(f"{uneven} tensors have rows that do not divide into blocks of {kind}: they are written as f16")
    return planned


def _write_settings(writer: Any, source: Source, kind: str) -> None:
    config = source.config
    rope = config.rope_parameters
    writer.add_file_type(gguf.LlamaFileType[TYPES[kind]])
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    writer.add_vocab_size(config.vocab_size)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_key_length(_head_width(config))
    writer.add_value_length(_head_width(config))
    writer.add_rope_dimension_count(_head_width(config))
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    for theirs, ours in SAMPLING.items():
        value = getattr(source.generation, ours, None)
        if source.generation.do_sample and value is not None:
            getattr(writer, f"add_sampling_{theirs}")(value)


def _head_width(config: Any) -> int:
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


def _factors(config: Any) -> np.ndarray | None:
    """Return Llama 3's divisors of the rotary frequencies; None for a model without."""
    rope = config.rope_parameters
    if rope["rope_type"] != "llama3":
        return None
    window = (rope["low_freq_factor"], rope["high_freq_factor"], rope["original_max_position_embeddings"])
    return llama3_factors(rope["factor"], rope["rope_theta"], _head_width(config), *window).astype(np.float32)


def _quantised_values(source: Source, tensor: _Planned) -> np.ndarray:
    """Return the content of a tensor in its ggml type."""
    with np.errstate(over="ignore"):  # reported below
        values = gguf.quantize(_unrounded(source, tensor), tensor.kind)
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        raise ModelError(f"{source.name}: {tensor.source} has values beyond {tensor.kind.name}: use --type bf16 or f32")
    return values


def _unrounded(source: Source, tensor: _Planned) -> np.ndarray:
    """Return a weight in float32, its rows in the file's order."""
    weight = source.weight(tensor.source)
    if weight is None or tuple(weight.shape) != tensor.shape or weight.dtype not in _FLOATS:
        found = "is missing" if weight is None else f"is {weight.dtype} of shape {list(weight.shape)}"
        raise ModelError(f"{source.name}: {tensor.source} {found}, expected floats of shape {list(tensor.shape)}")
    if source.config.model_type == "llama" and tensor.source.endswith(("q_proj.weight", "k_proj.weight")):
        query = tensor.source.endswith("q_proj.weight")
        heads = source.config.num_attention_heads if query else source.config.num_key_value_heads
        # The rows of queries and keys in the order of llama.cpp's llama: the halves of each head interleaved.
        halves = weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:])
        weight = halves.swapaxes(1, 2).reshape(weight.shape)
    return weight.detach().float().contiguous().numpy()


# --- what is in a file, compared ------------------------------------------------------------------------------------


def differing_weights(source: Source, file: Header) -> list[str]:
    """Return the tensors of a file that are more than rounded values of its source's, a line each.

    With w the source's values and v the file's, the error is |v - w| / |w|. Rounding to b bits a value (the scales of
    blocks included) makes about 1.7 * 2^-b of it for values of a normal distribution: 0.08 in q4_k, 0.005 in q8_0.
    Three times that is allowed, and one hundredth at least. If v is w times a factor, the factor is named.
    """
    stored, lines = {tensor.name: tensor for tensor in file.tensors}, []
    for tensor in _plan(source, "f32", Silent()):
        found = stored.get(tensor.name)
        if found is None or found.shape != tensor.shape:
            lines.append(f"{tensor.name} {'is missing' if found is None else f'has the shape {list(found.shape)}'}")
            continue
        raw = np.fromfile(file.path, np.uint8, found.bytes, offset=found.offset)
        type_ = gguf.GGMLQuantizationType[found.type]
        rows = (*found.shape[:-1], found.bytes // math.prod(found.shape[:-1]))
        theirs = gguf.dequantize(raw.reshape(rows), type_).astype(np.float32).ravel()
        allowed = max(0.01, 5 * 2.0 ** (-8 * found.bytes / found.count))
        lines += _differing(tensor.name, _unrounded(source, tensor).ravel(), theirs, allowed)
    return lines


def differing_folder(source: Path, adapter: Path | None, folder: Path) -> list[str] | None:
    """Return the tensors of a served folder that are not those of its source, a line each, by transformers' names; of
    an adapter's folder those of the adapter. None for one that is quantised, whose tensors have other names.

    Rounding to bfloat16 makes an error |v - w| / |w| of about 2^-10; one hundredth is allowed.
    """
    about = folder / "config.json"
    if about.is_file() and "quantization_config" in json.loads(about.read_text(encoding="utf-8")):
        return None
    weights: Mapping[str, torch.Tensor] = StoredWeights(adapter if adapter and not about.is_file() else source)
    if adapter is not None and about.is_file():
        weights = load_merged(source, adapter).model.state_dict()
    stored, lines = StoredWeights(folder), list[str]()
    for name in sorted(weights.keys() | stored.keys()):
        ours, theirs = weights.get(name), stored.get(name)
        if ours is None or theirs is None:
            if name != "lm_head.weight":  # tied to the embeddings, it may be stored or not
                lines.append(f"{name} is {'missing' if theirs is None else 'not one of its source'}")
        elif ours.shape != theirs.shape:
            lines.append(f"{name} has the shape {list(theirs.shape)}")
        else:
            lines += _differing(name, ours.detach().float().numpy().ravel(), theirs.float().numpy().ravel(), 0.01)
    return lines


def _differing(name: str, ours: np.ndarray, theirs: np.ndarray, allowed: float) -> list[str]:
    """Return a line if |v - w| / |w| of a tensor [n] is above what is allowed; a factor is named."""
    size = float(np.linalg.norm(ours)) or 1.0
    if float(np.linalg.norm(theirs - ours)) / size <= allowed:  # False for what is not a number, too
        return []
    factor = float(theirs @ ours) / size**2
    alike = np.linalg.norm(theirs - factor * ours) <= 0.1 * abs(factor) * size
    return [f"{name} is {f'{factor:.3g} times' if alike else 'not'} its source's"]


# --- the vocabulary -------------------------------------------------------------------------------------------------


def _write_vocabulary(writer: Any, source: Source, showing: Showing) -> None:
    tokenizer = source.chat.tokenizer
    core = json.loads(tokenizer.backend_tokenizer.to_str())["model"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(_pre_tokenizer(source, core, showing))
    by_id = {number: token for token, number in tokenizer.get_vocab().items()}
    added, kind = tokenizer.added_tokens_decoder, gguf.TokenType
    writer.add_token_list([by_id.get(n, f"[PAD{n}]") for n in range(source.config.vocab_size)])
    writer.add_token_types(
        [
            kind.UNUSED
            if n not in by_id
            else kind.NORMAL
            if n not in added
            else kind.CONTROL
            if added[n].special
            else kind.USER_DEFINED
            for n in range(source.config.vocab_size)
        ]
    )
    writer.add_token_merges([pair if isinstance(pair, str) else " ".join(pair) for pair in core["merges"]])
    writer.add_add_space_prefix(False)
    for name in ("bos", "eos", "unk", "pad"):
        if (number := getattr(tokenizer, f"{name}_token_id")) is not None:
            getattr(writer, f"add_{name}_token_id")(number)
    ids = tokenizer("a")["input_ids"]
    writer.add_add_bos_token(ids[0] == tokenizer.bos_token_id)
    if ids[-1] == tokenizer.eos_token_id:
        writer.add_add_eos_token(True)
    # Turn ends of common templates last: llama.cpp knows them by their text.
    others = sorted(source.chat.end_ids - {tokenizer.eos_token_id}, key=lambda n: (by_id.get(n) in TURN_ENDS, n))
    for add, number in zip((writer.add_eot_token_id, writer.add_eom_token_id), others, strict=False):
        add(number)
    template = tokenizer.chat_template or PLAIN_TEMPLATE
    if isinstance(template, dict):
        template = [{"name": name, "template": text} for name, text in template.items()]
    writer.add_chat_template(template)


def _pre_tokenizer(source: Source, core: dict[str, Any], showing: Showing) -> str:
    """Return llama.cpp's name of the pre-tokenizer; raise ModelError if it has none, since its tokens would differ."""
    backend = source.chat.tokenizer.backend_tokenizer
    if core["type"] != "BPE" or core.get("byte_fallback") or backend.pre_tokenizer is None:
        raise ModelError(f"{source.name}: its tokenizer ({core['type']}) is not byte-level BPE: {_FOLDER}")
    if isinstance(backend.normalizer, normalizers.NFC):
        showing.say("llama.cpp does not normalise text (NFC): letters with separate accents become other tokens there")
    elif backend.normalizer is not None:
        raise ModelError(f"{source.name}: its tokenizer changes text ({backend.normalizer}), llama.cpp would not")
    pieces = backend.pre_tokenizer.pre_tokenize_str(_SAMPLE)
    for name, (known, whole) in PRE_TOKENIZERS.items():
        if bool(core.get("ignore_merges")) == whole and known.pre_tokenize_str(_SAMPLE) == pieces:
            return name
    raise ModelError(
        f"{source.name}: its tokenizer splits text like none of {', '.join(PRE_TOKENIZERS)}, so tokens would differ "
        f"in llama.cpp: {_FOLDER}"
    )


# --- the check ------------------------------------------------------------------------------------------------------


def _extend(writing: Path, target: Path, more: int) -> None:
    """Extend the file by ``more`` bytes, as a hole, for the check; raise ModelError if the disk has less room."""
    free = shutil.disk_usage(writing.parent).free
    if free < more:
        raise ModelError(f"{target} needs {more:,} bytes, and {free:,} are free there: name a file on another disk")
    with writing.open("r+b") as stream:
        end = stream.seek(0, 2)
        stream.truncate(_padded(end) + more)


def _padded(length: int) -> int:
    return int(gguf.GGUFWriter.ggml_pad(length, gguf.GGUF_DEFAULT_ALIGNMENT))


def _check_header(writing: Path, source: Source) -> None:
    """Raise ModelError unless the file is read as the same configuration, tokens and template."""
    try:
        header = read_header(writing)
        config, tokenizer = config_of(writing), read_tokenizer(header)
    except ModelError as error:
        raise ModelError(f"{source.name} cannot be written: the file could not be read back ({error})") from error
    for name in _SETTINGS:
        ours, theirs = _setting(source.config, name), _setting(config, name)
        if not _equal(ours, theirs):
            raise ModelError(f"{source.name} cannot be written: its {name} {ours} would be read as {theirs}: {_FOLDER}")
    read = ChatFormat.of(tokenizer, GenerationConfig(eos_token_id=end_ids(header, tokenizer)))
    for what, ours, theirs in _tokenised(source.chat, read):
        if ours != theirs:
            raise ModelError(
                f"{source.name} cannot be written: its {what} {ours!r:.200} would be read as {theirs!r:.200}"
            )


def _setting(config: Any, name: str) -> Any:
    return _head_width(config) if name == "head_dim" else getattr(config, name, None)


def _equal(one: Any, other: Any) -> bool:
    """Return whether two settings are equal; numbers in the file are float32."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_equal(one[key], other[key]) for key in one)
    if isinstance(one, float) or isinstance(other, float):
        return (
            isinstance(one, float | int) and isinstance(other, float | int) and math.isclose(one, other, rel_tol=1e-5)
        )
    return bool(one == other)


def _tokenised(ours: ChatFormat, theirs: ChatFormat) -> Iterator[tuple[str, Any, Any]]:
    """Yield what both formats must agree on: a name and the two values."""
    our_tokenizer, their_tokenizer = ours.tokenizer, theirs.tokenizer
    for name in ("bos", "eos", "pad"):
        yield f"{name} token", getattr(our_tokenizer, f"{name}_token"), getattr(their_tokenizer, f"{name}_token")
    yield "end tokens", sorted(ours.end_ids), sorted(theirs.end_ids)
    yield "template", our_tokenizer.chat_template or PLAIN_TEMPLATE, their_tokenizer.chat_template
    added = [str(token) for token in our_tokenizer.added_tokens_decoder.values()]
    texts = [unicodedata.normalize("NFC", _SAMPLE), *(f"a  {token} b{token}\n{token}c" for token in added)]
    yield "beginning and end", our_tokenizer("a")["input_ids"], their_tokenizer("a")["input_ids"]
    for text in texts:
        yield f"tokens of {text!r:.60}", ours.encode(text), theirs.encode(text)
