"""Facts from sentences of a simple shape: definitions, purposes, defaults, versions, successors."""

from __future__ import annotations

import re
from collections.abc import Iterator

from recovery.corpus.facts import wording
from recovery.corpus.facts.blocks import sentences_in
from recovery.corpus.facts.nouns import KINDS, noun_of, third_person
from recovery.corpus.facts.record import Fact
from recovery.corpus.facts.tables import VERSION
from recovery.corpus.facts.wording import Source, bare, code_like, same, squeezed

_KIND = r"(?P<noun>(?:[a-z-]+ ){0,2}?(?:" + "|".join(sorted(KINDS)) + r"|API|hook))"
_CODE = r"`(?P<name>[^`]+)`"
_LEANING = re.compile(
    r"\b(?:this|these|those|above|below|following|such|it|its|they|them|their|here|also|then)\b", re.I
)
_SUBJECT = re.compile(rf"(?:The |An? )?(?:[a-z-]+ )?{_CODE} {_KIND} (?P<said>.+)")
_NAMED = re.compile(rf"{_CODE} (?P<said>[a-z]+s .+)")
_DEFINED = re.compile(rf"(?:The )?{_CODE}(?: [a-z]+)? (?:is|are) (?P<what>an? .+)")
_LETS = re.compile(r"(?P<thing>.+?) (?:that|which) (?P<said>(?:lets|allows|can|[a-z]+s) .+)")
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
_LONGEST, _FEWEST = 30, 4  # words of what is asked
_ALWAYS = re.compile(r"^(?:is|are|was|were|has|does)\b")


def from_text(text: str, source: Source, kinds: dict[str, str]) -> Iterator[Fact | None]:
    """The facts of running text; ``kinds`` say what a name is elsewhere in its document called."""
    before = ""
    for said in sentences_in(text):
        said = _NOTE.sub("", said)
        yield from _versions(said, source)
        yield from _defaults(said, before, source, kinds)
        yield from _successors(said, source)
        yield from _purposes(said, source)
        yield from _names(said, source, kinds)
        before = said


def kinds_in(text: str) -> dict[str, str]:
    """What each name in a text is called: "the `x` option" makes ``x`` an option."""
    pattern = re.compile(rf"`([^`\n]+)`\]?(?:\([^)]*\))? ((?:config |configuration )?(?:{'|'.join(sorted(KINDS))}))\b")
    found: dict[str, str] = {}
    for name, noun in pattern.findall(text):
        found.setdefault(squeezed(name), noun.split()[-1])
    return found


def _names(said: str, source: Source, kinds: dict[str, str]) -> Iterator[Fact | None]:
    """ "The `x` option controls ...": which option controls ...?"""
    if match := _SUBJECT.fullmatch(said):
        name, noun, told = match["name"], match["noun"], match["said"]
    elif match := _DEFINED.fullmatch(said):
        name, (noun, told) = match["name"], _turned(match["what"])
    elif match := _NAMED.fullmatch(said):
        name, told = match["name"], match["said"]
        noun = kinds.get(squeezed(name), "")
    else:
        return
    if not noun or not told or not said.endswith(".") or not _telling(told, name) or " " in name:
        return
    if third_person(told) or re.match(r"(?:lets|can) [a-z]", told):
        yield wording.described(source, name, noun, told, scope=not same(name, source.title))


def _turned(what: str) -> tuple[str, str]:
    """ "a hook that returns x" -> ("hook", "returns x")."""
    match = _LETS.fullmatch(what)
    if match is None:
        return "", ""
    thing = re.sub(r"^an? ", "", match["thing"])
    return (thing, match["said"]) if len(thing.split()) <= 6 and "`" not in thing else ("", "")


def _purposes(said: str, source: Source) -> Iterator[Fact | None]:
    """ "To do x, set `y`": what do you set to do x?"""
    match = _PURPOSE.fullmatch(said) or _USE.fullmatch(said) or _YOU_CAN.fullmatch(said)
    if match is None:
        return
    parts = match.groupdict()
    name, noun = parts["name"], parts.get("noun") or ""
    if not _telling(parts["purpose"], name) or len(name) > 40:
        return
    if re.match(r"\s*(?:,|and|or)\s", parts.get("rest") or ""):
        return  # only one of several
    if (parts.get("verb") or "").lower() == "set" and not parts.get("extra"):
        return  # a value, not what is set
    yield wording.used(source, name, noun, parts.get("verb") or "use", parts["purpose"], parts.get("extra") or "")


def _versions(said: str, source: Source) -> Iterator[Fact | None]:
    match = _WHEN.fullmatch(said) or _IN.fullmatch(said)
    if match is None or len(match["subject"].split()) > 12 or _LEANING.search(match["subject"]):
        return
    if not (VERSION.fullmatch(match["version"]) or match["product"]):
        return
    plural = match["was"] in ("were", "have been")
    subject, product = wording.lowered(match["subject"]), match["product"] or ""
    yield wording.dated(source, subject, match["done"], match["version"], plural=plural, product=product)


def _defaults(said: str, before: str, source: Source, kinds: dict[str, str]) -> Iterator[Fact | None]:
    if match := _DEFAULTS.search(said) if re.match(r"(?:The )?`|It ", said) else None:
        name = match["name"]
        if name is None:
            first = re.match(r"(?:The )?`([^`]+)`", before)
            name = first[1] if first else None
        if name is not None and match.start() == 0:
            noun = noun_of(match["noun"] or "") or kinds.get(squeezed(name), "")
            yield wording.default(source, wording.code(name), noun, match["value"])
    elif match := _DEFAULT_IS.fullmatch(said):
        set_before = re.search(r"\b[Ss]et (?:the )?`([^`]+)`", before)
        name = match["name"] or (set_before[1] if set_before else None)
        if name is not None:
            yield wording.default(source, wording.code(name), kinds.get(squeezed(name), ""), match["value"])


def _successors(said: str, source: Source) -> Iterator[Fact | None]:
    match = _RENAMED.fullmatch(said) or _INSTEAD.fullmatch(said)
    if match is None or len(match["old"].split()) > 3 or len(match["new"].split()) > 3:
        return
    verb = match.groupdict().get("verb") or "replaced"
    yield wording.replaced(source, match["old"], match["new"], "renamed" if verb == "renamed" else "replaced", said)


def _telling(told: str, name: str) -> bool:
    """Whether what is said of a name singles it out without naming it, and stands alone."""
    if not _FEWEST <= len(told.split()) <= _LONGEST or _LEANING.search(told) or _ALWAYS.match(told):
        return False
    if re.search(r"[:;]|https?://|\?", told) or told.count("(") != told.count(")"):
        return False
    plain = bare(told).lower()
    return bare(name).lower().rstrip("()") not in plain and squeezed(name) not in squeezed(told)


def titled(description: str, source: Source, kinds: dict[str, str]) -> Fact | None:
    """The summary of a page, asked for the name that is the page's title."""
    noun = kinds.get(squeezed(source.title), "")
    told = re.sub(r"^(?:Learn how to|How to|Use `[^`]+` to|Learn about how to) ", "", description).rstrip(". ")
    if not noun or not code_like(source.title):
        return None
    if re.match(r"(?:API [Rr]eference|Learn|Reference|Documentation)\b", told) or not _telling(told, source.title):
        return None
    if not re.match(r"[A-Z]?[a-z]+ ", told) or third_person(told):
        return None
    return wording.used(source, source.title, noun, "use", told[0].lower() + told[1:])
