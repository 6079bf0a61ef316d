"""Rewards: values, applicability, and errors of user functions."""

from __future__ import annotations

from pathlib import Path

import pytest

from recovery.errors import RecoveryError, UsageError
from recovery.rewards import (
    all_checks,
    can_judge,
    exact,
    group_advantages,
    judged,
    normalised,
    resolve_reward,
    verifiable,
)
from recovery.types import Check, Message, Prompt

COMMA, LOWER = Check("punctuation:no_comma"), Check("change_case:english_lowercase")


def prompt(*checks: Check, answer: str | None = None) -> Prompt:
    return Prompt("p", (Message(role="user", content="Say it."),), checks=checks, answer=answer)


def test_a_share_of_the_instructions_or_all_of_them() -> None:
    both = prompt(COMMA, LOWER)
    assert verifiable(both, "the fox lives in the wood and it is red") == 1.0
    assert verifiable(both, "the fox is red, it lives in the wood") == 0.5
    assert all_checks(both, "the fox is red, it lives in the wood") == 0.0
    assert all_checks(both, "the fox lives in the wood and it is red") == 1.0


def test_an_answer_is_exact_or_the_same_without_regard_to_case_and_marks() -> None:
    asked = prompt(answer="Brown")
    assert exact(asked, " Brown ") == verifiable(asked, "Brown") == normalised(asked, "brown.") == 1.0
    assert exact(asked, "brown.") == normalised(asked, "dark brown") == 0.0
    assert exact(prompt(), "anything") == 0.0


def test_which_prompts_a_reward_applies_to() -> None:
    assert can_judge("verifiable", prompt(COMMA)) and can_judge("verifiable", prompt(answer="x"))
    assert not can_judge("verifiable", prompt())
    assert not can_judge("exact", prompt(COMMA))
    assert can_judge("mine:pay", prompt())


def test_advantages_are_normalised_within_each_group() -> None:
    found = group_advantages([1.0, 0.0, 1.0, 1.0, 5.0], ["a", "a", "b", "b", "c"])
    assert found[0] == pytest.approx(-found[1]) and found[0] == pytest.approx(0.5 / (0.5**0.5 + 1e-4))
    assert found[2:] == [0.0, 0.0, 0.0], "equal rewards, or a group of one"


def test_a_reward_of_the_users_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "payroll.py").write_text(
        "def length(prompt, response): return len(response)\n"
        "def nothing(prompt, response): return float('nan')\n"
        "def broken(prompt, response): raise KeyError('rate')\n"
        "number = 3\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert judged(resolve_reward("payroll:length"), prompt(), "four") == 4.0
    with pytest.raises(RecoveryError, match="returned nan for prompt 'p'"):
        judged(resolve_reward("payroll:nothing"), prompt(), "x")
    with pytest.raises(RecoveryError, match="the reward failed on prompt 'p': KeyError"):
        judged(resolve_reward("payroll:broken"), prompt(), "x")


@pytest.mark.parametrize("name", ["unheard-of", "no_such_module:f", "math:no_such_function", "math:pi"])
def test_an_invalid_reward_is_refused_in_one_line(name: str) -> None:
    with pytest.raises(UsageError, match="--reward") as caught:
        resolve_reward(name)
    assert "\n" not in str(caught.value)
