"""What ``--teacher`` names, one type in place of a string with several meanings, and what only a teacher reads.

Does not import torch.

Context distillation: the student reads only the prompt; the teacher reads the prompt with a context, and scores the
student's completion under it. Training towards that teacher moves the effect of the context into the weights. The four
types of context:

    type A  demonstrations   worked examples            SDFT, arXiv 2601.19897
    type B  rules            a specification            deliberative alignment
    type C  system           a system prompt            OPCD
    type D  document, answer, trace                     privileged text: a passage, the answer key, a solution's steps
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from recovery.engines import is_address
from recovery.errors import UsageError
from recovery.types import Message, Prompt

Kind = Literal["checkpoints", "server", "self", "start", "ema", "label", "none"]
# Words that are not names of checkpoints.
RESERVED: tuple[Kind, ...] = ("self", "start", "ema", "label", "none")


@dataclass(frozen=True)
class TeacherSpec:
    """Who scores the student's completions.

    ``kind`` is "checkpoints" (frozen, one or several with ``weights`` that sum to 1), "server" (at ``address``),
    "self" (the student as it is), "start" (a copy of the student before training), "ema" (its moving average),
    "label" (the data's own next token) or "none" (only a reward).
    """

    kind: Kind
    weights: Mapping[str, float] = field(default_factory=dict)
    address: str = ""

    @classmethod
    def parse(cls, text: str) -> TeacherSpec:
        """Read the value of ``--teacher``. Raise UsageError if weights do not sum to 1."""
        for word in RESERVED:
            if text == word:
                return cls(word)
        if is_address(text):
            return cls("server", address=text)
        # A folder's name may hold an equals sign. Unlike those of Path, these functions never raise an error: the names
        # of many teachers may be too long for a path.
        if "=" not in text or os.path.isdir(os.path.expanduser(text)):  # noqa: PTH111, PTH112
            return cls("checkpoints", {text: 1.0})
        try:
            pairs = [part.rsplit("=", 1) for part in text.split(",")]
            weights = {name.strip(): float(weight) for name, weight in pairs}
        except ValueError:
            raise UsageError(f"--teacher {text!r}: give several teachers as NAME=0.5,NAME=0.5") from None
        if not (min(weights.values()) > 0 and abs(sum(weights.values()) - 1) <= 1e-6):  # written so that NaN is refused
            raise UsageError(f"--teacher {text!r}: the weights must be above 0 and sum to 1")
        return cls("checkpoints", weights)

    @property
    def frozen(self) -> bool:
        """Whether one or several frozen checkpoints score."""
        return self.kind == "checkpoints"

    @property
    def remote(self) -> bool:
        """Whether a server scores."""
        return self.kind == "server"

    @property
    def is_student(self) -> bool:
        """Whether the student scores itself, given an additional context."""
        return self.kind in ("self", "start", "ema")

    @property
    def is_copy(self) -> bool:
        """Whether a second copy of the student is held in memory."""
        return self.kind in ("start", "ema")


SYSTEM = "system"


@dataclass(frozen=True)
class ContextKind:
    """A type of context. ``template`` forms the teacher's user turn; None puts the context in a system turn."""

    name: str
    type: str
    template: str | None
    uses: str


KINDS: dict[str, ContextKind] = {
    kind.name: kind
    for kind in (
        ContextKind("demonstrations", "A", "{context}\n{prompt}", "worked examples before the prompt"),
        ContextKind("rules", "B", "{context} {prompt}", "rules before the prompt"),
        ContextKind(SYSTEM, "C", None, "a system prompt"),
        ContextKind("document", "D", "Read this text:\n{context}\n\n{prompt}", "the text that holds the answer"),
        ContextKind("answer", "D", "Read this text:\nThe answer is {answer}\n\n{prompt}", "the prompt's own answer"),
        ContextKind("trace", "D", "{prompt}\n\n{context}", "the steps of a solution, after the prompt"),
    )
}


@dataclass(frozen=True)
class Context:
    """A kind of context with its text. A prompt's own ``context`` overrides ``text``, which is the same for all
    prompts.
    """

    kind: ContextKind
    text: str = ""
    template: str | None = None

    @classmethod
    def of(cls, name: str, text: str = "", template: str | None = None) -> Context:
        """Return the context of a kind. Raise UsageError if it is unknown or the template has unknown fields."""
        if name not in KINDS:
            raise UsageError(f"--context {name!r} is unknown: choose one of {', '.join(KINDS)}")
        if template is not None:
            try:
                template.format(prompt="", context="", answer="")
            except (KeyError, IndexError, ValueError, AttributeError, TypeError) as error:
                raise UsageError(
                    f"--context-template cannot be filled in ({error}): it may use {{prompt}}, {{context}}, {{answer}}"
                ) from error
            if "{prompt}" not in template:
                raise UsageError(f"--context-template {template!r} has no {{prompt}}: the teacher must read it")
        return cls(KINDS[name], text, template)

    def fits(self, prompt: Prompt) -> bool:
        """Return whether this prompt has a context."""
        return prompt.answer is not None if self.kind.name == "answer" else bool(prompt.context or self.text)

    def messages(self, prompt: Prompt, history: Sequence[Message]) -> list[Message]:
        """Return the conversation ``history`` as the teacher reads it, with the context in its last user turn.

        Raise UsageError if the prompt lacks what this kind of context needs.
        """
        if not self.fits(prompt):
            needs_answer = self.kind.name == "answer"
            missing = "answer" if needs_answer else "context of its own, and no --context-file is given"
            raise UsageError(f"prompt {prompt.id!r} has no {missing}: --context {self.kind.name} needs one")
        text = prompt.context or self.text
        template = self.template or self.kind.template
        if template is None:
            return [Message(role=SYSTEM, content=text), *history]
        last = max(i for i, message in enumerate(history) if message["role"] == "user")
        filled = template.format(prompt=history[last]["content"], context=text, answer=prompt.answer or "")
        turn: Message = {**history[last], "content": filled}
        return [*history[:last], turn, *history[last + 1 :]]
