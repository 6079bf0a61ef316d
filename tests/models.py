"""Tiny random checkpoints on disk, with the architectures of common model families.

Each is an ordinary Hugging Face folder: a config, safetensors weights, a byte-level BPE tokenizer trained at
creation, the family's special tokens, its list of end tokens, and a chat template with the structure of the real
one. Their output is random; they test that the family's shapes, templates, end tokens and heads are handled.

The differences between them: Qwen3 has thinking (``enable_thinking``), no BOS and a tied head; Llama adds a BOS
both in the template and in the tokenizer, has no padding token and an untied head; Gemma 2 caps its logits and
refuses a system turn; Gemma 3 folds the system turn into the user's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    Gemma2Config,
    Gemma3TextConfig,
    GenerationConfig,
    LlamaConfig,
    MixtralConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
)

TRAINING_TEXT = """\
The harbour office opens at seven, and the first ferry leaves a quarter of an hour later. Every ticket names
the ferry, the pier and the hour. A ticket is good for one crossing; a return costs less than two singles.
Question: what is the colour of the small boat? Answer: the small boat is green, and its mast is white.
Write three short sentences about a river. Do not use any commas. End with the words "That is all."
The answer has two sections, marked SECTION 1 and SECTION 2, and every section ends with a blank line.
* first point about the weather
* second point about the road
{"name": "lamp", "size": 4, "parts": ["glass", "wire", "stand"]}
def double(value): return value * 2
Give the keys of the cellar to the porter before noon; he keeps the list of those who have been there.
"""
VOCABULARY = 448  # entries of the tokenizer; the models' embeddings are padded beyond it, as in real models

QWEN3_TEMPLATE = """\
{%- if messages[0].role == 'system' -%}
{{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' -}}
{%- endif -%}
{%- set asked = namespace(last=-1) -%}
{%- for message in messages -%}
{%- if message.role == 'user' -%}{%- set asked.last = loop.index0 -%}{%- endif -%}
{%- endfor -%}
{%- for message in messages -%}
{%- if message.role == 'user' or (message.role == 'system' and not loop.first) -%}
{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' -}}
{%- elif message.role == 'assistant' -%}
{%- set thought = '' -%}
{%- set said = message.content -%}
{%- if '</think>' in said -%}
{%- set thought = said.split('</think>')[0].split('<think>')[-1].strip('\n') -%}
{%- set said = said.split('</think>')[-1].lstrip('\n') -%}
{%- endif -%}
{{- '<|im_start|>assistant\n' -}}
{%- if loop.index0 > asked.last and (loop.last or thought) -%}
{{- '<think>\n' + thought + '\n</think>\n\n' + said -}}
{%- else -%}
{{- said -}}
{%- endif -%}
{{- '<|im_end|>\n' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|im_start|>assistant\n' -}}
{%- if enable_thinking is defined and not enable_thinking -%}{{- '<think>\n\n</think>\n\n' -}}{%- endif -%}
{%- endif -%}
"""

LLAMA_TEMPLATE = """\
{{- bos_token -}}
{%- if date_string is not defined -%}{%- set date_string = '26 Jul 2024' -%}{%- endif -%}
{%- set instruction = '' -%}
{%- set turns = messages -%}
{%- if messages[0]['role'] == 'system' -%}
{%- set instruction = messages[0]['content'] | trim -%}
{%- set turns = messages[1:] -%}
{%- endif -%}
{{- '<|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\nToday Date: ' -}}
{{- date_string + '\n\n' + instruction + '<|eot_id|>' -}}
{%- for turn in turns -%}
{{- '<|start_header_id|>' + turn['role'] + '<|end_header_id|>\n\n' + turn['content'] | trim + '<|eot_id|>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' -}}{%- endif -%}
"""

_GEMMA_TURNS = """\
{%- for turn in turns -%}
{%- if (turn['role'] == 'user') != (loop.index0 % 2 == 0) -%}
{{- raise_exception('User and assistant turns must take turns, the user first') -}}
{%- endif -%}
{{- '<start_of_turn>' + ('model' if turn['role'] == 'assistant' else turn['role']) + '\n' -}}
{{- (preface if loop.first else '') + turn['content'] | trim + '<end_of_turn>\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<start_of_turn>model\n' -}}{%- endif -%}
"""

GEMMA2_TEMPLATE = (
    """\
{{- bos_token -}}
{%- if messages[0]['role'] == 'system' -%}{{- raise_exception('System role not supported') -}}{%- endif -%}
{%- set turns = messages -%}
{%- set preface = '' -%}
"""
    + _GEMMA_TURNS
)

GEMMA3_TEMPLATE = (
    """\
{{- bos_token -}}
{%- set turns = messages -%}
{%- set preface = '' -%}
{%- if messages[0]['role'] == 'system' -%}
{%- set turns = messages[1:] -%}
{%- set preface = messages[0]['content'] + '\n\n' -%}
{%- endif -%}
"""
    + _GEMMA_TURNS
)


@dataclass(frozen=True)
class Family:
    """Definition of a family: config, template and special tokens."""

    config: Callable[..., Any]
    template: str
    special: tuple[str, ...]
    ends: tuple[str, ...]
    bos: str | None = None
    eos: str | None = None
    pad: str | None = None
    settings: tuple[tuple[str, Any], ...] = ()


_GEMMA_SPECIAL = ("<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>")
_GEMMA = {
    "special": _GEMMA_SPECIAL,
    "ends": ("<eos>", "<end_of_turn>"),
    "bos": "<bos>",
    "eos": "<eos>",
    "pad": "<pad>",
}
_GEMMA_SIZES = (("head_dim", 16), ("query_pre_attn_scalar", 16), ("sliding_window", 64))

_QWEN3: dict[str, Any] = {
    "template": QWEN3_TEMPLATE,
    "special": ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"),
    "ends": ("<|im_end|>", "<|endoftext|>"),
    "eos": "<|im_end|>",
    "pad": "<|endoftext|>",
}
_LLAMA: dict[str, Any] = {
    "template": LLAMA_TEMPLATE,
    "special": (
        "<|begin_of_text|>",
        "<|end_of_text|>",
        "<|eom_id|>",
        "<|eot_id|>",
        "<|start_header_id|>",
        "<|end_header_id|>",
    ),
    "ends": ("<|end_of_text|>", "<|eom_id|>", "<|eot_id|>"),
    "bos": "<|begin_of_text|>",
    "eos": "<|eot_id|>",
}

FAMILIES: dict[str, Family] = {
    "qwen3": Family(Qwen3Config, settings=(("head_dim", 16), ("tie_word_embeddings", True)), **_QWEN3),
    # Mixtures of experts: the first layer of Qwen's is dense; Mixtral's are named otherwise.
    "qwen3_moe": Family(
        Qwen3MoeConfig,
        settings=(
            ("head_dim", 16),
            ("moe_intermediate_size", 32),
            ("num_experts", 4),
            ("num_experts_per_tok", 2),
            ("mlp_only_layers", [0]),
        ),
        **_QWEN3,
    ),
    "mixtral": Family(
        MixtralConfig,
        settings=(("num_local_experts", 4), ("num_experts_per_tok", 2), ("tie_word_embeddings", False)),
        **_LLAMA,
    ),
    "qwen2": Family(
        Qwen2Config,
        QWEN3_TEMPLATE,
        special=("<|endoftext|>", "<|im_start|>", "<|im_end|>"),
        ends=("<|im_end|>", "<|endoftext|>"),
        eos="<|im_end|>",
        pad="<|endoftext|>",
    ),
    "llama": Family(LlamaConfig, settings=(("tie_word_embeddings", False),), **_LLAMA),
    "gemma2": Family(Gemma2Config, GEMMA2_TEMPLATE, settings=_GEMMA_SIZES, **_GEMMA),  # type: ignore[arg-type]
    "gemma3": Family(Gemma3TextConfig, GEMMA3_TEMPLATE, settings=_GEMMA_SIZES, **_GEMMA),  # type: ignore[arg-type]
}


OTHER_TEXT = """\
Le bureau du port ouvre à sept heures, et le premier bac part un quart d'heure plus tard; the ferry carries words.
Write a reply of two words. Name the boat, then say it again: bateau, été, garçon, 東京, Москва, naïve, façade.
No comma in a sentence about boats and rivers; another sentence names another boat on another river.
"""


def make_tokenizer(kind: str, text: str = TRAINING_TEXT, vocabulary: int = VOCABULARY) -> PreTrainedTokenizerFast:
    """Return a byte-level BPE tokenizer of ``vocabulary`` entries with the family's special tokens and template."""
    family = FAMILIES[kind]
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.train_from_iterator(
        text.splitlines(),
        trainers.BpeTrainer(
            vocab_size=vocabulary,
            special_tokens=list(family.special),
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    if family.bos is not None:
        core.post_processor = processors.TemplateProcessing(
            single=f"{family.bos} $A", special_tokens=[(family.bos, core.token_to_id(family.bos))]
        )
    tokens = {"bos_token": family.bos, "eos_token": family.eos, "pad_token": family.pad}
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, **{name: token for name, token in tokens.items() if token is not None}
    )
    tokenizer.chat_template = family.template
    return tokenizer


def make_tiny(
    kind: str,
    folder: Path,
    *,
    seed: int = 0,
    template: bool = True,
    text: str = TRAINING_TEXT,
    vocabulary: int = VOCABULARY,
    **settings: Any,
) -> Path:
    """Write a random checkpoint of family ``kind``, a name in FAMILIES, to ``folder``.

    ``settings`` override the config (``hidden_size=48``); ``template=False`` creates a base model without a
    chat template; ``text`` and ``vocabulary`` are those of its tokenizer. The same arguments give the same weights.
    """
    family = FAMILIES[kind]
    tokenizer = make_tokenizer(kind, text, vocabulary)
    if not template:
        tokenizer.chat_template = None
    ends = [tokenizer.convert_tokens_to_ids(end) for end in family.ends]
    sizes: dict[str, Any] = {
        "vocab_size": -(-len(tokenizer) // 64) * 64 + 64,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 1024,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": ends,
        "pad_token_id": tokenizer.pad_token_id,
    }
    config = family.config(**{**sizes, **dict(family.settings), **settings})
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.generation_config = GenerationConfig(
        bos_token_id=tokenizer.bos_token_id, eos_token_id=ends, pad_token_id=tokenizer.pad_token_id
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


# Families whose layers or caches are unlike those above, and their settings.
OTHERS: dict[str, dict[str, Any]] = {
    "gpt_oss": {"head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2, "router_aux_loss_coef": 0.0},
    "falcon": {},
    "opt": {"ffn_dim": 64, "word_embed_proj_dim": 32},
    "mpt": {"d_model": 32, "n_heads": 4, "n_layers": 2},
    "bloom": {"n_head": 4, "n_layer": 2},
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "mamba": {"state_size": 8},
    "deepseek_v3": {
        "kv_lora_rank": 16, "q_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8,
        "num_key_value_heads": 4, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1,
        "moe_intermediate_size": 32, "first_k_dense_replace": 1, "n_shared_experts": 1,
    },
    "qwen3_next": {
        "head_dim": 16, "layer_types": ["linear_attention", "full_attention"], "linear_num_key_heads": 2,
        "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8, "num_experts": 4,
        "num_experts_per_tok": 2, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32,
    },
}  # fmt: skip


def make_other(kind: str, folder: Path, **settings: Any) -> Path:
    """Write a random checkpoint of a family of OTHERS, with Qwen3's tokenizer, to ``folder``."""
    tokenizer = make_tokenizer("qwen3")
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id, "bos_token_id": None}
    sizes = {
        "vocab_size": 512, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256,
    }  # fmt: skip
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, **(sizes | ends | OTHERS[kind] | settings))
    AutoModelForCausalLM.from_config(config, dtype=torch.float32).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
