"""What a campaign hands back: each is a module with ``run(seed, seconds, report, only)``, which returns an Outcome."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

ORDER = ("kill", "disks", "postgresql", "upgrades", "corpus", "numbers", "models", "dashboard", "load", "servers")
"""The campaigns."""
NOT_DISTURBED = "not disturbed"
"""The name under which tries are counted whose disturbance did not happen: they show nothing."""


@dataclass
class Outcome:
    """What was tried, by name and how often, and one line per fault: how to bring it back, then what was seen."""

    tried: dict[str, int] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    def count(self, name: str) -> None:
        """Count one try."""
        self.tried[name] = self.tried.get(name, 0) + 1

    @property
    def tries(self) -> int:
        """The number of tries whose disturbance happened."""
        return sum(count for name, count in self.tried.items() if name != NOT_DISTURBED)


def numbers(seconds: float, only: int | None) -> Iterator[int]:
    """Yield the numbers of the tries for ``seconds``, at least one; or ``only`` that one."""
    if only is not None:
        yield only
        return
    until, number = time.monotonic() + seconds, 0
    while number == 0 or time.monotonic() < until:
        yield number
        number += 1


def summary(found: dict[str, Outcome]) -> list[str]:
    """Return what was tried how often, and the faults, as lines."""
    lines = []
    for name, outcome in found.items():
        lines.append(f"{name}: {outcome.tries} tries, {len(outcome.faults)} faults")
        lines += [f"  {count:5} {what}" for what, count in sorted(outcome.tried.items())]
        lines += [f"  FAULT {fault}" for fault in outcome.faults]
    return lines
