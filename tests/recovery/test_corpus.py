"""Reading of document folders: readable files are used, all others are reported with a reason."""

from __future__ import annotations

import json
import os
import pydoc_data.topics
import subprocess
import sys
import tempfile
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from recovery.data.corpus import Corpus, Document, EmptyCorpusError, read_corpus, readers, text_hash
from recovery.data.corpus.documents import ReadReport, Skipped
from recovery.data.corpus.encodings import decode, encoding_of
from recovery.data.corpus.facts import facts_of
from recovery.data.corpus.facts.blocks import blocks
from recovery.data.corpus.markdown import code_lines, fenced
from recovery.data.corpus.readers import UnreadableError, markdown_text, read_file
from recovery.data.corpus.sentences import sentences
from recovery.data.corpus.text import normalise, paragraphs, share, tidy, word_count
from recovery.errors import CorpusError
from recovery.workspace import Workspace


def texts(corpus: Corpus) -> set[str]:
    return {d.text for d in (*corpus.documents, *corpus.held_out)}


def skipped(corpus: Corpus) -> dict[str, str]:
    return {s.path: s.reason for s in corpus.report.skipped}


def read(folder: Path, **files: str | bytes) -> Corpus:
    """Write files (``a__md`` is a.md) and read the folder without held-out documents."""
    for name, content in files.items():
        path = folder / name.replace("__", ".")
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return read_corpus(folder, held_out=0)


# --- formats -------------------------------------------------------------------------------------------------


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


def test_text_takes_its_title_from_the_name_or_an_underlined_heading(tmp_path):
    corpus = read(tmp_path, port_rules__txt="It opens at six.", b__rst="Harbour\n=======\n\nBoats come in.")
    assert [(d.id, d.title) for d in corpus.documents] == [("b.rst", "Harbour"), ("port_rules.txt", "port rules")]


def test_html_gives_visible_text_block_by_block(tmp_path):
    page = """<?xml version="1.0" encoding="utf-8"?><html><head><title>Port
    rules</title><style>p {color: red}</style></head><body><nav>Home</nav><h1>Opening</h1>
    <p>The port <b>opens</b>
    at six.</p><script>var x = 1</script><ul><li>Bring a rope</li><li>Sign &amp; wait</li></ul>
    <table><tr><td>Dock</td><td>4</td></tr></table><pre>a  b
c</pre>tail</body></html>"""
    document = read(tmp_path, a__html=page).documents[0]
    assert document.title == "Port rules"
    assert document.text.startswith("# Port rules\n\n# Opening\n\nThe port opens at six.\n\n- Bring a rope")
    assert "- Sign & wait" in document.text
    assert "a  b\nc" in document.text
    assert document.text.endswith("tail")
    assert not {"color", "var x", "Home"} & set(document.text.replace("\n", " ").split(" "))


def test_html_with_a_million_spaces_in_a_row_is_read(tmp_path):
    page = f"<h1>Boats</h1><pre>one{' ' * 1_000_000}two   \n   three</pre><p>four</p>"
    (tmp_path / "page.html").write_text(page)
    (document,) = read_corpus(tmp_path).documents
    assert document.text.split() == ["#", "Boats", "```", "one", "two", "three", "```", "four"]
    assert "two\n   three" in document.text


@pytest.mark.parametrize(
    ("page", "text"),
    [
        (
            "<p>Do:</p><pre><code>def f(x):\n    return 1\n\nf(2)\n</code></pre> <p>after",
            "Do:\n\n```\n{code}\n```\n\nafter",
        ),
        (
            '<div class="highlight"><pre><span></span><span class="k">def</span> <span>f</span><span>(x):</span>\n'
            '    <span class="k">return</span> <span>1</span>\n\n<span>f(2)</span>\n</pre></div>',
            "```\n{code}\n```",
        ),
        ("<pre>def f(x):<br>    return 1<br>\nf(2)</pre>\n   tail", "```\n{code}\n```\n\ntail"),
        (
            "<ul><li>one\n    <pre>  a\n b</pre></li>\n  <li>two</li></ul>",
            "- one\n\n  ```\n    a\n   b\n  ```\n\n- two",
        ),
        ("<pre><div>npm i</div><div>  x</div></pre>", "```\nnpm i\n  x\n```"),
    ],
    ids=["code", "highlighted", "line breaks", "in a list", "blocks as lines"],
)
def test_code_in_html_keeps_its_lines_and_indentation(page, text):
    (piece,) = read_file("a.html", f"<html><body>{page}</body></html>".encode()).pieces
    assert piece.text == text.format(code="def f(x):\n    return 1\n\nf(2)")


@pytest.mark.parametrize(
    ("page", "text"),
    [
        (
            "<h1>Ferry <code>x</code><a href='#f'>¶</a></h1>a<h3>Two\n<b>words</b></h3>b",
            "# Ferry `x`\n\na\n\n### Two words\n\nb",
        ),
        (
            "<p>An area of x<sup>2</sup>, 10<sup>-6</sup> m<sup>3</sup>, 2<sup>n+1</sup>",
            "An area of x^2, 10^-6 m^3, 2^(n+1)",
        ),
        ("<p>H<sub>2</sub>O, a<sub>n</sub>, the 1<sup>st</sup> boat<sup>®</sup>", "H2O, a_n, the 1st boat®"),
        ("<p>Lund<sup><a href='#n1'>1</a></sup> is old.<sup><a href='#n2'>[2]</a></sup>", "Lund[1] is old.[2]"),
        ("<pre class='language-py'>\n\n  a = `b`\n</pre>", "```py\n  a = `b`\n```"),
        ("<pre>a\n```\nb</pre>", "~~~\na\n```\nb\n~~~"),
        ("<p>Use <code>a|b</code>, <tt> c </tt>and <code>d`e</code>.", "Use `a|b`, `c` and `` d`e ``."),
        ("one<br>two <br/> three<hr>four", "one\ntwo\nthree\nfour"),
        (
            "<h1>Caching<a class='hash-link' href='#x'>&#8203;</a></h1><h2>Keys <a href='#y'>&#8203;#</a></h2>",
            "# Caching\n\n## Keys",
        ),
        ("<p>4 &lt; 5 &amp;&nbsp;6 &eacute; &#x20AC; &unknown;</p>", "4 < 5 & 6 é € &unknown;"),
    ],
    ids=[
        "headings",
        "powers",
        "indices",
        "notes",
        "code",
        "fence in code",
        "inline code",
        "line breaks",
        "anchors",
        "entities",
    ],
)
def test_html_is_read_as_markdown(page: str, text: str) -> None:
    (piece,) = read_file("a.html", f"<body>{page}</body>".encode()).pieces
    assert piece.text == text


