"""Near-duplicate documents: texts that have most of their sequences of five words in common.

One-permutation hashing (Li, Owen and Zhang, arXiv 1208.1259) of the sequences finds candidates in linear time: each
text is a sketch of 64 numbers, and two texts are candidates if four neighbouring numbers agree. Their similarity is
then computed from the texts.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from recovery.data.corpus.text import normalise

LEAST = 0.9  # Jaccard similarity of the sets of sequences
_WORDS = 5  # of a sequence
_FEWEST = 20  # sequences: shorter texts are not compared
_BINS, _BAND = 64, 4  # at a similarity of 0.9 all sixteen bands differ in one pair of 4 million
_FACTORS = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93, 1], np.uint64)

Hashes = NDArray[np.uint64]


@dataclass
class NearDuplicates:
    """Finds texts that are nearly the same as one given before.

    Per text it needs about two kilobytes of memory. The texts themselves are those of the corpus, not copies in normal
    form, which would double its memory: an earlier one is brought into normal form where it is compared.
    """

    _texts: list[tuple[str, str]] = field(default_factory=list)
    _bands: dict[int, int] = field(default_factory=dict)

    def find(self, name: str, text: str, normal: str | None = None) -> str | None:
        """Return the name of an earlier text with a similarity of ``LEAST``; without one, remember this text.

        ``normal`` is its normal form, if that is known.
        """
        hashes = _sequences(normalise(text) if normal is None else normal)
        if len(hashes) < _FEWEST:
            return None
        keys = _keys(_sketch(hashes))
        for number in {self._bands[key] for key in keys if key in self._bands}:
            first, earlier = self._texts[number]
            if _similarity(hashes, _sequences(normalise(earlier))) >= LEAST:
                return first
        for key in keys:
            self._bands.setdefault(key, len(self._texts))
        self._texts.append((name, text))
        return None


def contained(one: str, other: str) -> float:
    """Return the share of the sequences of the text with fewer of them that the other has too; of its words, if it is
    too short to be compared by sequences.
    """
    first, second = (_sequences(normalise(text)) for text in (one, other))
    if min(len(first), len(second)) < _FEWEST:
        some, others = (set(normalise(text).split()) for text in (one, other))
        return len(some & others) / max(1, min(len(some), len(others)))
    return len(np.intersect1d(first, second, assume_unique=True)) / min(len(first), len(second))


def in_common(one: str, other: str) -> float:
    """Return the share of all sequences of two texts that both have; 0 if one is too short to be compared."""
    first, second = (_sequences(normalise(text)) for text in (one, other))
    return _similarity(first, second) if min(len(first), len(second)) >= _FEWEST else 0.0


def _sequences(text: str) -> Hashes:
    """Return the sorted hashes of the different sequences of five words."""
    words = np.fromiter((zlib.crc32(w.encode("utf-8", "surrogatepass")) for w in text.split()), np.uint64)
    if len(words) < _WORDS:
        return words[:0]
    windows = np.lib.stride_tricks.sliding_window_view(words, _WORDS)
    mixed = (windows * _FACTORS).sum(1, dtype=np.uint64)
    mixed = (mixed ^ (mixed >> np.uint64(31))) * _FACTORS[1]  # the high bits, by which the bins are cut, depend on all
    found: Hashes = np.unique(mixed ^ (mixed >> np.uint64(29)))
    return found


def _sketch(hashes: Hashes) -> Hashes:
    """Return the smallest hash of each of 64 equal ranges; of an empty range, that of the next one."""
    starts = np.arange(_BINS, dtype=np.uint64) << np.uint64(58)
    return hashes[np.searchsorted(hashes, starts) % len(hashes)]


def _keys(sketch: Hashes) -> list[int]:
    """Return a number for each band with its place: a dictionary of numbers needs far less memory than one of bytes."""
    bands = sketch.reshape(-1, _BAND)
    placed = np.column_stack((bands, np.arange(len(bands), dtype=np.uint64)))
    mixed = (placed * _FACTORS).sum(1, dtype=np.uint64)
    mixed = (mixed ^ (mixed >> np.uint64(31))) * _FACTORS[1]
    keys: list[int] = (mixed >> np.uint64(4)).tolist()  # sixty bits: one digit less of Python's integers
    return keys


def _similarity(one: Hashes, other: Hashes) -> float:
    """Return the Jaccard similarity of two sorted sets."""
    common = len(np.intersect1d(one, other, assume_unique=True))
    return common / (len(one) + len(other) - common)
