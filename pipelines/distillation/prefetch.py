"""Sampling in the background: the completions of the next batch, while the current one trains."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Result = TypeVar("Result")


@dataclass
class Prefetcher(Generic[Result]):
    """Runs the work of one later batch in a thread. Call :meth:`close` at the end."""

    _pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "prefetch"))
    _pending: tuple[int, Future[Result]] | None = None

    def begin(self, batch: int, work: Callable[[], Result]) -> None:
        """Start the work of a batch."""
        self._pending = batch, self._pool.submit(work)

    def take(self, batch: int) -> Result | None:
        """Wait for the result of a batch; None if its work was not started. Raise the error of the work."""
        pending, self._pending = self._pending, None
        if pending is None or pending[0] != batch:
            return None
        return pending[1].result()

    def close(self) -> None:
        """Wait for running work and discard its result."""
        self._pool.shutdown(cancel_futures=True)
