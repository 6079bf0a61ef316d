"""Verifiable rules on an answer: their wordings and their checkers' arguments.

The ids and arguments are IFEval's (arXiv 2311.07911), so that its published checkers can judge the answers; the
wordings are written for this project.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from recovery.data.synthetic_prompts.topics import Topic, texts
from recovery.types import Check

EXISTENCE = "keywords:existence"
FREQUENCY = "keywords:frequency"
FORBIDDEN = "keywords:forbidden_words"
LETTERS = "keywords:letter_frequency"
LANGUAGE = "language:response_language"
SENTENCES = "length_constraints:number_sentences"
PARAGRAPHS = "length_constraints:number_paragraphs"
WORDS = "length_constraints:number_words"
FIRST_WORD = "length_constraints:nth_paragraph_first_word"
PLACEHOLDERS = "detectable_content:number_placeholders"
POSTSCRIPT = "detectable_content:postscript"
BULLETS = "detectable_format:number_bullet_lists"
CONSTRAINED = "detectable_format:constrained_response"
HIGHLIGHTS = "detectable_format:number_highlighted_sections"
SECTIONS = "detectable_format:multiple_sections"
JSON = "detectable_format:json_format"
TITLE = "detectable_format:title"
TWO = "combination:two_responses"
REPEAT = "combination:repeat_prompt"
ENDING = "startend:end_checker"
CAPITAL_WORDS = "change_case:capital_word_frequency"
UPPER = "change_case:english_capital"
LOWER = "change_case:english_lowercase"
NO_COMMA = "punctuation:no_comma"
QUOTATION = "startend:quotation"

NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight")
ORDINALS = ("", "first", "second", "third", "fourth")
LANGUAGES = {
    "de": "German", "fr": "French", "es": "Spanish", "it": "Italian", "pt": "Portuguese", "ru": "Russian",
    "hi": "Hindi", "ar": "Arabic", "vi": "Vietnamese", "fi": "Finnish", "sw": "Swahili", "ko": "Korean",
    "bg": "Bulgarian", "bn": "Bengali", "fa": "Persian", "th": "Thai",
}  # fmt: skip
_PLAIN_WORDS = ("very", "really", "good", "nice", "important", "many", "things", "just", "always", "never", "great")
_OPENERS = ("today", "once", "nobody", "usually", "beyond", "before", "slowly", "yesterday", "most", "every", "quite")
_ENDINGS = texts("endings")


@dataclass(frozen=True)
class Rule:
    """A rule drawn for one prompt: ``text`` is its wording in the prompt, ``check`` its checker and arguments.

    ``requires`` are strings the answer must contain, ``words`` the approximate number of words that it needs.
    """

    check: Check
    text: str
    requires: Sequence[str] = ()
    words: int = 0

    @property
    def id(self) -> str:
        return self.check.instruction


Draw = Callable[[random.Random, Topic], Rule]


def _worded(id: str, *, requires: Sequence[str] = (), words: int = 0) -> Draw:
    """Return the function that draws a rule without arguments, in one of its wordings."""
    wordings = texts(id)
    return lambda rng, _: Rule(Check(id), rng.choice(wordings), requires, words)


def _count(rng: random.Random, n: int) -> str:
    """Return a number up to eight in words or digits, so that prompts have both."""
    return NUMBERS[n] if rng.random() < 0.6 else str(n)


def _s(n: int) -> str:
    return "" if n == 1 else "s"


# --- one function per rule with arguments; it draws them and one of its wordings -----------------------------------


def existence(rng: random.Random, topic: Topic) -> Rule:
    """Words that must occur: the first one or two of the (shuffled) topic's words."""
    chosen = list(topic.words[: rng.choice((1, 2, 2))])
    listed = " and ".join(f'"{w}"' for w in chosen)
    plural = _s(len(chosen))
    text = rng.choice((
        f"Use the word{plural} {listed} somewhere.",
        f"The word{plural} {listed} must turn up in what you write.",
        f"Work in {listed}.",
        f"Make sure that {listed} can be found in your text.",
    ))  # fmt: skip
    return Rule(Check(EXISTENCE, {"keywords": chosen}), text, requires=chosen, words=8)


def frequency(rng: random.Random, topic: Topic) -> Rule:
    word = topic.words[2]
    n = rng.randint(2, 4)
    if rng.random() < 0.6:
        text = rng.choice((
            f'Say "{word}" at least {_count(rng, n)} times.',
            f'The word "{word}" has to come up {_count(rng, n)} times or more.',
            f'Let "{word}" appear no fewer than {_count(rng, n)} times.',
        ))  # fmt: skip
        kwargs = {"keyword": word, "frequency": n, "relation": "at least"}
        return Rule(Check(FREQUENCY, kwargs), text, requires=[word] * n, words=6 * n)
    text = rng.choice((
        f'Use "{word}" fewer than {_count(rng, n)} times.',
        f'"{word}" may come up at most {_count(rng, n - 1)} time{_s(n - 1)}.',
    ))  # fmt: skip
    return Rule(Check(FREQUENCY, {"keyword": word, "frequency": n, "relation": "less than"}), text)


