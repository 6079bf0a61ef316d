"""An open workspace: its folder, its tracker and its clean model.

The first use registers the clean model as ``base``. It is never changed, and its content hash is checked before it is
used as a teacher.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import shutil
import signal
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self, TypeVar

from db import Tracker, liveness, queries, records
from pipelines.forwarding.session_copies import SessionCopies
from pipelines.runtime.checkpoint_names import check, external, find, free_name, is_hub_id, resolve
from pipelines.runtime.progress import Display
from pipelines.runtime.registry import Registry, check_tracker, derived_id, own_experiment, tracker_address
from recovery.config import FromRecipe, Recipe, model_recipe
from recovery.errors import CheckpointError, Interrupted, UsageError
from recovery.models.base_folder import resolve_base
from recovery.models.checkpoints import content_hash, verify
from recovery.models.gguf_files import is_gguf, origin_of
from recovery.workspace import MINIATURE, SETTINGS, TRACKER, Checkpoint, Workspace, model_key

# SIGINT and SIGTERM as stop requests that are not lost.


class StageInterrupted(Interrupted):
    """A stage stopped on request, with its progress saved; to continue: ``recover resume``."""


_HELD = b"\nstopping once this step is decided; Ctrl-C again stops at once, and loses the steps since the last state\n"


class StopSignals:
    """Signal handlers that set ``requested`` and raise KeyboardInterrupt.

    Python and its extensions silently drop a KeyboardInterrupt that is raised in some of their callbacks;
    ``requested`` remains set. In a :meth:`deferred` block the first signal only sets ``requested``, which the work
    checks at points where no progress is lost; a second signal raises. In an :meth:`at_once` block within it there is
    nothing to lose, and in a :meth:`held` block everything: what is decided about a finished step is part of its state.
    ``stage`` is the kind of stage that runs, "" between two; messages name it.
    """

    def __init__(self) -> None:
        self.requested = False
        self.stage = self._doing = ""
        self._deferring = self._held = False

    def check(self) -> None:
        """Raise StageInterrupted if a stop is requested; called at points where no progress is lost."""
        if self.requested and not self._held:
            raise self._stopped()

    def _stopped(self) -> StageInterrupted:
        """Return the error of a stop between two steps, which names the stage and what it was doing."""
        words = f"{self.stage} interrupted".lstrip() + (f" while {self._doing}" if self._doing else "")
        return StageInterrupted(f"{words}; to continue: recover resume")

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Let :meth:`check` pass in the block; a signal is answered with a line that says so."""
        previous, self._held = self._held, True
        try:
            yield
        finally:
            self._held = previous

    @contextlib.contextmanager
    def at_once(self, doing: str) -> Iterator[None]:
        """Raise StageInterrupted as soon as a stop is requested in the block: ``doing`` is "loading X" and the like."""
        self._doing = doing
        try:
            self.check()
            previous, self._deferring = self._deferring, False
            try:
                yield
            except KeyboardInterrupt:
                raise self._stopped() from None
            finally:
                self._deferring = previous
            self.check()
        finally:
            self._doing = ""

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Handle signals in the block, if this is the main thread, which receives them."""
        main = threading.current_thread() is threading.main_thread()
        previous = {number: signal.signal(number, self._request) for number in (signal.SIGINT, signal.SIGTERM) if main}
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    @contextlib.contextmanager
    def deferred(self) -> Iterator[None]:
        """Only set ``requested`` in the block, in which the work calls :meth:`check` or reads ``requested``."""
        with self.installed():
            previous, self._deferring = self._deferring, True
            try:
                yield
            finally:
                self._deferring = previous

    def _request(self, _number: int, _frame: FrameType | None) -> None:
        repeated, self.requested = self.requested, True
        if repeated or not self._deferring:
            raise KeyboardInterrupt
        if self._held:
            os.write(2, _HELD)  # a handler may not wait for the lock of a stream


# In a training stage's details: the cycles whose documents its student knew when it began.
EARLIER_CYCLES = "earlier_cycles"
# The hashes of its files of prompts and data when it began.
CONTENTS = "file_contents"
# The settings of it that recipes set.
FROM_RECIPES = "from_recipes"
# Its --tuning before it was resolved: an arm with "auto" does not take the stages of one with "lora".
ASKED = "tuning_asked"


Made = TypeVar("Made")


@dataclass
class _Binding:
    """A workspace's files that bind it to a clean model, removed at the end if its experiment was ``forgotten``.

    Otherwise a first command that is refused would decide which model later commands use.
    """

    workspace: Workspace
    forgotten: bool = False

    def close(self) -> None:
        if self.forgotten:
            (self.workspace.folder / SETTINGS).unlink(missing_ok=True)
            for file in self.workspace.folder.glob(f"{TRACKER}*") if self.workspace.tracker is None else ():
                file.unlink(missing_ok=True)


@dataclass
class Session:
    """An open workspace. Use it as a context manager, so that the tracker is flushed and closed.

    ``from_recipes`` is what recipes set of the stages that it runs: it is recorded with these, for who resumes them.
    """

    workspace: Workspace
    tracker: Tracker
    experiment_id: int
    display: Display
    copies: SessionCopies
    from_recipes: Sequence[FromRecipe] = ()
    interrupts: StopSignals = field(default_factory=StopSignals, repr=False)
    _made: dict[str, tuple[object, Any]] = field(default_factory=dict, repr=False)
    _resources: contextlib.ExitStack = field(default_factory=contextlib.ExitStack, repr=False)
    _binding: _Binding | None = field(default=None, repr=False)

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
        reads: bool = False,
        confirm: Callable[[str, Path], None] = lambda _name, _folder: None,
    ) -> Session:
        """Open a workspace, or the one in a folder; create it if there is none.

        ``model`` is the clean model (hub id, folder, GGUF file, "miniature"); a new workspace without it uses
        ``fallback`` (a teacher or a student given by path or hub id), else the miniature. ``experiment`` is the name of
        a new workspace's experiment in the tracker. With a ``purpose`` the workspace and its experiment are locked for
        training until the session ends. ``confirm`` may refuse the clean model of a new workspace, by its name and
        folder. A new workspace that an error leaves before a stage or a cycle began is removed again. ``reads`` says
        that nothing is recorded, so that a write-protected workspace will do. Raise UsageError if the workspace has
        another model or another tracker; StageBusyError if another process, on this machine or another, trains in it.
        """
        workspace = place if isinstance(place, Workspace) else Workspace(place.expanduser())
        with contextlib.ExitStack() as resources:
            if purpose is not None:
                resources.enter_context(workspace.lock(purpose))
            binding = _Binding(workspace)
            resources.callback(binding.close)  # after the tracker, and before the lock, which removes empty folders
            check_tracker(workspace)
            workspace.check_model(model)
            display = display or Display()
            exists = workspace.exists
            if not exists:
                # Hashing takes minutes: before there is a tracker, so that a stop leaves none with this model.
                source, digest = _locate(workspace, model or fallback or MINIATURE, display)
                confirm(model or fallback or MINIATURE, source)
            workspace.create()
            readonly = reads and workspace.write_protected
            tracker = resources.enter_context(Tracker(workspace.database, readonly=readonly))
            if not readonly:
                tracker.reap_dead_stages()
            name = workspace.settings().get("model") or model_key(model or fallback or MINIATURE)
            number = _experiment(workspace, tracker, experiment, name)
            if purpose is not None:
                resources.enter_context(tracker.working(number, purpose))
            copies = SessionCopies(workspace, tracker.database, number, display.say)
            resources.enter_context(copies)
            session = cls(workspace, tracker, number, display, copies)
            if not exists:
                session._register_base(source, digest, name)
                session._binding = binding
            elif not readonly:
                session._follow_base(model)
            if purpose is not None:
                resources.enter_context(session.interrupts.installed())
                workspace.sweep()
            session._resources = resources.pop_all()
        return session

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        """Close the session. Raise StageInterrupted if a stop request is unhandled: another session may follow."""
        if self._binding is not None and kind is not None and issubclass(kind, Exception):
            self.tracker.flush()
            self._binding.forgotten = self.tracker.forget_experiment(self.experiment_id)
        self._resources.close()
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
        """The recipe recommended in the clean model's folder."""
        return model_recipe(self.base.path)

    def recommended(self, key: str) -> bool:
        """Return whether the recipe in the clean model's folder sets a setting of what runs, and not the user."""
        return any(one.key == key and one.origin == self.recipe.origin for one in self.from_recipes)

    def resolve(self, name: str) -> Checkpoint:
        """Return the checkpoint of a name, a folder, a GGUF file or a hub id; see :func:`resolve`."""
        return resolve(self.registry, name, self.display)

    def locate(self, name: str) -> None:
        """Raise CheckpointError or ModelError if a name is no model; fetch one from a hub. No weights are hashed."""
        if check(self.registry, name) is None:
            resolve_base(name, self.workspace.models, self.display)

    def check_names(self, *names: str | None) -> None:
        """Raise CheckpointError for the first that is no name of a checkpoint; reads no weights."""
        for name in names:
            if name is not None:
                check(self.registry, name)

    def once(self, what: str, depends: object, make: Callable[[], Made]) -> Made:
        """Return what ``make`` gives, the last time's if it depends on the same: plans of one command read and make the
        same again, for each size of a trial and before the run.
        """
        known = self._made.get(what)
        if known is None or known[0] != depends:
            known = self._made[what] = (depends, make())
        return known[1]

    def forget(self) -> None:
        """Free what :meth:`once` keeps."""
        self._made.clear()

    def registered(self, checkpoint: Checkpoint, *, cycle_id: int | None = None) -> Checkpoint:
        """Return the checkpoint with its number in the tracker, registered if it was not yet.

        One from elsewhere that has no cycle gets the one of ``cycle_id``.
        """
        if checkpoint.id is not None:
            if checkpoint.kind != "external" or checkpoint.cycle is not None or cycle_id is None:
                return checkpoint
            self.tracker.join_cycle(checkpoint.id, cycle_id)
            return self.resolve(checkpoint.name)
        # Another model may have been registered by that name since this one was resolved.
        name = free_name(checkpoint.name, self.registry, checkpoint.hash)
        self.tracker.add_checkpoint(
            self.experiment_id,
            name,
            checkpoint.kind,
            path=self.workspace.stored(checkpoint.path),
            content_hash=checkpoint.hash,
            parent_id=self.base.id,
            cycle_id=cycle_id,
            tuning=checkpoint.tuning,
            details={"weights": self.workspace.stored(checkpoint.weights), **_origin(checkpoint.weights)},
        )
        return self.resolve(name)

    def verified(self, checkpoint: Checkpoint) -> Checkpoint:
        """Return the checkpoint, after a check that its files have not changed since it was registered."""
        verify(checkpoint.path, checkpoint.hash)
        return checkpoint

    @contextlib.contextmanager
    def at_once(self, doing: str) -> Iterator[None]:
        """Name what runs in the block, where a stop loses nothing and takes effect at once: "loading X" and such."""
        with self.display.phase(doing), self.interrupts.at_once(doing):
            yield

    def cycle_id(self, number: int) -> int:
        """Return the tracker's id of a cycle."""
        return self.tracker.cycle(self.experiment_id, number)

    def next_cycle(self) -> int:
        """Return the number of the next cycle; that of a cycle with no checkpoint and no decision is used again."""
        done = {c.cycle for c in self.registry.all() if c.cycle is not None}
        done |= {number for number, cycle in self.cycles().items() if cycle.decision is not None}
        return max(done, default=0) + 1

    def cycles(self) -> dict[int, records.Cycle]:
        """Return the cycles so far, by number."""
        return self.registry.cycles()

    def learnt_cycles(self, checkpoint: Checkpoint, last: int | None = None) -> list[int]:
        """Return the cycles (up to ``last``) whose documents a checkpoint should know; see :class:`Registry`."""
        return self.registry.learnt_cycles(checkpoint, last)

    def trained_cycles(self, checkpoint: Checkpoint, last: int | None = None) -> list[int]:
        """Return the cycles (up to ``last``) whose documents a checkpoint was trained on; see :class:`Registry`."""
        return self.registry.trained_cycles(checkpoint, last)

    def remove_finished(self) -> None:
        """Remove the folders of finished stages: a process that is killed while it removes one leaves the rest."""
        for folder in (self.workspace.folder / "stages").glob("[0-9]*-*"):
            stage = queries.stage(self.tracker.database, int(folder.name.partition("-")[0]))
            if stage is not None and stage.status == "finished":
                shutil.rmtree(folder, ignore_errors=True)

    def _register_base(self, source: Path, digest: str, name: str) -> None:
        """Record the clean model; the workspace's settings last, since they make it one.

        A process that was stopped before that may have recorded another model.
        """
        self.tracker.set_base_model(self.experiment_id, name)
        path = self.workspace.stored(source)
        self.tracker.add_checkpoint(
            self.experiment_id,
            "base",
            "base",
            path=path,
            content_hash=digest,
            tuning="full",
            details={"weights": path, "model": name, **_origin(source)},
        )
        base = find("base", self.registry)
        if base is not None and base.id is not None and self.registry.latest() is None:
            self.tracker.set_latest(self.experiment_id, base.id)
        line = None if self.workspace.tracker is None else queries.experiment(self.tracker.database, self.experiment_id)
        elsewhere = {} if line is None else {"experiment": line.name, "tracker": tracker_address(self.workspace)}
        if line is not None:
            elsewhere["id"] = str(line.config["workspace"])
        origin = origin_of(source)
        content = {"sha256": str(origin["sha256"])} if origin is not None and is_gguf(name) else {}
        self.workspace.remember(name, **elsewhere, **content)
        if line is not None:  # it is no longer begun: another workspace in this place gets its own
            self.tracker.describe_experiment(line.id, {"workspace": line.config["workspace"]})

    def _follow_base(self, model: str | None) -> None:
        """Find the clean model again if its folder is gone: at ``model``, or in the hub's cache. Its files decide.

        Raise UsageError if what is found is another model.
        """
        base, known = find("base", self.registry), str(self.workspace.settings()["model"])
        source = model or (known if is_hub_id(known) else None)
        other = model is not None and model_key(model) != known
        if base is None or source is None or is_gguf(known) or (base.path.exists() and not other):
            return
        folder = Path(resolve_base(source, self.workspace.models, self.display)[0])
        if content_hash(folder) != base.hash:
            raise UsageError(
                f"{source} is not the clean model of this workspace ({self.workspace.folder}), which was in "
                f"{known}: the files differ; give --model with the folder where it is now"
            )
        self.tracker.move_weights(self.experiment_id, self.workspace.stored(base.path), self.workspace.stored(folder))
        kept = {name: value for name, value in self.workspace.settings().items() if name not in ("format", "model")}
        self.workspace.remember(model_key(source), **kept)
        self.display.say(f"the clean model is now in {folder}")


