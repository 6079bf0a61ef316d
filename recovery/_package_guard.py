"""Ensure that ``db``, ``evals``, ``pipelines`` and ``dashboard`` resolve to this project's packages.

Such general names can collide with a folder in the current directory, an entry of PYTHONPATH, or another
distribution in the same environment. A foreign package must never be imported silently in place of this
project's, so the entry point calls :func:`claim_packages` first. It installs a meta-path finder that resolves the
four names only next to the ``recovery`` package, and raises an error if the package found there, or one already
imported, belongs to another project.
"""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

from recovery.errors import RecoveryError

OWN_PACKAGES = ("db", "evals", "pipelines", "dashboard")
MARKER = 'PART_OF = "recovery"'
EXAMPLES = "examples"  # beside them in a clone of the repository; not installed
ROOT = Path(__file__).resolve().parent.parent


class PackageCollisionError(RecoveryError):
    """Another package is installed or imported under the name of one of this project's packages."""


class OwnPackageFinder:
    """A meta-path finder for this project's own top-level packages only.

    ``root`` is the folder that holds them. Every other name is left to the finders that follow.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of ``name`` under ``root``, or None for a name that is not this project's."""
        return PathFinder.find_spec(name, [str(self.root)]) if name in (*OWN_PACKAGES, EXAMPLES) else None


def claim_packages(root: Path = ROOT) -> None:
    """Bind the project's package names to ``root``.

    Raise PackageCollisionError, naming the foreign path, if a package of that name is already imported from
    elsewhere, or if the one under ``root`` has been replaced by another distribution's.
    """
    for name in OWN_PACKAGES:
        _check_imported(name, root)
        _check_on_disk(name, root)
    if not any(isinstance(finder, OwnPackageFinder) and finder.root == root for finder in sys.meta_path):
        sys.meta_path.insert(0, OwnPackageFinder(root))


def leave_current_folder() -> None:
    """Remove the current folder from the import path, where ``python -m recovery`` adds it.

    A user's folder may hold ``datasets.py`` or ``evaluate.py``; a command started there must not import them.
    The folder is kept if it is the project's own, or if PYTHONPATH names it.
    """
    if not sys.path or sys.flags.safe_path:
        return
    here = Path.cwd()
    if sys.path[0] in ("", str(here)) and here.resolve() != ROOT:
        del sys.path[0]


def _check_imported(name: str, root: Path) -> None:
    module = sys.modules.get(name)
    if module is None:
        return
    origin = Path(getattr(module, "__file__", None) or next(iter(getattr(module, "__path__", [])), "?"))
    if origin.resolve() != (root / name / "__init__.py").resolve():
        raise PackageCollisionError(
            f"a foreign package '{name}' ({origin}) was imported before Recovery started: "
            f"find what imports it at start-up (sitecustomize, a .pth file) or use a separate environment"
        )


def _check_on_disk(name: str, root: Path) -> None:
    marker_file = root / name / "__init__.py"
    try:
        lines = marker_file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        raise PackageCollisionError(
            f"Recovery's own package '{name}' is missing ({marker_file}): reinstall Recovery"
        ) from None
    if MARKER not in lines:
        raise PackageCollisionError(
            f"'{name}' at {marker_file.parent} is not Recovery's package but {_owner(name)}: "
            f"install Recovery in a separate environment (python -m venv)"
        )


def _owner(name: str) -> str:
    """Return which other distributions declare a top-level package of this name."""
    owners = set(importlib.metadata.packages_distributions().get(name, ())) - {"recovery"}
    return f"that of {', '.join(sorted(owners))}" if owners else "a foreign one"
