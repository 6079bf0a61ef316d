"""Files that lead out of the folder, or are none."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

from tests.torture.hostile_models.case import WEIGHTS, Case, instead, linked
from tests.torture.hostile_models.weights import indexed


def _socket(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # the name of a socket is short
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(here)


_FILES = (WEIGHTS, "config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json")
_MORE = ("chat_template.jinja", "recovery.toml", "special_tokens_map.json", "added_tokens.json", "vocab.json")


def links() -> Iterator[Case]:
    for name in (*_FILES, *_MORE):
        yield Case(f"{name} linked out", linked(name, f"../outside/{name}"))
        yield Case(f"{name} linked to /etc/passwd", linked(name, "/etc/passwd"))
        yield Case(f"{name} linked to a text", linked(name, "../outside/secret.txt"))
    for name in (*_FILES, "chat_template.jinja", "recovery.toml"):
        yield Case(f"{name} linked to /dev/zero", linked(name, "/dev/zero"))
        yield Case(f"{name} linked to itself", linked(name, name), fine=None)
        yield Case(f"{name} linked to nothing", linked(name, "gone"), fine=None)
        yield Case(f"{name} a pipe", instead(name, os.mkfifo))
        yield Case(f"{name} a folder", instead(name, Path.mkdir), fine=None)
        yield Case(f"{name} a socket", instead(name, _socket), fine=None)

    def inside(folder: Path) -> None:
        (folder / WEIGHTS).rename(folder / "weights.bin")
        (folder / WEIGHTS).symlink_to("weights.bin")

    def templates(folder: Path) -> None:
        (folder / "additional_chat_templates").symlink_to("../outside", target_is_directory=True)

    yield Case("weights linked within", inside, fine=True)
    yield Case("folder of templates linked out", templates)
    shard = "a.safetensors"
    yield Case("shard linked out", indexed(shard, linked(shard, f"../outside/{WEIGHTS}")))
    yield Case("shard a pipe", indexed(shard, lambda f: os.mkfifo(f / shard)))
    yield Case("model itself a link", _moved, fine=True)


def _moved(folder: Path) -> None:
    folder.rename(folder.parent / "elsewhere")
    folder.symlink_to("elsewhere", target_is_directory=True)
