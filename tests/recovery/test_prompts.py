"""Behaviour prompts: input formats, reports of invalid lines, and splits without a shared wording."""

from __future__ import annotations

import json
import logging
import random
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from recovery.arms import FORMAT_KINDS, LENGTH_KINDS
from recovery.data.prompt_files import load_conversations, load_prompts, write_prompts
from recovery.data.prompt_records import from_record, prompts_hash, to_record, wording
from recovery.data.prompts import (
    PromptSplits,
    behaviour_prompts,
    split_prompts,
    without_held_out,
    without_kinds,
)
from recovery.data.synthetic_prompts import compose
from recovery.data.synthetic_prompts.chat import ordinary
from recovery.errors import UsageError
from recovery.types import Check, Message, Prompt


def prompt(text: str, id: str = "") -> Prompt:
    return Prompt(id or text, (Message(role="user", content=text),))


def write(path: Path, *records: object) -> Path:
    path.write_text("".join(f"{r if isinstance(r, str) else json.dumps(r)}\n" for r in records), encoding="utf-8")
    return path


def instructions(prompts: tuple[Prompt, ...]) -> set[str]:
    return {check.instruction for p in prompts for check in p.checks}


def sides(splits: PromptSplits) -> list[tuple[Prompt, ...]]:
    return [splits.train, splits.development, splits.test]


def assert_disjoint(splits: PromptSplits) -> None:
    for a, b in combinations(sides(splits), 2):
        assert not {wording(p) for p in a} & {wording(p) for p in b}


# --- formats -------------------------------------------------------------------------------------------------


def test_ifevals_own_format_with_its_empty_arguments():
    record = {
        "key": 12,
        "prompt": "Write, but without commas.",
        "instruction_id_list": ["punctuation:no_comma", "detectable_format:number_bullet_lists"],
        "kwargs": [{"num_bullets": None, "keywords": None}, {"num_bullets": 3, "keywords": None}],
    }
    found = from_record(record)
    assert found.id == "12"
    assert found.text == "Write, but without commas."
    assert found.checks == (
        Check("punctuation:no_comma", {}),
        Check("detectable_format:number_bullet_lists", {"num_bullets": 3}),
    )


USER = {"role": "user", "content": "Hello?"}
REPLY = {"role": "assistant", "content": "Yes?"}
SYSTEM = {"role": "system", "content": "Be kind."}


