"""Engines that draw from another distribution than asked for: told by their tokens and log-probabilities."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import torch

from recovery.errors import EngineError
from recovery.models.loading import load_model
from recovery.rollouts.engine import Completion, Progress, Sampling
from recovery.rollouts.weight_sync import CUTS, SamplingCheck, SyncedEngine, facts
from tests.recovery.test_weight_sync import PROMPTS, Copy

Bend = Callable[[torch.Tensor], torch.Tensor]
"""Logits [N, V] as a server changes them before it draws."""


def top_p(p: float) -> Bend:
    def bend(logits_NV: torch.Tensor) -> torch.Tensor:
        ranked, order = logits_NV.softmax(-1).sort(dim=-1, descending=True)
        outside = (ranked.cumsum(-1) - ranked >= p).gather(-1, order.argsort(-1))
        return logits_NV.masked_fill(outside, -math.inf)

    return bend


def top_k(k: int) -> Bend:
    return lambda logits_NV: logits_NV.masked_fill(logits_NV < logits_NV.topk(k).values[:, -1:], -math.inf)


def min_p(share: float) -> Bend:
    def bend(logits_NV: torch.Tensor) -> torch.Tensor:
        return logits_NV.masked_fill(logits_NV < logits_NV.max(-1, keepdim=True).values + math.log(share), -math.inf)

    return bend


def temperature(value: float) -> Bend:
    return lambda logits_NV: logits_NV / value


def drawn(bend: Bend, count: int, *, processed: bool, seed: int = 0, noise: float = 0.0) -> SamplingCheck:
    """Return the check after ``count`` tokens drawn at positions of very different entropy, as of a language model.

    ``processed``: the log-probabilities are those of the bent distribution, else of the model's.
    """
    draw = torch.Generator().manual_seed(seed)
    scale_N1 = torch.rand(count, 1, generator=draw) * 5 + 0.5
    logits_NV = scale_N1 * torch.randn(count, 120, generator=draw)
    theirs_NV = bend(logits_NV + noise * torch.randn(logits_NV.shape, generator=draw))
    tokens_N = torch.multinomial(theirs_NV.softmax(-1), 1, generator=draw)[:, 0]
    mine_NV = logits_NV.log_softmax(-1)
    said_NV = theirs_NV.log_softmax(-1) if processed else mine_NV
    gap_N = (mine_NV - said_NV).gather(-1, tokens_N[:, None])[:, 0]
    check = SamplingCheck()
    check.add(gap_N.tolist(), facts(mine_NV, tokens_N))
    return check


@pytest.mark.parametrize("p", [0.92, 0.94, 0.96, 0.98, 0.99])
@pytest.mark.parametrize("noise", [0.0, 0.01])
def test_a_cut_is_seen_in_renormalised_log_probabilities_within_a_few_tokens(p: float, noise: float) -> None:
    check = drawn(top_p(p), 144 if p < 0.98 else 400, processed=True, noise=noise)
    assert "of the model's probability only, so that some tokens cannot occur" in check.fault


@pytest.mark.parametrize(
    ("bend", "count", "cut"),
    [
        (top_p(0.92), 1500, "top-p"),
        (top_p(0.95), 3000, "top-p"),
        (top_p(0.99), 12000, "top-p"),
        (top_k(40), 1500, "top-"),
        (top_k(20), 1000, "top-"),
        (min_p(0.05), 2000, "min-p|top-p"),
        (min_p(0.1), 1000, "min-p|top-p"),
    ],
)
def test_a_cut_is_seen_in_the_tokens_alone(bend: Bend, count: int, cut: str) -> None:
    fault = drawn(bend, count, processed=False).fault
    assert "tokens are among those that" in fault and any(word in fault for word in cut.split("|"))


@pytest.mark.parametrize("value", [0.8, 0.9, 1.1, 1.25])
@pytest.mark.parametrize("processed", [True, False])
def test_another_temperature_is_seen_in_the_tokens(value: float, processed: bool) -> None:
    fault = drawn(temperature(value), 6000, processed=processed).fault
    assert fault and (value > 1 or "less likely" not in fault) and (value < 1 or "less likely" in fault)


@pytest.mark.parametrize("noise", [0.0, 0.02, 0.1])
def test_an_honest_engine_is_not_accused(noise: float) -> None:
    """Noise as of bfloat16 and of quantised weights, over comparisons as long as a run's."""
    for seed in range(8):
        check = drawn(lambda logits_NV: logits_NV, 144, processed=True, seed=seed, noise=noise)
        assert check.fault == "", seed
    assert drawn(lambda logits_NV: logits_NV, 6000, processed=True, noise=noise).fault == ""


