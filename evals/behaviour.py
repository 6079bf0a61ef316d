"""Behaviour suites in addition to IFEval: one kind of request each, mostly scored on existing responses.

A suite is an entry of :data:`SUITES`; no other registration is needed. Responses already generated for instruction
following are reused, so that no prompt is generated twice; further prompts are added only if too few belong to a suite.
A user-defined suite is a file of prompts with checks.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from evals.instruction_following import REFUSAL, as_headline, can_be_judged, details_of
from evals.statistics import score_of, score_of_items
from recovery.data.checkers import check_prompts
from recovery.data.prompt_files import load_prompts
from recovery.errors import UsageError
from recovery.types import Item, Prompt, SuiteResult

# Suite "no_loops": the share of responses that do not fall into a loop, scored on every response.
#
# A model that was trained too long, or on too narrow a set of states, repeats itself: a fault that instruction
# checkers do not detect. A response loops if a stretch of at most 200 words occurs at least four times in direct
# succession, over at least 24 words, or if one character does 200 times. Marks without a space between them are one
# word, so that the lines of a table or under a heading are no loops. The detail "repeated_4grams" is a graded form:
# the mean share of a response's 4-grams that occurred in it before (seq-rep-4 of Welleck et al. 2019, arXiv
# 1908.04319); lower is better.

TIMES, LEAST, LONGEST = 4, 24, 200
_GRAM = 4
_WORD = re.compile(r"\w+|[^\w\s]+")
_ONE_CHARACTER = re.compile(r"(\S)\1{199}")


@dataclass(frozen=True)
class NoLoops:
    """The suite; it takes every prompt that is answered anyway, and none besides.

    ``name`` follows :data:`PREFIX` in the tracker and in gate rules; ``further``: whether more prompts are answered for
    a suite if instruction following has too few of them.
    """

    name: str = "no_loops"
    further: bool = False

    def holds(self, _prompt: Prompt) -> bool:
        """Return whether a prompt belongs to this suite: each one does."""
        return True

    def result(self, items: Sequence[Item]) -> SuiteResult:
        """Return the share of responses without a loop, from items of :mod:`evals.instruction_following`.

        Each item of the result is scored from 0 to 1 and made by ``as_headline``; ``tokens``, ``finished`` and ``tags``
        of its ``extra`` are kept.
        """
        scored = [_scored(item) for item in items]
        repeated = score_of([item.extra["repeated_4grams"] for item in scored])
        return SuiteResult(PREFIX + self.name, score_of_items(scored), tuple(scored), {"repeated_4grams": repeated})


def loop_in(response: str) -> int:
    """Return the length in words of the shortest stretch that is repeated in a loop; 0 if there is none."""
    if _ONE_CHARACTER.search(response):
        return 1
    words = _WORD.findall(response)
    for period in range(1, min(len(words) // TIMES, LONGEST) + 1):
        needed = max(TIMES * period, LEAST) - period
        run = 0
        for at in range(period, len(words)):
            run = run + 1 if words[at] == words[at - period] else 0
            if run >= needed:
                return period
    return 0


def repeated_4grams(response: str) -> float:
    """Return the share of a response's 4-grams that occurred in it before; 0 for fewer than four words."""
    words = _WORD.findall(response)
    grams = [tuple(words[at : at + _GRAM]) for at in range(len(words) - _GRAM + 1)]
    return 1.0 - len(set(grams)) / len(grams) if grams else 0.0


def _scored(item: Item) -> Item:
    period = loop_in(item.response)
    extra = {name: item.extra[name] for name in ("tokens", "finished", "tags") if name in item.extra}
    extra |= {"rule": "loops", "repeated_4grams": repeated_4grams(item.response)}
    extra |= {"loop_words": period} if period else {}
    return as_headline(item, score=float(not period), verdicts={"no_loop": not period}, extra=extra)


# A suite of requests of one kind: it selects prompts, and scores the responses to them.

PREFIX = "behaviour/"


