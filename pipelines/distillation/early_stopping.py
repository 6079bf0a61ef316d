"""Stop conditions of a distillation stage: recovered, plateau, token budget spent, collapse.

A collapse shows in training metrics beside their values at the start of the run. The detector reads the metrics of
every step. A signal is in breach while its median over the last few steps is outside a range set by the first steps; a
persistent breach stops the run. No training state is saved while any signal is in breach, so that the newest state is
always a good one.

    entropy           below 1/10 or above 4 times its initial value
    response length   below 1/4 or above 3 times its initial value
    end-token rate    below half its initial value
    gradient density  the participation ratio fell to 1/20: few tokens carry the whole gradient
    importance ratio  its mean left [1/2, 2]

If a student is trained towards a frozen teacher, values like those of the teacher's own completions are not a collapse:
a model that mid-training has made brief returns to the lengths and end rate of its teacher. The teacher is sampled
once, and only when one of these signals would be in breach.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from pipelines.runtime.model_group import LoadedModels
from pipelines.runtime.stage import Stage
from recovery.config import DistillConfig
from recovery.models.loaded import Loaded
from recovery.rollouts.engine import Engine
from recovery.training.interfaces import Resumable

if TYPE_CHECKING:
    from pipelines.distillation.development import UntilTest

WINDOW = 5
PATIENCE = 3
# An entropy (nats) or a rate below this counts as zero: its multiples have no meaning.
_FLOOR = 0.02


@dataclass(frozen=True)
class Signal:
    """A metric and the range it must stay in: factors of its first median, or absolute bounds.

    ``may_fall`` marks metrics that may fall towards those of a frozen teacher, ``of_responses`` those that are also
    defined for the teacher's own completions. Values below ``floor`` are raised to it; a reference value below
    ``least`` disables the signal.
    """

    metric: str
    name: str
    low: float
    high: float
    relative: bool = True
    may_fall: bool = False
    of_responses: bool = False
    floor: float = _FLOOR
    least: float = 0.0


SIGNALS = (
    Signal("entropy", "entropy", 0.1, 4.0, may_fall=True, of_responses=True),
    Signal("response_length", "response length", 0.25, 3.0, may_fall=True, of_responses=True),
    Signal("end_rate", "end-token rate", 0.5, float("inf"), of_responses=True, least=0.5),
    Signal("geometry/density", "gradient density", 0.05, float("inf"), may_fall=True, floor=1e-3),
    Signal("ratio", "importance ratio", 0.5, 2.0, relative=False),
)


@dataclass
class CollapseState(Resumable):
    """By metric its first and latest values and the steps in breach; by signal the breach; the teacher's metrics."""

    prefix: ClassVar[str] = "alarm/"
    first: dict[str, list[float]] = field(default_factory=dict)
    recent: dict[str, list[float]] = field(default_factory=dict)
    streaks: dict[str, int] = field(default_factory=dict)
    breaches: dict[str, str] = field(default_factory=dict)
    teacher: dict[str, float] | None = None


@dataclass
class CollapseDetector:
    """Monitors one run.

    ``frozen_teacher`` is set if the student is trained towards a frozen teacher: signals with ``may_fall`` may then
    fall. ``teacher`` returns the metrics of the teacher's own completions, if it can be sampled.
    """

    frozen_teacher: bool = False
    teacher: Callable[[], Mapping[str, float]] | None = None
    state: CollapseState = field(default_factory=CollapseState)

    def update(self, metrics: Mapping[str, float]) -> str | None:
        """Add a step's metrics; return the reason to stop if a breach persists, else None."""
        reason = None
        for signal in SIGNALS:
            if signal.metric in metrics:
                broken = self._breach(signal, metrics[signal.metric])
                lasted = self.state.streaks
                lasted[signal.metric] = lasted.get(signal.metric, 0) + 1 if broken else 0
                if broken:
                    self.breaches[signal.name] = broken
                else:
                    self.breaches.pop(signal.name, None)
                if broken and lasted[signal.metric] >= PATIENCE:
                    reason = reason or f"collapse: {broken}"
        return reason

    @property
    def breaches(self) -> dict[str, str]:
        """The signals in breach, by name, with a description."""
        return self.state.breaches

    @property
    def healthy(self) -> bool:
        """Whether no signal is in breach."""
        return not self.breaches

    def _breach(self, signal: Signal, value: float) -> str | None:
        """Return a description of the breach, or None. The first window of values sets the reference."""
        first = self.state.first.setdefault(signal.metric, [])
        recent = self.state.recent.setdefault(signal.metric, [])
        recent.append(value)
        if len(first) < WINDOW:
            first.append(value)
            return None
        del recent[:-WINDOW]
        now, usual = statistics.median(recent), statistics.median(first) if signal.relative else 1.0
        breach = self._outside(signal, now, usual, usual)
        if breach and signal.of_responses and (of_teacher := self._teachers(signal.metric)) is not None:
            return breach if self._outside(signal, now, min(usual, of_teacher), max(usual, of_teacher)) else None
        return breach

    def _outside(self, signal: Signal, now: float, least: float, most: float) -> str | None:
        """Return a description if a value is out of range, given references ``least`` and ``most``; else None."""
        if signal.relative and least < signal.least:
            return None
        least, most = (max(value, signal.floor) if signal.relative else value for value in (least, most))
        low = 0.0 if self.frozen_teacher and signal.may_fall else signal.low * least
        if low <= now <= signal.high * most or min(abs(now - least), abs(now - most)) < signal.floor:
            return None
        direction = "fell" if now < least else "rose"
        return f"{signal.name} {direction} to {now:.3g} (at first {least:.3g})"

    def _teachers(self, metric: str) -> float | None:
        """Return the metric of the teacher's own completions, sampled once in a run; None if not available."""
        if self.teacher is None:
            return None
        if self.state.teacher is None:
            self.state.teacher = dict(self.teacher())
        return self.state.teacher.get(metric)


