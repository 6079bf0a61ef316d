"""The dashboard's way to the database: opened when first needed, for reading only."""

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
"""The experiment of a workspace's own line of cycles, unless the workspace says otherwise."""
SETTINGS = "workspace.json"
STUDIES = "study/"
"""Experiments of this name are runs and outcomes of studies, which have a page of their own."""


class Source:
    """Opens the database when a page is asked for, so that a dashboard may be started before the first run.

    ``workspace`` is the folder with the weights, where that is not the database's own; ``asking`` says that prompts may
    be put to its checkpoints.
    """

    def __init__(self, address: str | Path | URL, workspace: Path | None = None, *, asking: bool = False) -> None:
        self.url, self.asking = database_url(address), asking
        self._workspace = workspace
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

    def workspace(self) -> Path | None:
        """The workspace the database is the tracker of, if it is one's and here."""
        if self._workspace is not None:
            return self._workspace
        file = Path(str(self.url.database)) if is_sqlite(self.url) else None
        return file.parent if file is not None and (file.parent / SETTINGS).is_file() else None

    @property
    def own(self) -> str:
        """The experiment of the workspace's own line of cycles."""
        folder = self.workspace()
        try:
            told = json.loads((folder / SETTINGS).read_text(encoding="utf-8")) if folder is not None else {}
        except (OSError, ValueError):
            told = {}
        return str(told.get("experiment") or OWN)

    def environment(self) -> dict[str, str]:
        """What lets a `recover` process find this tracker: no part of its command line, which everyone can read."""
        if is_sqlite(self.url) and self._workspace is None:
            return {}
        return {"RECOVER_DATABASE": self.url.render_as_string(hide_password=False)}

    @contextmanager
    def writing(self) -> Iterator[Database]:
        """The database for one decision: opened for it and closed after it."""
        database = open_database(self.url)
        try:
            yield database
        finally:
            database.close()

    def experiment(self, name: str | None) -> Experiment | None:
        """The experiment of this name, or the newest one where none is named."""
        if name:
            return queries.experiment(self.database(), name)
        return queries.newest_experiment(self.database(), but=STUDIES)

    def _identity(self) -> tuple[int, int] | None:
        """Which file it is, so that a workspace deleted and made anew is opened anew."""
        if not is_sqlite(self.url):
            return None
        try:
            status = Path(str(self.url.database)).stat()
        except OSError:
            return (0, 0)
        return (status.st_dev, status.st_ino)
