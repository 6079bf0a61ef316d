"""Near-duplicate documents: texts that have most of their sequences of five words in common.

In scripts that are written without spaces between words the sequences are of five characters.

One-permutation hashing (Li, Owen and Zhang, arXiv 1208.1259) of the sequences finds candidates in linear time: each
text is a sketch of 64 numbers, and two texts are candidates if four neighbouring numbers agree. Their similarity is
then computed from the texts.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from recovery.data.corpus.text import normalise, running_words

LEAST = 0.9  # Jaccard similarity of the sets of sequences
_WORDS = 5  # of a sequence
_FEWEST = 20  # sequences: shorter texts are not compared
_BINS, _BAND = 64, 4  # at a similarity of 0.9 all sixteen bands differ in one pair of 4 million
_FACTORS = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93, 1], np.uint64)

_ALIKE = 48  # of the 64 numbers: at a similarity of 0.9 four standard deviations below the mean
_TRIED = 16  # texts that turned out not to be linked, of each text: templates make thousands that are nearly linked
_BUCKET = 64  # texts of a band that are remembered

Hashes = NDArray[np.uint64]


@dataclass
class NearDuplicates:
    """Finds texts that are nearly the same as one given before, and groups of texts that are linked by such pairs.

    A text is a near-duplicate of an earlier one that is none itself. A group goes on from one to the next: of three
    versions the third may be like the second alone, which is a near-duplicate of the first.

    Per text it needs about two kilobytes of memory. The texts themselves are those of the corpus, not copies in normal
    form, which would double its memory: an earlier one is brought into normal form where it is compared.
    """

    _texts: list[tuple[str, str]] = field(default_factory=list)
    _sketches: list[bytes] = field(default_factory=list)
    _bands: dict[int, int] = field(default_factory=dict)  # to the first text, of those that are no near-duplicates
    _others: dict[int, list[int]] = field(default_factory=dict)  # to the further texts of a band
    _above: dict[int, int] = field(default_factory=dict)  # to an earlier text of the same group

    def find(self, name: str, text: str, normal: str | None = None) -> str | None:
        """Return the name of an earlier text with a similarity of ``LEAST`` that is no near-duplicate, if there is one.

        ``normal`` is the text's normal form, if that is known.
        """
        hashes = _sequences(normalise(text) if normal is None else normal)
        if len(hashes) < _FEWEST:
            return None
        sketch = _sketch(hashes)
        keys, own = _keys(sketch), len(self._texts)
        self._texts.append((name, text))
        self._sketches.append(sketch.astype(np.uint16).tobytes())
        firsts = {self._bands[key] for key in keys if key in self._bands}
        found = [number for number in firsts if self._alike(number, hashes)]
        self._link(own, found)
        missed = 0
        for number in self._nearest(sketch, {n for key in keys for n in self._others.get(key, ())} - firsts):
            if self._root(number) == self._root(own):
                continue
            if self._alike(number, hashes):
                self._link(own, [number])
            elif (missed := missed + 1) == _TRIED:
                break
        for key in keys:
            if found or key in self._bands:
                self._others[key] = [*self._others.get(key, ())[1 - _BUCKET :], own]
            else:
                self._bands[key] = own
        return self._texts[found[0]][0] if found else None

    def groups(self) -> dict[str, str]:
        """Return the name of the first text of its group for each text that is linked to another one."""
        linked = {*self._above, *self._above.values()}
        return {self._texts[number][0]: self._texts[self._root(number)][0] for number in sorted(linked)}

    def _alike(self, number: int, hashes: Hashes) -> bool:
        return _similarity(hashes, _sequences(normalise(self._texts[number][1]))) >= LEAST

    def _nearest(self, sketch: Hashes, numbers: Iterable[int]) -> list[int]:
        """Return those of some earlier texts that may be linked, the likeliest first."""
        if not (candidates := sorted(numbers, reverse=True)):
            return []
        known = np.frombuffer(b"".join(self._sketches[n] for n in candidates), np.uint16).reshape(-1, _BINS)
        equal = (known == sketch.astype(np.uint16)).sum(1)
        return [candidates[at] for at in np.argsort(-equal, kind="stable") if equal[at] >= _ALIKE]

    def _root(self, number: int) -> int:
        """Return the first text of a group."""
        while (above := self._above.get(number)) is not None:
            if above in self._above:
                self._above[number] = self._above[above]
            number = above
        return number

    def _link(self, own: int, numbers: Iterable[int]) -> None:
        for number in numbers:
            first, other = sorted((self._root(own), self._root(number)))
            if first != other:
                self._above[other] = first


def contained(one: str, other: str) -> float:
    """Return the share of the sequences of the text with fewer of them that the other has too; of its words, if it is
    too short to be compared by sequences.
    """
    first, second = (_sequences(normalise(text)) for text in (one, other))
    if min(len(first), len(second)) < _FEWEST:
        some, others = (set(running_words(normalise(text))) for text in (one, other))
        return len(some & others) / max(1, min(len(some), len(others)))
    return len(np.intersect1d(first, second, assume_unique=True)) / min(len(first), len(second))


def in_common(one: str, other: str) -> float:
    """Return the share of all sequences of two texts that both have; 0 if one is too short to be compared."""
    first, second = (_sequences(normalise(text)) for text in (one, other))
    return _similarity(first, second) if min(len(first), len(second)) >= _FEWEST else 0.0


def _sequences(text: str) -> Hashes:
    """Return the sorted hashes of the different sequences of five words."""
    words = np.fromiter((zlib.crc32(w.encode("utf-8", "surrogatepass")) for w in running_words(text)), np.uint64)
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
