"""What can go wrong with the tracker database, as one line a person can act on."""

from __future__ import annotations


class DatabaseError(Exception):
    """Base of every error this package raises on purpose. The message is one line."""


class MissingDatabaseError(DatabaseError):
    """There is no tracker database at the address given."""


class SchemaError(DatabaseError):
    """The database was written by another version and cannot be used as it is."""


class OutdatedSchemaError(SchemaError):
    """The database was written by an older version: it is to be upgraded first."""


class StageBusyError(DatabaseError):
    """A stage is run, or was taken over, by another live process."""
