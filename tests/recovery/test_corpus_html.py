"""HTML documents: what is read of a page, as Markdown, with its lists, tables, code and definitions."""

from __future__ import annotations

from pathlib import Path

import pytest

from recovery.data.corpus.facts.extraction import facts_of
from recovery.data.corpus.folder import read_corpus
from recovery.data.corpus.html_files import read_html
from recovery.data.corpus.markdown import code_lines
from recovery.data.corpus.readers import read_file
from recovery.data.corpus.sentences import sentences
from tests.corpus_reading import read, read_in_time


def text_of(page: str) -> str:
    (piece,) = read_file("a.html", f"<body>{page}</body>".encode()).pieces
    return piece.text


def test_html_gives_its_title_and_visible_text(tmp_path):
    page = """<?xml version="1.0" encoding="utf-8"?><html><head><title>Port
    rules</title><style>p {color: red}</style></head><body><h1>Opening</h1>
    <p>The port <b>opens</b>
    at six.</p><script>var x = 1</script>tail</body></html>"""
    document = read(tmp_path, a__html=page).documents[0]
    assert document.title == "Port rules"
    assert document.text == "# Port rules\n\n# Opening\n\nThe port opens at six.\n\ntail"


def test_html_with_a_million_spaces_in_a_row_is_read(tmp_path):
    page = f"<h1>Boats</h1><pre>one{' ' * 1_000_000}two   \n   three</pre><p>four</p>"
    (tmp_path / "page.html").write_text(page)
    (document,) = read_corpus(tmp_path).documents
    assert document.text.split() == ["#", "Boats", "```", "one", "two", "three", "```", "four"]
    assert "two\n   three" in document.text


@pytest.mark.parametrize(
    ("page", "text"),
    [
        ("<p>Do:</p><pre><code>def f(x):\n    return 1\n\nf(2)\n</code></pre> <p>a", "Do:\n\n```\n{code}\n```\n\na"),
        (
            '<div class="highlight"><pre><span></span><span class="k">def</span> <span>f</span><span>(x):</span>\n'
            '    <span class="k">return</span> <span>1</span>\n\n<span>f(2)</span>\n</pre></div>',
            "```\n{code}\n```",
        ),
        ("<pre>def f(x):<br>    return 1<br>\nf(2)</pre>\n   tail", "```\n{code}\n```\n\ntail"),
        ("<ul><li>one\n    <pre>  a\n b</pre></li>\n  <li>2</li></ul>", "- one\n\n  ```\n    a\n   b\n  ```\n\n- 2"),
        ("<pre><div>npm i</div><div>  x</div></pre>", "```\nnpm i\n  x\n```"),
    ],
    ids=["code", "highlighted", "line breaks", "in a list", "blocks as lines"],
)
def test_code_in_html_keeps_its_lines_and_indentation(page, text):
    assert text_of(page) == text.format(code="def f(x):\n    return 1\n\nf(2)")


