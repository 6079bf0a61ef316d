"""A check of the files that settings name."""

from __future__ import annotations

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
    for name, declared in settings_of(type(config)).items():
        value = getattr(config, name)
        kind = _PLACES.get(declared.metavar or "")
        for path in value if isinstance(value, tuple) else (value,):
            if kind is not None and isinstance(path, Path) and not is_there(path):
                raise UsageError(
                    f"{flag_of(type(config), name)} {path}: there is no such {kind}: correct it, in the recipe if it "
                    "is set there, or omit it"
                )
