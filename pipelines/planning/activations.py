"""The memory of a micro-batch and of a rollout, by formulas: what autograd keeps, and the peaks above it.

The formulas follow Llama's layer: norms, attention with grouped heads, a gated MLP; and what Qwen 3, Gemma and mixtures
of experts change about it. They were compared with every operation's storages in a real step, see docs/planning.md. All
sizes are bytes; in comments, N counts tokens of the micro-batch and n those that are targets.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.nn import functional

from pipelines.planning.architecture import LINEAR, Architecture, built_adapter, count
from recovery.losses import kernels
from recovery.losses.fused import block_rows, chunk_size
from recovery.models.folder_check import read_shapes
from recovery.models.hardware import PLAIN_LENGTH, formed_whole

WIDE = 4  # float32: trained weights, norms, softmaxes


@dataclass(frozen=True)
class Rows:
    """A micro-batch: ``count`` rows of ``length`` tokens, of which ``targets`` per row are trained on.

    ``packed`` rows hold several documents, separated by an attention mask.
    """

    count: int
    length: int
    targets: int
    packed: bool = False

    @property
    def tokens(self) -> int:
        """Tokens of the batch."""
        return self.count * self.length


@dataclass(frozen=True)
class Setup:
    """A model (its configuration as JSON), how it is trained, and its teachers.

    ``teachers`` is the number of frozen copies loaded with the student; ``own_teacher``: the student's own weights are
    a teacher too, with its adapter off if it has one. Without either, the rows' own tokens are the targets.
    ``quantized``: the matrices inside the layers of a LoRA student are in NF4. ``frozen_embeddings``: in full
    fine-tuning only the layers are trained.
    """

    config: str
    tuning: str
    precision: str
    gpu: bool
    gradient_checkpointing: bool = False
    lora_rank: int = 32
    teachers: int = 0
    own_teacher: bool = False
    quantized: bool = False
    frozen_embeddings: bool = False

    @property
    def architecture(self) -> Architecture:
        """The sizes of the model."""
        return Architecture.of(self.config)

    @property
    def dtype(self) -> torch.dtype:
        """The type of the matrix products."""
        return getattr(torch, self.precision)

    @property
    def itemsize(self) -> int:
        """Bytes of an element of the matrix products."""
        return self.dtype.itemsize

    @property
    def full(self) -> bool:
        """Whether the weights are trained."""
        return self.tuning == "full"

    @property
    def lower(self) -> bool:
        """Whether autocast casts the operands of products."""
        return self.itemsize < WIDE and self.tuning != "frozen"

    @property
    def stream(self) -> int:
        """Bytes of an element of the residual stream: trained weights make it float32."""
        return WIDE if self.full else self.itemsize

    @property
    def mlp(self) -> int:
        """Bytes of an element in the MLP: autocast does not reach the products of stacked experts."""
        return WIDE if self.full and self.architecture.routed else self.itemsize

    @property
    def adapter(self) -> int:
        """Parameters of the adapter: LoRA's two matrices beside each matrix of the layers."""
        if self.tuning != "lora":
            return 0
        if not self.architecture.known:
            return built_adapter(self.config, self.lora_rank)[0]
        return self.lora_rank * sum(map(sum, self.architecture.matrices))

    @property
    def adapted(self) -> tuple[str, ...]:
        """The names of the layers, and of the parameters of experts and routers, that an adapter adapts."""
        return LINEAR if self.architecture.known else built_adapter(self.config, self.lora_rank)[1]


Parts = dict[str, float]


def training_memory(setup: Setup, rows: Rows) -> dict[str, int]:
    """Return the peak of one micro-batch by part, in addition to weights, optimizer and gradients."""
    phases = _forward(setup, rows), _loss(setup, rows), _backward(setup, rows), _embedding(setup, rows)
    return _largest(*phases)


def rollout_memory(setup: Setup, answers: int, prompt: int, new: int) -> dict[str, int]:
    """Return the peak of sampling ``answers`` completions at once: in prefill, or at the last of ``new`` tokens."""
    size, item = setup.architecture, setup.itemsize
    lora = setup.lower and not setup.full
    read = (3 * item + (WIDE + item if lora else 0)) * size.inner + (2 * WIDE + item) * size.width
    scores = ((WIDE + item) * size.heads if size.capped else item) * prompt
    drawn = size.vocabulary * (3 * WIDE + (item if item < WIDE else 0))  # logits, their softmax, a temporary copy
    repeated = 2 * (prompt + new) * size.heads * size.head_width * item if size.capped else 0
    casts = _casts(setup) if lora else 0
    return _largest(
        {
            "activations": answers * prompt * (read + scores),
            "KV cache": answers * _cached(setup, prompt, prompt + new),
            "casts": casts,
        },
        {
            "activations": answers * repeated,
            "logits": answers * drawn,
            "KV cache": answers * _cached(setup, prompt + new, prompt + new),
            "casts": casts,
        },
    )


