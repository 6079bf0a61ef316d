"""The front door: ``recover`` and ``python -m recovery``."""

from __future__ import annotations

import sys

from recovery._packages import claim_packages, leave_current_folder
from recovery.cli.main import run
from recovery.errors import RecoveryError


def main() -> int:
    """Run the command line and return its exit status.

    0 is success, 1 an error (said in one line), 2 wrong usage, 130 an interrupt.
    """
    try:
        claim_packages()
    except RecoveryError as error:
        print(f"recover: error: {error}", file=sys.stderr)
        return 1
    return run()


if __name__ == "__main__":
    leave_current_folder()
    sys.exit(main())
