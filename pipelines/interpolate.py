"""Weights between two checkpoints in place of a recovery: one number, chosen on development prompts.

The cheapest rival of a recovery (WiSE-FT, arXiv 2109.01903): nothing is trained. What it costs is the answers by which
the number is chosen, and they are counted. Read top to bottom.
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
from pipelines.answers import DEVELOPMENT, development_result, reference_result
from pipelines.corpora import thaw_all
from pipelines.models import engine_of
from pipelines.session import Session
from pipelines.stage import Stage, running
from recovery.config import InterpolateConfig
from recovery.errors import UsageError
from recovery.interpolation import Line
from recovery.loading import Loaded, load_model
from recovery.prompts import behaviour_prompts
from recovery.rollouts import Engine, Progress
from recovery.types import Probe, Prompt, SuiteResult
from recovery.workspace import Checkpoint, write_atomically

START = "start"


@dataclass(frozen=True)
class Point:
    """A place between the two: its score on development prompts, and on training questions about the documents where
    there are any; ``tokens`` were sampled to find them.
    """

    alpha: float
    behaviour: float
    knowledge: float | None
    tokens: int


def choose(points: Sequence[Point], floor: float) -> Point:
    """Of the points whose behaviour reaches ``floor`` the one that knows most; with none, the best behaved.

    Where two know as much, or nothing was asked, the one nearer to the student is taken.
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
    """Choose a place between two checkpoints and return the checkpoint made there, which is then ``latest``.

    Its parent is the student; the other end stands in its details. ``name`` is what it is called, "cycle-K/recovered"
    where it is left out. Raises UsageError where no line leads from one to the other, and StageInterrupted when asked
    to stop; ``resume`` is that stage's record, to go on with it.
    """
    student, origin = _ends(session, config)
    number = (resume.cycle if resume is not None else cycle) or student.cycle or session.next_cycle()
    student = session.registered(student, cycle_id=session.cycle_id(number))
    config = dataclasses.replace(config, student=student.name, origin=_lasting(origin))
    development = _development(session, config)
    questions = _questions(session, config, student, number)
    _say(session, config, len(development), len(questions))
    with running(session, "interpolate", config, cycle=number, student=student, resume=resume) as stage:
        reference = reference_result(stage, session.base, development, config)
        assert reference is not None  # there are prompts, or it was refused
        loaded, line = _line(session, config, student, origin)
        points = _measured(stage, config, loaded, line, development, questions)
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
    """The two checkpoints. Raises UsageError where they are one, or where an adapter has another base."""
    student = session.resolve(config.student)
    origin = session.resolve((student.parent or "base") if config.origin == START else config.origin)
    if student.hash == origin.hash:
        raise UsageError(
            f"{student.name} and {origin.name} are the same, so there is nothing between them: name what was "
            f"mid-trained with --student"
        )
    if origin.tuning == "lora" or (student.tuning == "lora" and student.weights.resolve() != origin.path.resolve()):
        raise UsageError(
            f"{student.name} and {origin.name} are not one model's weights, or an adapter and its own base: take "
            f"--origin base, or merge adapters first (`recover export NAME --merge`)"
        )
    return student, origin


def _lasting(checkpoint: Checkpoint) -> str:
    return checkpoint.name if checkpoint.id is not None else str(checkpoint.path)


def _development(session: Session, config: InterpolateConfig) -> list[Prompt]:
    prompts = behaviour_prompts(session.base.path, config.prompts, config.seed)
    found = [prompt for prompt in prompts.development if prompt.checks]
    if not found:
        raise UsageError(
            f"none of the development prompts can be verified ({prompts.source}), so nothing can be chosen by them: "
            f"give prompts with checks by --prompts"
        )
    return list(sample(found, config.development))


def _questions(session: Session, config: InterpolateConfig, student: Checkpoint, cycle: int) -> list[Probe]:
    """Training questions with an answer about the documents of the cycle and of those before it: never the probes."""
    corpora = thaw_all(session.workspace, session.taken_up(student, cycle))
    found = [
        Probe(f"{number}/{question.id}", "question", question.text, (question.answer,))
        for number, corpus in corpora.items()
        for question in corpus.questions
        if question.answer and len(question.messages) == 1
    ]
    return list(sample(found, config.questions)) if config.questions else []


