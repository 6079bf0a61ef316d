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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch._dynamo.utils import counters
from torch.optim.optimizer import register_optimizer_step_pre_hook
from transformers import AutoConfig, AutoModelForCausalLM, GPT2Config

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


def random_rows(step: int, teacher: str = "label", count: int = 6) -> StepBatch:
    generator = torch.Generator().manual_seed(derive_seed(0, step))
    lengths = torch.randint(3, 24, (count,), generator=generator).tolist()
    ids = [torch.randint(3, 200, (n,), generator=generator).tolist() for n in lengths]
    return StepBatch([Row(row, [False] + [True] * (len(row) - 1), teacher=teacher) for row in ids])


def weights(loaded: Loaded) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in loaded.trainable().items()}


def run(model: Path, tuning: str = "full", **changes: Any) -> tuple[Loaded, list[dict[str, float]]]:
    loaded = load_model(model, tuning=tuning, precision="float32")  # type: ignore[arg-type]
    log: list[dict[str, float]] = []
    settings = TrainSettings(**({"steps": 6, "lr": 1e-3, "checkpoint_every": 2} | changes))
    train(
        loaded, random_rows, DistillationObjective(), settings, hooks=Hooks(log=lambda _, metrics: log.append(metrics))
    )
    return loaded, log


@pytest.mark.parametrize("tuning", ["full", "lora"])
def test_micro_batch_size_does_not_change_the_trajectory(tiny_model: Path, tuning: str) -> None:
    torch.manual_seed(0)
    whole, log = run(tiny_model, tuning, token_budget=10_000)
    torch.manual_seed(0)
    split, log_split = run(tiny_model, tuning, token_budget=30)
    assert [m["loss"] for m in log] == pytest.approx([m["loss"] for m in log_split], rel=1e-5)
    # Adam divides by the gradient's size, so rounding errors show where a gradient is nearly 0: 1% of the length of 6
    # steps.
    for name, value in weights(whole).items():
        torch.testing.assert_close(value, weights(split)[name], atol=6e-5, rtol=1e-4)


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
    trained: list[dict[str, torch.Tensor]] = []
    losses: list[list[float]] = []
    smaller: list[tuple[int, int]] = []
    for objective in (FullMemory(), FullMemory(at=frozenset({4}))):
        loaded, log = load_model(tiny_model, tuning="full", precision="float32"), []
        hooks = Hooks(
            log=lambda _, metrics, log=log: log.append(metrics["loss"]),  # type: ignore[misc]
            reference=(lambda step: random_rows(step + 50).rows) if guarded else None,
            smaller=lambda *given: smaller.append(given),
        )
        train(loaded, random_rows, objective, TrainSettings(steps=3, lr=1e-3, token_budget=60), hooks=hooks)
        trained.append(weights(loaded))
        losses.append(log)
    ((step, tokens),) = smaller
    assert tokens < 60 and step in (1, 2)
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    for name, value in trained[0].items():
        torch.testing.assert_close(value, trained[1][name], atol=6e-5, rtol=1e-4)


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
    loaded, smaller = load_model(tiny_model, tuning="full", precision="float32"), []
    objective = FullMemory(at=frozenset({1}), error=error)
    hooks = Hooks(smaller=lambda *given: smaller.append(given))
    with contextlib.nullcontext() if full else pytest.raises(RuntimeError, match=re.escape(str(error))):
        train(loaded, random_rows, objective, TrainSettings(steps=1, lr=1e-3), hooks=hooks)
    assert len(smaller) == full


def test_one_row_that_does_not_fit_is_refused_and_the_state_kept(tiny_model: Path, tmp_path: Path) -> None:
    loaded = load_model(tiny_model, tuning="full", precision="float32")
    longest = max(len(row.ids) for row in random_rows(3).rows)
    before: list[dict[str, torch.Tensor]] = []
    tight = FullMemory()

    def after_step(step: int) -> None:
        before[:] = [weights(loaded)]
        tight.fits = longest - 1 if step == 2 else 10**9

    with pytest.raises(RecoveryError, match=rf"one row of {longest} tokens \(step 3\)"):
        train(
            loaded,
            random_rows,
            tight,
            TrainSettings(steps=4, lr=1e-3, checkpoint_every=1),
            hooks=Hooks(after_step=after_step),
            state_dir=tmp_path,
        )
    assert resume_step(tmp_path) == 2
    for name, value in before[0].items():
        assert torch.equal(value, weights(loaded)[name])
    assert all(p.grad is None for p in loaded.trainable().values())


