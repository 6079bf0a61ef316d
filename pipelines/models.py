"""Loading students and teachers for a stage: which tuning, which copy, and whether the memory will do."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from pipelines.estimates import GIB, Network, Speed, free_memory, parameters, this_machine
from pipelines.memory import Beside, Needs, Plan, memory_of, network_of
from pipelines.session import Session
from recovery import processes
from recovery.checkpoints import content_hash
from recovery.config import DistillConfig, ModelConfig, TrainingConfig
from recovery.errors import UsageError
from recovery.loading import Loaded, LoraSettings, load_model, only_lora, pick_device, pick_precision
from recovery.rollouts import (
    CachedEngine,
    FollowingEngine,
    Sampler,
    ServerSampler,
    TransformersEngine,
    VllmSampler,
    server_engine,
)
from recovery.server import VllmServer, check_address, served_model
from recovery.teachers import (
    AdapterOff,
    Frozen,
    Live,
    MovingAverage,
    RemoteTeacher,
    Teacher,
    check_same_tokens,
    remote,
)
from recovery.training import derive_seed
from recovery.workspace import Checkpoint


@dataclass(frozen=True)
class Tuning:
    """How a student is trained, why, and what it will take."""

    name: str
    reason: str
    needs: Needs
    parameters: int
    network: Network
    speed: Speed


def choose_tuning(config: TrainingConfig, student: Checkpoint, plan: Callable[[str, str, bool], Plan]) -> Tuning:
    """Resolve ``--tuning auto``: what the student carries; else full where it fits in memory, else LoRA.

    ``plan`` says what the stage needs, from the model's configuration as JSON, a tuning, and whether there is a GPU.
    Raises UsageError where full fine-tuning is asked of an adapter.
    """
    device = str(pick_device(config.device))
    gpu = device.startswith("cuda")
    model = (student.weights / "config.json").read_text(encoding="utf-8")
    shards = processes.size() if config.shard == "full" else 1

    def chosen(name: str, reason: str) -> Tuning:
        planned = replace(plan(model, name, gpu), shards=shards)
        needs = Needs(memory_of(planned), free_memory(device), gpu)
        speed = this_machine(device, pick_precision(config.precision, torch.device(device)))
        return Tuning(name, reason, needs, parameters(student.weights), network_of(planned.trial), speed)

    if student.tuning == "lora":
        if config.tuning == "full":
            raise UsageError(
                f"{student.name} is a LoRA adapter: go on with --tuning lora, or merge it first "
                f"(`recover export {student.name} --merge`) and start from the merged folder"
            )
        return chosen("lora", f"LoRA: {student.name} is an adapter, carried on")
    if config.tuning != "auto":
        return chosen(config.tuning, "full fine-tuning, as asked" if config.tuning == "full" else "LoRA, as asked")
    full = chosen("full", "full fine-tuning, since it fits in memory")
    if full.needs.fits:
        return full
    return chosen("lora", f"LoRA, since full fine-tuning does not fit ({full.needs}); LoRA learns documents less")


def load_student(student: Checkpoint, tuning: str, config: TrainingConfig, beside: Loaded | None = None) -> Loaded:
    """The student, ready to be trained. A new adapter is drawn from the seed, so that a run can be repeated.

    A second one can lie on the base of one that is loaded already.
    """
    torch.manual_seed(derive_seed(config.seed, 0, 3))
    return load_model(
        student.weights,
        tuning=tuning,  # type: ignore[arg-type]  # resolved by choose_tuning
        adapter=student.adapter,
        lora=LoraSettings(config.lora_rank, config.lora_alpha),
        gradient_checkpointing=config.gradient_checkpointing,
        shard=config.shard == "full",
        offload=config.offload,
        compiled=config.compile,
        beside=beside,
        **_place(config),
    )


def load_frozen(checkpoint: Checkpoint, config: ModelConfig, beside: Loaded | None = None) -> Loaded:
    """A checkpoint to teach, to sample from or to measure; never changed. An adapter can lie on the base of another."""
    return load_model(checkpoint.weights, tuning="frozen", adapter=checkpoint.adapter, beside=beside, **_place(config))


@contextlib.contextmanager
def engine_of(
    loaded: Loaded, config: ModelConfig, *, complete_loops: bool = False
) -> Iterator[TransformersEngine | FollowingEngine]:
    """The engine that samples from a model; what it holds beside the model is given back at the end of the block."""
    if config.engine == "transformers":
        yield TransformersEngine(loaded, token_budget=config.rollout_tokens, complete_loops=complete_loops)
        return
    if processes.size() > 1:
        raise UsageError(f"--engine {config.engine} samples for one process: leave it out, or start one process")
    with contextlib.closing(FollowingEngine(loaded, _sampler(loaded, config), config.engine_drift)) as engine:
        yield engine


def _sampler(loaded: Loaded, config: ModelConfig) -> Sampler:
    if config.served:
        server = _server(config.engine, server_engine.KEYS, config)
        return ServerSampler(loaded, server, folder=config.engine_folder)
    return VllmSampler(
        loaded,
        tokens=config.rollout_tokens,
        free=free_memory(str(loaded.device)),
        memory=None if config.engine_memory is None else int(config.engine_memory * GIB),
        sleep=config.engine_sleep,
    )


@contextlib.contextmanager
def asked_once(
    session: Session, checkpoint: Checkpoint, loaded: Loaded, config: ModelConfig, *, complete_loops: bool = False
) -> Iterator[CachedEngine]:
    """The engine of a frozen checkpoint, which remembers in the workspace what it has said."""
    cache = session.workspace.folder / "cache"
    below = "" if checkpoint.adapter is None else content_hash(checkpoint.weights)  # an adapter alone says nothing
    with engine_of(loaded, config, complete_loops=complete_loops) as engine:
        yield CachedEngine.of(loaded, engine, content_hash=checkpoint.hash + below, cache=cache)


def reach_teacher(config: DistillConfig) -> None:
    """Raise ServerError where a server is to teach that does not answer, or refuses the key."""
    if not config.remote_teacher:
        return
    with contextlib.closing(_server(config.teacher, remote.KEYS, config)) as server:
        served_model(server)


def remote_teacher(loaded: Loaded, config: DistillConfig) -> RemoteTeacher:
    """The server that teaches, once it was seen to read the student's tokens and to give scores enough."""
    server = _server(config.teacher, remote.KEYS, config)
    teacher = RemoteTeacher(server, loaded.tokenizer, loaded.chat, loaded.head.vocabulary, config.top_k)
    teacher.check()
    return teacher


