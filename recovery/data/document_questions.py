"""Training questions about the documents, for distillation from the mid-trained teacher; disjoint from the probes.

Every sentence and every fact has a side by its wording: training questions are made from the side "question", probes,
which are never trained on, from the other (:mod:`evals.probe_building`). Beyond that :class:`ProbeGuard` drops what
asks for the same in other words. A rare word that two questions share is a sign that they do (:class:`Rarity`).
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

from recovery.data.corpus.cloze import Gap, Vocabulary, pick_gaps
from recovery.data.corpus.documents import Corpus, Document
from recovery.data.corpus.facts.extraction import facts_of, pick_facts
from recovery.data.corpus.facts.fact import Fact, Stated, content
from recovery.data.corpus.languages import Language, english, language_of, language_within, languages, languages_of
from recovery.data.corpus.sentences import Sentence, plain_text, sentences, side
from recovery.data.corpus.text import NUMBER_WORDS, normalise, spaced, unspaced_pairs, words
from recovery.data.prompt_files import load_prompts
from recovery.data.prompt_records import documents_of, question_prompt
from recovery.data.sources import QUESTIONS_FILE, given_beside
from recovery.types import Probe, Prompt

# Questions for gaps: a wh-question where the sentence has a simple form, else a cloze.

BLANK = "____"
_MARK = "\u241f"  # BLANK could be taken for emphasis while markup is removed
_KIND_NAMES = {"number": "number", "name": "name", "term": "word"}
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
_PASSIVE = re.compile(rf"{_SUBJECT} {_BE} ([a-z]+)((?: [a-z]+)?) (in|on|at|from|by|for|to|with|after|through|via) $")
_PLACE = re.compile(rf"{_SUBJECT} {_BE} (?:located |based )?(?:in|at) $")
# A number with a unit, or behind what it numbers, can be asked for where it stands: "Leave lasts how many weeks?"
# A unit is a plural, perhaps behind one other word ("calendar days"); words in -is, -us and -ss are singular.
_UNIT = re.compile(
    r" (?:(?!and|or|of|to|in|is|are|was|has)[a-z]+ )?"
    r"(?:(?!was|has|does)[a-z]{2,}(?<![iu]s)(?<!ss)s|percent|people)(?=[ .,!])"
)
_LABELS = "port floor room version level page chapter line building gate platform terminal zone tier phase stage"
_NUMBERED = re.compile(rf"(?P<start>.* )(?P<label>{_LABELS.replace(' ', '|')}|extension|form|article|section|channel) ")
_NOT_BEFORE = words("and or between first last next previous other another which that whose")
_UNSOUND = re.compile(
    r"\b(?:not|no|never|if|when|once|while|unless|whether|unlike|suppose|assume|imagine|example|e\.g|see)\b"
    r"|[:;?()\[\]<>|=`\"“]",
    re.IGNORECASE,
)
_YEAR = re.compile(r"1[5-9]\d\d|20\d\d")
_LONGEST_ASKED = 25  # words


def cloze(gap: Gap) -> str:
    """Return the sentence on one line, without markup, with the answer blanked."""
    return plain_text(f"{gap.before}{_MARK}{gap.after}").replace(_MARK, BLANK)


def gap_question(gap: Gap, form: str, language: Language) -> str:
    """Return a question for a gap in one of the language's forms."""
    kind = "words" if " " in gap.answer and gap.kind != "number" else _KIND_NAMES[gap.kind]
    are = "are" if kind == "words" else "is"
    return form.format(title=place_of(gap.sentence), sentence=cloze(gap), missing=language.missing[kind], are=are)


def place_of(sentence: Sentence) -> str:
    """Return the title of a sentence, and its heading if neither contains the other."""
    title, heading = (t.replace('"', "") for t in (sentence.title, sentence.heading))
    if heading and heading.casefold() not in title.casefold() and title.casefold() not in heading.casefold():
        return f"{title}, {heading}"
    return title


def wh_question(gap: Gap) -> str | None:
    """Return the sentence as a question ("The port is 8443." -> "what is the port?"), or None if it is not simple."""
    before, after = plain_text(gap.before) + " ", plain_text(gap.after)
    if question := _inverted(gap, before, after):
        return question
    if gap.kind != "number" or language_of(gap.sentence.plain) != english():
        return None
    return _in_place(before, gap.answer, f" {after}" if gap.after[:1].isspace() else after)


