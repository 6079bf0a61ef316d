"""The training loop, used by every stage and every method through :func:`train`.

A stage provides a source (step → rows), an objective (student, batch → summed loss) and settings. All randomness is a
function of (seed, step), so a run that was stopped or killed resumes from its newest state and reaches the same weights
as an uninterrupted one (bit for bit on a CPU in float32).

Several processes all run this loop; the main one creates the rows, logs and decides, each gets its share of the rows,
and the gradients are summed. The weights equal those of a single process up to the order of summation.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import torch

from recovery import distributed
from recovery.batching import Row
from recovery.errors import Interrupted, RecoveryError, UsageError
from recovery.losses.objective import DistillationObjective
from recovery.models.fsdp import replicated_and_sharded
from recovery.models.loaded import Loaded
from recovery.rng import derive_seed
from recovery.teachers.teacher import LocalTeacher
from recovery.training.interfaces import (
    COLLAPSE,
    FINISHED,
    INTERRUPTED,
    Hooks,
    Instrumentation,
    Resumable,
    StepBatch,
    TrainResult,
    TrainSettings,
)
from recovery.training.resume_state import States
from recovery.training.run_state import Position, RunState, Saving
from recovery.training.update import Updates

# The optimizers of a run: AdamW, and Muon for the matrices inside the layers.


def make_optimizers(
    loaded: Loaded, params: dict[str, torch.nn.Parameter], settings: TrainSettings
) -> list[torch.optim.Optimizer]:
    """Create AdamW for all parameters; with "muon", Muon for the matrices inside the layers (Jordan et al., 2024).

    Vectors do not decay, nor do embeddings of which only some rows are trained.
    """
    undecayed = {id(p) for p in loaded.embeddings()} if loaded.trained_rows is not None else set()
    muon = _inside_layers(loaded, params) if settings.optimizer == "muon" else []
    if any(replicated_and_sharded(muon)[1]):
        raise UsageError("--optimizer muon needs whole matrices: use --shard none, or --optimizer adamw")
    chosen = {id(p) for p in muon}
    remaining = [p for p in params.values() if id(p) not in chosen]
    # Sharded and replicated tensors are in separate groups: one call cannot update both.
    groups = [
        {
            "params": [p for p in part if (p.ndim >= 2 and id(p) not in undecayed) == matrix],
            "weight_decay": decay,
            "scale": 1.0,
        }
        for matrix, decay in ((True, settings.weight_decay), (False, 0.0))
        for part in replicated_and_sharded(remaining)
    ]
    optimizers: list[torch.optim.Optimizer] = []
    if remaining:
        groups = [group for group in groups if group["params"]]
        optimizers.append(torch.optim.AdamW(groups, lr=settings.lr, betas=(0.9, 0.95), fused=True))
    if muon:
        group = {"params": muon, "weight_decay": settings.weight_decay, "scale": 1.0}
        optimizers.append(torch.optim.Muon([group], lr=settings.lr, adjust_lr_fn="match_rms_adamw"))
    return optimizers


def _inside_layers(loaded: Loaded, params: Mapping[str, torch.nn.Parameter]) -> list[torch.nn.Parameter]:
    """Return the matrices that are neither embeddings, of tokens or positions, nor in the output head."""
    tables = [module for module in loaded.model.modules() if isinstance(module, torch.nn.Embedding)]
    outside = {id(p) for p in (*loaded.embeddings(), *(table.weight for table in tables))}
    return [p for p in params.values() if p.ndim == 2 and id(p) not in outside]


T = TypeVar("T")
_NO_HOOKS = Hooks()


def train(
    loaded: Loaded,
    source: Callable[[int], StepBatch],
    objective: DistillationObjective,
    settings: TrainSettings,
    *,
    hooks: Hooks = _NO_HOOKS,
    state_dir: Path | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    resumables: Sequence[Resumable] = (),
    averaged: LocalTeacher | None = None,
    instrumentation: Instrumentation | None = None,
    helpers: distributed.Helpers | None = None,
) -> TrainResult:
    """Train until ``settings.steps``, until ``should_stop``, or until a hook returns a reason to stop.

    With one process a stop is also handled between micro-batches and when ``source`` raises Interrupted: the step is
    abandoned and the state before it saved. ``resumables`` is the caller's state, stored with the weights and restored
    on resume. ``instrumentation`` measures during the forward passes. With several processes only the main one's
    ``source``, ``hooks`` and ``resumables`` are used, ``helpers`` are the functions that the others run for them, and
    a stop may be requested in any process. Raise RecoveryError if the loss or the gradient is not finite.
    """
    params = loaded.trainable()
    if not params:
        raise UsageError(f"{loaded.path} was loaded frozen: it has no trainable weights")
    optimizers = make_optimizers(loaded, params, settings)
    states = States(state_dir, keep=2, every=settings.checkpoint_every)
    saved = RunState(states, params, optimizers, averaged, resumables)
    saved.restore(state := Position())
    saving = Saving(saved, settings, hooks)
    updates = Updates(loaded, objective, settings, params, optimizers, instrumentation, should_stop, hooks.smaller)

    def on_main(work: Callable[[], T]) -> T:
        """Run ``work`` in the main process; with helpers all have the whole model, unless it is not gathered."""
        with loaded.unsharded() if helpers and settings.gather else contextlib.nullcontext():
            return distributed.lead(work, helpers)

    def begin_step(step: int) -> tuple[StepBatch, list[Row] | None]:
        batch = source(step)
        hooks.on_batch(step, batch)
        return batch, hooks.reference(step) if hooks.reference else None

    def finish_step(step: int, metrics: dict[str, float]) -> tuple[str | None, bool]:
        hooks.log(step, metrics)
        return saving.after_step(step)

    def interrupted() -> TrainResult:
        if distributed.lead(saving.on_interrupt):
            saving.write(state)
        return TrainResult(state.step, INTERRUPTED, state.trained_tokens)

    while state.step < settings.steps and state.stopped is None:
        if distributed.any_process(should_stop()):
            return interrupted()
        step = state.step + 1
        torch.manual_seed(derive_seed(settings.seed, step))
        started, before = time.perf_counter(), saved.extra_state()
        try:
            batch, guard = on_main(lambda: begin_step(step))  # noqa: B023
            seconds = time.perf_counter() - started
            metrics = {"seconds_generating": seconds, **batch.metrics, **updates.update(step, batch.rows, guard)}
        except Interrupted:
            if distributed.size() > 1:  # the error also stops the other processes
                raise
            updates.abandon()
            saved.load_extra_state(before)
            return interrupted()
        state.trained_tokens += int(metrics["tokens_trained"])
        metrics["tokens_per_second"] = metrics["tokens_trained"] / (time.perf_counter() - started)
        if averaged is not None:
            averaged.update(params)
        state.step = step
        state.stopped, due = on_main(lambda: finish_step(step, metrics))  # noqa: B023
        if state.stopped is not None and state.stopped.startswith(COLLAPSE):
            return _rolled_back(saved, state, loaded)
        if due:
            saving.write(state)
    loaded.gather_state()
    return TrainResult(state.step, state.stopped or FINISHED, state.trained_tokens)


def _rolled_back(saved: RunState, state: Position, loaded: Loaded) -> TrainResult:
    """Restore the newest regular state after a collapse; return the result with the reason of the stop."""
    reason, tokens = str(state.stopped), state.trained_tokens
    if not saved.restore(state, regular=True):
        raise RecoveryError(
            f"{reason}; there is no state of --checkpoint-every ({saved.states.every}) steps to return to, so the "
            f"student is unchanged: lower --lr, or --checkpoint-every"
        )
    loaded.gather_state()
    return TrainResult(state.step, reason, tokens)
