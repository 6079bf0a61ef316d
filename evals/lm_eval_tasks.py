"""lm-eval's tasks, loaded by name, from a file or with local data; and its packaged IFEval, run on a model."""

from __future__ import annotations

import difflib
import functools
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import datasets
import lm_eval.tasks
from datasets.exceptions import DatasetNotFoundError
from lm_eval.tasks import TaskManager
from lm_eval.tasks._index import Kind
from lm_eval.tasks._yaml_loader import load_yaml

from evals.instruction_following import graded, prompt_of, read_ifeval
from recovery.data.checkers import check_prompts, checkers, fixed_draws, prepare
from recovery.data.corpus.json_lines import read_records
from recovery.errors import UsageError
from recovery.lazy_import import lazily
from recovery.types import SuiteResult

if TYPE_CHECKING:
    from recovery.models.loaded import Loaded
    from recovery.rollouts.engine import Engine, Progress

TaskSpec = str | Path | Mapping[str, Any]

_SPLITS = ("training_split", "validation_split", "test_split", "fewshot_split")
_READERS = {".jsonl": "json", ".json": "json", ".parquet": "parquet"}


def load_tasks(specs: Sequence[TaskSpec], *, include_path: str | Path | None = None) -> dict[str, Any]:
    """Load lm-eval task objects by name, with their data.

    A spec is the name of a task or task group (lm-eval's own, or from a file in ``include_path``), a YAML file, a
    complete configuration, or ``NAME=PATH``: the task NAME on local data (:func:`on_local_data`). Raises a one-line
    UsageError for a task that is unknown or whose data cannot be loaded.
    """
    parsed = [_parse(spec) for spec in specs]
    manager = _manager([name for name, _ in parsed if isinstance(name, str)], include_path)
    tasks: dict[str, Any] = {}
    with quiet():
        for name, path in parsed:
            try:
                wanted = [name] if path is None else _configurations(manager, str(name), path)
                tasks |= manager.load(wanted)["tasks"]
            except UsageError:
                raise
            except Exception as error:  # the hub, datasets and the tasks' own code raise dozens of unrelated types
                raise UsageError(_load_error(name, error)) from error
    for name, task in tasks.items():
        if getattr(task, "UNSAFE_CODE", False):
            raise UsageError(f"the lm-eval task {name} runs code that the model writes, which is not done here")
    return tasks


def on_local_data(config: Mapping[str, Any], path: Path, *, several: bool = False) -> dict[str, Any]:
    """Return the changes to a task's configuration that make it read ``path`` instead of the hub.

    A file in the format of the task's own data is the evaluated split; if the task is one of ``several`` of a group,
    only the lines with its "subject" are used. A folder contains one file per split (test.jsonl, train.jsonl), for
    groups in one subfolder per subject; few-shot tasks need a folder. Splits that are not given are none of the task's.
    Raises UsageError for a file with a few-shot task, or a folder without the evaluated split.
    """
    split = config.get("test_split") or config.get("validation_split")
    shown = config.get("fewshot_split") or config.get("training_split")
    subject = str(config.get("dataset_name"))
    files: dict[Any, list[Path]] = {split: [path]}
    if path.is_dir():
        folder = path / subject if several else path
        files = _splits(folder)
        if split not in files:
            raise UsageError(f"the task {config['task']} needs a file {split}.jsonl in {folder}")
        if config.get("num_fewshot") and shown is not None and shown not in files:
            raise UsageError(f"the task {config['task']} shows examples: it needs a file {shown}.jsonl in {folder}")
    elif config.get("num_fewshot"):
        raise UsageError(
            f"the task {config['task']} shows {config['num_fewshot']} examples before each question: give a folder "
            f"with {split}.jsonl and {shown}.jsonl instead of {path}"
        )
    changes: dict[str, Any] = {name: None for name in _SPLITS if config.get(name) not in files}
    if several and not path.is_dir():
        changes["process_docs"] = functools.partial(_of_subject, subject=subject, then=config.get("process_docs"))
    return {
        **changes,
        "dataset_path": _READERS.get(files[split][0].suffix, "json"),
        "dataset_name": None,
        "dataset_kwargs": {"data_files": {name: list(map(str, parts)) for name, parts in files.items()}},
    }


