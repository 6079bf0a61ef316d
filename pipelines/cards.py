"""GPUs by name or by size: what they hold and how fast they are, as published."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass

import torch

from pipelines.estimates import GIB, Speed, free_memory, published, this_machine
from recovery.errors import UsageError
from recovery.loading import pick_precision

# GiB that a card reports (less than its name says, where errors are corrected in that memory), and published peaks:
# TFLOP/s without sparsity in the precision that `--precision auto` takes there, GB/s of memory. A T4 multiplies no
# bfloat16.
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
# Which of them a size alone stands for.
_BY_SIZE = {16: "RTX4080", 24: "RTX4090", 40: "A100-40", 48: "L40S", 80: "A100", 141: "H200"}
_GPUS = re.compile(
    r"(?:(?P<count>\d+)x)?(?:(?P<size>\d+(?:\.\d+)?)(?:GB|GiB|G)?|(?P<name>[A-Za-z][\w-]*))", re.IGNORECASE
)


@dataclass(frozen=True)
class Card:
    """One or several devices of a kind. ``memory`` is in bytes, each; ``gpu`` False is this machine's CPU.

    ``precision`` is what `--precision auto` takes there.
    """

    name: str
    memory: int
    speed: Speed
    precision: str
    count: int = 1
    gpu: bool = True

    @property
    def title(self) -> str:
        """As a person says it."""
        return f"{self.count} x {self.name}" if self.count > 1 else self.name


def card_of(said: str, tflops: float | None, utilisation: float | None) -> Card:
    """What is meant by "24", "2x80GB", "A100" or "cpu"; ``tflops`` and ``utilisation`` replace what is assumed.

    Raises UsageError in one line where it is not understood.
    """
    if said.lower() == "cpu":
        return _this_cpu(tflops, utilisation)
    match = _GPUS.fullmatch(said)
    named = {name.lower(): name for name in CARDS}
    if match is None or (match["name"] and match["name"].lower() not in named):
        raise UsageError(
            f"--gpus {said!r} is not understood: give sizes in GB such as 24,48 or 2x80GB, cpu, or one of "
            f"{', '.join(CARDS)}"
        )
    count = int(match["count"] or 1)
    wanted = float(match["size"]) if match["size"] else 0.0
    name = named[match["name"].lower()] if match["name"] else _BY_SIZE[min(_BY_SIZE, key=lambda gb: abs(gb - wanted))]
    gib, peak, bandwidth, precision = CARDS[name]
    memory = wanted or gib
    if count < 1 or memory <= 0:
        raise UsageError(f"--gpus {said!r}: number and size must be above 0")
    title = name if match["name"] else f"{wanted:g} GB (speed of {name})"
    return Card(title, round(memory * GIB), published(tflops or peak, bandwidth, utilisation), precision, count)


def _this_cpu(tflops: float | None, utilisation: float | None) -> Card:
    precision = pick_precision("auto", torch.device("cpu"))
    speed = this_machine("cpu", precision, utilisation)
    if tflops is not None:
        speed = dataclasses.replace(speed, operations=tflops * 1e12 * (utilisation or 1.0))
    return Card("this machine's CPU", free_memory("cpu"), speed, str(precision).removeprefix("torch."), gpu=False)
