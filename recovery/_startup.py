"""Start-up message, printed when a command begins to import torch.

Torch and transformers take seconds to import, minutes on a slow disk.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import ModuleType

_HEAVY = "torch"


class StartupFinder:
    """A meta-path finder that finds nothing and prints a line before the first import of torch."""

    def __init__(self) -> None:
        self.reported = False

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> None:
        """Leave every module to the other finders."""
        if name == _HEAVY and not self.reported:
            self.reported = True
            print("loading torch and transformers", file=sys.stderr, flush=True)


def arrange() -> None:
    """Install the finder in front of the others, once."""
    if not any(isinstance(finder, StartupFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, StartupFinder())
