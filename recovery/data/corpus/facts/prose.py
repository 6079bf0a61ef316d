"""Facts from sentences of a simple form: definitions, purposes, defaults, versions; also in other languages."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from recovery.data.corpus.facts import templates
from recovery.data.corpus.facts.blocks import Block, ListItem, Table, sentences_in
from recovery.data.corpus.facts.fact import KINDS, Fact, noun_of, third_person
from recovery.data.corpus.facts.tables import VERSION, kind_of, reveals_name
from recovery.data.corpus.facts.templates import (
    Source,
    bare,
    canonical,
    code,
    code_like,
    fact_of,
    is_same_name,
    shown,
    squeezed,
)
from recovery.data.corpus.languages import FactWordings
from recovery.data.corpus.text import word_count

_KIND = r"(?P<noun>(?:[a-z-]+ ){0,2}?(?:" + "|".join(sorted(KINDS)) + r"|API|hook))"
_CODE = r"`(?P<name>[^`]+)`"
_ANAPHORIC = re.compile(
    r"\b(?:this|these|those|above|below|following|such|it|its|they|them|their|here|also|then)\b", re.I
)
_SUBJECT = re.compile(rf"(?:The |An? )?(?:[a-z-]+ )?{_CODE} {_KIND} (?P<predicate>.+)")
_NAMED = re.compile(rf"{_CODE} (?P<predicate>[a-z]+s .+)")
_DEFINED = re.compile(rf"(?:The )?{_CODE}(?: [a-z]+)? (?:is|are) (?P<what>an? .+)")
_HEADED = re.compile(r"(?:The |An? )?(?P<name>[\w.+-]+(?: [\w.+-]+)?) is (?P<what>an? [a-z][^`]+)\.")
_SECOND_VERB = re.compile(r"(?<!\bthat )(?<!\bwhich )\b(?:is|are|was|were)\b")
_NUMBERED = re.compile(r"^[\dA-Z]{0,2}(?:\.?\d+)*\.?\s+")
_DEFINITION = re.compile(r"(?P<thing>.+?) (?:that|which) (?P<predicate>(?:lets|allows|can|[a-z]+s) .+)")
_ACTS = "use|set|run|add|enable|pass|call|install|export|import|press|configure|wrap|return"
_PURPOSE = re.compile(
    rf"To (?P<purpose>[a-z].+?), (?:you (?:can|should|must|need to) |first |simply |please )?(?P<verb>{_ACTS}) "
    rf"(?:the |an? )?(?:new )?{_CODE}(?: {_KIND})?(?P<extra> to `[^`]+`)?(?P<rest>.*)"
)
_USE = re.compile(
    rf"(?P<verb>Use|Set|Run|Add|Enable|Call|Pass) (?:the )?{_CODE}(?: {_KIND})?(?P<extra> to `[^`]+`)? "
    r"to (?P<purpose>[a-z].+)"
)
_YOU_CAN = re.compile(
    rf"You can (?P<purpose>[a-z].+?) (?:with|using|by using|through) (?:the )?{_CODE}(?: {_KIND})?\.?"
)
_DONE = r"introduced|added|deprecated|removed|stabili[sz]ed|renamed"
_V = r"(?:(?P<product>[A-Z][\w.]*)(?: version)? |version )?(?P<version>v?\d+(?:\.\d+){0,3})"
_WHEN = re.compile(
    rf"(?P<subject>(?:The |An? )?[^,;:.]*?`[^`]+`[^,;:]*?) (?P<was>was|were|has been|have been) "
    rf"(?P<done>{_DONE}) in {_V}\b.*"
)
_IN = re.compile(
    rf"In {_V},? (?:the )?(?P<subject>`[^`]+`(?: [a-z]+)?) (?P<was>was|were|has been|have been) (?P<done>{_DONE})\.?"
)
_DEFAULTS = re.compile(
    r"(?:The )?(?:`(?P<name>[^`]+)`(?: (?P<noun>[a-z]+))?|It) defaults to "
    r"(?P<value>`[^`]+`|\d[\w.,]*(?: [A-Za-z]+)?)(?=[.,]?$| and | or |, | \()"
)
_DEFAULT_IS = re.compile(
    r"The default (?:value )?(?:(?:of|for) `(?P<name>[^`]+)` )?is (?P<value>`[^`]+`|\d[\w.]*(?: [a-z]+)?)\.?"
)
_RENAMED = re.compile(
    r".*?`(?P<old>[^`]+)`(?: [a-z]+){0,3} (?:is|are|was|were|has been|have been)(?: deprecated and)?(?: now)? "
    r"(?P<verb>renamed|replaced|superseded) (?:to|by|with) (?:the )?(?:new )?`(?P<new>[^`]+)`.*"
)
_INSTEAD = re.compile(
    r"(?:Please )?[Uu]se (?:the )?`(?P<new>[^`]+)`(?: [a-z]+)? instead of (?:the )?`(?P<old>[^`]+)`.*"
)
_NOTE = re.compile(r"^(?:Good to know|Note|Tip|Warning|Important|Caution)\s*:\s*")
_LONGEST, _FEWEST = 30, 4  # words of a description
_STATE_VERB = re.compile(r"^(?:is|are|was|were|has|does)\b")


def from_text(text: str, source: Source, kinds: dict[str, str]) -> Iterator[Fact | None]:
    """Yield the facts of running text; ``kinds`` maps names to their nouns (see ``kinds_in``)."""
    previous = ""
    for sentence in sentences_in(text):
        sentence = _NOTE.sub("", sentence)
        yield from _version_changes(sentence, source)
        yield from _defaults(sentence, previous, source, kinds)
        yield from _successors(sentence, source)
        yield from _purposes(sentence, source)
        yield from _described_names(sentence, source, kinds)
        previous = sentence


def kinds_in(text: str) -> dict[str, str]:
    """Return the noun of each name in a text: "the `x` option" makes ``x`` an option."""
    pattern = re.compile(rf"`([^`\n]+)`\]?(?:\([^)]*\))? ((?:config |configuration )?(?:{'|'.join(sorted(KINDS))}))\b")
    kinds: dict[str, str] = {}
    for name, noun in pattern.findall(text):
        kinds.setdefault(squeezed(name), noun.split()[-1])
    return kinds


def _described_names(sentence: str, source: Source, kinds: dict[str, str]) -> Iterator[Fact | None]:
    """ "The `x` option controls ...": which option controls ...?"""
    heading = _NUMBERED.sub("", source.heading or source.title)
    if match := _SUBJECT.fullmatch(sentence):
        name, noun, predicate = match["name"], match["noun"], match["predicate"]
    elif match := _DEFINED.fullmatch(sentence):
        name, (noun, predicate) = match["name"], _split_definition(match["what"])
    elif (match := _HEADED.fullmatch(sentence)) and is_same_name(match["name"], heading):  # defines its heading
        if _identifies(match["what"], match["name"]) and not _SECOND_VERB.search(match["what"]):
            yield templates.defined(source, match["name"], match["what"])
        return
    elif match := _NAMED.fullmatch(sentence):
        name, predicate = match["name"], match["predicate"]
        noun = kinds.get(squeezed(name), "")
    else:
        return
    if not noun or not predicate or not sentence.endswith(".") or not _identifies(predicate, name) or " " in name:
        return
    if third_person(predicate) or re.match(r"(?:lets|can) [a-z]", predicate):
        yield templates.described(source, name, noun, predicate, scope=not is_same_name(name, source.title))


def _split_definition(definition: str) -> tuple[str, str]:
    """ "a hook that returns x" -> ("hook", "returns x")."""
    match = _DEFINITION.fullmatch(definition)
    if match is None:
        return "", ""
    noun = re.sub(r"^an? ", "", match["thing"])
    return (noun, match["predicate"]) if len(noun.split()) <= 6 and "`" not in noun else ("", "")


def _purposes(sentence: str, source: Source) -> Iterator[Fact | None]:
    """ "To do x, set `y`": what do you set to do x?"""
    match = _PURPOSE.fullmatch(sentence) or _USE.fullmatch(sentence) or _YOU_CAN.fullmatch(sentence)
    if match is None:
        return
    parts = match.groupdict()
    name, noun = parts["name"], parts.get("noun") or ""
    if not _identifies(parts["purpose"], name) or len(name) > 40:
        return
    if re.match(r"\s*(?:,|and|or)\s", parts.get("rest") or ""):
        return  # the sentence names several
    if (parts.get("verb") or "").lower() == "set" and not parts.get("extra"):
        return  # `y` is a value; the option is not named
    yield templates.used(source, name, noun, parts.get("verb") or "use", parts["purpose"], parts.get("extra") or "")


def _version_changes(sentence: str, source: Source) -> Iterator[Fact | None]:
    match = _WHEN.fullmatch(sentence) or _IN.fullmatch(sentence)
    if match is None or len(match["subject"].split()) > 12 or _ANAPHORIC.search(match["subject"]):
        return
    if not (VERSION.fullmatch(match["version"]) or match["product"]):
        return
    plural = match["was"] in ("were", "have been")
    subject, product = templates.lowered(match["subject"]), match["product"] or ""
    yield templates.dated(source, subject, match["done"], match["version"], plural=plural, product=product)


def _defaults(sentence: str, previous: str, source: Source, kinds: dict[str, str]) -> Iterator[Fact | None]:
    if match := _DEFAULTS.search(sentence) if re.match(r"(?:The )?`|It ", sentence) else None:
        name = match["name"]
        if name is None:
            named = re.match(r"(?:The )?`([^`]+)`", previous)
            name = named[1] if named else None
        if name is not None and match.start() == 0:
            noun = noun_of(match["noun"] or "") or kinds.get(squeezed(name), "")
            yield templates.default(source, templates.code(name), noun, match["value"])
    elif match := _DEFAULT_IS.fullmatch(sentence):
        setting = re.search(r"\b[Ss]et (?:the )?`([^`]+)`", previous)
        name = match["name"] or (setting[1] if setting else None)
        if name is not None:
            yield templates.default(source, templates.code(name), kinds.get(squeezed(name), ""), match["value"])


def _successors(sentence: str, source: Source) -> Iterator[Fact | None]:
    match = _RENAMED.fullmatch(sentence) or _INSTEAD.fullmatch(sentence)
    if match is None or len(match["old"].split()) > 3 or len(match["new"].split()) > 3:
        return
    if ("/" in match["old"]) != ("/" in match["new"]):  # it was moved, not renamed
        return
    verb = "renamed" if match.groupdict().get("verb") == "renamed" else "replaced"
    yield templates.replaced(source, match["old"], match["new"], verb, sentence)


def _identifies(text: str, name: str) -> bool:
    """Return whether a description is specific, self-contained, and does not contain the name."""
    if not _FEWEST <= len(text.split()) <= _LONGEST or _ANAPHORIC.search(text) or _STATE_VERB.match(text):
        return False
    if re.search(r"[:;]|https?://|\?", text) or text.count("(") != text.count(")"):
        return False
    plain = bare(text).lower()
    return bare(name).lower().rstrip("()") not in plain and squeezed(name) not in squeezed(text)


def titled(description: str, source: Source, kinds: dict[str, str]) -> Fact | None:
    """Return the fact that asks for a page's title by the summary of the page."""
    noun = kinds.get(squeezed(source.title), "")
    purpose = re.sub(r"^(?:Learn how to|How to|Use `[^`]+` to|Learn about how to) ", "", description).rstrip(". ")
    if not noun or not code_like(source.title):
        return None
    generic = re.match(r"(?:API [Rr]eference|Learn|Reference|Documentation)\b", purpose)
    if generic or not _identifies(purpose, source.title):
        return None
    if not re.match(r"[A-Z]?[a-z]+ ", purpose) or third_person(purpose):
        return None
    return templates.used(source, source.title, noun, "use", purpose[0].lower() + purpose[1:])


