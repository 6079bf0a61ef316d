"""Questions for gaps: a wh-question where the sentence has a simple form, else a cloze."""

from __future__ import annotations

import re

from recovery.data.corpus.cloze import Gap
from recovery.data.corpus.languages import Language
from recovery.data.corpus.sentences import Sentence, plain_text
from recovery.data.corpus.text import words

BLANK = "____"
_MARK = "\u241f"  # BLANK could be taken for emphasis while markup is removed
_SORT = {"number": "number", "name": "name", "term": "word"}
_BE = r"(is|are|was|were)"
_SUBJECT = r"([A-Z][\w-]*(?: [\w'’-]+){0,7}?)"
_NO_SUBJECT = words(
    "it they he she we you i this that these those there here what which who in on at by for from with to of as after "
    "before since until under"
)
_DETERMINERS = words("the a an its this each every our your their his her my most all both")
_CLAUSES = words("if when that which who because while then there is are was were be has have had can will must")
_IRREGULAR = words("built made held kept sent set written run led known given sold bought found taught")
_COPULA = re.compile(rf"{_SUBJECT} {_BE} $")
_NAMED = re.compile(rf"{_SUBJECT} {_BE} (called|named|known as) $")
_PASSIVE = re.compile(rf"{_SUBJECT} {_BE} ([a-z]+)((?: [a-z]+)?) (in|on|at|from|by|for|to|with|after) $")


def cloze(gap: Gap) -> str:
    """Return the sentence on one line, without markup, with the answer blanked."""
    return plain_text(f"{gap.before}{_MARK}{gap.after}").replace(_MARK, BLANK)


def missing(gap: Gap) -> str:
    """Return the kind of the missing answer: "number", "name", "word" or "words"."""
    return "words" if " " in gap.answer and gap.kind != "number" else _SORT[gap.kind]


def gap_question(gap: Gap, form: str, language: Language) -> str:
    """Return a question for a gap in one of the language's forms."""
    kind = missing(gap)
    return form.format(
        title=place_of(gap.sentence),
        sentence=cloze(gap),
        missing=language.missing[kind],
        are="are" if kind == "words" else "is",
    )


def place_of(sentence: Sentence) -> str:
    """Return the title of a sentence, and its heading if neither contains the other."""
    title, heading = (t.replace('"', "") for t in (sentence.title, sentence.heading))
    if heading and heading.casefold() not in title.casefold() and title.casefold() not in heading.casefold():
        return f"{title}, {heading}"
    return title


def wh_question(gap: Gap) -> str | None:
    """Return the sentence as a question ("The port is 8443." -> "what is the port?"), or None if it is not simple."""
    before, after = plain_text(gap.before) + " ", plain_text(gap.after)
    if after not in (".", "!") or re.search(r"\b(?:not|no|never)\b", before):
        return None
    if match := _NAMED.fullmatch(before):
        subject = _subject(match[1])
        return f"what {match[2]} {subject} {match[3]}?" if subject else None
    if gap.kind != "term" and (match := _COPULA.fullmatch(before)):  # a term could be an adjective
        subject = _subject(match[1])
        who = "who or what" if gap.kind == "name" else "what"
        return f"{who} {match[2]} {subject}?" if subject else None
    if (match := _PASSIVE.fullmatch(before)) and (match[3].endswith("ed") or match[3] in _IRREGULAR):
        subject = _subject(match[1])
        year = gap.kind == "number" and re.fullmatch(r"1[5-9]\d\d|20\d\d", gap.answer) and match[5] == "in"
        what = "what year" if year else "what"
        what = "whom or what" if match[5] == "by" else what
        return f"{match[5]} {what} {match[2]} {subject} {match[3]}{match[4]}?" if subject else None
    return None


def _subject(text: str) -> str | None:
    """Return a self-contained subject with a lower-case article; None for pronouns, phrases and clauses."""
    parts = text.split()
    first = parts[0].lower()
    if first in _NO_SUBJECT or (first in _DETERMINERS and len(parts) < 2):
        return None
    if set(text.lower().split()) & _CLAUSES:
        return None
    return " ".join([first if first in _DETERMINERS else parts[0], *parts[1:]])
