"""Models and prompts of several suites' tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from recovery.models.loaded import Loaded
from recovery.models.loading import load_model
from recovery.types import Check, Message, Prompt


@pytest.fixture(scope="session")
def loaded(tiny_model: Path) -> Loaded:
    """The default tiny model. Do not change it."""
    return load_model(tiny_model, precision="float32", device="cpu")


@pytest.fixture(scope="session")
def llama(tiny_llama: Path) -> Loaded:
    """A model whose template and tokenizer both add a beginning-of-text token, which must not be doubled."""
    return load_model(tiny_llama, precision="float32", device="cpu")


def prompt_of(text: str, *checks: Check, id: str = "p", **fields: Any) -> Prompt:
    return Prompt(id, (Message(role="user", content=text),), checks=checks, **fields)


def lines(count: int) -> list[Prompt]:
    """Prompts p0, p1 ... that each have one instruction."""
    return [prompt_of(f"Write line {n}.", Check("punctuation:no_comma"), id=f"p{n}") for n in range(count)]