# Facts from the tables and lists of documents in other languages than English, in wordings without grammar.
#
# Running text is not read: the rules for it are those of English grammar.

_ENTRY = re.compile(r"`(?P<name>[^`]+)`\s*(?:[:：–—]|-(?=\s))\s*(?P<rest>.+)")
_STATED = re.compile(r"(?P<title>[^:：]*)[:：]\s*(?P<value>.+)", re.DOTALL)
_MOST_WORDS, _FEWEST_WORDS = 26, 3
_LONGEST_KEY, _LONGEST_NAME = 5, 4  # words
_NO_VALUE = re.compile(r"[-–—✓✗✅❌,]|n/a\b|同上|(?:dito|idem)\b", re.IGNORECASE)


def from_block(
    block: Block, source: Source, wordings: FactWordings, headers: Mapping[str, frozenset[str]]
) -> Iterator[Fact | None]:
    """Yield the facts of a table or list item in a language with these wordings and headers of columns.

    None stands for a value that cannot be graded.
    """
    if isinstance(block, Table):
        yield from _from_table(block, source, wordings, headers)
    elif isinstance(block, ListItem) and (match := _ENTRY.fullmatch(block.text)):
        yield _description_fact(source, code(match["name"]), match["rest"], wordings)
        yield from _nested_properties(block, code(match["name"]), source, wordings, headers)