@pytest.mark.parametrize(
    ("page", "text"),
    [
        ("<h1>Dam <code>x</code><a href='#f'>¶</a></h1>a<h3>A\n<b>dock</b></h3>b", "# Dam `x`\n\na\n\n### A dock\n\nb"),
        ("<p>It is x<sup>2</sup>, 10<sup>-6</sup> m<sup>3</sup>, 2<sup>n+1</sup>", "It is x^2, 10^-6 m^3, 2^(n+1)"),
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
        ("<p>He said <q>now</q>, don&#146;t you&#133; 3 &#151; 4 &#129;</p>", 'He said "now", don’t you… 3 — 4 \ufdd0'),
        ("<ruby>港<rt>みなと</ruby>と<ruby>船<rp>(<rt>ふね<rp>)</ruby>", "港(みなと)と船(ふね)"),
        (
            "<p>Pass &lt;a-b&gt; to --x=&lt;a-b&gt;, no &lt;b&gt; or <code>&lt;c&gt;</code>, a&lt;T&gt; if x &lt; y",
            "Pass `<a-b>` to `--x=<a-b>`, no `<b>` or `<c>`, a<T> if x < y",
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
        "signs",
        "sounds",
        "escaped brackets",
        "entities",
    ],
)
def test_html_is_read_as_markdown(page: str, text: str) -> None:
    assert text_of(page) == text


@pytest.mark.parametrize(
    ("page", "text"),
    [
        ("a<nav>menu</nav>b<footer>Made by hand</footer>", "a\nb"),
        ("<div class='NAVHEADER'>Prev</div><p>a</p><table class=navigation><tr><td>Up<td>Home</table>", "a"),
        ("<div role=navigation><ul><li>index<li>next |</ul></div>a<div role=contentinfo>© 2023</div>", "a"),
        ("<ul class=nav><li>Home</ul><ul><li class=navbar>Up<li>a</ul>b", "- a\n\nb"),
        ("<blockquote>It floats.<footer>Anna Berg</footer></blockquote>", "It floats.\nAnna Berg"),
        ("<h2>Keys</h2><main><h1>Ferry</h1><p>It leaves at seven.</main>Skip", "# Ferry\n\nIt leaves at seven."),
        ("<h1>Ferry</h1><p>It leaves at seven.</p><div role=main>Late.</div>",
         "# Ferry\n\nIt leaves at seven.\n\nLate."),
        ("<p>a <span aria-hidden=true>icon</span> b</p><div aria-hidden=true>c</div>", "a b\n\nc"),
        ("<pre><span class=linenos>1</span>import a\n<span class=linenos>2</span>a()</pre>",
         "```\nimport a\na()\n```"),
        ("<dl><dt><code>f()</code><a href=s.html><span class='viewcode-link'>[source]</span></a><dd>Does it.</dl>",
         "- `f()`: Does it."),
        ("<p>Next: <a rel=next href=b>Docks</a>, Up: <a rel=up href=c>Harbour</a> [Index]</p>a", "a"),
        ("<p>The <a rel=next href=b>docks</a> " + "are long " * 50, "The docks" + " are long" * 50),
        ("a<div class=footer>Generated by hand</div>", "a"),
        ("<p>It costs <del>4</del> <s>5</s> 6 euros.", "It costs 6 euros."),
        ("<p>a</p><video src=v.mp4>Your browser shows no videos.</video><center>b</center>c", "a\n\nb\nc"),
    ],
    ids=["menu", "DocBook", "Sphinx", "lists", "quotation", "main part", "little in it", "icon", "numbers of lines",
         "source", "Texinfo", "prose with a link", "Docutils", "struck out", "video"],
)  # fmt: skip
def test_menus_and_footers_in_html_are_not_read(page: str, text: str) -> None:
    assert text_of(page) == text


@pytest.mark.parametrize(
    ("page", "text"),
    [
        ("<p>See <img src=a/plan.png alt='Plan of the docks'>, then<img src=x alt=Two>go.",
         "See Plan of the docks, then Two go."),
        ("<p>a<img src=a/plan.png alt=plan><img alt='IMG 1.JPG'><img alt=''><img alt=*><img alt='[Tip]'>"
         "<img alt='Vorna logo'> b", "a b"),
        ("<figure><img alt='The pier'><figcaption>The pier in 1902</figcaption></figure>", "The pier in 1902"),
        ("<a href=/><img alt=Debian> Debian</a> runs", "Debian runs"),
        ("<p>See <svg><title>Two docks</title><text>x</text></svg>, <svg aria-hidden=true><title>x</title></svg>too.",
         "See Two docks, too."),
    ],
    ids=["text", "no text", "caption", "link", "drawing"],
)  # fmt: skip
def test_pictures_in_html_are_their_texts(page: str, text: str) -> None:
    (piece,) = read_file("a.html", f"<body>{page}</body>".encode()).pieces
    assert (piece.title, piece.text) == ("a", text)


@pytest.mark.parametrize(
    ("formula", "text"),
    [
        ("<math><mi>π</mi><msup><mi>r</mi><mn>2</mn></msup></math>", "πr^2"),
        ("<math><mfrac><mrow><mi>a</mi><mo>+</mo><mi>b</mi></mrow><mn>2</mn></mfrac><mo>=</mo><msqrt><mi>c</mi></msqrt>"
         "</math>", "(a+b)/2 = √c"),
        ("<math><munderover><mo>∑</mo><mrow><mi>i</mi><mo>=</mo><mn>1</mn></mrow><mi>n</mi></munderover>"
         "<msub><mi>x</mi><mi>i</mi></msub></math>", "∑_(i = 1)^nx_i"),
        ("<math><mo>(</mo><mtable><mtr><mtd>1</mtd><mtd>2</mtd></mtr><mtr><mtd>3</mtd><mtd>4</mtd></mtr></mtable>"
         "<mo>)</mo></math>", "(1, 2; 3, 4)"),
        ("<span><math><semantics><mrow><msup><mi>x</mi><mn>2</mn></msup></mrow><annotation "
         "encoding='application/x-tex'>x^{2}</annotation></semantics></math></span><span aria-hidden=true>x2</span>",
         "$x^{2}$"),
        (r"<math alttext='{\displaystyle \pi r}'><mi>π</mi></math><img alt='\pi r' aria-hidden=true>", r"$\pi r$"),
        (f"<math>{'<mrow><mi>x</mi>' * 200}</math>", "x" * 200),
        (f"<math>{'<mi>x</mi>' * 6000}</math>", "x" * 6000),
    ],
    ids=["power", "fraction", "sum", "matrix", "KaTeX", "Wikipedia", "deep", "long"],
)  # fmt: skip
def test_formulas_in_html_keep_their_structure(formula: str, text: str) -> None:
    assert text_of(f"<p>It is {formula}, about.") == f"It is {text}, about."


def test_a_formula_on_a_line_of_its_own_is_a_paragraph() -> None:
    page = "<p>The area is <math display=block><mi>a</mi><mi>b</mi></math> in square metres."
    assert text_of(page) == "The area is\n\nab\n\nin square metres."


@pytest.mark.parametrize(
    "page",
    [
        f"<figure><figcaption>{'long ' * 20_000}</figcaption>{'<img alt=Plan>' * 20_000}",
        f"<table>{'<tr><th>a<th>b' * 5_000}{'<tr><td>a<td>c' * 5_000}",
        f"<table>{'<tr><th>a<th>b<tr><td>1<td>2<tr><th>c<th>d<tr><td>3<td>4' * 3_000}",
        f"<p><math>{'<msqrt><mi>x</mi>' * 20_000}",
    ],
    ids=["pictures", "heads", "tables in one", "formula"],
)
def test_long_pages_are_read_in_linear_time(page: str) -> None:
    read_in_time(read_html, page, "<p>A line of text.")


@pytest.mark.parametrize(
    ("page", "text"),
    [
        ("<ul><li><p>a</p></li><li>b<ul><li>c<li>d</ul></li><li>e</ul>f", "- a\n- b\n  - c\n  - d\n- e\n\nf"),
        ("<ol start=3><li>a<p>b</p></li><li>c</ol>", "3. a\n\n   b\n\n4. c"),
        ("<dl><dt><code>a</code>:<dd><p>one</p><p>two</p><dt>b<dt>c<dd>three</dl>d",
         "- `a`: one\n\n  two\n\n- b\n- c: three\n\nd"),
        ("<li>a<li>b</div></ul></td><dd>c</p>", "- a\n- b\n\n  c"),
        ("<ul><li>a<ul><li>b<ul><li>c<ol><li>d</ol><li>e</ul></ul><li>f</ul>",
         "- a\n  - b\n    - c\n      1. d\n    - e\n- f"),
        ("<dl><dt>a<dd><dl><dt>b<dd>one<dl><dt>c<dd>two</dl></dl></dl>", "- a\n  - b: one\n    - c: two"),
        ("<ul><li>a<ul><li>b<ul><li><pre>c</pre><li>d</ul></ul></ul>",
         "- a\n  - b\n\n      ```\n      c\n      ```\n\n    - d"),
    ],
    ids=["nested", "numbered", "definitions", "broken", "deep", "deep definitions", "behind a blank line"],
)  # fmt: skip
def test_lists_in_html_keep_their_items(page: str, text: str) -> None:
    assert text_of(page) == text


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
         "<tfoot><tr><th>a<th>b</table>", "| a | b |\n| --- | --- |\n| North |  |\n| 1 | 2 |\n| South |  |\n| 3 | 4 |"),
        ("<table><tr><th>a<th>b<tr><th>1<th>2</table>", "| a | b |\n| --- | --- |\n| 1 | 2 |"),
        (f"<table><tr><td>{'long ' * 500}<td>short</table>", f"{('long ' * 500).strip()}\n\nshort"),
        ("<table><tr><th colspan=2>Docks<tr><th>Dock<th>Boats<tr><td>North<td>4</table>",
         "Docks\n\n| Dock | Boats |\n| --- | --- |\n| North | 4 |"),
        ("<table><tr><td colspan=9>Docks<tr><td>North<td>4<tr><td>South<td>5</table>",
         "Docks\n\n|  |  |\n| --- | --- |\n| North | 4 |\n| South | 5 |"),
        ("<table><tr><th>Dock<th>Boats<tr><td>North<td>4<tr><td>Dock<td>Boats<tr><th>Total<th>4</table>",
         "| Dock | Boats |\n| --- | --- |\n| North | 4 |\n| Dock | Boats |\n| Total | 4 |"),
        ("<table><tr><th>Dock<th>Boats<tr><td>North<td>4<tr><th>Captain<th>Age<tr><td>Anna<td>41</table>",
         "| Dock | Boats |\n| --- | --- |\n| North | 4 |\n\n| Captain | Age |\n| --- | --- |\n| Anna | 41 |"),
        ("<table><tr><td rowspan=2><img alt='[Note]' src='note.png'><th>Note"
         "<tr><td><p>The north dock is free.</p><p>So is the south one.</p></table>",
         "Note\n\nThe north dock is free.\n\nSo is the south one."),
        ("<table><tr><td>Lights<td><img alt=yes src=y.png><tr><td>Water<td><img alt=no src=n.png></table>",
         "|  |  |\n| --- | --- |\n| Lights | yes |\n| Water | no |"),
    ],
    ids=["header", "names of rows", "spans", "nested", "numbered lines", "paragraphs",
         "sentences", "short cells", "two headers", "parts", "heads alone", "layout",
         "title", "title without header", "total", "two tables in one", "note", "pictures"],
)  # fmt: skip
def test_tables_in_html_keep_their_cells(page: str, text: str) -> None:
    assert text_of(page) == text


