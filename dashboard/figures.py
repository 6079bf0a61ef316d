"""A figure as Plotly's JavaScript draws it: plain data, written down as it is.

Plotly's Python classes check and copy every property: half a second for a figure of twenty cycles, at each look at the
page. Here nothing is checked when a page is served; the tests check every figure against Plotly's own classes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_PARTS = ("title", "line")  # what may be spelt with an underscore: title_text, line_width


@dataclass
class Figure:
    """Traces and a layout; methods and arguments are named as those of ``plotly.graph_objects.Figure``."""

    data: list[dict[str, Any]] = field(default_factory=list)
    layout: dict[str, Any] = field(default_factory=dict)

    def add_scatter(self, **trace: Any) -> None:
        """Draw points, lines, or both."""
        self.data.append(_spelt_out({"type": "scatter"} | trace))

    def add_annotation(self, **note: Any) -> None:
        """Write words, or draw an arrow."""
        self.layout.setdefault("annotations", []).append(_spelt_out(note))

    def add_shape(self, **shape: Any) -> None:
        """Draw a line or an area by its corners."""
        self.layout.setdefault("shapes", []).append(_spelt_out(shape))

    def add_hline(self, y: float, **look: Any) -> None:
        """Draw a line from one side to the other."""
        self.add_shape(type="line", xref="x domain", x0=0, x1=1, yref="y", y0=y, y1=y, **look)

    def add_vline(self, x: float, **look: Any) -> None:
        """Draw a line from bottom to top."""
        self.add_shape(type="line", xref="x", x0=x, x1=x, yref="y domain", y0=0, y1=1, **look)

    def add_hrect(self, y0: float, y1: float, **look: Any) -> None:
        """Shade from one side to the other."""
        self.add_shape(type="rect", xref="x domain", x0=0, x1=1, yref="y", y0=y0, y1=y1, **look)

    def add_vrect(self, x0: float, x1: float, **look: Any) -> None:
        """Shade from bottom to top."""
        self.add_shape(type="rect", xref="x", x0=x0, x1=x1, yref="y domain", y0=0, y1=1, **look)

    def update_layout(self, **values: Any) -> None:
        """Set parts of the layout; what they do not name stays."""
        _merge(self.layout, values)

    def update_xaxes(self, **values: Any) -> None:
        """Set parts of the horizontal axis."""
        _merge(self.layout.setdefault("xaxis", {}), values)

    def update_yaxes(self, **values: Any) -> None:
        """Set parts of the vertical axis."""
        _merge(self.layout.setdefault("yaxis", {}), values)

    def to_dict(self) -> dict[str, Any]:
        """What Plotly is given."""
        return {"data": self.data, "layout": self.layout}

    def to_json(self) -> str:
        """The same as text: what Gradio sends."""
        return json.dumps(self.to_dict(), separators=(",", ":"), allow_nan=False)


def _spelt_out(values: Mapping[str, Any]) -> dict[str, Any]:
    """``title_text=x`` as ``title={"text": x}``; what is None is left out."""
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
    for name, value in _spelt_out(values).items():
        if isinstance(value, Mapping):
            _merge(into.setdefault(name, {}), value)
        else:
            into[name] = value
