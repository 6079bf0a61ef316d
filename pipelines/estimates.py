"""What a stage will need, told before any weights are loaded: parameters, memory, time."""

from __future__ import annotations

import json
import os
import resource
import struct
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch

GIB = 1 << 30
# float32 weights, gradients and AdamW's two moments; an adapter's base is only held, in float32 or bfloat16.
_BYTES_FULL = 16
# Beyond weights and optimizer: activations, the head's chunks, Python. Measured generously.
_HEADROOM = 0.8
_ADAPTER_SHARE = 0.03
_FLOPS_TRAINED, _FLOPS_FORWARD = 6, 2


@dataclass(frozen=True)
class Needs:
    """Memory in bytes: what is needed and what is free; ``fits`` leaves room for activations."""

    needed: int
    free: int

    @property
    def fits(self) -> bool:
        """Whether it can be expected to run."""
        return self.needed <= self.free * _HEADROOM

    def __str__(self) -> str:
        return f"about {size(self.needed)} for weights and optimizer, {size(self.free)} free"


def size(count: int) -> str:
    """Bytes in words: 120 MiB, 3.4 GiB."""
    return f"{count / GIB:.1f} GiB" if count >= GIB else f"{count / (1 << 20):.0f} MiB"


def parameters(folder: Path) -> int:
    """How many numbers the weights in ``folder`` hold, read off the headers of its safetensors files."""
    total = 0
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as stream:
            (length,) = struct.unpack("<Q", stream.read(8))
            header = json.loads(stream.read(length))
        for name, entry in header.items():
            if name != "__metadata__":
                size = 1
                for width in entry["shape"]:
                    size *= width
                total += size
    return total


def training_needs(count: int, tuning: str, *, teachers: int, device: str, pieces: int = 1) -> Needs:
    """Memory to train ``count`` parameters, with ``teachers`` further frozen copies beside the student.

    A student that is cut into ``pieces`` takes each process its share; the copies are whole.

    ``device`` is resolved: "cpu" or "cuda...". Frozen copies are counted at 4 bytes a parameter on a CPU and 2 on
    a GPU, where they are held in bfloat16.
    """
    frozen = 2 if device.startswith("cuda") else 4
    if tuning == "full":
        needed = count * _BYTES_FULL // pieces + teachers * count * frozen
    else:
        own = count * frozen + count * _ADAPTER_SHARE * _BYTES_FULL
        needed = int(own / pieces) + teachers * count * frozen
    return Needs(needed, free_memory(device))


def free_memory(device: str) -> int:
    """Bytes that can still be taken on the device; on a CPU within the limits of the container."""
    if device.startswith("cuda"):
        return int(torch.cuda.mem_get_info(torch.device(device))[0])
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                free = int(line.split()[1]) * 1024
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text())
        free = min(free, limit - int(Path("/sys/fs/cgroup/memory.current").read_text()))
    except (OSError, ValueError):
        pass  # no such files, or no limit: what the system says stands
    return max(0, free)


def peak_memory(device: str) -> int:
    """The most memory this process has held, in bytes (on a GPU: of the GPU's)."""
    if device.startswith("cuda"):
        return int(torch.cuda.max_memory_allocated(torch.device(device)))
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def seconds_for(count: int, *, trained: int, sampled: int = 0, scored: int = 0, device: str = "cpu") -> float:
    """A rough time for tokens through ``count`` parameters, from a quick measure of this machine's products.

    Decoding is taken to run at a fifth of the speed of a batch.
    """
    return flops(count, trained=trained, sampled=5 * sampled, scored=scored) / operations_per_second(device)


def flops(count: int, *, trained: int, sampled: int = 0, scored: int = 0) -> float:
    """Floating-point operations of tokens through ``count`` parameters: 6 each when trained on, 2 when read or spoken.

    Kaplan et al., arXiv 2001.08361; the head's product is in it, since the count holds the head's weights.
    """
    return float(count) * (_FLOPS_TRAINED * trained + _FLOPS_FORWARD * (scored + sampled))


def operations_per_second(device: str) -> float:
    """Floating-point operations a second of a product of the size that models have, half of it as overhead."""
    place = torch.device(device)
    a = torch.randn(512, 1024, device=place)
    b = torch.randn(1024, 1024, device=place)
    count, started = 0, time.perf_counter()
    while time.perf_counter() - started < 0.15:
        (a @ b).sum().item()
        count += 1
    return 0.5 * count * 2 * 512 * 1024 * 1024 / (time.perf_counter() - started)
