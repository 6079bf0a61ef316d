"""Layers compiled by torch for training: what lies between the matrix products becomes a few passes over memory."""

from __future__ import annotations

from typing import Any

import torch

from recovery.errors import ModelError, UsageError


def compile_layers(decoder: Any, device: torch.device) -> None:
    """Have each layer of a decoder compiled when it first computes gradients; rows of any number and length share that.

    Without gradients the layers run as they are, see :meth:`recovery.loading.Loaded.inference`: there every length of
    a cache would be compiled anew. Raises UsageError where torch cannot compile on this machine.
    """
    layers = getattr(decoder, "layers", None)
    if not isinstance(layers, torch.nn.ModuleList):
        raise ModelError(f"{type(decoder).__name__} has no list of layers to compile: train it without --compile")
    try:
        torch.compile(torch.nn.functional.silu)(torch.zeros(8, device=device))
    except RuntimeError as error:
        why = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise UsageError(
            f"torch cannot compile here ({why}): install a C++ compiler and Python's headers (a GPU: Triton), or leave "
            f"out --compile"
        ) from error
    for layer in layers:
        layer.compile(dynamic=True)
