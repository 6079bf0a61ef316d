"""Quantised weights: NF4 (QLoRA, arXiv:2305.14314), and checkpoints that were quantised before.

In NF4 the frozen linear layers below a LoRA adapter are held in 4 bits. Embeddings, norms and the output head keep the
precision of matrix products: the losses need the head's own matrix.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import BitsAndBytesConfig
from transformers.quantizers import AutoHfQuantizer

from recovery.errors import ModelError, UsageError
from recovery.lazy_import import lazily
from recovery.models.folder_check import read_config, reading

bitsandbytes = lazily("bitsandbytes")


def require() -> None:
    """Raise UsageError if bitsandbytes is not installed."""
    if importlib.util.find_spec("bitsandbytes") is None:
        raise UsageError("--quantize nf4 needs: pip install 'recovery[quantized]'")


def arguments(compute: torch.dtype, device: torch.device) -> dict[str, Any]:
    """Return what from_pretrained needs to load in NF4. Raise UsageError if bitsandbytes is not installed."""
    require()
    config = BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type="nf4",
        bnb_4bit_compute_dtype=compute,
        bnb_4bit_use_double_quant=False,
    )
    return {"quantization_config": config, "device_map": {"": device}}


@dataclass(frozen=True)
class Quantized:
    """How a checkpoint's weights are quantised, and whether an adapter on them can be trained."""

    method: str
    adaptable: bool


def stored(folder: str | Path) -> Quantized | None:
    """Return how the weights in a folder stay quantised when they are loaded; reads no weights.

    None if they are not: transformers restores them where it cannot multiply with them, such as 8-bit floats on a CPU.
    Raise ModelError if what config.json says of them cannot be used.
    """
    config = read_config(Path(folder) / "config.json")
    text = config.get("text_config")
    given = config.get("quantization_config") or (isinstance(text, dict) and text.get("quantization_config"))
    if not given:
        return None
    with reading(f"the model in {folder}"):
        if not AutoHfQuantizer.supports_quant_method(given):  # loaded as if it were not there
            return None
        quantizer = AutoHfQuantizer.from_config(given, pre_quantized=True)
        settings = quantizer.quantization_config
        if hasattr(settings, "dequantize"):
            quantizer.validate_environment()
            if settings.dequantize:
                return None
        method = settings.quant_method
        return Quantized(str(getattr(method, "value", method)), bool(quantizer.is_trainable))


def check_tuning(folder: str | Path, tuning: str) -> None:
    """Raise UsageError if the weights in a folder stay quantised when they are loaded, and cannot be trained so.

    Full fine-tuning would silently train what is left, embeddings and norms.
    """
    found = stored(folder) if tuning != "frozen" else None
    if found is None:
        return
    if not found.adaptable:
        raise UsageError(
            f"the weights in {folder} are quantised ({found.method}) and cannot be trained: use the model before it "
            f"was quantised"
        )
    if tuning == "full":
        raise UsageError(
            f"the weights in {folder} are quantised ({found.method}), and only an adapter on them can be trained: use "
            f"--tuning lora, or the model before it was quantised"
        )


def values_of(weight: torch.Tensor) -> torch.Tensor | None:
    """Return the values of a weight in 4 bits, whose bytes are packed codes; None if it is held otherwise."""
    state = getattr(weight, "quant_state", None)
    return None if state is None else bitsandbytes.functional.dequantize_4bit(weight.data, state)


def check(model: Any, base: str) -> None:
    """Prepare the quantised layers of a loaded model.

    Raise ModelError if its matrices are not linear layers, or on a CPU if they would be read wrongly.
    """
    layers = [module for module in model.modules() if isinstance(module, bitsandbytes.nn.Linear4bit)]
    if not layers or any(parameter.dim() == 3 for parameter in model.parameters()):
        kind = model.config.model_type
        raise ModelError(f"{base} is a {kind} model, whose matrices are not all linear layers: omit --quantize")
    for layer in layers:
        # With AVX-512, bitsandbytes 0.50.2 reads rows such as 32, 48, 96 or 160 wrongly: the weights are a quarter off
        # in place of NF4's tenth. The same bytes read as rows of a whole block are right (docs/log.md, 2026-11-25).
        block = layer.weight.quant_state.blocksize
        if layer.weight.device.type == "cpu" and layer.in_features % block:
            raise ModelError(
                f"{base} has weights in rows of {layer.in_features}, which a CPU reads wrongly in NF4 unless their "
                f"number is a multiple of {block}: omit --quantize"
            )
        # On CPUs with AVX512-BF16, bitsandbytes repacks the weights in the first forward pass without gradient: their
        # constants are rounded to bfloat16, for good, and results would depend on the machine and on what ran before.
        layer.support_avx512bf16_for_cpu = False
