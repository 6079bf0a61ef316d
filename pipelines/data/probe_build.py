"""Probes generated before training, for review and editing: `recover probes`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from evals.contamination import also_asked, leaked
from evals.probe_generation import Writer
from evals.probe_review import counts
from evals.probes import PROBES_FILE, build_probes, probe_side, too_few
from pipelines.runtime.engines import engine_of
from pipelines.runtime.model_loading import load_frozen
from pipelines.runtime.progress import SuccessiveBars
from pipelines.runtime.session import Session
from recovery.config import ModelConfig
from recovery.data.corpus.documents import Corpus, sampled
from recovery.data.corpus.facts.extraction import facts_of
from recovery.data.corpus.folder import read_corpus
from recovery.data.corpus.passages import Passage, passages
from recovery.data.corpus.sentences import Sentence, sentences
from recovery.data.document_questions import QUESTIONS_FILE
from recovery.data.prompt_files import load_prompts
from recovery.data.sources import given_beside
from recovery.errors import CorpusError, UsageError
from recovery.types import Probe, Prompt
from recovery.workspace import Checkpoint

CONTROL_SHARE = 5  # other probes per control probe
_PASSAGES_PER_QUESTION = 2  # about half of the written questions pass both tests
_FEW_WRITTEN = 0.25

# (corpus, count) -> question probes that a model wrote about the documents
Ask = Callable[[Corpus, int], list[Probe]]


@dataclass(frozen=True)
class Sources:
    """The documents to train on, others, not trained on, for control probes, and the training questions given."""

    corpus: Corpus
    control: Corpus | None = None
    questions: tuple[Prompt, ...] = ()


@dataclass(frozen=True)
class Made:
    """Probes, and report lines about how they were made."""

    probes: tuple[Probe, ...]
    lines: tuple[str, ...]

    def summary(self) -> dict[str, Any]:
        """Return counts by form and kind, the hash and the report lines, as JSON types."""
        return {**counts(self.probes), "lines": list(self.lines)}


@dataclass(frozen=True)
class BuildPlan:
    """The plan of a build: documents, sentences, passages, and the number of probes."""

    documents: int
    control_documents: int
    sentences: int
    passages: int
    count: int
    out: str
    writer: str | None

    def text(self) -> str:
        """Return the plan as text for the user."""
        control = f", and {self.control_documents} documents for control" if self.control_documents else ""
        written = f"; {self.writer} writes questions about {self.passages} passages" if self.writer else ""
        return (
            f"up to {self.count} probes about {self.documents} documents{control}, made from {self.sentences} "
            f"sentences that no training question is made from{written}: to {self.out}"
        )


def read_sources(docs: Path, control: Path | None, *, seed: int) -> Sources:
    """Read both folders. Raise CorpusError if one cannot be used, or if both contain the same documents."""
    corpus, given = sampled(read_corpus(docs, seed=seed)), given_beside(docs, QUESTIONS_FILE)
    questions = tuple(load_prompts(given, kind="knowledge")) if given else ()
    if control is None:
        return Sources(corpus, None, questions)
    other = sampled(read_corpus(control, held_out=0.0, seed=seed))
    trained = {d.text for d in read_corpus(docs, held_out=0.0, seed=seed).documents}
    kept = tuple(d for d in other.documents if d.text not in trained)
    if not kept:
        raise CorpusError(f"{control} contains only documents of {docs}: give --control others, not trained on")
    return Sources(corpus, replace(other, documents=kept), questions)


def plan_build(sources: Sources, *, count: int, out: Path, writer: str | None = None) -> BuildPlan:
    """Return the plan; loads no weights and writes nothing."""
    usable = _probe_sentences(sources.corpus)
    shown = question_passages(sources.corpus, count // 2, 0) if writer else []
    return BuildPlan(
        documents=len(sources.corpus.documents),
        control_documents=len(sources.control.documents) if sources.control else 0,
        sentences=len(usable),
        passages=len(shown),
        count=count,
        out=str(out),
        writer=writer,
    )


def free_to_write(out: Path, *, force: bool) -> None:
    """Raise UsageError if ``out`` must not or cannot be written; called before any work is done."""
    if out.is_dir():
        raise UsageError(f"{out} is a folder: give a file with --out FILE")
    if out.exists() and not force:
        raise UsageError(f"{out} exists already: read it with `recover probes review`, or replace it with --force")
    if not out.parent.is_dir():
        raise UsageError(f"there is no folder {out.parent}: create it, or use another --out FILE")


def question_passages(corpus: Corpus, count: int, seed: int) -> list[Passage]:
    """Return a writer's passages for ``count`` questions, from sentences that no training question is made from."""
    return passages(_probe_sentences(corpus), _PASSAGES_PER_QUESTION * count, seed)


