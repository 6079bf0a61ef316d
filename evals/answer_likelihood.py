"""Likelihood of answers to questions: that of each candidate of the kind, as the response in the chat.

The cells S_ij of :mod:`evals.domain_pmi`, which have power where few answers are generated in full.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from evals.answer_kinds import candidates_of
from evals.domain_pmi import BITS, CANDIDATES, KIND, RIGHT, blocks_of
from evals.knowledge import GROUP
from evals.statistics import score_of
from recovery.lazy_import import lazily
from recovery.rollouts.engine import Progress
from recovery.types import Item, Message, Probe, Score, SuiteResult

if TYPE_CHECKING:
    from evals.loglikelihood import Request
    from recovery.models.loaded import Loaded

loglikelihood = lazily("evals.loglikelihood")

DECIMALS = 3


def measure(
    loaded: Loaded,
    questions: Sequence[Probe],
    probes: Sequence[Probe],
    *,
    suite: str,
    token_budget: int = 16384,
    progress: Progress | None = None,
) -> SuiteResult | None:
    """Return log2 p(candidate, end of turn | question) of each question and each candidate of its kind.

    ``probes`` are all of the corpus, from which candidates are drawn, ``questions`` those to ask; control questions are
    not. None if none of them can be compared: all kinds have too few answers. Items have the cells in ``extra`` (see
    :mod:`evals.domain_pmi`), and as the score centred top-1.
    """
    among = candidates_of(probes)
    asked = [probe for probe in questions if probe.id in among]
    if not asked:
        return None
    requests = [_request(loaded, probe.question, among[probe.id].texts) for probe in asked]
    scored = loglikelihood.likelihoods(loaded, requests, token_budget=token_budget, progress=progress)
    items, kinds = [], set[str]()
    for probe, found in zip(asked, scored, strict=True):
        own = among[probe.id]
        bits = [round(one.total / math.log(2), DECIMALS) for one in found]
        extra = {KIND: own.kind, BITS: bits, RIGHT: list(own.right)}
        if own.kind not in kinds:  # once a kind: every question would repeat them
            kinds.add(own.kind)
            extra[CANDIDATES] = list(own.texts)
        likeliest = own.texts[bits.index(max(bits))]
        items.append(Item(probe.id, probe.question, likeliest, 0.0, group=probe.source, extra=extra))
    first = {
        key: bool(is_first)
        for block in blocks_of((item.id, item.group, item.extra) for item in items)
        for key, is_first in zip(block.keys, block.first, strict=True)
    }
    items = [replace(item, score=float(first[item.id]), verdicts={"first": first[item.id]}) for item in items]
    groups = [{tag.removeprefix(GROUP) for tag in probe.tags if tag.startswith(GROUP)} for probe in asked]
    details = {}
    for name in sorted(set().union(*groups)):
        details[name] = _score([item for item, of in zip(items, groups, strict=True) if name in of])
    return SuiteResult(suite, _score(items), tuple(items), details)


def _request(loaded: Loaded, question: str, candidates: Sequence[str]) -> Request:
    """Return the conversation up to the responses, and the rest of each: the response and the end of its turn.

    They are split where the first label of any of them is, so that all tell of the same text. What a template writes
    before an answer (an empty thought) belongs to the question.
    """
    asked = Message(role="user", content=question)
    whole: list[list[int]] = []
    starts: list[int] = []
    for text in candidates:
        ids, mask = loaded.chat.conversation([asked, Message(role="assistant", content=text)])
        labels = [n for n, answered in enumerate(mask) if answered] or [len(ids) - 1]
        whole.append(ids[: labels[-1] + 1])
        starts.append(labels[0])
    shared = next(
        (n for n, column in enumerate(zip(*whole, strict=False)) if len(set(column)) > 1), min(map(len, whole))
    )
    cut = min(shared, *starts)
    return whole[0][:cut], [ids[cut:] for ids in whole]


def _score(items: Sequence[Item]) -> Score:
    return score_of([item.score for item in items], [item.group for item in items])
