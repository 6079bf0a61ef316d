"""What a result was produced with: the versions of packages, and the machine."""

from __future__ import annotations

import contextlib
import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

VERSIONED = ("recovery", "torch", "transformers", "peft", "lm_eval")


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that results depend on."""
    by_package = {"python": platform.python_version()}
    for package in VERSIONED:
        with contextlib.suppress(PackageNotFoundError):
            by_package[package] = version(package)
    return by_package


def machine(gpu: str = "") -> str:
    """Return the ``gpu``, the processor, the cores and the versions in one line."""
    by_package = {package: version(package) for package in ("torch", "transformers", "lm_eval")}
    packages = ", ".join(f"{name} {number}" for name, number in by_package.items())
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    used = f"{gpu}, {_processor()}" if gpu else _processor()
    return f"Machine: {used}, {cores} cores; Python {platform.python_version()}, {packages}."


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