def _inverted(gap: Gap, before: str, after: str) -> str | None:
    """Return the question for a value at the end of a sentence, with the verb first."""
    if after not in (".", "!") or re.search(r"\b(?:not|no|never)\b", before):
        return None
    if match := _NAMED.fullmatch(before):
        subject = _subject(match[1])
        return f"what {match[2]} {subject} {match[3]}?" if subject else None
    if gap.kind != "term" and (match := _COPULA.fullmatch(before)):  # a term could be an adjective
        subject = _subject(match[1])
        pronoun = "who or what" if gap.kind == "name" else "what"
        return f"{pronoun} {match[2]} {subject}?" if subject else None
    if gap.kind == "name" and (match := _PLACE.fullmatch(before)):
        subject = _subject(match[1])
        return f"where {match[2]} {subject}?" if subject else None
    if (match := _PASSIVE.fullmatch(before)) and (match[3].endswith("ed") or match[3] in _IRREGULAR):
        subject = _subject(match[1])
        year = gap.kind == "number" and _YEAR.fullmatch(gap.answer) and match[5] == "in"
        pronoun_of_place = "what year" if year else "what"
        pronoun_of_place = "whom or what" if match[5] == "by" else pronoun_of_place
        return f"{match[5]} {pronoun_of_place} {match[2]} {subject} {match[3]}{match[4]}?" if subject else None
    return None


def unit_of(gap: Gap) -> str:
    """Return the unit after a number, with the space between them; "" if there is none."""
    unit = _UNIT.match(f" {plain_text(gap.after)}") if gap.after[:1].isspace() else None
    return unit[0] if unit else ""


def _in_place(before: str, answer: str, after: str) -> str | None:
    """Return the sentence with "how many" or "which" for its number: "Hotels cost up to how many euros a night?"."""
    earlier = before.split()
    text = f"{before}{after}"
    if len(earlier) < 2 or earlier[0].lower() in _NO_SUBJECT or len(text.split()) > _LONGEST_ASKED:
        return None
    if not after.endswith((".", "!")) or _UNSOUND.search(text) or re.search(r"(?<!\bup) to $", before):
        return None
    if numbered := _NUMBERED.fullmatch(before):
        asked = f"{numbered['start'].removesuffix('the ')}which {numbered['label']}{after}"
    elif _UNIT.match(after) and not _YEAR.fullmatch(answer) and not _NOT_BEFORE & {earlier[-1].lower()}:
        if _DETERMINERS & {word.lower() for word in earlier[-2:]}:  # "the main two servers"
            return None
        asked = f"{before}how many{after}"
    else:
        return None
    first = asked.split(" ", 1)[0]
    start = first.lower() if first.lower() in _DETERMINERS else first
    return f"{start}{asked[len(first) :].rstrip('.!')}?"


def _subject(text: str) -> str | None:
    """Return a self-contained subject with a lower-case article; None for pronouns, phrases and clauses."""
    parts = text.split()
    first = parts[0].lower()
    if first in _NO_SUBJECT or (first in _DETERMINERS and len(parts) < 2):
        return None
    if set(text.lower().split()) & _CLAUSES:
        return None
    return " ".join([first if first in _DETERMINERS else parts[0], *parts[1:]])


_STEM = 6  # letters: "constructed" and "construction" share them
_LONGEST = 12  # letters: longer words are mostly names in code, many of which share their beginning
_FEWEST_RARE, _SHARE = 3, 0.05
_ASKING = words("how many much do does did has have had who whom whose where why there year")
_SEPARATOR = re.compile(r"(?<=\d)(?:,(?=\d{3})|\s(?=\d{3}(?!\d)))")
_VERSION = re.compile(r"\bv(?=\d)")


