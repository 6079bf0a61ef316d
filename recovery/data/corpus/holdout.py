"""Held-out split of a corpus: whole documents if there are enough, else single paragraphs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from recovery.data.corpus.documents import Document
from recovery.data.corpus.markdown import fenced
from recovery.data.corpus.near_duplicates import NearDuplicates
from recovery.data.corpus.text import normalise, paragraphs, share, word_count

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
        remark = f"only {len(documents)} documents and {movable} paragraphs: nothing was held out"
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
