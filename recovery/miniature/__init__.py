"""The miniature: a small fictional world and a language model trained on it, for complete runs in minutes on a CPU.

    materialise(folder)                write the shipped model as a Hugging Face folder
    write_corpora(folder, count, seed) write corpora of the world as folders of Markdown
    write_releases(folder, seed)       write two releases of a handbook, the second with changed values
    build(out, seed=0)                 train the model from scratch

Model and files have the usual formats: no other part of the project treats them specially.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from recovery.miniature.corpora import write_corpora
from recovery.miniature.package import materialise
from recovery.miniature.releases import write_releases

if TYPE_CHECKING:
    from recovery.miniature.recipe import BuildReport, Recipe, build

__all__ = ["BuildReport", "Recipe", "build", "materialise", "write_corpora", "write_releases"]


def __getattr__(name: str) -> Any:
    """Import the recipe on first access, since it loads torch and lm-eval."""
    if name in ("BuildReport", "Recipe", "build"):
        return getattr(importlib.import_module("recovery.miniature.recipe"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
