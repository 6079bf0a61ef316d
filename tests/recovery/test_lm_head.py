"""Heads of real model families: reproduced exactly, or refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, Qwen3Config, Qwen3ForCausalLM

from recovery.errors import ModelError
from recovery.models.lm_head import Head, decoder
from recovery.models.loading import load_model

SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def build(kind: str, **settings: Any) -> Any:
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **(SIZES | settings))).eval()


def qwen3(**settings: Any) -> Any:
    return build("qwen3", head_dim=16, **settings)


MODELS: dict[str, Callable[[], Any]] = {
    "qwen3": qwen3,
    "qwen3 tied": lambda: qwen3(tie_word_embeddings=True),
    "llama": lambda: build("llama"),
    "gemma2": lambda: build("gemma2", head_dim=16),
    "gemma3": lambda: build("gemma3_text", head_dim=16),
    "cohere": lambda: build("cohere"),
    "granite": lambda: build("granite", logits_scaling=8.0),
    "phi": lambda: build("phi"),
    "nanochat": lambda: build("nanochat", final_logit_softcapping=15.0),
    "gpt2": lambda: build("gpt2", n_embd=32, n_layer=1, n_head=2, n_positions=64),
}


@pytest.mark.parametrize("name", MODELS)
def test_logits_are_the_models_own(name: str) -> None:
    model = MODELS[name]()
    if name == "phi":
        nn.init.normal_(model.lm_head.bias)
    ids = torch.arange(20).reshape(2, 10)
    with torch.no_grad():
        hidden = decoder(model)(input_ids=ids).last_hidden_state
        torch.testing.assert_close(Head.of(model).logits(hidden), model(input_ids=ids).logits)


def test_what_is_special_about_a_family_is_read_from_its_config() -> None:
    assert Head.of(MODELS["gemma2"]()).softcap == 30.0
    assert Head.of(MODELS["cohere"]()).scale == 0.0625
    assert Head.of(MODELS["granite"]()).scale == 0.125
    assert Head.of(MODELS["phi"]()).bias_V is not None
    plain = Head.of(MODELS["qwen3"]())
    assert (plain.scale, plain.softcap, plain.bias_V) == (1.0, None, None)
    assert (plain.vocabulary, plain.width) == (64, 32)


def test_bfloat16_models_pass_the_comparison() -> None:
    head = Head.of(MODELS["gemma2"]().to(torch.bfloat16))
    assert head.weight_VD.dtype == torch.bfloat16


@pytest.mark.parametrize("wrong", [{"softcap": 30.0}, {"scale": 1.1}])
def test_a_head_that_is_not_the_models_is_refused_by_name(wrong: dict[str, float]) -> None:
    """Even for an untrained model, whose logits are so small that a soft cap has little effect."""
    model = qwen3()
    with pytest.raises(ModelError, match=r"Qwen3ForCausalLM changes its logits"):
        Head(model.lm_head.weight, **wrong).check(model)


def test_a_model_with_an_unknown_last_step_is_refused_by_name() -> None:
    class Odd(Qwen3ForCausalLM):
        def forward(self, *args: Any, **kwargs: Any) -> Any:
            output = super().forward(*args, **kwargs)
            output.logits = output.logits.clamp(max=5.0)
            return output

    with pytest.raises(ModelError, match="Odd changes its logits"):
        Head.of(Odd(Qwen3Config(**SIZES, head_dim=16)).eval())


def test_weights_that_are_not_finite_are_named_with_the_model(tiny_model: Path) -> None:
    loaded = load_model(tiny_model, precision="float32")
    with torch.no_grad():
        loaded.model.model.layers[0].mlp.down_proj.weight.fill_(float("inf"))
    with pytest.raises(
        ModelError, match=rf"^{re.escape(str(tiny_model))}: Qwen3ForCausalLM returns logits that are not finite"
    ):
        _ = loaded.head


def test_lora_without_the_head_uses_the_base_head() -> None:
    model = qwen3()
    weight = model.lm_head.weight
    adapted = get_peft_model(model, LoraConfig(target_modules="all-linear", task_type="CAUSAL_LM"))
    assert Head.of(adapted).weight_VD is weight
    assert not Head.of(adapted).weight_VD.requires_grad


@pytest.mark.parametrize(
    ("settings", "kind"),
    [
        ({"target_modules": ["lm_head"]}, "Linear"),
        ({"target_modules": ["q_proj"], "trainable_token_indices": [1, 2]}, "TrainableTokensWrapper"),
    ],
)
def test_an_adapter_on_the_head_is_refused_by_name(settings: dict[str, Any], kind: str) -> None:
    model = qwen3(tie_word_embeddings="trainable_token_indices" in settings)
    adapted = get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", **settings))
    with pytest.raises(ModelError, match=rf"Qwen3ForCausalLM carries an adapter \({kind}\)"):
        Head.of(adapted)


def test_a_fully_trained_head_is_the_active_copy() -> None:
    model = qwen3()
    original = model.lm_head.weight
    settings = LoraConfig(target_modules=["q_proj"], modules_to_save=["lm_head"], task_type="CAUSAL_LM")
    adapted = get_peft_model(model, settings)
    head = Head.of(adapted)
    assert head.weight_VD.requires_grad
    assert head.weight_VD is not original
    with adapted.disable_adapter():
        assert Head.of(adapted).weight_VD is original


def test_a_head_that_is_no_linear_layer_is_refused_by_name() -> None:
    model = qwen3()
    model.set_output_embeddings(nn.Sequential(model.lm_head))
    with pytest.raises(ModelError, match="Qwen3ForCausalLM is Sequential"):
        Head.of(model)


def test_a_padded_vocabulary_is_cut() -> None:
    head = Head(torch.randn(10, 4), torch.randn(10))
    hidden = torch.randn(3, 4)
    torch.testing.assert_close(head.first(7).logits(hidden), head.logits(hidden)[:, :7])
    with pytest.raises(ModelError, match="cannot cut a head of 10"):
        head.first(11)
