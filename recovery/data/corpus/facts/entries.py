"""Facts from what a reference says of an entry in paragraphs of their own: its default, its type and its versions.

An entry is a section or a list item whose name is code: "Default: `3`", "Type: int", "New in version 2.1".
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from recovery.data.corpus.facts import templates
from recovery.data.corpus.facts.blocks import ListItem, Paragraph, Section
from recovery.data.corpus.facts.fact import Fact
from recovery.data.corpus.facts.grammar import noun_of
from recovery.data.corpus.facts.tables import from_change
from recovery.data.corpus.facts.templates import Source, bare, code

_VALUE = r"`[^`]+`|\"[^\"]+\"|'[^']+'|[-+.\w/$%:@]*[\w%](?: [-+.\w/%]*[\w%]){0,3}"
# Behind the value only a bracket, or another sentence.
_DEFAULT = re.compile(
    rf"Default(?: value)?: ?(?P<value>{_VALUE})(?P<bracket> ?\((?:[^()]|\([^()]*\))*\))?(?:[.;](?: .*)?)?"
)
_TYPE = re.compile(r"Type: ?(?P<value>`[^`]+`|[A-Za-z][\w.\[\]]*(?:(?:,| \||,? or) [A-Za-z][\w.\[\]]*){0,2})\.?")
_NO_VALUE = re.compile(
    r"(?:an?|see|by|depends?|depending|varies|the|same|as|value|inherited|unset|not|derived|based|whatever|current|any|"
    r"all|your|this|it|when|if|for|in|on [a-z]|enabled? [a-z]|n/a)(?!\w)",
    re.IGNORECASE,
)
_AGAIN = re.compile(r" ?\(\d[\w. ]*\)")  # the value in other units
_CHANGE = re.compile(
    r"(?P<kind>New|Added|Changed|Deprecated|Removed) (?:in|since)(?: version)? (?P<version>v?\d+(?:\.\d+){1,3})"
    r"(?:, will be removed in version [\d.]+)?(?:[.:,]? (?P<text>\S.*)|[.:]?)"
)
_DONE = {"New": "introduced", "Added": "introduced", "Deprecated": "deprecated", "Removed": "removed"}
_INSTEAD = re.compile(r"(?:Please )?[Uu]se (?:the )?`(?P<new>[^`]+)`(?: [a-z]+)?(?:,? instead)?\b.*")
_DEPRECATED = re.compile(r"\b(?:is|are|was|were) (?:now )?deprecated\b")
_WHOLE = re.compile(r"(?:This [a-z]+|It) is (?:now )?deprecated\b.*")
_THINGS = re.compile(r"(?:The |An? )?(?:[a-z]+ )?`[^`]+`(?:,? (?:and )?`[^`]+`){0,3}(?: [a-z]+)?\.?")
_LISTED = re.compile(r"(?P<names>`[^`]+`(?:, `[^`]+`)*)(?=\s*(?:\(|[:–—]|-\s|$))")
_CALL = re.compile(r"(?:[a-z]+ )*(?P<name>[\w.]+)\(.*", re.DOTALL)
_PATH = re.compile(r"[A-Za-z_][\w.]*")


def of_section(block: Paragraph, source: Source) -> Iterator[Fact | None]:
    """Yield the facts that a paragraph tells of the one thing that its section is about, or of things it names.

    Other version notes of a section in prose are left out: a manual has so many that they would be most questions.
    """
    if block.section is not None and (block.section.code or not _CHANGE.fullmatch(block.text)):
        yield from _told(block.text, block.section, source)
    elif (change := _CHANGE.fullmatch(block.text)) and _THINGS.fullmatch(change["text"] or ""):
        yield from _happened(change["kind"], change["text"], change["version"], source)


def of_entry(item: ListItem, source: Source) -> Iterator[Fact | None]:
    """Yield the facts that the paragraphs and the fields below a list item tell of what it names.

    An item without a name may be a field of the section: "- Default: 3".
    """
    if entry := entry_of(item):
        for text in (*item.parts[1:], *item.below):
            yield from _told(text, entry, source)
    elif item.section is not None and not item.within and (item.section.code or not _CHANGE.fullmatch(item.text)):
        yield from _told(item.text, item.section, source)


def entry_of(item: ListItem) -> Section | None:
    """Return what a list item is about, by the code that it begins with; of several names the last, "-f, --file"."""
    name, holder = name_of(item.parts[0]), name_of(item.within)
    if not name:
        return None
    if holder.endswith("()") and _PATH.fullmatch(name.removesuffix("()")):
        return Section(f"{holder.removesuffix('()')}.{name}")  # a method of a class
    nouns = (item.intro.rstrip(":").split(". ")[-1], item.heading)
    return Section(name, holder, next((noun for text in nouns if (noun := noun_of(text, plural=True))), ""))


def name_of(text: str) -> str:
    """Return the name that a list item begins with, of a function without its arguments, or ""."""
    found = _LISTED.match(text)
    if found is None:
        return ""
    name = re.findall(r"`([^`]+)`", found["names"])[-1].strip("'\"")
    if call := _CALL.fullmatch(name):
        return f"{call['name']}()"
    name = re.split(r"[ =\[]", name)[0] if name.startswith("-") else name
    return "" if " " in name or re.search(r"[{:=<]", name) else name


def _told(text: str, entry: Section, source: Source) -> Iterator[Fact | None]:
    if change := _CHANGE.fullmatch(text):
        yield from _changed(change["kind"], change["text"] or "", change["version"], entry, source)
        return
    about = replace(source, title=code(entry.within)) if entry.within else source
    if (found := _DEFAULT.fullmatch(text)) and not _NO_VALUE.match(found["value"]):
        again = found["bracket"] if _AGAIN.fullmatch(found["bracket"] or "") else ""
        yield templates.default(about, code(entry.name), entry.noun, bare(found["value"]) + again)
    elif found := _TYPE.fullmatch(text):
        yield templates.typed(about, code(entry.name), entry.noun, found["value"])


def _changed(kind: str, text: str, version: str, entry: Section, source: Source) -> Iterator[Fact | None]:
    """Yield the fact of a note about a version: of the entry, or of a part of it that the note names."""
    instead = _INSTEAD.fullmatch(text) if kind == "Deprecated" else None
    whole = not text or instead or (kind == "Deprecated" and _WHOLE.fullmatch(text))
    if kind in _DONE and whole:
        name = f"{code(entry.name)} in {code(entry.within)}" if entry.within else code(entry.name)
        yield templates.dated(source, name, _DONE[kind], version)
        if instead and not entry.within:
            yield templates.replaced(source, entry.name, instead["new"], "replaced", "")
    elif text:
        title = f"{entry.name} in {entry.within}" if entry.within else code(entry.name)
        yield from _happened(kind, text, version, replace(source, title=title))


def _happened(kind: str, text: str, version: str, about: Source) -> Iterator[Fact | None]:
    """Yield the fact of a change that a note tells: "The `x` argument was added", or only "`x` and `y`"."""
    if kind in _DONE and _THINGS.fullmatch(text):
        things = templates.lowered(text.rstrip("."))
        yield templates.dated(about, things, _DONE[kind], version, plural=text.count("`") > 2)
    elif (kind != "Deprecated" or _DEPRECATED.search(text)) and len(re.sub(r"`[^`]*`", "", text).split()) >= 2:
        yield from from_change(text, version, about)
