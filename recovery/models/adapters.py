"""LoRA adapters: the shape of a new one, and loading one that lies in a folder."""

from __future__ import annotations

import contextlib
import json
import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel
from peft.tuners.tuners_utils import BaseTunerLayer

from recovery.errors import ModelError
from recovery.limits import Overdue, time_limit
from recovery.models.folder_check import ADAPTER_CONFIG, check_adapter, reading

# Entries of an adapter's configuration with regular expressions, which are compared with the names of all modules.
_PATTERNS = (
    "target_modules",
    "exclude_modules",
    "rank_pattern",
    "alpha_pattern",
    "layers_pattern",
    "target_parameters",
)
_SECONDS = 10.0  # limit of processor time for all patterns: thousands of times what they need


@dataclass(frozen=True)
class LoraSettings:
    """The shape of a LoRA adapter, which adapts every linear layer but the head."""

    rank: int = 32
    alpha: int = 64

    def config(self) -> LoraConfig:
        """Return the settings as a peft configuration."""
        return LoraConfig(
            r=self.rank, lora_alpha=self.alpha, target_modules="all-linear", lora_dropout=0.0, task_type="CAUSAL_LM"
        )


def only_lora(adapter: Path | None) -> bool:
    """Return whether an adapter (None: a new one) consists of LoRA matrices only, so that others can share its base.

    Biases, fully trained modules and some initialisations change or replace tensors of the base itself.
    """
    if adapter is None:
        return True
    config = json.loads((adapter / ADAPTER_CONFIG).read_text(encoding="utf-8"))
    if any(config.get(name) for name in ("modules_to_save", "trainable_token_indices", "layer_replication")):
        return False
    plain = config.get("init_lora_weights", True) in (True, False, "gaussian")
    return plain and config.get("peft_type") == "LORA" and config.get("bias", "none") == "none"


def with_adapter(model: Any, adapter: Path, trainable: bool) -> Any:
    """Return the model with the adapter of a folder; what is ``trainable`` is in float32.

    Raise ModelError if it is none that trains layers.
    """
    config = check_adapter(adapter)
    with reading(f"the adapter in {adapter}"):
        _try_patterns(config, [name for name, _ in model.named_modules()], adapter)
        with peft_warnings():
            warnings.filterwarnings("error", "Found missing adapter keys", UserWarning)
            adapted = PeftModel.from_pretrained(model, str(adapter), is_trainable=trainable, use_safetensors=True)
            if trainable and _widen(adapted):  # the narrower tensors had rounded the stored values
                adapted.load_adapter(str(adapter), "default", is_trainable=True, use_safetensors=True)
    if any(config.is_prompt_learning for config in adapted.peft_config.values()):
        raise ModelError(f"the adapter in {adapter} adds tokens to the prompt, not to the layers: use a LoRA adapter")
    return adapted


def merge_adapter(adapted: Any) -> Any:
    """Return the model below an adapter with the adapter merged into its weights, in place.

    A head that is tied to an adapted embedding becomes a tensor of its own: peft would add the adapter to both.
    """
    base = adapted.get_base_model()
    embedding, head = base.get_input_embeddings(), base.get_output_embeddings()
    adapts = [isinstance(layer, BaseTunerLayer) for layer in (embedding, head)]
    if any(adapts) and head is not None and head.weight is embedding.weight:
        below = embedding.get_base_layer() if adapts[0] else embedding
        below.weight = torch.nn.Parameter(below.weight.detach().clone(), requires_grad=False)
    return adapted.merge_and_unload()


def _widen(adapted: Any) -> bool:
    """Hold everything that is trained in float32; return whether anything was not.

    peft does so with the matrices of LoRA alone: biases and whole modules have the precision of the base.
    """
    narrow = [module for module in adapted.modules() if any(map(_is_narrow, module.parameters(recurse=False)))]
    for module in narrow:
        for parameter in module.parameters(recurse=False):
            # Weight and bias of a norm must have one precision on a CPU, also where only the bias is trained.
            if _is_narrow(parameter) or parameter.dim() == 1:
                parameter.data = parameter.data.float()
    return bool(narrow)


def _is_narrow(parameter: torch.nn.Parameter) -> bool:
    return parameter.requires_grad and parameter.dtype != torch.float32


@contextlib.contextmanager
def peft_warnings() -> Iterator[None]:
    """Ignore peft's claim that the ranks it sets itself for stacked experts match no module: it looks among layers."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"The following \w+_pattern keys did not match", RuntimeWarning)
        yield


def _try_patterns(config: Mapping[str, Any], names: list[str], adapter: Path) -> None:
    """Raise ModelError if the regular expressions of an adapter take too long: peft matches each with every module."""
    found = [config.get(key) for key in _PATTERNS]
    patterns = [
        p for value in found for p in ([value] if isinstance(value, str) else value or ()) if isinstance(p, str)
    ]
    try:
        with time_limit(_SECONDS, of_processor=True):
            for pattern in patterns:
                compiled = re.compile(pattern)
                for name in names:
                    compiled.fullmatch(name)
    except Overdue:
        raise ModelError(
            f"{adapter / ADAPTER_CONFIG} has a pattern that cannot be matched in {_SECONDS:.0f} seconds: use another"
        ) from None
