"""Writing to a disk that may be full, broken or read-only: one line in place of a traceback, and nothing half-written.

A file or folder is written under a temporary name and renamed when it is whole. :func:`sweep` removes what a killed
process left.
"""

from __future__ import annotations

import difflib
import os
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from safetensors import SafetensorError

from recovery.errors import DISK_FAILURES, UsageError, disk_failure

WRITING, OLD = ".writing-", ".old-"


def near(path: Path) -> str:
    """Return "did you mean ...?" with the entry of the folder whose name is nearest to a missing path's, or ""."""
    try:
        names = [entry.name for entry in path.expanduser().parent.iterdir()]
    except OSError:
        return ""
    matches = difflib.get_close_matches(path.name, names, 1, 0.8)
    return f"did you mean {path.with_name(matches[0])}?" if matches else ""


@contextmanager
def written(path: Path, temporary: Path) -> Iterator[None]:
    """Remove ``temporary`` if the block fails. Raise UsageError, which names ``path``, if it cannot be written."""
    try:
        yield
    except BaseException as error:
        _remove(temporary)
        # Tokenizers raise a plain Exception, recognisable only by its message.
        if isinstance(error, OSError | SafetensorError) or (type(error) is Exception and "os error" in str(error)):
            raise UsageError(disk_failure(path, error)) from error
        raise


def sync(path: Path) -> None:
    """Wait until a file or a folder's list of names is on the disk, so that a power failure does not lose it."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:  # some network file systems do not support it for folders
        if error.errno in DISK_FAILURES:
            raise
    finally:
        os.close(handle)


def replace_folder(writing: Path, folder: Path) -> None:
    """Rename a complete folder to its place, instead of an existing one; it is on the disk when this returns.

    A crash or a power failure leaves the old folder or the new one, whole.
    """
    old = folder.with_name(f"{OLD}{folder.name}")
    for path in (*writing.rglob("*"), writing):
        sync(path)
    if folder.exists():
        shutil.rmtree(old, ignore_errors=True)
        folder.rename(old)
    writing.rename(folder)
    for parent in (folder.parent, folder.parent.parent):  # the first may be new as well
        sync(parent)
    shutil.rmtree(old, ignore_errors=True)


def sweep(folders: Iterable[Path]) -> None:
    """Remove the files that killed processes left directly in the folders: temporary ones, and replaced ones.

    A replaced file is restored if its successor is missing. The caller holds the workspace's lock.
    """
    for folder in folders:
        for leftover in [*folder.glob(f"{WRITING}*")]:
            if not _is_alive(leftover.name):
                _remove(leftover)
        for leftover in [*folder.glob(f"{OLD}*")]:
            replaced = leftover.with_name(leftover.name.removeprefix(OLD))
            if replaced.exists():
                _remove(leftover)
            else:
                leftover.rename(replaced)


def _is_alive(name: str) -> bool:
    """Whether a temporary name holds the number of another process that runs."""
    number = re.match(rf"{re.escape(WRITING)}(\d+)-", name)
    if number is None or int(number[1]) == os.getpid():
        return False
    try:
        os.kill(int(number[1]), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _remove(path: Path) -> None:
    """Remove a file or a folder, as far as possible."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink(missing_ok=True)


def user_cache(part: str) -> Path:
    """Return the user's folder for files outside workspaces: converted "models", "nltk_data", "runs"."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "recovery" / part