def forbidden(rng: random.Random, topic: Topic) -> Rule:
    chosen = [topic.words[3], *rng.sample(_PLAIN_WORDS, rng.randint(0, 2))]
    listed = f'"{chosen[0]}"' if len(chosen) == 1 else ", ".join(f'"{w}"' for w in chosen)
    text = rng.choice((
        f"Do without: {listed}.",
        f"Steer clear of {listed}.",
        f"None of this may appear in it: {listed}.",
        f"You must not write {listed} anywhere.",
    ))  # fmt: skip
    return Rule(Check(FORBIDDEN, {"forbidden_words": chosen}), text)


def letters(rng: random.Random, _: Topic) -> Rule:
    if rng.random() < 0.6:
        letter, n = rng.choice("aeilnorst"), rng.choice((5, 8, 10, 12))
        text = rng.choice((
            f'Use the letter "{letter}" at least {n} times.',
            f'I want to see no fewer than {n} of the letter "{letter}".',
        ))  # fmt: skip
        kwargs = {"letter": letter, "let_frequency": n, "let_relation": "at least"}
        return Rule(Check(LETTERS, kwargs), text, words=4 * n)
    letter, n = rng.choice("jkqvxz"), rng.randint(2, 5)
    text = rng.choice((
        f'The letter "{letter}" should occur fewer than {n} times.',
        f'Keep the letter "{letter}" below {n} occurrences.',
    ))  # fmt: skip
    return Rule(Check(LETTERS, {"letter": letter, "let_frequency": n, "let_relation": "less than"}), text)


def language(rng: random.Random, _: Topic) -> Rule:
    code, name = rng.choice(sorted(LANGUAGES.items()))
    text = rng.choice((
        f"Answer in {name} from start to finish.",
        f"Write all of it in {name}.",
        f"My reader knows only {name}: use no other tongue.",
    ))  # fmt: skip
    return Rule(Check(LANGUAGE, {"language": code}), text)


def sentences(rng: random.Random, _: Topic) -> Rule:
    n = rng.randint(3, 8)
    if rng.random() < 0.5:
        text = rng.choice((
            f"Write no fewer than {_count(rng, n)} sentences.",
            f"It takes at least {_count(rng, n)} sentences.",
        ))  # fmt: skip
        return Rule(Check(SENTENCES, {"num_sentences": n, "relation": "at least"}), text, words=6 * n)
    text = rng.choice((
        f"Stay under {_count(rng, n)} sentences.",
        f"Be done in fewer than {_count(rng, n)} sentences.",
        f"Use at most {_count(rng, n - 1)} sentence{_s(n - 1)}.",
    ))  # fmt: skip
    return Rule(Check(SENTENCES, {"num_sentences": n, "relation": "less than"}), text)


def paragraphs(rng: random.Random, _: Topic) -> Rule:
    n = rng.randint(2, 5)
    text = rng.choice((
        f"Make it {_count(rng, n)} paragraphs and put *** between one and the next.",
        f"Use exactly {_count(rng, n)} paragraphs with *** as the divider.",
        f"Split it into {_count(rng, n)} paragraphs; three asterisks (***) stand between neighbours.",
    ))  # fmt: skip
    return Rule(Check(PARAGRAPHS, {"num_paragraphs": n}), text, words=10 * n)


def words(rng: random.Random, _: Topic) -> Rule:
    if rng.random() < 0.5:
        n = rng.choice((40, 60, 80, 100, 120, 150))
        text = rng.choice((
            f"Give me {n} words or more.",
            f"It should run to at least {n} words.",
            f"Anything shorter than {n} words will not do.",
        ))  # fmt: skip
        return Rule(Check(WORDS, {"num_words": n, "relation": "at least"}), text, words=n)
    n = rng.choice((30, 40, 50, 60, 80, 100, 150))
    text = rng.choice((
        f"Stay below {n} words.",
        f"I only have room for fewer than {n} words.",
        f"Keep it shorter than {n} words.",
    ))  # fmt: skip
    return Rule(Check(WORDS, {"num_words": n, "relation": "less than"}), text)


def first_word(rng: random.Random, _: Topic) -> Rule:
    n = rng.randint(2, 4)
    nth, word = rng.randint(1, n), rng.choice(_OPENERS)
    text = rng.choice((
        f'Write {_count(rng, n)} paragraphs with an empty line between them; the {ORDINALS[nth]} opens with "{word}".',
        f'Use {_count(rng, n)} paragraphs, kept apart by blank lines. Begin paragraph {nth} with the word "{word}".',
    ))  # fmt: skip
    kwargs = {"num_paragraphs": n, "nth_paragraph": nth, "first_word": word}
    return Rule(Check(FIRST_WORD, kwargs), text, requires=[word], words=10 * n)