def _splits(folder: Path) -> dict[str, list[Path]]:
    """Return the files of a folder by split: test.jsonl, or shards such as test-00000-of-00002.parquet."""
    found: dict[str, list[Path]] = {}
    for file in sorted(folder.glob("*")):
        if file.suffix in _READERS:
            found.setdefault(file.stem.partition("-")[0], []).append(file)
    return found


def _of_subject(docs: Any, *, subject: str, then: Any) -> Any:
    """Return the documents of one subject, processed by the task's own function."""
    kept = docs.filter(lambda doc: doc["subject"] == subject)
    return then(kept) if then is not None else kept


def _parse(spec: TaskSpec) -> tuple[str | dict[str, Any], Path | None]:
    """Return a spec in lm-eval's form, and the path of its local data."""
    if isinstance(spec, Mapping):
        return dict(spec), None
    name, equals, path = str(spec).partition("=")
    if not equals or Path(spec).is_file():
        return str(spec), None
    data = Path(path).expanduser().resolve()
    if not data.exists():
        raise UsageError(f"--task {spec}: there is no file or folder {path}")
    return name, data


def _configurations(manager: TaskManager, name: str, path: Path) -> list[Any]:
    """Return the configurations of a task, or of those tasks of a group that have local data."""
    configs = [load_yaml(manager.task_index[leaf].yaml_path) for leaf in _leaves(manager, name)]
    several = len(configs) > 1
    if several and len({config.get("dataset_name") for config in configs}) > 1:
        known = _subjects(path)
        configs = [config for config in configs if config.get("dataset_name") in known]
        if not configs:
            raise UsageError(
                f"--task {name}={path}: the tasks of {name} are about several subjects, so every line needs its "
                '"subject", named as on the hub (in a folder: one subfolder per subject)'
            )
    else:
        several = False  # tasks on the same data, such as truthfulqa
    return [{**config, **on_local_data(config, path, several=several)} for config in configs]


def _subjects(path: Path) -> set[str]:
    """Return the subjects of a file's lines or of a folder's subfolders."""
    if path.is_dir():
        return {folder.name for folder in path.iterdir() if folder.is_dir()}
    return {str(record.get("subject")) for _, record in read_records(path)[0] if isinstance(record, dict)}


def _leaves(manager: TaskManager, name: str) -> list[str]:
    """Return the task names of a name: itself, or the members of a group or tag."""
    entry = manager.task_index[name]
    if entry.kind == Kind.TAG:
        return [leaf for member in sorted(entry.tags) for leaf in _leaves(manager, member)]
    if entry.kind == Kind.GROUP:
        members = load_yaml(entry.yaml_path)["task"]
        names = [m if isinstance(m, str) else m.get("task") or m["group"] for m in members]
        return [leaf for member in names for leaf in _leaves(manager, member)]
    return [name]


def _manager(names: Sequence[str], include_path: str | Path | None) -> TaskManager:
    """Return a task manager that knows ``names``.

    Parsing all of lm-eval's thousands of task files takes many seconds, so only the folders of these tasks are read;
    if that does not find a name (for example a tag from a list), all are.
    """
    include = [] if include_path is None else [Path(include_path)]
    manager = TaskManager(include_path=include, include_defaults=False)
    missing = [name for name in names if name not in manager.task_index and not Path(name).is_file()]
    for name in missing:
        if name.endswith((".yaml", ".yml")) or "/" in name:
            raise UsageError(f"there is no lm-eval task file {name}: give a YAML file or the name of a task")
    if missing:
        folders = sorted({folder for name in missing if (folder := _packaged_folder(name)) is not None})
        manager = TaskManager(include_path=[*folders, *include], include_defaults=False)
        if any(name not in manager.task_index for name in missing):
            manager = TaskManager(include_path=include, include_defaults=True)
    for name in missing:
        if name not in manager.task_index:
            suggestion = _near_spelling(name, manager.all_tasks)
            hint = f"did you mean {suggestion}?" if suggestion else "give the name of a task, or a YAML file of one"
            raise UsageError(f"lm-eval has no task {name!r}: {hint} (`lm-eval ls tasks` lists them)")
    return manager


def _near_spelling(name: str, known: Sequence[str]) -> str | None:
    """Return the task whose name is spelt nearly like ``name``; capitals make no difference.

    Of thousands of names some share more than half of their letters with any word: they are not meant.
    """
    spelt = {task.lower(): task for task in known}
    close = difflib.get_close_matches(name.lower(), spelt, n=1, cutoff=0.8)
    return spelt[close[0]] if close else None


