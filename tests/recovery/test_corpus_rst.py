"""reStructuredText documents: what is read of them, as Markdown, with what only Sphinx understands."""

from __future__ import annotations

from pathlib import Path

import pytest
from docutils.parsers.rst import directives, roles

from recovery.data.corpus.readers import read_file
from tests.corpus_reading import read, read_in_time


def _text(document: str) -> str:
    return read_file("a.rst", document.encode()).pieces[0].text


@pytest.mark.parametrize(
    ("document", "text"),
    [
        ("=====\nPorts\n=====\n\nOpening\n-------\n\nTimes\n~~~~~\n\nx", "# Ports\n\n## Opening\n\n### Times\n\nx"),
        ("Port\n====\n\nTwo\n====\n\nAB C\n--\n\n----\n\nx", "# Port\n\n# Two\n\nAB C --\n\nx"),
        ("It opens\nat six::\n\n    a  b\n      c\n\nThen", "It opens at six:\n\n```\na  b\n  c\n```\n\nThen"),
        ("So ::\n\n  x\n\n::\n\n  y", "So\n\n```\nx\n```\n\n```\ny\n```"),
        ("Mail::\n\n> one\n> two\n\nthree", "Mail:\n\n```\n> one\n> two\n```\n\nthree"),
        (">>> 1 + 1\n2\n\nTwo", "```\n>>> 1 + 1\n2\n```\n\nTwo"),
        ("* one\n\n  - two\n    more\n* three", "- one\n  - two more\n- three"),
        ("3. one\n4. two\n\n#. x", "3. one\n4. two\n5. x"),
        ("A. Turing wrote\nthis.\n\nQ. Why?", "A. Turing wrote this.\n\nQ. Why?"),
        ("dock : place\n  Where ships are.\nrope\n  A line.", "- dock (place): Where ships are.\n- rope: A line."),
        ("-a, --all=<n>  Take all.\n--quiet\n    No word.", "- `-a`, `--all=<n>`: Take all.\n- `--quiet`: No word."),
        (":Author: Ann\n:orphan:\n\nText", "- Author: Ann\n\nText"),
        ("| one\n| two", "one\ntwo"),
        ("Text\n\n  A saying.\n\n.. a comment\n   of two lines\n\n..\n\n  Not one.", "Text\n\nA saying.\n\nNot one."),
        ("See [1]_ and [Kay]_.\n\n.. [1] Note.\n.. [Kay] A book.", "See [1] and [Kay].\n\n[1] Note.\n\n[Kay] A book."),
        ("| a | b |\n| --- | --- |\n| 1 | 2 |", "| a | b |\n| --- | --- |\n| 1 | 2 |"),
        ("Run\n\n```sh\na  b\n\nc\n```\n\nnow", "Run\n\n```sh\na  b\n\nc\n```\n\nnow"),
    ],
)
def test_blocks_of_rst_are_read_as_markdown(document: str, text: str) -> None:
    assert _text(document) == text


@pytest.mark.parametrize(
    ("document", "text"),
    [
        ("``a * b`` and *c* and **d e**", "`a * b` and c and d e"),
        (":class:`~os.path.Path`, :py:func:`open`, :meth:`the call <a.b>`", "`Path`, `open`, the call"),
        (":func:`f <a.f>` :envvar:`HOME` :file:`a/{x}/b` :samp:`n {m}`", "`f` `HOME` `a/x/b` `n m`"),
        (":pep:`8` :rfc:`2822#section-1` :issue:`12` :abbr:`LIFO (last in)`", "PEP 8 RFC 2822 #12 LIFO (last in)"),
        (":ref:`a dock <docks>` :ref:`how-to-moor` :doc:`/guide/ropes` :term:`knot`", "a dock how to moor ropes knot"),
        (":kbd:`Ctrl+C` :guilabel:`&Open` :menuselection:`File --> Save`", "Ctrl+C Open File > Save"),
        ("`a link <https://example.org>`_ and `Other`_ and `<https://x.org>`__", "a link and Other and https://x.org"),
        ("A port_ has snake_case_ names_.\n\n.. _port: https://x.org", "A port has snake_case_ names_."),
        ("The |v| of |w|.\n\n.. |v| replace:: version *2*", "The version 2 of |w|."),
        (".. |c| unicode:: 0xA9 .. sign\n\n|c| 2020", "© 2020"),
        (r"thread\ s, \*args, ``\n``", r"threads, *args, `\n`"),
        ("`name` of `two words`", "`name` of two words"),
        (":math:`x^2` and x\\ :sup:`2`", "$x^2$ and x^2"),
        ("10\\ :superscript:`6` of H\\ :sub:`2`\\ O, the 1\\ :sup:`st`", "10^6 of H2O, the 1st"),
        ("a ` b `` c * d | e_ [1", "a ` b `` c * d | e_ [1"),
    ],
)
def test_inline_markup_of_rst_is_read_as_markdown(document: str, text: str) -> None:
    assert _text(document) == text


