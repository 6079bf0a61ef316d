"""The dashboard's database connection: read-only, opened on first use."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import URL

from db import Database, database_url, open_database, open_readonly, queries
from db.records import Experiment
from db.session import describe, is_sqlite

OWN = "main"
"""Default name of the experiment with a workspace's own cycles."""
SETTINGS = "workspace.json"
STUDIES = "study/"
"""Name prefix of experiments that belong to studies: shown where they are asked for by name."""


class Source:
    """Opens the database when a page is requested, so that a dashboard can start before the first run.

    ``workspace`` is the folder with the weights, if it is not the database's own; ``asking`` enables the Ask page.
    """

    def __init__(self, address: str | Path | URL, workspace: Path | None = None, *, asking: bool = False) -> None:
        self.url, self.asking = database_url(address), asking
        self._workspace = workspace
        self._open: Database | None = None
        self._file: tuple[int, int] | None = None

    @property
    def shown(self) -> str:
        """The address for messages, without password."""
        return describe(self.url)

    def database(self) -> Database:
        """Return the open database. Raises DatabaseError if it is missing or cannot be read."""
        file = self._identity()
        if self._open is None or file != self._file:
            self._open, self._file = open_readonly(self.url), file
        return self._open

    def workspace(self) -> Path | None:
        """Return the workspace that the database belongs to, or None if there is none on this machine."""
        if self._workspace is not None:
            return self._workspace
        file = Path(str(self.url.database)) if is_sqlite(self.url) else None
        return file.parent if file is not None and (file.parent / SETTINGS).is_file() else None

    @property
    def own(self) -> str:
        """The name of the experiment with the workspace's own cycles."""
        folder = self.workspace()
        try:
            settings = json.loads((folder / SETTINGS).read_text(encoding="utf-8")) if folder is not None else {}
        except (OSError, ValueError):
            settings = {}
        return str(settings.get("experiment") or OWN)

    def environment(self) -> dict[str, str]:
        """Return environment variables with the tracker's address; a command line would be readable by everyone."""
        if is_sqlite(self.url) and self._workspace is None:
            return {}
        return {"RECOVER_DATABASE": self.url.render_as_string(hide_password=False)}

    @contextmanager
    def writing(self) -> Iterator[Database]:
        """Open the database for one write and close it afterwards."""
        database = open_database(self.url)
        try:
            yield database
        finally:
            database.close()

    def experiment(self, name: str | None) -> Experiment | None:
        """Return the experiment of this name, or the newest one if no name is given."""
        if name:
            return queries.experiment(self.database(), name)
        return queries.newest_experiment(self.database(), but=STUDIES)

    def _identity(self) -> tuple[int, int] | None:
        """Return the identity of a SQLite file, so that a recreated file is opened again."""
        if not is_sqlite(self.url):
            return None
        try:
            status = Path(str(self.url.database)).stat()
        except OSError:
            return (0, 0)
        return (status.st_dev, status.st_ino)