def _packaged_folder(name: str) -> Path | None:
    """Return lm-eval's own task folder that defines ``name``, found by text search."""
    line = re.compile(rf"""^(?:task|group|tag):\s*["']?{re.escape(name)}["']?\s*$""", re.MULTILINE)
    root = Path(lm_eval.tasks.__file__).parent
    folders = [folder for folder in sorted(root.iterdir()) if folder.is_dir()]
    folders.sort(key=lambda folder: not name.startswith(folder.name))  # gsm8k is most likely in gsm8k/
    for folder in folders:
        if any(line.search(path.read_text(encoding="utf-8")) for path in folder.rglob("*.yaml")):
            return folder
    return None


def _load_error(spec: str | Mapping[str, Any], error: Exception) -> str:
    """Return a one-line message: why a task cannot be loaded, and what to do."""
    name = spec if isinstance(spec, str) else str(spec.get("task", "of an unnamed configuration"))
    reason = (str(error).strip("'\" \n") or type(error).__name__).splitlines()[0][:200]
    offline = isinstance(error, ConnectionError | DatasetNotFoundError) and isinstance(spec, str)
    hint = f"; without a network, give its data as --task {name}=PATH" if offline else ""
    return f"cannot load the lm-eval task {name}: {reason}{hint}"


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress the progress bars and log messages of lm-eval and datasets."""
    logger = logging.getLogger("lm_eval")
    level, bars = logger.level, datasets.are_progress_bars_disabled()
    logger.setLevel(logging.ERROR)
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        logger.setLevel(level)
        if not bars:
            datasets.enable_progress_bars()


# lm-eval's packaged IFEval task, run on the model in memory.

# It imports torch, without which a file of prompts is read and refused.
lm_eval_adapter = lazily("evals.lm_eval_adapter")

# IFEval's packaged limit on generated tokens.
IFEVAL_TOKENS = 1280


def load_ifeval(path: str | Path | None = None) -> dict[str, Any]:
    """Load lm-eval's own IFEval task with the prompts of a local file, or by default those of the hub.

    Raises a one-line UsageError if they cannot be loaded.
    """
    prepare()
    config = load_yaml(Path(lm_eval.tasks.__file__).parent / "ifeval" / "ifeval.yaml")
    if path is not None:
        check_prompts(read_ifeval(path))  # reject unknown instructions (as of IFBench) before generation
        config |= on_local_data(config, Path(path).resolve())
    config["process_results"] = _process_results
    return load_tasks([config])


def evaluate_ifeval(
    loaded: Loaded,
    engine: Engine,
    task: Mapping[str, Any],
    *,
    limit: int | None = None,
    max_new_tokens: int | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> SuiteResult:
    """Run the task of :func:`load_ifeval` with the chat template on the model in memory; the suite is "ifeval".

    Responses are limited to 1,280 tokens as in the packaged task, or to the model's window.
    """
    tokens = min(max_new_tokens or IFEVAL_TOKENS, loaded.max_length)
    task["ifeval"].set_config(key="generation_kwargs", value={"max_gen_toks": tokens}, update=True)
    lm = lm_eval_adapter.EngineLM(loaded, engine, max_gen_toks=tokens, seed=seed, progress=progress)
    run = lm_eval_adapter.run_lm_eval(lm, task, limit=limit)
    samples = run["samples"]["ifeval"]
    answers = [replace(lm.answers[s["arguments"][0][0]], text=str(s["filtered_resps"][0])) for s in samples]
    result = graded([prompt_of(sample["doc"]) for sample in samples], answers, "ifeval")
    theirs = float(run["results"]["ifeval"]["prompt_level_strict_acc,none"])
    if abs(theirs - result.score.value) > 1e-9:
        raise UsageError(f"lm-eval's IFEval accuracy is {theirs}, ours {result.score.value}: its task has changed")
    return result


def _process_results(doc: Mapping[str, Any], results: Sequence[str]) -> dict[str, Any]:
    """Score a response as the packaged task does, with the checkers' random draws fixed per prompt."""
    with fixed_draws(str(doc["key"])):
        judged: dict[str, Any] = checkers().process_results(doc, results)
    return judged
