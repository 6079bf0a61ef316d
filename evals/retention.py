"""Retention of general abilities: lm-eval tasks on the model in memory, with forgetting and retention metrics.

Both metrics compare with a reference measured on the same items (an earlier checkpoint, or the clean model):

- **forgetting** = reference − now, the points lost; with several earlier checkpoints the reference is the best one
  (Chaudhry et al., Riemannian Walk, arXiv 1801.10112);
- **retention** = now / reference, the share retained.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from evals.acceptance_rules import Measurement
from evals.lm_eval_adapter import EngineLM, run_lm_eval
from evals.statistics import paired_contrast, score_of
from recovery.lazy_import import lazily
from recovery.types import Item, Score, SuiteResult

optimize = lazily("scipy.optimize")

_ALPHA = 0.025  # per side
_MOST = 100.0  # upper limit of the ratio; larger ones only mean that the reference is close to 0
# The headline of a task is the first of these metrics that it has, otherwise its first metric.
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
    """A value with its 95% interval, from the ``n`` common items of both checkpoints."""

    value: float
    low: float
    high: float
    n: int


def forgetting(now: Measurement, earlier: Mapping[str, Measurement]) -> tuple[str, Interval] | None:
    """Return the best earlier checkpoint and its score − now, which is positive if something was lost.

    The interval is that of :func:`~evals.statistics.paired_contrast`, paired by item and clustered by group; it does
    not account for the selection of the best checkpoint. None if no item is common to all of them.
    """
    common = _common(now, *earlier.values())
    if not earlier or not common:
        return None
    before = {name: [one.items[key] for key in common] for name, one in earlier.items()}
    best = max(before, key=lambda name: sum(before[name]))
    lost = paired_contrast(before[best], [now.items[key] for key in common], _groups(now, common), alpha=_ALPHA)
    return best, Interval(lost.value, lost.low, lost.high, lost.n)


def retention(now: Measurement, reference: Measurement) -> Interval | None:
    """Return now / reference: 1 if nothing was lost.

    The interval contains the ratios that the same test does not reject (Nam & Blackwelder's, for verdicts), so it has
    a positive width even if no item changed. None if no item is common, or the reference scores 0 on all of them.
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
    """Return the root of a decreasing function of a ratio; ``otherwise`` if it has none."""
    if falling(0.0) <= 0 or falling(_MOST) >= 0:
        return otherwise
    return float(optimize.brentq(falling, 0.0, _MOST, xtol=1e-6))


def run_tasks(
    lm: EngineLM, tasks: Mapping[str, Any], *, limit: int | None = None, chat: bool | None = None
) -> list[SuiteResult]:
    """Run loaded lm-eval tasks (:func:`~evals.lm_eval_tasks.load_tasks`); return one result per task, with its items.

    ``chat`` applies the chat template (None: only for tasks that generate). The headline is lm-eval's own aggregate.
    Its standard error is computed over the items if the aggregate is their mean (so that it can be paired), otherwise
    it is lm-eval's.
    """
    results = run_lm_eval(lm, tasks, limit=limit, chat=chat)
    return [_suite(name, samples, results["results"][name]) for name, samples in sorted(results["samples"].items())]


def _common(*measured: Measurement) -> list[str]:
    """Return the ids of the common items, in the order of the first measurement."""
    return [key for key in measured[0].items if all(key in other.items for other in measured[1:])]


def _groups(measured: Measurement, keys: Sequence[str]) -> list[str]:
    return [measured.groups.get(key, "") for key in keys]


def _suite(task: str, samples: Sequence[Mapping[str, Any]], aggregates: Mapping[str, Any]) -> SuiteResult:
    """Return one task's result; if a task has several filters, each metric is named metric/filter."""
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
    """Return lm-eval's aggregate ``key`` ("acc,none") with a standard error and the number of items."""
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
    """Return the generated text; for scored continuations, the most likely one."""
    if all(isinstance(answer, str) for answer in answers):
        return "\n".join(answers)
    totals = [answer[0] if isinstance(answer, tuple | list) else answer for answer in answers]
    best = max(range(len(totals)), key=totals.__getitem__)
    return str(requests[best][1]) if len(requests) == len(totals) and len(requests[best]) > 1 else str(totals[best])


def _requests(arguments: Any) -> list[list[Any]]:
    """Return the arguments of a sample's requests, which lm-eval stores as tuples or as mappings of mappings."""
    rows = arguments.values() if isinstance(arguments, Mapping) else arguments
    return [list(row.values()) if isinstance(row, Mapping) else list(row) for row in rows]


def _number(value: Any) -> float | None:
    """Return a plain number; None for lists and pairs, which only the task can aggregate."""
    return float(value) if isinstance(value, bool | int | float) else None
