"""A model's sizes and the shapes of its parameters, from its configuration alone."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from recovery.errors import ModelError
from recovery.lazy_import import lazily

# A configuration of transformers and a model without weights: importing them takes most of the time of a plan.
transformers, loading = lazily("transformers"), lazily("recovery.models.loading")
adapters = lazily("recovery.models.adapters")

Shape = tuple[int, ...]

# The families whose layers are known: Llama's gated MLP and attention with grouped heads, with a few differences.
_NORMED_HEADS = ("qwen3", "gemma3_text")  # queries and keys are normalised per head
_SANDWICHED = ("gemma2", "gemma3_text")  # outputs of attention and MLP are normalised too; norms multiply in float32
# The entries that a formula reads. Where one is missing its default is transformers' own.
_ENTRIES = {
    "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "intermediate_size", "vocab_size",
    "max_position_embeddings", "tie_word_embeddings",
}  # fmt: skip
_FLAGS = {"tie_word_embeddings", "use_sliding_window", "attention_bias"}
_OPTIONAL = {"num_key_value_heads", "head_dim", "sliding_window", "attn_logit_softcapping"}
LINEAR = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")  # their linear layers
_MORE = {
    "llama": set[str](),
    "mistral": {"sliding_window"},
    "qwen2": {"use_sliding_window"},
    "qwen3": {"use_sliding_window", "head_dim", "attention_bias"},
    "gemma2": {"head_dim", "layer_types", "sliding_window", "attention_bias", "attn_logit_softcapping"},
    "gemma3_text": {"head_dim", "layer_types", "sliding_window", "attention_bias"},
}
_ENTRIES_READ = _ENTRIES.union(*_MORE.values())


@dataclass(frozen=True)
class Architecture:
    """The sizes of a model.

    ``windows`` is the attention window of each layer, None for all tokens. ``inside`` are the shapes of the parameters
    of all layers, ``outside`` those of the others; a tied head is counted once. ``known`` is False for a family that
    has no formula: its parameters are exact, its activations are taken to be Llama's. In a mixture of experts each
    token takes ``routed`` of ``experts`` (0 in any other model); ``inner`` counts those it takes and the shared ones.
    """

    known: bool
    width: int
    depth: int
    heads: int
    groups: int
    head_width: int
    inner: int
    vocabulary: int
    context: int
    tied: bool
    windows: tuple[int | None, ...]
    capped: bool
    normed_heads: bool
    sandwiched: bool
    experts: int
    routed: int
    inside: tuple[Shape, ...]
    outside: tuple[Shape, ...]

    @property
    def matrices(self) -> list[Shape]:
        """The matrices inside the layers: those that LoRA adapts and Muon orthogonalises."""
        return [shape for shape in self.inside if len(shape) == 2]

    @property
    def stacked(self) -> list[Shape]:
        """The weights of the experts, stacked by layer: [experts, ...]."""
        return [shape for shape in self.inside if len(shape) == 3 and shape[0] == self.experts]

    @property
    def unused(self) -> int:
        """Parameters of the experts that a token does not take."""
        return count(self.stacked) // self.experts * (self.experts - self.routed) if self.experts else 0

    @property
    def cached(self) -> int:
        """Numbers that a layer caches per token: keys and values."""
        return 2 * self.groups * self.head_width

    @classmethod
    def of(cls, text: str) -> Architecture:
        """Read a config.json's text. Raise ModelError if the configuration has no such sizes."""
        return _read(text)


@functools.lru_cache(maxsize=16)
def _read(text: str) -> Architecture:
    full = _configuration(json.loads(text))
    config = full.get_text_config() if hasattr(full, "get_text_config") else full
    family, width = config.model_type, config.hidden_size
    if type(width) is not int:
        raise ModelError(f"hidden_size in this {family} config.json is {width!r}, not a whole number: check it")
    heads = getattr(config, "num_attention_heads", None) or 1
    groups = getattr(config, "num_key_value_heads", None) or heads
    head_width = getattr(config, "head_dim", None) or width // heads
    experts, routed, inner = _experts(config, getattr(config, "intermediate_size", None) or 4 * width)
    depth, vocabulary = config.num_hidden_layers, config.vocab_size
    positions = getattr(config, "max_position_embeddings", 0) or getattr(config, "n_positions", 2048)
    sizes = (width, depth, inner, vocabulary, head_width, positions)
    if not all(isinstance(size, int) for size in (*sizes, heads, groups)) or min(sizes) < 1 or heads % groups:
        raise ModelError(f"the sizes in this {family} config.json do not fit together: check its layers and heads")
    known = family in _MORE and full is config
    if known:
        inside = _layer(config, width, heads * head_width, groups * head_width, inner, head_width) * depth
        head = () if config.tie_word_embeddings else ((vocabulary, width),)
        outside: tuple[Shape, ...] = ((vocabulary, width), (width,), *head)
        tied = bool(config.tie_word_embeddings)
    else:
        inside, outside, tied = _built(full)
    return Architecture(
        known, width, depth, heads, groups, head_width, inner, vocabulary,
        positions, tied,
        _windows(config), bool(getattr(config, "attn_logit_softcapping", None)),
        family in _NORMED_HEADS, family in _SANDWICHED, experts, routed, inside, outside,
    )  # fmt: skip


