"""HTML fragments. Every text from a record is escaped with ``esc``: Gradio shows HTML unchanged."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import quote

# Colours, weights of fonts and the style sheet. Fonts come with Gradio: nothing is loaded from the network.

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

LOGO = (
    '<svg viewBox="0 0 32 20" width="32" height="20" aria-hidden="true"><path d="M1.5 4 L9 16 L16 5 L23 15 L30.5 4" '
    'fill="none" stroke="#2f86d6" stroke-width="2.6" stroke-linecap="round" stroke-linejoin="round"/></svg>'
)
_LINE = '<path d="M0 7H24" stroke="{0}" stroke-width="2.4" fill="none"'
SHAPES = {
    "circle": '<circle cx="12" cy="7" r="5.5" fill="{0}"/>',
    "triangle": '<path d="M6 2.5H18L12 12.5Z" fill="{0}"/>',
    "square": '<rect x="7" y="2" width="10" height="10" fill="{0}"/>',
    "solid": _LINE + '/><circle cx="12" cy="7" r="4" fill="{0}"/>',
    "dashed": _LINE + ' stroke-dasharray="5 3"/><path d="M12 2L17 7L12 12L7 7Z" fill="{0}"/>',
    "line-solid": _LINE + "/>",
    "line-dash": _LINE + ' stroke-dasharray="7 4"/>',
    "line-dot": _LINE + ' stroke-dasharray="2.4 3"/>',
    "line-dashdot": _LINE + ' stroke-dasharray="8 3 2 3"/>',
    "ring": '<circle cx="12" cy="7" r="5.5" fill="none" stroke="{0}" stroke-width="1.8" stroke-dasharray="3 2"/>',
    "diamond": '<path d="M12 1L18 7L12 13L6 7Z" fill="{0}"/>',
    "phase": '<rect x="3" y="0" width="18" height="14" rx="3" fill="{0}" opacity="0.28"/>',
}
MENU = ("overview", "cycle", "knowledge", "samples", "review", "live")
MORE = ("tokens", "geometry", "compare", "log")
PAGES = MENU + MORE
"""The pages, those of ``MORE`` under that word: each is a module of :mod:`dashboard.pages`, the first is the start."""
ASK = "ask"
_END_OF_EMBEDDING, _END_OF_ISOLATE = "\u202c", "\u2069"
_CLOSED_BY = dict.fromkeys("\u202a\u202b\u202d\u202e", _END_OF_EMBEDDING) | dict.fromkeys(
    "\u2066\u2067\u2068", _END_OF_ISOLATE
)

STAGE_WORDS = {
    "midtrain": "Mid-training",
    "distill": "Recovery",
    "interpolate": "Interpolation",
    "evaluate": "Evaluation",
}


def esc(value: object) -> str:
    """Return any value as text with HTML escaped; changes of text direction in it end with it."""
    text = escape(str(value), quote=True)
    return text if text.isascii() else text + closing(text)


def prose(sentence: str) -> str:
    """Return a sentence as HTML, the commands in it, between backticks, as code."""
    return re.sub("`([^`]+)`", r"<code>\1</code>", esc(sentence))


def exact(value: object) -> str:
    """Return the value of a form's field with HTML escaped, without added characters: forms send it back."""
    return escape(str(value), quote=True)


def closing(text: str) -> str:
    """Return the characters that end the changes of text direction in a text, which otherwise affect what follows."""
    opened: list[str] = []
    isolates = 0  # in ``opened``, counted: a search of the list for each end is quadratic in a hostile text
    for one in text:
        if one in _CLOSED_BY:
            opened.append(_CLOSED_BY[one])
            isolates += opened[-1] == _END_OF_ISOLATE
        elif one == _END_OF_EMBEDDING and opened[-1:] == [one]:
            opened.pop()
        elif one == _END_OF_ISOLATE and isolates:
            isolates -= 1
            while opened.pop() != one:  # it ends the embeddings inside as well
                pass
    return "".join(reversed(opened))


@dataclass(frozen=True)
class Tile:
    """A headline number with its name and a note."""

    name: str
    value: str
    note: str = ""
    tone: str = ""


