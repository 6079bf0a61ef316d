"""Sharding of a student over processes: torch's FSDP2 on the layers of its decoder.

Each process holds its rows of every layer's weights, gradients and optimizer moments; a layer is gathered when it is
used and freed afterwards. Parameters outside the layers (embedding, last norm, head) are replicated in every process:
the fused loss reads the head outside any layer, and head and embedding may be one tensor.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor
from transformers.utils import output_capturing

from recovery import distributed
from recovery.errors import ModelError


def shard(decoder: Any, device: torch.device, precision: torch.dtype, *, offload: bool = False) -> None:
    """Shard the layers of a decoder over all processes, moving them to ``device`` one at a time.

    Layers compute in ``precision``; gradients are reduced in float32. With ``offload`` the shards and the optimizer's
    moments stay in CPU memory. Raise ModelError for a decoder without a list of layers.
    """
    layers = getattr(decoder, "layers", None)
    if not isinstance(layers, torch.nn.ModuleList):
        raise ModelError(f"{type(decoder).__name__} has no list of layers to shard: train it with --shard none")
    mesh = init_device_mesh(device.type, (distributed.size(),))
    lower = None if precision == torch.float32 else precision
    policy = MixedPrecisionPolicy(param_dtype=lower, reduce_dtype=torch.float32)
    where = CPUOffloadPolicy(pin_memory=device.type == "cuda") if offload else OffloadPolicy()
    for layer in layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy, offload_policy=where, reshard_after_forward=True)
    # In the backward pass each layer gathers the one before it. By default torch takes the order of all earlier forward
    # passes. That order differs between processes which sampled or scored a different number of times, and they would
    # wait for each other forever. The first layer names itself, which is gathered already: naming no layer would select
    # the default.
    inner = [layer for layer in layers if isinstance(layer, FSDPModule)]
    for number, layer in enumerate(inner):
        layer.set_modules_to_backward_prefetch([inner[max(0, number - 1)]])
    # The decoder itself has no shards; as the root module it enables prefetching of the layers' weights.
    outside = {p for p in decoder.parameters() if not isinstance(p, DTensor)}
    fully_shard(decoder, mesh=mesh, ignored_params=outside, reshard_after_forward=False)
    # The decoder has a new class now, and transformers looks up by class what it can record: a router's logits.
    output_capturing._CAN_RECORD_REGISTRY[str(type(decoder))] = getattr(decoder, "_can_record_outputs", None)
    for module in _sharded(decoder):
        # The loss is already divided by the tokens of all processes: gradients are summed, not averaged.
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)


@contextlib.contextmanager
def unsharded(model: Any) -> Iterator[None]:
    """Gather the whole model in every process while the block runs; no gradients."""
    sharded = _sharded(model)
    with distributed.in_step():
        for module in sharded:
            module.set_reshard_after_forward(False, recurse=False)
            module.unshard()
    try:
        yield
    finally:
        for module in sharded:
            module.set_reshard_after_forward(True, recurse=False)
            module.reshard()


def full_state(model: Any, names: Collection[str] | None = None) -> dict[str, torch.Tensor]:
    """Return the full weights, or those with these names, in the main process's CPU memory; every process calls this.

    The result is empty in the others.
    """
    state = {}
    with distributed.in_step():
        for name, tensor in model.state_dict().items():
            if names is not None and name not in names:
                continue
            found = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
            if distributed.is_main():
                state[name] = found.detach().cpu() if isinstance(tensor, DTensor) else found
    return state


def local(tensor: torch.Tensor) -> torch.Tensor:
    """Return this process's shard of a tensor; the whole tensor if it is not sharded."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def replicated_and_sharded(tensors: Iterable[torch.Tensor]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Split tensors into replicated and sharded ones."""
    found: tuple[list[torch.Tensor], list[torch.Tensor]] = ([], [])
    for tensor in tensors:
        found[isinstance(tensor, DTensor)].append(tensor)
    return found


def total_norm(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the norm of all tensors as one vector, over all processes."""
    plain, sharded = replicated_and_sharded(tensors)
    norm = torch.nn.utils.get_total_norm(plain)
    if not sharded:
        return norm
    mine = torch.nn.utils.get_total_norm([local(tensor) for tensor in sharded])
    return torch.tensor(math.hypot(float(norm), math.sqrt(_sum_over_processes(float(mine) ** 2))))


def dot(pairs: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> float:
    """Return the sum of the dot products of tensor pairs, over all processes."""
    plain = sharded = 0.0
    several = False
    for one, other in pairs:
        value = float(torch.sum(local(one) * local(other)))
        if isinstance(one, DTensor):
            sharded, several = sharded + value, True
        else:
            plain += value
    return plain + (_sum_over_processes(sharded) if several else 0.0)


def _sum_over_processes(value: float) -> float:
    return math.fsum(distributed.gather(lambda: value))


def _sharded(model: Any) -> list[FSDPModule]:
    return [module for module in model.modules() if isinstance(module, FSDPModule)]
