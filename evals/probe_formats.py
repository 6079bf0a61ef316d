"""Probe formats: cloze choice, cloze question, title with passage, fact question and sentence continuation."""

from __future__ import annotations

import hashlib
import heapq
import math
import random
import re
from collections.abc import Sequence

from recovery.data.corpus.cloze import Gap, Vocabulary
from recovery.data.corpus.cooccurrence import frame
from recovery.data.corpus.distractors import distractors
from recovery.data.corpus.facts import Fact
from recovery.data.corpus.languages import Language, language_within
from recovery.data.corpus.passages import Ending
from recovery.data.corpus.question_templates import gap_question, place_of, wh_question
from recovery.data.corpus.sentences import Sentence, plain_text
from recovery.data.corpus.text import NUMBER_WORDS, with_other_decimals, word_count
from recovery.types import Probe

CHOICES = 8
NATURAL = "natural"  # tag of questions in natural wording
GAPS = frozenset({"cloze", "wh", "continuation"})  # tags of questions built by removing words from a sentence
FEWEST_CHOICES = 5
_GROUPED = re.compile(r"\d{1,3}(?:,\d{3})+")
_FEWEST_BEFORE = {"number": 4, "name": 4, "term": 8}


def choice_probe(gap: Gap, vocabulary: Vocabulary, seed: int) -> Probe | None:
    """Return a choice probe: the document's text up to the gap, with the answer among distractors.

    None if there are too few distractors, or too little context before the gap.
    """
    if not choosable(gap):
        return None
    choices = list(dict.fromkeys([gap.answer, *distractors(vocabulary, gap, CHOICES - 1, seed)]))
    if len(choices) < FEWEST_CHOICES:
        return None
    random.Random(f"{seed}:{gap.key}").shuffle(choices)
    question = f"{gap.sentence.lead}{gap.before}"
    return _probe("choice", question, (gap.answer,), gap.sentence, (gap.kind, "cloze"), choices)


def choosable(gap: Gap) -> bool:
    """Return whether the text before a gap determines the answer: it is long enough and the answer completes it.

    An adjective before an unseen noun, or the content of a bracket, cannot be predicted.
    """
    if word_count(plain_text(gap.before)) < _FEWEST_BEFORE[gap.kind] or gap.before.endswith("("):
        return False
    if gap.kind != "term":
        return True
    return frame(gap.before, gap.after)[1] != ">*" and not gap.answer.endswith(("ed", "ing"))


def title_probe(opening: Sentence, others: Sequence[Sentence], seed: int) -> Probe | None:
    """Return a choice probe that asks which of several passages belongs to a title of the document.

    Distractors are the passages of other titles that are closest in length, from other documents if there are enough,
    since sections of one document are similar. None if there are too few.
    """
    strangers = [s for s in others if s.title != opening.title]
    if len(strangers) < FEWEST_CHOICES - 1:
        strangers = [s for s in others if s.lead != opening.lead]
    rng = random.Random(f"{seed}:{opening.key}")

    def distance(other: Sentence) -> tuple[float, str]:
        return abs(math.log(len(other.raw) / len(opening.raw))) + 0.25 * rng.random(), other.raw

    near = heapq.nsmallest(CHOICES - 1, strangers, key=distance)
    choices = list(dict.fromkeys([opening.raw, *(s.raw for s in near)]))
    if len(choices) < FEWEST_CHOICES:
        return None
    rng.shuffle(choices)
    return _probe("choice", opening.lead, (opening.raw,), opening, ("passage", "title"), choices)


def fact_probe(fact: Fact, wording: int = 0) -> Probe:
    """Return a question probe for a fact in one of its natural wordings, tagged with its relation and "natural"."""
    question = fact.brief_question(wording % len(fact.questions))
    return Probe(
        id=probe_id("question", question, fact.value),
        form="question",
        question=question,
        answers=fact.answers,
        source=fact.document,
        tags=(fact.relation.split()[0], NATURAL),
        passage=fact.sentence,
    )


def question_probe(gap: Gap, likely: Language) -> Probe:
    """Return a question probe that asks for a gap in a chat; its document is in the language ``likely``."""
    turned, language = wh_question(gap), language_within(gap.sentence.plain, likely)
    if turned:
        question = f'According to "{place_of(gap.sentence)}", {turned} Answer as briefly as you can.'
    else:
        question = gap_question(gap, language.gap.probe, language)
    answers = (gap.answer, *_other_spellings(gap.answer, language))
    return _probe("question", question, answers, gap.sentence, (gap.kind, "wh" if turned else "cloze"))


def continuation_probe(ending: Ending, likely: Language) -> Probe:
    """Return a question probe that asks for the end of a sentence; word F1 measures how much of it is known.

    Its document is in the language ``likely``.
    """
    form = language_within(ending.sentence.plain, likely).gap.ending
    count = len(ending.rest.split())
    question = form.format(title=place_of(ending.sentence), before=ending.before, count=count)
    return _probe("question", question, (ending.rest,), ending.sentence, ("words", "continuation"))


def _probe(
    form: str,
    question: str,
    answers: tuple[str, ...],
    sentence: Sentence,
    tags: tuple[str, ...],
    choices: Sequence[str] = (),
) -> Probe:
    """Return a probe made from a sentence, which is its passage."""
    return Probe(
        id=probe_id(form, question, answers[0]),
        form=form,
        question=question,
        answers=answers,
        choices=tuple(choices),
        source=sentence.document,
        tags=tags,
        passage=sentence.plain,
    )


def probe_id(form: str, question: str, answer: str) -> str:
    """Return an id that depends only on the wording."""
    digest = hashlib.sha256(f"{question}\x1f{answer}".encode("utf-8", "surrogatepass"))
    return f"{form}-{digest.hexdigest()[:12]}"


def _other_spellings(answer: str, language: Language) -> tuple[str, ...]:
    """Return other spellings of the same number: "24,000" or "24 000" and "24000", "two" and "2"; "1,5" and "1.5"
    where a comma is what a point is in English.
    """
    if answer[0].isdigit() and " " in answer:
        joined = answer.replace(" ", "")
        return tuple(dict.fromkeys((joined, with_other_decimals(joined) if language.decimal_comma else joined)))
    if language.decimal_comma and (other := with_other_decimals(answer)) != answer:
        return (other,)
    if _GROUPED.fullmatch(answer):
        return (answer.replace(",", ""),)
    return (NUMBER_WORDS[answer],) if answer in NUMBER_WORDS else ()
