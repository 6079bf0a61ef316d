"""A student cut into pieces, one a process: torch's FSDP2 on the layers of its decoder.

Each process holds its rows of every layer's weights, gradients and optimizer moments; a layer is put together when it
is used and let go again. What lies outside the layers (embedding, last norm, head) stays whole in every process: the
fused loss reads the head by itself, outside any layer, and the two may be one tensor.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor

from recovery import processes
from recovery.errors import ModelError


def shard(decoder: Any, device: torch.device, precision: torch.dtype, *, offload: bool = False) -> None:
    """Cut the layers of a decoder over all processes, moving them to ``device`` one at a time.

    Layers compute in ``precision``; gradients are added up in float32. With ``offload`` the pieces and the optimizer's
    moments stay in the memory of the CPU. Raises ModelError for a decoder without a list of layers.
    """
    layers = getattr(decoder, "layers", None)
    if not isinstance(layers, torch.nn.ModuleList):
        raise ModelError(f"{type(decoder).__name__} has no list of layers to cut: train it with --shard none")
    mesh = init_device_mesh(device.type, (processes.size(),))
    lower = None if precision == torch.float32 else precision
    policy = MixedPrecisionPolicy(param_dtype=lower, reduce_dtype=torch.float32)
    where = CPUOffloadPolicy(pin_memory=device.type == "cuda") if offload else OffloadPolicy()
    for layer in layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy, offload_policy=where, reshard_after_forward=True)
    # The decoder itself holds none of the pieces; as the root it lets the layers fetch their weights ahead of time.
    outside = {p for p in decoder.parameters() if not isinstance(p, DTensor)}
    fully_shard(decoder, mesh=mesh, ignored_params=outside, reshard_after_forward=False)
    for module in _cut(decoder):
        # The loss is divided by the tokens of all processes already: gradients are summed, not averaged.
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)


@contextlib.contextmanager
def whole(model: Any) -> Iterator[None]:
    """While the block runs every process holds the whole model, and may use it alone; no gradients."""
    cut = _cut(model)
    with processes.in_step():
        for module in cut:
            module.set_reshard_after_forward(False, recurse=False)
            module.unshard()
    try:
        yield
    finally:
        for module in cut:
            module.set_reshard_after_forward(True, recurse=False)
            module.reshard()


def full_state(model: Any) -> dict[str, torch.Tensor]:
    """The weights put together, in the memory of the main process's CPU; every process has to call this."""
    state = {}
    with processes.in_step():
        for name, tensor in model.state_dict().items():
            found = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
            if processes.is_main():
                state[name] = found.detach().cpu() if isinstance(tensor, DTensor) else found
    return state


def local(tensor: torch.Tensor) -> torch.Tensor:
    """This process's piece of a tensor; all of one that is not cut."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def apart(tensors: Iterable[torch.Tensor]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Those that every process holds whole, and those that are cut."""
    found: tuple[list[torch.Tensor], list[torch.Tensor]] = ([], [])
    for tensor in tensors:
        found[isinstance(tensor, DTensor)].append(tensor)
    return found


def total_norm(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """The norm of all tensors as one vector, over all processes."""
    plain, cut = apart(tensors)
    norm = torch.nn.utils.get_total_norm(plain)
    if not cut:
        return norm
    mine = torch.nn.utils.get_total_norm([local(tensor) for tensor in cut])
    return torch.tensor(math.hypot(float(norm), math.sqrt(_over_all(float(mine) ** 2))))


def dot(pairs: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> float:
    """The sum of products of tensors, over all processes."""
    plain = cut = 0.0
    several = False
    for one, other in pairs:
        value = float(torch.sum(local(one) * local(other)))
        if isinstance(one, DTensor):
            cut, several = cut + value, True
        else:
            plain += value
    return plain + (_over_all(cut) if several else 0.0)


def _over_all(value: float) -> float:
    return math.fsum(processes.gather(lambda: value))


def _cut(model: Any) -> list[FSDPModule]:
    return [module for module in model.modules() if isinstance(module, FSDPModule)]
