"""Tests against training data: what benchmarks/leakage.py counts, and that nothing of the tests is trained on."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from benchmarks.leakage import Trained, facts, instructed, of_cycle, requests
from pipelines.data.corpus_reading import gather
from recovery.data.corpus.text import normalise
from recovery.data.prompts import behaviour_prompts
from recovery.miniature.corpora import write_corpora
from recovery.types import Check, Prompt


def test_what_counts_as_near() -> None:
    trained = Trained(["one two three four five six seven eight nine", "quite another text of some words"])
    same, long, short, none = (
        "one two three four five six seven eight nine",
        "zero one two three four five six seven eight ten",
        "a b one two three four five c d",
        "nothing of all this was ever said before",
    )
    found = trained.compare([same, long, short, none])
    assert (found["n"], found["the same requests"], found["8 words in a row"]) == (4, 1, 2)
    assert [round(trained.nearest(text), 3) for text in (same, long, short, none)] == [1.0, 0.571, 0.111, 0.0]
    assert (found["near: above 0.5"], found["near: above 0.9"], found["nearest"]) == (2, 1, 1.0)


def test_topics_and_instructions_are_compared_apart_and_together() -> None:
    def prompt(topic: str, *instructions: str) -> Prompt:
        checks = tuple(Check(name) for name in instructions)
        return Prompt("", ({"role": "user", "content": "x"},), "behaviour", checks=checks, tags=(f"topic:{topic}",))

    trained = [prompt("boats", "a", "b"), prompt("tea", "c"), prompt("bread")]
    tests = [prompt("boats", "b", "a"), prompt("boats", "c"), prompt("bread", "a"), prompt("tea")]
    found = instructed(tests, trained)
    assert list(found.values()) == [3, 2, 2, 1]  # one has no checks; bread is trained without any


def test_no_question_of_the_examples_test_asks_what_was_trained() -> None:
    found = facts()
    assert found["held-out fact"]["n"] >= 200
    assert found["held-out fact"]["fact is trained"] == found["held-out fact"]["the same wording"] == 0
    assert found["held-out form"]["fact is trained in this form"] == found["held-out form"]["the same wording"] == 0


def test_the_miniature_asks_what_was_trained_in_other_words_and_its_controls_are_not_trained(tmp_path: Path) -> None:
    (folder,) = write_corpora(tmp_path, 1, entities=4)
    rows, nearest = of_cycle(gather(folder, 1, held_out=0.0, seed=0))
    assert set(rows) == {"asked", "control"}
    assert rows["asked"]["the same wording"] == rows["control"]["the same wording"] == 0
    assert rows["asked"]["near: above 0.7"] > 0 and rows["control"]["near: above 0.7"] == 0
    assert nearest[0][0] == rows["asked"]["nearest"] and not nearest[0][1].control and nearest[0][2]


@pytest.mark.skipif(not os.environ.get("RECOVER_IFEVAL_PROMPTS"), reason="RECOVER_IFEVAL_PROMPTS is not set")
def test_no_prompt_of_ifeval_is_near_a_training_prompt() -> None:
    trained = Trained([requests(prompt) for prompt in behaviour_prompts(seed=0).train])
    lines = Path(os.environ["RECOVER_IFEVAL_PROMPTS"]).read_text(encoding="utf-8").splitlines()
    found = trained.compare([normalise(json.loads(line)["prompt"]) for line in lines])
    assert found["the same requests"] == 0 and found["nearest"] < 0.5
