"""The training loop: the same trajectory for any micro-batch size and any interruption."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch._dynamo.utils import counters
from torch.optim.optimizer import register_optimizer_step_pre_hook
from transformers import AutoModelForCausalLM, GPT2Config

from recovery.batching import Batch, Row, micro_batches
from recovery.errors import Interrupted, ModelError, RecoveryError, UsageError
from recovery.losses.config import LossConfig
from recovery.losses.objective import DistillationObjective, LossOutput
from recovery.models.loaded import Loaded
from recovery.models.loading import compile_layers, load_model
from recovery.rng import derive_seed
from recovery.rollouts.engine import Sampling
from recovery.rollouts.transformers_engine import TransformersEngine
from recovery.teachers.teacher import LocalTeacher, TeacherEnsemble
from recovery.training.interfaces import Hooks, Resumable, StepBatch, TrainResult, TrainSettings
from recovery.training.loop import make_optimizers, train
from recovery.training.resume_state import resume_step, states
from recovery.training.run_state import Position, Saving
from recovery.training.update import learning_rate
from tests.models import make_other

Source = Callable[[int], StepBatch]
NO_HOOKS = Hooks()
SETTINGS = {setting.name for setting in fields(TrainSettings)}


def random_rows(step: int, teacher: str = "label") -> StepBatch:
    generator = torch.Generator().manual_seed(derive_seed(0, step))
    lengths = torch.randint(3, 24, (6,), generator=generator).tolist()
    ids = [torch.randint(3, 200, (n,), generator=generator).tolist() for n in lengths]
    return StepBatch([Row(row, [False] + [True] * (len(row) - 1), teacher=teacher) for row in ids])


def weights(loaded: Loaded) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in loaded.trainable().items()}


def load(model: Path, tuning: str = "full", **settings: Any) -> Loaded:
    return load_model(model, tuning=tuning, precision="float32", **settings)  # type: ignore[arg-type]


Log = list[dict[str, float]]


def run(
    loaded: Loaded, source: Source = random_rows, objective: Any = None, hooks: Hooks = NO_HOOKS, **given: Any
) -> tuple[TrainResult, Log]:
    """Train; return the result and each step's metrics. ``given`` are settings, and what else ``train`` accepts."""
    log: Log = []

    def heard(step: int, metrics: dict[str, float]) -> None:
        hooks.log(step, metrics)
        log.append(metrics)

    of_settings = {name: given.pop(name) for name in SETTINGS & given.keys()}
    settings = TrainSettings(**({"steps": 1, "lr": 1e-3} | of_settings))
    objective = DistillationObjective() if objective is None else objective
    return train(loaded, source, objective, settings, hooks=replace(hooks, log=heard), **given), log


def losses(log: Log) -> list[float]:
    return [metrics["loss"] for metrics in log]


def assert_same(one: Loaded, other: Loaded) -> None:
    for name, value in weights(one).items():
        assert torch.equal(value, weights(other)[name]), name


def assert_close(one: Loaded, other: Loaded, atol: float = 6e-5, rtol: float = 1e-4) -> None:
    """Adam divides by the gradient's size, so rounding errors show where a gradient is nearly 0: 1% of the length of 6
    steps.
    """
    for name, value in weights(one).items():
        torch.testing.assert_close(value, weights(other)[name], atol=atol, rtol=rtol)


@pytest.mark.parametrize("tuning", ["full", "lora"])
def test_micro_batch_size_does_not_change_the_trajectory(tiny_model: Path, tuning: str) -> None:
    trained, logs = [], []
    for token_budget in (10_000, 30):
        torch.manual_seed(0)  # a new adapter starts from the same draw
        trained.append(load(tiny_model, tuning))
        logs.append(run(trained[-1], steps=6, token_budget=token_budget)[1])
    assert losses(logs[0]) == pytest.approx(losses(logs[1]), rel=1e-5)
    assert_close(*trained)


