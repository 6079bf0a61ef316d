"""What the front door arranges before a command imports anything heavy.

Torch and transformers take seconds to import, minutes on a slow disk: the moment that begins, a line says so. And what
they and nltk would bring along for features that nothing here uses is kept away while they are imported: scikit-learn
and SciPy, which some fifteen hundred further modules come with.
"""

from __future__ import annotations

import contextlib
import importlib.abc
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

_HEAVY = "torch"
# Module -> optional packages it would import, each behind a test of whether it is installed: transformers for assisted
# generation and for the loss of object detection, nltk for classifiers and parsers.
_KEPT_AWAY = {
    "transformers.generation.candidate_generator": ("sklearn",),
    "transformers.loss.loss_for_object_detection": ("scipy",),
    "nltk": ("sklearn", "scipy"),
}


class StartupFinder:
    """A meta-path finder that tells when torch is about to be imported, and makes some imports lighter."""

    def __init__(self) -> None:
        self.told = False

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The spec of a module that is to be imported more lightly; None, which leaves it to others, for all else."""
        if name == _HEAVY and not self.told:
            self.told = True
            print("loading torch and transformers", file=sys.stderr, flush=True)
        if name not in _KEPT_AWAY:
            return None
        spec = PathFinder.find_spec(name, path)
        if spec is not None and isinstance(spec.loader, importlib.abc.Loader):
            spec.loader = _Lighter(spec.loader, _KEPT_AWAY[name])
        return spec


class _Lighter(importlib.abc.Loader):
    """Runs a module while some packages look as if they were not installed."""

    def __init__(self, loader: importlib.abc.Loader, away: Sequence[str]) -> None:
        self.loader, self.away = loader, away

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        with without(*self.away):
            self.loader.exec_module(module)


@contextlib.contextmanager
def without(*names: str) -> Iterator[None]:
    """In the block these packages cannot be imported, but for those that are imported already."""
    hidden = [name for name in names if name not in sys.modules]
    for name in hidden:  # what transformers has found out before would otherwise hold
        known = getattr(sys.modules.get("transformers.utils.import_utils"), f"is_{name}_available", None)
        if known is not None:
            known.cache_clear()
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]  # None says that there is no such module
    try:
        yield
    finally:
        for name in hidden:
            sys.modules.pop(name, None)


def arrange() -> None:
    """Put the finder in front of the import system, once."""
    if not any(isinstance(finder, StartupFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, StartupFinder())
