"""Unanswerable: what a model replies to near misses, questions about what no document holds.

A response *declines* if its first 300 characters say, in English, that there is no such thing, that it is not
documented, or that the speaker does not know or cannot tell (:data:`_DECLINES`,
:func:`evals.instruction_following.refuses`); "N/A" and "unknown" decline as well, while "none", "null" and "no" may be
values. Any other response that says a word or a number which the question does not, function words aside, gives a
value: it is *confabulated*. The score is the share that is not. The questions that the documents answer are counted by
the same rules beside it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from evals.acceptance_rules import DECLINED, UNANSWERABLE
from evals.answer_matching import contained
from evals.generation import answer
from evals.instruction_following import refuses
from evals.statistics import score_of
from recovery.data.corpus.facts.fact import content
from recovery.models.chat_template import ChatFormat
from recovery.rollouts.engine import Engine, Progress
from recovery.types import Item, Message, Probe, Score, SuiteResult

WITH_PAGE = f"{UNANSWERABLE}_open_book"
# Details of the suite: of the near misses, and of the questions that the documents answer.
CONFABULATED, OF_ANOTHER = "confabulated", "of_another_subject"
KNOWN_DECLINED, KNOWN_ANSWERED = "known/declined", "known/answered"

_WITHIN = 300
_NOT = r"(?:\s+not|n['’]t)"
_TOLD = (
    r"(?:documented|mentioned|specified|described|defined|stated|listed|known|found|recogni[sz]ed|provided|available"
    r"|supported)"
)
_DECLINES = re.compile(
    rf"\bthere (?:is|was|are|were)(?:{_NOT}(?: an?| any)?| no)\b|\bthere['’]s (?:no|not)\b|\bno such\b"
    rf"|\b(?:do|does|did){_NOT} (?:(?:seem|appear) to )?(?:exist|appear|mention|specify|document|describe|say|state)\b"
    rf"|\b(?:is|was|are|were){_NOT} (?:(?:yet|currently|explicitly|publicly) )?{_TOLD}\b|^\W*(?:is )?not {_TOLD}\b"
    rf"|\b(?:is|was|are|were){_NOT} an? (?:\w+[ -]){{0,2}}?"
    r"(?:known|valid|real|recogni[sz]ed|documented|actual|existing|official)\b"
    r"|\bno (?:information|documentation|mention|record|evidence|knowledge|data)"
    r" (?:is |was )?(?:on|of|about|for|available|given)\b"
    rf"|\b(?:I|we)(?: really| also)? do{_NOT} (?:know|have (?:any |enough |access|information)|find|recogni[sz]e)\b"
    r"|\b(?:I['’]m|I am|we['’]re|we are) not (?:aware|familiar|sure|certain)\b"
    rf"|\b(?:could|can)(?:{_NOT}|not) (?:find|locate|determine|verify|confirm|tell|answer|be (?:found|determined))\b"
    r"|\b(?:un|not )documented\b|\bnon-?existent\b|^\W*(?:unknown|n/a|not (?:available|applicable))\W*$",
    re.IGNORECASE,
)


def declines(response: str) -> bool:
    """Return whether a response says that there is no such thing, that it is not documented or not known."""
    return refuses(response) or bool(_DECLINES.search(re.sub(r"[*_\s]+", " ", response[:_WITHIN])))


def gives_value(question: str, response: str) -> bool:
    """Return whether a response does not decline, and says anything that the question does not."""
    return not declines(response) and bool(content(response) - content(question))


def ask(
    chat: ChatFormat,
    engine: Engine,
    probes: Sequence[Probe],
    known: Iterable[Item],
    answers: Iterable[str],
    *,
    pages: Mapping[str, str] = MappingProxyType({}),
    suite: str = UNANSWERABLE,
    max_new_tokens: int = 48,
    window: int | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> SuiteResult:
    """Score near misses, prompted as chat with greedy decoding: the share that is not confabulated.

    Details: "declined", "confabulated", and "of_another_subject", those that say one of the ``answers`` to the corpus's
    questions, or of the probe's nearest subject, that is not in the question. "known/declined" and "known/answered" are
    about ``known``, the responses to the questions that the documents answer, with the question as their prompt. Probes
    of which ``pages`` has a prompt, by id, are asked by it: a value that its page says is said nonetheless.
    """
    asked = [pages.get(probe.id, probe.question) for probe in probes]
    turns = [(Message(role="user", content=prompt),) for prompt in asked]
    options: dict[str, Any] = {"max_new_tokens": max_new_tokens, "window": window, "seed": seed, "progress": progress}
    replies = answer(chat, engine, turns, **options)
    values = list(dict.fromkeys([*answers, *(value for probe in probes for value in probe.choices)]))
    said = contained([*(one.text for one in replies), *(probe.question for probe in probes)], [[v] for v in values])
    items = []
    for at, (probe, reply) in enumerate(zip(probes, replies, strict=True)):
        made_up = gives_value(probe.question, reply.text)
        verdicts = {
            DECLINED: declines(reply.text),
            CONFABULATED: made_up,
            OF_ANOTHER: made_up and any(row[at] and not row[at + len(probes)] for row in said),
        }
        extra = {"tags": [*probe.tags], "absent": probe.absent, "tokens": reply.tokens, "finished": reply.finished}
        items.append(Item(probe.id, asked[at], reply.text, float(not made_up), verdicts, probe.source, extra))
    details = {name: _share(items, [one.verdicts[name] for one in items]) for name in items[0].verdicts}
    if kept := [one for one in known if not one.extra.get("control")]:
        details[KNOWN_DECLINED] = _share(kept, [declines(one.response) for one in kept])
        details[KNOWN_ANSWERED] = _share(kept, [gives_value(one.prompt, one.response) for one in kept])
    return SuiteResult(suite, _share(items, [not one.verdicts[CONFABULATED] for one in items]), tuple(items), details)


def _share(items: Sequence[Item], verdicts: Sequence[bool]) -> Score:
    return score_of([*map(float, verdicts)], [one.group for one in items])
