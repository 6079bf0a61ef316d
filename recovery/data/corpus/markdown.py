"""Markdown by markdown-it: CommonMark with tables and strikethrough, lenient towards common deviations.

- A fence that is never closed ends at the next blank line, since the rest of such a page is mostly text. A fence may
  have any indentation, its closing one up to three spaces more than the opening one.
- A bullet in the middle of a sentence is text ("a sum of\\n+ 500 dollars"); "•" begins items; ">>>" is a prompt.
- A table's header may have another length, and a bar in code divides no cells.
- A line of tags ends a paragraph, and does not begin a block of HTML.
- The underlines of headings are those of reStructuredText too.
- Formulas, globs ("*.ps1") and names ("__init__") keep their signs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.ruler import RuleOptionsType
from markdown_it.rules_block import StateBlock, blockquote, list_block, reference
from markdown_it.rules_inline import StateInline
from markdown_it.token import Token

from recovery.data.corpus.html_parts import one_line

References = Mapping[str, Mapping[str, Any]]
_Rule = Callable[[StateBlock, int, int, bool], bool]
_FENCE = re.compile(r"`{3,}(?=[^`]*$)|~{3,}")  # "```npm i``` installs it" is text
_MOST_UNCLOSED = 50  # kinds of unclosed fences: each costs a search to the end of the text
_MOST_DEEPER = 3  # spaces by which a closing fence may be indented more than the opening one
_DEEPEST = 60  # nested blocks; the signs of deeper ones are text
# One column alone needs two dashes: "|-" divides the rows of a MediaWiki table. Each part begins with another
# character, so that long runs take linear time.
_TABLE_RULE = re.compile(r"^\s*(?:\|\s*)?:?(?:-{2,}:?\s*|-:?\s*(?=\|\s*[:-]))(?:\|\s*:?-+:?\s*)*(?:\|\s*)?$")
_BULLET = re.compile(r"^([ \t]*)•(?=[ \t])", re.MULTILINE)
_ITEM = re.compile(r"\s*(?:[-*+]|\d+[.)])(?:\s+|$)")
_ENDED = (":", ".", ";", "!", "?", "*", ")")
_OVERLINE = re.compile(r"={3,}[ \t]*\n")
_MAYBE_TITLE = re.compile(r"^ {0,3}(?:#[ \t]|=+[ \t]*$)", re.MULTILINE)
_SENTENCE = 6  # words of a text with a full stop that is no heading
_UNDERLINE = re.compile(r"([~^\"'*#+])\1{2,}[ \t]*$")
_RAW = re.compile(r"(?:pre|script|style|textarea|table|svg)\b", re.IGNORECASE)
_HTML = (  # (opening, closing) of hidden content
    (re.compile(rf"<{_RAW.pattern}", re.IGNORECASE), re.compile(rf"</{_RAW.pattern}[^<>]*>", re.IGNORECASE)),
    (re.compile("<!--"), re.compile(r"-->[ \t]*$", re.MULTILINE)),
    (re.compile(r"\{/\*"), re.compile(r"\*/\}[ \t]*$", re.MULTILINE)),
    (re.compile(r"<\?"), re.compile(r"\?>")),
)
_TAGS = re.compile(r"(?:</?[a-zA-Z][^<>]*>[ \t]*)+$")
_MARKED = re.compile(r"[<\[\]`*_&\\~]|\{/")  # every pattern of markup has one of these
_LITERAL = re.compile(
    r"(?P<formula>\$\$?(?=\S)[^$\n]+(?<=\S)\$\$?(?!\d))|(?P<comment>\{/\*.{0,1000}?\*/\})|\*(?=\.\w+(?![\w*]))",
    re.DOTALL,
)
LONGEST_PARAGRAPH = 5_000  # characters
_BREAK = re.compile(r"<br\b", re.IGNORECASE)
_NAME = re.compile(r"[a-z\d_]+")
_FOOTNOTE = re.compile(r"^\[\^[\w-]+\]:\s*|\[\^[\w-]+\]")
_ANY_NOTE = re.compile(rf"{_FOOTNOTE.pattern}|\[(?:\d+|#)\]_?")


@dataclass(frozen=True)
class Parsed:
    """The lines of a text, its tokens (of blocks; their text is not parsed), and its definitions of links by label."""

    lines: list[str]
    tokens: list[Token]
    references: References

    def level(self, number: int) -> int:
        """Return the level of the heading that a token opens; 0 if it opens none, or one within a quote or an item.

        Text above a rule ("---") is a heading only if it is one line and no sentence.
        """
        token = self.tokens[number]
        if token.type != "heading_open" or token.level:
            return 0
        text = self.tokens[number + 1].content
        sentence = text.endswith(".") and len(text.split()) >= _SENTENCE
        return 0 if token.markup == "-" and ("\n" in text or sentence) else int(token.tag[1])


@lru_cache(maxsize=4)
def parse(text: str, *, mdx: bool = False) -> Parsed:
    """Return the blocks of a text, by the rules above; of MDX, where indentation makes no code, only fenced code.

    A table is one token "table", whose meta has the lines of its rows, the header first.
    """
    tokens: list[Token] = []
    env: dict = {"unclosed": set()}
    parser = _MDX_PARSER if mdx else _PARSER
    parser.block.parse(_BULLET.sub(r"\1-", text), parser, env, tokens)
    for token in tokens:
        if token.type == "inline" and (overline := _OVERLINE.match(token.content)):
            token.content = token.content[overline.end() :]
    return Parsed(text.split("\n"), tokens, env.get("references", {}))


def inline(raw: str, references: References | None = None, *, plain: bool = False) -> str:
    """Return text on one line without links, emphasis, tags and footnote marks; code keeps one pair of backticks.

    With ``plain`` it keeps none, and the marks of numbered notes go too ("[1]"). ``references`` are the definitions of
    links in the document. The markup of far too long paragraphs stays, since brackets take quadratic time.
    """
    if len(raw) <= LONGEST_PARAGRAPH and _MARKED.search(raw):
        tokens: list[Token] = []
        _PARSER.inline.parse(raw, _PARSER, {"references": references or {}}, tokens)
        raw = _plain_text(tokens, plain)
    raw = re.sub(r"(?<=\w)-\n\s*(?=\w)", "-", raw)  # a compound split at a line break
    return one_line(raw)


def _plain_text(tokens: Sequence[Token], plain: bool) -> str:
    notes, code = (_ANY_NOTE, "") if plain else (_FOOTNOTE, "`")
    parts = []
    for number, token in enumerate(tokens):
        if token.type in ("text", "text_special"):
            parts.append(notes.sub("", token.content) if token.type == "text" else token.content)
        elif token.type == "code_inline":
            parts.append(f"{code}{token.content.strip()}{code}")
        elif token.type in ("softbreak", "hardbreak"):
            parts.append("\n")
        elif token.type == "html_inline":
            parts.append(" " if _BREAK.match(token.content) else "")
        elif token.type == "image":
            parts.append(_plain_text(token.children or (), plain))
        elif token.markup == "__":
            begin = number if token.nesting == 1 else number - 2
            tokens_around = tokens[begin : begin + 3]
            kinds = [near.type for near in tokens_around]
            if kinds == ["strong_open", "text", "strong_close"] and _NAME.fullmatch(tokens_around[1].content):
                parts.append("__")  # a name: __init__
    return "".join(parts)


def title_of(text: str) -> str:
    """Return the first heading of level 1 without markup, or ""."""
    if not _MAYBE_TITLE.search(text):
        return ""
    parsed = parse(text.split("\n", 1)[0] if text.startswith("# ") else text)
    at = next((number for number in range(len(parsed.tokens)) if parsed.level(number) == 1), None)
    return "" if at is None else inline(parsed.tokens[at + 1].content, parsed.references, plain=True)


def code_lines(lines: Sequence[str], *, mdx: bool = False) -> list[bool]:
    """Return for each line whether it belongs to fenced code, fences included."""
    text = "\n".join(lines)
    tokens = parse(text, mdx=mdx).tokens if "```" in text or "~~~" in text else []
    is_code = [False] * len(lines)
    for token in tokens:
        if token.type == "fence" and token.map:
            start, end = token.map
            is_code[start:end] = [True] * (end - start)
    return is_code


def fenced(blocks: Sequence[str]) -> list[bool]:
    """Return for each of the ``paragraphs`` of a text whether it is inside fenced code or has a fence."""
    lines = [line for block in blocks for line in [*block.split("\n"), ""]]
    code = iter(code_lines(lines))
    return [any([next(code) for _ in [*block.split("\n"), ""]][:-1]) for block in blocks]


# --- the rules ------------------------------------------------------------------------------------------------


def _line(state: StateBlock, number: int) -> str:
    """Return a line without the signs of the quotes and items that hold it."""
    return state.src[state.bMarks[number] + state.tShift[number] : state.eMarks[number]]


def _fence(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    opening = _FENCE.match(_line(state, start))
    if not opening or (start and _underlines(_line(state, start - 1), _line(state, start))):
        return False
    if silent:
        return True
    token = state.push("fence", "code", 0)
    token.markup = opening[0]
    state.line = _end_of_code(state, start, end, opening[0])
    token.map = [start, state.line]
    return True


def _end_of_code(state: StateBlock, start: int, end: int, mark: str) -> int:
    """Return the number of the line below the code that is opened in line ``start``."""
    deepest = state.sCount[start] + _MOST_DEEPER
    quoted = state.bMarks[start] != (state.eMarks[start - 1] + 1 if start else 0)
    unclosed = state.env["unclosed"]  # character, length and depth: no fence like one is searched for
    known_unclosed = any(c == mark[0] and n <= len(mark) and depth >= deepest for c, n, depth in unclosed)
    searched = quoted or not (known_unclosed or len(unclosed) == _MOST_UNCLOSED)
    for number in range(start + 1, end) if searched else ():
        line = _line(state, number)
        if line.startswith(mark) and not line.strip(f"{mark[0]} \t") and state.sCount[number] <= deepest:
            return number + 1
    if quoted:
        return end  # of the quote
    if searched:
        unclosed.add((mark[0], len(mark), deepest))
    return next((number for number in range(start, end) if state.isEmpty(number)), end)


def _underlines(title: str, line: str) -> bool:
    """Return whether a line is the underline of a title: as in docutils, a shorter one has at least four characters."""
    match = _UNDERLINE.match(line)
    length = len(line.rstrip())
    return bool(match and title.strip()) and length >= min(4, len(title.strip())) and 2 * length >= len(title.strip())


def _underlined(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    if silent or start + 1 >= end or state.sCount[start + 1] - state.blkIndent > 3:
        return False
    title = _line(state, start)
    if not re.search(r"\w", title) or not _underlines(title, _line(state, start + 1)):
        return False
    token = state.push("heading_open", "h2", 1)
    token.map = [start, start + 2]
    token = state.push("inline", "", 0)
    token.content, token.map, token.children = title.strip(), [start, start + 1], []
    state.push("heading_close", "h2", -1)
    state.line = start + 2
    return True


def _list(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    if state.level >= _DEEPEST or not list_block(state, start, end, silent):
        return False
    if not silent or state.parentType != "paragraph" or state.blkIndent:
        return True
    # An item directly below text begins a list only if the text has ended or another item follows.
    if _line(state, start - 1).rstrip().endswith(_ENDED):
        return True
    for number in range(start + 1, end):
        if state.isEmpty(number):
            return False
        if _ITEM.match(_line(state, number)):
            return True
    return False


def _quote(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    if state.level >= _DEEPEST or _line(state, start).startswith(">>>"):
        return False
    return bool(blockquote(state, start, end, silent))


def _definition(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    # "[^1]: text" is a footnote.
    return not _line(state, start).startswith("[^") and bool(reference(state, start, end, silent))


def _table(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    if start + 1 >= end or state.sCount[start + 1] < state.blkIndent or state.is_code_block(start):
        return False
    rule = _line(state, start + 1)
    if "|" not in rule or not _TABLE_RULE.match(rule) or "|" not in _line(state, start):
        return False
    if silent:
        return True
    last = start + 2
    while last < end and "|" in _line(state, last) and state.sCount[last] >= state.blkIndent:
        last += 1
    token = state.push("table", "table", 0)
    token.map = [start, last]
    token.meta = {"lines": [_line(state, start), *(_line(state, number) for number in range(start + 2, last))]}
    state.line = last
    return True


def _html_block(state: StateBlock, start: int, end: int, silent: bool) -> bool:
    line = _line(state, start)
    if not line.startswith(("<", "{")) or state.is_code_block(start):
        return False
    last = _end_of_html(state, start, end) or (start if _TAGS.match(line) else None)
    if last is None:
        return False
    if not silent:
        token = state.push("html_block", "", 0)
        token.map = [start, last + 1]
        state.line = last + 1
    return True


def _end_of_html(state: StateBlock, start: int, end: int) -> int | None:
    """Return the last line of a comment or of an element with raw content; None if neither begins or ends."""
    unclosed = state.env["unclosed"]
    for kind, (opening, closing) in enumerate(_HTML):
        opened = opening.match(state.src, state.bMarks[start] + state.tShift[start])
        if opened and (kind, end) not in unclosed:
            at = opened.end()
            for number in range(start, end):
                if closing.search(state.src, at, state.eMarks[number]):
                    return number
                at = state.eMarks[number]
            unclosed.add((kind, end))
    return None


def _literal(state: StateInline, silent: bool) -> bool:
    match = _LITERAL.match(state.src, state.pos)
    if match is None:
        return False
    if not silent and not match["comment"]:
        state.push("text_special", "", 0).content = match[0]
    state.pos = match.end()
    return True


def _new_parser() -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"maxNesting": _DEEPEST + 10}).enable("strikethrough")
    ruler = parser.block.ruler
    everywhere: RuleOptionsType = {"alt": ["paragraph", "reference", "blockquote", "list"]}
    in_text: RuleOptionsType = {"alt": ["paragraph", "reference", "blockquote"]}
    rules: tuple[tuple[str, _Rule, RuleOptionsType], ...] = (
        ("blockquote", _quote, everywhere),
        ("list", _list, in_text),
        ("reference", _definition, {}),
        ("html_block", _html_block, in_text),
        ("table", _table, {"alt": ["paragraph", "reference"]}),
    )
    for name, rule, options in rules:
        ruler.at(name, rule, options)
    ruler.enable("table")
    ruler.disable("fence")
    ruler.before("code", "any_fence", _fence, everywhere)
    ruler.before("lheading", "underlined", _underlined)
    parser.inline.ruler.before("escape", "literal", _literal)
    return parser


_PARSER, _MDX_PARSER = _new_parser(), _new_parser()
_MDX_PARSER.disable(["code", "table", "hr", "reference", "heading", "lheading"])
