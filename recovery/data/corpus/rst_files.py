"""Text of reStructuredText as Markdown: docutils parses it, with what Sphinx adds.

Its document tree is written as HTML, which :mod:`html_files` converts to Markdown. No transform of docutils runs, since
transforms replace unresolved references by messages; here they stay text. Directives and roles that docutils does not
know, of Sphinx and of projects, are in :mod:`rst_markup`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from html import escape
from typing import Any

from docutils import frontend, nodes, utils
from docutils.parsers.rst import Parser

from recovery.data.corpus.html_files import read_html
from recovery.data.corpus.html_parts import code, listing
from recovery.data.corpus.rst_markup import directives_of_sphinx, inliner, parameter_fields

_FENCED = re.compile(r"(?:\A|(?<=\n\n))```(?P<language>[\w+#.-]*)\n(?P<code>(?:.*\n){0,500}?)```$", re.MULTILINE)
_RULE = re.compile(r"\s*([!-/:-@\[-`{-~])\1*\s*")
_SIMPLE = re.compile(r"=+(?: +=+)+ *$")  # the border of a simple table
_TAGS = {
    nodes.paragraph: "p", nodes.bullet_list: "ul", nodes.list_item: "li", nodes.definition_list: "dl",
    nodes.definition: "dd", nodes.description: "dd", nodes.option_list: "dl", nodes.block_quote: "blockquote",
    nodes.container: "div", nodes.table: "table", nodes.row: "tr", nodes.attribution: "p",
}  # fmt: skip
_MOST_MENDED = 50  # tables: docutils needs 7 ms for each text that it parses
_LONGEST_SUBSTITUTION = 120  # characters: more would grow with each use
_SETTINGS = {
    "file_insertion_enabled": False,
    "raw_enabled": False,
    "report_level": 5,  # messages are not printed,
    "halt_level": 5,  # and none ends the reading
    "warning_stream": False,
    "line_length_limit": sys.maxsize,  # the reader has a time limit
    "syntax_highlight": "none",
}


def read_rst(text: str) -> tuple[str, str]:
    """Return the title of a document, "" if it has none, and its text as Markdown; both "" if docutils fails."""
    try:
        document = _parsed(_FENCED.sub(_code_block, text))
        page = _Page(document).html(document)
    except Exception:  # nested too deeply, or a fault of docutils: the reader takes the text as it is
        return "", ""
    return read_html(f"<body>{page}</body>")


def _parsed(text: str) -> Any:
    settings = frontend.get_default_settings(Parser)  # without files of settings
    vars(settings).update(_SETTINGS)
    document = utils.new_document("", settings)
    with directives_of_sphinx():
        Parser(inliner=inliner()).parse(text, document)
    return document


def _code_block(fenced: re.Match[str]) -> str:
    """Return Markdown's fenced code, which some authors use here, as a directive."""
    inner = re.sub(r"^(?=.)", "   ", fenced["code"], flags=re.MULTILINE)
    return f"\n.. code-block:: {fenced['language']}\n\n{inner}\n"


def _labelled(document: Any) -> Iterator[tuple[str, Any]]:
    """Yield each label that stands directly above a heading, and the heading."""
    labels: list[str] = []
    for node in document.findall():
        if isinstance(node, nodes.target):
            labels += node["names"] + node["dupnames"]
        elif isinstance(node, nodes.title):
            yield from ((label, node) for label in labels)
        if not isinstance(node, nodes.target | nodes.section | nodes.comment):
            labels.clear()


def _widened_table(lines: Sequence[str]) -> str:
    """Return a simple table with wider columns: docutils refuses a cell that is too long for its column."""
    edges = [match.start() for match in re.finditer("=+", lines[0])]
    rows = [None if _SIMPLE.match(line) else _cells(line, edges) for line in lines]
    widths = [max(1, *map(len, column)) for column in zip(*filter(None, rows), ["="] * len(edges), strict=True)]
    border = ["=" * width for width in widths]
    return "\n".join("  ".join(map(str.ljust, row or border, widths)).rstrip() for row in rows)


