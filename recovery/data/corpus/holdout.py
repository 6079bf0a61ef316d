"""Held-out split of a corpus: whole documents if there are enough, else paragraphs; near-duplicates stay together."""

from __future__ import annotations

import zlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from recovery.data.corpus.documents import Document
from recovery.data.corpus.markdown import fenced
from recovery.data.corpus.text import normalise, paragraphs, running_words, share, word_count

# Near-duplicate documents: texts that have most of their sequences of five words in common.
#
# In scripts that are written without spaces between words the sequences are of five characters.
#
# One-permutation hashing (Li, Owen and Zhang, arXiv 1208.1259) of the sequences finds candidates in linear time: each
# text is a sketch of 64 numbers, and two texts are candidates if four neighbouring numbers agree. Their similarity is
# then computed from the texts.

LEAST = 0.9  # Jaccard similarity of the sets of sequences
_WORDS = 5  # of a sequence
_FEWEST = 20  # sequences: shorter texts are not compared
_BINS, _BAND = 64, 4  # at a similarity of 0.9 all sixteen bands differ in one pair of 4 million
# Odd numbers, by which the hashes of the words of a sequence are weighted, so that their order counts.
_FACTORS = np.array([0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93, 1], np.uint64)

_LEAST_EQUAL = 48  # of the 64 numbers: at a similarity of 0.9 four standard deviations below the mean
_MOST_TRIED = 16  # failed comparisons for each text: templates make thousands of texts that are almost linked
_BUCKET = 64  # texts of a band that are remembered

Hashes = NDArray[np.uint64]


@dataclass
class NearDuplicates:
    """Finds near-duplicates of earlier texts, and groups of texts that such pairs link.

    A text can be a near-duplicate only of an earlier text that is not one itself. Groups are transitive: of three
    versions the third may be similar only to the second, which is a near-duplicate of the first.

    Per text it needs about two kilobytes of memory. It refers to the corpus's own texts, since copies in normal form
    would double its memory: an earlier text is normalised when it is compared.
    """

    _texts: list[tuple[str, str]] = field(default_factory=list)
    _sketches: list[bytes] = field(default_factory=list)
    _bands: dict[int, int] = field(default_factory=dict)  # by band: the first text that is not a near-duplicate
    _others: dict[int, list[int]] = field(default_factory=dict)  # by band: its other texts
    _above: dict[int, int] = field(default_factory=dict)  # by text: an earlier one of its group

    def find(self, name: str, text: str, normal: str | None = None) -> str | None:
        """Return the name of the earlier text of which this is a near-duplicate (similarity ``LEAST``), or None.

        ``normal`` is the text's normal form, if that is known.
        """
        hashes = _sequences(normalise(text) if normal is None else normal)
        if len(hashes) < _FEWEST:
            return None
        sketch = _sketch(hashes)
        keys, number = _keys(sketch), len(self._texts)
        self._texts.append((name, text))
        self._sketches.append(sketch.astype(np.uint16).tobytes())
        firsts = {self._bands[key] for key in keys if key in self._bands}
        matches = [candidate for candidate in firsts if self._is_similar(candidate, hashes)]
        self._link(number, matches)
        missed = 0
        for candidate in self._nearest(sketch, {n for key in keys for n in self._others.get(key, ())} - firsts):
            if self._root(candidate) == self._root(number):
                continue
            if self._is_similar(candidate, hashes):
                self._link(number, [candidate])
            elif (missed := missed + 1) == _MOST_TRIED:
                break
        for key in keys:
            if matches or key in self._bands:
                self._others[key] = [*self._others.get(key, ())[1 - _BUCKET :], number]
            else:
                self._bands[key] = number
        return self._texts[matches[0]][0] if matches else None

    def groups(self) -> dict[str, str]:
        """Return the name of the first text of its group for each text that is linked to another one."""
        linked = {*self._above, *self._above.values()}
        return {self._texts[number][0]: self._texts[self._root(number)][0] for number in sorted(linked)}

    def _is_similar(self, number: int, hashes: Hashes) -> bool:
        return _similarity(hashes, _sequences(normalise(self._texts[number][1]))) >= LEAST

    def _nearest(self, sketch: Hashes, numbers: Iterable[int]) -> list[int]:
        """Return the earlier texts among ``numbers`` that may be linked to a text, the likeliest first."""
        if not (candidates := sorted(numbers, reverse=True)):
            return []
        sketches = np.frombuffer(b"".join(self._sketches[n] for n in candidates), np.uint16).reshape(-1, _BINS)
        equal = (sketches == sketch.astype(np.uint16)).sum(1)
        return [candidates[at] for at in np.argsort(-equal, kind="stable") if equal[at] >= _LEAST_EQUAL]

    def _root(self, number: int) -> int:
        """Return the first text of a group."""
        while (above := self._above.get(number)) is not None:
            if above in self._above:
                self._above[number] = self._above[above]
            number = above
        return number

    def _link(self, number: int, numbers: Iterable[int]) -> None:
        for linked in numbers:
            first, other = sorted((self._root(number), self._root(linked)))
            if first != other:
                self._above[other] = first


