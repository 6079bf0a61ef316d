"""The composer: distinct prompts, valid and satisfiable checks, no overlap with the IFEval test set."""

from __future__ import annotations

import json
import os
import random
import re
from collections import Counter
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import langdetect
import pytest

from recovery.data import checkers
from recovery.data.corpus.text import normalise
from recovery.data.prompt_records import wording
from recovery.data.prompts import behaviour_prompts
from recovery.data.synthetic_prompts import DEFAULT_COUNT, compose, compose_chat
from recovery.data.synthetic_prompts import constraints as r
from recovery.data.synthetic_prompts.chat import HARMFUL, HARMLESS, formatted
from recovery.data.synthetic_prompts.constrained_writing import agree, kinds_agree, partners
from recovery.data.synthetic_prompts.constraints import RULES, Rule
from recovery.data.synthetic_prompts.topics import TOPICS, Topic
from recovery.types import Check, Prompt

REAL_PROMPTS = "RECOVER_IFEVAL_PROMPTS"


@cache
def composed() -> tuple[Prompt, ...]:
    return tuple(compose())


@pytest.fixture(scope="module")
def registry() -> ModuleType:
    checkers.prepare()
    from lm_eval.tasks.ifeval import instructions_registry

    langdetect.DetectorFactory.seed = 0
    return instructions_registry


def checker(registry: Any, check: Check) -> Any:
    instruction = registry.INSTRUCTION_DICT[check.instruction](check.instruction)
    instruction.build_description(**check.kwargs)
    return instruction


def test_composes_many_distinct_prompts_over_two_hundred_topics():
    prompts = composed()
    assert len(prompts) == DEFAULT_COUNT >= 5000
    assert len({wording(p) for p in prompts}) == len(prompts)
    assert len({p.id for p in prompts}) == len(prompts)
    assert len({t for p in prompts for t in p.tags if t.startswith("topic:")}) == len(TOPICS) >= 200
    kinds = Counter(p.tags[0] for p in prompts)
    assert set(kinds) == {"writing", "plain", "code", "dialogue", "refusal"}
    assert min(kinds.values()) >= 200
    assert sum(bool(p.checks) for p in prompts) >= 0.6 * len(prompts)
    assert all(p.messages[-1]["role"] == "user" and p.text.strip() for p in prompts)
    assert sum(len(p.messages) == 3 for p in prompts) == kinds["dialogue"]


def test_the_same_seed_gives_the_same_prompts_and_another_seed_others():
    assert compose(300, 3) == compose(300, 3)
    same = {wording(p) for p in compose(300, 3)} & {wording(p) for p in compose(300, 4)}
    assert len(same) < 100


def test_topics_and_their_words_are_distinct():
    assert len({t.name for t in TOPICS}) == len(TOPICS)
    for topic in TOPICS:
        assert len(set(topic.words)) == 4
        assert not set(topic.words) & set(topic.name.split())


def test_harmful_requests_come_with_similar_harmless_ones():
    tags = Counter(p.tags[1] for p in composed() if p.tags[0] == "refusal")
    assert tags["refuse"] >= 100
    assert tags["harmless"] >= 60
    assert not set(HARMFUL) & set(HARMLESS)


def test_every_instruction_id_occurs_often():
    counts = Counter(c.instruction for p in composed() for c in p.checks)
    assert set(counts) == set(RULES)
    assert len(counts) == 25
    assert min(counts.values()) >= 100


def test_every_check_instantiates_with_exactly_its_arguments(registry):
    for prompt in composed():
        for check in prompt.checks:
            instruction = checker(registry, check)
            arguments = instruction.get_instruction_args() or {}
            assert set(check.kwargs) == set(arguments), check
            for name, value in check.kwargs.items():
                used = arguments[name]
                assert used == (sorted(value) if isinstance(value, list) else value), (check, used)


