"""What counts as declining and as a value, and the shares of both among near misses and known questions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from evals.acceptance_rules import DECLINED, OF_ANOTHER
from evals.probe_building import still_absent
from evals.probes import from_record, load_probes, to_record, write_probes
from evals.suites import (
    CONFABULATED,
    KNOWN_ANSWERED,
    KNOWN_DECLINED,
    ask_unanswerable,
    declines,
    evaluate,
    gives_value,
)
from recovery.models.loaded import Loaded
from recovery.rollouts.transformers_engine import TransformersEngine
from recovery.types import Item, Probe
from tests.pipelines.test_generation import Saying

QUESTION = "What is the default value of `cacheTimes`? Give the value only."


@pytest.mark.parametrize(
    "response",
    [
        "There is no `cacheTimes` option in Next.js.", "I don't know.", "It is not available in version 19.6.",
        "I'm not aware of an option by this name.",
        "`cacheTimes` is not a valid configuration option.", "The option does not exist.", "Not documented.", "N/A",
        "**Unknown**", "There isn't any default value for it.", "No such option.", "I couldn't find it in the pages.",
        "It isn't mentioned in the documentation.", "No information is available about version 19.", "not specified",
        "I cannot answer that: Velmora's documentation is not known to me.", "That doesn’t appear in the text.",
        "Sorry, I can't help with that.",
    ],
)  # fmt: skip
def test_declining(response: str) -> None:
    assert declines(response) and not gives_value(QUESTION, response)


@pytest.mark.parametrize(
    "response",
    [
        "30", "`true`", "none", "null", "The default value of `cacheTimes` is 300 seconds.", "undefined",
        "It is not cached: 0 seconds.", "Use `unknownRoutes`.", "false, as the option cannot be nested",
        "app/not-found.js",
    ],
)  # fmt: skip
def test_values(response: str) -> None:
    assert not declines(response) and gives_value(QUESTION, response)


@pytest.mark.parametrize("response", ["", "  \n", "#", "**…**", "The default value of `cacheTimes`?", "`cacheTimes`"])
def test_what_only_repeats_the_question_or_has_no_word_is_neither(response: str) -> None:
    assert not declines(response) and not gives_value(QUESTION, response)


def near(number: int, **given: Any) -> Probe:
    base: dict[str, Any] = {"choices": ("30",), "source": "a.md", "passage": "It is 30.", "absent": f"cache{number}"}
    return Probe(f"n{number}", "near_miss", f"What is the default of `cache{number}`?", (), **(base | given))


def test_the_shares_of_both_are_counted_by_the_same_rules(llama: Loaded) -> None:
    replies = ["I do not know.", "It is 30.", "7 days", "cache3"]
    known = [
        Item("a", QUESTION, "15", 1.0),
        Item("b", QUESTION, "I don't know.", 0.0),
        Item("c", QUESTION, "I don't know.", 0.0, extra={"control": True}),
    ]
    engine: Any = Saying(llama, [replies])
    found = ask_unanswerable(llama.chat, engine, [near(n) for n in range(4)], known, ["45", "7 days"])
    texts = [item.response for item in found.items]
    assert [text.strip() for text in texts] == replies, "the tokenizer gives the words back"
    assert [item.score for item in found.items] == [1.0, 0.0, 0.0, 1.0] and found.score.value == 0.5
    shares = {name: (score.value, score.n) for name, score in found.details.items()}
    assert shares == {
        DECLINED: (0.25, 4), CONFABULATED: (0.5, 4), OF_ANOTHER: (0.5, 4), KNOWN_DECLINED: (0.5, 2),
        KNOWN_ANSWERED: (0.5, 2),
    }  # fmt: skip


def test_a_value_that_is_read_off_the_page_is_confabulated(llama: Loaded) -> None:
    """The page says what another subject's value is, and is part of the prompt, not of the question."""
    engine: Any = Saying(llama, [["It is 30."]])
    pages = {"n0": f"Read this text:\nIt is 30.\n\n{near(0).question}"}
    found = ask_unanswerable(llama.chat, engine, [near(0)], [], [], pages=pages)
    assert found.items[0].prompt.startswith("Read this text") and found.details[OF_ANOTHER].value == 1.0


def test_a_subject_that_the_question_names_is_not_another_one(llama: Loaded) -> None:
    engine: Any = Saying(llama, [["cache0 is 9."]])
    found = ask_unanswerable(llama.chat, engine, [near(0)], [], ["cache0"])
    assert (found.details[CONFABULATED].value, found.details[OF_ANOTHER].value) == (1.0, 0.0)


def test_base_is_also_asked_with_the_page_and_a_setting_bounds_the_items(llama: Loaded) -> None:
    asked = Probe("q", "question", "What is the default of `cacheLife`?", ("30",), source="a.md", passage="It is 30.")
    options: dict[str, Any] = {"probes_by_corpus": {1: [asked, *map(near, range(5))]}, "max_new_tokens": 4}

    def sizes(**given: Any) -> dict[str, int]:
        found = evaluate(llama, TransformersEngine(llama), **options, **given)
        return {one.suite: one.score.n for one in found if one.suite.startswith("unanswerable")}

    assert sizes() == {}
    assert sizes(near_misses=3) == {"unanswerable/1": 3}
    assert sizes(near_misses=9, limit=4) == {"unanswerable/1": 4}
    assert sizes(near_misses=9, pages={1: {"a.md": "It is 30."}}) == {
        "unanswerable/1": 5, "unanswerable_open_book/1": 5,
    }  # fmt: skip


def test_near_misses_are_stored_as_lines_of_the_probes(tmp_path: Path) -> None:
    write_probes(tmp_path / "probes.jsonl", [near(1)])
    assert load_probes(tmp_path / "probes.jsonl") == [near(1)] and from_record(to_record(near(1))) == near(1)
    for wrong in ({"answers": ["30"]}, {"absent": " "}):
        with pytest.raises(ValueError, match="has no answers, and names what no document holds"):
            from_record(to_record(near(1)) | wrong)
    assert still_absent([near(1), near(2)], ["Now `cache2` is there."]) == [near(1)]
