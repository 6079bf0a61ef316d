"""The services, W&B, MLflow, Trackio and SwanLab: a writer for each, which gets runs, metrics, facts and texts.

Account, project, mode and place are those that the service's own commands and environment variables set:
`wandb login`, WANDB_PROJECT, WANDB_MODE=offline; MLFLOW_TRACKING_URI, MLFLOW_EXPERIMENT_NAME; TRACKIO_DIR,
TRACKIO_SERVER_URL, TRACKIO_SPACE_ID, TRACKIO_PROJECT; `swanlab login`, SWANLAB_PROJECT_NAME, SWANLAB_MODE=offline.
Nothing about the machine, its user or its files is collected.
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from recovery.errors import UsageError


@dataclass(frozen=True)
class Run:
    """A stage or a cycle as one run of a service.

    ``key`` is unique among all trackers and always the same for a stage: a service continues the run that has it.
    ``started`` is in unix seconds.
    """

    key: str
    name: str
    group: str
    kind: str
    config: Mapping[str, Any]
    started: float


@dataclass(frozen=True)
class Row:
    """The metrics of one step, and the time of the step in unix seconds."""

    step: int
    metrics: Mapping[str, float]
    time: float


class Writer(Protocol):
    """A service. Has at most one run open; any method may raise, and is then tried again with a new writer."""

    durable: bool
    """Whether the service has what it was given when a method returns; otherwise only when ``close`` does."""

    def open(self, run: Run) -> None:
        """Start a run, or continue the one with this key."""

    def log(self, rows: Sequence[Row]) -> None:
        """Add metrics, in the order of their steps."""

    def describe(self, facts: Mapping[str, Any]) -> None:
        """Set texts and numbers of the run that are no curves; a new value replaces the old one."""

    def text(self, name: str, markdown: str) -> None:
        """Store a page under the name of a file, such as cycle-1.md."""

    def close(self, status: str) -> None:
        """End the run as "finished", "failed" or "interrupted"; "running" if it will be continued."""


def _project(variable: str) -> str:
    """Return the project that runs belong to: that of the service's own environment variable, or "recovery"."""
    return os.environ.get(variable) or "recovery"


class WandbWriter(Writer):
    """A run of W&B for each run. It drops steps it already has, so that nothing is there twice."""

    durable = False
    # A service that cannot be reached is an error, soon.
    _settings: Mapping[str, Any] = {
        "silent": True,
        "console": "off",
        "disable_git": True,
        "disable_code": True,
        "x_disable_stats": True,
        "x_disable_meta": True,
        "x_save_requirements": False,
        "x_disable_machine_info": True,
        "init_timeout": 20.0,
        "finish_timeout": 20.0,
        "finish_timeout_raises": True,
    }

    def __init__(self) -> None:
        import wandb

        self._wandb = wandb
        self._run: Any = None

    def open(self, run: Run) -> None:
        self._run = self._wandb.init(
            project=_project("WANDB_PROJECT"),
            id=run.key,
            name=run.name,
            group=run.group,
            job_type=run.kind,
            config=dict(run.config),
            resume="allow",
            settings=self._wandb.Settings(**self._settings),
        )

    def log(self, rows: Sequence[Row]) -> None:
        """Add metrics. W&B drops a step before the newest one, so those of such a row are kept in the summary alone."""
        for row in rows:
            if row.step < self._run.step:
                self._run.summary.update(dict(row.metrics))
                continue
            self._run.log({**row.metrics, "_timestamp": row.time}, step=row.step)

    def describe(self, facts: Mapping[str, Any]) -> None:
        self._run.summary.update(dict(facts))

    def text(self, name: str, markdown: str) -> None:
        artifact = self._wandb.Artifact(f"{self._run.id}-{name}", type="report")
        with artifact.new_file(name) as file:
            file.write(markdown)
        self._run.log_artifact(artifact)

    def close(self, status: str) -> None:
        """End the run, when everything has arrived."""
        self._run.finish(exit_code=0 if status == "finished" else 1)


