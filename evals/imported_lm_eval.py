"""Results that `lm-eval --output_path FOLDER --log_samples` wrote: results_DATE.json and samples_TASK_DATE.jsonl."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from evals.generation import Answer
from evals.grading import graded
from evals.imported_log import ImportedLog
from evals.instruction_following import prompt_of
from evals.lm_eval_samples import task_result
from recovery.data.checkers import check_prompts
from recovery.data.corpus.json_lines import read_records
from recovery.data.nltk_data import prepare
from recovery.errors import UsageError
from recovery.text_files import read_text
from recovery.types import SuiteResult

# lm-eval's task on IFEval's prompts. Its responses are checked again here, as those of our own models are.
_IFEVAL = "ifeval"
_ROUNDING = 1e-6


def lm_eval_results(files: Sequence[Path]) -> Iterator[ImportedLog]:
    """Yield the log of each results file, with every task whose samples are beside it.

    Raises UsageError if a file cannot be read or is not lm-eval's.
    """
    for file in files:
        try:
            written = json.loads(read_text(file))
            aggregates = written["results"]
            model, version = str(written.get("model_name", "")), str(written.get("lm_eval_version", ""))
            tasks = sorted(name for name in aggregates if name not in written.get("groups", {}))
            groups = _asked_groups(written.get("group_subtasks", {}))
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise UsageError(f"{file} is not a results file of lm-eval: {type(error).__name__}: {error}") from error
        results, problems = [], []
        for task in tasks:
            samples = file.with_name(f"samples_{task}_{file.stem.removeprefix('results_')}.jsonl")
            if not samples.is_file():
                problems.append(f"{task} has no {samples.name}: run lm-eval with --log_samples")
                continue
            result, problem = _task(task, samples, aggregates[task])
            results.append(result)
            problems += [f"{task}: {problem}"] if problem else []
        date = file.stem.removeprefix("results_")
        yield ImportedLog("lm-eval", version, model, date, file, tuple(results), tuple(problems), groups)


def _asked_groups(members: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """Return the groups that are in no other group; older releases list single tasks too, as groups of none."""
    inner = {name for names in members.values() for name in names}
    return tuple(sorted(name for name, names in members.items() if names and name not in inner))


def _task(task: str, file: Path, aggregates: Mapping[str, Any]) -> tuple[SuiteResult, str]:
    """Return a task's result and what differs from the logged one, if anything does."""
    lines, broken = read_records(file)
    if broken:
        raise UsageError(f"{file}, {broken[0]}")
    try:
        samples = _complete([sample for _, sample in lines], aggregates)
        result = task_result(task, samples, aggregates)
        return (result, "") if task != _IFEVAL else _checked(samples, result)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        raise UsageError(
            f"{file} is not a file of samples as lm-eval writes it: {type(error).__name__}: {error}"
        ) from error


def _complete(samples: Sequence[Mapping[str, Any]], aggregates: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return samples with their filter and metrics, which releases before 0.4.8 leave out: they wrote the samples of
    each filter in the order of the aggregates.

    Raises ValueError if the aggregates are not the means of the samples that would be each filter's.
    """
    keys = [key.split(",", 1) for key in aggregates if "," in key and "_stderr," not in key]
    metrics, filters = (list(dict.fromkeys(column)) for column in zip(*keys, strict=True))
    times: Counter[str] = Counter()
    found: list[dict[str, Any]] = []
    for sample in samples:
        number = times[str(sample["doc_id"])]
        times[str(sample["doc_id"])] += 1
        own = {"filter": filters[number % len(filters)], "metrics": [name for name in metrics if name in sample]}
        found.append({**own, **sample})
    if len(filters) > 1 and any("filter" not in sample for sample in samples):
        _check_filters(found, keys, aggregates)
    return found


def _check_filters(
    samples: Sequence[Mapping[str, Any]], keys: Sequence[Sequence[str]], aggregates: Mapping[str, Any]
) -> None:
    for metric, name in keys:
        values = [sample.get(metric) for sample in samples if sample["filter"] == name]
        numbers = [float(value) for value in values if isinstance(value, bool | int | float)]
        logged = aggregates[f"{metric},{name}"]
        if numbers and abs(sum(numbers) / len(numbers) - float(logged)) > _ROUNDING:
            raise ValueError(f"its lines do not say of which filter they are, and {metric},{name} is not their mean")


def _checked(samples: Sequence[Mapping[str, Any]], theirs: SuiteResult) -> tuple[SuiteResult, str]:
    """Check the responses to IFEval's prompts again, so that every instruction has a verdict of its own."""
    prepare()
    prompts = [prompt_of(sample["doc"]) for sample in samples]
    check_prompts(prompts)
    answers = [Answer(str(sample["filtered_resps"][0]), 0, True) for sample in samples]
    ours = graded(prompts, answers, _IFEVAL)
    if abs(ours.score.value - theirs.score.value) < 1e-9:
        return ours, ""
    return ours, (
        f"{ours.score.value:.4f} of the prompts by the checkers here, {theirs.score.value:.4f} as logged: "
        "some checkers draw at random, or nltk's data differs"
    )
