"""Rollouts on several processes: each completes its part of the prompts. The interface needs no torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from recovery import distributed
from recovery.rollouts.engine import Completion, Engine, Progress, Sampling

GENERATE = "generate"


@dataclasses.dataclass(frozen=True)
class DistributedEngine:
    """Distributes prompts over all processes through their helper ``GENERATE``; used by the main process.

    A completion does not depend on the process that samples it: random draws are numbered over the whole request.
    """

    engine: Engine

    @property
    def token_budget(self) -> int | None:
        """Token budget of the local engine."""
        return getattr(self.engine, "token_budget", None)

    def generate(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling, progress: Progress | None = None
    ) -> list[Completion]:
        """Return one completion per prompt, in order."""
        parts, first = [], sampling.first
        for part in distributed.cut(prompts):
            parts.append((part, dataclasses.replace(sampling, first=first)))
            first += len(part)
        results = distributed.ask(GENERATE, parts, lambda own, part: self.engine.generate(own, part, progress))
        if progress is not None and len(prompts) > len(results[0]):
            progress(len(prompts) - len(results[0]), sum(len(one.ids) for part in results[1:] for one in part))
        return [completion for part in results for completion in part]
