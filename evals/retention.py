"""General abilities that a model should keep: lm-eval tasks on the model in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evals.harness import EngineLM, TaskSpec, run_lm_eval
from evals.statistics import score_of
from recovery.types import Item, Score, SuiteResult

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


def run_tasks(
    lm: EngineLM,
    tasks: Sequence[TaskSpec],
    *,
    include_path: str | Path | None = None,
    limit: int | None = None,
    chat: bool | None = None,
) -> list[SuiteResult]:
    """Run lm-eval ``tasks`` (names, YAML files, configurations); one result a task, with its items.

    ``include_path`` is a folder of further task files. ``chat`` puts requests through the chat template (None: only
    those of tasks that generate). The headline is lm-eval's own aggregate, its standard error the one over our items
    where the aggregate is their mean (so that it can be paired), else lm-eval's.
    """
    results = run_lm_eval(lm, tasks, include_path=include_path, limit=limit, chat=chat)
    return [_suite(name, samples, results["results"][name]) for name, samples in sorted(results["samples"].items())]


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
