"""The training loop, used by every stage and every method through :func:`train`.

A stage provides a source (step → rows), an objective (student, batch → summed loss) and settings. All randomness is a
function of (seed, step), so a run that was stopped or killed resumes from its newest state and reaches the same weights
as an uninterrupted one (bit for bit on a CPU in float32).

Several processes all run this loop; the main one creates the rows, logs and decides, each gets its share of the rows,
and the gradients are summed. The weights equal those of a single process up to the order of summation.
"""

from __future__ import annotations

import contextlib
import copy
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

import torch

from recovery import distributed
from recovery.batching import Batch, Row, micro_batches, separate_rows
from recovery.errors import Interrupted, RecoveryError, UsageError, memory_is_full
from recovery.losses.objective import LossOutput
from recovery.models.fsdp import apart, dot, local, total_norm
from recovery.models.hardware import release_gpu_memory
from recovery.models.loading import Loaded, not_finite
from recovery.rng import derive_seed
from recovery.training.resumable import Resumable
from recovery.training.resume_state import Reader, States

Schedule = Literal["constant", "linear", "cosine"]
T = TypeVar("T")

FINISHED, INTERRUPTED, COLLAPSE = "finished", "interrupted", "collapse"


@dataclass(frozen=True)
class TrainSettings:
    """Optimisation settings. ``token_budget`` (padded tokens per micro-batch) affects memory only; where a GPU's memory
    is full, it is halved.

    ``checkpoint_every`` is in steps: at most that many are lost if the process is killed. ``gather``: between the steps
    of a stage that samples, every process has the whole student.
    """

    steps: int
    lr: float
    warmup_steps: int = 0
    schedule: Schedule = "cosine"
    min_lr_ratio: float = 0.1
    optimizer: Literal["adamw", "muon"] = "adamw"
    weight_decay: float = 0.0
    betas: tuple[float, float] = (0.9, 0.95)
    max_grad_norm: float = 1.0
    token_budget: int = 16384
    seed: int = 0
    checkpoint_every: int = 50
    gather: bool = True
    keep_states: int = 2

    def __post_init__(self) -> None:
        if self.steps < 1 or self.lr <= 0 or self.token_budget < 1 or self.checkpoint_every < 1:
            raise UsageError("--steps, --lr, --token-budget and --checkpoint-every must all be above 0")


class StepBatch(NamedTuple):
    """The rows of one step, and metrics measured while they were created."""

    rows: list[Row]
    metrics: Mapping[str, float] = MappingProxyType({})


class Objective(Protocol):
    """Computes the loss of a batch, summed over its target tokens."""

    def __call__(self, student: Loaded, batch: Batch) -> LossOutput: ...

    def not_finite(self, batch: Batch, *, alone: bool = False) -> str | None:
        """Return what of a batch, other than the student, is not finite; None if all of it is."""
        ...

    def separates_documents(self, teacher: str) -> bool:
        """Whether all models but the student that read rows of ``teacher`` read each document of a packed row as if it
        were alone.
        """
        ...


class AveragedWeights(Protocol):
    """A moving average of the trained weights: updated after each step, saved with each state."""

    @property
    def tensors(self) -> Mapping[str, torch.Tensor]:
        """The weights by the names of the trained parameters."""
        ...

    def update(self, params: Mapping[str, torch.Tensor]) -> None:
        """Update after one step."""
        ...


class Instrumentation(Protocol):
    """Measurements on each process's share of a step, combined over all processes."""

    def start(self, step: int) -> None:
        """Called before the forward pass of a step."""
        ...

    def reading(self) -> Any:
        """Return this process's measurements in picklable form; called after the forward pass of a step."""
        ...

    def take(self, readings: list[Any]) -> None:
        """Combine the measurements of all processes."""
        ...


@dataclass
class TrainResult:
    """Step and reason of the stop: "finished", "interrupted", or the reason returned by ``after_step``."""

    step: int
    stopped: str
    trained_tokens: int = 0


@dataclass
class _State:
    step: int = 0
    trained_tokens: int = 0
    stopped: str | None = None


