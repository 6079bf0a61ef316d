"""HTML fragments: text from records is always escaped."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from dashboard import markup

HOSTILE = "\"><script>alert(1)</script><img src=x onerror=alert(1)>&'${alert(1)}"
KNOWN_TAGS = set("details summary header a svg path span nav dl div dt dd p h2 section pre code".split())


class Reader(HTMLParser):
    """Collects the tags, attributes and text of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.words = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        self.words += data


def test_hostile_text_stays_text() -> None:
    pieces = [
        markup.header(HOSTILE, HOSTILE),
        markup.tiles([markup.Tile(HOSTILE, HOSTILE, HOSTILE, HOSTILE)]),
        markup.card_title(HOSTILE, HOSTILE),
        markup.chip(HOSTILE, HOSTILE),
        markup.notice(HOSTILE, HOSTILE, [HOSTILE], tone=HOSTILE),
        markup.progress(3, 10, HOSTILE),
        markup.prose(f"{HOSTILE}: `recover report {HOSTILE}`"),
    ]
    for piece in pieces:
        read = Reader(piece)
        assert read.tags <= KNOWN_TAGS
        assert not any(name.startswith("on") or name == "src" for name in read.attributes)
    assert HOSTILE in Reader(pieces[4]).words
    assert markup.prose("Then `recover report 1`.") == "Then <code>recover report 1</code>."


def test_the_header_says_where_one_is_and_keeps_the_experiment() -> None:
    shown = markup.header("Live", "a b&c")
    assert shown.count("aria-current") == 1
    assert 'href="live?experiment=a%20b%26c" aria-current="page"' in shown


def test_the_header_lists_the_page_to_ask_on_only_where_there_is_one() -> None:
    assert ">Ask<" not in markup.header("Live", "main")
    assert 'href="ask?experiment=main"' in markup.header("Live", "main", asking=True)


def test_the_bar_has_six_pages_and_the_one_on_the_screen_the_others_stand_under_more() -> None:
    bar, _, more = markup.header("Live", "main").partition("<details")
    assert re.findall(r">(\w+)</a>", bar)[-6:] == ["Overview", "Cycle", "Knowledge", "Samples", "Review", "Live"]
    assert re.findall(r">(\w+)</a>", more) == ["Tokens", "Geometry", "Compare", "Log"]
    bar, _, more = markup.header("Compare", "main").partition("<details")
    assert 'aria-current="page">Compare<' in bar and "Compare" not in more


def test_tables_name_their_cells_for_narrow_screens() -> None:
    shown = markup.table(("A", "B"), [["1", "2"]], caption="two")
    assert '<td data-name="B">2</td>' in shown
    assert "<caption>two</caption>" in shown


def test_progress_stays_within_its_bar() -> None:
    assert "width:100.00%" in markup.progress(12, 10, "done")
    assert "progressbar" not in markup.progress(12, None, "12 steps")


@pytest.mark.parametrize(
    ("text", "added"),
    [
        ("plain", ""),
        ("\u202eright to left", "\u202c"),
        ("\u202eclosed\u202c", ""),
        ("\u2066\u202ea", "\u202c\u2069"),
        ("\u2066\u202ea\u2069", ""),
        ("\u202c\u2069", ""),
        ("\u202a\u2067a\u202c", "\u2069\u202c"),
        ("\u05d0\u200f", ""),
    ],
)
def test_a_text_does_not_change_the_direction_of_the_next(text: str, added: str) -> None:
    assert markup.closing(text) == added
    assert markup.esc(text) == text + added and markup.exact(text) == text
    assert f'value="{text}"' in markup.select("type", "Type", {text: text}, "")


def test_ends_of_isolates_that_none_opened_take_no_search_each() -> None:
    """A search of all that is open for each of these characters would take hours."""
    assert markup.closing("\u202a" * 400_000 + "\u2069" * 400_000) == "\u202c" * 400_000