@pytest.mark.parametrize(
    ("record", "roles", "text"),
    [
        ("Hello?", "u", "Hello?"),
        ({"prompt": "Hello?"}, "u", "Hello?"),
        ({"question": "Hello?", "answer": 4}, "u", "Hello?"),
        ({"instruction": "Sort:", "input": "b a", "output": "a b"}, "u", "Sort:\n\nb a"),
        ({"system": "Be kind.", "prompt": "Hello?"}, "su", "Hello?"),
        ({"messages": [SYSTEM, USER, REPLY]}, "su", "Hello?"),
        ({"messages": [USER, REPLY, {"role": "user", "content": "And?"}]}, "uau", "And?"),
        ({"prompt": [USER]}, "u", "Hello?"),
        ({"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Yes"}]}, "u", "Hi"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "Parts"}]}]}, "u", "Parts"),
        ({"system": "Be kind.", "conversations": [{"from": "human", "value": "Hi"}]}, "su", "Hi"),
        ({"system_prompt": "Be kind.", "question": "Hello?"}, "su", "Hello?"),
        ({"messages": [{"role": "developer", "content": "Be kind."}, USER]}, "su", "Hello?"),
        ({"system": "Be kind.", "messages": [SYSTEM, USER]}, "su", "Hello?"),
        ({"instruction": "And?", "history": [["Hello?", "Yes?"], ["Hm?", "No."]]}, "uauau", "And?"),
        ({"system": "Be kind.", "prompt": "And?", "history": [USER, REPLY]}, "suau", "And?"),
        ({"prompt": "And?", "history": '[["Hello?", "Yes?"]]'}, "uau", "And?"),
        ({"messages": [USER, REPLY | {"weight": 0}, USER]}, "uau", "Hello?"),
    ],
)
def test_chat_and_plain_formats(record, roles, text):
    found = from_record(record)
    assert "".join(m["role"][0] for m in found.messages) == roles
    assert found.text == text
    assert found.kind == "behaviour"


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (7, "neither an object nor a string"),
        ({"text": "a document"}, "no prompt"),
        ({"prompt": "   "}, "an empty prompt"),
        ({"messages": [SYSTEM, REPLY]}, "no user turn"),
        ({"messages": [{"role": "tool", "content": "x"}, USER]}, "follows no assistant"),
        ({"messages": [{"role": "narrator", "content": "x"}, USER]}, 'the role "narrator"'),
        ({"messages": [{"role": "user"}]}, "lacks a role or a text"),
        ({"messages": ["Hello"]}, "not an object"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "lacks a role or a text"),
        ({"prompt": "a", "instruction_id_list": ["x", "y"], "kwargs": [{}]}, "need 2 kwargs"),
        ({"prompt": "a", "instruction_id_list": "x"}, "not a list"),
        ({"prompt": "a", "kind": "other"}, 'kind is "other"'),
        ({"prompt": "a", "tags": "x"}, "tags"),
        ({"prompt": "a", "history": "earlier"}, "history is not a list"),
        ({"prompt": "a", "history": [["b"]]}, "history has an entry that is neither a turn nor a pair"),
        ({"messages": [USER, {"from": "function_call", "value": "no call"}, USER]}, "tool_calls has an entry without"),
    ],
)
def test_an_invalid_prompt_is_refused_with_a_reason(record, reason):
    with pytest.raises(ValueError, match=reason):
        from_record(record)


def test_invalid_lines_are_reported_and_the_rest_used(tmp_path, caplog):
    path = write(
        tmp_path / "p.jsonl", {"prompt": "One"}, "{oops", "", {"nothing": 1}, {"prompt": "two"}, {"prompt": "TWO!"}
    )
    problems: list[str] = []
    assert [p.text for p in load_prompts(path, problems=problems)] == ["One", "two"]
    assert problems[0].startswith("p.jsonl line 2: not valid JSON")
    assert problems[1].startswith("p.jsonl line 4: no prompt")
    assert problems[2] == "p.jsonl line 6: the same prompt as an earlier one"
    with caplog.at_level(logging.WARNING):
        load_prompts(path)
    assert "line 2" in caplog.text


def test_files_that_hold_no_prompt_are_refused(tmp_path):
    with pytest.raises(UsageError, match=r"no usable prompt .*line 1: not valid JSON"):
        load_prompts(write(tmp_path / "a.jsonl", "{"))
    with pytest.raises(UsageError, match="cannot read"):
        load_prompts(tmp_path / "none.jsonl")
    with pytest.raises(UsageError, match="not valid JSON"):
        load_prompts(write(tmp_path / "a.json", "["))
    (tmp_path / "b.jsonl").write_bytes(bytes(range(256)))
    with pytest.raises(UsageError, match="binary"):
        load_prompts(tmp_path / "b.jsonl")


def test_json_lists_objects_with_a_list_and_misnamed_lines(tmp_path):
    questions = [{"prompt": "One"}, {"prompt": "Two"}]
    for content in (json.dumps(questions), json.dumps({"data": questions}), "\n".join(map(json.dumps, questions))):
        path = tmp_path / "a.json"
        path.write_text(content)
        assert [p.text for p in load_prompts(path)] == ["One", "Two"]


