"""Peak memory of a micro-batch and of a rollout, counted by running the real code on fake tensors.

The model is built from its configuration alone, with torch's fake tensors, which have a shape, a type and a lifetime
but no data. The student's and the teachers' forward passes, the loss and the backward pass run as in training, and the
sizes of all live storages are added up. So no knowledge of a model family's layers, of autograd's saved tensors or of
gradient checkpointing is needed. Since layers and rows repeat, a few rows run through the first layers; the memory that
a middle layer retains is counted for all omitted layers, and the result is scaled by the number of rows.

A GPU is simulated: the same products, with the attention kernels that torch selects there.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import math
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter
from transformers import AutoConfig, DynamicCache

from recovery.batching import Batch, Row, collate
from recovery.losses import fused
from recovery.losses.config import LossConfig
from recovery.losses.objective import LABEL, DistillationObjective
from recovery.models import attention
from recovery.models.loading import Loaded, LoraSettings, outline
from recovery.rollouts import Sampling
from recovery.rollouts.transformers_engine import draw
from recovery.teachers import AdapterOff, CurrentStudent, Frozen, Teacher

SLICES = "recovery.losses.fused.slices"
SDPA = "torch.nn.functional.scaled_dot_product_attention"
MASKING = "transformers.masking_utils.find_packed_sequence_indices"
# Chunks of tokens that the loss runs on, and blocks of each: all reuse the same buffers, so two are enough.
_CHUNKS = _BLOCKS = 2
# Rows of the batch that other sizes are scaled from.
_ROWS = 16
TEACHER = "teacher"


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
class Taken:
    """Live bytes at the peak, in addition to weights, optimizer and the gradients of earlier micro-batches.

    ``logits``: tensors as wide as the vocabulary; ``passing``: temporary tensors in the shape of a weight (its gradient
    before accumulation, its copy in a lower precision); ``cache``: keys and values of a rollout; ``activations``: the
    rest.
    """

    activations: float = 0
    logits: float = 0
    passing: float = 0
    cache: float = 0

    @property
    def total(self) -> float:
        """The sum of all parts."""
        return self.activations + self.logits + self.passing + self.cache

    def of_rows(self, times: float, logits: float) -> Taken:
        """Scale to ``times`` as many rows, and ``logits`` times as many tokens whose logits are held at once."""
        return Taken(self.activations * times, self.logits * logits, self.passing, self.cache * times)


@dataclass(frozen=True)
class Trial:
    """A traced configuration: a model (its configuration as JSON), its tuning, and its teachers.

    ``teachers`` is the number of frozen copies loaded with the student; ``own_teacher``: the student's own weights are
    a teacher too, with its adapter off if it has one. Without either, the rows' own tokens are the targets. Gradients
    of an earlier micro-batch are assumed to exist.
    """

    config: str
    tuning: str
    precision: str
    gpu: bool
    gradient_checkpointing: bool = False
    lora_rank: int = 32
    teachers: int = 0
    own_teacher: bool = False

    @property
    def alone(self) -> Trial:
        """The same model without teachers: all that its parameters and its rollouts depend on."""
        return Trial(self.config, self.tuning, self.precision, self.gpu, lora_rank=self.lora_rank)

    def student(self, layers: int | None = None) -> Loaded:
        """Return the student without its weights, with all of its layers or only some."""
        return outline(
            model_config(self.config, layers),
            tuning=self.tuning,  # type: ignore[arg-type]
            lora=LoraSettings(self.lora_rank, 2 * self.lora_rank),
            precision=getattr(torch, self.precision),
            gradient_checkpointing=self.gradient_checkpointing,
        )

    def frozen(self, layers: int | None = None) -> Loaded:
        """Return a frozen copy without its weights."""
        return outline(model_config(self.config, layers), precision=getattr(torch, self.precision))


def model_config(text: str, layers: int | None = None) -> Any:
    """Return the transformers configuration of a config.json's text, of its first ``layers`` only, if given."""
    values = json.loads(text)
    config = AutoConfig.for_model(values.pop("model_type"), **values)
    if layers is not None:
        inner = config.get_text_config()
        inner.num_hidden_layers = layers
        if getattr(inner, "layer_types", None):
            inner.layer_types = inner.layer_types[:layers]
    return config


