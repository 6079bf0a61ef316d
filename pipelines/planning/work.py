"""The work of a stage: tokens to train on, to read and to sample, from which its duration is estimated.

:class:`Answering` estimates a frozen model on this machine that answers prompts and scores texts: an evaluation, or
what a stage asks the clean model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from pipelines.planning.activations import Network, Setup, Speed, Work, this_machine
from pipelines.planning.memory import (
    USUAL_PROMPT,
    Rollouts,
    TeacherFootprint,
    answering_memory,
    free_memory,
    network_of,
    precision_of,
)
from recovery.config import DistillConfig, MidtrainConfig, ModelConfig
from recovery.engines import TRANSFORMERS
from recovery.models.hardware import pick_device
from recovery.rollouts.engine import CHUNK
from recovery.workspace import Checkpoint

# The mean length of a completion, as a share of max_new_tokens.
_USUAL_LENGTH = 0.5


def midtraining_work(config: MidtrainConfig, tuning: str, tokens: int) -> Work:
    """Return the work of mid-training on ``tokens``, including prompts.

    An anchor reads all tokens, a teacher of the replayed chat its share. Sampling that chat counts as if nothing were
    cached. The rows of a projection are not counted.
    """
    lora = tuning == "lora"
    read = tokens * (config.anchor > 0) + round(tokens * config.replay * config.distils_replay)
    asked = config.replay_prompts if config.samples_replay else 0
    sampling = Rollouts(config.rollout_tokens, config.max_new_tokens, min(asked, CHUNK))
    groups = math.ceil(asked / CHUNK) * math.ceil(sampling.most / sampling.at_once)
    return Work(
        trained=tokens,
        read=read + asked * USUAL_PROMPT,
        turns=groups * config.max_new_tokens,
        rows=sampling.at_once,
        frozen=lora,
        again=config.gradient_checkpointing,
        vllm=config.engine != TRANSFORMERS,
    )


def answering_work(items: int, prompt: int, new_tokens: int, rollout_tokens: int, *, vllm: bool = False) -> Work:
    """Return the work of answering ``items`` prompts of ``prompt`` tokens, as in an evaluation: each group that fits
    into ``rollout_tokens`` is decoded for ``new_tokens`` steps, since some answer of it reaches that length.
    """
    at_once = Rollouts(rollout_tokens, new_tokens, items, prompt).at_once
    turns = math.ceil(items / at_once) * new_tokens
    return Work(read=items * prompt, turns=turns, rows=at_once, vllm=vllm)


def answer_tokens(config: DistillConfig) -> int:
    """Estimate the tokens of all completions of a stage; each batch counts once."""
    return round(config.steps / config.batch_epochs * config.rows_per_step * config.max_new_tokens * _USUAL_LENGTH)


def distilling_work(
    config: DistillConfig, tuning: str, teachers: TeacherFootprint, *, prompt: int = USUAL_PROMPT
) -> Work:
    """Return the work of all steps. Prompts are read with every completion; each batch is decoded for
    ``max_new_tokens`` steps, since some completion of it reaches that length.
    """
    batches = config.steps / config.batch_epochs
    passed = round(answer_tokens(config) + batches * config.rows_per_step * prompt)
    sampled = config.on_policy_prompts_per_step * config.samples_per_prompt
    sampling = Rollouts(config.rollout_tokens, config.max_new_tokens, sampled, prompt)
    groups = math.ceil(sampling.most / sampling.at_once)
    taught = teachers.count > 0 or config.teaching.is_student
    text = round(answer_tokens(config) * config.document_loss / (1 - config.document_loss))
    return Work(
        trained=(passed + text) * config.batch_epochs,
        read=(passed * taught + text * config.document_teacher) * config.batch_epochs,
        turns=round(batches * groups * config.max_new_tokens),
        rows=sampling.at_once,
        frozen=tuning == "lora",
        again=config.gradient_checkpointing,
        vllm=config.engine != TRANSFORMERS,
    )


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
        vllm = self.config.engine != TRANSFORMERS
        work = answering_work(items, prompt, new_tokens, self.config.rollout_tokens, vllm=vllm)
        return work.seconds(self.network, self.speed)

    def scores(self, tokens: int) -> float:
        """Return the seconds for the likelihoods of so many tokens."""
        return Work(read=tokens).seconds(self.network, self.speed)

    def memory(self, items: int, new_tokens: int) -> int:
        """Return the peak of :meth:`answers` to prompts of usual length, bytes."""
        at_once = Rollouts(self.config.rollout_tokens, new_tokens, items).at_once
        return answering_memory(self.setup, at_once, USUAL_PROMPT, new_tokens)

    @property
    def scoring_memory(self) -> int:
        """The peak of :meth:`scores`, bytes."""
        return answering_memory(self.setup, _SCORED_AT_ONCE // USUAL_PROMPT, USUAL_PROMPT, 1)
