"""Reader of GGUF headers: metadata, tensor list, and validation before anything large is loaded.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. The gguf package's reader is not used, because it
takes seconds for a large vocabulary and raises arbitrary exceptions for a truncated file.
"""

from __future__ import annotations

import collections
import hashlib
import json
import math
import mmap
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recovery.disk import near
from recovery.errors import ModelError, first_line
from recovery.models.folder_check import MOST_LAYERS, MOST_TENSORS

SUFFIX = ".gguf"
ORIGIN = "gguf.json"  # next to converted weights: describes the source file
MAGIC = b"GGUF"
_VERSIONS = (2, 3)
STRING, ARRAY = 8, 9
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_BLOCK = 1 << 22
_MOST_KEYS, _LONGEST_ARRAY = 100_000, 10_000_000
# Keys of our own in an exported file: the name of the checkpoint that it was written from, and its content's hash.
CHECKPOINT, CONTENT_HASH = "recovery.checkpoint", "recovery.content_hash"
# llama.cpp's names of sampling settings, with transformers'; and the tokens that end a response.
SAMPLING = {"temp": "temperature", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p"}
END_TOKENS = ("eos", "eot", "eom")
# Keys whose values are used here rather than by transformers, with their types; the first are of the architecture.
_OWN_TYPES = {"block_count": int, "attention.key_length": int, "rope.scaling.factor": float, "rope.scaling.type": str}
_TYPES = {
    **{f"tokenizer.ggml.{name}_token_id": int for name in END_TOKENS},
    **{f"general.sampling.{name}": float for name in SAMPLING},
    "tokenizer.ggml.pre": str,
    "tokenizer.chat_template": str,
}


@dataclass(frozen=True)
class StoredTensor:
    """A tensor of the file: shape in torch's order, ggml type, byte offset and size."""

    name: str
    shape: tuple[int, ...]
    type: str
    offset: int
    bytes: int

    @property
    def count(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Header:
    """The header of a file. Arrays of strings (the vocabulary) are represented in ``metadata`` by their length.

    ``spans`` are the byte ranges of each key with its value, ``table`` that of the tensor list, ``data`` the offset of
    the tensor data.
    """

    path: Path
    bytes: int
    version: int
    metadata: Mapping[str, Any]
    tensors: tuple[StoredTensor, ...]
    spans: Mapping[str, tuple[int, int]]
    table: tuple[int, int]
    data: int

    @property
    def alignment(self) -> int:
        """Alignment of the tensor data in bytes."""
        return int(self.metadata.get("general.alignment", 32))

    @property
    def architecture(self) -> str:
        """llama.cpp's name of the architecture: llama, qwen3 ..."""
        return str(self.metadata["general.architecture"])

    @property
    def name(self) -> str:
        """Name of the model; empty if the file has none."""
        return str(self.metadata.get("general.name", ""))

    @property
    def types(self) -> dict[str, int]:
        """Number of tensors of each type, most frequent first."""
        return dict(collections.Counter(tensor.type for tensor in self.tensors).most_common())

    def own(self, key: str) -> Any:
        """Return a metadata value of the architecture, as in ``own("rope.freq_base")``; None if absent."""
        return self.metadata.get(f"{self.architecture}.{key}")

    def summary(self) -> str:
        """Return architecture, types and size as text."""
        types = ", ".join(f"{count} {name}" for name, count in self.types.items())
        return f"{self.architecture}, {len(self.tensors)} tensors ({types}), {self.bytes / 1e6:,.0f} MB"


def is_gguf(name: str | Path) -> bool:
    """Return whether a model name is a GGUF file, by its suffix or its first bytes."""
    path = Path(name).expanduser()
    try:
        if path.is_dir():
            return False
        if path.suffix.lower() == SUFFIX:
            return True
        if not path.is_file():
            return False
        with path.open("rb") as stream:
            return stream.read(4) == MAGIC
    except OSError:  # a name too long to be a path, a file that may not be read
        return False


def read_header(path: str | Path) -> Header:
    """Read and validate the header of a model file.

    Raise ModelError if the file is missing, not GGUF, truncated, or lacks a model, tokenizer or chat template, or if
    the gguf package is missing.
    """
    path = Path(path).expanduser()
    if not path.is_file():
        if path.exists():
            raise ModelError(f"{path} is not a regular file: --model takes a GGUF file, a folder or a hub id")
        what = near(path) or "--model takes a GGUF file, a folder, a hub id or 'miniature'"
        raise ModelError(f"there is no file {path}: {what}")
    size = path.stat().st_size
    with path.open("rb") as stream:
        if stream.read(4) != MAGIC:
            raise ModelError(f"{path} is not a GGUF file: it does not start with the bytes GGUF")
        sizes = _type_sizes(path)
        try:
            with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
                header = _parse(path, data, sizes)
        except (struct.error, EOFError):
            raise _truncated(path, size, "its header does not end") from None
        except ModelError:
            raise
        except Exception as error:  # wrong numbers in a header can cause any error
            reason = first_line(error)
            raise ModelError(f"{path} is damaged: its header cannot be read ({reason}); download it again") from error
    end = max((tensor.offset + tensor.bytes for tensor in header.tensors), default=0)
    if end > size:
        raise _truncated(path, size, f"its tensors take {end:,} bytes")
    _check_model(header)
    return header


def sha256_of(path: str | Path, tick: Callable[[int], None] = lambda count: None) -> str:
    """Return the SHA-256 of a file as hex; ``tick`` is called with the number of bytes of each block."""
    digest = hashlib.sha256()
    with Path(path).expanduser().open("rb") as stream:
        while block := stream.read(_BLOCK):
            digest.update(block)
            tick(len(block))
    return digest.hexdigest()


def origin_of(folder: Path) -> dict[str, Any] | None:
    """Return the record of the GGUF file that a model folder was converted from; None if there is none."""
    try:
        origin = json.loads((folder / ORIGIN).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return origin if isinstance(origin, dict) else None


def origin_text(origin: Mapping[str, Any] | None) -> str:
    """Return an origin as text: file, hash, architecture and types. Empty if there is none."""
    if not origin:
        return ""
    types = ", ".join(f"{count} {name}" for name, count in origin["types"].items())
    named = f" of {origin['name']}" if origin["name"] else ""
    return f"{origin['file']} (sha256 {origin['sha256'][:16]}, {origin['architecture']}: {types}){named}"


def _type_sizes(path: Path) -> Mapping[int, tuple[str, int, int]]:
    """Return for each type number: name, elements per block, bytes per block."""
    try:
        from gguf import GGML_QUANT_SIZES
    except ImportError:
        raise ModelError(f"{path} is a GGUF file, and reading it needs: pip install 'recovery[gguf]'") from None
    return {int(kind): (kind.name, *sizes) for kind, sizes in GGML_QUANT_SIZES.items()}


def _truncated(path: Path, size: int, why: str) -> ModelError:
    return ModelError(f"{path} is truncated: {why}, the file has {size:,}; download it again")


def _check_model(header: Header) -> None:
    path, metadata = header.path, header.metadata
    if "general.architecture" not in metadata or not header.tensors:
        raise ModelError(f"{path} contains no model: it has no architecture or no tensors")
    if metadata.get("general.type", "model") != "model":
        raise ModelError(f"{path} is a file of type {metadata['general.type']!r}, not a whole model: name the model's")
    for key, kind in {**{f"{header.architecture}.{key}": kind for key, kind in _OWN_TYPES.items()}, **_TYPES}.items():
        value = metadata.get(key)
        if value is not None and not isinstance(value, (int, float) if kind is float else kind):
            found = type(value).__name__
            raise ModelError(f"{path}: its {key} is of type {found}, not {kind.__name__}: convert it again")
    layers = header.own("block_count")
    if layers is not None and layers > min(len(header.tensors), MOST_LAYERS):
        raise ModelError(f"{path} has {len(header.tensors):,} tensors for {layers:,} layers: download it again")
    if isinstance(metadata.get("split.count"), int) and metadata["split.count"] > 1:
        raise ModelError(
            f"{path} is one of {metadata['split.count']} parts of a model: merge them first (llama-gguf-split --merge)"
        )
    if not metadata.get("tokenizer.ggml.tokens") or metadata.get("tokenizer.ggml.model") in (None, "none", "no_vocab"):
        raise ModelError(f"{path} has no tokenizer: use a file that includes the vocabulary")
    if not metadata.get("tokenizer.chat_template"):
        raise ModelError(
            f"{path} has no chat template, so it cannot be prompted: use the file of an instruct model, or "
            "add the template to it (gguf-new-metadata --chat-template)"
        )


# --- the format -----------------------------------------------------------------------------------------------------


class _Bytes:
    """Cursor over the file's bytes. Raises EOFError or struct.error past the end."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data, self.at = data, 4

    def number(self, code: str) -> Any:
        return self.numbers(code, 1)[0]

    def numbers(self, code: str, count: int) -> tuple[Any, ...]:
        width = struct.calcsize(f"<{code}")
        if self.at + width * count > len(self.data):  # checked first: a damaged count may be huge
            raise EOFError
        values = struct.unpack_from(f"<{count}{code}", self.data, self.at)
        self.at += width * count
        return values

    def text(self) -> str:
        length = self.number("Q")
        if self.at + length > len(self.data):
            raise EOFError
        self.at += length
        return self.data[self.at - length : self.at].decode("utf-8")

    def value(self, kind: int) -> Any:
        if kind == STRING:
            return self.text()
        if kind != ARRAY:
            return self.number(_NUMBERS[kind])
        inner, count = self.numbers("I", 1)[0], self.number("Q")
        if count > _LONGEST_ARRAY:
            raise ValueError(f"an array of {count:,} values")
        if inner != STRING:
            return list(self.numbers(_NUMBERS[inner], count))
        for _ in range(count):
            self.at += 8 + struct.unpack_from("<Q", self.data, self.at)[0]
        return count


def _parse(path: Path, data: mmap.mmap, sizes: Mapping[int, tuple[str, int, int]]) -> Header:
    cursor = _Bytes(data)
    version = cursor.number("I")
    if version & 0xFFFF == 0:
        raise ModelError(f"{path} is a GGUF file for big-endian machines: use the little-endian one")
    if version not in _VERSIONS:
        raise ModelError(f"{path} is GGUF version {version}: versions 2 and 3 can be read")
    tensors, values = cursor.numbers("Q", 2)
    if tensors > MOST_TENSORS or values > _MOST_KEYS:
        raise ValueError(f"{tensors:,} tensors and {values:,} keys, more than any model has")
    metadata: dict[str, Any] = {}
    spans = {}
    for _ in range(values):
        begin, key = cursor.at, cursor.text()
        if key in metadata:  # readers differ in which they take
            raise ValueError(f"the key {key!r:.80} is there twice")
        metadata[key] = cursor.value(cursor.number("I"))
        spans[key] = (begin, cursor.at)
    table, entries = cursor.at, []
    for _ in range(tensors):
        name = cursor.text()
        shape = tuple(reversed(cursor.numbers("Q", cursor.number("I"))))  # ggml stores the fastest dimension first
        kind, offset = cursor.number("I"), cursor.number("Q")
        if kind not in sizes:
            raise ModelError(f"{path} has tensors of a type (number {kind}) that this gguf package does not support")
        entries.append((name, shape, kind, offset))
    if len({name for name, *_ in entries}) < len(entries):
        raise ValueError("a tensor is there twice")
    alignment = int(metadata.get("general.alignment", 32))
    start = -(-cursor.at // alignment) * alignment
    stored = []
    for name, shape, kind, offset in entries:
        label, numbers, width = sizes[kind]
        stored.append(StoredTensor(name, shape, label, start + offset, math.prod(shape) // numbers * width))
    return Header(path, len(data), version, metadata, tuple(stored), spans, (table, cursor.at), start)