@functools.lru_cache(maxsize=256)
def training_memory(trial: Trial, rows: Rows) -> Taken:
    """Return the peak of one micro-batch, from the teachers' forward pass to the end of the student's backward pass."""
    trial = dataclasses.replace(trial, teachers=min(trial.teachers, 1))  # they score one after the other
    run = _rows_to_run(trial, rows.count, rows.length)
    phases = _deep(trial, dataclasses.replace(rows, count=run))
    config = model_config(trial.config).get_text_config()
    chunk = fused.chunk_size(config.vocab_size, getattr(torch, trial.precision))
    logits = min(chunk, rows.count * rows.targets) / min(chunk, run * rows.targets)
    return _largest([phase.of_rows(rows.count / run, logits) for phase in phases])


@functools.lru_cache(maxsize=256)
def rollout_memory(trial: Trial, answers: int, prompt: int, new: int) -> Taken:
    """Return the peak of sampling ``answers`` completions at once: in prefill, or at the last of ``new`` tokens."""
    run = _rows_to_run(trial, answers, prompt)
    phases = _deep_rollout(trial.alone, run, prompt, new)
    return _largest([phase.of_rows(answers / run, answers / run) for phase in phases])


def _rows_to_run(trial: Trial, count: int, length: int) -> int:
    """Return how many rows to run for ``count``: all rows take the same, unless a CPU switches attention kernels."""
    heads = model_config(trial.config).get_text_config().num_attention_heads
    whole = [attention.formed_whole(rows, heads, length, length) for rows in (count, _ROWS)]
    return _ROWS if trial.gpu or whole[0] == whole[1] else count


@functools.lru_cache(maxsize=256)
def _deep_rollout(trial: Trial, answers: int, prompt: int, new: int) -> list[Taken]:
    return _sample(trial, answers, prompt, new, _depth(trial))


@functools.lru_cache(maxsize=256)
def _deep(trial: Trial, rows: Rows) -> list[Taken]:
    return _train(trial, rows, _depth(trial))


@dataclass(frozen=True)
class Depth:
    """The layers to run: those from ``start`` up to ``stop`` represent ``more`` times as many omitted ones."""

    layers: int
    start: int = 0
    stop: int = 0
    more: int = 0


