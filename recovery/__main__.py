"""Entry point of ``recover`` and ``python -m recovery``."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from types import ModuleType

from recovery._package_guard import claim_packages, leave_current_folder
from recovery.errors import RecoveryError


class StartupFinder:
    """A meta-path finder that finds no module, but prints a line before the first import of torch.

    Torch and transformers take seconds to import, minutes on a slow disk.
    """

    def __init__(self) -> None:
        self.reported = False

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> None:
        """Leave every module to the other finders."""
        if name == "torch" and not self.reported:
            self.reported = True
            print("loading torch and transformers", file=sys.stderr, flush=True)


def arrange() -> None:
    """Install the finder in front of the others, once."""
    if not any(isinstance(finder, StartupFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, StartupFinder())


def main() -> int:
    """Run the command line and return its exit status.

    0 is success, 1 an error (printed as one line), 2 wrong usage, 130 an interrupt.
    """
    try:
        claim_packages()
        if os.environ.get("RANK", "0") == "0":  # only the main process prints
            arrange()
    except RecoveryError as error:
        print(f"recover: error: {error}", file=sys.stderr)
        return 1
    from pipelines.cli.main import run  # only now is it certain that `pipelines` is this project's

    return run()


if __name__ == "__main__":
    leave_current_folder()
    sys.exit(main())