class Rarity:
    """Counts of the sentences in which each word occurs, itself or in the title and heading above."""

    def __init__(self, sentences: Sequence[Sentence]) -> None:
        self._counts = Counter(stem for s in sentences for stem in stems(f"{place_of(s)} {s.plain}"))
        self._specific = max(_FEWEST_RARE, _SHARE * len(sentences))

    def specific(self, stem: str) -> bool:
        """Return whether a word is rare enough to identify the subject of a sentence."""
        return self._counts[stem] <= self._specific

    def rare(self, answer: str) -> bool:
        """Return whether an answer, or a word of it, occurs in few sentences."""
        return min((self._counts[stem] for stem in stems(answer)), default=self._specific) <= _FEWEST_RARE


def stems(text: str) -> frozenset[str]:
    """Return the beginnings of the words of a text, without function words and the words of questions.

    Where no spaces are written between words, pairs of characters stand for them.
    """
    parts = (part for word in content(text) - _ASKING for part in re.findall(r"[^\W_]+", word))
    meaningful = (part for part in parts if len(part) > 1 or part.isdigit())
    stems = {part.removesuffix("s")[:_STEM] if 4 <= len(part) <= _LONGEST else part for part in meaningful}
    return frozenset(stems.union(unspaced_pairs(normalise(text))))


def canonical(answer: str) -> str:
    """Return the normal form of an answer between spaces: "v1,500 twelve" is " 1500 12 "."""
    normal = _VERSION.sub("", spaced(normalise(_SEPARATOR.sub("", answer))))
    return f" {' '.join(NUMBER_WORDS.get(word, word) for word in normal.split())} "


_WH_FORMS = (
    'In "{title}", {question}',
    '{Question} The answer is in "{title}".',
    'As stated in "{title}", {question} Reply briefly.',
)
_FRAME = words(
    "version versions default defaults option options value values configuration config experimental introduced "
    "support added page pages with from into does should have been that this next nextjs name names type types called "
    "used"
)
_FRAME_STEMS = stems(" ".join(_FRAME))
_WEAK = frozenset({"experimental", "unstable"})  # temporary parts of a name


def document_questions(
    docs: Path,
    corpus: Corpus,
    *,
    exclude: Sequence[Probe] = (),
    seed: int = 0,
    count: int = 2000,
    problems: list[str] | None = None,
) -> list[Prompt]:
    """Return prompts of kind "knowledge" about the documents ``docs``.

    If ``questions.jsonl`` is beside them, they are read from it, without those worded like a probe in ``exclude``;
    invalid lines are appended to ``problems`` or logged. Otherwise they are generated from the facts and sentences of
    ``corpus`` on the question side and filtered more strictly than a hand-written file, where two wordings of a fact
    are intended: a question is also dropped if it asks for a probe's answer with all words of the probe, or, in
    doubt, for a fact that a probe asks for in any wording.
    """
    file, guard = given_beside(docs, QUESTIONS_FILE), ProbeGuard(exclude)
    if file is not None:
        prompts = load_prompts(file, kind="knowledge", problems=problems)
        return [p for p in prompts if not guard.has_wording(p.text)]
    return _generated(corpus, guard, seed, count)


@cache
def _frame_stems_of(code: str) -> frozenset[str]:
    """Return the stems of the words in the question forms of English and of another language."""
    forms = [*_WH_FORMS, "name number word words"]
    for language in (english(), languages()[code]):
        forms += [*language.gap.training, language.gap.continuation, *language.missing.values()]
    return stems(" ".join(forms))


class _ProbeWords(NamedTuple):
    """A probe's answer in canonical form, its question without spaces, and the stems of the question's words."""

    answer: str
    question: str
    stems: frozenset[str]


