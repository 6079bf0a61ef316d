"""The life cycle of a stage: start, training, checkpoint, interruption, resume, end; all recorded in the tracker."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch.nn.modules.module import register_module_forward_pre_hook

from db import StageRecorder, queries, records
from db.background_writer import TOKEN_COUNTS
from db.schema import TRAINING
from pipelines.runtime.checkpoint_names import free_name
from pipelines.runtime.progress import Bar
from pipelines.runtime.recorded_paths import recorded
from pipelines.runtime.session import (
    ASKED,
    CONTENTS,
    EARLIER_CYCLES,
    FROM_RECIPES,
    Session,
    StageInterrupted,
    StopSignals,
)
from pipelines.runtime.versions import versions
from pipelines.table import BEFORE, GIB, TITLES, PlanRow, compared
from recovery import distributed
from recovery.config.files import contents_of
from recovery.errors import RecoveryError
from recovery.models.checkpoints import save_checkpoint
from recovery.models.hardware import held_memory, peak_memory, pick_device, release_memory, reset_peak_memory
from recovery.models.interpolation import weight_delta
from recovery.models.loaded import Loaded
from recovery.rollouts.engine import Progress
from recovery.training.interfaces import Hooks
from recovery.training.resume_state import damaged_after, resume_step
from recovery.workspace import Checkpoint, write_atomically


@dataclass
class Stage:
    """A running stage: its record in the tracker, its folder, and its checkpoint.

    ``known`` are the details that are recorded as it runs, ``details`` those of its end.
    """

    session: Session
    recorder: StageRecorder
    folder: Path
    cycle: int | None
    resumed: bool = False
    stopped: str = "finished"
    details: dict[str, Any] = field(default_factory=dict)
    known: dict[str, Any] = field(default_factory=dict)
    bar: Bar | None = field(default=None, repr=False)

    @property
    def interrupts(self) -> StopSignals:
        """The stop signals of the session."""
        return self.session.interrupts

    @property
    def states(self) -> Path:
        """The folder of the training states, removed at the end of the stage."""
        return self.folder / "states"

    def declare(self, metric: str, title: str) -> None:
        """Record what the figure of a metric is called on the live page; its axis is logarithmic."""
        self.describe(figures={**self.known.get("figures", {}), metric: {"title": title, "unit": "nats per token"}})

    def describe(self, **details: Any) -> None:
        """Record details that a stage has while it runs, and keeps if it is stopped."""
        self.known |= details
        self.recorder.describe(details=self.known)

    def sampled(self, completions: int, tokens: int) -> None:
        """Show the completions sampled in a step next to the bar and, with one process, check for a stop request."""
        if self.bar is not None:
            self.bar.add_sampled(completions, tokens)
        if distributed.size() == 1:
            self.interrupts.check()

    def counting(self, bar: Bar) -> Progress:
        """Return a function that counts completions on ``bar`` and checks for a stop request."""

        def progress(completions: int, tokens: int) -> None:
            bar.add_completions(completions, tokens)
            self.interrupts.check()

        return progress

    def count_once(self, file: str, tokens: int) -> None:
        """Record tokens sampled before the training, only once even if the stage is resumed.

        ``file`` holds the stage's count before they were added: after a kill it shows whether they have been.
        """
        counted, tracker = self.folder / file, self.session.tracker
        tracker.flush()
        stage = queries.stage(tracker.database, self.recorder.id)
        assert stage is not None
        if not counted.is_file():
            write_atomically(counted, json.dumps({"before": stage.tokens_sampled}))
        else:
            before = _before(counted)
            if before is None or stage.tokens_sampled >= before + tokens:
                return
        self.recorder.usage(tokens_sampled=tokens)
        tracker.flush()

    def keep(
        self, loaded: Loaded, kind: str, student: Checkpoint, extra: Mapping[str, Any], name: str | None = None
    ) -> Checkpoint:
        """Save the trained model as this cycle's checkpoint of a kind, and make it the latest.

        Its name is ``name``, by default cycle and kind; a stage that was killed after this reuses its first name.
        """
        session = self.session
        moved = weight_delta(loaded, student.weights, student.adapter)
        if moved is not None:
            self.details = {**self.details, "moved": moved.to_json()}
        known = session.registry.of_stage(self.recorder.id)
        name = known.name if known is not None else free_name(name or f"cycle-{self.cycle}/{kind}", session.registry)
        folder = session.workspace.checkpoint(name)
        stage = f"{self.recorder.kind} {self.recorder.id}"
        info = save_checkpoint(
            loaded, folder, name=name, kind=kind, parent=student.hash, stage=stage, base=session.base.hash, extra=extra
        )
        weights = folder if info.tuning == "full" else student.weights
        number = session.tracker.add_checkpoint(
            session.experiment_id,
            name,
            kind,
            path=session.workspace.stored(folder),
            content_hash=info.hash,
            parent_id=student.id,
            cycle_id=None if self.cycle is None else session.cycle_id(self.cycle),
            by=self.recorder,
            tuning=info.tuning,
            details={"weights": session.workspace.stored(weights), **extra},
        )
        session.tracker.set_latest(session.experiment_id, number, by=self.recorder)
        return session.resolve(name)

    def recording(self, hooks: Hooks, bar: Bar, figure: str, device: str) -> Hooks:
        """Return the hooks with every step recorded in the tracker and shown, with the metric ``figure``, on the bar.

        The ``log`` hook may add to each step's metrics before they are recorded.

        The points of a step are in the database before its state is saved: otherwise a kill between the two would leave
        a gap in the curves that no resume fills.
        """

        def log(step: int, metrics: dict[str, float]) -> None:
            peak = peak_memory(device)
            metrics["memory_gib"] = peak / GIB
            with self.interrupts.held():
                hooks.log(step, metrics)
            self.recorder.log(step, metrics, {name: int(metrics.get(name, 0)) for name in TOKEN_COUNTS})
            self.recorder.usage(peak_memory_bytes=peak)
            bar.update(step, f"{figure} {metrics.get(figure, metrics['loss']):.3f}")

        def smaller(step: int, tokens: int) -> None:
            self.session.display.say(
                f"step {step}: the GPU's memory is full; now at most {tokens:,} tokens at once (--token-budget)"
            )

        def after_step(step: int) -> str | None:
            with self.interrupts.held():
                return hooks.after_step(step)

        before_save = self.session.tracker.flush
        return replace(hooks, log=log, after_step=after_step, before_save=before_save, smaller=smaller)


@contextlib.contextmanager
def running(
    session: Session,
    kind: str,
    config: Any,
    *,
    cycle: int | None = None,
    student: Checkpoint | None = None,
    resume: records.Stage | None = None,
    rows: Sequence[PlanRow] = (),
    asked: str | None = None,
) -> Iterator[Stage]:
    """Run the block as a stage's work and record its end: finished, interrupted or failed. What it took is compared
    with what the ``rows`` of its plan say, in one line. ``asked`` is --tuning before it was resolved.

    Raise StageInterrupted if a stop was requested after the last check of the previous stage.
    """
    try:
        session.interrupts.check()
    finally:
        session.interrupts.requested = False  # handled
    session.remove_finished()
    if resume is not None:
        states = session.workspace.stage(resume.id, kind) / "states"
        step = resume_step(states)
        if kind == "evaluate":
            session.display.say(f"{TITLES[kind]} goes on: stored answers are used again")
        elif lost := _lost(states, step, resume.steps_done):
            goes_on = f"continues behind step {step:,}" if step else "begins again at step 1"
            session.display.say(f"stage {resume.id} ({kind}) {goes_on}: {lost} (in {states})")
        recorder = session.tracker.resume_stage(resume.id, from_step=step)
    else:
        recorder = session.tracker.start_stage(
            session.experiment_id,
            kind,
            cycle_id=None if cycle is None else session.cycle_id(cycle),
            config=recorded(config, session.registry),
            seed=config.seed,
            versions=versions(),
            student_id=None if student is None else student.id,
        )
    session.copies.add(recorder.id)
    folder = session.workspace.stage(recorder.id, kind)
    recorder.describe(folder=session.workspace.stored(folder))
    session.interrupts.stage = kind
    with session.interrupts.deferred():
        known = {} if resume is None else dict(resume.details)
        stage = Stage(session, recorder, folder, cycle, resumed=resume is not None, known=known)
        if resume is None and student is not None and kind in TRAINING:
            begun = {
                EARLIER_CYCLES: session.registry.earlier_cycles(student, cycle),
                CONTENTS: contents_of(type(config), vars(config)),
                ASKED: asked,
            }
            stage.describe(**begun, **({FROM_RECIPES: session.from_recipes} if session.from_recipes else {}))
        try:
            device = str(pick_device(config.device))
            reset_peak_memory(device)
            stage.describe(**{BEFORE: held_memory(device)})
            with _checking(session.interrupts, device, config), session.display.phase(TITLES.get(kind, kind)):
                yield stage
        except (StageInterrupted, KeyboardInterrupt) as stop:
            session.interrupts.requested = False  # handled
            recorder.interrupt(str(stop))
            raise
        except BaseException as error:
            recorder.fail(one_line(error))
            raise
        finally:
            session.interrupts.stage = ""
        recorder.usage(peak_memory_bytes=peak_memory(device))
        recorder.finish(stage.stopped, {**stage.known, **stage.details} or None)
        shutil.rmtree(folder, ignore_errors=True)
        release_memory()
        ended = queries.stage(session.tracker.database, recorder.id)
        if rows and ended is not None:
            session.display.say(f"{TITLES[kind]} {compared(rows, [ended])}")


@contextlib.contextmanager
def _checking(interrupts: StopSignals, device: str, config: Any) -> Iterator[None]:
    """Check for a stop request before each layer that runs in the block: on a CPU, prompts or a micro-batch take half a
    minute. Not with several processes, which would wait for this one, nor in compiled layers.
    """
    if device != "cpu" or distributed.size() > 1 or getattr(config, "compile", False):
        yield
        return
    hook = register_module_forward_pre_hook(lambda _module, _inputs: interrupts.check())
    try:
        yield
    finally:
        hook.remove()


def _lost(states: Path, step: int, done: int) -> str:
    """Return why a stage that did ``done`` steps resumes behind ``step``; "" if that is its newest state."""
    if damaged := damaged_after(states, step):
        return f"the training state of step {' and '.join(f'{one:,}' for one in damaged)} is damaged"
    return f"there is no training state of its {done:,} steps" if done and not step else ""


def _before(counted: Path) -> int | None:
    """Return the count before tokens were added; None if they were added: version 0.1 wrote a file only after that."""
    try:
        known = json.loads(counted.read_text(encoding="utf-8"))
        return int(known["before"]) if isinstance(known, dict) else None
    except (ValueError, KeyError, TypeError):  # a damaged file: tokens are rather not counted than counted twice
        return None


def one_line(error: BaseException) -> str:
    """Return the first line of an error, with its type unless it is the project's own."""
    lines, kind = str(error).strip().splitlines(), type(error).__name__
    if not lines:
        return kind
    return lines[0] if isinstance(error, RecoveryError) else f"{kind}: {lines[0]}"
