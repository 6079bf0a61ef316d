"""A workspace at work: its folder, its tracker and its clean model, opened together.

The first use registers the clean model as ``base``. From then on it is never changed, and its content hash is
checked before it teaches.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from db import Tracker, queries, records
from db.schema import LEFT
from pipelines.interrupts import Interrupts
from pipelines.progress import Display
from pipelines.registry import Registry, check_tracker, told
from recovery.checkpoints import content_hash, verify
from recovery.config import Recipe, model_recipe
from recovery.errors import CheckpointError, UsageError
from recovery.gguf_files import is_gguf, origin_of, origin_text
from recovery.loading import resolve_base
from recovery.miniature import materialise
from recovery.workspace import MINIATURE, Checkpoint, Workspace, find, is_hub_id, model_key, unknown_name


@dataclass
class Session:
    """An open workspace. Use it as a context manager, so that the tracker is flushed and closed."""

    workspace: Workspace
    tracker: Tracker
    experiment_id: int
    display: Display
    interrupts: Interrupts = field(default_factory=Interrupts, repr=False)
    _held: contextlib.ExitStack = field(default_factory=contextlib.ExitStack, repr=False)

    @classmethod
    def open(
        cls,
        place: Path | Workspace,
        *,
        model: str | None = None,
        fallback: str | None = None,
        display: Display | None = None,
        experiment: str | None = None,
        purpose: str | None = None,
    ) -> Session:
        """Open a workspace, or the one in a folder; begin it there if there is none.

        ``model`` names the clean model (hub id, folder, GGUF file, "miniature"). In a new workspace without it,
        ``fallback`` is taken (a teacher given by path or hub id), else the miniature. ``experiment`` is what a new
        workspace's line of cycles is called in the tracker. With a ``purpose`` the workspace and its line are held for
        training until the session ends. Raises UsageError where the workspace is about another model or records its
        work elsewhere, and, as StageBusyError, where another process trains in it, on this machine or another.
        """
        workspace = place if isinstance(place, Workspace) else Workspace(place.expanduser())
        with contextlib.ExitStack() as held:
            if purpose is not None:
                held.enter_context(workspace.lock(purpose))
            check_tracker(workspace)
            workspace.check_model(model)
            display = display or Display()
            begun = workspace.exists
            if not begun:
                source = _locate(workspace, model or fallback or MINIATURE, display)
            workspace.folder.mkdir(parents=True, exist_ok=True)
            tracker = held.enter_context(Tracker(workspace.database))
            tracker.reap_dead_stages()
            name = workspace.settings().get("model") or model_key(model or fallback or MINIATURE)
            line = _line(workspace, tracker, experiment)
            number = tracker.experiment(line, base_model=name)
            if purpose is not None:
                held.enter_context(tracker.working(number, purpose))
            session = cls(workspace, tracker, number, display)
            if not begun:
                session._register_base(source, name, line)
            if purpose is not None:
                held.enter_context(session.interrupts.installed())
            session._held = held.pop_all()
        return session

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        """Close it. Raises StageInterrupted for a stop that nothing has heeded: work may go on in another session."""
        self._held.close()
        if kind is None:
            self.interrupts.check()

    @property
    def registry(self) -> Registry:
        """The registered checkpoints."""
        return Registry(self.workspace, self.tracker.database, self.experiment_id)

    @property
    def base(self) -> Checkpoint:
        """The clean model."""
        return self.resolve("base")

    @property
    def recipe(self) -> Recipe:
        """What the clean model's folder recommends."""
        return model_recipe(self.base.path)

    def resolve(self, name: str) -> Checkpoint:
        """The checkpoint of a name, a folder, a GGUF file or a hub id; see :func:`resolve`."""
        return resolve(self.registry, name, self.display)

    def registered(self, checkpoint: Checkpoint, *, cycle_id: int | None = None) -> Checkpoint:
        """The same checkpoint with its number in the tracker, entered there if it was not yet."""
        if checkpoint.id is not None:
            return checkpoint
        self.tracker.add_checkpoint(
            self.experiment_id,
            checkpoint.name,
            checkpoint.kind,
            path=self.workspace.stored(checkpoint.path),
            content_hash=checkpoint.hash,
            parent_id=self.base.id,
            cycle_id=cycle_id,
            tuning=checkpoint.tuning,
            details={"weights": self.workspace.stored(checkpoint.weights), **_origin(checkpoint.weights)},
        )
        return self.resolve(checkpoint.name)

    def verified(self, checkpoint: Checkpoint) -> Checkpoint:
        """The same checkpoint, after its files were found to be what they were when it was registered."""
        verify(checkpoint.path, checkpoint.hash)
        return checkpoint

    def cycle_id(self, number: int) -> int:
        """The tracker's number of a cycle."""
        return self.tracker.cycle(self.experiment_id, number)

    def next_cycle(self) -> int:
        """The number of the next cycle: a cycle that never got a checkpoint is begun again."""
        done = {c.cycle for c in self.registry.all() if c.cycle is not None}
        return max(done, default=0) + 1

    def cycles(self) -> dict[int, records.Cycle]:
        """The cycles so far by number."""
        return {c.number: c for c in queries.cycles(self.tracker.database, self.experiment_id)}

    def forebears(self, checkpoint: Checkpoint) -> list[Checkpoint]:
        """The checkpoints that one goes back to, nearest first; the clean model is always among them, or last."""
        by_name = {one.name: one for one in self.registry.all() if one.name != checkpoint.name}
        found: list[Checkpoint] = []
        parent = checkpoint.parent
        while parent in by_name:
            found.append(by_name.pop(parent))
            parent = found[-1].parent
        return found + [one for one in by_name.values() if one.name == "base"]

    def taken_up(self, checkpoint: Checkpoint, last: int | None = None) -> list[int]:
        """The cycles (up to ``last``) whose documents a checkpoint should know: all that were not rejected or rolled
        back, and those it has itself been through.
        """
        lived = {one.cycle for one in (checkpoint, *self.forebears(checkpoint))}
        counted = (k for k, c in self.cycles().items() if k in lived or c.decision not in LEFT)
        return [k for k in counted if last is None or k <= last]

    def _register_base(self, source: Path, name: str, line: str) -> None:
        path = self.workspace.stored(source)
        self.tracker.add_checkpoint(
            self.experiment_id,
            "base",
            "base",
            path=path,
            content_hash=content_hash(source),
            tuning="full",
            details={"weights": path, "model": name, **_origin(source)},
        )
        base = find("base", self.registry)
        if base is not None and base.id is not None and self.registry.latest() is None:
            self.tracker.set_latest(self.experiment_id, base.id)
        elsewhere = {} if self.workspace.tracker is None else {"experiment": line, "tracker": told(self.workspace)}
        origin = origin_of(source)
        content = {"sha256": str(origin["sha256"])} if origin is not None and is_gguf(name) else {}
        self.workspace.remember(name, **elsewhere, **content)


