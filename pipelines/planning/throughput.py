"""Speed of a machine, and estimates of how long work takes on it."""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.nn import functional

from recovery.models.folder_check import read_shapes

_FLOPS_TRAINED, _FLOPS_FORWARD = 6, 2
# A whole model reaches about half the measured speed of one layer in training; on a GPU 40% of the published peak.
CPU_UTILISATION, GPU_UTILISATION = 0.5, 0.4
# Decoding reads the weights at this share of the published bandwidth. Python's overhead per layer was measured on a CPU
# and is assumed to be the same on a GPU; vLLM does not have it.
_BANDWIDTH_SHARE, _LAYER_SECONDS = 0.6, 0.6e-3


def parameters(folder: Path) -> int:
    """Count the parameters of the weights in ``folder`` from the headers of its safetensors files."""
    return read_shapes(folder).elements


@dataclass(frozen=True)
class Speed:
    """Sustained speed of a machine: operations per second, and bytes of weights read per second in decoding."""

    operations: float
    bandwidth: float


@dataclass(frozen=True)
class Network:
    """The properties of a model that determine its speed: parameters in matrix products, layers, bytes of weights."""

    multiplied: int
    layers: int
    bytes: int


@dataclass(frozen=True)
class Work:
    """Tokens trained on and read (prompts included), and ``turns``: decoding steps of one token for ``rows`` rollouts.

    ``frozen`` weights get no gradient (LoRA), which saves a third of the work; ``again`` repeats the forward pass
    (gradient checkpointing).
    """

    trained: int = 0
    read: int = 0
    turns: int = 0
    rows: int = 0
    frozen: bool = False
    again: bool = False
    vllm: bool = False

    def seconds(self, network: Network, speed: Speed) -> float:
        """Return the estimated duration."""
        each = _FLOPS_TRAINED - (2 if self.frozen else 0) + (_FLOPS_FORWARD if self.again else 0)
        done = network.multiplied * (each * self.trained + _FLOPS_FORWARD * self.read) / speed.operations
        products = _FLOPS_FORWARD * network.multiplied * self.rows / speed.operations
        turn = max(products, network.bytes / speed.bandwidth) + (0 if self.vllm else network.layers * _LAYER_SECONDS)
        return done + self.turns * turn


def flops(count: int, *, trained: int, sampled: int = 0, scored: int = 0) -> float:
    """Return the floating-point operations of tokens through ``count`` parameters: per parameter 6 for a trained token,
    2 for a scored or sampled one. Kaplan et al., arXiv 2001.08361; the head is included, since its weights are counted.
    """
    return float(count) * (_FLOPS_TRAINED * trained + _FLOPS_FORWARD * (scored + sampled))


def published(tflops: float, gigabytes: float, utilisation: float | None = None) -> Speed:
    """Return a GPU's speed from its published figures: bfloat16 TFLOP/s without sparsity, and GB/s of its memory."""
    used = GPU_UTILISATION if utilisation is None else utilisation
    return Speed(tflops * 1e12 * used, gigabytes * 1e9 * _BANDWIDTH_SHARE)


def this_machine(device: str, precision: torch.dtype, utilisation: float | None = None) -> Speed:
    """Return the speed of this machine's device: a layer in training, and reading its memory."""
    measured = _measured(device, precision)
    used = CPU_UTILISATION if utilisation is None else utilisation
    return Speed(used * measured.operations, measured.bandwidth)


@functools.cache
def _measured(device: str, precision: torch.dtype) -> Speed:
    """Measure the device, once in a process: every stage's plan asks, and other load does not count in the fastest run.

    It takes a second, and the operations are those of one layer alone.
    """
    where = torch.device(device)
    block = torch.zeros(8 << 20, device=where)
    trained, operations = _layer(where, precision)
    read = _fastest(lambda: block.sum().item(), where)
    return Speed(operations / _fastest(trained, where), block.numel() * 4 / read)


def _layer(device: torch.device, precision: torch.dtype) -> tuple[Callable[[], object], float]:
    """Return a training step of a small gated layer, and its operations. Matrix products alone would overestimate the
    speed: on processors with matrix units most of the time is spent between the products.
    """
    rows, width, inner = 512, 576, 1536
    shapes = ((inner, width), (inner, width), (width, inner))
    up, gate, down = (torch.zeros(shape, device=device, requires_grad=True) for shape in shapes)
    input_ND = torch.zeros(rows, width, device=device, requires_grad=True)
    lower = precision != torch.float32

    def step() -> object:
        with torch.autocast(device.type, dtype=precision, enabled=lower):
            normed_ND = functional.rms_norm(input_ND, (width,))
            inner_NE = functional.silu(functional.linear(normed_ND, gate)) * functional.linear(normed_ND, up)
            loss = (functional.linear(inner_NE, down) + input_ND).float().square().mean()
        torch.autograd.grad(loss, (up, gate, down, input_ND))
        return loss.item()

    return step, float(_FLOPS_TRAINED * rows * sum(a * b for a, b in shapes))


def _fastest(work: Callable[[], object], device: torch.device) -> float:
    """Return the seconds of the fastest of many runs: other load on the machine only adds time.

    A single thread's own processor time leaves that out: with ten processes on a core no run goes through undisturbed.
    """
    alone = device.type == "cpu" and torch.get_num_threads() == 1
    clock = time.thread_time if alone else time.perf_counter
    work()
    best, begun = math.inf, time.perf_counter()
    while time.perf_counter() - begun < 0.3:
        started = clock()
        work()
        best = min(best, clock() - started)
    return best
