"""Conversion of values for the database."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

from db.json_values import finite, json_safe, text


@dataclass(frozen=True)
class Setting:
    path: Path
    betas: tuple[float, float]


class Array:
    def tolist(self) -> list[float]:
        return [1.0, math.nan]


def test_anything_becomes_json() -> None:
    value = {"a": Setting(Path("x"), (0.9, math.inf)), 2: {"b", "a"}, "n": Array(), "flag": True, "none": None}
    expected = {"a": {"path": "x", "betas": [0.9, None]}, "2": ["a", "b"], "n": [1.0, None]}
    assert json.loads(json.dumps(json_safe(value))) == expected | {"flag": True, "none": None}


def test_numbers_and_text() -> None:
    assert (finite(math.nan), finite(None), finite(True), finite("2")) == (None, None, 1.0, 2.0)
    assert text("a\x00b\ud800") == "a\N{REPLACEMENT CHARACTER}b?"
