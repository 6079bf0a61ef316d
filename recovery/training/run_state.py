"""The state from which a run resumes: weights, optimizers, averaged weights, and what the loop's caller keeps.

What is in a state, and when one is saved; how it lies on the disk is in :mod:`recovery.training.resume_state`.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from recovery.models.fsdp import local
from recovery.teachers.teacher import LocalTeacher
from recovery.training.interfaces import COLLAPSE, Hooks, Resumable, TrainSettings
from recovery.training.resume_state import Reader, States


@dataclass
class Position:
    """How far a run is; ``stopped`` is the reason of its end."""

    step: int = 0
    trained_tokens: int = 0
    stopped: str | None = None


@dataclass(frozen=True)
class RunState:
    """The training states of a run: weights, optimizer, averaged weights, the state of the loop and of its caller."""

    states: States
    params: dict[str, torch.nn.Parameter]
    optimizers: list[torch.optim.Optimizer]
    averaged: LocalTeacher | None
    resumables: Sequence[Resumable]

    def __post_init__(self) -> None:
        names = [name for owner in self.resumables for name in owner.state()]
        if twice := {name for name in names if names.count(name) > 1}:
            raise ValueError(f"two resumables store {', '.join(sorted(twice))}: give one of them a prefix")

    def extra_state(self) -> dict[str, Any]:
        """Return the caller's state, in values that later steps do not change."""
        return copy.deepcopy({name: value for owner in self.resumables for name, value in owner.state().items()})

    def load_extra_state(self, state: Mapping[str, Any]) -> None:
        """Restore the caller's state."""
        for owner in self.resumables:
            owner.restore(state)

    def write(self, state: Position) -> None:
        """Write the state of the last step, unless it exists already."""
        meta = {"step": state.step, "trained_tokens": state.trained_tokens, "stopped": state.stopped}
        self.states.write(state.step, self._tensors(), meta | {"memory": self.extra_state()})

    def _tensors(self) -> dict[str, torch.Tensor]:
        names = {id(p): name for name, p in self.params.items()}
        tensors = {f"param/{name}": p.detach() for name, p in self.params.items()}
        for optimizer in self.optimizers:
            for p, entries in optimizer.state.items():
                tensors |= {f"optimizer/{key}/{names[id(p)]}": v.detach() for key, v in entries.items()}
        if self.averaged is not None:
            tensors |= {f"shadow/{name}": tensor.detach() for name, tensor in self.averaged.tensors.items()}
        return tensors

    def restore(self, state: Position, *, regular: bool = False) -> bool:
        """Load the newest readable (regular) state; return whether there is one."""
        found = self.states.read(regular=regular)
        if found is None:
            return False
        meta, tensors = found
        self._load(tensors)
        state.step, state.trained_tokens = meta["step"], meta["trained_tokens"]
        state.stopped = meta["stopped"]
        self.load_extra_state(meta["memory"])
        return True

    def _load(self, tensors: Reader) -> None:
        with torch.no_grad():
            for name, p in self.params.items():
                local(p).copy_(tensors.get(f"param/{name}", p))
            for name, weight in self.averaged.tensors.items() if self.averaged is not None else ():
                weight.copy_(tensors.get(f"shadow/{name}"))
            chosen = {id(p): o for o in self.optimizers for group in o.param_groups for p in group["params"]}
            for key in tensors.names():
                if key.startswith("optimizer/"):
                    _, entry, name = key.split("/", 2)
                    p = self.params[name]
                    chosen[id(p)].state[p][entry] = _moment(tensors, key, p)


def _moment(tensors: Reader, key: str, p: torch.nn.Parameter) -> torch.Tensor:
    """Return a stored optimizer entry, sharded and placed like its parameter."""
    tensor = tensors.get(key, p)
    if tensor.ndim == 0:  # AdamW's step count, which fused AdamW needs on its parameter's device
        return tensor.to(local(p).device, copy=True)
    moment = torch.zeros_like(p, dtype=tensor.dtype)
    local(moment).copy_(tensor)
    return moment


# When a training state is saved.


MOST_SAVING = 0.05
"""States that are due by the clock, between the regular ones, take at most this share of the time."""


class Saving:
    """Saves a state every ``checkpoint_every`` steps, at the end, and ``checkpoint_seconds`` after the last one: a kill
    loses little of slow steps, too. All decisions are made in the main process.
    """

    def __init__(self, saved: RunState, settings: TrainSettings, hooks: Hooks) -> None:
        self.saved, self.settings, self.hooks = saved, settings, hooks
        self._last_write, self._write_seconds = time.monotonic(), 0.0

    def after_step(self, step: int) -> tuple[str | None, bool]:
        """Return the reason to stop after this step, or None, and whether its state is to be written."""
        reason = self.hooks.after_step(step)
        if reason is not None or step == self.settings.steps:
            return reason, self._announced(reason is None or not reason.startswith(COLLAPSE))
        due = step % self.settings.checkpoint_every == 0 or self._is_late()
        return None, self._announced(self.hooks.healthy() and due)

    def on_interrupt(self) -> bool:
        """Return whether an interrupted run's state is to be written."""
        return self._announced(self.hooks.healthy())

    def _announced(self, due: bool) -> bool:
        """Return ``due``. If it is, ``before_save`` is called first: no state is ahead of the recorded metrics."""
        if due:
            self.hooks.before_save()
        return due

    def write(self, state: Position) -> None:
        """Write the state of the last step; in all processes."""
        started = time.monotonic()
        self.saved.write(state)
        self._last_write = time.monotonic()
        self._write_seconds = self._last_write - started

    def _is_late(self) -> bool:
        return time.monotonic() - self._last_write >= max(
            self.settings.checkpoint_seconds, self._write_seconds / MOST_SAVING
        )
