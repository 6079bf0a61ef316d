"""Sentences of running text, verbatim, from which questions are built."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import accumulate
from typing import NamedTuple

from recovery.data.corpus.documents import Document
from recovery.data.corpus.languages import Language, languages
from recovery.data.corpus.markdown import LONGEST_PARAGRAPH, References, inline, parse
from recovery.data.corpus.text import (
    SENTENCE_ENDS,
    SMALL_NAME,
    WIDE_ENDS,
    begins_like_a_sentence,
    normalise,
    paragraphs,
    share,
    word_count,
    words,
)

# Filter for self-contained sentences: no anaphora, no references to other text, no fragments.

_ANAPHORIC = words(
    "it they he she which this that these those its their his her such both here then also but and so or however "
    "otherwise instead thus therefore hence similarly note accordingly again likewise conversely moreover furthermore "
    "nevertheless consequently previously neither either another other others more"
)
_PHRASES = (
    "for example|for instance|in particular|in addition|in other words|in general|as a result|as a consequence|"
    "on the other hand|on the contrary|doing so|the former|the latter|the same|the others?"
)
_CASES = r"in (?:all|both|either|each|any|some|most|other|neither|many)(?: \w+)? cases?"
_REFERRING = "this|these|those|such|them|it|they|he|she|both|neither|either"
_INTRO = "in|on|at|by|from|since|until|under|with|within|without|for|before|after|during|across|through|to"
_LEANS = re.compile(
    rf"(?:{_PHRASES}|{_CASES})\b"
    rf"|\w+(?: of| that)? (?:{_REFERRING})\b"  # "If this ...", "Most of them ..."
    rf"|(?:{_INTRO})\b[^,;.]{{0,60}}, (?:it|they|he|she|this|these|those)\b"  # "From now on, they ..."
    rf"|(?:{_INTRO})(?: [\w-]+){{1,5}} (?:it|they|he|she)\b"  # "In earlier versions they ..."
    r"|[^,;.]{0,100}\b(?:this|these|those|such (?!as\b))",  # "Some of the rules for these ..."
    re.IGNORECASE,
)
_REFERS = re.compile(
    r"\b(?:the|these|this|those) (?:following|above|below|preceding|previous|former|latter|example)\b"
    r"|\b(?:as|shown|listed|described|given|mentioned|defined|discussed|see|also|explained) "
    r"(?:above|below|follows|earlier)\b"
    r"|\betc\.|\b(?:above|below|aforementioned)[.,;:)]|\bexamples? (?:above|below|shows?|given)\b",
    re.IGNORECASE,
)
_FOREIGN = re.compile(r"https?://|[{}<>=|\\]|\w\(|\.\.\.|__|::|(?<!\w)--\w")  # code and URLs in running text
_FEWEST_WORDS, _MOST_WORDS, _LETTERS = 6, 45, 0.78
# macOS, eBay, pH; the name of a setting would begin an entry, not a sentence.
_SMALL_BRAND = re.compile(r"(?:[a-z][A-Z]|[a-z]{2,3}[A-Z]{2})\w*(?=[\s'’,])")
_OPENING_SIGNS = "\"'“„«「『"
_ENDS = frozenset(f"{SENTENCE_ENDS}{WIDE_ENDS}\"')”»」』）") - set("?？؟")  # no questions
_PAIRS = (("(", ")"), ("[", "]"), ("“", "”"), ("«", "»"), ("「", "」"), ("『", "』"), ("（", "）"))


class _OtherLanguages(NamedTuple):
    """Languages besides English: their anaphoric words in scripts without spaces, and references to other text."""

    languages: tuple[Language, ...]
    prefixes: tuple[str, ...]
    refers: re.Pattern[str]


@cache
def _other_languages() -> _OtherLanguages:
    others = tuple(language for language in languages().values() if language.fact is not None)
    prefixes = tuple(word for language in others if not language.frequent for word in language.leaning)
    refers = "|".join(re.escape(phrase) for language in others for phrase in language.referring)
    return _OtherLanguages(others, prefixes, re.compile(refers, re.IGNORECASE))


def leans(plain: str) -> bool:
    """Return whether a sentence depends on the one before it: it begins with a pronoun or another anaphoric phrase."""
    start = plain.lstrip("\"'(")
    first = re.match(r"\w+", start)
    if first and (first[0].lower() in _ANAPHORIC or _is_pronoun_elsewhere(first[0].lower(), plain)):
        return True
    return start.startswith(_other_languages().prefixes) or bool(_LEANS.match(start))


def _is_pronoun_elsewhere(first: str, plain: str) -> bool:
    """Return whether a sentence's first word is a pronoun in its language: "il" is one in French, not in Italian."""
    pronoun = [language for language in _other_languages().languages if first in language.leaning]
    other = [language for language in _other_languages().languages if first in language.frequent - language.leaning]
    if not pronoun or not other:
        return bool(pronoun)
    sentence_words = re.findall(r"\w+", plain.lower())

    def hits(language: Language) -> int:
        return sum(word in language.frequent or word in language.leaning for word in sentence_words)

    return max(map(hits, pronoun)) >= max(map(hits, other))


