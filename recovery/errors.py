"""Error classes; each message is one line that the user can act on."""

from __future__ import annotations

import errno
from pathlib import Path

DISK_FAILURES = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS, errno.EACCES)
"""Numbers of an OSError that mean a disk that is full, broken or write-protected."""


class RecoveryError(Exception):
    """Base of every error this project raises on purpose.

    The message is one line: what is wrong, where, and what to do. The command line prints it without a
    traceback and exits with status 1.
    """


def first_line(error: BaseException) -> str:
    """Return the first line of another library's message, or the error's name if it has none."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]


def disk_failure(path: str | Path | None, error: BaseException, verb: str = "written") -> str:
    """Return one line about a disk's error: which file, why, and what to do."""
    reason = getattr(error, "strerror", None) or " ".join(str(error).split())
    return f"{path or 'a file'} cannot be {verb} ({reason}): check the folder, its rights and the disk"


class Interrupted(RecoveryError):  # noqa: N818  (not an error: a requested stop)
    """Work stopped on request, at a point where no progress is lost."""


class UsageError(RecoveryError):
    """A setting, flag or file given by the user is invalid."""


class CheckpointError(RecoveryError):
    """A checkpoint is missing, damaged or has changed."""


class CorpusError(RecoveryError):
    """A folder of documents contains nothing to train on."""


class ModelError(RecoveryError):
    """A model cannot be loaded, or has a feature that is not supported."""


class EngineError(RecoveryError):
    """A rollout engine cannot be started, or does not sample from the weights in training."""


class ServerError(RecoveryError):
    """A server does not respond, or its response cannot be used."""
