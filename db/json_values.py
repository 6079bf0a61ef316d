"""Conversion of values for JSON, number and text columns."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any


def json_safe(value: Any) -> Any:
    """Return the value in JSON types: non-finite numbers become null, unknown objects text."""
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, str):
        return text(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: json_safe(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {text(key): json_safe(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_safe(entry) for entry in value]
    if isinstance(value, (set, frozenset)):
        return [json_safe(entry) for entry in sorted(value, key=str)]
    if hasattr(value, "tolist"):  # arrays and their scalars, without importing an array library
        return json_safe(value.tolist())
    return text(value)


def finite(value: Any) -> float | None:
    """Return a number for a score or metric column; None if it is missing or not finite."""
    number = math.nan if value is None else float(value)
    return number if math.isfinite(number) else None


def text(value: Any) -> str:
    """Return text for a column, without null characters (PostgreSQL) and lone surrogates (UTF-8)."""
    return str(value).replace("\x00", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode("utf-8")
