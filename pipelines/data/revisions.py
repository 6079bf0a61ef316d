"""The data of several cycles without what later documents replace.

A cycle often brings a newer version of a document that an earlier one had. Then the newer one counts: the older is not
rehearsed, no question is asked about it in training, and of its probes those are asked whose answers still hold.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from evals.answer_matching import normalise
from evals.outdated import Fate, fate
from pipelines.data.corpus_snapshot import CorpusSnapshot, saved_snapshots
from recovery.data.corpus.revisions import Revision, revised, whole_texts
from recovery.data.document_questions import documents_of
from recovery.types import Probe

if TYPE_CHECKING:
    from pipelines.runtime.session import Session

# Normalised answers by document and normalised question.
Asked = Mapping[tuple[str, str], frozenset[str]]


def current_snapshots(session: Session, cycles: Iterable[int], trained: Collection[int]) -> dict[int, CorpusSnapshot]:
    """Return the snapshots of those ``cycles`` that have documents, as :func:`up_to_date` for a model."""
    return up_to_date(saved_snapshots(session, cycles), trained)


def up_to_date(corpora: Mapping[int, CorpusSnapshot], trained: Collection[int]) -> dict[int, CorpusSnapshot]:
    """Return corpora without the documents, questions and probes that later ones replace, for a model that was
    ``trained`` on the documents of those cycles: what it never read replaces nothing, also of those cycles what is
    held out whole.

    Probes of which the newer version gives another answer are ``outdated``. Held-out texts stay as they are, so that
    bits per byte are measured on the same text in every cycle.
    """
    texts = {number: whole_texts((*corpus.documents, *corpus.held_out)) for number, corpus in corpora.items()}
    later = [number for number in sorted(corpora) if number in trained and corpora[number].replaces]
    unread = {(number, name) for number in later for name in whole_texts(corpora[number].held_out)}
    unread -= {(number, name) for number in later for name in whole_texts(corpora[number].documents)}
    replaced = revised(texts, later, unread)
    return {
        number: _without(corpus, replaced[number], _asked(corpora[k] for k in later if k > number))
        if replaced[number]
        else corpus
        for number, corpus in corpora.items()
    }


def revision_lines(whole: Mapping[int, CorpusSnapshot], current: Mapping[int, CorpusSnapshot]) -> list[str]:
    """Return a line for each corpus of which later ones replace documents, by what :func:`up_to_date` left of it."""
    lines = []
    for number, left in current.items():
        documents, probes = whole[number].documents, whole[number].probes
        if left is not whole[number]:
            lines.append(
                f"{len(documents) - len(left.documents)} of the {len(documents)} documents of cycle {number} have a "
                "newer version, which counts: the older one is neither rehearsed nor asked about in training; of "
                f"{len(probes)} probes of that cycle {len(left.outdated)} are outdated, and {len(left.gone)} no longer "
                "asked"
            )
    return lines


def _asked(later: Iterable[CorpusSnapshot]) -> Asked:
    """Return the normalised answers to each question that comes with the newest version of a document."""
    found: dict[tuple[str, str], frozenset[str]] = {}
    for corpus in later:
        own = {document.id for document in corpus.documents}
        found = {key: answers for key, answers in found.items() if key[0] not in own}
        for probe in corpus.probes:
            if probe.form == "question" and not probe.control:
                key = (probe.source, normalise(probe.question))
                found[key] = found.get(key, frozenset()) | frozenset(map(normalise, probe.answers))
    return found


def _without(corpus: CorpusSnapshot, replaced: Mapping[str, Revision], asked: Asked) -> CorpusSnapshot:
    fates = {probe.id: _fate(probe, replaced, asked) for probe in corpus.probes}
    return replace(
        corpus,
        documents=tuple(document for document in corpus.documents if document.id not in replaced),
        questions=tuple(question for question in corpus.questions if documents_of(question).isdisjoint(replaced)),
        texts=tuple(text for text in corpus.texts if text.document not in replaced),
        probes=tuple(probe for probe in corpus.probes if fates[probe.id] is Fate.CURRENT),
        outdated=tuple(probe for probe in corpus.probes if fates[probe.id] is Fate.CHANGED),
        gone=tuple(probe for probe in corpus.probes if fates[probe.id] is Fate.GONE),
    )


def _fate(probe: Probe, replaced: Mapping[str, Revision], asked: Asked) -> Fate:
    """Return what became of a probe; if the newer version comes with the same question, its answers decide."""
    if probe.control or probe.source not in replaced:
        return Fate.CURRENT
    now = asked.get((probe.source, normalise(probe.question))) if probe.form == "question" else None
    if now is None:
        return fate(probe, replaced[probe.source])
    return Fate.CHANGED if now.isdisjoint(map(normalise, probe.answers)) else Fate.CURRENT
