"""The life of a stage: started, kept alive, stopped cleanly, resumed, finished; every step in the tracker."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import platform
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import MappingProxyType
from typing import Any

from db import StageRecorder, records
from pipelines.estimates import GIB, peak_memory
from pipelines.interrupts import Interrupts, StageInterrupted
from pipelines.progress import Bar
from pipelines.session import Session
from recovery import processes
from recovery.checkpoints import save_checkpoint
from recovery.config import TrainingConfig, to_json
from recovery.errors import RecoveryError
from recovery.loading import Loaded
from recovery.movement import movement
from recovery.states import resume_step
from recovery.training import INTERRUPTED, Objective, StepBatch, TrainResult, TrainSettings, train
from recovery.workspace import Checkpoint

VERSIONED = ("recovery", "torch", "transformers", "peft", "lm_eval")
# The loop's names to the tracker's, whose live page knows them.
_METRICS = {
    "grad_norm": "gradient_norm",
    "seconds/training": "seconds_training",
    "seconds/source": "seconds_generating",
    "tokens/trained": "tokens_trained",
    "loss/knowledge": "knowledge_kl",
    "loss/label": "label_loss",
    "entropy/base": "entropy",
    "entropy/knowledge": "knowledge_entropy",
    "entropy/label": "label_entropy",
    "entropy/reward": "entropy",
    "loss/reward": "policy_loss",
    "anchor/base": "anchor",
    "anchor/label": "anchor",
    "ratio/base": "ratio",
    "ratio/reward": "ratio",
    "clipped/base": "clipped",
    "clipped/reward": "clipped",
    "dropped/base": "dropped",
    "dropped/reward": "dropped",
}


@dataclass
class Stage:
    """A running stage: what its code needs to record, to train and to keep what it made."""

    session: Session
    recorder: StageRecorder
    folder: Path
    cycle: int | None
    resumed: bool = False
    stopped: str = "finished"
    details: dict[str, Any] = field(default_factory=dict)
    bar: Bar | None = field(default=None, repr=False)

    @property
    def interrupts(self) -> Interrupts:
        """Whether it was asked to stop."""
        return self.session.interrupts

    @property
    def states(self) -> Path:
        """Where training states are kept until the stage is done."""
        return self.folder / "states"

    def train(
        self,
        loaded: Loaded,
        source: Callable[[int], StepBatch],
        objective: Objective,
        settings: TrainSettings,
        *,
        figure: str = "loss",
        names: Mapping[str, str] = MappingProxyType({}),
        measured: Callable[[dict[str, float]], None] = lambda _: None,
        after_step: Callable[[int], str | None] = lambda _: None,
        **more: Any,
    ) -> TrainResult:
        """Run the loop with this stage's log, states and stop; ``figure`` is the metric shown beside the bar.

        ``names`` are the tracker's names of this stage's own metrics. ``measured`` may read and add to each step's
        metrics (so named) before they are recorded; ``more`` goes to the loop as it is. Raises StageInterrupted where
        it was asked to stop.
        """
        self.recorder.describe(steps_total=settings.steps)
        with self.session.display.bar(self.recorder.kind, settings.steps, resume_step(self.states)) as bar:
            self.bar = bar
            result = train(
                loaded,
                source,
                objective,
                settings,
                log=self._logger(bar, figure, _METRICS | dict(names), measured, str(loaded.device)),
                state_dir=self.states,
                should_stop=lambda: self.interrupts.requested,
                after_step=self._recorded(after_step, settings),
                **more,
            )
        if result.stopped == INTERRUPTED:
            raise StageInterrupted(
                f"{self.recorder.kind} interrupted at step {result.step} of {settings.steps}: `recover resume` goes on"
            )
        self.stopped = result.stopped
        return result

    def sampled(self, answers: int, tokens: int) -> None:
        """Show the answers of a step beside the bar as they come, and hear a stop meanwhile (in one process)."""
        if self.bar is not None:
            self.bar.within(answers, tokens)
        if processes.size() == 1:
            self.interrupts.check()

    def keep(
        self, loaded: Loaded, kind: str, student: Checkpoint, extra: Mapping[str, Any], name: str | None = None
    ) -> Checkpoint:
        """Write the trained model as this cycle's checkpoint of that kind, and make it the latest.

        It is called ``name``, or else by cycle and kind; a stage that was killed after this keeps the name it gave.
        """
        session = self.session
        moved = movement(loaded, student.weights, student.adapter)
        if moved is not None:
            self.details = {**self.details, "moved": moved.to_json()}
        known = session.registry.of_stage(self.recorder.id)
        name = known.name if known is not None else free_name(session, name or f"cycle-{self.cycle}/{kind}")
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

    def _recorded(
        self, after_step: Callable[[int], str | None], settings: TrainSettings
    ) -> Callable[[int], str | None]:
        """``after_step``, with the points of every step in the database before the state of that step is saved.

        Otherwise a kill between the two would leave a gap in the curves that no resume fills.
        """

        def after(step: int) -> str | None:
            reason = after_step(step)
            if reason or step == settings.steps or step % settings.checkpoint_every == 0:
                self.session.tracker.flush()
            return reason

        return after

    def _logger(
        self,
        bar: Bar,
        figure: str,
        names: Mapping[str, str],
        measured: Callable[[dict[str, float]], None],
        device: str,
    ) -> Callable[[int, dict[str, float]], None]:
        def log(step: int, metrics: dict[str, float]) -> None:
            peak = peak_memory(device)
            named = {names.get(name, name): value for name, value in metrics.items()}
            named["memory_gib"] = peak / GIB
            measured(named)
            self.recorder.log(step, named)
            self.recorder.usage(
                tokens_sampled=int(named.get("tokens_sampled", 0)),
                tokens_scored=int(named.get("tokens_scored", 0)),
                tokens_trained=int(named.get("tokens_trained", 0)),
                peak_memory_bytes=peak,
            )
            value = named.get(figure, named["loss"])
            bar.update(step, f"{figure} {value:.3f}")

        return log


@contextlib.contextmanager
def running(
    session: Session,
    kind: str,
    config: Any,
    *,
    cycle: int | None = None,
    student: Checkpoint | None = None,
    resume: records.Stage | None = None,
) -> Iterator[Stage]:
    """The block is the stage's work: its end, good or bad, is recorded whatever happens in it.

    Raises StageInterrupted where a stop was asked for since the stage before had its last look.
    """
    try:
        session.interrupts.check()
    finally:
        session.interrupts.requested = False  # heeded, if there was a stop
    if resume is not None:
        states = session.workspace.stage(resume.id, kind) / "states"
        recorder = session.tracker.resume_stage(resume.id, from_step=resume_step(states))
    else:
        recorder = session.tracker.start_stage(
            session.experiment_id,
            kind,
            cycle_id=None if cycle is None else session.cycle_id(cycle),
            config=to_json(config),
            seed=config.seed,
            versions=versions(),
            student_id=None if student is None else student.id,
        )
    folder = session.workspace.stage(recorder.id, kind)
    recorder.describe(folder=session.workspace.stored(folder))
    with session.interrupts.heeded():
        stage = Stage(session, recorder, folder, cycle, resumed=resume is not None)
        try:
            yield stage
        except (StageInterrupted, KeyboardInterrupt) as stop:
            session.interrupts.requested = False  # it was heeded
            recorder.interrupt(str(stop))
            raise
        except BaseException as error:
            recorder.fail(one_line(error))
            raise
        recorder.usage(peak_memory_bytes=peak_memory(config.device if config.device.startswith("cuda") else "cpu"))
        recorder.finish(stage.stopped, stage.details or None)
        shutil.rmtree(folder, ignore_errors=True)
        _give_memory_back()


def _give_memory_back() -> None:
    """Let the system have what the stage's tensors took: glibc would keep a few hundred MB of freed blocks."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def settings_of(config: TrainingConfig, steps: int, lr: float) -> TrainSettings:
    """A stage's settings as the training loop takes them; ``lr`` is the peak rate."""
    return TrainSettings(
        steps=steps,
        lr=lr,
        warmup_steps=round(config.warmup * steps),
        schedule=config.schedule,  # type: ignore[arg-type]  # checked by the configuration
        min_lr_ratio=config.min_lr_ratio,
        optimizer=config.optimizer,  # type: ignore[arg-type]
        weight_decay=config.weight_decay,
        max_grad_norm=config.max_grad_norm,
        token_budget=config.token_budget,
        seed=config.seed,
        checkpoint_every=config.checkpoint_every,
    )


def free_name(session: Session, name: str) -> str:
    """``name``, or ``name-2`` and so on where that is taken: what was won before is never written over."""
    taken = {checkpoint.name for checkpoint in session.registry.all()}
    number, candidate = 1, name
    while candidate in taken:
        number += 1
        candidate = f"{name}-{number}"
    return candidate


def versions() -> dict[str, str]:
    """What the results depend on besides the settings."""
    found = {"python": platform.python_version()}
    for package in VERSIONED:
        with contextlib.suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def one_line(error: BaseException) -> str:
    """An error as one line."""
    lines = str(error).strip().splitlines()
    return (
        f"{type(error).__name__}: {lines[0]}"
        if lines and not isinstance(error, RecoveryError)
        else (lines or [type(error).__name__])[0]
    )
