"""Errors of the tracker database; each message is one line that tells the user what to do."""

from __future__ import annotations


class DatabaseError(Exception):
    """Base class of all errors of this package. The message is one line."""


class MissingDatabaseError(DatabaseError):
    """There is no tracker database at the given address."""


class SchemaError(DatabaseError):
    """The database was written by another version and cannot be used unchanged."""


class StageBusyError(DatabaseError):
    """A stage is run, or was taken over, by another live process."""
