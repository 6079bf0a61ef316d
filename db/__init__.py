"""Experiment tracker: a database of stages, metrics, checkpoints, evaluations and decisions.

Imports no other package of the project.
"""

from __future__ import annotations

from db.background_writer import StageRecorder
from db.decisions import Decided, decide
from db.errors import DatabaseError, MissingDatabaseError, SchemaError, StageBusyError
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
