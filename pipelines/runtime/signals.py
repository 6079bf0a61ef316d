"""SIGINT and SIGTERM as stop requests that are not lost."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType

from recovery.errors import Interrupted


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
        """Let :meth:`check` pass in the block; a signal is answered by a line that says so."""
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
