"""Hostile models that are drawn: another key gives another file, field, size or place of damage."""

from __future__ import annotations

import json
import math
import random
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from tests.gguf_writing import write_gguf
from tests.torture.hostile_files import flipped
from tests.torture.hostile_models.adapters import adapter
from tests.torture.hostile_models.case import WEIGHTS, Case, stored
from tests.torture.numbers import spoiled

Draw = random.Random
FILES = ("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja")
JSON = FILES[:4]
MORE_FIELDS = (
    "rank_pattern alpha_pattern modules_to_save layers_pattern layers_to_transform exclude_modules revision use_dora "
    "corda_config eva_config"
).split()
_CONTENT = "{{ messages[0]['content'] }}"


def drawn(key: str) -> Case:
    """Return the case of a key: always the same one."""
    name = Draw(key).choice(sorted(_WAYS))
    target = "model.gguf" if name.startswith("GGUF") else "model"

    def write(folder: Path) -> str:
        return _WAYS[name](folder, Draw(f"{key} write"))  # written anew for each command

    return Case(f"drawn: {name}", write, target, None)


def _size(draw: Draw) -> Any:
    """Return a number of any magnitude, seldom something else."""
    small, large = draw.randint(-2, 300), draw.choice((-1, 1, 1, 1)) * 10 ** draw.randint(2, 30)
    near = 2 ** draw.randint(0, 64) + draw.randint(-1, 1)
    return draw.choice((small, large, near, small * 0.5, math.nan, str(large), None, [small], {}))


def _read(folder: Path, name: str) -> Any:
    path = folder / name
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def _configured(folder: Path, draw: Draw) -> str:
    """Give one to three fields of the configuration other sizes."""
    config = _read(folder, "config.json")
    changed = {name: _size(draw) for name in draw.sample(sorted(config), draw.randint(1, 3))}
    (folder / "config.json").write_text(json.dumps(config | changed))
    return f"{changed!r:.200}"


def _json(folder: Path, draw: Draw) -> str:
    """Replace, repeat or delete one part, anywhere in a file of JSON."""
    name = draw.choice(JSON)
    (folder / name).write_text(json.dumps(spoiled(_read(folder, name), draw)))
    return name


def _crowded(folder: Path, draw: Draw) -> str:
    """Add a list, an object or a text of any length to a file of JSON."""
    name, count = draw.choice(JSON), int(10 ** draw.uniform(2, 6))
    values = _read(folder, name)
    field = draw.choice([*values, "more"])
    values[field] = draw.choice((lambda: [0] * count, lambda: {str(n): n for n in range(count)}, lambda: "x" * count))()
    (folder / name).write_text(json.dumps(values))
    return f"{name}, {field}: {count}"


def _bytes(path: Path, draw: Draw) -> str:
    """Cut a file, overwrite bytes of it, or put others in between."""
    data = path.read_bytes()
    at = draw.randrange(len(data)) if draw.random() < 0.5 else draw.randrange(min(len(data), 4000))  # headers are small
    way = draw.choice(("cut", "flipped", "inserted", "twice"))
    count = int(10 ** draw.uniform(0, 4))
    changed = {
        "cut": lambda: data[:at],
        "flipped": lambda: data[:at] + flipped(data[at : at + 200], draw, min(count, 50)) + data[at + 200 :],
        "inserted": lambda: data[:at] + draw.randbytes(count) + data[at:],
        "twice": lambda: data[:at] + data[at : at + count] * 2 + data[at + count :],
    }[way]()
    path.write_bytes(changed)
    return f"{path.name} {way} at {at}"


def _damaged(folder: Path, draw: Draw) -> str:
    return _bytes(folder / draw.choice((*FILES, WEIGHTS, WEIGHTS)), draw)


def _headed(folder: Path, draw: Draw) -> str:
    """Change one part of the header of the weights."""
    whole = (folder / WEIGHTS).read_bytes()
    (length,) = struct.unpack("<Q", whole[:8])
    header = json.loads(whole[8 : 8 + length])
    name = draw.choice(sorted(set(header) - {"__metadata__"}))
    entry = header[name]
    field = draw.choice(("shape", "data_offsets", "dtype"))
    if field == "dtype":
        entry[field] = draw.choice(("F64", "F16", "BF16", "I8", "U8", "BOOL", "F8_E5M2", "x"))
    else:
        entry[field][draw.randrange(len(entry[field]))] = _size(draw)
    (folder / WEIGHTS).write_bytes(stored(json.dumps(header).encode(), whole[8 + length :]))
    return f"{name} {field} {entry[field]!r:.100}"