@pytest.mark.parametrize(
    ("page", "text"),
    [
        ("<ul><li><p>a</p></li><li>b<ul><li>c<li>d</ul></li><li>e</ul>f", "- a\n- b\n  - c\n  - d\n- e\n\nf"),
        ("<ol start=3><li>a<p>b</p></li><li>c</ol>", "3. a\n\n   b\n\n4. c"),
        ("<dl><dt><code>a</code>:<dd><p>one</p><p>two</p><dt>b<dt>c<dd>three</dl>d",
         "- `a`: one\n\n  two\n\n- b\n- c: three\n\nd"),
        ("<li>a<li>b</div></ul></td><dd>c</p>", "- a\n- b\n\n  c"),
    ],
    ids=["nested", "numbered", "definitions", "broken"],
)  # fmt: skip
def test_lists_in_html_keep_their_items(page: str, text: str) -> None:
    (piece,) = read_file("a.html", f"<body>{page}</body>".encode()).pieces
    assert piece.text == text


@pytest.mark.parametrize(
    "page",
    [
        "<dl><dt>class S</dt><dd><p>A session.</p><dl><dt>close()</dt><dd><p>Closes it.</p>{}</dd></dl></dd></dl>",
        "<ol><li>First<ul><li><p>Second.</p>{}</ul></ol>",
        "<ul><li>One<ul><li>Two<ul><li>Three<ol><li><p>Four.</p>{}</ol></ul></ul></ul>",
    ],
    ids=["definitions", "numbered", "four levels"],
)
def test_paragraphs_deep_in_html_lists_are_no_code(tmp_path: Path, page: str) -> None:
    told = "Redirects are followed by the session for up to thirty hops before an error is raised."
    (document,) = read(tmp_path, a__html=page.format(f"<p>{told}</p>")).documents
    assert told in [sentence.plain for sentence in sentences([document])]


@pytest.mark.parametrize(
    ("page", "text"),
    [
        ("<table><caption>Docks</caption><thead><tr><th>Dock<th>Boats</thead><tr><td><code>a|b</code><td>1<br>2</table>",
         "Docks\n\n| Dock | Boats |\n| --- | --- |\n| `a\\|b` | 1 2 |"),
        ("<table><tr><th>a</th><td>1</td></tr><tr><th>b</th><td><ul><li>x<li>y</ul></td></tr></table>",
         "|  |  |\n| --- | --- |\n| a | 1 |\n| b | x; y |"),
        ("<table><tr><th>a<th>b<th>c<tr><td rowspan=2>1<td colspan=2>2<tr><td>3<td>4<tr><td>5</table>",
         "| a | b | c |\n| --- | --- | --- |\n| 1 | 2 |  |\n| 1 | 3 | 4 |\n| 5 |"),
        ("<table><tr><td>Left<td><h2>Right</h2>of it<table><tr><th>a<th>b<tr><td>1<td>2</table></table>",
         "Left\n\n## Right\n\nof it\n\n| a | b |\n| --- | --- |\n| 1 | 2 |"),
        ("<table><tr><td><pre>1\n2</pre><td><pre>a\nb</pre></table>", "```\na\nb\n```"),
        ("<table><tr><td><p>Founded in 1902.</p><p>Tours start at two.</p><td><p>Open from nine.</p></table>",
         "Founded in 1902.\n\nTours start at two.\n\nOpen from nine."),
        ("<table><tr><td>Kitchen<td>The kitchen was built in 1860. Meals were cooked by two maids.</table>",
         "Kitchen\n\nThe kitchen was built in 1860. Meals were cooked by two maids."),
        ("<table><tr><td>Ferry<td><p>At six. At ten.</p></table>",
         "|  |  |\n| --- | --- |\n| Ferry | At six. At ten. |"),
        ("<table><thead><tr><th rowspan=2>Plan<th colspan=2>Price<tr><th>Month<th>Year</thead>"
         "<tr><td>a<td>1<td>9</table>",
         "| Plan | Price Month | Price Year |\n| --- | --- | --- |\n| a | 1 | 9 |"),
        ("<table><tr><th>a<th>b<tr><th colspan=2>North<tr><td>1<td>2<tr><th colspan=2>South<tr><td>3<td>4"
         "<tfoot><tr><th>a<th>b</table>", "| a | b |\n| --- | --- |\n| 1 | 2 |\n| 3 | 4 |"),
        ("<table><tr><th>a<th>b<tr><th>1<th>2</table>", "| a | b |\n| --- | --- |\n| 1 | 2 |"),
        (f"<table><tr><td>{'long ' * 500}<td>short</table>", f"{('long ' * 500).strip()}\n\nshort"),
    ],
    ids=["header", "names of rows", "spans", "nested", "numbered lines", "paragraphs",
         "sentences", "short cells", "two headers", "parts", "heads alone", "layout"],
)  # fmt: skip
def test_tables_in_html_keep_their_cells(page: str, text: str) -> None:
    (piece,) = read_file("a.html", f"<body>{page}</body>".encode()).pieces
    assert piece.text == text


def test_two_header_rows_in_html_give_no_price_of_a_month(tmp_path: Path) -> None:
    page = (
        "<h1>Harbour plans</h1><table><thead><tr><th rowspan=2>Plan<th colspan=2>Price<tr><th>Month<th>Year</thead>"
        "<tr><td><code>ferry</code><td>14 euros<td>140 euros<tr><td><code>pier</code><td>15 euros<td>150 euros</table>"
    )
    found = {fact.value for fact in facts_of(read(tmp_path, a__html=page).documents)}
    assert found >= {"14 euros", "150 euros"} and not found & {"Month", "Year"}