def header(page: str, experiment: str | None = None, *, asking: bool = False) -> str:
    """Return the header bar with the navigation; ``asking`` adds the Ask page."""
    query = f"?experiment={quote(experiment, safe='')}" if experiment else ""

    def links(paths: Iterable[str]) -> str:
        html = ""
        for path in paths:
            name = path.capitalize()
            here = ' aria-current="page"' if name == page else ""
            html += f'<a href="{"./" if path == PAGES[0] else path}{esc(query)}"{here}>{name}</a>'
        return html

    more = (*MORE, ASK) if asking else MORE
    shown = page if page.lower() in more else ""  # the page on the screen stands in the bar
    hidden_links = links(one for one in more if one != shown.lower())
    return (
        '<a class="skip" href="#content">Skip to the content</a>'
        f'<header class="bar"><a class="brand" href="./{esc(query)}">{LOGO}<span>Recovery</span></a>'
        f'<nav aria-label="Pages">{links(MENU)}{links([shown.lower()] if shown else [])}<details class="more">'
        f"<summary>More</summary><div>{hidden_links}</div></details></nav></header>"
    )


def hero(under: str, title: str, *, hint: str = "", below: str = "") -> str:
    """Return a page's heading with a line of context above it, all HTML; ``hint`` is shown on hover over that line."""
    hover = f' title="{esc(hint)}"' if hint else ""
    return f'<div class="hero"><p class="eyebrow"{hover}>{under}</p><h1>{title}</h1>{below}</div>'


def answers(parts: Iterable[tuple[str, str, str, Sequence[str], str]]) -> str:
    """Return questions with their answers: (question, tone, word, sentences, link as HTML) of each."""
    shown = "".join(
        f'<section class="told {esc(tone)}"><h2>{esc(question)}</h2><strong>{esc(word)}</strong>'
        f"{''.join(f'<p>{esc(one)}</p>' for one in says)}{link}</section>"
        for question, tone, word, says, link in parts
    )
    return f'<div class="answers told-row">{shown}</div>'


def current(here: bool) -> str:
    """Return the attribute of the link to what is shown."""
    return ' aria-current="true"' if here else ""


def tabs(name: str, links: Iterable[tuple[str, str, bool]], *, labelled: bool = False) -> str:
    """Return tabs from (address, text, whether it is shown); ``labelled`` writes their name before them."""
    shown = "".join(f'<a href="{esc(address)}"{current(here)}>{esc(words)}</a>' for address, words, here in links)
    return tab_row(name, shown, labelled=labelled) if shown else ""


def tab_row(name: str, links: str, *, labelled: bool = False) -> str:
    """Return a row of tabs from their HTML."""
    look, label = (" labelled", f"<span>{esc(name)}</span>") if labelled else ("", "")
    return f'<nav class="tabs{look}" aria-label="{esc(name)}">{label}{links}</nav>'


def tiles(entries: Iterable[Tile]) -> str:
    """Return a row of tiles."""
    shown = [
        f'<div class="tile {esc(entry.tone)}"><dt>{esc(entry.name)}</dt><dd>{esc(entry.value)}</dd>'
        f"<p>{esc(entry.note)}</p></div>"
        for entry in entries
    ]
    return f'<dl class="tiles">{"".join(shown)}</dl>'


def card_title(title: str, note: str = "", keys: str = "") -> str:
    """Return the heading of a card, with an explanatory note and the legend of its figure (``keys``)."""
    return f'<div class="card-title"><h2>{esc(title)}</h2><p>{esc(note)}</p>{keys}</div>'


def card(title: str, note: str, body: str, *, look: str = "", anchor: str = "", folded: bool = False) -> str:
    """Return a card: heading, note and body; ``look`` is a further class, ``anchor`` its id in addresses. Of a
    ``folded`` one only the heading is shown until it is opened.
    """
    place = f' id="{esc(anchor)}"' if anchor else ""
    if folded:
        opened = f'<p class="note">{esc(note)}</p>{body}'
        return f'<details class="{f"card {look}".strip()}"{place}><summary>{esc(title)}</summary>{opened}</details>'
    return f'<section class="{f"card {look}".strip()}"{place}>{card_title(title, note)}{body}</section>'


def keys(entries: Iterable[tuple[str, str, str]]) -> str:
    """Return a figure's legend from (shape, colour, name). Unlike one inside the figure, it wraps on narrow screens."""
    shown = [
        f'<span><svg viewBox="0 0 24 14" width="24" height="14" aria-hidden="true">'
        f"{SHAPES[shape].format(esc(colour))}</svg>{esc(name)}</span>"
        for shape, colour, name in entries
    ]
    return f'<div class="keys">{"".join(shown)}</div>'


def saves(figure: str) -> str:
    """Return buttons that save a figure as a picture."""
    pictures = "".join(
        f'<button type="button" data-figure="{esc(figure)}" data-format="{kind}">{kind.upper()}</button>'
        for kind in ("png", "svg")
    )
    return f'<div class="saves">{pictures}</div>'


