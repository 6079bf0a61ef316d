"""Newer versions of documents: what counts as one, and the statements of a text."""

from __future__ import annotations

import pytest

from recovery.data.corpus.documents import Document
from recovery.data.corpus.holdout import PART, contained
from recovery.data.corpus.revisions import LEAST, Revision, moved, revised, statements, whole_texts

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
    return revised({1: whole_texts(earlier), 2: whole_texts(later)}, [2])[1]


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


def test_a_version_is_recognised_by_the_one_before_it() -> None:
    """After eight releases, each with another fee and another two sentences, nothing is left of the first text."""
    places = "harbour ferry library market bakery station museum garden tower bridge".split()
    said = dict.fromkeys(places, 0)
    releases = []
    for release in range(8):
        for place in places[2 * release % 10 :][:2]:
            said[place] = release
        lines = [
            f"The {p} opens at {n} and closes at {n + 12}, as person {n} of street {n} has said."
            for p, n in said.items()
        ]
        releases.append(document("\n\n".join(lines), "guide.md", "Guide"))
    corpora = {number: whole_texts([one]) for number, one in enumerate(releases)}
    for last in range(2, 9):
        some = {number: corpora[number] for number in range(last)}
        found = revised(some, some)
        assert all(found[number].keys() == {"guide.md"} for number in range(last - 1)) and not found[last - 1]
        newest = found[0]["guide.md"].newer
        assert newest is not None and newest.text == releases[last - 1].text
    name = ("guide.md", "Guide")
    assert contained(releases[0].text, releases[7].text) < LEAST
    found = revised(corpora, corpora, {(7, name)})  # nobody read the last
    assert found[0]["guide.md"].newer == releases[6] and not found[6]
    found = revised(corpora, corpora, {(k, name) for k in range(1, 7)})  # nor those between
    assert found[0]["guide.md"].newer == releases[7]
    assert not any(revised(corpora, []).values())


def test_a_moved_document_is_followed_to_its_later_versions() -> None:
    corpora = [
        [document(TEXT)],
        [document(TEXT.replace("40 euros", "45 euros"), "guides/harbour.md")],
        [document("Another page about nothing of this.", "pier.md", "Pier")],
        [document(TEXT.replace("40 euros", "50 euros"), "guides/harbour.md")],
        [document(TEXT, "guides/harbour.md")],
    ]
    texts = {number: whole_texts(documents) for number, documents in enumerate(corpora)}
    newest = revised(dict(list(texts.items())[:4]), range(4))[0]["harbour.md"].newer
    assert newest is not None and "50 euros" in newest.text
    found = revised(texts, texts)
    assert not found[0] and found[1] and found[3]  # what came back holds again, in another folder too


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
