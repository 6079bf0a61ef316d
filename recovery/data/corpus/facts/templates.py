"""Templates for facts: for each relation several questions and statements, and the accepted answers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from recovery.data.corpus.facts.fact import Fact, gradable, spellings
from recovery.data.corpus.text import normalise

_CODE_LIKE = re.compile(r"[\w@./\[\]$:*-]*(?:[a-z][A-Z]|[A-Za-z][\d_./(]|[./@_$-]\w)[\w@./()\[\]$:*-]*|`[^`]+`")
_WEAK = re.compile(r"^(?:experimental|unstable)[._]", re.IGNORECASE)
_LOWERED = re.compile(r"^(?:The|A|An|Experimental|New|Support|Option|Options|Stable|Built-in|Initial)\b")
_VERSION, _VALUE = "Give the version only.", "Give the value only."
_FEWEST_SPELT = 3  # different words of a name such as --committer-date-is-author-date
_NAME, _BRIEF = "Give the name only.", "Answer as briefly as you can."


@dataclass(frozen=True)
class Source:
    """Source of a fact: a document, its title and the nearest heading."""

    document: str
    title: str
    heading: str = ""

    @property
    def place(self) -> str:
        """Title and heading, for display."""
        return f"{self.title}, {self.heading}" if self.heading else self.title

    @property
    def shown(self) -> str:
        """The title as written in a question: a name as code, a phrase in quotation marks."""
        return code(self.title) if code_like(self.title) else '"{}"'.format(self.title.replace('"', ""))


def code_like(text: str) -> bool:
    """Return whether a text is a code identifier: one word with an inner capital, dot, slash or similar."""
    return " " not in text.strip() and bool(_CODE_LIKE.fullmatch(text.strip()))


def code(name: str) -> str:
    """Return a name in backticks."""
    return f"`{name.strip('`')}`"


def bare(text: str) -> str:
    """Return text without backticks."""
    return text.replace("`", "").strip()


def shown(cell: str) -> str:
    """Return a cell as written in a question: as code if it is or looks like code."""
    return code(cell) if code_like(cell) else cell


def squeezed(text: str) -> str:
    """Return letters and digits in lower case, so that ``inlineCss`` and "inline CSS" are equal."""
    return re.sub(r"[\W_]", "", _WEAK.sub("", bare(text))).lower()


def same(name: str, title: str) -> bool:
    """Return whether a name equals a page title, ignoring case and punctuation."""
    return squeezed(name) == squeezed(title)


def canonical(source: Source, name: str) -> str:
    """Return the unique name of a subject: the name alone if the page is about it, else with the page title."""
    name = _WEAK.sub("", bare(name))
    return name if same(name, source.title) else f"{_WEAK.sub('', source.title)}: {name}"


def phrase(source: Source, name: str, noun: str) -> str:
    """Return a subject as written in a question: its name, with its noun and page if the page is not about it.

    A name in backticks keeps them.
    """
    if same(name, source.title):
        return shown(name)
    subject = f"the {shown(name)} {noun}" if noun else shown(name)
    if code_like(source.title):
        return f"{subject} of {source.shown}" if noun else f"{subject} in {source.shown}"
    return f"{subject} (see {source.shown})"


def start(text: str) -> str:
    """Return text with an initial capital, behind the mark before a Spanish question."""
    first = 1 if text.startswith(("¿", "¡")) else 0
    return text[:first] + text[first : first + 1].upper() + text[first + 1 :]


def lowered(text: str) -> str:
    """Return text without the capital of a sentence start; names keep theirs."""
    if _LOWERED.match(text) or re.match(r"[A-Z][a-z]+ [a-z`]", text):
        return text[0].lower() + text[1:]
    return text


def _words(text: str) -> set[str]:
    """Return the words of letters in a text, in lower case, also those within names."""
    return {word.lower() for word in re.findall(r"[A-Z]?[^\W\dA-Z_]+|[A-Z]+", text)}


def fact_of(
    source: Source,
    subject: str,
    relation: str,
    value: str,
    questions: Sequence[str],
    statements: Sequence[str],
    brief: str,
    sentence: str = "",
    product: str = "",
) -> Fact | None:
    """Return the fact, or None if its value cannot be graded or occurs in the question, a name also word by word."""
    value = re.sub(r"^['\"](.*)['\"]$", r"\1", bare(value)).rstrip(".").strip()
    answers = spellings(value, version=relation.startswith("version"), product=product)
    if not gradable(value) or not answers or f" {normalise(value)} " in f" {normalise(questions[0])} ":
        return None
    if " " not in value and len(parts := _words(value)) >= _FEWEST_SPELT and parts <= _words(questions[0]):
        return None
    asks, says = tuple(map(start, questions)), tuple(map(start, statements))
    told = sentence or statements[0]
    return Fact(source.document, source.place, subject, relation, answers[0], told, asks, answers, says, brief)


def dated(
    source: Source, subject: str, change: str, version: str, *, plural: bool = False, product: str | None = None
) -> Fact | None:
    """Return the fact that ``subject`` underwent ``change`` ("introduced", "deprecated", ...) in a version.

    ``product`` is the product that the version belongs to, as named in running text; None for a version history.
    """
    was = "were" if plural else "was"
    head = re.sub(r"^(?:introduced|added|released)$", "introduced", change)
    names = re.findall(r"`([^`]+)`", subject)
    named = canonical(source, names[0]) if len(names) == 1 else f"{source.title}: {bare(subject)}"
    alone = len(names) == 1 and code_like(names[0])
    self_contained = product is not None or alone or any(same(n, source.title) for n in names)
    prefix = "" if self_contained else f"according to the version history of {source.shown}, "
    number = version.lstrip("v")
    asks = [
        f"{prefix}in which version {was} {subject} {change}?",
        f"{prefix}{subject} {was} {change} in which version?",
        f"{prefix}which version is the one in which {subject} {was} {change}?",
    ]
    says = [
        f"{subject} {was} {change} in version {number}.",
        f"in version {number}, {subject} {was} {change}.",
        f"version {number} is the version in which {subject} {was} {change}.",
        f"it was version {number} in which {subject} {was} {change}.",
    ]
    return fact_of(source, named, f"version {head}", version, asks, says, _VERSION, product=product or "")


def changed(source: Source, text: str, version: str) -> Fact | None:
    """Return the fact of a version history line that does not have the form "X was added"."""
    number, text = version.lstrip("v"), text.rstrip(".")
    asks = [
        f'in which version did this change to {source.shown} come: "{text}"?',
        f'the version history of {source.shown} says "{text}". Which version is that?',
    ]
    says = [
        f"{source.shown}, version {number}: {text}.",
        f"in version {number}, this changed for {source.shown}: {text}.",
        f"the version history of {source.shown} gives version {number} for this: {text}.",
    ]
    return fact_of(source, f"{source.title}: {bare(text)}", "version changed", version, asks, says, _VERSION)


def default(source: Source, name: str, noun: str, value: str) -> Fact | None:
    """Return the fact for the default value of a subject."""
    subject, value = phrase(source, name, noun), bare(value)
    written = value if " " in value else code(value)
    asks = [
        f"what is the default value of {subject}?",
        f"what does {subject} default to?",
        f"which value does {subject} have unless you set it?",
    ]
    says = [
        f"the default value of {subject} is {written}.",
        f"{subject} defaults to {written}.",
        f"unless you set it, {subject} has the value {written}.",
        f"{written} is the default value of {subject}.",
    ]
    return fact_of(source, canonical(source, name), "default", value, asks, says, _VALUE)


def typed(source: Source, name: str, noun: str, value: str) -> Fact | None:
    """Return the fact for the type of a subject."""
    subject, value = phrase(source, name, noun), bare(value)
    written = value if " " in value else code(value)
    asks = [f"what is the type of {subject}?", f"which type does {subject} have?", f"of which type is {subject}?"]
    says = [
        f"the type of {subject} is {written}.",
        f"{subject} is of the type {written}.",
        f"the type {written} is that of {subject}.",
    ]
    return fact_of(source, canonical(source, name), "type", value, asks, says, "Give the type only.")


def listed(source: Source, key: str, first: str, column: str, value: str) -> Fact | None:
    """Return the fact for the value of one table cell, by row and column."""
    row = f"the {first if first.isupper() else first.lower()} {shown(key)}" if first else shown(key)
    column = code(column) if re.search(r"\W\(|\w\(|\"", column) else f'"{column}"'
    where = f"{source.shown}" + (f' under "{source.heading}"' if source.heading else "")
    asks = [
        f"according to the table in {where}, what is the {column} of {row}?",
        f"{row}: what does {where} list as its {column}?",
    ]
    says = [
        f"in {where}, the {column} of {row} is {shown(bare(value))}.",
        f"{where} lists {shown(bare(value))} as the {column} of {row}.",
        f"{shown(bare(value))} is the {column} of {row} in {where}.",
    ]
    return fact_of(source, f"{source.place}: {bare(key)}", f"column {bare(column).lower()}", value, asks, says, _BRIEF)


def described(source: Source, name: str, noun: str, verb_phrase: str, *, scope: bool = True) -> Fact | None:
    """Return the fact that asks for the name of what a ``verb_phrase`` in the third person describes."""
    action = verb_phrase.rstrip(".")
    of = f" of {source.shown}" if scope and code_like(source.title) else ""
    where = f"according to {source.shown}, " if scope and not of else ""
    which = f"which {noun}{of}" if noun else f"what{' in ' + source.shown if of else ''}"
    thing = f"the {noun}{of} that" if noun else "what"
    if noun == "value" and of:
        again = f"to what do you set {source.shown} so that it {action}?"
    else:
        again = f"{where}what is {thing} {action} called?" if noun else f"{where}what is it that {action}?"
    asks = [f"{where}{which} {action}?", again]
    says = [
        f"{phrase(source, name, noun) if scope else shown(code(name))} {action}.",
        f"{where}{thing} {action} is {code(name)}.",
        f"{where}it is {code(name)} that {action}.",
    ]
    subject, brief = f"{source.title if scope else ''}: {bare(action)}", _VALUE if noun == "value" else _NAME
    return fact_of(source, subject, "name", name, asks, says, brief)


def summarised(source: Source, name: str, noun: str, text: str) -> Fact | None:
    """Return the fact that asks for the name of a description that is not a verb phrase."""
    text, noun = text.rstrip("."), noun or "entry"
    where = f"of {source.shown}" if code_like(source.title) else f"in {source.shown}"
    asks = [
        f'which {noun} {where} is described as "{text}"?',
        f'{where.replace("of ", "in ", 1)}, the description "{text}" belongs to which {noun}?',
    ]
    says = [
        f"{phrase(source, name, noun)}: {text}.",
        f'the {noun} {where} described as "{text}" is {code(name)}.',
        f'"{text}" describes {code(name)}, {"an" if noun[0] in "aeiou" else "a"} {noun} {where}.',
    ]
    brief = _VALUE if noun == "value" else _NAME
    return fact_of(source, f"{source.title}: {bare(text)}", "name", name, asks, says, brief)


def defined(source: Source, name: str, what: str) -> Fact | None:
    """Return the fact that asks for the name of what ``what``, with its article, defines."""
    asks = [f"according to {source.shown}, what is {what}?", f"{source.shown} tells of {what}. What is it called?"]
    says = [f"{name} is {what}.", f"{what} is {name}.", f"according to {source.shown}, {name} is {what}."]
    return fact_of(source, f"{source.title}: {what}", "name", name, asks, says, _NAME)


def used(
    source: Source, name: str, noun: str, verb: str, purpose: str, extra: str = "", *, scope: bool = False
) -> Fact | None:
    """Return the fact for what to use, set or run for a ``purpose`` (without its "to"); ``scope`` names the page."""
    purpose, verb = purpose.rstrip(".,"), verb.lower()
    which = f"which {noun}" if noun else "what"
    means = bare(name)
    where = f"according to {source.shown}, " if scope else ""
    asks = [
        f"{where}{which} do you {verb}{extra} to {purpose}?",
        f"{where}to {purpose}, {which} do you {verb}{extra}?",
        f"{where}{which} would you {verb}{extra} if you wanted to {purpose}?",
    ]
    says = [
        f"{where}to {purpose}, {verb} {code(means)}{extra}.",
        f"{verb} {code(means)}{extra} to {purpose}.",
        f"{f'the {noun}' if noun else 'what'} to {verb}{extra} if you want to {purpose} is {code(means)}.",
    ]
    return fact_of(source, f"{verb}{extra}: {bare(purpose)}", "means", means, asks, says, _NAME)


def replaced(source: Source, old: str, new: str, verb: str, sentence: str) -> Fact | None:
    """Return the fact for the replacement or the new name of something."""
    then, now = code(old), code(new)
    if verb == "renamed":
        asks = [f"what was {then} renamed to?", f"what is the new name of {then}?"]
        says = [f"{then} was renamed to {now}.", f"{now} is the new name of {then}."]
    else:
        asks = [f"what should you use instead of {then}?", f"what replaces {then}?"]
        says = [f"use {now} instead of {then}.", f"{now} replaces {then}.", f"{then} is replaced by {now}."]
    return fact_of(source, bare(old), "successor", new, asks, says, _NAME, sentence)
