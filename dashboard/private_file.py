"""Changing a small private file: in one step, keeping its rights, one process at a time."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from db import DatabaseError

Identity = tuple[int, ...] | None


def identity(path: Path) -> Identity:
    """Return what differs once a file was changed or replaced, without reading it; None if it is not there."""
    try:
        found = path.stat()
    except (OSError, ValueError):
        return None
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


@contextlib.contextmanager
def changing(path: Path) -> Iterator[Path]:
    """Yield the file to read and :func:`replace`, while no other process changes it so.

    Raises DatabaseError if the file cannot be read or written.
    """
    path = path.resolve()  # a link stays one
    try:
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            with contextlib.suppress(OSError):  # some network drives lock no folder: there the last change remains
                fcntl.flock(folder, fcntl.LOCK_EX)
            yield path
        finally:
            os.close(folder)
    except OSError as error:
        reason = error.strerror or str(error)
        raise DatabaseError(
            f"{path} cannot be written ({reason}): check the folder, its rights and the disk"
        ) from error


def replace(path: Path, text: str) -> None:
    """Replace a file's text in one step: a full disk or a kill leaves the old one. A new file is its owner's alone."""
    # The name is that of recovery.disk: what a killed process leaves in a workspace is removed.
    handle, name = tempfile.mkstemp(prefix=f".writing-{os.getpid()}-", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            if path.exists():
                _keep_rights(path.stat(), stream.fileno())
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        Path(name).replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(name).unlink()
        raise


def _keep_rights(old: os.stat_result, handle: int) -> None:
    """Give a new file the owner, group and mode of the old one; who may not do that must not replace it."""
    new = os.fstat(handle)
    if (old.st_uid, old.st_gid) != (new.st_uid, new.st_gid):
        os.fchown(handle, old.st_uid, old.st_gid)
    os.fchmod(handle, stat.S_IMODE(old.st_mode))