def usable(plain: str) -> bool:
    """Return whether a sentence is complete, self-contained running text: no fragment, code or reference."""
    if leans(plain) or _REFERS.search(plain) or _other_languages().refers.search(plain):
        return False
    return _is_complete(plain) and running(plain)


@lru_cache(maxsize=64)  # called directly, and again by ``usable``
def running(plain: str) -> bool:
    """Return whether text is running text of a sentence's length: no code, URL or table."""
    if not _FEWEST_WORDS <= word_count(plain) <= _MOST_WORDS or _FOREIGN.search(plain):
        return False
    # Marks of letters too, such as the vowel signs of Hindi or Thai.
    letters = sum(c.isspace() or c.isalpha() or unicodedata.category(c).startswith("M") for c in plain)
    return letters / len(plain) > _LETTERS


def _is_complete(plain: str) -> bool:
    """Return whether a sentence has a proper start and end and balanced brackets and quotation marks."""
    first = plain[1:] if plain.startswith(tuple(_OPENING_SIGNS)) else plain
    if plain.startswith("See ") or not first or plain[-1] not in _ENDS:
        return False
    if not begins_like_a_sentence(first[0]) and not _SMALL_BRAND.match(first):
        return False
    paired = all(plain.count(pair[0]) == plain.count(pair[1]) for pair in _PAIRS)
    return paired and plain.count('"') % 2 == 0