@dataclass
class FullMemory:
    """An objective for which a GPU's memory is full: at these calls (from 1), or for more padded tokens than fit."""

    at: frozenset[int] = frozenset()
    fits: int = 10**9
    calls: int = 0
    error: RuntimeError = field(default_factory=lambda: torch.OutOfMemoryError("CUDA out of memory"))
    objective: DistillationObjective = field(default_factory=DistillationObjective)

    def __call__(self, student: Loaded, batch: Batch) -> LossOutput:
        self.calls += 1
        if self.calls in self.at or batch.ids_BT.numel() > self.fits:
            raise self.error
        return self.objective(student, batch)

    def not_finite(self, batch: Batch, *, alone: bool = False) -> str | None:
        return self.objective.not_finite(batch, alone=alone)

    def separates_documents(self, teacher: str) -> bool:
        return self.objective.separates_documents(teacher)


@pytest.mark.parametrize("guarded", [False, True], ids=["plain", "projected"])
def test_micro_batches_become_smaller_where_memory_is_full(tiny_model: Path, guarded: bool) -> None:
    """An attempt that fails after its first micro-batch leaves no gradient behind."""
    smaller: list[tuple[int, int]] = []
    reference = (lambda step: random_rows(step + 50).rows) if guarded else None
    hooks = Hooks(reference=reference, smaller=lambda *given: smaller.append(given))
    trained, logs = [], []
    for objective in (FullMemory(), FullMemory(at=frozenset({4}))):
        trained.append(load(tiny_model))
        logs.append(run(trained[-1], objective=objective, hooks=hooks, steps=3, token_budget=60)[1])
    ((step, tokens),) = smaller
    assert tokens < 60 and step in (1, 2)
    assert losses(logs[0]) == pytest.approx(losses(logs[1]), rel=1e-5)
    assert_close(*trained)


@pytest.mark.parametrize(
    ("error", "full"),
    [
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate(handle)"), True),
        (RuntimeError("CUDA error: out of memory"), True),
        (RuntimeError("Expected mha_graph.execute(handle, ...).is_good() to be true, but got false."), True),
        (RuntimeError("CUDA error: device-side assert triggered"), False),
        (RuntimeError("The size of tensor a (3) must match"), False),
    ],
)
def test_other_errors_are_no_full_memory(tiny_model: Path, error: RuntimeError, full: bool) -> None:
    smaller: list[tuple[int, int]] = []
    hooks = Hooks(smaller=lambda *given: smaller.append(given))
    with contextlib.nullcontext() if full else pytest.raises(RuntimeError, match=re.escape(str(error))):
        run(load(tiny_model), objective=FullMemory(at=frozenset({1}), error=error), hooks=hooks)
    assert len(smaller) == full


def test_one_row_that_does_not_fit_is_refused_and_the_state_kept(tiny_model: Path, tmp_path: Path) -> None:
    loaded = load(tiny_model)
    longest = max(len(row.ids) for row in random_rows(3).rows)
    before: list[dict[str, torch.Tensor]] = []
    tight = FullMemory()

    def after_step(step: int) -> None:
        before[:] = [weights(loaded)]
        tight.fits = longest - 1 if step == 2 else 10**9

    hooks = Hooks(after_step=after_step)
    with pytest.raises(RecoveryError, match=rf"one row of {longest} tokens \(step 3\)"):
        run(loaded, objective=tight, hooks=hooks, steps=4, checkpoint_every=1, state_dir=tmp_path)
    assert resume_step(tmp_path) == 2
    for name, value in before[0].items():
        assert torch.equal(value, weights(loaded)[name])
    assert all(p.grad is None for p in loaded.trainable().values())


MIXED = ["gpt_oss", "falcon", "opt", "mpt", "bloom", "lfm2", "qwen3_next"]


def alone_and_packed(*teachers: str) -> tuple[list[Row], list[Row]]:
    """Two documents for each teacher: in one row, and apart."""
    documents = list(range(20, 32)), list(range(40, 48))
    whole = [Row([*documents[0], *documents[1]], [True] * 20, (12, 8), name) for name in teachers]
    return whole, [Row(ids, [True] * len(ids), teacher=name) for name in teachers for ids in documents]


