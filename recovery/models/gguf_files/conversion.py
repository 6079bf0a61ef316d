"""Conversion of a GGUF file to a model folder: safetensors, tokenizer, chat template, generation settings.

transformers reads the file once; everything else uses the folder, whose name contains the hash of the file.
"""

from __future__ import annotations

import contextlib
import copy
import fcntl
import functools
import json
import math
import os
import shutil
import struct
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
import transformers
from huggingface_hub import metadata_save
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig, modeling_gguf_pytorch_utils
from transformers.utils import logging as transformers_logging

from recovery.disk import WRITING
from recovery.errors import ModelError, first_line
from recovery.models.folder_check import MOST_LAYERS, check_total
from recovery.models.gguf_files.header import (
    ARRAY,
    MAGIC,
    ORIGIN,
    SAMPLING,
    Header,
    StoredTensor,
    origin_of,
    read_header,
    sha256_of,
)
from recovery.models.gguf_files.tokens import end_ids, read_tokenizer
from recovery.models.loading import LOADING

# RoPE scaling of a GGUF file, which transformers' reader ignores.

# Llama 3.1 and later: the only scaling that files store as frequency factors (llama.cpp's converter).
_LOW, _HIGH, _ORIGINAL = 1.0, 4.0, 8192
_FULL = "full_attention"


def set_positions(header: Header, config: Any) -> None:
    """Set the RoPE scaling of the file in a configuration.

    Raise ModelError for an unsupported scaling: the model's output would differ from the original's.
    """
    parameters: Any = getattr(config, "rope_parameters", None)
    # Gemma 3 has them by the type of a layer: a file scales those whose attention has no window.
    nested = isinstance(parameters, dict) and _FULL in parameters
    rope = parameters[_FULL] if nested else parameters
    kind = header.own("rope.scaling.type") or "none"
    if not nested and isinstance(rope, dict) and rope.get("rope_type", "default") != "default":
        return  # read by transformers already
    stored = next((t for t in header.tensors if t.name == "rope_freqs.weight"), None)
    other_tensors = [t.name for t in header.tensors if t.name.startswith("rope_factors")]
    if stored is not None and isinstance(rope, dict) and not nested:
        factors = _factors(header, stored)
        factor = float(factors.max())
        if factor == 1.0:
            return
        expected = llama3_factors(factor, float(rope["rope_theta"]), 2 * len(factors))
        if np.allclose(factors, expected, rtol=1e-3):
            config.rope_parameters = {
                **rope,
                "rope_type": "llama3",
                "factor": factor,
                "low_freq_factor": _LOW,
                "high_freq_factor": _HIGH,
                "original_max_position_embeddings": _ORIGINAL,
            }
            return
    elif kind == "linear" and stored is None and isinstance(rope, dict) and header.own("rope.scaling.factor"):
        scaled = {**rope, "rope_type": "linear", "factor": float(header.own("rope.scaling.factor"))}
        config.rope_parameters = {**parameters, _FULL: scaled} if nested else scaled
        return
    elif kind == "none" and stored is None and not other_tensors:
        return
    raise ModelError(
        f"{header.path} has a RoPE scaling ({kind if stored is None else 'rope_freqs'}) that cannot be read from GGUF; "
        "use the model's safetensors"
    )


def llama3_factors(
    factor: float, theta: float, width: int, low: float = _LOW, high: float = _HIGH, original: int = _ORIGINAL
) -> np.ndarray:
    """Return the divisor of each rotary frequency in Llama 3.1, [width / 2] (Dubey et al., arXiv 2407.21783)."""
    frequencies = theta ** -(np.arange(0, width, 2) / width)
    turns = original * frequencies / (2 * math.pi)  # rotations of each frequency within the original window
    smooth = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return 1.0 / ((1.0 - smooth) / factor + smooth)


def _factors(header: Header, stored: StoredTensor) -> np.ndarray:
    if stored.type != "F32":
        raise ModelError(f"{header.path}: {stored.name} is of type {stored.type}, expected F32")
    return np.fromfile(header.path, dtype="<f4", count=stored.count, offset=stored.offset)


