"""Checks of the files that settings name: that they exist, and that they are still the same."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from recovery.data.sources import SPLITS_FILE, is_there, parse
from recovery.errors import UsageError
from recovery.settings import flag_of, settings_of

_PLACES = {"FILE": "file", "SOURCE": "file, folder or dataset"}


def check_files(config: Any) -> None:
    """Check that every file and source of data that a configuration names exists; a hub is not asked.

    A configuration does not check this when it is created: it may be stored, or be for another machine.

    Raises:
        UsageError: names the flag and the first path that does not exist.
    """
    for name, kind, path in _named(type(config), vars(config)):
        if not is_there(path):
            raise UsageError(
                f"{flag_of(type(config), name)} {path}: there is no such {kind}: correct it, in the recipe if it "
                "is set there, or omit it"
            )


def contents_of(kind: type, values: Mapping[str, Any]) -> dict[str, str]:
    """Return the SHA-256 of the files that settings name, and of those in their folders, by setting; not of datasets on
    a hub, nor of documents, of which a stage keeps a copy. ``values`` are a configuration's, or as they are recorded.
    """
    found: dict[str, str] = {}
    for name, _, path in _named(kind, values):
        if name == "docs":
            continue
        place = parse(path).path
        files = [place] if place.is_file() else _read(place) if place.is_dir() else []
        digest = hashlib.sha256()
        for file in files:
            if file.is_file():
                named = file.name if file == place else file.relative_to(place).as_posix()
                with file.open("rb") as stream:
                    digest.update(f"{named}\0".encode() + hashlib.file_digest(stream, "sha256").digest())
        if files:
            found[name] = digest.hexdigest()
    return found


def _read(folder: Path) -> list[Path]:
    """Return what is read of a folder: the files in it; of a saved dataset, also those in the folders of its splits."""
    splits = folder.glob("*/*") if (folder / SPLITS_FILE).is_file() else ()
    return sorted([*folder.glob("*"), *splits])


def changed_since(kind: type, values: Mapping[str, Any], begun: Mapping[str, str]) -> str:
    """Return the flag and the value of a setting whose files are others than when a stage ``begun``, as
    :func:`contents_of` had them; "" if none are.
    """
    now = contents_of(kind, values) if begun else {}
    changed = (name for name, content in now.items() if begun.get(name, content) != content)
    return next((f"{flag_of(kind, name)} {values[name]}" for name in changed), "")


def _named(kind: type, values: Mapping[str, Any]) -> Iterator[tuple[str, str, Path]]:
    """Yield the paths of settings: the setting, "file" or what else it may be, and the path."""
    for name, declared in settings_of(kind).items():
        value = values.get(name)
        place = _PLACES.get(declared.metavar or "")
        for path in value if isinstance(value, tuple | list) else (value,):
            if place is not None and isinstance(path, Path | str):
                yield name, place, Path(path)
