"""Likelihood of answers: cells against plain likelihoods of a tiny model, and what is stored of them."""

from __future__ import annotations

import json
import math

import pytest
import torch

from evals.answer_matching import candidates_of
from evals.domain_pmi import BITS, CANDIDATES, KIND, RIGHT, SUITE, blocks_of, gain
from evals.suites import _request, evaluate, measure_answer_likelihood
from recovery.models.loaded import Loaded
from recovery.rollouts.transformers_engine import TransformersEngine
from recovery.types import Message, Probe

TOWNS = ("Bergen", "Kristiansand", "Bodø", "Larvik", "Tromsø", "Molde", "Narvik", "Hamar", "Alta", "Moss")


def probe(id: str, question: str, *answers: str, group: str = "", control: bool = False) -> Probe:
    tags = (f"group:{group}",) if group else ()
    return Probe(id, "question", question, answers, source=f"page {id}", control=control, tags=tags, passage=question)


def town_probes() -> list[Probe]:
    probes = [
        probe(f"t{n}", f"In which town is harbour {n}?", town, group="fact" if n % 2 else "form")
        for n, town in enumerate(TOWNS)
    ]
    return [*probes, probe("c", "In which town is harbour 99?", "Drammen", control=True)]


def bits(loaded: Loaded, question: str, text: str) -> float:
    """log2 p of a whole response with the end of its turn, from one pass over the whole conversation."""
    turns = [Message(role="user", content=question), Message(role="assistant", content=text)]
    ids, mask = loaded.chat.conversation(turns)
    with torch.no_grad():
        logprobs = loaded.model(torch.tensor([ids])).logits[0].log_softmax(-1)
    end = max(n for n, answered in enumerate(mask) if answered)
    return math.fsum(float(logprobs[n - 1, ids[n]]) for n in range(end + 1) if mask[n]) / math.log(2)


def test_cells_are_the_likelihoods_of_whole_responses(loaded: Loaded) -> None:
    probes = [*town_probes(), probe("n", "When was the harbour built?", "1990")]
    found = measure_answer_likelihood(loaded, probes, probes, suite=SUITE)
    assert found is not None
    assert [item.id for item in found.items] == [f"t{n}" for n in range(len(TOWNS))], "no control, nothing alone"
    texts = found.items[0].extra[CANDIDATES]
    assert set(texts) == set(TOWNS) and texts == list(candidates_of(probes)["t0"].texts)
    for item in found.items:
        expected = [bits(loaded, item.prompt, text) for text in texts]
        assert item.extra[BITS] == pytest.approx(expected, abs=2e-3)
        assert texts[item.extra[RIGHT][0]] == TOWNS[int(item.id[1:])]
        assert (item.group, item.extra[KIND]) == (f"page {item.id}", "name")
    (block,) = blocks_of((item.id, item.group, item.extra) for item in found.items)
    assert [item.score for item in found.items] == block.first.astype(float).tolist()
    assert found.score.value == block.first.mean()
    assert found.details["form"].n == 5


def test_a_part_of_the_questions_has_the_candidates_of_all(loaded: Loaded) -> None:
    probes = town_probes()
    whole, part = (measure_answer_likelihood(loaded, some, probes, suite=SUITE) for some in (probes, probes[3:6]))
    assert whole is not None and part is not None
    assert [item.extra[BITS] for item in part.items] == [pytest.approx(i.extra[BITS]) for i in whole.items[3:6]]
    assert CANDIDATES in part.items[0].extra and CANDIDATES not in part.items[1].extra
    both = [blocks_of((item.id, item.group, item.extra) for item in one.items) for one in (whole, part)]
    found = gain(*both)
    assert found is not None and found.n == 3 and found.bits == pytest.approx(0.0, abs=0.01)
    assert measure_answer_likelihood(loaded, probes[:1], probes[:7], suite=SUITE) is None, "too few answers"


def test_what_is_stored_is_small(loaded: Loaded) -> None:
    probes = [probe(f"q{n}", f"Which option is number {n}?", f"someOption{n:03}") for n in range(64)]
    found = measure_answer_likelihood(loaded, probes, probes, suite=SUITE)
    assert found is not None
    assert len(json.dumps([item.extra for item in found.items])) / len(found.items) < 10 * 32 + 80


def test_a_response_ends_with_the_end_of_its_turn(loaded: Loaded) -> None:
    context, continuations = _request(loaded, "In which town?", ["Bergen", "Bergen harbour"])
    prompt = loaded.chat.prompt_ids([Message(role="user", content="In which town?")])
    assert list(context)[: len(prompt)] == prompt
    assert "think" in loaded.tokenizer.decode(context[len(prompt) :]), "the template's empty thought is no response"
    assert all(ids[-1] in loaded.chat.end_ids for ids in continuations)
    assert [loaded.tokenizer.decode(ids[:-1]) for ids in continuations] == ["Bergen", "Bergen harbour"]


def test_an_evaluation_measures_it_and_open_book_with_pages(loaded: Loaded) -> None:
    given = {"probes_by_corpus": {1: town_probes()}, "max_new_tokens": 4}
    heard: list[str] = []
    plain = evaluate(loaded, TransformersEngine(loaded), progress=lambda suite, *_: heard.append(suite), **given)
    opened = evaluate(loaded, TransformersEngine(loaded), pages={1: {}}, **given)
    names = ["domain_knowledge/1", f"{SUITE}/1", "domain_knowledge"]
    assert [result.suite for result in plain] == names and f"{SUITE}/1" in heard
    assert [result.suite for result in opened] == [*names[:2], "open_book/1", "domain_knowledge"]
    few = evaluate(loaded, TransformersEngine(loaded), probes_by_corpus={1: town_probes()[:3]}, max_new_tokens=4)
    assert [result.suite for result in few] == ["domain_knowledge/1", "domain_knowledge"]
