"""MLflow. Server and experiment as usual: MLFLOW_TRACKING_URI, MLFLOW_EXPERIMENT_NAME."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from pipelines.forwarding.writer import Row, Run, project_of

_KEY = "recovery.run"  # tag that holds a run's key: MLflow's own ids cannot be chosen
_METRICS_AT_ONCE, _PARAMETERS_AT_ONCE, _LONGEST = 1000, 100, 6000  # MLflow's limits
_STATUS = {"finished": "FINISHED", "failed": "FAILED", "interrupted": "KILLED", "running": "RUNNING"}


class ServiceWriter:
    """A run of MLflow for each run. The same point with the same time is stored once."""

    durable = True

    def __init__(self) -> None:
        # The package's defaults wait several minutes for a server that is down.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
        from mlflow import entities
        from mlflow.tracking import MlflowClient

        self._entities = entities
        self._client: Any = MlflowClient()
        self._id = ""

    def open(self, run: Run) -> None:
        """Start a run, or continue the one with this key in its tag."""
        name = project_of("MLFLOW_EXPERIMENT_NAME")
        experiment = self._client.get_experiment_by_name(name)
        number = experiment.experiment_id if experiment is not None else self._client.create_experiment(name)
        found = self._client.search_runs([number], f"tags.`{_KEY}` = '{run.key}'", max_results=1)
        if found:
            self._id = found[0].info.run_id
            self._client.update_run(self._id, status="RUNNING")
            return
        tags = {_KEY: run.key, "group": run.group, "kind": run.kind}
        made = self._client.create_run(number, start_time=int(1000 * run.started), tags=tags, run_name=run.name)
        self._id = made.info.run_id
        parameters = [self._entities.Param(_name(k), str(v)[:_LONGEST]) for k, v in run.config.items()]
        for at in range(0, len(parameters), _PARAMETERS_AT_ONCE):
            self._client.log_batch(self._id, params=parameters[at : at + _PARAMETERS_AT_ONCE])

    def log(self, rows: Sequence[Row]) -> None:
        """Add metrics."""
        metrics = [
            self._entities.Metric(_name(name), value, int(1000 * row.time), row.step)
            for row in rows
            for name, value in row.metrics.items()
        ]
        for at in range(0, len(metrics), _METRICS_AT_ONCE):
            self._client.log_batch(self._id, metrics=metrics[at : at + _METRICS_AT_ONCE])

    def describe(self, facts: Mapping[str, Any]) -> None:
        """Set facts as tags."""
        tags = [self._entities.RunTag(_name(key), str(value)[:_LONGEST]) for key, value in facts.items()]
        self._client.log_batch(self._id, tags=tags)

    def text(self, name: str, markdown: str) -> None:
        """Store a page as an artifact."""
        self._client.log_text(self._id, markdown, name)

    def close(self, status: str) -> None:
        """End the run."""
        if status != "running":
            self._client.set_terminated(self._id, _STATUS[status])


def _name(text: str) -> str:
    """Return a name with the characters that MLflow allows."""
    return re.sub(r"[^\w\-. :/]", "_", text)