_ABBREVIATIONS = words(
    "mr mrs ms dr prof sr jr st vs etc e.g i.e eg ie cf al inc ltd co corp no nos vol fig figs sec ch pp p ed eds "
    "approx dept est gen gov lt col sgt capt rev hon jan feb mar apr jun jul aug sep sept oct nov dec u.s u.k a.m p.m "
    "гг ул им см рис стр др проф акад тыс руб напр π.χ δηλ κ.λπ σελ αρ"
)
# Abbreviations before a lower-case word; before a capital they may end a sentence: "Set the max. The ...".
_SHORTENED = _ABBREVIATIONS | words(
    "abbr acad ann art assoc asst attn avg bldg bull chap chem conf conj cont contd diff dist econ edn encl equiv esp "
    "excl ext govt hist ibid incl indef intl introd masc math max misc natl orig para pers phys prev prob proc publ "
    "qty ref repr resp soc spec specif subj suff suppl symp temp trans transl univ usu var ver viz"
)
# The spaces before a sentence, and its first letter; after the full stop of Chinese or Japanese no space is needed.
_CLOSING, _OPENING = "\"')\\]*_`”»」』）", "\"'(\\[*_`“„«¿¡"
_BOUNDARY = re.compile(
    rf"(?<=[{SENTENCE_ENDS}])[{_CLOSING}]*(?P<gap>\s+)(?=[{_OPENING}]*(?P<first>[^\W_]))"
    rf"|(?<=[{WIDE_ENDS}])[{_CLOSING}]*(?P<none>\s*)(?=[^\s{_CLOSING}{WIDE_ENDS}])"
)
_DOTTED = re.compile(r"(?:[^\W\d]\.)+[^\W\d]")  # e.g
_LONG = 4  # letters of a word that is no abbreviation
_SPAN = 100  # characters in which the last word before a sentence is
_GAP = rf"(?:\s+(?:>\s*)*|(?<=[{WIDE_ENDS}]))"
_QUOTED = re.compile(r"\n[ \t]*>[ \t>]*")
_OPENER = re.compile(r"(?:The|A|An|It|In|If|On|At|To|This|That|They|We|You|He|She|When|For|After|Before|No|All)\b")
_PROSE = re.compile(  # not the name of an entry
    rf"[{SENTENCE_ENDS}{WIDE_ENDS}:;,：；，、]\s*$|[^\W\dA-Z_]\. [^\W\da-z_]|^\s*(?:[-*+•>|#]|\d+[.)])\s"
)
_LONGEST_ENTRY, _LONGEST_NAME = 10, 60  # words, characters
_TERM = re.compile(r"[^:\n]{1,100}:\s+(?=[A-Z])")  # before its definition
_PAGES = (".html", ".htm", ".epub", ".rst", ".adoc", ".asciidoc")
_ROLES = (  # of reStructuredText, and its links
    re.compile(r":[\w:+.-]+:`~?([^`<]+?)(?:\s*<[^`>]*>)?`"),
    re.compile(r"`([^`<]+?)\s*<[^`>]*>`__?"),
)
_BY_REFERENCE = re.compile(r"(?<![\w\])`])\[([^\[\]]+)\]\[[^\[\]]*\]")  # a link whose definition is elsewhere
_MOST_CHARACTERS = 5_000_000  # of the documents of which sentences are read
_NO_TEXT = ("|", "+-", ".. ", ">>>", "$")  # paragraphs that are tables, directives, prompts


@dataclass(frozen=True)
class Sentence:
    """A sentence, joined to the one before it if it depends on that.

    ``raw`` is verbatim, with markup and line breaks, ``plain`` without; ``heading`` is the nearest heading and ``lead``
    the verbatim title and headings above the sentence. ``alone`` is True if the sentence is self-contained.
    """

    document: str
    title: str
    heading: str
    lead: str
    raw: str
    plain: str
    alone: bool = True

    @property
    def key(self) -> str:
        """The normal form, which decides the ``side`` of the sentence."""
        return normalise(self.plain)


def side(sentence: Sentence) -> str:
    """Return "probe" or "question": the use of a sentence, decided by its wording alone.

    Probes are for evaluation and document questions for training, so no sentence is used for both.
    """
    return "probe" if share(sentence.plain, "side") < 0.5 else "question"


def plain_text(raw: str, references: References | None = None) -> str:
    """Return ``raw`` on one line without inline markup, except of a far too long paragraph.

    ``references`` are the definitions of links in the document; without them those in ``raw`` are taken.
    """
    if references is None and "]:" in raw and "\n" in raw:
        references = parse(raw).references
    if references:
        return _with_references(raw, references)
    return " ".join(map(_unmarked, [raw] if len(raw) <= LONGEST_PARAGRAPH else paragraphs(raw)))


@lru_cache(maxsize=256)  # a sentence is asked for several times in a row
def _unmarked(raw: str) -> str:
    return _with_references(_BY_REFERENCE.sub(r"\1", raw) if "][" in raw else raw, {})


