"""The configurations of a cycle that `recover plan` compares, and the command line that runs each.

GPUs are given by name or by size; their memory and their published speed are here. `recover cycle` takes what its flags
say: of all this it chooses the tuning alone (:mod:`pipelines.planning.tuning`).
"""

from __future__ import annotations

import dataclasses
import math
import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from pipelines.planning.activations import CPU_UTILISATION, Setup, Speed, published, this_machine
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
from pipelines.table import GIB
from recovery.config import DistillConfig, EvalConfig, MidtrainConfig, build
from recovery.errors import UsageError
from recovery.models.hardware import pick_precision, total_memory

# GiB that a card reports (with ECC less than its nominal size), and published peaks: TFLOP/s without sparsity in the
# precision that `--precision auto` takes there, GB/s of memory. A T4 has no bfloat16 products.
CARDS = {
    "T4": (15, 8.1, 320, "float32"),
    "RTX4080": (16, 97, 717, "bfloat16"),
    "L4": (22.5, 121, 300, "bfloat16"),
    "A10": (22.5, 125, 600, "bfloat16"),
    "RTX3090": (24, 71, 936, "bfloat16"),
    "RTX4090": (24, 165, 1008, "bfloat16"),
    "A6000": (48, 155, 768, "bfloat16"),
    "L40S": (45, 362, 864, "bfloat16"),
    "A100-40": (40, 312, 1555, "bfloat16"),
    "A100": (80, 312, 2039, "bfloat16"),
    "H100": (79.6, 989, 3350, "bfloat16"),
    "H200": (140.4, 989, 4800, "bfloat16"),
}
# The card assumed for a size alone.
_BY_SIZE = {16: "RTX4080", 24: "RTX4090", 40: "A100-40", 48: "L40S", 80: "A100", 141: "H200"}
_GPUS = re.compile(
    r"(?:(?P<count>\d+)x)?(?:(?P<size>\d+(?:\.\d+)?)(?:GB|GiB|G)?|(?P<name>[A-Za-z][\w-]*))", re.IGNORECASE
)


@dataclass(frozen=True)
class Card:
    """One or several devices of a kind. ``memory`` is in bytes per device; ``gpu`` False is this machine's CPU.

    ``precision`` is what `--precision auto` selects there.
    """

    name: str
    memory: int
    speed: Speed
    precision: str
    count: int = 1
    gpu: bool = True

    @property
    def title(self) -> str:
        """The name for display, with the count if there are several."""
        return f"{self.count} x {self.name}" if self.count > 1 else self.name


def card_of(spec: str, tflops: float | None, utilisation: float | None) -> Card:
    """Parse "24", "2x80GB", "A100" or "cpu"; ``tflops`` and ``utilisation`` replace the assumed values.

    Raises UsageError if the text is not understood.
    """
    if spec.lower() == "cpu":
        return _this_cpu(tflops, utilisation)
    match = _GPUS.fullmatch(spec)
    named = {name.lower(): name for name in CARDS}
    if match is None or (match["name"] and match["name"].lower() not in named):
        raise UsageError(
            f"--gpus {spec!r} is not understood: give sizes in GB such as 24,48 or 2x80GB, cpu, or one of "
            f"{', '.join(CARDS)}"
        )
    count = int(match["count"] or 1)
    wanted = float(match["size"]) if match["size"] else 0.0
    name = named[match["name"].lower()] if match["name"] else _BY_SIZE[min(_BY_SIZE, key=lambda gb: abs(gb - wanted))]
    gib, peak, bandwidth, precision = CARDS[name]
    memory = gib if match["name"] else wanted
    if count < 1 or memory <= 0:
        raise UsageError(f"--gpus {spec!r}: number and size must be above 0")
    title = name if match["name"] else f"{wanted:g} GB (speed of {name})"
    return Card(title, round(memory * GIB), published(tflops or peak, bandwidth, utilisation), precision, count)


def _this_cpu(tflops: float | None, utilisation: float | None) -> Card:
    precision = pick_precision("auto", torch.device("cpu"))
    speed = this_machine("cpu", precision, utilisation)
    if tflops is not None:
        speed = dataclasses.replace(speed, operations=tflops * 1e12 * (utilisation or CPU_UTILISATION))
    return Card("this machine's CPU", total_memory("cpu"), speed, str(precision).removeprefix("torch."), gpu=False)


# Tokens of prompts and completions sampled at once: the first that fits is taken.
ROLLOUT_BUDGETS = (32768, 24576, 16384, 12288, 8192, 4096, 2048)


@dataclass(frozen=True)
class Way:
    """One configuration of a cycle, as flags."""

    title: str
    tuning: str
    gradient_checkpointing: bool = False
    vllm: bool = False
    sharded: bool = False