def _from_table(
    table: Table, source: Source, wordings: FactWordings, headers: Mapping[str, frozenset[str]]
) -> Iterator[Fact | None]:
    head = [bare(title).casefold() for title in table.header]
    if head[0] in headers["version"] and len(head) == 2:
        for row in table.rows:
            yield _change_fact(source, row[1], bare(row[0]), wordings)
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
                yield _description_fact(source, key, cell, wordings)
            elif kind in ("default", "type"):
                yield _property_fact(source, key, cell, kind, wordings)
            else:
                yield _cell_fact(source, key, table.header[0], table.header[column], cell, wordings)


def _nested_properties(
    item: ListItem, name: str, source: Source, wordings: FactWordings, headers: Mapping[str, frozenset[str]]
) -> Iterator[Fact | None]:
    """Yield the default and the type that nested items state: "Standardwert: `8`"."""
    for text in item.below:
        if stated := _STATED.fullmatch(text):
            title = stated["title"].strip().casefold()
            for kind in ("default", "type"):
                if title in headers[kind]:
                    yield _property_fact(source, name, stated["value"], kind, wordings)


def _cell_fact(source: Source, key: str, first: str, column: str, value: str, wordings: FactWordings) -> Fact | None:
    """Return the fact of a cell, by row and column."""
    where = wordings.under.format(page=source.shown, heading=source.heading) if source.heading else source.shown
    name = bare(key).replace('"', "")
    row = code(name) if code_like(name) else f'"{name}"'
    row = f"{row} ({bare(first)})" if bare(first) else row
    fields = {"where": where, "row": row, "column": f'"{bare(column)}"', "value": shown(bare(value))}
    relation = f"column {bare(column).casefold()}"
    return fact_of(source, f"{source.place}: {bare(key)}", relation, value, wordings.cell, fields, wordings.brief)


