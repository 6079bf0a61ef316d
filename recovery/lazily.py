"""Packages that are slow to import and seldom needed: imported at their first use."""

from __future__ import annotations

import importlib
from typing import Any


class Lazy:
    """Stands for a module until an attribute of it is asked for."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(importlib.import_module(self._name), attribute)


def lazily(name: str) -> Any:
    """The module of that name, imported when it is first used."""
    return Lazy(name)