def _with_references(raw: str, references: References) -> str:
    """Return a text without inline markup, that of reStructuredText included."""
    for pattern in _ROLES if "`" in raw else ():
        raw = pattern.sub(r"\1", raw)
    return inline(_QUOTED.sub("\n", raw), references, plain=True)


def sentences(documents: Sequence[Document], *, alone: bool = True) -> list[Sentence]:
    """Return the sentences of the documents, each wording once, in order: only self-contained ones if ``alone``.

    Of very many characters, a sample of whole documents, chosen by their wording, is read; it has far more sentences
    than are needed.
    """
    by_key: dict[str, Sentence] = {}
    for document in _sample(documents):
        for sentence in _document_sentences(document):
            if sentence.alone or not alone:
                by_key.setdefault(sentence.key, sentence)
    return list(by_key.values())


def _sample(documents: Sequence[Document]) -> Sequence[Document]:
    if sum(len(d.text) for d in documents) <= _MOST_CHARACTERS:
        return documents
    ranked = sorted(documents, key=lambda d: share(d.text[:2000], "sample"))
    before = accumulate((len(d.text) for d in ranked), initial=0)
    chosen = {d.id for d, characters in zip(ranked, before, strict=False) if characters < _MOST_CHARACTERS}
    return [d for d in documents if d.id in chosen]


def _document_sentences(document: Document) -> Iterator[Sentence]:
    place = _Place(document.title)
    terms = document.source.lower().endswith(_PAGES)
    parsed = parse(document.text)
    for number, token in enumerate(parsed.tokens):
        if token.level == 0 and token.map and token.type not in ("fence", "code_block"):
            place.pass_by(parsed.lines[token.map[0]])
        if token.type != "inline" or not token.map:
            continue
        text, opening = token.content, parsed.tokens[number - 1]
        if parsed.level(number - 1) and opening.map:
            above = "\n".join(parsed.lines[slice(*opening.map)]).strip("\n")
            place.enter(plain_text(text, parsed.references), above)
            continue
        if token.level == 1:
            following = next((line for line in parsed.lines[token.map[1] :] if line.strip()), "")
            text = place.without_entry(text, parsed.lines[slice(*token.map)], following)
        elif terms and parsed.tokens[number - 2].type == "list_item_open":
            text = _without_term(text)
        if text.startswith(_NO_TEXT):
            continue
        source_text = "\n".join(parsed.lines[slice(*token.map)])
        for raw in (_verbatim(joined, source_text) for joined in glued(split_sentences(text))):
            if running(plain := plain_text(raw, parsed.references)):
                yield Sentence(document.id, document.title, place.name, place.lead, raw, plain, usable(plain))


@dataclass
class _Place:
    """Position in a document: the title, headings and entry above the next sentence."""

    title: str
    heading: str = ""
    top: str = ""
    above: str = ""
    entry: str = ""
    depth: int = 0

    @property
    def name(self) -> str:
        """The nearest heading or entry on one line; a long signature without its arguments."""
        if not self.entry:
            return self.heading
        name = plain_text(self.entry.split("\n")[0])
        return name if len(name) <= _LONGEST_NAME else name.split("(")[0]

    @property
    def lead(self) -> str:
        """Title, heading and entry, verbatim."""
        parts = dict.fromkeys((self.top or self.title, self.above, self.entry))
        return "".join(f"{part}\n\n" for part in parts if part)

    def pass_by(self, line: str) -> None:
        """Handle the first line of a block: it ends the entry unless it is deeper."""
        if _indent(line) <= self.depth:
            self.entry = ""

    def enter(self, heading: str, lines: str) -> None:
        """Begin the section below a heading."""
        self.heading, self.above, self.entry = heading, lines, ""
        self.top = self.top or lines

    def without_entry(self, text: str, lines: list[str], following: str) -> str:
        """Return the text of a paragraph without an entry at its beginning."""
        entry, rest = _split_entry(lines, following)
        if not entry:
            return text
        self.entry, self.depth = entry, _indent(entry)
        return rest