def test_a_label_of_the_same_document_is_the_title_below_it() -> None:
    labelled = ".. _opening:\n.. _other:\n\nWhen it *opens*\n===============\n\nClosing\n-------"
    document = f"See :ref:`opening` and closing_.\n\n{labelled}"
    assert _text(document).startswith("See When it opens and closing.")


@pytest.mark.parametrize(
    ("document", "text"),
    [
        (".. note:: Bring\n   a rope.\n\n   Two.", "Note\n\nBring a rope.\n\nTwo."),
        (".. warning::\n\n   Wet.\n\nAfter", "Warning\n\nWet.\n\nAfter"),
        (".. versionadded:: 3.8", "New in version 3.8."),
        (".. versionchanged:: 3.8 Takes\n   ropes.", "Changed in version 3.8: Takes ropes."),
        (".. deprecated:: 2.0\n\n   Use ``x``.\n\n   Two.", "Deprecated since version 2.0: Use `x`.\n\nTwo."),
        (".. deprecated-removed:: 3.1 3.3", "Deprecated since version 3.1, will be removed in version 3.3."),
        (
            ".. code-block:: python\n   :caption: Say *it*\n   :linenos:\n\n   if x:\n\n       y",
            "Say it\n\n```python\nif x:\n\n    y\n```",
        ),
        (".. sourcecode::\n\n   x", "```\nx\n```"),
        (".. toctree::\n   :maxdepth: 2\n\n   intro\n   more\n\nText", "Text"),
        (
            ".. function:: open(file, mode='r')\n              close()\n\n   Open it.",
            "- `open(file, mode='r')`, `close()`: Open it.",
        ),
        (".. option:: -f <file>, --file <file>\n\n   Read it.", "- `-f <file>`, `--file <file>`: Read it."),
        (".. py:class:: Dock(a, \\\n      b)\n\n   .. method:: f()\n\n      Moor.", "- `Dock(a, b)`\n  - `f()`: Moor."),
        (
            ".. function:: f(a, b)\n\n   Do.\n\n"
            "   :param int a: One.\n   :param b: Two.\n   :type b: str\n   :returns: x",
            "- `f(a, b)`: Do.\n\n  Parameters:\n\n  - `a` (int): One.\n  - `b` (str): Two.\n  - Returns: x",
        ),
        (".. confval:: n\n   :default: ``3``\n   :no-index:\n\n   How deep.", "- `n`: How deep.\n  - Default: `3`"),
        (".. image:: x.png\n   :alt: A ship\n\n.. figure:: y.png\n\n   It *sails*.", "A ship\n\nIt sails."),
        (".. tab:: On Linux\n\n   Run it.", "On Linux\n\nRun it."),
        (".. unknown-thing:: Some words\n   :opt: 1\n\n   More words.", "Some words\n\nMore words."),
        (".. only:: html\n\n   Shown.\n\n.. glossary::\n\n   dock\n      A place.", "Shown.\n\n- dock: A place."),
        (".. math:: a^2\n   :label: x", "$a^2$"),
        (".. setting:: DEBUG\n\nDEBUG\n=====", "# DEBUG"),
    ],
)
def test_directives_of_rst_are_shown_as_sphinx_shows_them(document: str, text: str) -> None:
    assert _text(document) == text


@pytest.mark.parametrize(
    ("document", "text"),
    [
        (
            "=====  =====\nDock   Ships\n=====  =====\none    1\n       more\ntwo    **2**\n=====  =====",
            "| Dock | Ships |\n| --- | --- |\n| one | 1 more |\n| two | 2 |",
        ),
        (
            "====  ====  ====\nName  Both\n----  ----------\nA     x     y\n"
            "====  ====  ====\n1     2     3\n====  ====  ====",
            "| Name A | Both x | Both y |\n| --- | --- | --- |\n| 1 | 2 | 3 |",
        ),
        (
            "=======  =====\n**Old**  **New**\n=======  =====\n``A``    ``B``\n``LONGNAME`` ``C``\n=======  =====",
            "| Old | New |\n| --- | --- |\n| `A` | `B` |\n| `LONGNAME` | `C` |",
        ),
        (
            "+------+-------+\n| Dock | Ships |\n+======+=======+\n"
            "| one  | - a   |\n|      | - b   |\n+------+-------+\n"
            "| both         |\n+------+-------+\n| x    | y     |\n"
            "|      +-------+\n|      | z     |\n+------+-------+",
            "| Dock | Ships |\n| --- | --- |\n| one | a; b |\n| both |  |\n| x | y |\n| x | z |",
        ),
        (
            ".. list-table:: Docks\n   :header-rows: 1\n\n"
            "   * - Name\n     - Ships\n   * - one\n     - 1\n\n       more",
            "Docks\n\n| Name | Ships |\n| --- | --- |\n| one | 1 more |",
        ),
        (
            '.. csv-table::\n   :header: "Name", "Ships, all"\n   :widths: 1, 2\n\n   one, 1\n   "two ""2""", ``2``',
            '| Name | Ships, all |\n| --- | --- |\n| one | 1 |\n| two "2" | `2` |',
        ),
        ("====  ====\nnever  ends", "```\n====  ====\nnever  ends\n```"),
        ("+---+\n| a b\n+--", "```\n+---+\n| a b\n+--\n```"),
    ],
)
def test_tables_of_rst_keep_their_cells(document: str, text: str) -> None:
    assert _text(document) == text