# Long arrays, which take transformers' reader minutes and which a configuration does not need.
_VOCABULARY = tuple(f"tokenizer.ggml.{name}" for name in ("tokens", "scores", "token_type", "merges"))
# Number of layers of the Gemma models of 27B. They scale queries by hidden size / heads, the others by the size of a
# head. No key of a file says which, and llama.cpp also goes by the number of layers.
_LARGEST_GEMMAS = {"gemma2": 46, "gemma3": 62}
# Tensors that hold no weights: their RoPE scaling is read by set_positions.
_POSITIONS = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
# The licence, in the terms of a model card.
_LICENCE = {
    "license": "general.license",
    "license_name": "general.license.name",
    "license_link": "general.license.link",
}
_UNQUANTISED = ("F64", "F32")
transformers_logging.disable_progress_bar()


class Counting(Protocol):
    """A progress counter."""

    def advance(self, count: int = 1, note: str = "") -> None:
        """Count units as done."""


class Showing(Protocol):
    """Progress output, implemented by pipelines.runtime.progress.Display."""

    def say(self, text: str) -> None:
        """Show a line."""

    def bar(self, name: str, total: int, done: int = 0) -> contextlib.AbstractContextManager[Counting]:
        """Show a progress bar."""


class Silent:
    """Progress output that shows nothing."""

    def say(self, text: str) -> None:
        """Do nothing."""

    def advance(self, count: int = 1, note: str = "") -> None:
        """Do nothing."""

    @contextlib.contextmanager
    def bar(self, name: str, total: int, done: int = 0) -> Iterator[Silent]:
        """Return a bar that shows nothing."""
        yield self


def converted(path: str | Path, cache: Path, showing: Showing | None = None) -> Path:
    """Return the folder in ``cache`` with the model of a GGUF file, converting it if it is not there yet.

    The folder is named by the file's hash, so that a changed file is converted again, and written atomically; of
    several processes one converts and the others wait. Raise ModelError if the file cannot be converted.
    """
    showing = showing or Silent()
    header = read_header(path)
    with showing.bar(f"reading {header.path.name}, MB", _megabytes(header.bytes)) as bar:
        digest = sha256_of(header.path, _Megabytes(bar).count)
    folder = cache / f"{header.path.stem}-{digest[:12]}"
    try:
        return _convert_once(header, digest, folder, showing)
    except OSError as error:
        raise ModelError(f"{header.path} cannot be converted to {folder}: {error}") from error


def _convert_once(header: Header, digest: str, folder: Path, showing: Showing) -> Path:
    cache, state = folder.parent, _file_state(header.path)
    if existing := _existing_folder(cache, digest):
        return existing
    with _locked(cache, digest[:12], showing):
        if existing := _existing_folder(cache, digest):
            return existing
        showing.say(f"{header.path.name} ({header.summary()}) is converted once, to {folder}")
        writing = cache / f"{WRITING}{os.getpid()}-{folder.name}"
        for leftover in cache.glob(f"{WRITING}*-{digest[:12]}"):  # left by a killed process: this one holds the lock
            shutil.rmtree(leftover)
        writing.mkdir()
        try:
            _convert(header, digest, writing, showing)
            if _file_state(header.path) != state:
                raise ModelError(f"{header.path} changed while it was read: try again")
            writing.rename(folder)
        finally:
            shutil.rmtree(writing, ignore_errors=True)
    return folder


def _existing_folder(cache: Path, digest: str) -> Path | None:
    """Return the folder converted from this content, whatever the name of the file was."""
    candidates = cache.glob(f"[!.]*-{digest[:12]}")
    return next((folder for folder in candidates if (origin_of(folder) or {}).get("sha256") == digest), None)


