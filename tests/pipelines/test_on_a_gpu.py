"""A GPU gives the CPU's results: the loss, completions, whole stages."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from pipelines.runtime.session import Session
from pipelines.runtime.versions import machine
from recovery.batching import Row
from recovery.losses.fused import fused_loss
from recovery.losses.objective import DistillationObjective
from recovery.losses.terms import Term
from recovery.models.hardware import gpu_name
from recovery.models.lm_head import Head
from recovery.models.loading import fuse_norms, load_model
from recovery.rollouts import active_rows
from recovery.rollouts.engine import Sampling
from recovery.rollouts.transformers_engine import TransformersEngine
from recovery.training.interfaces import Hooks, StepBatch, TrainSettings
from recovery.training.loop import train
from tests import kernel_checks
from tests.pipelines.conftest import Bench, curves_of, stages_of
from tests.support import plain_term

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA GPU on this machine"),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("divergence", ["reverse_kl", "forward_kl", "jsd"])
def test_the_fused_loss_equals_the_plain_one(divergence: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    student, teacher = (Head(torch.randn(4096, 64, device="cuda", dtype=dtype) / 8) for _ in range(2))
    hidden_ND = torch.randn(300, 64, device="cuda", dtype=dtype, requires_grad=True)
    seen_NE = torch.randn(300, 64, device="cuda", dtype=dtype)
    term = Term(divergence, teacher_hidden_NE=seen_NE, teacher_head=teacher)
    output = fused_loss(hidden_ND, student, [term])
    output.loss.backward()
    exact_ND = hidden_ND.detach().double().requires_grad_()
    wide = replace(
        term,
        teacher_hidden_NE=seen_NE.double(),
        teacher_head=replace(teacher, weight_VD=teacher.weight_VD.double()),
    )
    plain_N = plain_term(wide, replace(student, weight_VD=student.weight_VD.double()), exact_ND)
    plain_N.sum().backward()
    allowed = 1e-4 if dtype == torch.float32 else 3e-2
    assert output.loss.item() == pytest.approx(plain_N.sum().item(), rel=allowed)
    away = (hidden_ND.grad.double() - exact_ND.grad).norm() / exact_ND.grad.norm()
    assert float(away) < allowed


@pytest.mark.parametrize("dtype", kernel_checks.DTYPES, ids=str)
@pytest.mark.parametrize("kinds", kernel_checks.KINDS, ids=" and ".join)
def test_the_kernel_equals_the_plain_operations(
    kinds: list[str], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel_checks.check(kinds, dtype, "cuda", monkeypatch)


def test_the_kernel_of_a_mixture_keeps_its_digits() -> None:
    kernel_checks.check_mixture("cuda")


def test_greedy_answers_are_those_of_the_cpu(tiny_family: Path) -> None:
    prompts = [[5, 6, 7], [8, 9, 10, 11], [12] * 20]
    outputs = [
        TransformersEngine(load_model(tiny_family, precision="float32", device=device)).generate(
            prompts, Sampling(12, temperature=0.0)
        )
        for device in ("cpu", "cuda")
    ]
    for ours, theirs in zip(*outputs, strict=True):
        assert ours.logprobs[0] == pytest.approx(theirs.logprobs[0], abs=1e-3)
        assert ours.ids[0] == theirs.ids[0]


def test_norms_are_one_kernel(tiny_model: Path) -> None:
    loaded = load_model(tiny_model, precision="float32", device="cuda")
    assert fuse_norms(loaded.model) == 0, "they are already"
    norm = loaded.decoder.norm
    hidden_ND = torch.randn(5, loaded.core.config.hidden_size, device="cuda")
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        found_ND = norm(hidden_ND)
        torch.cuda.synchronize()
    kernels = [event for event in profile.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    assert len([event for event in kernels if "norm" in event.name.lower()]) == 1
    torch.testing.assert_close(found_ND, type(norm).forward(norm, hidden_ND))


def test_graphs_change_no_answer(tiny_family: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers of different lengths: rows end and are dropped, and the graph is captured again for those left."""
    loaded = load_model(tiny_family, precision="float32", device="cuda")
    often = frozenset(range(0, loaded.head.vocabulary, 12))
    loaded = replace(loaded, chat=replace(loaded.chat, end_ids=often))
    prompts = [[5, 6, 7 + number, *range(number)] for number in range(40)]
    monkeypatch.setattr(active_rows, "GRAPH_ROWS", 8)
    with_graphs = TransformersEngine(loaded)
    for sampling in (Sampling(60, seed=3), Sampling(60, temperature=0.0)):
        usual = TransformersEngine(loaded, graphs=False).generate(prompts, sampling)
        graphed = with_graphs.generate(prompts, sampling)
        assert [c.ids for c in usual] == [c.ids for c in graphed]
        for one, other in zip(usual, graphed, strict=True):
            assert one.logprobs == pytest.approx(other.logprobs, abs=1e-3)
    assert len({len(c.ids) for c in usual}) > 2
    if loaded.core.config.model_type in ("qwen3", "llama"):
        assert with_graphs.graphs and not with_graphs._failed


