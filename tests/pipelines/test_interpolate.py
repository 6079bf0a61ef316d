"""Interpolation between two checkpoints: the ends, the choice of alpha, its prompts, an interruption."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import AdaLoraConfig, LoraConfig, get_peft_model
from safetensors.torch import load_file

from pipelines import interpolate as module
from pipelines.cycle import resume
from pipelines.data.corpus_snapshot import load_snapshot
from pipelines.interpolate import Point, choose, interpolate
from pipelines.midtraining.stage import midtrain
from pipelines.runtime.model_loading import interpolation_between
from pipelines.runtime.session import Session, StageInterrupted
from recovery.config import InterpolateConfig, MidtrainConfig
from recovery.errors import UsageError
from recovery.models import loading
from recovery.models.adapters import LoraSettings
from recovery.models.checkpoints import INFO_FILE
from recovery.models.interpolation import Interpolation
from recovery.models.loaded import Loaded
from recovery.models.loading import load_model
from recovery.workspace import Checkpoint
from tests.pipelines.conftest import Bench, OpenSession, stages_of


@pytest.fixture
def config(prompt_file: Path) -> InterpolateConfig:
    """Few prompts, short completions."""
    return InterpolateConfig(
        alphas=(0.5,), development=3, questions=3, max_new_tokens=8, question_tokens=4, prompts=prompt_file,
        precision="float32",
    )  # fmt: skip


def tensors(checkpoint: Checkpoint) -> dict[str, torch.Tensor]:
    name = "adapter_model.safetensors" if checkpoint.tuning == "lora" else "model.safetensors"
    return load_file(checkpoint.path / name)


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_the_ends_are_the_parents_bit_by_bit_and_both_are_named(
    session: Session, midtrained: Checkpoint, config: InterpolateConfig
) -> None:
    made = {
        alpha: interpolate(session, replace(config, alphas=(alpha,), student=midtrained.name))
        for alpha in (0.0, 0.5, 1.0)
    }
    assert same(tensors(made[0.0]), tensors(session.base))
    assert same(tensors(made[1.0]), tensors(midtrained))
    for name, middle in tensors(made[0.5]).items():
        torch.testing.assert_close(middle, (tensors(session.base)[name] + tensors(midtrained)[name]) / 2)
    last = made[1.0]
    assert (made[0.0].name, made[0.0].kind, last.parent) == ("cycle-1/recovered", "recovered", midtrained.name)
    assert session.resolve("latest").name == last.name
    extra = json.loads((last.path / INFO_FILE).read_text())["extra"]
    assert extra["parents"] == ["base", midtrained.name]
    assert extra["parent_hashes"] == [session.base.hash, midtrained.hash]
    stage = stages_of(session, "interpolate")[0]
    assert (stage.status, stage.details["alpha"], stage.tokens_trained) == ("finished", 1.0, 0)
    assert stage.tokens_sampled == stage.details["points"][0]["tokens"] > 0


@pytest.mark.slow
def test_a_lora_student_is_scaled(session: Session, bench: Bench, config: InterpolateConfig) -> None:
    trained = bench.midtrain(tuning="lora", lora_rank=4)
    whole, half, none = (
        interpolate(session, replace(config, alphas=(alpha,), student=trained.name, origin="start"))
        for alpha in (1.0, 0.5, 0.0)
    )
    assert whole.tuning == "lora"
    assert same(tensors(whole), tensors(trained))
    for name, b in tensors(trained).items():
        scale = 0.5 if "lora_B" in name else 1.0
        assert torch.equal(tensors(half)[name], scale * b)
        assert "lora_B" not in name or not tensors(none)[name].any()
    with pytest.raises(UsageError, match="merge adapters first"):
        interpolate(session, replace(config, student="base", origin=trained.name))


def test_the_place_that_knows_most_is_chosen_among_those_that_behave() -> None:
    points = [Point(0.2, 0.9, 0.1, 1), Point(0.4, 0.8, 0.5, 1), Point(0.6, 0.8, 0.4, 1), Point(0.8, 0.3, 0.9, 1)]
    assert choose(points, 0.8).alpha == 0.4
    assert choose(points, 0.85).alpha == 0.2
    assert choose(points, 0.0).alpha == 0.8
    assert choose(points, 0.95).alpha == 0.2, "none behaves well enough: the one that does best"
    unasked = [replace(point, knowledge=None) for point in points]
    assert choose(unasked, 0.8).alpha == 0.6


def test_only_development_prompts_and_training_questions_are_asked(
    session: Session, midtrained: Checkpoint, config: InterpolateConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    real = module._asked

    def noted(*given: Any) -> Any:
        asked.append(given[3:5])
        return real(*given)

    monkeypatch.setattr(module, "_asked", noted)
    interpolate(session, replace(config, development=100, questions=100, student=midtrained.name))
    ((development, questions),) = asked
    assert len(development) == 6
    assert all("development" in prompt.text for prompt in development)
    corpus = load_snapshot(session.workspace, 1)
    assert questions
    assert {probe.question for probe in questions} <= {question.text for question in corpus.questions}
    assert not {probe.question for probe in questions} & {probe.question for probe in corpus.probes}


def test_a_search_that_was_stopped_goes_on_where_it_was(
    open_session: OpenSession,
    midtrain_config: MidtrainConfig,
    config: InterpolateConfig,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = replace(config, alphas=(0.3, 0.6, 0.9), keep=0.0)
    ends = []
    real = module._asked
    for stopped in (False, True):
        with open_session(name=f"stopped-{stopped}") as session:
            midtrain(session, midtrain_config)
            calls: list[Any] = []

            def counted(*given: Any, calls: list[Any] = calls, stopped: bool = stopped) -> Any:
                calls.append(given)
                if stopped and len(calls) == 2:
                    raise StageInterrupted("interrupted")
                return real(*given)

            monkeypatch.setattr(module, "_asked", counted)
            if stopped:
                with pytest.raises(StageInterrupted):
                    interpolate(session, config)
                assert "made cycle-1/recovered" in resume(session)
                assert len(calls) == 4, "the first place is not asked again"
            else:
                interpolate(session, config)
            stage = stages_of(session, "interpolate")[0]
            ends.append((session.resolve("latest").hash, stage.tokens_sampled, stage.details["points"]))
    assert ends[0] == ends[1]


def test_what_cannot_be_interpolated_is_said(session: Session, config: InterpolateConfig) -> None:
    with pytest.raises(UsageError, match="nothing between them"):
        interpolate(session, replace(config, student="base"))
    with pytest.raises(UsageError, match="--alpha"):
        InterpolateConfig(alphas=())
    with pytest.raises(UsageError, match="between 0 and 1"):
        InterpolateConfig(alphas=(1.5,))


@pytest.mark.parametrize(
    ("more", "named"),
    [({"use_dora": True}, "lora_magnitude_vector"), ({"modules_to_save": ["lm_head"]}, "lm_head.modules_to_save")],
)
def test_an_adapter_of_more_than_two_matrices_is_not_scaled(
    tiny_llama: Path, tmp_path: Path, more: dict[str, Any], named: str
) -> None:
    made = load_model(tiny_llama, precision="float32")
    config = LoraConfig(r=4, target_modules=["q_proj"], **more)
    get_peft_model(made.model, config).save_pretrained(tmp_path / "adapter")
    student = load_model(tiny_llama, adapter=tmp_path / "adapter", tuning="lora", precision="float32")
    with pytest.raises(UsageError, match=f"trains more than LoRA's matrices .*{named}.*merge it first"):
        Interpolation(student, None)


def test_adapters_of_other_scales_are_not_interpolated(tiny_model: Path) -> None:
    """At alpha 0 it would be the origin's matrices at the student's scale."""
    one, two, other = (
        load_model(tiny_model, tuning="lora", lora=LoraSettings(8, alpha), precision="float32")
        for alpha in (16, 16, 32)
    )
    Interpolation(one, two).move(0.5)
    with pytest.raises(UsageError, match="are scaled differently"):
        Interpolation(one, other)


def test_adapters_of_more_than_two_matrices_are_not_interpolated(tiny_model: Path, tmp_path: Path) -> None:
    made = load_model(tiny_model)
    adapter = AdaLoraConfig(r=4, init_r=4, target_r=2, total_step=10, tfinal=1, target_modules=["q_proj"])
    get_peft_model(made.model, adapter).save_pretrained(tmp_path / "adapter")
    one, two = (load_model(tiny_model, tuning="lora", adapter=tmp_path / "adapter", precision="float32") for _ in "12")
    with pytest.raises(UsageError, match=r"is an adapter of AdaLoRA \(.*lora_E.*\): merge it"):
        Interpolation(one, two)


def _merged(loaded: Loaded) -> dict[str, torch.Tensor]:
    return loaded.merged_weights().state_dict()


@pytest.mark.parametrize("rank", [2, 64])
def test_between_two_adapters_their_changes_of_the_weights_are_interpolated(tiny_contrasting: Path, rank: int) -> None:
    """Each is of rank 2: one of 64, more than some layers have, holds what is between, one of 2 the nearest to it."""
    base = load_model(tiny_contrasting, precision="float32").model.state_dict()
    one, two = (
        load_model(tiny_contrasting, tuning="lora", lora=LoraSettings(rank, rank), precision="float32") for _ in "12"
    )
    for number, loaded in enumerate((one, two)):
        generator = torch.Generator().manual_seed(number)
        for name, parameter in loaded.trainable().items():
            experts = getattr(loaded.model.get_submodule(name.partition(".lora_")[0]), "num_experts", 1)
            parameter.data = torch.randn(parameter.shape, generator=generator) * 0.1
            if rank > 2 and "lora_B" in name:  # peft puts an expert's columns E apart
                parameter.data.view(len(parameter), -1, experts)[:, 2:] = 0
    origin, student = _merged(two), _merged(one)
    before = {name: p.detach().clone() for name, p in one.trainable().items()}
    line = Interpolation(one, two)
    line.move(0.3)
    made, changed = _merged(one), 0
    for name, weight in base.items():
        wanted = torch.lerp(origin[name], student[name], 0.3) - weight
        changed += bool(wanted.any())
        if rank == 2 and wanted.any():
            u, s, vh = torch.linalg.svd(wanted, full_matrices=False)
            s[..., 4 if "gate_up_proj" in name else 2 :] = 0  # two layers in one: peft doubles the rank
            wanted = u * s[..., None, :] @ vh
        torch.testing.assert_close(made[name] - weight, wanted, atol=1e-5, rtol=1e-4)
    assert changed
    line.move(1.0)
    assert same({name: p.detach() for name, p in one.trainable().items()}, before)
    line.move(0.0)
    assert all(torch.equal(p, two.trainable()[name]) for name, p in one.trainable().items())


def test_an_adapter_that_was_trained_from_another_keeps_what_it_shares(tiny_model: Path) -> None:
    """Layers that did not change are not touched, and of one matrix that changed the interpolation is exact."""
    one, two = (load_model(tiny_model, tuning="lora", lora=LoraSettings(4, 8), precision="float32") for _ in "12")
    for number, (name, parameter) in enumerate(one.trainable().items()):
        two.trainable()[name].data = parameter.data.clone()
        if "lora_B" in name and number % 4 == 1:
            parameter.data += 1
    ends = {name: torch.lerp(two.trainable()[name], p, 0.5) for name, p in one.trainable().items()}
    Interpolation(one, two).move(0.5)
    assert same({name: p.detach() for name, p in one.trainable().items()}, ends)


def _adapters(base: Path, folder: Path, **more: Any) -> tuple[Checkpoint, Checkpoint]:
    """Make two adapters with random weights on one base."""
    for seed, name in enumerate(("origin", "student")):
        torch.manual_seed(seed)
        settings = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM", **more)
        adapted = get_peft_model(load_model(base, precision="float32", device="cpu").model, settings)
        for parameter in adapted.parameters():
            if parameter.requires_grad:
                parameter.data = torch.randn(parameter.shape) * 0.1
        adapted.save_pretrained(folder / name)
    origin, student = (
        Checkpoint(name, "external", folder / name, "", base, tuning="lora") for name in ("origin", "student")
    )
    return origin, student


@pytest.mark.parametrize(("quantize", "more"), [("none", {}), ("none", {"use_dora": True}), ("nf4", {})])
def test_between_two_adapters_the_base_is_not_loaded_again(
    tiny_wide: Path,
    tmp_path: Path,
    config: InterpolateConfig,
    monkeypatch: pytest.MonkeyPatch,
    quantize: str,
    more: dict[str, Any],
) -> None:
    """What is between them is the same as if the origin had a base of its own, in float32."""
    origin, student = _adapters(tiny_wide, tmp_path, **more)
    options: dict[str, Any] = {"tuning": "lora", "precision": "bfloat16", "device": "cpu", "quantize": quantize}
    loaded, expected = (load_model(tiny_wide, adapter=student.path, **options) for _ in "12")
    other = load_model(tiny_wide, adapter=origin.path, precision="float32", device="cpu")
    Interpolation(expected, other).move(0.3)

    def refused(*_: Any) -> None:
        raise AssertionError("the base was loaded a second time")

    monkeypatch.setattr(loading, "_load_weights", refused)
    interpolation_between(loaded, student, origin, replace(config, device="cpu")).move(0.3)
    found = ({name: p.detach() for name, p in one.trainable().items()} for one in (loaded, expected))
    assert same(*found)


def test_a_base_that_adapters_cannot_share_is_not_loaded_again_where_the_student_trains(
    tiny_llama: Path, tmp_path: Path, config: InterpolateConfig
) -> None:
    origin, student = _adapters(tiny_llama, tmp_path, modules_to_save=["lm_head"])
    loaded = load_model(tiny_llama, adapter=student.path, tuning="lora", precision="float32", device="cpu")
    elsewhere = replace(config, device="cuda:99")  # which is not there: it would be an error
    interpolation_between(loaded, student, origin, elsewhere).move(0.0)
    stored = load_file(origin.path / "adapter_model.safetensors")
    assert torch.equal(loaded.head.weight_VD, stored["base_model.model.lm_head.weight"])