def test_written_prompts_are_read_back_unchanged(tmp_path):
    prompts = [
        Prompt("a", (Message(role="user", content="Zeile\n„eins“"),), checks=(Check("x:y", {"n": 2}),), tags=("t",)),
        Prompt("b", (Message(**USER), Message(**REPLY), Message(**USER)), kind="knowledge", answer="42"),
    ]
    write_prompts(tmp_path / "p.jsonl", prompts)
    assert load_prompts(tmp_path / "p.jsonl") == prompts
    assert to_record(prompts[0])["prompt"] == "Zeile\n„eins“"
    assert prompts_hash(prompts) == prompts_hash(load_prompts(tmp_path / "p.jsonl")) != prompts_hash(prompts[:1])


# --- splits --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("off", [{"weight": 0}, {"weight": 0.0}, {"loss": False}, {"train": "false"}, {"masked": True}])
def test_a_turn_of_weight_zero_is_context_and_no_example(tmp_path: Path, off: dict[str, Any]) -> None:
    path = write(
        tmp_path / "a.jsonl",
        {"messages": [USER, REPLY | off, USER, REPLY | {"weight": 1}]},
        {"messages": [USER, REPLY, USER, REPLY | off]},
        {"messages": [USER, REPLY | off]},
    )
    notes: list[str] = []
    first, second = load_conversations(path, notes=notes)
    assert [bool(message.get("recorded")) for message in first] == [False, True, False, False]
    assert [message["role"] for message in second] == ["user", "assistant"], "what follows the last example is dropped"
    assert notes == [f"{path}: 1 record left out: every turn of the assistant has weight 0"]
    with pytest.raises(UsageError, match="every turn of the assistant has weight 0"):
        load_conversations(write(path, {"messages": [USER, REPLY | off]}))
    with pytest.raises(UsageError, match="a.jsonl, line 3 has no answer"):
        load_conversations(write(path, {"messages": [USER, REPLY]}, "", {"prompt": "Hello"}))


def test_calls_and_results_of_sharegpt(tmp_path: Path) -> None:
    call = {"name": "weather", "arguments": {"city": "Lund"}}
    turns = [
        {"from": "human", "value": "How warm?"},
        {"from": "function_call", "value": json.dumps(call)},
        {"from": "observation", "value": "12 degrees"},
        {"from": "gpt", "value": "It is 12 degrees."},
    ]
    older = [USER, {"role": "assistant", "content": None, "function_call": call | {"arguments": '{"city": "Lund"}'}}]
    older += [{"role": "function", "name": "weather", "content": "12 degrees"}, REPLY]
    tools = json.dumps([{"name": "weather", "parameters": {}}])
    path = write(tmp_path / "a.jsonl", {"conversations": turns, "tools": tools}, {"messages": older})
    notes: list[str] = []
    for found in load_conversations(path, notes=notes):
        assert [message["role"] for message in found] == ["user", "assistant", "tool", "assistant"]
        assert found[1]["content"] == "" and found[1]["tool_calls"] == [{"type": "function", "function": call}]
    assert load_conversations(path)[0][0]["tools"][0]["function"]["name"] == "weather"
    assert notes == []


def test_text_that_is_not_read_is_counted_by_field(tmp_path: Path) -> None:
    path = write(
        tmp_path / "a.jsonl",
        {"messages": [USER, REPLY], "prompt": "Hello?", "source": "forum", "rejected": "Go away now."},
        {"messages": [USER | {"name": "Anna"}, REPLY | {"thinking": "A friendly greeting.", "weight": 0.5}]},
        {"instruction": "One more?", "output": "Yes.", "rejected": "Ne peut être.", "meta": {"why": ["two words"]}},
    )
    notes: list[str] = []
    load_conversations(path, notes=notes)
    assert notes == [
        f"{path}: fields with text that is not read, and in how many records: rejected (2), name of a turn (1), "
        f"thinking of a turn (1), weight of a turn (trained as 1) (1), meta (1)"
    ]
    problems: list[str] = []
    load_prompts(path, problems=problems)
    assert problems[-1].startswith("a.jsonl: fields with text that is not read, and in how many records: rejected (2)")


