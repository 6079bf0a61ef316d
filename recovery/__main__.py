"""The front door: ``recover`` and ``python -m recovery``."""

from __future__ import annotations

import os
import sys

from recovery._packages import claim_packages, leave_current_folder
from recovery._startup import arrange
from recovery.cli.main import run
from recovery.errors import RecoveryError

# torch and oneDNN each keep what they compiled for the last 1,024 shapes of a product on a CPU. Answers come in all
# lengths, so that a long run would go on growing. Read at the first product.
_KEPT = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "32", "LRU_CACHE_CAPACITY": "32"}


def main() -> int:
    """Run the command line and return its exit status.

    0 is success, 1 an error (said in one line), 2 wrong usage, 130 an interrupt.
    """
    for name, value in _KEPT.items():
        os.environ.setdefault(name, value)
    try:
        claim_packages()
        if os.environ.get("RANK", "0") == "0":  # of several processes one speaks
            arrange()
    except RecoveryError as error:
        print(f"recover: error: {error}", file=sys.stderr)
        return 1
    return run()


if __name__ == "__main__":
    leave_current_folder()
    sys.exit(main())
