"""GGUF files that are cut, or lie about what they hold."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gguf

from tests.gguf_writing import write_gguf
from tests.torture.hostile_models.case import Case, Write, zipped
from tests.torture.hostile_models.tokenizers import TEMPLATES

SIZES = (
    "block_count embedding_length feed_forward_length attention.head_count attention.key_length "
    "attention.head_count_kv context_length vocab_size rope.dimension_count"
).split()
OTHERS = (
    "tokenizer.ggml.tokens tokenizer.ggml.merges tokenizer.ggml.eos_token_id tokenizer.chat_template "
    "tokenizer.ggml.model tokenizer.ggml.token_type split.count general.type general.name"
).split()


def text(value: str | bytes) -> bytes:
    """Return a string of a GGUF file."""
    data = value if isinstance(value, bytes) else value.encode()
    return struct.pack("<Q", len(data)) + data


def _gguf(change: Callable[[bytes], bytes]) -> Write:
    """Write model.gguf beside the folder from the bytes of a sound one."""

    def write(folder: Path) -> None:
        target = folder.parent / "model.gguf"
        write_gguf(folder, target)
        target.write_bytes(change(target.read_bytes()))

    return write


def _valued(pack: bytes | None = None, **values: Any) -> Write:
    """Write model.gguf with further keys, or with one that is given as bytes."""

    def write(folder: Path) -> None:
        target = folder.parent / "model.gguf"
        named = {key.replace("__", "."): value for key, value in values.items()}
        write_gguf(folder, target, values=named)
        if pack is not None:
            target.write_bytes(_with_key(target.read_bytes(), pack))

    return write


def _with_key(data: bytes, pack: bytes) -> bytes:
    """Return a file with one key more, in place of one of the same name; the tensors stay aligned."""
    (length,) = struct.unpack_from("<Q", pack, 0)
    if length < 100 and pack[: 8 + length] in data:
        data = data.replace(pack[: 8 + length], pack[:8] + b"z" * length, 1)
    filler = text("filler") + struct.pack("<I", 8)
    pack = filler + text("x" * (-(len(pack) + len(filler) + 8) % 32)) + pack
    count = struct.unpack_from("<Q", data, 16)[0]
    return data[:16] + struct.pack("<Q", count + 2) + pack + data[24:]


def _counts(tensors: int | None = None, keys: int | None = None) -> Callable[[bytes], bytes]:
    def change(data: bytes) -> bytes:
        found = struct.unpack_from("<QQ", data, 8)
        counts = (found[n] if c is None else c for n, c in enumerate((tensors, keys)))
        return data[:8] + struct.pack("<QQ", *counts) + data[24:]

    return change


def _crowd(many: int) -> Callable[[bytes], bytes]:
    def change(data: bytes) -> bytes:
        keys = text("general.architecture") + struct.pack("<I", 8) + text("qwen3")
        one = struct.pack("<IQIQ", 1, 0, 0, 0)
        return b"GGUF" + struct.pack("<IQQ", 3, many, 1) + keys + b"".join(text(f"t{n}") + one for n in range(many))

    return change


def _in_text(old: bytes, new: bytes) -> Callable[[bytes], bytes]:
    assert len(old) == len(new)
    return lambda data: data.replace(old, new)


def _templated(template: str) -> Write:
    def write(folder: Path) -> None:
        (folder / "chat_template.jinja").write_text(template)
        write_gguf(folder, folder.parent / "model.gguf")

    return write


def _case(name: str, write: Write, fine: bool | None = False) -> Case:
    """Return a case whose target is a GGUF file."""
    return Case(f"GGUF {name}", write, "model.gguf", fine)


def ggufs(many: int) -> Iterator[Case]:
    yield _case("untouched", _gguf(lambda data: data), True)
    for part in (0, 3, 4, 8, 20, 24, 25, 100, 1000, 5000, 20_000):
        yield _case(f"cut to {part}", _gguf(lambda data, part=part: data[:part]))
    yield _case("cut at the end", _gguf(lambda data: data[:-9]))
    for count in ((1 << 64) - 1, 1 << 63, 10**6, 0):
        yield _case(f"{count} tensors", _gguf(_counts(tensors=count)))
        yield _case(f"{count} keys", _gguf(_counts(keys=count)))
    yield _case(f"{many} tensors that exist", _gguf(_crowd(many)))
    kinds = {
        "number": struct.pack("<II", 4, 7),
        "text of 2^63": struct.pack("<IQ", 8, 1 << 63),
        "text of 2^64-1": struct.pack("<IQ", 8, (1 << 64) - 1),
        "array of 2^63": struct.pack("<IIQ", 9, 4, 1 << 63),
        "texts of 2^63": struct.pack("<IIQ", 9, 8, 1 << 63),
        "array of arrays": struct.pack("<IIQ", 9, 9, 5) * 1000,
        "array of bytes": struct.pack("<IIQ", 9, 0, 50_000_000) + bytes(50_000_000),
        "array of texts": struct.pack("<IIQ", 9, 8, 10**6) + struct.pack("<Q", 0) * 10**6,
        "kind unknown": struct.pack("<II", 99, 7),
        "text of no text": struct.pack("<I", 8) + text(b"\xff\xfe"),
        "long text": struct.pack("<I", 8) + text("x" * 10**7),
    }
    for what, value in kinds.items():
        yield _case(what, _valued(text("x.y") + value), None)
        yield _case(f"alignment {what}", _valued(text("general.alignment") + value), None)
        yield _case(f"architecture {what}", _valued(text("general.architecture") + value), None)
    yield _case("key of 2^63 bytes", _valued(struct.pack("<Q", 1 << 63)))
    yield _case("key of no text", _valued(text(b"\xff\xfe") + kinds["number"]))
    yield _case("key with control characters", _valued(text("a\x1b[2J\n\0b") + kinds["number"]), None)
    for alignment in (0, 1, 3, 1 << 31, (1 << 32) - 1):
        yield _case(f"alignment {alignment}", _valued(general__alignment=alignment), None)
    for key in SIZES:
        for size in (0, 10**6, (1 << 32) - 1):
            yield _case(f"{key} {size}", _valued(text(f"qwen3.{key}") + struct.pack("<II", 4, size)), None)
        yield _case(f"{key} text", _valued(text(f"qwen3.{key}") + struct.pack("<I", 8) + text("x")), None)
    for key in OTHERS:
        for what in ("number", "array of texts", "long text", "array of bytes"):
            yield _case(f"{key} {what}", _valued(text(key) + kinds[what]), None)
    yield _case("key twice", _valued(text("filler") + kinds["number"]))
    yield from _tensors()


def _tensors() -> Iterator[Case]:
    last = b"output_norm.weight"
    yield _case("tensor twice", _gguf(_in_text(b"blk.1.attn_q.weight", b"blk.0.attn_q.weight")))
    yield _case("tensor missing", _gguf(_in_text(b"blk.1.attn_q.weight", b"blk.1.attn_x.weight")))
    yield _case("tensor called as a path", _gguf(_in_text(last, b"../../../../../etc")))
    for what, dims in {
        "overflow": (1 << 32, 1 << 32),
        "overflow to nothing": (1 << 62, 4),
        "zero": (0, 0),
        "huge": (1 << 40,),
        "four billion": None,
    }.items():
        yield _case(f"shape {what}", _gguf(lambda data, dims=dims: _shaped(data, last, dims)), None)
    for offset in ((1 << 64) - 1, (1 << 63), 1, 32):
        yield _case(f"offset {offset}", _gguf(lambda data, offset=offset: _placed(data, last, offset)), None)
    for name in ("endless", "memory by product", "memory by doubling", "globals", "include", "deep"):
        yield _case(f"template: {name}", _templated(TEMPLATES[name]), None)
    yield _case("a pipe", lambda f: os.mkfifo(f.parent / "model.gguf"))
    yield _case("a folder", lambda f: (f.parent / "model.gguf").mkdir())
    yield _case("/dev/zero", lambda f: (f.parent / "model.gguf").symlink_to("/dev/zero"))
    yield _case("pickle", lambda f: (f.parent / "model.gguf").write_bytes(zipped(f)))


def _shaped(data: bytes, name: bytes, dims: tuple[int, ...] | None) -> bytes:
    at = data.rindex(name) + len(name)
    if dims is None:
        return data[:at] + struct.pack("<I", (1 << 32) - 1) + data[at + 4 :]
    shape = struct.pack(f"<I{len(dims)}Q", len(dims), *dims)
    return data[:at] + shape + data[at + 12 :]  # the norm has one dimension


def _placed(data: bytes, name: bytes, offset: int) -> bytes:
    at = data.rindex(name) + len(name) + 4 + 8 + 4
    assert struct.unpack_from("<I", data, at - 4)[0] == gguf.GGMLQuantizationType.F32
    return data[:at] + struct.pack("<Q", offset) + data[at + 8 :]
