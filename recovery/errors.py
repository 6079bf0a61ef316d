"""What can go wrong, as one line a person can act on."""

from __future__ import annotations


class RecoveryError(Exception):
    """Base of every error this project raises on purpose.

    The message is one line: what is wrong, where, and what to do. The command line prints it without a
    traceback and exits with status 1.
    """


class Interrupted(RecoveryError):  # noqa: N818  (no error: it was asked for)
    """Work was asked to stop and did, at a place where nothing is lost by it."""


class UsageError(RecoveryError):
    """A setting, flag or file the user gave cannot be used as it is."""


class CheckpointError(RecoveryError):
    """A checkpoint is missing, damaged or not what its name promises."""


class CorpusError(RecoveryError):
    """A folder of documents holds nothing that can be trained on."""


class ModelError(RecoveryError):
    """A model has a shape or a feature that cannot be handled correctly."""


class TrackerError(RecoveryError):
    """The tracker database cannot be opened, read or written."""


class EngineError(RecoveryError):
    """A rollout engine cannot be started, or does not sample from the weights in training."""


class ServerError(RecoveryError):
    """A server does not answer, or answers what cannot be used."""