# In order of recommendation: full fine-tuning learns documents best; vLLM is listed but never recommended.
WAYS = (
    Way("full", "full"),
    Way("full, gradient checkpointing", "full", True),
    Way("full, gradient checkpointing, sharded", "full", True, sharded=True),
    Way("LoRA", "lora"),
    Way("LoRA, gradient checkpointing", "lora", True),
    Way("LoRA, gradient checkpointing, vLLM", "lora", True, vllm=True),
    Way("LoRA, gradient checkpointing, sharded", "lora", True, sharded=True),
)


@dataclass(frozen=True)
class Request:
    """What `recover plan` is asked. ``text`` is the configuration of the model as JSON."""

    model: str
    text: str
    midtrain: MidtrainConfig
    distill: DistillConfig
    eval: EvalConfig
    trained: int
    knowledge: bool
    docs: Path | None
    recipe: str

    @property
    def in_cycles(self) -> bool:
        """Whether `recover cycle` can run it; other methods and teachers need `recover train`."""
        return in_cycles(self.distill)


def in_cycles(distill: DistillConfig) -> bool:
    """Whether `recover cycle` can run this recovery."""
    return distill.method == "opd" and distill.teacher == "base"


def command_line(asked: Request, way: Way, budget: int, rollout_tokens: int, processes: int) -> str:
    """Return the command line of a cycle with that configuration."""
    shared = ["--tuning", way.tuning, *(["--gradient-checkpointing"] if way.gradient_checkpointing else [])]
    shared += ["--token-budget", str(budget)]
    if way.sharded:
        shared += ["--shard", "full", *([] if asked.distill.gather else ["--no-gather"])]
    vllm = ["--engine", "vllm", "--engine-sleep"] if way.vllm else []
    sampling = ["--rollout-tokens", str(rollout_tokens)] if rollout_tokens != ROLLOUT_BUDGETS[0] else []
    sampling += vllm
    docs = str(asked.docs) if asked.docs is not None else "DOCS"
    epochs = [] if asked.midtrain.epochs is None else ["--epochs", f"{asked.midtrain.epochs:g}"]
    begin = ["--model", asked.model, "--docs", docs, *epochs]
    if asked.in_cycles and asked.distill.gather:
        no_teacher = [] if asked.knowledge else ["--knowledge-teacher", "none"]
        return _started(["cycle", *begin, *shared, *sampling, *no_teacher], processes)
    settings = ["--method", asked.distill.method, *([] if asked.distill.gather else ["--until", "0"])]
    if asked.distill.teacher != build(DistillConfig, {"method": asked.distill.method}).teacher:
        settings += ["--teacher", asked.distill.teacher]
    if asked.knowledge:  # the default only inside a cycle
        settings += ["--knowledge-teacher", "midtrained"]
    first = _started(["midtrain", *begin, *shared], processes)
    return f"{first} && {_started(['train', *settings, *shared, *sampling], processes)}"


def _started(words: Sequence[str], processes: int) -> str:
    """Return a `recover` command line, launched on that many GPUs."""
    launcher = ["torchrun", "--standalone", "--nproc_per_node", str(processes), "-m", "recovery"]
    return shlex.join([*(launcher if processes > 1 else ["recover"]), *words])


# The estimate of every configuration of a cycle on one card: what fits, how much of it, how long it takes.

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


def plan_card(card: Card, asked: Request) -> CardPlan:
    is_single = card.count == 1
    in_process = card.gpu and is_single
    possible = [way for way in WAYS if not (way.vllm and not in_process) and not (way.sharded and is_single)]
    choices: list[Choice] = []
    fitting: list[int] = []
    notes = [] if is_single else [_ONE_PROCESS, *_evaluated(card, asked)]
    for way in possible:
        try:
            choice = _choice(card, asked, way)
        except UsageError as error:  # what the model's folder recommends rules it out
            notes.append(f"no {way.title}: {error}")
            continue
        fitting += [len(choices)] if choice.fits and not way.vllm else []
        choices.append(choice)
    return CardPlan(card.title, card.memory, tuple(choices), next(iter(fitting), None), tuple(notes))


def _evaluated(card: Card, asked: Request) -> list[str]:
    """Say so if a card cannot hold the whole model, which evaluations need, even if they need nothing else."""
    setup = Setup(asked.text, "full", card.precision, gpu=card.gpu)
    size = parameters_of(setup).total * setup.itemsize
    if asked.distill.gather or size <= usable(card.memory, card.gpu):
        return []
    return [
        f"not counted: what one process does with the whole model ({size / 2**30:.0f} GiB of weights): evaluations, "
        "the test of --until, replay; hence the command without them; and the time to gather the layers for each token"
    ]


def _choice(card: Card, asked: Request, way: Way) -> Choice:
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


def _footprint(asked: Request) -> TeacherFootprint:
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
    card: Card, asked: Request, midtrain: MidtrainConfig, distill: DistillConfig, way: Way, footprint: TeacherFootprint
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
