"""The header of a GGUF file: what is in it and whether it is whole, known before anything heavy is loaded.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. Read here, and not by the gguf package's reader,
since that one takes seconds for a large vocabulary and ends in an arbitrary exception where a file is cut short.
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

from recovery.errors import ModelError

SUFFIX = ".gguf"
ORIGIN = "gguf.json"  # next to converted weights: the file they come from
MAGIC = b"GGUF"
_VERSIONS = (2, 3)
STRING, ARRAY = 8, 9
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_BLOCK = 1 << 22


@dataclass(frozen=True)
class StoredTensor:
    """A tensor of the file: its shape as torch says it, its type as ggml calls it, where its bytes are."""

    name: str
    shape: tuple[int, ...]
    type: str
    offset: int
    bytes: int

    @property
    def count(self) -> int:
        """How many numbers it holds."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Header:
    """What a file says of itself. Arrays of strings (the vocabulary) are given in ``metadata`` by their length.

    ``spans`` says where each key with its value is, ``table`` where the list of tensors is, ``data`` where their bytes
    begin.
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
        """The data begin at a multiple of this many bytes."""
        return int(self.metadata.get("general.alignment", 32))

    @property
    def architecture(self) -> str:
        """llama.cpp's name of the architecture: llama, qwen3 ..."""
        return str(self.metadata["general.architecture"])

    @property
    def name(self) -> str:
        """What the model is called; empty where the file does not say."""
        return str(self.metadata.get("general.name", ""))

    @property
    def types(self) -> dict[str, int]:
        """How many tensors are of which type, most frequent first."""
        return dict(collections.Counter(tensor.type for tensor in self.tensors).most_common())

    def own(self, key: str) -> Any:
        """A value of the architecture's own, ``own("rope.freq_base")``; None where there is none."""
        return self.metadata.get(f"{self.architecture}.{key}")

    def summary(self) -> str:
        """In words: architecture, types, size."""
        types = ", ".join(f"{count} {name}" for name, count in self.types.items())
        return f"{self.architecture}, {len(self.tensors)} tensors ({types}), {self.bytes / 1e6:,.0f} MB"


def is_gguf(name: str | Path) -> bool:
    """Whether a model is named by a GGUF file: by its ending, or by what it begins with."""
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
    """The header of a model's file, after it was found whole and to hold a model with a tokenizer and a template.

    Raises ModelError in one line: no such file, not a GGUF file, cut short, the gguf package is missing, no tokenizer,
    no chat template.
    """
    path = Path(path).expanduser()
    if not path.is_file():
        raise ModelError(f"there is no file {path}: --model takes a GGUF file, a folder, a hub id or 'miniature'")
    size = path.stat().st_size
    with path.open("rb") as stream:
        if stream.read(4) != MAGIC:
            raise ModelError(f"{path} is not a GGUF file: it does not begin with the letters GGUF")
        sizes = _type_sizes(path)
        try:
            with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
                header = _parse(path, data, sizes)
        except (struct.error, EOFError):
            raise _cut_short(path, size, "its header does not end") from None
        except (UnicodeDecodeError, KeyError, ValueError, OverflowError) as error:
            raise ModelError(f"{path} is damaged: its header cannot be read ({error}); fetch it again") from error
    end = max((tensor.offset + tensor.bytes for tensor in header.tensors), default=0)
    if end > size:
        raise _cut_short(path, size, f"its tensors take {end:,} bytes")
    _check_model(header)
    return header


def sha256_of(path: str | Path, tick: Callable[[int], None] = lambda count: None) -> str:
    """The SHA-256 of a file as hex; ``tick`` is given the number of bytes that were read."""
    digest = hashlib.sha256()
    with Path(path).expanduser().open("rb") as stream:
        while block := stream.read(_BLOCK):
            digest.update(block)
            tick(len(block))
    return digest.hexdigest()


