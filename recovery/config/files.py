"""Checks of the files that settings name: that they exist, and that they are still the same."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from recovery.data.sources import is_there
from recovery.errors import UsageError
from recovery.settings import flag_of, settings_of

_PLACES = {"FILE": "file", "SOURCE": "file, folder or dataset"}


def check_files(config: Any) -> None:
    """Check that every file and source of data that a configuration names exists; a hub is not asked.

    A configuration does not check this when it is created: it may be stored, or be for another machine.

    Raises:
        UsageError: names the flag and the first path that does not exist.
    """
    for name, kind, path in _named(config):
        if not is_there(path):
            raise UsageError(
                f"{flag_of(type(config), name)} {path}: there is no such {kind}: correct it, in the recipe if it "
                "is set there, or omit it"
            )


def contents_of(config: Any) -> dict[str, str]:
    """Return the SHA-256 of the files that a configuration names, by setting; not of folders, datasets and documents,
    of which a stage keeps a copy.
    """
    found: dict[str, str] = {}
    for name, _, path in _named(config):
        if name != "docs" and path.is_file():
            with path.open("rb") as stream:
                found[name] = hashlib.file_digest(stream, "sha256").hexdigest()
    return found


def check_contents(config: Any, begun: Mapping[str, str]) -> None:
    """Raise UsageError for a file whose content was another, as :func:`contents_of` had it, when a stage began."""
    for name, content in contents_of(config).items():
        if begun.get(name, content) != content:
            raise UsageError(
                f"{flag_of(type(config), name)} {getattr(config, name)}: the file has changed since the stage began, "
                f"which would go on with other data: restore the file, or start the stage again"
            )


def _named(config: Any) -> Iterator[tuple[str, str, Path]]:
    """Yield the paths of a configuration: the setting, "file" or what else it may be, and the path."""
    for name, declared in settings_of(type(config)).items():
        value = getattr(config, name)
        kind = _PLACES.get(declared.metavar or "")
        for path in value if isinstance(value, tuple) else (value,):
            if kind is not None and isinstance(path, Path):
                yield name, kind, path
