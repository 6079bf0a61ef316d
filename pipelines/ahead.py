"""One piece of work that goes on in the background: the answers of the next batch, while this one trains."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Result = TypeVar("Result")


@dataclass
class Ahead(Generic[Result]):
    """What was begun for a batch that is still to come. Use :meth:`close` at the end."""

    _pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "ahead"))
    _begun: tuple[int, Future[Result]] | None = None

    def begin(self, batch: int, work: Callable[[], Result]) -> None:
        """Begin the work of a batch."""
        self._begun = batch, self._pool.submit(work)

    def take(self, batch: int) -> Result | None:
        """What was made for this batch, once it is done; None where nothing was begun for it. Raises what it raised."""
        begun, self._begun = self._begun, None
        if begun is None or begun[0] != batch:
            return None
        return begun[1].result()

    def close(self) -> None:
        """Let what was begun come to its end; nobody wants it."""
        self._pool.shutdown(cancel_futures=True)