def _verbatim(joined: str, text: str) -> str:
    """Return joined sentences as in the text, with the white space and quote marks between them."""
    if joined in text:
        return joined
    match = re.search(_GAP.join(map(re.escape, joined.split())), text)
    return match[0] if match else joined


def _indent(block: str) -> int:
    return len(block) - len(block.lstrip(" "))


def _split_entry(lines: list[str], following: str) -> tuple[str, str]:
    """Return a reference entry (a name or signature above an indented text) and its text in the same paragraph."""
    deeper = [n for n, line in enumerate(lines) if _indent(line) > _indent(lines[0])]
    head, body = (lines[: deeper[0]], lines[deeper[0] :]) if deeper else (lines, [])
    indented = len(deeper) == len(body) and _indent(body[0] if body else following) > _indent(lines[0])
    if not indented or any(_PROSE.search(line) or word_count(line) > _LONGEST_ENTRY for line in head):
        return "", ""
    return "\n".join(head), "\n".join(body).strip()


def _without_term(item: str) -> str:
    """Return a list item without its term, if its first sentence is usable only without the term."""
    term = _TERM.match(item)
    definition = item[term.end() :] if term else ""
    return definition if definition and not _begins_usable(item) and _begins_usable(definition) else item


def _begins_usable(text: str) -> bool:
    return usable(plain_text(next(iter(glued(split_sentences(text))), "")))


@cache
def _abbreviations() -> frozenset[str]:
    """Return the abbreviations of all languages, whose full stop ends no sentence."""
    return _ABBREVIATIONS.union(*(language.abbreviations for language in languages().values()))


def split_sentences(text: str) -> list[str]:
    """Split ``text`` after full stops, question and exclamation marks that end a sentence."""
    parts, start = [], 0
    for match in _BOUNDARY.finditer(text):
        end = match.start("none" if match["gap"] is None else "gap")
        small = match["first"] and not begins_like_a_sentence(match["first"])
        if small and re.search(r"\n[ \t]", match["gap"]):  # code below a comment
            continue
        if small and not _begins_lower(text[max(start, end - _SPAN) : end], text[match.end() : match.end() + _SPAN]):
            continue
        head = text[start:end]
        last = re.search(r"(?<![\w.])([\w.]+)\.[\"')\]]*$", head)
        letter = last[1] if last and len(last[1]) == 1 else ""
        # One capital, or one letter of another script: Russian abbreviates with small ones.
        initial = letter.isupper() or (letter.islower() and not letter.isascii())
        initial = initial and not _OPENER.match(text[match.end() :])
        if last and (last[1].lower() in _abbreviations() or initial):
            continue
        parts.append(head.strip())
        start = match.end()
    parts.append(text[start:].strip())
    return [p for p in parts if p]


def _begins_lower(head: str, rest: str) -> bool:
    """Return whether a sentence may begin in lower case: with a name, or after a word that is not an abbreviation.

    The full stop must not be within a quotation: "Stop." he said.
    """
    ended = head.rstrip("*_`)]")
    rest = rest.lstrip(_OPENING)
    if not ended.endswith(".") or ended.endswith("..") or not rest[:1].isascii():
        return False
    word = ended[:-1].rsplit(None, 1)[-1:]
    last = word[0].strip("\"'`*_()[]").lower() if word else ""
    if len(last) < 2 or last in _SHORTENED or last in _abbreviations() or _DOTTED.fullmatch(last):
        return False
    return bool(SMALL_NAME.match(rest)) or (len(last) >= _LONG and not last[-1].isdecimal())


def glued(parts: list[str]) -> list[str]:
    """Join each sentence that depends on the one before it to that one."""
    joined: list[str] = []
    for part in parts:
        if joined and leans(plain_text(part)):
            joined[-1] = f"{joined[-1]} {part}"
        else:
            joined.append(part)
    return joined
