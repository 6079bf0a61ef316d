"""The schedule of mid-training, and the prompts of a recovery's steps: kinds that were failed are drawn more often."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from pipelines.data.mixing import Stream, choose, schedule, shuffled, step_count, step_size
from pipelines.data.prompt_sampler import PromptSampler, weakest
from pipelines.runtime.generation import CompletedConversation, SampledTurn
from recovery.batching import Row
from recovery.config import DistillConfig, MidtrainConfig
from recovery.rng import RandomStream
from recovery.rollouts.engine import Completion
from recovery.types import Check, Message, Prompt


def row(length: int, start: int = 0) -> Row:
    return Row(list(range(start, start + length)), [True] * length)


def stream(name: str, rows: int, share: float, length: int = 11) -> Stream:
    return Stream(name, [row(length, 100 * i + ord(name[0]) * 10_000) for i in range(rows)], share)


def test_targets_leave_out_the_first_token_of_every_document() -> None:
    assert Row([1, 2, 3, 4, 5], [True] * 5).targets == 4
    assert Row([1, 2, 3, 4, 5], [True] * 5, segments=(2, 3)).targets == 3
    assert Row([1, 2, 3, 4], [False, False, True, True]).targets == 2


def test_shares_hold_over_the_run_although_rows_differ_in_length() -> None:
    mixed = [Stream("a", [row(n) for n in (5, 9, 40)], 0.7), Stream("b", [row(21, 900)], 0.3)]
    plan = schedule(mixed, steps=50, per_step=100, seed=3)
    tokens = [r.targets for step in plan for r in step]
    second = [r.targets for step in plan for r in step if r.ids[0] == 900]
    assert sum(second) / sum(tokens) == pytest.approx(0.3, abs=0.01)
    assert sum(tokens) == pytest.approx(5000, rel=0.02)


def test_every_row_is_seen_once_before_any_is_seen_twice() -> None:
    plan = schedule([stream("a", 10, 1.0)], steps=5, per_step=20, seed=0)
    seen = [r.ids[0] for step in plan for r in step]
    assert len(seen) == 10
    assert len(set(seen)) == 10


def test_the_seed_decides_the_order_and_nothing_else_does() -> None:
    first = schedule([stream("a", 10, 0.5), stream("b", 7, 0.5)], 8, 60, seed=1)
    assert first == schedule([stream("a", 10, 0.5), stream("b", 7, 0.5)], 8, 60, seed=1)
    assert first != schedule([stream("a", 10, 0.5), stream("b", 7, 0.5)], 8, 60, seed=2)


def test_a_row_longer_than_a_step_leaves_no_step_without_rows() -> None:
    plan = schedule([stream("a", 2, 1.0, length=500)], steps=6, per_step=50, seed=0)
    assert all(plan)


def test_step_size_follows_the_corpus_within_bounds() -> None:
    assert step_size(MidtrainConfig(batch_tokens=1234), 10**9, 1.0) == 1234
    once = MidtrainConfig(epochs=1)
    assert step_size(once, 1_000, 1.0) == 512
    assert step_size(once, 100_000, 1.0) == step_size(once, 50_000, 0.5) == 1_000
    assert step_size(MidtrainConfig(steps=7), 100_000, 1.0) == 3_000, "three passes, also where the steps are set"
    assert step_size(once, 10**9, 1.0) == 8192


def test_steps_grow_with_what_is_mixed_in() -> None:
    assert step_count(MidtrainConfig(epochs=3), 1_000, 1.0, 100) == 30
    assert step_count(MidtrainConfig(epochs=3), 1_000, 0.5, 100) == 60
    assert step_count(MidtrainConfig(epochs=0.01), 10, 1.0, 100) == 1
    assert step_count(MidtrainConfig(steps=7), 1_000, 1.0, 100) == 7


CAPITALS, COMMAS = "change_case:english_capital", "punctuation:no_comma"


def prompts(kind: str, count: int) -> list[Prompt]:
    checks = (Check(kind),) if kind else ()
    return [Prompt(f"{kind}-{i}", (Message(role="user", content=f"Say {i}."),), checks=checks) for i in range(count)]


def answered(prompt: Prompt, text: str) -> SampledTurn:
    messages = (*prompt.messages, Message(role="assistant", content=text))
    return SampledTurn(prompt, [1], Completion([2], [0.0], True), messages)


def kinds(chosen: list[Prompt]) -> Counter[str]:
    return Counter(check.instruction for prompt in chosen for check in prompt.checks)


def test_what_is_missed_comes_up_more_often_and_what_is_back_no_more_than_the_rest() -> None:
    pool = prompts(CAPITALS, 400) + prompts(COMMAS, 400)
    focus = PromptSampler(0.5)
    for _ in range(4):
        focus.update([answered(p, "no capitals, though") for p in pool[:8]])
        focus.update([answered(p, "no comma") for p in pool[400:408]])
    found = kinds([p for batch in range(1, 9) for p in focus.choose(pool, 40, batch, seed=0)])
    assert found[CAPITALS] > 2 * found[COMMAS]
    for _ in range(60):
        focus.update([answered(p, "THIS IS ALL IN CAPITALS") for p in pool[:8]])
        focus.update([answered(p, "no comma") for p in pool[400:408]])
    found = kinds([p for batch in range(1, 9) for p in focus.choose(pool, 40, batch, seed=0)])
    assert 0.7 < found[CAPITALS] / found[COMMAS] < 1.4


def test_the_rest_is_drawn_evenly_and_a_batch_is_a_function_of_its_seed_and_state() -> None:
    pool = prompts(CAPITALS, 50) + prompts("", 50)
    chosen = PromptSampler(0.5).choose(pool, 20, 3, seed=1)
    assert chosen == PromptSampler(0.5).choose(pool, 20, 3, seed=1)
    assert chosen != PromptSampler(0.5).choose(pool, 20, 3, seed=2)
    assert all(prompt.checks for prompt in chosen[10:])
    assert len({prompt.id for prompt in chosen[10:]}) == 10
    assert len(PromptSampler(0.5).choose(pool[50:], 10, 1, seed=0)) == 10, "those without checks alone"
    assert PromptSampler(0.0).choose(pool, 20, 3, seed=1) == choose(
        pool, 20, 3, 1, stream=RandomStream.BEHAVIOUR_PROMPTS
    )


def test_a_later_run_goes_on_where_an_earlier_one_ended() -> None:
    """All cycles of one seed drew the same prompts: of a long file the rest was never used."""
    pool = prompts("", 100)
    first, later = PromptSampler(0.0), PromptSampler(0.0, skipped=60)
    used = [prompt.id for batch in range(1, 4) for prompt in first.choose(pool, 20, batch, seed=1)]
    after = [prompt.id for batch in range(1, 3) for prompt in later.choose(pool, 20, batch, seed=1)]
    assert len({*used, *after}) == 100 == len(used) + len(after)
    assert after == [prompt.id for batch in (4, 5) for prompt in first.choose(pool, 20, batch, seed=1)]
    order = shuffled(pool, 1, RandomStream.BEHAVIOUR_PROMPTS)
    assert shuffled(pool, 1, RandomStream.BEHAVIOUR_PROMPTS, 160) == order[60:] + order[:60] and len(order) == 100
    assert shuffled([], 1, RandomStream.BEHAVIOUR_PROMPTS, 5) == []
    config = DistillConfig(knowledge_teacher="midtrained", prompts_per_step=10, knowledge_share=0.4, steps=7)
    assert (
        config.behaviour_prompts_total,
        replace(config, knowledge_teacher=None).behaviour_prompts_total,
    ) == (42, 70)


def test_only_the_last_answer_of_a_conversation_is_judged() -> None:
    user = [Message(role="user", content=text) for text in ("Hello.", "Now in capitals.")]
    asked = Prompt("talk", tuple(user), checks=(Check(CAPITALS),))
    first = (user[0], Message(role="assistant", content="hello"))
    whole = (*first, user[1], Message(role="assistant", content="THIS IS ALL IN CAPITALS"))
    focus = PromptSampler(0.5)
    focus.update([SampledTurn(asked, [1], Completion([2], [0.0], True), messages) for messages in (first, whole)])
    assert focus.state.focus == {CAPITALS: [1.0, 0.0]}


def test_more_prompts_of_the_kinds_that_a_model_fails_none_of_them_twice() -> None:
    pool = prompts(CAPITALS, 200) + prompts(COMMAS, 200)
    told = {CAPITALS: "no capitals", COMMAS: "no comma"}
    done = [
        CompletedConversation(p, (*p.messages, Message(role="assistant", content=told[p.checks[0].instruction])))
        for p in pool[::5]
    ]
    more = weakest(done, pool, 60, seed=0)
    assert len({p.id for p in more}) == 60 and not {p.id for p in more} & {one.prompt.id for one in done}
    found = kinds(more)
    assert found[CAPITALS] > 50, "40 of 40 were failed, of the others none"
    assert weakest(done, pool, 60, seed=0) == more and weakest(done, pool, 60, seed=1) != more
    assert {p.id for p in weakest(done, pool[:6], 60, seed=0)} == {p.id for p in pool[1:5]}, "all that are left"
    assert weakest(done, pool[:1], 60, seed=0) == []
