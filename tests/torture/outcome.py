"""What a campaign hands back: each is a module with ``run(seed, seconds, report)``, which returns an Outcome."""

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Outcome:
    """What was tried, by name and how often, and one line per fault: how to bring it back, then what was seen."""

    tried: dict[str, int] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
