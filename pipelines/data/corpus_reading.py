"""What a cycle begins with: its documents, read, and the probes and questions that came with them or are made of them.

Training questions are made by :mod:`recovery.data.document_questions`, probes by :mod:`evals.probe_building`: both are
imported here and not beside the snapshots (:mod:`pipelines.data.corpus_snapshot`), which every stage reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from evals.probe_building import about, also_asked, build_probes, leaked, still_absent
from evals.probes import PROBES_FILE, load_probes, probes_hash, too_few
from pipelines.data.corpus_snapshot import CorpusSnapshot
from recovery.config import WRITER_FILE
from recovery.data.corpus.documents import Corpus, sampled
from recovery.data.corpus.folder import read_corpus
from recovery.data.corpus.text import normalise
from recovery.data.document_questions import ProbeGuard, document_questions, unprobed
from recovery.data.prompt_files import load_prompts
from recovery.data.prompt_records import documents_of
from recovery.data.rewritten_texts import read_texts
from recovery.data.sources import QUESTIONS_FILE, given_beside, parse
from recovery.types import Probe, Prompt


def gather(
    docs: Path,
    cycle: int,
    *,
    held_out: float,
    seed: int,
    skip_near: bool = False,
    replaces: bool = True,
    withdrawn: Sequence[str] = (),
    before: Mapping[int, CorpusSnapshot] = MappingProxyType({}),
) -> CorpusSnapshot:
    """Read documents (see :mod:`recovery.data.sources`); make the probes and questions for which they have no files.

    What is linked to documents of cycles ``before`` is held out or trained on as these were.
    Raise CorpusError if nothing in it can be used.
    """
    earlier = [one.split for one in before.values()]
    corpus = read_corpus(docs, held_out=held_out, seed=seed, skip_near=skip_near, before=earlier)
    problems: list[str] = []
    part = sampled(corpus)
    given = given_beside(docs, QUESTIONS_FILE)
    splits = [(corpus.documents, corpus.held_out), *earlier]
    so_far = [document.text for both in splits for documents in both for document in documents]
    probes, lines = _probes(given_beside(docs, PROBES_FILE), given, corpus, part, so_far, seed, problems)
    made = document_questions(docs, part, exclude=probes, seed=seed, problems=problems)
    held_out_ids = corpus.hidden
    questions = [question for question in made if not documents_of(question) & held_out_ids]
    if len(made) > len(questions):
        problems.append(f"left out {len(made) - len(questions)} questions about held-out documents")
    beside = given_beside(docs, WRITER_FILE)
    texts = read_texts(beside, corpus.documents, corpus.held_out, problems) if beside else ()
    lines = [*corpus.report.lines(), *problems, *lines]
    if beside:
        asked = sum(bool(text.question) for text in texts)
        lines.append(_origin("texts about the documents", len(texts) - asked, beside))
        lines += [_origin("questions with answers for --writer-questions", asked, beside)] if asked else []
    lines.append(_origin("questions for the knowledge teacher", len(questions), given))
    if part is not corpus:
        count = f"{len(part.documents):,} of {len(corpus.documents):,} documents"
        lines.append(f"what is made from the documents is made from {count}, chosen by their wording")
    remark = too_few(probes)
    return CorpusSnapshot(
        cycle,
        parse(docs).lasting,
        corpus.hash,
        probes_hash(probes),
        tuple([*lines, remark] if remark else lines),
        corpus.documents,
        corpus.held_out,
        tuple(probes),
        tuple(questions),
        given is not None,
        seed,
        texts,
        replaces=replaces,
        withdrawn=tuple(withdrawn),
        after=tuple(sorted(before)),
    )


def _probes(
    given: Path | None,
    questions: Path | None,
    corpus: Corpus,
    part: Corpus,
    so_far: Sequence[str],
    seed: int,
    problems: list[str],
) -> tuple[list[Probe], list[str]]:
    """Return the probes of the documents' own file, else generated from ``part`` of them, and report lines about them.

    Generated probes that occur in the documents with their answer, or that ``questions`` ask as well, are dropped,
    since training would leak them; all probes about held-out text are dropped, and near misses about what one of the
    texts ``so_far`` holds.
    """
    own = given is not None
    if given:
        probes = still_absent(loaded := load_probes(given, problems=problems), so_far)
        if removed := len(loaded) - len(probes):
            problems.append(f"left out {removed} near misses of {given.name}: a document holds what they ask about")
    else:
        probes = build_probes(part, seed=seed, absent_from=so_far)
    in_text = {p.id for p in leaked(probes, (d.text for d in corpus.documents))}
    trained = _trained(probes, questions, own)
    unseen = corpus.hidden
    hidden = {p.id for p in about(probes, corpus.held_out, corpus.documents)}
    hidden |= {p.id for p in probes if p.source in unseen and not p.control}
    kept = [p for p in probes if p.id not in hidden and (own or p.id not in in_text | trained)]
    lines = [_origin("probes", len(kept), given) + (", in place of generated ones" if own else "")]
    what = "check them" if own else "left out"
    if in_text:
        lines.append(f"{len(in_text)} probes stand in the documents, question and answer: {what}")
    if trained and questions:
        what = "they measure facts that are trained as questions" if own else "left out"
        lines.append(f"{len(trained)} probes ask what {questions.name} asks in other words: {what}")
    if hidden:
        lines.append(f"left out {len(hidden)} probes about text that is held out")
    return kept, lines


def _trained(probes: Sequence[Probe], questions: Path | None, own: bool) -> set[str]:
    """Return the ids of probes that a file of questions asks too, if given; of ``own`` probes, in other words, since
    questions with their wording are not trained on.
    """
    if questions is None:
        return set()
    asked = load_prompts(questions, kind="knowledge", problems=[])  # what is wrong with them is reported once
    guard = ProbeGuard(probes if own else ())
    return {p.id for p in also_asked(probes, [q for q in asked if not guard.has_wording(q.text)])}


def questions_of(corpora: Mapping[int, CorpusSnapshot]) -> dict[int, list[Prompt]]:
    """Return the questions of each cycle that no probe of another cycle asks; its own probes were excluded before.

    Questions that came with the documents are compared by wording, those made from them in any wording.
    """
    kept = {}
    wordings = {
        number: {normalise(probe.question) for probe in corpus.every_probe} for number, corpus in corpora.items()
    }
    for number, corpus in corpora.items():
        others = [k for k in corpora if k != number]
        if corpus.questions_given:
            asked = set().union(*(wordings[k] for k in others))
            kept[number] = [question for question in corpus.questions if normalise(question.text) not in asked]
        else:
            guard = ProbeGuard([probe for k in others for probe in corpora[k].every_probe])
            kept[number] = unprobed(corpus.questions, corpus.documents, guard)
    return kept


def _origin(what: str, count: int, path: Path | None) -> str:
    return f"{count} {what} " + (f"from {path.name}" if path else "made from the documents")
