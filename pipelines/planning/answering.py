"""A frozen model that answers prompts and scores texts on this machine: an evaluation, or the clean model's part."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from pipelines.planning.activations import Setup
from pipelines.planning.memory import USUAL_PROMPT, answering_memory, network_of, precision_of
from pipelines.planning.throughput import Network, Speed, Work, this_machine
from pipelines.planning.work import answering_work
from recovery.config import ModelConfig
from recovery.models.hardware import free_memory, pick_device
from recovery.workspace import Checkpoint

# Tokens of a batch whose likelihoods are computed at once (evals.loglikelihood).
_SCORED_AT_ONCE = 16384


@dataclass(frozen=True)
class Answering:
    """Estimates for a frozen model. ``free`` are the free bytes of the device now."""

    config: ModelConfig
    setup: Setup
    network: Network
    speed: Speed
    free: int

    @classmethod
    def of(cls, config: ModelConfig, checkpoint: Checkpoint) -> Answering:
        """Return the estimates for a checkpoint as ``config`` loads it; no weights are read."""
        device = str(pick_device(config.device))
        gpu = device.startswith("cuda")
        precision = precision_of(config, gpu)
        model = (checkpoint.weights / "config.json").read_text(encoding="utf-8")
        setup = Setup(model, "frozen", precision, gpu)
        speed = this_machine(device, getattr(torch, precision))
        return cls(config, setup, network_of(setup), speed, free_memory(device))

    def answers(self, items: int, new_tokens: int, prompt: int = USUAL_PROMPT) -> float:
        """Return the seconds for the answers to ``items`` prompts of ``prompt`` tokens."""
        vllm = self.config.engine != "transformers"
        work = answering_work(items, prompt, new_tokens, self.config.rollout_tokens, vllm=vllm)
        return work.seconds(self.network, self.speed)

    def scores(self, tokens: int) -> float:
        """Return the seconds for the likelihoods of so many tokens."""
        return Work(read=tokens).seconds(self.network, self.speed)

    def memory(self, items: int, new_tokens: int, prompt: int = USUAL_PROMPT) -> int:
        """Return the peak of :meth:`answers`, bytes."""
        at_once = max(1, min(items, self.config.rollout_tokens // (prompt + new_tokens)))
        return answering_memory(self.setup, at_once, prompt, new_tokens)

    @property
    def scoring_memory(self) -> int:
        """The peak of :meth:`scores`, bytes."""
        return answering_memory(self.setup, _SCORED_AT_ONCE // USUAL_PROMPT, USUAL_PROMPT, 1)