def test_the_conflicts_of_the_published_registry_are_respected(registry):
    ours = {(a, b) for a in RULES for b in RULES if kinds_agree(a, b)}
    theirs = registry.conflict_make({k: set(v) for k, v in registry.INSTRUCTION_CONFLICTS.items()})
    # Only pairs with the JSON, two-responses or repeat instruction may deviate from the registry.
    clashes = {pair for pair in ours if pair[1] in theirs[pair[0]]}
    assert clashes <= {(a, b) for a in RULES for b in RULES if {a, b} & {r.JSON, r.TWO, r.REPEAT}}
    assert all(kinds_agree(b, a) for a, b in ours)


def test_incompatible_rules_are_detected():
    topic = Topic("tides", ("moon", "harbour", "high", "low"))

    def rule(id: str, **kwargs: Any) -> Rule:
        drawn = RULES[id](random.Random(0), topic)
        return Rule(Check(id, kwargs), drawn.text, drawn.requires, drawn.words)

    few = rule(r.WORDS, num_words=30, relation="less than")
    many = Rule(Check(r.SENTENCES, {"num_sentences": 8, "relation": "at least"}), "", (), 48)
    assert not agree([few, many])
    assert agree([rule(r.WORDS, num_words=150, relation="less than"), many])
    assert not agree([RULES[r.UPPER](random.Random(0), topic), RULES[r.LOWER](random.Random(0), topic)])
    keep = Rule(Check(r.EXISTENCE, {"keywords": ["moon"]}), "", ("moon",), 8)
    assert not agree([keep, rule(r.FORBIDDEN, forbidden_words=["moon"])])
    assert not agree([RULES[r.REPEAT](random.Random(0), topic), rule(r.NO_COMMA)], "Write about tides, please.")
    assert agree([RULES[r.REPEAT](random.Random(0), topic), rule(r.NO_COMMA)], "Write about tides.")
    assert r.LOWER not in partners([r.SECTIONS])


def test_a_repeat_prompt_starts_with_the_request_to_repeat():
    repeats = [(p, c) for p in composed() for c in p.checks if c.instruction == r.REPEAT]
    assert len(repeats) > 100
    for prompt, check in repeats:
        assert prompt.text.startswith(check.kwargs["prompt_to_repeat"] + "\n\n")


def test_reference_answers_are_right():
    answered = [p for p in composed() if p.answer is not None]
    assert len(answered) > 400
    sums = 0
    for prompt in answered:
        if prompt.tags == ("plain", "sum"):
            a, sign, b = re.search(r"(\d+) ([-+*]) (\d+)", prompt.text).groups()
            value = {"+": int(a) + int(b), "-": int(a) - int(b), "*": int(a) * int(b)}[sign]
            assert prompt.answer == str(value)
            sums += 1
        if "alphabetical" in prompt.text:
            listed = prompt.text.split(": ")[1].rstrip(".").split(", ")
            assert prompt.answer.split(", ") == sorted(listed)
    assert sums > 100


# --- every combination is satisfiable: the published checkers accept an answer built for it ------------------

LANGUAGE_SAMPLES = {
    "de": "Das ist ein schöner Tag und wir gehen zusammen an den Fluss",
    "fr": "Nous sommes allés au bord de la rivière et il faisait très beau",
    "es": "Hoy es un día muy bonito y vamos juntos a la orilla del río",
    "it": "Oggi è una bella giornata e andiamo insieme lungo il fiume della città",
    "pt": "Hoje está um dia muito bonito e nós vamos juntos até a margem do rio",
    "ru": "Сегодня прекрасный день и мы вместе идём к берегу реки",
    "hi": "आज का दिन बहुत सुंदर है और हम सब नदी के किनारे जा रहे हैं",
    "ar": "اليوم يوم جميل جدا ونحن نذهب معا إلى ضفة النهر",
    "vi": "Hôm nay là một ngày rất đẹp và chúng tôi cùng nhau đi ra bờ sông",
    "fi": "Tänään on kaunis päivä ja kävelemme yhdessä joen rannalle",
    "sw": "Leo ni siku nzuri sana na sisi sote tunakwenda pamoja kwenye ukingo wa mto",
    "ko": "오늘은 정말 아름다운 날이고 우리는 함께 강가로 갑니다",
    "bg": "Днес времето е хубаво и децата играят пред къщата защото няма да ходят на училище",
    "bn": "আজ খুব সুন্দর দিন এবং আমরা সবাই একসাথে নদীর তীরে যাচ্ছি",
    "fa": "امروز روز بسیار زیبایی است و ما با هم به کنار رودخانه می‌رویم",
    "th": "วันนี้เป็นวันที่สวยงามมากและเราไปที่ริมแม่น้ำด้วยกัน",
}
SENTENCE = "the day is new and the air is mild and all of us met there at ten in the morning"
FILLER = SENTENCE.split()


