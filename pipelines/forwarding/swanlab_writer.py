"""SwanLab. Account, project and mode as usual: `swanlab login`, SWANLAB_PROJECT_NAME, SWANLAB_MODE=offline."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pipelines.forwarding.writer import Row, Run, project_of

# Nothing about the machine, its user or its files is collected.
_NOT_COLLECTED = ("hardware", "runtime", "requirements", "conda", "git", "swanlab", "monitor")
_SETTINGS = {
    "interactive": False,
    "terminal": {"proxy_type": "none"},
    "probe": dict.fromkeys(_NOT_COLLECTED, False),
}
_STATE = {"finished": "success", "interrupted": "aborted"}


class ServiceWriter:
    """A run of SwanLab for each run."""

    durable = False

    def __init__(self) -> None:
        import swanlab

        self._swanlab = swanlab
        self._run: Any = None

    def open(self, run: Run) -> None:
        """Start or continue a run."""
        self._run = self._swanlab.init(
            settings=self._swanlab.Settings(**_SETTINGS),
            project=project_of("SWANLAB_PROJECT_NAME"),
            name=run.name,
            group=run.group,
            job_type=run.kind,
            config=dict(run.config),
            id=run.key,
            resume="allow",
            reinit=True,
        )

    def log(self, rows: Sequence[Row]) -> None:
        """Add metrics."""
        for row in rows:
            self._run.log(dict(row.metrics), step=row.step)

    def describe(self, facts: Mapping[str, Any]) -> None:
        """Set facts in the run's configuration."""
        self._run.config.update(dict(facts))

    def text(self, name: str, markdown: str) -> None:
        """Store a page."""
        self._run.log({name: self._swanlab.Text(markdown)})

    def close(self, status: str) -> None:
        """End the run."""
        self._run.finish(state=_STATE.get(status, "crashed"))
