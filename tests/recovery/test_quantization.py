"""A LoRA student on a base in NF4, with bitsandbytes itself: loading, training, saving, refusals."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from recovery.config import MidtrainConfig
from recovery.errors import ModelError, UsageError
from recovery.lazy_import import lazily
from recovery.models.interpolation import weight_delta
from recovery.models.loaded import Loaded
from recovery.models.loading import load_model, not_finite
from recovery.models.quantization import check_tuning, stored
from tests.models import make_tiny

bitsandbytes = lazily("bitsandbytes")
IDS = torch.arange(1, 33)[None]


def load(folder: Path, **options: object) -> Loaded:
    """Load a LoRA student in NF4 on the CPU."""
    torch.manual_seed(0)
    return load_model(
        folder, **{"tuning": "lora", "quantize": "nf4", "device": "cpu", "precision": "float32"} | options
    )  # type: ignore[arg-type]


def losses(loaded: Loaded, steps: int) -> list[float]:
    """Train on one row and return the loss of each step."""
    optimizer = torch.optim.AdamW(loaded.trainable().values(), lr=1e-2)
    found = []
    for _ in range(steps):
        loss = loaded.model(input_ids=IDS, labels=IDS).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(float(loss.detach()))
    return found


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_layers_are_quantised_but_not_the_head(kind: str, precision: str, tmp_path: Path) -> None:
    loaded = load(make_tiny(kind, tmp_path / "m", hidden_size=64, head_dim=16), precision=precision)
    quantised = [m for m in loaded.core.modules() if isinstance(m, bitsandbytes.nn.Linear4bit)]
    assert len(quantised) == 7 * loaded.core.config.num_hidden_layers
    assert loaded.head.weight_VD.dtype == getattr(torch, precision)  # read, and compared with the model's own logits
    assert all(p.dtype == torch.float32 for p in loaded.trainable().values())
    found = losses(loaded, 8)
    assert found[-1] < found[0] - 0.1


def test_the_relative_update_is_that_of_the_values(tiny_wide: Path) -> None:
    found = []
    for quantize in ("none", "nf4"):
        student = load(tiny_wide, quantize=quantize)
        with torch.no_grad():
            for p in student.trainable().values():
                p.fill_(0.01)
        moved = weight_delta(student, tiny_wide)
        assert moved is not None
        found.append(moved.relative)
    assert found[1] == pytest.approx(found[0], rel=0.02)


def test_the_base_stays_and_differs_from_the_clean_one(tiny_wide: Path) -> None:
    clean, student = load_model(tiny_wide, precision="float32", device="cpu"), load(tiny_wide)
    with torch.no_grad():
        before = student.model(input_ids=IDS).logits
        expected = clean.model(input_ids=IDS).logits
    losses(student, 3)
    with torch.no_grad(), student.adapter_off():
        assert torch.equal(student.model(input_ids=IDS).logits, before)  # a new adapter changes nothing
    assert not torch.equal(before, expected) and torch.allclose(before, expected, atol=1.0)


def test_training_is_the_same_after_a_forward_pass_without_gradient(tiny_wide: Path) -> None:
    first, second = load(tiny_wide), load(tiny_wide)
    with second.inference():
        second.model(input_ids=IDS)
    assert losses(first, 4) == losses(second, 4)


def test_a_saved_adapter_continues_and_is_read_on_the_unquantised_base(tiny_wide: Path, tmp_path: Path) -> None:
    student = load(tiny_wide)
    losses(student, 3)
    student.save(tmp_path / "c")
    again, plain = load(tmp_path / "c"), load_model(tmp_path / "c", precision="float32", device="cpu")
    with torch.no_grad():
        assert torch.equal(again.model(input_ids=IDS).logits, student.model(input_ids=IDS).logits)
        with plain.adapter_off():
            clean = load_model(tiny_wide, precision="float32", device="cpu").model(input_ids=IDS).logits
            assert torch.equal(plain.model(input_ids=IDS).logits, clean)


def test_what_cannot_be_quantised_is_refused(tiny_llama: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="fully fine-tuned"):
        load(tiny_llama, tuning="full")
    with pytest.raises(ModelError, match="not all linear"):
        load(make_tiny("qwen3_moe", tmp_path / "moe"))
    with pytest.raises(ModelError, match="rows of 32.*multiple of 64: omit --quantize"):
        load(tiny_llama)
    for options, message in (
        ({"tuning": "full"}, "--tuning lora"),
        ({"shard": "full"}, "--shard none"),
        ({"compile": True}, "omit --compile"),
        ({"engine": "vllm"}, "--engine transformers"),
    ):
        with pytest.raises(UsageError, match=message):
            MidtrainConfig(quantize="nf4", **options)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="add --quantize nf4"):
        MidtrainConfig(quantized_teacher=True)


@pytest.mark.slow
def test_no_native_code_is_fetched_from_the_hub(tmp_path: Path) -> None:
    """On some processors bitsandbytes would, by a package that anything else may have installed."""
    (tmp_path / "kernels.py").write_text("raise SystemExit('imported')")
    code = "import recovery.models.loading, bitsandbytes, sys; print(sys.modules['kernels'])"
    command = [sys.executable, "-c", code]
    run = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=_beside(tmp_path))
    assert (run.returncode, run.stdout.strip()) == (0, "None"), run.stderr
    assert "gemm" not in run.stderr


def _beside(folder: Path) -> dict[str, str]:
    """Return an environment in which modules of a folder, and of this project, are found."""
    root = Path(__file__).resolve().parents[2]
    return {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{root}"}


def test_bitsandbytes_missing_is_told_in_one_line(tiny_llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match="pip install 'recovery"):
        load(tiny_llama)


def test_weights_that_were_quantised_before_are_trained_by_an_adapter_alone(tiny_wide: Path, tmp_path: Path) -> None:
    """Full fine-tuning trained the embeddings, the norms and the head, and said nothing."""
    load(tiny_wide, tuning="frozen").save(tmp_path / "stored")
    with pytest.raises(UsageError, match=r"stored are quantised \(bitsandbytes\), and only an adapter.*--tuning lora"):
        load_model(tmp_path / "stored", tuning="full", precision="float32", device="cpu")
    student = load(tmp_path / "stored", quantize="none")
    found = losses(student, 8)
    assert found[-1] < found[0] - 0.1


@pytest.mark.parametrize(
    ("given", "adaptable"),
    [
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, True),
        ({"quant_method": "bitnet"}, False),
        ({"quant_method": "of tomorrow"}, None),  # transformers loads it as if nothing were said
        pytest.param(
            {"quant_method": "fp8"},
            None,
            marks=pytest.mark.skipif(torch.cuda.is_available(), reason="only a CPU has no such products"),
        ),
        (None, None),
    ],
)
def test_what_cannot_be_trained_is_refused_before_weights_are_read(
    given: dict[str, object] | None, adaptable: bool | None, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "quantization_config": given}))
    found = stored(tmp_path)
    assert (None if found is None else found.adaptable) is adaptable
    check_tuning(tmp_path, "frozen")
    for tuning, refused in (("full", found is not None), ("lora", adaptable is False)):
        if not refused:
            check_tuning(tmp_path, tuning)
            continue
        with pytest.raises(UsageError, match="are quantised.*the model before it was quantised") as caught:
            check_tuning(tmp_path, tuning)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("given", [7, ["nf4"], {"quant_method": None}, {"quant_method": []}])
def test_a_quantisation_that_makes_no_sense_is_one_line(given: object, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", "quantization_config": given}))
    with pytest.raises(ModelError, match="cannot load the model in") as caught:
        check_tuning(tmp_path, "lora")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_weights_in_8_bit_floats_are_checked_as_others(dtype: torch.dtype) -> None:
    model = torch.nn.Module()
    model.weight = torch.nn.Parameter(torch.ones(4, 4).to(dtype), requires_grad=False)
    assert not_finite(model) is None
    model.weight = torch.nn.Parameter(torch.full((4, 4), float("nan")).to(dtype), requires_grad=False)
    assert not_finite(model) == "weight"
