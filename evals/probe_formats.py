"""Probe formats: cloze choice, title with passage, and questions about facts and simple statements."""

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
from recovery.data.corpus.facts.fact import Fact
from recovery.data.corpus.question_templates import place_of, wh_question
from recovery.data.corpus.sentences import Sentence, plain_text
from recovery.data.corpus.text import NUMBER_WORDS, word_count
from recovery.types import Probe

CHOICES = 8
NATURAL = "natural"  # tag of questions in natural wording
STATEMENT = "wh"  # tag of questions for the value of a simple statement: "The port is 8443."
GAPS = frozenset({"cloze", "continuation"})  # tags of questions with a gap, as earlier releases froze them
FEWEST_CHOICES = 5
_GROUPED = re.compile(r"\d{1,3}(?:,\d{3})+")
_MODIFIER = 0.5  # share of a word's occurrences before a content word, from which it is taken for an adjective
_FEWEST_BEFORE = {"number": 4, "name": 4, "term": 8}


def choice_probe(gap: Gap, vocabulary: Vocabulary, seed: int) -> Probe | None:
    """Return a choice probe: the document's text up to the gap, with the answer among distractors.

    None if there are too few distractors, or too little context before the gap.
    """
    if not choosable(gap) or (gap.kind == "term" and vocabulary.usage.modifies(gap.answer) >= _MODIFIER):
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


def statement_probe(gap: Gap) -> Probe | None:
    """Return a question probe for the value that a sentence of a simple form states, None for any other sentence.

    A gap in a sentence is no question that a person would ask.
    """
    question = wh_question(gap)
    if question is None:
        return None
    text = f'According to "{place_of(gap.sentence)}", {question} Answer as briefly as you can.'
    answers = (gap.answer, *_other_spellings(gap.answer))
    return _probe("question", text, answers, gap.sentence, (gap.kind, STATEMENT))


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


def _other_spellings(answer: str) -> tuple[str, ...]:
    """Return other spellings of the same number: "24,000" or "24 000" and "24000", "two" and "2"."""
    if answer[0].isdigit() and " " in answer:
        return (answer.replace(" ", ""),)
    if _GROUPED.fullmatch(answer):
        return (answer.replace(",", ""),)
    return (NUMBER_WORDS[answer],) if answer in NUMBER_WORDS else ()
