"""Description of the machine that produced a result."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from pathlib import Path


def machine(gpu: str = "") -> str:
    """Return the ``gpu``, the processor, the cores and the versions in one line."""
    versions = {package: _version(package) for package in ("torch", "transformers", "lm_eval")}
    packages = ", ".join(f"{name} {number}" for name, number in versions.items())
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    used = f"{gpu}, {_processor()}" if gpu else _processor()
    return f"Machine: {used}, {cores} cores; Python {platform.python_version()}, {packages}."


def _version(package: str) -> str:
    return importlib.metadata.version(package)


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())
