"""Building of probes without a model: cloze choice, title with passage, questions about facts and simple statements.

They are made from the sentences and facts of which no training question is made (:func:`probe_side`).

The wrong answers of a choice (:func:`distractors`) are of the right one's kind, and similar in frequency, length and
form. Frequencies are those of the corpus, so that neither rarity nor form reveals the answer.
"""

from __future__ import annotations

import bisect
import heapq
import math
import random
import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import islice

from evals.probes import FEWEST_QUESTIONS, NATURAL, NEAR_MISS, STATEMENT, probe_id
from recovery.data.corpus.cloze import Gap, Vocabulary, frame, openings, pick_gaps, same_root
from recovery.data.corpus.documents import Corpus, Document
from recovery.data.corpus.facts.extraction import facts_of, pick_facts
from recovery.data.corpus.facts.fact import Fact, Stated
from recovery.data.corpus.near_misses import NearMiss, near_misses, present
from recovery.data.corpus.sentences import Sentence, plain_text, sentences, side
from recovery.data.corpus.text import NUMBER_WORDS, normalise, share, spaced, without_format, word_count
from recovery.data.document_questions import ProbeGuard, place_of, question_words, unit_of, wh_question
from recovery.types import Probe, Prompt

_NEIGHBOURS = 200
_MODIFIER_SHARE = 0.3
_SUFFIXES = ("ing", "ed", "ion", "ment", "ness", "ity", "able", "ible", "ive", "al", "ous", "ful", "er", "or", "s")


def distractors(vocabulary: Vocabulary, gap: Gap, count: int, seed: int) -> list[str]:
    """Return up to ``count`` wrong answers for a gap, the most similar first; fewer if the corpus has no more."""
    rng = random.Random(f"{seed}:{gap.key}")
    for members in vocabulary.classes:
        if gap.answer in members:
            other_members = [w for w in members if w != gap.answer]
            return rng.sample(other_members, min(count, len(other_members)))
    context = normalise(f"{gap.sentence.plain} {gap.sentence.title}")
    pool = [w for w in _neighbours(vocabulary, gap) if _is_plausible(vocabulary, w, gap, context)]
    ranked = sorted(pool, key=lambda w: (_distance(vocabulary, w, gap) + 0.25 * rng.random(), w))
    chosen = ranked[:count]
    if gap.kind == "number":
        chosen += _generated_numbers(gap.answer, count - len(chosen), {gap.answer, *chosen}, rng)
    return chosen


def _neighbours(vocabulary: Vocabulary, gap: Gap) -> list[str]:
    """Return the candidates of the gap's kind nearest in frequency and length; all of them in a small corpus."""
    order = vocabulary.order(gap.kind)
    place = bisect.bisect_left(order, (*vocabulary.rank(gap.kind, gap.answer), ""))
    return [word for _, _, word in order[max(0, place - _NEIGHBOURS) : place + _NEIGHBOURS]]


def _is_plausible(vocabulary: Vocabulary, word: str, gap: Gap, context: str) -> bool:
    """Return whether a candidate fits the gap and is wrong there: not in the sentence, not a form of the answer."""
    if gap.kind == "number":
        if _shape(word) != _shape(gap.answer):
            return False
    elif gap.kind == "name" and (not vocabulary.is_name(word) or word.isupper() != gap.answer.isupper()):
        return False
    if any(word in members for members in vocabulary.classes) or _script(word) != _script(gap.answer):
        return False
    if normalise(word) in context or any(same_root(a, word.lower()) for a in gap.answer.lower().split()):
        return False
    if gap.kind == "term" and not _has_same_part_of_speech(vocabulary, word, gap):
        return False
    article = gap.kind != "number" and re.search(r"\b[Aa]n?\s+[\W_]*$", gap.before)
    return not article or (word[0].lower() in "aeiou") == (gap.answer[0].lower() in "aeiou")


