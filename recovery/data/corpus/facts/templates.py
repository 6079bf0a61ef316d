"""Facts in English by relation. Their wordings are in languages/en.toml."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from recovery.data.corpus.facts.fact import Fact, gradable, spellings
from recovery.data.corpus.languages import Wordings, english
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


def is_same_name(name: str, title: str) -> bool:
    """Return whether a name equals a page title, ignoring case and punctuation."""
    return squeezed(name) == squeezed(title)


def canonical(source: Source, name: str) -> str:
    """Return the unique name of a subject: the name alone if the page is about it, else with the page title."""
    name = _WEAK.sub("", bare(name))
    return name if is_same_name(name, source.title) else f"{_WEAK.sub('', source.title)}: {name}"


def phrase(source: Source, name: str, noun: str) -> str:
    """Return a subject as written in a question: its name, with its noun and page if the page is not about it.

    A name in backticks keeps them.
    """
    if is_same_name(name, source.title):
        return shown(name)
    subject = f"the {shown(name)} {noun}" if noun else shown(name)
    if code_like(source.title):
        return f"{subject} of {source.shown}" if noun else f"{subject} in {source.shown}"
    return f"{subject} (see {source.shown})"


def start(text: str) -> str:
    """Return text with an initial capital, after the mark that opens a Spanish question."""
    offset = 1 if text.startswith(("¿", "¡")) else 0
    return text[:offset] + text[offset : offset + 1].upper() + text[offset + 1 :]


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
    wordings: Wordings,
    fields: Mapping[str, str],
    brief: str,
    sentence: str = "",
    product: str = "",
) -> Fact | None:
    """Return the fact; None if its value cannot be graded, or if the question has the value or all words of a name."""
    questions = [question.format(**fields) for question in wordings.questions]
    value = re.sub(r"^['\"](.*)['\"]$", r"\1", bare(value)).rstrip(".").strip()
    answers = spellings(value, version=relation.startswith("version"), product=product)
    if not gradable(value) or not answers or f" {normalise(value)} " in f" {normalise(questions[0])} ":
        return None
    if " " not in value and len(name_words := _words(value)) >= _FEWEST_SPELT and name_words <= _words(questions[0]):
        return None
    statements = [statement.format(**fields) for statement in wordings.statements]
    asks, says = tuple(map(start, questions)), tuple(map(start, statements))
    stated = sentence or statements[0]
    return Fact(source.document, source.place, subject, relation, answers[0], stated, asks, answers, says, brief)


def _english_wordings(name: str) -> Wordings:
    return english().relations[name]


def dated(
    source: Source, subject: str, change: str, version: str, *, plural: bool = False, product: str | None = None
) -> Fact | None:
    """Return the fact that ``subject`` underwent ``change`` ("introduced", "deprecated", ...) in a version.

    ``product`` is the product that the version belongs to, as named in running text; None for a version history.
    """
    kind = re.sub(r"^(?:introduced|added|released)$", "introduced", change)
    names = re.findall(r"`([^`]+)`", subject)
    subject_name = canonical(source, names[0]) if len(names) == 1 else f"{source.title}: {bare(subject)}"
    is_code = len(names) == 1 and code_like(names[0])
    is_self_contained = product is not None or is_code or any(is_same_name(n, source.title) for n in names)
    prefix = "" if is_self_contained else f"according to the version history of {source.shown}, "
    fields = {"prefix": prefix, "subject": subject, "was": "were" if plural else "was", "change": change}
    fields["number"] = version.lstrip("v")
    wordings, product = _english_wordings("dated"), product or ""
    return fact_of(source, subject_name, f"version {kind}", version, wordings, fields, _VERSION, product=product)


def changed(source: Source, text: str, version: str) -> Fact | None:
    """Return the fact of a version history line that does not have the form "X was added"."""
    text = text.rstrip(".")
    fields = {"page": source.shown, "text": text, "number": version.lstrip("v")}
    subject = f"{source.title}: {bare(text)}"
    return fact_of(source, subject, "version changed", version, _english_wordings("changed"), fields, _VERSION)


def default(source: Source, name: str, noun: str, value: str) -> Fact | None:
    """Return the fact for the default value of a subject."""
    return _property(source, name, noun, value, "default", _VALUE)


def typed(source: Source, name: str, noun: str, value: str) -> Fact | None:
    """Return the fact for the type of a subject."""
    return _property(source, name, noun, value, "type", "Give the type only.")


def _property(source: Source, name: str, noun: str, value: str, relation: str, brief: str) -> Fact | None:
    value = bare(value)
    fields = {"subject": phrase(source, name, noun), "value": value if " " in value else code(value)}
    return fact_of(source, canonical(source, name), relation, value, _english_wordings(relation), fields, brief)


def listed(source: Source, key: str, first: str, column: str, value: str) -> Fact | None:
    """Return the fact for the value of one table cell, by row and column."""
    row = f"the {first if first.isupper() else first.lower()} {shown(key)}" if first else shown(key)
    column_name = code(column) if re.search(r"\W\(|\w\(|\"", column) else f'"{column}"'
    where = f'{source.shown} under "{source.heading}"' if source.heading else source.shown
    fields = {"where": where, "row": row, "column": column_name, "value": shown(bare(value))}
    subject, relation = f"{source.place}: {bare(key)}", f"column {bare(column_name).lower()}"
    return fact_of(source, subject, relation, value, _english_wordings("cell"), fields, _BRIEF)


def described(source: Source, name: str, noun: str, verb_phrase: str, *, scope: bool = True) -> Fact | None:
    """Return the fact that asks for a name by a ``verb_phrase`` in the third person that describes it."""
    action = verb_phrase.rstrip(".")
    page = f" of {source.shown}" if scope and code_like(source.title) else ""
    where = f"according to {source.shown}, " if scope and not page else ""
    which = f"which {noun}{page}" if noun else f"what{' in ' + source.shown if page else ''}"
    thing = f"the {noun}{page} that" if noun else "what"
    if noun == "value" and page:
        rewording = f"to what do you set {source.shown} so that it {action}?"
    else:
        rewording = f"{where}what is {thing} {action} called?" if noun else f"{where}what is it that {action}?"
    fields = {"where": where, "which": which, "action": action, "again": rewording, "thing": thing, "name": code(name)}
    fields["subject"] = phrase(source, name, noun) if scope else code(name)
    subject, brief = f"{source.title if scope else ''}: {bare(action)}", _VALUE if noun == "value" else _NAME
    return fact_of(source, subject, "name", name, _english_wordings("described"), fields, brief)


def summarised(source: Source, name: str, noun: str, text: str) -> Fact | None:
    """Return the fact that asks for a name by a description that is not a verb phrase."""
    text, noun = text.rstrip("."), noun or "entry"
    where = f"of {source.shown}" if code_like(source.title) else f"in {source.shown}"
    fields = {"noun": noun, "where": where, "within": where.replace("of ", "in ", 1), "text": text, "name": code(name)}
    fields |= {"subject": phrase(source, name, noun), "a": "an" if noun[0] in "aeiou" else "a"}
    subject, brief = f"{source.title}: {bare(text)}", _VALUE if noun == "value" else _NAME
    return fact_of(source, subject, "name", name, _english_wordings("summarised"), fields, brief)


def defined(source: Source, name: str, what: str) -> Fact | None:
    """Return the fact that asks for a name by its definition ``what``, which begins with an article."""
    fields = {"page": source.shown, "what": what, "name": name}
    return fact_of(source, f"{source.title}: {what}", "name", name, _english_wordings("defined"), fields, _NAME)


def used(
    source: Source, name: str, noun: str, verb: str, purpose: str, extra: str = "", *, scope: bool = False
) -> Fact | None:
    """Return the fact for what to use, set or run for a ``purpose`` (without its "to"); ``scope`` names the page."""
    purpose, verb, means = purpose.rstrip(".,"), verb.lower(), bare(name)
    fields = {"purpose": purpose, "verb": verb, "extra": extra, "act": f"{verb}{extra}", "name": code(means)}
    fields |= {"which": f"which {noun}", "thing": f"the {noun}"} if noun else {"which": "what", "thing": "what"}
    fields["where"] = f"according to {source.shown}, " if scope else ""
    subject = f"{verb}{extra}: {bare(purpose)}"
    return fact_of(source, subject, "means", means, _english_wordings("used"), fields, _NAME)


def replaced(source: Source, old: str, new: str, verb: str, sentence: str) -> Fact | None:
    """Return the fact for the replacement or, if ``verb`` is "renamed", the new name of something."""
    fields = {"old": code(old), "new": code(new)}
    return fact_of(source, bare(old), "successor", new, _english_wordings(verb), fields, _NAME, sentence)
