"""Joint bootstrap of means over items: pages are drawn with replacement, crossed with seeds where there are several."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from evals.statistics import Floats, cluster_sums

DRAWS = 2000
SEED = 0


def resampled_means(values: ArrayLike, groups: Sequence[str]) -> Floats:
    """Return means [draws, quantities] of ``values`` [seeds, items, quantities], all quantities of a draw on the same.

    Items of one group are drawn together; an empty group is one of its own. Seeds are drawn independently of groups.
    """
    array = np.asarray(values, dtype=np.float64)
    seeds, _, quantities = array.shape
    sizes = cluster_sums(array[0, :, 0], groups)[1]
    sums = np.array([[cluster_sums(one[:, q], groups)[0] for q in range(quantities)] for one in array])
    generator = np.random.default_rng(SEED)
    pages = generator.multinomial(len(sizes), np.full(len(sizes), 1 / len(sizes)), DRAWS).astype(np.float64)
    runs = generator.multinomial(seeds, np.full(seeds, 1 / seeds), DRAWS) / seeds
    means: Floats = np.einsum("ds,sqc,dc->dq", runs, sums, pages) / (pages @ sizes)[:, None]
    return means


def interval(draws: ArrayLike, alpha: float = 0.05) -> tuple[float, float]:
    """Return the two-sided percentile interval of bootstrap draws."""
    low, high = np.quantile(np.asarray(draws, dtype=np.float64), [alpha / 2, 1 - alpha / 2])
    return float(low), float(high)
