"""The workspace: one folder with the tracker's database, the checkpoints and everything the stages keep.

    recovery-workspace/
      workspace.json            which clean model this workspace is about
      tracker.db                every step, score and checkpoint (see db/), unless they are kept elsewhere
      models/                   a clean model that came with the package or as a GGUF file, as an ordinary folder
      corpora/cycle-1/          the documents, probes and questions of a cycle, frozen when it began
      checkpoints/cycle-1/      midtrained/, recovered/
      stages/0003-distill/      training states of a stage that is not finished
      cache/                    answers that frozen models gave, by what they were made from

Nothing here imports torch or knows the database: what is registered is read through :class:`Index`.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from recovery.errors import CheckpointError, UsageError
from recovery.gguf_files.header import is_gguf, sha256_of

FORMAT = 1
SETTINGS = "workspace.json"
MINIATURE = "miniature"
MAIN = "main"


@dataclass(frozen=True)
class Checkpoint:
    """A model the stages can start from, teach with or measure.

    ``path`` is its folder. For tuning "lora" that folder holds only an adapter, and ``weights`` is the folder of
    the untouched weights below it; otherwise the two are the same. ``parent`` is a name; ``id`` is the tracker's
    number, None for one that is not registered; ``pruned`` is the day its weights were removed, if they were;
    ``origin`` is the GGUF file it was converted from, if it was.
    """

    name: str
    kind: str
    path: Path
    hash: str
    weights: Path
    parent: str | None = None
    tuning: str = "full"
    cycle: int | None = None
    id: int | None = None
    pruned: str = ""
    origin: str = ""

    @property
    def adapter(self) -> Path | None:
        """The adapter's folder, where there is one."""
        return self.path if self.tuning == "lora" else None


class Index(Protocol):
    """What is registered, oldest first; the tracker implements it."""

    def all(self) -> Sequence[Checkpoint]:
        """Every registered checkpoint."""
        ...

    def latest(self) -> Checkpoint | None:
        """The one the next stage goes on from."""
        ...