def test_the_name_of_a_part_of_a_table_in_html_is_no_fact(tmp_path: Path) -> None:
    rows = "".join(
        f"<tr><td><code>{name}</code><td>string<td>{n} euros" for n, name in enumerate(("ferry", "pier"), 14)
    )
    page = f"<h1>Plans</h1><table><tr><th>Plan<th>Type<th>Price<tr><th colspan=3>Harbour{rows}</table>"
    found = facts_of(read(tmp_path, a__html=page).documents)
    assert {fact.value for fact in found} >= {"14 euros", "15 euros"}
    assert not any("Harbour" in fact.sentence for fact in found)


@pytest.mark.parametrize("cell", ["td", "th"])
def test_spans_that_ask_for_an_enormous_table_are_left_out(cell: str) -> None:
    page = f"<table><tr>{f'<{cell} colspan=9999 rowspan=9999>a' * 1000}{'<tr><td>b' * 10_000}</table>"
    text = text_of(page)
    assert text.count("a") == 1000 and text.count("b") == 10_000 and len(text) < 2 * len(page)


def test_a_letter_in_a_preformatted_page_is_running_text() -> None:
    letter = "The ferry of Vorna leaves the pier at a quarter past six, and its captain is Anna Berg of Lund.\n" * 4
    assert text_of(f"<pre>{letter}</pre>") == letter.strip()


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
    assert code_lines(text_of(start + told).split("\n"))[0]


def test_comments_do_not_make_preformatted_code_prose() -> None:
    comment = "# The harbour ferry of Vorna leaves at six. It is late on no day of the whole year."
    code = f"def ferry(x):\n    {comment}\n    return x + 1\n"
    assert text_of(f"<pre>{code * 3}</pre>").startswith("```\n")


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
