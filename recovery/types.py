"""Data classes shared by every part of the project. Does not import torch.

Elsewhere, tensor names have their shape as a suffix: B sequences, T positions, V vocabulary, D hidden width
(E where the teacher's differs), N packed response tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NotRequired, TypedDict


class Sampled(TypedDict):
    """A response as token ids, as it was sampled: ``context`` are those of its prompt, ``ids`` its own, with the end
    token if it is ``finished``. ``text`` is the response decoded with its special tokens.
    """

    context: list[int]
    ids: list[int]
    text: str
    finished: bool


class Message(TypedDict):
    """One turn of a conversation, in the format of chat templates.

    An assistant's turn may have ``tool_calls``, whose recorded results are turns of the role "tool". ``tools``, on the
    first message alone, are the JSON schemas that the whole conversation offers. ``recorded`` marks a turn of the
    assistant that is only context of a sampled one, and is not imitated. ``sampled`` holds the token ids of the last
    turn; it is set if the content of this turn or of another lacks the model's reasoning.
    """

    role: str
    content: str
    tool_calls: NotRequired[list[dict[str, Any]]]
    name: NotRequired[str]
    tool_call_id: NotRequired[str]
    tools: NotRequired[list[dict[str, Any]]]
    recorded: NotRequired[bool]
    sampled: NotRequired[Sampled]


def tools_of(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Return the tools that a conversation offers, none for most."""
    return next((message["tools"] for message in messages if message.get("tools")), [])


@dataclass(frozen=True)
class Check:
    """A verifiable instruction: an IFEval instruction id and the arguments of its checker."""

    instruction: str
    kwargs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Prompt:
    """A conversation that the student completes.

    ``kind`` selects the teacher: "behaviour" prompts are scored by the behaviour teacher, "knowledge" prompts by the
    knowledge teacher. ``checks`` make the response verifiable; ``answer`` is the reference answer, if any;
    ``context`` is additional text that only a teacher may read.
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
        """The last user turn, which IFEval's checkers call the prompt."""
        return next((m["content"] for m in reversed(self.messages) if m["role"] == "user"), "")


@dataclass(frozen=True)
class Probe:
    """One question about knowledge.

    form "question": asked as chat; any string of ``answers`` is correct (reachable knowledge).
    form "choice": ``question`` is text in the document's style up to a gap; ``choices`` are candidate continuations,
    one of which is ``answers[0]`` (stored knowledge, by log-likelihood).
    form "near_miss": asked as chat about what is ``absent`` from all documents. There are no answers; ``choices`` are
    those of the nearest subject, and ``passage`` is about that one.
    ``control`` marks entities that are in no corpus: their score must stay at chance. ``passage`` is the text against
    which the answer can be verified.
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
    absent: str = ""


@dataclass(frozen=True)
class Item:
    """One evaluated prompt with its response, score and verdicts.

    ``score`` is 1 or 0 for verdicts, a real number for graded suites, nan if only the suite as a whole has a score.
    ``verdicts`` holds one entry per instruction (or one named "correct"). ``group`` clusters items for statistics
    (document, topic, type).
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