def numbers(name: str, address: str, kinds: Sequence[str] = ("csv", "json")) -> str:
    """Return download links; ``address`` contains {} for the file extension."""
    links = "".join(f'<a href="{esc(address.format(f".{kind}"))}" download>{kind.upper()}</a>' for kind in kinds)
    return f'<div class="saves"><span>{esc(name)}</span>{links}</div>'


def chip(word: str, tone: str) -> str:
    """Return a short status in a coloured frame."""
    return f'<span class="chip {esc(tone)}">{esc(word)}</span>'


def verdicts(kept: Mapping[str, bool], chosen: str = "") -> str:
    """Return the instructions of a response as a list, each followed or not; those of type ``chosen`` are marked."""
    shown = "".join(
        f'<li class="{"good" if good else "bad"}{" chosen" if chosen and name.startswith(chosen) else ""}">'
        f'<span aria-hidden="true">{"✓" if good else "✗"}</span> {esc(name)}'
        f'<span class="hidden"> {"followed" if good else "not followed"}</span></li>'
        for name, good in kept.items()
    )
    return f'<ul class="verdicts">{shown}</ul>'


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, caption: str) -> str:
    """Return a table of HTML cells. On a narrow screen each row becomes a card with labelled cells."""
    head = "".join(f'<th scope="col">{esc(column)}</th>' for column in columns)
    body = "".join(
        "<tr>"
        + "".join(f'<td data-name="{esc(column)}">{cell}</td>' for column, cell in zip(columns, cells, strict=True))
        + "</tr>"
        for cells in rows
    )
    return (
        f'<div class="table"><table><caption>{esc(caption)}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def table_card(
    title: str, note: str, columns: Sequence[str], rows: Iterable[Sequence[str]], caption: str, **look: Any
) -> str:
    """Return a card whose body is a table; ``look`` is that of :func:`card`."""
    return card(title, note, table(columns, rows, caption=caption), **look)


def notice(title: str, text: str, commands: Sequence[str] = (), *, tone: str = "") -> str:
    """Return a notice for an empty state or an error, with commands to run."""
    lines = "".join(f"<pre><code>{esc(command)}</code></pre>" for command in commands)
    return f'<section class="notice {esc(tone)}" role="status"><h2>{esc(title)}</h2><p>{esc(text)}</p>{lines}</section>'


def filters(
    action: str, fields: str, hidden: Mapping[str, str], search: str | None = None, button: str = "Filter"
) -> str:
    """Return a form that asks for the page ``action`` again: ``fields`` as HTML, ``hidden`` values, and a search field
    unless ``search`` is None.
    """
    kept = "".join(f'<input type="hidden" name="{name}" value="{exact(value)}">' for name, value in hidden.items())
    if search is not None:
        text = f'<input type="search" name="search" value="{exact(search)}" maxlength="200">'
        fields += f"<label>Text{text}</label>"
    return (
        f'<form class="filters" method="get" action="{action}">{kept}{fields}<button type="submit">{button}</button>'
        "</form>"
    )


def select(name: str, label: str, options: Mapping[str, str], chosen: str) -> str:
    """Return a labelled choice of a form, from the texts of its values."""
    shown = "".join(
        f'<option value="{exact(value)}"{" selected" if value == chosen else ""}>{esc(words)}</option>'
        for value, words in options.items()
    )
    return f'<label>{esc(label)}<select name="{name}">{shown}</select></label>'


def neighbours(
    name: str, where: str, before: str, after: str, words: tuple[str, str] = ("← Previous", "Next →")
) -> str:
    """Return links to the addresses ``before`` and ``after`` what is shown; the keys [ and ] follow them."""
    parts = [f'<a rel="prev" href="{esc(before)}">{words[0]}</a>'] if before else []
    parts.append(f"<span>{where}</span>")
    parts += [f'<a rel="next" href="{esc(after)}">{words[1]}</a>'] if after else []
    return f'<nav class="steps" aria-label="{name}">{"".join(parts)}</nav>'


def progress(done: int, total: int | None, words: str) -> str:
    """Return a progress bar; without a known total only its text."""
    if not total:
        return f'<div class="progress"><p>{esc(words)}</p></div>'
    share = min(100.0, 100 * done / total)
    return (
        f'<div class="progress"><div class="track" role="progressbar" aria-valuemin="0" aria-valuemax="{total}" '
        f'aria-valuenow="{min(done, total)}" aria-label="{esc(words)}"><div style="width:{share:.2f}%"></div></div>'
        f"<p>{esc(words)}</p></div>"
    )
