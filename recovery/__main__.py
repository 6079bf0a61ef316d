"""Entry point of ``recover`` and ``python -m recovery``."""

from __future__ import annotations

import os
import sys

from recovery._package_guard import claim_packages, leave_current_folder
from recovery._startup import arrange
from recovery.errors import RecoveryError

# torch and oneDNN each cache up to 1,024 compiled kernels, one for each shape of a matrix product on a CPU. Completions
# have many lengths, so the memory of a long run would keep growing. The variables are read at the first product.
_CACHE_SIZES = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "32", "LRU_CACHE_CAPACITY": "32"}


def main() -> int:
    """Run the command line and return its exit status.

    0 is success, 1 an error (printed as one line), 2 wrong usage, 130 an interrupt.
    """
    for name, value in _CACHE_SIZES.items():
        os.environ.setdefault(name, value)
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
