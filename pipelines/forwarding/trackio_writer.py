"""Trackio. Place and project as usual: TRACKIO_DIR, TRACKIO_SERVER_URL, TRACKIO_SPACE_ID, TRACKIO_PROJECT."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pipelines.forwarding.writer import Row, Run, project_of


class ServiceWriter:
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
        """Start or continue a run."""
        self._run = self._trackio.init(
            project=project_of("TRACKIO_PROJECT"),
            name=f"{run.name} {run.key}",
            group=run.group,
            config={"kind": run.kind, **run.config},
            resume="allow",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )

    def log(self, rows: Sequence[Row]) -> None:
        """Add metrics."""
        for row in rows:
            self._run.log(dict(row.metrics), step=row.step)
            self._step = row.step

    def describe(self, facts: Mapping[str, Any]) -> None:
        """Add facts to the newest step: Trackio has no other place for what is known only at the end."""
        self._run.log(dict(facts), step=self._step)

    def text(self, name: str, markdown: str) -> None:
        """Store a page."""
        self._run.log({name: self._trackio.Markdown(markdown)}, step=self._step)

    def close(self, status: str) -> None:
        """End the run; Trackio has no status."""
        self._trackio.finish()
