"""Newer versions of documents: what counts as one, and the statements of a text."""

from __future__ import annotations

import pytest

from recovery.data.corpus import Document
from recovery.data.corpus.holdout import PART
from recovery.data.corpus.revisions import Revision, moved, revised, statements, whole_texts

TEXT = """# Harbour

The pilot station is open from 6 to 22, on Sundays until 18. The fee for a night is 40 euros
for ships below ten metres, and twice as much for all others.

| option | default |
| --- | --- |
| depth | 5 |
| width | 7 |

- Boats are washed at the northern pier.
- Nets are dried
  on the southern one.
"""


def document(text: str, name: str = "harbour.md", title: str = "Harbour") -> Document:
    return Document(name, title, text, name.partition("#")[0])


def compared(earlier: list[Document], later: list[Document]) -> dict[str, Revision]:
    return revised(whole_texts(earlier), whole_texts(later))


def test_the_statements_of_a_text_do_not_depend_on_its_line_breaks() -> None:
    found = statements(TEXT)
    assert found == (
        "# Harbour",
        "The pilot station is open from 6 to 22, on Sundays until 18.",
        "The fee for a night is 40 euros for ships below ten metres, and twice as much for all others.",
        "| option | default |",
        "| depth | 5 |",
        "| width | 7 |",
        "- Boats are washed at the northern pier.",
        "- Nets are dried on the southern one.",
    )
    assert statements(TEXT.replace("euros\nfor", "euros for").replace("dried\n  on", "dried on")) == found


def test_a_document_of_the_same_name_and_title_with_much_of_the_text_is_a_newer_version() -> None:
    newer = document(TEXT.replace("40 euros", "45 euros"))
    (revision,) = compared([document(TEXT)], [document("Another one.", "pier.md"), newer]).values()
    assert set(revision.old) - set(revision.new) == {statements(TEXT)[2]}
    assert "45 euros" in next(iter(set(revision.new) - set(revision.old)))


@pytest.mark.parametrize(
    "later",
    [
        document(TEXT),
        document(TEXT.replace("euros\nfor", "euros for")),  # nothing but another line break
        document(TEXT.replace("40", "45"), "pier.md"),
        document(TEXT.replace("40", "45"), title="Harbour in winter"),
        document("# Harbour\n\n" + "The museum shows forty models of ships that were built here before the war. " * 3),
    ],
)
def test_others_are_not(later: Document) -> None:
    assert compared([document(TEXT)], [later]) == {}


def test_numbered_records_are_not_compared() -> None:
    """One that is inserted gives its number to another text."""
    newer = TEXT.replace("40 euros", "45 euros")
    assert compared([document(TEXT, "all.jsonl#3")], [document(newer, "all.jsonl#3")]) == {}
    assert compared([document(TEXT, "all.csv#harbour")], [document(newer, "all.csv#harbour")]).keys() == {
        "all.csv#harbour"
    }


def test_both_parts_of_a_document_that_is_held_out_in_part_are_compared() -> None:
    first, rest = TEXT.split("\n\n", 2)[:2], TEXT.split("\n\n", 2)[2]
    parts = [document("\n\n".join(first)), document(rest, f"harbour.md{PART}")]
    assert compared([document(TEXT)], parts) == {} == compared(parts, [document(TEXT)])


MOVED = TEXT.replace("40 euros", "45 euros")


@pytest.mark.parametrize(
    ("earlier", "later", "found"),
    [
        ([document(TEXT)], [document(MOVED, "guides/harbour.md")], True),
        ([document(TEXT, "a/harbour.rst")], [document(MOVED, "b/harbour.md")], True),
        ([document(TEXT)], [document(MOVED, "guides/harbour.md"), document("Another one.")], False),  # both are there
        ([document(TEXT), document("Boats.", "b/harbour.md", "B")], [document(MOVED, "b/harbour.md")], False),
        ([document(TEXT)], [document(MOVED, "guides/port.md")], False),
        ([document(TEXT)], [document(MOVED, "guides/harbour.md", "The harbour")], False),
        ([document(TEXT, "2025/harbour.md")], [document(MOVED, "2026/harbour.md")], False),  # reports of two years
        ([document(TEXT, "all.jsonl#3")], [document(MOVED, "b/all.jsonl#3")], False),
        ([document(TEXT, "all.csv#x")], [document(MOVED, "b/all.csv#x")], True),
        ([document(TEXT, "a/harbour.md"), document(TEXT, "b/harbour.md")], [document(MOVED, "c/harbour.md")], False),
        ([document(TEXT)], [document(MOVED, "a/harbour.md"), document(MOVED, "b/harbour.md")], False),
        (
            [document(TEXT.split("|")[0])],
            [document(TEXT.split("|")[0] + TEXT[::-1] * 3, "a/harbour.md")],
            False,
        ),  # a stub
    ],
)
def test_a_document_that_moved_to_another_folder(earlier: list[Document], later: list[Document], found: bool) -> None:
    names = [[(one.id, one.title) for one in side] for side in (earlier, later)]
    assert moved(whole_texts(earlier), whole_texts(later)) == ({names[0][0]: names[1][0]} if found else {})