def _cells(line: str, edges: Sequence[int]) -> list[str]:
    """Return the parts of a line by column; a word across a margin moves the next column."""
    cuts = [0]
    for edge in edges[1:]:
        at = max(edge, cuts[-1])
        word = re.compile(r"\S*\s*").match(line, at) if line[at - 1 : at].strip() else None
        cuts.append(word.end() if word else at)
    return [line[start:end].rstrip() for start, end in zip(cuts, [*cuts[1:], len(line)], strict=True)]


class _Page:
    """The HTML of a document tree, by the kinds of its nodes."""

    def __init__(self, document: Any, mends: int = _MOST_MENDED) -> None:
        self._document, self._mends = document, mends
        self._titles = dict(_labelled(document))
        self._substitutions: dict[str, str] = {}
        self._level = 0

    def html(self, node: Any) -> str:
        if isinstance(node, nodes.Text):
            return escape(node.astext(), quote=False)
        kind = type(node)
        if kind in _WRITERS:
            return _WRITERS[kind](self, node)
        tag = _TAGS.get(kind)
        return f"<{tag}>{self.inner(node)}</{tag}>\n" if tag else self.inner(node)

    def inner(self, node: Any) -> str:
        """Return the children of a node as HTML."""
        return "".join(map(self.html, node.children))

    def section(self, node: Any) -> str:
        self._level += 1
        inner = self.inner(node)
        self._level -= 1
        return inner

    def title(self, node: Any) -> str:
        if isinstance(node.parent, nodes.table):
            return f"<caption>{self.inner(node)}</caption>\n"
        level = min(6, max(1, self._level))
        return f"<h{level}>{self.inner(node)}</h{level}>\n"

    def preformatted(self, node: Any) -> str:
        return listing(node.astext(), node.get("language", ""))

    def message(self, node: Any) -> str:
        """Return the text that docutils could not parse: a heading in a wrong place, a table with a wrong border."""
        source = next((child for child in node.children if isinstance(child, nodes.literal_block)), None)
        if node["level"] < 3 or source is None or source.astext().startswith(".. |"):
            return ""
        lines = source.astext().split("\n")
        if "column margin" in node.children[0].astext() and self._mends:
            self._mends -= 1
            table = _parsed(_widened_table(lines))
            return _Page(table, mends=0).html(table)
        text_lines = [line for line in lines if not _RULE.fullmatch(line)]
        return f"<p>{escape(text_lines[0], quote=False)}</p>\n" if len(text_lines) == 1 else self.preformatted(source)

    def numbered(self, node: Any) -> str:
        start = node.get("start", 1)
        letter = node["enumtype"].endswith("alpha")
        if letter and start > 1:  # "Q. Why?" begins a paragraph
            first = ord("a" if node["enumtype"] == "loweralpha" else "A") + start - 1
            for number, item in enumerate(node.children):
                _prepend(item, f"{node['prefix']}{chr(first + number)}{node['suffix']} ")
            return self.inner(node).replace("<li>", "<div>").replace("</li>", "</div>")
        return f'<ol start="{start}">{self.inner(node)}</ol>\n'

    def term(self, node: Any) -> str:
        kinds = [f" ({self.inner(kind)})" for kind in node.parent.children if isinstance(kind, nodes.classifier)]
        return f"<dt>{self.inner(node)}{''.join(kinds)}</dt>\n"

    def options(self, node: Any) -> str:
        return f"<dt>{', '.join(code(option.astext()) for option in node.children)}</dt>\n"

    def fields(self, node: Any) -> str:
        """Return a list of fields; fields about parameters are separate lists, as in Sphinx."""
        parts, above = [], None
        for group, name, body in parameter_fields(node):
            if group != above:
                parts += ["</dl>\n" if above is not None else "", f"<p>{group}:</p>\n" if group else "", "<dl>"]
                above = group
            parts.append(f"<dt>{self.inner(name)}</dt><dd>{self.inner(body)}</dd>\n")
        return "".join([*parts, "</dl>\n" if parts else ""])

    def lines(self, node: Any) -> str:
        """Return a line block. If it is a Markdown table, whose lines end with a bar, its lines begin with one too."""
        texts = [self.inner(line) for line in node.findall(nodes.line)]
        is_table = all(line.endswith("|") for line in texts)
        return f"<p>{'<br>'.join(f'| {line}' if is_table else line for line in texts)}</p>\n"

    def note(self, node: Any) -> str:
        label = [child for child in node.children if isinstance(child, nodes.label)]
        mark = label[0].astext() if label else _footnote_mark(node)
        node.children = [child for child in node.children if child not in label]
        _prepend(node, f"[{mark}] ")
        return self.inner(node)

    def note_reference(self, node: Any) -> str:
        return f"[{escape(node.astext() or _footnote_mark(node), quote=False)}]"

    def reference(self, node: Any) -> str:
        name, source = node.get("refname"), utils.unescape(node.rawsource, restore_backslashes=True)
        known = name is None or name in self._document.nameids or source.startswith(("`", "|"))
        return self.inner(node) if known else escape(source, quote=False)

    def place(self, node: Any) -> str:
        """Return the title of the section that a role refers to; the role's text if it is in another document."""
        title = self._titles.get(node.get("place"))
        return self.inner(node) if title is None or len(title.astext()) > _LONGEST_SUBSTITUTION else self.inner(title)

    def substitution(self, node: Any) -> str:
        document = self._document
        name = nodes.whitespace_normalize_name(node.astext())
        other_case = document.substitution_names.get(nodes.fully_normalize_name(name))
        definition = document.substitution_defs.get(name, document.substitution_defs.get(other_case))
        if name not in self._substitutions:
            self._substitutions[name] = escape(f"|{node.astext()}|", quote=False)  # also in itself
            text = "" if definition is None else self.inner(definition)
            if definition is not None and len(text) <= _LONGEST_SUBSTITUTION:
                self._substitutions[name] = text
        return self._substitutions[name]

    def image(self, node: Any) -> str:
        return f'<img src="{escape(node["uri"])}" alt="{escape(node.get("alt", ""))}">'

    def entry(self, node: Any) -> str:
        tag = "th" if isinstance(node.parent.parent, nodes.thead) else "td"
        spans = f' colspan="{node.get("morecols", 0) + 1}" rowspan="{node.get("morerows", 0) + 1}"'
        return f"<{tag}{spans}>{self.inner(node)}</{tag}>"


