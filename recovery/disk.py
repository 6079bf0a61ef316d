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
    """Return "did you mean ...?" with what has nearly the name of a missing path in its folder; "" if nothing has."""
    try:
        beside = [one.name for one in path.expanduser().parent.iterdir()]
    except OSError:
        return ""
    found = difflib.get_close_matches(path.name, beside, 1, 0.8)
    return f"did you mean {path.with_name(found[0])}?" if found else ""


@contextmanager
def written(path: Path, temporary: Path) -> Iterator[None]:
    """Remove ``temporary`` if the block fails. Raise UsageError, which names ``path``, if it cannot be written."""
    try:
        yield
    except BaseException as error:
        _remove(temporary)
        # Tokenizers raise a plain Exception in which only the words tell.
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
    """Remove what killed processes left directly in the folders: temporary files, and what was being replaced.

    What was replaced is put back if its successor is not there. The caller holds the workspace's lock.
    """
    for folder in folders:
        for left in [*folder.glob(f"{WRITING}*")]:
            if not _is_alive(left.name):
                _remove(left)
        for left in [*folder.glob(f"{OLD}*")]:
            replaced = left.with_name(left.name.removeprefix(OLD))
            if replaced.exists():
                _remove(left)
            else:
                left.rename(replaced)


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
    """Return the user's folder for what belongs to no workspace: "models" that were converted, "nltk_data", "runs"."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "recovery" / part
