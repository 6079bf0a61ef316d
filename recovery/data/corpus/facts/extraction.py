"""Fact extraction: apply every rule to every block, drop ambiguous facts, and sample evenly over documents.

Facts from lists of options, parameters or tools ("`name` (default `x`): what it does") and their nested items.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain

from recovery.data.corpus.documents import Document
from recovery.data.corpus.facts import prose, templates
from recovery.data.corpus.facts.blocks import ListItem, Paragraph, Section, Table, blocks, sentences_in
from recovery.data.corpus.facts.fact import Fact, noun_of
from recovery.data.corpus.facts.prose import from_text, kinds_in, titled
from recovery.data.corpus.facts.tables import described, from_change, from_table
from recovery.data.corpus.facts.templates import Source, bare, code, code_like, is_same_name
from recovery.data.corpus.languages import language_of, language_within
from recovery.data.corpus.text import normalise, share, with_other_decimals

# Facts from paragraphs of a reference about an entry: "Default: `3`", "Type: int", "New in version 2.1".
#
# An entry is a section or a list item whose name is code.

_VALUE = r"`[^`]+`|\"[^\"]+\"|'[^']+'|[-+.\w/$%:@]*[\w%](?: [-+.\w/%]*[\w%]){0,3}"
# After the value only a bracket, or another sentence.
_DEFAULT = re.compile(
    rf"Default(?: value)?: ?(?P<value>{_VALUE})(?P<bracket> ?\((?:[^()]|\([^()]*\))*\))?(?:[.;](?: .*)?)?"
)
_TYPE = re.compile(r"Type: ?(?P<value>`[^`]+`|[A-Za-z][\w.\[\]]*(?:(?:,| \||,? or) [A-Za-z][\w.\[\]]*){0,2})\.?")
_NOT_A_VALUE = re.compile(
    r"(?:an?|see|by|depends?|depending|varies|the|same|as|value|inherited|unset|not|derived|based|whatever|current|any|"
    r"all|your|this|it|when|if|for|in|on [a-z]|enabled? [a-z]|n/a)(?!\w)",
    re.IGNORECASE,
)
_OTHER_UNITS = re.compile(r" ?\(\d[\w. ]*\)")  # the value in other units
_CHANGE = re.compile(
    r"(?P<kind>New|Added|Changed|Deprecated|Removed) (?:in|since)(?: version)? (?P<version>v?\d+(?:\.\d+){1,3})"
    r"(?:, will be removed in version [\d.]+)?(?:[.:,]? (?P<text>\S.*)|[.:]?)"
)
_CHANGE_VERBS = {"New": "introduced", "Added": "introduced", "Deprecated": "deprecated", "Removed": "removed"}
_INSTEAD = re.compile(r"(?:Please )?[Uu]se (?:the )?`(?P<new>[^`]+)`(?: [a-z]+)?(?:,? instead)?\b.*")
_DEPRECATED = re.compile(r"\b(?:is|are|was|were) (?:now )?deprecated\b")
_WHOLE_ENTRY = re.compile(r"(?:This [a-z]+|It) is (?:now )?deprecated\b.*")
_NAMES_ONLY = re.compile(r"(?:The |An? )?(?:[a-z]+ )?`[^`]+`(?:,? (?:and )?`[^`]+`){0,3}(?: [a-z]+)?\.?")
_LISTED = re.compile(r"(?P<names>`[^`]+`(?:, `[^`]+`)*)(?=\s*(?:\(|[:–—]|-\s|$))")
_CALL = re.compile(r"(?:[a-z]+ )*(?P<name>[\w.]+)\(.*", re.DOTALL)
_PATH = re.compile(r"[A-Za-z_][\w.]*")


def section_facts(block: Paragraph, source: Source) -> Iterator[Fact | None]:
    """Yield the facts that a paragraph states about the subject of its section, or about names in the paragraph.

    Other version notes of a section in prose are left out: a manual has so many that they would be most questions.
    """
    if block.section is not None and (block.section.code or not _CHANGE.fullmatch(block.text)):
        yield from _stated_facts(block.text, block.section, source)
    elif (change := _CHANGE.fullmatch(block.text)) and _NAMES_ONLY.fullmatch(change["text"] or ""):
        yield from _change_facts(change["kind"], change["text"], change["version"], source)


def entry_facts(item: ListItem, source: Source) -> Iterator[Fact | None]:
    """Yield the facts that the paragraphs and the fields below a list item state about the name that it begins with.

    An item without a name may be a field of the section: "- Default: 3".
    """
    if entry := described_entry(item):
        for text in (*item.parts[1:], *item.below):
            yield from _stated_facts(text, entry, source)
    elif item.section is not None and not item.within and (item.section.code or not _CHANGE.fullmatch(item.text)):
        yield from _stated_facts(item.text, item.section, source)


def described_entry(item: ListItem) -> Section | None:
    """Return the entry that a list item describes, by the code that it begins with; of "-f, --file" the last name."""
    name, holder = leading_name(item.parts[0]), leading_name(item.within)
    if not name:
        return None
    if holder.endswith("()") and _PATH.fullmatch(name.removesuffix("()")):
        return Section(f"{holder.removesuffix('()')}.{name}")  # a method of a class
    nouns = (item.intro.rstrip(":").split(". ")[-1], item.heading)
    return Section(name, holder, next((noun for text in nouns if (noun := noun_of(text, plural=True))), ""))


def leading_name(text: str) -> str:
    """Return the name that a list item begins with, of a function without its arguments, or ""."""
    match = _LISTED.match(text)
    if match is None:
        return ""
    name = re.findall(r"`([^`]+)`", match["names"])[-1].strip("'\"")
    if call := _CALL.fullmatch(name):
        return f"{call['name']}()"
    name = re.split(r"[ =\[]", name)[0] if name.startswith("-") else name
    return "" if " " in name or re.search(r"[{:=<]", name) else name


def _stated_facts(text: str, entry: Section, source: Source) -> Iterator[Fact | None]:
    if change := _CHANGE.fullmatch(text):
        yield from _version_facts(change["kind"], change["text"] or "", change["version"], entry, source)
        return
    scoped = replace(source, title=code(entry.within)) if entry.within else source
    if (match := _DEFAULT.fullmatch(text)) and not _NOT_A_VALUE.match(match["value"]):
        other_units = match["bracket"] if _OTHER_UNITS.fullmatch(match["bracket"] or "") else ""
        yield templates.default(scoped, code(entry.name), entry.noun, bare(match["value"]) + other_units)
    elif match := _TYPE.fullmatch(text):
        yield templates.typed(scoped, code(entry.name), entry.noun, match["value"])


def _version_facts(kind: str, text: str, version: str, entry: Section, source: Source) -> Iterator[Fact | None]:
    """Yield the fact of a version note, about the entry or about a part of it that the note names."""
    instead = _INSTEAD.fullmatch(text) if kind == "Deprecated" else None
    is_whole_entry = not text or instead or (kind == "Deprecated" and _WHOLE_ENTRY.fullmatch(text))
    if kind in _CHANGE_VERBS and is_whole_entry:
        name = f"{code(entry.name)} in {code(entry.within)}" if entry.within else code(entry.name)
        yield templates.dated(source, name, _CHANGE_VERBS[kind], version)
        if instead and not entry.within:
            yield templates.replaced(source, entry.name, instead["new"], "replaced", "")
    elif text:
        title = f"{entry.name} in {entry.within}" if entry.within else code(entry.name)
        yield from _change_facts(kind, text, version, replace(source, title=title))


def _change_facts(kind: str, text: str, version: str, about: Source) -> Iterator[Fact | None]:
    """Yield the fact of a change that a note states: "The `x` argument was added", or only "`x` and `y`"."""
    if kind in _CHANGE_VERBS and _NAMES_ONLY.fullmatch(text):
        names = templates.lowered(text.rstrip("."))
        yield templates.dated(about, names, _CHANGE_VERBS[kind], version, plural=text.count("`") > 2)
    elif (kind != "Deprecated" or _DEPRECATED.search(text)) and len(re.sub(r"`[^`]*`", "", text).split()) >= 2:
        yield from from_change(text, version, about)


# An option of a manual, with its value, which Markdown may take for a tag: "-s, --strategy=<strategy>".
_FLAG = r"(?:-\w, ?)?(?P<flag>--?[A-Za-z][\w-]*)(?:[ =]?(?:<[^<>]*>|\[[^\[\]]*\]|\([^()]*\)|[A-Z][A-Z_-]*))*=?"
_ENTRY = re.compile(
    rf"(?:`(?P<name>[^`]+)`|{_FLAG})"
    r"(?P<notes>(?:\s*\([^()]*(?:\([^()]*\)[^()]*)*\))*)\s*(?:[:–—]|-(?=\s))\s*(?P<rest>.*)"
)
_MENTIONED = re.compile(r"(?:The |An? )?`(?P<name>[^`]+)` (?P<noun>[a-z]+)\b")
_TYPED = re.compile(r"`(?P<type>[^`]+)`\s*[-–—:]\s*(?P<rest>.*)")
_IN_NOTES = re.compile(r"\(default(?:s to| is)?:?\s+([^()]+)\)", re.IGNORECASE)
# Only of the option itself: "the starting point defaults to" states the default of another subject.
_STATED = re.compile(
    r"(?:^|[.;,(:]\s*|(?:^|[.;]\s+)(?:It|This|This [a-z]+|The)\s|\b(?:and|which)\s)"
    r"(?:[Dd]efaults to|(?:the )?[Dd]efault(?: value)?(?: is|:))\s+"
    r"(`[^`]+`|[\w$-][\w$./ -]*?)(?=[.,;)]?\s*$|[.,;)]\s|\s\()"
)
# A conditional value is no default, except under the condition that the option is omitted.
_CONDITIONAL = re.compile(
    r"\b(?:if|when|where|unless|otherwise|case)\b(?! (?:it is )?(?:omitted|unset|not (?:given|set|specified)))[^.]*$",
    re.I,
)
# Only code or a number: a word may name the thing that is the default, "(default bundler)".
_AT_THE_END = re.compile(r"\(default (`[^`]+`|[-$]?\d[\w$./-]*)\)\.?$")
_ONLY_DEFAULT = re.compile(r"\(default\)", re.IGNORECASE)
_TYPE_WORDS = re.compile(r"[A-Z][\w<>{}\[\], |]*|(?:string|boolean|number|object|function|any)\b.*", re.DOTALL)


def from_item(item: ListItem, source: Source) -> Iterator[Fact | None]:
    """Yield the facts of one list item."""
    noun = noun_of(item.intro.rstrip(":").split(". ")[-1], plural=True) or noun_of(item.heading, plural=True)
    match = _ENTRY.match(item.text)
    if match is None:
        mentioned = _MENTIONED.match(item.text)
        if mentioned and (noun := noun_of(mentioned["noun"])):
            yield from _nested_defaults(item, templates.code(mentioned["name"]), noun, source)
        return
    name, remaining = templates.code((match["name"] or match["flag"]).strip("'\"")), match["rest"]
    if (match["flag"] or "").startswith("--no-"):  # its text describes the positive option
        return
    noun = noun or ("option" if match["flag"] else "")
    function = leading_name(item.within) if noun in ("parameter", "argument") else ""
    if function.endswith("()"):  # other functions have parameters of this name
        source = replace(source, title=function)
    if len(name.split()) > 3 or re.search(r"[{:=]", name):
        return
    if _ONLY_DEFAULT.search(match["notes"]) and code_like(source.title) and not is_same_name(name, source.title):
        yield templates.default(source, source.title, "", name)
    if default := _IN_NOTES.search(match["notes"]):
        noun = noun or "option"
        yield templates.default(source, name, noun, default[1])
    elif (default := _STATED.search(remaining) or _AT_THE_END.search(remaining)) and not (
        default[1].startswith("to ") or _CONDITIONAL.search(remaining[: default.end(1)])
    ):
        yield templates.default(source, name, noun, default[1])
    if (typed := _TYPED.match(remaining)) and _TYPE_WORDS.fullmatch(typed["type"]):
        yield templates.typed(source, name, noun, typed["type"])
        remaining = typed["rest"]
    yield described(source, name, noun, _STATED.sub("", remaining))
    yield from _nested_defaults(item, name, noun, source)


def _nested_defaults(item: ListItem, name: str, noun: str, source: Source) -> Iterator[Fact | None]:
    """Yield the default that a nested item states."""
    for text in item.below:
        if found := re.fullmatch(r"Default(?: value)?:\s*(.+?)(?:\s*\([^)]*\))?\.?", text):
            yield templates.default(source, name, noun, bare(found[1]))


MOST_A_DOCUMENT, ONE_DOCUMENT = 200, 20


def facts_of(documents: Sequence[Document]) -> list[Fact]:
    """Return the facts of the documents, in order, each key once.

    Ambiguous facts (a key or question with two answers, in one document or several) are dropped. Of a document with
    more than ``MOST_A_DOCUMENT`` facts, a sample by key is kept.
    """
    by_document = [_sample_by_key(list(_document_facts(document))) for document in documents]
    return _unambiguous([fact for facts in by_document for fact in facts])


def pick_facts(facts: Iterable[Fact], count: int, seed: int) -> list[Fact]:
    """Return up to ``count`` facts, one per document in turn; facts with a guessable value come last.

    No document contributes more facts than all others together (at least ``ONE_DOCUMENT``), so that a long table does
    not dominate.
    """
    queues: dict[str, list[Fact]] = defaultdict(list)
    for fact in sorted(facts, key=lambda f: (f.guessed, share(f.key, f"fact {seed}"))):
        queues[fact.document].append(fact)
    total = sum(map(len, queues.values()))
    if len(queues) > 1:
        queues |= {d: queue[: max(ONE_DOCUMENT, total - len(queue))] for d, queue in queues.items()}
    order = sorted(queues, key=lambda document: share(document, f"document {seed}"))
    ranked = [(f.guessed, turn, rank, f) for rank, d in enumerate(order) for turn, f in enumerate(queues[d])]
    return [f for *_, f in sorted(ranked, key=lambda entry: entry[:3])][:count]


def _document_facts(document: Document) -> Iterator[Fact]:
    likely = language_of(document.text)
    kinds = kinds_in(document.text)
    first = True
    for block in blocks(document):
        source = Source(document.id, document.title, block.heading)
        facts: Iterable[Fact | None]
        # Few words of a table are function words, and its header is translated first.
        language = likely if isinstance(block, Table) else language_within(block.text, likely)
        if language.fact:
            facts = prose.from_block(block, source, language.fact, language.headers)
            if language.decimal_comma:  # "1.5" for "1,5" too, and the other way round
                pairs = ((f, (*f.answers, *map(with_other_decimals, f.answers))) for f in facts if f is not None)
                facts = (replace(fact, answers=tuple(dict.fromkeys(answers))) for fact, answers in pairs)
        elif isinstance(block, Table):
            facts = from_table(block, source)
        elif isinstance(block, ListItem):
            facts = chain(from_item(block, source), from_text(block.text, source, kinds), entry_facts(block, source))
        else:
            facts = chain(from_text(block.text, source, kinds), section_facts(block, source))
            if first and len(sentences_in(block.text)) == 1:
                facts = chain(facts, [titled(block.text, source, kinds)])
            first = False
        yield from (fact for fact in facts if fact is not None)


def _sample_by_key(facts: list[Fact]) -> list[Fact]:
    if len(facts) <= MOST_A_DOCUMENT:
        return facts
    kept = set(sorted({f.key for f in facts}, key=lambda key: share(key, "spread"))[:MOST_A_DOCUMENT])
    return [f for f in facts if f.key in kept]


def _unambiguous(facts: list[Fact]) -> list[Fact]:
    """Return each key once, without facts whose key or a question of theirs has another answer elsewhere."""
    answers: dict[str, set[str]] = defaultdict(set)
    for fact in facts:
        for name in (fact.key, *map(normalise, fact.questions)):
            answers[name].add(normalise(fact.value))
    kept: dict[str, Fact] = {}
    for fact in facts:
        if all(len(answers[name]) == 1 for name in (fact.key, *map(normalise, fact.questions))):
            kept.setdefault(fact.key, fact)
    return list(kept.values())