@dataclass(frozen=True)
class Hooks:
    """Functions of the caller that run during training, in the main process only. Steps are numbered from 1.

    Attributes:
        log: receives each step's metrics.
        on_batch: receives each step's rows before they are trained on.
        after_step: returns a reason to stop, or None. With a reason that begins with "collapse" the run is rolled back
            to its newest state.
        sound: returns whether the weights are worth saving; while it returns False no intermediate state is saved.
        reference: returns rows whose loss the step may not raise: a gradient that would is projected (A-GEM).
        smaller: receives the tokens of a micro-batch from this step on, after a GPU's memory was full.
    """

    log: Callable[[int, dict[str, float]], None] = lambda _step, _metrics: None
    on_batch: Callable[[int, StepBatch], None] = lambda _step, _batch: None
    after_step: Callable[[int], str | None] = lambda _step: None
    sound: Callable[[], bool] = lambda: True
    reference: Callable[[int], list[Row]] | None = None
    smaller: Callable[[int, int], None] = lambda _step, _tokens: None


def train(
    loaded: Loaded,
    source: Callable[[int], StepBatch],
    objective: Objective,
    settings: TrainSettings,
    *,
    hooks: Hooks = Hooks(),
    state_dir: Path | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    resumables: Sequence[Resumable] = (),
    averaged: AveragedWeights | None = None,
    instrumentation: Instrumentation | None = None,
    helpers: distributed.Helpers | None = None,
) -> TrainResult:
    """Train until ``settings.steps``, until ``should_stop``, or until a hook returns a reason to stop.

    With one process a stop is also handled between micro-batches and when ``source`` raises Interrupted: the step is
    abandoned and the state before it saved. ``resumables`` is the caller's state, stored with the weights and restored
    on resume. ``instrumentation`` measures during the forward passes. With several processes only the main one's
    ``source``, ``hooks`` and ``resumables`` are used, ``helpers`` are the functions that the others run for them, and
    a stop may be requested in any process. Raise RecoveryError if the loss or the gradient is not finite; earlier
    states are kept.
    """
    params = loaded.trainable()
    if not params:
        raise UsageError(f"{loaded.path} was loaded frozen: it has no trainable weights")
    optimizers = _optimizers(loaded, params, settings)
    state = _State()
    saved = _Saved(States(state_dir, settings.keep_states), params, optimizers, averaged, resumables)
    saved.restore(state)
    batch = _MicroBatch(settings.token_budget, hooks.smaller)
    run = _Run(loaded, objective, settings, params, optimizers, instrumentation, should_stop, batch)

    def on_main(work: Callable[[], T]) -> T:
        """Run ``work`` in the main process; with helpers all have the whole model, unless it is not gathered."""
        with loaded.whole() if helpers and settings.gather else contextlib.nullcontext():
            return distributed.lead(work, helpers)

    def begin_step(step: int) -> tuple[StepBatch, list[Row] | None]:
        batch = source(step)
        hooks.on_batch(step, batch)
        return batch, hooks.reference(step) if hooks.reference else None

    def finish_step(step: int, metrics: dict[str, float]) -> tuple[str | None, bool]:
        hooks.log(step, metrics)
        return hooks.after_step(step), hooks.sound()

    def interrupted() -> TrainResult:
        if distributed.lead(hooks.sound):
            saved.write(state)
        return TrainResult(state.step, INTERRUPTED, state.trained_tokens)

    while state.step < settings.steps and state.stopped is None:
        if distributed.anywhere(should_stop()):
            return interrupted()
        step = state.step + 1
        torch.manual_seed(derive_seed(settings.seed, step))
        started, before = time.perf_counter(), saved.extra_state()
        try:
            made, guard = on_main(lambda: begin_step(step))  # noqa: B023
            seconds = time.perf_counter() - started
            metrics = {"seconds_generating": seconds, **made.metrics, **run.step(step, made.rows, guard)}
        except Interrupted:
            if distributed.size() > 1:  # the error also stops the other processes
                raise
            run.give_up()
            saved.load_extra_state(before)
            return interrupted()
        state.trained_tokens += int(metrics["tokens_trained"])
        metrics["tokens_per_second"] = metrics["tokens_trained"] / (time.perf_counter() - started)
        if averaged is not None:
            averaged.update(params)
        state.step = step
        state.stopped, good = on_main(lambda: finish_step(step, metrics))  # noqa: B023
        if state.stopped is not None and state.stopped.startswith(COLLAPSE):
            return _rolled_back(saved, state, loaded)
        if state.stopped or step == settings.steps or (step % settings.checkpoint_every == 0 and good):
            saved.write(state)
    loaded.put_together()
    return TrainResult(state.step, state.stopped or FINISHED, state.trained_tokens)


