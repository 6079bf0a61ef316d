"""The one training loop. Every stage and every method runs through :func:`train`.

A stage gives a source (step → rows), an objective (student, batch → summed loss) and settings. All randomness
is a function of (seed, step), so a run that was stopped, even killed, goes on from its newest state to the same
weights as one that was not (bit for bit on a CPU in float32).
"""

from __future__ import annotations

import json
import math
import os
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, Protocol

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from recovery.batches import Batch, Row, micro_batches
from recovery.errors import RecoveryError, UsageError
from recovery.loading import Loaded
from recovery.objectives.estimator import LossOutput

Schedule = Literal["constant", "linear", "cosine"]
FINISHED, INTERRUPTED, COLLAPSE = "finished", "interrupted", "collapse"


@dataclass(frozen=True)
class TrainSettings:
    """How to optimise. ``token_budget`` (padded tokens a micro-batch) is a matter of memory only.

    ``checkpoint_every`` is in steps: at most that many are lost when the process is killed.
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
    keep_states: int = 2

    def __post_init__(self) -> None:
        if self.steps < 1 or self.lr <= 0 or self.token_budget < 1 or self.checkpoint_every < 1:
            raise UsageError("--steps, --lr, --token-budget and --checkpoint-every must all be above 0")


class StepBatch(NamedTuple):
    """What one step trains on, and what was measured while it was made."""

    rows: list[Row]
    metrics: Mapping[str, float] = MappingProxyType({})


class Objective(Protocol):
    """Scores a batch: the loss summed over its target tokens."""

    def __call__(self, student: Loaded, batch: Batch) -> LossOutput: ...


class Shadow(Protocol):
    """Weights that follow the trained ones (a moving average, say): updated after each step, saved with each state."""

    @property
    def tensors(self) -> Mapping[str, torch.Tensor]:
        """The following weights by the names of the trained parameters."""
        ...

    def update(self, params: Mapping[str, torch.Tensor]) -> None:
        """Follow one step."""
        ...


@dataclass
class TrainResult:
    """Where training stopped and why: "finished", "interrupted", or the reason ``after_step`` gave."""

    step: int
    stopped: str
    trained_tokens: int = 0


@dataclass
class _State:
    step: int = 0
    trained_tokens: int = 0
    stopped: str | None = None
    memory: dict[str, Any] = field(default_factory=dict)


def train(
    loaded: Loaded,
    source: Callable[[int], StepBatch],
    objective: Objective,
    settings: TrainSettings,
    *,
    log: Callable[[int, dict[str, float]], None] = lambda _step, _metrics: None,
    state_dir: Path | None = None,
    should_stop: Callable[[], bool] = lambda: False,
    after_step: Callable[[int], str | None] = lambda _step: None,
    sound: Callable[[], bool] = lambda: True,
    memory: dict[str, Any] | None = None,
    shadow: Shadow | None = None,
    reference: Callable[[int], list[Row]] | None = None,
) -> TrainResult:
    """Train until ``settings.steps``, until ``should_stop``, or until ``after_step`` gives a reason.

    Steps are numbered from 1 in ``log`` and ``after_step``. ``memory`` is a JSON-like dictionary of the
    caller's that is stored with each state and restored on resume. While ``sound`` says no, no state is saved on the
    way; a run that ``after_step`` ends for a reason that begins with "collapse" goes back to the newest state.
    ``reference`` gives rows whose loss no step may raise: a gradient that would is projected (A-GEM). Raises
    RecoveryError when the loss or the gradient is not finite; the states saved before stay.
    """
    params = loaded.trainable()
    if not params:
        raise UsageError(f"{loaded.path} was loaded frozen: nothing in it can be trained")
    optimizers = _optimizers(params, settings)
    memory = {} if memory is None else memory
    state = _State(memory=memory)
    saved = _Saved(state_dir, params, optimizers, shadow, settings.keep_states)
    saved.restore(state)
    while state.step < settings.steps and state.stopped is None:
        if should_stop():
            if sound():
                saved.write(state)
            return TrainResult(state.step, INTERRUPTED, state.trained_tokens)
        step = state.step + 1
        log(step, _one_step(loaded, source, objective, settings, params, optimizers, state, reference))
        if shadow is not None:
            shadow.update(params)
        state.step = step
        state.stopped = after_step(step)
        if state.stopped is not None and state.stopped.startswith(COLLAPSE):
            return _gone_back(saved, state)
        if state.stopped or step == settings.steps or (step % settings.checkpoint_every == 0 and sound()):
            saved.write(state)
    return TrainResult(state.step, state.stopped or FINISHED, state.trained_tokens)


def _gone_back(saved: _Saved, state: _State) -> TrainResult:
    """The weights of the newest state, and the reason for which the run ended after it."""
    reason, tokens = str(state.stopped), state.trained_tokens
    if not saved.restore(state):
        raise RecoveryError(
            f"{reason}; no state was saved before, so the student stays as it was: lower --lr, or --checkpoint-every"
        )
    return TrainResult(state.step, reason, tokens)


def resume_step(state_dir: Path) -> int:
    """The step that training would go on from: that of the newest complete state, 0 where there is none."""
    return max((number for number, _ in _states(state_dir)), default=0)


def learning_rate(step: int, settings: TrainSettings) -> float:
    """The rate of a step (from 1): linear warm-up, then the schedule down to ``min_lr_ratio`` of the peak."""
    if step <= settings.warmup_steps:
        return settings.lr * step / settings.warmup_steps
    if settings.schedule == "constant":
        return settings.lr
    done = (step - settings.warmup_steps - 1) / max(1, settings.steps - settings.warmup_steps)
    left = 1 - done if settings.schedule == "linear" else 0.5 * (1 + math.cos(math.pi * done))
    return settings.lr * (settings.min_lr_ratio + (1 - settings.min_lr_ratio) * left)


def derive_seed(seed: int, step: int, stream: int = 0) -> int:
    """One seed for each (seed, step, stream), by the mixing function of SplitMix64."""
    mask = (1 << 64) - 1
    x = (seed * 0x9E3779B97F4A7C15 + step * 0xBF58476D1CE4E5B9 + stream * 0x94D049BB133111EB) & mask
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & mask
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & mask
    return (x ^ (x >> 31)) & ((1 << 63) - 1)


def _one_step(
    loaded: Loaded,
    source: Callable[[int], StepBatch],
    objective: Objective,
    settings: TrainSettings,
    params: dict[str, torch.nn.Parameter],
    optimizers: list[torch.optim.Optimizer],
    state: _State,
    reference: Callable[[int], list[Row]] | None,
) -> dict[str, float]:
    step = state.step + 1
    torch.manual_seed(derive_seed(settings.seed, step))
    made_at = time.perf_counter()
    made = source(step)
    started = time.perf_counter()
    metrics = dict(made.metrics)
    metrics.setdefault("seconds/source", started - made_at)
    batches = micro_batches(made.rows, settings.token_budget, loaded.chat.pad_id, loaded.device)
    tokens = sum(batch.tokens for batch in batches)
    if tokens == 0:
        raise RecoveryError(f"step {step} has no token to train on: every row is masked")
    loaded.model.train()
    sums = _accumulate(loaded, objective, batches, tokens)
    if reference is not None:
        guard = micro_batches(reference(step), settings.token_budget, loaded.chat.pad_id, loaded.device)
        sums |= _project(loaded, objective, guard, list(params.values()))
    loaded.model.eval()
    norm = float(torch.nn.utils.clip_grad_norm_(params.values(), settings.max_grad_norm))
    if not math.isfinite(norm):
        raise RecoveryError(f"the gradient is not finite at step {step}: lower --lr; the last saved state is kept")
    rate = learning_rate(step, settings)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = rate * group["scale"]
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    state.trained_tokens += tokens
    seconds = time.perf_counter() - started
    return (
        metrics
        | sums
        | {
            "grad_norm": norm,
            "lr": rate,
            "tokens/trained": float(tokens),
            "seconds/training": seconds,
            "tokens_per_second": tokens / (time.perf_counter() - made_at),
        }
    )


def _accumulate(loaded: Loaded, objective: Objective, batches: list[Batch], tokens: int) -> dict[str, float]:
    """Gradients of the mean loss over all tokens of the step; returns the means by name, in nats a token."""
    totals: dict[str, float] = {}
    counts: dict[str, int] = {}
    for batch in batches:
        if batch.tokens == 0:
            continue
        output = objective(loaded, batch)
        (output.loss / tokens).backward()
        for name, value in output.sums.items():
            totals[name] = totals.get(name, 0.0) + float(value)
            counts[name] = counts.get(name, 0) + output.tokens
    means = {name: total / counts[name] for name, total in totals.items()}
    loss = sum(value for name, value in totals.items() if name.startswith("loss/")) / tokens
    if not math.isfinite(loss):
        raise RecoveryError(
            "the loss is not finite: lower --lr, or use --precision float32; the last saved state is kept"
        )
    return {"loss": loss} | means


def _project(
    loaded: Loaded, objective: Objective, guard: list[Batch], params: list[torch.nn.Parameter]
) -> dict[str, float]:
    """A-GEM (arXiv 1812.00420): where g . g_ref < 0, take the part along g_ref out of g: no step raises its loss."""
    wanted = [None if p.grad is None else p.grad.clone() for p in params]
    for p in params:
        p.grad = None
    sums = _accumulate(loaded, objective, guard, sum(batch.tokens for batch in guard))
    pairs = [(w, p.grad) for w, p in zip(wanted, params, strict=True) if w is not None and p.grad is not None]
    along = sum(float(torch.sum(w * g)) for w, g in pairs)
    square = sum(float(torch.sum(g * g)) for _, g in pairs)
    scale = along / square if along < 0 and square > 0 else 0.0
    for p, w in zip(params, wanted, strict=True):
        p.grad = w if w is None or p.grad is None or scale == 0.0 else w.sub_(p.grad, alpha=scale)
    return {"reference_loss": sums["loss"], "projected": float(scale != 0.0)}


def _optimizers(params: dict[str, torch.nn.Parameter], settings: TrainSettings) -> list[torch.optim.Optimizer]:
    """AdamW for everything; with "muon", Muon for the matrices inside the layers (Jordan et al., 2024)."""
    matrices = [p for name, p in params.items() if p.ndim == 2 and _inside_layers(name)]
    muon = matrices if settings.optimizer == "muon" else []
    chosen = {id(p) for p in muon}
    rest = [p for p in params.values() if id(p) not in chosen]
    groups = [
        {"params": [p for p in rest if p.ndim >= 2], "weight_decay": settings.weight_decay, "scale": 1.0},
        {"params": [p for p in rest if p.ndim < 2], "weight_decay": 0.0, "scale": 1.0},
    ]
    made: list[torch.optim.Optimizer] = []
    if rest:
        groups = [group for group in groups if group["params"]]
        made.append(torch.optim.AdamW(groups, lr=settings.lr, betas=settings.betas, fused=True))
    if muon:
        group = {"params": muon, "weight_decay": settings.weight_decay, "scale": 1.0}
        made.append(torch.optim.Muon([group], lr=settings.lr, adjust_lr_fn="match_rms_adamw"))
    return made


def _inside_layers(name: str) -> bool:
    return "embed" not in name and "lm_head" not in name


@dataclass(frozen=True)
class _Saved:
    """The training states of a run on disk; without a folder nothing is kept."""

    folder: Path | None
    params: dict[str, torch.nn.Parameter]
    optimizers: list[torch.optim.Optimizer]
    shadow: Shadow | None
    keep: int

    def write(self, state: _State) -> None:
        """Write step-000040/ whole or not at all: into a folder of another name first, then renamed."""
        if self.folder is None:
            return
        final = self.folder / f"step-{state.step:06d}"
        if final.exists():
            return
        writing = self.folder / f".writing-{state.step:06d}"
        shutil.rmtree(writing, ignore_errors=True)
        writing.mkdir(parents=True)
        save_file(self._tensors(), writing / "state.safetensors")
        meta = {"step": state.step, "trained_tokens": state.trained_tokens, "stopped": state.stopped}
        (writing / "state.json").write_text(json.dumps(meta | {"memory": state.memory}))
        for path in writing.iterdir():
            _sync(path)
        writing.rename(final)
        _sync(self.folder)
        for _, old in sorted(_states(self.folder))[: -self.keep]:
            shutil.rmtree(old, ignore_errors=True)

    def _tensors(self) -> dict[str, torch.Tensor]:
        names = {id(p): name for name, p in self.params.items()}
        tensors = {f"param/{name}": p.detach().cpu() for name, p in self.params.items()}
        for optimizer in self.optimizers:
            for p, entries in optimizer.state.items():
                tensors |= {f"optimizer/{key}/{names[id(p)]}": v.detach().cpu() for key, v in entries.items()}
        if self.shadow is not None:
            tensors |= {f"shadow/{name}": tensor.detach().cpu() for name, tensor in self.shadow.tensors.items()}
        return {key: tensor.contiguous() for key, tensor in tensors.items()}

    def restore(self, state: _State) -> bool:
        """Load the newest state that reads, if any; an unreadable one is passed over for the one before it."""
        for _, folder in sorted(_states(self.folder), reverse=True) if self.folder is not None else ():
            try:
                tensors = load_file(folder / "state.safetensors")
                meta = json.loads((folder / "state.json").read_text())
            except (OSError, ValueError, SafetensorError):
                continue
            break
        else:
            return False
        self._load(tensors)
        state.step, state.trained_tokens = meta["step"], meta["trained_tokens"]
        state.stopped = meta["stopped"]
        state.memory.update(meta["memory"])
        return True

    def _load(self, tensors: dict[str, torch.Tensor]) -> None:
        with torch.no_grad():
            for name, p in self.params.items():
                p.copy_(tensors[f"param/{name}"])
            for name, followed in self.shadow.tensors.items() if self.shadow is not None else ():
                followed.copy_(tensors[f"shadow/{name}"])
        chosen = {id(p): o for o in self.optimizers for group in o.param_groups for p in group["params"]}
        for key, tensor in tensors.items():
            if key.startswith("optimizer/"):
                _, entry, name = key.split("/", 2)
                p = self.params[name]
                # AdamW counts its steps in a tensor that stays on the CPU unless fused on a GPU.
                chosen[id(p)].state[p][entry] = tensor.clone() if tensor.ndim == 0 else tensor.to(p.device).clone()


def _states(state_dir: Path) -> list[tuple[int, Path]]:
    return [(int(path.name.removeprefix("step-")), path) for path in state_dir.glob("step-*") if path.is_dir()]


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
