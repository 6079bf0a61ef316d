"""Loading of adapters that train more than LoRA's matrices."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from recovery.batching import Row, collate
from recovery.models.loading import load_model
from recovery.rollouts.engine import Sampling
from recovery.rollouts.transformers_engine import TransformersEngine


@pytest.mark.parametrize("more", [{"modules_to_save": ["lm_head", "embed_tokens"]}, {"bias": "all"}])
def test_all_that_an_adapter_trains_is_in_float32_as_it_was_stored(
    make_tiny: Callable[..., Path], tmp_path: Path, more: dict[str, Any]
) -> None:
    """In bfloat16 most updates of whole modules and biases would be rounded away."""
    base = make_tiny("llama", tmp_path / "base", attention_bias=True)
    settings = LoraConfig(r=4, target_modules=["q_proj"], task_type="CAUSAL_LM", **more)
    adapted = get_peft_model(AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32), settings)
    stored = {name: p for name, p in adapted.named_parameters() if p.requires_grad}
    with torch.no_grad():
        for parameter in stored.values():
            parameter.add_(torch.randn(parameter.shape) * 0.05)
    adapted.save_pretrained(tmp_path / "adapter")
    loaded = load_model(base, adapter=tmp_path / "adapter", tuning="lora", precision="bfloat16", device="cpu")
    trained = loaded.trainable()
    assert trained.keys() == stored.keys()
    for name, parameter in trained.items():
        assert parameter.dtype == torch.float32, name
        assert torch.equal(parameter, stored[name]), name
    assert loaded.core.model.layers[0].mlp.down_proj.weight.dtype == torch.bfloat16
    logits = loaded.head.logits(loaded.hidden(collate([Row([5, 6, 7, 8], [True] * 4)], 0)))
    assert logits.dtype == torch.bfloat16
    logits.float().logsumexp(-1).sum().backward()
    assert all(parameter.grad is not None for parameter in trained.values())
    assert TransformersEngine(loaded).generate([[5, 6, 7]], Sampling(4))[0].ids
