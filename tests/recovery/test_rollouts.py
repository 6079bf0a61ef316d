"""The transformers engine: draws follow the model's distribution, greedy completions equal transformers' generate."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from recovery.errors import EngineError, ModelError, UsageError
from recovery.models import attention
from recovery.models.loaded import Loaded
from recovery.models.loading import load_model
from recovery.rollouts import active_rows
from recovery.rollouts.active_rows import BrokenCaptureError, DecodeGraph, KVCache, period_of
from recovery.rollouts.engine import Completion, Sampling
from recovery.rollouts.transformers_engine import TransformersEngine, draw
from tests.models import make_other
from tests.support import Heard, continuation_logprobs

PROMPTS = [[5, 9, 30, 12, 8], [7, 11], [40, 41, 42, 43, 44, 45, 46, 47, 48], [3, 3, 3]]
MANY = [[*prompt, 4 + number] for number in range(12) for prompt in PROMPTS]


@pytest.fixture
def loaded(tiny_model: Path) -> Loaded:
    return load_model(tiny_model, precision="float32")


@pytest.fixture
def uneven(tiny_contrasting: Path) -> Loaded:
    """A model whose answers to MANY have very different lengths."""
    loaded = load_model(tiny_contrasting, precision="float32")
    often = frozenset(range(0, loaded.head.vocabulary, 12))
    return dataclasses.replace(loaded, chat=dataclasses.replace(loaded.chat, end_ids=often))


def assert_alike(some: list[Completion], others: list[Completion]) -> None:
    """The same tokens and ends, and the same log-probabilities but for rounding."""
    assert [(c.ids, c.finished) for c in some] == [(c.ids, c.finished) for c in others]
    for one, other in zip(some, others, strict=True):
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)


def test_greedy_answers_equal_transformers_generate(tiny_family: Path) -> None:
    loaded = load_model(tiny_family, precision="float32")
    ours = TransformersEngine(loaded).generate(PROMPTS, Sampling(12, temperature=0))
    for prompt, completion in zip(PROMPTS, ours, strict=True):
        theirs = loaded.model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
            max_new_tokens=12,
            do_sample=False,
            eos_token_id=sorted(loaded.chat.end_ids),
            pad_token_id=loaded.chat.pad_id,
        )
        assert completion.ids == theirs[0, len(prompt) :].tolist()


def test_logprobs_of_a_rollout_are_those_the_scorer_gives(tiny_contrasting: Path) -> None:
    loaded = load_model(tiny_contrasting, precision="float32")
    rollouts = TransformersEngine(loaded).generate(PROMPTS, Sampling(10, seed=3))
    scored = continuation_logprobs(loaded, [(p, c.ids) for p, c in zip(PROMPTS, rollouts, strict=True)])
    for completion, logprobs in zip(rollouts, scored, strict=True):
        assert completion.logprobs == pytest.approx(logprobs, abs=1e-4)


def test_same_seed_same_rollouts_and_another_seed_others(tiny_model: Path) -> None:
    engine = TransformersEngine(load_model(tiny_model, precision="float32"))
    first, again, other = (engine.generate(PROMPTS, Sampling(10, seed=s)) for s in (1, 1, 2))
    assert first == again
    assert first != other


def test_a_response_ends_at_its_first_end_token(loaded: Loaded) -> None:
    rollouts = TransformersEngine(loaded).generate(PROMPTS * 64, Sampling(40, seed=5))
    finished = [c for c in rollouts if c.finished]
    assert finished, "with 256 draws of 40 tokens some must hit an end token"
    for completion in finished:
        assert completion.ids[-1] in loaded.chat.end_ids
        assert not set(completion.ids[:-1]) & loaded.chat.end_ids


def test_a_small_token_budget_changes_no_greedy_answer(loaded: Loaded) -> None:
    whole, split = (
        TransformersEngine(loaded, token_budget=budget).generate(PROMPTS, Sampling(8, temperature=0))
        for budget in (10_000, 20)
    )
    assert [c.ids for c in whole] == [c.ids for c in split]


def test_rows_set_aside_go_on_as_if_alone(uneven: Loaded) -> None:
    """The last rows of a batch are decoded with those of others; the completions do not change."""
    heard = Heard()
    whole, split = (
        TransformersEngine(uneven, token_budget=budget).generate(MANY, Sampling(30, seed=7), heard)
        for budget in (100_000, 500)
    )
    assert len({len(c.ids) for c in whole}) > 10
    assert_alike(whole, split)
    assert heard.answers == 2 * len(MANY)
    assert heard.tokens == 2 * sum(len(c.ids) for c in whole)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_fewer_are_sampled_at_once_where_memory_is_full(
    uneven: Loaded, monkeypatch: pytest.MonkeyPatch, temperature: float
) -> None:
    sampling, heard = Sampling(30, temperature=temperature, seed=7), Heard()
    engine = TransformersEngine(uneven, token_budget=300)
    whole = engine.generate(MANY, sampling)
    forward, full = engine._forward, []

    def limited(**inputs: Any) -> Any:
        rows, keys = inputs["attention_mask"].shape
        if rows * keys > 80:
            full.append((rows, keys))
            raise torch.OutOfMemoryError("CUDA out of memory")
        return forward(**inputs)

    monkeypatch.setattr(engine, "_forward", limited)
    found = engine.generate(MANY, sampling, heard)
    assert full and engine.token_budget < 300
    assert [(c.ids, c.finished) for c in found] == [(c.ids, c.finished) for c in whole]
    assert heard.answers == len(MANY), "each is counted once"
    monkeypatch.setattr(engine, "_forward", lambda **_: limited(attention_mask=torch.ones(1, 99)))
    with pytest.raises(EngineError, match="too full to sample one completion"):
        engine.generate(MANY, sampling)


def test_an_unfinished_completion_is_forgotten() -> None:
    """Sampled again in another batch, its logits may be rounded otherwise: it may end earlier."""
    results = active_rows.Results(
        torch.full((3, 4), -1), torch.zeros(3, 4), torch.tensor([4, 4, 4]), torch.tensor([0]), None
    )
    results.tokens_NT[:, :2] = torch.tensor([[5, 0], [6, 7], [8, 9]])
    results.over_N[0] = True
    assert results.unfinished() == [1, 2]
    assert results.tokens_NT.tolist() == [[5, 0, -1, -1], [-1] * 4, [-1] * 4]


def test_rows_that_ended_are_not_computed(uneven: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = TransformersEngine(uneven)
    forward, rows = engine._forward, list[int]()

    def counted(**inputs: Any) -> Any:
        rows.append(len(inputs["input_ids"]))
        return forward(**inputs)

    monkeypatch.setattr(engine, "_forward", counted)
    made = engine.generate(MANY, Sampling(40, seed=7))
    needed = sum(len(completion.ids) for completion in made)
    assert needed < 0.5 * len(rows) * len(made), "some are much shorter than others"
    assert sum(rows) <= needed / (1 - active_rows.DROP_SHARE) + len(made)


def test_fixed_shapes_change_no_answer(uneven: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a GPU captures as a graph, run here without one: rows end, are dropped and join those of other batches."""
    runs = 0

    def counted(graph: DecodeGraph, *inputs: torch.Tensor) -> torch.Tensor:
        nonlocal runs
        runs += 1
        return call(graph, *inputs)

    call = DecodeGraph.__call__
    monkeypatch.setattr(DecodeGraph, "__call__", counted)
    monkeypatch.setattr(active_rows, "GRAPH_ROWS", 8)
    for sampling, budget in [(Sampling(40, seed=7), 100_000), (Sampling(40, temperature=0), 500)]:
        usual, fixed = (
            TransformersEngine(uneven, token_budget=budget, graphs=graphs).generate(MANY, sampling)
            for graphs in (False, True)
        )
        assert_alike(usual, fixed)
    config = uneven.core.config
    suited = KVCache.empty(config, 1).joinable and config._attn_implementation == attention.NAME
    assert runs > 20 if suited else runs == 0


