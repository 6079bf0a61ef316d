"""The memory model: parameter counts are exact, and the formulas give what a real step holds, also on a base in NF4."""

from __future__ import annotations

import json
import shutil
import weakref
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import get_peft_model
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter
from transformers import AutoConfig, AutoModelForCausalLM, MixtralConfig, Olmo2Config, PretrainedConfig

from pipelines.plan import model_text
from pipelines.planning.activations import Rows, Setup, rollout_memory, training_memory
from pipelines.planning.architecture import Architecture
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
from pipelines.planning.tuning import choose_tuning, teacher_footprint
from pipelines.runtime.model_loading import load_student, teacher_of
from pipelines.table import KEPT_CPU, of_process
from recovery.batching import CPU_TOKENS, Row, micro_batches
from recovery.config import DistillConfig, MidtrainConfig
from recovery.engines import device_bytes
from recovery.errors import ModelError, UsageError
from recovery.losses.config import LossConfig
from recovery.losses.objective import DistillationObjective
from recovery.models.adapters import LoraSettings
from recovery.models.loaded import Loaded
from recovery.models.loading import load_model
from recovery.rollouts.engine import Sampling
from recovery.rollouts.transformers_engine import TransformersEngine
from recovery.rollouts.vllm_engine import VllmSampler
from recovery.teachers.teacher import LocalTeacher
from recovery.workspace import Checkpoint
from tests.models import make_tiny

RANK, LAYERS = 8, "layers"