@pytest.mark.parametrize("cell", ["td", "th"])
def test_spans_that_ask_for_an_enormous_table_are_left_out(cell: str) -> None:
    page = f"<table><tr>{f'<{cell} colspan=9999 rowspan=9999>a' * 1000}{'<tr><td>b' * 10_000}</table>"
    (piece,) = read_file("a.html", page.encode()).pieces
    assert piece.text.count("a") == 1000 and piece.text.count("b") == 10_000 and len(piece.text) < 2 * len(page)


def test_a_letter_in_a_preformatted_page_is_running_text() -> None:
    letter = "The ferry of Vorna leaves the pier at a quarter past six, and its captain is Anna Berg of Lund.\n" * 4
    (piece,) = read_file("a.html", f"<pre>{letter}</pre>".encode()).pieces
    assert piece.text == letter.strip()


@pytest.mark.parametrize(
    ("page", "told"),
    [
        (
            "RFC 793             Protocol         September 1981\n\n1.  Introduction\n\n"
            "   The Transmission Control Protocol is used between hosts in packet-switched\n   networks [RFC793].\n\n"
            "   +--------+--------+--------+\n   |  0x0F  |  0x10  | 12 | 4 |\n   +--------+--------+--------+\n\n"
            "   Every segment carries a checksum of 16 bits, a window and 32 flags.\n",
            "Every segment carries a checksum of 16 bits, a window and 32 flags.",
        ),
        (
            "On 2003-04-05 11:02, &lt;anna@vorna.example&gt; wrote:\n&gt; does it run on 2.4.20?\n\n"
            "The driver of the harbour crane needs kernel 2.4 or newer.\n"
            "Patches for the older kernels are kept on the second server.\n\n-- \nB. Lund, +46 46 222 00 00\n",
            "Patches for the older kernels are kept on the second server.",
        ),
    ],
    ids=["RFC", "mail"],
)
def test_preformatted_prose_with_numbers_and_signs_has_sentences(tmp_path: Path, page: str, told: str) -> None:
    (document,) = read(tmp_path, a__html=f"<pre>{page}</pre>").documents
    assert told in [sentence.plain for sentence in sentences([document])]


@pytest.mark.parametrize("start", ["<pre class='language-text'>", "<pre><code>", "<div class='highlight'><pre>"])
def test_preformatted_sentences_marked_as_code_are_code(start: str) -> None:
    told = "The driver of the harbour crane needs kernel 2.4 or newer.\nPatches are kept on the second server.\n"
    (piece,) = read_file("a.html", f"{start}{told}".encode()).pieces
    assert code_lines(piece.text.split("\n"))[0]


def test_comments_do_not_make_preformatted_code_prose() -> None:
    comment = "# The harbour ferry of Vorna leaves at six. It is late on no day of the whole year."
    code = f"def ferry(x):\n    {comment}\n    return x + 1\n"
    (piece,) = read_file("a.html", f"<pre>{code * 3}</pre>".encode()).pieces
    assert piece.text.startswith("```\n")


@pytest.mark.parametrize(
    ("term", "told"),
    [
        (
            "<code>requests.get(url, params=None)</code>",
            "Sends a GET request to the server and returns the response of the remote host.",
        ),
        ("builder", "A class that takes parsed documents and performs an action on them."),
    ],
)
def test_definitions_in_html_are_sentences_without_their_term(tmp_path: Path, term: str, told: str) -> None:
    (document,) = read(tmp_path, a__html=f"<dl><dt>{term}</dt><dd><p>{told}</p></dd></dl>").documents
    (sentence,) = sentences([document])
    assert (sentence.plain, sentence.raw in document.text) == (told, True)


def test_an_item_that_is_a_sentence_with_its_term_keeps_it(tmp_path: Path) -> None:
    told = "Ferry tickets: The harbour sells them at the pier from six in the morning."
    page = "<dl><dt>Ferry tickets</dt><dd>The harbour sells them at the pier from six in the morning.</dd></dl>"
    assert [s.plain for s in sentences(read(tmp_path, a__html=page).documents)] == [told]


def test_html_has_the_sentences_and_facts_of_the_same_page_in_markdown(tmp_path: Path) -> None:
    rows = "".join(f"<tr><td><code>{name}</code><td>string<td><code>{name}.log</code>" for name in ("ferry", "pier"))
    page = (
        f"<h1>Harbour settings</h1><h2>Options</h2><p>The harbour keeps its settings in a file of 24 lines.</p>"
        f"<table><tr><th>Option<th>Type<th>Default{rows}</table>"
        "<pre>The code is no sentence to ask 24 people about.</pre>"
    )
    marked = (
        "# Harbour settings\n\n## Options\n\nThe harbour keeps its settings in a file of 24 lines.\n\n"
        "| Option | Type | Default |\n| --- | --- | --- |\n| `ferry` | string | `ferry.log` |\n"
        "| `pier` | string | `pier.log` |\n\n```\nThe code is no sentence to ask 24 people about.\n```"
    )
    (document,) = read(tmp_path, a__html=page).documents
    assert (document.title, document.text) == ("Harbour settings", marked)
    assert [(s.heading, s.plain) for s in sentences([document])] == [
        ("Options", "The harbour keeps its settings in a file of 24 lines.")
    ]
    assert {fact.value for fact in facts_of([document])} >= {"ferry.log", "pier.log"}


def test_deeply_nested_html_and_json_are_read(tmp_path):
    deep = "<div>" * 1000 + "The bottom is reached." + "</div>" * 1000
    nest = "[" * 500 + '"The innermost text"' + "]" * 500
    corpus = read(tmp_path, a__html=deep, b__json=nest, c__json="[" * 200_000 + "]" * 200_000)
    assert texts(corpus) == {"The bottom is reached.", "The innermost text"}
    assert "not valid JSON" in skipped(corpus)["c.json"]


