"""Memory of this process, as the kernel reports it; on a CUDA device the device's, as torch counts it."""

from __future__ import annotations

import torch

from recovery.models import hardware


def finish(device: str) -> None:
    """Wait until the device has computed everything."""
    if device != "cpu":
        torch.cuda.synchronize()


def now(device: str = "cpu") -> float:
    """Return the MB held now, and reset the peak; where the kernel cannot do that, return the peak."""
    finish(device)
    hardware.reset_peak_memory(device)
    return hardware.held_memory(device) / 1e6 or peak(device)


def peak(device: str = "cpu") -> float:
    """Return the peak in MB since the last call of :func:`now`; where the kernel cannot reset it, since the start."""
    return hardware.peak_memory(device) / 1e6