def _cached(setup: Setup, filled: int, room: int) -> int:
    """Return the bytes of a row's keys and values: room for all tokens, but in a layer with a window what it holds."""
    size = setup.architecture
    tokens = sum(room if window is None else min(filled, window - 1) for window in size.windows)
    return tokens * size.cached * setup.itemsize


def _largest(*phases: Parts) -> dict[str, int]:
    parts = max(phases, key=lambda parts: sum(parts.values()))
    return {name: round(size) for name, size in parts.items() if size}


# --- what one layer keeps for the backward pass --------------------------------------------------------------------


def _norm(setup: Setup, width: int, item: int) -> int:
    """Return a norm's bytes per token: its input in float32, a factor; normalised again, if its weight is trained."""
    again = WIDE if setup.architecture.sandwiched else item
    return WIDE * width + WIDE + (again * width if setup.full else 0)


def _attention(setup: Setup, rows: Rows, window: int | None) -> int:
    """Return attention's bytes per row: queries, keys, values, result, and the scores if they are formed whole, or
    the statistics and the mask of the kernel's own backward pass.
    """
    size, item, length = setup.architecture, setup.itemsize, rows.length
    queries, keys = item * size.heads * size.head_width, item * size.groups * size.head_width
    scores = length * length * size.heads
    copied = item if setup.lower else 0
    if size.capped:  # plain products on repeated keys and values; the cap's tanh, the softmax and its copy
        return 4 * queries * length + scores * (item + WIDE + copied)
    windowed = window is not None and window < length
    masked = windowed or (rows.packed and setup.gpu)
    if setup.gpu and masked:
        keys = queries  # repeated for the kernel that takes a mask
    recomputed = not setup.gpu and item < WIDE
    if not setup.gpu and not recomputed and rows.packed and not windowed:
        # Documents of unknown length: half of the longest whose scores are formed; a short row may be one document.
        document = length if length <= PLAIN_LENGTH else PLAIN_LENGTH // 2
        return 2 * (queries + keys) * length + document * length * size.heads * WIDE
    if not setup.gpu and not recomputed and formed_whole(rows.count, size.heads, length, length):
        return 2 * (queries + keys) * length + scores * WIDE
    per_token = 2 * (queries + keys) + (0 if recomputed else WIDE * size.heads)
    if setup.lower and not setup.full:
        per_token += queries  # the result once more, as the adapter's input
    # A mask as numbers, for each layer anew.
    return per_token * length + (item * length * length if masked and not recomputed else 0)


@functools.lru_cache(maxsize=1024)
def _kept(setup: Setup, rows: Rows) -> int:
    """Return the bytes that all layers keep, without gradient checkpointing."""
    size, item = setup.architecture, setup.itemsize
    casts = setup.lower
    per_token = 2 * _norm(setup, size.width, setup.stream)
    per_token += 2 * _norm(setup, size.width, WIDE) if size.sandwiched else 0
    per_token += (size.heads + size.groups) * _norm(setup, size.head_width, item) if size.normed_heads else 0
    # Inputs of the products: with autocast each has its own cast; else queries, keys and values share theirs.
    per_token += (5 if casts else 2) * item * size.width
    per_token += setup.mlp * (4 * size.inner + 2 * size.routed * size.width)  # experts get copies of their tokens
    per_token += 7 * item * setup.lora_rank if setup.tuning == "lora" else 0
    scores = sum(size.windows.count(window) * _attention(setup, rows, window) for window in set(size.windows))
    # The experts' weights with their adapter added, which peft forms whole.
    experts = item * count(size.stacked) if setup.tuning == "lora" else 0
    return size.depth * per_token * rows.tokens + scores * rows.count + experts


def _casts(setup: Setup) -> int:
    """Return the bytes of autocast's copies of the trained weights of all layers."""
    trained = sum(a * b for a, b in setup.architecture.matrices) if setup.full else setup.adapter
    return setup.itemsize * trained if setup.lower else 0


def _head(setup: Setup) -> int:
    """Return the number of weights of the head."""
    return setup.architecture.vocabulary * setup.architecture.width


# --- the phases of a step ------------------------------------------------------------------------------------------


def _inputs(setup: Setup, rows: Rows) -> int:
    """Return what the forward pass leaves: all that the layers keep, or their inputs only."""
    size = setup.architecture
    checkpoints = size.depth * setup.stream * size.width * rows.tokens
    return checkpoints if setup.gradient_checkpointing else _kept(setup, rows)