def test_json_records_become_documents(tmp_path):
    lines = [
        json.dumps({"title": "One", "text": "First text."}),
        "{broken",
        json.dumps({"question": "Who?", "answer": "Mira", "no": None}),
        json.dumps("A bare string."),
        json.dumps({"messages": [{"role": "user", "content": "hi"}]}),
        json.dumps({"text": "  "}),
    ]
    whole = json.dumps({"title": "Whole", "body": "One document."})
    corpus = read(tmp_path, a__jsonl="\n".join(lines), b__json=whole, c__json='{"a": {"b": [1, 2]}}', d__json="{")
    documents = {d.id: d for d in corpus.documents}
    assert documents["a.jsonl#1"].text == "One\n\nFirst text."
    assert documents["a.jsonl#1"].title == "One"
    assert documents["a.jsonl#3"].text == "question: Who?\nanswer: Mira"
    assert documents["a.jsonl#4"].text == "A bare string."
    assert documents["b.json"].text == "Whole\n\nOne document."
    assert documents["c.json"].text == "a.b: 1\na.b: 2"
    assert skipped(corpus)["a.jsonl line 2"].startswith("not valid JSON")
    assert skipped(corpus)["a.jsonl record 5"] == "chat, not a document (use it as --prompts)"
    assert any(s.path == "d.json" and "line 1" in s.reason for s in corpus.report.skipped)


def test_documents_in_an_object_and_json_lines_in_a_json_file_are_read_one_by_one(tmp_path):
    wrapped = {"count": 2, "documents": [{"title": "One", "text": "The cat sat."}, {"title": "Two", "text": "It ran."}]}
    whole = {"title": "Whole", "text": "One text.", "parts": [{"text": "Part."}]}
    settings = {"servers": [{"body": "x", "port": 1}], "paths": {"/a": 2}}
    thread = {"title": "Press", "about": "It was built in 1921 by Ada Holm in Ulm.", "reviews": [{"body": "Loud."}]}
    lines = '{"text": "First line."}\n{broken\n{"text": "Second line."}\n'
    files = {"a__json": json.dumps(wrapped), "b__json": json.dumps(whole), "c__json": json.dumps(settings)}
    corpus = read(tmp_path, **files, d__json=lines, e__json="[\n{},\n{}\n", f__json=json.dumps(thread))
    assert {d.id: d.text for d in corpus.documents} == {
        "a.json#1": "One\n\nThe cat sat.",
        "a.json#2": "Two\n\nIt ran.",
        "b.json": "Whole\n\nOne text.",
        "c.json": "servers.body: x\nservers.port: 1\npaths./a: 2",
        "d.json#1": "First line.",
        "d.json#3": "Second line.",
        "f.json": "title: Press\nabout: It was built in 1921 by Ada Holm in Ulm.\nreviews.body: Loud.",
    }
    assert skipped(corpus)["e.json"].startswith("not valid JSON")


@pytest.mark.parametrize("empty", [{"text": ""}, {"text": None}, {"content": " \n", "text": None}])
def test_a_record_whose_text_is_empty_is_no_document(empty):
    lines = [{"title": "Ferry", "id": 1, "url": "http://x/y"} | empty, {"body": "It leaves at seven."} | empty]
    found = read_file("a.jsonl", "\n".join(map(json.dumps, lines)).encode())
    assert [piece.text for piece in found.pieces] == ["It leaves at seven."]
    assert found.skipped == [("record 1", "no text")]
    with pytest.raises(UnreadableError, match="record 1: no text"):
        read_file("a.json", json.dumps(lines[0]).encode())
    nested = {"text": {"en": "It leaves.", "de": None}, "body": ""}
    assert read_file("a.json", json.dumps(nested).encode()).pieces[0].text == "text.en: It leaves."


def test_many_skipped_records_and_lines_are_a_few_lines_of_the_summary(tmp_path):
    lines = [json.dumps({"text": f"Ferry {n} has {n * 7} seats." if n % 3 else ""}) for n in range(300)]
    corpus = read(tmp_path, a__jsonl="\n".join([*lines, *["{broken"] * 100]))
    assert len(corpus.report.lines()) == 1 + 2 * 9
    assert "skipped 92 more: no text" in corpus.report.lines()


def test_docx_gives_paragraphs_and_tables(tmp_path):
    docx = pytest.importorskip("docx")
    document = docx.Document()
    document.core_properties.title = "Harbour fees"
    document.add_paragraph("A berth costs nine crowns.")
    table = document.add_table(rows=1, cols=2)
    table.rows[0].cells[0].text, table.rows[0].cells[1].text = "Dock", "4"
    document.add_paragraph("Pay at the gate.")
    document.save(tmp_path / "a.docx")
    corpus = read(tmp_path, b__docx=b"not an archive")
    assert corpus.documents[0].title == "Harbour fees"
    assert corpus.documents[0].text == ("Harbour fees\n\nA berth costs nine crowns.\n\nDock | 4\n\nPay at the gate.")
    assert skipped(corpus)["b.docx"].startswith("damaged DOCX")


def test_docx_keeps_headings_lists_and_inserted_words_but_nothing_deleted(tmp_path):
    docx = pytest.importorskip("docx")
    document = docx.Document()
    document.add_heading("Fees", level=2)
    paragraph = document.add_paragraph("A boat costs ")
    word = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
    for part in (
        f"<w:del {word}><w:r><w:delText>12</w:delText></w:r></w:del>",
        f"<w:ins {word}><w:r><w:t>45</w:t></w:r></w:ins>",
        f"<w:moveFrom {word}><w:r><w:t> moved</w:t></w:r></w:moveFrom>",
        f'<w:r {word}><w:t xml:space="preserve"> euros a day.</w:t></w:r>',
    ):
        paragraph._p.append(docx.oxml.parse_xml(part))
    control = f"<w:sdt {word}><w:sdtContent><w:p><w:r><w:t>Pay ahead.</w:t></w:r></w:p></w:sdtContent></w:sdt>"
    paragraph._p.addnext(docx.oxml.parse_xml(control))
    table = document.add_table(rows=2, cols=3)
    table.rows[0].cells[0].merge(table.rows[0].cells[2]).text = "Docks"
    for cell, text in zip(table.rows[1].cells, ("North", "", "4"), strict=True):
        cell.text = text
    numbered = document.add_paragraph("Ask the master.")
    numbered._p.get_or_add_pPr().get_or_add_numPr()
    document.save(tmp_path / "a.docx")
    (found,) = read(tmp_path).documents
    assert found.title == "Fees"
    assert found.text == (
        "## Fees\n\nA boat costs 45 euros a day.\n\nPay ahead.\n\nDocks\nNorth |  | 4\n\n- Ask the master."
    )


