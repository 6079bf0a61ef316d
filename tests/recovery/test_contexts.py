"""Contexts that only the teacher reads."""

from __future__ import annotations

import pytest

from recovery.errors import UsageError
from recovery.teacher_spec import KINDS, Context
from recovery.types import Message, Prompt

ASK = Message(role="user", content="What is 2 + 2?")


def prompt(context: str = "", answer: str | None = "4") -> Prompt:
    return Prompt("sum", (ASK,), answer=answer, context=context)


@pytest.mark.parametrize("name", sorted(KINDS))
def test_every_kind_adds_its_context_and_keeps_the_question(name: str) -> None:
    messages = Context.of(name, "Count on your fingers.").messages(prompt(), [ASK])
    text = "\n".join(message["content"] for message in messages)
    assert messages[-1]["role"] == "user" and "What is 2 + 2?" in messages[-1]["content"]
    assert ("4" if name == "answer" else "Count on your fingers.") in text
    assert text != ASK["content"]


def test_a_system_prompt_is_a_turn_of_its_own() -> None:
    messages = Context.of("system", "Be brief.").messages(prompt(), [ASK])
    assert messages == [Message(role="system", content="Be brief."), ASK]


def test_a_prompts_own_context_comes_before_the_common_one() -> None:
    context = Context.of("document", "common")
    assert "own text" in context.messages(prompt("own text"), [ASK])[0]["content"]
    assert "common" in context.messages(prompt(), [ASK])[0]["content"]


def test_only_the_last_user_turn_of_a_dialogue_is_changed() -> None:
    history = [ASK, Message(role="assistant", content="4"), Message(role="user", content="And 3 + 3?")]
    messages = Context.of("rules", "Answer in words.").messages(prompt(), history)
    assert messages[:2] == history[:2]
    assert messages[2]["content"] == "Answer in words. And 3 + 3?"


def test_a_template_of_the_users_own() -> None:
    messages = Context.of("document", "text", "<{context}> {prompt} ({answer})").messages(prompt(), [ASK])
    assert messages[0]["content"] == "<text> What is 2 + 2? (4)"


def test_invalid_contexts_are_refused() -> None:
    with pytest.raises(UsageError, match="prompt 'sum' has no answer"):
        Context.of("answer").messages(prompt(answer=None), [ASK])
    with pytest.raises(UsageError, match="has no context of its own, and no --context-file"):
        Context.of("document").messages(prompt(), [ASK])
    with pytest.raises(UsageError, match="--context-template cannot be filled in"):
        Context.of("rules", "x", "{rules} {prompt}")
    with pytest.raises(UsageError, match="--context 'rumour' is unknown"):
        Context.of("rumour")
