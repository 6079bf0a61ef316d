"""Abilities that a model should keep: lm-eval tasks on the model in memory, and how much of a score is left.

Against a reference measured on the same items (an earlier checkpoint; the clean model):

- **forgetting** = reference − now, the reference being the best of the earlier checkpoints where there are several
  (Chaudhry et al., Riemannian Walk, arXiv 1801.10112): the points that are gone;
- **retention** = now / reference: the share that is still there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from evals.gate import Measurement
from evals.harness import EngineLM, run_lm_eval
from evals.statistics import paired_contrast, score_of
from recovery.lazily import lazily
from recovery.types import Item, Score, SuiteResult

optimize = lazily("scipy.optimize")

_ALPHA = 0.025  # on each side
_MOST = 100.0  # a ratio beyond this says only that the reference knew next to nothing
# Which of a task's metrics is its headline: the first of these that it has, else its first.
_HEADLINES = (
    "acc_norm",
    "acc",
    "exact_match",
    "prompt_level_strict_acc",
    "f1",
    "mc2",
    "mc1",
    "bleu",
    "word_perplexity",
)


@dataclass(frozen=True)
class Interval:
    """A figure with its 95% interval, from ``n`` items that both checkpoints answered."""

    value: float
    low: float
    high: float
    n: int


def forgetting(now: Measurement, earlier: Mapping[str, Measurement]) -> tuple[str, Interval] | None:
    """max over earlier checkpoints of their score − now, and which it was: positive where something is gone.

    The interval is that of :func:`~evals.statistics.paired_contrast`, paired by item and clustered by group; that the
    best of several was chosen is not in it. None where no item is common to all of them.
    """
    common = _common(now, *earlier.values())
    if not earlier or not common:
        return None
    before = {name: [one.items[key] for key in common] for name, one in earlier.items()}
    best = max(before, key=lambda name: sum(before[name]))
    lost = paired_contrast(before[best], [now.items[key] for key in common], _groups(now, common), alpha=_ALPHA)
    return best, Interval(lost.value, lost.low, lost.high, lost.n)


def retention(now: Measurement, reference: Measurement) -> Interval | None:
    """now / reference: 1 where everything is still there.

    The interval holds the ratios that the same test does not reject (Nam & Blackwelder's, for verdicts): with no item
    changed it still has a width. None where no item is common, or the reference has none of them right.
    """
    common = _common(now, reference)
    one, two = [now.items[key] for key in common], [reference.items[key] for key in common]
    if sum(two) <= 0:
        return None
    bounds = partial(paired_contrast, one, two, _groups(now, common), alpha=_ALPHA)
    return Interval(
        sum(one) / sum(two),
        _root(lambda ratio: bounds(factor=ratio).low, 0.0),
        _root(lambda ratio: bounds(factor=ratio).high, math.inf),
        len(common),
    )


def _root(falling: Callable[[float], float], otherwise: float) -> float:
    """Where a falling function of a ratio crosses 0; ``otherwise`` where it does not."""
    if falling(0.0) <= 0 or falling(_MOST) >= 0:
        return otherwise
    return float(optimize.brentq(falling, 0.0, _MOST, xtol=1e-6))


def run_tasks(
    lm: EngineLM, tasks: Mapping[str, Any], *, limit: int | None = None, chat: bool | None = None
) -> list[SuiteResult]:
    """Run loaded lm-eval tasks (:func:`~evals.tasks.load_tasks`); one result a task, with its items.

    ``chat`` puts requests through the chat template (None: only those of tasks that generate). The headline is
    lm-eval's own aggregate, its standard error the one over our items where the aggregate is their mean (so that it can
    be paired), else lm-eval's.
    """
    results = run_lm_eval(lm, tasks, limit=limit, chat=chat)
    return [_suite(name, samples, results["results"][name]) for name, samples in sorted(results["samples"].items())]


def _common(*measured: Measurement) -> list[str]:
    """The items that all have, in the first one's order."""
    return [key for key in measured[0].items if all(key in other.items for other in measured[1:])]


def _groups(measured: Measurement, keys: Sequence[str]) -> list[str]:
    return [measured.groups.get(key, "") for key in keys]


def _suite(task: str, samples: Sequence[Mapping[str, Any]], aggregates: Mapping[str, Any]) -> SuiteResult:
    """One task's result; where a task has several filters, each metric is named metric/filter."""
    filters = list(dict.fromkeys(str(sample["filter"]) for sample in samples))
    metrics = {
        f"{metric},{name}": _score(f"{metric},{name}", _values(samples, metric, name), aggregates)
        for name in filters
        for metric in samples[0]["metrics"]
    }
    headline = _headline(list(metrics))
    metric, chosen = headline.split(",", 1)
    items = [_item(sample, metric) for sample in samples if sample["filter"] == chosen]
    details = {name.removesuffix(",none").replace(",", "/"): score for name, score in metrics.items()}
    return SuiteResult(task, metrics[headline], tuple(items), details)


def _values(samples: Sequence[Mapping[str, Any]], metric: str, name: str) -> list[float]:
    values = [_number(sample[metric]) for sample in samples if sample["filter"] == name]
    return [value for value in values if value is not None]


def _score(key: str, values: list[float], aggregates: Mapping[str, Any]) -> Score:
    """lm-eval's aggregate ``key`` ("acc,none") with a standard error and the number of items."""
    aggregate = _number(aggregates.get(key))
    ours = score_of(values) if values else None
    if ours is not None and (aggregate is None or abs(ours.value - aggregate) < 1e-9):
        return ours
    metric, name = key.split(",", 1)
    stderr = _number(aggregates.get(f"{metric}_stderr,{name}"))
    return Score(aggregate if aggregate is not None else 0.0, stderr or 0.0, int(aggregates.get("sample_len", 0)))


def _headline(keys: Sequence[str]) -> str:
    for wanted in _HEADLINES:
        for key in keys:
            if key.split(",", 1)[0] == wanted:
                return key
    return keys[0]


def _item(sample: Mapping[str, Any], metric: str) -> Item:
    value = _number(sample[metric])
    requests = _requests(sample["arguments"])
    return Item(
        id=str(sample["doc_id"]),
        prompt=str(requests[0][0]),
        response=_response(sample["filtered_resps"], requests),
        score=value if value is not None else 0.0,
        verdicts={"correct": bool(value)} if value in (0.0, 1.0) else {},
        extra={"target": str(sample["target"])},
    )


def _response(answers: Sequence[Any], requests: Sequence[Sequence[Any]]) -> str:
    """What was generated; among scored continuations, the likeliest one."""
    if all(isinstance(answer, str) for answer in answers):
        return "\n".join(answers)
    totals = [answer[0] if isinstance(answer, tuple | list) else answer for answer in answers]
    best = max(range(len(totals)), key=totals.__getitem__)
    return str(requests[best][1]) if len(requests) == len(totals) and len(requests[best]) > 1 else str(totals[best])


def _requests(arguments: Any) -> list[list[Any]]:
    """The arguments of a sample's requests: lm-eval gives tuples, or mappings of mappings once it has cleaned them."""
    rows = arguments.values() if isinstance(arguments, Mapping) else arguments
    return [list(row.values()) if isinstance(row, Mapping) else list(row) for row in rows]


def _number(value: Any) -> float | None:
    """A plain number; metrics that are lists or pairs are aggregated by the task alone."""
    return float(value) if isinstance(value, bool | int | float) else None
