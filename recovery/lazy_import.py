"""Lazy import of packages that are slow to import and seldom needed."""

from __future__ import annotations

import importlib
from typing import Any


class Lazy:
    """Proxy of a module that imports it at the first attribute access."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(importlib.import_module(self._name), attribute)


def lazily(name: str) -> Any:
    """Return the module of that name, imported at its first use."""
    return Lazy(name)
