"""Markdown documents: front matter, titles, and code between fences."""

from __future__ import annotations

import pytest

from recovery.data.corpus.documents import Document
from recovery.data.corpus.facts.blocks import ListItem, Paragraph, Table, blocks
from recovery.data.corpus.markdown import code_lines, fenced
from recovery.data.corpus.readers import markdown_text
from recovery.data.corpus.sentences import plain_text, sentences
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


@pytest.mark.parametrize("title", ["title:", "title: ~", "title: null", "title: [a, b]", "title:\n  of: ferry"])
def test_what_is_no_text_is_no_title(title):
    assert markdown_text(f"---\n{title}\ndate: 2024-01-01\n---\n\nThe port opens.\n") == ("", "The port opens.")


@pytest.mark.parametrize(
    ("front", "title"),
    [
        ("---\ntitle: 'It''s open'\n---", "It's open"),
        ('---\ntitle: "Caf\\u00e9"\n---', "Café"),
        ("---\ntitle: >-\n  Installing\n  the server\ndate: 2024-01-01\n---", "Installing the server"),
        ("---\ntitle: |\n  Port\n---", "Port"),
        ("---\ntitle: 1.10\n---", "1.10"),
        ("---\ntitle: No\n---", "No"),
        ("---\ntitle: Ferry # of Lund\n---", "Ferry"),
        ('+++\ntitle = "Ferry"\ntags = ["a"]\n[extra]\ntitle = "no"\n+++', "Ferry"),
        ('+++\ntitle = """\nFerry\nof Lund"""\n+++', "Ferry of Lund"),
        ('{\n  "title": "Ferry \\"B\\"",\n  "tags": ["a"]\n}', 'Ferry "B"'),
        (';;;\n{"title": "Ferry"}\n;;;', "Ferry"),
        (';;;\n"title": "Ferry"\n;;;', "Ferry"),
    ],
)
def test_front_matter_is_read_as_yaml_toml_and_json_are(tmp_path, front, title):
    document = read(tmp_path, a__md=f"{front}\n\nIt leaves at seven.\n").documents[0]
    assert (document.title, document.text) == (title, f"# {title}\n\nIt leaves at seven.")


@pytest.mark.parametrize(
    ("front", "kept", "note"),
    [
        ("---\ntitle: Ferry: the timetable\ntags: [a\n---", False, "valid YAML, line 2: read line by line"),
        ('---\ntitle: Ferry: the timetable\nopen: "quoted\n---', False, "valid YAML, line 2: read line by line"),
        (f"---\ntitle: 'Ferry: the timetable'\na: {'[' * 20_000}\n---", False, "valid YAML: read line by line"),
        (f"---\ntitle: 'Ferry: the timetable'\na:\n  {'- ' * 20_000}\n---", False, "valid YAML: read line by line"),
        ("+++\ntitle = Ferry\n+++", True, "valid TOML (Invalid value (at line 1, column 9)): kept as text"),
        (';;;\n{"title"\n;;;', True, "valid JSON (Expecting ':' delimiter: line 1 column 9 (char 8)): kept as text"),
        ('{\n  "title": "Ferry",\n}', True, ""),
        ('{"title": "Ferry"}', True, ""),
        ("+++\nnever closed", True, ""),
    ],
)
def test_damaged_front_matter_is_told_and_never_lost_without_a_word(tmp_path, front, kept, note):
    corpus = read(tmp_path, a__md=f"{front}\n\nIt leaves at seven.\n")
    (document,) = corpus.documents
    assert document.text.endswith("It leaves at seven.")
    assert document.text.startswith(front if kept else "# Ferry: the timetable\n\n")
    assert [line for line in corpus.report.notes if "front matter" in line] == (
        [f"a.md: its front matter is no {note}"] if note else []
    )


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