def _probe_sentences(corpus: Corpus) -> list[Sentence]:
    return probe_side(sentences(corpus.documents), facts_of(corpus.documents))


def make(sources: Sources, *, count: int, seed: int, ask: Ask | None = None, writer: str = "the writer") -> Made:
    """Make up to ``count`` probes about the documents to train on, and a fifth as many for control, if available.

    Raise CorpusError if none can be made.
    """
    probes, lines = _about(sources.corpus, sources.questions, count, seed, ask, writer)
    if not probes:
        raise CorpusError(
            f"no probe can be made from {sources.corpus.report.folder}: it leaves no sentence with a name, a number or "
            f"a term to ask for; write {PROBES_FILE} by hand"
        )
    if sources.control is not None:
        controls, more = _about(sources.control, sources.questions, -(-count // CONTROL_SHARE), seed, ask, writer)
        ids = {p.id for p in probes}
        controls = [replace(p, control=True) for p in controls if p.id not in ids]
        if not controls:
            raise CorpusError(f"no control probe can be made from {sources.control.report.folder}")
        probes, lines = probes + controls, [*lines, *(f"control: {line}" for line in more)]
    remark = too_few([p for p in probes if not p.control], count)
    return Made(tuple(probes), tuple([*lines, remark] if remark else lines))


def _about(
    corpus: Corpus, questions: Sequence[Prompt], count: int, seed: int, ask: Ask | None, writer: str
) -> tuple[list[Probe], list[str]]:
    wanted = count // 2
    written = ask(corpus, wanted) if ask is not None else []
    lines = []
    if ask is not None:
        few = len(written) < _FEW_WRITTEN * wanted
        instead = f"; of {wanted} wanted that is too few: a larger model may write more" if few else ""
        lines.append(f"{writer} wrote {len(written)} questions that it answers with the text and not without{instead}")
    probes = build_probes(corpus, count=count, seed=seed, written=written)
    in_text = {p.id for p in leaked(probes, (d.text for d in corpus.documents))}
    if in_text:
        lines.append(f"left out {len(in_text)} questions that the documents ask and answer themselves")
    trained = {p.id for p in also_asked(probes, questions)}
    if trained:
        lines.append(f"left out {len(trained)} questions that {QUESTIONS_FILE} asks too, with their answers")
    return [p for p in probes if p.id not in in_text | trained], lines


def writer_of(session: Session, checkpoint: Checkpoint, config: ModelConfig) -> Ask:
    """Return a function that lets a checkpoint write questions; it is loaded on the first call, after validation."""

    def ask(corpus: Corpus, count: int) -> list[Probe]:
        loaded = load_frozen(session.verified(checkpoint), config)
        found = question_passages(corpus, count, config.seed)
        bars = SuccessiveBars(session.display, f"questions by {checkpoint.name}")
        with engine_of(loaded, config) as engine, bars:
            writer = Writer(loaded.chat, engine, loaded.max_length, config.seed, bars.show)
            return writer.probes(found, corpus.documents, count)

    return ask
