"""GPUs by name or by size, with their memory and their published speed."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass

import torch

from pipelines.planning.throughput import Speed, published, this_machine
from pipelines.table import GIB
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