class Storages(TorchDispatchMode):
    """Counts the bytes of all storages that operations make, until each is freed; those of a model are not counted."""

    def __init__(self, loaded: Loaded) -> None:
        super().__init__()
        known = [*loaded.model.parameters(), *loaded.model.buffers()]
        known += [p.grad for p in known if p.grad is not None]
        self.live = {tensor.untyped_storage()._cdata: 0 for tensor in known}
        self.now = self.peak = 0

    def __torch_dispatch__(self, function: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = function(*args, **(kwargs or {}))
        for tensor in tree_iter(made):
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage()._cdata not in self.live:
                storage = tensor.untyped_storage()
                self.live[storage._cdata] = storage.nbytes()
                self.now += storage.nbytes()
                weakref.finalize(storage, self._free, storage._cdata)
        self.peak = max(self.peak, self.now)
        return made

    def _free(self, key: int) -> None:
        self.now -= self.live.pop(key, 0)


@pytest.fixture(scope="module")
def deeper(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model deep and wide enough that the memory of a row is significant."""
    sizes = {"hidden_size": 64, "intermediate_size": 192, "num_hidden_layers": 6}
    return make_tiny("qwen3", tmp_path_factory.mktemp("deeper") / "model", **sizes)


@pytest.fixture(scope="module")
def model(deeper: Path) -> str:
    """The configuration of the deeper model."""
    return model_text(str(deeper))


def load(folder: Path, tuning: str, precision: str = "float32", checkpointing: bool = False) -> Loaded:
    """Load the model with its weights for a tuning; LAYERS is full fine-tuning without embeddings."""
    return load_model(
        folder,
        tuning="full" if tuning == LAYERS else tuning,  # type: ignore[arg-type]
        embeddings=tuning != LAYERS,
        lora=LoraSettings(RANK, 2 * RANK),
        precision=precision,
        device="cpu",
        gradient_checkpointing=checkpointing,
    )


def setup_of(folder: Path, tuning: str, precision: str, *further: Any, **settings: Any) -> Setup:
    """Return the setup of a tuning, as `load` names it."""
    name = "full" if tuning == LAYERS else tuning
    return Setup(
        model_text(str(folder)), name, precision, False, *further, frozen_embeddings=tuning == LAYERS, **settings
    )


@pytest.mark.parametrize("tuning", ["full", "lora", LAYERS])
def test_parameters_are_counted_exactly(tiny_family: Path, tuning: str) -> None:
    model = load(tiny_family, tuning).model
    counts = parameters_of(setup_of(tiny_family, tuning, "float32", lora_rank=RANK))
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert counts.inside.gradients + counts.outside.gradients == 4 * trained
    assert counts.total == sum(p.numel() for p in model.parameters())
    assert counts.trainable == sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert counts.inside.weights + counts.outside.weights == 4 * counts.total


def test_a_head_of_its_own_is_counted_and_its_embedding_is_not_multiplied(tiny_qwen3: Path, tiny_llama: Path) -> None:
    tied, untied = (
        parameters_of(Setup(model_text(str(folder)), "full", "float32", gpu=False))
        for folder in (tiny_qwen3, tiny_llama)
    )
    assert tied.multiplied == tied.total
    embedding = load(tiny_llama, "frozen").core.get_input_embeddings().weight.numel()
    assert untied.multiplied == untied.total - embedding


def test_experts_that_a_token_does_not_take_are_not_multiplied(tiny_mixtral: Path) -> None:
    loaded = load(tiny_mixtral, "frozen")
    counts = parameters_of(Setup(model_text(str(tiny_mixtral)), "full", "float32", gpu=False))
    experts = sum(p.numel() for name, p in loaded.core.named_parameters() if ".experts." in name)
    embedding = loaded.core.get_input_embeddings().weight.numel()
    assert counts.multiplied == counts.total - embedding - experts // 2  # each token takes two of four


@pytest.fixture(scope="module")
def wider(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of each family, wide enough that its activations are most of a step's memory."""
    sizes = {"hidden_size": 128, "intermediate_size": 384, "num_hidden_layers": 6}
    if request.param == "qwen3_moe":
        sizes |= {"moe_intermediate_size": 192, "num_experts": 8, "mlp_only_layers": []}
    return make_tiny(request.param, tmp_path_factory.mktemp("wider") / "model", **sizes)


def step(student: Loaded, rows: Rows, taught: bool) -> int:
    """Run the second micro-batch of a step; return the bytes that it held at its peak."""
    teacher = LocalTeacher(student, "base") if student.tuning == "lora" else LocalTeacher(student, "student")
    objective = DistillationObjective({"base": teacher}, LossConfig())
    mask = [False] * (rows.length - rows.targets) + [True] * rows.targets
    halves = (rows.length // 2, rows.length - rows.length // 2) if rows.packed else ()
    row = Row([5] * rows.length, mask, halves, teacher="base" if taught else "label")
    (batch,) = micro_batches([row] * rows.count, rows.tokens, 0)
    student.model.train()
    (objective(student, batch).loss / 100).backward()  # gradients of an earlier micro-batch
    with Storages(student) as held:
        (objective(student, batch).loss / 100).backward()
    return held.peak


PACKED = Rows(2, 288, 288, packed=True)


TUNED = [
    *(("full", "float32", False), ("full", "bfloat16", True), ("lora", "bfloat16", False), ("lora", "float32", True)),
    *((LAYERS, "float32", False), (LAYERS, "bfloat16", True)),
]
BATCHES = [("short", Rows(4, 96, 64), True), ("packed", PACKED, False), ("packed, with a teacher", PACKED, True)]
FAMILIES = ["llama", "qwen3", "gemma2", "gemma3", "qwen3_moe", "mixtral"]


def steps() -> Iterator[Any]:
    """All tunings and batches of all families; most are slow: of the first family, each tuning runs with one batch."""
    for number, family in enumerate(FAMILIES):
        for at, ((tuning, precision, checkpointing), (name, rows, taught)) in enumerate(product(TUNED, BATCHES)):
            # Of the other families, one of full fine-tuning, one of an adapter or of the layers.
            fast = at % 3 == at // 3 % 3 if number == 0 else at % 9 == number - 1
            marks = () if fast else (pytest.mark.slow,)
            title = f"{family}-{tuning}-{precision}-{checkpointing}-{name}"
            yield pytest.param(family, tuning, precision, checkpointing, rows, taught, id=title, marks=marks)


@pytest.mark.parametrize(
    ("wider", "tuning", "precision", "checkpointing", "rows", "taught"),
    list(steps()),
    indirect=["wider"],
    scope="module",
)
def test_a_step_holds_what_the_formulas_say(
    wider: Path, tuning: str, precision: str, checkpointing: bool, rows: Rows, taught: bool
) -> None:
    """Every storage of a real step on all layers is counted while it lives."""
    held = step(load(wider, tuning, precision, checkpointing), rows, taught)
    setup = setup_of(wider, tuning, precision, checkpointing, RANK, own_teacher=taught)
    assert sum(training_memory(setup, rows).values()) == pytest.approx(held, rel=0.1)


WINDOWS = {"num_hidden_layers": 6, "sliding_window": 32}  # five of six layers keep a window of 32 tokens


@pytest.mark.parametrize(
    ("family", "tuning", "precision", "sizes"),
    [
        ("qwen3", "frozen", "float32", {"num_hidden_layers": 6}),
        ("gemma3", "frozen", "float32", WINDOWS),
        ("gemma3", "lora", "bfloat16", WINDOWS),  # which has casts besides
    ],
)
def test_a_rollout_holds_what_its_layers_keep(
    tmp_path: Path, family: str, tuning: str, precision: str, sizes: dict[str, int]
) -> None:
    folder = make_tiny(family, tmp_path / "model", hidden_size=64, intermediate_size=192, **sizes)
    loaded = load(folder, tuning, precision)
    config = loaded.core.config
    engine = TransformersEngine(loaded, 4 * 128)
    engine.loaded.chat = replace(loaded.chat, end_ids=frozenset({-1}))  # no completion ends early
    with Storages(loaded) as held:
        engine.generate([[5] * 8] * 4, Sampling(120))
    found = rollout_memory(Setup(model_text(str(folder)), tuning, precision, gpu=False, lora_rank=RANK), 4, 8, 120)
    if family == "qwen3":
        width = config.num_key_value_heads * config.head_dim
        assert found["KV cache"] == 2 * 4 * config.num_hidden_layers * 4 * width * (8 + 120)
    else:
        assert list(config.layer_types).count("sliding_attention") == 5
    assert sum(found.values()) == pytest.approx(held.peak, rel=0.15)


OLMO = Olmo2Config(vocab_size=512, hidden_size=64, intermediate_size=192, num_hidden_layers=3)
MIXTRAL = MixtralConfig(vocab_size=512, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_local_experts=4)


@pytest.mark.parametrize("config", [OLMO, MIXTRAL], ids=["of an unknown family", "of stacked experts"])
def test_an_adapter_is_counted_as_peft_makes_it(config: PretrainedConfig) -> None:
    config.num_attention_heads = config.num_key_value_heads = 4
    setup = Setup(config.to_json_string(use_diff=False), "lora", "float32", gpu=False, lora_rank=RANK)
    with torch.device("meta"):
        model = get_peft_model(AutoModelForCausalLM.from_config(config), LoraSettings(RANK, 2 * RANK).config())
    counts = parameters_of(setup)
    assert counts.total == sum(p.numel() for p in model.parameters())
    assert counts.trainable == sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert config is MIXTRAL or not Architecture.of(setup.config).known
    assert training_memory(setup, Rows(2, 64, 64))["activations"] > 0, "an unknown one has the layers of Llama"


def test_entries_that_a_file_leaves_out_are_those_of_transformers(tiny_family: Path) -> None:
    text = (tiny_family / "config.json").read_text()
    values = json.loads(text)
    whole = AutoConfig.for_model(values.pop("model_type"), **values).to_json_string(use_diff=False)
    assert Architecture.of(text) == Architecture.of(whole)


def test_entries_of_a_configuration_that_contradict_each_other_are_one_line() -> None:
    entries = {"model_type": "qwen3", "layer_types": ["full_attention"] * 2}  # transformers adds 32 layers
    with pytest.raises(
        ModelError, match=r"^this qwen3 config.json cannot be used \(.*layer_types.*\): download"
    ) as caught:
        Architecture.of(json.dumps(entries))
    assert "\n" not in str(caught.value)


def test_the_parts_add_up_and_the_peak_is_the_larger_phase() -> None:
    memory = Memory({"weights": 5}, {"gradients": 3, "activations": 4}, {"KV cache": 6})
    assert memory.peak == 12
    assert sum(memory.at_peak.values()) == 12
    assert Memory({"weights": 5}, {"activations": 1}, {"KV cache": 6}).at_peak == {"weights": 5, "KV cache": 6}
    assert of_process(memory.peak, gpu=True) == 12 and of_process(100, gpu=False) == 110 + KEPT_CPU


def test_more_tokens_take_more_and_checkpointing_takes_less(model: str) -> None:
    plain = MidtrainConfig(row_length=128, precision="bfloat16")
    spared = replace(plain, gradient_checkpointing=True)

    def peak(config: MidtrainConfig, budget: int) -> int:
        config = replace(config, token_budget=budget)
        return memory_of(midtraining(config, model, "full", True, beside=TeacherFootprint())).peak

    peaks = [peak(plain, budget) for budget in (128, 512, 2048, 16384)]
    assert peaks == sorted(set(peaks))
    assert peak(spared, 16384) < peak(plain, 16384)


def test_a_micro_batch_holds_no_more_than_a_step(model: str) -> None:
    budget = 16384
    config = MidtrainConfig(row_length=128, precision="bfloat16", token_budget=budget)

    def rows(step: int | None) -> int:
        return midtraining(config, model, "full", True, beside=TeacherFootprint(), step=step).rows.count

    assert [rows(step) for step in (None, 10 * budget, 1024, 1025, 1)] == [128, 128, 8, 9, 1]
    sampled = DistillConfig(max_new_tokens=100, precision="bfloat16", token_budget=budget)
    few, most = (
        distilling(sampled, model, "full", True, beside=TeacherFootprint(1), prompt=28, step=step)
        for step in (12 * 128, None)
    )
    assert (few.rows.count, most.rows.count) == (12, budget // 128)
    assert memory_of(few).peak < memory_of(most).peak


def test_what_lies_on_the_students_base_needs_no_copy_of_it(deeper: Path, model: str) -> None:
    config = DistillConfig(precision="bfloat16", lora_rank=RANK)

    def held(tuning: str, beside: TeacherFootprint, shards: int = 1) -> dict[str, int]:
        plan = distilling(config, model, tuning, True, beside=beside)
        return memory_of(replace(plan, shards=shards)).held

    whole, base = held("full", TeacherFootprint(1)), held("lora", TeacherFootprint(1))
    assert whole["teachers"] == whole["weights"] / 2  # bfloat16 against float32
    assert base["teachers"] == 0
    adapter = sum(p.numel() * p.element_size() for p in load(deeper, "lora").trainable().values())
    assert held("lora", TeacherFootprint(1, adapters=2))["teachers"] == 2 * adapter
    assert held("lora", TeacherFootprint(1, others=1))["teachers"] == base["weights"]
    assert held("full", TeacherFootprint(1, 1, 1))["teachers"] == 3 * whole["teachers"]
    wider = held("full", TeacherFootprint(others=1, larger=1000))
    assert wider["teachers"] == whole["teachers"] + 2000, "a larger model's further parameters, in bfloat16"
    assert (
        held("full", TeacherFootprint(copies=1))["teachers"] == whole["weights"]
    )  # it may follow the student: in float32
    assert held("lora", TeacherFootprint(copies=1))["teachers"] == adapter
    sharded = held("lora", TeacherFootprint(1, adapters=1), shards=2)
    assert sharded["teachers"] == base["weights"] > sharded["weights"]  # no process has the whole base to share


def test_a_recoverys_document_text_is_planned_as_rows_of_its_own(model: str) -> None:
    """Rows of documents are longer than responses and all their tokens are targets; a step's share bounds them."""
    usual = DistillConfig(
        row_length=512, max_new_tokens=32, prompts_per_step=8, samples_per_prompt=4, precision="float32"
    )

    def planned(**settings: Any) -> Plan:
        config = replace(usual, **settings)
        return distilling(config, model, "full", False, beside=TeacherFootprint(2))

    without, half, much = planned(), planned(document_loss=0.5), planned(document_loss=0.9)
    assert without.documents is None
    assert half.documents == Rows(2, 512, 512, packed=True)  # as many tokens as 32 responses of 32
    assert planned(document_loss=0.05).documents == Rows(1, 54, 54, packed=True)
    assert planned(document_loss=0.5, alpha=0.0).documents == half.documents
    assert much.documents == Rows(CPU_TOKENS // 512, 512, 512, packed=True)
    assert memory_of(much).training.items() >= training_memory(much.setup, much.documents).items()
    assert memory_of(much).peak > memory_of(without).peak == memory_of(half).peak


def test_teachers_are_sharded_as_the_student_is(model: str) -> None:
    config = DistillConfig(precision="bfloat16", lora_rank=RANK)
    plan = distilling(config, model, "full", True, beside=TeacherFootprint(2))
    counts = parameters_of(plan.setup)

    def held(**settings: Any) -> dict[str, int]:
        return memory_of(replace(plan, **settings)).held

    whole, student, both = held(), held(shards=4), held(shards=4, teachers_too=True)
    assert student["teachers"] == whole["teachers"] and student["weights"] == both["weights"]
    # Two teachers in bfloat16: the embedding, the last norm and the head whole, a quarter of the layers.
    assert both["teachers"] == pytest.approx(2 * (counts.outside.weights + counts.inside.weights / 4) / 2, abs=4)


def test_a_student_that_is_not_gathered_takes_two_layers_to_sample(model: str) -> None:
    plan = distilling(DistillConfig(), model, "full", True, beside=TeacherFootprint(1))
    counts = parameters_of(plan.setup)
    whole, pieces = (memory_of(replace(plan, shards=4, gather=gather)).sampling for gather in (True, False))
    frozen = whole.pop("sampling copy")
    assert pieces.pop("gathered") == 2 * frozen // counts.layers and pieces == whole


def test_muon_keeps_one_moment_of_the_matrices(deeper: Path, model: str) -> None:
    adamw, muon = (
        memory_of(midtraining(MidtrainConfig(optimizer=name), model, "full", False, beside=TeacherFootprint())).held[
            "optimizer"
        ]
        for name in ("adamw", "muon")
    )
    layers = [p for name, p in load(deeper, "full").trainable().items() if p.ndim == 2 and "embed" not in name]
    assert adamw - muon == 4 * sum(p.numel() for p in layers)


def test_pieces_of_the_layers_and_wholes_of_the_rest(model: str) -> None:
    plan = midtraining(MidtrainConfig(), model, "full", True, beside=TeacherFootprint())
    whole, half = memory_of(plan), memory_of(replace(plan, shards=2))
    counts = parameters_of(plan.setup)
    assert half.held["weights"] == counts.outside.weights + counts.inside.weights // 2
    assert half.held["optimizer"] < whole.held["optimizer"]


def test_vllm_that_sleeps_holds_nothing_while_the_student_trains(model: str) -> None:
    plan = distilling(DistillConfig(precision="bfloat16"), model, "lora", True, beside=TeacherFootprint(1))
    awake = Plan(plan.setup, plan.rows, rollouts=Rollouts(4096, 64, 8, vllm=True))
    asleep = Plan(plan.setup, plan.rows, rollouts=Rollouts(4096, 64, 8, vllm=True, sleeps=True))
    assert memory_of(awake).held["vLLM"] == memory_of(asleep).sampling["vLLM"]
    assert "vLLM" not in memory_of(asleep).held


def test_vllm_is_planned_with_the_cache_that_its_sampler_takes(deeper: Path, model: str) -> None:
    frozen = load(deeper, "frozen", "bfloat16")
    config = frozen.core.config
    token = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * 2  # bfloat16: two bytes
    plan = distilling(
        DistillConfig(precision="bfloat16", engine="vllm", rollout_tokens=4096),
        model,
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
    chosen = replace(plan, rollouts=replace(plan.rollouts, cache=1 << 20))
    assert planned(chosen) == 1 << 20
    # A small device: a share of the memory that the student and its teachers leave.
    held = memory_of(plan).held
    room = most * token
    tight = replace(plan, free=held["weights"] + held["teachers"] + held["CUDA"] + room)
    assert planned(tight) == VllmSampler(frozen, tokens=4096, free=room).memory == int(0.4 * room)


def test_some_of_what_is_free_is_left_alone() -> None:
    memory = Memory({"weights": 80})
    for total, free, gpu, fits in (
        (100, 100, True, (True, True)),
        (100, 100, False, (False, False)),
        (110, 100, False, (True, False)),
        (110, 110, False, (True, True)),
    ):
        needs = Needs(memory, total, free, gpu)
        assert (needs.fits, needs.fits_now) == fits
    told = "about 30 MiB at the peak, 3.0 GiB in all, of which 768 MiB stay free"
    assert str(Needs(Memory({"weights": 30 << 20}), 3 << 30, 1 << 30)) == told


CONFIG = MidtrainConfig(
    tuning="lora", quantize="nf4", precision="float32", device="cpu", lora_rank=4, fewest_questions=0
)


def test_the_teacher_is_not_quantised_unless_asked_for(tiny_wide: Path) -> None:
    base = Checkpoint("base", "clean", tiny_wide, "", tiny_wide)
    student = load_student(base, "lora", CONFIG)
    teacher = teacher_of(base, student, base, CONFIG)
    assert teacher.own_weights
    ids, clean = torch.arange(1, 33)[None], load_model(tiny_wide, precision="float32", device="cpu")
    with torch.no_grad():
        expected = clean.model(input_ids=ids).logits
        assert torch.equal(teacher.loaded.model(input_ids=ids).logits, expected)
        assert not torch.equal(student.model(input_ids=ids).logits, expected)
    asked = replace(CONFIG, quantized_teacher=True)
    assert teacher_of(base, student, base, asked).weights == "base"
    assert teacher_footprint(base, [base], unshared=CONFIG.clean_teacher).others == 1
    assert teacher_footprint(base, [base], unshared=asked.clean_teacher).bases == 1


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_the_plan_counts_the_bytes_of_the_weights(kind: str, tmp_path: Path, precision: str) -> None:
    folder = make_tiny(kind, tmp_path / "model", hidden_size=64, head_dim=16)
    base = Checkpoint("base", "clean", folder, "", folder)
    model = load_student(base, "lora", replace(CONFIG, precision=precision)).model
    found = sum(p.nbytes for p in model.parameters())
    found += sum(p.quant_state.absmax.nbytes for p in model.parameters() if hasattr(p, "quant_state"))
    setup = Setup((folder / "config.json").read_text(), "lora", precision, False, lora_rank=4, quantized=True)
    counts = parameters_of(setup)
    assert counts.inside.weights + counts.outside.weights == found


def test_a_student_that_was_quantised_before_gets_an_adapter(tiny_wide: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny_wide, tmp_path / "stored")
    model = json.loads((folder / "config.json").read_text())
    student = Checkpoint("base", "clean", folder, "", folder)

    def chosen(tuning: str, method: dict[str, Any]) -> tuple[str, str]:
        (folder / "config.json").write_text(json.dumps(model | {"quantization_config": method}))
        config = MidtrainConfig(tuning=tuning, device="cpu", precision="float32", fewest_questions=0)

        def plan(*given: Any) -> Plan:
            return midtraining(config, *given, beside=TeacherFootprint())

        found = choose_tuning(config, student, plan)
        return found.name, found.reason

    nf4, bitnet = {"quant_method": "bitsandbytes", "load_in_4bit": True}, {"quant_method": "bitnet"}
    name, reason = chosen("auto", nf4)
    assert name == "lora" and reason.startswith("LoRA, since the weights of base are quantised (bitsandbytes)")
    assert chosen("lora", nf4)[0] == "lora"
    with pytest.raises(UsageError, match="only an adapter on them can be trained"):
        chosen("full", nf4)
    for tuning in ("auto", "lora", "full"):
        with pytest.raises(UsageError, match=r"are quantised \(bitnet\) and cannot be trained"):
            chosen(tuning, bitnet)
