"""Behaviour beside IFEval: suites that look at one kind of request each, mostly at answers that were given already.

A suite is a line of :data:`SUITES`: which prompts belong to it. An answer that was judged for instruction following is
judged for a suite too, and nothing is asked twice; only where too few of those prompts belong to a suite are further
ones put. A suite of a user's own is a file of prompts with checks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from evals.judging import REFUSAL, as_headline, can_be_judged, details_of
from evals.statistics import score_of
from recovery.checkers import check_prompts
from recovery.errors import UsageError
from recovery.prompts import load_prompts
from recovery.types import Item, Prompt, SuiteResult

PREFIX = "behaviour/"


@dataclass(frozen=True)
class Behaviour:
    """A suite: prompts with this ``tag``, of so many user ``turns`` or more, with an instruction of this ``group``.

    What is left at its default asks nothing. With a group, only its instructions count: an answer in the right form
    is right in form whatever else it got wrong.
    """

    name: str
    tag: str = ""
    turns: int = 1
    group: str = ""

    @property
    def suite(self) -> str:
        """Its name in the tracker and in gates."""
        return PREFIX + self.name

    def holds(self, prompt: Prompt) -> bool:
        """Whether a prompt belongs to this suite."""
        return (
            can_be_judged(prompt)
            and (not self.tag or self.tag in prompt.tags)
            and sum(message["role"] == "user" for message in prompt.messages) >= self.turns
            and (not self.group or any(self._counts(check.instruction) for check in prompt.checks))
        )

    def result(self, items: Sequence[Item]) -> SuiteResult:
        """The suite's result from items as :mod:`evals.judging` makes them, every one in the headline.

        An item counts when all its instructions that count are followed (strictly), a refusal where it is right, a
        reference answer where it occurs in the response.
        """
        seen = [self._seen(item) for item in items]
        score = score_of([item.score for item in seen], [item.group for item in seen])
        return SuiteResult(self.suite, score, tuple(seen), details_of(seen))

    def _counts(self, instruction: str) -> bool:
        return not self.group or instruction.startswith(f"{self.group}:")

    def _seen(self, item: Item) -> Item:
        """An item as this suite looks at it."""
        if item.extra["rule"] == "answer":
            return as_headline(item, score=float(item.verdicts["contains"]))
        if not self.group:
            return as_headline(item)
        strict = {name: kept for name, kept in item.verdicts.items() if self._counts(name)}
        loose = {name: kept for name, kept in item.extra["loose_verdicts"].items() if self._counts(name)}
        extra = {
            **item.extra,
            "loose": all(loose.values()),
            "loose_verdicts": loose,
            "instructions": [name for name in item.extra["instructions"] if self._counts(name)],
        }
        return as_headline(item, score=float(all(strict.values())), verdicts=strict, extra=extra)


SUITES = (
    Behaviour(REFUSAL, tag=REFUSAL),  # declines what is to be declined, answers what only sounds like it
    Behaviour("formatting", group="detectable_format"),  # lists, titles, sections, highlights, JSON, fixed choices
    Behaviour("dialogue", turns=2),  # a request in the second turn of a conversation, or a later one
    Behaviour("length", group="length_constraints"),  # as many words, sentences and paragraphs as asked for
)


def own_suites(paths: Sequence[Path], problems: list[str]) -> dict[str, list[Prompt]]:
    """A user's own suites by name: the stem of each file of prompts.

    Lines that cannot be used go to ``problems`` by their number: broken ones, ids used before, prompts that nothing
    says how to judge. Raises UsageError for a name that is taken, or a file without a usable line.
    """
    found: dict[str, list[Prompt]] = {}
    for path in paths:
        if path.stem in found or path.stem in {suite.name for suite in SUITES}:
            raise UsageError(f"--behaviour {path}: there is a suite {PREFIX}{path.stem} already: rename the file")
        found[path.stem] = load_prompts(path, problems=problems, check=partial(_check, seen=set()))
    return found


def _check(prompt: Prompt, seen: set[str]) -> None:
    """Raises ValueError, saying why, for a prompt whose answer could not be judged, or not be told from another's."""
    if not can_be_judged(prompt):
        raise ValueError('nothing says what a good answer is: give instruction_id_list, answer or the tag "refusal"')
    if prompt.id in seen:
        raise ValueError(f"the key {prompt.id!r} is an earlier line's")
    try:
        check_prompts([prompt])
    except UsageError as error:
        raise ValueError(str(error)) from error
    seen.add(prompt.id)
