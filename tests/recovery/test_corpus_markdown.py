"""Markdown documents: front matter, titles, and code between fences."""

from __future__ import annotations

import pytest

from recovery.data.corpus import Document
from recovery.data.corpus.facts.blocks import blocks
from recovery.data.corpus.markdown import code_lines, fenced
from recovery.data.corpus.readers import markdown_text
from recovery.data.corpus.sentences import sentences
from recovery.data.corpus.text import paragraphs
from tests.corpus_reading import read


def test_markdown_is_kept_as_written_without_its_front_matter(tmp_path):
    text = "---\ntitle: Port rules\ntags: [a]\n---\n# Port *rules*\n\nThe **port** opens at six.\n"
    document = read(tmp_path, a__md=text).documents[0]
    assert document.id == document.source == "a.md"
    assert document.title == "Port rules"
    assert document.text == "# Port *rules*\n\nThe **port** opens at six."


def test_a_front_matter_title_becomes_a_heading_where_there_is_none(tmp_path):
    document = read(tmp_path, a__md="---\ntitle: 'Port rules'\n---\nThe port opens at six.\n").documents[0]
    assert document.text == "# Port rules\n\nThe port opens at six."


@pytest.mark.parametrize(
    "text",
    [
        "---\n\n# Title\n\nThe first ferry leaves at seven.\n\n---\n\nSecond.",
        "---\nDear all, the first ferry leaves at seven.\nBring your own rope.\n---\nSent from my phone",
        "---\n- one\n\n---\nA list alone has no key.",
        "---\nhttp://ferry.example\n---\nAn address is no key.",
        "---\n---\nNothing is between them.\n---\nThe end.",
    ],
)
def test_text_between_thematic_breaks_is_no_front_matter(text):
    assert markdown_text(text)[1] == text


@pytest.mark.parametrize(
    "front",
    [
        "title: Ferry\n# a comment\ntags:\n- a\n\nmore:\n  deep: 1",
        'title: Ferry\n"quoted-key": [\n  a\n]',
        "title:Ferry\nlong: >\n  Folded\n\n  text",
    ],
)
def test_front_matter_in_all_its_forms_is_left_out(front):
    assert markdown_text(f"---\n{front}\n---\nIt leaves at seven.") == ("Ferry", "# Ferry\n\nIt leaves at seven.")
    assert markdown_text(f"---\n{front}\n...\nIt leaves at seven.") == ("Ferry", "# Ferry\n\nIt leaves at seven.")


@pytest.mark.parametrize("fence", ["```", "~~~~", "  ```"])
def test_a_comment_in_code_is_no_heading(fence):
    code = f"{fence}bash\n# Install the tool\nnpm i\n{fence}"
    titled = markdown_text(f"---\ntitle: Caching\n---\nFirst:\n{code}\nDone.")
    assert titled == ("Caching", f"# Caching\n\nFirst:\n{code}\nDone.")
    assert markdown_text(f"Intro.\n\n{code}\n\n# Usage #\n\n{code}")[0] == "Usage"
    assert markdown_text(f"Caching\n=======\n\n{code}")[0] == "Caching"
    assert markdown_text(f"Intro.\n\n{code[: -len(fence)]}# never closed")[0] == ""


def test_a_page_without_a_body_has_its_description_or_no_text():
    front = "---\ntitle: Ferry\ndescription: When it leaves.\n---"
    assert markdown_text(front) == ("Ferry", "# Ferry\n\nWhen it leaves.")
    assert markdown_text("---\ntitle: Ferry\n---") == ("Ferry", "")


@pytest.mark.parametrize("title", ["title:", "title: >-\n  Installing the server", "title: |\n  Port"])
def test_an_empty_title_or_one_of_several_lines_is_no_title(title):
    assert markdown_text(f"---\n{title}\ndate: 2024-01-01\n---\n\nThe port opens.\n") == ("", "The port opens.")


def test_blocks_of_code_are_those_between_fences():
    text = "A\n\n```py\nx\n\ny\n```\n\nB\n\n~~~\nc\n~~~\n\nHead\n~~~~\n\nC\n\n```inline``` D\n\n```\nnever closed\n\nE"
    blocks = paragraphs(text)
    code = [block for block, inside in zip(blocks, fenced(blocks), strict=True) if inside]
    assert code == ["```py\nx", "y\n```", "~~~\nc\n~~~", "```\nnever closed"]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("```a`b``` c\nd", ""),
        ("```js\n# a\n```\n# b", "012"),
        ("````\n```\n# a\n`````\n# b", "0123"),
        ("```\n``` js\n# a\n```\n# b", "0123"),
        ("~~~ a`b\n```\n# a\n~~~\n# b", "0123"),
        ("text\n  ```\n# a\n      ```\n     ```\n# b", "1234"),
        ("  - ```\n    # a\n    ```\n# b", "012"),
        ("> ```\n> # a\n# b", "01"),
        ("> ```\n> # a\n> ```\n> # b", "012"),
        ("text\n~~~\n# a\n~~~\n# b", "123"),
        ("Head\n~~~~\n# b", ""),
        ("```\n# a\n\n# b", "01"),
    ],
)
def test_every_reader_finds_the_same_code(text, code):
    lines = text.split("\n")
    assert "".join(str(n) for n, inside in enumerate(code_lines(lines)) if inside) == code
    assert markdown_text(text)[0] == ("b" if lines[-1] == "# b" else "")
    assert [block.heading for block in blocks(Document("a", "", f"{text}\n\nEnd.", "a"))][-1] == markdown_text(text)[0]
    last = sentences([Document("a", "", f"{text}\n\nThe ferry of Lund leaves at seven.", "a")], alone=False)[-1]
    assert last.heading == markdown_text(text)[0]


def test_a_front_matter_description_stands_below_the_title(tmp_path):
    text = "---\ntitle: Port rules\ndescription: 'When boats may come in.'\n---\nThe port opens at six.\n"
    document = read(tmp_path, a__md=text).documents[0]
    assert document.text == "# Port rules\n\nWhen boats may come in.\n\nThe port opens at six."
    headed = read(tmp_path, b__md="---\ndescription: When.\n---\n# Rules\n\nSix.\n").documents
    assert "# Rules\n\nWhen.\n\nSix." in [d.text for d in headed]
