"""Results of lm-eval's tasks as suites: from its own samples, in memory or as `--log_samples` writes them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from evals.statistics import score_of
from recovery.types import Item, Score, SuiteResult

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


def task_result(task: str, samples: Sequence[Mapping[str, Any]], aggregates: Mapping[str, Any]) -> SuiteResult:
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
    return next((key for wanted in _HEADLINES for key in keys if key.split(",", 1)[0] == wanted), keys[0])


def _item(sample: Mapping[str, Any], metric: str) -> Item:
    value = _number(sample[metric])
    requests = _requests(sample["arguments"])
    return Item(
        id=str(sample["doc_id"]),
        prompt=str(requests[0][0]),
        response=_response(sample["filtered_resps"], requests),
        # A metric of the whole corpus (BLEU, perplexity) has no value per item: 0 would be taken for a wrong answer.
        score=value if value is not None else math.nan,
        verdicts={"correct": bool(value)} if value in (0.0, 1.0) else {},
        extra={"target": str(sample["target"])},
    )


def _response(answers: Sequence[Any], requests: Sequence[Sequence[Any]]) -> str:
    """Return the generated text, or texts; for scored continuations, the most likely one."""
    if all(isinstance(answer, str) for answer in answers):
        return "\n".join(answers)
    firsts = [answer[0] if isinstance(answer, tuple | list) else answer for answer in answers]
    try:
        totals = [float(first) for first in firsts]  # lm-eval's files hold these numbers as text
    except ValueError:  # several texts of each request, as of tasks that write code
        return "\n".join(str(text) for answer in answers for text in (answer if isinstance(answer, list) else [answer]))
    best = max(range(len(totals)), key=totals.__getitem__)
    return str(requests[best][1]) if len(requests) == len(totals) and len(requests[best]) > 1 else str(totals[best])


def _requests(arguments: Any) -> list[list[Any]]:
    """Return the arguments of a sample's requests, which lm-eval stores as tuples or as mappings of mappings."""
    rows = arguments.values() if isinstance(arguments, Mapping) else arguments
    return [list(row.values()) if isinstance(row, Mapping) else list(row) for row in rows]


def _number(value: Any) -> float | None:
    """Return a plain number; None for lists and pairs, which only the task can aggregate."""
    return float(value) if isinstance(value, bool | int | float) else None
