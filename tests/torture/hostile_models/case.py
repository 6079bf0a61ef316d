"""What all hostile models need: a case, files that execute, links, texts in place of files."""

from __future__ import annotations

import io
import json
import os
import pickle
import struct
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

OUTSIDE = "outside the folder 7f3a91"  # the text of the file that no case may read
WEIGHTS, ADAPTER = "model.safetensors", "adapter_model.safetensors"
Write = Callable[[Path], object]


@dataclass(frozen=True)
class Case:
    """One hostile model: ``write`` changes the copy ``model`` beside which it lies; ``target`` is what is loaded.

    ``fine`` says that it must be loaded, None that it may be.
    """

    name: str
    write: Write
    target: str = "model"
    fine: bool | None = False


class _Executes:
    """A pickle of it runs a command when it is read."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch '{self.mark}'",)


def _mark(folder: Path) -> Path:
    return folder.parent / "executed"


def pickled(folder: Path) -> bytes:
    """Return a pickle that runs a command, as plain bytes."""
    return pickle.dumps(_Executes(_mark(folder)))


def zipped(folder: Path) -> bytes:
    """Return the same in the format of torch.save."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("archive/data.pkl", pickled(folder))
        archive.writestr("archive/version", "3\n")
    return buffer.getvalue()


def code(folder: Path) -> str:
    return f"import pathlib\npathlib.Path({str(_mark(folder))!r}).touch()\nclass Custom: pass\n"


def pickle_file(data: Callable[[Path], bytes], name: str, *, beside: bool) -> Write:
    def write(folder: Path) -> None:
        if not beside:
            (folder / WEIGHTS).unlink()
        (folder / name).write_bytes(data(folder))

    return write


def stored(header: bytes, data: bytes = b"", length: int | None = None) -> bytes:
    """Return a safetensors file with any header; ``length`` is what it says of its own length."""
    return struct.pack("<Q", len(header) if length is None else length) + header + data


def linked(name: str, target: str) -> Write:
    def write(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(target)

    return write


def instead(name: str, make: Callable[[Path], object]) -> Write:
    def write(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        make(folder / name)

    return write


def changed_json(name: str, change: Callable[[dict[str, Any], Path], object]) -> Write:
    """Change a JSON file of the folder."""

    def write(folder: Path) -> None:
        path = folder / name
        values = json.loads(path.read_text()) if path.is_file() else {}
        found = change(values, folder)
        path.write_text(json.dumps(values if found is None else found))

    return write


TEXTS = {
    "empty": b"",
    "a list": b"[]",
    "a number": b"7",
    "null": b"null",
    "text": b'"x"',
    "deep": b"[" * 100_000,
    "deep objects": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "cut": b'{"model_type": "qwen3", "a',
    "no text": b"\xff\xfe\x00",
    "empty object": b"{}",
    "of spaces": b" ",
    "a number of 10^6 digits": b'{"model_type": "qwen3", "hidden_size": ' + b"9" * 10**6 + b"}",
}


def filled(path: Path, text: bytes) -> None:
    path.write_bytes(text * 200_000_000 if text == b" " else text)
