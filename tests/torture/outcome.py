"""What a campaign hands back: each is a module with ``run(seed, seconds, report)``, which returns an Outcome."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass
class Outcome:
    """What was tried, by name and how often, and one line per fault: how to bring it back, then what was seen."""

    tried: dict[str, int] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)


def numbers(seconds: float, only: int | None) -> Iterator[int]:
    """Yield the numbers of the tries for ``seconds``, at least one; or ``only`` that one."""
    if only is not None:
        yield only
        return
    until, number = time.monotonic() + seconds, 0
    while number == 0 or time.monotonic() < until:
        yield number
        number += 1
