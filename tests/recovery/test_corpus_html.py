"""HTML documents: what is read of a page, as Markdown, with its lists, tables, code and definitions."""

from __future__ import annotations

from pathlib import Path

import pytest

from recovery.data.corpus import read_corpus
from recovery.data.corpus.facts import facts_of
from recovery.data.corpus.markdown import code_lines
from recovery.data.corpus.readers import read_file
from recovery.data.corpus.sentences import sentences
from tests.corpus_reading import read


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
