"""Weights & Biases. Account, project and mode as usual: `wandb login`, WANDB_PROJECT, WANDB_MODE=offline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pipelines.forwarding.writer import Row, Run, project_of

# Nothing about the machine, its user or its files is collected; a service that cannot be reached is an error, soon.
_SETTINGS = {
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


class ServiceWriter:
    """A run of W&B for each run. It drops steps it already has, so that nothing is there twice."""

    durable = False

    def __init__(self) -> None:
        import wandb

        self._wandb = wandb
        self._run: Any = None

    def open(self, run: Run) -> None:
        """Start or continue a run."""
        self._run = self._wandb.init(
            project=project_of("WANDB_PROJECT"),
            id=run.key,
            name=run.name,
            group=run.group,
            job_type=run.kind,
            config=dict(run.config),
            resume="allow",
            settings=self._wandb.Settings(**_SETTINGS),
        )

    def log(self, rows: Sequence[Row]) -> None:
        """Add metrics. W&B drops a step before the newest one, so those of such a row are kept in the summary alone."""
        for row in rows:
            if row.step < self._run.step:
                self._run.summary.update(dict(row.metrics))
                continue
            self._run.log({**row.metrics, "_timestamp": row.time}, step=row.step)

    def describe(self, facts: Mapping[str, Any]) -> None:
        """Set facts in the run's summary."""
        self._run.summary.update(dict(facts))

    def text(self, name: str, markdown: str) -> None:
        """Store a page as an artifact."""
        artifact = self._wandb.Artifact(f"{self._run.id}-{name}", type="report")
        with artifact.new_file(name) as file:
            file.write(markdown)
        self._run.log_artifact(artifact)

    def close(self, status: str) -> None:
        """End the run, when everything has arrived."""
        self._run.finish(exit_code=0 if status == "finished" else 1)
