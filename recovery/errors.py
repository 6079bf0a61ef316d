"""Error classes; each message is one line that the user can act on."""

from __future__ import annotations

import errno
import re
from pathlib import Path

DISK_FAILURES = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS, errno.EACCES)
"""Numbers of an OSError that mean a disk that is full, broken or write-protected."""

# Control characters, line and paragraph separators, marks that change the direction of text, halves of surrogate pairs.
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_LONGEST = 1200  # characters of a message
# The last is cuDNN's attention without memory for its workspace.
_FULL = ("CUDA error: out of memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED", "mha_graph.execute")


def printable(text: str) -> str:
    """Return a text as one line that cannot change what a terminal shows of others: such characters are escaped.

    The middle of a very long one is left out.
    """
    if len(text) > _LONGEST:
        text = f"{text[: _LONGEST // 2]} ... {text[-_LONGEST // 2 :]}"
    return _UNPRINTABLE.sub(lambda found: found[0].encode("unicode_escape").decode("ascii"), text)


class RecoveryError(Exception):
    """Base of every error this project raises on purpose.

    The message is one line: what is wrong, where, and what to do. The command line prints it without a
    traceback and exits with status 1. Names and values of the user's files may be part of it: they are made printable.
    """

    def __str__(self) -> str:
        return printable(super().__str__())


def first_line(error: BaseException) -> str:
    """Return the first line of another library's message, or the error's name if it has none."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]


def disk_failure(path: str | Path | None, error: BaseException, verb: str = "written") -> str:
    """Return one line about a disk's error: which file, why, and what to do."""
    reason = getattr(error, "strerror", None) or " ".join(str(error).split())
    return f"{path or 'a file'} cannot be {verb} ({reason}): check the folder, its rights and the disk"


def memory_is_full(error: BaseException) -> bool:
    """Whether an error of torch, CUDA or one of its libraries says that a GPU's memory is full."""
    if not isinstance(error, RuntimeError):
        return False
    # By name, since most commands do not import torch.
    return type(error).__name__ == "OutOfMemoryError" or any(words in str(error) for words in _FULL)


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