class MlflowWriter(Writer):
    """A run of MLflow for each run. The same point with the same time is stored once."""

    durable = True
    _key = "recovery.run"  # tag that holds a run's key: MLflow's own ids cannot be chosen
    _metrics_at_once, _parameters_at_once, _longest = 1000, 100, 6000  # MLflow's limits
    _status: Mapping[str, str] = {"finished": "FINISHED", "failed": "FAILED", "interrupted": "KILLED"}

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
        name = _project("MLFLOW_EXPERIMENT_NAME")
        experiment = self._client.get_experiment_by_name(name)
        number = experiment.experiment_id if experiment is not None else self._client.create_experiment(name)
        runs = self._client.search_runs([number], f"tags.`{self._key}` = '{run.key}'", max_results=1)
        if runs:
            self._id = runs[0].info.run_id
            self._client.update_run(self._id, status="RUNNING")
            return
        tags = {self._key: run.key, "group": run.group, "kind": run.kind}
        made = self._client.create_run(number, start_time=int(1000 * run.started), tags=tags, run_name=run.name)
        self._id = made.info.run_id
        parameters = [self._entities.Param(_allowed(k), str(v)[: self._longest]) for k, v in run.config.items()]
        for at in range(0, len(parameters), self._parameters_at_once):
            self._client.log_batch(self._id, params=parameters[at : at + self._parameters_at_once])

    def log(self, rows: Sequence[Row]) -> None:
        metrics = [
            self._entities.Metric(_allowed(name), value, int(1000 * row.time), row.step)
            for row in rows
            for name, value in row.metrics.items()
        ]
        for at in range(0, len(metrics), self._metrics_at_once):
            self._client.log_batch(self._id, metrics=metrics[at : at + self._metrics_at_once])

    def describe(self, facts: Mapping[str, Any]) -> None:
        tags = [self._entities.RunTag(_allowed(key), str(value)[: self._longest]) for key, value in facts.items()]
        self._client.log_batch(self._id, tags=tags)

    def text(self, name: str, markdown: str) -> None:
        self._client.log_text(self._id, markdown, name)

    def close(self, status: str) -> None:
        if status != "running":
            self._client.set_terminated(self._id, self._status[status])


def _allowed(text: str) -> str:
    """Return a name with the characters that MLflow allows."""
    return re.sub(r"[^\w\-. :/]", "_", text)


class TrackioWriter(Writer):
    """A run of Trackio for each run; its name ends with the key, since Trackio continues runs by name.

    A server or Space that is down is no error: Trackio keeps the data and sends them later itself.
    """

    durable = True

    def __init__(self) -> None:
        import trackio

        self._trackio = trackio
        self._run: Any = None
        self._step = 0

    def open(self, run: Run) -> None:
        self._run = self._trackio.init(
            project=_project("TRACKIO_PROJECT"),
            name=f"{run.name} {run.key}",
            group=run.group,
            config={"kind": run.kind, **run.config},
            resume="allow",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )

    def log(self, rows: Sequence[Row]) -> None:
        for row in rows:
            self._run.log(dict(row.metrics), step=row.step)
            self._step = row.step

    def describe(self, facts: Mapping[str, Any]) -> None:
        """Add facts to the newest step: Trackio has no other place for what is known only at the end."""
        self._run.log(dict(facts), step=self._step)

    def text(self, name: str, markdown: str) -> None:
        self._run.log({name: self._trackio.Markdown(markdown)}, step=self._step)

    def close(self, status: str) -> None:
        """End the run; Trackio has no status."""
        self._trackio.finish()


class SwanlabWriter(Writer):
    """A run of SwanLab for each run."""

    durable = False
    _not_collected = ("hardware", "runtime", "requirements", "conda", "git", "swanlab", "monitor")
    _state: Mapping[str, str] = {"finished": "success", "interrupted": "aborted"}

    def __init__(self) -> None:
        import swanlab

        self._swanlab = swanlab
        self._run: Any = None

    def open(self, run: Run) -> None:
        probe = dict.fromkeys(self._not_collected, False)
        self._run = self._swanlab.init(
            settings=self._swanlab.Settings(interactive=False, terminal={"proxy_type": "none"}, probe=probe),
            project=_project("SWANLAB_PROJECT_NAME"),
            name=run.name,
            group=run.group,
            job_type=run.kind,
            config=dict(run.config),
            id=run.key,
            resume="allow",
            reinit=True,
        )

    def log(self, rows: Sequence[Row]) -> None:
        for row in rows:
            self._run.log(dict(row.metrics), step=row.step)

    def describe(self, facts: Mapping[str, Any]) -> None:
        self._run.config.update(dict(facts))

    def text(self, name: str, markdown: str) -> None:
        self._run.log({name: self._swanlab.Text(markdown)})

    def close(self, status: str) -> None:
        self._run.finish(state=self._state.get(status, "crashed"))


# By the name that --report-to takes, which is also that of the extra and of the package to import. A writer imports its
# package when it is made.
WRITERS: dict[str, Callable[[], Writer]] = {
    "wandb": WandbWriter,
    "mlflow": MlflowWriter,
    "trackio": TrackioWriter,
    "swanlab": SwanlabWriter,
}


def check_services(names: Iterable[str]) -> None:
    """Raise UsageError for a name that is unknown, or whose package is not installed."""
    for name in names:
        if name not in WRITERS:
            raise UsageError(f"{name!r} is not a tracker that can be written to: use {', '.join(WRITERS)}")
        if importlib.util.find_spec(name) is None:
            raise UsageError(f"{name} is not installed: pip install 'recovery[{name}]'")
