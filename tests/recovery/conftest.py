"""Chat formats of the tiny families."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from recovery.models.chat_template import ChatFormat

KINDS = ["qwen3", "llama", "gemma2", "gemma3", "plain"]


@pytest.fixture(scope="session")
def chat_of(make_tokenizer: Callable[[str], Any]) -> Callable[..., ChatFormat]:
    """Return ``chat_of(kind, template=None)``: the format of a family, or that of Llama without one ("plain")."""

    def made(kind: str, template: str | None = None, **settings: Any) -> ChatFormat:
        tokenizer = make_tokenizer("llama" if kind == "plain" else kind)
        if template is not None or kind == "plain":
            tokenizer.chat_template = template
        return ChatFormat.of(tokenizer, **settings)

    return made


@pytest.fixture(params=KINDS)
def chat(request: pytest.FixtureRequest, chat_of: Callable[..., ChatFormat]) -> ChatFormat:
    """The format of each family in turn."""
    return chat_of(request.param)
