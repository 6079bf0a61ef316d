"""What a teacher is told that the student is not: the four types of context, as one substitution.

The student reads the prompt alone; the teacher reads the prompt with a context put into it, and scores the student's
answer as it would have gone on from there. Moving towards that teacher writes the context into the weights.

    type A  demonstrations   worked examples            SDFT, arXiv 2601.19897
    type B  rules            a specification            deliberative alignment
    type C  system           a system prompt            OPCD
    type D  document, answer, trace                     privileged text: a passage, the answer key, a solution's steps
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from recovery.errors import UsageError
from recovery.types import Message, Prompt

SYSTEM = "system"


@dataclass(frozen=True)
class ContextKind:
    """A type of context. ``template`` makes the teacher's user turn; None puts the context in a system turn."""

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
    """A kind of context with its text. A prompt's own ``context`` comes before ``text``, the same for all prompts."""

    kind: ContextKind
    text: str = ""
    template: str | None = None

    @classmethod
    def of(cls, name: str, text: str = "", template: str | None = None) -> Context:
        """The context of a name. Raises UsageError where it is unknown or its template names no field it has."""
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
                raise UsageError(f"--context-template {template!r} leaves the {{prompt}} out: the teacher must read it")
        return cls(KINDS[name], text, template)

    def fits(self, prompt: Prompt) -> bool:
        """Whether there is anything to tell the teacher about this prompt."""
        return prompt.answer is not None if self.kind.name == "answer" else bool(prompt.context or self.text)

    def messages(self, prompt: Prompt, history: Sequence[Message]) -> list[Message]:
        """The conversation ``history`` as the teacher reads it: the context goes into its last user turn.

        Raises UsageError where the prompt brings nothing that this kind of context needs.
        """
        if not self.fits(prompt):
            missing = (
                "an answer" if self.kind.name == "answer" else "a context of its own, and no --context-file is given"
            )
            raise UsageError(f"prompt {prompt.id!r} has no {missing.removeprefix('a ').removeprefix('an ')}: "
                             f"--context {self.kind.name} has nothing to tell the teacher")  # fmt: skip
        text = prompt.context or self.text
        template = self.template or self.kind.template
        if template is None:
            return [Message(role=SYSTEM, content=text), *history]
        last = max(i for i, message in enumerate(history) if message["role"] == "user")
        asked = template.format(prompt=history[last]["content"], context=text, answer=prompt.answer or "")
        return [*history[:last], Message(role="user", content=asked), *history[last + 1 :]]