def _rolled_back(saved: _Saved, state: _State, loaded: Loaded) -> TrainResult:
    """Restore the newest state after a collapse; return the result with the reason of the stop."""
    reason, tokens = str(state.stopped), state.trained_tokens
    if not saved.restore(state):
        raise RecoveryError(
            f"{reason}; there is no saved state, so the student is unchanged: lower --lr, or --checkpoint-every"
        )
    loaded.put_together()
    return TrainResult(state.step, reason, tokens)


def learning_rate(step: int, settings: TrainSettings) -> float:
    """Return the learning rate of a step (from 1): linear warm-up, then decay to ``min_lr_ratio`` of the peak."""
    if step <= settings.warmup_steps:
        return settings.lr * step / settings.warmup_steps
    if settings.schedule == "constant":
        return settings.lr
    done = (step - settings.warmup_steps - 1) / max(1, settings.steps - settings.warmup_steps)
    left = 1 - done if settings.schedule == "linear" else 0.5 * (1 + math.cos(math.pi * done))
    return settings.lr * (settings.min_lr_ratio + (1 - settings.min_lr_ratio) * left)


@dataclass
class _Totals:
    """One process's sums over the tokens of a step by metric, how many tokens each has, and which are losses."""

    sums: dict[str, float] = field(default_factory=dict)
    tokens: dict[str, int] = field(default_factory=dict)
    losses: set[str] = field(default_factory=set)

    def add(self, output: LossOutput) -> None:
        """Add a batch."""
        self.losses.add(output.metric)
        for name, value in output.sums.items():
            self.sums[name] = self.sums.get(name, 0.0) + float(value)
            self.tokens[name] = self.tokens.get(name, 0) + output.tokens


@dataclass
class _MicroBatch:
    """The largest micro-batch, in padded tokens, and who is told when it becomes smaller."""

    tokens: int
    smaller: Callable[[int, int], None]


