"""Training states on disk, from which a run can resume on any number of processes.

A state is a folder such as step-000040/, written atomically. Its tensors are in one safetensors file or, if some are
sharded, in one file per process with its rows of these; the first file also contains the other tensors. The metadata
hold the index of each tensor's first row in the file, so that any number of processes can read them.
"""

from __future__ import annotations

import json
import re
import shutil
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch.distributed.tensor import DTensor

from recovery import distributed
from recovery.disk import WRITING, sync, written
from recovery.errors import CheckpointError, UsageError

META, WHOLE = "state.json", "state.safetensors"
SUMS = "sums.json"
"""CRC-32 of each file of a state: one with a wrong bit would train on, to other weights."""


@dataclass(frozen=True)
class States:
    """The states in a folder; with None nothing is saved. All processes must call :meth:`write` and :meth:`read`.

    The newest ``keep`` stay. Those of steps that are multiples of ``every`` are *regular*: whether a run has them does
    not depend on the clock or on interrupts. The newest of them always stays.
    """

    folder: Path | None
    keep: int
    every: int = 1

    def write(self, step: int, tensors: Mapping[str, torch.Tensor], meta: Mapping[str, Any]) -> None:
        """Write the state of a step to a temporary folder, rename it, and delete the oldest states."""
        if self.folder is None:
            return
        folder = self.folder
        final, writing = folder / f"step-{step:06d}", folder / f"{WRITING}{step:06d}"
        with written(final, writing):
            if distributed.lead(lambda: _prepare(final, writing)):
                return
            sums = distributed.gather(lambda: _write_part(writing, tensors))
            distributed.lead(lambda: self._complete(final, writing, meta, [part for part in sums if part]))

    def read(self, *, regular: bool = False) -> tuple[dict[str, Any], Reader] | None:
        """Return ``meta`` and the tensors of the newest readable (regular) state; None if there is none."""
        folder = distributed.lead(lambda: self._newest(regular))
        if folder is None:
            return None
        return json.loads((folder / META).read_text()), Reader(folder)

    def _complete(self, final: Path, writing: Path, meta: Mapping[str, Any], sums: list[tuple[str, int]]) -> None:
        assert self.folder is not None
        (writing / META).write_text(json.dumps(meta))
        sync(writing / META)
        (writing / SUMS).write_text(json.dumps(dict([*sums, (META, _sum(writing / META))])))
        sync(writing / SUMS)
        writing.rename(final)
        sync(self.folder)
        self._remove_old(final)

    def _remove_old(self, written: Path) -> None:
        """Keep the state just written, the newest regular one, and others up to ``keep``.

        A run resumes from the newest state that can be read, so one of a later step could not be read then.
        """
        assert self.folder is not None
        existing = sorted(states(self.folder))
        later = [path for _, path in existing if path.name > written.name]
        existing = [entry for entry in existing if entry[1] not in later]
        needed = {written, *[path for step, path in existing if self._is_regular(step)][-1:]}
        old = [path for _, path in existing if path not in needed][: max(0, len(existing) - self.keep)]
        for path in [*later, *old]:
            shutil.rmtree(path, ignore_errors=True)

    def _is_regular(self, step: int) -> bool:
        return step > 0 and step % self.every == 0  # an interrupt in the first step saves step 0

    def _newest(self, regular: bool) -> Path | None:
        if self.folder is None:
            return None
        candidates = [entry for entry in states(self.folder) if not regular or self._is_regular(entry[0])]
        return _newest(candidates)[1]


