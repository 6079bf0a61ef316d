"""The completion cache: hits for the same weights and prompts, misses for others, recovery from damage."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from recovery.models.loaded import Loaded
from recovery.models.loading import load_model
from recovery.rollouts.completion_cache import CachingEngine, CompletionStore
from recovery.rollouts.engine import Completion, Progress, Sampling
from recovery.rollouts.transformers_engine import TransformersEngine
from tests.support import Heard, Noting

GREEDY = Sampling(6, temperature=0.0)
PROMPTS = [[5, 6, 7], [8] * 30, [9, 10]]


@pytest.fixture(scope="module")
def loaded(tiny_model: Path) -> Loaded:
    return load_model(tiny_model, precision="float32", device="cpu")


@pytest.fixture
def engine(loaded: Loaded, tmp_path: Path) -> CachingEngine:
    return CachingEngine.of(loaded, Noting(TransformersEngine(loaded)), content_hash="a", cache=tmp_path)


def asked(engine: CachingEngine) -> int:
    assert isinstance(engine.engine, Noting)
    return len(engine.engine.asked)


def test_the_second_time_nothing_is_generated(engine: CachingEngine, loaded: Loaded) -> None:
    heard = Heard()
    first = engine.generate(PROMPTS, GREEDY, heard)
    assert first == TransformersEngine(loaded).generate(PROMPTS, GREEDY)
    assert (asked(engine), heard.answers) == (3, 3)
    assert engine.generate(PROMPTS[::-1], Sampling(6, temperature=0.0, seed=9), heard) == first[::-1]
    assert (asked(engine), heard.answers) == (3, 6)
    assert heard.tokens == sum(len(one.ids) for one in first), "cached completions are not sampled again"
    assert engine.generate([*PROMPTS, [11]], GREEDY)[:3] == first
    assert asked(engine) == 4, "only new prompts are generated"
    assert engine.generate([], GREEDY) == []


def test_other_weights_lengths_and_settings_miss(engine: CachingEngine, loaded: Loaded, tmp_path: Path) -> None:
    engine.generate(PROMPTS, GREEDY)
    engine.generate(PROMPTS, Sampling(7, temperature=0.0))
    assert asked(engine) == 6
    for content_hash, budget in (("b", 32768), ("a", 64)):
        inner = Noting(TransformersEngine(loaded))
        inner.engine.token_budget = inner.token_budget = budget  # type: ignore[attr-defined]
        other = CachingEngine.of(loaded, inner, content_hash=content_hash, cache=tmp_path)
        other.generate(PROMPTS, GREEDY)
        assert asked(other) == 3


def test_sampled_answers_are_kept_by_the_whole_call(engine: CachingEngine) -> None:
    sampling = Sampling(6, seed=4)
    first = engine.generate(PROMPTS, sampling)
    assert engine.generate(PROMPTS, sampling) == first
    assert asked(engine) == 3
    engine.generate(PROMPTS[:2], sampling)  # other batch, other draws
    engine.generate(PROMPTS, Sampling(6, seed=5))
    assert asked(engine) == 8


def test_a_damaged_file_or_entry_is_generated_again(engine: CachingEngine) -> None:
    first = engine.generate(PROMPTS, GREEDY)
    with sqlite3.connect(engine.store.path) as connection:
        connection.execute("UPDATE answers SET value = substr(value, 1, 9) WHERE rowid = 2")
    # Generated alone, its logits may round differently than in a batch: only the tokens are guaranteed to be equal.
    assert [said.ids for said in engine.generate(PROMPTS, GREEDY)] == [said.ids for said in first]
    assert asked(engine) == 4
    engine.store.path.write_bytes(b"no database at all" * 100)
    assert engine.generate(PROMPTS, GREEDY) == first  # all three again, in the same batch
    assert asked(engine) == 7
    assert engine.generate(PROMPTS, GREEDY) == first
    assert asked(engine) == 7, "the file was created again"


def test_an_unwritable_cache_raises_no_error(loaded: Loaded, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    engine = CachingEngine(Noting(TransformersEngine(loaded)), CompletionStore(tmp_path / "file" / "answers.db"), "a")
    assert engine.generate(PROMPTS, GREEDY) == engine.generate(PROMPTS, GREEDY)
    assert asked(engine) == 6


def test_a_store_that_has_grown_too_large_drops_its_older_half(tmp_path: Path) -> None:
    store = CompletionStore(tmp_path / "answers.db", largest=40_000)
    said = {str(i): Completion(list(range(i, i + 99)), [-i / 7 - j / 13 for j in range(99)], True) for i in range(100)}
    for key, completion in said.items():
        store.write({key: completion})
    kept = store.read(list(said))
    assert store.path.stat().st_size < 60_000
    assert "99" in kept and "0" not in kept
    assert all(kept[key] == said[key] for key in kept), "floats are restored exactly"


def test_completions_before_a_stop_are_not_generated_again(
    loaded: Loaded, engine: CachingEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recovery.rollouts.completion_cache._MOST_PROMPTS", 2)
    prompts = [[number, number + 1] for number in range(5, 11)]

    def stopping(_: int, _tokens: int) -> None:
        if asked(engine) > 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        engine.generate(prompts, GREEDY, stopping)
    assert asked(engine) == 6
    said = engine.generate(prompts, GREEDY)
    assert [one.ids for one in said] == [one.ids for one in TransformersEngine(loaded).generate(prompts, GREEDY)]
    assert asked(engine) == 8, "the four complete ones are cached"


def test_of_an_engine_that_tells_of_each_completion_a_stop_loses_none(tmp_path: Path) -> None:
    asked: list[Sequence[int]] = []

    class Telling:
        keeps = True

        def generate(
            self,
            prompts: Sequence[Sequence[int]],
            _sampling: Sampling,
            progress: Progress | None,
            keep: Callable[[int, Completion], None],
        ) -> list[Completion]:
            asked.extend(prompts)
            said = [Completion(list(prompt), [0.0], True) for prompt in prompts]
            for number in reversed(range(len(prompts))):  # in the order of their arrival
                keep(number, said[number])
                if progress is not None:
                    progress(1, 1)
            return said

    engine = CachingEngine(Telling(), CompletionStore(tmp_path / "answers.db"), "a")
    prompts = [[number] for number in range(300)]
    heard = Heard()

    def stopping(done: int, tokens: int) -> None:
        heard(done, tokens)
        if heard.answers == 7:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        engine.generate(prompts, GREEDY, stopping)
    assert asked == prompts, "all in one request"
    assert [one.ids for one in engine.generate(prompts, GREEDY)] == prompts
    assert asked[300:] == prompts[:-7]


@pytest.mark.parametrize(
    ("budget", "max_new_tokens", "parts"),
    [(65536, 64, [256, 44]), (65536, 512, [128, 128, 44]), (None, 512, [256, 44])],
)
def test_a_stop_loses_less_of_long_completions(
    budget: int | None, max_new_tokens: int, parts: list[int], tmp_path: Path
) -> None:
    """Of an engine with batches of its own; a server, which takes all requests at once, would wait for each part."""
    sizes = []

    class Silent:
        token_budget = budget

        def generate(self, prompts: Sequence[Sequence[int]], *_: object) -> list[Completion]:
            sizes.append(len(prompts))
            return [Completion([], [], False) for _ in prompts]

    engine = CachingEngine(Silent(), CompletionStore(tmp_path / "answers.db"), "a")
    engine.generate([[number] for number in range(300)], Sampling(max_new_tokens, temperature=0.0))
    assert sizes == parts
