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


ENOUGH_DOCUMENTS = 20
PART = "#held-out"  # behind the id of a document of which paragraphs are held out
_ENOUGH_PARAGRAPHS = 40
_LEAST_WORDS = 8


@dataclass(frozen=True)
class Before:
    """What earlier corpora decide: for the first document of a group whether one that is linked to it was held out
    (else it was trained on); the wordings of the paragraphs that were held out alone; those that were trained on.
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
    document does not move any other. At most half is held out. ``twins`` gives, by the id of a document that is linked
    to others by near-duplicates, that of the first one: when whole documents are held out, it follows this text (of
    these the order of reading matters), so that no held-out text is trained on in another version; of paragraphs, those
    are held out that all of these documents have. Documents that are linked are all trained on if they are more than
    ``fraction`` asks for, unless there is nothing else to hold out. What ``before`` decides comes first.
    """
    if fraction <= 0:
        return documents, [], []
    fraction, salt, twins, before = min(fraction, 0.5), str(seed), twins or {}, before or Before()
    known = {d.id for d in documents if before.held_out.get(twins.get(d.id, d.id), False)}
    if len(known) == len(documents):
        remark = "all documents are versions of ones that an earlier cycle holds out: they are trained on nevertheless"
        return documents, [], [remark]
    again, others = [d for d in documents if d.id in known], [d for d in documents if d.id not in known]
    remarks = [f"held out as in an earlier cycle: {len(again)} of {len(documents)} documents"] if again else []
    if len(documents) >= ENOUGH_DOCUMENTS:
        kept, held, more = _whole(others, max(0.0, fraction - len(again) / len(documents)), salt, twins, before)
        remarks += [] if again and not held else more
        if before.parts:
            kept, parts, _ = _by_paragraph(kept, 0.0, salt, twins, before)
            held += parts
    else:
        kept, held, more = _by_paragraph(others, fraction, salt, twins, before)
        remarks += more
    return kept, [*again, *held], remarks


def _whole(
    documents: list[Document], fraction: float, salt: str, twins: Mapping[str, str], before: Before
) -> tuple[list[Document], list[Document], list[str]]:
    groups: dict[str, list[Document]] = defaultdict(list)
    for document in documents:
        if (first := twins.get(document.id, document.id)) not in before.held_out:
            groups[first].append(document)
    if not groups:
        return documents, [], ["all documents are versions of ones that were trained on: none of them was held out"]
    ranked = sorted((share(group[0].text, salt), first) for first, group in groups.items())
    few = max(1, fraction * len(documents))
    wanted = [groups[first] for position, first in ranked if position < fraction and len(groups[first]) <= few]
    chosen: set[str] = set()
    for group in wanted or [min((groups[first] for _, first in ranked), key=len)][: fraction > 0]:
        if len(chosen) + len(group) <= len(documents) // 2:
            chosen |= {d.id for d in group}
    kept = [d for d in documents if d.id not in chosen]
    remarks = [] if chosen else [f"all {len(documents)} documents are nearly the same: nothing was held out"]
    return kept, [d for d in documents if d.id in chosen], remarks


def _by_paragraph(
    documents: list[Document], fraction: float, salt: str, twins: Mapping[str, str], before: Before
) -> tuple[list[Document], list[Document], list[str]]:
    """Hold out paragraphs of running text, for small corpora.

    Code and the first paragraph of a document always stay, and so does what is worded like one that stays, or nearly
    so, and what another version of the document words otherwise or does not have. Paragraphs that are nearly the same
    go to one side. What was held out before is so again, what was trained on stays.
    """
    blocks = [(d, paragraphs(d.text)) for d in documents]
    first = _first_alike(block for _, parts in blocks for block in parts)
    fixed = {first[b] for _, parts in blocks for b in _fixed(parts)} | _reworded(blocks, first, twins)
    again = {alike for alike in set(first.values()) - fixed if normalise(alike) in before.parts}
    fixed |= {alike for alike in first.values() if normalise(alike) in before.trained}
    movable = sum(first[b] not in fixed for _, parts in blocks for b in parts)
    few = movable < _ENOUGH_PARAGRAPHS
    out_of = again | {b for b in first.values() if not few and b not in fixed and share(b, salt) < fraction}
    if not out_of:
        remark = f"nothing was held out of so little text (documents: {len(documents)}, paragraphs: {movable})"
        return documents, [], [remark] if few else []
    kept, held = [], []
    for document, parts in blocks:
        out = [b for b in parts if first[b] in out_of]
        if not out:
            kept.append(document)
            continue
        removed = set(out)
        remaining = [b for b in parts if b not in removed]
        kept.append(replace(document, text="\n\n".join(remaining)))
        held.append(replace(document, id=f"{document.id}{PART}", text="\n\n".join(out)))
    return kept, held, [f"fewer than {ENOUGH_DOCUMENTS} documents: held out paragraphs instead of documents"]


def _first_alike(blocks: Iterable[str]) -> dict[str, str]:
    """Return for each paragraph the first one that is worded like it or linked to it by near-duplicates."""
    near = NearDuplicates()
    worded: dict[str, str] = {}
    first: dict[str, str] = {}
    for block in blocks:
        if (normal := normalise(block)) not in worded:
            worded[normal] = block
            near.find(block, block, normal)
        first[block] = worded[normal]
    linked = near.groups()
    return {block: linked.get(alike, alike) for block, alike in first.items()}


def _reworded(
    blocks: Sequence[tuple[Document, list[str]]], first: Mapping[str, str], twins: Mapping[str, str]
) -> set[str]:
    """Return the paragraphs of linked documents that one of these documents does not have."""
    versions: dict[str, list[set[str]]] = defaultdict(list)
    for document, parts in blocks:
        versions[twins.get(document.id, document.id)].append({first[block] for block in parts})
    return {block for own in versions.values() for block in own[0].union(*own) - own[0].intersection(*own)}


def _fixed(parts: Sequence[str]) -> list[str]:
    """Return the paragraphs of a document that are not held out: the first, and all but running text."""
    numbered = enumerate(zip(parts, fenced(parts), strict=True))
    return [block for number, (block, code) in numbered if number == 0 or code or not _is_prose(block)]


def _is_prose(block: str) -> bool:
    """Return whether a block is running text, not a heading, list, table or code."""
    first = block.lstrip()[:1]
    return word_count(block) >= _LEAST_WORDS and first.isalnum() and not block.startswith((" ", "\t"))
