"""Report documents: text of users and models in Markdown and HTML."""

from __future__ import annotations

import pytest
from markdown_it import MarkdownIt

from pipelines.reports.document import Heading, Paragraph, Quote, Table, to_html, to_markdown

RIGHT_TO_LEFT = "שלום\u200f"


@pytest.mark.parametrize("turning", list("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"))
def test_a_name_does_not_turn_the_words_beside_it(turning: str) -> None:
    name = f"<b>{RIGHT_TO_LEFT}{turning}docs"
    blocks = [Heading(1, f"Cycle of {name}"), Paragraph(f"{name} was accepted"), Table((name, "n"), ((name, "1"),))]
    blocks.append(Quote(f"{name}, base", "text"))
    for document in (to_markdown(blocks), to_html(name, blocks, [(name, "<svg></svg>")])):
        assert turning not in document and "<b>" not in document
        assert document.count(f"{RIGHT_TO_LEFT}\N{REPLACEMENT CHARACTER}docs") >= 5, "the rest of the name stays"


def test_a_quoted_text_stays_as_it_was() -> None:
    text = f"{RIGHT_TO_LEFT} \u202etxt\u202c end"
    for document in (to_markdown([Quote("base", text)]), to_html("title", [Quote("base", text)])):
        assert text in document


def test_text_in_markdown_is_no_markup_of_githubs() -> None:
    written = to_markdown([Paragraph("~10% of ~~all~~, $5 and $6")])
    assert written == r"\~10% of \~\~all\~\~, \$5 and \$6" + "\n"
    assert MarkdownIt("commonmark").enable("strikethrough").render(written) == "<p>~10% of ~~all~~, $5 and $6</p>\n"
