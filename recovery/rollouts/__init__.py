"""Rollout engines, which sample completions."""

from recovery.rollouts.completion_cache import CachingEngine, CompletionStore
from recovery.rollouts.distributed_engine import GENERATE, DistributedEngine
from recovery.rollouts.engine import Completion, Engine, Progress, Sampling
from recovery.rollouts.transformers_engine import TransformersEngine
from recovery.rollouts.vllm_engine import VllmSampler
from recovery.rollouts.vllm_server_engine import VllmServerSampler
from recovery.rollouts.weight_sync import Sampler, SyncedEngine

__all__ = [
    "GENERATE",
    "CachingEngine",
    "Completion",
    "CompletionStore",
    "DistributedEngine",
    "Engine",
    "Progress",
    "Sampler",
    "Sampling",
    "SyncedEngine",
    "TransformersEngine",
    "VllmSampler",
    "VllmServerSampler",
]
