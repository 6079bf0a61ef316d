"""What a suite over responses is: it selects prompts, and scores the responses to them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from recovery.types import Item, Prompt, SuiteResult

PREFIX = "behaviour/"


class ResponseSuite(Protocol):
    """A suite that is scored on responses which instruction following has mostly generated already."""

    @property
    def name(self) -> str:
        """Its name; in the tracker and in gate rules it follows :data:`PREFIX`."""
        ...

    @property
    def further(self) -> bool:
        """Whether more prompts are answered for it if instruction following has too few of them."""
        ...

    def holds(self, prompt: Prompt) -> bool:
        """Return whether a prompt belongs to this suite."""
        ...

    def result(self, items: Sequence[Item]) -> SuiteResult:
        """Return the suite's result from items of :mod:`evals.instruction_following`, one for each of its prompts.

        Each item of the result is scored from 0 to 1 and made by ``as_headline``; ``tokens``, ``finished`` and ``tags``
        of its ``extra`` are kept.
        """
        ...
