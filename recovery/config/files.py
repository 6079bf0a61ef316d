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
    for name, kind, path in _named_paths(type(config), vars(config)):
        if not is_there(path):
            raise UsageError(
                f"{flag_of(type(config), name)} {path}: there is no such {kind}: correct it, in the recipe if it "
                "is set there, or omit it"
            )


def contents_of(kind: type, values: Mapping[str, Any]) -> dict[str, str]:
    """Return a SHA-256 for each setting that names a file or a folder of files. Left out are datasets on a hub, and
    documents, of which a stage keeps a copy. ``values`` are those of a configuration or of its record.
    """
    hashes: dict[str, str] = {}
    for name, _, path in _named_paths(kind, values):
        if name == "docs":
            continue
        place = parse(path).path
        files = [place] if place.is_file() else _files_read(place) if place.is_dir() else []
        digest = hashlib.sha256()
        for file in files:
            if file.is_file():
                name_in_folder = file.name if file == place else file.relative_to(place).as_posix()
                with file.open("rb") as stream:
                    digest.update(f"{name_in_folder}\0".encode() + hashlib.file_digest(stream, "sha256").digest())
        if files:
            hashes[name] = digest.hexdigest()
    return hashes


def _files_read(folder: Path) -> list[Path]:
    """Return the files in a folder; of a saved dataset, also those in the folders of its splits."""
    splits = folder.glob("*/*") if (folder / SPLITS_FILE).is_file() else ()
    return sorted([*folder.glob("*"), *splits])


def changed_since(kind: type, values: Mapping[str, Any], begun: Mapping[str, str]) -> str:
    """Return the flag and the value of a setting whose files have changed since a stage ``begun`` with these contents
    (:func:`contents_of`), or "".
    """
    current = contents_of(kind, values) if begun else {}
    changed = (name for name, content in current.items() if begun.get(name, content) != content)
    return next((f"{flag_of(kind, name)} {values[name]}" for name in changed), "")


def _named_paths(kind: type, values: Mapping[str, Any]) -> Iterator[tuple[str, str, Path]]:
    """Yield the paths of settings: the setting, the kind ("file" or wider), and the path."""
    for name, declared in settings_of(kind).items():
        value = values.get(name)
        place = _PLACES.get(declared.metavar or "")
        for path in value if isinstance(value, tuple | list) else (value,):
            if place is not None and isinstance(path, Path | str):
                yield name, place, Path(path)