def origin_of(folder: Path) -> dict[str, Any] | None:
    """What is known of the GGUF file that a model's folder was converted from; None where it was not."""
    try:
        found = json.loads((folder / ORIGIN).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def origin_text(found: Mapping[str, Any] | None) -> str:
    """An origin in words: the file, its content, what it holds. Empty where there is none."""
    if not found:
        return ""
    types = ", ".join(f"{count} {name}" for name, count in found["types"].items())
    named = f" of {found['name']}" if found["name"] else ""
    return f"{found['file']} (sha256 {found['sha256'][:16]}, {found['architecture']}: {types}){named}"


def _type_sizes(path: Path) -> Mapping[int, tuple[str, int, int]]:
    """Number of a type -> its name, numbers in a block, bytes of a block."""
    try:
        from gguf import GGML_QUANT_SIZES
    except ImportError:
        raise ModelError(f"{path} is a GGUF file, and reading it needs: pip install 'recovery[gguf]'") from None
    return {int(kind): (kind.name, *sizes) for kind, sizes in GGML_QUANT_SIZES.items()}


def _cut_short(path: Path, size: int, why: str) -> ModelError:
    return ModelError(f"{path} is cut short: {why}, the file has {size:,}; fetch it again")


def _check_model(header: Header) -> None:
    path, said = header.path, header.metadata
    if "general.architecture" not in said or not header.tensors:
        raise ModelError(f"{path} holds no model: it names no architecture, or has no tensors")
    if said.get("general.type", "model") != "model":
        raise ModelError(f"{path} holds no whole model but a file of type {said['general.type']!r}: name the model's")
    if int(said.get("split.count", 1)) > 1:
        raise ModelError(
            f"{path} is one of {said['split.count']} parts of a model: merge them first (llama-gguf-split --merge)"
        )
    if not said.get("tokenizer.ggml.tokens") or said.get("tokenizer.ggml.model") in (None, "none", "no_vocab"):
        raise ModelError(f"{path} brings no tokenizer: take a file that was made with its vocabulary")
    if not said.get("tokenizer.chat_template"):
        raise ModelError(
            f"{path} brings no chat template, so nothing can be asked of it: take the file of an instruct model, or "
            "write the template into it (gguf-new-metadata --chat-template)"
        )


# --- the format -----------------------------------------------------------------------------------------------------


class _Bytes:
    """The file from a place on. Raises EOFError or struct.error past its end."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data, self.at = data, 4

    def number(self, code: str) -> Any:
        return self.numbers(code, 1)[0]

    def numbers(self, code: str, count: int) -> tuple[Any, ...]:
        width = struct.calcsize(f"<{code}")
        if self.at + width * count > len(self.data):  # before the format is made: a damaged count may be huge
            raise EOFError
        found = struct.unpack_from(f"<{count}{code}", self.data, self.at)
        self.at += width * count
        return found

    def text(self) -> str:
        length = self.number("Q")
        if self.at + length > len(self.data):
            raise EOFError
        self.at += length
        return self.data[self.at - length : self.at].decode("utf-8")

    def skip_texts(self, count: int) -> int:
        for _ in range(count):
            self.at += 8 + struct.unpack_from("<Q", self.data, self.at)[0]
        return count

    def value(self, kind: int) -> Any:
        if kind == STRING:
            return self.text()
        if kind != ARRAY:
            return self.number(_NUMBERS[kind])
        inner, count = self.numbers("I", 1)[0], self.number("Q")
        return self.skip_texts(count) if inner == STRING else list(self.numbers(_NUMBERS[inner], count))


def _parse(path: Path, data: mmap.mmap, sizes: Mapping[int, tuple[str, int, int]]) -> Header:
    at = _Bytes(data)
    version = at.number("I")
    if version & 0xFFFF == 0:
        raise ModelError(f"{path} is a GGUF file for big-endian machines: take the usual one")
    if version not in _VERSIONS:
        raise ModelError(f"{path} is GGUF version {version}: versions 2 and 3 can be read")
    tensors, values = at.numbers("Q", 2)
    said: dict[str, Any] = {}
    spans = {}
    for _ in range(values):
        begun, key = at.at, at.text()
        said[key] = at.value(at.number("I"))
        spans[key] = (begun, at.at)
    table, found = at.at, []
    for _ in range(tensors):
        name = at.text()
        shape = tuple(reversed(at.numbers("Q", at.number("I"))))  # ggml says the fastest dimension first
        kind, offset = at.number("I"), at.number("Q")
        if kind not in sizes:
            raise ModelError(f"{path} holds tensors of a type (number {kind}) that this gguf package does not know")
        found.append((name, shape, kind, offset))
    alignment = int(said.get("general.alignment", 32))
    start = -(-at.at // alignment) * alignment
    placed = []
    for name, shape, kind, offset in found:
        label, numbers, width = sizes[kind]
        placed.append(StoredTensor(name, shape, label, start + offset, math.prod(shape) // numbers * width))
    return Header(path, len(data), version, said, tuple(placed), spans, (table, at.at), start)
