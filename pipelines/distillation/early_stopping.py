"""Stop conditions of a distillation stage: recovered, plateau, token budget spent, collapse."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pipelines.runtime.model_group import LoadedModels
from pipelines.runtime.stage import Stage
from recovery.config import DistillConfig
from recovery.models.loaded import Loaded
from recovery.rollouts.engine import Engine
from recovery.training.collapse import CollapseDetector
from recovery.training.interfaces import Resumable

if TYPE_CHECKING:
    from pipelines.distillation.development import UntilTest

# Evaluates the model at some steps; the values it returns are recorded as curves and stored with the stage.
Observer = Callable[[int, Loaded, Engine], Mapping[str, float]]

RECOVERED, PLATEAU, SPENT = "recovered", "plateau", "token budget spent"
# If the mean divergence of a window is above this share of that of the window before, it is on a plateau.
_STILL_FALLING = 0.97


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
        if self.until is not None and step % self.config.check_every == 0 and self._recovered(step):
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
            session.tracker.event(
                session.experiment_id,
                message,
                kind="alarm",
                level="warning" if signal in now else "info",
                stage_id=stage_id,
                data={"signal": signal, "step": step},
            )
        self.reported_breaches = now

    def healthy(self) -> bool:
        """Whether the current weights may be saved: no signal is in breach."""
        return not self.config.alarm or self.detector.healthy

    def _recovered(self, step: int) -> bool:
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
    return now > _STILL_FALLING * before
