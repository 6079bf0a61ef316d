"""Sentences that enumerate the names of the entries of a table or list."""

from __future__ import annotations

import re
from collections import defaultdict

from recovery.data.corpus.documents import Document
from recovery.data.corpus.facts.blocks import ListItem, Table, blocks
from recovery.data.corpus.facts.grammar import noun_of
from recovery.data.corpus.facts.templates import Source, bare, code, start

_FEWEST, _MOST = 2, 12
_NAMED = re.compile(r"`([^`]+)`(?:\s*\([^()]*\))*\s*(?:[:–—]|-\s).*")


def enumerations(document: Document) -> list[tuple[str, ...]]:
    """Return, for every table or list of named entries of one kind, several wordings of a sentence that names them."""
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    for number, block in enumerate(blocks(document)):
        if isinstance(block, Table):
            noun = noun_of(bare(block.header[0]))
            names = [bare(row[0]) for row in block.rows if re.fullmatch(r"`[^`]+`(?: \(default\))?", row[0])]
            if noun and len(names) == len(block.rows):
                found[noun, f"{block.heading} {number}"] = [name.removesuffix(" (default)") for name in names]
        elif isinstance(block, ListItem) and (match := _NAMED.fullmatch(block.text)):
            noun = noun_of(block.intro, plural=True) or noun_of(block.heading, plural=True)
            if noun:
                found[noun, block.heading].append(match[1])
    source = Source(document.id, document.title)
    return [_wordings(source, noun, names) for (noun, _), names in found.items() if _FEWEST <= len(set(names)) <= _MOST]


def _wordings(source: Source, noun: str, names: list[str]) -> tuple[str, ...]:
    names = [code(name) for name in dict.fromkeys(names)]
    plural = f"{noun[:-1]}ies" if re.search(r"[^aeiou]y$", noun) else f"{noun}es" if noun.endswith("s") else f"{noun}s"
    several = f"{', '.join(names[:-1])} and {names[-1]}"
    back = f"{', '.join(names[:0:-1])} and {names[0]}"
    return (
        start(f"the {plural} of {source.shown} are {several}."),
        start(f"{source.shown} has {len(names)} {plural}: {several}."),
        start(f"{back} are {plural} of {source.shown}."),
    )
