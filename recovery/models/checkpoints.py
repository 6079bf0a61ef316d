"""Checkpoints on disk: written atomically, identified by a content hash, with their parent and stage.

A checkpoint is a folder in Hugging Face's layout (weights, or only an adapter, with tokenizer) plus
checkpoint.json.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import safe_open

from recovery.disk import WRITING, replace_folder, written
from recovery.errors import CheckpointError

if TYPE_CHECKING:
    import torch

    from recovery.models.loaded import Loaded

INFO_FILE = "checkpoint.json"
# Files that determine a model's output: weights, shapes, tokens, template. Suites and notes are not included.
CONTENT = (
    "*.safetensors",
    "config.json",
    "generation_config.json",
    "adapter_config.json",
    "tokenizer*",
    "special_tokens_map.json",
    "vocab.*",
    "merges.txt",
    "chat_template*",
    "additional_chat_templates/*.jinja",  # conversations with tools are written by "tool_use", if it is among them
)
_TEMPLATES = CONTENT[-1]  # not hashed by earlier releases


@dataclass(frozen=True)
class CheckpointInfo:
    """The content of checkpoint.json. ``parent`` is the content hash of the checkpoint this one was trained from."""

    name: str
    kind: str
    hash: str
    path: str
    parent: str | None = None
    stage: str | None = None
    tuning: str = "full"
    base: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


class StoredWeights(Mapping[str, "torch.Tensor"]):
    """The weights in the safetensors of a folder by name, each read when it is taken."""

    def __init__(self, folder: Path) -> None:
        opened = [safe_open(path, framework="pt") for path in sorted(folder.glob("*.safetensors"))]
        self._holders = {name: file for file in opened for name in file.keys()}  # noqa: SIM118  (not a mapping)

    def __getitem__(self, name: str) -> torch.Tensor:
        weight: torch.Tensor = self._holders[name].get_tensor(name)
        return weight

    def __iter__(self) -> Iterator[str]:
        return iter(self._holders)

    def __len__(self) -> int:
        return len(self._holders)


def content_hash(folder: Path, content: Sequence[str] = CONTENT) -> str:
    """Return the SHA-256 over the names and contents of the model's files, as hex.

    An adapter's includes the path of its base as its configuration has it: nothing else there says what it adapts.
    Raise CheckpointError if the folder contains no weights.
    """
    files = sorted({path for pattern in content for path in folder.glob(pattern) if path.is_file()})
    if not any(path.suffix == ".safetensors" for path in files):
        raise CheckpointError(f"{folder} holds no *.safetensors: a checkpoint needs its weights in that format")
    digest = hashlib.sha256()
    for path in files:
        digest.update(f"{path.relative_to(folder).as_posix()}\0{path.stat().st_size}\0".encode())
        with path.open("rb") as stream:
            while block := stream.read(1 << 22):
                digest.update(block)
    return digest.hexdigest()


def save_checkpoint(
    loaded: Loaded,
    folder: Path,
    *,
    name: str,
    kind: str,
    parent: str | None,
    stage: str | None = None,
    base: str | None = None,
    extra: Mapping[str, Any] | None = None,
) -> CheckpointInfo:
    """Write ``loaded`` to ``folder`` atomically, replacing an existing one.

    A crash leaves either the old folder or the new one, never a partial one. It is on the disk when this returns: the
    training states that could make it again are then deleted.
    """
    writing = folder.with_name(f"{WRITING}{folder.name}")
    shutil.rmtree(writing, ignore_errors=True)
    with written(folder, writing):
        writing.mkdir(parents=True)
        loaded.save(writing)
        info = CheckpointInfo(
            name, kind, content_hash(writing), str(folder), parent, stage, loaded.tuning, base, dict(extra or {})
        )
        (writing / INFO_FILE).write_text(json.dumps(dataclasses.asdict(info), indent=2) + "\n")
        replace_folder(writing, folder)
    return info


def verify(folder: Path, expected: str) -> None:
    """Raise CheckpointError if the content hash of the folder is not ``expected``, also as earlier releases had it."""
    found = content_hash(folder)
    if found != expected and not (any(folder.glob(_TEMPLATES)) and content_hash(folder, CONTENT[:-1]) == expected):
        raise CheckpointError(
            f"the checkpoint in {folder} has changed since it was registered (hash {found[:12]}, expected "
            f"{expected[:12]}): restore the original files, or start a new workspace"
        )
