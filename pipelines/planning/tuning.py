"""Choice of the tuning of a student, full fine-tuning or LoRA, by the memory there is and what its teachers take."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch

from pipelines.planning.activations import Network, Speed, parameters, this_machine
from pipelines.planning.memory import Needs, Plan, TeacherFootprint, free_memory, memory_of, network_of
from pipelines.runtime.model_loading import share_base_weights
from recovery import distributed
from recovery.config import TrainingConfig
from recovery.errors import UsageError
from recovery.models import quantization
from recovery.models.hardware import pick_device, pick_precision, total_memory
from recovery.workspace import Checkpoint


@dataclass(frozen=True)
class Tuning:
    """How a student is trained: the tuning, the reason for it, and its needs."""

    name: str
    reason: str
    needs: Needs
    parameters: int
    network: Network
    speed: Speed


def choose_tuning(
    config: TrainingConfig, student: Checkpoint, plan: Callable[[str, str, bool], Plan], *, recommended: bool = False
) -> Tuning:
    """Resolve ``--tuning auto``: LoRA if the student is an adapter or its weights are quantised; else full if it fits
    in the device's memory, else LoRA. What is free of it now does not count: the same command gives the same tuning.

    ``plan`` returns the stage's memory plan from the model's configuration as JSON, a tuning, and whether there is a
    GPU. ``recommended`` says that the tuning is set by the model's own recipe, and not by the user. Raise UsageError if
    full fine-tuning is requested for an adapter, or the student's weights are quantised and cannot be trained.
    """
    device = str(pick_device(config.device))
    gpu = device.startswith("cuda")
    model = (student.weights / "config.json").read_text(encoding="utf-8")
    shards = distributed.size() if config.shard != "none" else 1

    def chosen(name: str, reason: str) -> Tuning:
        planned = replace(
            plan(model, name, gpu), shards=shards, teachers_too=config.shard == "full", gather=config.gather
        )
        needs = Needs(memory_of(planned), total_memory(device), free_memory(device), gpu)
        speed = this_machine(device, pick_precision(config.precision, torch.device(device)))
        if name == "lora" and student.tuning != "lora":
            reason += f"; rank {config.lora_rank} on {', '.join(planned.setup.adapted)}"
        if name == "full" and config.embeddings != "all":
            reason += "; embeddings of the documents' tokens" if config.trains_embeddings else "; without embeddings"
        if config.quantize != "none":
            teachers = "quantised too (--quantized-teacher)" if config.quantized_teacher else "not quantised"
            reason += f"; its base in {config.quantize} while it trains, unquantised afterwards; teachers {teachers}"
        return Tuning(name, reason, needs, parameters(student.weights), network_of(planned.setup), speed)

    if student.tuning == "lora":
        if config.tuning == "full":
            raise UsageError(
                f"{student.name} is a LoRA adapter: continue with --tuning lora, or merge it first "
                f"(`recover export {student.name} --merge`) and start from the merged folder"
            )
        return chosen("lora", f"LoRA: {student.name} is an adapter, which is trained further")
    stored = quantization.stored(student.weights)
    quantization.check_tuning(student.weights, "full" if config.tuning == "full" else "lora")
    if stored is not None and config.tuning == "auto":
        return chosen("lora", f"LoRA, since the weights of {student.name} are quantised ({stored.method})")
    if config.quantize != "none" and config.tuning == "auto":
        return chosen("lora", "LoRA, which a quantised base requires")
    if config.tuning != "auto":
        title = "full fine-tuning" if config.tuning == "full" else "LoRA"
        return chosen(config.tuning, f"{title}, as {'the model recommends' if recommended else 'requested'}")
    full = chosen("full", "full fine-tuning, since it fits in memory")
    if full.needs.fits:
        return full
    return chosen("lora", f"LoRA, since full fine-tuning does not fit ({full.needs}); LoRA learns documents less")


def teacher_footprint(
    student: Checkpoint, teachers: Sequence[Checkpoint], *, copied: bool = False, unshared: bool = False
) -> TeacherFootprint:
    """Return the models that teachers add in memory, each once; ``copied`` adds a copy of the student.

    ``unshared``: the teachers must not share the student's base weights, which are quantised.
    """
    teachers = list(dict.fromkeys(teachers))
    sharing = [teacher for teacher in teachers if not unshared and share_base_weights(student, teacher)]
    bases = sum(teacher.adapter is None for teacher in sharing)
    copy = copied and not share_base_weights(student, student)
    others, own = [teacher for teacher in teachers if teacher not in sharing], parameters(student.weights)
    larger = sum(max(0, parameters(teacher.weights) - own) for teacher in others)
    return TeacherFootprint(bases, len(sharing) - bases, len(others) + copy, int(copied and not copy), larger)