def _script(word: str) -> str:
    """Return the script of a word's first letter: "LATIN", "CYRILLIC", "KATAKANA", "CJK", ...; "" if it has none."""
    letter = next((c for c in word if c.isalpha()), None)
    return unicodedata.name(letter, "").split(" ")[0] if letter else ""


def _has_same_part_of_speech(vocabulary: Vocabulary, word: str, gap: Gap) -> bool:
    """Return whether a word has the grammatical number and the part of speech (noun or adjective) of the answer."""
    if _is_plural(word) != _is_plural(gap.answer):
        return False
    modifies = vocabulary.usage.modifies(word)
    if frame(gap.before, gap.after)[0] == "<be":  # "the number is ...": not a noun
        return modifies >= _MODIFIER_SHARE or vocabulary.usage.can_follow(word, gap.before)
    return modifies >= _MODIFIER_SHARE if frame(gap.before, gap.after)[1] == ">*" else modifies <= 1 - _MODIFIER_SHARE


def _is_plural(word: str) -> bool:
    return word.endswith("s") and not word.endswith(("ss", "us", "is", "as", "os"))


def _distance(vocabulary: Vocabulary, word: str, gap: Gap) -> float:
    """Return how different a candidate is from the answer: log frequency, length, usage, and form."""
    counts, usage, answer = vocabulary.counts(gap.kind), vocabulary.usage, gap.answer
    distance = abs(math.log2((counts[word] + 1) / (counts[answer] + 1))) + abs(len(word) - len(answer)) / 3
    if gap.kind == "number":
        return distance
    distance += 4 * (1 - usage.alike(word, answer)) + usage.unseen(word, gap.before, gap.after)
    if gap.kind == "name":
        distance += 2 * abs(word.count(" ") - answer.count(" ")) + 3 * (_style(word) != _style(answer))
        return distance - 2 * (_compound_tail(word) == _compound_tail(answer))
    return distance + 2 * (_ending(word) != _ending(answer))


def _style(name: str) -> tuple[bool, ...]:
    """Return how a name is written: all capitals, two initial capitals, an inner capital, a hyphen, a digit."""
    inner = any(c.isupper() for part in name.split() for c in part[1:])
    return name.isupper(), name[:2].isupper(), inner, "-" in name, any(c.isdigit() for c in name)


def _compound_tail(name: str) -> str:
    """Return the last part of a compound name ("Error" of "TypeError"); any other name unchanged."""
    parts = re.findall(r"[A-Z][a-z]+", name)
    return parts[-1] if len(parts) > 1 else name


def _ending(word: str) -> str:
    return next((s for s in _SUFFIXES if word.endswith(s) and not word.endswith("ss")), "")


def _shape(text: str) -> tuple[str, int]:
    """Return the form of a number (year, integer, grouped, spaced or decimal) and its length or number of decimals."""
    if " " in text:
        return "spaced", len(text)
    if "." in text:
        return "decimal", len(text.split(".")[1])
    if re.fullmatch(r"1[5-9]\d\d|20\d\d", text):
        return "year", 4
    return ("grouped" if "," in text else "integer"), len(text)


def _generated_numbers(answer: str, count: int, used: set[str], rng: random.Random) -> list[str]:
    """Return generated numbers of the answer's form, for corpora with too few: other digits, or a nearby year."""
    numbers: list[str] = []
    for _ in range(count * 20):
        if len(numbers) >= count:
            break
        if _shape(answer)[0] == "year":
            text = str(int(answer) + rng.choice((-1, 1)) * rng.randint(1, 15))
        else:
            digits = [str(rng.randint(0, 9)) if c.isdigit() else c for c in answer]
            digits[0] = str(rng.randint(1, 9)) if answer[0] != "0" else "0"
            digits[-1] = answer[-1] if answer[-1] in "05" and rng.random() < 0.7 else digits[-1]
            text = "".join(digits)
        if text not in used:
            used.add(text)
            numbers.append(text)
    return numbers