def test_graphs_follow_the_trained_weights(tiny_model: Path) -> None:
    """The captured weights are those of the copy that is sampled; a new answer comes from the new ones."""
    loaded = load_model(tiny_model, tuning="full", precision="bfloat16", device="cuda")
    engine = TransformersEngine(loaded)
    before = engine.generate([[5, 6, 7]], Sampling(40, temperature=0.0))
    with torch.no_grad():
        for parameter in loaded.model.parameters():
            parameter.mul_(-1.0)
    after = engine.generate([[5, 6, 7]], Sampling(40, temperature=0.0))
    assert engine.graphs and not engine._failed and after[0].ids != before[0].ids
    assert after == TransformersEngine(loaded).generate([[5, 6, 7]], Sampling(40, temperature=0.0))


@pytest.mark.parametrize("device", ["auto", "cuda"])
@pytest.mark.parametrize("tuning", ["full", "lora"])
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_cycle_of_stages(session: Session, bench: Bench, device: str, tuning: str, precision: str) -> None:
    here = {"device": device, "precision": precision, "tuning": tuning, "gradient_checkpointing": tuning == "lora"}
    bench.midtrain(**here)
    made = bench.distill(**here)
    assert made.path.is_dir() and made.tuning == tuning
    stage = stages_of(session)[0]
    curve = curves_of(session)["reverse_kl"]
    assert len(curve) == 4 and None not in curve
    assert stage.peak_memory_bytes == torch.cuda.max_memory_allocated()


def test_training_that_stops_and_goes_on_ends_as_one_that_did_not(tiny_model: Path, tmp_path: Path) -> None:
    def trained(folder: Path, *stops: int) -> dict[str, torch.Tensor]:
        for stop in (*stops, 6):
            loaded = load_model(tiny_model, tuning="full", precision="float32", device="cuda")
            settings = TrainSettings(steps=6, lr=1e-3, checkpoint_every=2)
            rows = [Row([5, 6, 7, 8], [False, True, True, True], teacher="label")]
            done: list[int] = []
            train(
                loaded,
                lambda _: StepBatch(rows),  # noqa: B023
                DistillationObjective(),
                settings,
                state_dir=folder,
                hooks=Hooks(log=lambda step, _: done.append(step)),  # noqa: B023
                should_stop=lambda: bool(done) and done[-1] >= stop,  # noqa: B023
            )
        return {name: p.detach() for name, p in loaded.trainable().items()}

    whole, stopped = trained(tmp_path / "whole"), trained(tmp_path / "stopped", 3)
    for name, value in whole.items():
        torch.testing.assert_close(value, stopped[name])


def test_a_record_names_the_gpu_where_it_was_made() -> None:
    assert torch.cuda.get_device_name() in machine(gpu_name("auto")) and gpu_name("cpu") == ""