@dataclass
class Reader:
    """Reads the tensors of a state by name; each process reads the rows it needs."""

    folder: Path
    files: dict[str, list[tuple[int, Path]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for path in _parts(self.folder):
            with safe_open(path, "pt") as stored:
                first = stored.metadata() or {}
                for name in stored.keys():  # noqa: SIM118  (not a mapping)
                    self.files.setdefault(name, []).append((int(first.get(name, 0)), path))

    def names(self) -> list[str]:
        """Return the names of all tensors."""
        return list(self.files)

    def get(self, name: str, like: torch.Tensor | None = None) -> torch.Tensor:
        """Return a tensor; only this process's rows, ``start`` to ``stop``, if ``like`` is sharded.

        Each file has some of its rows, from ``first`` on: a state may be read by another number of processes.
        """
        if name not in self.files:
            raise CheckpointError(
                f"the saved state has no tensor {name}: it belongs to a stage with other settings; start a new stage"
            )
        start, stop = 0, None
        if isinstance(like, DTensor):
            start, stop = _rows(like)
        pieces = []
        for first, path in sorted(self.files[name]):
            with safe_open(path, "pt") as stored:
                piece = stored.get_slice(name)
                if not piece.get_shape():
                    return stored.get_tensor(name)
                count = piece.get_shape()[0]
                # the wanted rows that this file has, by their place in it
                low, high = max(start - first, 0), count if stop is None else min(stop - first, count)
                if low < high:
                    pieces.append(piece[low:high])
                elif not pieces:  # a process may hold no row: then the shape is that of none
                    pieces.append(piece[0:0])
        return pieces[0] if len(pieces) == 1 else torch.cat(pieces)


def states(folder: Path) -> list[tuple[int, Path]]:
    """Return the complete states in a folder with their steps, unordered."""
    named = ((re.fullmatch(r"step-(\d+)", path.name), path) for path in folder.glob("step-*") if path.is_dir())
    return [(int(match[1]), path) for match, path in named if match is not None]


def resume_step(folder: Path) -> int:
    """Return the step of the newest readable state, from which a run resumes; 0 if there is none."""
    return _newest(states(folder))[0]


def damaged_after(folder: Path, step: int) -> list[int]:
    """Return the steps after ``step`` whose states are there and cannot be read."""
    return sorted(number for number, _ in states(folder) if number > step)


def _newest(candidates: list[tuple[int, Path]]) -> tuple[int, Path | None]:
    return next((entry for entry in sorted(candidates, reverse=True) if _is_readable(entry[1])), (0, None))


def _prepare(final: Path, writing: Path) -> bool:
    """Return whether the state exists already; else create an empty folder for it, and remove what a kill left."""
    if final.exists() and _is_readable(final):
        return True
    for left in (final, *writing.parent.glob(f"{WRITING}*")):
        shutil.rmtree(left, ignore_errors=True)
    writing.mkdir(parents=True)
    return False


def _write_part(folder: Path, tensors: Mapping[str, torch.Tensor]) -> tuple[str, int] | None:
    """Write this process's file: its rows of sharded tensors and, in the main process, all other tensors.

    Return its name and sum; None if this process has none.
    """
    if not folder.is_dir():
        raise UsageError(f"there is no {folder} on this node: use a --workspace on a file system that all nodes share")
    mine, first = {}, {"format": "pt"}
    for name, tensor in tensors.items():
        if isinstance(tensor, DTensor):
            start, stop = _rows(tensor)
            if stop > start:
                mine[name], first[name] = tensor.to_local(), str(start)
        elif distributed.is_main():
            mine[name] = tensor
    sharded = any(isinstance(tensor, DTensor) for tensor in tensors.values())
    if not sharded and not distributed.is_main():
        return None
    path = folder / (
        f"state-{distributed.rank() + 1:05d}-of-{distributed.size():05d}.safetensors" if sharded else WHOLE
    )
    save_file({name: tensor.detach().cpu().contiguous() for name, tensor in mine.items()}, path, metadata=first)
    sync(path)
    return path.name, _sum(path)


def _rows(tensor: DTensor) -> tuple[int, int]:
    """Return the range of rows of a tensor that this process holds."""
    share = -(-tensor.shape[0] // distributed.size())  # FSDP2 shards the first dimension like torch.chunk
    start = min(distributed.rank() * share, tensor.shape[0])
    return start, start + tensor.to_local().shape[0]


def _is_readable(folder: Path) -> bool:
    """Return whether every file of a state exists and is readable."""
    try:
        parts = list(_parts(folder))
        for path in parts:
            with safe_open(path, "pt"):
                pass
        json.loads((folder / META).read_text())
        sums = json.loads((folder / SUMS).read_text()) if (folder / SUMS).is_file() else {}  # none before 0.2
        if any(_sum(folder / name) != value for name, value in sums.items()):
            return False
    except (OSError, ValueError, AttributeError, SafetensorError):
        return False
    several = re.search(r"-of-(\d+)", parts[0].name) if parts else None
    return len(parts) == (int(several[1]) if several else 1)


def _parts(folder: Path) -> Iterator[Path]:
    yield from sorted(folder.glob("state*.safetensors"))


def _sum(path: Path) -> int:
    checksum = 0
    with path.open("rb") as stream:
        while block := stream.read(1 << 22):
            checksum = zlib.crc32(block, checksum)
    return checksum