def witness(checks: tuple[Check, ...], rng: random.Random) -> str:
    """Return a simple answer that satisfies all checks."""
    given = {c.instruction: dict(c.kwargs) for c in checks}
    if r.CONSTRAINED in given:
        return "My answer is yes."
    required = list(given.get(r.EXISTENCE, {}).get("keywords", []))
    if r.JSON in given:
        return json.dumps({"text": " ".join(required)})
    if r.LANGUAGE in given:
        words = LANGUAGE_SAMPLES[given[r.LANGUAGE]["language"]].split()
    else:
        room = given.get(r.WORDS, {}).get("relation") != "less than"  # longer text is detected as English more reliably
        words = [*FILLER[: None if room else 9], *_wanted_words(given, required)]
    words += ["[name]"] * given.get(r.PLACEHOLDERS, {}).get("num_placeholders", 0)
    words += ["*mild*"] * given.get(r.HIGHLIGHTS, {}).get("num_highlights", 0)
    text = _blocks(words, given)
    if r.TWO in given:
        text = f"{text}\n******\n{text} and then some"
    return _frame(text, given)


def _wanted_words(given: dict[str, dict[str, Any]], required: list[str]) -> list[str]:
    words = list(required)
    if given.get(r.FREQUENCY, {}).get("relation") == "at least":
        words += [given[r.FREQUENCY]["keyword"]] * given[r.FREQUENCY]["frequency"]
    if given.get(r.LETTERS, {}).get("let_relation") == "at least":
        having = [word for word in FILLER if given[r.LETTERS]["letter"] in word]
        words += [having[i % len(having)] for i in range(given[r.LETTERS]["let_frequency"])]
    if given.get(r.CAPITAL_WORDS, {}).get("capital_relation") == "at least":
        words += ["HELLO"] * given[r.CAPITAL_WORDS]["capital_frequency"]
    if given.get(r.WORDS, {}).get("relation") == "at least":
        words += [FILLER[i % len(FILLER)] for i in range(given[r.WORDS]["num_words"])]
    return words


def _blocks(words: list[str], given: dict[str, dict[str, Any]]) -> str:
    text = " ".join(words)
    text = text[0].upper() + text[1:] + ("" if given.get(r.LANGUAGE) else ".")
    if given.get(r.SENTENCES, {}).get("relation") == "at least":
        text += " The day is new." * given[r.SENTENCES]["num_sentences"]
    if r.BULLETS in given:
        text += "\n* the day" * given[r.BULLETS]["num_bullets"]
    if r.SECTIONS in given:
        mark, n = given[r.SECTIONS]["section_spliter"], given[r.SECTIONS]["num_sections"]
        text = "\n".join(f"{mark} {i}\n{text if i == 1 else 'The day is new.'}" for i in range(1, n + 1))
    if r.PARAGRAPHS in given:
        rest = LANGUAGE_SAMPLES[given[r.LANGUAGE]["language"]] if r.LANGUAGE in given else "The air is mild."
        text = "\n***\n".join([text] + [rest] * (given[r.PARAGRAPHS]["num_paragraphs"] - 1))
    if r.FIRST_WORD in given:
        opener, nth = given[r.FIRST_WORD]["first_word"], given[r.FIRST_WORD]["nth_paragraph"]
        parts = [text] + ["the air is mild."] * (given[r.FIRST_WORD]["num_paragraphs"] - 1)
        parts[nth - 1] = f"{opener.capitalize()} {parts[nth - 1]}"
        text = "\n\n".join(parts)
    return text