def _pdf(text: str) -> bytes:
    """A one-page PDF, written by hand to avoid a dependency on a PDF writer."""
    stream = f"BT /F1 12 Tf 72 700 Td ({text}) Tj ET".encode()
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 4 0 R "
        b"/Resources << /Font << /F1 << /Type /Font /Subtype /Type1 /BaseFont /Helvetica >> >> >> >>",
        b"<< /Length %d >>\nstream\n%s\nendstream" % (len(stream), stream),
    ]
    out, offsets = b"%PDF-1.4\n", []
    for number, body in enumerate(objects, start=1):
        offsets.append(len(out))
        out += b"%d 0 obj\n%s\nendobj\n" % (number, body)
    table = b"".join(b"%010d 00000 n \n" % o for o in offsets)
    tail = b"trailer << /Size 5 /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF" % len(out)
    return out + b"xref\n0 5\n0000000000 65535 f \n" + table + tail


def test_pdf_gives_its_text(tmp_path):
    pytest.importorskip("pypdf")
    corpus = read(tmp_path, a__pdf=_pdf("The ferry leaves at noon."), b__pdf=b"%PDF-1.4 cut off", c__pdf=_pdf(" "))
    assert [d.text for d in corpus.documents] == ["The ferry leaves at noon."]
    assert skipped(corpus)["b.pdf"].startswith("damaged PDF")
    assert skipped(corpus)["c.pdf"] == "no text in the PDF (scanned pages?)"


@pytest.mark.parametrize(
    ("split", "joined"),
    [("the har-\nbour", "the harbour"), ("state-of-the-\nart", "state-of-the-art"), ("von Stra-\nße", "von Straße")]
    + [(text, text) for text in ("from 10-\n20 o'clock", "2024-\n2025", "vitamin B-\n12", "North-\nSouth")],
)
def test_words_split_in_a_pdf_are_joined_and_numbers_are_not(monkeypatch, split, joined):
    pytest.importorskip("pypdf")
    monkeypatch.setattr(readers, "_pdf_page", lambda _page: split)
    assert read_file("a.pdf", _pdf("One page.")).pieces[0].text == joined


def test_halves_of_surrogate_pairs_are_joined_or_replaced(tmp_path, monkeypatch):
    """pypdf returns them for some fonts; no tokenizer takes them and no file can hold them."""
    pytest.importorskip("pypdf")
    assert tidy("a\ud83d\ude00 b\ud835 \udc9c\r\n") == "a\U0001f600 b\ufffd \ufffd"
    monkeypatch.setattr("recovery.data.corpus.readers._pdf_page", lambda _: "The ferry\ud835 leaves at noon.")
    assert texts(read(tmp_path, a__pdf=_pdf("x"))) == {"The ferry\ufffd leaves at noon."}


def test_without_the_docs_extra_pdf_and_docx_are_skipped_with_an_install_hint(tmp_path):
    (tmp_path / "a.pdf").write_bytes(_pdf("Text."))
    (tmp_path / "b.docx").write_bytes(b"PK")
    (tmp_path / "c.txt").write_text("Readable.")
    program = (
        "import sys; sys.modules['pypdf'] = sys.modules['docx'] = None\n"
        "from pathlib import Path; from recovery.data.corpus import read_corpus\n"
        f"print('\\n'.join(read_corpus(Path({str(tmp_path)!r})).report.lines()))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=Path.cwd())
    assert "skipped a.pdf: reading PDF needs pip install 'recovery[docs]'" in done.stdout
    assert "skipped b.docx: reading DOCX needs pip install 'recovery[docs]'" in done.stdout
    assert "read 1 file" in done.stdout


# --- bad input -----------------------------------------------------------------------------------------------


def test_a_missing_folder_is_refused_in_one_line_and_a_single_file_is_read(tmp_path):
    with pytest.raises(CorpusError, match="no folder") as missing:
        read_corpus(tmp_path / "none")
    assert "\n" not in str(missing.value)
    (tmp_path / "a.txt").write_text("text")
    assert [d.id for d in read_corpus(tmp_path / "a.txt").documents] == ["a.txt"]


def test_an_empty_folder_and_one_without_readable_files_are_refused(tmp_path):
    with pytest.raises(EmptyCorpusError, match="is empty: put documents in it"):
        read_corpus(tmp_path)
    (tmp_path / "a.png").write_bytes(b"\x89PNG")
    (tmp_path / "b.txt").write_bytes(b"")
    with pytest.raises(EmptyCorpusError, match=r"a\.png: unsupported type \.png; b\.txt: empty file") as error:
        read_corpus(tmp_path)
    assert "\n" not in str(error.value)
    assert error.value.skipped == (Skipped("a.png", "unsupported type .png"), Skipped("b.txt", "empty file"))


def test_bad_files_are_reported_and_good_ones_used(tmp_path):
    good = "The harbour opens at six."
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "copy.txt").write_text("the   harbour opens at SIX!")
    (tmp_path / ".hidden").mkdir()
    with (tmp_path / "huge.txt").open("wb") as file:
        file.truncate(10**9)
    corpus = read(
        tmp_path,
        good__txt=good,
        binary__txt=bytes(range(256)) * 4,
        blank__md="  \n\n",
        picture__jpg=b"\xff\xd8",
        README=b"no suffix",
        questions__jsonl='{"question": "never a document"}',
        probes__jsonl='{"question": "never a document"}',
        rewritten__jsonl='{"document": "a.md", "text": "never a document"}',
    )
    assert texts(corpus) == {good}
    assert skipped(corpus) == {
        ".hidden": "hidden",
        "README": "unsupported type (no suffix)",
        "binary.txt": "binary, not text",
        "blank.md": "empty file",
        "huge.txt": "1,000 MB, over the limit of 100 MB a file",
        "inner/copy.txt": "the same text as good.txt",
        "picture.jpg": "unsupported type .jpg",
    }
    lines = corpus.report.lines()
    assert lines[0].startswith("read 1 file in ") and "1 documents to train on, 0 held out, 25 characters" in lines[0]
    assert "skipped huge.txt: 1,000 MB, over the limit of 100 MB a file" in lines


