"""Engines that sample from the student."""

from recovery.rollouts.cached import AnswerStore, CachedEngine
from recovery.rollouts.engine import Completion, Engine, Sampling
from recovery.rollouts.shared import GENERATE, SharedEngine
from recovery.rollouts.transformers_engine import TransformersEngine

__all__ = [
    "GENERATE",
    "AnswerStore",
    "CachedEngine",
    "Completion",
    "Engine",
    "Sampling",
    "SharedEngine",
    "TransformersEngine",
]
