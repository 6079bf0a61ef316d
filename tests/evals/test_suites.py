"""Evaluation of all suites in one call: suite names, limits, progress and the SCORES object."""

from __future__ import annotations

import json
from typing import Any

import pytest

from db import records
from evals import suites
from evals.suites import evaluate, recorded, sample
from pipelines.evaluation.stored_results import scores_json
from recovery.models.loaded import Loaded
from recovery.rollouts.transformers_engine import TransformersEngine
from recovery.types import Probe, Score, SuiteResult
from tests.evals.conftest import lines


def probes(corpus: int, count: int = 4) -> list[Probe]:
    names = (" pier", " boat", " lamp", " road")
    asked = [Probe(f"q{corpus}-{i}", "question", f"Where is boat {i}?", ("pier",), source=str(i)) for i in range(count)]
    chosen = [
        Probe(f"c{corpus}-{i}", "choice", f"Boat {i} lies by the", (names[i % 4],), names, source=str(i))
        for i in range(count)
    ]
    return [*asked, *chosen, Probe(f"x{corpus}", "question", "Where is no boat?", ("nowhere",), control=True)]


@pytest.fixture(scope="module")
def measured(llama: Loaded) -> tuple[list[SuiteResult], list[tuple[str, int, int, int]]]:
    steps: list[tuple[str, int, int, int]] = []
    results = evaluate(
        llama,
        TransformersEngine(llama),
        instruction=lines(6),
        probes_by_corpus={1: probes(1), 2: probes(2)},
        held_out={1: ["The harbour office opens at seven.", " "], 2: ["A ticket is good for one crossing."]},
        general=probes(0),
        max_new_tokens=6,
        progress=lambda *step: steps.append(step),
    )
    return results, steps


def test_every_suite_has_its_name_and_size(measured: tuple[list[SuiteResult], Any]) -> None:
    sizes = {result.suite: (result.score.n, len(result.items)) for result in measured[0]}
    assert sizes == {
        "instruction_following": (6, 6),
        "domain_knowledge/1": (4, 5),
        "domain_knowledge_stored/1": (4, 4),
        "domain_knowledge/2": (4, 5),
        "domain_knowledge_stored/2": (4, 4),
        "bits_per_byte/1": (1, 1),
        "bits_per_byte/2": (1, 1),
        "general": (8, 9),
        "domain_knowledge": (4, 0),
        "domain_knowledge_stored": (4, 0),
    }


def test_the_current_corpus_is_the_highest(measured: tuple[list[SuiteResult], Any]) -> None:
    by_name = {result.suite: result for result in measured[0]}
    assert by_name["domain_knowledge"].score == by_name["domain_knowledge/2"].score
    assert by_name["domain_knowledge_stored"].details == by_name["domain_knowledge_stored/2"].details


def test_progress_reaches_the_end_of_every_suite(
    measured: tuple[list[SuiteResult], list[tuple[str, int, int, int]]],
) -> None:
    last = {suite: (done, total) for suite, done, total, _ in measured[1]}
    assert set(last) == {result.suite for result in measured[0] if result.items}
    assert all(done == total for done, total in last.values())
    tokens = {suite: tokens for suite, _, _, tokens in measured[1]}
    assert all(tokens.values()), tokens


def test_scores_have_the_shape_of_status(measured: tuple[list[SuiteResult], Any]) -> None:
    scores = scores_json(measured[0])
    assert set(scores) == {
        "instruction_following",
        "domain_knowledge",
        "domain_knowledge_stored",
        "domain_knowledge_by_corpus",
        "domain_knowledge_stored_by_corpus",
        "bits_per_byte_by_corpus",
        "general",
    }
    assert set(scores["domain_knowledge_by_corpus"]) == {"1", "2"}
    assert set(scores["bits_per_byte_by_corpus"]["1"]) == {"value", "stderr", "n"}
    assert scores["domain_knowledge"] == scores["domain_knowledge_by_corpus"]["2"]
    assert json.loads(json.dumps(scores)) == scores
    rows = [("domain_knowledge/3", Score(0.5, 0.1, 4)), ("harbour/quiz", Score(1.0, 0.0, 1))]
    assert scores_json(SuiteResult(suite, score, ()) for suite, score in rows) == {
        "domain_knowledge_by_corpus": {"3": {"value": 0.5, "stderr": 0.1, "n": 4}},
        "harbour/quiz": {"value": 1.0, "stderr": 0.0, "n": 1},
    }