def _origin(folder: Path) -> dict[str, Any]:
    """Return the details of the GGUF file that a checkpoint's weights were converted from, if any."""
    origin = origin_of(folder)
    return {} if origin is None else {"gguf": origin}


def _experiment(workspace: Workspace, tracker: Tracker, wanted: str | None, model: str) -> int:
    """Return the workspace's experiment in the tracker; a new workspace in a shared tracker gets a new one.

    Raise UsageError if the workspace exists and the tracker has no record of it.
    """
    if workspace.exists:
        known = own_experiment(workspace, tracker.database)
        if known is None or queries.latest(tracker.database, known.id) is None:
            raise UsageError(
                f"{tracker_address(workspace)} has no record of {workspace.folder}: "
                "give the --database it was created with"
            )
        _keep_id(workspace, tracker, known)
        return known.id
    if workspace.tracker is None:
        return tracker.experiment(workspace.experiment, base_model=model)
    names = _numbered(wanted or workspace.experiment)
    return tracker.claim_experiment(names, uuid.uuid4().hex, _place(workspace), base_model=model)


def _keep_id(workspace: Workspace, tracker: Tracker, experiment: records.Experiment) -> None:
    """Give a workspace of an earlier version in a shared tracker its id."""
    settings = workspace.settings()
    if workspace.tracker is None or "id" in settings:
        return
    tracker.describe_experiment(experiment.id, {**experiment.config, "workspace": derived_id(experiment)})
    more = {name: value for name, value in settings.items() if name not in ("format", "model")}
    workspace.remember(settings["model"], **more, id=derived_id(experiment))


def _numbered(name: str) -> Iterator[str]:
    """Yield NAME, NAME-2, NAME-3 and so on; the number stands before "/seed-N", which must remain the end."""
    stem, seed, number = name.partition("/seed-")
    yield name
    yield from (f"{stem}-{count}{seed}{number}" for count in itertools.count(2))


def _place(workspace: Workspace) -> str:
    """Return an opaque id of the workspace's folder on this machine, until the machine is started again."""
    return hashlib.sha256(f"{liveness.place()}|{workspace.folder.resolve()}".encode()).hexdigest()[:32]


def _locate(workspace: Workspace, model: str, display: Display) -> tuple[Path, str]:
    """Return a clean model's folder and the hash of its content. Raise CheckpointError if it is an adapter."""
    if model == MINIATURE and not Path(MINIATURE).is_dir():
        display.say(
            "the clean model is the built-in miniature, a tiny real model of a fictional world; --model names another"
        )
    located = external(model, workspace, display)
    if located.tuning == "lora":
        raise CheckpointError(
            f"{model} is an adapter: the clean model must be a full one: name it with --model, or merge the "
            f"adapter first"
        )
    return located.path, located.hash
