"""The workspace: one folder with the tracker's database, checkpoints and the files of the stages.

    recovery-workspace/
      workspace.json            the clean model of this workspace
      tracker.db                every step, score and checkpoint (see db/), unless the tracker is elsewhere
      models/                   folders of clean models that come with the package or from a GGUF file
      corpora/cycle-1/          the documents, probes and questions of a cycle, frozen at its start
      checkpoints/cycle-1/      midtrained/, recovered/
      stages/0003-distill/      training states of a stage that is not finished
      cache/                    completions of frozen models, by a hash of their inputs

This module imports neither torch nor the database: registered checkpoints are read through
:class:`pipelines.runtime.registry.Registry`, and the names for them through :mod:`pipelines.runtime.checkpoint_names`.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from recovery.disk import WRITING, sweep, written
from recovery.errors import UsageError, disk_failure
from recovery.models.base_folder import MINIATURE, is_path, no_model_at
from recovery.models.gguf_files.header import is_gguf, sha256_of

FORMAT = 1
SETTINGS = "workspace.json"
LOCK = "lock"
TRACKER = "tracker.db"
PLAN = "plan.json"  # the plan of unfinished cycles
_FOLDERS = ("models", "corpora", "checkpoints")  # one of them is there as soon as anything is
MAIN = "main"


@dataclass(frozen=True)
class Checkpoint:
    """A model that stages can train, use as a teacher or evaluate.

    ``path`` is its folder. For tuning "lora" that folder holds only an adapter, and ``weights`` is the folder of
    its base weights; otherwise the two are the same. ``parent`` is a name; ``id`` is the tracker's id, None if it is
    not registered; ``pruned`` is the date on which its weights were removed, if they were; ``origin`` is the GGUF file
    it was converted from, if any.
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
        """The adapter's folder, if there is one."""
        return self.path if self.tuning == "lora" else None


