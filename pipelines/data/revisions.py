"""The data of several cycles without what later documents replace.

A cycle often brings a newer version of a document that an earlier one had. Then the newer one counts: the older is not
rehearsed, no question is asked about it in training, and of its probes those are asked whose answers still hold. A
cycle can also withdraw documents.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from evals.answer_matching import normalise
from evals.outdated import Fate, fate
from pipelines.data.corpus_snapshot import CorpusSnapshot, saved_snapshots
from recovery.data.corpus.revisions import Revision, revised, whole_texts
from recovery.data.document_questions import documents_of
from recovery.errors import UsageError
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

    Documents that one of them withdraws are left out with all that is about them.

    Probes of which the newer version gives another answer are ``outdated``. Held-out texts stay as they are, so that
    bits per byte are measured on the same text in every cycle.
    """
    texts = {number: whole_texts((*corpus.documents, *corpus.held_out)) for number, corpus in corpora.items()}
    later = [number for number in sorted(corpora) if number in trained and corpora[number].replaces]
    unread = {(number, name) for number in later for name in whole_texts(corpora[number].held_out)}
    unread -= {(number, name) for number in later for name in whole_texts(corpora[number].documents)}
    replaced = revised(texts, later, unread)
    found = {}
    for number, corpus in corpora.items():
        after = [corpora[k] for k in sorted(corpora) if k > number and k in trained]
        left = withdrawn(corpus, after)
        if replaced[number] or left:
            corpus = _without(corpus, replaced[number], left, _asked(one for one in after if one.replaces))
        found[number] = corpus
    return found


def withdrawn(corpus: CorpusSnapshot, later: Iterable[CorpusSnapshot]) -> set[str]:
    """Return the ids of the documents that later corpora withdraw."""
    names = {name for one in later for name in one.withdrawn}
    return {document.id for document in (*corpus.documents, *corpus.held_out) if _among(document.id, names)}


def check_withdrawn(corpora: Mapping[int, CorpusSnapshot], own: CorpusSnapshot) -> None:
    """Raise UsageError for a name that a corpus withdraws, and no earlier one has."""
    known = {d.id for k, one in corpora.items() if k < own.cycle for d in (*one.documents, *one.held_out)}
    for name in own.withdrawn:
        if not any(_among(id, {name}) for id in known):
            close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
            hint = f": did you mean {close[0]}?" if close else ""
            raise UsageError(f"--withdraw {name}: no document of an earlier cycle has this name, nor is in it{hint}")


def _among(id: str, names: Collection[str]) -> bool:
    """Whether a document, or what it is a part of, or a folder that it is in, is named."""
    path = id.partition("#")[0]
    own = {id, path, *(parent.as_posix() for parent in PurePosixPath(path).parents)} - {"."}
    return not own.isdisjoint(name.rstrip("/") for name in names)


def revision_lines(whole: Mapping[int, CorpusSnapshot], current: Mapping[int, CorpusSnapshot]) -> list[str]:
    """Return a line for each corpus of which later ones replace or withdraw documents, by what :func:`up_to_date` left
    of it.
    """
    lines = []
    for number, left in current.items():
        documents, probes = {d.id for d in whole[number].documents}, whole[number].probes
        if left is whole[number]:
            continue
        gone = documents & withdrawn(whole[number], (one for k, one in whole.items() if k > number))
        newer = documents - gone - {document.id for document in left.documents}
        what = {"have a newer version, which counts": newer, "are withdrawn": gone}
        said = [
            f"{len(ids)} of the {len(documents)} documents of cycle {number} {how}" for how, ids in what.items() if ids
        ]
        if not said:  # what is withdrawn was held out
            continue
        lines.append(
            f"{'; '.join(said)}: {'they are' if gone else 'the older one is'} neither rehearsed nor "
            f"asked about in training; of {len(probes)} probes of that cycle {len(left.outdated)} are outdated, and "
            f"{len(left.gone)} no longer asked"
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


def _without(
    corpus: CorpusSnapshot, replaced: Mapping[str, Revision], out: Collection[str], asked: Asked
) -> CorpusSnapshot:
    fates = {
        probe.id: Fate.GONE if probe.source in out and not probe.control else _fate(probe, replaced, asked)
        for probe in corpus.probes
    }
    left = {*replaced, *out}
    return replace(
        corpus,
        documents=tuple(document for document in corpus.documents if document.id not in left),
        questions=tuple(question for question in corpus.questions if documents_of(question).isdisjoint(left)),
        texts=tuple(text for text in corpus.texts if text.document not in left),
        probes=tuple(probe for probe in corpus.probes if fates[probe.id] is Fate.CURRENT),
        outdated=tuple(probe for probe in corpus.probes if fates[probe.id] is Fate.CHANGED),
        gone=tuple(probe for probe in corpus.probes if fates[probe.id] is Fate.GONE),
    )


def _fate(probe: Probe, replaced: Mapping[str, Revision], asked: Asked) -> Fate:
    """Return what became of a probe; if the newer version comes with the same question, its answers decide."""
    if probe.control or probe.absent or probe.source not in replaced:
        return Fate.CURRENT
    now = asked.get((probe.source, normalise(probe.question))) if probe.form == "question" else None
    if now is None:
        return fate(probe, replaced[probe.source])
    return Fate.CHANGED if now.isdisjoint(map(normalise, probe.answers)) else Fate.CURRENT
