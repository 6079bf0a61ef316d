"""Directives, roles and fields of reStructuredText that docutils does not know, as nodes of its document tree.

They are those of Sphinx, its extensions and projects. What no rule knows is shown with all of its text: the arguments
of a directive are a paragraph above its content. No directive opens a file, and none is registered in docutils.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from docutils import nodes, utils
from docutils.parsers.rst import Directive, DirectiveError, directives, states
from docutils.parsers.rst.directives.tables import CSVTable, ListTable
from docutils.statemachine import StringList

from recovery.data.corpus.html_parts import one_line
from recovery.data.corpus.text import words

# For the index, menus and builders, or for another file: none of them is shown, or none of it is in this file.
_UNSEEN = words(
    "toctree contents index highlight highlightlang currentmodule sectionauthor moduleauthor codeauthor meta raw "
    "include literalinclude sectnum section-numbering header footer default-role role tabularcolumns testsetup "
    "testcleanup title date target-notes default-domain inheritance-diagram bibliography todolist youtube video"
)
_CODE = words(
    "code code-block sourcecode testcode testoutput doctest parsed-literal ipython prompt productionlist graphviz "
    "digraph graph mermaid uml plantuml autosummary terminal console jupyter-execute jupyter-input jupyter-output"
)
_WRAPPERS = words(
    "only ifconfig container compound rst-class cssclass tabs tab-set grid hlist glossary highlights epigraph "
    "pull-quote"
)
_NOTES = {
    name: name.capitalize() for name in "note tip hint important warning caution danger attention error todo".split()
} | {"seealso": "See also"}
_VERSIONS = {
    **dict.fromkeys(("versionadded", "version-added"), "New in version"),
    **dict.fromkeys(("versionchanged", "version-changed"), "Changed in version"),
    **dict.fromkeys(("versionremoved", "version-removed"), "Removed in version"),
    **dict.fromkeys(("deprecated", "version-deprecated", "deprecated-removed"), "Deprecated since version"),
}
_OBJECTS = words(
    "function method class classmethod staticmethod attribute property data exception decorator decoratormethod option "
    "cmdoption program-option envvar confval setting object describe type macro member struct union enum enumerator "
    "var variable constant fixture hook command opcode pdbcommand coroutinefunction coroutinemethod awaitablefunction "
    "awaitablemethod abstractmethod autofunction automethod autoclass autoexception autodata autoattribute "
    "autoproperty autodecorator automodule interface trait event signal sig state control templatetag templatefilter "
    "fieldlookup filter test global directive concept template alias"
)
_MARKS = words("setting signal sig state control event templatetag templatefilter fieldlookup")  # only for links
_SHOWN_OPTIONS = {"type": "Type", "default": "Default", "value": "Value", "required": "Required", "choices": "Choices"}
_TABLES = {"list-table": ListTable, "csv-table": CSVTable}
_OF_TABLES = words("header header-rows delim quote keepspace escape")  # :file: and :url: are not read
_OPTION = re.compile(r":(?P<name>[A-Za-z][\w -]*):(?: +(?P<text>.*)|$)")
_TYPED = {  # fields about a parameter: the words above them
    "param": "Parameters", "parameter": "Parameters", "arg": "Parameters", "argument": "Parameters",
    "key": "Parameters", "keyword": "Parameters", "kwarg": "Parameters", "kwparam": "Parameters",
    "raises": "Raises", "raise": "Raises", "except": "Raises", "exception": "Raises", "throws": "Raises",
    "var": "Variables", "ivar": "Variables", "cvar": "Variables",
}  # fmt: skip
_ALONE = {"return": "Returns", "returns": "Returns", "rtype": "Return type", "yield": "Yields", "yields": "Yields"}
_METADATA = words("orphan tocdepth nocomments nosearch no-search")  # for Sphinx, at the top of a file
# Of roles that refer to a page or section without its title, the label, which mostly has the words of the title.
_PLACES = words("ref doc numref any eq cite std:ref std:doc")
_TEXTS = _PLACES | words(
    "abbr dfn term std:term guilabel menuselection emphasis strong title title-reference t index download kbd mimetype"
)
_RAISED = {"sup": nodes.superscript, "superscript": nodes.superscript}
_RAISED |= {"sub": nodes.subscript, "subscript": nodes.subscript}
_NAMED = {"pep": "PEP ", "rfc": "RFC ", "issue": "#", "ticket": "#", "bug": "#", "pull": "#", "pr": "#", "gh": "#"}
_NAMED |= {"cve": "CVE-", "cwe": "CWE-"}
_LONGEST_LABEL = 80  # characters of what may be the slug of a title
_LONGEST_PARAGRAPH = 20_000  # characters: docutils looks for the end of each markup in all of it
_LOCK = threading.Lock()


@contextlib.contextmanager
def directives_of_sphinx() -> Iterator[None]:
    """Let docutils read every directive as :class:`_Shown` in the body; it has no other place for a default."""

    def found(name: str, language: Any, document: Any) -> tuple[Any, list[Any]]:
        return former(name, language, document) if name.lower() in ("replace", "unicode") else (_Shown, [])

    with _LOCK:
        former = directives.directive
        directives.directive = found
        try:
            yield
        finally:
            directives.directive = former


class _Shown(Directive):
    """What a directive shows. ``head`` has the lines beside its name and directly below, before its options."""

    name: str
    optional_arguments = 1
    final_argument_whitespace = True
    has_content = True

    def run(self) -> list[Any]:
        domain, _, self.name = self.name.lower().rpartition(":")
        self._parse()
        if self.name in _UNSEEN or (self.name in _MARKS and not self.content):
            return []
        if self.name in _CODE:
            return self._code()
        if self.name in _VERSIONS:
            return self._version()
        if self.name in _NOTES:
            return [nodes.paragraph("", _NOTES[self.name]), nodes.container("", *self._all())]
        if self.name in _WRAPPERS:
            return [nodes.container("", *self._blocks(self.content))]
        if self.name in ("image", "figure"):
            return self._image()
        if self.name == "math":
            text = one_line(" ".join([*self.head, *self.content]))
            return [nodes.paragraph("", f"${text}$")]
        if self.name in _TABLES:
            return self._table(_TABLES[self.name])
        if self.name == "module":
            return [self._paragraph(self.options.get("synopsis", "")), *self._blocks(self.content)]
        if self.name in _OBJECTS or (domain and self.head):
            return self._object()
        return [nodes.container("", *self._all())]

    def _parse(self) -> None:
        """Divide what docutils takes for an argument; it would refuse an option that it does not know."""
        lines = [line.strip() for argument in self.arguments for line in argument.split("\n")]
        first = next((number for number, line in enumerate(lines) if _OPTION.match(line)), len(lines))
        self.head, self.options, latest = lines[:first], {}, ""
        for line in lines[first:]:
            if option := _OPTION.match(line):
                latest = option["name"].lower()
                self.options[latest] = option["text"] or ""
            else:
                self.options[latest] = f"{self.options[latest]}\n{line}".strip()

    def _blocks(self, lines: Sequence[str]) -> list[Any]:
        container = nodes.container()
        self.state.nested_parse(StringList(list(lines), source=""), self.content_offset, container, match_titles=True)
        return list(container.children)

    def _all(self) -> list[Any]:
        return self._blocks([*self.head, "", *self.content])

    def _paragraph(self, text: str) -> Any:
        return nodes.paragraph("", "", *self.state.inline_text(text, self.lineno)[0])

    def _code(self) -> list[Any]:
        parsed = self.name == "parsed-literal"
        language, *lines = ["", *self.head] if parsed else self.head or [""]
        text = "\n".join([*lines, *self.content])
        inner = self.state.inline_text(text, self.lineno)[0] if parsed else [nodes.Text(text)]
        caption = [self._paragraph(self.options["caption"])] if self.options.get("caption") else []
        return [*caption, nodes.literal_block("", "", *inner, language=language)] if text.strip() else caption

    def _version(self) -> list[Any]:
        """Return the version of a change, in the words of Sphinx, and what it says of it."""
        version, *words = " ".join(self.head).split() or [""]
        change = f"{_VERSIONS[self.name]} {version}".strip()
        if self.name == "deprecated-removed" and words:
            change, words = f"{change}, will be removed in version {words[0]}", words[1:]
        blocks = self._blocks(self.content)
        if words:
            return [self._paragraph(f"{change}: {' '.join(words)}"), *blocks]
        if blocks and isinstance(blocks[0], nodes.paragraph) and not self.content[0].startswith(".."):
            blocks[0].insert(0, nodes.Text(f"{change}: "))
            return blocks
        return [nodes.paragraph("", f"{change}."), *blocks]

    def _image(self) -> list[Any]:
        image = nodes.image(uri="".join(self.head), alt=one_line(self.options.get("alt", "")))
        if isinstance(self.state, states.SubstitutionDef):
            return [image]
        return [nodes.paragraph("", "", image), *self._blocks(self.content)]

    def _object(self) -> list[Any]:
        """Return a function, an option, ...: its signatures as terms, its description as their definition."""
        signatures = [line for line in "\n".join(self.head).replace("\\\n", " ").split("\n") if line]
        signatures = [utils.unescape(text.replace("\\", "\0")) for text in signatures]
        names = [
            name for text in signatures for name in (re.split(r",\s+(?=-)", text) if text.startswith("-") else [text])
        ]
        term = nodes.term()
        for name in names:
            term += [nodes.Text(", ")] * bool(term.children) + [nodes.literal("", name)]
        option_texts = [(word, self.options[name]) for name, word in _SHOWN_OPTIONS.items() if self.options.get(name)]
        items = [nodes.list_item("", self._paragraph(f"{word}: {text}")) for word, text in option_texts]
        below = [nodes.bullet_list("", *items)] if items else []
        item = nodes.definition_list_item("", term, nodes.definition("", *self._blocks(self.content), *below))
        return [nodes.definition_list("", item)]

    def _table(self, directive: Any) -> list[Any]:
        options = {}
        for name in _OF_TABLES & self.options.keys() & directive.option_spec.keys():
            with contextlib.suppress(ValueError, TypeError):
                options[name] = directive.option_spec[name](self.options[name])
        arguments = (self.content, self.lineno, self.content_offset, self.block_text, self.state, self.state_machine)
        with contextlib.suppress(DirectiveError):
            result = directive(self.name, [" ".join(self.head)] if self.head else [], options, *arguments).run()
            if any(isinstance(node, nodes.table) for node in result):
                return list(result)
        return self._all()


def inliner() -> Any:
    """Return docutils' parser of inline markup, for which a role is what Sphinx shows of it.

    It is no class of its own: docutils reads the patterns from the attributes of the very class.
    """
    parser = states.Inliner()
    parse = parser.parse

    def parse_short(text: str, lineno: int, memo: Any, parent: Any) -> tuple[list[Any], list[Any]]:
        if len(text) > _LONGEST_PARAGRAPH:
            return [nodes.Text(utils.unescape(text, restore_backslashes=True))], []
        return parse(text, lineno, memo, parent)

    parser.parse, parser.interpreted = parse_short, _interpreted_role
    return parser


def _interpreted_role(_rawsource: str, text: str, role: str, _lineno: int) -> tuple[list[Any], list[Any]]:
    """Return what a role shows; without a role, what is code if it looks like it."""
    if role.lower() == "math":
        return [nodes.Text(f"${utils.unescape(text, restore_backslashes=True)}$")], []
    return [_role_node(utils.unescape(text), role.lower())], []


def _role_node(content: str, role: str) -> Any:
    last = role.rpartition(":")[2]
    before, bracket, _ = content.rpartition("<") if content.endswith(">") else ("", "", "")
    if text := before.strip():  # "text <target>"
        return nodes.Text(text) if role in _TEXTS or re.search(r"\s", text) else nodes.literal("", _short(text))
    if not role:
        return nodes.Text(content) if re.search(r"\s", content) else nodes.literal("", content)
    if role in _PLACES:
        return _label_node(content[1:-1] if bracket else content, role)
    if last in _NAMED:
        sign = _NAMED[last]
        has_sign = content.lower().startswith(sign.lower())
        return nodes.Text(content if has_sign else sign + content.partition("#")[0])
    if role in _RAISED:
        return _RAISED[role]("", content)
    if last == "menuselection":
        return nodes.Text(re.sub(r"\s*-->\s*", " > ", content).replace("&", ""))
    if role in _TEXTS:
        return nodes.Text(content.replace("&", "") if last == "guilabel" else content.removeprefix("!"))
    return nodes.literal("", re.sub(r"[{}]", "", content) if last in ("file", "samp") else _short(content))


def _short(name: str) -> str:
    """Return a name as its role shows it: "~a.b" is b, "!a" is a."""
    name = name.removeprefix("!")
    if not name.startswith("~"):
        return name.removeprefix(".")
    path, bracket, rest = name[1:].partition("(")
    return path.rpartition(".")[2] + bracket + rest


def _label_node(label: str, role: str) -> Any:
    """Return the words of a label, with its name, by which the title of its section is found."""
    label = label.removeprefix("!").removeprefix("~")
    name = nodes.fully_normalize_name(label)
    if role.endswith("doc"):
        label = label.rstrip("/").rpartition("/")[2]
    if len(label) <= _LONGEST_LABEL and not re.search(r"\s", label):
        label = one_line(re.sub(r"[-_/:]+", " ", label)) or label
    return nodes.inline("", label, place=name)


def parameter_fields(fields: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield (group, name, body) of the fields of a list; the group is "" unless they are about parameters."""
    entries = [(name.astext(), name, body) for name, body in (field.children for field in fields.children)]
    types = {
        text.partition(" ")[2]: body.children[0].children
        for text, _, body in entries
        if text.startswith(("type ", "vartype ")) and body.children
    }
    for text, name, body in entries:
        kind, _, parameter = text.partition(" ")
        if (kind in ("type", "vartype") and parameter) or text in _METADATA or not body.children:
            continue
        if parameter and kind in _TYPED:
            yield _TYPED[kind], _parameter(parameter, types), body
        else:
            yield "", nodes.field_name("", _ALONE[text]) if text in _ALONE else name, body


def _parameter(text: str, types: dict[str, Any]) -> Any:
    """Return the name of a parameter, with its type, which stands before it or in a field of its own."""
    before, _, name = text.rpartition(" ")
    type_nodes = types.get(name) or ([nodes.Text(before)] if before else [])
    suffix = [nodes.Text(" ("), *type_nodes, nodes.Text(")")] if type_nodes else []
    return nodes.field_name("", "", nodes.literal("", name.lstrip("*")), *suffix)
