"""SIGINT and SIGTERM as requests to stop that are not lost."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

from recovery.errors import Interrupted


class StageInterrupted(Interrupted):
    """A stage was asked to stop and did, at a step; ``recover resume`` goes on with it."""


class Interrupts:
    """Where it is installed, a signal sets ``requested`` and raises KeyboardInterrupt.

    Python and its extensions drop a KeyboardInterrupt without a word where it is raised in some callback of theirs;
    ``requested`` stays. In a block that is :meth:`heeded` the work looks for itself, and stops where nothing is lost
    by it: there only a second signal raises.
    """

    def __init__(self) -> None:
        self.requested = False
        self._heeding = False

    def check(self) -> None:
        """Raise StageInterrupted if a stop was asked for: for places where nothing is lost by it."""
        if self.requested:
            raise StageInterrupted("interrupted: `recover resume` goes on from here")

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Take signals in the block, if this is the thread that gets them."""
        here = threading.current_thread() is threading.main_thread()
        former = {number: signal.signal(number, self._ask) for number in (signal.SIGINT, signal.SIGTERM) if here}
        try:
            yield
        finally:
            for number, handler in former.items():
                signal.signal(number, handler)

    @contextlib.contextmanager
    def heeded(self) -> Iterator[None]:
        """Only ask in the block, where the work calls :meth:`check` or looks at ``requested``."""
        with self.installed():
            former, self._heeding = self._heeding, True
            try:
                yield
            finally:
                self._heeding = former

    def _ask(self, _number: int, _frame: FrameType | None) -> None:
        again, self.requested = self.requested, True
        if again or not self._heeding:
            raise KeyboardInterrupt