def _frame(text: str, given: dict[str, dict[str, Any]]) -> str:
    if r.TITLE in given:
        text = f"<<mild air>>\n{text}"
    if r.POSTSCRIPT in given:
        text += f"\n{given[r.POSTSCRIPT]['postscript_marker']} the day is new"
    if r.ENDING in given:
        text += f" {given[r.ENDING]['end_phrase']}"
    if r.LOWER in given:
        text = text.lower()
    if r.UPPER in given:
        text = text.upper()
    if r.REPEAT in given:
        text = f"{given[r.REPEAT]['prompt_to_repeat']}\n{text}"
    return f'"{text}"' if r.QUOTATION in given else text


def test_every_combination_of_rules_is_satisfiable(registry):
    rng = random.Random(0)
    by_combination: dict[tuple[str, ...], list[Prompt]] = {}
    for prompt in composed():
        if prompt.checks:
            by_combination.setdefault(tuple(sorted(c.instruction for c in prompt.checks)), []).append(prompt)
    assert len(by_combination) > 700
    failed = []
    for prompts in by_combination.values():
        for prompt in rng.sample(prompts, min(2, len(prompts))):
            answer = witness(prompt.checks, rng)
            failed += [
                (prompt.text, check, answer)
                for check in prompt.checks
                if not checker(registry, check).check_following(answer)
            ]
    assert not failed, (len(failed), [(f[1], f[2]) for f in failed])


# --- no overlap with the test set ----------------------------------------------------------------------------


def _grams(text: str, n: int) -> set[tuple[str, ...]]:
    words = re.findall(r"\w+", normalise(text))
    return {tuple(words[i : i + n]) for i in range(len(words) - n + 1)}


def test_no_prompt_equals_or_resembles_an_ifeval_prompt():
    if REAL_PROMPTS not in os.environ:
        pytest.skip(f"{REAL_PROMPTS} does not point to IFEval's prompts")
    lines = Path(os.environ[REAL_PROMPTS]).read_text(encoding="utf-8").splitlines()
    real = [json.loads(line)["prompt"] for line in lines if line.strip()]
    assert len(real) > 500
    assert not {normalise(p.text) for p in composed()} & {normalise(text) for text in real}
    known = set().union(*(_grams(text, 8) for text in real))
    fixed = _grams("yes my answer is no or my answer is maybe", 8) | _grams(
        "my answer is yes my answer is no my answer is maybe", 8
    )  # the three replies that the checker accepts
    for prompt in composed():
        for message in prompt.messages:
            assert not (_grams(message["content"], 8) & known) - fixed, message["content"]


def test_ordinary_chat_has_no_checks_and_no_words_of_instructions():
    prompts = compose_chat(1000, seed=3)
    assert len({wording(p) for p in prompts}) == len(prompts) == 1000
    assert not any(p.checks for p in prompts)
    assert {p.tags[0] for p in prompts} == {"writing", "plain", "code", "dialogue", "refusal"}
    requests = [m["content"] for p in prompts for m in p.messages if m["role"] == "user"]
    for word in ("sentence", "paragraph", "comma", "bullet", "json", "capital letter", "answer with", "at least"):
        assert not any(word in text.lower() for text in requests), word


def test_the_words_of_every_rule_are_detected_as_format_instructions():
    rng = random.Random(0)
    for id, rule in sorted(RULES.items()):
        texts = [rule(rng, TOPICS[rng.randrange(len(TOPICS))]).text for _ in range(100)]
        missed = [text for text in texts if text and not formatted(text)]
        assert not missed, f"{id}: {missed[:3]}"


def test_prompts_of_composed_chat_are_split_like_all_others(tmp_path):
    chat = behaviour_prompts(tmp_path, Path("composer:chat"), 0, count=600)
    usual = behaviour_prompts(tmp_path, Path("composer"), 0, count=600)
    assert "composer:chat" in chat.source
    assert len(chat.train) > 300
    assert min(len(chat.development), len(chat.test)) > 80
    held = {wording(p) for p in (*usual.development, *usual.test, *chat.development, *chat.test)}
    assert not held & {wording(p) for p in chat.train}
