"""Divergences over the whole vocabulary, one or more a file: every file in this folder is part of the list.

Each file declares its divergences in ``DECLARED``. Flags, checks, the loss, the live page's figures and the
documentation are derived from :data:`DIVERGENCES`. Importing this package does not import torch.
"""

from __future__ import annotations

import importlib
import pkgutil

from recovery.losses.divergence import Divergence

_FOUND = [
    divergence
    for module in sorted(pkgutil.iter_modules(__path__), key=lambda module: module.name)
    for divergence in importlib.import_module(f"{__name__}.{module.name}").DECLARED
]
# In the order of --help: the unbounded ones, then those to a mixture.
DIVERGENCES: dict[str, Divergence] = {
    divergence.name: divergence for divergence in sorted(_FOUND, key=lambda divergence: divergence.bounded)
}
