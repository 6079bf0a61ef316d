"""The forms a probe takes: a gap among candidates, a gap asked, a title and its passage, a sentence to be ended."""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Sequence

from recovery.corpus.asking import cloze, missing, place_of, title_of, wh_question
from recovery.corpus.distractors import distractors
from recovery.corpus.facts import Fact
from recovery.corpus.gaps import NUMBER_WORDS, Gap, Vocabulary
from recovery.corpus.passages import Ending
from recovery.corpus.sentences import Sentence, plain_text
from recovery.corpus.usage import frame
from recovery.types import Probe

CHOICES = 8
NATURAL = "natural"  # the tag of a question as a person would ask it
GAPS = frozenset({"cloze", "wh", "continuation"})  # those of questions made from a sentence by leaving words out
FEWEST_CHOICES = 5
_FEWEST_BEFORE = {"number": 4, "name": 4, "term": 8}
_DIGITS = dict(zip(NUMBER_WORDS, map(str, (*range(2, 13), 15, 20, 30, 40, 50)), strict=True))


def choice_probe(gap: Gap, vocabulary: Vocabulary, seed: int) -> Probe | None:
    """The document's text up to the gap, with the answer among distractors.

    None where too few can be found, or where too little stands before the gap to tell right from wrong.
    """
    if not choosable(gap):
        return None
    choices = list(dict.fromkeys([gap.answer, *distractors(vocabulary, gap, CHOICES - 1, seed)]))
    if len(choices) < FEWEST_CHOICES:
        return None
    random.Random(f"{seed}:{gap.key}").shuffle(choices)
    question = f"{gap.sentence.lead}{gap.before}"
    return Probe(
        id=probe_id("choice", question, gap.answer),
        form="choice",
        question=question,
        answers=(gap.answer,),
        choices=tuple(choices),
        source=gap.sentence.document,
        tags=(gap.kind, "cloze"),
        passage=gap.sentence.plain,
    )


def choosable(gap: Gap) -> bool:
    """Whether what stands before a gap tells right from wrong: enough of it, and the answer ends what it says.

    Nobody can tell which adjective comes before a noun that is not seen yet, nor what a bracket will hold.
    """
    if len(plain_text(gap.before).split()) < _FEWEST_BEFORE[gap.kind] or gap.before.endswith("("):
        return False
    if gap.kind != "term":
        return True
    return frame(gap.before, gap.after)[1] != ">*" and not gap.answer.endswith(("ed", "ing"))


def title_probe(opening: Sentence, others: Sequence[Sentence], seed: int) -> Probe | None:
    """A title as it stands in the document, and which of several passages stands under it.

    The wrong ones stand under other titles, nearest in length; from other documents where there are enough, since
    sections of one document share their matter. None where there are too few.
    """
    strangers = [s for s in others if s.title != opening.title]
    if len(strangers) < FEWEST_CHOICES - 1:
        strangers = [s for s in others if s.lead != opening.lead]
    rng = random.Random(f"{seed}:{opening.key}")
    near = sorted(strangers, key=lambda s: (abs(math.log(len(s.raw) / len(opening.raw))) + 0.25 * rng.random(), s.raw))
    choices = list(dict.fromkeys([opening.raw, *(s.raw for s in near[: CHOICES - 1])]))
    if len(choices) < FEWEST_CHOICES:
        return None
    rng.shuffle(choices)
    return Probe(
        id=probe_id("choice", opening.lead, opening.raw),
        form="choice",
        question=opening.lead,
        answers=(opening.raw,),
        choices=tuple(choices),
        source=opening.document,
        tags=("passage", "title"),
        passage=opening.plain,
    )


def fact_probe(fact: Fact, wording: int = 0) -> Probe:
    """A fact asked as a person would ask, in one of its wordings; the tags name its relation and "natural"."""
    question = f"{fact.questions[wording % len(fact.questions)]} {fact.brief}"
    return Probe(
        id=probe_id("question", question, fact.value),
        form="question",
        question=question,
        answers=fact.answers,
        source=fact.document,
        tags=(fact.relation.split()[0], NATURAL),
        passage=fact.sentence,
    )


def question_probe(gap: Gap) -> Probe:
    """The knowledge of a gap asked as chat."""
    turned = wh_question(gap)
    if turned:
        question = f'According to "{title_of(gap)}", {turned} Answer as briefly as you can.'
    else:
        question = f'Fill the gap in this sentence from "{title_of(gap)}": "{cloze(gap)}" '
        question += f"Answer with the missing {missing(gap)} only."
    return Probe(
        id=probe_id("question", question, gap.answer),
        form="question",
        question=question,
        answers=(gap.answer, *_other_spellings(gap.answer)),
        source=gap.sentence.document,
        tags=(gap.kind, "wh" if turned else "cloze"),
        passage=gap.sentence.plain,
    )


def continuation_probe(ending: Ending) -> Probe:
    """A sentence to be ended in the document's own words: F1 over words tells how much of it is known."""
    count = len(ending.rest.split())
    question = f'How does this sentence from "{place_of(ending.sentence)}" end? "{ending.before} ..." '
    question += f"Answer with its last {count} words only."
    return Probe(
        id=probe_id("question", question, ending.rest),
        form="question",
        question=question,
        answers=(ending.rest,),
        source=ending.sentence.document,
        tags=("words", "continuation"),
        passage=ending.sentence.plain,
    )


def probe_id(form: str, question: str, answer: str) -> str:
    """A name that the wording alone decides."""
    digest = hashlib.sha256(f"{question}\x1f{answer}".encode("utf-8", "surrogatepass"))
    return f"{form}-{digest.hexdigest()[:12]}"


def _other_spellings(answer: str) -> tuple[str, ...]:
    """The same number in another spelling: "24,000" and "24000", "two" and "2"."""
    if "," in answer and answer.replace(",", "").isdigit():
        return (answer.replace(",", ""),)
    return (_DIGITS[answer],) if answer in _DIGITS else ()
