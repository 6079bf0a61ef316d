"""Answers are generated once: the same weights and prompts find them, changed ones do not, damage costs nothing."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from recovery.loading import Loaded, load_model
from recovery.rollouts import AnswerStore, CachedEngine, Completion, Sampling, TransformersEngine
from tests.support import Heard, Noting

GREEDY = Sampling(6, temperature=0.0)
PROMPTS = [[5, 6, 7], [8] * 30, [9, 10]]


@pytest.fixture(scope="module")
def loaded(tiny_model: Path) -> Loaded:
    return load_model(tiny_model, precision="float32", device="cpu")


@pytest.fixture
def engine(loaded: Loaded, tmp_path: Path) -> CachedEngine:
    return CachedEngine.of(loaded, Noting(TransformersEngine(loaded)), content_hash="a", cache=tmp_path)


def asked(engine: CachedEngine) -> int:
    assert isinstance(engine.engine, Noting)
    return len(engine.engine.asked)


def test_the_second_time_nothing_is_generated(engine: CachedEngine, loaded: Loaded) -> None:
    heard = Heard()
    first = engine.generate(PROMPTS, GREEDY, heard)
    assert first == TransformersEngine(loaded).generate(PROMPTS, GREEDY)
    assert (asked(engine), heard.answers) == (3, 3)
    assert engine.generate(PROMPTS[::-1], Sampling(6, temperature=0.0, seed=9), heard) == first[::-1]
    assert (asked(engine), heard.answers) == (3, 6)
    assert heard.tokens == sum(len(one.ids) for one in first), "what is known is not sampled again"
    assert engine.generate([*PROMPTS, [11]], GREEDY)[:3] == first
    assert asked(engine) == 4, "only what is new is asked"
    assert engine.generate([], GREEDY) == []


def test_other_weights_lengths_and_settings_miss(engine: CachedEngine, loaded: Loaded, tmp_path: Path) -> None:
    engine.generate(PROMPTS, GREEDY)
    engine.generate(PROMPTS, Sampling(7, temperature=0.0))
    assert asked(engine) == 6
    for content_hash, budget in (("b", 32768), ("a", 64)):
        inner = Noting(TransformersEngine(loaded))
        inner.engine.token_budget = inner.token_budget = budget  # type: ignore[attr-defined]
        other = CachedEngine.of(loaded, inner, content_hash=content_hash, cache=tmp_path)
        other.generate(PROMPTS, GREEDY)
        assert asked(other) == 3


def test_sampled_answers_are_kept_by_the_whole_call(engine: CachedEngine) -> None:
    sampling = Sampling(6, seed=4)
    first = engine.generate(PROMPTS, sampling)
    assert engine.generate(PROMPTS, sampling) == first
    assert asked(engine) == 3
    engine.generate(PROMPTS[:2], sampling)  # other company, other draws
    engine.generate(PROMPTS, Sampling(6, seed=5))
    assert asked(engine) == 8


def test_a_damaged_file_or_entry_is_generated_again(engine: CachedEngine) -> None:
    first = engine.generate(PROMPTS, GREEDY)
    with sqlite3.connect(engine.store.path) as connection:
        connection.execute("UPDATE answers SET value = substr(value, 1, 9) WHERE rowid = 2")
    assert engine.generate(PROMPTS, GREEDY) == first
    assert asked(engine) == 4
    engine.store.path.write_bytes(b"no database at all" * 100)
    assert engine.generate(PROMPTS, GREEDY) == first
    assert asked(engine) == 7
    assert engine.generate(PROMPTS, GREEDY) == first
    assert asked(engine) == 7, "it was begun anew"


def test_a_place_that_cannot_be_written_stops_nobody(loaded: Loaded, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    engine = CachedEngine(Noting(TransformersEngine(loaded)), AnswerStore(tmp_path / "file" / "answers.db"), "a")
    assert engine.generate(PROMPTS, GREEDY) == engine.generate(PROMPTS, GREEDY)
    assert asked(engine) == 6


def test_a_store_that_has_grown_too_large_drops_its_older_half(tmp_path: Path) -> None:
    store = AnswerStore(tmp_path / "answers.db", largest=40_000)
    said = {str(i): Completion(list(range(i, i + 99)), [-i / 7 - j / 13 for j in range(99)], True) for i in range(100)}
    for key, completion in said.items():
        store.write({key: completion})
    kept = store.read(list(said))
    assert store.path.stat().st_size < 60_000
    assert "99" in kept and "0" not in kept
    assert all(kept[key] == said[key] for key in kept), "floats come back as they were"


def test_what_was_said_before_a_stop_is_not_asked_again(
    loaded: Loaded, engine: CachedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recovery.rollouts.cached._PROMPTS_AT_ONCE", 2)
    prompts = [[number, number + 1] for number in range(5, 11)]

    def stopping(_: int, _tokens: int) -> None:
        if asked(engine) > 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        engine.generate(prompts, GREEDY, stopping)
    assert asked(engine) == 6
    said = engine.generate(prompts, GREEDY)
    assert [one.ids for one in said] == [one.ids for one in TransformersEngine(loaded).generate(prompts, GREEDY)]
    assert asked(engine) == 8, "the four that were whole are kept"
