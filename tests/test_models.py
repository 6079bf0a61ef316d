"""The tiny checkpoints have the properties of their families."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import jinja2
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

TURNS = [
    {"role": "user", "content": "Hello"},
    {"role": "assistant", "content": "Hi"},
    {"role": "user", "content": "Bye"},
]
SYSTEM = {"role": "system", "content": "Be brief."}


def rendered(folder: Path, messages: list[dict[str, str]], **arguments: object) -> str:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    return tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **arguments)


def test_every_family_loads_and_decodes_what_it_encodes(tiny_family: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_family)
    text = "Grüße, 3 boats: {\"mast\": 'white'}\n\n* done"
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert tokenizer.decode(ids) == text
    model = AutoModelForCausalLM.from_pretrained(tiny_family)
    logits = model(torch.tensor([ids])).logits
    assert logits.shape == (1, len(ids), model.config.vocab_size)
    assert model.config.vocab_size > len(tokenizer)
    assert isinstance(model.generation_config.eos_token_id, list)


def test_qwen3_opens_and_closes_the_thought_only_when_thinking_is_off(tiny_qwen3: Path) -> None:
    assert rendered(tiny_qwen3, TURNS).endswith("<|im_start|>assistant\n")
    assert rendered(tiny_qwen3, TURNS, enable_thinking=False).endswith("assistant\n<think>\n\n</think>\n\n")
    spoken = [*TURNS[:1], {"role": "assistant", "content": "<think>\nhm\n</think>\n\nHi"}, TURNS[2]]
    assert "hm" not in rendered(tiny_qwen3, spoken)


def test_llama_begins_once_with_its_bos_and_always_has_a_system_turn(tiny_llama: Path) -> None:
    text = rendered(tiny_llama, TURNS)
    assert text.startswith("<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date")
    assert text.count("<|begin_of_text|>") == 1
    assert "Be brief.<|eot_id|>" in rendered(tiny_llama, [SYSTEM, *TURNS])
    tokenizer = AutoTokenizer.from_pretrained(tiny_llama)
    assert tokenizer.pad_token is None
    assert tokenizer("Hello")["input_ids"][0] == tokenizer.bos_token_id


def test_gemma_2_refuses_a_system_turn_and_gemma_3_folds_it_in(tiny_gemma2: Path, tiny_gemma3: Path) -> None:
    with pytest.raises(jinja2.TemplateError, match="System role not supported"):
        rendered(tiny_gemma2, [SYSTEM, *TURNS])
    assert rendered(tiny_gemma3, [SYSTEM, *TURNS]).startswith(
        "<bos><start_of_turn>user\nBe brief.\n\nHello<end_of_turn>\n<start_of_turn>model\nHi<end_of_turn>\n"
    )
    assert AutoModelForCausalLM.from_pretrained(tiny_gemma2).config.final_logit_softcapping == 30.0


def test_the_same_seed_gives_the_same_weights(make_tiny: Callable[..., Path], tmp_path: Path) -> None:
    folders = [make_tiny("qwen3", tmp_path / str(n), seed=seed) for n, seed in enumerate((1, 1, 2))]
    first, again, other = ((folder / "model.safetensors").read_bytes() for folder in folders)
    assert first == again
    assert first != other
