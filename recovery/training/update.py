"""One update: the gradients of a step's rows over micro-batches and processes, then a step of the optimizers."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from recovery import distributed
from recovery.batching import Batch, Row, micro_batches, separate_rows
from recovery.errors import Interrupted, RecoveryError, memory_is_full
from recovery.losses.objective import DistillationObjective, LossOutput
from recovery.models.fsdp import dot, replicated_and_sharded, total_norm
from recovery.models.hardware import release_gpu_memory
from recovery.models.loaded import Loaded
from recovery.models.loading import not_finite
from recovery.training.interfaces import Instrumentation, TrainSettings


def learning_rate(step: int, settings: TrainSettings) -> float:
    """Return the learning rate of a step (from 1): linear warm-up, then decay to ``min_lr_ratio`` of the peak."""
    if step <= settings.warmup_steps:
        return settings.lr * step / settings.warmup_steps
    if settings.schedule == "constant":
        return settings.lr
    done = (step - settings.warmup_steps - 1) / max(1, settings.steps - settings.warmup_steps)
    remaining = 1 - done if settings.schedule == "linear" else 0.5 * (1 + math.cos(math.pi * done))
    return settings.lr * (settings.min_lr_ratio + (1 - settings.min_lr_ratio) * remaining)


@dataclass
class _Totals:
    """The sums of one process over the tokens of a step, by metric; ``tokens`` are the numbers of tokens in each sum,
    ``weights`` the weights of the metrics that are terms of the loss.
    """

    sums: dict[str, float] = field(default_factory=dict)
    tokens: dict[str, int] = field(default_factory=dict)
    weights: dict[str, float] = field(default_factory=dict)

    def add(self, output: LossOutput) -> None:
        """Add a batch."""
        self.weights |= output.weights
        for name, value in output.sums.items():
            self.sums[name] = self.sums.get(name, 0.0) + float(value)
            self.tokens[name] = self.tokens.get(name, 0) + output.tokens


@dataclass
class Updates:
    """The updates of a run, in one process.

    ``token_budget`` bounds the padded tokens of a micro-batch. Where a GPU's memory is too full for that, it is halved
    and ``on_smaller`` is called with the step and the new budget.
    """

    loaded: Loaded
    objective: DistillationObjective
    settings: TrainSettings
    params: dict[str, torch.nn.Parameter]
    optimizers: list[torch.optim.Optimizer]
    instrumentation: Instrumentation | None
    should_stop: Callable[[], bool]
    on_smaller: Callable[[int, int], None]
    token_budget: int = field(init=False)

    def __post_init__(self) -> None:
        self.token_budget = self.settings.token_budget

    def abandon(self) -> None:
        """Abandon the current step; the weights are unchanged."""
        self.loaded.model.eval()
        for p in self.params.values():
            p.grad = None

    def update(self, step: int, rows: list[Row], guard: list[Row] | None) -> dict[str, float]:
        """Make one update on the rows of all processes; return its metrics."""
        started = time.perf_counter()
        tokens = sum(row.targets for row in rows)
        if tokens == 0:
            raise RecoveryError(f"step {step} has no token to train on: every row is masked")
        means = self._accumulate(step, rows, tokens, self.instrumentation)
        if guard is not None:
            means |= self._project(step, guard)
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
        return means | {"gradient_norm": norm, "lr": rate, "tokens_trained": float(tokens), "seconds_training": seconds}

    def _accumulate(
        self, step: int, rows: list[Row], tokens: int, instrumentation: Instrumentation | None = None
    ) -> dict[str, float]:
        """Compute the gradients of the mean loss over all tokens of the step; return means by name, in nats per
        token.
        """

        def mine() -> tuple[_Totals, Any]:
            separated = self._separated(rows)
            while (totals := self._attempt(step, separated, tokens, instrumentation)) is None:
                self._halve(step, separated)
            return totals, None if instrumentation is None else instrumentation.reading()

        shares = distributed.gather(mine)
        self._add_up()
        self._keep_rows()
        if instrumentation is not None:
            instrumentation.take([reading for _, reading in shares])
        totals = [share for share, _ in shares]
        names = list(dict.fromkeys(name for share in totals for name in share.sums))
        weights = {name: weight for share in totals for name, weight in share.weights.items()}
        sums = {name: sum(share.sums.get(name, 0.0) for share in totals) for name in names}
        means = {name: sums[name] / sum(share.tokens.get(name, 0) for share in totals) for name in names}
        loss = sum(weight * sums[name] for name, weight in weights.items()) / tokens
        return {"loss": loss} | means

    def _attempt(
        self, step: int, rows: list[Row], tokens: int, instrumentation: Instrumentation | None
    ) -> _Totals | None:
        """Return :meth:`_score`'s totals, or None if the GPU's memory is too full for such micro-batches.

        Tokens that teachers scored in a failed attempt are counted.
        """
        self.loaded.model.train()
        if instrumentation is not None:
            instrumentation.start(step)
        try:
            return self._score(rows, tokens)
        except RuntimeError as error:
            if not memory_is_full(error) or distributed.size() > 1:  # the other processes have gone on
                raise
        return None  # returned here, after the error and with it the tensors of this attempt are freed

    def _halve(self, step: int, rows: list[Row]) -> None:
        """Discard the gradients and halve the micro-batches. Raise RecoveryError if they are single rows."""
        self.abandon()
        widest = max(row.width for row in rows)
        if self.token_budget <= widest:
            raise RecoveryError(
                f"the GPU's memory is too full for one row of {widest:,} tokens (step {step}): end other programs that "
                f"use the GPU, or use --gradient-checkpointing or --tuning lora; the last saved state is kept"
            )
        self.token_budget = max(widest, min(self.token_budget, sum(row.width for row in rows)) // 2)
        release_gpu_memory(self.loaded.device)
        self.on_smaller(step, self.token_budget)

    def _score(self, rows: list[Row], tokens: int) -> _Totals:
        """Compute this process's gradients of a step; return sums over its tokens and their counts, by name."""
        loaded, totals = self.loaded, _Totals()
        batches = micro_batches(
            rows,
            self.token_budget,
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
        """Return the rows; packed rows are split by document if a model that reads them would mix the documents."""
        packed = sorted({row.teacher for row in rows if len(row.segments) > 1})  # all processes try models in one order
        student = not packed or self.loaded.separates_documents
        mixed = {name for name in packed if not (student and self.objective.separates_documents(name))}
        return [part for row in rows for part in (separate_rows([row]) if row.teacher in mixed else [row])]

    def _check_finite(self, batch: Batch, output: LossOutput) -> None:
        """Raise RecoveryError, with the origin, if a batch's loss is not finite; the weights are unchanged."""
        if math.isfinite(float(output.loss.detach())):
            return
        # Of sharded models this process has only a part, and the others are not here to run the layers.
        sharded = self.loaded.sharded
        source = None if sharded else not_finite(self.loaded.model)
        cause = (
            f"the student's weights are not ({source})"
            if source
            else self.objective.not_finite(batch, local=sharded)
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
        replicated, _ = replicated_and_sharded(self.params.values())
        flags = torch.tensor([p.grad is not None for p in replicated], dtype=torch.float32, device=self.loaded.device)
        distributed.add_up([flags])
        for p, has_gradient in zip(replicated, flags.tolist(), strict=True):
            if has_gradient and p.grad is None:  # no row of this process has a gradient for it
                p.grad = torch.zeros_like(p)
        distributed.add_up([p.grad for p in replicated if p.grad is not None])

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
        for part in replicated_and_sharded(self.params.values()):
            torch.nn.utils.clip_grads_with_norm_(part, self.settings.max_grad_norm, norm)
        return float(norm)

    def _project(self, step: int, guard: list[Row]) -> dict[str, float]:
        """A-GEM (arXiv 1812.00420): if g . g_ref < 0, remove the component along g_ref from g."""
        params = list(self.params.values())
        gradients = [None if p.grad is None else p.grad.clone() for p in params]
        for p in params:
            p.grad = None
        reference = self._accumulate(step, guard, sum(row.targets for row in guard))
        pairs = [(w, p.grad) for w, p in zip(gradients, params, strict=True) if w is not None and p.grad is not None]
        along, square = dot(pairs), dot((g, g) for _, g in pairs)
        scale = along / square if along < 0 and square > 0 else 0.0
        for p, w in zip(params, gradients, strict=True):
            p.grad = w if w is None or p.grad is None or scale == 0.0 else w.sub_(p.grad, alpha=scale)
        return {"reference_loss": reference["loss"], "projected": float(scale != 0.0)}
