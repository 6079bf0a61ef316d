"""Weight deltas against the difference of the full weights."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model

from recovery.models.adapters import LoraSettings
from recovery.models.checkpoints import save_checkpoint
from recovery.models.interpolation import weight_delta
from recovery.models.loaded import Loaded
from recovery.models.loading import load_model


def flat(loaded: Loaded) -> torch.Tensor:
    return torch.cat([p.detach().float().flatten() for p in loaded.model.parameters()]).double()


def merged(loaded: Loaded) -> torch.Tensor:
    """All weights with the adapter merged; the model keeps its adapter."""
    model = loaded.model
    model.merge_adapter()
    found = [p.detach().double().flatten() for n, p in model.named_parameters() if "lora_" not in n]
    model.unmerge_adapter()
    return torch.cat(found)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_all_weights(tiny_contrasting: Path, precision: str) -> None:
    loaded = load_model(tiny_contrasting, tuning="full", precision=precision, device="cpu")
    begun = flat(loaded)
    still = weight_delta(loaded, tiny_contrasting)
    if loaded.router is not None:  # stacked experts are apart in the files, under other names
        assert still is None
        return
    assert still is not None and (still.length, still.relative, still.share) == (0.0, 0.0, 0.0)
    torch.manual_seed(0)
    with torch.no_grad():
        next(iter(loaded.model.parameters())).add_(0.05)
        for p in list(loaded.model.parameters())[1:]:
            p.mul_(1 + 1e-5)
    moved = weight_delta(loaded, tiny_contrasting)
    assert moved is not None and moved.share is not None
    assert moved.length == pytest.approx(float((flat(loaded) - begun).norm()), rel=1e-5)
    assert moved.relative == pytest.approx(moved.length / float(begun.norm()), rel=1e-5)
    first = next(iter(loaded.model.parameters())).numel() / begun.numel()
    assert moved.share == pytest.approx(first, rel=0.02)


@pytest.mark.parametrize("kind", ["qwen3", "qwen3_moe"])
def test_a_new_adapter_and_one_that_is_resumed(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    tiny_model: Path = request.getfixturevalue(f"tiny_{kind}")
    loaded = load_model(tiny_model, tuning="lora", lora=LoraSettings(rank=4), precision="float32", device="cpu")
    still = weight_delta(loaded, tiny_model)
    assert still is not None and still.length == 0.0
    base = merged(loaded)
    stir(loaded, 1)
    first = merged(loaded)
    moved = weight_delta(loaded, tiny_model)
    assert moved is not None and moved.length == pytest.approx(float((first - base).norm()), rel=1e-4)
    assert moved.relative == pytest.approx(moved.length / float(base.norm()), rel=1e-3)
    folder = tmp_path / "adapter"
    save_checkpoint(loaded, folder, name="a", kind="midtrained", parent="p", stage="midtrain 1", base="b", extra={})
    again = load_model(folder, tuning="lora", precision="float32", device="cpu")
    stir(again, 2)
    onward = weight_delta(again, tiny_model, folder)
    assert onward is not None and onward.length == pytest.approx(float((merged(again) - first).norm()), rel=1e-4)


def test_an_adapter_whose_layers_have_scales_of_their_own(tiny_llama: Path, tmp_path: Path) -> None:
    config = LoraConfig(
        r=4, target_modules=["q_proj", "v_proj"], rank_pattern={"q_proj": 2}, alpha_pattern={"v_proj": 64}
    )
    made = load_model(tiny_llama, precision="float32", device="cpu")
    made.model = get_peft_model(made.model, config)
    stir(made, 1)
    made.save(tmp_path / "adapter")
    loaded = load_model(tmp_path / "adapter", tuning="lora", precision="float32", device="cpu")
    still = weight_delta(loaded, tiny_llama, tmp_path / "adapter")
    assert still is not None and still.length < 1e-6
    stir(loaded, 2)
    moved = weight_delta(loaded, tiny_llama, tmp_path / "adapter")
    assert moved is not None
    assert moved.length == pytest.approx(float((merged(loaded) - merged(made)).norm()), rel=1e-4)


def stir(loaded: Loaded, seed: int) -> None:
    torch.manual_seed(seed)
    with torch.no_grad():
        for p in loaded.trainable().values():
            p.add_(0.02 * torch.randn_like(p))


def test_files_with_other_tensor_names_give_none(tiny_qwen3: Path, tiny_llama: Path, tmp_path: Path) -> None:
    loaded = load_model(tiny_qwen3, tuning="full", precision="float32", device="cpu")
    assert weight_delta(loaded, tmp_path) is None
    assert weight_delta(loaded, tiny_llama) is None
