"""Results in Inspect's logs (.eval or .json), read by Inspect's own package."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from evals.imported_log import ImportedLog
from evals.statistics import score_of
from recovery.errors import UsageError
from recovery.types import Item, Score, SuiteResult


def inspect_results(files: Sequence[Path]) -> Iterator[ImportedLog]:
    """Yield each log with its result; the suite is "inspect/TASK".

    The headline is the first value of the first scorer; a response is listed with all of them. Raises UsageError if
    Inspect's package is missing, or a file is not a log.
    """
    if not files:
        return
    try:
        from inspect_ai.log import read_eval_log
    except ImportError as error:
        raise UsageError(f"{files[0].name} needs Inspect's package: pip install 'recovery[inspect]'") from error
    for file in files:
        try:
            log = read_eval_log(str(file))
        except Exception as error:  # zipfile, zstandard, JSON, pydantic and Inspect's own errors
            reason = (str(error).strip() or type(error).__name__).splitlines()[0][:200]
            raise UsageError(f"{file} is not a log of Inspect: {reason}") from error
        result, problems = _result(log)
        if log.status != "success":
            problems.insert(0, f"the evaluation did not finish (status {log.status})")
        version = str(log.eval.packages.get("inspect_ai", ""))
        date = str(log.eval.created)
        yield ImportedLog("inspect", version, log.eval.model, date, file, result, tuple(problems))


def _result(log: Any) -> tuple[tuple[SuiteResult, ...], list[str]]:
    """Return the result over all samples that have a score, none if there is none; and what was left out."""
    several = (log.eval.config.epochs or 1) > 1
    found = [(sample, _values(sample.scores or {})) for sample in log.samples or []]
    scored = [(sample, values) for sample, values in found if values]
    without = len(found) - len(scored)
    problems = [f"{without} of {len(found)} samples have no score and are left out"] if without else []
    if not scored:
        return (), [*problems, "no sample has a score"]
    headline = next(iter(scored[0][1]))
    complete = [(sample, values) for sample, values in scored if headline in values]
    items = [_item(sample, values, headline, several) for sample, values in complete]
    names = dict.fromkeys(name for _, values in scored for name in values)
    details: dict[str, Score] = {}
    for name in names:
        kept = [(values[name], _group(sample, several)) for sample, values in scored if name in values]
        details[name] = score_of([value for value, _ in kept], [group for _, group in kept])
    score = score_of([item.score for item in items], [item.group for item in items])
    name = str(log.eval.task).rsplit("/", 1)[-1]
    return (SuiteResult(f"inspect/{name}", score, tuple(items), details),), problems


def _values(scores: Mapping[str, Any]) -> dict[str, float]:
    """Return a sample's scores as numbers by scorer; a scorer with several values has names SCORER/KEY."""
    from inspect_ai.scorer import value_to_float

    number, found = value_to_float(), {}
    for scorer, score in scores.items():
        entries = score.value if isinstance(score.value, Mapping) else {"": score.value}
        for key, value in entries.items():
            if value is not None and not isinstance(value, list | tuple):
                found[f"{scorer}/{key}" if key else scorer] = float(number(value))
    return found


def _item(sample: Any, values: Mapping[str, float], headline: str, several: bool) -> Item:
    value = values[headline]
    binary = {name: bool(one) for name, one in values.items() if one in (0.0, 1.0)}
    return Item(
        id=f"{sample.id}#{sample.epoch}" if several else str(sample.id),
        prompt=_asked(sample.input),
        response=str(sample.output.completion),
        score=value,
        verdicts=binary,
        group=_group(sample, several),
        extra={"target": str(sample.target), **{name: one for name, one in values.items() if name not in binary}},
    )


def _group(sample: Any, several: bool) -> str:
    """Return the cluster of a sample: several epochs ask the same sample again."""
    return str(sample.id) if several else ""


def _asked(given: Any) -> str:
    """Return the text of a sample's input: itself, or the last message of the user."""
    if isinstance(given, str):
        return given
    return next((str(message.text) for message in reversed(given) if message.role == "user"), "")
