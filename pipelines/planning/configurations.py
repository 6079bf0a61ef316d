"""The configurations of a cycle that `recover plan` compares, and the command line that runs each."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from recovery.config import DistillConfig, EvalConfig, MidtrainConfig, build

# Tokens of prompts and completions sampled at once: the first that fits is taken.
ROLLOUT_BUDGETS = (32768, 24576, 16384, 12288, 8192, 4096, 2048)


@dataclass(frozen=True)
class Way:
    """One configuration of a cycle, as flags."""

    title: str
    tuning: str
    gradient_checkpointing: bool = False
    vllm: bool = False
    sharded: bool = False


# In order of recommendation: full fine-tuning learns documents best; vLLM is listed but never recommended.
WAYS = (
    Way("full", "full"),
    Way("full, gradient checkpointing", "full", True),
    Way("full, gradient checkpointing, sharded", "full", True, sharded=True),
    Way("LoRA", "lora"),
    Way("LoRA, gradient checkpointing", "lora", True),
    Way("LoRA, gradient checkpointing, vLLM", "lora", True, vllm=True),
    Way("LoRA, gradient checkpointing, sharded", "lora", True, sharded=True),
)


@dataclass(frozen=True)
class Asked:
    """The user's request."""

    model: str
    text: str
    midtrain: MidtrainConfig
    distill: DistillConfig
    eval: EvalConfig
    trained: int
    knowledge: bool
    docs: Path | None
    recipe: str

    @property
    def in_cycles(self) -> bool:
        """Whether `recover cycle` can run it; other methods and teachers need `recover train`."""
        return in_cycles(self.distill)


def in_cycles(distill: DistillConfig) -> bool:
    """Whether `recover cycle` can run this recovery."""
    return distill.method == "opd" and distill.teacher == "base"


def command_line(asked: Asked, way: Way, budget: int, rollout_tokens: int, processes: int) -> str:
    """Return the command line of a cycle with that configuration."""
    shared = ["--tuning", way.tuning, *(["--gradient-checkpointing"] if way.gradient_checkpointing else [])]
    shared += ["--token-budget", str(budget), *_sharding(asked, way)]
    vllm = ["--engine", "vllm", "--engine-sleep"] if way.vllm else []
    sampling = ["--rollout-tokens", str(rollout_tokens)] if rollout_tokens != ROLLOUT_BUDGETS[0] else []
    sampling += vllm
    docs = str(asked.docs) if asked.docs is not None else "DOCS"
    epochs = [] if asked.midtrain.epochs is None else ["--epochs", f"{asked.midtrain.epochs:g}"]
    begin = ["--model", asked.model, "--docs", docs, *epochs]
    if asked.in_cycles and asked.distill.gather:
        alone = [] if asked.knowledge else ["--knowledge-teacher", "none"]
        return _started(["cycle", *begin, *shared, *sampling, *alone], processes)
    settings = ["--method", asked.distill.method, *([] if asked.distill.gather else ["--until", "0"])]
    if asked.distill.teacher != build(DistillConfig, {"method": asked.distill.method}).teacher:
        settings += ["--teacher", asked.distill.teacher]
    if asked.knowledge:  # the default only inside a cycle
        settings += ["--knowledge-teacher", "midtrained"]
    first = _started(["midtrain", *begin, *shared], processes)
    return f"{first} && {_started(['train', *settings, *shared, *sampling], processes)}"


def _sharding(asked: Asked, way: Way) -> list[str]:
    if not way.sharded:
        return []
    return ["--shard", "full", *([] if asked.distill.gather else ["--no-gather"])]


def _started(words: Sequence[str], processes: int) -> str:
    """Return a `recover` command line, launched on that many GPUs."""
    launcher = ["torchrun", "--standalone", "--nproc_per_node", str(processes), "-m", "recovery"]
    return shlex.join([*(launcher if processes > 1 else ["recover"]), *words])
