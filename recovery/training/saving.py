"""When a training state is saved."""

from __future__ import annotations

import time

from recovery.training.interfaces import COLLAPSE, Hooks, TrainSettings
from recovery.training.run_state import Position, RunState

SHARE = 20
"""States between the regular ones take at most one part of the time in so many."""


class Saving:
    """Saves a state every ``checkpoint_every`` steps, at the end, and ``checkpoint_seconds`` after the last one: a kill
    loses little of slow steps, too. All decisions are made in the main process.
    """

    def __init__(self, saved: RunState, settings: TrainSettings, hooks: Hooks) -> None:
        self.saved, self.settings, self.hooks = saved, settings, hooks
        self._last, self._took = time.monotonic(), 0.0

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
        if due:
            self.hooks.before_save()
        return due

    def write(self, state: Position) -> None:
        """Write the state of the last step; in all processes."""
        started = time.monotonic()
        self.saved.write(state)
        self._last = time.monotonic()
        self._took = self._last - started

    def _is_late(self) -> bool:
        return time.monotonic() - self._last >= max(self.settings.checkpoint_seconds, SHARE * self._took)
