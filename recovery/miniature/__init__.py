"""The miniature: a small fictional world and a model of it, so that everything can be tried in minutes on a CPU.

    materialise(folder)                write the shipped model as an ordinary Hugging Face folder
    write_corpora(folder, count, seed) write corpora of the world as folders of Markdown
    build(out, seed=0)                 train the model again from nothing

It is an ordinary model and ordinary files: nothing else in the project knows how small it is.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from recovery.miniature.corpora import write_corpora
from recovery.miniature.package import materialise

if TYPE_CHECKING:
    from recovery.miniature.recipe import BuildReport, Recipe, build

__all__ = ["BuildReport", "Recipe", "build", "materialise", "write_corpora"]


def __getattr__(name: str) -> Any:
    """The recipe loads torch and lm-eval, so it is imported only when it is asked for."""
    if name in ("BuildReport", "Recipe", "build"):
        return getattr(importlib.import_module("recovery.miniature.recipe"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
