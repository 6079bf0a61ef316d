"""Results measured by other tools: folders of `lm-eval --log_samples`, and logs of Inspect."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from evals.imported_inspect import inspect_results
from evals.imported_lm_eval import lm_eval_results
from evals.imported_log import ImportedLog
from recovery.errors import UsageError
from recovery.types import SuiteResult


@dataclass(frozen=True)
class Imported:
    """The results of one model: the newest of each suite, and the logs that they are from."""

    logs: tuple[ImportedLog, ...]

    @cached_property
    def newest(self) -> dict[str, ImportedLog]:
        """The log of each suite's newest result, by suite."""
        found: dict[str, ImportedLog] = {}
        for log in sorted(self.logs, key=lambda log: log.date):
            found |= {result.suite: log for result in log.results}
        return found

    @property
    def results(self) -> list[SuiteResult]:
        """The newest result of each suite."""
        return [result for log in self.logs for result in log.results if self.newest[result.suite] is log]

    @property
    def problems(self) -> list[str]:
        """What could not be used, in one line each; among it older results of the same suite."""
        newest, found = self.newest, [f"{log.file}: {problem}" for log in self.logs for problem in log.problems]
        for log in self.logs:
            old = [result.suite for result in log.results if newest[result.suite] is not log]
            if old:
                found.append(f"{log.file}: {', '.join(old)} not imported: a newer log has the same")
        return found


def read_logs(path: Path) -> Imported:
    """Read the logs in a file or folder, which must be of one model.

    Raises UsageError if there are none, if one cannot be read, or if they are of several models.
    """
    if not path.exists():
        raise UsageError(f"there is no file or folder {path}")
    logs = [*lm_eval_results(_files(path, "results_*.json")), *inspect_results(_inspect_logs(path))]
    if not any(log.results for log in logs):
        found = [f"{log.file}: {problem}" for log in logs for problem in log.problems]
        reason = found[0] if found else f"{path} has neither results of lm-eval (results_*.json) nor logs of Inspect"
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