@dataclass(frozen=True)
class _Run:
    """State of one process during a training step."""

    loaded: Loaded
    objective: Objective
    settings: TrainSettings
    params: dict[str, torch.nn.Parameter]
    optimizers: list[torch.optim.Optimizer]
    instrumentation: Instrumentation | None
    should_stop: Callable[[], bool]
    largest: _MicroBatch

    def give_up(self) -> None:
        """Abandon the current step; the weights are unchanged."""
        self.loaded.model.eval()
        for p in self.params.values():
            p.grad = None

    def step(self, step: int, rows: list[Row], guard: list[Row] | None) -> dict[str, float]:
        """Make one update on the rows of all processes; return its metrics."""
        started = time.perf_counter()
        tokens = sum(row.targets for row in rows)
        if tokens == 0:
            raise RecoveryError(f"step {step} has no token to train on: every row is masked")
        sums = self._accumulate(step, rows, tokens, self.instrumentation)
        if guard is not None:
            sums |= self._project(step, guard)
        self.loaded.model.eval()
        norm = self._clip()
        if not math.isfinite(norm):
            raise RecoveryError(f"the gradient is not finite at step {step}: lower --lr; the last saved state is kept")
        rate = learning_rate(step, self.settings)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate * group["scale"]
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        seconds = time.perf_counter() - started
        return sums | {"gradient_norm": norm, "lr": rate, "tokens_trained": float(tokens), "seconds_training": seconds}

    def _accumulate(
        self, step: int, rows: list[Row], tokens: int, instrumentation: Instrumentation | None = None
    ) -> dict[str, float]:
        """Compute the gradients of the mean loss over all tokens of the step; return means by name, in nats per
        token.
        """

        def mine() -> tuple[_Totals, Any]:
            separated = self._separated(rows)
            totals = self._attempt(step, separated, tokens, instrumentation)
            while totals is None:
                self._halve(step, separated)
                totals = self._attempt(step, separated, tokens, instrumentation)
            return totals, None if instrumentation is None else instrumentation.reading()

        shares = distributed.gather(mine)
        self._add_up()
        self._keep_rows()
        if instrumentation is not None:
            instrumentation.take([reading for _, reading in shares])
        totals = [share for share, _ in shares]
        names = list(dict.fromkeys(name for share in totals for name in share.sums))
        losses = {name for share in totals for name in share.losses}
        sums = {name: sum(share.sums.get(name, 0.0) for share in totals) for name in names}
        means = {name: sums[name] / sum(share.tokens.get(name, 0) for share in totals) for name in names}
        loss = sum(value for name, value in sums.items() if name in losses) / tokens
        return {"loss": loss} | means

    def _attempt(
        self, step: int, rows: list[Row], tokens: int, instrumentation: Instrumentation | None
    ) -> _Totals | None:
        """Return :meth:`_score`'s totals, or None if the GPU's memory is too full for such micro-batches.

        What teachers scored before that counts as scored.
        """
        self.loaded.model.train()
        if instrumentation is not None:
            instrumentation.start(step)
        try:
            return self._score(rows, tokens)
        except RuntimeError as error:
            if not memory_is_full(error) or distributed.size() > 1:  # the other processes have gone on
                raise
        return None  # only now are the tensors of this attempt freed

    def _halve(self, step: int, rows: list[Row]) -> None:
        """Forget the gradients of an attempt, and halve the micro-batches. Raise RecoveryError if they are single
        rows.
        """
        self.give_up()
        widest = max(row.width for row in rows)
        if self.largest.tokens <= widest:
            raise RecoveryError(
                f"the GPU's memory is too full for one row of {widest:,} tokens (step {step}): end other programs that "
                f"use the GPU, or use --gradient-checkpointing or --tuning lora; the last saved state is kept"
            )
        self.largest.tokens = max(widest, min(self.largest.tokens, sum(row.width for row in rows)) // 2)
        release_gpu_memory(self.loaded.device)
        self.largest.smaller(step, self.largest.tokens)

    def _score(self, rows: list[Row], tokens: int) -> _Totals:
        """Compute this process's gradients of a step; return sums over its tokens and their counts, by name."""
        loaded, totals = self.loaded, _Totals()
        batches = micro_batches(
            rows,
            self.largest.tokens,
            loaded.chat.pad_id,
            loaded.device,
            share=(distributed.rank(), distributed.size()),
            even=loaded.sharded,
        )
        with distributed.in_step() if loaded.sharded else contextlib.nullcontext():
            for batch in batches:
                if distributed.size() == 1 and self.should_stop():
                    raise Interrupted("stop requested within a step")
                if batch.tokens == 0 and not loaded.sharded:
                    continue
                output = self.objective(loaded, batch)
                (output.loss * 0.0 if batch.idle else output.loss / tokens).backward()
                if not batch.idle:
                    totals.add(output)
                    self._check_finite(batch, output)
        return totals

    def _separated(self, rows: list[Row]) -> list[Row]:
        """Return the rows; a packed one as one row for each document, if a model that reads it would mix them."""
        packed = sorted({row.teacher for row in rows if len(row.segments) > 1})  # all processes try models in one order
        student = not packed or self.loaded.separates_documents
        mixed = {name for name in packed if not (student and self.objective.separates_documents(name))}
        return [part for row in rows for part in (separate_rows([row]) if row.teacher in mixed else [row])]

    def _check_finite(self, batch: Batch, output: LossOutput) -> None:
        """Raise RecoveryError if a batch's loss is not finite, naming where that begins; the weights are unchanged."""
        if math.isfinite(float(output.loss.detach())):
            return
        # Of sharded models this process has only a part, and the others are not here to run the layers.
        sharded = self.loaded.sharded
        source = None if sharded else not_finite(self.loaded.model)
        cause = (
            f"the student's weights are not ({source})"
            if source
            else self.objective.not_finite(batch, alone=sharded)
            or ("the student's or its teacher's" if sharded else "the student's") + " logits are not"
        )
        raise RecoveryError(
            f"the loss is not finite ({output.metric}): {cause}; lower --lr, or use --precision float32; the last "
            f"saved state is kept"
        )

    def _add_up(self) -> None:
        """Sum the gradients over all processes; those of sharded layers were summed in the backward pass."""
        if distributed.size() == 1:
            return
        whole, _ = apart(self.params.values())
        found = torch.tensor([p.grad is not None for p in whole], dtype=torch.float32, device=self.loaded.device)
        distributed.add_up([found])
        for p, somewhere in zip(whole, found.tolist(), strict=True):
            if somewhere and p.grad is None:  # no row of this process has a gradient for it
                p.grad = torch.zeros_like(p)
        distributed.add_up([p.grad for p in whole if p.grad is not None])

    def _keep_rows(self) -> None:
        """Remove the gradient of the rows of embeddings that are not trained.

        The softmax gives every entry of the vocabulary a small gradient, which Adam turns into steps of full size.
        """
        rows = self.loaded.trained_rows
        if rows is None:
            return
        for p in self.loaded.embeddings():
            if p.grad is not None:
                p.grad[~rows] = 0.0

    def _clip(self) -> float:
        """Clip the gradient to ``max_grad_norm``; return its norm before clipping."""
        norm = total_norm([p.grad for p in self.params.values() if p.grad is not None])
        for part in apart(self.params.values()):
            torch.nn.utils.clip_grads_with_norm_(part, self.settings.max_grad_norm, norm)
        return float(norm)

    def _project(self, step: int, guard: list[Row]) -> dict[str, float]:
        """A-GEM (arXiv 1812.00420): if g . g_ref < 0, remove the component along g_ref from g."""
        params = list(self.params.values())
        wanted = [None if p.grad is None else p.grad.clone() for p in params]
        for p in params:
            p.grad = None
        sums = self._accumulate(step, guard, sum(row.targets for row in guard))
        pairs = [(w, p.grad) for w, p in zip(wanted, params, strict=True) if w is not None and p.grad is not None]
        along, square = dot(pairs), dot((g, g) for _, g in pairs)
        scale = along / square if along < 0 and square > 0 else 0.0
        for p, w in zip(params, wanted, strict=True):
            p.grad = w if w is None or p.grad is None or scale == 0.0 else w.sub_(p.grad, alpha=scale)
        return {"reference_loss": sums["loss"], "projected": float(scale != 0.0)}


def _optimizers(
    loaded: Loaded, params: dict[str, torch.nn.Parameter], settings: TrainSettings
) -> list[torch.optim.Optimizer]:
    """Create AdamW for all parameters; with "muon", Muon for the matrices inside the layers (Jordan et al., 2024).

    Vectors do not decay, nor do embeddings of which only some rows are trained.
    """
    still = {id(p) for p in loaded.embeddings()} if loaded.trained_rows is not None else set()
    muon = _inside_layers(loaded, params) if settings.optimizer == "muon" else []
    if any(apart(muon)[1]):
        raise UsageError("--optimizer muon needs whole matrices: use --shard none, or --optimizer adamw")
    chosen = {id(p) for p in muon}
    rest = [p for p in params.values() if id(p) not in chosen]
    # Sharded and replicated tensors are in separate groups: one call cannot update both.
    groups = [
        {
            "params": [p for p in part if (p.ndim >= 2 and id(p) not in still) == matrix],
            "weight_decay": decay,
            "scale": 1.0,
        }
        for matrix, decay in ((True, settings.weight_decay), (False, 0.0))
        for part in apart(rest)
    ]
    made: list[torch.optim.Optimizer] = []
    if rest:
        groups = [group for group in groups if group["params"]]
        made.append(torch.optim.AdamW(groups, lr=settings.lr, betas=settings.betas, fused=True))
    if muon:
        group = {"params": muon, "weight_decay": settings.weight_decay, "scale": 1.0}
        made.append(torch.optim.Muon([group], lr=settings.lr, adjust_lr_fn="match_rms_adamw"))
    return made


def _inside_layers(loaded: Loaded, params: Mapping[str, torch.nn.Parameter]) -> list[torch.nn.Parameter]:
    """Return the matrices that are neither embeddings, of tokens or positions, nor in the output head."""
    tables = [module for module in loaded.model.modules() if isinstance(module, torch.nn.Embedding)]
    outside = {id(p) for p in (*loaded.embeddings(), *(table.weight for table in tables))}
    return [p for p in params.values() if p.ndim == 2 and id(p) not in outside]


@dataclass(frozen=True)
class _Saved:
    """The training states of a run: weights, optimizer, averaged weights, the state of the loop and of its caller."""

    states: States
    params: dict[str, torch.nn.Parameter]
    optimizers: list[torch.optim.Optimizer]
    averaged: AveragedWeights | None
    resumables: Sequence[Resumable]

    def __post_init__(self) -> None:
        names = [name for owner in self.resumables for name in owner.state()]
        if twice := {name for name in names if names.count(name) > 1}:
            raise ValueError(f"two resumables store {', '.join(sorted(twice))}: give one of them a prefix")

    def extra_state(self) -> dict[str, Any]:
        """Return the caller's state, in values that later steps do not change."""
        return copy.deepcopy({name: value for owner in self.resumables for name, value in owner.state().items()})

    def load_extra_state(self, state: Mapping[str, Any]) -> None:
        """Restore the caller's state."""
        for owner in self.resumables:
            owner.restore(state)

    def write(self, state: _State) -> None:
        """Write the state of the last step, unless it exists already."""
        meta = {"step": state.step, "trained_tokens": state.trained_tokens, "stopped": state.stopped}
        self.states.write(state.step, self._tensors(), meta | {"memory": self.extra_state()})

    def _tensors(self) -> dict[str, torch.Tensor]:
        names = {id(p): name for name, p in self.params.items()}
        tensors = {f"param/{name}": p.detach() for name, p in self.params.items()}
        for optimizer in self.optimizers:
            for p, entries in optimizer.state.items():
                tensors |= {f"optimizer/{key}/{names[id(p)]}": v.detach() for key, v in entries.items()}
        if self.averaged is not None:
            tensors |= {f"shadow/{name}": tensor.detach() for name, tensor in self.averaged.tensors.items()}
        return tensors

    def restore(self, state: _State) -> bool:
        """Load the newest readable state; return whether there is one."""
        found = self.states.read()
        if found is None:
            return False
        meta, tensors = found
        self._load(tensors)
        state.step, state.trained_tokens = meta["step"], meta["trained_tokens"]
        state.stopped = meta["stopped"]
        self.load_extra_state(meta["memory"])
        return True

    def _load(self, tensors: Reader) -> None:
        with torch.no_grad():
            for name, p in self.params.items():
                local(p).copy_(tensors.get(f"param/{name}", p))
            for name, weight in self.averaged.tensors.items() if self.averaged is not None else ():
                weight.copy_(tensors.get(f"shadow/{name}"))
            chosen = {id(p): o for o in self.optimizers for group in o.param_groups for p in group["params"]}
            for key in tensors.names():
                if key.startswith("optimizer/"):
                    _, entry, name = key.split("/", 2)
                    p = self.params[name]
                    chosen[id(p)].state[p][entry] = _moment(tensors, key, p)


def _moment(tensors: Reader, key: str, p: torch.nn.Parameter) -> torch.Tensor:
    """Return a stored optimizer entry, sharded and placed like its parameter."""
    tensor = tensors.get(key, p)
    if tensor.ndim == 0:  # AdamW's step count, which fused AdamW needs on its parameter's device
        return tensor.to(local(p).device, copy=True)
    made = torch.zeros_like(p, dtype=tensor.dtype)
    local(made).copy_(tensor)
    return made