# Evaluates the model at some steps; the values it returns are recorded as curves and stored with the stage.
Observer = Callable[[int, Loaded, Engine], Mapping[str, float]]

RECOVERED, PLATEAU, SPENT = "recovered", "plateau", "token budget spent"
# If the mean divergence of a window is above this share of that of the window before, it is on a plateau.
_PLATEAU_RATIO = 0.97


@dataclass
class StoppingState(Resumable):
    """Tokens spent, the latest divergences, the latest sample of the gradient, and what was measured at some steps."""

    spent: float = 0.0
    divergence: list[float] = field(default_factory=list)
    geometry: list[Any] = field(default_factory=list)
    observed: list[dict[str, float]] = field(default_factory=list)
    checks: list[dict[str, float]] = field(default_factory=list)

    @property
    def measured(self) -> dict[str, list[Any]]:
        """What is stored with the stage."""
        return {"development": self.checks, "observed": self.observed, "geometry": self.geometry}


@dataclass
class EarlyStopping:
    """Monitors every step and decides when the stage stops; ``until`` is the test on development prompts, if any."""

    stage: Stage
    config: DistillConfig
    models: LoadedModels
    until: UntilTest | None
    state: StoppingState
    observe: Observer | None = None
    teacher_metrics: Callable[[], Mapping[str, float]] | None = None

    def __post_init__(self) -> None:
        config = self.config
        frozen_teacher = config.lam == 1.0 and config.teaching.kind != "self"
        self.detector = CollapseDetector(frozen_teacher, self.teacher_metrics if frozen_teacher else None)
        # A divergence falls to 0, a cross-entropy to an unknown entropy: what is left to learn may be little of it.
        self.falls = (
            config.lam == 1.0
            and not config.teaching.is_student
            and not config.imitates
            and config.divergence != "sampled"
        )
        self.collapse: str | None = None
        self.reported_breaches = dict(self.detector.breaches)

    def add_metrics(self, metrics: dict[str, float]) -> None:
        """Add a step's metrics: its divergence, its tokens, and the signals of a collapse.

        The time of scoring and the statistics of the gradient are added to ``metrics``.
        """
        self.models.instrumentation.account(metrics)
        geometry = self.models.instrumentation.geometry
        if geometry is not None:
            metrics |= {f"geometry/{name}": value for name, value in geometry.summary().items()}
            self.state.geometry = geometry.sample()
        history = self.state.divergence
        history.append(metrics.get(self.config.divergence, metrics["loss"]))  # no row of the main teacher: of all rows
        del history[: -2 * max(1, self.config.plateau)]
        self.collapse = self.detector.update(metrics) if self.config.alarm else None
        self.state.spent += sum(metrics.get(f"tokens_{part}", 0.0) for part in ("sampled", "scored", "trained"))

    def after_step(self, step: int) -> str | None:
        """Return the reason to stop, if any."""
        self._report_breaches(step)
        if self.collapse is not None:
            return self.collapse
        if self.observe is not None and (step % self.config.check_every == 0 or step == self.config.steps):
            observed = dict(self.observe(step, self.models.loaded, self.models.engine))
            self.stage.recorder.log(step, {f"observed/{name}": value for name, value in observed.items()})
            self.state.observed.append({"step": step, **observed})
        if self.until is not None and step % self.config.check_every == 0 and self._has_recovered(step):
            return RECOVERED
        if self.config.max_tokens is not None and self.state.spent >= self.config.max_tokens:
            return SPENT
        window = self.config.plateau if self.falls else 0
        return PLATEAU if on_plateau(self.state.divergence, window) else None

    def _report_breaches(self, step: int) -> None:
        """Record the signals that have entered or left a breach since the last step."""
        now = dict(self.detector.breaches)
        session, stage_id = self.stage.session, self.stage.recorder.id
        for signal in sorted(now.keys() ^ self.reported_breaches.keys()):
            message = now.get(signal, f"{signal} is back in its range")
            level, data = "warning" if signal in now else "info", {"signal": signal, "step": step}
            session.tracker.event(
                session.experiment_id, message, kind="alarm", level=level, stage_id=stage_id, data=data
            )
        self.reported_breaches = now

    def healthy(self) -> bool:
        """Whether the current weights may be saved: no signal is in breach."""
        return not self.config.alarm or self.detector.healthy

    def _has_recovered(self, step: int) -> bool:
        assert self.until is not None
        # Stop requests are not checked here: the decision about a finished step belongs to its state.
        with self.stage.session.display.bar("development prompts", len(self.until.prompts)) as bar:
            score, test = self.until(self.models.loaded, self.models.engine, bar.add_completions)
        self.stage.recorder.log(step, {"development/instruction_following": score})
        self.state.checks.append({"step": step, "value": score, "ratio": test.ratio})
        self.stage.session.display.say(f"step {step}: {test.reason}")
        return test.recovered


def on_plateau(history: Sequence[float], window: int) -> bool:
    """Whether the mean of the last ``window`` values is hardly below that of the window before."""
    if not window or len(history) < 2 * window:
        return False
    before, now = sum(history[-2 * window : -window]), sum(history[-window:])
    return now > _PLATEAU_RATIO * before