@pytest.mark.parametrize("kind", MIXED)
def test_a_family_that_mixes_packed_documents_is_trained_on_each_alone(kind: str, tmp_path: Path) -> None:
    make_other(kind, tmp_path)
    found = []
    for rows in alone_and_packed("label"):
        loaded = load(tmp_path)
        assert not loaded.separates_documents
        (metrics,) = run(loaded, lambda _: StepBatch(rows))[1]  # noqa: B023
        found.append((metrics["loss"], metrics["gradient_norm"]))
    assert found[0] == pytest.approx(found[1], rel=1e-5)
    for tuning in ("full", "frozen"):
        assert not load_model(tmp_path, tuning=tuning, precision="bfloat16").separates_documents  # type: ignore[arg-type]


@pytest.mark.parametrize("tuning", ["full", "frozen"])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_families_that_keep_packed_documents_apart_are_recognised(
    precision: str, tuning: str, tiny_llama: Path, tiny_qwen3: Path, tiny_qwen3_moe: Path, tiny_mixtral: Path
) -> None:
    for folder in (tiny_llama, tiny_qwen3, tiny_qwen3_moe, tiny_mixtral):
        loaded = load_model(folder, tuning=tuning, precision=precision)  # type: ignore[arg-type]
        assert loaded.separates_documents, folder.name


