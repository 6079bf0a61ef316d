"""Hostile model folders, adapters and GGUF files: each case changes a copy of a tiny model that works.

The folder of a case holds ``model`` (and ``base``, the model itself, for adapters), and beside them ``outside``: a
model and a text that no case may bring in. What is executed leaves the file ``executed`` beside them.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.torture.hostile_models.adapters import adapter, adapters
from tests.torture.hostile_models.case import OUTSIDE, Case
from tests.torture.hostile_models.configs import configs
from tests.torture.hostile_models.ggufs import ggufs
from tests.torture.hostile_models.links import links
from tests.torture.hostile_models.tokenizers import templates, tokenizers
from tests.torture.hostile_models.weights import indices, pickles, safetensors

__all__ = ["OUTSIDE", "Case", "adapter", "cases"]


def cases(large: bool) -> Iterator[Case]:
    """Yield all cases; ``large`` ones have files of hundreds of megabytes."""
    yield Case("untouched", lambda f: None, fine=True)
    yield from pickles()
    yield from safetensors(1_000_000)
    yield from indices()
    yield from links()
    yield from configs()
    yield from tokenizers(200_000_000 if large else 120_000_000)
    yield from templates()
    yield from adapters()
    yield from ggufs(1_000_000)