def _prepend(item: Any, text: str) -> None:
    """Put text before that of an item."""
    if not (item.children and isinstance(item.children[0], nodes.paragraph)):
        item.insert(0, nodes.paragraph())
    item.children[0].insert(0, nodes.Text(text))


def _footnote_mark(node: Any) -> str:
    """Return the text in the brackets of a footnote that docutils would number."""
    names = [*node.get("names", ()), *node.get("dupnames", ()), node.get("refname")]
    return next(filter(None, names), "*" if node.get("auto") == "*" else "#")


_WRITERS: dict[Any, Callable[[_Page, Any], str]] = {
    nodes.section: _Page.section,
    nodes.title: _Page.title,
    nodes.literal_block: _Page.preformatted,
    nodes.doctest_block: _Page.preformatted,
    nodes.system_message: _Page.message,
    nodes.enumerated_list: _Page.numbered,
    nodes.term: _Page.term,
    nodes.option_group: _Page.options,
    nodes.field_list: _Page.fields,
    nodes.line_block: _Page.lines,
    nodes.footnote: _Page.note,
    nodes.citation: _Page.note,
    nodes.footnote_reference: _Page.note_reference,
    nodes.citation_reference: _Page.note_reference,
    nodes.reference: _Page.reference,
    nodes.inline: _Page.place,
    nodes.substitution_reference: _Page.substitution,
    nodes.image: _Page.image,
    nodes.entry: _Page.entry,
    nodes.literal: lambda _, node: code(node.astext()),
    nodes.superscript: lambda page, node: f"<sup>{page.inner(node)}</sup>",
    nodes.subscript: lambda page, node: f"<sub>{page.inner(node)}</sub>",
    nodes.classifier: lambda *_: "",
    nodes.comment: lambda *_: "",
    nodes.substitution_definition: lambda *_: "",
    nodes.transition: lambda *_: "",
}
