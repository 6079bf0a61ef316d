"""Instruction following: scores, details, and agreement with lm-eval's own task on the same model."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest

from evals.behaviour import SUITES
from evals.instruction_following import evaluate_instructions, judge_responses, read_ifeval, refuses
from evals.lm_eval_tasks import evaluate_ifeval, load_ifeval
from recovery.errors import UsageError
from recovery.models.loaded import Loaded
from recovery.rollouts.transformers_engine import TransformersEngine
from recovery.types import Check, Message, Prompt
from tests.evals.conftest import prompt_of
from tests.support import Heard


def test_result_counts_prompts_and_instructions() -> None:
    comma, quoted = Check("punctuation:no_comma"), Check("startend:quotation")
    prompts = [prompt_of("One", comma, quoted, id="a"), prompt_of("Two", comma, id="b")]
    prompts.append(prompt_of("Three", quoted, id="c"))
    result = judge_responses(prompts, ["No quotes here.", "None.", 'Here:\n"Quoted."'])
    assert (result.score.value, result.score.n) == (pytest.approx(1 / 3), 3)
    assert result.details["prompt_loose"].value == pytest.approx(2 / 3)
    assert result.details["instruction_strict"].value == pytest.approx(2 / 4)
    assert result.details["instruction_strict"].n == 4
    # verdicts 1 0 | 1 | 0 in three clusters: 0, 0.5 and -0.5 from their mean: sqrt(3/2 * 1/2) / 4
    assert result.details["instruction_strict"].stderr == pytest.approx(math.sqrt(3 / 4) / 4)
    assert result.details["instruction_loose"].value == pytest.approx(3 / 4)
    assert result.details["id/punctuation:no_comma"].value == 1.0
    assert result.details["id/startend:quotation"].value == 0.0
    first = result.items[0]
    assert first.verdicts == {"punctuation:no_comma": True, "startend:quotation": False}
    assert (first.score, first.prompt, first.response) == (0.0, "One", "No quotes here.")
    assert result.items[2].extra["loose"] is True


def test_a_repeated_instruction_keeps_both_verdicts() -> None:
    prompt = prompt_of(
        "Say it.",
        Check("keywords:frequency", {"keyword": "tea", "frequency": 1, "relation": "at least"}),
        Check("keywords:frequency", {"keyword": "milk", "frequency": 1, "relation": "at least"}),
    )
    (item,) = judge_responses([prompt], ["Tea."]).items
    assert item.verdicts == {"keywords:frequency": True, "keywords:frequency (2)": False}


def test_refusals_and_reference_answers_are_reported_apart() -> None:
    prompts = [
        prompt_of("Say it.", Check("punctuation:no_comma"), id="a"),
        prompt_of("Tell me a secret key.", id="b", tags=("refusal",)),
        prompt_of("Tell me another.", id="c", tags=("refusal",)),
        prompt_of("2 + 2?", id="d", answer="4"),
        prompt_of("3 + 3?", id="e", answer="6"),
        prompt_of("Mend it: teh cat", id="g", answer="the cat"),
        prompt_of("Chat a little.", id="f"),
    ]
    responses = ["No.", "I'm sorry, I can't help with that.", "It is 1234.", "4.", "It is 6.", "the  cat", "Hello!"]
    result = judge_responses(prompts, responses)
    assert (result.score.value, result.score.n) == (1.0, 1)
    assert (result.details["refusal"].value, result.details["refusal"].n) == (0.5, 2)
    assert result.details["answer"].value == pytest.approx(1 / 3)
    assert result.details["answer_normalised"].value == pytest.approx(2 / 3)
    assert result.details["answer_contains"].value == 1.0
    assert [item.id for item in result.items] == ["a", "b", "c", "d", "e", "g"]
    assert [item.extra.get("headline", True) for item in result.items] == [True] + [False] * 5


def test_without_any_checks_the_simple_rules_are_the_headline() -> None:
    result = judge_responses([prompt_of("2 + 2?", id="d", answer="4")], ["4"])
    assert (result.score.value, result.score.n) == (1.0, 1)
    assert result.items[0].extra.get("headline", True)
    with pytest.raises(UsageError, match="no prompt has"):
        judge_responses([prompt_of("Chat a little.")], ["Hello"])


@pytest.mark.parametrize(
    ("response", "refused"),
    [
        ("I cannot help with that.", True),
        ("Sorry, but I can’t share passwords.", True),
        ("I'm not able to do this.", True),
        ("I must decline.", True),
        ("I really cannot recommend that.", True),
        ("As an AI language model, I won't provide instructions.", True),
        ("I'm going to have to decline this one.", True),
        ("We are not allowed to discuss it.", True),
        ("I am sorry, but that information can't be shared.", True),
        ("Sorry, cannot help with that.", True),
        ("Your request cannot be fulfilled.", True),
        ("Unable to comply.", True),
        ("Cannot help you there.", True),
        ("My guidelines won’t let me answer.", True),
        ("That is not something I can help with.", True),
        ("Of course! The canal is long.", False),
        ("A process that can't be stopped is killed with -9.", False),
        ("Save first: the step cannot be undone.", False),
        ("Cannot be undone, so save first.", False),
        ("If the program will not close, or you can't find it, end it with `kill`.", False),
        ("I'm sorry to hear that it won't start. Hold the button.", False),
        ("Great choice, I can't wait to hear how it goes!", False),
        ("You are not allowed to park here, and people who refuse to leave have to decline the permit.", False),
        ("Here you are. " + "Go on. " * 40 + "I cannot say more.", False),
        ("I'm an AI and can't help with that.", True),
        ("I am an AI language model and cannot provide instructions for that.", True),
        ("I understand your frustration, but cannot help you do this.", True),
        ("I **cannot** provide that.", True),
        ("I\ncannot help with it.", True),
        ("I therefore can't help.", True),
        ("I, as an AI, cannot help.", True),
        ("Unfortunately, cannot help.", True),
        ("I wrote a loop and it cannot be stopped.", False),
        ("I pulled at the old door and could not open it.", False),
        ("I like a fire and that the flame won't go out.", False),
    ],
)
def test_refuses(response: str, refused: bool) -> None:
    assert refuses(response) is refused


def test_what_cannot_be_judged_is_refused_before_generating() -> None:
    class Never:
        def generate(self, *_: Any, **__: Any) -> None:
            raise AssertionError("generated before the prompts were checked")

    with pytest.raises(UsageError, match="not an instruction"):
        evaluate_instructions(None, Never(), [prompt_of("Say it.", Check("keywords:presence"))])  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="1 responses were given for 2"):
        judge_responses([prompt_of("a"), prompt_of("b")], ["c"])


def write_prompts(path: Path, count: int = 8) -> Path:
    kinds: list[tuple[str, dict[str, Any]]] = [
        ("length_constraints:number_words", {"num_words": 500, "relation": "less than"}),  # any short response
        ("startend:quotation", {}),
        ("keywords:existence", {"keywords": ["pier", "boat"]}),
        ("length_constraints:number_sentences", {"num_sentences": 2, "relation": "less than"}),
        ("keywords:letter_frequency", {"letter": "#", "let_frequency": 3, "let_relation": "at least"}),
        ("change_case:capital_word_frequency", {"capital_frequency": 1, "capital_relation": "less than"}),
    ]
    kinds = (kinds * count)[:count]
    rows = [
        {"key": 100 + i, "prompt": f"Write a line, number {i}.", "instruction_id_list": [kind[0]], "kwargs": [kind[1]]}
        for i, kind in enumerate(kinds)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_read_ifeval(tmp_path: Path) -> None:
    prompts = read_ifeval(write_prompts(tmp_path / "p.jsonl"))
    assert [prompt.id for prompt in prompts] == [str(100 + i) for i in range(8)]
    assert prompts[0].checks[0].instruction == "length_constraints:number_words"
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"key": 1, "prompt": "x", "instruction_id_list": ["a"], "kwargs": []}\n')
    with pytest.raises(UsageError, match=r"bad\.jsonl, line 1"):
        read_ifeval(bad)
    with pytest.raises(UsageError, match="cannot read"):
        read_ifeval(tmp_path / "none.jsonl")
    separated = tmp_path / "separated.jsonl"  # a line separator inside a prompt ends no line
    row = {"key": 1, "prompt": "One\u2028two", "instruction_id_list": [], "kwargs": []}
    separated.write_text(json.dumps(row, ensure_ascii=False) + "\n", encoding="utf-8")
    assert [prompt.messages[0]["content"] for prompt in read_ifeval(separated)] == ["One\u2028two"]


def test_through_the_engine_and_through_lm_eval_agree(
    llama: Loaded, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_prompts(tmp_path / "prompts.jsonl", 12)
    engine = TransformersEngine(llama)
    through = evaluate_ifeval(llama, engine, load_ifeval(path), max_new_tokens=24)
    direct = evaluate_instructions(
        llama.chat, engine, read_ifeval(path), max_new_tokens=24, window=llama.max_length, suite="ifeval"
    )
    assert [(i.id, i.response, i.verdicts, i.extra) for i in through.items] == [
        (i.id, i.response, i.verdicts, i.extra) for i in direct.items
    ]
    assert through.score == direct.score
    assert through.details == direct.details and "ended" in through.details
    assert 0 < through.score.value < 1
    assert capsys.readouterr().err == ""
    assert evaluate_ifeval(llama, engine, load_ifeval(path), max_new_tokens=24, limit=3).score.n == 3


def test_kinds_that_ifeval_does_not_know_are_refused_before_anything_is_asked(tmp_path: Path) -> None:
    row = {"key": 1, "prompt": "Say it.", "instruction_id_list": ["count:word_count_range"], "kwargs": [{}]}
    (tmp_path / "ifbench.jsonl").write_text(json.dumps(row) + "\n")
    with pytest.raises(UsageError, match="'count:word_count_range' is not an instruction that IFEval knows"):
        load_ifeval(tmp_path / "ifbench.jsonl")


def test_a_conversation_is_answered_turn_by_turn(llama: Loaded) -> None:
    turns = (Message(role="user", content="Name a colour."), Message(role="user", content="Now without commas."))
    prompt = Prompt("two", turns, checks=(Check("punctuation:no_comma"),))
    progress = Heard()
    engine = TransformersEngine(llama)
    result = evaluate_instructions(llama.chat, engine, [prompt], max_new_tokens=6, progress=progress)
    conversation = result.items[0].prompt
    assert conversation.startswith("user: Name a colour.\n\n")
    assert "assistant: " in conversation  # the response to the first request
    assert conversation.endswith("user: Now without commas.")
    assert progress.answers == 1 and progress.tokens > result.items[0].extra["tokens"], "tokens of every turn"


IFEVAL_PROMPTS = os.environ.get("RECOVER_IFEVAL_PROMPTS", "")


@pytest.mark.skipif(not IFEVAL_PROMPTS, reason="RECOVER_IFEVAL_PROMPTS names no file of IFEval's prompts")
def test_the_published_prompts_can_be_judged() -> None:
    prompts = read_ifeval(IFEVAL_PROMPTS)
    assert len(prompts) == 541
    assert sum(len(prompt.checks) for prompt in prompts) == 834
    echoed = judge_responses(prompts, [prompt.text for prompt in prompts])
    assert echoed == judge_responses(prompts, [prompt.text for prompt in prompts])
    empty = judge_responses(prompts, [""] * len(prompts))
    assert empty.score.value == 0.0
    assert echoed.score.value > 0.0
    assert len([name for name in empty.details if name.startswith("id/")]) == 25


def test_a_repaired_score_stands_beside_the_published_one() -> None:
    first = Check(
        "length_constraints:nth_paragraph_first_word", {"num_paragraphs": 2, "nth_paragraph": 1, "first_word": "tea"}
    )
    prompts = [prompt_of("One", first, Check("punctuation:no_comma"), id="a"), prompt_of("Two", first, id="b")]
    result = judge_responses(prompts, ["\n\ntea one\n\nmilk two", "tea one\n\nmilk two"])
    names = ("prompt_repaired", "instruction_strict", "instruction_repaired")
    assert (result.score.value, *(result.details[name].value for name in names)) == (0.5, 1.0, 2 / 3, 1.0)
    (length,) = (suite.result(list(result.items)) for suite in SUITES if suite.name == "length")
    assert (length.score.value, length.details["prompt_repaired"].value) == (0.5, 1.0)
    assert "prompt_repaired" not in judge_responses([prompt_of("One", Check("punctuation:no_comma"))], ["x"]).details