def contained(text: str, other: str) -> float:
    """Return |A & B| / min(|A|, |B|) of the sequences of two texts; of their words if one is too short."""
    first, second = (_sequences(normalise(side)) for side in (text, other))
    if min(len(first), len(second)) < _FEWEST:
        words, other_words = (set(running_words(normalise(side))) for side in (text, other))
        return len(words & other_words) / max(1, min(len(words), len(other_words)))
    return len(np.intersect1d(first, second, assume_unique=True)) / min(len(first), len(second))


def in_common(text: str, other: str) -> float:
    """Return the Jaccard similarity of the sequences of two texts; 0 if one is too short to be compared."""
    first, second = (_sequences(normalise(side)) for side in (text, other))
    return _similarity(first, second) if min(len(first), len(second)) >= _FEWEST else 0.0


def _sequences(text: str) -> Hashes:
    """Return the sorted hashes of the different sequences of five words."""
    words = np.fromiter((zlib.crc32(w.encode("utf-8", "surrogatepass")) for w in running_words(text)), np.uint64)
    if len(words) < _WORDS:
        return words[:0]
    windows = np.lib.stride_tricks.sliding_window_view(words, _WORDS)
    mixed = (windows * _FACTORS).sum(1, dtype=np.uint64)
    mixed = (mixed ^ (mixed >> np.uint64(31))) * _FACTORS[1]  # the high bits, by which the bins are cut, depend on all
    hashes: Hashes = np.unique(mixed ^ (mixed >> np.uint64(29)))
    return hashes


def _sketch(hashes: Hashes) -> Hashes:
    """Return the smallest hash of each of 64 equal ranges; of an empty range, that of the next one."""
    starts = np.arange(_BINS, dtype=np.uint64) << np.uint64(58)
    return hashes[np.searchsorted(hashes, starts) % len(hashes)]


def _keys(sketch: Hashes) -> list[int]:
    """Return a number for each band and its position, as a key that needs less memory than the band's bytes."""
    bands = sketch.reshape(-1, _BAND)
    placed = np.column_stack((bands, np.arange(len(bands), dtype=np.uint64)))
    mixed = (placed * _FACTORS).sum(1, dtype=np.uint64)
    mixed = (mixed ^ (mixed >> np.uint64(31))) * _FACTORS[1]
    keys: list[int] = (mixed >> np.uint64(4)).tolist()  # sixty bits: one digit less of Python's integers
    return keys


def _similarity(hashes: Hashes, others: Hashes) -> float:
    """Return the Jaccard similarity of two sorted sets."""
    common = len(np.intersect1d(hashes, others, assume_unique=True))
    return common / (len(hashes) + len(others) - common)


ENOUGH_DOCUMENTS = 20
PART = "#held-out"  # suffix of a document's id for its held-out paragraphs
_ENOUGH_PARAGRAPHS = 40
_LEAST_WORDS = 8


@dataclass(frozen=True)
class Before:
    """The split of earlier corpora: ``held_out``, by the first document of a group, whether a linked document was held
    out; ``parts``, the wordings of paragraphs that were held out of trained documents; ``trained``, of all trained on.
    """

    held_out: Mapping[str, bool] = field(default_factory=dict)
    parts: frozenset[str] = frozenset()
    trained: frozenset[str] = frozenset()


def hold_out(
    documents: list[Document],
    fraction: float,
    seed: int,
    twins: Mapping[str, str] | None = None,
    before: Before | None = None,
) -> tuple[list[Document], list[Document], list[str]]:
    """Return (training documents, held-out documents, remarks).

    The split depends only on the wording of each text and on ``seed``, not on names or order, so adding or renaming a
    document does not move any other. At most half is held out. ``twins`` maps the id of a document that near-duplicates
    link to others to the id of the first of them. Linked documents follow the first one read, so that no held-out text
    is trained on in another version; of their paragraphs, only those that all of them have are held out. Linked
    documents are all trained on if they exceed ``fraction``, unless nothing else can be held out. ``before`` overrides
    all of this.
    """
    if fraction <= 0:
        return documents, [], []
    fraction, salt, twins, before = min(fraction, 0.5), str(seed), twins or {}, before or Before()
    held_before = {d.id for d in documents if before.held_out.get(twins.get(d.id, d.id), False)}
    if len(held_before) == len(documents):
        remark = "all documents are versions of ones that an earlier cycle holds out: they are trained on nevertheless"
        return documents, [], [remark]
    repeat, others = ([d for d in documents if d.id in held_before], [d for d in documents if d.id not in held_before])
    remarks = [f"held out as in an earlier cycle: {len(repeat)} of {len(documents)} documents"] if repeat else []
    if len(documents) >= ENOUGH_DOCUMENTS:
        kept, held, more = _by_document(others, max(0.0, fraction - len(repeat) / len(documents)), salt, twins, before)
        remarks += [] if repeat and not held else more
        if before.parts:
            kept, parts, _ = _by_paragraph(kept, 0.0, salt, twins, before)
            held += parts
    else:
        kept, held, more = _by_paragraph(others, fraction, salt, twins, before)
        remarks += more
    return kept, [*repeat, *held], remarks


