"""The estimate of every configuration of a cycle on one card: what fits, how much of it, how long it takes."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pipelines.planning.activations import Setup
from pipelines.planning.configurations import ROLLOUT_BUDGETS, WAYS, Asked, Card, Way, command_line
from pipelines.planning.memory import (
    USUAL_PROMPT,
    Memory,
    Plan,
    TeacherFootprint,
    distilling,
    memory_of,
    midtraining,
    network_of,
    parameters_of,
    usable,
)
from pipelines.planning.work import answering_work, distilling_work, midtraining_work
from recovery.config import DistillConfig, MidtrainConfig
from recovery.errors import UsageError

_ONE_PROCESS = (
    "no vLLM: it samples for one training process; use one process, or a server on another GPU "
    "(--engine http://HOST:PORT)"
)
# Token budgets: the default, and the maximum that is reported.
_USUAL_BUDGET, _LARGEST_BUDGET = 16384, 1 << 17


@dataclass(frozen=True)
class Choice:
    """The estimate of a configuration on a card. ``largest`` is the largest token budget that fits, 0 if none does."""

    title: str
    fits: bool
    peak: int
    parts: dict[str, int]
    stage: str
    largest: int
    token_budget: int
    rollout_tokens: int
    seconds: dict[str, float]
    command: str

    @property
    def total(self) -> float:
        """Seconds of a whole cycle."""
        return sum(self.seconds.values())


@dataclass(frozen=True)
class CardPlan:
    """All configurations on one card, and the index of the recommended one. ``notes`` explain which are missing."""

    card: str
    memory: int
    choices: tuple[Choice, ...]
    recommended: int | None
    notes: tuple[str, ...] = ()


def plan_card(card: Card, asked: Asked) -> CardPlan:
    alone = card.count == 1
    in_process = card.gpu and alone
    possible = [way for way in WAYS if not (way.vllm and not in_process) and not (way.sharded and alone)]
    choices: list[Choice] = []
    fitting: list[int] = []
    notes = [] if alone else [_ONE_PROCESS, *_evaluated(card, asked)]
    for way in possible:
        try:
            choice = _choice(card, asked, way)
        except UsageError as error:  # what the model's folder recommends rules it out
            notes.append(f"no {way.title}: {error}")
            continue
        fitting += [len(choices)] if choice.fits and not way.vllm else []
        choices.append(choice)
    return CardPlan(card.title, card.memory, tuple(choices), next(iter(fitting), None), tuple(notes))


def _evaluated(card: Card, asked: Asked) -> list[str]:
    """Say so if a card cannot hold the whole model, which evaluations need, even if they need nothing else."""
    setup = Setup(asked.text, "full", card.precision, gpu=card.gpu)
    size = parameters_of(setup).total * setup.itemsize
    if asked.distill.gather or size <= usable(card.memory, card.gpu):
        return []
    return [
        f"not counted: what one process does with the whole model ({size / 2**30:.0f} GiB of weights): evaluations, "
        "the test of --until, replay; hence the command without them; and the time to gather the layers for each token"
    ]


def _choice(card: Card, asked: Asked, way: Way) -> Choice:
    room = usable(card.memory, card.gpu)
    settings: dict[str, Any] = {"tuning": way.tuning, "gradient_checkpointing": way.gradient_checkpointing}
    if asked.midtrain.precision == "auto":
        settings["precision"] = card.precision
    vllm: dict[str, Any] = {"engine": "vllm", "engine_sleep": True} if way.vllm else {}
    midtrain = dataclasses.replace(asked.midtrain, **settings, **vllm)
    distill = dataclasses.replace(asked.distill, **settings, **vllm)
    footprint = _footprint(asked)
    shards = card.count if way.sharded else 1

    def reading(budget: int) -> Plan:
        config = dataclasses.replace(midtrain, token_budget=budget)
        clean = TeacherFootprint(int(config.anchor > 0 or config.distils_replay))
        plan = midtraining(config, asked.text, way.tuning, card.gpu, beside=clean)
        return dataclasses.replace(plan, shards=shards, teachers_too=way.sharded)

    def teaching(budget: int, rollout_tokens: int) -> Plan:
        config = dataclasses.replace(distill, token_budget=budget, rollout_tokens=rollout_tokens)
        plan = distilling(config, asked.text, way.tuning, card.gpu, beside=footprint)
        plan = dataclasses.replace(plan, shards=shards, teachers_too=way.sharded, gather=distill.gather)
        return dataclasses.replace(plan, free=card.memory)

    row = midtrain.row_length
    rollout_tokens = next(
        (tokens for tokens in ROLLOUT_BUDGETS if memory_of(teaching(row, tokens)).peak <= room), ROLLOUT_BUDGETS[-1]
    )
    largest = min(
        _largest(lambda budget: memory_of(reading(budget)), row, room),
        _largest(lambda budget: memory_of(teaching(budget, rollout_tokens)), row, room),
    )
    budget = max(row, min(largest, _USUAL_BUDGET))
    stages = {
        "mid-training": memory_of(reading(budget)),
        "distillation": memory_of(teaching(budget, rollout_tokens)),
    }
    stage = max(stages, key=lambda name: stages[name].peak)
    distill = dataclasses.replace(distill, token_budget=budget, rollout_tokens=rollout_tokens)
    return Choice(
        way.title,
        largest > 0,
        stages[stage].peak,
        stages[stage].at_peak,
        stage,
        largest,
        budget,
        rollout_tokens,
        _seconds(card, asked, midtrain, distill, way, footprint),
        command_line(asked, way, budget, rollout_tokens, card.count),
    )


def _footprint(asked: Asked) -> TeacherFootprint:
    """Return the teachers loaded with the student, as in a cycle after the first, in which the checkpoint before the
    mid-training scores questions about earlier documents. A named teacher other than base is taken as a separate model.
    """
    config, knowledge = asked.distill, asked.knowledge
    named = config.lam > 0 and config.teaching.frozen
    teachers = [*(config.teaching.weights if named else ()), *config.routes.values()]
    bases = teachers.count("base")
    adapters = knowledge + (knowledge and asked.in_cycles)
    copies = int(config.teaching.is_copy)
    return TeacherFootprint(bases + (config.anchor > 0), adapters, len(teachers) - bases, copies)


def _largest(memory: Callable[[int], Memory], row: int, room: int) -> int:
    """Return the largest token budget, in whole rows, whose peak fits: memory grows linearly with the rows."""
    one, four = memory(row), memory(4 * row)
    if one.peak > room:
        return 0
    held = sum(one.held.values())
    first, last = sum(one.training.values()), sum(four.training.values())
    slope = (last - first) / 3
    rows = 1 + math.floor((room - held - first) / slope) if slope > 0 else _LARGEST_BUDGET // row
    return min(_LARGEST_BUDGET, max(1, rows) * row)


def _seconds(
    card: Card, asked: Asked, midtrain: MidtrainConfig, distill: DistillConfig, way: Way, footprint: TeacherFootprint
) -> dict[str, float]:
    """Return the seconds of each part of a cycle; several GPUs share all but the evaluations."""
    network = network_of(distilling(distill, asked.text, way.tuning, card.gpu, beside=footprint).setup)
    share = dataclasses.replace(distill, prompts_per_step=max(1, round(distill.prompts_per_step / card.count)))
    asking = asked.eval
    items = (asking.limit or 0) * 2  # instruction following, and as many questions about the documents
    evaluation = answering_work(items, USUAL_PROMPT, asking.max_new_tokens, asking.rollout_tokens, vllm=way.vllm)
    work = {
        "mid-training": midtraining_work(midtrain, way.tuning, asked.trained // card.count),
        "distillation": distilling_work(share, way.tuning, footprint),
    }
    seconds = {name: part.seconds(network, card.speed) for name, part in work.items()}
    return seconds | {"two evaluations": 2 * evaluation.seconds(network, card.speed)}
