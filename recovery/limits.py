"""Limits of time and memory on work of others: a user's function, a template, or a library on somebody else's file."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path


class Overdue(BaseException):
    """A time limit is exceeded. Not an Exception, since the limited work may catch every Exception and continue."""


def machine_memory() -> int:
    """Return the bytes of memory that this process may use: the machine's, or fewer by a container's limit."""
    whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with contextlib.suppress(OSError, ValueError):  # no such file, or no limit
        whole = min(whole, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    return whole


@contextlib.contextmanager
def time_limit(seconds: float, *, of_processor: bool = False) -> Iterator[None]:
    """Raise :class:`Overdue` in the body after some seconds, by the clock or of the processor's time.

    The processor's time does not depend on what else runs on the machine. No limit with 0, or outside the main thread.
    """
    if seconds <= 0 or threading.current_thread() is not threading.main_thread():
        yield
        return
    timer, kind, now = (
        (signal.ITIMER_PROF, signal.SIGPROF, time.process_time)
        if of_processor
        else (signal.ITIMER_REAL, signal.SIGALRM, time.monotonic)
    )

    def overdue(_signal: int, _frame: object) -> None:
        raise Overdue

    former = signal.signal(kind, overdue)
    started = now()
    left, interval = signal.setitimer(timer, seconds, 1.0)  # again each second, if it is suppressed
    try:
        yield
    finally:
        signal.setitimer(timer, 0)
        signal.signal(kind, former)
        if left:  # another limit was running
            signal.setitimer(timer, max(left - (now() - started), 1e-3), interval)


@contextlib.contextmanager
def memory_limit(more: int) -> Iterator[None]:
    """Raise MemoryError in the body if the process needs ``more`` bytes of addresses than at the start.

    For short work only: other threads have the same limit. No limit where the system has no /proc (macOS).
    """
    try:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    except OSError:
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    known = [limit for limit in (soft, hard) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_AS, (min([used + more, *known]), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