def _by_document(
    documents: list[Document], fraction: float, salt: str, twins: Mapping[str, str], before: Before
) -> tuple[list[Document], list[Document], list[str]]:
    groups: dict[str, list[Document]] = defaultdict(list)
    for document in documents:
        if (first := twins.get(document.id, document.id)) not in before.held_out:
            groups[first].append(document)
    if not groups:
        return documents, [], ["all documents are versions of ones that were trained on: none of them was held out"]
    ranked = sorted((share(group[0].text, salt), first) for first, group in groups.items())
    limit = max(1, fraction * len(documents))
    selected = [groups[first] for position, first in ranked if position < fraction and len(groups[first]) <= limit]
    chosen: set[str] = set()
    for group in selected or [min((groups[first] for _, first in ranked), key=len)][: fraction > 0]:
        if len(chosen) + len(group) <= len(documents) // 2:
            chosen |= {d.id for d in group}
    kept = [d for d in documents if d.id not in chosen]
    remarks = [] if chosen else [f"all {len(documents)} documents are nearly the same: nothing was held out"]
    return kept, [d for d in documents if d.id in chosen], remarks


def _by_paragraph(
    documents: list[Document], fraction: float, salt: str, twins: Mapping[str, str], before: Before
) -> tuple[list[Document], list[Document], list[str]]:
    """Hold out paragraphs of running text, for small corpora.

    Fixed paragraphs stay: code, the first of each document, those that other versions of the document lack or word
    differently, and near-duplicates of all these. Near-duplicates go to the same side. Paragraphs that were held out
    or trained on before stay where they were.
    """
    blocks = [(d, paragraphs(d.text)) for d in documents]
    leader = _leaders(block for _, parts in blocks for block in parts)
    fixed = {leader[b] for _, parts in blocks for b in _fixed(parts)} | _differing(blocks, leader, twins)
    held_again = {paragraph for paragraph in set(leader.values()) - fixed if normalise(paragraph) in before.parts}
    fixed |= {paragraph for paragraph in leader.values() if normalise(paragraph) in before.trained}
    movable = sum(leader[b] not in fixed for _, parts in blocks for b in parts)
    small = movable < _ENOUGH_PARAGRAPHS
    held_out = held_again | {b for b in leader.values() if not small and b not in fixed and share(b, salt) < fraction}
    if not held_out:
        remark = f"nothing was held out of so little text (documents: {len(documents)}, paragraphs: {movable})"
        return documents, [], [remark] if small else []
    kept, held = [], []
    for document, parts in blocks:
        moved = [b for b in parts if leader[b] in held_out]
        if not moved:
            kept.append(document)
            continue
        removed = set(moved)
        remaining = [b for b in parts if b not in removed]
        kept.append(replace(document, text="\n\n".join(remaining)))
        held.append(replace(document, id=f"{document.id}{PART}", text="\n\n".join(moved)))
    return kept, held, [f"fewer than {ENOUGH_DOCUMENTS} documents: held out paragraphs instead of documents"]


def _leaders(blocks: Iterable[str]) -> dict[str, str]:
    """Return for each paragraph the first one of the same wording, or of its group of near-duplicates."""
    duplicates = NearDuplicates()
    by_wording: dict[str, str] = {}
    leader: dict[str, str] = {}
    for block in blocks:
        if (normal := normalise(block)) not in by_wording:
            by_wording[normal] = block
            duplicates.find(block, block, normal)
        leader[block] = by_wording[normal]
    linked = duplicates.groups()
    return {block: linked.get(first, first) for block, first in leader.items()}


def _differing(
    blocks: Sequence[tuple[Document, list[str]]], leader: Mapping[str, str], twins: Mapping[str, str]
) -> set[str]:
    """Return the paragraphs of linked documents that one of these documents does not have."""
    versions: dict[str, list[set[str]]] = defaultdict(list)
    for document, parts in blocks:
        versions[twins.get(document.id, document.id)].append({leader[block] for block in parts})
    return {block for sets in versions.values() for block in sets[0].union(*sets) - sets[0].intersection(*sets)}


def _fixed(parts: Sequence[str]) -> list[str]:
    """Return the paragraphs of a document that stay: the first, and all but running text."""
    numbered = enumerate(zip(parts, fenced(parts), strict=True))
    return [block for number, (block, code) in numbered if number == 0 or code or not _is_prose(block)]


def _is_prose(block: str) -> bool:
    """Return whether a block is running text, not a heading, list, table or code."""
    first = block.lstrip()[:1]
    return word_count(block) >= _LEAST_WORDS and first.isalnum() and not block.startswith((" ", "\t"))
