"""The plain records that every part of the project shares. No torch here.

Tensor names elsewhere carry their shape as a suffix: B sequences, T positions, V vocabulary, D hidden width
(E where the teacher's differs), N packed response tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypedDict


class Message(TypedDict):
    """One turn of a conversation, in the form chat templates take."""

    role: str
    content: str


@dataclass(frozen=True)
class Check:
    """A verifiable instruction: an IFEval instruction id and the arguments of its checker."""

    instruction: str
    kwargs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Prompt:
    """A request the student is asked to answer.

    ``kind`` routes it: "behaviour" prompts are scored by the behaviour teacher, "knowledge" prompts by the
    knowledge teacher. ``checks`` make the answer verifiable; ``answer`` is a reference where there is one;
    ``context`` is what a teacher may be told about it that the student is not.
    """

    id: str
    messages: tuple[Message, ...]
    kind: str = "behaviour"
    checks: tuple[Check, ...] = ()
    answer: str | None = None
    tags: tuple[str, ...] = ()
    context: str = ""

    @property
    def text(self) -> str:
        """The last user turn: what IFEval's checkers call the prompt."""
        return next((m["content"] for m in reversed(self.messages) if m["role"] == "user"), "")


@dataclass(frozen=True)
class Probe:
    """One question about knowledge.

    form "question": asked as chat; any string of ``answers`` is right (reachable knowledge).
    form "choice": ``question`` is text in the document's own form up to a gap; ``choices`` are candidate
    continuations, one of which is ``answers[0]`` (stored knowledge, by log-likelihood).
    ``control`` marks entities that no corpus teaches: their score must stay at chance. ``passage`` is the text that
    the answer can be checked against.
    """

    id: str
    form: str
    question: str
    answers: tuple[str, ...]
    choices: tuple[str, ...] = ()
    source: str = ""
    control: bool = False
    tags: tuple[str, ...] = ()
    passage: str = ""


@dataclass(frozen=True)
class Item:
    """One evaluated prompt: what was asked, what came back, how it was judged.

    ``score`` is 1 or 0 for verdicts, a real number for graded suites. ``verdicts`` holds one entry an
    instruction (or one named "correct"). ``group`` clusters items for statistics (document, topic, type).
    """

    id: str
    prompt: str
    response: str
    score: float
    verdicts: Mapping[str, bool] = field(default_factory=dict)
    group: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Score:
    """A mean over ``n`` items with its standard error."""

    value: float
    stderr: float
    n: int


@dataclass(frozen=True)
class SuiteResult:
    """A suite's headline score, its items, and further scores by name (loose accuracy, one type, F1 ...)."""

    suite: str
    score: Score
    items: tuple[Item, ...] = ()
    details: Mapping[str, Score] = field(default_factory=dict)
