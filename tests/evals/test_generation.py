"""Greedy generation for conversations: turn by turn and within the model's window."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from evals.generation import answer, generate
from recovery.models.loaded import Loaded
from recovery.rollouts.engine import Completion, Sampling
from recovery.rollouts.transformers_engine import TransformersEngine
from recovery.types import Message
from tests.support import Heard


class Recorder:
    """A real engine that records its calls."""

    def __init__(self, loaded: Loaded) -> None:
        self.engine, self.calls = TransformersEngine(loaded), []
        self.window: int | None = None

    def generate(self, prompts: Sequence[Sequence[int]], sampling: Sampling, progress: Any = None) -> list[Completion]:
        self.calls.append((len(prompts), sampling.max_new_tokens))
        return self.engine.generate(prompts, sampling, progress)


def test_a_window_that_is_smaller_than_the_models_is_the_engines(loaded: Loaded) -> None:
    engine = Recorder(loaded)
    engine.window = 20
    short, long = [5] * 12, [5] * 20
    found = generate(engine, [short, long], Sampling(30, temperature=0.0), window=loaded.max_length)
    assert found[0] is not None and found[1] is None and engine.calls == [(1, 8)]


def chat(*turns: tuple[str, str]) -> list[Message]:
    return [Message(role=role, content=text) for role, text in turns]


def test_one_turn_is_what_the_engine_says(loaded: Loaded) -> None:
    conversations = [chat(("user", "Name a colour.")), chat(("system", "Be brief."), ("user", "And a tree?"))]
    progress = Heard()
    answers = answer(loaded.chat, TransformersEngine(loaded), conversations, max_new_tokens=6, progress=progress)
    for messages, got in zip(conversations, answers, strict=True):
        (direct,) = TransformersEngine(loaded).generate(
            [loaded.chat.prompt_ids(messages)], Sampling(6, temperature=0.0)
        )
        assert (got.text, got.tokens, got.finished) == (loaded.chat.text(direct.ids), len(direct.ids), direct.finished)
        assert got.fits
    assert (progress.answers, progress.tokens) == (2, sum(got.tokens for got in answers))


def test_two_requests_are_answered_one_after_the_other(loaded: Loaded) -> None:
    engine = Recorder(loaded)
    conversations = [
        chat(("user", "Name a colour.")),
        chat(("user", "Name a tree."), ("user", "Say it again.")),
        chat(("user", "Hello"), ("assistant", "Hi."), ("user", "Name a town."), ("assistant", "dropped")),
    ]
    answers = answer(loaded.chat, engine, conversations, max_new_tokens=5)
    assert engine.calls == [(1, 5), (3, 5)]  # the first of two requests, then the last request of every conversation
    (first,) = answer(loaded.chat, engine, [conversations[1][:1]], max_new_tokens=5)
    history = chat(("user", "Name a tree."), ("assistant", first.text), ("user", "Say it again."))
    (again,) = answer(loaded.chat, engine, [history], max_new_tokens=5)
    assert answers[1] == again
    assert list(answers[1].asked) == history
    (third,) = answer(loaded.chat, engine, [conversations[2][:3]], max_new_tokens=5)
    assert answers[2] == third


def test_answers_stay_inside_the_window(loaded: Loaded) -> None:
    conversations = [chat(("user", text)) for text in ("Name a colour.", "word " * 40, "word " * 400)]
    lengths = [len(loaded.chat.prompt_ids(messages)) for messages in conversations]
    window = lengths[1] + 3
    progress = Heard()
    answers = answer(
        loaded.chat, TransformersEngine(loaded), conversations, max_new_tokens=8, window=window, progress=progress
    )
    assert [got.fits for got in answers] == [True, True, False]
    assert answers[1].tokens <= 3
    assert answers[2].text == ""
    assert progress.answers == 3