@pytest.mark.parametrize("fault", ["refuses", "breaks", "differs"])
def test_a_model_that_fixed_shapes_do_not_fit_goes_on_without(
    loaded: Loaded, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, attempts = DecodeGraph._run, 0

    def refuses(_graph: DecodeGraph, *_inputs: object) -> None:
        nonlocal attempts
        attempts += 1
        if fault == "breaks":
            raise BrokenCaptureError("capture was invalidated")
        raise RuntimeError("operation not permitted when stream is capturing")

    def differs(graph: DecodeGraph) -> torch.Tensor:
        found = run(graph)
        for layer in graph._cache.cache.layers:
            layer._keys[:, :, graph._place_1] += 1.0
        found[-1] *= 1.01
        return found

    usual = TransformersEngine(loaded).generate(PROMPTS, Sampling(30, seed=7))
    if fault != "differs":
        monkeypatch.setattr(DecodeGraph, "__init__", refuses)
    else:
        monkeypatch.setattr(DecodeGraph, "_run", differs)
    engine = TransformersEngine(loaded, graphs=True)
    tried = []
    for _ in range(1 if fault == "differs" else 8):
        assert engine.generate(PROMPTS, Sampling(30, seed=7)) == usual
        tried.append(attempts)
    if fault == "refuses":  # once, after two batches without, after four more
        assert engine.graphs and tried == [1, 1, 1, 2, 2, 2, 2, 2]
    else:
        assert not engine.graphs and attempts <= 1


def test_a_graph_is_tried_again_when_memory_is_free(loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    usual, engine = (TransformersEngine(loaded, graphs=graphs) for graphs in (False, True))
    made = DecodeGraph.__init__
    outcomes: list[bool] = []
    full = iter([True, False, True, False])

    def sometimes(graph: DecodeGraph, *inputs: Any) -> None:
        outcomes.append(not next(full))
        if not outcomes[-1]:
            raise torch.OutOfMemoryError("CUDA out of memory")
        made(graph, *inputs)

    monkeypatch.setattr(DecodeGraph, "__init__", sometimes)
    tried = []
    for seed in range(8):
        sampling = Sampling(30, seed=seed)
        found, wanted = (each.generate(PROMPTS, sampling) for each in (engine, usual))
        assert [one.ids for one in found] == [one.ids for one in wanted]
        tried.append(len(outcomes))
    assert tried == [1, 1, 1, 2, 3, 3, 3, 4] and outcomes == [False, True, False, True], "a success ends the series"


def test_there_is_no_graph_of_attention_that_adds_its_mask(tiny_llama: Path) -> None:
    loaded = load_model(tiny_llama, precision="float32")
    assert TransformersEngine(loaded, graphs=True).graphs
    loaded.model.set_attn_implementation("eager")
    assert not TransformersEngine(loaded, graphs=True).graphs


def test_a_graph_changes_nothing_that_the_cache_holds(loaded: Loaded) -> None:
    ids_BT = torch.tensor(PROMPTS[:1])
    cache, mask_BT, last_B = KVCache.empty(loaded.core.config, 8), torch.ones_like(ids_BT), ids_BT[:, -1]
    with loaded.inference():
        loaded.decoder(input_ids=ids_BT, past_key_values=cache.cache, use_cache=True)
        before = [tensor.clone() for layer in cache.cache.layers for tensor in (layer.keys, layer.values)]
        graph = DecodeGraph(loaded.decoder, cache, mask_BT, last_B, torch.tensor([4]))
        hidden_BD = graph(torch.tensor([9]), torch.tensor([5])).clone()
        after = [tensor for layer in cache.cache.layers for tensor in (layer.keys, layer.values)]
        assert all(map(torch.equal, before, after))
        exact = loaded.decoder(input_ids=torch.tensor([[9]]), past_key_values=cache.cache, use_cache=True)
    torch.testing.assert_close(hidden_BD, exact.last_hidden_state[:, -1])


def test_no_position_is_beyond_those_of_the_model(loaded: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that have ended wait in their batch for others: their positions must not go on."""
    monkeypatch.setattr(loaded.core.config, "max_position_embeddings", 32)
    seen: list[int] = []
    forward = TransformersEngine._forward

    def recorded(engine: TransformersEngine, **inputs: Any) -> Any:
        seen.append(int(inputs["position_ids"].max()))
        return forward(engine, **inputs)

    monkeypatch.setattr(TransformersEngine, "_forward", recorded)
    prompts = [[5, *range(29)], *([6 + n] * 5 for n in range(9))]
    completions = TransformersEngine(loaded).generate(prompts, Sampling(20, seed=1))
    assert len(completions[0].ids) <= 2 and max(len(c.ids) for c in completions) > 10
    assert max(seen) < 32


def test_draws_follow_the_distribution() -> None:
    probabilities = torch.tensor([0.5, 0.3, 0.15, 0.05, 0.0])
    logits = probabilities.log().expand(40_000, -1)
    uniform = torch.rand(len(logits), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    tokens, logprobs = draw(logits, Sampling(1), uniform)
    shares = torch.bincount(tokens, minlength=5) / len(tokens)
    torch.testing.assert_close(shares, probabilities, atol=0.01, rtol=0)
    torch.testing.assert_close(logprobs, probabilities.log()[tokens])
    nucleus, _ = draw(logits, Sampling(1, top_p=0.7), uniform)
    assert set(nucleus.tolist()) == {0, 1}


def test_a_prompt_as_long_as_the_window_is_refused(loaded: Loaded) -> None:
    with pytest.raises(UsageError, match="a prompt has 1,024 tokens; the model accepts 1 to 1,023"):
        TransformersEngine(loaded).generate([[5] * loaded.max_length], Sampling(4))


def test_a_copy_in_lower_precision_follows_the_trained_weights(tiny_model: Path) -> None:
    loaded = load_model(tiny_model, tuning="full", precision="bfloat16")
    engine = TransformersEngine(loaded)
    before = engine.generate(PROMPTS, Sampling(8, temperature=0))
    with torch.no_grad():
        for parameter in loaded.model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)) * 0.1)
    assert engine.generate(PROMPTS, Sampling(8, temperature=0)) != before


def test_a_copy_in_lower_precision_is_what_loading_in_it_gives(tiny_model: Path) -> None:
    copied = TransformersEngine(load_model(tiny_model, tuning="full", precision="bfloat16")).loaded.model
    frozen = load_model(tiny_model, precision="bfloat16").model
    assert {p.dtype for p in copied.parameters()} == {torch.bfloat16}
    ours, theirs = ({**dict(m.named_parameters()), **dict(m.named_buffers())} for m in (copied, frozen))
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert tensor.dtype == theirs[name].dtype, name
        assert torch.equal(tensor, theirs[name]), name


def test_a_part_of_a_request_is_answered_as_within_the_whole(loaded: Loaded) -> None:
    engine = TransformersEngine(loaded)
    prompts = PROMPTS * 3
    whole = engine.generate(prompts, Sampling(10, seed=3))
    parts = [
        *engine.generate(prompts[:4], Sampling(10, seed=3)),
        *engine.generate(prompts[4:], Sampling(10, seed=3, first=4)),
    ]
    assert [one.ids for one in whole] == [one.ids for one in parts]
    assert len({tuple(one.ids) for one in whole}) > len(PROMPTS), "repeated prompts are sampled separately"
    small = TransformersEngine(loaded, token_budget=40).generate(prompts, Sampling(10, seed=3))
    assert [one.ids for one in whole] == [one.ids for one in small], "independent of the batch"


def test_a_repetition_needs_four_repeats_over_64_tokens() -> None:
    start = list(range(100, 120))
    assert period_of(start + [1, 2, 3] * 21) == 0  # 63 tokens
    assert period_of(start + [1, 2, 3] * 22) == 3
    assert period_of(start + [7] * 64) == 1
    assert period_of([*start, *[1, 2, 3] * 30, 9]) == 0
    long = list(range(1, 41))
    assert period_of(long * 3) == 0 and period_of(long * 4) == 40
    assert period_of([]) == 0


@pytest.mark.parametrize(("period", "length"), [(1, 70), (3, 68), (5, 71), (7, 97)])
def test_the_repetition_goes_on_where_it_was(period: int, length: int) -> None:
    results = active_rows.Results(
        torch.full((2, 120), -1), torch.zeros(2, 120), torch.tensor([110, 120]), torch.tensor([0]), None
    )
    for row in range(2):
        results.tokens_NT[row, :length] = torch.arange(length) % period + 10
        results.logprobs_NT[row, :length] = -1.0 - torch.arange(length) % period
    results.tokens_NT[1, length - 1] = 99  # this one has just left its repetition
    live = SimpleNamespace(
        owners_B=torch.tensor([0, 1]), lengths_B=torch.full((2,), length), done_B=torch.zeros(2, dtype=torch.bool)
    )
    results.complete_loops(live)  # type: ignore[arg-type]
    whole = torch.arange(110) % period
    assert results.tokens_NT[0, :110].tolist() == (whole + 10).tolist() and results.tokens_NT[0, 110] == -1
    assert results.logprobs_NT[0, :110].tolist() == (-1.0 - whole).tolist()
    assert live.done_B.tolist() == [True, False] and results.tokens_NT[1, length] == -1


def test_a_greedy_answer_that_repeats_itself_is_completed_as_it_would_go_on(loaded: Loaded) -> None:
    loaded = dataclasses.replace(loaded, chat=dataclasses.replace(loaded.chat, end_ids=frozenset({loaded.chat.pad_id})))
    prompts, greedy = [[3 + number, 5, 9] for number in range(24)], Sampling(160, temperature=0)
    sampled = [0, 0]

    def answers(loops: bool) -> list[Completion]:
        def hear(_answers: int, tokens: int) -> None:
            sampled[loops] += tokens

        return TransformersEngine(loaded, complete_loops=loops).generate(prompts, greedy, hear)

    whole, completed = answers(False), answers(True)
    repeating = [one for one in whole if period_of(one.ids[:120])]
    assert len(repeating) > 4, "a model with random weights soon repeats itself"
    assert sampled[True] < sampled[False] - 30 * len(repeating)
    alike = [one.ids == other.ids for one, other in zip(whole, completed, strict=True)]
    assert sum(alike) > 0.8 * len(alike)
    for one, other in zip(whole, completed, strict=True):
        assert len(other.ids) == len(other.logprobs) == len(one.ids) and other.finished == one.finished


def test_drawn_answers_are_never_completed(loaded: Loaded) -> None:
    drawn = Sampling(100, temperature=0.05, seed=1)
    plain, completing = (
        TransformersEngine(loaded, complete_loops=loops).generate(PROMPTS, drawn) for loops in (False, True)
    )
    assert plain == completing


@pytest.mark.parametrize("kind", ["deepseek_v3", "qwen3_next"])
def test_rows_of_latent_and_recurrent_layers_end_one_after_another(kind: str, tmp_path: Path) -> None:
    loaded = load_model(make_other(kind, tmp_path), precision="float32")
    engine = TransformersEngine(loaded)
    prompts = [[20 + at, *range(30, 30 + 3 * at)] for at in range(4)]
    first = engine.generate(prompts, Sampling(16, seed=3))[0].ids[1]
    loaded.chat = dataclasses.replace(loaded.chat, end_ids=loaded.chat.end_ids | {first})
    found = engine.generate(prompts, Sampling(16, seed=3))
    assert len({len(one.ids) for one in found}) > 1
    for prompt, one in zip(prompts, found, strict=True):
        with torch.no_grad():
            logits = loaded.model(torch.tensor([[*prompt, *one.ids]])).logits[0].log_softmax(-1)
        again = [logits[len(prompt) + at - 1, token].item() for at, token in enumerate(one.ids)]
        assert one.logprobs == pytest.approx(again, abs=1e-4)


def test_a_model_without_such_a_cache_is_refused(tmp_path: Path) -> None:
    loaded = load_model(make_other("mamba", tmp_path), precision="float32")
    with pytest.raises(ModelError, match="a mamba model cannot be sampled with transformers' cache .*--engine vllm"):
        TransformersEngine(loaded).generate([[20, 21]], Sampling(4))
