"""A rollout as HTML: visible whitespace, escaped model text, values of tokens."""

from __future__ import annotations

from typing import Any

import pytest

from dashboard.pages import tokens
from db.records import TokenScores
from tests.dashboard.test_markup import Reader


def rollout(tokens: list[str], **values: Any) -> TokenScores:
    return TokenScores("prompt", tuple(tokens), values)


@pytest.mark.parametrize(
    ("divergence", "level"), [(None, 0), (0.0, 0), (0.001, 0), (0.01, 2), (0.1, 5), (1.0, 8), (10.0, 10), (900.0, 10)]
)
def test_the_shade_follows_the_logarithm(divergence: float | None, level: int) -> None:
    assert tokens.level(divergence) == level


@pytest.mark.parametrize(
    ("token", "words"),
    [
        ("\n", "⏎"),
        (" ", "␣"),
        ("   ", "␣␣␣"),
        ("", "∅"),
        (" fox", "␣fox"),
        ("a\t", "a⇥"),
        ("a\u00a0b", "a⍽b"),
        ("fox ", "fox␣"),
        ("\u202efox", "⟨U+202E⟩fox"),
        ("\u200b", "⟨U+200B⟩"),
        ("<|im_end|>", "<|im_end|>"),
    ],
)
def test_no_token_is_invisible(token: str, words: str) -> None:
    assert Reader(tokens.shown(token)).words == words


def test_a_line_ends_where_a_token_ends_it() -> None:
    assert Reader(tokens.shown(".\n\n", breaks=True)).words == ".⏎\n⏎\n"
    assert Reader(tokens.shown(" fox", breaks=True)).words == " fox"


def test_a_token_shows_what_both_would_have_said() -> None:
    top, theirs = [[["fox", 0.75], ["cat", 0.25]]], [[["cat", 0.9996], ["fox", 0.0004]]]
    values = {"reverse_kl": [1.5], "entropy": [0.56], "teacher_entropy": [0.0], "logprob": [-0.2877]}
    values |= {"teacher_logprob": [-7.82], "advantage": [-0.5]}
    html = tokens.details(rollout(["fox"], **values, top=top, teacher_top=theirs), 0)
    words = Reader(html).words
    for part in ("token 1 of 1", "1.50 nats", "75.0%", "25.0%", "100.0%", "< 0.1%", "−0.2877", "−7.82", "−0.5000"):
        assert part in words, part
    assert html.count('class="spoken" style') == 2  # the sampled token is marked in both lists
    assert "advantage" in words and "advantage" not in Reader(tokens.details(rollout(["fox"]), 0)).words


def test_what_was_not_kept_is_a_dash() -> None:
    bare = rollout(["a", "b"], reverse_kl=[0.5, None], top=[[["a", None]]], entropy="?")
    assert tokens.figure(bare, "reverse_kl", 0) == 0.5
    for at, name in ((1, "reverse_kl"), (1, "logprob"), (0, "entropy"), (5, "reverse_kl")):
        assert tokens.figure(bare, name, at) is None
    assert "–" in tokens.details(bare, 1)


def test_every_token_can_be_focused_and_is_described() -> None:
    html = tokens.tokens(rollout(["a"] * 5, reverse_kl=[0.0, 0.01, 0.1, 1.0, 10.0]), 0, chosen=3)
    assert html.count('tabindex="0"') == html.count('role="tooltip"') == 5
    assert [f"level-{n}" in html for n in (0, 2, 5, 8, 10)] == [True] * 5
    assert html.count('aria-current="true"') == 1
    assert {f'aria-describedby="token-{at}"' in html and f'id="token-{at}"' in html for at in range(5)} == {True}


def test_special_tokens_are_set_apart() -> None:
    html = tokens.tokens(rollout(["<|im_end|>", "</s>", "<b>", "fox"]), 0, 0)
    assert html.count("special") == 2


def test_a_long_answer_is_shown_in_parts() -> None:
    long = rollout(["a"] * (2 * tokens.WINDOW + 7))
    assert tokens.tokens(long, 0, 0).count('<span class="token') == tokens.WINDOW
    assert tokens.tokens(long, 2 * tokens.WINDOW, 0).count('<span class="token') == 7