@dataclass(frozen=True)
class Workspace:
    """The folder and the paths in it.

    ``tracker`` is the address of a tracker outside the folder, which several workspaces may share: a SQLite file or a
    database URL. It may contain a password, so it is not in the repr. ``report_to`` names the services that get a
    copy of the tracker's records (docs/tracker.md). ``models_elsewhere`` is the folder of converted models in a dry
    run, which leaves them to the run that follows.
    """

    folder: Path
    tracker: str | None = field(default=None, repr=False)
    report_to: tuple[str, ...] = ()
    models_elsewhere: Path | None = None

    @property
    def database(self) -> Path | str:
        """Address of the tracker, by default a SQLite file in the folder."""
        return self.folder / TRACKER if self.tracker is None else self.tracker

    @property
    def experiment(self) -> str:
        """Name of its line of cycles in the tracker: the stored name, else the folder's name if the tracker is
        shared.
        """
        name = self.folder.resolve().name if self.tracker is not None else MAIN
        return str(self.settings().get("experiment") or name)

    @property
    def exists(self) -> bool:
        """Whether a clean model has been registered here."""
        return (self.folder / SETTINGS).is_file()

    @property
    def write_protected(self) -> bool:
        """Whether its own tracker and files can only be read; a shared tracker is elsewhere."""
        return self.tracker is None and self.exists and not os.access(self.folder, os.W_OK)

    def corpus(self, cycle: int) -> Path:
        """Return the folder of a cycle's frozen documents, probes and questions."""
        return self.folder / "corpora" / f"cycle-{cycle}"

    def checkpoint(self, name: str) -> Path:
        """Return the folder of a checkpoint of this workspace."""
        return self.folder / "checkpoints" / name

    def stage(self, number: int, kind: str) -> Path:
        """Return the folder of a stage's training states."""
        return self.folder / "stages" / f"{number:04d}-{kind}"

    @property
    def reported(self) -> Path:
        """Folder that holds what each service has received, and the services' logs."""
        return self.folder / "report-to"

    def report(self, cycle: int) -> Path:
        """Return the path of a cycle's report as Markdown, unless it is written elsewhere."""
        return self.folder / "reports" / f"cycle-{cycle}.md"

    @property
    def label(self) -> str:
        """Name of its line of cycles for readers: that in the tracker, or the folder's if that has no other name."""
        return self.folder.resolve().name if self.experiment == MAIN else self.experiment

    @property
    def models(self) -> Path:
        """Folder of converted models."""
        return self.models_elsewhere or self.folder / "models"

    def cache(self, name: str) -> Path:
        """Return the path of a cache file, which may be deleted at any time."""
        return self.folder / "cache" / name

    def stored(self, path: Path) -> str:
        """Return a path in stored form: relative inside the workspace, so that the folder can be moved."""
        absolute, home = path.expanduser().resolve(), self.folder.resolve()
        return str(absolute.relative_to(home)) if absolute.is_relative_to(home) else str(absolute)

    def found(self, stored: str) -> Path:
        """Invert :meth:`stored`."""
        return (self.folder.resolve() / stored) if stored else self.folder.resolve()

    def settings(self) -> dict[str, Any]:
        """Read workspace.json; empty before the first use. Raise UsageError if it is damaged or newer."""
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
        """Store the clean model of this workspace, and ``more`` settings, in workspace.json."""
        text = json.dumps({"format": FORMAT, "model": model, **more}, indent=2) + "\n"
        write_atomically(self.folder / SETTINGS, text)

    def create(self) -> list[Path]:
        """Create the folder; return the folders that were missing, from itself upwards. Raise UsageError on failure."""
        try:
            missing = [place for place in (self.folder, *self.folder.parents) if not place.exists()]
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(disk_failure(self.folder, error)) from error
        return missing

    def sweep(self) -> None:
        """Remove the temporary files that killed processes left here; only for the holder of the lock."""
        names = ("models", "corpora", "cache", "reports")
        checkpoints = self.folder / "checkpoints"
        sweep([self.folder, *(self.folder / name for name in names), checkpoints, *checkpoints.glob("*/")])

    def check_model(self, model: str | None) -> None:
        """Raise UsageError if ``model`` is not the clean model of this workspace; ModelError if it is a path at which
        there is nothing.
        """
        settings = self.settings()
        registered = settings.get("model")
        if model is None or registered is None:
            return
        if settings.get("sha256") and is_gguf(model) and Path(model).expanduser().is_file():
            if sha256_of(model) == settings["sha256"]:
                return  # the file may have moved
            if model_key(model) == registered:
                raise UsageError(
                    f"{model} has changed since this workspace ({self.folder}) was created from it: "
                    "omit --model, or use another --workspace"
                )
        if model_key(model) != registered:
            if is_path(model) and not Path(model).expanduser().exists():
                raise no_model_at(model)
            is_gone = Path(registered).is_absolute() and not is_gguf(registered) and not Path(registered).exists()
            if is_gone and Path(model).expanduser().is_dir():
                return  # the folder may have moved: the session compares what is in it
            trained = any((self.folder / "checkpoints").glob("*"))
            advice = "omit --model" if trained else "nothing was trained in it: delete it"
            raise UsageError(
                f"the model of this workspace ({self.folder}) is {registered}, not {model_key(model)}: "
                f"{advice}, or use another --workspace"
            )

    @contextlib.contextmanager
    def lock(self, purpose: str) -> Iterator[None]:
        """Lock the workspace for one training stage; the system releases the lock when the process ends.

        If no workspace was created, the lock is removed, and so are the folders created for it, unless they hold other
        files. Raise UsageError, naming the holder, if another process holds it, or if the file system has no locks.
        """
        created = self.create()
        handle = self._open_lock()
        try:
            os.ftruncate(handle, 0)
            os.pwrite(handle, f"{purpose} (process {os.getpid()})".encode(), 0)
            yield
        finally:
            if not self.exists:
                with contextlib.suppress(OSError):  # stops at the first folder that is not empty
                    (self.folder / LOCK).unlink()
                    for place in created:
                        place.rmdir()
            os.close(handle)

    def _open_lock(self) -> int:
        """Return a locked handle of the lock's file, which is created again if its last holder has just removed it."""
        path = self.folder / LOCK
        for _ in range(10):
            self.create()
            with contextlib.suppress(FileNotFoundError), contextlib.ExitStack() as opened:
                handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
                opened.callback(os.close, handle)
                self._hold(handle)
                if os.path.samestat(os.fstat(handle), path.stat()):
                    opened.pop_all()
                    return handle
        raise UsageError(f"{path} is removed by other processes as fast as it is made: try again, or delete it")

    def _hold(self, handle: int) -> None:
        """Lock an open file. Raise UsageError if that is not possible."""
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.read(handle, 200).decode(errors="replace").strip() or "another process"
            raise UsageError(
                f"{holder} is using {self.folder}: wait for it, stop it, or use another --workspace"
            ) from error
        except OSError as error:
            raise UsageError(
                f"{self.folder} cannot be locked, its file system has no locks ({error.strerror}): use a "
                f"--workspace on another file system"
            ) from error


def is_workspace(folder: Path) -> bool:
    """Whether a folder is a workspace; a workspace.json of another program has no clean model."""
    try:
        if (folder / TRACKER).is_file() and any((folder / name).is_dir() for name in _FOLDERS):
            return True
        return {"format", "model"} <= json.loads((folder / SETTINGS).read_text(encoding="utf-8")).keys()
    except (OSError, ValueError, AttributeError, RecursionError):
        return False


def model_key(model: str) -> str:
    """Return the stored name of a clean model: the absolute path of a folder or file, anything else unchanged."""
    path = Path(model).expanduser()
    return str(path.resolve()) if (path.is_dir() or is_gguf(path)) and model != MINIATURE else model


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a file atomically, a text in UTF-8. Raise UsageError if it cannot be written."""
    writing = path.with_name(f"{WRITING}{os.getpid()}-{path.name}")  # two processes may create a workspace at once
    with written(path, writing):
        path.parent.mkdir(parents=True, exist_ok=True)
        with writing.open("wb") as stream:
            stream.write(content.encode("utf-8") if isinstance(content, str) else content)
            stream.flush()
            os.fsync(stream.fileno())
        writing.replace(path)
