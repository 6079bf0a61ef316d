"""Probes made beforehand, to be read and changed before anything is learnt: `recover probes`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from evals.leakage import leaked
from evals.probes import PROBES_FILE, build_probes, probe_side, too_few
from evals.reviewing import counts
from recovery.corpus import Corpus, read_corpus
from recovery.corpus.facts import facts_of
from recovery.corpus.passages import Passage, passages
from recovery.corpus.sentences import Sentence, sentences
from recovery.errors import CorpusError, UsageError
from recovery.types import Probe

CONTROL_SHARE = 5  # one control probe to so many others
_PASSAGES_PER_QUESTION = 2  # about half of what is written passes both tests
_FEW_WRITTEN = 0.25

# ask(corpus, how many): question probes that a model wrote about the documents
Ask = Callable[[Corpus, int], list[Probe]]


@dataclass(frozen=True)
class Sources:
    """The documents that will be learnt, and others that will not, for control."""

    corpus: Corpus
    control: Corpus | None = None


@dataclass(frozen=True)
class Made:
    """Probes, and lines for a person about how they came to be."""

    probes: tuple[Probe, ...]
    lines: tuple[str, ...]

    def summary(self) -> dict[str, Any]:
        """Counts by form and kind, and the hash, in JSON's types."""
        return {**counts(self.probes), "lines": list(self.lines)}


@dataclass(frozen=True)
class BuildPlan:
    """What would be made of which documents."""

    documents: int
    control_documents: int
    sentences: int
    passages: int
    count: int
    out: str
    writer: str | None

    def text(self) -> str:
        """The plan for a person."""
        beside = f", and {self.control_documents} documents for control" if self.control_documents else ""
        asked = f"; {self.writer} writes questions about {self.passages} passages" if self.writer else ""
        return (
            f"up to {self.count} probes about {self.documents} documents{beside}, made from {self.sentences} sentences "
            f"that no training question is made of{asked}: to {self.out}"
        )


def read_sources(docs: Path, control: Path | None, *, seed: int) -> Sources:
    """Read both folders. Raises CorpusError where one cannot be used, or where both hold the same documents."""
    corpus = read_corpus(docs, seed=seed)
    if control is None:
        return Sources(corpus)
    other = read_corpus(control, held_out=0.0, seed=seed)
    trained = {d.text for d in read_corpus(docs, held_out=0.0, seed=seed).documents}
    kept = tuple(d for d in other.documents if d.text not in trained)
    if not kept:
        raise CorpusError(f"{control} holds only documents of {docs}: for control name others, not trained on")
    return Sources(corpus, replace(other, documents=kept))


def plan_build(sources: Sources, *, count: int, out: Path, writer: str | None = None) -> BuildPlan:
    """The plan; loads no weights and writes nothing."""
    mine = _askable(sources.corpus)
    shown = question_passages(sources.corpus, count // 2, 0) if writer else []
    return BuildPlan(
        documents=len(sources.corpus.documents),
        control_documents=len(sources.control.documents) if sources.control else 0,
        sentences=len(mine),
        passages=len(shown),
        count=count,
        out=str(out),
        writer=writer,
    )


def free_to_write(out: Path, *, force: bool) -> None:
    """Raise UsageError where ``out`` must not or cannot be written: said before any work is done."""
    if out.is_dir():
        raise UsageError(f"{out} is a folder: name a file with --out FILE")
    if out.exists() and not force:
        raise UsageError(f"{out} exists already: read it with `recover probes review`, or replace it with --force")
    if not out.parent.is_dir():
        raise UsageError(f"there is no folder {out.parent}: make it, or name another --out FILE")


def question_passages(corpus: Corpus, count: int, seed: int) -> list[Passage]:
    """What a writer is shown, for ``count`` questions: only sentences that no training question is made of."""
    return passages(_askable(corpus), _PASSAGES_PER_QUESTION * count, seed)


def _askable(corpus: Corpus) -> list[Sentence]:
    return probe_side(sentences(corpus.documents), facts_of(corpus.documents))


def make(sources: Sources, *, count: int, seed: int, ask: Ask | None = None, writer: str = "the writer") -> Made:
    """Up to ``count`` probes about what will be learnt, and a fifth as many for control where there are documents.

    Raises CorpusError where not one can be made.
    """
    probes, lines = _about(sources.corpus, count, seed, ask, writer)
    if not probes:
        raise CorpusError(
            f"no probe can be made from {sources.corpus.report.folder}: it holds no sentence with a name, a number or "
            f"a term to ask for; write {PROBES_FILE} by hand"
        )
    if sources.control is not None:
        controls, more = _about(sources.control, -(-count // CONTROL_SHARE), seed, ask, writer)
        ids = {p.id for p in probes}
        controls = [replace(p, control=True) for p in controls if p.id not in ids]
        if not controls:
            raise CorpusError(f"no control probe can be made from {sources.control.report.folder}")
        probes, lines = probes + controls, [*lines, *(f"control: {line}" for line in more)]
    remark = too_few([p for p in probes if not p.control])
    return Made(tuple(probes), tuple([*lines, remark] if remark else lines))


def _about(corpus: Corpus, count: int, seed: int, ask: Ask | None, writer: str) -> tuple[list[Probe], list[str]]:
    wanted = count // 2
    written = ask(corpus, wanted) if ask is not None else []
    lines = []
    if ask is not None:
        few = len(written) < _FEW_WRITTEN * wanted
        instead = f"; of {wanted} wanted that is too few, and gaps in sentences take their place" if few else ""
        lines.append(f"{writer} wrote {len(written)} questions that it answers with the text and not without{instead}")
    probes = build_probes(corpus, count=count, seed=seed, written=written)
    told = {p.id for p in leaked(probes, (d.text for d in corpus.documents))}
    if told:
        lines.append(f"left out {len(told)} questions that the documents ask and answer themselves")
    return [p for p in probes if p.id not in told], lines