def placeholders(rng: random.Random, _: Topic) -> Rule:
    n = rng.randint(1, 4)
    text = rng.choice((
        f"Leave at least {_count(rng, n)} gap{_s(n)} to fill in later, in square brackets like [place].",
        f"Put in {_count(rng, n)} or more blanks in square brackets, for example [name].",
        f"At least {_count(rng, n)} detail{_s(n)} should be left open as [detail] in square brackets.",
    ))  # fmt: skip
    return Rule(Check(PLACEHOLDERS, {"num_placeholders": n}), text, requires=["["], words=4 * n)


def postscript(rng: random.Random, _: Topic) -> Rule:
    marker = rng.choice(("P.S.", "P.S.", "P.P.S"))
    text = rng.choice((
        f"Add an afterthought at the close that begins with {marker}",
        f"After the last line comes a postscript marked {marker}",
        f"Close with a postscript; mark it {marker}",
    ))  # fmt: skip
    return Rule(Check(POSTSCRIPT, {"postscript_marker": marker}), text, requires=[marker], words=8)


def bullets(rng: random.Random, _: Topic) -> Rule:
    n = rng.randint(2, 6)
    text = rng.choice((
        f"Have exactly {_count(rng, n)} bullet points in it, each on a line that starts with *.",
        f"It needs {_count(rng, n)} bullets, no more and no fewer, written in markdown as * item.",
        f"Put the main points as {_count(rng, n)} markdown bullets (lines that begin with * ).",
    ))  # fmt: skip
    return Rule(Check(BULLETS, {"num_bullets": n}), text, words=4 * n)


def highlights(rng: random.Random, _: Topic) -> Rule:
    n = rng.randint(1, 4)
    text = rng.choice((
        f"Mark at least {_count(rng, n)} phrase{_s(n)} by putting *asterisks around* what matters.",
        f"Set off {_count(rng, n)} or more key part{_s(n)} in markdown, *like so*.",
        f"Emphasise no fewer than {_count(rng, n)} passage{_s(n)} with *single asterisks*.",
    ))  # fmt: skip
    return Rule(Check(HIGHLIGHTS, {"num_highlights": n}), text, words=4 * n)


def sections(rng: random.Random, _: Topic) -> Rule:
    n, mark = rng.randint(2, 4), rng.choice(("Section", "SECTION", "Part", "Chapter", "Step"))
    text = rng.choice((
        f"Divide it into {_count(rng, n)} sections headed {mark} 1, {mark} 2 and so on.",
        f"There are to be {_count(rng, n)} parts; head each one with {mark} and its number, as in {mark} 1.",
    ))  # fmt: skip
    return Rule(Check(SECTIONS, {"section_spliter": mark, "num_sections": n}), text, requires=[mark] * n, words=10 * n)


def ending(rng: random.Random, _: Topic) -> Rule:
    phrase = rng.choice(_ENDINGS)
    text = rng.choice((
        f'The very last words must be: "{phrase}"',
        f'Close with the sentence "{phrase}" and add nothing after it.',
        f'Let it end in exactly these words: {phrase}',
    ))  # fmt: skip
    return Rule(Check(ENDING, {"end_phrase": phrase}), text, requires=[phrase], words=10)


def capital_words(rng: random.Random, _: Topic) -> Rule:
    n = rng.randint(2, 5)
    if rng.random() < 0.6:
        text = rng.choice((
            f"Shout at least {_count(rng, n)} of the words, that is, write them in CAPITALS.",
            f"No fewer than {_count(rng, n)} words should be in block capitals.",
        ))  # fmt: skip
        kwargs = {"capital_frequency": n, "capital_relation": "at least"}
        return Rule(Check(CAPITAL_WORDS, kwargs), text, words=6 * n)
    n += 2
    text = rng.choice((
        f"Fewer than {_count(rng, n)} words may be in block capitals.",
        f"Go easy on words in full CAPITALS: there must be fewer than {_count(rng, n)}.",
    ))  # fmt: skip
    return Rule(Check(CAPITAL_WORDS, {"capital_frequency": n, "capital_relation": "less than"}), text)


RULES: dict[str, Draw] = {
    EXISTENCE: existence,
    FREQUENCY: frequency,
    FORBIDDEN: forbidden,
    LETTERS: letters,
    LANGUAGE: language,
    SENTENCES: sentences,
    PARAGRAPHS: paragraphs,
    WORDS: words,
    FIRST_WORD: first_word,
    PLACEHOLDERS: placeholders,
    POSTSCRIPT: postscript,
    BULLETS: bullets,
    CONSTRAINED: _worded(CONSTRAINED),
    HIGHLIGHTS: highlights,
    SECTIONS: sections,
    JSON: _worded(JSON),
    TITLE: _worded(TITLE, requires=["<<"], words=4),
    TWO: _worded(TWO, words=20),
    REPEAT: _worded(REPEAT, words=30),  # ``constrained_writing.put_together`` adds the request to repeat
    ENDING: ending,
    CAPITAL_WORDS: capital_words,
    UPPER: _worded(UPPER),
    LOWER: _worded(LOWER),
    NO_COMMA: _worded(NO_COMMA),
    QUOTATION: _worded(QUOTATION),
}
