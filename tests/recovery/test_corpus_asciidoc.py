"""AsciiDoc documents: what is read of them, as Markdown."""

from __future__ import annotations

from pathlib import Path

import pytest

from recovery.data.corpus.asciidoc_files import read_asciidoc
from recovery.data.corpus.readers import read_file
from tests.corpus_reading import read, read_in_time


def _text(document: str) -> str:
    return read_file("a.adoc", document.encode()).pieces[0].text


@pytest.mark.parametrize(
    ("document", "text"),
    [
        ("= Port\n:toc:\n:d: North\n\n== The {d} ==\n\nAt {d} {other}", "# Port\n\n## The North\n\nAt North {other}"),
        ("Port(1)\n=======\n\nName\n----\nA\nport\n\nDay\n~~~\nx", "# Port(1)\n\n## Name\n\nA port\n\n### Day\n\nx"),
        (
            "Do:\n\n[source,ruby]\n----\nif x # <1>\n  y\n\nend\n----\n<1> Say `x`.",
            "Do:\n\n```ruby\nif x\n  y\n\nend\n```\n\n1. Say `x`.",
        ),
        ("....\n* a\n....\n\n b\n   c\n\n[source]\nx = 1", "```\n* a\n```\n\n```\nb\n  c\n```\n\n```\nx = 1\n```"),
        ("```sh\na  b\n```\n\n[listing]\n--\nx\n--", "```sh\na  b\n```\n\n```\nx\n```"),
        ("NOTE: Bring a\nrope.\n\n[TIP]\n====\nTwo.\n\nThree.\n====", "Note: Bring a rope.\n\nTip\n\nTwo.\n\nThree."),
        ("// a comment\nOne\n// two\nthree\n\n////\nhidden\n////\n\n'''\n\n<<<\nfour", "One three\n\nfour"),
        (".Title of it\n====\nAn example.\n====\n\n****\nBeside.\n****", "Title of it\n\nAn example.\n\nBeside."),
        ("[verse]\na -b\n  c\n\n[quote, Ann]\n____\nWords.\n____", "a -b\nc\n\nWords."),
        (
            "* one\n** two\ngoes on\n* three\n+\nMore.\n\n. x\n. y\n\nEnd",
            "- one\n  - two goes on\n- three\n\n  More.\n\n  1. x\n  2. y\n\nEnd",
        ),
        (
            "rope:: A line.\n`dock`::\n\n  A place.\n+\n--\nTwo.\n\n* x\n--\n\nEnd",
            "- rope: A line.\n- `dock`: A place.\n\n  Two.\n\n  - x\n\nEnd",
        ),
        ("-a::\n--all::\n\tTake all.\n\ncore.name::\n\tA name.", "- `-a`, `--all`: Take all.\n- `core.name`: A name."),
        ("ifdef::x[]\nOne\nendif::[]\nifndef::y[Two]\n\nimage::a/b.png[A ship, 100]", "One\n\nTwo\n\nA ship"),
        ("[[id]]\n[#other.role]\n== Title\n\n[discrete]\n=== Sub\n\ntoc::[]\n\nText", "## Title\n\n### Sub\n\nText"),
        ("[stem]\n++++\nx^2\n++++\n\n++++\n<b>Bold</b> words\n++++", "$x^2$\n\nBold words"),
        ("A. Turing wrote this.\n\n1986. It was.", "A. Turing wrote this.\n\n1986. It was."),
    ],
)
def test_blocks_of_asciidoc_are_read_as_markdown(document: str, text: str) -> None:
    assert _text(document) == text


@pytest.mark.parametrize(
    ("document", "text"),
    [
        ("*bold* and _stress_ and `code` and `+a*b*+` and ``x``y", "bold and stress and `code` and `a*b*` and `x`y"),
        ("<<docks>> and <<docks,The docks>>", "docks and The docks"),
        ("xref:a/moor-it.adoc[] and xref:b.adoc#c[See *it*]", "moor it and See it"),
        ("https://x.org[A site^] and https://x.org and link:a.html[here,role=x]", "A site and https://x.org and here"),
        ("kbd:[Ctrl+C] menu:File[Save > As] btn:[OK] mailto:a@b.c[Ann]", "Ctrl+C File > Save > As OK Ann"),
        ("linkgit:git-add[1] image:x.png[A knot]", "git-add(1) A knot"),
        ("H~2~O is x^2^, \"`quoted`\" and '`so`' C{plus}{plus} and {cpp}", "H2O is x^2, “quoted” and ‘so’ C++ and C++"),
        ("A footnote:[Of *it*.] [[here]]place ((term)) (((a,b)))and", "A (Of it.) place term and"),
        ("pass:[a_b_c] +x_y_z+ +++<u>u</u>+++", "a_b_c x_y_z u"),
        (r"\*star* \`tick` \{plus} and snake_case_name", "*star* `tick` {plus} and snake_case_name"),
        ("2 * 3 * 4 and a_b, C++", "2 * 3 * 4 and a_b, C++"),
        ("one +\ntwo", "one\ntwo"),
        ("std::vector<int> x[1]; a ` b { c ]] <<", "std::vector<int> x[1]; a ` b { c ]] <<"),
    ],
)
def test_inline_markup_of_asciidoc_is_read_as_markdown(document: str, text: str) -> None:
    assert _text(document) == text


