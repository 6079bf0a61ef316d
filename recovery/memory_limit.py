"""A limit of memory on work of others: a template that somebody else wrote."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Iterator
from pathlib import Path


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
