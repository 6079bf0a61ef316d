"""What the front door arranges before a command imports anything heavy.

Torch and transformers take seconds to import, minutes on a slow disk: the moment that begins, a line says so.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import ModuleType

_HEAVY = "torch"


class StartupFinder:
    """A meta-path finder that finds nothing, and says once that torch is about to be imported."""

    def __init__(self) -> None:
        self.told = False

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> None:
        """Leaves every module to the other finders."""
        if name == _HEAVY and not self.told:
            self.told = True
            print("loading torch and transformers", file=sys.stderr, flush=True)


def arrange() -> None:
    """Put the finder in front of the import system, once."""
    if not any(isinstance(finder, StartupFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, StartupFinder())