def _server(address: str, keys: tuple[str, ...], config: ModelConfig) -> VllmServer:
    address = check_address(address, "the server")
    return VllmServer(address, keys, timeout=config.server_timeout, patience=config.server_wait)


def share_base(one: Checkpoint, other: Checkpoint) -> bool:
    """Whether both can lie on the same tensors while one is trained by LoRA."""
    return one.weights.resolve() == other.weights.resolve() and only_lora(one.adapter) and only_lora(other.adapter)


def beside(student: Checkpoint, teachers: Sequence[Checkpoint], *, copied: bool = False) -> Beside:
    """Who teaches beside the student as far as memory is concerned; ``copied`` is the student itself once more."""
    sharing = [teacher for teacher in teachers if share_base(student, teacher)]
    bases = sum(teacher.adapter is None for teacher in sharing)
    alone = copied and not share_base(student, student)
    return Beside(bases, len(sharing) - bases, len(teachers) - len(sharing) + alone, int(copied and not alone))


def teacher_of(student: Checkpoint, loaded: Loaded, teacher: Checkpoint, config: ModelConfig) -> Teacher:
    """Who scores: the student's own weights with the adapter off where they are the teacher, else a frozen copy.

    Of a teacher that is an adapter on the student's base, only the adapter is loaded. The teacher's tokens must be the
    student's.
    """
    shared = loaded.tuning == "lora" and share_base(student, teacher)
    if shared and teacher.adapter is None:
        return AdapterOff(loaded)
    frozen = load_frozen(teacher, config, beside=loaded if shared and not loaded.sharded else None)
    check_same_tokens(loaded.tokenizer, frozen.tokenizer, student_name=student.name, teacher_name=teacher.name)
    return Frozen(frozen)


def self_teacher(student: Checkpoint, loaded: Loaded, config: DistillConfig) -> Teacher:
    """The student as its own teacher: live, or a second copy, loaded alike, that stays or follows as an average."""
    if config.teacher == "self":
        return Live(loaded)
    alone = replace(config, shard="none", offload=False)
    shares = loaded.tuning == "lora" and not loaded.sharded and share_base(student, student)
    copy = load_student(student, loaded.tuning, alone, beside=loaded if shares else None)
    if loaded.sharded and config.teacher == "ema":
        raise UsageError("--teacher ema follows whole weights: take --shard none")
    return MovingAverage(copy, config.ema_decay) if config.teacher == "ema" else Frozen(copy)


def _place(config: ModelConfig) -> dict[str, Any]:
    return {"precision": config.precision, "device": config.device, "template_args": config.template_args}
