"""Make sure that ``db``, ``evals``, ``pipelines`` and ``dashboard`` mean this project's packages.

Such general names are easily taken: by a folder where the user stands, by an entry of PYTHONPATH, by
another distribution in the same environment. A foreign package must never be imported silently in place of
ours, so the front door calls :func:`claim_packages` before anything else. It puts a finder in front of the
import system that looks for the four names beside the ``recovery`` package and nowhere else, and it refuses
to start when what lies there, or what is already imported, is not ours.
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
ROOT = Path(__file__).resolve().parent.parent


class PackageCollisionError(RecoveryError):
    """Another package stands where one of this project's should be."""


class OwnPackageFinder:
    """A meta-path finder that answers for the project's own top-level packages only.

    ``root`` is the folder that holds them. Every other name is left to the finders that follow.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of ``name`` under ``root``, or None for a name that is not one of ours."""
        return PathFinder.find_spec(name, [str(self.root)]) if name in OWN_PACKAGES else None


def claim_packages(root: Path = ROOT) -> None:
    """Bind the project's package names to ``root``.

    Raises PackageCollisionError, one line naming the foreign path, when a package of that name is already
    imported from elsewhere or when the one under ``root`` has been replaced by another distribution's.
    """
    for name in OWN_PACKAGES:
        _check_imported(name, root)
        _check_on_disk(name, root)
    if not any(isinstance(finder, OwnPackageFinder) and finder.root == root for finder in sys.meta_path):
        sys.meta_path.insert(0, OwnPackageFinder(root))


def leave_current_folder() -> None:
    """Take the current folder off the import path, where ``python -m recovery`` has put it.

    A user's folder may hold ``datasets.py`` or ``evaluate.py``; a command started there must not import them.
    The folder stays when the project itself is run from it, and where PYTHONPATH names it.
    """
    if not sys.path or getattr(sys.flags, "safe_path", False):
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
            f"find what imports it at start-up (sitecustomize, a .pth file) or use an environment of its own"
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
            f"install Recovery in an environment of its own (python -m venv)"
        )


def _owner(name: str) -> str:
    """Which other distributions say that they install a top-level package of this name."""
    owners = set(importlib.metadata.packages_distributions().get(name, ())) - {"recovery"}
    return f"that of {', '.join(sorted(owners))}" if owners else "a foreign one"