def _origin(folder: Path) -> dict[str, Any]:
    """The GGUF file that a checkpoint's weights were converted from, for its details."""
    found = origin_of(folder)
    return {} if found is None else {"gguf": found}


def _line(workspace: Workspace, tracker: Tracker, wanted: str | None) -> str:
    """What the workspace's line of cycles is called in the tracker: a new one takes no other workspace's name.

    Raises UsageError where it was begun and the tracker knows nothing of it.
    """
    asked = wanted if workspace.settings().get("experiment") is None and wanted else workspace.experiment
    known = queries.experiment(tracker.database, asked)
    begun = known is not None and queries.latest(tracker.database, known.id) is not None
    if workspace.exists and not begun:
        raise UsageError(
            f"nothing of {workspace.folder} is recorded in {told(workspace)}: name the --database it was begun with"
        )
    if wanted is not None or workspace.tracker is None or workspace.exists:
        return asked
    number, line = 1, asked
    while (one := queries.experiment(tracker.database, line)) and queries.latest(tracker.database, one.id):
        number += 1
        line = f"{asked}-{number}"
    return line


def resolve(registry: Registry, name: str, display: Display | None = None) -> Checkpoint:
    """The checkpoint of a name, a folder, a GGUF file or a hub id; one from elsewhere is not registered by this.

    A file is converted into the workspace, once, which ``display`` shows. Raises CheckpointError listing the names
    there are.
    """
    registered = find(name, registry)
    if registered is not None:
        return _standing(registered, registry.workspace)
    folder = Path(name).expanduser()
    if not folder.is_dir() and not is_hub_id(name) and not is_gguf(name):
        raise unknown_name(name, registry)
    found = external(name, registry.workspace, display)
    known = find(str(found.path), registry) if is_gguf(name) else None
    return found if known is None else _standing(known, registry.workspace)


def external(name: str, workspace: Workspace, display: Display | None = None) -> Checkpoint:
    """A model from outside the workspace, by folder, GGUF file or hub id; an adapter keeps the base it names."""
    weights, adapter = resolve_base(name, workspace.models, display or Display())
    path = adapter or Path(weights)
    return Checkpoint(
        name=f"external/{path.name if is_gguf(name) else Path(name).name}",
        kind="external",
        path=path,
        hash=content_hash(path),
        weights=Path(weights),
        tuning="full" if adapter is None else "lora",
        origin=origin_text(origin_of(Path(weights))),
    )


def _standing(checkpoint: Checkpoint, workspace: Workspace) -> Checkpoint:
    if not checkpoint.path.is_dir():
        put_back = (
            "put it back"
            if workspace.tracker is None
            else "where another machine made it, share that workspace folder (--workspace on a shared file system)"
        )
        raise CheckpointError(
            f"the folder of the checkpoint {checkpoint.name} is gone ({checkpoint.path}): "
            + (f"its weights were pruned on {checkpoint.pruned}" if checkpoint.pruned else put_back)
        )
    return checkpoint


def _locate(workspace: Workspace, model: str, display: Display) -> Path:
    """The folder of a clean model; the one that came with the package is unpacked into the workspace."""
    if model != MINIATURE or Path(MINIATURE).is_dir():
        found = external(model, workspace, display)
        if found.tuning == "lora":
            raise CheckpointError(f"{model} is an adapter: the clean model must be whole weights (merge it first)")
        return found.path
    display.say("No --model given: the clean model is the built-in miniature, a tiny real model of a fictional world.")
    target = workspace.models / MINIATURE
    if not target.is_dir():
        writing = target.with_name(f".writing-{os.getpid()}-{MINIATURE}")
        shutil.rmtree(writing, ignore_errors=True)
        writing.parent.mkdir(parents=True, exist_ok=True)
        materialise(writing)
        try:
            writing.rename(target)
        except OSError:  # another process was faster; what it unpacked is the same
            shutil.rmtree(writing, ignore_errors=True)
    return target
