"""Chat formats on the template shapes of Qwen3, Llama and Gemma."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from recovery.models.chat_template import ChatFormat, strip_thinking
from recovery.models.loading import load_chat

TURNS = [
    {"role": "user", "content": "Name a colour."},
    {"role": "assistant", "content": "Blue."},
    {"role": "user", "content": "Another."},
    {"role": "assistant", "content": "Red."},
]
KINDS = ["qwen3", "llama", "gemma2", "gemma3"]


@pytest.fixture(params=KINDS)
def chat(request: pytest.FixtureRequest, make_tokenizer: Callable[[str], Any]) -> ChatFormat:
    return ChatFormat.of(make_tokenizer(request.param))


def spoken(chat: ChatFormat, messages: list[dict[str, str]]) -> list[str]:
    """The texts of the contiguous spans that the mask marks."""
    ids, mask = chat.conversation(messages)
    texts: list[list[int]] = [[]]
    for token, marked in zip(ids, mask, strict=True):
        if marked:
            texts[-1].append(token)
        elif texts[-1]:
            texts.append([])
    return [chat.text(piece) for piece in texts if piece]


def test_prompt_is_the_start_of_the_conversation(chat: ChatFormat) -> None:
    prompt = chat.prompt_ids(TURNS[:1])
    ids, mask = chat.conversation(TURNS[:2])
    assert ids[: len(prompt)] == prompt
    assert not any(mask[: len(prompt)])


def test_mask_marks_the_assistant_up_to_its_end_token(chat: ChatFormat) -> None:
    ids, mask = chat.conversation(TURNS[:2])
    marked_ids = [token for token, marked in zip(ids, mask, strict=True) if marked]
    assert marked_ids[-1] in chat.end_ids
    assert sum(token in chat.end_ids for token in marked_ids) == 1
    assert chat.text(marked_ids) == "Blue."


def test_last_turn_of_a_dialogue_is_always_marked(chat: ChatFormat) -> None:
    assert spoken(chat, TURNS)[-1] == "Red."


@pytest.mark.parametrize("kind", ["llama", "gemma2"])
def test_every_turn_is_marked_if_the_history_is_unchanged(kind: str, make_tokenizer: Callable[[str], Any]) -> None:
    assert spoken(ChatFormat.of(make_tokenizer(kind)), TURNS) == ["Blue.", "Red."]


def test_text_stops_at_the_first_of_several_end_tokens(chat: ChatFormat) -> None:
    marked_ids = chat.encode("Hello there")
    for end in chat.end_ids:
        assert chat.text([*marked_ids, end, *chat.encode("and more")]) == "Hello there"


def test_system_message_survives_a_template_without_system_role(make_tokenizer: Callable[[str], Any]) -> None:
    chat = ChatFormat.of(make_tokenizer("gemma2"))
    text = chat.render([{"role": "system", "content": "Be brief."}, *TURNS[:1]], generation_prompt=True)
    assert text.index("Be brief.") < text.index("Name a colour.")


def test_thinking_switched_off_is_written_into_the_prompt(make_tokenizer: Callable[[str], Any]) -> None:
    tokenizer = make_tokenizer("qwen3")
    on, off = ChatFormat.of(tokenizer), ChatFormat.of(tokenizer, template_args={"enable_thinking": False})
    assert "</think>" not in on.render(TURNS[:1], generation_prompt=True)
    assert "</think>" in off.render(TURNS[:1], generation_prompt=True)


def test_model_without_template_gets_plain_turns(make_tokenizer: Callable[[str], Any]) -> None:
    tokenizer = make_tokenizer("llama")
    tokenizer.chat_template = None
    chat = ChatFormat.of(tokenizer)
    assert chat.plain
    ids, mask = chat.conversation(TURNS[:2])
    marked_ids = [token for token, marked in zip(ids, mask, strict=True) if marked]
    assert chat.text(marked_ids) == "Blue."
    assert marked_ids[-1] in chat.end_ids


@pytest.mark.parametrize(
    ("response", "answer"),
    [
        ("<think>two\nlines</think>Yes", "Yes"),
        ("opened by the template</think> Yes", " Yes"),
        ("<think>never closed", ""),
        ("No thought at all", "No thought at all"),
        ("<think>a</think>x<think>b</think>y", "xy"),
    ],
)
def test_thinking_is_stripped(response: str, answer: str) -> None:
    assert strip_thinking(response) == answer


def test_a_document_longer_than_the_context_is_tokenised_without_a_warning(tiny_model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "short"
    shutil.copytree(tiny_model, folder)
    config = folder / "tokenizer_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"model_max_length": 8}))
    heard: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: heard.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("transformers.tokenization_utils_base")
    logger.addHandler(handler)
    try:
        assert len(load_chat(str(folder)).tokenizer("The crane of Vorna lifts nine crates an hour.").input_ids) > 8
    finally:
        logger.removeHandler(handler)
    assert not heard
