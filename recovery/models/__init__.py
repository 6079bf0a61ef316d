"""Models: loading, chat templates, output heads, attention, sharding, checkpoints on disk."""

import logging
import sys

# bitsandbytes, which peft imports where it is installed, fetches native code from the hub on some processors if the
# package `kernels` is there, and prints a warning if it is not. Only a program that imports `kernels` itself gets that.
if "kernels" not in sys.modules:
    sys.modules["kernels"] = None  # type: ignore[assignment]
logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)