def _experts(config: Any, inner: int) -> tuple[int, int, int]:
    """Return the number of experts, of those that a token takes, and the inner width of the MLPs that a token takes."""
    names = ("num_experts", "num_local_experts", "n_routed_experts")
    experts = next((number for name in names if (number := getattr(config, name, None))), 0)
    routed = min(experts, getattr(config, "num_experts_per_tok", None) or 0)
    if not routed:
        return 0, 0, inner
    each = getattr(config, "moe_intermediate_size", None) or inner
    shared = getattr(config, "shared_expert_intermediate_size", None) or 0
    shared += (getattr(config, "n_shared_experts", None) or 0) * each
    return experts, routed, routed * each + shared


def _configuration(values: dict[str, Any]) -> Any:
    """Return the entries of a config.json, with transformers' defaults if it leaves out any that matters.

    Entries of another type than they should have are left to transformers too, which refuses them.
    """
    family = values["model_type"]
    windows = not values.get("use_sliding_window") or values.get("layer_types")
    typed = all(_has_its_type(name, value) for name, value in values.items() if name in _ENTRIES_READ)
    if family in _MORE and _ENTRIES | _MORE[family] <= values.keys() and windows and typed:
        return SimpleNamespace(**values)
    try:
        return transformers.AutoConfig.for_model(family, **{key: values[key] for key in values if key != "model_type"})
    except Exception as error:  # transformers checks entries against each other, each family in its own way
        reason = " ".join(str(error).split())[:200]
        raise ModelError(f"this {family} config.json cannot be used ({reason}): download it again") from error


def _has_its_type(name: str, value: Any) -> bool:
    """Return whether an entry that a formula reads has the type that it needs, or is None where that has a meaning."""
    if name == "layer_types":
        return value is None or (isinstance(value, list) and all(isinstance(kind, str) for kind in value))
    if name in _FLAGS:
        return isinstance(value, bool)
    number = isinstance(value, int | float if name == "attn_logit_softcapping" else int) and not isinstance(value, bool)
    return (number and value > 0) or (value is None and name in _OPTIONAL)


def _layer(config: Any, width: int, queries: int, keys: int, inner: int, head_width: int) -> tuple[Shape, ...]:
    """Return the shapes of one layer's parameters."""
    family = config.model_type
    attention = [(queries, width), (keys, width), (keys, width), (width, queries)]
    mlp = [(inner, width), (inner, width), (width, inner)]
    biased = attention[:3] if family == "qwen2" else []  # always on queries, keys and values there
    biased = attention if getattr(config, "attention_bias", False) else biased
    biased = biased + (mlp if getattr(config, "mlp_bias", False) else [])
    norms = [(width,)] * (4 if family in _SANDWICHED else 2) + [(head_width,)] * (2 if family in _NORMED_HEADS else 0)
    return (*attention, *mlp, *((rows,) for rows, _ in biased), *norms)


def _windows(config: Any) -> tuple[int | None, ...]:
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)
    if not kinds:  # Mistral: one window for all layers
        return (window if config.model_type == "mistral" else None,) * config.num_hidden_layers
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def _built(config: Any) -> tuple[tuple[Shape, ...], tuple[Shape, ...], bool]:
    """Return the shapes inside and outside the layers of any model, built without weights, and whether it is tied."""
    made = loading.outline(config)
    named = [(name, tuple(p.shape)) for name, p in made.model.named_parameters()]
    inside = tuple(shape for name, shape in named if any(part.isdigit() for part in name.split(".")))
    outside = tuple(shape for name, shape in named if not any(part.isdigit() for part in name.split(".")))
    return inside, outside, made.core.get_input_embeddings().weight is made.core.get_output_embeddings().weight


@functools.lru_cache(maxsize=16)
def built_adapter(text: str, rank: int) -> tuple[int, tuple[str, ...]]:
    """Return the parameters of a LoRA adapter on any model, and what it adapts; built without weights."""
    made = loading.outline(_configuration(json.loads(text)), tuning="lora", lora=adapters.LoraSettings(rank))
    return sum(p.numel() for p in made.model.parameters() if p.requires_grad), made.adapted


def count(shapes: Iterable[Shape]) -> int:
    """Return the number of parameters."""
    return sum(math.prod(shape) for shape in shapes)
