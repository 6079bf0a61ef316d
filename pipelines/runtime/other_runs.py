"""Memory beside other runs on this machine.

Two runs that begin together both find all memory free, and the system kills one when both reach their peak. So each run
writes its planned peak into a file of its process, and a run that begins later counts it.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from db.liveness import place, started
from pipelines.table import PlanRow, size, total_of
from recovery import distributed
from recovery.errors import UsageError
from recovery.models import hardware
from recovery.models.gguf_files.conversion import user_cache
from recovery.models.hardware import pick_device
from recovery.workspace import write_atomically


@dataclass(frozen=True)
class Planned:
    """What another process has planned on a device: its ``peak``, and what it holds of it now, bytes."""

    pid: int
    peak: int
    held: int

    @property
    def rest(self) -> int:
        """The bytes that it will still take."""
        return max(0, self.peak - self.held)


def free_memory(device: str) -> int:
    """Return the free bytes of a device, less what other runs have planned and do not hold yet."""
    free = hardware.free_memory(device)
    runs = planned_by_others(device)
    if not device.startswith("cuda"):
        return max(0, free - sum(run.rest for run in runs))
    # What a process holds of a GPU is known to itself alone, but not what all others hold together.
    here = torch.device(device)
    held = hardware.total_memory(device) - free - torch.cuda.memory_reserved(here)
    return max(0, free - max(0, sum(run.peak for run in runs) - held))


@contextlib.contextmanager
def memory_counted(rows: Sequence[PlanRow], device: str) -> Iterator[None]:
    """Let other runs count the peak of a plan's ``rows`` while the block runs; in a block within another one the outer
    plan counts, which is the whole run's.

    Raise UsageError, before anything begins, if another run leaves too little memory for this one. A folder that cannot
    be written leaves the run uncounted, and so are several processes of one run.
    """
    own, peak = _folder() / f"{os.getpid()}.json", total_of(rows)[1]
    if distributed.size() > 1 or _living(own) is not None:
        yield
        return
    device = str(pick_device(device))
    others, free = planned_by_others(device), free_memory(device)
    if others and peak > free:
        first = max(others, key=lambda run: run.rest)
        raise UsageError(
            f"this run needs {size(peak)} and {size(free)} are left beside process {first.pid}, another run that has "
            f"planned {size(first.peak)}: wait until it ends"
        )
    try:
        with contextlib.suppress(OSError):
            own.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(own, json.dumps({"peak": peak, "device": _name(device), "started": started(os.getpid())}))
        yield
    finally:
        with contextlib.suppress(OSError):
            own.unlink(missing_ok=True)


def planned_by_others(device: str) -> list[Planned]:
    """Return what other living processes of this user on this machine have planned on a device."""
    found = []
    for file in sorted(_folder().glob("*.json")):
        run = _living(file)
        if run is None:
            with contextlib.suppress(OSError):
                file.unlink()  # its process was killed
        elif run["device"] == _name(device) and file.stem != str(os.getpid()):
            found.append(Planned(int(file.stem), run["peak"], hardware.held_memory(device, file.stem)))
    return found


def _folder() -> Path:
    """The folder of this user's processes that see each other's ids."""
    return user_cache().parent / "runs" / place()


def _living(file: Path) -> dict[str, Any] | None:
    """Return what a living process wrote; None if there is no such file, it is damaged, or its process has ended."""
    try:
        run = json.loads(file.read_text(encoding="utf-8"))
        known = {"peak": int(run["peak"]), "device": str(run["device"])}
        return known if run["started"] == started(int(file.stem)) != "" else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _name(device: str) -> str:
    """Return a name of a device that does not depend on which GPUs a process sees."""
    return str(torch.cuda.get_device_properties(torch.device(device)).uuid) if device.startswith("cuda") else device
