"""Engines that sample from the student."""

from recovery.rollouts.cached import AnswerStore, CachedEngine
from recovery.rollouts.engine import Completion, Engine, Progress, Sampling
from recovery.rollouts.follow import FollowingEngine, Sampler
from recovery.rollouts.server_engine import ServerSampler
from recovery.rollouts.shared import GENERATE, SharedEngine
from recovery.rollouts.transformers_engine import TransformersEngine
from recovery.rollouts.vllm_engine import VllmSampler

__all__ = [
    "GENERATE",
    "AnswerStore",
    "CachedEngine",
    "Completion",
    "Engine",
    "FollowingEngine",
    "Progress",
    "Sampler",
    "Sampling",
    "ServerSampler",
    "SharedEngine",
    "TransformersEngine",
    "VllmSampler",
]
