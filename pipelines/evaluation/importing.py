"""Records what another tool measured as an evaluation of a checkpoint: lm-eval's `--log_samples`, or Inspect's logs."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from evals.generation import Answer
from evals.instruction_following import graded, prompt_of
from evals.lm_eval_samples import task_result
from evals.statistics import score_of
from pipelines.evaluation.stored_results import IMPORTED, record_result
from pipelines.runtime.checkpoint_names import find
from pipelines.runtime.session import Session
from pipelines.runtime.versions import versions
from recovery.data.checkers import check_prompts, prepare
from recovery.data.corpus.json_lines import read_records
from recovery.errors import UsageError
from recovery.text_files import read_text
from recovery.types import Item, Score, SuiteResult
from recovery.workspace import Checkpoint


@dataclass(frozen=True)
class ImportedLog:
    """One log of one model. ``date`` sorts by time; ``problems`` are what could not be used, in one line each.

    ``groups`` are the groups of tasks that were asked for, whose suites have names of their own.
    """

    tool: str
    version: str
    model: str
    date: str
    file: Path
    results: tuple[SuiteResult, ...]
    problems: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()


# Results in Inspect's logs (.eval or .json), read by Inspect's own package.


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
    """Return the result over all samples with a score, an empty tuple without any; and the samples left out."""
    several = (log.eval.config.epochs or 1) > 1
    every_sample = [(sample, _values(sample.scores or {})) for sample in log.samples or []]
    scored = [(sample, values) for sample, values in every_sample if values]
    without = len(every_sample) - len(scored)
    problems = [f"{without} of {len(every_sample)} samples have no score and are left out"] if without else []
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

    number, values = value_to_float(), {}
    for scorer, score in scores.items():
        entries = score.value if isinstance(score.value, Mapping) else {"": score.value}
        for key, value in entries.items():
            if value is not None and not isinstance(value, list | tuple):
                values[f"{scorer}/{key}" if key else scorer] = float(number(value))
    return values


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


def _asked(content: Any) -> str:
    """Return the text of a sample's input: itself, or the last message of the user."""
    if isinstance(content, str):
        return content
    return next((str(message.text) for message in reversed(content) if message.role == "user"), "")


# Results that `lm-eval --output_path FOLDER --log_samples` wrote: results_DATE.json and samples_TASK_DATE.jsonl.


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
    """Return the groups that are in no other group; older releases also list single tasks, as empty groups."""
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
    completed: list[dict[str, Any]] = []
    for sample in samples:
        number = times[str(sample["doc_id"])]
        times[str(sample["doc_id"])] += 1
        missing = {"filter": filters[number % len(filters)], "metrics": [name for name in metrics if name in sample]}
        completed.append({**missing, **sample})
    if len(filters) > 1 and any("filter" not in sample for sample in samples):
        _check_filters(completed, keys, aggregates)
    return completed


def _check_filters(
    samples: Sequence[Mapping[str, Any]], keys: Sequence[Sequence[str]], aggregates: Mapping[str, Any]
) -> None:
    for metric, name in keys:
        values = [sample.get(metric) for sample in samples if sample["filter"] == name]
        numbers = [float(value) for value in values if isinstance(value, bool | int | float)]
        logged = aggregates[f"{metric},{name}"]
        if numbers and abs(sum(numbers) / len(numbers) - float(logged)) > _ROUNDING:
            raise ValueError(f"its lines do not say of which filter they are, and {metric},{name} is not their mean")


def _checked(samples: Sequence[Mapping[str, Any]], logged: SuiteResult) -> tuple[SuiteResult, str]:
    """Check the responses to IFEval's prompts again, so that every instruction has a verdict of its own."""
    prepare()
    prompts = [prompt_of(sample["doc"]) for sample in samples]
    check_prompts(prompts)
    answers = [Answer(str(sample["filtered_resps"][0]), 0, True) for sample in samples]
    checked = graded(prompts, answers, _IFEVAL)
    if abs(checked.score.value - logged.score.value) < 1e-9:
        return checked, ""
    return checked, (
        f"{checked.score.value:.4f} of the prompts by the checkers here, {logged.score.value:.4f} as logged: "
        "some checkers draw at random, or nltk's data differs"
    )


@dataclass(frozen=True)
class Imported:
    """The results of one model: the newest of each suite, and the logs that they are from."""

    logs: tuple[ImportedLog, ...]

    @cached_property
    def newest(self) -> dict[str, ImportedLog]:
        """The log of each suite's newest result, by suite."""
        logs: dict[str, ImportedLog] = {}
        for log in sorted(self.logs, key=lambda log: log.date):
            logs |= {result.suite: log for result in log.results}
        return logs

    @property
    def results(self) -> list[SuiteResult]:
        """The newest result of each suite."""
        return [result for log in self.logs for result in log.results if self.newest[result.suite] is log]

    @property
    def problems(self) -> list[str]:
        """What could not be used, in one line each; among it older results of the same suite."""
        newest, lines = self.newest, [f"{log.file}: {problem}" for log in self.logs for problem in log.problems]
        for log in self.logs:
            old = [result.suite for result in log.results if newest[result.suite] is not log]
            if old:
                lines.append(f"{log.file}: {', '.join(old)} not imported: a newer log has the same")
        return lines