CHOICES = 8
_PROBES_PER_NEAR_MISS = 4
_WORDINGS = 3  # at most, of one fact
_TITLES = 20  # one probe in twenty is a title
FEWEST_CHOICES = 5
_GROUPED = re.compile(r"\d{1,3}(?:,\d{3})+")
_MODIFIER = 0.5  # a word with this share of occurrences before a content word counts as an adjective
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
    candidates = [s for s in others if s.title != opening.title]
    if len(candidates) < FEWEST_CHOICES - 1:
        candidates = [s for s in others if s.lead != opening.lead]
    rng = random.Random(f"{seed}:{opening.key}")

    def distance(other: Sentence) -> tuple[float, str]:
        return abs(math.log(len(other.raw) / len(opening.raw))) + 0.25 * rng.random(), other.raw

    nearest = heapq.nsmallest(CHOICES - 1, candidates, key=distance)
    choices = list(dict.fromkeys([opening.raw, *(s.raw for s in nearest)]))
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


def near_miss_probe(near_miss: NearMiss) -> Probe:
    """Return the probe for a near miss, tagged with what was exchanged; the fact it was made from is its passage."""
    return Probe(
        id=probe_id(NEAR_MISS, near_miss.question, near_miss.absent),
        form=NEAR_MISS,
        question=near_miss.question,
        answers=(),
        choices=near_miss.fact.answers,
        source=near_miss.fact.document,
        tags=(near_miss.kind,),
        passage=near_miss.fact.sentence,
        absent=near_miss.absent,
    )


def statement_probe(gap: Gap) -> Probe | None:
    """Return a question probe for the value that a sentence of a simple form states.

    None for any other sentence: it would only give a gap to fill, which no person asks for.
    """
    question = wh_question(gap)
    if question is None:
        return None
    text = f'According to "{place_of(gap.sentence)}", {question} Answer as briefly as you can.'
    answers = (gap.answer, *_other_spellings(gap.answer))
    if "how many" in question:
        answers += tuple(f"{answer}{unit_of(gap)}" for answer in answers)
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


def _other_spellings(answer: str) -> tuple[str, ...]:
    """Return other spellings of the same number: "24,000" or "24 000" and "24000", "two" and "2"."""
    if answer[0].isdigit() and " " in answer:
        return (answer.replace(" ", ""),)
    if _GROUPED.fullmatch(answer):
        return (answer.replace(",", ""),)
    return (NUMBER_WORDS[answer],) if answer in NUMBER_WORDS else ()


