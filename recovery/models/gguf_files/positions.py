"""RoPE scaling of a GGUF file, which transformers' reader ignores."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from recovery.errors import ModelError
from recovery.models.gguf_files.header import Header, StoredTensor

# Llama 3.1 and later: the only scaling that files store as frequency factors (llama.cpp's converter).
_LOW, _HIGH, _ORIGINAL = 1.0, 4.0, 8192
_FULL = "full_attention"


def set_positions(header: Header, config: Any) -> None:
    """Set the RoPE scaling of the file in a configuration.

    Raise ModelError for an unsupported scaling: the model's output would differ from the original's.
    """
    every: Any = getattr(config, "rope_parameters", None)
    # Gemma 3 has them by the type of a layer: a file scales those whose attention has no window.
    nested = isinstance(every, dict) and _FULL in every
    rope = every[_FULL] if nested else every
    kind = header.own("rope.scaling.type") or "none"
    if not nested and isinstance(rope, dict) and rope.get("rope_type", "default") != "default":
        return  # read by transformers already
    stored = next((t for t in header.tensors if t.name == "rope_freqs.weight"), None)
    others = [t.name for t in header.tensors if t.name.startswith("rope_factors")]
    if stored is not None and isinstance(rope, dict) and not nested:
        factors = _factors(header, stored)
        factor = float(factors.max())
        if factor == 1.0:
            return
        expected = llama3_factors(factor, float(rope["rope_theta"]), 2 * len(factors))
        if np.allclose(factors, expected, rtol=1e-3):
            config.rope_parameters = {
                **rope,
                "rope_type": "llama3",
                "factor": factor,
                "low_freq_factor": _LOW,
                "high_freq_factor": _HIGH,
                "original_max_position_embeddings": _ORIGINAL,
            }
            return
    elif kind == "linear" and stored is None and isinstance(rope, dict) and header.own("rope.scaling.factor"):
        scaled = {**rope, "rope_type": "linear", "factor": float(header.own("rope.scaling.factor"))}
        config.rope_parameters = {**every, _FULL: scaled} if nested else scaled
        return
    elif kind == "none" and stored is None and not others:
        return
    raise ModelError(
        f"{header.path} has a RoPE scaling ({kind if stored is None else 'rope_freqs'}) that cannot be read from GGUF; "
        "use the model's safetensors"
    )


def llama3_factors(
    factor: float, theta: float, width: int, low: float = _LOW, high: float = _HIGH, original: int = _ORIGINAL
) -> np.ndarray:
    """Return the divisor of each rotary frequency in Llama 3.1, [width / 2] (Dubey et al., arXiv 2407.21783)."""
    frequencies = theta ** -(np.arange(0, width, 2) / width)
    turns = original * frequencies / (2 * math.pi)  # rotations of each frequency within the original window
    smooth = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return 1.0 / ((1.0 - smooth) / factor + smooth)


def _factors(header: Header, stored: StoredTensor) -> np.ndarray:
    if stored.type != "F32":
        raise ModelError(f"{header.path}: {stored.name} is of type {stored.type}, expected F32")
    return np.fromfile(header.path, dtype="<f4", count=stored.count, offset=stored.offset)
