"""Instruction following beyond constant replies: which instructions are trivial, and what replies get on the others."""

from __future__ import annotations

import json
import os
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from evals.acceptance import judge_all
from evals.acceptance_rules import parse_rule
from evals.behaviour import SUITES
from evals.beyond_constant import DETAIL, ECHO, REPLIES, VERSION, single_instructions
from evals.instruction_following import judge_responses, read_ifeval
from evals.measurement import Evidence, measurement
from recovery.data.prompts import behaviour_prompts
from recovery.types import Check, Prompt, SuiteResult
from tests.evals.conftest import prompt_of

PROMPTS = os.environ.get("RECOVER_IFEVAL_PROMPTS", "")
NEVER = ("keywords:existence", "detectable_format:title", "startend:quotation", "combination:repeat_prompt")
ALWAYS = ("punctuation:no_comma", "keywords:forbidden_words", "change_case:english_lowercase")
RECORDED = Path(__file__).parents[2] / "docs/real/trivial/1.json"


@pytest.fixture(scope="module")
def composed() -> list[Prompt]:
    return [prompt for prompt in behaviour_prompts(count=1200).test if prompt.checks][:80]


def rows(result: SuiteResult) -> list[tuple]:
    return [(item.id, item.score, item.group, item.verdicts, item.extra) for item in result.items]


@pytest.mark.skipif(not PROMPTS, reason="RECOVER_IFEVAL_PROMPTS names no file of IFEval's prompts")
def test_of_ifevals_834_instructions_544_are_beyond_constant_replies() -> None:
    prompts = read_ifeval(PROMPTS)
    result = judge_responses(prompts, [prompt.text for prompt in prompts])
    trivial = {
        item.id: "".join(str(int(name in item.extra["trivial"])) for name in item.verdicts) for item in result.items
    }
    assert Counter("".join(trivial.values())) == {"1": 290, "0": 544}
    assert result.details[DETAIL] == result.details[ECHO]
    assert (result.details[DETAIL].value, result.details[DETAIL].n) == (217 / 544, 544)
    assert json.loads(RECORDED.read_text(encoding="utf-8"))["ifeval"] == {"echo": 217 / 544, "trivial": trivial}


def test_the_trivial_instructions_of_composed_prompts_are_recorded_as_they_are_found(composed: list[Prompt]) -> None:
    found = judge_responses(composed, [""] * len(composed)).items
    known = json.loads(RECORDED.read_text(encoding="utf-8"))["instruction_following"]["trivial"]
    shared = [item for item in found if item.id in known]
    kinds = Counter(
        (kind, name in item.extra["trivial"])
        for item in found
        for kind, name in zip(item.extra["instructions"], item.verdicts, strict=True)
    )
    assert not any(kinds[kind, True] for kind in NEVER) and not any(kinds[kind, False] for kind in ALWAYS)
    assert any(kinds[kind, False] for kind in NEVER) and any(kinds[kind, True] for kind in ALWAYS)
    for item in shared:
        assert known[item.id] == "".join(str(int(name in item.extra["trivial"])) for name in item.verdicts)


def test_no_constant_reply_gets_anything_and_no_reply_moves_the_set(composed: list[Prompt]) -> None:
    results = [judge_responses(composed, [reply] * len(composed)) for reply in (*REPLIES, "", "Tea, and more tea.")]
    for result in results[: len(REPLIES)]:
        assert result.details[DETAIL].value == 0 < result.details["instruction_strict"].value
    sets = {tuple((item.id, *item.extra["trivial"]) for item in result.items) for result in results}
    assert len(sets) == 1 and {result.details[ECHO] for result in results} == {results[0].details[ECHO]}
    assert {result.details[DETAIL].n for result in results} == {results[0].details[ECHO].n}


def test_the_share_and_its_error_by_prompt_by_hand() -> None:
    comma, title = Check("punctuation:no_comma"), Check("detectable_format:title")
    quoted, tea = Check("startend:quotation"), Check("keywords:existence", {"keywords": ["tea"]})
    prompts = [
        prompt_of("A", comma, title, quoted, id="a"),
        prompt_of("Write of tea.", title, tea, id="b"),
        prompt_of("C", comma, id="c"),
    ]
    result = judge_responses(prompts, ['"<<Tea>>"', "Nothing.", "One"])
    # followed beyond constant replies: 1 1 of a, 0 0 of b, none of c: sqrt(2 * (1 + 1)) / 4
    assert (result.details[DETAIL].value, result.details[DETAIL].n) == (0.5, 4)
    assert result.details[DETAIL].stderr == pytest.approx(0.5)
    assert (result.details[ECHO].value, result.details[ECHO].n) == (0.25, 4)  # the word alone
    assert result.details["instruction_strict"].value == pytest.approx(4 / 6)  # the official figure stays
    assert DETAIL not in judge_responses(prompts[2:], ["One"]).details


