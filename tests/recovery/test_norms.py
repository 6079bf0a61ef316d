"""RMS norms as one operation: the same model, recognised by its results."""

from __future__ import annotations

import copy

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, Mamba2Config, Mamba2ForCausalLM, PreTrainedModel

from recovery.models.loading import fuse_norms

SHAPE = {
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
}
# Norms in two layers: before attention and MLP, one at the end; Qwen3 also has norms of queries and keys.
NORMS = {"llama": 5, "qwen3": 9}


def built(kind: str, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    """A small model whose norms scale every entry differently."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **SHAPE)).to(dtype)
    for parameter in model.parameters():
        if parameter.ndim == 1:
            torch.nn.init.normal_(parameter)
    return model


@pytest.mark.parametrize(("dtype", "close"), [(torch.float32, 1e-5), (torch.bfloat16, 3e-2)], ids=["wide", "narrow"])
@pytest.mark.parametrize("kind", NORMS)
def test_values_and_gradients_stay(kind: str, dtype: torch.dtype, close: float) -> None:
    plain, fused = (built(kind, dtype) for _ in range(2))
    assert fuse_norms(fused) == NORMS[kind]
    assert fuse_norms(fused) == 0, "once"
    ids_BT = torch.arange(18).view(2, 9)
    for model in (plain, fused):
        model(ids_BT).logits.float().square().mean().backward()
    found, wanted = (model(ids_BT).logits.float() for model in (fused, plain))
    assert (found - wanted).norm() <= close * wanted.norm()
    for (where, p), q in zip(fused.named_parameters(), plain.parameters(), strict=True):
        assert p.grad is not None and q.grad is not None, where
        assert (p.grad - q.grad).float().norm() <= 3 * close * q.grad.float().norm(), where


def test_a_norm_that_scales_otherwise_is_left_alone() -> None:
    """Gemma multiplies by 1 + weight."""
    assert fuse_norms(built("gemma3_text")) == 0


def test_a_norm_with_a_gate_is_left_alone() -> None:
    """Without its gate it computes what others do, but its layer calls it with one."""
    config = Mamba2Config(
        vocab_size=50, hidden_size=32, num_hidden_layers=2, num_heads=8, head_dim=8, state_size=8, n_groups=2
    )
    model = Mamba2ForCausalLM(config)
    ids_BT = torch.arange(9).view(1, 9)
    before = model(ids_BT).logits
    assert fuse_norms(model) == 3, "those before the layers and at the end"
    torch.testing.assert_close(model(ids_BT).logits, before)


class ShiftedRMSNorm(torch.nn.Module):
    """Adds epsilon after the root: of large numbers the same."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.eps = torch.nn.Parameter(torch.ones(32)), 1e-6

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return self.weight * hidden_states / (hidden_states.pow(2).mean(-1, keepdim=True).sqrt() + self.eps)


def test_a_norm_whose_epsilon_counts_otherwise_is_left_alone() -> None:
    assert fuse_norms(torch.nn.Sequential(ShiftedRMSNorm())) == 0


def test_a_copy_uses_its_own_weights() -> None:
    fused = built("llama")
    fuse_norms(fused)
    other = copy.deepcopy(fused)
    ids_BT = torch.arange(9).view(1, 9)
    before = fused(ids_BT).logits
    with torch.no_grad():
        for parameter in other.parameters():
            if parameter.ndim == 1:
                parameter.mul_(3)
    assert torch.equal(fused(ids_BT).logits, before)
    assert not torch.allclose(other(ids_BT).logits, before)


def test_hidden_states_in_another_precision_than_the_weight_take_the_models_own_way() -> None:
    model = built("llama", torch.bfloat16)
    norm, wide_ND = model.model.norm, torch.randn(3, SHAPE["hidden_size"])
    wanted = norm(wide_ND)
    fuse_norms(model)
    assert torch.equal(norm(wide_ND), wanted)