SIZES: dict[str, Any] = {
    "vocab_size": 512, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 256,
    "bos_token_id": None, "eos_token_id": 1, "pad_token_id": 1,
}  # fmt: skip
MIXED: dict[str, dict[str, Any]] = {
    "gpt_oss": {"head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2, "router_aux_loss_coef": 0.0},
    "falcon": {},
    "opt": {"ffn_dim": 64, "word_embed_proj_dim": 32},
    "mpt": {"d_model": 32, "n_heads": 4, "n_layers": 2},
    "bloom": {"n_head": 4, "n_layer": 2},
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "qwen3_next": {
        "head_dim": 16, "layer_types": ["linear_attention", "full_attention"], "linear_num_key_heads": 2,
        "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8, "num_experts": 4,
        "num_experts_per_tok": 2, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32,
    },
}  # fmt: skip


def write_mixing(kind: str, folder: Path, make_tokenizer: Callable[[str], Any], **changes: Any) -> None:
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, **(SIZES | MIXED[kind] | changes))
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
    make_tokenizer("qwen3").save_pretrained(folder)


@pytest.mark.parametrize("kind", MIXED)
def test_a_family_that_mixes_packed_documents_is_trained_on_each_alone(
    kind: str, tmp_path: Path, make_tokenizer: Callable[[str], Any]
) -> None:
    write_mixing(kind, tmp_path, make_tokenizer)
    first, second = list(range(20, 32)), list(range(40, 48))
    whole = [Row(first + second, [True] * 20, (12, 8))]
    alone = [Row(first, [True] * 12), Row(second, [True] * 8)]
    losses = []
    for rows in (whole, alone):
        loaded = load_model(tmp_path, tuning="full", precision="float32")
        assert not loaded.separates_documents
        train(
            loaded,
            lambda _: StepBatch(rows),  # noqa: B023
            DistillationObjective(),
            TrainSettings(steps=1, lr=1e-3),
            hooks=Hooks(log=lambda _, metrics: losses.append((metrics["loss"], metrics["gradient_norm"]))),
        )
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
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


def test_a_short_context_is_enough_to_try_packed_rows(make_tokenizer: Callable[[str], Any], tmp_path: Path) -> None:
    """OPT has learned positions: a longer document has no embeddings."""
    write_mixing("opt", tmp_path, make_tokenizer, max_position_embeddings=12)
    assert not load_model(tmp_path, precision="float32").separates_documents