def _weighted(folder: Path, draw: Draw) -> str:
    """Drop, rename, reshape, cast or spoil one tensor."""
    tensors = {name: tensor.clone() for name, tensor in load_file(folder / WEIGHTS).items()}
    name = draw.choice(sorted(tensors))
    way = draw.choice(("dropped", "renamed", "flat", "longer", "cast", "not finite", "huge"))
    one = tensors.pop(name)
    if way == "renamed":
        tensors[name.replace(".", draw.choice(("..", "/", " ", "_")), 1)] = one
    elif way != "dropped":
        kinds = (torch.int8, torch.bool, torch.float64, torch.float16)
        changed: dict[str, Callable[[], torch.Tensor]] = {
            "flat": lambda: one.reshape(-1),
            "longer": lambda: torch.cat([one, one]),
            "cast": lambda: one.to(draw.choice(kinds)),
            "not finite": lambda: one.index_fill(0, torch.tensor([0]), draw.choice((math.nan, math.inf))),
            "huge": lambda: one * 1e30,
        }
        tensors[name] = changed[way]().contiguous()
    save_file(tensors, folder / WEIGHTS, {"format": "pt"})
    return f"{name} {way}"


def _adapted(folder: Path, draw: Draw) -> str:
    """Put an adapter in place of the model, with other settings or damaged."""
    adapter(folder)
    if draw.random() < 0.4:
        return _bytes(draw.choice(sorted(folder.iterdir())), draw)
    fields = [*_read(folder, "adapter_config.json"), *MORE_FIELDS]
    changed = {name: _size(draw) for name in draw.sample(fields, draw.randint(1, 2))}
    adapter(folder, **changed)
    return f"{changed!r:.200}"


def _templated(folder: Path, draw: Draw) -> str:
    """Write a template with loops, products and nested blocks of any size."""
    count, depth = int(10 ** draw.uniform(0, 6)), draw.randint(1, 6)
    text = draw.choice((
        f"{{% for n in range({count}) %}}" * depth + "x" + "{% endfor %}" * depth,
        f"{{{{ 'a' * {count**depth} }}}}",
        "{{ " + "(" * count + "1" + ")" * count + " }}",
        "{% set x = namespace(y='ab') %}{% for n in range(" + str(count) + ") %}{% set x.y = x.y * 2 %}{% endfor %}",
        f"{{{{ '%{count**depth}d' % 1 }}}}",
        _CONTENT * count,
    ))  # fmt: skip
    (folder / "chat_template.jinja").write_text(text)
    return f"{text[:60]} {count} {depth}"


def _tokens(folder: Path, draw: Draw) -> str:
    """Add tokens of any id and text to the tokenizer, or take entries of its vocabulary away."""
    values = _read(folder, "tokenizer.json")
    flags = {name: draw.random() < 0.5 for name in ("single_word", "lstrip", "rstrip", "normalized", "special")}
    for _ in range(draw.randint(1, 4)):
        text = draw.choice(("", " ", "e", "<x>", "\0", "\ud83d\ude00", "x" * int(10 ** draw.uniform(1, 6))))
        values["added_tokens"].append(
            {"id": draw.choice((0, 447, 448, 500, 2**31, 2**32 - 1)), "content": text, **flags}
        )
    vocabulary = values["model"]["vocab"]
    gone = draw.sample(sorted(vocabulary), draw.choice((0, 0, 1, 50, len(vocabulary))))
    for token in gone:
        del vocabulary[token]
    (folder / "tokenizer.json").write_text(json.dumps(values))
    return f"{values['added_tokens'][-1]!r:.120}, {len(gone)} entries gone"


def _gguf(folder: Path, draw: Draw) -> str:
    """Damage a GGUF file of the model, in its header more often than not."""
    write_gguf(folder, folder.parent / "model.gguf")
    return _bytes(folder.parent / "model.gguf", draw)


def _gguf_key(folder: Path, draw: Draw) -> str:
    """Overwrite a number that follows the name of a key of a GGUF file."""
    write_gguf(folder, target := folder.parent / "model.gguf")
    data = target.read_bytes()
    name = draw.choice(b"block_count embedding_length head_count length tokens merges token_id".split())
    at = data.find(name)
    at = (at if at >= 0 else 24) + len(name) + draw.choice((0, 4, 8))
    value = struct.pack("<Q", 2 ** draw.randint(0, 63))[: draw.choice((1, 4, 8))]
    target.write_bytes(data[:at] + value + data[at + len(value) :])
    return f"{name.decode()} at {at}: {value.hex()}"


_WAYS: dict[str, Callable[[Path, Draw], str]] = {
    "sizes of the configuration": _configured,
    "a part of a JSON file": _json,
    "a crowded JSON file": _crowded,
    "a damaged file": _damaged,
    "the header of the weights": _headed,
    "a tensor": _weighted,
    "an adapter": _adapted,
    "a template": _templated,
    "tokens": _tokens,
    "GGUF, damaged": _gguf,
    "GGUF, another number": _gguf_key,
}