def test_scores_have_the_names_that_the_tracker_prints(measured: tuple[list[SuiteResult], Any]) -> None:
    assert set(scores_json(measured[0])) <= set(records.Scores().to_json())


def test_nothing_to_ask_is_left_out(llama: Loaded) -> None:
    only_controls = [Probe("x", "question", "Where?", ("nowhere",), control=True)]
    results = evaluate(llama, TransformersEngine(llama), probes_by_corpus={1: only_controls}, held_out={1: [""]})
    assert results == []


def test_a_limit_keeps_the_same_items_and_grows_by_adding() -> None:
    asked = lines(50)
    few, more = sample(asked, 10), sample(asked, 20)
    assert len(few) == 10
    assert all(prompt in more for prompt in few)
    assert few == [prompt for prompt in asked if prompt in few]
    assert few != asked[:10]
    assert sample(asked, None) == sample(asked, 60) == asked
    assert sample(asked[::-1], 10) == few[::-1]


def test_a_limit_holds_for_every_suite(llama: Loaded) -> None:
    results = evaluate(
        llama,
        TransformersEngine(llama),
        instruction=lines(6),
        probes_by_corpus={1: probes(1)},
        held_out={1: ["one text", "another text", "a third"]},
        general=probes(0),
        max_new_tokens=4,
        limit=2,
    )
    assert {result.suite: result.score.n for result in results} == {
        "instruction_following": 2,
        "behaviour/no_loops": 2,
        "domain_knowledge/1": 2,
        "domain_knowledge_stored/1": 2,
        "bits_per_byte/1": 2,
        "general": 2,
        "domain_knowledge": 2,
        "domain_knowledge_stored": 2,
    }


def test_earlier_corpora_share_a_fixed_number_of_questions(llama: Loaded) -> None:
    assert suites.corpus_limits([3, 1, 2], 1000, 600) == {3: 1000, 1: 300, 2: 300}
    assert suites.corpus_limits([1, 2, 3], 100, 600) == {3: 100, 1: 100, 2: 100}
    assert suites.corpus_limits([1, 2, 3, 4], 9, 8) == {4: 9, 3: 3, 2: 3, 1: 2}
    assert suites.corpus_limits(range(1, 9), None, 3) == {8: None} | dict.fromkeys(range(1, 8), 1)
    assert suites.corpus_limits([1, 2], 5, 0) == {1: 5, 2: 5} and suites.corpus_limits([], 5, 2) == {}
    results = evaluate(
        llama,
        TransformersEngine(llama),
        probes_by_corpus={k: probes(k, count=8) for k in (1, 2, 3)},
        held_out={1: ["one text", "another text"]},
        max_new_tokens=4,
        limit=6,
        earlier_limit=4,
    )
    counts = {result.suite: result.score.n for result in results if result.suite.endswith(("1", "2", "3"))}
    assert counts == {
        **{f"domain_knowledge/{k}": n for k, n in ((1, 2), (2, 2), (3, 6))},
        **{f"domain_knowledge_stored/{k}": n for k, n in ((1, 2), (2, 2), (3, 6))},
        "bits_per_byte/1": 2,
    }


def test_controls_take_no_place_of_what_counts() -> None:
    asked = [*probes(1, count=30), *(Probe(f"x{i}", "question", "Where?", ("no",), control=True) for i in range(30))]
    kept = suites.sample_probes(asked, 10)
    assert sum(not probe.control for probe in kept) == 10
    assert sum(probe.control for probe in kept) == 2
    assert kept == [probe for probe in asked if probe in kept]
    assert suites.sample_probes(asked, None) == asked


def test_what_can_change_scores_is_recorded(llama: Loaded) -> None:
    facts = recorded(TransformersEngine(llama, token_budget=999), max_new_tokens=100, seed=3)
    assert facts["token_budget"] == 999
    assert facts["question_tokens"] == suites.QUESTION_TOKENS
    assert facts["sentence_data"] in ("nltk", "stand-in")
    assert json.loads(json.dumps(facts)) == facts