def _file_state(path: Path) -> tuple[int, ...]:
    """Return values that change if a file is modified or replaced."""
    status = path.stat()
    return (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def config_of(path: str | Path) -> Any:
    """Read transformers' configuration of a GGUF file without its weights. Raise ModelError if there is none."""
    header = read_header(path)
    with tempfile.TemporaryDirectory(prefix="recovery-") as folder:
        return _read_config(header, _without_long_arrays(header, Path(folder) / "header.gguf", data=False))


def tokenizer_of(path: str | Path) -> Any:
    """Read the tokenizer of a GGUF file, with its chat template. Raise ModelError if it cannot be read."""
    return read_tokenizer(read_header(path))


def _convert(header: Header, digest: str, writing: Path, showing: Showing) -> None:
    config = _read_config(header, _without_long_arrays(header, writing / "header.gguf", data=False))
    (writing / "header.gguf").unlink()
    tokenizer = read_tokenizer(header, showing.say)
    slim = _without_long_arrays(header, writing / "weights.gguf", data=True)
    with showing.bar("converting, MB", _megabytes(header.bytes)) as bar:
        model = _read_weights(header, slim, config, _Megabytes(bar))
    slim.unlink()
    # The two-byte type closest to the file's weights: the scales of ggml's blocks are float16.
    preferred = torch.bfloat16 if "BF16" in header.types else torch.float16
    ends = end_ids(header, tokenizer)
    config.eos_token_id = ends if len(ends) != 1 else ends[0]
    config.bos_token_id, config.pad_token_id = tokenizer.bos_token_id, tokenizer.pad_token_id
    showing.say("writing the weights")
    _storable_model(model, config, header, preferred).save_pretrained(writing)
    tokenizer.save_pretrained(writing)
    _generation(header, config).save_pretrained(writing)
    origin = {
        "file": header.path.name,
        "sha256": digest,
        "bytes": header.bytes,
        "architecture": header.architecture,
        "name": header.name,
        "types": header.types,
        "stored": str(preferred).removeprefix("torch."),
    }
    licence = {ours: header.metadata[key] for ours, key in _LICENCE.items() if key in header.metadata}
    if licence:
        metadata_save(writing / "README.md", licence)
    (writing / ORIGIN).write_text(json.dumps(origin, indent=2) + "\n", encoding="utf-8")


# --- reading --------------------------------------------------------------------------------------------------------


def _without_long_arrays(header: Header, target: Path, *, data: bool) -> Path:
    """Write a copy of the file with no long array; without ``data`` the tensor data is a sparse hole.

    transformers' reader reads every token of the vocabulary as a separate array, several times: most of a minute for
    49,152 tokens, while the weights take seconds.
    """
    vocabulary = next((t.shape[0] for t in header.tensors if t.name == "token_embd.weight"), 0)
    size = f"{header.architecture}.vocab_size"
    with header.path.open("rb") as source, target.open("wb") as out:

        def piece(span: tuple[int, int]) -> bytes:
            source.seek(span[0])
            return source.read(span[1] - span[0])

        values = [_without_long_array(key, piece(span)) for key, span in header.spans.items()]
        if size not in header.metadata and vocabulary:
            values.append(_packed_text(size) + struct.pack("<II", 4, vocabulary))
        out.write(MAGIC + struct.pack("<IQQ", header.version, len(header.tensors), len(values)))
        out.writelines(values)
        out.write(piece(header.table))
        out.write(bytes(-out.tell() % header.alignment))
        if data:
            source.seek(header.data)
            shutil.copyfileobj(source, out, 1 << 22)
        else:
            out.truncate(out.tell() + header.bytes - header.data)
    return target


def _without_long_array(key: str, value: bytes) -> bytes:
    """Return a key with its value as stored, or with an empty array if that is longer than any list of layers."""
    at = len(_packed_text(key))
    (kind,) = struct.unpack_from("<I", value, at)
    if kind == ARRAY and (key in _VOCABULARY or struct.unpack_from("<Q", value, at + 8)[0] > MOST_LAYERS):
        return value[: at + 8] + struct.pack("<Q", 0)
    return value


class _Megabytes:
    """Progress counter of bytes, shown in whole megabytes."""

    def __init__(self, bar: Counting) -> None:
        self.bar, self.bytes = bar, 0

    def count(self, number: int) -> None:
        before, self.bytes = self.bytes, self.bytes + number
        if more := _megabytes(self.bytes) - _megabytes(before):
            self.bar.advance(more)


def _megabytes(number: int) -> int:
    return number // 1_000_000


def _packed_text(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def _read_config(header: Header, slim: Path) -> Any:
    try:
        with _quiet():
            config = AutoConfig.from_pretrained(slim.parent, gguf_file=slim.name)
    except Exception as error:  # a file can cause any error in transformers
        raise ModelError(
            f"{header.path}: its architecture {header.architecture!r} is not one that transformers "
            f"{transformers.__version__} can read from GGUF ({first_line(error)}); use the model's safetensors"
        ) from error
    text = config.get_text_config()
    width = header.own("attention.key_length")
    if width and hasattr(text, "head_dim"):  # transformers does not read it for some architectures (Qwen3)
        text.head_dim = int(width)
    rows = next((t.shape[0] for t in header.tensors if t.name == "token_embd.weight"), None)
    if rows is not None:
        text.vocab_size = rows
    if header.architecture in _LARGEST_GEMMAS:
        largest = int(text.num_hidden_layers) == _LARGEST_GEMMAS[header.architecture]
        text.query_pre_attn_scalar = text.hidden_size // text.num_attention_heads if largest else text.head_dim
    set_positions(header, text)
    return config


def _read_weights(header: Header, slim: Path, config: Any, bar: _Megabytes) -> Any:
    """Load the model with all its weights, in float32. Raise ModelError if some are missing or unused."""
    _check_sizes(header, config)
    settings: dict[str, Any] = {}
    if hasattr(transformers, "GgufConfig"):  # releases that keep blocks quantised if they have kernels for them
        settings["quantization_config"] = transformers.GgufConfig(dequantize=True)
    try:
        with LOADING, _quiet(), _with_progress(bar):
            model, info = AutoModelForCausalLM.from_pretrained(
                slim.parent,
                gguf_file=slim.name,
                config=copy.deepcopy(config),
                dtype=torch.float32,
                output_loading_info=True,
                **settings,
            )
    except Exception as error:
        raise ModelError(f"{header.path} cannot be converted: {first_line(error)}") from error
    if info["missing_keys"]:
        first = min(info["missing_keys"])
        raise ModelError(f"{header.path} lacks weights of a {config.model_type} model, for example {first}")
    tied = bool(config.get_text_config().tie_word_embeddings)
    layers = int(config.get_text_config().num_hidden_layers)
    stored = sum(t.count for t in header.tensors if not _is_no_weight(t.name, tied, layers))
    used = sum(parameter.numel() for parameter in model.parameters())
    if stored != used:
        raise ModelError(
            f"{header.path}: transformers' reader uses {used:,} of its {stored:,} weights, so the model would differ; "
            "use the model's safetensors"
        )
    _check_weights(header, model, config)
    return model


def _check_weights(header: Header, model: Any, config: Any) -> None:
    """Raise ModelError if a weight has another shape than the metadata say, or is not finite."""
    with torch.device("meta"):
        planned = type(model)(config).state_dict()
    for name, weight in model.state_dict().items():
        if name in planned and planned[name].shape != weight.shape:
            shape, expected = list(weight.shape), list(planned[name].shape)
            raise ModelError(f"{header.path}: the weight {name} has the shape {shape}, its metadata say {expected}")
        if not bool(weight.isfinite().all()):
            raise ModelError(
                f"{header.path}: its weights are not all finite numbers ({name}): copy the file again, or use another"
            )


def _check_sizes(header: Header, config: Any) -> None:
    """Raise ModelError if the metadata describe a larger model than the file's tensors."""
    try:
        with torch.device("meta"):  # takes no memory
            planned = AutoModelForCausalLM.from_config(config)
    except Exception as error:
        raise ModelError(f"{header.path}: no model has the sizes of its metadata ({first_line(error)})") from error
    check_total(sum(p.numel() for p in planned.parameters()), config, sum(t.count for t in header.tensors), header.path)


def _is_no_weight(name: str, tied: bool, layers: int) -> bool:
    """Return whether a tensor is not a weight of the model: RoPE factors, a tied head, multi-token prediction."""
    layer = name.split(".")[1] if name.startswith("blk.") else ""
    ahead = layer.isdigit() and int(layer) >= layers
    return name in _POSITIONS or ahead or (tied and name == "output.weight")


# --- writing --------------------------------------------------------------------------------------------------------


def _narrowed(weight: torch.Tensor, header: Header, preferred: torch.dtype) -> torch.Tensor:
    """Convert a weight to two bytes if it is lossless, or if it comes from quantised blocks and float16 can hold it."""
    for dtype in (preferred, *{torch.float16, torch.bfloat16} - {preferred}):
        if torch.equal(weight.to(dtype).to(weight.dtype), weight):
            return weight.to(dtype)
    plain = any(t.type in _UNQUANTISED and len(t.shape) > 1 for t in header.tensors)
    rounded = weight.to(torch.float16)
    return weight if weight.ndim < 2 or plain or not bool(rounded.isfinite().all()) else rounded


def _storable_model(model: Any, config: Any, header: Header, preferred: torch.dtype) -> Any:
    """Return the weights in a model without quantisation settings, since one with them cannot be saved."""
    narrow: dict[int, torch.Tensor] = {}  # tied weights are narrowed once and stay tied
    state = {}
    for name, weight in model.state_dict().items():
        key = weight.data_ptr()
        if key not in narrow:
            narrow[key] = _narrowed(weight, header, preferred)
        state[name] = narrow[key]
    with torch.device("meta"):
        fresh = type(model)(config)
    fresh.load_state_dict(state, assign=True)
    fresh.tie_weights()
    return fresh


def _generation(header: Header, config: Any) -> GenerationConfig:
    sampling = {
        ours: header.metadata[f"general.sampling.{theirs}"]
        for theirs, ours in SAMPLING.items()
        if f"general.sampling.{theirs}" in header.metadata
    }
    return GenerationConfig(
        bos_token_id=config.bos_token_id,
        eos_token_id=config.eos_token_id,
        pad_token_id=config.pad_token_id,
        **({"do_sample": True, **sampling} if sampling else {}),
    )


# --- locking and progress -------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _locked(cache: Path, name: str, showing: Showing) -> Iterator[None]:
    """Lock a folder's conversion; the system releases the lock when the process ends."""
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / f".lock-{name}").open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            showing.say("another process is converting the same file: waiting for it")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppress transformers' messages about unused metadata."""
    before = transformers_logging.get_verbosity()
    transformers_logging.set_verbosity(transformers_logging.CRITICAL)
    try:
        yield
    finally:
        transformers_logging.set_verbosity(before)


@contextlib.contextmanager
def _with_progress(bar: _Megabytes) -> Iterator[None]:
    """Replace the progress bar of transformers' reader, which no setting turns off, with ``bar``.

    The reader makes the map of all names again for each module of the model, which took longer than its weights: it is
    made once.
    """
    import gguf

    theirs, names = getattr(modeling_gguf_pytorch_utils, "tqdm", None), gguf.get_tensor_name_map

    def ours(tensors: Iterable[Any], **_: Any) -> Iterator[Any]:
        for tensor in tensors:
            yield tensor
            bar.count(int(tensor.n_bytes))

    modeling_gguf_pytorch_utils.tqdm, gguf.get_tensor_name_map = ours, functools.cache(names)
    try:
        yield
    finally:
        modeling_gguf_pytorch_utils.tqdm, gguf.get_tensor_name_map = theirs, names