class ProbeGuard:
    """Detects questions and facts that overlap with probes: by wording, by answer and words, or by fact."""

    def __init__(self, probes: Sequence[Probe]) -> None:
        self._wordings = {normalise(p.question) for p in probes}
        self._by_answer: dict[str, list[frozenset[str]]] = {}
        self._asked: dict[str, set[_ProbeWords]] = {}  # by each word of the answer
        self._reversed: dict[str, list[tuple[frozenset[str], str]]] = {}
        for probe in probes:
            probe_words, squeezed = question_words(probe.question), re.sub(r"[\W_]", "", normalise(probe.question))
            shape = stems(probe.question) - _frame_stems_of(language_of(probe.question).code) - _FRAME_STEMS
            for answer in map(canonical, probe.answers):
                for word in answer.split():
                    self._asked.setdefault(word, set()).add(_ProbeWords(answer, squeezed, shape))
            for answer in map(normalise, probe.answers):
                self._by_answer.setdefault(answer, []).append(probe_words)
                answer_words = content(answer) - _WEAK
                for word in answer_words:
                    self._reversed.setdefault(word, []).append((answer_words, f" {normalise(probe.question)} "))

    def has_wording(self, question: str) -> bool:
        """Return whether a probe has this wording."""
        return normalise(question) in self._wordings

    def asks_the_same(self, question: str, answer: str | None) -> bool:
        """Return whether a probe has this wording, or this answer and content words that are all in the question."""
        if self.has_wording(question):
            return True
        question_content = question_words(question)
        return any(
            len(words) >= 2 and words <= question_content for words in self._by_answer.get(normalise(answer or ""), ())
        )

    def tells_the_answer(self, question: str, answer: str, *, also_asked: bool = False) -> bool:
        """Return whether a question contains all content words of a probe and ``answer`` contains the probe's answer.

        False if the question itself contains the probe's answer, since it then asks for something else; with
        ``also_asked`` that makes no difference.
        """
        asked, response, request = (question_words(question), f" {normalise(answer)} ", f" {normalise(question)} ")
        return any(
            f" {wanted} " in response
            and (also_asked or f" {wanted} " not in request)
            and any(len(w) >= 2 and w <= asked for w in probes)
            for wanted, probes in self._by_answer.items()
        )

    def states(self, question: str, answer: str, rarity: Rarity) -> bool:
        """Return whether a generated question may ask the same as a probe in other words; True in doubt.

        One of the two answers contains the other, and the questions share a word that is not frequent in the documents;
        any word but function words is enough if the answer itself is rare.
        """
        wanted, found = canonical(answer), stems(question)
        rare = rarity.rare(answer)
        return any(
            (asked.answer in wanted or wanted in asked.answer)
            and any(rare or rarity.specific(stem) for stem in asked.stems & found)
            for asked in self._with_word_of(wanted)
        )

    def may_ask(self, question: str, answer: str) -> bool:
        """Return whether ``states`` or ``asks_for`` could be true of a generated question: a quick filter."""
        wanted, value, named = canonical(answer), f" {normalise(answer)} ", content(question)
        return any(asked.answer in wanted or wanted in asked.answer for asked in self._with_word_of(wanted)) or any(
            subject <= named and value in asked for word in named for subject, asked in self._reversed.get(word, ())
        )

    def _with_word_of(self, answer: str) -> set[_ProbeWords]:
        """Return the probes whose answer has a word of this one."""
        return {asked for word in answer.split() for asked in self._asked.get(word, ())}

    def asks_for(self, fact: Fact) -> bool:
        """Return whether a probe asks for this fact, in any wording and either direction; True in doubt.

        Forward: the probe's answer contains the value and, if the value is common, the probe has a word of the subject;
        or the value contains the probe's answer, and the probe has a word of the subject itself, its page aside.
        Reversed: the probe's answer is in the subject, and the probe contains the value.
        """
        values = [canonical(value) for value in fact.answers]
        subject = content(fact.subject)
        rare = [squeezed for word in subject if len(squeezed := word.replace("-", "")) > 3 and word not in _FRAME]
        common = fact.guessed or fact.relation.startswith("version") or len(fact.value) <= 3
        name_words = {word.replace("-", "") for word in content(fact.subject.rpartition(": ")[2]) - _FRAME}
        for asked in self._with_word_of(" ".join(values)):
            has_subject = not common or any(word in asked.question for word in rare)
            if has_subject and any(value in asked.answer for value in values):
                return True
            has_name = any(word in asked.question if len(word) > 3 else word in asked.stems for word in name_words)
            if has_name and any(asked.answer in value for value in values):
                return True
        values = [f" {value} " for value in map(normalise, fact.answers)]
        reverse = (asked for word in subject for answer, asked in self._reversed.get(word, ()) if answer <= subject)
        return any(value in asked for asked in reverse for value in values)


