"""Inputs of an evaluation, gathered from the model, the documents and the user's files, and its plan."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from db import queries
from evals import open_book, suites
from evals.answer_matching import candidates_of
from evals.behaviour import PREFIX, SUITES, own_suites
from evals.instruction_following import can_be_judged
from evals.probes import load_probes
from evals.statistics import effect_in_words
from pipelines.data.corpus_snapshot import CorpusSnapshot
from pipelines.data.revisions import current_snapshots
from pipelines.runtime.session import Session
from pipelines.table import EVALUATE, PlanRow, of_process, table
from recovery.config import EvalConfig
from recovery.data.corpus.folder import read_corpus
from recovery.data.corpus.near_misses import present
from recovery.data.prompt_files import load_prompts
from recovery.data.prompts import behaviour_prompts
from recovery.errors import UsageError
from recovery.lazy_import import lazily
from recovery.text_files import without_marks
from recovery.types import Probe, Prompt
from recovery.workspace import MINIATURE, Checkpoint

if TYPE_CHECKING:
    from pipelines.planning.work import Answering

work = lazily("pipelines.planning.work")  # torch
lm_eval_tasks = lazily("evals.lm_eval_tasks")  # lm-eval takes seconds to import

# Optional parts of a model's folder: general knowledge, further prompts by skill, tasks for lm-eval.
GENERAL = Path("suites") / "general.jsonl"
SKILLS = Path("suites") / "skills"
TASKS = Path("suites") / "lm_eval"
_DEFINED = re.compile(r"""^(?:task|group|tag):\s*["']?([^\s"'#]+)""", re.MULTILINE)


@dataclass(frozen=True)
class Scope:
    """The parts to measure: all of them, or for a cycle only what is new. ``corpora`` None means all known."""

    behaviour: bool = True
    general: bool = True
    corpora: tuple[int, ...] | None = None


EVERYTHING = Scope()


@dataclass(frozen=True)
class EvalInputs:
    """All inputs of an evaluation.

    ``extra_prompts`` are for behaviour suites of which ``instruction`` has too few prompts, ``user_suites`` are the
    user's own by name; ``ifeval`` and ``tasks`` are lm-eval's, by name; ``texts`` are for bits per byte. ``problems``
    describe the skipped lines of files.
    """

    instruction: Sequence[Prompt]
    extra_prompts: Sequence[Prompt]
    user_suites: dict[str, list[Prompt]]
    corpora: dict[int, CorpusSnapshot]
    general: Sequence[Probe]
    ifeval: dict[str, Any]
    tasks: dict[str, Any]
    texts: Sequence[str] = ()
    problems: tuple[str, ...] = ()

    @property
    def pages(self) -> dict[int, dict[str, str]]:
        """The texts of the documents by corpus and id."""
        return {k: {one.id: one.text for one in corpus.documents} for k, corpus in self.corpora.items()}


@dataclass(frozen=True)
class EvalPlan:
    """The plan of an evaluation: items by suite. ``effects`` state the smallest difference each suite can detect,
    ``rows`` what it takes, ``free`` the bytes of memory there are.
    """

    checkpoint: str
    instruction_prompts: int
    behaviour: dict[str, int]
    further_prompts: int
    probes_by_corpus: dict[int, int]
    held_out_documents: dict[int, int]
    general_probes: int
    limit: int | None
    extra: tuple[str, ...] = ()
    effects: tuple[str, ...] = ()
    rows: tuple[PlanRow, ...] = ()
    free: int = 0

    def text(self) -> str:
        """Return the plan as text."""
        probes = ", ".join(f"{n} about corpus {k}" for k, n in self.probes_by_corpus.items()) or "none"
        counts = ", ".join(f"{name} {count}" for name, count in self.behaviour.items())
        behaviour = f"behaviour suites: {counts}; additional prompts for them: {self.further_prompts}"
        return "\n".join(
            [
                f"evaluate {self.checkpoint}: {self.instruction_prompts} instruction prompts; probes: {probes}; "
                f"{self.general_probes} of general knowledge",
                *([behaviour] if counts else []),
                *self.extra,
                *self.effects,
                table(self.rows, self.free),
            ]
        )


def _own_tasks(session: Session, wanted: Sequence[str]) -> Path | None:
    """Return the folder of the built-in miniature's tasks; None for any other model.

    A task's file runs code, in its functions and its templates, so that of a model's folder has to be named. Raises
    UsageError if one of the ``wanted`` names is defined there.
    """
    folder = session.base.path / TASKS
    if folder.resolve() == (session.workspace.models / MINIATURE / TASKS).resolve():
        return folder
    names = {name.partition("=")[0] for name in wanted}
    for file in sorted(folder.glob("*.y*ml")):
        defined = names & set(_DEFINED.findall(_yaml_text(file)))
        if defined:
            raise UsageError(
                f"the task {min(defined)} is defined in the model's folder, and a task runs code: if you trust it, "
                f"give its file, --task {file}"
            )
    return None


def _yaml_text(file: Path) -> str:
    """Return the text of a YAML file as its parser reads it: a byte-order mark may say that it is UTF-16."""
    data = file.read_bytes()
    wide = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    return without_marks(data.decode("utf-16" if wide else "utf-8", errors="replace"))


def gather(session: Session, config: EvalConfig, checkpoint: Checkpoint, scope: Scope = EVERYTHING) -> EvalInputs:
    """Read and check all inputs of an evaluation. Raises UsageError if a file or a task cannot be used."""
    base = session.base
    cycles = session.learnt_cycles(checkpoint, checkpoint.cycle)
    corpora = current_snapshots(session, cycles, session.trained_cycles(checkpoint, checkpoint.cycle))
    test = behaviour_prompts(base.path, config.prompts, config.seed).test if scope.behaviour else ()
    general, ifeval = base.path / GENERAL, config.ifeval
    tasks = _own_tasks(session, config.tasks) if config.tasks else None
    skilled = SUITES if scope.behaviour and config.prompts is None else ()
    skills = [base.path / SKILLS / f"{suite.name}.jsonl" for suite in skilled]  # under the names of behaviour suites
    problems: list[str] = []
    return EvalInputs(
        instruction=[prompt for prompt in test if can_be_judged(prompt)],
        extra_prompts=[*test, *(prompt for file in skills if file.is_file() for prompt in load_prompts(file))],
        user_suites=own_suites(config.behaviour, problems) if scope.behaviour else {},
        corpora=_asked_corpora(corpora, [k for k in corpora if scope.corpora is None or k in scope.corpora], config),
        general=load_probes(general) if scope.general and general.is_file() else (),
        ifeval=lm_eval_tasks.load_ifeval(None if ifeval == "hub" else ifeval) if ifeval and scope.behaviour else {},
        tasks=lm_eval_tasks.load_tasks(config.tasks, include_path=tasks) if config.tasks and scope.general else {},
        texts=_texts(config) if scope.general else (),
        problems=tuple(problems),
    )


def _asked_corpora(
    corpora: Mapping[int, CorpusSnapshot], chosen: Sequence[int], config: EvalConfig
) -> dict[int, CorpusSnapshot]:
    """Return the chosen corpora, with only those near misses that are asked and that no later corpus answers.

    Near misses are drawn before the search, and each document is searched once: searching for all near misses in all
    later documents would be quadratic in the number of cycles.
    """
    limits = suites.corpus_limits(chosen, config.limit, config.earlier_limit)
    near = {k: suites.sample_near_misses(corpora[k].probes, config.near_misses, limits[k]) for k in chosen}
    held: set[str] = set()
    for k, corpus in corpora.items():
        if names := {probe.absent for at in chosen if at < k for probe in near[at]}:
            held |= present(names, (document.text for document in (*corpus.documents, *corpus.held_out)))
    asked = {probe.id for probes in near.values() for probe in probes if probe.absent not in held}
    return {
        k: replace(corpora[k], probes=tuple(p for p in corpora[k].probes if not p.absent or p.id in asked))
        for k in chosen
    }


def plan_evaluate(session: Session, config: EvalConfig, inputs: EvalInputs) -> EvalPlan:
    """Return the plan of an evaluation with these inputs; loads no weights."""
    checkpoint = session.resolve(config.checkpoint)
    kept = suites.sample(inputs.instruction, config.limit)
    behaviour = suites.behaviours(kept, inputs.extra_prompts, config.limit) if kept else {}
    known = {prompt.id for prompt in kept}
    further = {p.id for prompts in behaviour.values() for p in prompts} - known
    user_suites = {name: suites.sample(prompts, config.limit) for name, prompts in inputs.user_suites.items()}
    counts = {name: len(prompts) for name, prompts in (behaviour | user_suites).items()}
    notes = [f"IFEval's own prompts from {config.ifeval}"] if config.ifeval else []
    notes += [f"bits per byte on {len(inputs.texts)} texts from {config.texts}"] if inputs.texts else []
    limits = suites.corpus_limits(inputs.corpora, config.limit, config.earlier_limit)
    cut = [limits[k] or 0 for k, corpus in inputs.corpora.items() if _is_cut(corpus, limits[k], config.limit)]
    notes += [f"of each earlier corpus at most {max(cut)} questions (--earlier-limit)"] if cut else []
    if checkpoint.kind == "base":
        for k, corpus in inputs.corpora.items():
            sampled = suites.sample_probes(_questions(corpus.probes), limits[k])
            asked = [probe for probe in sampled if not probe.control]
            opened = sum(bool(probe.passage.strip()) for probe in asked)
            named = "" if opened == len(asked) else f"; the other {len(asked) - opened} name no passage"
            notes.append(f"open book, corpus {k}: {opened} questions with some 300 tokens of their page each{named}")
    for k, corpus in inputs.corpora.items():
        if near := suites.sample_near_misses(corpus.probes, config.near_misses, limits[k]):
            paged = ", with and without a page" if checkpoint.kind == "base" else ""
            notes.append(f"unanswerable, corpus {k}: {len(near)} questions about what no document holds{paged}")
    notes += [f"lm-eval task {name}: {len(task.eval_docs):,} items" for name, task in inputs.tasks.items()]
    answering = work.Answering.of(config, checkpoint)
    return EvalPlan(
        checkpoint.name,
        len(kept),
        counts,
        len(further) + sum(map(len, user_suites.values())),
        {k: len(corpus.probes) for k, corpus in inputs.corpora.items()},
        {k: len(corpus.held_out) for k, corpus in inputs.corpora.items()},
        len(suites.sample(inputs.general, config.limit)),
        config.limit,
        (*inputs.problems, *notes),
        _effects(session, inputs, len(kept), counts, config),
        tuple(plan_rows(inputs, config, answering, opened=checkpoint.kind == "base")),
        answering.free,
    )


def plan_rows(
    inputs: EvalInputs, config: EvalConfig, answering: Answering, *, opened: bool, cycle: int | None = None
) -> list[PlanRow]:
    """Return what an evaluation takes: the answers to prompts, and the rulers of knowledge about the documents; with
    ``opened`` also the questions with their passage, which the clean model is asked.
    """
    prompts = suites.sample(inputs.instruction, config.limit)
    asked = {p.id for p in prompts}
    for others in (suites.behaviours(prompts, inputs.extra_prompts, config.limit) if prompts else {}).values():
        asked |= {p.id for p in others}
    own = sum(len(suites.sample(others, config.limit)) for others in inputs.user_suites.values())
    seconds = answering.answers(len(asked) + own, config.max_new_tokens, _PROMPT)
    general = suites.sample_probes(inputs.general, config.limit)
    seconds += answering.answers(len(_questions(general)), config.question_tokens, _QUESTION)
    ifeval = sum(len(task.eval_docs) for task in inputs.ifeval.values())
    ifeval = ifeval if config.limit is None else min(ifeval, config.limit)
    seconds += answering.answers(ifeval, config.ifeval_tokens, _PROMPT)
    tasks = sum(min(len(task.eval_docs), config.limit or len(task.eval_docs)) for task in inputs.tasks.values())
    read = sum(map(_text_tokens, inputs.texts)) + tasks * _TASK
    read += sum(_choice_tokens(p) for p in general if p.form == "choice")
    seconds += answering.scores(round(read))
    longest = max(
        config.max_new_tokens if asked or own else config.question_tokens, config.ifeval_tokens if ifeval else 0
    )
    memory = max(answering.memory(max(1, len(asked) + own, ifeval), longest), answering.scoring_memory)
    gpu = answering.setup.gpu
    rows = [PlanRow("evaluation", EVALUATE, seconds, of_process(memory, gpu), cycle)]
    limits = suites.corpus_limits(inputs.corpora, config.limit, config.earlier_limit)
    known = [
        _knowledge_seconds(corpus, limits[k], config, answering, opened=opened) for k, corpus in inputs.corpora.items()
    ]
    if known:
        name = "knowledge rulers and open book" if opened else "knowledge rulers"
        peak = max(answering.memory(config.limit or len(known), config.question_tokens), answering.scoring_memory)
        rows.append(PlanRow(name, EVALUATE, sum(known), of_process(peak, gpu), cycle))
    return rows


# Tokens of a prompt, a question, a passage around a question, an item of lm-eval, and bytes of text a token, for
# estimates.
_PROMPT, _QUESTION, _PASSAGE, _TASK, _BYTES = 128, 48, open_book.MOST_CHARACTERS // 4, 512, 4.0


def _questions(probes: Iterable[Probe]) -> list[Probe]:
    return [probe for probe in probes if probe.form == "question"]


def _text_tokens(text: str) -> float:
    return len(text) / _BYTES


def _choice_tokens(probe: Probe) -> float:
    return _text_tokens(probe.question) + sum(map(_text_tokens, probe.choices))


def _knowledge_seconds(
    corpus: CorpusSnapshot, limit: int | None, config: EvalConfig, answering: Answering, *, opened: bool
) -> float:
    """Return the seconds of one corpus: questions, near misses, open book, likelihoods, choices, held-out texts."""
    questions = suites.sample_probes(_questions(corpus.probes), limit)
    books = sum(bool(probe.passage.strip()) and not probe.control for probe in questions) if opened else 0
    changed = suites.sample(_questions(corpus.outdated), limit)
    near = suites.sample_near_misses(corpus.probes, config.near_misses, limit)
    tokens = config.question_tokens
    seconds = sum(answering.answers(len(asked), tokens, _QUESTION) for asked in (questions, changed, near))
    seconds += answering.answers(books + len(near) * opened, tokens, _PASSAGE + _QUESTION)
    among = candidates_of(corpus.probes)
    read = sum(_QUESTION + sum(map(_text_tokens, among[p.id].texts)) for p in questions if p.id in among)
    read += sum(map(_choice_tokens, suites.sample_probes([p for p in corpus.probes if p.form == "choice"], limit)))
    read += sum(_text_tokens(document.text) for document in corpus.held_out[:limit])
    return seconds + answering.scores(round(read))


def _effects(
    session: Session, inputs: EvalInputs, prompts: int, behaviour: dict[str, int], config: EvalConfig
) -> tuple[str, ...]:
    """Describe the smallest difference of two checkpoints that each suite can detect, near the clean model's score."""
    counts = {"instruction_following": (prompts, "prompts")}
    counts |= {PREFIX + name: (count, "prompts") for name, count in behaviour.items()}
    limits = suites.corpus_limits(inputs.corpora, config.limit, config.earlier_limit)
    for number, corpus in inputs.corpora.items():
        counts[f"domain_knowledge/{number}"] = (_counted(_questions(corpus.probes), limits[number]), "questions")
    counts["general"] = (_counted(inputs.general, config.limit), "questions")
    base = session.base
    scores = queries.scores(session.tracker.database, base.id).to_json() if base.id is not None else {}
    about = {suite: float((scores.get(suite) or {"value": 0.5})["value"]) for suite in counts}
    return tuple(
        f"{effect_in_words(count, p=about[suite], items=items)} in {suite}"
        for suite, (count, items) in counts.items()
        if count
    )


def _is_cut(corpus: CorpusSnapshot, most: int | None, limit: int | None) -> bool:
    """Whether a corpus has more questions than the limit for earlier corpora."""
    questions = _questions(corpus.probes)
    return most != limit and _counted(questions, most) < _counted(questions, limit)


def _counted(probes: Sequence[Probe], limit: int | None) -> int:
    """Count the probes that determine a suite's score."""
    return sum(not probe.control for probe in suites.sample_probes(probes, limit))


def _texts(config: EvalConfig) -> list[str]:
    """Read the user's texts that are not trained on."""
    if config.texts is None:
        return []
    return [document.text for document in read_corpus(config.texts, held_out=0.0).documents]
