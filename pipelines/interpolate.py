"""Interpolation between two checkpoints' weights instead of a recovery, with one factor chosen on development prompts.

The cheapest alternative to a recovery (WiSE-FT, arXiv 2109.01903): nothing is trained. Its cost is the completions
sampled to choose the factor, which are counted.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from db import records
from evals import knowledge
from evals.suites import sample
from pipelines.data.corpus_reading import questions_of
from pipelines.data.revisions import current_snapshots
from pipelines.distillation.development import DEVELOPMENT, development_result, reference_result
from pipelines.runtime.engines import engine_of
from pipelines.runtime.model_loading import FrozenModel, check_interpolatable, interpolation_between
from pipelines.runtime.session import Session
from pipelines.runtime.stage import Stage, running
from recovery.config import InterpolateConfig
from recovery.data.prompts import behaviour_prompts
from recovery.errors import UsageError
from recovery.models.interpolation import Interpolation
from recovery.models.loaded import Loaded
from recovery.models.loading import load_model
from recovery.rollouts.engine import Engine, Progress
from recovery.types import Probe, Prompt, SuiteResult
from recovery.workspace import Checkpoint, write_atomically

START = "start"


@dataclass(frozen=True)
class Point:
    """A candidate ``alpha``: its score on development prompts, and on training questions about the documents, if any;
    ``tokens`` were sampled for them.
    """

    alpha: float
    behaviour: float
    knowledge: float | None
    tokens: int


def choose(points: Sequence[Point], floor: float) -> Point:
    """Return the point with the most knowledge among those whose behaviour reaches ``floor``; if none does, the one
    with the best behaviour. Ties, also without questions, go to the larger alpha.
    """
    enough = [point for point in points if point.behaviour >= floor]
    if enough:
        return max(enough, key=lambda p: (0.0 if p.knowledge is None else p.knowledge, p.alpha))
    return max(points, key=lambda p: (p.behaviour, p.alpha))


def interpolate(
    session: Session,
    config: InterpolateConfig,
    *,
    cycle: int | None = None,
    resume: records.Stage | None = None,
    name: str | None = None,
) -> Checkpoint:
    """Choose alpha between two checkpoints and return the interpolated checkpoint, which becomes ``latest``.

    Its parent is the student; the other end is in its details. ``name`` defaults to "cycle-K/recovered". Raises
    UsageError if the two cannot be interpolated, StageInterrupted on an interrupt; ``resume`` is the record of a stage
    to resume.
    """
    student, origin = _ends(session, config)
    number = (resume.cycle if resume is not None else cycle) or student.cycle or session.next_cycle()
    student = session.registered(student, cycle_id=session.cycle_id(number))
    lasting = origin.name if origin.id is not None else str(origin.path)
    config = dataclasses.replace(config, student=student.name, origin=lasting)
    development = _development(session, config)
    questions = _questions(session, config, student, number)
    session.display.say(
        f"weights between {config.origin} and {config.student}: {len(config.alphas)} candidates, each on "
        f"{len(development)} development prompts and {len(questions)} training questions"
    )
    with running(session, "interpolate", config, cycle=number, student=student, resume=resume) as stage:
        reference = reference_result(stage, FrozenModel(session, config), session.base, development, config)
        loaded, line = _load_line(session, config, student, origin)
        points = _measure_all(stage, config, loaded, line, development, questions)
        chosen = choose(points, config.keep * reference.score.value)
        line.move(chosen.alpha)
        extra = {
            "cycle": number,
            "method": "interpolate",
            "alpha": chosen.alpha,
            "parents": [origin.name, student.name],
            "parent_hashes": [origin.hash, student.hash],
        }
        kept = {"points": [dataclasses.asdict(point) for point in points], "base": reference.score.value}
        stage.details = {**extra, **kept, "keep": config.keep}
        session.display.say(f"alpha {chosen.alpha:g}: {_words(chosen)}; base {reference.score.value:.3f}")
        return stage.keep(loaded, "recovered", student, extra, name=name)


def _ends(session: Session, config: InterpolateConfig) -> tuple[Checkpoint, Checkpoint]:
    """Return the two checkpoints. Raises UsageError if they are the same, or if an adapter has another base."""
    student = session.resolve(config.student)
    origin = session.resolve((student.parent or "base") if config.origin == START else config.origin)
    if student.hash == origin.hash:
        raise UsageError(
            f"{student.name} and {origin.name} are the same, so there is nothing between them: name the "
            f"mid-trained one with --student"
        )
    check_interpolatable(student, origin, "use --origin base, or merge adapters first (`recover export NAME --merge`)")
    return student, origin


def _development(session: Session, config: InterpolateConfig) -> list[Prompt]:
    prompts = behaviour_prompts(session.base.path, config.prompts, config.seed)
    verifiable = [prompt for prompt in prompts.development if prompt.checks]
    if not verifiable:
        raise UsageError(
            f"none of the development prompts can be verified ({prompts.source}), so alpha cannot be chosen: "
            f"give prompts with checks by --prompts"
        )
    return list(sample(verifiable, config.development))


def _questions(session: Session, config: InterpolateConfig, student: Checkpoint, cycle: int) -> list[Probe]:
    """Return training questions with answers about the documents of the cycle and of earlier ones; never the probes."""
    read = {*session.trained_cycles(student, cycle), cycle}
    probed = session.learnt_cycles(student, cycle)  # whose probes are not asked
    corpora = current_snapshots(session, probed, read)
    questions = [
        Probe(f"{number}/{question.id}", "question", question.text, (question.answer,))
        for number, prompts in questions_of(corpora).items()
        for question in prompts
        if number in read and question.answer and len(question.messages) == 1
    ]
    return list(sample(questions, config.questions)) if config.questions else []


def _load_line(
    session: Session, config: InterpolateConfig, student: Checkpoint, origin: Checkpoint
) -> tuple[Loaded, Interpolation]:
    session.verified(student)
    session.verified(origin)
    loaded = load_model(
        student.weights,
        tuning="lora" if student.tuning == "lora" else "full",
        adapter=student.adapter,
        precision=config.precision,
        device=config.device,
        template_args=config.template_args,
    )
    return loaded, interpolation_between(loaded, student, origin, config)


def _measure_all(
    stage: Stage,
    config: InterpolateConfig,
    loaded: Loaded,
    line: Interpolation,
    development: Sequence[Prompt],
    questions: Sequence[Probe],
) -> list[Point]:
    """Measure every alpha; results of an earlier attempt at this stage are reused."""
    file = stage.folder / "points.json"
    known = {point.alpha: point for point in _read(file)}
    each = len(development) + len(questions)
    stage.recorder.describe(steps_total=len(config.alphas))
    with (
        stage.session.display.bar("interpolated weights", each * len(config.alphas)) as bar,
        engine_of(loaded, config) as engine,
    ):
        for number, alpha in enumerate(config.alphas, 1):
            stage.interrupts.check()
            if alpha in known:
                bar.advance(each)
            else:
                line.move(alpha)
                results = _asked(config, loaded, engine, development, questions, stage.counting(bar))
                known[alpha] = _point(stage, loaded, alpha, results)
                write_atomically(file, json.dumps([dataclasses.asdict(point) for point in known.values()]))
            point = known[alpha]
            asked = {} if point.knowledge is None else {"development/knowledge": point.knowledge}
            stage.recorder.log(number, {"alpha": alpha, DEVELOPMENT: point.behaviour, **asked})
            stage.session.display.say(f"alpha {alpha:g}: {_words(point)}")
    return [known[alpha] for alpha in config.alphas]


def _asked(
    config: InterpolateConfig,
    loaded: Loaded,
    engine: Engine,
    development: Sequence[Prompt],
    questions: Sequence[Probe],
    progress: Progress,
) -> list[SuiteResult]:
    """Evaluate the current weights on the development prompts, and on the questions, if any."""
    results = [development_result(loaded, engine, development, config, progress)]
    if questions:
        results.append(
            knowledge.ask(
                loaded.chat,
                engine,
                questions,
                suite="development/knowledge",
                max_new_tokens=config.question_tokens,
                window=loaded.max_length,
                seed=config.seed,
                progress=progress,
            )
        )
    return results


def _point(stage: Stage, loaded: Loaded, alpha: float, results: Sequence[SuiteResult]) -> Point:
    """Return the scores at ``alpha`` and their tokens, which are recorded as sampled."""
    tokens = sum(len(loaded.chat.encode(item.response)) + 1 for result in results for item in result.items)
    stage.recorder.usage(tokens_sampled=tokens)
    scores = [result.score.value for result in results]
    return Point(alpha, scores[0], scores[1] if len(scores) > 1 else None, tokens)


def _read(file: Path) -> list[Point]:
    try:
        return [Point(**values) for values in json.loads(file.read_text(encoding="utf-8"))]
    except (OSError, ValueError, TypeError):  # no earlier results, or an incomplete file
        return []


def _words(point: Point) -> str:
    asked = "" if point.knowledge is None else f", questions {point.knowledge:.3f}"
    return f"instructions {point.behaviour:.3f}{asked}"