def test_splits_of_the_composer_share_no_wording_and_hold_enough():
    splits = behaviour_prompts(seed=0)
    assert_disjoint(splits)
    assert sum(map(len, sides(splits))) == 9000
    assert len(splits.train) > 5000
    for part in (splits.development, splits.test):
        assert sum(bool(p.checks) for p in part) >= 1000
    assert "composer" in splits.source
    assert splits.hash == split_prompts(compose(9000, 0)).hash != behaviour_prompts(seed=1).hash


def test_kinds_of_instruction_can_be_left_out_of_training_and_development_prompts() -> None:
    splits = behaviour_prompts(count=900, seed=2)
    for kinds in (FORMAT_KINDS, LENGTH_KINDS):
        left = without_kinds(splits, kinds)
        asked = {one.partition(":")[0] for one in instructions(left.train + left.development)}
        assert asked == {*FORMAT_KINDS, *LENGTH_KINDS} - {*kinds}
        assert left.test == splits.test and left.hash != splits.hash
        chats = [p for p in left.train if not p.checks]
        assert len(chats) > 50 and all(ordinary(p) for p in chats), "no unchecked prompt asks for it in words"
        assert f"{len(left.train):,} of {len(splits.train):,} prompts" in left.notes[-1]
    one = without_kinds(splits, ["punctuation:no_comma"])
    (lost,) = {c.instruction for p in splits.train for c in p.checks} - {
        c.instruction for p in one.train for c in p.checks
    }
    assert lost == "punctuation:no_comma"


def test_a_kind_that_no_prompt_has_is_refused() -> None:
    splits = behaviour_prompts(count=200)
    with pytest.raises(UsageError, match=r"--without-kind punctuation:no_coma: no prompt of .*no_comma"):
        without_kinds(splits, ["punctuation:no_coma"])
    with pytest.raises(UsageError, match="its prompts have no checks"):
        without_kinds(behaviour_prompts(user_file=Path("composer:chat"), count=100), ["keywords"])
    only = replace(splits, train=tuple(p for p in splits.train if p.checks))
    with pytest.raises(UsageError, match="no prompt of the built-in composer, seed 0 is left"):
        without_kinds(only, [*FORMAT_KINDS, *LENGTH_KINDS])


def test_composed_prompts_are_made_once_for_all_stages_that_ask() -> None:
    chosen = behaviour_prompts(count=70, seed=3)
    assert behaviour_prompts(user_file=Path("composer"), count=70, seed=3) is chosen
    assert behaviour_prompts(count=70, seed=4) is not chosen


def test_the_split_of_a_wording_does_not_depend_on_id_case_or_other_prompts():
    base = compose(400, 0)
    shouted = [
        Prompt(f"x{i}", (Message(role="user", content=p.text.upper() + " "),))
        for i, p in enumerate(base)
        if len(p.messages) == 1
    ]
    mixed = [*base, *shouted]
    random.Random(0).shuffle(mixed)
    both, alone = split_prompts(mixed), split_prompts(base)
    assert_disjoint(both)
    for a, b in zip(sides(both), sides(alone), strict=True):
        assert {wording(p) for p in a} == {wording(p) for p in b}


@pytest.mark.parametrize("n", [1, 2, 3, 4, 7, 20, 59, 60, 200])
def test_small_files_are_split_too(n):
    prompts = [prompt(f"Question number {i}?") for i in range(n)]
    splits = split_prompts(prompts)
    assert_disjoint(splits)
    assert sum(map(len, sides(splits))) == n
    assert len(splits.train) >= n / 3
    if n >= 3:
        assert splits.development and splits.test
    assert split_prompts(prompts[::-1]).hash != "" and {p.id for p in split_prompts(prompts[::-1]).train} == {
        p.id for p in splits.train
    }


