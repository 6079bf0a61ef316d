"""IFEval's instructions in this world: wordings, effect on an answer, and conflicts with other instructions.

Identifiers and arguments are those of lm-eval's checkers, which score the answers. ``groups`` are the properties of an
answer that an instruction determines; two instructions that share a group are never combined, so that every prompt can
be satisfied.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from examples.miniature.tasks.drafts import Draft
from recovery.miniature import words
from recovery.miniature.corpora import World

Arguments = dict[str, Any]
Sampler = Callable[[random.Random, World, Draft], Arguments]
Effect = Callable[[Draft, Arguments], None]


@dataclass(frozen=True)
class Instruction:
    """One instruction id: wordings (formatted with its arguments), argument sampler, effect, and conflict groups."""

    id: str
    wordings: tuple[str, ...]
    sample: Sampler
    apply: Effect
    groups: frozenset[str]

    def word(self, rng: random.Random, arguments: Arguments) -> str:
        """Return the instruction in one of its wordings."""
        shown = {key: _join(value) if isinstance(value, list) else value for key, value in arguments.items()}
        return rng.choice(self.wordings).format(**shown)


def _join(values: list[str]) -> str:
    return " and ".join(values)


def _effect(given: dict[str, str] | None = None, **changes: Any) -> Effect:
    """Return an effect that sets fields of the draft: ``given`` by the name of an argument, ``changes`` to values."""

    def apply(draft: Draft, arguments: Arguments) -> None:
        for name, value in changes.items():
            setattr(draft, name, value)
        for name, argument in (given or {}).items():
            setattr(draft, name, arguments[argument])

    return apply


def _choice(name: str, *options: Any, **fixed: Any) -> Sampler:
    """Return a sampler of one argument; ``fixed`` are others."""
    return lambda rng, world, draft: {name: rng.choice(options), **fixed}


def _count(name: str, *options: tuple[str, int]) -> Sampler:
    """Return a sampler of a relation and a count under ``name``."""

    def draw(rng: random.Random, world: World, draft: Draft) -> Arguments:
        relation, number = rng.choice(options)
        return {name: number, "relation": relation}

    return draw


def _none(rng: random.Random, world: World, draft: Draft) -> Arguments:
    return {}


def _letters(rng: random.Random, world: World, draft: Draft) -> Arguments:
    letter, count = rng.choice((("e", 2), ("e", 3), ("t", 2), ("h", 2)))
    return {"letter": letter, "let_frequency": count, "let_relation": "at least"}


def _add_keywords(draft: Draft, arguments: Arguments) -> None:
    draft.extra.append(f"It makes me think of {_join(arguments['keywords'])}.")


def _add_frequency(draft: Draft, arguments: Arguments) -> None:
    repeated = " and the ".join([arguments["keyword"]] * arguments["frequency"])
    draft.extra.append(f"Here comes the {repeated}.")


def _forbidden(rng: random.Random, world: World, draft: Draft) -> Arguments:
    own = list(world.facts[draft.topic].values())
    return {"forbidden_words": sorted({rng.choice(own), *rng.sample(words.CITIES, rng.choice((0, 1)))})}


def _avoid(draft: Draft, arguments: Arguments) -> None:
    draft.avoid.update(arguments["forbidden_words"])
    draft.at_least = min(draft.at_least, 2)


def _length(draft: Draft, arguments: Arguments) -> None:
    if arguments["relation"] == "less than":
        draft.at_least = draft.at_most = 1
    else:
        draft.at_least = 3


def _sentences(draft: Draft, arguments: Arguments) -> None:
    if arguments["relation"] == "less than":
        draft.at_least, draft.at_most = 1, arguments["num_sentences"] - 1
    else:
        draft.at_least = arguments["num_sentences"]


def _first_word(rng: random.Random, world: World, draft: Draft) -> Arguments:
    count = rng.choice((2, 3))
    return {"num_paragraphs": count, "nth_paragraph": rng.randint(1, count), "first_word": rng.choice(words.KEYWORDS)}


def _make_first_word(draft: Draft, arguments: Arguments) -> None:
    draft.layout, draft.parts = "paragraphs", arguments["num_paragraphs"]
    draft.first_word = (arguments["nth_paragraph"] - 1, arguments["first_word"])


def _emphasis(field: str, name: str) -> Effect:
    def apply(draft: Draft, arguments: Arguments) -> None:
        setattr(draft, field, arguments[name])
        draft.at_least = max(draft.at_least, arguments[name])

    return apply


def _make(id: str, groups: str, sample: Sampler, apply: Effect, *wordings: str) -> Instruction:
    return Instruction(id, wordings, sample, apply, frozenset(groups.split()))


_OPTIONS = "'My answer is yes.' or 'My answer is no.' or 'My answer is maybe.'"

INSTRUCTIONS: tuple[Instruction, ...] = (
    _make("keywords:existence", "content length-limit json spoken",
          lambda rng, world, draft: {"keywords": rng.sample(words.KEYWORDS, rng.choice((1, 2)))}, _add_keywords,
          "Include the words {keywords}.", "Your answer must contain the words {keywords}.",
          "Use the words {keywords} in your answer."),
    _make("keywords:frequency", "content length-limit json spoken",
          lambda rng, world, draft: {
              "keyword": rng.choice(words.KEYWORDS), "frequency": rng.choice((2, 3)), "relation": "at least"},
          _add_frequency,
          "Use the word {keyword} {relation} {frequency} times.",
          "The word {keyword} should appear {relation} {frequency} times."),
    _make("keywords:forbidden_words", "parts number emphasis", _forbidden, _avoid,
          "Do not use the words {forbidden_words}.", "Avoid the words {forbidden_words}.",
          "Your answer must not contain the words {forbidden_words}."),
    _make("keywords:letter_frequency", "short",
          _letters, _effect(),
          "The letter {letter} should appear {let_relation} {let_frequency} times.",
          "Use the letter {letter} {let_relation} {let_frequency} times."),
    _make("length_constraints:number_words", "number parts length-limit emphasis short repeat",
          _count("num_words", ("less than", 12), ("less than", 15), ("at least", 16), ("at least", 20)), _length,
          "Answer with {relation} {num_words} words.", "Use {relation} {num_words} words.",
          "Your answer should have {relation} {num_words} words."),
    _make("length_constraints:number_sentences", "number parts length-limit emphasis short repeat",
          _count("num_sentences",
                 ("less than", 2), ("less than", 3), ("at least", 2), ("at least", 3), ("at least", 4)), _sentences,
          "Answer with {relation} {num_sentences} sentences.", "Use {relation} {num_sentences} sentences.",
          "Your answer should have {relation} {num_sentences} sentences."),
    _make("length_constraints:number_paragraphs", "parts",
          _choice("num_paragraphs", 2, 3), _effect({"parts": "num_paragraphs"}, layout="dividers"),
          "Write {num_paragraphs} paragraphs separated by ***.",
          "There should be {num_paragraphs} paragraphs with *** between them.",
          "Give {num_paragraphs} paragraphs and put the divider *** between them."),
    _make("length_constraints:nth_paragraph_first_word", "parts start end title content",
          _first_word, _make_first_word,
          "Write {num_paragraphs} paragraphs separated by two new lines. Paragraph {nth_paragraph} must start with the "
          "word {first_word}.",
          "There should be {num_paragraphs} paragraphs with two new lines between them. Start paragraph "
          "{nth_paragraph} with the word {first_word}."),
    _make("detectable_content:number_placeholders", "content length-limit json brackets",
          _choice("num_placeholders", 1, 2, 3), _effect({"placeholders": "num_placeholders"}),
          "Use at least {num_placeholders} placeholders in square brackets such as [address].",
          "Include at least {num_placeholders} placeholders like [name]."),
    _make("detectable_content:postscript", "end length-limit marks",
          _choice("postscript_marker", "P.S.", "P.P.S"), _effect({"postscript": "postscript_marker"}),
          "At the end add a postscript starting with {postscript_marker}",
          "Finish with a postscript that starts with {postscript_marker}"),
    _make("detectable_format:number_bullet_lists", "parts start-line",
          _choice("num_bullets", 2, 3, 4), _effect({"parts": "num_bullets"}, layout="bullets"),
          "Use exactly {num_bullets} bullet points.", "Your answer must contain exactly {num_bullets} bullet points.",
          "Give a list of {num_bullets} bullet points."),
    _make("detectable_format:constrained_response",
          "parts number content emphasis question short length-limit end title case repeat json", _none, _effect(),
          f"Answer with one of these: {_OPTIONS}", f"Choose one answer: {_OPTIONS}"),
    _make("detectable_format:number_highlighted_sections", "emphasis stars",
          _choice("num_highlights", 1, 2), _emphasis("highlights", "num_highlights"),
          "Highlight at least {num_highlights} sections with markdown like *this*.",
          "Mark at least {num_highlights} parts as *highlighted*."),
    _make("detectable_format:multiple_sections", "parts heads",
          lambda rng, world, draft: {
              "section_spliter": rng.choice(("Section", "SECTION")), "num_sections": rng.choice((2, 3))},
          _effect({"parts": "num_sections", "section_word": "section_spliter"}, layout="sections"),
          "Write {num_sections} sections and begin each with {section_spliter} and its number.",
          "Your answer must have {num_sections} sections marked with {section_spliter} X."),
    _make("detectable_format:json_format", "parts number content emphasis end title start json case short",
          _none, _effect(layout="json"),
          "Put your entire answer in JSON format.", "Answer in JSON.", "Your whole output should be JSON."),
    _make("detectable_format:title", "title", _none, _effect(title=True),
          "Add a title in double angular brackets such as <<title>>.",
          "Your answer must contain a title like <<title>>."),
    _make("combination:two_responses", "parts end start title content length-limit", _none,
          _effect(layout="two", parts=2),
          "Give two different responses separated by ******.",
          "Write two different answers with ****** between them."),
    _make("combination:repeat_prompt", "start repeat case parts",
          lambda rng, world, draft: {"prompt_to_repeat": draft.request}, _effect(repeat=True),
          "First repeat the request word for word and then answer.",
          "Repeat the request without change before you answer."),
    _make("startend:end_checker", "end length-limit",
          _choice("end_phrase", *words.END_PHRASES), _effect({"ending": "end_phrase"}),
          "End with this exact phrase: {end_phrase}", "Your last words must be: {end_phrase}",
          "Finish your answer with the phrase: {end_phrase}"),
    _make("startend:quotation", "start start-line", _none, _effect(quote=True),
          "Wrap your entire answer in double quotation marks.", "Put your whole answer in double quotes."),
    _make("change_case:capital_word_frequency", "emphasis case",
          _choice("capital_frequency", 1, 2, capital_relation="at least"), _emphasis("capitals", "capital_frequency"),
          "Write {capital_relation} {capital_frequency} words in all capital letters.",
          "Words in all capitals should appear {capital_relation} {capital_frequency} times."),
    _make("change_case:english_capital", "case heads marks number brackets spoken",
          _none, _effect(case="upper", at_least=3),
          "Answer in all capital letters.", "Use only capital letters.", "Write everything in capital letters."),
    _make("change_case:english_lowercase", "case heads marks", _none, _effect(case="lower"),
          "Answer in all lowercase letters.", "Do not use any capital letters.", "Write everything in lowercase."),
    _make("punctuation:no_comma", "commas json", _none, _effect(),
          "Do not use any commas.", "Use no commas at all.", "Write without commas."),
)  # fmt: skip
"""Each with its id, groups, argument sampler, effect and wordings."""

HELD_OUT_IDS = frozenset(
    {
        "keywords:frequency",
        "length_constraints:nth_paragraph_first_word",
        "detectable_format:number_highlighted_sections",
        "change_case:english_lowercase",
    }
)
"""Tagged "held-out-id", for studies of generalisation that exclude them from the recovery prompts."""


def compatible(first: Instruction, second: Instruction) -> bool:
    """Return whether one answer can satisfy both."""
    return first.id != second.id and not (first.groups & second.groups)


COMBINATIONS: tuple[tuple[Instruction, ...], ...] = (
    *((instruction,) for instruction in INSTRUCTIONS),
    *(
        (first, second)
        for index, first in enumerate(INSTRUCTIONS)
        for second in INSTRUCTIONS[index + 1 :]
        if compatible(first, second)
    ),
)
