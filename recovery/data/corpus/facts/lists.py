"""Facts from lists of options, parameters or tools ("`name` (default `x`): what it does") and their nested items."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from recovery.data.corpus.facts import templates
from recovery.data.corpus.facts.blocks import ListItem
from recovery.data.corpus.facts.entries import name_of
from recovery.data.corpus.facts.fact import Fact
from recovery.data.corpus.facts.grammar import noun_of
from recovery.data.corpus.facts.tables import described
from recovery.data.corpus.facts.templates import Source, bare, code_like, same

# An option of a manual, with its value, which Markdown may take for a tag: "-s, --strategy=<strategy>".
_FLAG = r"(?:-\w, ?)?(?P<flag>--?[A-Za-z][\w-]*)(?:[ =]?(?:<[^<>]*>|\[[^\[\]]*\]|\([^()]*\)|[A-Z][A-Z_-]*))*=?"
_ENTRY = re.compile(
    rf"(?:`(?P<name>[^`]+)`|{_FLAG})"
    r"(?P<notes>(?:\s*\([^()]*(?:\([^()]*\)[^()]*)*\))*)\s*(?:[:–—]|-(?=\s))\s*(?P<rest>.*)"
)
_MENTIONED = re.compile(r"(?:The |An? )?`(?P<name>[^`]+)` (?P<noun>[a-z]+)\b")
_TYPED = re.compile(r"`(?P<type>[^`]+)`\s*[-–—:]\s*(?P<rest>.*)")
_IN_NOTES = re.compile(r"\(default(?:s to| is)?:?\s+([^()]+)\)", re.IGNORECASE)
# Of the option itself: behind another subject ("the starting point defaults to") it is the default of that.
_STATED = re.compile(
    r"(?:^|[.;,(:]\s*|(?:^|[.;]\s+)(?:It|This|This [a-z]+|The)\s|\b(?:and|which)\s)"
    r"(?:[Dd]efaults to|(?:the )?[Dd]efault(?: value)?(?: is|:))\s+"
    r"(`[^`]+`|[\w$-][\w$./ -]*?)(?=[.,;)]?\s*$|[.,;)]\s|\s\()"
)
# What holds only sometimes is no default, except where the option is left out.
_SOMETIMES = re.compile(
    r"\b(?:if|when|where|unless|otherwise|case)\b(?! (?:it is )?(?:omitted|unset|not (?:given|set|specified)))[^.]*$",
    re.I,
)
# A word alone may be what is the default: "(default bundler)".
_AT_THE_END = re.compile(r"\(default (`[^`]+`|[-$]?\d[\w$./-]*)\)\.?$")
_ONLY_DEFAULT = re.compile(r"\(default\)", re.IGNORECASE)
_TYPE_WORDS = re.compile(r"[A-Z][\w<>{}\[\], |]*|(?:string|boolean|number|object|function|any)\b.*", re.DOTALL)


def from_item(item: ListItem, source: Source) -> Iterator[Fact | None]:
    """Yield the facts of one list item."""
    noun = noun_of(item.intro.rstrip(":").split(". ")[-1], plural=True) or noun_of(item.heading, plural=True)
    match = _ENTRY.match(item.text)
    if match is None:
        mentioned = _MENTIONED.match(item.text)
        if mentioned and noun_of(mentioned["noun"]):
            yield from _below(item, templates.code(mentioned["name"]), noun_of(mentioned["noun"]), source)
        return
    name, rest = templates.code((match["name"] or match["flag"]).strip("'\"")), match["rest"]
    if match["flag"]:
        if match["flag"].startswith("--no-"):  # one of two, and the text tells of the other
            return
        noun = noun or "option"
    function = name_of(item.within) if noun in ("parameter", "argument") else ""
    if function.endswith("()"):  # other functions have parameters of this name
        source = replace(source, title=function)
    if len(name.split()) > 3 or re.search(r"[{:=]", name):
        return
    if _ONLY_DEFAULT.search(match["notes"]) and code_like(source.title) and not same(name, source.title):
        yield templates.default(source, source.title, "", name)
    if found := _IN_NOTES.search(match["notes"]):
        noun = noun or "option"
        yield templates.default(source, name, noun, found[1])
    elif (found := _STATED.search(rest) or _AT_THE_END.search(rest)) and not (
        found[1].startswith("to ") or _SOMETIMES.search(rest[: found.end(1)])
    ):
        yield templates.default(source, name, noun, found[1])
    if (typed := _TYPED.match(rest)) and _TYPE_WORDS.fullmatch(typed["type"]):
        yield templates.typed(source, name, noun, typed["type"])
        rest = typed["rest"]
    yield described(source, name, noun, _STATED.sub("", rest))
    yield from _below(item, name, noun, source)


def _below(item: ListItem, name: str, noun: str, source: Source) -> Iterator[Fact | None]:
    """Yield the default that a nested item states."""
    for text in item.below:
        if found := re.fullmatch(r"Default(?: value)?:\s*(.+?)(?:\s*\([^)]*\))?\.?", text):
            yield templates.default(source, name, noun, bare(found[1]))