def _depth(trial: Trial) -> Depth:
    """Choose the layers to run: the first one, one period of repeated layers (their kinds may alternate), one more
    until the period's temporary tensors are released, the last period, and some more so that the omitted layers are a
    multiple of the period.
    """
    config = model_config(trial.config).get_text_config()
    depth, kinds = config.num_hidden_layers, list(getattr(config, "layer_types", None) or [])
    period = next((p for p in range(1, len(kinds)) if all(a == b for a, b in zip(kinds, kinds[p:], strict=False))), 1)
    run = 2 * period + 2
    run += (depth - run) % period
    return Depth(depth) if depth <= run else Depth(run, 1, 1 + period, (depth - run) // period)


def _largest(phases: Sequence[Taken]) -> Taken:
    return max(phases, key=lambda taken: taken.total)


def _train(trial: Trial, rows: Rows, depth: Depth) -> list[Taken]:
    """Return the peaks of each forward pass, of the loss, of the backward pass, and of its end at the embedding."""
    student = trial.student(depth.layers)
    frozen = trial.frozen(depth.layers) if trial.teachers else None
    taught = trial.own_teacher or frozen is not None
    batch, unseen = _batch(rows, student, TEACHER if taught else LABEL)
    with _without_data(trial.gpu, rows.packed) as (mode, counter):
        _give_shapes(mode, student)
        teacher: Teacher = AdapterOff(student) if trial.tuning == "lora" else CurrentStudent(student)
        if frozen is not None:
            _give_shapes(mode, frozen)
            teacher = Frozen(frozen)
        for p in student.trainable().values():
            p.grad = torch.empty_like(p)
        student.core.get_input_embeddings().register_forward_hook(counter.next_when_its_gradient_comes)
        for one in (student, *([] if frozen is None else [frozen])):
            _watch_passes(counter, one, depth)
        estimator = DistillationObjective({TEACHER: teacher}, LossConfig())
        student.model.train()
        batch = _shapes_of(mode, batch)
        counter.begin(*(one for one in (student, frozen) if one is not None))
        loss = estimator(student, batch).loss / rows.tokens
        counter.next()
        counter.forward = False
        loss.backward()
    # Hidden states of the targets that the loss was not run on: the teacher's, the student's, their gradient twice.
    width = (4 if taught else 3) * student.head.width * student.precision.itemsize
    return [dataclasses.replace(phase, activations=phase.activations + unseen * width) for phase in counter.phases]


def _sample(trial: Trial, answers: int, prompt: int, new: int, depth: Depth) -> list[Taken]:
    """Return the peaks of prefill and of the last of ``new`` tokens: in the layers, and in sampling from the logits."""
    loaded = trial.frozen(depth.layers) if trial.tuning == "full" else trial.student(depth.layers)
    with _without_data(trial.gpu, packed=True) as (mode, counter), torch.no_grad(), loaded.autocast():
        _give_shapes(mode, loaded)
        loaded.model.eval()
        _watch_passes(counter, loaded, depth)
        counter.begin(loaded)
        cache = DynamicCache(config=loaded.core.config)
        mask_BT = torch.ones(answers, prompt, dtype=torch.long)
        _decode(loaded, torch.zeros_like(mask_BT), mask_BT, (mask_BT.cumsum(-1) - 1).clamp(min=0), cache)
        _lengthen(cache, prompt + new - 1)
        counter.next()
        mask_BT = torch.ones(answers, prompt + new, dtype=torch.long)
        _decode(loaded, mask_BT[:, :1], mask_BT, mask_BT[:, -1:], cache)
        sizes = [_size(layer.keys) + _size(layer.values) for layer in cache.layers]
        kept = sum(sizes) + depth.more * sum(sizes[depth.start : depth.stop])
    read = round(kept * prompt / (prompt + new))
    return [
        dataclasses.replace(phase, activations=phase.activations - cache, cache=cache)
        for phase, cache in zip(counter.phases, (read, read, kept, kept), strict=True)
    ]


def _watch_passes(counter: Counter, loaded: Loaded, depth: Depth) -> None:
    """Add hooks: a phase ends with the last layer, and the memory the middle layers retain counts ``more`` times."""
    counter.more = depth.more
    loaded.decoder.register_forward_hook(lambda *_: counter.next())
    if depth.more:
        layers = next(
            found
            for found in loaded.decoder.modules()
            if isinstance(found, torch.nn.ModuleList) and len(found) == depth.layers
        )
        layers[depth.start].register_forward_pre_hook(lambda *_: counter.enter())
        layers[depth.stop - 1].register_forward_hook(lambda *_: counter.leave())
        layers[depth.stop].register_forward_hook(lambda *_: counter.repeat())


def _decode(loaded: Loaded, ids_BT: Any, mask_BT: Any, positions_BT: Any, cache: DynamicCache) -> None:
    """Run one decoding step: hidden states, logits of the last position, a sampled token."""
    output = loaded.decoder(
        input_ids=ids_BT, attention_mask=mask_BT, position_ids=positions_BT, past_key_values=cache, use_cache=True
    )
    logits_BV = loaded.head.logits(output.last_hidden_state[:, -1].to(loaded.precision))
    draw(logits_BV, Sampling(1), logits_BV.new_zeros(len(logits_BV), dtype=torch.float64))


def _lengthen(cache: DynamicCache, length: int) -> None:
    """Grow the cache to ``length`` tokens per row; a layer with a sliding window keeps at most the window."""
    for layer in cache.layers:
        window = getattr(layer, "sliding_window", None)
        kept = length if window is None else min(length, window - 1)
        for name in ("keys", "values"):
            rows, groups, _, width = getattr(layer, name).shape
            setattr(layer, name, getattr(layer, name).new_empty(rows, groups, kept, width))
        if hasattr(layer, "cumulative_length"):
            layer.cumulative_length = length


# --- running without data ------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _without_data(gpu: bool, packed: bool) -> Iterator[tuple[FakeTensorMode, Counter]]:
    mode, counter = FakeTensorMode(allow_non_fake_inputs=True), Counter()
    with contextlib.ExitStack() as stack:
        if gpu:  # device-dependent choices: no full attention scores, no blocks within a chunk
            stack.enter_context(mock.patch.object(attention, "_on_cpu", return_value=False))
            stack.enter_context(mock.patch.object(fused, "_BLOCK_BYTES", 1 << 62))
        stack.enter_context(mock.patch(SLICES, _few_slices))
        stack.enter_context(mock.patch(SDPA, functools.partial(_kernel, gpu)))
        if not packed:  # packing cannot be detected from positions without data
            stack.enter_context(mock.patch(MASKING, return_value=None))
        stack.enter_context(mode)
        stack.enter_context(counter)
        yield mode, counter


def _few_slices(total: int, size: int) -> Iterator[slice]:
    """Yield the first of the loss's chunks, of a chunk's blocks or of the head's tiles."""
    return (slice(start, min(start + size, total)) for start in range(0, total, size)[:_BLOCKS])


def _kernel(
    gpu: bool,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    is_causal: bool = False,
    **_others: Any,
) -> torch.Tensor:
    """Run attention with the kernel that torch selects for real data; for fake tensors it selects none."""
    if torch.is_autocast_enabled("cpu"):
        dtype = torch.get_autocast_dtype("cpu")
        query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
    mask = None if attn_mask is None else torch.empty(attn_mask.shape, dtype=query.dtype)
    aten: Any = torch.ops.aten
    if gpu and mask is None:
        return aten._scaled_dot_product_flash_attention(query, key, value, 0.0, is_causal)[0]
    if gpu and mask is not None:
        bias = mask.expand(*query.shape[:3], key.shape[2])
        learning = torch.is_grad_enabled()
        return aten._scaled_dot_product_efficient_attention(query, key, value, bias, learning, 0.0, is_causal)[0]
    groups = query.shape[1] // key.shape[1]
    if groups > 1 and torch.is_grad_enabled():  # torch has no fake gradients for grouped heads
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    return aten._scaled_dot_product_flash_attention_for_cpu(query, key, value, 0.0, is_causal, attn_mask=mask)[0]


class Counter(TorchDispatchMode):
    """Adds up the live storages of all operations and records the peak of each phase.

    Storages made between :meth:`enter` and :meth:`leave` and still live at :meth:`repeat` are counted ``more``
    additional times, for the omitted layers.
    """

    def __init__(self) -> None:
        super().__init__()
        self.live: dict[int, tuple[str, int]] = {}
        self.now = {"activations": 0, "logits": 0, "passing": 0}
        self.peak = dict(self.now)
        self.done: list[Taken] = []
        self.vocabulary = 0
        self.weights: set[tuple[int, ...]] = set()
        self.more = 0
        self.forward = True  # layers that gradient checkpointing reruns in the backward pass retain nothing
        self.inside = False
        self.entered: set[int] = set()
        self.repeated: set[int] = set()

    def begin(self, *models: Loaded) -> None:
        """Start counting; existing storages and the weights of ``models`` are not counted."""
        self.vocabulary = models[0].head.vocabulary
        self.live.clear()
        for model in (loaded.model for loaded in models):
            for tensor in [*model.parameters(), *model.buffers()]:
                self.live[tensor.untyped_storage()._cdata] = "passing", 0
                if tensor.grad is not None:
                    self.live[tensor.grad.untyped_storage()._cdata] = "passing", 0
                if tensor.ndim == 2:
                    self.weights |= {tuple(tensor.shape), tuple(tensor.shape)[::-1]}
        self.now = dict.fromkeys(self.now, 0)
        self.peak = dict(self.now)

    def enter(self) -> None:
        """Mark the start of the layers that represent omitted ones."""
        self.inside = self.forward

    def leave(self) -> None:
        """Mark the end of these layers."""
        self.inside = False

    def repeat(self) -> None:
        """Count what these layers retain once more for each omitted repetition."""
        for key in self.entered:
            self.repeated.add(key)
            kind, size = self.live[key]
            self.now[kind] += self.more * size
        self.entered = set()
        self._update_peak()

    def next(self) -> None:
        """End the current phase and start the next."""
        self.done.append(Taken(**self.peak))
        self.peak = dict(self.now)

    def next_when_its_gradient_comes(self, _module: Any, _args: Any, made: torch.Tensor) -> None:
        """Forward hook: start a new phase when the gradient reaches the module's output."""
        if made.requires_grad:
            made.register_hook(lambda _gradient: self.next())

    @property
    def phases(self) -> list[Taken]:
        """The peaks of all phases so far, including the current one."""
        return [*self.done, Taken(**self.peak)]

    def __torch_dispatch__(
        self, function: Callable[..., Any], _types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if function is torch.ops.prim.device.default:  # more than half of all calls; skip the fake tensor mode
            return args[0].device
        made = function(*args, **(kwargs or {}))
        if isinstance(made, torch.Tensor):
            self._add(made)
        else:
            for tensor in tree_iter(made):
                if isinstance(tensor, torch.Tensor):
                    self._add(tensor)
        return made

    def _add(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self.live:
            return
        shape = tuple(tensor.shape)
        kind = "passing" if shape in self.weights else "logits" if self.vocabulary in shape else "activations"
        self.live[key] = kind, storage.nbytes()
        self.now[kind] += storage.nbytes()
        if self.inside:
            self.entered.add(key)
        weakref.finalize(storage, self._release, key)
        self._update_peak()

    def _update_peak(self) -> None:
        if sum(self.now.values()) > sum(self.peak.values()):
            self.peak = dict(self.now)

    def _release(self, key: int) -> None:
        kind, size = self.live.pop(key, ("activations", 0))
        self.now[kind] -= size
        if key in self.repeated:
            self.repeated.remove(key)
            self.now[kind] -= self.more * size
        self.entered.discard(key)


def _size(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _give_shapes(mode: FakeTensorMode, loaded: Loaded) -> None:
    """Replace the meta tensors of a model by fake ones; tied parameters stay tied."""
    made: dict[int, torch.nn.Parameter] = {}
    for module in loaded.model.modules():
        for name, p in module._parameters.items():
            if p is not None:
                if id(p) not in made:
                    made[id(p)] = torch.nn.Parameter(_fake(mode, p.data), requires_grad=p.requires_grad)
                module._parameters[name] = made[id(p)]
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = _fake(mode, buffer)
    head = loaded._head
    loaded._head = dataclasses.replace(
        head, weight_VD=made[id(head.weight_VD)], bias_V=None if head.bias_V is None else made[id(head.bias_V)]
    )


def _shapes_of(mode: FakeTensorMode, batch: Batch) -> Batch:
    fields: dict[str, Any] = {f.name: getattr(batch, f.name) for f in dataclasses.fields(batch)}
    tensors: dict[str, Any] = {k: _fake(mode, value) for k, value in fields.items() if isinstance(value, torch.Tensor)}
    return dataclasses.replace(batch, **tensors)


def _fake(mode: FakeTensorMode, tensor: torch.Tensor) -> torch.Tensor:
    return FakeTensor(mode, torch.empty_like(tensor, device="meta"), torch.device("cpu"))


def _batch(rows: Rows, student: Loaded, teacher: str) -> tuple[Batch, int]:
    """Return the micro-batch with targets for a few chunks of the loss, and the number of omitted targets."""
    wanted = rows.count * rows.targets
    kept = min(wanted, _CHUNKS * fused.chunk_size(student.head.vocabulary, student.precision))
    each = math.ceil(kept / rows.count)
    mask = [False] * (rows.length - each) + [True] * each
    halves = (rows.length // 2, rows.length - rows.length // 2) if rows.packed else ()
    row = Row([0] * rows.length, mask, halves, teacher)
    batch = collate([row] * rows.count, student.chat.pad_id)
    return batch, wanted - batch.tokens
