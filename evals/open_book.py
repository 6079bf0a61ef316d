"""Open book: the clean model answers each question with the passage of its page in the prompt.

What it can read off the page is the most that training on the page can be asked to teach it (:mod:`evals.gap_closed`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from evals import knowledge
from evals.gap_closed import OPEN_BOOK
from recovery.models.chat_template import ChatFormat
from recovery.rollouts.engine import Engine
from recovery.types import Probe, SuiteResult

# Chosen on 48 training questions of examples/nextjs by SmolLM2-135M-Instruct's answers (14 right; 13 by the form "Use
# this text to answer the question."), and frozen: a worse one would raise the gap closed.
PROMPT = "Read this text:\n{passage}\n\n{question}"
MOST_CHARACTERS = 1200
_WORD = re.compile(r"\w+")


def passage_of(probe: Probe, pages: Mapping[str, str]) -> str:
    """Return what stands around a probe's passage on its page, up to 1,200 characters; "" if no passage is known.

    ``pages`` are the documents' texts by id. A passage that is not found on its page is returned alone.
    """
    passage = probe.passage.strip()
    page = pages.get(probe.source, "")
    place = _place(passage, page) if passage else None
    if place is None:
        return passage[:MOST_CHARACTERS]
    start, end = place
    spare = max(0, MOST_CHARACTERS - (end - start))
    first = max(0, min(start - spare // 2, len(page) - MOST_CHARACTERS))
    around = page[first : first + MOST_CHARACTERS]
    # whole lines, else whole words, at both ends
    if first and (cut := re.match(r"[^\n]{0,200}\n|\S*\s", around)) and first + cut.end() <= start:
        around = around[cut.end() :]
    if first + MOST_CHARACTERS < len(page) and (cut := re.search(r"\s\S*\Z", around)):
        around = around[: cut.start()]
    kept = _holds(around, probe.answers) or not _holds(passage, probe.answers)
    return around.strip() if kept else passage[:MOST_CHARACTERS]


def opened(questions: Sequence[Probe], pages: Mapping[str, str]) -> list[Probe]:
    """Return the questions of which a passage is known, with it in the prompt, and their ids; no control questions."""
    with_passage = ((probe, passage_of(probe, pages)) for probe in questions if not probe.control)
    return [
        replace(probe, question=PROMPT.format(passage=passage, question=probe.question))
        for probe, passage in with_passage
        if passage
    ]


def ask(
    chat: ChatFormat, engine: Engine, questions: Sequence[Probe], *, suite: str = OPEN_BOOK, **options: Any
) -> SuiteResult:
    """Score questions that :func:`opened` returned by the judge of :func:`evals.knowledge.ask`, with its options."""
    asked = knowledge.ask(chat, engine, questions, suite=suite, **options)
    items = tuple(replace(item, score=float(item.verdicts["contains"])) for item in asked.items)
    return replace(asked, items=items, score=asked.details["contains"])


def _place(passage: str, page: str) -> tuple[int, int] | None:
    """Return where a passage stands on a page, by its words: whole, else from its first or to its last words."""
    words = _WORD.findall(passage)
    tries = [words]
    for size in (8, 4):
        tries += [words[:size], words[-size:]] if len(words) > size else []
    return next((found.span() for some in tries if some and (found := _words_in(some, page))), None)


def _words_in(words: Sequence[str], text: str) -> re.Match[str] | None:
    """Find words with any marks between them: a page has markup that its plain passages lack."""
    return re.search(r"(?<!\w)" + r"\W+".join(map(re.escape, words)) + r"(?!\w)", text)


def _holds(text: str, answers: Sequence[str]) -> bool:
    return any(_words_in(words, text) is not None for answer in answers if (words := _WORD.findall(answer)))