def _has_teacher(setup: Setup) -> bool:
    return setup.own_teacher or setup.teachers > 0


def _head_cast(setup: Setup) -> int:
    """Return the bytes of a trained head in the products' precision."""
    return _head(setup) * setup.itemsize if setup.full and setup.lower else 0


def _forward(setup: Setup, rows: Rows) -> Parts:
    """The end of the student's forward pass, in the last layer; autocast has a copy of every layer's weights."""
    size, item, targets = setup.architecture, setup.itemsize, rows.count * rows.targets
    temporary = rows.tokens * (3 * setup.mlp * size.inner + 2 * setup.stream * size.width)
    hidden = targets * item * size.width if _has_teacher(setup) else 0
    checkpointed = temporary if setup.gradient_checkpointing else setup.mlp * size.inner * rows.tokens
    return {
        "activations": _inputs(setup, rows) + checkpointed + hidden,
        "casts": _casts(setup) + setup.own_teacher * _head_cast(setup),
    }


def _loss(setup: Setup, rows: Rows) -> Parts:
    """The fused loss: hidden states, two buffers of logits, float32 blocks of them, and the gradients of states and
    head.
    """
    size, item, targets = setup.architecture, setup.itemsize, rows.count * rows.targets
    sides = 1 + _has_teacher(setup)
    chunk = min(targets, chunk_size(size.vocabulary, setup.dtype))
    device = torch.device("cuda" if setup.gpu else "cpu")
    block = block_rows(chunk, size.vocabulary, torch.float32, device)
    blocks = 2 + (sides if item < WIDE else 0)  # the loss's own, a temporary one, and widened logits
    normed = rows.tokens * (_norm(setup, size.width, setup.stream) + item * size.width)
    logits = size.vocabulary * (sides * chunk * item + blocks * block * WIDE)
    if setup.gpu:  # which losses run in one kernel depends on their settings: the larger of both ways
        trained = setup.full and not setup.frozen_embeddings
        chunk = min(targets, kernels.chunk_size(size.vocabulary, setup.dtype, trained))
        buffers = sides + (setup.own_teacher + setup.teachers > 1)
        logits = max(logits, size.vocabulary * buffers * chunk * item)
    head = 0
    if setup.full:
        head = (1 + setup.own_teacher) * _head_cast(setup)
        head += 0 if setup.frozen_embeddings else _head(setup) * WIDE
    return {
        "activations": _inputs(setup, rows) + normed + (sides + 1) * targets * item * size.width,
        "logits": logits,
        "casts": head + (0 if setup.gradient_checkpointing else _casts(setup)),
    }


def _backward(setup: Setup, rows: Rows) -> Parts:
    """The start of the backward pass, in the last layer's MLP: gradients of its product and of the stream."""
    size, item = setup.architecture, setup.itemsize
    # A layer computed again keeps the same as without checkpointing; its input is the checkpoint.
    kept = _kept(setup, rows) / size.depth - setup.stream * size.width * rows.tokens
    again = kept if setup.gradient_checkpointing else 0
    inner = 2 * setup.mlp + (WIDE + item if setup.lower and not setup.full else 0)  # an adapter's input, cast twice
    temporary = rows.tokens * (inner * size.inner + 2 * setup.stream * size.width)
    casts = _casts(setup) / (size.depth if setup.gradient_checkpointing else 1)
    pending = 0
    if setup.full:  # the gradient of a tied head is added at the end; that of a matrix is temporary
        pending = _head(setup) * WIDE if size.tied and not setup.frozen_embeddings else 0
        pending += WIDE * min([*map(math.prod, size.stacked), size.inner * size.width])
    return {"activations": _inputs(setup, rows) + again + temporary, "casts": casts + pending}


def _embedding(setup: Setup, rows: Rows) -> Parts:
    """The end of the backward pass: the gradients of embedding and head in full, before they are added."""
    size = setup.architecture
    stream = 2 * setup.stream * size.width * rows.tokens
    if not setup.full or setup.frozen_embeddings:
        return {"activations": stream}
    return {"activations": stream, "casts": _head(setup) * (2 if size.tied else 1) * WIDE}


# Speed of a machine, and estimates of how long work takes on it.

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
    single_thread = device.type == "cpu" and torch.get_num_threads() == 1
    clock = time.thread_time if single_thread else time.perf_counter
    work()
    best, begun = math.inf, time.perf_counter()
    while time.perf_counter() - begun < 0.3:
        started = clock()
        work()
        best = min(best, clock() - started)
    return best