def test_probes_and_questions_that_are_not_used_are_reported(tmp_path):
    (tmp_path / "inner").mkdir()
    for name in ("probes.jsonl", "questions.jsonl", "a.probes.jsonl", "inner/questions.jsonl"):
        (tmp_path / name).write_text('{"question": "never a document"}')
    assert skipped(read(tmp_path, a__md="Text.")) == {
        "a.probes.jsonl": "no document by its name: only probes.jsonl directly in the folder is used",
        "inner/questions.jsonl": "no document by its name: only questions.jsonl directly in the folder is used",
    }


def test_a_workspace_below_the_documents_is_not_read(tmp_path):
    workspace = Workspace(tmp_path / "recovery-workspace")
    workspace.corpus(1).mkdir(parents=True)
    (workspace.corpus(1) / "held_out.jsonl").write_text('{"text": "This text was held out."}\n')
    (tmp_path / "else").mkdir()
    (tmp_path / "else" / "workspace.json").write_text('{"version": 2, "projects": {}}')
    (tmp_path / "else" / "b.md").write_text("Of another program.")
    workspace.remember("miniature")
    corpus = read(tmp_path, a__md="Text.")
    assert {d.source for d in corpus.documents} == {"a.md", "else/b.md", "else/workspace.json"}
    assert skipped(corpus) == {"recovery-workspace": "a workspace of recover"}
    with pytest.raises(CorpusError, match="is a workspace of recover: give a folder of your documents alone"):
        read_corpus(workspace.folder)
    (workspace.folder / "workspace.json").rename(workspace.folder / "tracker.db")
    (tmp_path / "else" / "tracker.db").write_text("of another program")
    found = read_corpus(tmp_path, held_out=0)
    assert skipped(found)["recovery-workspace"] == "a workspace of recover" and "else/b.md" in {
        d.source for d in found.documents
    }


def test_probes_under_another_name_are_no_documents(tmp_path):
    probe = {"question": "Who keeps it?", "answers": ["Mira"], "passage": "Mira keeps it."}
    lines = [json.dumps(probe), json.dumps(probe | {"text": "A text with a question."}), json.dumps({"text": "Text."})]
    thread = {"question": "How is it cleaned?", "answers": [{"text": "With vinegar."}]}
    corpus = read(
        tmp_path, draft__jsonl="\n".join(lines), probes__json=json.dumps([probe, probe]), c__json=json.dumps(thread)
    )
    asked = "question: How is it cleaned?\nanswers.text: With vinegar."
    assert texts(corpus) == {"A text with a question.", "Text.", asked}
    assert skipped(corpus)["draft.jsonl record 1"] == "a probe, not a document"
    assert skipped(corpus)["probes.json"].startswith("record 1: a probe, not a document")


def test_the_file_size_limit_can_be_set(tmp_path):
    (tmp_path / "b.txt").write_text("A much longer text than the limit allows.")
    (tmp_path / "a.txt").write_text("Short text.")
    corpus = read_corpus(tmp_path, limit_file_mb=2e-5)
    assert texts(corpus) == {"Short text."}


def test_links_are_not_followed(tmp_path):
    outside = tmp_path / "outside"
    folder = tmp_path / "docs"
    for path in (outside, folder, folder / "sub"):
        path.mkdir()
    (outside / "secret.txt").write_text("Secret.")
    (folder / "sub" / "a.txt").write_text("Open text.")
    (folder / "link.txt").symlink_to(outside / "secret.txt")
    (folder / "tree").symlink_to(outside)
    (folder / "again.txt").symlink_to(folder / "sub" / "a.txt")
    (folder / "sub" / "loop").symlink_to(folder)
    (folder / "self").symlink_to(folder / "self")
    (folder / "gone.txt").symlink_to(folder / "nothing.txt")
    corpus = read_corpus(folder)
    assert texts(corpus) == {"Open text."}
    within = "symbolic link to a path inside the folder, which is read directly"
    assert skipped(corpus) == {
        "again.txt": within,
        "gone.txt": "broken symbolic link",
        "link.txt": "symbolic link to a path outside the folder",
        "self": "broken symbolic link",
        "sub/loop": within,
        "tree": "symbolic link to a path outside the folder",
    }
    (tmp_path / "alias").symlink_to(folder)
    assert texts(read_corpus(tmp_path / "alias")) == {"Open text."}


def test_a_named_pipe_is_skipped_without_blocking(tmp_path):
    os.mkfifo(tmp_path / "pipe.txt")
    corpus = read(tmp_path, a__txt="Text.")
    assert skipped(corpus) == {"pipe.txt": "not a regular file"}


@pytest.fixture
def public_folder() -> Iterator[Path]:
    """A folder that other users can enter, unlike pytest's temporary folders."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder


@contextmanager
def nobody() -> Iterator[None]:
    """Drop root privileges temporarily, since root can read every file."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_files_and_folders_without_permission_are_reported(public_folder):
    (public_folder / "open.txt").write_text("Open text.")
    (public_folder / "shut.txt").write_text("Shut text.")
    (public_folder / "closed").mkdir()
    (public_folder / "shut.txt").chmod(0)
    (public_folder / "closed").chmod(0)
    with nobody():
        corpus = read_corpus(public_folder)
    (public_folder / "closed").chmod(0o755)
    assert texts(corpus) == {"Open text."}
    assert skipped(corpus) == {
        "closed": "cannot be opened (Permission denied)",
        "shut.txt": "cannot be read (Permission denied)",
    }


@pytest.mark.parametrize(
    ("encoding", "noted"),
    [
        ("utf-8", None),
        ("utf-8-sig", None),
        ("utf-16", None),
        ("utf-32", None),
        ("utf-16-le", "utf-16-le"),
        ("cp1252", "cp1252"),
    ],
)
def test_encodings(tmp_path, encoding, noted):
    text = "Das Café öffnet früh, “sagt” die Wirtin – für 5 € gibt es Tee und ein Stück Käsekuchen dazu."
    corpus = read(tmp_path, a__txt=text.encode(encoding))
    assert corpus.documents[0].text == text
    expected = (f"a.txt: not UTF-8, read as {noted}",) if noted else ()
    assert corpus.report.notes == expected