def test_rounding_that_rows_of_one_document_have_too_is_no_mixing(
    tiny_qwen3_moe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stand-in for kernels that round differently with each expert's number of tokens."""
    loaded = load_model(tiny_qwen3_moe, precision="float32")
    hidden, generator = Loaded.hidden, torch.Generator().manual_seed(0)

    def rounded(self: Loaded, batch: Any) -> torch.Tensor:
        exact = hidden(self, batch)
        return exact * (1 + 1e-6 * torch.randn(exact.shape, generator=generator))

    monkeypatch.setattr(Loaded, "hidden", rounded)
    assert loaded.separates_documents


def test_a_short_context_is_enough_to_try_packed_rows(tmp_path: Path) -> None:
    """OPT has learned positions: a longer document has no embeddings."""
    make_other("opt", tmp_path, max_position_embeddings=12)
    assert not load_model(tmp_path, precision="float32").separates_documents


def test_a_model_in_pieces_is_tried_by_all_processes_together(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = load(tiny_model)
    loaded.sharded = True
    inside: list[bool] = []
    entered = [False]
    hidden = Loaded.hidden

    @contextlib.contextmanager
    def in_step() -> Iterator[None]:
        entered[0] = True
        yield
        entered[0] = False

    def watched(self: Loaded, batch: Any) -> torch.Tensor:
        inside.append(entered[0])
        return hidden(self, batch)

    monkeypatch.setattr("recovery.distributed.in_step", in_step)
    monkeypatch.setattr(Loaded, "hidden", watched)
    assert loaded.separates_documents
    assert inside and all(inside)


@pytest.mark.parametrize("place", ["teacher", "weighted", "anchor"])
def test_documents_are_apart_for_a_teacher_that_would_mix_them(
    place: str, tiny_qwen3: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The student itself keeps them apart; rows that no mixing model reads stay packed."""
    own = LocalTeacher(load_model(tiny_qwen3, precision="float32"))
    make_other("opt", tmp_path, vocab_size=own.head.vocabulary)
    mixing = LocalTeacher(load_model(tmp_path, precision="float32"))
    teacher: Any = {"teacher": mixing, "weighted": TeacherEnsemble([own, mixing], [0.5, 0.5]), "anchor": own}[place]
    objective = DistillationObjective(
        {"documents": teacher, "base": own}, LossConfig(anchor=0.5 * (place == "anchor")), anchor=mixing
    )
    read: list[tuple[str, list[int]]] = []
    hidden = Loaded.hidden

    def watched(self: Loaded, batch: Any) -> torch.Tensor:
        read.append((batch.teacher, batch.lengths_B.tolist()))
        return hidden(self, batch)

    monkeypatch.setattr(Loaded, "hidden", watched)
    whole, alone = alone_and_packed("documents", "base")
    found = []
    for rows in (whole, alone):
        read.clear()
        (metrics,) = run(load(tiny_qwen3), lambda _: StepBatch(rows), objective)[1]  # noqa: B023
        found.append((metrics["loss"], metrics["gradient_norm"]))
        packed = rows is whole and place != "anchor"
        times = 2 + (place == "anchor")
        assert [lengths for name, lengths in read if name == "base"] == [[20] if packed else [12, 8]] * times
    assert found[0] == pytest.approx(found[1], rel=1e-5)


def test_a_configuration_with_dropout_does_not_change_that(make_tiny: Callable[..., Path], tmp_path: Path) -> None:
    model = make_tiny("llama", tmp_path / "model", attention_dropout=0.5)
    whole, split = (run(load(model), steps=6, token_budget=budget)[1] for budget in (10_000, 30))
    assert losses(whole) == pytest.approx(losses(split), rel=1e-5)
    assert json.loads((model / "config.json").read_text())["attention_dropout"] == 0.5


def test_loss_is_the_models_own_cross_entropy(tiny_contrasting: Path) -> None:
    loaded = load_model(tiny_contrasting, precision="float32")
    rows = random_rows(1).rows
    expected = 0.0
    for row in rows:
        logits = loaded.model(torch.tensor([row.ids])).logits[0, :-1]
        expected += float(torch.nn.functional.cross_entropy(logits, torch.tensor(row.ids[1:]), reduction="sum"))
    (loss,) = losses(run(load(tiny_contrasting))[1])
    assert loss == pytest.approx(expected / sum(len(r.ids) - 1 for r in rows), rel=1e-4)


def stopping(at: int | None, **hooks: Any) -> dict[str, Any]:
    """Arguments of a run that is asked to stop after a step."""
    done: list[int] = []
    heard = Hooks(log=lambda step, _: done.append(step), **hooks)
    return {"hooks": heard, "should_stop": lambda: at is not None and bool(done) and done[-1] >= at}


@pytest.mark.parametrize("tuning", ["full", "lora"])
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_stopped_run_goes_on_to_the_same_weights(
    tiny_model: Path, tmp_path: Path, tuning: str, optimizer: str
) -> None:
    settings = {"steps": 9, "warmup_steps": 2, "checkpoint_every": 4, "optimizer": optimizer}

    def go(state_dir: Path, stop_at: int | None) -> tuple[Loaded, str]:
        torch.manual_seed(0)  # a new adapter starts from the same draw
        loaded = load(tiny_model, tuning)
        return loaded, run(loaded, state_dir=state_dir, **settings, **stopping(stop_at))[0].stopped

    straight, _ = go(tmp_path / "straight", None)
    assert go(tmp_path / "stopped", 3)[1] == "interrupted"
    assert resume_step(tmp_path / "stopped") == 3
    resumed, stopped = go(tmp_path / "stopped", None)
    assert stopped == "finished"
    assert_same(straight, resumed)


def test_slow_steps_are_saved_between_the_regular_states(tiny_model: Path, tmp_path: Path) -> None:
    """Every step is due by the clock but the one in breach, which a kill in the eighth loses, and nothing else."""

    def go(state_dir: Path, *, killed: bool = False) -> tuple[Loaded, list[int]]:
        loaded, seconds = load(tiny_model), 0.0 if killed else 600.0
        done: list[int] = []

        def log(step: int, _: dict[str, float]) -> None:
            if killed and step == 8:
                raise KeyboardInterrupt
            done.append(step)

        hooks = Hooks(log=log, healthy=lambda: done[-1] != 7)
        with contextlib.suppress(KeyboardInterrupt):
            run(loaded, hooks=hooks, steps=9, checkpoint_every=4, checkpoint_seconds=seconds, state_dir=state_dir)
        return loaded, done

    straight, _ = go(tmp_path / "straight")
    assert [step for step, _ in sorted(states(tmp_path / "straight"))] == [8, 9]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("recovery.training.run_state.MOST_SAVING", float("inf"))
        go(tmp_path / "killed", killed=True)
    assert [step for step, _ in sorted(states(tmp_path / "killed"))] == [4, 6], "the newest regular one stays"
    resumed, done = go(tmp_path / "killed")
    assert done == [7, 8, 9]
    assert_same(straight, resumed)


@pytest.mark.parametrize("stop_at", [None, 3, 6])
def test_a_collapse_goes_back_to_the_same_state_whenever_the_run_was_interrupted(
    tiny_model: Path, tmp_path: Path, stop_at: int | None
) -> None:
    def go(stop_at: int | None) -> tuple[Loaded, TrainResult]:
        loaded = load(tiny_model)
        collapse = stopping(stop_at, after_step={7: "collapse: so"}.get)
        return loaded, run(loaded, steps=9, checkpoint_every=4, state_dir=tmp_path, **collapse)[0]

    if stop_at is not None:
        assert go(stop_at)[1].stopped == "interrupted"
    loaded, result = go(None)
    assert (result.step, result.stopped) == (4, "collapse: so")
    expected = load(tiny_model)
    run(expected, hooks=Hooks(after_step={4: "enough"}.get), steps=9)
    assert_same(expected, loaded)


def test_a_collapse_before_the_first_regular_state_is_an_error_also_after_an_interrupt(
    tiny_model: Path, tmp_path: Path
) -> None:
    """An interrupt in the first step saves step 0, which was taken for a state to go back to."""

    def go(stop: bool) -> str:
        given = {"hooks": Hooks(after_step={2: "collapse: so"}.get), "should_stop": lambda: stop}
        return run(load(tiny_model), steps=9, checkpoint_every=4, state_dir=tmp_path, **given)[0].stopped

    assert go(stop=True) == "interrupted"
    assert [step for step, _ in states(tmp_path)] == [0]
    with pytest.raises(RecoveryError, match=r"collapse: so; there is no state of --checkpoint-every \(4\) steps"):
        go(stop=False)


def test_states_by_the_clock_take_a_small_part_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    written: list[tuple[int, float]] = []

    class Slow:
        def write(self, state: Position) -> None:
            written.append((state.step, now[0]))
            now[0] += 60

    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    reasons = {62: "collapse: so", 63: "recovered"}
    settings = TrainSettings(steps=10_000, lr=1e-3, checkpoint_every=61)
    saving = Saving(Slow(), settings, Hooks(after_step=reasons.get))  # type: ignore[arg-type]
    for step in range(1, 64):  # a minute each
        now[0] += 60
        reason, due = saving.after_step(step)
        assert reason == reasons.get(step)
        if due:
            saving.write(Position(step))
    assert written == [(10, 600), (30, 1860), (50, 3120), (61, 3840), (63, 4020)], "20 times as long pass between them"


def test_muon_updates_no_embeddings_whatever_their_names_are(
    make_tokenizer: Callable[[str], Any], tmp_path: Path
) -> None:
    tokenizer = make_tokenizer("llama")
    sizes = GPT2Config(vocab_size=len(tokenizer), n_embd=16, n_layer=1, n_head=2, n_positions=64)
    AutoModelForCausalLM.from_config(sizes).save_pretrained(tmp_path)  # its embeddings are wte and wpe
    tokenizer.save_pretrained(tmp_path)
    loaded = load(tmp_path)
    _, muon = make_optimizers(loaded, loaded.trainable(), TrainSettings(steps=1, lr=1e-3, optimizer="muon"))
    names = {id(p): name for name, p in loaded.trainable().items()}
    updated = {names[id(p)].split("h.0.")[1] for p in muon.param_groups[0]["params"]}
    assert updated == {f"{name}.weight" for name in ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")}


@pytest.mark.parametrize("place", ["between micro-batches", "while rows are made"])
def test_a_stop_within_a_step_gives_that_step_up_and_goes_on_to_the_same_weights(
    tiny_model: Path, tmp_path: Path, place: str
) -> None:
    """The third step is begun and not finished: the second's state is saved, its memory without what the third did."""
    scored: list[int] = []

    @dataclass
    class Made(Resumable):
        made: list[int] = field(default_factory=list)

    @dataclass
    class Last(Resumable):
        prefix: ClassVar[str] = "last/"
        made: int = 0

    def go(state_dir: Path, *, stop: bool) -> tuple[Loaded, TrainResult, list[int], list[int]]:
        loaded, objective, memory, last = load(tiny_model), DistillationObjective(), Made(), Last()
        done: list[int] = []
        scored.clear()

        def source(step: int) -> StepBatch:
            memory.made.append(step)
            last.made = step
            if stop and place == "while rows are made" and step == 3:
                raise Interrupted("a stop, heard by an engine's progress")
            return random_rows(step)

        def counted(student: Loaded, batch: Any) -> Any:
            scored.append(len(done) + 1)
            return objective(student, batch)

        result, _ = run(
            loaded,
            source,
            counted,
            Hooks(log=lambda step, _: done.append(step)),
            steps=5,
            token_budget=30,
            state_dir=state_dir,
            should_stop=lambda: stop and scored.count(3) == 2,
            resumables=[memory, last],
        )
        assert last.made == memory.made[-1], "each owner has its own state again"
        return loaded, result, memory.made, done

    straight, _, remembered, _ = go(tmp_path / "straight", stop=False)
    assert scored.count(3) > 2, "a step has more micro-batches than are scored before the stop"
    stopped, result, made, done = go(tmp_path / "stopped", stop=True)
    assert (result.stopped, result.step, done, made) == ("interrupted", 2, [1, 2], [1, 2])
    assert scored.count(3) == (2 if place == "between micro-batches" else 0)
    assert resume_step(tmp_path / "stopped") == 2
    assert all(p.grad is None for p in stopped.trainable().values())
    resumed, result, made, _ = go(tmp_path / "stopped", stop=False)
    assert (result.stopped, made) == ("finished", remembered)
    assert_same(straight, resumed)


def test_two_owners_cannot_store_the_same_name(tiny_model: Path) -> None:
    @dataclass
    class Count(Resumable):
        steps: int = 0

    with pytest.raises(ValueError, match="two resumables store steps"):
        run(load(tiny_model), resumables=[Count(), Count()])


def test_a_damaged_state_is_passed_over_for_the_one_before(tiny_model: Path, tmp_path: Path) -> None:
    def go(state_dir: Path) -> Loaded:
        loaded = load(tiny_model)
        run(loaded, steps=6, checkpoint_every=3, state_dir=state_dir)
        return loaded

    straight = go(tmp_path / "a")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    (tmp_path / "b" / "step-000006" / "state.safetensors").write_bytes(b"torn")
    shutil.copytree(tmp_path / "a" / "step-000006", tmp_path / "b" / "step-000006.bak")  # somebody's copy
    assert_same(straight, go(tmp_path / "b"))


def test_a_finished_stage_is_not_trained_again(tiny_model: Path, tmp_path: Path) -> None:
    hooks = Hooks(after_step={3: "recovered"}.get)
    found = [run(load(tiny_model), hooks=hooks, steps=8, state_dir=tmp_path) for _ in range(2)]
    assert [(result.stopped, len(log)) for result, log in found] == [("recovered", 3), ("recovered", 0)]


@pytest.mark.parametrize("tuning", ["full", "lora"])
def test_distilling_from_itself_changes_nothing(tiny_contrasting: Path, tuning: str) -> None:
    loaded = load(tiny_contrasting, tuning)
    teacher = LocalTeacher(loaded, "base") if tuning == "lora" else LocalTeacher(load(tiny_contrasting, "frozen"))
    objective = DistillationObjective({"base": teacher})
    (metrics,) = run(loaded, lambda step: random_rows(step, "base"), objective, lr=1e-4)[1]
    assert metrics["loss"] == pytest.approx(0, abs=1e-6)
    assert metrics["gradient_norm"] == pytest.approx(0, abs=1e-4)


def test_reverse_kl_falls_towards_the_teacher(make_tiny: Callable[..., Path], tmp_path: Path) -> None:
    student = load(make_tiny("qwen3", tmp_path / "s", seed=1))
    teacher = LocalTeacher(load(make_tiny("qwen3", tmp_path / "t", seed=2), "frozen"))
    objective = DistillationObjective({"base": teacher})
    _, log = run(student, lambda _: random_rows(1, "base"), objective, steps=20, lr=3e-3)
    assert log[-1]["reverse_kl"] < 0.5 * log[0]["reverse_kl"]


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_only_the_rows_of_some_tokens_are_trained(tiny_contrasting: Path, optimizer: str) -> None:
    loaded = load(tiny_contrasting)
    tokens = {token for step in (1, 2) for row in random_rows(step).rows for token in row.ids if token % 2}
    loaded.train_rows(tokens)
    before = [p.detach().clone() for p in loaded.embeddings()]
    layers = weights(loaded)
    run(loaded, steps=2, weight_decay=0.1, optimizer=optimizer)
    changed = [set(_changed_rows(old, new)) for old, new in zip(before, loaded.embeddings(), strict=True)]
    assert set.union(*changed) == tokens, "all others are the same, bit for bit"
    kept = {id(p) for p in loaded.embeddings()}
    assert all(not torch.equal(layers[n], p) for n, p in loaded.trainable().items() if id(p) not in kept and p.ndim > 1)


def test_rows_that_are_not_trained_take_no_part_in_a_projection(tiny_model: Path) -> None:
    """After A-GEM a step does not raise the guard's loss in what is trained: g . g_ref >= 0."""
    loaded = load(tiny_model)
    loaded.train_rows(range(40))
    batch = StepBatch([Row([(7 * n) % 40 for n in range(20)], [False] + [True] * 19) for _ in range(2)])
    guard = [Row([40 + (11 * n) % 80 for n in range(20)], [False] + [True] * 19)]
    params, objective = list(loaded.trainable().values()), DistillationObjective()
    kept, products = {id(p) for p in loaded.embeddings()}, []

    def look(*_: Any) -> None:
        applied = [p.grad for p in params]
        for p in params:
            p.grad = None
        (one,) = micro_batches(guard, 1000, loaded.chat.pad_id, loaded.device)
        objective(loaded, one).loss.backward()
        pairs = [(p, g, p.grad) for p, g in zip(params, applied, strict=True) if g is not None and p.grad is not None]
        rows = {True: slice(0, 40), False: slice(None)}
        products.append(sum(float((g * r)[rows[id(p) in kept]].sum()) for p, g, r in pairs))
        for p, g in zip(params, applied, strict=True):
            p.grad = g

    hook = register_optimizer_step_pre_hook(look)
    try:
        _, log = run(loaded, lambda _: batch, objective, Hooks(reference=lambda _: guard), steps=8, lr=3e-3)
    finally:
        hook.remove()
    assert sum(metrics["projected"] for metrics in log) > 0, "some step would have raised the guard's loss"
    assert min(products) > -1e-4


def _changed_rows(old: torch.Tensor, new: torch.Tensor) -> list[int]:
    differs = old != new
    found: list[int] = (differs.any(dim=1) if old.ndim > 1 else differs).nonzero().flatten().tolist()
    return found


def test_embeddings_can_be_left_out_of_full_fine_tuning(tiny_contrasting: Path, tmp_path: Path) -> None:
    loaded = load(tiny_contrasting, embeddings=False)
    before = [p.detach().clone() for p in loaded.embeddings()]
    assert not {id(p) for p in loaded.embeddings()} & {id(p) for p in loaded.trainable().values()}
    run(loaded, steps=2)
    assert all(torch.equal(old, new) for old, new in zip(before, loaded.embeddings(), strict=True))
    loaded.save(tmp_path / "saved")
    again = load_model(tmp_path / "saved", precision="float32")
    assert all(torch.equal(old, new.cpu()) for old, new in zip(before, again.embeddings(), strict=True))
    whole = load(tiny_contrasting)
    assert len(whole.trainable()) == len(loaded.trainable()) + len(loaded.embeddings())


def test_gradient_checkpointing_gives_the_same_step(tiny_model: Path) -> None:
    plain, checkpointed = (load(tiny_model, gradient_checkpointing=checkpointing) for checkpointing in (False, True))
    for loaded in (plain, checkpointed):
        run(loaded, steps=2)
    assert_close(plain, checkpointed, atol=1e-6, rtol=1e-5)


@pytest.mark.slow  # the first compilation on a machine takes minutes
def test_compiled_layers_give_the_same_step_and_are_compiled_for_gradients_only(tiny_model: Path) -> None:
    results = []
    for compiled in (False, True):
        loaded = load(tiny_model, compiled=compiled)
        torch._dynamo.reset()
        counters["stats"].clear()
        TransformersEngine(loaded).generate([[1, 2, 3], [4, 5]], Sampling(4))
        assert counters["stats"]["unique_graphs"] == 0
        run(loaded, steps=2)
        results.append(loaded)
        assert (counters["stats"]["unique_graphs"] > 0) == compiled
    assert_close(*results, atol=1e-5)


def test_a_decoder_without_a_list_of_layers_is_not_compiled() -> None:
    with pytest.raises(ModelError, match="no list of layers to compile"):
        compile_layers(torch.nn.Linear(2, 2), torch.device("cpu"))


def test_a_machine_that_cannot_compile_gets_one_line(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: Any) -> None:
        raise RuntimeError("\nNo working C++ compiler found\nSet TORCHDYNAMO_VERBOSE=1")

    monkeypatch.setattr(torch, "compile", lambda _: failing)
    with pytest.raises(UsageError) as caught:
        load_model(tiny_model, tuning="full", device="cpu", compiled=True)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("torch cannot compile here (No working C++ compiler found): install a C++")


@pytest.mark.slow  # torch's compiler is imported in a new process
def test_a_machine_without_a_compiler_gets_one_line(tmp_path: Path, tiny_model: Path) -> None:
    code = (
        "import sys; from recovery.errors import UsageError; from recovery.models.loading import load_model\n"
        "try: load_model(sys.argv[1], tuning='full', device='cpu', compiled=True)\n"
        "except UsageError as error: print(error)"
    )
    env = {**os.environ, "CXX": "/nowhere/g++", "TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    said = subprocess.run([sys.executable, "-c", code, str(tiny_model)], env=env, capture_output=True, text=True)
    assert said.returncode == 0, said.stderr
    assert "install a C++ compiler" in said.stdout and said.stdout.count("\n") == 1


def test_a_loss_that_is_not_finite_stops_with_a_reason(tiny_model: Path) -> None:
    loaded = load(tiny_model)
    assert loaded.head.vocabulary > 0  # the head is checked against the model once, before its weights are damaged
    with torch.no_grad():
        next(iter(loaded.trainable().values())).fill_(float("nan"))
    with pytest.raises(RecoveryError, match="not finite"):
        run(loaded)


def test_a_row_with_an_unknown_teacher_is_refused(tiny_model: Path) -> None:
    with pytest.raises(UsageError, match="'professor'"):
        run(load(tiny_model), lambda step: random_rows(step, "professor"))


def test_learning_rate_warms_up_and_decays() -> None:
    settings = TrainSettings(steps=100, lr=1.0, warmup_steps=10, schedule="linear", min_lr_ratio=0.1)
    rates = [learning_rate(step, settings) for step in range(1, 101)]
    assert rates[0] == pytest.approx(0.1)
    assert max(rates) == rates[9] == 1.0
    assert 0.1 < rates[-1] < 0.12
    assert rates[10:] == sorted(rates[10:], reverse=True)


def test_seeds_of_steps_and_streams_differ() -> None:
    seeds = {derive_seed(s, t, k) for s in range(4) for t in range(50) for k in range(3)}
    assert len(seeds) == 600


def test_matrices_decay_and_vectors_do_not(tiny_model: Path) -> None:
    loaded = load_model(tiny_model, tuning="full", precision="float32")
    (adamw,) = make_optimizers(loaded, loaded.trainable(), TrainSettings(steps=1, lr=1e-3, weight_decay=0.1))
    assert {(p.ndim, group["weight_decay"]) for group in adamw.param_groups for p in group["params"]} == {
        (1, 0.0),
        (2, 0.1),
    }


@pytest.mark.parametrize("name", ["steps", "lr", "token_budget", "checkpoint_every"])
def test_settings_of_nothing_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match="must all be above 0"):
        TrainSettings(**({"steps": 1, "lr": 1e-3} | {name: 0}))
