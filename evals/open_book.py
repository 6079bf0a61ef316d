"""Open book, and gap closed: the share of the clean model's gain from reading the page that training gives without it.

Open book: the clean model answers each question with the passage of its page in the prompt. What it can read off the
page is the most that training on the page can be asked to teach it.

Gap closed is computed from stored responses (:mod:`pipelines.evaluation.knowledge_figures` reads them). A response r_i
holds an answer if an accepted one occurs in it as whole words. An answer that is given to every question is right now
and then, so each question's value is

    c_i = 1[r_i holds a right answer of q_i] − mean_{j≠i} 1[r_j holds a right answer of q_i],

the mean over questions whose own answers are wrong for q_i. A model with one answer to all questions has c_i ≤ 0. Then

    gap closed = (asked after − asked base) / (asked open book − asked base),

each the mean of c_i over the same questions.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from evals import knowledge
from evals.answer_matching import contained
from evals.statistics import Floats, interval, resampled_means
from recovery.models.chat_template import ChatFormat
from recovery.rollouts.engine import Engine
from recovery.types import Probe, SuiteResult

OPEN_BOOK = "open_book"
"""Suite of the clean model's answers with the passage in the prompt."""
LEAST_GAP = 0.10


@dataclass(frozen=True)
class Answered:
    """A stored response to a question: accepted answers, and the page that the question is about."""

    response: str
    answers: tuple[str, ...]
    group: str = ""


@dataclass(frozen=True)
class GapClosed:
    """Gap closed with its 95% interval by page; None with the reason in ``undefined``.

    ``after``, ``base`` and ``open_book`` are the answers corrected for guessing, on the ``n`` same questions.
    """

    value: float | None
    low: float | None
    high: float | None
    after: float
    base: float
    open_book: float
    n: int
    undefined: str = ""


def corrected(asked: Sequence[Answered]) -> Floats:
    """Return c_i [n] of the responses to n questions, each from -1 to 1."""
    answers = [one.answers for one in asked]
    # held[i, j]: response j holds a right answer of question i, [n, n]
    held = np.array(contained([one.response for one in asked], answers), dtype=bool).reshape(len(asked), len(asked))
    # right[i, k]: the k-th of all accepted answers, which is question owners[k]'s, is right for question i, too, [n, m]
    owners = np.array([at for at, one in enumerate(asked) for _ in one.answers], dtype=np.int64)
    right = np.array(contained([answer for one in asked for answer in one.answers], answers), dtype=bool)
    # wrong[i, j]: no accepted answer of question j is right for question i, [n, n]
    wrong = np.ones(held.shape, dtype=bool)
    rows, columns = np.nonzero(right.reshape(len(asked), len(owners)))
    wrong[rows, owners[columns]] = False
    # c_i: the own response, less the mean over those to questions of which all answers are wrong here
    return held.diagonal() - (held & wrong).sum(1) / np.maximum(wrong.sum(1), 1)


def gap_closed(
    after: Sequence[Sequence[Mapping[str, Answered]]],
    base: Sequence[Mapping[str, Answered]],
    open_book: Sequence[Mapping[str, Answered]],
) -> GapClosed | None:
    """Return the gap that checkpoints closed, pooled over corpora; None if no question was put to all three.

    ``after`` has the responses by question of each seed and corpus, ``base`` and ``open_book`` those of each corpus.
    Guessing is corrected within a corpus. The interval is a joint bootstrap of pages, crossed with seeds.
    """
    values: list[list[Floats]] = [[] for _ in after]
    groups: list[str] = []
    for corpus, (closed, opened) in enumerate(zip(base, open_book, strict=True)):
        sides = [seed[corpus] for seed in after]
        keys = [key for key in closed if key in opened and all(key in side for side in sides)]
        if not keys:
            continue
        fixed = [corrected([side_responses[key] for key in keys]) for side_responses in (closed, opened)]
        for number, side in enumerate(sides):
            values[number].append(np.stack([corrected([side[key] for key in keys]), *fixed], axis=-1))
        groups += [closed[key].group and f"{corpus}/{closed[key].group}" for key in keys]
    if not groups:
        return None
    joined = np.array([np.concatenate(seed_values) for seed_values in values])
    score, closed_book, with_page = (float(mean) for mean in joined.mean((0, 1)))
    draws = resampled_means(joined, groups)
    gaps = draws[:, 2] - draws[:, 1]
    lowest_gap, _ = interval(gaps)
    if not lowest_gap > LEAST_GAP:
        reason = (
            f"with the passage the clean model answers {100 * (with_page - closed_book):.1f} points more than without, "
            f"at least {100 * lowest_gap:.1f} with 97.5% confidence: above {100 * LEAST_GAP:g} are needed"
        )
        return GapClosed(None, None, None, score, closed_book, with_page, len(groups), reason)
    low, high = interval((draws[:, 0] - draws[:, 1]) / gaps)
    return GapClosed(
        (score - closed_book) / (with_page - closed_book), low, high, score, closed_book, with_page, len(groups)
    )


# Chosen on 48 training questions of examples/nextjs by SmolLM2-135M-Instruct's answers (14 right; 13 by the form "Use
# this text to answer the question."), and frozen: a worse one would raise the gap closed.
PROMPT = "Read this text:\n{passage}\n\n{question}"
MOST_CHARACTERS = 1200
_WORD = re.compile(r"\w+")


def passage_of(probe: Probe, pages: Mapping[str, str]) -> str:
    """Return the text around a probe's passage on its page, up to 1,200 characters; "" if it has no passage.

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
    keeps_answer = _holds(around, probe.answers) or not _holds(passage, probe.answers)
    return around.strip() if keeps_answer else passage[:MOST_CHARACTERS]


def opened(questions: Sequence[Probe], pages: Mapping[str, str]) -> list[Probe]:
    """Return the questions that have a passage, with it in the prompt and their old ids; no control questions."""
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
    """Return the span of a passage on a page, by all of its words, else by its first or its last ones."""
    words = _WORD.findall(passage)
    tries = [words]
    for size in (8, 4):
        tries += [words[:size], words[-size:]] if len(words) > size else []
    return next((match.span() for part in tries if part and (match := _words_in(part, page))), None)


def _words_in(words: Sequence[str], text: str) -> re.Match[str] | None:
    """Find words with any marks between them: a page has markup that its plain passages lack."""
    return re.search(r"(?<!\w)" + r"\W+".join(map(re.escape, words)) + r"(?!\w)", text)


def _holds(text: str, answers: Sequence[str]) -> bool:
    return any(_words_in(words, text) is not None for answer in answers if (words := _WORD.findall(answer)))
