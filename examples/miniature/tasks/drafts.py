"""Draft of an answer: the properties that instructions change, and its rendering as text."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from examples.miniature.tasks.facts import SENTENCES
from recovery.miniature import words
from recovery.miniature.corpora import World

MAX_SENTENCES = len(words.ATTRIBUTES)


@dataclass
class Draft:
    """Plan of an answer about a topic. Instructions change it in any order; ``render`` returns the text."""

    topic: str
    request: str
    at_least: int = 2
    at_most: int = MAX_SENTENCES
    avoid: set[str] = field(default_factory=set)
    extra: list[str] = field(default_factory=list)
    layout: str = "plain"
    parts: int = 0
    first_word: tuple[int, str] | None = None
    section_word: str = "Section"
    capitals: int = 0
    highlights: int = 0
    placeholders: int = 0
    title: bool = False
    repeat: bool = False
    quote: bool = False
    postscript: str = ""
    ending: str = ""
    case: str = ""
    verdict: str = ""

    def render(self, rng: random.Random, world: World) -> str:
        """Return the answer as text; facts, order and phrasing are drawn from ``rng``."""
        known = world.facts[self.topic]
        usable = [name for name, value in known.items() if value not in self.avoid]
        lines = self._lines(rng, world, usable)
        blocks = [self.request] if self.repeat else []
        if self.title:
            blocks.append(f"<<The {self.topic}>>")
        blocks.append(self._body(lines, known))
        if self.postscript:
            blocks.append(f"{self.postscript} {_sentence(rng, world, self.topic, rng.choice(usable))}")
        if self.ending:
            blocks.append(self.ending)
        text = "\n".join(blocks)
        if self.case:
            text = text.upper() if self.case == "upper" else text.lower()
        return f'"{text}"' if self.quote else text

    def _lines(self, rng: random.Random, world: World, usable: list[str]) -> list[str]:
        low = max(self.at_least, self.parts)
        count = min(max(low, 1 if self.at_most < 2 else rng.choice((2, 2, 3))), self.at_most, len(usable))
        lines = [_sentence(rng, world, self.topic, name) for name in rng.sample(usable, count)]
        while len(lines) < self.parts:
            lines.append(_sentence(rng, world, self.topic, rng.choice(usable)))
        for number in range(self.placeholders):
            lines.append(f"Write to [{words.PLACEHOLDERS[number]}] to learn more.")
        lines = [_emphasise(line, str.upper) if i < self.capitals else line for i, line in enumerate(lines)]
        lines = [_emphasise(line, "*{}*".format) if i < self.highlights else line for i, line in enumerate(lines)]
        return lines + self.extra

    def _body(self, lines: list[str], known: dict[str, str]) -> str:
        if self.verdict:
            return self.verdict
        if self.layout == "json":
            fields = ", ".join(f'"{name}": "{value}"' for name, value in list(known.items()) if value not in self.avoid)
            notes = "".join(f', "note": "{line}"' for line in self.extra)
            return f'{{"animal": "{self.topic}", {fields}{notes}}}'
        if self.layout == "plain":
            return " ".join(lines)
        groups = _groups(lines, self.parts)
        if self.first_word:
            index, word = self.first_word
            groups[index] = f"{word} is a good word to begin with. {groups[index]}"
        return self._arrange(groups)

    def _arrange(self, groups: list[str]) -> str:
        if self.layout == "bullets":
            return "\n".join(f"- {group}" for group in groups)
        if self.layout == "sections":
            return "\n".join(f"{self.section_word} {i}\n{group}" for i, group in enumerate(groups, 1))
        return {"dividers": "\n***\n", "paragraphs": "\n\n", "two": "\n******\n"}[self.layout].join(groups)


def _sentence(rng: random.Random, world: World, topic: str, attribute: str) -> str:
    return rng.choice(SENTENCES[attribute]).format(t=topic, v=world.facts[topic][attribute])


def _emphasise(line: str, change: Callable[[str], str]) -> str:
    """Apply ``change`` to the last word of a sentence, without its full stop."""
    head, _, last = line.removesuffix(".").rpartition(" ")
    return f"{head} {change(last)}."


def _groups(lines: list[str], parts: int) -> list[str]:
    """Distribute sentences over ``parts`` groups in order, with surplus sentences in the last."""
    return [*lines[: parts - 1], " ".join(lines[parts - 1 :])]