def _line(session: Session, config: InterpolateConfig, student: Checkpoint, origin: Checkpoint) -> tuple[Loaded, Line]:
    """The student in memory, with the way to move it."""
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
    if student.tuning == "lora":
        return loaded, Line(loaded, None)
    return loaded, Line(loaded, load_model(origin.weights, precision="float32", device=config.device))


def _measured(
    stage: Stage,
    config: InterpolateConfig,
    loaded: Loaded,
    line: Line,
    development: Sequence[Prompt],
    questions: Sequence[Probe],
) -> list[Point]:
    """Every place on the grid, those of an earlier attempt at this stage as they were found then."""
    file = stage.folder / "points.json"
    known = {point.alpha: point for point in _read(file)}
    each = len(development) + len(questions)
    stage.recorder.describe(steps_total=len(config.alphas))
    with (
        stage.session.display.bar("weights in between", each * len(config.alphas)) as bar,
        engine_of(loaded, config) as engine,
    ):

        def heard(answers: int, tokens: int) -> None:
            bar.heard(answers, tokens)
            stage.interrupts.check()

        for number, alpha in enumerate(config.alphas, 1):
            stage.interrupts.check()
            if alpha in known:
                bar.advance(each)
            else:
                line.move(alpha)
                found = _asked(config, loaded, engine, development, questions, heard)
                known[alpha] = _point(stage, loaded, alpha, found)
                write_atomically(file, json.dumps([dataclasses.asdict(point) for point in known.values()]))
            _log(stage, number, known[alpha])
            stage.session.display.say(f"alpha {alpha:g}: {_words(known[alpha])}")
    return [known[alpha] for alpha in config.alphas]


def _asked(
    config: InterpolateConfig,
    loaded: Loaded,
    engine: Engine,
    development: Sequence[Prompt],
    questions: Sequence[Probe],
    heard: Progress,
) -> list[SuiteResult]:
    """The development prompts, and the questions where there are any, answered by the model as it is."""
    seed = config.seed
    found = [
        development_result(loaded, engine, development, max_new_tokens=config.max_new_tokens, seed=seed, progress=heard)
    ]
    if questions:
        found.append(
            knowledge.ask(
                loaded.chat,
                engine,
                questions,
                suite="development/knowledge",
                max_new_tokens=config.question_tokens,
                window=loaded.max_length,
                seed=seed,
                progress=heard,
            )
        )
    return found


def _point(stage: Stage, loaded: Loaded, alpha: float, found: Sequence[SuiteResult]) -> Point:
    """The scores at a place, and what they cost, which is entered as sampled."""
    tokens = sum(len(loaded.chat.encode(item.response)) + 1 for result in found for item in result.items)
    stage.recorder.usage(tokens_sampled=tokens)
    scores = [result.score.value for result in found]
    return Point(alpha, scores[0], scores[1] if len(scores) > 1 else None, tokens)


def _log(stage: Stage, step: int, point: Point) -> None:
    asked = {} if point.knowledge is None else {"development/knowledge": point.knowledge}
    stage.recorder.log(step, {"alpha": point.alpha, DEVELOPMENT: point.behaviour, **asked})


def _read(file: Path) -> list[Point]:
    try:
        return [Point(**values) for values in json.loads(file.read_text(encoding="utf-8"))]
    except (OSError, ValueError, TypeError):  # nothing was found before, or not to the end
        return []


def _say(session: Session, config: InterpolateConfig, prompts: int, questions: int) -> None:
    session.display.say(
        f"weights between {config.origin} and {config.student}: {len(config.alphas)} places, each asked {prompts} "
        f"development prompts and {questions} training questions"
    )


def _words(point: Point) -> str:
    asked = "" if point.knowledge is None else f", questions {point.knowledge:.3f}"
    return f"instructions {point.behaviour:.3f}{asked}"