def test_a_repeated_instruction_is_judged_by_its_own_arguments() -> None:
    frequent = [Check("keywords:letter_frequency", {"letter": "e", "let_frequency": n, "let_relation": "at least"})
                for n in (3, 200)]  # fmt: skip
    item = judge_responses([prompt_of("Say it.", *frequent)], ["eee"]).items[0]
    assert item.extra["trivial"] == ["keywords:letter_frequency"]
    assert [row[0] for row in single_instructions(rows(SuiteResult("s", None, (item,))))] == [
        "p#keywords:letter_frequency (2)"
    ]


def test_a_suite_of_one_kind_counts_its_own_instructions_only() -> None:
    words = Check("length_constraints:number_paragraphs", {"num_paragraphs": 3})
    item = judge_responses([prompt_of("Say it.", Check("detectable_format:title"), words)], ["<<T>>"]).items[0]
    chosen = [suite for suite in SUITES if suite.name in ("formatting", "length")]
    values = {suite.name: suite.result([item]).details[DETAIL].value for suite in chosen}
    assert values == {"formatting": 1.0, "length": 0.0}


def test_the_gate_judges_the_single_instructions_grouped_by_prompt() -> None:
    title, comma = Check("detectable_format:title"), Check("punctuation:no_comma")
    prompts = [prompt_of(f"Say {at}.", title, comma, Check("startend:quotation"), id=f"p{at}") for at in range(40)]
    good = measurement(rows(judge_responses(prompts, ['"<<T>>"'] * 40)))
    bad = measurement(rows(judge_responses(prompts, [REPLIES[0]] * 40)))
    assert good.beyond_constant is not None and len(good.beyond_constant.items) == 80
    assert set(good.beyond_constant.groups.values()) == {prompt.id for prompt in prompts}

    def said(student: object, base: object, text: str) -> tuple[str, str]:
        sides = {name: {"instruction_following": one} for name, one in (("student", student), ("base", base))}
        verdict = judge_all([parse_rule(text)], Evidence(sides)).verdicts[0]
        return verdict.verdict, verdict.reason

    assert said(good, good, "instructions >= base - 30")[0] == "pass"
    assert said(bad, good, "instructions >= base - 3")[0] == "fail"
    assert said(bad, good, "instruction_following >= 0.1*base")[0] == "fail"
    assert (
        "base scores 0.0, so that 0.0 is required, which any student has" in said(good, bad, "instructions >= base")[1]
    )
    assert said(good, bad, "instructions >= base")[0] == "undecided"
    old = measurement([(f"p{at}", 1.0, "", {"detectable_format:title": True}, {}) for at in range(40)])
    verdict, reason = said(good, old, "instructions >= base - 3")
    assert verdict == "undecided" and "of base" in reason and "evaluate again with this release" in reason


@pytest.mark.parametrize("text", ["ifeval >= 0.96*base", "retention(mmlu) >= base - 5", "domain >= 0.9*midtrained"])
def test_a_rule_of_any_name_that_asks_for_nothing_is_undecided(text: str) -> None:
    rule = parse_rule(text)
    suite = {"ifeval": "ifeval", "retention": "mmlu", "domain": "domain_knowledge"}[rule.name]
    wrong, right = ({str(at): score for at in range(200)} for score in (0.0, 1.0))
    sides = {"student": right, rule.reference: wrong}
    evidence = Evidence(
        {who: {suite: measurement((key, one, "", {}, {}) for key, one in side.items())} for who, side in sides.items()}
    )
    decision = judge_all([rule], evidence)
    assert decision.decision == "undecided" and f"{rule.reference} scores 0.0" in decision.verdicts[0].reason


def test_another_list_of_replies_is_another_measure() -> None:
    item = judge_responses([prompt_of("Say it.", Check("detectable_format:title"))], ["<<T>>"]).items[0]
    other = replace(item, extra={**item.extra, "constant_replies": VERSION + 1})
    assert list(single_instructions(rows(SuiteResult("s", None, (item,)))))
    assert not list(single_instructions(rows(SuiteResult("s", None, (other,)))))