def askable_facts(facts: Sequence[Fact], guard: ProbeGuard) -> list[Fact]:
    """Return the facts on the question side that no probe asks for in any wording."""
    probes = Stated(fact for fact in facts if fact.side == "probe")

    def probed(fact: Fact) -> bool:
        return any(text in probes for text in (*fact.statements, *(f"{q} {fact.value}" for q in fact.questions)))

    return [fact for fact in facts if fact.side == "question" and not guard.asks_for(fact) and not probed(fact)]


def unprobed(prompts: Sequence[Prompt], documents: Sequence[Document], guard: ProbeGuard) -> list[Prompt]:
    """Return the questions generated from ``documents`` that no probe asks, including probes of other documents.

    The conditions are those of ``document_questions``.
    """
    kept = [p for p in prompts if not guard.asks_the_same(p.text, p.answer)]
    suspects = [p for p in kept if documents_of(p) and p.answer and guard.may_ask(p.text, p.answer)]
    if not suspects:  # what follows reads all documents
        return kept
    origins = {document for p in suspects for document in documents_of(p)}
    facts = {
        normalise(text): fact
        for fact in facts_of([d for d in documents if d.id in origins])
        for wording, question in enumerate(fact.questions)
        for text in (question, fact.brief_question(wording))
    }
    rarity = Rarity(sentences(documents, alone=False))

    def probed(prompt: Prompt) -> bool:
        fact = facts.get(normalise(prompt.text))
        return guard.asks_for(fact) if fact else guard.states(prompt.text, prompt.answer or "", rarity)

    left_out = {p.id for p in suspects if probed(p)}
    return [p for p in kept if p.id not in left_out]


def question_words(text: str) -> frozenset[str]:
    """Return the content words of a question."""
    frame = {"what", "which", "when", "where", "according", "complete", "fill", "answer", "sentence", "missing"}
    return frozenset(w for w in re.findall(r"[\w-]+", normalise(text)) if len(w) > 3 and w not in frame)


def _generated(corpus: Corpus, guard: ProbeGuard, seed: int, count: int) -> list[Prompt]:
    all_sentences = sentences(corpus.documents, alone=False)
    vocabulary = Vocabulary(all_sentences)
    facts = facts_of(corpus.documents)
    probed = Stated(fact for fact in facts if fact.side == "probe")
    usable = [s for s in all_sentences if s.alone and side(s) == "question" and s.plain not in probed]
    prompts = _fact_prompts(pick_facts(askable_facts(facts, guard), count, seed), guard, count)
    rarity = Rarity(all_sentences)
    likely = languages_of(corpus.documents)
    for gap in pick_gaps(usable, vocabulary, count - len(prompts), seed):
        language = language_within(gap.sentence.plain, likely[gap.sentence.document])
        text = _question(gap, random.Random(f"{seed}:{gap.key}"), language)
        if not guard.asks_the_same(text, gap.answer) and not guard.states(text, gap.answer, rarity):
            prompts.setdefault(normalise(text), question_prompt(text, gap.answer, gap.kind, gap.sentence.document))
    return list(prompts.values())


def _fact_prompts(facts: Sequence[Fact], guard: ProbeGuard, count: int) -> dict[str, Prompt]:
    """Return up to ``count`` prompts by normal form: every fact in the first wording, then in the second."""
    prompts: dict[str, Prompt] = {}
    for question, fact in [*((f.brief_question(0), f) for f in facts), *((f.questions[1], f) for f in facts)]:
        if len(prompts) < count and not guard.asks_the_same(question, fact.value):
            kind = fact.relation.split()[0]
            prompts.setdefault(normalise(question), question_prompt(question, fact.value, kind, fact.document))
    return prompts


def _question(gap: Gap, rng: random.Random, language: Language) -> str:
    title = place_of(gap.sentence)
    question = wh_question(gap)
    if question:
        return rng.choice(_WH_FORMS).format(title=title, question=question, Question=question[0].upper() + question[1:])
    if gap.after.strip(" .!)\"'") == "" and rng.random() < 0.5:
        before = cloze(gap).split(BLANK)[0].rstrip(" \"'(")
        return language.gap.continuation.format(title=title, before=before)
    return gap_question(gap, rng.choice(language.gap.training), language)