def test_a_cyrillic_legacy_encoding_is_guessed(tmp_path):
    text = "Гавань открывается в шесть часов утра, и рыбаки уже ждут у ворот со своими лодками и сетями. " * 3
    corpus = read(tmp_path, a__txt=text.encode("cp1251"))
    assert corpus.documents[0].text == text.strip()


@pytest.mark.parametrize("times", [1, 3, 20])
@pytest.mark.parametrize(
    ("encoding", "text"),
    [
        ("cp1252", "La città è bella perché il caffè è più buono e la libertà è là."),
        ("cp1252", "Não há manhã sem coração; a informação é útil às mães."),
        ("cp1252", "På morgonen går båten över sjön till ön, där de äter kräftor."),
        ("cp1252", "Le café est fermé dès l'été; où êtes-vous allé à Noël, garçon?"),
        ("cp1252", "El año pasado la señora llevó a los niños mañana y también pingüinos."),
        ("cp1252", "It’s the “best” price – about 5 £ … really."),
        ("cp1250", "Příliš žluťoučký kůň úpěl ďábelské ódy; řeka teče přes město."),
        ("cp1250", "Árvíztűrő tükörfúrógép; a hajó reggel hétkor indul, és jó idő van."),
        ("cp1250", "Zażółć gęślą jaźń; łódź odpływa o siódmej rano, a pogoda jest dobra."),
        ("cp1257", "Laivas išplaukia rytą, o žmonės laukia ant kranto, ąžuolas ūkas."),
        ("cp1254", "Gemi sabah kalkıyor; çocuklar güneşi görür, ağaç yeşil İstanbul."),
    ],
)
def test_legacy_encodings_of_latin_letters_are_told_apart_by_the_letters(encoding, text, times):
    text = " ".join([text] * times)
    assert decode(text.encode(encoding)).text == text


@pytest.mark.parametrize(
    ("encoding", "text"),
    [
        ("shift_jis", "東京の港は毎朝七時に開きます。最初の船は八時に出ます。"),
        ("gbk", "港口每天早上七点开放。第一班船八点出发，去往北方的岛屿。"),
        ("cp949", "항구는 매일 아침 일곱 시에 열립니다. 첫 배는 여덟 시에 떠납니다."),
    ],
)
@pytest.mark.parametrize("shift", ["", "a"])
def test_a_large_file_in_a_multi_byte_encoding_is_guessed_wherever_its_characters_begin(
    tmp_path, encoding, text, shift
):
    text = shift + "".join(f"{number} {text}\n" for number in range(1500))
    (tmp_path / "a.txt").write_bytes(text.encode(encoding))
    assert decode(text.encode(encoding)).text == text
    one_line = text.replace("\n", "").replace(" ", "")  # few places where no character can be cut
    assert decode(one_line.encode(encoding)).text == one_line
    found, note = encoding_of(tmp_path / "a.txt")
    assert text.encode(encoding).decode(found) == text and note == f"not UTF-8, read as {found}"


GERMAN_ROWS = "".join(f"{number},Der Fährmann grüßt jeden Morgen.\n" for number in range(200)).encode()
ASCII_ROWS = b"1,plain sentences about ports and boats.\n" * 2000
RUSSIAN = "Порт открывается каждое утро в семь часов.\n".encode("cp1251") * 2000


@pytest.mark.parametrize(
    ("data", "encoding", "note"),
    [
        (GERMAN_ROWS + ASCII_ROWS + b"one \xff byte\n" + ASCII_ROWS, "utf-8", "damaged UTF-8, 1 character replaced"),
        (GERMAN_ROWS + ASCII_ROWS + "ü".encode()[:1], "utf-8", "damaged UTF-8, 1 character replaced"),
        (ASCII_ROWS + RUSSIAN, "cp1251", "not UTF-8, read as cp1251"),
        (RUSSIAN + b"one \x98 byte\n", "cp1251", "not UTF-8, read as cp1251, 1 character replaced"),
    ],
    ids=["damaged", "cut off", "ASCII at the start", "damaged legacy"],
)
def test_the_whole_file_decides_its_encoding(tmp_path, data, encoding, note):
    (tmp_path / "a.csv").write_bytes(data)
    assert encoding_of(tmp_path / "a.csv") == (encoding, note)
    decoded = decode(data)
    assert (decoded.encoding, decoded.note) == (encoding, note)


def test_utf8_with_a_few_broken_bytes_stays_utf8(tmp_path):
    text = "Das Café öffnet früh, für fünf Kronen gibt es süßen Käse."
    corpus = read(tmp_path, a__txt=text.encode() + b"\xe2\x82")
    assert corpus.documents[0].text == text + "\ufffd"
    assert corpus.report.notes[0] == "a.txt: damaged UTF-8, 1 character replaced"


def test_a_broken_byte_order_mark_is_refused(tmp_path):
    corpus = read(tmp_path, a__txt=b"\xff\xfeabc", b__txt="Text.")
    assert "utf-16" in skipped(corpus)["a.txt"]


def test_many_skips_with_the_same_reason_are_summarised():
    report = ReadReport("x", 1, 1, 0, 5, tuple(Skipped(f"{i}.png", "unsupported type .png") for i in range(40)))
    lines = report.lines()
    assert len(lines) == 10
    assert lines[-1] == "skipped 32 more: unsupported type .png"


# --- holding out ---------------------------------------------------------------------------------------------


@pytest.fixture
def topics(tmp_path: Path) -> Path:
    """Python's help topics, an English corpus in the standard library."""
    for name, text in pydoc_data.topics.topics.items():
        (tmp_path / f"{name}.txt").write_text(text, encoding="utf-8")
    return tmp_path


def test_reads_an_ordinary_english_corpus_and_holds_out_a_share(topics):
    corpus = read_corpus(topics, held_out=0.1)
    total = len(corpus.documents) + len(corpus.held_out)
    assert total > 60
    assert 1 <= len(corpus.held_out) <= 0.25 * total
    assert not {d.id for d in corpus.documents} & {d.id for d in corpus.held_out}
    assert corpus.report.documents == len(corpus.documents)


