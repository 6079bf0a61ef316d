"""Shared-context scoring equals plain scoring for every family and batch size."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from evals.loglikelihood import likelihoods
from recovery.errors import UsageError
from recovery.models.adapters import LoraSettings
from recovery.models.loaded import Loaded
from recovery.models.loading import load_model
from recovery.rollouts.engine import Sampling
from recovery.rollouts.transformers_engine import TransformersEngine
from tests.support import Heard, continuation_logprobs


def some_requests(loaded: Loaded, contexts: int = 6, choices: int = 7) -> list[tuple[list[int], list[list[int]]]]:
    draw = random.Random(3)
    size = len(loaded.tokenizer)
    return [
        (
            [draw.randrange(size) for _ in range(draw.choice([1, 4, 9]))],
            [[draw.randrange(size) for _ in range(draw.randint(1, 6))] for _ in range(choices)],
        )
        for _ in range(contexts)
    ]


def plain(loaded: Loaded, requests: list[tuple[list[int], list[list[int]]]]) -> list[list[float]]:
    pairs = [(context, continuation) for context, continuations in requests for continuation in continuations]
    return continuation_logprobs(loaded, pairs)


def flat(scored: list[list]) -> list[list[float]]:
    return [list(likelihood.logprobs) for request in scored for likelihood in request]


def test_agrees_with_plain_scoring_in_every_family(tiny_family: Path) -> None:
    loaded = load_model(tiny_family, precision="float32", device="cpu")
    requests = some_requests(loaded)
    for ours, theirs in zip(flat(likelihoods(loaded, requests)), plain(loaded, requests), strict=True):
        assert ours == pytest.approx(theirs, abs=2e-5)


@pytest.mark.parametrize("token_budget", [1, 40, 100_000])
def test_the_budget_changes_no_score(loaded: Loaded, token_budget: int) -> None:
    requests = some_requests(loaded)
    wanted = flat(likelihoods(loaded, requests))
    for ours, theirs in zip(flat(likelihoods(loaded, requests, token_budget=token_budget)), wanted, strict=True):
        assert ours == pytest.approx(theirs, abs=1e-5)


def test_greedy_is_what_greedy_decoding_says(loaded: Loaded) -> None:
    prompt = [12, 40, 41]
    (completion,) = TransformersEngine(loaded).generate([prompt], Sampling(max_new_tokens=5, temperature=0.0))
    other = [*completion.ids[:-1], (completion.ids[-1] + 1) % 400]
    ((right, wrong),) = likelihoods(loaded, [(prompt, [completion.ids, other])])
    assert right.greedy
    assert not wrong.greedy
    assert right.logprobs == pytest.approx(completion.logprobs, abs=1e-5)
    assert right.total == pytest.approx(sum(completion.logprobs), abs=1e-5)


def test_repeated_pairs_and_progress(loaded: Loaded) -> None:
    progress = Heard()
    requests = [([5, 6], [[7], [8, 9]]), ([5, 6], [[8, 9]]), ([4], [[7, 7]])]
    first, second, _ = likelihoods(loaded, requests, progress=progress)
    assert first[1] == second[0]
    assert progress.answers == 3


def test_an_adapter_is_scored_with_its_wrapper(tiny_model: Path) -> None:
    loaded = load_model(
        tiny_model, tuning="lora", lora=LoraSettings(rank=4, alpha=8), precision="float32", device="cpu"
    )
    with torch.no_grad():
        for name, parameter in loaded.model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.5)
    requests = some_requests(loaded, contexts=3)
    ours = flat(likelihoods(loaded, requests))
    for a, b in zip(ours, plain(loaded, requests), strict=True):
        assert a == pytest.approx(b, abs=2e-5)
    with loaded.adapter_off():
        assert flat(likelihoods(loaded, requests)) != ours


def test_a_long_context_loses_its_left_end(loaded: Loaded) -> None:
    window = loaded.max_length
    long = [(i * 7) % 400 for i in range(window + 50)]
    (scored,) = likelihoods(loaded, [(long, [[3, 4, 5]])])
    (cut,) = likelihoods(loaded, [(long[-(window - 2) :], [[3, 4, 5]])])
    assert scored == cut


@pytest.mark.parametrize("request_", [([], [[1]]), ([1], [[]])])
def test_nothing_to_score_is_refused(loaded: Loaded, request_: tuple[list[int], list[list[int]]]) -> None:
    with pytest.raises(UsageError, match="empty context or continuation"):
        likelihoods(loaded, [request_])
