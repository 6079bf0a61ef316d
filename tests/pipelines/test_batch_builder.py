"""The rows of a step: batches without a token, and batches of several steps across a resume."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pipelines.data.mixing import choose
from pipelines.distillation.batch_builder import BatchBuilder, BatchState, Pools
from recovery.batching import Row, pack
from recovery.config import DistillConfig
from recovery.errors import UsageError
from recovery.models.loaded import Loaded
from recovery.models.loading import load_model
from recovery.rewards import resolve_reward
from recovery.rng import RandomStream
from recovery.rollouts.engine import Completion, Progress, Sampling
from recovery.rollouts.transformers_engine import TransformersEngine
from recovery.types import Message, Prompt
from tests.support import Noting, Saying


class Silent:
    """An engine of a model that has nothing to say."""

    def generate(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling, progress: Progress | None = None
    ) -> list[Completion]:
        return [Completion([], [], True) for _ in prompts]


class Keeping(TransformersEngine):
    """An engine that keeps what it sampled last."""

    def generate(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling, progress: Progress | None = None
    ) -> list[Completion]:
        self.sampled = super().generate(prompts, sampling, progress)
        return self.sampled


@pytest.fixture(scope="module")
def loaded(tiny_model: Path) -> Loaded:
    """The tiny model."""
    return load_model(tiny_model, precision="float32", device="cpu")


def _questions(name: str, count: int) -> list[Prompt]:
    return [Prompt(f"{name}{n}", (Message(role="user", content=f"{name} {n}?"),)) for n in range(count)]


def pool() -> Pools:
    return Pools([Prompt(str(n), (Message(role="user", content=f"Say {n}."),), answer=str(n)) for n in range(6)])


@pytest.mark.parametrize("lam", [0.0, 0.5])
def test_a_batch_of_empty_completions_has_no_rows_and_no_reward(loaded: Loaded, lam: float) -> None:
    config = DistillConfig(lam=lam, prompts_per_step=3, samples_per_prompt=2, divergence="sampled")
    builder = BatchBuilder(config, loaded, Silent(), pool(), reward=resolve_reward("verifiable"))
    rows, metrics = builder(1)
    assert rows == []
    assert (metrics["reward"], metrics["response_length"], metrics["tokens_sampled"]) == (0.0, 0.0, 0.0)


def test_a_share_of_the_prompts_asks_what_no_document_holds_of_the_teacher_for_behaviour(loaded: Loaded) -> None:
    pools = replace(pool(), questions=_questions("known", 9), near_misses=_questions("absent", 9))
    settings: dict[str, Any] = {"prompts_per_step": 8, "knowledge_share": 0.5, "knowledge_teacher": "midtrained"}
    for share, kinds in ((0.0, (4, 4, 0)), (0.25, (2, 4, 2))):
        config = DistillConfig(near_miss_share=share, **settings)
        builder = BatchBuilder(config, loaded, Silent(), pools)
        drawn = [[prompt.id for prompt in builder._prompts(batch, 8)] for batch in (1, 2)]
        for ids in drawn:
            found = [sum(one.startswith(name) for one in ids) for name in ("known", "absent")]
            assert (8 - sum(found), *found) == kinds
        assert config.behaviour_prompts_total == 200 * kinds[0]
    assert {one for one in drawn[0] if one.startswith("absent")}.isdisjoint(drawn[1])
    with pytest.raises(UsageError, match="leave no ordinary prompts"):
        DistillConfig(near_miss_share=0.5, **settings)
    with pytest.raises(UsageError, match="--near-miss-share needs a teacher that scores"):
        DistillConfig(near_miss_share=0.1, lam=0.5)


def fields(row: Row) -> tuple[list[int], list[bool], list[int], str]:
    return list(row.ids), [bool(one) for one in row.loss_mask], list(row.segments), row.teacher


def test_a_resumed_run_trains_on_the_rest_of_a_batch_without_sampling_it_again(loaded: Loaded) -> None:
    config = DistillConfig(
        batch_epochs=2, prompts_per_step=2, samples_per_prompt=1, max_new_tokens=8, document_loss=0.5
    )
    engine = Noting(TransformersEngine(loaded))
    documents = pack([(list(range(5, 15)), [True] * 10)] * 4, 40)
    builder = BatchBuilder(config, loaded, engine, replace(pool(), documents=documents))
    first, metrics = builder(1)
    assert first[-1].segments, "a part of the documents, packed"
    stored = json.loads(json.dumps(builder.state.state()))
    resumed = BatchBuilder(config, loaded, Noting(engine), pool())
    resumed.state.restore(stored)
    rows, repeated = resumed(2)
    assert [fields(row) for row in rows] == [fields(row) for row in first]
    assert (metrics["tokens_sampled"] > 0, repeated["tokens_sampled"]) == (True, 0.0)
    assert len(engine.calls) == 1
    assert resumed(3).rows != first and len(engine.calls) == 2


@pytest.mark.parametrize("length", [20, 400])
def test_documents_have_their_share_of_each_step_also_if_their_rows_are_longer(
    loaded: Loaded, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    documents = [Row(list(range(length)), [True] * length) for _ in range(9)]
    builder = BatchBuilder(DistillConfig(document_loss=0.2), loaded, Silent(), replace(pool(), documents=documents))
    drawn = [builder._documents(batch, 300) for batch in range(1, 21)]
    assert {sum(row.targets for row in rows) for rows in drawn} == {75}, "a fifth of all tokens: 75 beside 300"
    assert len({tuple(row.ids) for rows in drawn for row in rows}) > 2, "not always the same part"
    assert drawn[2] == builder._documents(3, 300)
    assert builder._text_start == ()
    monkeypatch.setattr("pipelines.distillation.batch_builder.adds_bos", lambda _tokenizer: True)
    builder = BatchBuilder(DistillConfig(document_loss=0.2), loaded, Silent(), replace(pool(), documents=documents))
    assert builder._text_start == (loaded.tokenizer.bos_token_id,)
    builder._text_start = (4242,)
    begun = [row for batch in range(1, 21) for row in builder._documents(batch, 300)]
    cut = [row for row in begun if row.ids[0] == 4242]
    assert cut and not any(row.loss_mask[0] for row in cut), "what begins within a document is told where a text begins"
    assert [row.targets for row in begun] == [row.targets for rows in drawn for row in rows]


@pytest.mark.parametrize(
    ("newest", "earlier", "drawn"), [(3, 30, (4, 4)), (3, 0, (8, 0)), (0, 3, (0, 8)), (0, 0, (0, 0))]
)
def test_questions_are_half_about_the_newest_documents_however_many_came_before(
    loaded: Loaded, newest: int, earlier: int, drawn: tuple[int, int]
) -> None:
    pools = replace(pool(), questions=_questions("new", newest), earlier=_questions("old", earlier))

    def counts(batch: int, **settings: Any) -> tuple[int, ...]:
        config = DistillConfig(prompts_per_step=20, knowledge_teacher="midtrained", max_new_tokens=4, **settings)
        ids = [prompt.id for prompt in BatchBuilder(config, loaded, Silent(), pools)._prompts(batch, 20)]
        assert len(ids) == 20
        return tuple(sum(one.startswith(name) for one in ids) for name in ("new", "old"))

    assert counts(3, knowledge_share=0.4, earlier_share=0.5) == drawn
    one = [counts(batch, knowledge_share=0.05, earlier_share=0.5) for batch in range(1, 5)]
    assert tuple(map(sum, zip(*one, strict=True))) == tuple(count // 2 for count in drawn), "one question by turns"
    if newest and earlier:
        alike = [counts(batch, knowledge_share=0.4) for batch in range(1, 34)]
        assert tuple(map(sum, zip(*alike, strict=True))) == (24, 240), "from all documents alike"


def test_questions_whose_number_alternates_are_all_asked_before_any_is_asked_again(loaded: Loaded) -> None:
    """Half of five questions a step: two and three by turns, from 30 newest and 30 earlier ones."""
    pools = replace(pool(), questions=_questions("new", 30), earlier=_questions("old", 30))
    builder = BatchBuilder(DistillConfig(earlier_share=0.5), loaded, Silent(), pools)
    asked = [[prompt.id for prompt in builder._questions(5, batch)] for batch in range(1, 25)]
    assert {sum(one.startswith("new") for one in step) for step in asked} == {2, 3}
    for epoch in (asked[:12], asked[12:]):
        ids = [one for step in epoch for one in step]
        assert len(ids) == len(set(ids)) == 60
    drawn = [
        *choose(pools.questions, 5, 3, 0, stream=RandomStream.QUESTIONS),
        *choose(pools.earlier, 5, 3, 0, stream=RandomStream.EARLIER_QUESTIONS),
    ]
    assert builder._questions(10, 3) == drawn, "whole numbers are the same in every step"


def test_a_state_of_single_batches_holds_no_rows() -> None:
    state = BatchState()
    state.restore({"spent": 3.0})
    assert state == BatchState()


@pytest.mark.parametrize(("settings", "first"), [({"skip_first": 3}, 3), ({"positions": "one"}, None), ({}, 0)])
def test_sampled_tokens_before_the_scored_ones_keep_their_log_probabilities(
    loaded: Loaded, settings: dict[str, Any], first: int | None
) -> None:
    """Another engine's completions: the weight of a token is the product of the ratios of all tokens before it."""
    config = DistillConfig(
        engine="vllm", prompts_per_step=4, samples_per_prompt=1, max_new_tokens=8, alarm=False, **settings
    )
    engine = Keeping(loaded)
    rows, _ = BatchBuilder(config, loaded, engine, pool())(1)
    for row, completion in zip(rows, engine.sampled, strict=True):
        at = list(row.loss_mask).index(True) - (len(row.ids) - len(completion.ids))
        assert first is None or at == first
        assert row.prefix_logprobs == tuple(completion.logprobs[:at])
        assert row.old_logprobs == tuple(completion.logprobs[at:][: row.targets])


def test_every_turn_of_a_dialogue_has_the_reward_of_its_last_response(loaded: Loaded) -> None:
    """The checks apply to the last request: an earlier response cannot pass or fail them."""
    talk = (Message(role="user", content="Say hello."), Message(role="user", content="Now answer 7."))
    pool = Pools([Prompt("talk", talk, answer="7")])
    config = DistillConfig(lam=0.0, teacher="none", prompts_per_step=1, samples_per_prompt=2, method="grpo")
    end = "<|im_end|>"
    engine = Saying(
        loaded, [[f"7{end}", f"8{end}"], [f"9{end}", f"7{end}"]]
    )  # the first turn of the first sample would pass by itself
    rows, metrics = BatchBuilder(config, loaded, engine, pool, reward=resolve_reward("exact"))(1)
    signs = [row.advantages[0] > 0 for row in rows]
    assert signs == [False, True, False, True], "first turns of both samples, then the last ones"
    assert metrics["reward"] == 0.5
