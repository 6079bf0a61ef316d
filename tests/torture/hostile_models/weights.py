"""Pickles, safetensors files and indices that lie."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from tests.torture.hostile_models.case import WEIGHTS, Case, Write, pickle_file, pickled, stored, zipped


def pickles() -> Iterator[Case]:
    for kind, data in (("pickle", pickled), ("torch.save", zipped)):
        yield Case(f"{kind} for weights", pickle_file(data, "pytorch_model.bin", beside=False))
        yield Case(f"{kind} beside weights", pickle_file(data, "pytorch_model.bin", beside=True), fine=True)
        yield Case(f"{kind} called safetensors", pickle_file(data, WEIGHTS, beside=True))
        yield Case(f"{kind} as training arguments", pickle_file(data, "training_args.bin", beside=True), fine=True)
        yield Case(f"{kind} as tokenizer.model", pickle_file(data, "tokenizer.model", beside=True), fine=None)

    def indexed(folder: Path) -> None:
        (folder / WEIGHTS).unlink()
        (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": {"a": "pytorch_model.bin"}}))
        (folder / "pytorch_model.bin").write_bytes(zipped(folder))

    def listed(folder: Path) -> None:
        names = load_file(folder / WEIGHTS)
        (folder / WEIGHTS).unlink()
        (folder / "pytorch_model.bin").write_bytes(zipped(folder))
        _index(folder, dict.fromkeys(names, "pytorch_model.bin"))

    yield Case("pickle with its index", indexed)
    yield Case("pickle in the index of safetensors", listed)


def _parts(folder: Path) -> tuple[dict[str, Any], bytes]:
    whole = (folder / WEIGHTS).read_bytes()
    (length,) = struct.unpack("<Q", whole[:8])
    return json.loads(whole[8 : 8 + length]), whole[8 + length :]


def _header(change: Callable[[dict[str, Any], str], Any], end: bytes = b"") -> Write:
    """Change the header of the weights; ``change`` is given the header and the name of a matrix."""

    def write(folder: Path) -> None:
        header, data = _parts(folder)
        name = next(n for n in sorted(header) if n.endswith("q_proj.weight"))
        found = change(header, name)
        (folder / WEIGHTS).write_bytes(stored(json.dumps(header if found is None else found).encode(), data + end))

    return write


def _raw(make: Callable[[bytes, bytes], bytes]) -> Write:
    """Write the weights from the bytes of their header and their data."""

    def write(folder: Path) -> None:
        header, data = _parts(folder)
        (folder / WEIGHTS).write_bytes(make(json.dumps(header).encode(), data))

    return write


def _weights(change: Callable[[dict[str, torch.Tensor]], object]) -> Write:
    def write(folder: Path) -> None:
        tensors = {name: tensor.clone() for name, tensor in load_file(folder / WEIGHTS).items()}
        change(tensors)
        save_file(tensors, folder / WEIGHTS, {"format": "pt"})

    return write


def _entry(**values: Any) -> Write:
    return _header(lambda header, name: header[name].update(values))


def safetensors(many: int) -> Iterator[Case]:
    entry = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}

    def crowd() -> dict[str, Any]:
        return {f"model.layers.{n}.mlp.up_proj.weight": entry for n in range(many)}

    yield Case(f"{many} tensors of nothing", lambda f: (f / WEIGHTS).write_bytes(stored(json.dumps(crowd()).encode())))
    yield Case(f"{many} tensors more", _header(lambda header, _: {**crowd(), **header}))
    for what, length in {"of 2^63 bytes": 1 << 63, "of 2^64-1 bytes": (1 << 64) - 1}.items():
        yield Case(f"header {what}", _raw(lambda header, data, length=length: stored(header, data, length)))
    yield Case("header beyond the end", _raw(lambda header, data: stored(header, b"", len(header) + 9)))
    yield Case("header of spaces", _raw(lambda header, data: stored(header + b" " * 99_000_000, data)), fine=None)
    for what, text in {
        "of brackets": b"[" * 5_000_000,
        "of objects": b'{"a":' * 5_000_000,
        "that is a list": b"[1, 2]",
        "that is a number": b"1e999",
        "that is no text": b"\xff\xfe{}",
        "empty": b"",
    }.items():
        yield Case(f"header {what}", _raw(lambda header, data, text=text: stored(text, data)))
    yield Case("header twice", _raw(lambda header, data: stored(header + header, data)))
    yield Case("no tensors", _raw(lambda header, data: stored(b"{}")))
    for size in (0, 1, 7, 8, 9, 100):
        yield Case(f"cut to {size} bytes", _raw(lambda header, data, size=size: stored(header, data)[:size]))
    yield Case("cut data", _raw(lambda header, data: stored(header, data[:-1])))
    yield Case("more data", _raw(lambda header, data: stored(header, data + b"more")))
    for what, offsets in {
        "beyond the end": [0, 1 << 40],
        "of 2^63": [1 << 63, (1 << 63) + 8],
        "of 10^30": [10**30, 10**30 + 8],
        "backwards": [4096, 0],
        "negative": [-8, 0],
        "fractions": [0.5, 1.5],
        "too few": [0],
        "text": ["0", "8"],
        "of another tensor": [0, 4096],
    }.items():
        yield Case(f"offsets {what}", _entry(data_offsets=offsets))
    for what, shape in {
        "overflow": [1 << 32, 1 << 32],
        "overflow to what is there": [1 << 62, 4, 32, 32],
        "2^63": [1 << 63],
        "negative": [-1, 32],
        "twice negative": [-32, -64],
        "fraction": [0.5, 64],
        "text": "32",
        "null": None,
        "10^6 dimensions": [1] * 1_000_000,
        "zero": [0, 32],
        "transposed": [32, 64, 1],
    }.items():
        yield Case(f"shape {what}", _entry(shape=shape))
    for dtype in ("F128", "", None, 7, "object", "I64", "BOOL", "F8_E4M3", "C64", "f32"):
        yield Case(f"dtype {dtype!r}", _entry(dtype=dtype))
    yield Case("unknown keys", _header(lambda header, name: header[name].update(code="import os")), fine=None)
    yield Case("metadata of numbers", _header(lambda header, _: header.update(__metadata__={"format": 1})))
    yield Case(
        "metadata that is huge",
        _header(lambda h, _: h.update(__metadata__={"format": "pt", "x": "y" * 10**7})),
        fine=None,
    )
    yield Case("format unknown", _header(lambda header, _: header.update(__metadata__={"format": "../x"})), fine=None)
    yield Case("key twice", _raw(_doubled), fine=None)
    yield Case("name that is a path", _header(lambda h, name: h.update({"../../x": h.pop(name)})))
    yield Case("name that is long", _header(lambda h, name: h.update({"x" * 10**6: h.pop(name)})))
    yield Case("name with control characters", _header(lambda h, name: h.update({"a\x1b[2J\nb": h.pop(name)})))
    yield Case("weights missing", _weights(lambda w: [w.pop(n) for n in sorted(w) if "layers.1" in n]))
    yield Case("weight missing", _weights(lambda w: w.pop(next(n for n in sorted(w) if "q_proj" in n))))
    yield Case("weights more", _weights(lambda w: w.update({f"more.{n}": torch.zeros(1) for n in range(9)})), fine=None)
    yield Case("weights of other shapes", _weights(_reshaped))
    yield Case("weights not finite", _weights(lambda w: next(iter(w.values())).fill_(math.nan)))


def _doubled(header: bytes, data: bytes) -> bytes:
    name, entry = next((n, e) for n, e in json.loads(header).items() if n != "__metadata__")
    return stored(header[:-1] + f", {json.dumps(name)}: {json.dumps(entry)}}}".encode(), data)


def _reshaped(tensors: dict[str, torch.Tensor]) -> None:
    for name in [name for name in tensors if "mlp" in name]:
        tensors[name] = tensors[name].T.contiguous()


def _index(folder: Path, mapping: object) -> None:
    (folder / f"{WEIGHTS}.index.json").write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": mapping}))


def indexed(shard: str | None, change: Callable[[Path], object] = lambda f: None) -> Write:
    """Replace the weights by an index whose shards are all called ``shard``."""

    def write(folder: Path) -> None:
        names = list(load_file(folder / WEIGHTS))
        (folder / WEIGHTS).rename(folder / "model-00001-of-00001.safetensors")
        _index(folder, dict.fromkeys(names, shard))
        change(folder)

    return write


def indices() -> Iterator[Case]:
    shard = "model-00001-of-00001.safetensors"
    yield Case("index", indexed(shard), fine=True)
    yield Case("index up and out", indexed(f"../outside/{WEIGHTS}"))
    yield Case("index up and back in", indexed(f"../model/{shard}"))
    yield Case("index of a missing shard", indexed("gone.safetensors"))
    names = ("", ".", "..", "/", "/dev/zero", "a\0b.safetensors", "x" * 5000, "\ud800", "https://example.org/a", None)
    for name in names:
        yield Case(f"index of {name!r:.40}", indexed(name))
    yield Case("index of an absolute path", lambda f: indexed(str(f.parent / "outside" / WEIGHTS))(f))
    mappings = {"list": [shard], "null": None, "text": shard, "empty": {}, "nested": {"a": {"b": shard}}}
    for what, mapping in mappings.items():
        yield Case(f"index with a {what}", indexed(shard, lambda f, mapping=mapping: _index(f, mapping)))
    yield Case("index of 10^6 tensors", indexed(shard, lambda f: _index(f, {f"a.{n}": shard for n in range(10**6)})))
    crowd = lambda f: _index(f, {f"a.{n}": f"model-{n}.safetensors" for n in range(200_000)})  # noqa: E731
    yield Case("index of 200,000 shards", indexed(shard, crowd))
    deep = "[" * 100_000
    yield Case("index that is deep", indexed(shard, lambda f: (f / f"{WEIGHTS}.index.json").write_text(deep)))
    yield Case("index that is no JSON", indexed(shard, lambda f: (f / f"{WEIGHTS}.index.json").write_bytes(b"\xff\0")))
