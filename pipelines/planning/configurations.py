"""The configurations of a cycle that `recover plan` compares, and the command line that runs each.

GPUs by name or by size, with their memory and their published speed.
"""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from pipelines.planning.throughput import Speed, published, this_machine
from pipelines.table import GIB
from recovery.config import DistillConfig, EvalConfig, MidtrainConfig, build
from recovery.errors import UsageError
from recovery.models.hardware import free_memory, pick_precision

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
        speed = dataclasses.replace(speed, operations=tflops * 1e12 * (utilisation or 1.0))
    return Card("this machine's CPU", free_memory("cpu"), speed, str(precision).removeprefix("torch."), gpu=False)


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
class Asked:
    """The user's request."""

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


def command_line(asked: Asked, way: Way, budget: int, rollout_tokens: int, processes: int) -> str:
    """Return the command line of a cycle with that configuration."""
    shared = ["--tuning", way.tuning, *(["--gradient-checkpointing"] if way.gradient_checkpointing else [])]
    shared += ["--token-budget", str(budget), *_sharding(asked, way)]
    vllm = ["--engine", "vllm", "--engine-sleep"] if way.vllm else []
    sampling = ["--rollout-tokens", str(rollout_tokens)] if rollout_tokens != ROLLOUT_BUDGETS[0] else []
    sampling += vllm
    docs = str(asked.docs) if asked.docs is not None else "DOCS"
    epochs = [] if asked.midtrain.epochs is None else ["--epochs", f"{asked.midtrain.epochs:g}"]
    begin = ["--model", asked.model, "--docs", docs, *epochs]
    if asked.in_cycles and asked.distill.gather:
        alone = [] if asked.knowledge else ["--knowledge-teacher", "none"]
        return _started(["cycle", *begin, *shared, *sampling, *alone], processes)
    settings = ["--method", asked.distill.method, *([] if asked.distill.gather else ["--until", "0"])]
    if asked.distill.teacher != build(DistillConfig, {"method": asked.distill.method}).teacher:
        settings += ["--teacher", asked.distill.teacher]
    if asked.knowledge:  # the default only inside a cycle
        settings += ["--knowledge-teacher", "midtrained"]
    first = _started(["midtrain", *begin, *shared], processes)
    return f"{first} && {_started(['train', *settings, *shared, *sampling], processes)}"


def _sharding(asked: Asked, way: Way) -> list[str]:
    if not way.sharded:
        return []
    return ["--shard", "full", *([] if asked.distill.gather else ["--no-gather"])]


def _started(words: Sequence[str], processes: int) -> str:
    """Return a `recover` command line, launched on that many GPUs."""
    launcher = ["torchrun", "--standalone", "--nproc_per_node", str(processes), "-m", "recovery"]
    return shlex.join([*(launcher if processes > 1 else ["recover"]), *words])
