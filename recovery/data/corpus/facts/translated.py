"""Facts from the tables and lists of documents in other languages than English, in wordings without grammar.

Running text is not read: the rules for it are those of English grammar.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from recovery.data.corpus.facts.blocks import Block, ListItem, Table, sentences_in
from recovery.data.corpus.facts.fact import Fact
from recovery.data.corpus.facts.tables import VERSION, gives_away, kind_of
from recovery.data.corpus.facts.templates import Source, bare, canonical, code, code_like, fact_of, same, shown
from recovery.data.corpus.languages import FactWordings, Language, Wordings
from recovery.data.corpus.text import word_count

_ENTRY = re.compile(r"`(?P<name>[^`]+)`\s*(?:[:：–—]|-(?=\s))\s*(?P<rest>.+)")
_STATED = re.compile(r"(?P<title>[^:：]*)[:：]\s*(?P<value>.+)", re.DOTALL)
_MOST_WORDS, _FEWEST_WORDS = 26, 3
_LONGEST_KEY, _LONGEST_NAME = 5, 4  # words
_NO_VALUE = re.compile(r"[-–—✓✗✅❌,]|n/a\b|同上|(?:dito|idem)\b", re.IGNORECASE)


def from_block(block: Block, source: Source, language: Language) -> Iterator[Fact | None]:
    """Yield the facts of a table or list item; None for a value that cannot be graded."""
    if language.fact is None:
        raise ValueError(f"{language.name} has rules of its own")
    if isinstance(block, Table):
        yield from _from_table(block, source, language.fact, language.headers)
    elif isinstance(block, ListItem) and (match := _ENTRY.fullmatch(block.text)):
        yield _description(source, code(match["name"]), match["rest"], language.fact)
        yield from _below(block, code(match["name"]), source, language.fact, language.headers)


def _from_table(
    table: Table, source: Source, wordings: FactWordings, headers: Mapping[str, frozenset[str]]
) -> Iterator[Fact | None]:
    head = [bare(title).casefold() for title in table.header]
    if head[0] in headers["version"] and len(head) == 2:
        for row in table.rows:
            yield _change(source, row[1], bare(row[0]), wordings)
        return
    kinds = [next((kind for kind, names in headers.items() if title in names), kind_of(title)) for title in head]
    for column, kind in enumerate(kinds):
        if column == 0 or not head[column] or kind == "skipped":
            continue
        for row in table.rows:
            key, cell = row[0], row[column]
            if not 0 < word_count(key) <= _LONGEST_KEY or not cell or _NO_VALUE.match(bare(cell)):
                continue
            if kind == "description":
                yield _description(source, key, cell, wordings)
            elif kind in ("default", "type"):
                yield _property(source, key, cell, kind, wordings)
            else:
                yield _cell(source, key, table.header[0], table.header[column], cell, wordings)


def _below(
    item: ListItem, name: str, source: Source, wordings: FactWordings, headers: Mapping[str, frozenset[str]]
) -> Iterator[Fact | None]:
    """Yield the default and the type that nested items state: "Standardwert: `8`"."""
    for text in item.below:
        if stated := _STATED.fullmatch(text):
            title = stated["title"].strip().casefold()
            for kind in ("default", "type"):
                if title in headers[kind]:
                    yield _property(source, name, stated["value"], kind, wordings)


def _cell(source: Source, key: str, first: str, column: str, value: str, wordings: FactWordings) -> Fact | None:
    """Return the fact of a cell, by row and column."""
    where = wordings.under.format(page=source.shown, heading=source.heading) if source.heading else source.shown
    name = bare(key).replace('"', "")
    row = code(name) if code_like(name) else f'"{name}"'
    row = f"{row} ({bare(first)})" if bare(first) else row
    fields = {"where": where, "row": row, "column": f'"{bare(column)}"', "value": shown(bare(value))}
    relation = f"column {bare(column).casefold()}"
    return _worded(source, f"{source.place}: {bare(key)}", relation, value, wordings.cell, fields, wordings.brief)


def _description(source: Source, name: str, text: str, wordings: FactWordings) -> Fact | None:
    """Return the fact that asks for the name of a description, or None if the description tells the name."""
    sentence = sentences_in(text)[0].rstrip(".。．").strip() if text else ""
    if not _FEWEST_WORDS <= word_count(sentence) <= _MOST_WORDS or gives_away(sentence, name):
        return None
    if _NO_VALUE.match(sentence):
        return None
    if same(name, source.title) or word_count(name) > _LONGEST_NAME:
        return None
    fields = {"page": source.shown, "subject": _subject(source, name), "text": sentence, "value": code(name)}
    subject = f"{source.title}: {bare(sentence)}"
    return _worded(source, subject, "name", name, wordings.description, fields, wordings.name_only)


def _property(source: Source, name: str, value: str, kind: str, wordings: FactWordings) -> Fact | None:
    """Return the fact for the default value or the type of a subject."""
    told = bare(value)
    fields = {"subject": _subject(source, name), "value": told if " " in told else code(told)}
    chosen, brief = (
        (wordings.default, wordings.value_only) if kind == "default" else (wordings.type, wordings.type_only)
    )
    return _worded(source, canonical(source, name), kind, told, chosen, fields, brief)


def _change(source: Source, text: str, version: str, wordings: FactWordings) -> Fact | None:
    """Return the fact of one line of a version history."""
    if not VERSION.fullmatch(version) or not text:
        return None
    sentence = sentences_in(text)[0].rstrip(".。．").strip()
    if word_count(sentence) > _MOST_WORDS:
        return None
    fields = {"page": source.shown, "text": sentence, "value": version.lstrip("v")}
    subject = f"{source.title}: {bare(sentence)}"
    return _worded(source, subject, "version changed", version, wordings.change, fields, wordings.version_only)


def _worded(
    source: Source, subject: str, relation: str, value: str, wordings: Wordings, fields: Mapping[str, str], brief: str
) -> Fact | None:
    asks = [question.format(**fields) for question in wordings.questions]
    says = [statement.format(**fields) for statement in wordings.statements]
    return fact_of(source, subject, relation, value, asks, says, brief)


def _subject(source: Source, name: str) -> str:
    """Return a subject as written in a question: its name, with its page if the page is not about it."""
    return shown(name) if same(name, source.title) else f"{shown(name)} ({source.shown})"
