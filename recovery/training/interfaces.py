"""Arguments and results of the training loop: settings, a step's rows, measurements, hooks, the result."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

from recovery.batching import Row
from recovery.errors import UsageError

# State of a run beyond its weights: each owner declares its own, and the training loop stores it.


@dataclass
class Resumable:
    """State of one owner: a dataclass whose fields hold JSON-like values, stored by ``prefix`` and name.

    The names of all owners of a run are different; a stored state without one of them leaves that field unchanged.
    """

    prefix: ClassVar[str] = ""

    def state(self) -> dict[str, Any]:
        """Return the fields as they are stored."""
        return {self.prefix + f.name: getattr(self, f.name) for f in fields(self)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Set the fields from the state of all owners."""
        for f in fields(self):
            setattr(self, f.name, state.get(self.prefix + f.name, getattr(self, f.name)))


Schedule = Literal["constant", "linear", "cosine"]

FINISHED, INTERRUPTED, COLLAPSE = "finished", "interrupted", "collapse"


@dataclass(frozen=True)
class TrainSettings:
    """Optimisation settings. ``token_budget`` (padded tokens per micro-batch) affects memory only; where a GPU's memory
    is full, it is halved.

    A state is saved every ``checkpoint_every`` steps, and ``checkpoint_seconds`` after the last one. ``gather``:
    between the steps of a stage that samples, every process has the whole student.
    """

    steps: int
    lr: float
    warmup_steps: int = 0
    schedule: Schedule = "cosine"
    min_lr_ratio: float = 0.1
    optimizer: Literal["adamw", "muon"] = "adamw"
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0
    token_budget: int = 16384
    seed: int = 0
    checkpoint_every: int = 50
    checkpoint_seconds: float = 600.0
    gather: bool = True

    def __post_init__(self) -> None:
        if self.steps < 1 or self.lr <= 0 or self.token_budget < 1 or self.checkpoint_every < 1:
            raise UsageError("--steps, --lr, --token-budget and --checkpoint-every must all be above 0")


class StepBatch(NamedTuple):
    """The rows of one step, and metrics measured while they were created."""

    rows: list[Row]
    metrics: Mapping[str, float] = MappingProxyType({})


class Instrumentation(Protocol):
    """Measurements on each process's share of a step, combined over all processes."""

    def start(self, step: int) -> None:
        """Called before the forward pass of a step."""

    def reading(self) -> Any:
        """Return this process's measurements in picklable form; called after the forward pass of a step."""

    def take(self, readings: list[Any]) -> None:
        """Combine the measurements of all processes."""


@dataclass
class TrainResult:
    """Step and reason of the stop: "finished", "interrupted", or the reason returned by ``after_step``."""

    step: int
    stopped: str
    trained_tokens: int = 0


@dataclass(frozen=True)
class Hooks:
    """Functions of the caller that run during training, in the main process only. Steps are numbered from 1.

    A step calls ``on_batch``, ``reference``, ``log`` and ``after_step``, in this order; ``healthy`` and ``before_save``
    before it is saved.

    Attributes:
        on_batch: receives each step's rows before they are trained on.
        log: receives each step's metrics after its update, and may add to them before they are recorded.
        after_step: returns a reason to stop, or None. With a reason that begins with "collapse" the run is rolled back
            to its newest state of a multiple of ``checkpoint_every``, whenever it was interrupted.
        healthy: returns whether the weights are worth saving; while it returns False no intermediate state is saved.
        before_save: called before a state is saved.
        reference: returns rows whose loss the step may not raise: a gradient that would is projected (A-GEM).
        smaller: receives the tokens of a micro-batch from this step on, after a GPU's memory was full.
    """

    on_batch: Callable[[int, StepBatch], None] = lambda _step, _batch: None
    log: Callable[[int, dict[str, float]], None] = lambda _step, _metrics: None
    after_step: Callable[[int], str | None] = lambda _step: None
    healthy: Callable[[], bool] = lambda: True
    before_save: Callable[[], None] = lambda: None
    reference: Callable[[int], list[Row]] | None = None
    smaller: Callable[[int, int], None] = lambda _step, _tokens: None
