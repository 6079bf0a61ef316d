"""Settings: dataclass fields that declare default, range, choices and help in one place.

The check on creation, the flag of the command line and the tables of docs/commands are made from the declaration.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
import typing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recovery.errors import UsageError

_KEY = "setting"
_type_hints: Any = functools.cache(typing.get_type_hints)  # evaluating annotations is slow


@dataclass(frozen=True)
class Setting:
    """What a field declares in addition to its name, type and default.

    ``minimum`` and ``maximum`` are allowed values, ``above`` and ``below`` are not. ``pattern`` is a regular expression
    of the whole text, whose values ``help`` names. ``shown`` describes a default
    that is computed or depends on other settings. ``flag`` is set if it differs from the name of the field. A path with
    the metavar FILE, or SOURCE (:mod:`recovery.data.sources`), must exist. None is always allowed; in a tuple each item
    is checked. ``by_model``: whether the folder of a model may recommend it, by default all but text and paths
    (:func:`may_be_recommended`).
    """

    help: str
    minimum: float | None = None
    above: float | None = None
    maximum: float | None = None
    below: float | None = None
    choices: tuple[str, ...] = ()
    pattern: str | None = None
    metavar: str | None = None
    shown: str | None = None
    flag: str | None = None
    by_model: bool | None = None

    def allows(self, value: Any) -> bool:
        """Whether a value is in range and one of the choices. NaN and infinity never are."""
        if self.choices:
            return value in self.choices
        if self.pattern is not None:
            return re.fullmatch(self.pattern, value) is not None
        if isinstance(value, float) and not math.isfinite(value):
            return False
        return (
            (self.minimum is None or value >= self.minimum)
            and (self.above is None or value > self.above)
            and (self.maximum is None or value <= self.maximum)
            and (self.below is None or value < self.below)
        )

    def refusal(self, value: Any) -> str:
        """Return what is wrong with a value that is not allowed, to follow the name of the flag."""
        if self.choices:
            return f"{value!r} is not known: use {', '.join(self.choices[:-1])} or {self.choices[-1]}"
        if self.pattern is not None:
            return f"{value!r} is not known: use {self.help.rstrip('.')}"
        if isinstance(value, float) and not math.isfinite(value):
            return f"is {value}, but must be a finite number"
        if self.minimum is not None and self.maximum is not None:
            return f"is {value}, but must be between {_bound(self.minimum)} and {_bound(self.maximum)}"
        bounds = {"at least": self.minimum, "above": self.above, "at most": self.maximum, "below": self.below}
        return f"is {value}, but must be " + " and ".join(
            f"{k} {_bound(v)}" for k, v in bounds.items() if v is not None
        )


def setting(default: Any, help: str, **declared: Any) -> Any:
    """Return a dataclass field with a :class:`Setting`. A class as ``default`` makes each default."""
    metadata = {_KEY: Setting(help, **declared)}
    if isinstance(default, type):
        return dataclasses.field(default_factory=default, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def share(default: Any, help: str, *, most: float = 0.95, **declared: Any) -> Any:
    """Return a field for a share, from 0 to ``most``, which leaves something beside it if it is below 1."""
    return setting(default, help, minimum=0, maximum=most, **declared)


def same_as(kind: type[Any], name: str, **changed: Any) -> Any:
    """Return a field declared as that of another class, except for what is ``changed``."""
    declared = settings_of(kind)[name]
    default = changed.pop("value", getattr(kind, name))
    return dataclasses.field(default=default, metadata={_KEY: dataclasses.replace(declared, **changed)})


def settings_of(kind: type[Any]) -> dict[str, Setting]:
    """Return the declarations of a configuration class by field, in its order."""
    return {field.name: field.metadata[_KEY] for field in dataclasses.fields(kind) if _KEY in field.metadata}


def types_of(kind: type[Any]) -> dict[str, Any]:
    """Return the types of the fields of a configuration class."""
    return _type_hints(kind)


def may_be_recommended(kind: type[Any], name: str, value: Any) -> bool:
    """Return whether the folder of a model, which may be a stranger's, may recommend a value of a field.

    Text and paths can name code, a file, a server, another model: they may not, unless they are one of the choices or
    their declaration says so, and an address never.
    """
    declared = settings_of(kind)[name]
    if isinstance(value, str) and "://" in value:
        return False
    if declared.by_model is not None:
        return declared.by_model
    return bool(declared.choices) or not _holds_text(types_of(kind)[name])


def _holds_text(wanted: Any) -> bool:
    return wanted in (str, Path) or any(_holds_text(part) for part in typing.get_args(wanted))


def flag_of(kind: type[Any], name: str) -> str:
    """Return the flag that sets a field: ``batch_tokens`` → ``--batch-tokens``."""
    declared = settings_of(kind).get(name)
    return (declared.flag if declared else None) or "--" + name.replace("_", "-")


def check_settings(config: Any) -> None:
    """Check every field of a configuration against its declaration.

    Raises:
        UsageError: names the flag of the first value that is not allowed.
    """
    for name in settings_of(type(config)):
        check_value(type(config), name, getattr(config, name))


def check_value(kind: type[Any], name: str, value: Any, where: str = "") -> None:
    """Check one value against the declaration of a field.

    Raises:
        UsageError: names ``where`` the value was given, by default the flag.
    """
    declared = settings_of(kind)[name]
    for item in value if isinstance(value, tuple) else (value,):
        if item is not None and not declared.allows(item):
            raise UsageError(f"{where or flag_of(kind, name)} {declared.refusal(item)}")


def _bound(value: float) -> str:
    """Return a bound as text, a large power of two as such."""
    if isinstance(value, int) and value >= 2**16 and value & (value - 1) == 0:
        return f"2**{value.bit_length() - 1}"
    return f"{value:g}"
