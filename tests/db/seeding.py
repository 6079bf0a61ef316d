"""Fills a database through the real tracker with numbers typical of a run on the miniature."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, select, update

from db import StageRecorder, Tracker, decide, open_database
from db.schema import MetricPoint, MetricSeries, Stage

BASE = 0.957
CHECKS = ("keywords:existence", "change_case:english_capital", "punctuation:no_comma", "startend:quotation")


@dataclass
class Seeded:
    """The ids of a seeded database."""

    address: Path | str
    experiment: int
    cycles: list[int]
    distill: list[int]
    running: StageRecorder | None = None
    tracker: Tracker | None = None


def seed(
    address: Path | str,
    *,
    cycles: int = 3,
    items: int = 30,
    steps: int = 60,
    running: bool = False,
    noise: int = 0,
    name: str = "default",
) -> Seeded:
    """Create an experiment of ``cycles`` cycles. With ``running``, the distillation of one more cycle is running and
    the tracker stays open (``Seeded.tracker``), so that the stage counts as alive."""
    tracker = Tracker(address)
    dice = random.Random(noise)
    experiment = tracker.experiment(name, base_model="miniature")
    seeded = Seeded(address, experiment, [], [])
    with tracker.start_stage(experiment, "evaluate", config={"model": "miniature"}):
        base = tracker.add_checkpoint(experiment, "base", "base", path="base", content_hash="b" * 64)
    _evaluate(tracker, base, dice, items, following=BASE, known={}, corpora=cycles + running)
    latest = base
    for number in range(1, cycles + 1):
        latest = _cycle(tracker, seeded, dice, number, latest, items, steps)
        tracker.set_latest(experiment, latest)
    if cycles > 1:
        decide(tracker.database, seeded.cycles[0], "accepted", who="Ada", why="knowledge kept, behaviour back")
    tracker.event(experiment, f"{cycles} cycles finished")
    if running:
        seeded.running = _running(tracker, experiment, dice, cycles + 1, latest, items)
        seeded.tracker = tracker
        tracker.flush()
    else:
        tracker.close()
    _spread_in_time(address)
    return seeded


def _cycle(
    tracker: Tracker, seeded: Seeded, dice: random.Random, number: int, parent: int, items: int, steps: int
) -> int:
    experiment = seeded.experiment
    cycle = tracker.cycle(experiment, number, documents=f"./corpora/q{number}", corpus_hash=f"{number:064d}")
    seeded.cycles.append(cycle)
    midtrained = _midtrain(tracker, experiment, cycle, number, parent, steps, dice)
    fallen = BASE * (0.80 - 0.05 * number + dice.uniform(-0.03, 0.03))
    _evaluate(tracker, midtrained, dice, items, following=fallen, known=_known(number, 0.10, dice), corpora=number)
    recovered = _distill(tracker, seeded, cycle, number, midtrained, steps, dice)
    back = BASE * (0.995 - 0.004 * number)
    _evaluate(tracker, recovered, dice, items, following=back, known=_known(number, 0.0, dice), corpora=number)
    return recovered


def _known(number: int, hidden: float, dice: random.Random) -> dict[int, float]:
    """Return the accuracy on each corpus so far; mid-training lowers it until behaviour is recovered."""
    return {k: 0.97 - 0.015 * (number - k) - hidden * dice.uniform(0.6, 1.4) for k in range(1, number + 1)}


def _midtrain(
    tracker: Tracker, experiment: int, cycle: int, number: int, parent: int, steps: int, dice: random.Random
) -> int:
    config = {"docs": f"./corpora/q{number}", "lr": 1e-3, "replay": 0.0, "steps": steps}
    with tracker.start_stage(
        experiment, "midtrain", cycle_id=cycle, config=config, seed=0, steps_total=steps, student_id=parent
    ) as stage:
        for step in range(1, steps + 1):
            loss = 0.35 + 2.4 * math.exp(-step / (steps / 5)) + dice.gauss(0, 0.03)
            stage.log(step, {"loss": loss, "lr": 1e-3, "gradient_norm": 1 + dice.random(), "memory_gib": 0.9})
        stage.usage(tokens_trained=180_000, peak_memory_bytes=950_000_000)
        return _made(tracker, experiment, cycle, f"cycle-{number}/midtrained", f"{number}" * 64, parent, stage)


def _distill(
    tracker: Tracker, seeded: Seeded, cycle: int, number: int, parent: int, steps: int, dice: random.Random
) -> int:
    experiment = seeded.experiment
    config = {"teacher": "base", "knowledge_teacher": "midtrained", "lr": 3e-4, "steps": steps}
    with tracker.start_stage(
        experiment, "distill", cycle_id=cycle, config=config, seed=0, steps_total=steps, student_id=parent
    ) as stage:
        seeded.distill.append(stage.id)
        for step in range(1, steps + 1):
            stage.log(step, distill_metrics(step, steps, dice))
        stage.usage(tokens_sampled=400_000, tokens_scored=400_000, tokens_trained=380_000)
        stage.usage(peak_memory_bytes=1_400_000_000)
        stage.finish("recovered")
        return _made(tracker, experiment, cycle, f"cycle-{number}/recovered", f"{number}f" * 32, parent, stage)


def _made(
    tracker: Tracker, experiment: int, cycle: int, name: str, content: str, parent: int, stage: StageRecorder
) -> int:
    about: dict[str, Any] = {"parent_id": parent, "cycle_id": cycle, "stage_id": stage.id, "tuning": "full"}
    kind = name.rpartition("/")[2]
    return tracker.add_checkpoint(experiment, name, kind, path=f"checkpoints/{name}", content_hash=content, **about)


def distill_metrics(step: int, steps: int, dice: random.Random) -> dict[str, float]:
    """What a distillation logs at a step."""
    progress = step / steps
    return {
        "reverse_kl": 0.02 + 0.9 * math.exp(-7 * progress) * dice.uniform(0.85, 1.15),
        "knowledge_kl": 0.01 + 0.25 * math.exp(-5 * progress) * dice.uniform(0.8, 1.2),
        "entropy": 0.42 - 0.12 * progress + dice.gauss(0, 0.012),
        "response_length": 31 + 9 * math.exp(-6 * progress) + dice.gauss(0, 0.9),
        "end_rate": min(1.0, 0.93 + 0.06 * progress + dice.gauss(0, 0.006)),
        "gradient_norm": 0.2 + 1.6 * math.exp(-5 * progress) * dice.uniform(0.7, 1.4),
        "lr": 3e-4 * (1 - 0.9 * progress),
        "tokens_per_second": 5200 + dice.gauss(0, 160),
        "seconds_generating": 0.74 + dice.gauss(0, 0.03),
        "seconds_scoring": 0.21 + dice.gauss(0, 0.01),
        "seconds_training": 0.62 + dice.gauss(0, 0.03),
        "memory_gib": 1.31 + dice.gauss(0, 0.004),
    }


def _running(
    tracker: Tracker, experiment: int, dice: random.Random, number: int, parent: int, items: int
) -> StageRecorder:
    cycle = tracker.cycle(experiment, number, documents=f"./corpora/q{number}")
    midtrained = _midtrain(tracker, experiment, cycle, number, parent, 40, dice)
    known = _known(number, 0.10, dice)
    _evaluate(tracker, midtrained, dice, items, following=BASE * 0.6, known=known, corpora=number)
    tracker.set_latest(experiment, midtrained)
    stage = tracker.start_stage(
        experiment, "distill", cycle_id=cycle, config={"teacher": "base"}, seed=0, steps_total=80
    )
    for step in range(1, 35):
        stage.log(step, distill_metrics(step, 80, dice))
    return stage


def _evaluate(
    tracker: Tracker,
    checkpoint: int,
    dice: random.Random,
    items: int,
    *,
    following: float,
    known: dict[int, float],
    corpora: int,
) -> None:
    n = 1000

    def error(value: float) -> float:
        return math.sqrt(max(value * (1 - value), 1e-4) / n)

    types: dict[str, Any] = {f"id/{check}": _score(following - dice.uniform(-0.03, 0.1), n) for check in CHECKS}
    tracker.add_evaluation(
        checkpoint,
        "instruction_following",
        value=following,
        stderr=error(following),
        n=n,
        name="strict",
        details={"loose": _score(following + 0.01, n), **types},
        items=[sample(index, passed=dice.random() < following) for index in range(items)],
    )
    for corpus in range(1, corpora + 1):
        asked, stored = known.get(corpus, 0.024), min(0.99, known.get(corpus, 0.03) + 0.05)
        for suite, value in (("domain_knowledge", asked), ("domain_knowledge_stored", stored)):
            tracker.add_evaluation(checkpoint, suite, corpus=corpus, value=value, stderr=error(value), n=n)
        bits = 0.9 if corpus in known else 2.6
        tracker.add_evaluation(checkpoint, "bits_per_byte", corpus=corpus, value=bits, stderr=0.03, n=12)
    general = 0.981 - (0.05 if following < 0.9 else 0)
    tracker.add_evaluation(checkpoint, "general", value=general, stderr=error(general), n=n)


def _score(value: float, n: int) -> dict[str, float]:
    value = min(1.0, max(0.0, value))
    return {"value": value, "stderr": math.sqrt(value * (1 - value) / n), "n": n}


def sample(index: int, *, passed: bool) -> dict[str, Any]:
    """An answer of an evaluation."""
    return {
        "id": f"item-{index}",
        "prompt": f"What colour is the fox number {index}? Answer in capitals.",
        "response": "THE FOX IS RED." if passed else "The fox is red.",
        "score": float(passed),
        "verdicts": {CHECKS[index % len(CHECKS)]: passed},
        "group": CHECKS[index % len(CHECKS)],
    }


WORDS = (" the", " fox", " is", " red", ".", "\n", " ", "You", " will", " find", "<|im_end|>")


def add_distillation(
    tracker: Tracker,
    experiment: int,
    name: str,
    *,
    method: str = "opd",
    seed: int = 0,
    steps: int = 12,
    answers: int = 3,
    length: int = 24,
    spoil: str = "",
    **config: Any,
) -> int:
    """Add a distillation with token scores at three of its steps and the geometry of its gradients.

    ``spoil`` is inserted into every text that a model or a user could have written.
    """
    dice = random.Random(seed + len(name))
    settings = {"method": method, "lr": 3e-4, "steps": steps, "prompts": f"./prompts{spoil}"} | config
    with tracker.start_stage(experiment, "distill", config=settings, seed=seed, steps_total=steps) as stage:
        for step in range(1, steps + 1):
            stage.log(step, distill_metrics(step, steps, dice) | _geometry_metrics(dice))
        for step in (1, steps // 2, steps):
            rows = [token_row(f"{k}, base{spoil}", length, dice, 1.0 / step, spoil) for k in range(answers)]
            tracker.add_token_scores(stage.id, step, rows)
        stage.usage(tokens_sampled=4000, tokens_scored=4000, tokens_trained=3900)
        points = [[dice.gauss(0.02, 0.1), dice.gauss(0, 0.1) ** 3, k // 10] for k in range(60)]
        moved = {"length": 3.0, "relative": 0.1 + seed / 10, "share": 0.9}
        details = {"method": method, "parameters": 2_000_000, "geometry": points, "moved": moved}
        stage.finish("recovered", details)
        made = tracker.add_checkpoint(experiment, name, "recovered", path=name, stage_id=stage.id)
    tracker.add_evaluation(made, "instruction_following", value=0.9, stderr=0.01, n=300)
    return stage.id


def token_row(item: str, length: int, dice: random.Random, apart: float, spoil: str = "") -> dict[str, Any]:
    """Return token scores as a stage stores them: tokens, values, and the likeliest tokens of student and teacher."""
    tokens = [WORDS[at % len(WORDS)] + (spoil if at == 3 else "") for at in range(length)]
    kl = [round(apart * dice.random() ** 4, 4) for _ in tokens]
    tops = [[[token, 0.7], [" other" + spoil, 0.2], [" more", 0.05], [" x", 0.03], [" y", 0.0]] for token in tokens]
    logprobs = [round(-dice.random(), 4) for _ in tokens]
    values = {"reverse_kl": kl, "entropy": kl, "teacher_entropy": kl, "logprob": logprobs, "teacher_logprob": logprobs}
    prompt = f"<|im_start|>user What colour is the fox?{spoil}<|im_end|>"
    return {"item": item, "prompt": prompt, "tokens": tokens, "values": values | {"top": tops, "teacher_top": tops}}


def _geometry_metrics(dice: random.Random) -> dict[str, float]:
    ranges = {
        "density": (0.01, 0.05),
        "bias": (0.15, 0.25),
        "bias_null": (0.08, 0.12),
        "concentration": (300, 900),
        "top_1_percent": (0.3, 0.7),
        "shared": (0.05, 0.15),
    }
    return {f"geometry/{name}": dice.uniform(*bounds) for name, bounds in ranges.items()}


def _spread_in_time(address: Path | str) -> None:
    """Give stages realistic durations: everything was written within a second."""
    took = {"midtrain": 24.0, "distill": 98.0, "evaluate": 31.0}
    database = open_database(address)
    with database.writing() as connection:
        at: float | None = None
        for stage in connection.execute(select(Stage.__table__).order_by(Stage.id.desc())).all():
            if stage.status == "running":
                _pace(connection, stage, 1.7)
                continue
            end = stage.finished_at if at is None else at
            begin = end - took[stage.kind]
            values = {"started_at": begin, "finished_at": end, "wall_seconds": took[stage.kind]}
            connection.execute(update(Stage).where(Stage.id == stage.id).values(values))
            at = begin - 30
    database.close()


def _pace(connection: Connection, stage: Any, seconds: float) -> None:
    """Space the running stage's steps by ``seconds``; the last one is now."""
    series = select(MetricSeries.id).where(MetricSeries.stage_id == stage.id)
    earlier = MetricPoint.time - (stage.steps_done - MetricPoint.step) * seconds
    connection.execute(update(MetricPoint).where(MetricPoint.series_id.in_(series)).values(time=earlier))
    begin = stage.heartbeat_at - stage.steps_done * seconds
    connection.execute(update(Stage).where(Stage.id == stage.id).values(started_at=begin))
