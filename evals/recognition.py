"""Recognition: whether a model prefers the right answer to a question among answers to other questions.

A model may know a fact and not say it: its answer has another form, or is likelier to begin otherwise. Answers are
therefore also compared by their likelihood as the response in the chat, one right against up to seven of its kind. The
style of answers makes no difference to that, and far more questions have a right one than by generation, so that a loss
can be told from chance; but it is a choice, as in an exam, and no measure of what a user is told.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from evals.answer_matching import contains, normalise
from evals.knowledge import GROUP
from evals.statistics import score_of
from recovery.data.corpus.text import share
from recovery.lazy_import import lazily
from recovery.rollouts.engine import Progress
from recovery.types import Item, Message, Probe, Score, SuiteResult

if TYPE_CHECKING:
    from evals.loglikelihood import Likelihood, Request
    from recovery.models.loaded import Loaded

loglikelihood = lazily("evals.loglikelihood")

RECOGNISED, CHANCE = "recognised", "recognised/chance"
WRONG, FEWEST_WRONG = 7, 3  # candidates besides the right one
_NUMBER = re.compile(r"v?\d[\d.,:]*")


def recognise(
    loaded: Loaded,
    result: SuiteResult,
    probes: Sequence[Probe],
    *,
    token_budget: int = 16384,
    progress: Progress | None = None,
) -> SuiteResult:
    """Return the ``result`` of asking ``probes`` with "recognised" in ``extra`` of its items, and the shares.

    It is no verdict: those are about the response, and whoever counts answers counts them.

    Details: "recognised", "recognised/chance" (one divided by the number of candidates, on average), and
    "NAME/recognised" for each group and for the control probes. A question with fewer than three answers of its kind
    among the others is not counted. The likelihood is that of the whole response, with the end of its turn.
    """
    among = {
        probe.id: [probe.answers[0], *wrong_answers(probe, probes)] for probe in probes if probe.form == "question"
    }
    asked = [probe for probe in probes if len(among.get(probe.id, ())) > FEWEST_WRONG]
    requests = [_request(loaded, probe.question, among[probe.id]) for probe in asked]
    scored = loglikelihood.likelihoods(loaded, requests, token_budget=token_budget, progress=progress)
    right = {probe.id: _first_is_likeliest(found) for probe, found in zip(asked, scored, strict=True)}
    items = tuple(
        replace(item, extra={**item.extra, RECOGNISED: right[item.id]}) if item.id in right else item
        for item in result.items
    )
    main = [item for item in items if item.id in right and not item.extra.get("control")]
    if not main:
        return result
    chances = [1 / len(among[item.id]) for item in main]
    details = {RECOGNISED: _score(main), CHANCE: Score(math.fsum(chances) / len(chances), 0.0, len(main))}
    groups = {name: [item for item in items if item.id in right and name in _groups(item)] for name in _names(items)}
    details |= {f"{name}/{RECOGNISED}": _score(members) for name, members in groups.items() if members}
    return replace(result, items=items, details={**result.details, **details})


def wrong_answers(probe: Probe, probes: Sequence[Probe]) -> list[str]:
    """Return up to seven first answers of other questions that are wrong here: of the same kind, nearest in length."""
    answer = probe.answers[0]
    found: dict[str, str] = {}
    for other in probes:
        text = other.answers[0] if other.answers else ""
        if other.id == probe.id or other.form != "question" or _kind(text) != _kind(answer):
            continue
        if contains(text, probe.answers) or any(contains(own, [text]) for own in probe.answers):
            continue
        if not contains(probe.question, [text]):
            found.setdefault(normalise(text), text)

    def distance(text: str) -> tuple[float, str]:
        return abs(math.log(len(text) / len(answer))) + 0.3 * share(f"{probe.id}\x1f{text}"), text

    return sorted((text for key, text in found.items() if key), key=distance)[:WRONG]


def _first_is_likeliest(scored: Sequence[Likelihood]) -> bool:
    totals = [one.total for one in scored]
    return totals.index(max(totals)) == 0


def _kind(answer: str) -> str:
    """Return "number", "words" or "word"."""
    if _NUMBER.fullmatch(answer):
        return "number"
    return "words" if " " in answer.strip() else "word"


def _request(loaded: Loaded, question: str, candidates: Sequence[str]) -> Request:
    """Return the conversation up to the responses, and the rest of each: the response and the end of its turn.

    They are split where the first of them differs, so that all tell of the same text.
    """
    asked = Message(role="user", content=question)
    whole: list[list[int]] = []
    for text in candidates:
        ids, mask = loaded.chat.conversation([asked, Message(role="assistant", content=text)])
        end = max((n for n, answered in enumerate(mask) if answered), default=len(ids) - 1)
        whole.append(ids[: end + 1])
    prompt = loaded.chat.prompt_ids([asked])
    cut = min(
        next((n for n, (a, b) in enumerate(zip(prompt, ids, strict=False)) if a != b), len(prompt)) for ids in whole
    )
    cut = min(cut, *(len(ids) - 1 for ids in whole))
    return whole[0][:cut], [ids[cut:] for ids in whole]


def _names(items: Sequence[Item]) -> list[str]:
    return sorted({name for item in items for name in _groups(item)})


def _groups(item: Item) -> set[str]:
    """Return the groups that an item counts for: "control" alone, or those of its tags."""
    if item.extra.get("control"):
        return {"control"}
    return {tag.removeprefix(GROUP) for tag in item.extra.get("tags", ()) if tag.startswith(GROUP)}


def _score(items: Sequence[Item]) -> Score:
    return score_of([float(item.extra[RECOGNISED]) for item in items], [item.group for item in items])