def of(text: str) -> list[tuple[str, str]]:
    """The paragraphs, items and headings of a text, each below its heading."""
    return [(block.heading, block.text) for block in blocks(Document("a.md", "", text, "a.md"))
            if isinstance(block, ListItem | Paragraph)]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Quay\n====\n\nIt opens.", [("Quay", "It opens.")]),
        ("Quay\n---\nIt opens.", [("Quay", "It opens.")]),
        ("====\nQuay\n====\n\nIt opens.", [("Quay", "It opens.")]),
        ("Quay\n~~~~\nIt opens.", [("Quay", "It opens.")]),
        ("It opens early on all days.\n---\nIt closes.", [("", "It opens early on all days."), ("", "It closes.")]),
        ("See [the *quay*][q] and [q] or [no].\n\n[q]: https://a.example 'x'", [("", "See the quay and q or [no].")]),
        ("See [`a[0]`][q], `x[q]`.\n\n[Q]: <b c.md>", [("", "See `a[0]`, `x[q]`.")]),
        ("A&nbsp;b &lt;c&gt; \\*d\\* &rarr; \\e", [("", "A b <c> *d* → \\e")]),
        ("Set `diff.*.wordRegex` and `*.ps1`.", [("", "Set `diff.*.wordRegex` and `*.ps1`.")]),
        ("All '*.ps1' and \"*.sh\" files, 2 * 3 * 4.", [("", "All '*.ps1' and \"*.sh\" files, 2 * 3 * 4.")]),
        ("`__init__` or __init__ is __bold text__ _so_.", [("", "`__init__` or __init__ is bold text so.")]),
        ("One<br>two<br/>three[^1].\n\n[^1]: A note.", [("", "One two three."), ("", "A note.")]),
        ("$a_1*b*c$ costs $5 or *$6*.", [("", "$a_1*b*c$ costs $5 or $6.")]),
        ("> It opens.\n> > - At six.\n\n• At ten", [("", "It opens."), ("", "At six."), ("", "At ten")]),
        ("<details>\n<summary>More</summary>\nIt opens.\n</details>", [("", "More It opens.")]),
        ("<!-- a\n\nb -->\nIt {/* not */}opens <!-- so -->.", [("", "It opens .")]),
        ("- a\n\n      ```\n      # no\n      ```\n  b", [("", "a b")]),
    ],
)
def test_blocks_are_those_of_commonmark(text, found):
    assert of(text) == found


def test_tables_in_quotes_and_lists_are_read_with_bars_in_code():
    table = "| Option | Default |\n|---|---|\n| `a\\|b` | `c|d` \\| e |"
    for sign in ("", "> ", "> > ", "  "):
        text = "\n".join(f"{sign}{line}" for line in table.split("\n"))
        found = [b for b in blocks(Document("a", "", f"- Options:\n\n{text}", "a")) if isinstance(b, Table)]
        assert [(b.header, b.rows) for b in found] == [(("Option", "Default"), (("`a|b`", "`c|d` | e"),))], sign


@pytest.mark.parametrize(
    ("raw", "plain"),
    [
        ("The `git diff.*.x` and `a[1]` are _so_ \\*old\\*[1].", "The git diff.*.x and a[1] are so *old*."),
        ("Use [the quay][q] of [Lund](a_(b).md) &amp; more.", "Use the quay of Lund & more."),
        ("> The first\n> line <b>ends</b> here.", "> The first line ends here."),
        ("A ![map *of* Lund](x.png) with __all__ names.", "A map of Lund with __all__ names."),
    ],
)
def test_markup_of_a_sentence_is_removed_and_its_code_kept(raw, plain):
    assert plain_text(raw) == plain


def test_sentences_in_quotes_and_with_links_by_reference_are_verbatim():
    text = "# Lund\n\n> The ferry of [Lund][l] leaves\n> at seven on each day. Take `x *y*`.\n\n[l]: https://lund.example\n"
    (found,) = sentences([Document("a.md", "", text, "a.md")])
    assert found.plain == "The ferry of Lund leaves at seven on each day."
    assert found.raw in text and plain_text(found.raw) == found.plain


def test_hostile_markdown_takes_linear_time():
    parts = [
        "> ",
        "- ",
        "[",
        "*a _b ",
        "<table>\n\n",
        "> <table>\n>\n",
        "{/* ",
        "{/* a\n\n",
        "[a]: b 'c\n",
        "a\n+ b\n\n",
    ]
    for part in [*parts, "`", "a. b ", "$a", "| a |\n", "    - a\n", "<Card {", "</Card>\n", "<aside>\n", "[a][b"]:
        text = part * 5_000
        document = Document("a", "", f"{text}\n\n# End\n\nThe ferry of Lund leaves at seven.", "a")
        assert blocks(document)[-1].heading == "End", text[:20]
        assert sentences([document])[-1].plain == "The ferry of Lund leaves at seven.", text[:20]
