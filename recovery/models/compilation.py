"""Compilation of a decoder's layers by torch, which fuses the operations between matrix products."""

from __future__ import annotations

from typing import Any

import torch

from recovery.errors import ModelError, UsageError


def compile_layers(decoder: Any, device: torch.device) -> None:
    """Compile each layer of a decoder at its first use with gradients, once for batches of all shapes.

    Without gradients the layers run eagerly, see ``Loaded.inference``: every length of the KV cache would be compiled
    separately. Raise UsageError if torch cannot compile on this machine.
    """
    layers = getattr(decoder, "layers", None)
    if not isinstance(layers, torch.nn.ModuleList):
        raise ModelError(f"{type(decoder).__name__} has no list of layers to compile: train it without --compile")
    try:
        torch.compile(torch.nn.functional.silu)(torch.zeros(8, device=device))
    except RuntimeError as error:
        why = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise UsageError(
            f"torch cannot compile here ({why}): install a C++ compiler and Python's headers (a GPU: Triton), or omit "
            f"--compile"
        ) from error
    for layer in layers:
        layer.compile(dynamic=True)
