"""The dashboard's way to the database: opened when first needed, for reading only."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import URL

from db import Database, database_url, open_readonly, queries
from db.records import Experiment
from db.session import describe, is_sqlite


class Source:
    """Opens the database when a page is asked for, so that a dashboard may be started before the first run."""

    def __init__(self, address: str | Path | URL) -> None:
        self.url = database_url(address)
        self._open: Database | None = None
        self._file: tuple[int, int] | None = None

    @property
    def shown(self) -> str:
        """The address as it may be shown."""
        return describe(self.url)

    def database(self) -> Database:
        """The database. Raises DatabaseError while there is none or it cannot be read."""
        file = self._identity()
        if self._open is None or file != self._file:
            self._open, self._file = open_readonly(self.url), file
        return self._open

    def experiment(self, name: str | None) -> Experiment | None:
        """The experiment of this name, or the newest one where none is named."""
        if name:
            return queries.experiment(self.database(), name)
        return next(iter(queries.experiments(self.database(), limit=1)), None)

    def _identity(self) -> tuple[int, int] | None:
        """Which file it is, so that a workspace deleted and made anew is opened anew."""
        if not is_sqlite(self.url):
            return None
        try:
            status = Path(str(self.url.database)).stat()
        except OSError:
            return (0, 0)
        return (status.st_dev, status.st_ino)