def build_probes(
    corpus: Corpus,
    *,
    count: int = 400,
    seed: int = 0,
    written: Sequence[Probe] = (),
    absent_from: Iterable[str] | None = None,
) -> list[Probe]:
    """Build probes of both forms, about half each, from the training documents without a model.

    Questions are those that a person would ask: about facts (tag "natural"), ``written`` by a model
    (pipelines.data.probe_build), and for the value of a simple statement (tag "wh"). Choices ask for a gap in the
    document's own text, or for the passage under a title. The result is shorter than ``count`` if the text lacks facts,
    names, numbers and terms (see ``too_few``). Every probe records its document in ``source``, its answer type and its
    form in ``tags``, and its ``passage``. With ``absent_from``, the texts of all documents so far, a
    quarter of ``count`` is added: questions about something that none of them holds.
    """
    everything = sentences(corpus.documents, alone=False)
    vocabulary = Vocabulary(everything)
    facts = facts_of(corpus.documents)
    side_sentences = probe_side(everything, facts)
    gaps = pick_gaps(side_sentences, vocabulary, 2 * count, seed)
    choices = _title_probes(side_sentences, vocabulary, count // _TITLES, seed)
    choices += [p for gap in gaps if (p := choice_probe(gap, vocabulary, seed))]
    stated = [p for gap in gaps if (p := statement_probe(gap))]
    questions = _questions(facts, [*written, *stated], max(count // 2, count - len(choices)), seed)
    probes = {p.id: p for p in [*choices[: count - len(questions)], *questions]}
    if absent_from is not None:
        misses = near_misses(facts, corpus.documents, absent_from, count // _PROBES_PER_NEAR_MISS, "probe", seed)
        probes |= {p.id: p for p in map(near_miss_probe, misses)}
    return list(probes.values())


def still_absent(probes: Sequence[Probe], texts: Iterable[str]) -> list[Probe]:
    """Return the probes without near misses whose absent name is in one of the texts."""
    names = {probe.absent for probe in probes if probe.absent}
    held_names = present(names, texts) if names else ()
    return [probe for probe in probes if probe.absent not in held_names] if held_names else list(probes)


def _questions(facts: Sequence[Fact], others: Sequence[Probe], count: int, seed: int) -> list[Probe]:
    """Return up to ``count`` questions: each fact of the probe side, the ``others``, then facts in further wordings.

    A fact that several pages state is asked once. Facts whose value is easy to guess, such as a type, are asked only if
    there are too few other questions.
    """
    by_content = {(normalise(f.name), f.relation, normalise(f.value)): f for f in facts if f.side == "probe"}
    picked = pick_facts(by_content.values(), len(by_content), seed)
    hard, guessable = [f for f in picked if not f.guessed], [f for f in picked if f.guessed]
    first, *further = ([fact_probe(f, turn) for f in hard if turn < len(f.questions)] for turn in range(_WORDINGS))
    questions = [*first, *others]
    if len(questions) < FEWEST_QUESTIONS:
        questions += [fact_probe(f) for f in guessable]
    return [*questions, *(probe for turn in further for probe in turn)][:count]


def probe_side(everything: Sequence[Sentence], facts: Sequence[Fact]) -> list[Sentence]:
    """Return the sentences from which probes may be built; training questions are built from the others.

    Sentences that state one of the ``facts`` used for training questions are excluded.
    """
    trained = Stated(fact for fact in facts if fact.side == "question")
    return [s for s in everything if s.alone and side(s) == "probe" and s.plain not in trained]


def _title_probes(side_sentences: Sequence[Sentence], vocabulary: Vocabulary, count: int, seed: int) -> list[Probe]:
    starts = sorted(openings(side_sentences, vocabulary), key=lambda s: share(s.lead, f"title {seed}"))
    # Lazily, since each passage is compared with all others.
    probes = (p for s in starts if (p := title_probe(s, starts, seed)))
    return list(islice(probes, count))


# Detection of probes that training data answers: documents with question and answer, or training questions.

_BEFORE, _ANSWER_WITHIN = 400, 300  # characters before and after the question mark that are searched
_FEWEST_WORDS = 6  # of a line of a passage: other texts hardly have such a line by chance
_KEY = 3  # number of last words of a question, used as the lookup key; a shorter one is not looked for
_QUESTION_MARK = re.compile("[?？]")


def leaked(probes: Sequence[Probe], texts: Iterable[str]) -> list[Probe]:
    """Return the question probes that occur verbatim in the texts, followed closely by an accepted answer."""
    by_key: dict[tuple[str, ...], list[tuple[str, Probe]]] = defaultdict(list)
    for probe in probes:
        if probe.form == "question":
            for words in _wordings(probe.question):
                by_key[_key(words)].append((words, probe))
    leaked_ids: dict[str, Probe] = {}
    for preceding, following in _questions_of_documents(texts):
        for words, probe in by_key.get(_key(preceding), ()):
            if preceding.endswith(words) and any(_words(a) in following for a in probe.answers):
                leaked_ids[probe.id] = probe
    return [p for p in probes if p.id in leaked_ids]


def also_asked(probes: Sequence[Probe], questions: Sequence[Prompt]) -> list[Probe]:
    """Return the probes that a training question also asks.

    Either the wording is the same, or the probe's answer is in the question's answer and all content words of one
    question are in the other, not counting the probe's lead-in and its request for a short answer.
    """
    trained = ProbeGuard([Probe(q.id, "question", q.text, (q.answer or "",)) for q in questions])
    by_word: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for question in questions:
        answer = question.answer or ""
        for word in {*normalise(answer).split(), *question_words(question.text)}:
            by_word[word].append((question.text, answer))

    def is_asked(probe: Probe) -> bool:
        if any(trained.asks_the_same(probe.question, answer) for answer in probe.answers):
            return True
        wordings = _wordings(probe.question)
        guard = ProbeGuard([replace(probe, question=words) for words in wordings])
        answers = [answer_words for answer in probe.answers if (answer_words := normalise(answer).split())]
        # Many questions may have the same answer, such as a city, so the words of the question count too.
        needed = [(*answer_words, *question_words(words)) for words in wordings for answer_words in answers]
        rarest = {min(answer_words, key=lambda word: len(by_word.get(word, ()))) for answer_words in needed}
        return any(guard.tells_the_answer(*pair, also_asked=True) for word in rarest for pair in by_word.get(word, ()))

    return [probe for probe in probes if is_asked(probe)] if questions else []


def about(probes: Sequence[Probe], held_out: Sequence[Document], documents: Sequence[Document] = ()) -> list[Probe]:
    """Return the probes with a line of their passage in held-out text that is not in the training ``documents`` too.

    A passage with only short lines, which many texts may share, counts as one line.
    """
    text = "\n".join(_words(plain_text(d.text)) for d in held_out)
    lines = {p.id: [line for line in _lines(p.passage) if line in text] for p in probes}
    trained_lines = _lines_in({line for probe_lines in lines.values() for line in probe_lines}, documents)
    return [p for p in probes if any(line not in trained_lines for line in lines[p.id])]


def _lines(passage: str) -> list[str]:
    """Return the lines of a passage in normal form, without those of few words; if there are no others, all as one."""
    lines = [words for line in passage.split("\n") if len((words := _words(line)).split()) >= _FEWEST_WORDS]
    return lines or ([_words(passage)] if normalise(passage) else [])


def _lines_in(lines: Iterable[str], documents: Iterable[Document]) -> set[str]:
    """Return the lines that occur in the documents."""
    # Normalising changes marks, not words: a document without the longest words of a line cannot hold it.
    keys = {line: sorted(set(re.findall(r"\w+", line)), key=len, reverse=True)[:4] for line in lines}
    hits: set[str] = set()
    if not keys:
        return hits
    for document in documents:
        folded = without_format(document.text).casefold()  # to normalise every document would take long
        possible = [line for line, key in keys.items() if line not in hits and all(word in folded for word in key)]
        text = _words(plain_text(document.text)) if possible else ""
        hits |= {line for line in possible if line in text}
    return hits


def _words(text: str) -> str:
    """Return the normal form of a text as words between spaces."""
    return f" {spaced(normalise(text))} "


def _questions_of_documents(texts: Iterable[str]) -> Iterable[tuple[str, str]]:
    """Yield the words before each question mark, which end with the question, and the words that follow.

    Where the question begins is not looked for: a full stop may be part of it, as in "St. Kilda".
    """
    for text in texts:
        for mark in _QUESTION_MARK.finditer(text):
            before = _words(text[max(0, mark.start() - _BEFORE) : mark.start()])
            yield before, _words(text[mark.end() : mark.end() + _ANSWER_WITHIN])


def _wordings(question: str) -> list[str]:
    """Return the words of a probe's question: up to its question mark, with and without its lead-in."""
    marks = [m.start() for m in _QUESTION_MARK.finditer(question)]
    head = question[: marks[-1]] if marks else question
    starts = [0, *(m.end() for m in re.finditer(r"[,:] ", head))]
    return [words for start in starts if len((words := _words(head[start:])).split()) >= _KEY]


def _key(words: str) -> tuple[str, ...]:
    return tuple(words.split()[-_KEY:])