@dataclass(frozen=True)
class Behaviour:
    """A suite: prompts with this ``tag``, at least ``turns`` user turns and an instruction of this ``group``.

    A field left at its default does not restrict the prompts. With a group, only the instructions of that group are
    scored.
    """

    name: str
    tag: str = ""
    turns: int = 1
    group: str = ""
    further: bool = True

    @property
    def suite(self) -> str:
        """The suite's name in the tracker and in gate rules."""
        return PREFIX + self.name

    def holds(self, prompt: Prompt) -> bool:
        """Return whether a prompt belongs to this suite."""
        return (
            can_be_judged(prompt)
            and (not self.tag or self.tag in prompt.tags)
            and sum(message["role"] == "user" for message in prompt.messages) >= self.turns
            and (not self.group or any(self._is_scored(check.instruction) for check in prompt.checks))
        )

    def result(self, items: Sequence[Item]) -> SuiteResult:
        """Return the suite's result from items of :mod:`evals.instruction_following`, which all count in the headline.

        An item is correct if all its scored instructions are followed (strict), a refusal prompt if it is declined or
        answered as required, a prompt with a reference answer if the answer occurs in the response.
        """
        scored = [self._scored(item) for item in items]
        return SuiteResult(self.suite, score_of_items(scored), tuple(scored), details_of(scored))

    def _is_scored(self, instruction: str) -> bool:
        return instruction.startswith(f"{self.group}:")

    def _scored(self, item: Item) -> Item:
        """Return the item scored on this suite's instructions only."""
        if item.extra["rule"] == "answer":
            return as_headline(item, score=float(item.verdicts["contains"]))
        if not self.group:
            return as_headline(item)
        strict = {name: verdict for name, verdict in item.verdicts.items() if self._is_scored(name)}
        loose = {name: verdict for name, verdict in item.extra["loose_verdicts"].items() if self._is_scored(name)}
        repaired = item.extra.get("repaired")
        extra = {
            **item.extra,
            **({"repaired": {name: repaired[name] for name in strict}} if repaired else {}),
            "loose": all(loose.values()),
            "loose_verdicts": loose,
            "instructions": [name for name in item.extra["instructions"] if self._is_scored(name)],
        }
        return as_headline(item, score=float(all(strict.values())), verdicts=strict, extra=extra)


SUITES: tuple[Behaviour | NoLoops, ...] = (
    Behaviour(REFUSAL, tag=REFUSAL),  # declines harmful requests, answers those that only sound harmful
    Behaviour("formatting", group="detectable_format"),  # lists, titles, sections, highlights, JSON, fixed choices
    Behaviour("dialogue", turns=2),  # a request in the second or a later turn of a conversation
    Behaviour("length", group="length_constraints"),  # the required number of words, sentences and paragraphs
    NoLoops(),  # every response: whether it repeats itself
)


def own_suites(paths: Sequence[Path], problems: list[str]) -> dict[str, list[Prompt]]:
    """Load user-defined suites by name, the stem of each prompt file.

    Unusable lines are appended to ``problems`` with their number: invalid lines, duplicate ids, prompts without
    anything to judge the response by. Raises UsageError for a name in use, or a file without a usable line.
    """
    suites: dict[str, list[Prompt]] = {}
    for path in paths:
        if path.stem in suites or path.stem in {suite.name for suite in SUITES}:
            raise UsageError(f"--behaviour {path}: the suite {PREFIX}{path.stem} already exists: rename the file")
        suites[path.stem] = load_prompts(path, problems=problems, check=partial(_check, seen=set()))
    return suites


def _check(prompt: Prompt, seen: set[str]) -> None:
    """Raise ValueError with the reason for a prompt that cannot be judged, or whose id was used before."""
    if not can_be_judged(prompt):
        raise ValueError('the prompt cannot be judged: give instruction_id_list, answer or the tag "refusal"')
    if prompt.id in seen:
        raise ValueError(f"the key {prompt.id!r} is taken by an earlier line")
    try:
        check_prompts([prompt])
    except UsageError as error:
        raise ValueError(str(error)) from error
    seen.add(prompt.id)
