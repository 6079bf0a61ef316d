"""Recognition of answers: candidates by hand, and verdicts against plain likelihoods of a tiny model."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from evals.knowledge import ask
from evals.recognition import CHANCE, RECOGNISED, _request, recognise, wrong_answers
from evals.suites import evaluate
from recovery.models.loaded import Loaded
from recovery.models.loading import load_model
from recovery.rollouts.transformers_engine import TransformersEngine
from recovery.types import Message, Probe

TOWNS = ("Bergen", "Kristiansand", "Bodø", "Larvik", "Tromsø", "Molde", "Narvik", "Hamar", "Alta", "Moss")


@pytest.fixture(scope="module")
def loaded(tiny_model: Path) -> Loaded:
    return load_model(tiny_model, precision="float32", device="cpu")


def probe(id: str, question: str, *answers: str, group: str = "", control: bool = False) -> Probe:
    tags = (f"group:{group}",) if group else ()
    return Probe(id, "question", question, answers, source=id, tags=tags, control=control)


def town_probes() -> list[Probe]:
    probes = [
        probe(f"t{n}", f"In which town is harbour {n}?", town, group="fact" if n % 2 else "form")
        for n, town in enumerate(TOWNS)
    ]
    return [*probes, probe("c", "In which town is harbour 99?", "Drammen", control=True)]


def test_wrong_answers_are_of_the_same_kind_and_near_in_length() -> None:
    others = [
        probe("a", "Where?", "Oslo"),
        probe("b", "Where?", "OSLO"),
        probe("c", "Where?", "Bergen"),
        probe("d", "When?", "1990"),
        probe("e", "Who?", "the harbour master"),
        probe("f", "Where?", "Kristiansand"),
        probe("g", "Where?", "Larvik"),
        Probe("h", "choice", "Where?", ("Molde",), choices=("Molde", "Moss")),
    ]
    asked = probe("x", "Which town is next to Larvik?", "Bodø", "the town of Bergen")
    assert wrong_answers(asked, [asked, *others]) == ["Oslo", "Kristiansand"]
    numbers = [probe(f"n{n}", "When?", f"19{n}") for n in range(10, 30)]
    assert set(wrong_answers(probe("x", "When?", "1912"), numbers)) <= {f"19{n}" for n in range(10, 30)} - {"1912"}
    assert len(wrong_answers(probe("x", "When?", "1912"), numbers)) == 7


def test_the_likeliest_response_is_the_one_recognised(loaded: Loaded) -> None:
    probes = town_probes()
    asked = ask(loaded.chat, TransformersEngine(loaded), probes, max_new_tokens=4, window=loaded.max_length)
    found = recognise(loaded, asked, probes)
    expected = {
        one.id: _likeliest(loaded, one.question, [one.answers[0], *wrong_answers(one, probes)]) for one in probes
    }
    assert {item.id: item.extra[RECOGNISED] for item in found.items} == expected
    assert [item.verdicts for item in found.items] == [item.verdicts for item in asked.items], "about the response"
    assert 0 < sum(expected.values()) < len(expected)  # else this would show nothing
    own = [expected[f"t{n}"] for n in range(len(TOWNS))]
    assert found.details[RECOGNISED].value == pytest.approx(sum(own) / len(own))
    assert found.details[f"fact/{RECOGNISED}"].value == pytest.approx(sum(own[1::2]) / 5)
    assert found.details[f"form/{RECOGNISED}"].n == 5
    assert found.details[f"control/{RECOGNISED}"].value == expected["c"]
    assert found.details[CHANCE].value == pytest.approx(1 / 8)
    assert found.score == asked.score and set(asked.details) < set(found.details)


def _likeliest(loaded: Loaded, question: str, candidates: list[str]) -> bool:
    totals = []
    for text in candidates:
        turns = [Message(role="user", content=question), Message(role="assistant", content=text)]
        ids, mask = loaded.chat.conversation(turns)
        with torch.no_grad():
            logprobs = loaded.model(torch.tensor([ids])).logits[0].log_softmax(-1)
        totals.append(math.fsum(float(logprobs[n - 1, ids[n]]) for n in range(len(ids)) if mask[n]))
    return totals.index(max(totals)) == 0


def test_a_response_ends_with_the_end_of_its_turn(loaded: Loaded) -> None:
    context, continuations = _request(loaded, "In which town?", ["Bergen", "Bergen harbour"])
    assert list(context) == loaded.chat.prompt_ids([Message(role="user", content="In which town?")])
    assert all(ids[-1] in loaded.chat.end_ids for ids in continuations)
    assert loaded.tokenizer.decode(continuations[0][:-1]).endswith("Bergen")  # behind an empty thought


def test_questions_with_too_few_answers_of_their_kind_are_not_counted(loaded: Loaded) -> None:
    probes = [*town_probes(), probe("n", "When was the harbour built?", "1990")]
    asked = ask(loaded.chat, TransformersEngine(loaded), probes, max_new_tokens=4, window=loaded.max_length)
    found = recognise(loaded, asked, probes)
    assert RECOGNISED not in next(item for item in found.items if item.id == "n").extra
    assert found.details[RECOGNISED].n == len(TOWNS)
    few = [probes[0], probes[-1]]
    asked = ask(loaded.chat, TransformersEngine(loaded), few, max_new_tokens=4, window=loaded.max_length)
    assert recognise(loaded, asked, few) == asked


def test_an_evaluation_recognises_on_request(loaded: Loaded) -> None:
    given = {"probes_by_corpus": {1: town_probes()}, "max_new_tokens": 4}
    plain = evaluate(loaded, TransformersEngine(loaded), **given)
    heard: list[str] = []
    both = evaluate(
        loaded, TransformersEngine(loaded), recognise=True, progress=lambda suite, *_: heard.append(suite), **given
    )
    assert [result.suite for result in plain] == [result.suite for result in both]
    assert all(RECOGNISED not in result.details for result in plain)
    assert all(RECOGNISED in result.details for result in both if result.suite.startswith("domain_knowledge"))
    assert "domain_knowledge/1, recognised" in heard