def test_a_model_in_pieces_is_tried_by_all_processes_together(
    tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = load_model(tiny_model, tuning="full", precision="float32")
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
    place: str,
    tiny_qwen3: Path,
    tmp_path: Path,
    make_tokenizer: Callable[[str], Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The student itself keeps them apart; rows that no mixing model reads stay packed."""
    own = LocalTeacher(load_model(tiny_qwen3, precision="float32"))
    write_mixing("opt", tmp_path, make_tokenizer, vocab_size=own.head.vocabulary)
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
    documents = list(range(20, 32)), list(range(40, 48))
    whole = [Row([*documents[0], *documents[1]], [True] * 20, (12, 8), name) for name in ("documents", "base")]
    alone = [Row(ids, [True] * len(ids), teacher=name) for name in ("documents", "base") for ids in documents]
    losses = []
    for rows in (whole, alone):
        read.clear()
        student = load_model(tiny_qwen3, tuning="full", precision="float32")
        train(
            student,
            lambda _: StepBatch(rows),  # noqa: B023
            objective,
            TrainSettings(steps=1, lr=1e-3),
            hooks=Hooks(log=lambda _, metrics: losses.append((metrics["loss"], metrics["gradient_norm"]))),
        )
        packed = rows is whole and place != "anchor"
        assert [lengths for name, lengths in read if name == "base"] == [[20] if packed else [12, 8]] * (
            2 + (place == "anchor")
        )
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_a_configuration_with_dropout_does_not_change_that(make_tiny: Callable[..., Path], tmp_path: Path) -> None:
    model = make_tiny("llama", tmp_path / "model", attention_dropout=0.5)
    _, log = run(model, token_budget=10_000)
    _, log_split = run(model, token_budget=30)
    assert [m["loss"] for m in log] == pytest.approx([m["loss"] for m in log_split], rel=1e-5)
    assert json.loads((model / "config.json").read_text())["attention_dropout"] == 0.5


def test_loss_is_the_models_own_cross_entropy(tiny_contrasting: Path) -> None:
    loaded = load_model(tiny_contrasting, precision="float32")
    rows = random_rows(1).rows
    expected = 0.0
    for row in rows:
        logits = loaded.model(torch.tensor([row.ids])).logits[0, :-1]
        expected += float(torch.nn.functional.cross_entropy(logits, torch.tensor(row.ids[1:]), reduction="sum"))
    full = load_model(tiny_contrasting, tuning="full", precision="float32")
    log: list[dict[str, float]] = []
    train(
        full,
        random_rows,
        DistillationObjective(),
        TrainSettings(steps=1, lr=1e-9),
        hooks=Hooks(log=lambda _, m: log.append(m)),
    )
    assert log[0]["loss"] == pytest.approx(expected / sum(len(r.ids) - 1 for r in rows), rel=1e-4)


@pytest.mark.parametrize("tuning", ["full", "lora"])
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_stopped_run_goes_on_to_the_same_weights(
    tiny_model: Path, tmp_path: Path, tuning: str, optimizer: str
) -> None:
    def go(state_dir: Path, stop_at: int | None) -> tuple[Loaded, str]:
        torch.manual_seed(0)  # a new adapter starts from the same draw
        loaded = load_model(tiny_model, tuning=tuning, precision="float32")  # type: ignore[arg-type]
        settings = TrainSettings(steps=9, lr=1e-3, warmup_steps=2, checkpoint_every=4, optimizer=optimizer)  # type: ignore[arg-type]
        done: list[int] = []
        result = train(
            loaded,
            random_rows,
            DistillationObjective(),
            settings,
            hooks=Hooks(log=lambda step, _: done.append(step)),
            state_dir=state_dir,
            should_stop=lambda: stop_at is not None and bool(done) and done[-1] >= stop_at,
        )
        return loaded, result.stopped

    straight, _ = go(tmp_path / "straight", None)
    assert go(tmp_path / "stopped", 3)[1] == "interrupted"
    assert resume_step(tmp_path / "stopped") == 3
    resumed, stopped = go(tmp_path / "stopped", None)
    assert stopped == "finished"
    for name, value in weights(straight).items():
        assert torch.equal(value, weights(resumed)[name]), name


def test_slow_steps_are_saved_between_the_regular_states(tiny_model: Path, tmp_path: Path) -> None:
    """Every step is due by the clock but the one in breach, which a kill in the eighth loses, and nothing else."""

    def go(state_dir: Path, *, killed: bool = False) -> tuple[Loaded, list[int]]:
        loaded = load_model(tiny_model, tuning="full", precision="float32")
        settings = TrainSettings(steps=9, lr=1e-3, checkpoint_every=4, checkpoint_seconds=0.0 if killed else 600.0)
        done: list[int] = []

        def log(step: int, _: dict[str, float]) -> None:
            if killed and step == 8:
                raise KeyboardInterrupt
            done.append(step)

        hooks = Hooks(log=log, healthy=lambda: done[-1] != 7)
        with contextlib.suppress(KeyboardInterrupt):
            train(loaded, random_rows, DistillationObjective(), settings, hooks=hooks, state_dir=state_dir)
        return loaded, done

    straight, _ = go(tmp_path / "straight")
    assert [step for step, _ in sorted(states(tmp_path / "straight"))] == [8, 9]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("recovery.training.run_state.SHARE", 0)
        go(tmp_path / "killed", killed=True)
    assert [step for step, _ in sorted(states(tmp_path / "killed"))] == [4, 6], "the newest regular one stays"
    resumed, done = go(tmp_path / "killed")
    assert done == [7, 8, 9]
    for name, value in weights(straight).items():
        assert torch.equal(value, weights(resumed)[name]), name


@pytest.mark.parametrize("stop_at", [None, 3, 6])
def test_a_collapse_goes_back_to_the_same_state_whenever_the_run_was_interrupted(
    tiny_model: Path, tmp_path: Path, stop_at: int | None
) -> None:
    def go(stop_at: int | None) -> tuple[Loaded, TrainResult]:
        loaded = load_model(tiny_model, tuning="full", precision="float32")
        settings = TrainSettings(steps=9, lr=1e-3, checkpoint_every=4)
        done: list[int] = []
        hooks = Hooks(
            log=lambda step, _: done.append(step), after_step=lambda step: "collapse: so" if step == 7 else None
        )
        result = train(
            loaded,
            random_rows,
            DistillationObjective(),
            settings,
            hooks=hooks,
            state_dir=tmp_path,
            should_stop=lambda: stop_at is not None and bool(done) and done[-1] >= stop_at,
        )
        return loaded, result

    if stop_at is not None:
        assert go(stop_at)[1].stopped == "interrupted"
    loaded, result = go(None)
    assert (result.step, result.stopped) == (4, "collapse: so")
    expected = load_model(tiny_model, tuning="full", precision="float32")
    settings = TrainSettings(steps=9, lr=1e-3)
    stop = Hooks(after_step=lambda step: "enough" if step == 4 else None)
    train(expected, random_rows, DistillationObjective(), settings, hooks=stop)
    assert all(torch.equal(value, weights(expected)[name]) for name, value in weights(loaded).items())


def test_a_collapse_before_the_first_regular_state_is_an_error_also_after_an_interrupt(
    tiny_model: Path, tmp_path: Path
) -> None:
    """An interrupt in the first step saves step 0, which was taken for a state to go back to."""

    def go(stop: bool) -> str:
        loaded = load_model(tiny_model, tuning="full", precision="float32")
        hooks = Hooks(after_step=lambda step: "collapse: so" if step == 2 else None)
        settings = TrainSettings(steps=9, lr=1e-3, checkpoint_every=4)
        objective = DistillationObjective()
        return train(
            loaded, random_rows, objective, settings, hooks=hooks, state_dir=tmp_path, should_stop=lambda: stop
        ).stopped

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
    loaded = load_model(tmp_path, tuning="full", precision="float32")
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
        torch.manual_seed(0)
        loaded = load_model(tiny_model, tuning="full", precision="float32")
        memory, last = Made(), Last()
        done: list[int] = []
        scored.clear()
        objective = DistillationObjective()

        def source(step: int) -> StepBatch:
            memory.made.append(step)
            last.made = step
            if stop and place == "while rows are made" and step == 3:
                raise Interrupted("a stop, heard by an engine's progress")
            return random_rows(step)

        def counted(student: Loaded, batch: Any) -> Any:
            scored.append(len(done) + 1)
            return objective(student, batch)

        result = train(
            loaded,
            source,
            counted,
            TrainSettings(steps=5, lr=1e-3, checkpoint_every=10, token_budget=30),
            hooks=Hooks(log=lambda step, _: done.append(step)),
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
    for name, value in weights(straight).items():
        assert torch.equal(value, weights(resumed)[name]), name


def test_two_owners_cannot_store_the_same_name(tiny_model: Path) -> None:
    @dataclass
    class Count(Resumable):
        steps: int = 0

    loaded = load_model(tiny_model, tuning="full", precision="float32")
    settings = TrainSettings(steps=1, lr=1e-3)
    with pytest.raises(ValueError, match="two resumables store steps"):
        train(loaded, random_rows, DistillationObjective(), settings, resumables=[Count(), Count()])


def test_a_damaged_state_is_passed_over_for_the_one_before(tiny_model: Path, tmp_path: Path) -> None:
    def go(state_dir: Path) -> Loaded:
        loaded = load_model(tiny_model, tuning="full", precision="float32")
        train(
            loaded,
            random_rows,
            DistillationObjective(),
            TrainSettings(steps=6, lr=1e-3, checkpoint_every=3),
            state_dir=state_dir,
        )
        return loaded

    straight = weights(go(tmp_path / "a"))
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    (tmp_path / "b" / "step-000006" / "state.safetensors").write_bytes(b"torn")
    shutil.copytree(tmp_path / "a" / "step-000006", tmp_path / "b" / "step-000006.bak")  # somebody's copy
    again = weights(go(tmp_path / "b"))
    assert all(torch.equal(straight[name], again[name]) for name in straight)


def test_a_finished_stage_is_not_trained_again(tiny_model: Path, tmp_path: Path) -> None:
    steps: list[int] = []

    def go() -> str:
        loaded = load_model(tiny_model, tuning="full", precision="float32")
        return train(
            loaded,
            random_rows,
            DistillationObjective(),
            TrainSettings(steps=8, lr=1e-3),
            hooks=Hooks(
                log=lambda step, _: steps.append(step), after_step=lambda step: "recovered" if step == 3 else None
            ),
            state_dir=tmp_path,
        ).stopped

    assert (go(), go()) == ("recovered", "recovered")
    assert steps == [1, 2, 3]


@pytest.mark.parametrize("tuning", ["full", "lora"])
def test_distilling_from_itself_changes_nothing(tiny_contrasting: Path, tuning: str) -> None:
    loaded = load_model(tiny_contrasting, tuning=tuning, precision="float32")  # type: ignore[arg-type]
    clean = load_model(tiny_contrasting, precision="float32")
    teacher = LocalTeacher(loaded, "base") if tuning == "lora" else LocalTeacher(clean)
    before = weights(loaded)
    log: list[dict[str, float]] = []
    train(
        loaded,
        lambda step: random_rows(step, "base"),
        DistillationObjective({"base": teacher}),
        TrainSettings(steps=1, lr=1e-4),
        hooks=Hooks(log=lambda _, m: log.append(m)),
    )
    assert log[0]["loss"] == pytest.approx(0, abs=1e-6)
    assert log[0]["gradient_norm"] == pytest.approx(0, abs=1e-4)
    assert set(before) == set(weights(loaded))


def test_reverse_kl_falls_towards_the_teacher(make_tiny: Callable[..., Path], tmp_path: Path) -> None:
    student = load_model(make_tiny("qwen3", tmp_path / "s", seed=1), tuning="full", precision="float32")
    teacher = LocalTeacher(load_model(make_tiny("qwen3", tmp_path / "t", seed=2), precision="float32"))
    log: list[dict[str, float]] = []
    train(
        student,
        lambda step: random_rows(1, "base"),
        DistillationObjective({"base": teacher}),
        TrainSettings(steps=20, lr=3e-3),
        hooks=Hooks(log=lambda _, m: log.append(m)),
    )
    assert log[-1]["reverse_kl"] < 0.5 * log[0]["reverse_kl"]


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_only_the_rows_of_some_tokens_are_trained(tiny_contrasting: Path, optimizer: str) -> None:
    loaded = load_model(tiny_contrasting, tuning="full", precision="float32")
    tokens = {token for step in (1, 2) for row in random_rows(step).rows for token in row.ids if token % 2}
    loaded.train_rows(tokens)
    before = [p.detach().clone() for p in loaded.embeddings()]
    layers = weights(loaded)
    settings = TrainSettings(steps=2, lr=1e-3, checkpoint_every=9, weight_decay=0.1, optimizer=optimizer)
    train(loaded, random_rows, DistillationObjective(), settings)
    changed = [set(_changed_rows(old, new)) for old, new in zip(before, loaded.embeddings(), strict=True)]
    assert set.union(*changed) == tokens, "all others are the same, bit for bit"
    kept = {id(p) for p in loaded.embeddings()}
    assert all(not torch.equal(layers[n], p) for n, p in loaded.trainable().items() if id(p) not in kept and p.ndim > 1)


def test_rows_that_are_not_trained_take_no_part_in_a_projection(tiny_model: Path) -> None:
    """After A-GEM a step does not raise the guard's loss in what is trained: g . g_ref >= 0."""
    loaded = load_model(tiny_model, tuning="full", precision="float32")
    loaded.train_rows(range(40))
    batch = StepBatch([Row([(7 * n) % 40 for n in range(20)], [False] + [True] * 19) for _ in range(2)])
    guard = [Row([40 + (11 * n) % 80 for n in range(20)], [False] + [True] * 19)]
    params, objective = list(loaded.trainable().values()), DistillationObjective()
    kept, products, projected = {id(p) for p in loaded.embeddings()}, [], []

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
        train(
            loaded,
            lambda _step: batch,
            objective,
            TrainSettings(steps=8, lr=3e-3, checkpoint_every=9),
            hooks=Hooks(log=lambda _step, m: projected.append(m["projected"]), reference=lambda _step: guard),
        )
    finally:
        hook.remove()
    assert sum(projected) > 0, "some step would have raised the guard's loss"
    assert min(products) > -1e-4


def _changed_rows(old: torch.Tensor, new: torch.Tensor) -> list[int]:
    differs = old != new
    found: list[int] = (differs.any(dim=1) if old.ndim > 1 else differs).nonzero().flatten().tolist()
    return found


def test_embeddings_can_be_left_out_of_full_fine_tuning(tiny_contrasting: Path, tmp_path: Path) -> None:
    loaded = load_model(tiny_contrasting, tuning="full", precision="float32", embeddings=False)
    before = [p.detach().clone() for p in loaded.embeddings()]
    assert not {id(p) for p in loaded.embeddings()} & {id(p) for p in loaded.trainable().values()}
    settings = TrainSettings(steps=2, lr=1e-3, checkpoint_every=9)
    train(loaded, random_rows, DistillationObjective(), settings)
    assert all(torch.equal(old, new) for old, new in zip(before, loaded.embeddings(), strict=True))
    loaded.save(tmp_path / "saved")
    again = load_model(tmp_path / "saved", precision="float32")
    assert all(torch.equal(old, new.cpu()) for old, new in zip(before, again.embeddings(), strict=True))
    whole = load_model(tiny_contrasting, tuning="full", precision="float32")
    assert len(whole.trainable()) == len(loaded.trainable()) + len(loaded.embeddings())


def test_gradient_checkpointing_gives_the_same_step(tiny_model: Path) -> None:
    results = []
    for checkpointing in (False, True):
        loaded = load_model(tiny_model, tuning="full", precision="float32", gradient_checkpointing=checkpointing)
        train(loaded, random_rows, DistillationObjective(), TrainSettings(steps=2, lr=1e-3))
        results.append(weights(loaded))
    for name, value in results[0].items():
        torch.testing.assert_close(value, results[1][name], atol=1e-6, rtol=1e-5)


@pytest.mark.slow  # the first compilation on a machine takes minutes
def test_compiled_layers_give_the_same_step_and_are_compiled_for_gradients_only(tiny_model: Path) -> None:
    results = []
    for compiled in (False, True):
        loaded = load_model(tiny_model, tuning="full", precision="float32", compiled=compiled)
        torch._dynamo.reset()
        counters["stats"].clear()
        TransformersEngine(loaded).generate([[1, 2, 3], [4, 5]], Sampling(4))
        assert counters["stats"]["unique_graphs"] == 0
        train(loaded, random_rows, DistillationObjective(), TrainSettings(steps=2, lr=1e-3))
        results.append(weights(loaded))
        assert (counters["stats"]["unique_graphs"] > 0) == compiled
    for name, value in results[0].items():
        torch.testing.assert_close(value, results[1][name], atol=1e-5, rtol=1e-4)


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
    loaded = load_model(tiny_model, tuning="full", precision="float32")
    assert loaded.head.vocabulary > 0  # the head is checked against the model once, before its weights are damaged
    with torch.no_grad():
        next(iter(loaded.trainable().values())).fill_(float("nan"))
    with pytest.raises(RecoveryError, match="not finite"):
        train(loaded, random_rows, DistillationObjective(), TrainSettings(steps=1, lr=1e-3))


def test_a_row_with_an_unknown_teacher_is_refused(tiny_model: Path) -> None:
    loaded = load_model(tiny_model, tuning="full", precision="float32")
    with pytest.raises(UsageError, match="'professor'"):
        train(loaded, lambda s: random_rows(s, "professor"), DistillationObjective(), TrainSettings(steps=1, lr=1e-3))


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