def test_what_is_held_out_depends_on_the_wording_alone(topics):
    before = read_corpus(topics, held_out=0.1)
    assert read_corpus(topics, held_out=0.1).hash == before.hash
    (topics / "zz.txt").write_text("One more document about harbours and ferries.")
    (topics / f"{before.documents[0].id}").rename(topics / "renamed.txt")
    after = read_corpus(topics, held_out=0.1)
    assert {d.text for d in before.held_out} <= {d.text for d in after.held_out}
    assert len(after.held_out) <= len(before.held_out) + 1
    assert after.hash != before.hash
    other = read_corpus(topics, held_out=0.1, seed=1)
    assert {d.text for d in other.held_out} != {d.text for d in after.held_out}


def test_neither_split_is_empty(tmp_path):
    for i in range(20):
        (tmp_path / f"{i}.txt").write_text(f"Document number {i} speaks of harbour {i * 7}.")
    most = read_corpus(tmp_path, held_out=0.99)
    assert len(most.documents) == 10
    least = read_corpus(tmp_path, held_out=1e-9)
    assert len(least.held_out) == 1
    assert len(read_corpus(tmp_path, held_out=0).held_out) == 0


def test_few_documents_lose_paragraphs_or_nothing(tmp_path):
    words = "The keeper of dock {i} writes down each boat that comes in before {j} o'clock."
    (tmp_path / "short.md").write_text("# Short\n\nNothing can be spared here.")
    small = read_corpus(tmp_path)
    assert small.held_out == ()
    assert "nothing was held out" in small.report.notes[0]
    body = "\n\n".join(words.format(i=i, j=i % 12) for i in range(60))
    (tmp_path / "long.md").write_text(f"# Docks\n\n{body}\n\n- a list\n- stays whole for all that it has many words")
    corpus = read_corpus(tmp_path, held_out=0.2)
    (held,) = corpus.held_out
    assert held.id == "long.md#held-out" and held.title == "Docks"
    kept = next(d for d in corpus.documents if d.id == "long.md")
    assert kept.text.startswith("# Docks\n\n")
    assert "- a list\n- stays whole" in kept.text
    assert not set(paragraphs(held.text)) & set(paragraphs(kept.text))
    assert sorted([*paragraphs(held.text), *paragraphs(kept.text)]) == sorted(
        paragraphs((tmp_path / "long.md").read_text())
    )
    assert "held out" in corpus.report.notes[0]


CHINESE = "第{i}号码头的管理员每天都要记录在{j}点以前进港的每一艘船。"


@pytest.mark.parametrize(
    "line",
    [
        CHINESE,
        "第{i}埠頭の係員は毎日{j}時より前に入港したすべての船を帳簿に記録します。",
        "เจ้าหน้าที่ท่าเรือหมายเลข{i}จดบันทึกเรือทุกลำที่เข้าเทียบท่าก่อน{j}นาฬิกา",
    ],
)
def test_paragraphs_without_spaces_are_held_out(tmp_path, line):
    body = "\n\n".join(line.format(i=i, j=i % 12) for i in range(60))
    (tmp_path / "long.md").write_text(f"# 码头\n\n{body}\n\n安装和配置")
    held = read_corpus(tmp_path, held_out=0.2).held_out
    assert 4 <= sum(len(paragraphs(d.text)) for d in held) <= 24
    assert not any("安装和配置" in d.text for d in held)  # too short


def test_neither_code_nor_what_stays_elsewhere_is_held_out(tmp_path):
    notice = "All prices in this handbook are given in euros and include the tax."
    for n in range(8):
        parts = [notice if n == 0 else f"# Page {n}", notice]
        for k in range(6):
            parts.append(f"The module {n}-{k} was written by hand in the year {1900 + n * 6 + k} at the office.")
            parts.append(
                f"```\nimport x{n}{k}\n\nvalue = x{n}{k} . load ( a , b ) - 3 if ready else None\nprint ( value )\n```"
            )
        (tmp_path / f"{n}.md").write_text("\n\n".join(parts))
    for seed in range(3):
        corpus = read_corpus(tmp_path, held_out=0.5, seed=seed)
        assert len(corpus.held_out) > 4
        assert not any("```" in d.text or "value =" in d.text or notice in d.text for d in corpus.held_out)
        assert all(d.text.count("```") == 12 for d in corpus.documents)


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


# --- text ----------------------------------------------------------------------------------------------------


def test_normal_form():
    assert normalise("  “Hello”,\n  WORLD – it’s 5 * 3. ") == "hello world - it s 5 * 3"
    assert normalise("2 + 3") != normalise("2 * 3")
    assert text_hash("A b") == text_hash("a  B!") != text_hash("a c")
    assert 0 <= share("a", "x") < 1
    assert share("a", "x") == share("A", "x") != share("a", "y")


def test_words_are_counted_where_none_are_divided_by_spaces():
    assert word_count("The port - it's open.") == 5
    assert word_count("我") == 1
    assert word_count("使用 npm 安装服务器") == 4
    assert word_count("항구는 여섯 시에 엽니다.") == 4


def test_tidy_and_paragraphs():
    assert tidy(unicodedata.normalize("NFD", "Café Müller")) == "Café Müller"
    assert tidy("\ufeffa \r\nb\x00\r\n\n\n\nc\f") == "a\nb\n\nc"
    assert paragraphs("a\nb\n  \n\nc\n") == ["a\nb", "c"]


def test_a_front_matter_description_stands_below_the_title(tmp_path):
    text = "---\ntitle: Port rules\ndescription: 'When boats may come in.'\n---\nThe port opens at six.\n"
    document = read(tmp_path, a__md=text).documents[0]
    assert document.text == "# Port rules\n\nWhen boats may come in.\n\nThe port opens at six."
    headed = read(tmp_path, b__md="---\ndescription: When.\n---\n# Rules\n\nSix.\n").documents
    assert "# Rules\n\nWhen.\n\nSix." in [d.text for d in headed]