@pytest.mark.parametrize(
    ("document", "text"),
    [
        (
            "|===\n|Dock |Ships\n\n|one |1\n|two\n|2 and\nmore\n|===",
            "| Dock | Ships |\n| --- | --- |\n| one | 1 |\n| two | 2 and more |",
        ),
        (
            '.Docks\n[%header,cols="1,2a"]\n|===\n|Dock |Ships\n|one\n|\n* a\n* b\n// no\n|===',
            "Docks\n\n| Dock | Ships |\n| --- | --- |\n| one | a; b |",
        ),
        (
            '[options="header"]\n|===\n|A |B |C\n2+|both |x\n.2+|down |y |z\n|v |w\n|===',
            "| A | B | C |\n| --- | --- | --- |\n| both |  | x |\n| down | y | z |\n| down | v | w |",
        ),
        ('[cols="2*m"]\n|===\n|a |b \\| c\n|===', "|  |  |\n| --- | --- |\n| `a` | `b \\| c` |"),
        ('[format=csv,options="header"]\n|===\nA,B\n"x, y",2\n|===', "| A | B |\n| --- | --- |\n| x, y | 2 |"),
        ("|===\n|never |ends", "|never |ends"),
    ],
)
def test_tables_of_asciidoc_keep_their_cells(document: str, text: str) -> None:
    assert _text(document) == text


def test_nothing_in_asciidoc_reads_another_file(tmp_path: Path) -> None:
    other = tmp_path / "secret.adoc"
    other.write_text("a secret\n")
    document = (
        f"= Port\n\nBefore.\n\ninclude::{other}[]\n\nimage::{other}[]\n\n----\ninclude::{other}[]\n----\n\nAfter.\n"
    )
    assert _text(document) == f"# Port\n\nBefore.\n\n```\ninclude::{other}[]\n```\n\nAfter."


@pytest.mark.parametrize(
    "document",
    [
        "*a " * 100_000 + "word",
        "_a " * 100_000 + "word",
        "pass:[ " * 30_000 + "word",
        "ab:[" * 50_000 + "word",
        '["' + '""' * 100_000 + "x word",
        "= a" + " =" * 100_000 + " word",
        "----\na" + " " * 200_000 + "<1>\nword\n----",
        ":a: " + "x" * 100 + "\n\n" + "{a} " * 10_000 + "word",
        "\n".join("-" * (4 + n) for n in range(500)) + "\nword",
        "\n".join("=" * (7 + n) for n in (*range(300), *reversed(range(300)))) + "\n\nword",
        "|===\n" + "999.999+|a\n" * 3_000 + "|===\n\nword",
        "\n".join("*" * (1 + n % 6) + " x" for n in range(10_000)) + "\n\nword",
        ":a: b \\\n" + "x \\\n" * 20_000 + "\n\nword",
    ],
)
def test_long_asciidoc_is_read_in_linear_time(document: str) -> None:
    assert "word" in read_in_time(_text, document, "A line of text.\n\n")


def test_asciidoc_takes_its_title_from_its_first_heading_or_the_name(tmp_path: Path) -> None:
    corpus = read(tmp_path, a__adoc="= Settings\n\nText.", b__asciidoc="Text of another kind.")
    assert {d.title for d in corpus.documents} == {"Settings", "b"}


@pytest.mark.parametrize(
    ("head", "text"),
    [
        ("Ann Doe <ann@x.example>\nv1.2, 2024-01-05: Fixed\n:dock: Tide", "Tide: Ann Doe, 1.2, 2024-01-05, Fixed."),
        ("Jane Q. Doe; John van Roe <j@x.example>\n:dock: Tideway\n// no\n:toc:", "Tideway: Jane Q. Doe, {revnumber},"),
        (":dock: Tide\\\nway\n:author: Jane", "Tide way: Jane, {revnumber},"),
        ("{writer}\n2024-01-05\n:dock: Tideway", "Tideway: Ola Dahl, {revnumber}, 2024-01-05,"),
        ("harbour office\n1.0, May 5, 2024\n:dock: Tideway", "Tideway: harbour office, 1.0, May 5, 2024,"),
    ],
)
def test_the_header_of_a_document_is_no_text_and_its_attributes_are_known(head: str, text: str) -> None:
    for title in ("= Guide", "Guide\n====="):
        written = (
            f":writer: Ola Dahl\n{title}\n{head}\n\n{{dock}}: {{author}}, {{revnumber}}, {{revdate}}, {{revremark}}."
        )
        title, found = read_asciidoc(written)
        assert title == "Guide"
        assert found.startswith(f"# Guide\n\n{text}")


def test_text_directly_below_the_title_stays() -> None:
    for text in ("The harbour opens at six.", "The harbour opens at\nsix each day.", "* One", "[abstract]\nIt opens."):
        assert (
            read_asciidoc(f"= Guide\n{text}\n\nEnd.")[1]
            .replace("- One", "* One")
            .replace("opens at six each", "opens at\nsix each")
            .startswith(f"# Guide\n\n{text.removeprefix('[abstract]').strip()}")
        )
    text = read_asciidoc("= Guide\nThe harbour opens at six.\n:dock: Tideway\n\nSee {dock}.")[1]
    assert text == "# Guide\n\nThe harbour opens at six.\n\nSee Tideway."


def test_attributes_in_code_are_put_in_where_the_document_says_so() -> None:
    for subs, shown in (
        ('subs="attributes+"', "1.2"),
        ("subs=+attributes", "1.2"),
        ('subs="verbatim,-attributes"', "{v}"),
    ):
        text = read_asciidoc(f":v: 1.2\n\n[source,sh,{subs}]\n----\nget {{v}}\n----\n")[1]
        assert text == f"```sh\nget {shown}\n```"