def test_the_facts_of_a_token_by_hand() -> None:
    probs = torch.tensor([[0.5, 0.3, 0.15, 0.05]], dtype=torch.float64)
    (one,) = facts(probs.log(), torch.tensor([3])).tolist()
    entropy = -sum(p * math.log(p) for p in probs[0].tolist())
    assert one[0] == pytest.approx(-math.log(0.05) - entropy)
    assert one[1] == pytest.approx(sum(p * (math.log(p) + entropy) ** 2 for p in probs[0].tolist()))
    by_cut = dict(zip(CUTS, zip(one[2 : 2 + len(CUTS)], one[2 + len(CUTS) :], strict=True), strict=True))
    assert by_cut["top-p 0.94"] == (pytest.approx(0.05), True)
    assert by_cut["top-p 0.98"] == (0.0, False), "the last token is what reaches it"
    assert by_cut["top-k 5"] == (0.0, False)
    assert by_cut["min-p 0.2"] == (pytest.approx(0.05), True) and by_cut["min-p 0.1"] == (0.0, False)


class Bent(Copy):
    """Draws from a bent distribution; ``processed`` as in :func:`drawn`."""

    bend: Bend = staticmethod(lambda logits_NV: logits_NV)
    processed = True

    def sample(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling, progress: Progress | None = None
    ) -> list[Completion]:
        draw, found = torch.Generator().manual_seed(sampling.seed), []
        for prompt in prompts:
            ids, logprobs = list(prompt), []
            for _ in range(sampling.max_new_tokens):
                with torch.no_grad():
                    logits_1V = self.mine.model(torch.tensor([ids])).logits[:, -1].float() / (sampling.temperature or 1)
                bent_1V = self.bend(logits_1V)
                ids.append(int(torch.multinomial(bent_1V.softmax(-1), 1, generator=draw)))
                said_1V = bent_1V if self.processed else logits_1V
                logprobs.append(float(said_1V.log_softmax(-1)[0, ids[-1]]))
            found.append(Completion(ids[len(prompt) :], logprobs, False))
        return found


@pytest.mark.parametrize(
    ("bend", "processed", "told"),
    [
        (top_p(0.92), True, "of the model's probability only"),
        (top_p(0.99), True, "of the model's probability only"),
        (top_k(490), True, "of the model's probability only"),
        (top_p(0.92), False, "where the model's probabilities let"),
        (top_p(0.95), False, "where the model's probabilities let"),
    ],
)
def test_a_server_that_cuts_though_nothing_was_asked_stops_the_run(
    tiny_model: Path, bend: Bend, processed: bool, told: str
) -> None:
    """Its log-probabilities differ by less than the bound on drift; without renormalisation not at all."""
    loaded = load_model(tiny_model, tuning="full", precision="float32")
    sampler = Bent(loaded)
    sampler.bend, sampler.processed = bend, processed  # type: ignore[method-assign]
    engine = SyncedEngine(loaded, sampler, bound=0.1)

    def transfers() -> None:
        for seed in range(8):  # tokens add up over the transfers of a run
            engine._followed = None
            engine.follow(PROMPTS, Sampling(24, seed=seed))

    with pytest.raises(EngineError, match=f"does not draw as it was asked to, with top-p 1 .*{told}"):
        transfers()
    assert engine.figures["engine_drift"] < 0.1
    with pytest.raises(EngineError, match="does not draw"):  # nor is it used afterwards
        engine.generate(PROMPTS, Sampling(8, seed=9))


def test_an_honest_engine_passes_many_transfers_and_greedy_tokens_are_not_judged(tiny_model: Path) -> None:
    loaded = load_model(tiny_model, tuning="full", precision="float32")
    engine = SyncedEngine(loaded, Bent(loaded), bound=0.1)
    for seed in range(6):
        engine._followed = None
        engine.follow(PROMPTS, Sampling(12, temperature=0.7 if seed % 2 else 1.0, seed=seed))
    before = engine._check.tokens
    engine._followed = None
    engine.follow(PROMPTS, Sampling(12, temperature=0.0))
    assert engine._check.tokens == before > 300
