"""Versions that are recorded with a stage."""

from __future__ import annotations

import contextlib
import platform
from importlib.metadata import PackageNotFoundError, version

VERSIONED = ("recovery", "torch", "transformers", "peft", "lm_eval")


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that results depend on."""
    found = {"python": platform.python_version()}
    for package in VERSIONED:
        with contextlib.suppress(PackageNotFoundError):
            found[package] = version(package)
    return found
