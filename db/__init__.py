"""The tracker: what was done to a model, and what came of it. Imports nothing of the project."""

from __future__ import annotations

from db.decisions import Decided, decide
from db.errors import DatabaseError, MissingDatabaseError, SchemaError, StageBusyError
from db.recorder import StageRecorder
from db.session import Database, database_url, open_database, open_readonly
from db.tracker import Tracker

__all__ = [
    "Database",
    "DatabaseError",
    "Decided",
    "MissingDatabaseError",
    "SchemaError",
    "StageBusyError",
    "StageRecorder",
    "Tracker",
    "database_url",
    "decide",
    "open_database",
    "open_readonly",
]

PART_OF = "recovery"
