"""The memory model: parameter counts are exact, and the count on fake tensors is that on real ones."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from pipelines.plan import model_text
from pipelines.planning import memory_trace
from pipelines.planning.memory import (
    Memory,
    Needs,
    Plan,
    Rollouts,
    TeacherFootprint,
    distilling,
    memory_of,
    midtraining,
    parameters_of,
)
from pipelines.planning.memory_trace import Rows, Trial, rollout_memory, training_memory
from recovery.batching import Row, micro_batches
from recovery.config import DistillConfig, MidtrainConfig
from recovery.losses.config import LossConfig
from recovery.losses.objective import DistillationObjective
from recovery.models.loading import Loaded, LoraSettings, load_model
from recovery.rollouts import Sampling, TransformersEngine, VllmSampler
from recovery.rollouts.vllm_engine import device_bytes
from recovery.teachers import AdapterOff, CurrentStudent
from tests.models import make_tiny

RANK = 8


@pytest.fixture(scope="module")
def deeper(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model deep and wide enough that the memory of a row is significant."""
    sizes = {"hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 6}
    return make_tiny("qwen3", tmp_path_factory.mktemp("deeper") / "model", **sizes)


def load(folder: Path, tuning: str, precision: str = "float32", checkpointing: bool = False) -> Loaded:
    """Load the model with its weights for a tuning."""
    return load_model(
        folder,
        tuning=tuning,  # type: ignore[arg-type]
        lora=LoraSettings(RANK, 2 * RANK),
        precision=precision,
        device="cpu",
        gradient_checkpointing=checkpointing,
    )


@pytest.mark.parametrize("tuning", ["full", "lora"])
def test_parameters_are_counted_exactly(tiny_family: Path, tuning: str) -> None:
    model = load(tiny_family, tuning).model
    counts = parameters_of(Trial(model_text(str(tiny_family)), tuning, "float32", gpu=False, lora_rank=RANK))
    assert counts.total == sum(p.numel() for p in model.parameters())
    assert counts.trainable == sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert counts.inside.weights + counts.outside.weights == 4 * counts.total


def test_a_head_of_its_own_is_counted_and_its_embedding_is_not_multiplied(tiny_qwen3: Path, tiny_llama: Path) -> None:
    tied, untied = (
        parameters_of(Trial(model_text(str(folder)), "full", "float32", gpu=False))
        for folder in (tiny_qwen3, tiny_llama)
    )
    assert tied.multiplied == tied.total
    embedding = load(tiny_llama, "frozen").core.get_input_embeddings().weight.numel()
    assert untied.multiplied == untied.total - embedding


@pytest.mark.parametrize(
    ("tuning", "precision", "checkpointing"),
    [("full", "float32", False), ("full", "bfloat16", True), ("lora", "bfloat16", False), ("lora", "float32", True)],
)
def test_what_is_counted_without_data_is_held_with_it(
    deeper: Path, tuning: str, precision: str, checkpointing: bool
) -> None:
    """The counter runs the same step on real tensors, on all layers of the deep model, without extrapolation."""
    rows = Rows(count=4, length=96, targets=64)
    student = load(deeper, tuning, precision, checkpointing)
    teacher = AdapterOff(student) if tuning == "lora" else CurrentStudent(student)
    estimator = DistillationObjective({"base": teacher}, LossConfig())
    row = Row([5] * rows.length, [False] * 32 + [True] * rows.targets, teacher="base")
    (batch,) = micro_batches([row] * rows.count, rows.tokens, 0)
    student.model.train()
    (estimator(student, batch).loss / 100).backward()  # gradients of an earlier micro-batch
    with memory_trace.Counter() as counter:
        counter.begin(student)
        (estimator(student, batch).loss / 100).backward()
    held = counter.phases[-1].total
    trial = Trial(model_text(str(deeper)), tuning, precision, False, checkpointing, RANK, own_teacher=True)
    assert training_memory(trial, rows).total == pytest.approx(held, rel=0.05)


def test_a_rollout_holds_its_keys_and_values(deeper: Path) -> None:
    loaded = load(deeper, "frozen")
    with memory_trace.Counter() as counter:
        counter.begin(loaded)
        engine = TransformersEngine(loaded, 4 * 256)
        engine.loaded.chat = dataclasses.replace(loaded.chat, end_ids=frozenset({-1}))  # no completion ends early
        engine.generate([[5] * 8] * 4, Sampling(248))
    found = rollout_memory(Trial(model_text(str(deeper)), "frozen", "float32", gpu=False), 4, 8, 248)
    config = loaded.core.config
    width = config.num_key_value_heads * config.head_dim
    assert found.cache == pytest.approx(2 * 4 * config.num_hidden_layers * 4 * width * (8 + 248), rel=0.02)
    assert found.total == pytest.approx(counter.phases[-1].total, rel=0.15)


def test_layers_and_rows_lie_on_a_line(deeper: Path) -> None:
    trial = Trial(model_text(str(deeper)), "lora", "bfloat16", True, lora_rank=RANK, own_teacher=True)
    rows = Rows(8, 96, 64)
    whole = max(taken.total for taken in memory_trace._train(trial, rows, memory_trace.Depth(6)))
    assert training_memory(trial, rows).total == pytest.approx(whole, rel=0.01)


def test_layers_of_two_kinds(tmp_path: Path) -> None:
    """Local and global layers of Gemma 3: whole periods represent the omitted ones."""
    folder = make_tiny("gemma3", tmp_path / "model", num_hidden_layers=22)
    trial = Trial(model_text(str(folder)), "full", "float32", False)
    assert memory_trace._depth(trial) == memory_trace.Depth(16, 1, 7, more=1)
    whole = max(taken.total for taken in memory_trace._train(trial, Rows(8, 128, 128), memory_trace.Depth(22)))
    assert training_memory(trial, Rows(8, 128, 128)).total == pytest.approx(whole, rel=0.02)


@pytest.mark.parametrize(("tuning", "checkpointing"), [("full", True), ("lora", False)])
def test_a_deep_model_is_counted_on_four_layers(
    tiny_qwen3: Path, monkeypatch: pytest.MonkeyPatch, tuning: str, checkpointing: bool
) -> None:
    """Weight copies cached by autocast, and tensors passed between layers: all in proportion."""
    values = json.loads(model_text(str(tiny_qwen3))) | {"num_hidden_layers": 6}
    values["layer_types"] = ["full_attention"] * 6
    trial = Trial(json.dumps(values), tuning, "bfloat16", False, checkpointing, RANK, own_teacher=tuning == "lora")
    rows = Rows(16, 64, 48)
    whole = max(taken.total for taken in memory_trace._train(trial, rows, memory_trace.Depth(6)))
    sampled = max(taken.total for taken in memory_trace._sample(trial.alone, 3, 16, 32, memory_trace.Depth(6)))
    memory_trace._deep_rollout.cache_clear()
    built: list[int] = []
    outline = memory_trace.outline

    def noting(config: Any, **settings: Any) -> Loaded:
        built.append(config.get_text_config().num_hidden_layers)
        return outline(config, **settings)

    monkeypatch.setattr(memory_trace, "outline", noting)
    assert training_memory(trial, rows).total == pytest.approx(whole, rel=0.01)
    assert rollout_memory(trial, 3, 16, 32).total == pytest.approx(sampled, rel=0.01)
    training_memory(trial, dataclasses.replace(rows, count=5))
    assert built == [4, 4], "one run of each, from which every number of rows follows"


def test_the_parts_add_up_and_the_peak_is_the_larger_phase() -> None:
    memory = Memory({"weights": 5}, {"gradients": 3, "activations": 4}, {"KV cache": 6})
    assert memory.peak == 12
    assert sum(memory.at_peak.values()) == 12
    assert Memory({"weights": 5}, {"activations": 1}, {"KV cache": 6}).at_peak == {"weights": 5, "KV cache": 6}


def test_more_tokens_take_more_and_checkpointing_takes_less(deeper: Path) -> None:
    model = model_text(str(deeper))
    plain = MidtrainConfig(row_length=128, precision="bfloat16")
    spared = dataclasses.replace(plain, gradient_checkpointing=True)

    def peak(config: MidtrainConfig, budget: int) -> int:
        config = dataclasses.replace(config, token_budget=budget)
        return memory_of(midtraining(config, model, "full", True, beside=TeacherFootprint())).peak

    peaks = [peak(plain, budget) for budget in (128, 512, 2048, 16384)]
    assert peaks == sorted(set(peaks))
    assert peak(spared, 16384) < peak(plain, 16384)


def test_what_lies_on_the_students_base_needs_no_copy_of_it(deeper: Path) -> None:
    model, config = model_text(str(deeper)), DistillConfig(precision="bfloat16", lora_rank=RANK)

    def held(tuning: str, beside: TeacherFootprint, shards: int = 1) -> dict[str, int]:
        plan = distilling(config, model, tuning, True, beside=beside)
        return memory_of(dataclasses.replace(plan, shards=shards)).held

    whole, base = held("full", TeacherFootprint(1)), held("lora", TeacherFootprint(1))
    assert whole["teachers"] == whole["weights"] / 2  # bfloat16 against float32
    assert base["teachers"] == 0
    adapter = sum(p.numel() * p.element_size() for p in load(deeper, "lora").trainable().values())
    assert held("lora", TeacherFootprint(1, adapters=2))["teachers"] == 2 * adapter
    assert held("lora", TeacherFootprint(1, others=1))["teachers"] == base["weights"]
    assert held("full", TeacherFootprint(1, 1, 1))["teachers"] == 3 * whole["teachers"]
    assert (
        held("full", TeacherFootprint(copies=1))["teachers"] == whole["weights"]
    )  # it may follow the student: in float32
    assert held("lora", TeacherFootprint(copies=1))["teachers"] == adapter
    sharded = held("lora", TeacherFootprint(1, adapters=1), shards=2)
    assert sharded["teachers"] == base["weights"] > sharded["weights"]  # no process has the whole base to share


def test_muon_keeps_one_moment_of_the_matrices(deeper: Path) -> None:
    model = model_text(str(deeper))
    adamw, muon = (
        memory_of(midtraining(MidtrainConfig(optimizer=name), model, "full", False, beside=TeacherFootprint())).held[
            "optimizer"
        ]
        for name in ("adamw", "muon")
    )
    layers = [p for name, p in load(deeper, "full").trainable().items() if p.ndim == 2 and "embed" not in name]
    assert adamw - muon == 4 * sum(p.numel() for p in layers)


def test_pieces_of_the_layers_and_wholes_of_the_rest(deeper: Path) -> None:
    plan = midtraining(MidtrainConfig(), model_text(str(deeper)), "full", True, beside=TeacherFootprint())
    whole, half = memory_of(plan), memory_of(dataclasses.replace(plan, shards=2))
    counts = parameters_of(plan.trial)
    assert half.held["weights"] == counts.outside.weights + counts.inside.weights // 2
    assert half.held["optimizer"] < whole.held["optimizer"]


def test_vllm_that_sleeps_holds_nothing_while_the_student_trains(deeper: Path) -> None:
    plan = distilling(
        DistillConfig(precision="bfloat16"), model_text(str(deeper)), "lora", True, beside=TeacherFootprint(1)
    )
    awake = Plan(plan.trial, plan.rows, rollouts=Rollouts(4096, 64, 8, vllm=True))
    asleep = Plan(plan.trial, plan.rows, rollouts=Rollouts(4096, 64, 8, vllm=True, sleeps=True))
    assert memory_of(awake).held["vLLM"] == memory_of(asleep).sampling["vLLM"]
    assert "vLLM" not in memory_of(asleep).held


def test_vllm_is_planned_with_the_cache_that_its_sampler_takes(deeper: Path) -> None:
    frozen = load(deeper, "frozen", "bfloat16")
    config = frozen.core.config
    token = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * 2  # bfloat16: two bytes
    plan = distilling(
        DistillConfig(precision="bfloat16", engine="vllm", rollout_tokens=4096),
        model_text(str(deeper)),
        "lora",
        True,
        beside=TeacherFootprint(1),
    )
    weights = sum(p.numel() * p.element_size() for p in frozen.model.parameters())

    def planned(plan: Plan) -> int:
        return memory_of(plan).held["vLLM"] - device_bytes(weights, 0)

    most = max(4096, frozen.max_length)
    assert most * token < planned(plan) <= (most + 1024) * token
    assert planned(plan) == VllmSampler(frozen, tokens=4096, free=64 << 30).memory
    assert plan.rollouts is not None
    chosen = dataclasses.replace(plan, rollouts=dataclasses.replace(plan.rollouts, cache=1 << 20))
    assert planned(chosen) == 1 << 20
    # A small device: a share of the memory that the student and its teachers leave.
    held = memory_of(plan).held
    room = most * token
    tight = dataclasses.replace(plan, free=held["weights"] + held["teachers"] + held["CUDA"] + room)
    assert planned(tight) == VllmSampler(frozen, tokens=4096, free=room).memory == int(0.4 * room)


def test_some_of_what_is_free_is_left_alone() -> None:
    memory = Memory({"weights": 80})
    assert Needs(memory, free=100, gpu=True).fits
    assert not Needs(memory, free=100, gpu=False).fits
    assert str(Needs(Memory({"weights": 30 << 20}), 3 << 30)) == "about 30 MiB at the peak, 3.0 GiB free"


def test_tracing_leaves_nothing_behind(deeper: Path) -> None:
    trial = Trial(model_text(str(deeper)), "full", "float32", gpu=True)
    memory_trace._train(trial, Rows(2, 64, 64), memory_trace.Depth(2))
    query = torch.randn(1, 2, 4, 8)
    attended = torch.nn.functional.scaled_dot_product_attention(query, query, query)
    assert attended.shape == query.shape
    assert torch.isfinite(attended).all()