def read_logs(path: Path) -> Imported:
    """Read the logs in a file or folder, which must be of one model.

    Raises UsageError if there are none, if one cannot be read, or if they are of several models.
    """
    if not path.exists():
        raise UsageError(f"there is no file or folder {path}")
    logs = [*lm_eval_results(_files(path, "results_*.json")), *inspect_results(_inspect_logs(path))]
    if not any(log.results for log in logs):
        lines = [f"{log.file}: {problem}" for log in logs for problem in log.problems]
        reason = lines[0] if lines else f"{path} has neither results of lm-eval (results_*.json) nor logs of Inspect"
        raise UsageError(f"nothing to import: {reason}")
    models = {log.model: log.file for log in logs if log.results}
    if len(models) > 1:
        named = ", ".join(f"{model or 'unnamed'} ({file.name})" for model, file in models.items())
        raise UsageError(f"{path} has results of several models: {named}; import them one by one")
    return Imported(tuple(logs))


def _files(path: Path, pattern: str) -> list[Path]:
    if path.is_file():
        return [path] if path.match(pattern) else []
    return sorted(file for file in path.rglob(pattern) if file.is_file())


def _inspect_logs(path: Path) -> list[Path]:
    """Return the Inspect logs: every .eval file, and a .json file that is given itself."""
    if path.is_file() and path.suffix == ".json" and not path.match("results_*.json"):
        return [path]
    return _files(path, "*.eval")


EXTERNAL = "external/"


def read_import(name: str, path: Path) -> Imported:
    """Read the results in another tool's logs, to be recorded for the checkpoint ``name``; needs no workspace.

    Raises UsageError if the name is empty or the logs cannot be used.
    """
    if not name.removeprefix(EXTERNAL).strip("/ "):
        raise UsageError(f"the name {name!r} is empty: say whose results are in {path}, as in external/NAME")
    return read_logs(path)


def target(session: Session, name: str) -> tuple[str, Checkpoint | None]:
    """Return the name under which results of ``name`` are recorded, and its checkpoint, None if it is a new one.

    A name that is not known becomes ``external/NAME``. Raises UsageError for the name of a cycle's or the clean model
    that does not exist.
    """
    full = name if name.startswith(EXTERNAL) else f"{EXTERNAL}{name}"
    known = find(name, session.registry) or find(full, session.registry)
    if known is not None:
        return known.name, known
    if name.startswith("cycle-") or name in ("base", "latest", "midtrained", "recovered"):
        raise UsageError(f"there is no checkpoint {name!r} yet: give the name of one, or a new name for this model")
    return full, None


def import_results(session: Session, name: str, path: Path, imported: Imported) -> tuple[Checkpoint, list[SuiteResult]]:
    """Record the results that :func:`read_import` read from ``path`` as an evaluation of the checkpoint ``name``.

    A name that is not known is registered, as a checkpoint without weights; see :func:`target`.
    """
    checkpoint, results = _checkpoint(session, name, imported), imported.results
    used = [log for log in imported.logs if log.results]
    groups = sorted({group for log in used for group in log.groups})
    # The same setting as in an evaluation made here: the gate assigns suites to groups by it.
    config = {IMPORTED: str(path), "logs": [_origin(log) for log in used], "tasks": groups}
    recorder = session.tracker.start_stage(
        session.experiment_id,
        "evaluate",
        cycle_id=None if checkpoint.cycle is None else session.cycle_id(checkpoint.cycle),
        config=config,
        versions=versions(),
        student_id=checkpoint.id,
    )
    session.copies.add(recorder.id)
    with recorder:
        for result in results:
            record_result(session, recorder, checkpoint, result)
        recorder.describe(details={"suites": [result.suite for result in results]})
    return checkpoint, results


def _checkpoint(session: Session, name: str, imported: Imported) -> Checkpoint:
    """Return the registered checkpoint of this name; if there is none, a new one without weights."""
    full, known = target(session, name)
    if known is not None:
        return known
    session.tracker.add_checkpoint(
        session.experiment_id,
        full,
        "external",
        path=session.workspace.stored(session.workspace.folder / "imported" / name.replace("/", "-")),
        parent_id=session.base.id,
        details={IMPORTED: sorted({log.model for log in imported.logs if log.model})},
    )
    known = find(full, session.registry)
    assert known is not None
    return known


def _origin(log: ImportedLog) -> dict[str, str]:
    """Return what identifies a log: its tool, its model and its contents."""
    return {
        "tool": f"{log.tool} {log.version}".strip(),
        "model": log.model,
        "date": log.date,
        "file": log.file.name,
        "sha256": hashlib.sha256(log.file.read_bytes()).hexdigest(),
    }