def _description_fact(source: Source, name: str, text: str, wordings: FactWordings) -> Fact | None:
    """Return the fact that asks for a name by its description, or None if the description reveals the name."""
    sentence = sentences_in(text)[0].rstrip(".。．").strip() if text else ""
    if not _FEWEST_WORDS <= word_count(sentence) <= _MOST_WORDS or reveals_name(sentence, name):
        return None
    if _NO_VALUE.match(sentence) or is_same_name(name, source.title) or word_count(name) > _LONGEST_NAME:
        return None
    fields = {"page": source.shown, "subject": _subject(source, name), "text": sentence, "value": code(name)}
    subject = f"{source.title}: {bare(sentence)}"
    return fact_of(source, subject, "name", name, wordings.description, fields, wordings.name_only)


def _property_fact(source: Source, name: str, value: str, kind: str, wordings: FactWordings) -> Fact | None:
    """Return the fact for the default value or the type of a subject."""
    plain_value = bare(value)
    fields = {"subject": _subject(source, name), "value": plain_value if " " in plain_value else code(plain_value)}
    is_default = kind == "default"
    questions, brief = (wordings.default, wordings.value_only) if is_default else (wordings.type, wordings.type_only)
    return fact_of(source, canonical(source, name), kind, plain_value, questions, fields, brief)


def _change_fact(source: Source, text: str, version: str, wordings: FactWordings) -> Fact | None:
    """Return the fact of one line of a version history."""
    if not VERSION.fullmatch(version) or not text:
        return None
    sentence = sentences_in(text)[0].rstrip(".。．").strip()
    if word_count(sentence) > _MOST_WORDS:
        return None
    fields = {"page": source.shown, "text": sentence, "value": version.lstrip("v")}
    subject = f"{source.title}: {bare(sentence)}"
    return fact_of(source, subject, "version changed", version, wordings.change, fields, wordings.version_only)


def _subject(source: Source, name: str) -> str:
    """Return a subject as written in a question: its name, with its page if the page is not about it."""
    return shown(name) if is_same_name(name, source.title) else f"{shown(name)} ({source.shown})"