@pytest.mark.parametrize(
    "directive", ["include:: {}", "literalinclude:: {}", "raw:: html\n   :file: {}", "csv-table::\n   :file: {}"]
)
def test_no_directive_reads_another_file(tmp_path: Path, directive: str) -> None:
    other = tmp_path / "secret.inc"
    other.write_text("a secret, and more\n")
    document = f"Port\n====\n\nBefore.\n\n.. {directive.format(other)}\n\n.. raw:: html\n\n   <b>raw</b>\n\nAfter.\n"
    assert _text(document) == "# Port\n\nBefore.\n\nAfter."


@pytest.mark.parametrize(
    "document",
    [
        "".join(" " * depth + "- x\n\n" for depth in range(0, 400, 2)) + "word",
        "".join("   " * depth + ".. note::\n\n" for depth in range(300)) + "   " * 300 + "word",
        "".join(" " * depth + "a\n" for depth in range(300)) + "\nword",
        "".join(" " * depth + f":f{depth}: x\n" for depth in range(300)) + "\nword",
    ],
)
def test_deep_nesting_in_rst_is_text(document: str) -> None:
    assert "word" in _text(document)
    assert _text(document).count("x") == document.count("x")


@pytest.mark.parametrize(
    "document",
    [
        "``a " * 100_000 + "word",
        ":a:" * 100_000 + "word",
        "`a" + " " * 200_000 + "<word",
        "**a *b " * 50_000 + "word",
        ".. _a:\n" * 40_000 + "\nword",
        "== ==\na b\n\n" * 20_000 + "word",
        "+-+\n" + "|+|\n" * 50_000 + "\nword",
        ".. |a| replace:: " + "x" * 100 + "\n\n" + "|a| " * 10_000 + "word",
        "```a\n" * 20_000 + "\nword",
    ],
)
def test_long_rst_is_read_in_linear_time(document: str) -> None:
    assert "word" in read_in_time(_text, document, "A line of text.\n\n")


def test_rst_takes_its_title_from_its_first_heading_or_the_name(tmp_path: Path) -> None:
    corpus = read(tmp_path, some_page__rst="Just text.", other__rst=".. _a:\n\nThe ``x`` port\n==============\n\nText.")
    assert {d.title for d in corpus.documents} == {"some page", "The x port"}


@pytest.mark.parametrize(
    ("document", "text"),
    [
        ("A\n=\n\nB\n-\n\nC\n~\n\nD\n=\n\nE\n~\n\nx", "# A\n\n## B\n\n### C\n\n# D\n\nE\n\nx"),  # a level is left out
        ("* a\n\n  In an item\n  ----------\n\n  x", "- a\n\n  In an item\n\n  x"),
        (".. list-table::\n\n   * - a\n     - b\n   * - c", "- a\n  - b\n  - c"),
        (".. image:: x.png\n   :width: very\n   :alt: A ship\n\nx", "A ship\n\nx"),
        ("a ``b\n\nc *d\n\n`e", "a ``b\n\nc *d\n\n`e"),
    ],
)
def test_what_docutils_refuses_stays_text(document: str, text: str) -> None:
    assert _text(document) == text


def test_reading_leaves_docutils_as_it_was_and_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    before = directives.directive, dict(roles._roles)
    document = ".. default-role:: strong\n.. role:: own(emphasis)\n\n`a` :own:`b` |c| ``d\n\nE\n=\n+--+\n|"
    assert _text(document).startswith("`a` `b` |c| ``d")
    assert _text("`a`") == "`a`"
    assert (directives.directive, roles._roles) == before
    assert capfd.readouterr() == ("", "")


def test_substitutions_within_each_other_end() -> None:
    definitions = [f".. |{n}| replace:: |{n + 1}| |{n + 1}|" for n in range(40)]
    others = [".. |40| replace:: end", ".. |a| replace:: |b|", ".. |b| replace:: |a|"]
    text = _text("\n".join(["|0| |a|", "", *definitions, *others]))
    assert len(text) < 100


def test_a_file_that_is_only_a_comment_is_read_as_it_is() -> None:
    assert _text(".. only a comment") == ".. only a comment"
