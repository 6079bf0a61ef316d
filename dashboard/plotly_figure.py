"""Minimal figure class: builds the plain data that Plotly's JavaScript draws.

Plotly's Python classes validate and copy every property: half a second for a figure of twenty cycles, at each page
load. Here nothing is validated when a page is served; the tests validate every figure with Plotly's own classes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_PARTS = ("title", "line")  # parts that may be written with an underscore: title_text, line_width


@dataclass
class Figure:
    """Traces and a layout; methods and arguments match those of ``plotly.graph_objects.Figure``."""

    data: list[dict[str, Any]] = field(default_factory=list)
    layout: dict[str, Any] = field(default_factory=dict)

    def add_scatter(self, **trace: Any) -> None:
        """Add points, lines, or both."""
        self.data.append(_nested({"type": "scatter"} | trace))

    def add_annotation(self, **note: Any) -> None:
        """Add a text or an arrow."""
        self.layout.setdefault("annotations", []).append(_nested(note))

    def add_shape(self, **shape: Any) -> None:
        """Add a line or an area by its corners."""
        self.layout.setdefault("shapes", []).append(_nested(shape))

    def add_hline(self, y: float, **look: Any) -> None:
        """Add a horizontal line over the full width."""
        self.add_shape(type="line", xref="x domain", x0=0, x1=1, yref="y", y0=y, y1=y, **look)

    def add_vline(self, x: float, **look: Any) -> None:
        """Add a vertical line over the full height."""
        self.add_shape(type="line", xref="x", x0=x, x1=x, yref="y domain", y0=0, y1=1, **look)

    def add_hrect(self, y0: float, y1: float, **look: Any) -> None:
        """Shade a horizontal band over the full width."""
        self.add_shape(type="rect", xref="x domain", x0=0, x1=1, yref="y", y0=y0, y1=y1, **look)

    def add_vrect(self, x0: float, x1: float, **look: Any) -> None:
        """Shade a vertical band over the full height."""
        self.add_shape(type="rect", xref="x", x0=x0, x1=x1, yref="y domain", y0=0, y1=1, **look)

    def update_layout(self, **values: Any) -> None:
        """Set parts of the layout; other parts stay unchanged."""
        _merge(self.layout, values)

    def update_xaxes(self, **values: Any) -> None:
        """Set parts of the horizontal axis."""
        _merge(self.layout.setdefault("xaxis", {}), values)

    def update_yaxes(self, **values: Any) -> None:
        """Set parts of the vertical axis."""
        _merge(self.layout.setdefault("yaxis", {}), values)

    def to_dict(self) -> dict[str, Any]:
        """Return the figure as Plotly expects it."""
        return {"data": self.data, "layout": self.layout}

    def to_json(self) -> str:
        """Return the figure as JSON, the form Gradio sends."""
        return json.dumps(self.to_dict(), separators=(",", ":"), allow_nan=False)


def _nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``title_text=x`` as ``title={"text": x}``, without values that are None."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        part, _, rest = name.partition("_")
        if value is None:
            continue
        if rest and part in _PARTS:
            found.setdefault(part, {})[rest] = value
        else:
            found[name] = value
    return found


def _merge(into: dict[str, Any], values: Mapping[str, Any]) -> None:
    for name, value in _nested(values).items():
        if isinstance(value, Mapping):
            _merge(into.setdefault(name, {}), value)
        else:
            into[name] = value
