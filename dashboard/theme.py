"""Colours, weights of fonts and the style sheet. Fonts come with Gradio: nothing is loaded from the network."""

from __future__ import annotations

from pathlib import Path

STYLE = Path(__file__).with_name("style.css")
SCRIPT = Path(__file__).with_name("page.js")

# Distinguishable with any kind of colour vision, on white and on near-black; shapes carry the same information.
BASE = "#7c8798"
MIDTRAINED = "#e0701b"
RECOVERED = "#2f86d6"
FOLLOWING = "#5a6fd8"
KNOWLEDGE = "#159a78"
SERIES = (FOLLOWING, MIDTRAINED, KNOWLEDGE, "#b5559b", BASE)

WEIGHTS = (400, 700)
"""Weights of which Gradio ships complete font files: its 600 has no Latin letters."""

INK = "#5b6675"  # text and lines inside figures; the style sheet adapts them to the dark theme
GRID = "#e4e8ee"