@dataclass(frozen=True)
class Workspace:
    """The folder and where things are in it.

    ``tracker`` is the address of a tracker that is kept elsewhere and that several workspaces may share: a SQLite file
    or a database URL. It may hold a password, so it is not shown.
    """

    folder: Path
    tracker: str | None = field(default=None, repr=False)

    @property
    def database(self) -> Path | str:
        """Where the tracker is: a SQLite file in the folder unless it is elsewhere."""
        return self.folder / "tracker.db" if self.tracker is None else self.tracker

    @property
    def experiment(self) -> str:
        """What its line of cycles is called in the tracker: as it began, else after the folder where it is shared."""
        name = self.folder.resolve().name if self.tracker is not None else MAIN
        return str(self.settings().get("experiment") or name)

    @property
    def exists(self) -> bool:
        """Whether a clean model has been registered here."""
        return (self.folder / SETTINGS).is_file()

    def corpus(self, cycle: int) -> Path:
        """Where a cycle's frozen documents, probes and questions are."""
        return self.folder / "corpora" / f"cycle-{cycle}"

    def checkpoint(self, name: str) -> Path:
        """Where a checkpoint of this workspace is kept."""
        return self.folder / "checkpoints" / name

    def stage(self, number: int, kind: str) -> Path:
        """Where a stage keeps its training states."""
        return self.folder / "stages" / f"{number:04d}-{kind}"

    @property
    def models(self) -> Path:
        """Where models are kept that were made into folders here."""
        return self.folder / "models"

    def cache(self, name: str) -> Path:
        """A file of things that can be made again."""
        return self.folder / "cache" / name

    def stored(self, path: Path) -> str:
        """A path as it is written down: relative inside the workspace, so that the folder can be moved."""
        absolute, home = path.expanduser().resolve(), self.folder.resolve()
        return str(absolute.relative_to(home)) if absolute.is_relative_to(home) else str(absolute)

    def found(self, stored: str) -> Path:
        """The inverse of :meth:`stored`."""
        return (self.folder.resolve() / stored) if stored else self.folder.resolve()

    def settings(self) -> dict[str, Any]:
        """What workspace.json says; empty before the first use. Raises UsageError where it is damaged or newer."""
        try:
            settings = json.loads((self.folder / SETTINGS).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise UsageError(
                f"{self.folder / SETTINGS} cannot be read ({error}): restore it or use another --workspace"
            ) from error
        if not isinstance(settings, dict) or settings.get("format", 0) > FORMAT:
            raise UsageError(
                f"{self.folder} was written by a newer version of Recovery: upgrade, or use another --workspace"
            )
        return settings

    def remember(self, model: str, **more: str) -> None:
        """Write down which clean model this workspace is about, and ``more`` that it must not forget."""
        text = json.dumps({"format": FORMAT, "model": model, **more}, indent=2) + "\n"
        write_atomically(self.folder / SETTINGS, text)

    def check_model(self, model: str | None) -> None:
        """Refuse another clean model than the one this workspace began with."""
        settings = self.settings()
        begun = settings.get("model")
        if model is None or begun is None:
            return
        if settings.get("sha256") and is_gguf(model) and Path(model).expanduser().is_file():
            if sha256_of(model) == settings["sha256"]:
                return  # wherever the file is now
            if model_key(model) == begun:
                raise UsageError(
                    f"{model} is not the file any more that this workspace ({self.folder}) began with: "
                    "leave --model out, or name another --workspace"
                )
        if model_key(model) != begun:
            raise UsageError(
                f"this workspace ({self.folder}) is about the model {begun}, not {model_key(model)}: "
                f"leave --model out, or name another --workspace"
            )

    @contextlib.contextmanager
    def lock(self, purpose: str) -> Iterator[None]:
        """Hold the workspace for one training stage; the system frees it when the process ends, however it ends.

        Raises UsageError, naming the holder, when another process holds it.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                holder = os.read(handle, 200).decode(errors="replace").strip() or "another process"
                raise UsageError(
                    f"{holder} is at work in {self.folder}: wait for it, stop it, or use another --workspace"
                ) from error
            os.ftruncate(handle, 0)
            os.pwrite(handle, f"{purpose} (process {os.getpid()})".encode(), 0)
            yield
        finally:
            os.close(handle)


def model_key(model: str) -> str:
    """How a clean model is written down: a folder or a file as its absolute path, anything else as it is."""
    path = Path(model).expanduser()
    return str(path.resolve()) if (path.is_dir() or is_gguf(path)) and model != MINIATURE else model


def find(name: str, index: Index) -> Checkpoint | None:
    """The registered checkpoint called ``name``; ``midtrained`` and ``recovered`` mean the newest of that kind.

    None where nothing of that name is registered (it may still be a path or a hub id).
    """
    if name == "latest":
        return index.latest()
    registered = index.all()
    for checkpoint in registered:
        if checkpoint.name == name:
            return checkpoint
    if name in ("midtrained", "recovered"):
        return next((c for c in reversed(registered) if c.kind == name), None)
    folder = Path(name).expanduser()
    if folder.is_dir():
        return next((c for c in registered if c.path.resolve() == folder.resolve()), None)
    return None


def is_hub_id(name: str) -> bool:
    """Whether ``name`` can be a model on the hub: ORG/MODEL, and not of the form of this tool's own names."""
    return (
        not is_gguf(name)
        and name.count("/") == 1
        and all(name.split("/"))
        and not re.match(r"cycle-\d+/|external/", name)
    )


def unknown_name(name: str, index: Index) -> CheckpointError:
    """The error for a name that is nothing: it lists what there is."""
    names = ["latest", *(checkpoint.name for checkpoint in index.all())]
    return CheckpointError(
        f"there is no checkpoint {name!r}: use {', '.join(names)}, a folder with a model, a GGUF file, or a hub id "
        "(ORG/MODEL)"
    )


def write_atomically(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    writing = path.with_name(f".writing-{os.getpid()}-{path.name}")  # two processes may begin a workspace at once
    with writing.open("w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    writing.replace(path)