def chat(*texts: str) -> tuple[Message, ...]:
    return tuple(Message(role="assistant" if n % 2 else "user", content=text) for n, text in enumerate(texts))


def test_conversations_that_answer_a_held_out_prompt_are_left_out():
    splits = PromptSplits(
        (prompt("Sing."),), (prompt("Dance!"),), (Prompt("t", chat("Hello.", "Hi.", "Now jump.")),), "me"
    )
    kept = [chat("Sing.", "La."), chat("Now jump.", "No."), chat("Sing.", "La.", "Dance!", "No.")]
    lost = [chat("dance", "Hop."), chat("Hello.", "Good day.", "Now jump", "Hop.", "Again.", "Hop.")]
    notes: list[str] = []
    assert without_held_out([*lost, *kept], splits, given="--data a.jsonl", notes=notes) == kept
    assert notes == ["--data a.jsonl: 2 of 5 conversations left out: they answer development or test prompts (me)"]
    assert without_held_out(kept, splits, given="--data a.jsonl", notes=notes) == kept and len(notes) == 1
    with pytest.raises(UsageError, match="--data a.jsonl: every conversation answers a development or test prompt"):
        without_held_out(lost, splits, given="--data a.jsonl", notes=notes)


def test_the_wording_of_a_prompt_ignores_case_and_white_space():
    assert wording(prompt("What is the port?")) == wording(prompt("what is  the PORT", "other"))
    assert wording(prompt("2 + 3")) != wording(prompt("2 * 3"))


# --- sources -------------------------------------------------------------------------------------------------


def test_the_users_file_comes_first_then_the_models_suites(tmp_path):
    suites = tmp_path / "model" / "suites"
    suites.mkdir(parents=True)
    for name in ("train", "development", "test"):
        write(suites / f"{name}.jsonl", *[{"prompt": f"{name} {i}"} for i in range(3)])
    mine = write(tmp_path / "mine.jsonl", *[{"prompt": f"mine {i}"} for i in range(9)], "{")
    own = behaviour_prompts(tmp_path / "model", mine)
    assert own.source == str(mine)
    assert {p.text.split()[0] for part in sides(own) for p in part} == {"mine"}
    assert any("line 10" in note for note in own.notes)
    suite = behaviour_prompts(tmp_path / "model")
    assert [p.text for p in suite.test] == ["test 0", "test 1", "test 2"]
    assert suite.source == "the model's own suites"
    folder = behaviour_prompts(None, suites)
    assert folder.train == suite.train
    assert "composer" in behaviour_prompts(tmp_path, count=300).source


def test_given_splits_that_overlap_are_made_disjoint(tmp_path):
    write(tmp_path / "train.jsonl", *[{"prompt": f"q {i}"} for i in range(10)])
    write(tmp_path / "development.jsonl", {"prompt": "Q 3"}, {"prompt": "q 11"})
    write(tmp_path / "test.jsonl", {"prompt": "q 11"}, {"prompt": "q 4"})
    splits = behaviour_prompts(None, tmp_path)
    assert_disjoint(splits)
    assert [len(part) for part in sides(splits)] == [8, 1, 2]
    assert len(splits.notes) == 2


def test_missing_splits_are_taken_from_the_training_prompts(tmp_path):
    write(tmp_path / "train.jsonl", *[{"prompt": f"q {i}"} for i in range(30)])
    write(tmp_path / "test.jsonl", {"prompt": "q 5"})
    splits = behaviour_prompts(None, tmp_path)
    assert_disjoint(splits)
    assert len(splits.development) >= 1 and [p.text for p in splits.test] == ["q 5"]
    assert "no development.jsonl: taken from train.jsonl" in splits.notes


def test_wrong_paths_are_refused(tmp_path):
    with pytest.raises(UsageError, match="no file"):
        behaviour_prompts(None, tmp_path / "none.jsonl")
    with pytest.raises(UsageError, match=r"no train\.jsonl"):
        behaviour_prompts(None, tmp_path)
