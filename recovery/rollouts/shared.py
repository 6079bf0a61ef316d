"""An engine that every process has: each answers its part of the prompts."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from recovery import processes
from recovery.rollouts.engine import Completion, Engine, Progress, Sampling

GENERATE = "generate"


@dataclasses.dataclass(frozen=True)
class SharedEngine:
    """Asks the other processes for a part of the answers, by their helper ``GENERATE``; for the main process.

    What a prompt is answered does not depend on who answers it: its draws are numbered through the whole request.
    """

    engine: Engine

    @property
    def token_budget(self) -> int | None:
        """The engine's own."""
        return getattr(self.engine, "token_budget", None)

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling,
        progress: Progress | None = None,
    ) -> list[Completion]:
        """One completion a prompt, in order."""
        parts, first = [], sampling.first
        for part in processes.cut(prompts):
            parts.append((part, dataclasses.replace(sampling, first=first)))
            first += len(part)
        said = processes.ask(GENERATE, parts, lambda own, drawn: self.engine.generate(own, drawn, progress))
        if progress is not None and len(prompts) > len(said[0]):
            progress(len(prompts) - len(said[0]), sum(len(one.ids) for part in said[1:] for one in part))
        return [completion for part in said for completion in part]
