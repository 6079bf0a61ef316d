"""vLLM as the engine: it says what the model in memory would say, whatever has become of the weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from recovery.errors import EngineError, UsageError
from recovery.inference_server import InferenceServer
from recovery.models.adapters import LoraSettings
from recovery.models.loaded import Loaded
from recovery.models.loading import load_model
from recovery.rollouts import vllm_engine
from recovery.rollouts.engine import Sampling
from recovery.rollouts.transformers_engine import TransformersEngine
from recovery.rollouts.vllm_engine import VllmSampler
from recovery.rollouts.vllm_server_engine import KEYS, VllmServerSampler
from recovery.rollouts.weight_sync import SyncedEngine
from tests.support import continuation_logprobs

pytestmark = pytest.mark.vllm

PROMPTS = [[5, 9, 30, 12, 8], [7, 11], [40, 41, 42, 43, 44, 45, 46, 47, 48] * 4, [3, 3, 3]]
# Each start of vLLM costs many imports: one case of each kind is quick enough for every day.
MORE = [("untied", "full"), ("tied", "lora"), ("untied", "lora")]
CASES = [("tied", "full"), *(pytest.param(case, marks=pytest.mark.slow) for case in MORE)]


def load(folder: Path, tuning: Any) -> Loaded:
    torch.manual_seed(0)
    return load_model(folder, tuning=tuning, lora=LoraSettings(8, 16), precision="float32")


def move(loaded: Loaded, seed: int) -> None:
    """Change every trained weight, the embedding with them, as a coarse training step would."""
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in loaded.trainable().values():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=draw))


def in_process(loaded: Loaded, memory: int | None = None) -> VllmSampler:
    return VllmSampler(loaded, tokens=4096, free=8 << 30, memory=memory)


def agrees(engine: SyncedEngine, loaded: Loaded, seed: int) -> float:
    """The largest difference between what the engine says its tokens had and what the model gives them."""
    said = engine.generate(PROMPTS, Sampling(12, seed=seed))
    scored = continuation_logprobs(loaded, [(p, c.ids) for p, c in zip(PROMPTS, said, strict=True)])
    return max(abs(a - b) for c, row in zip(said, scored, strict=True) for a, b in zip(c.logprobs, row, strict=True))


@pytest.fixture(params=CASES, ids=lambda case: "-".join(case))
def loaded(request: pytest.FixtureRequest) -> Loaded:
    name, tuning = request.param
    return load(request.getfixturevalue(name), tuning)


@pytest.fixture
def engine(loaded: Loaded) -> Iterator[SyncedEngine]:
    made = SyncedEngine(loaded, in_process(loaded), bound=0.01)
    yield made
    made.close()


def test_in_process_it_follows_the_weights_and_answers_as_transformers_does(
    engine: SyncedEngine, loaded: Loaded
) -> None:
    greedy = Sampling(12, temperature=0)
    for round_ in range(3):
        ours, theirs = engine.generate(PROMPTS, greedy), TransformersEngine(loaded).generate(PROMPTS, greedy)
        assert [c.ids for c in ours] == [c.ids for c in theirs]
        for mine, other in zip(ours, theirs, strict=True):
            assert mine.logprobs == pytest.approx(other.logprobs, abs=1e-3)
        assert agrees(engine, loaded, seed=round_) < 1e-3
        assert engine.figures["engine_drift"] < 1e-3
        assert engine.figures["engine_ratio"] == pytest.approx(1, abs=1e-2)
        move(loaded, round_)
    again = [engine.generate(PROMPTS[:1] * 3, Sampling(12, seed=7)) for _ in range(2)]
    assert again[0] == again[1], "the seed fixes the draw"
    assert len({tuple(c.ids) for c in again[0]}) > 1, "equal prompts get answers of their own"
    hot = engine.generate(PROMPTS, Sampling(12, temperature=1.7, seed=1))
    assert all(c.ids for c in hot)
    tempered = continuation_logprobs(loaded, [(p, c.ids) for p, c in zip(PROMPTS, hot, strict=True)])
    assert abs(hot[2].logprobs[0] - tempered[2][0]) > 1e-3, "log-probabilities are those of the tempered distribution"


@pytest.mark.slow
def test_answers_end_at_end_tokens_and_at_the_window(tied: Path) -> None:
    loaded = load(tied, "frozen")
    engine = SyncedEngine(loaded, in_process(loaded, memory=1 << 19), bound=0.01)
    try:
        window = engine.sampler.window
        assert window < loaded.max_length, "a small cache holds shorter sequences"
        said = engine.generate([[5, 9]] * 200, Sampling(60, seed=2))
        ended = [c for c in said if c.finished]
        assert ended
        assert all(c.ids[-1] in loaded.chat.end_ids and not set(c.ids[:-1]) & loaded.chat.end_ids for c in ended)
        assert all(len(c.ids) == 60 for c in said if not c.finished)
        (last,) = engine.generate([[5] * (window - 2)], Sampling(60, seed=2))
        assert len(last.ids) <= 2
        with pytest.raises(UsageError, match="a prompt has 768 tokens; vllm accepts 1 to 767"):
            engine.generate([[5] * window], Sampling(4))
    finally:
        engine.close()


@pytest.mark.slow
def test_other_weights_than_those_in_memory_stop_the_run(
    make_tiny: Callable[..., Path], tied: Path, tmp_path: Path
) -> None:
    from tests.vllm.conftest import SHAPE

    loaded = load(make_tiny("qwen3", tmp_path / "other", seed=5, **SHAPE), "frozen")
    engine = SyncedEngine(loaded, in_process(load(tied, "frozen")), bound=0.1)
    try:
        with pytest.raises(EngineError, match=r"does not sample from the weights in memory.*--engine-drift 0.1"):
            engine.generate(PROMPTS, Sampling(8))
        assert engine.figures["engine_drift"] > 0.1
    finally:
        engine.close()


@pytest.mark.slow
def test_one_engine_serves_one_model_after_another(
    make_tiny: Callable[..., Path], tied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.vllm.conftest import SHAPE

    starts: list[vllm_engine.Wanted] = []
    begin = vllm_engine._start
    monkeypatch.setattr(vllm_engine, "_start", lambda wanted: (starts.append(wanted), begin(wanted))[1])
    vllm_engine.stop()
    student, teacher = load(tied, "full"), load(make_tiny("qwen3", tmp_path / "other", seed=5, **SHAPE), "frozen")
    first = SyncedEngine(student, in_process(student), bound=0.01)
    second = SyncedEngine(teacher, in_process(teacher), bound=0.01)
    for round_ in range(2):  # by turns, neither closed: each finds its own weights again
        assert agrees(first, student, seed=round_) < 1e-3
        assert agrees(second, teacher, seed=round_) < 1e-3
        move(student, round_)
    first.close()
    assert agrees(second, teacher, seed=3) < 1e-3
    second.close()
    third = SyncedEngine(student, in_process(student), bound=0.01)
    assert agrees(third, student, seed=4) < 1e-3
    assert len(starts) == 1, "it stayed when its users closed it"
    third.close()
    adapted = load(tied, "lora")
    fourth = SyncedEngine(adapted, in_process(adapted), bound=0.01)
    assert agrees(fourth, adapted, seed=5) < 1e-3
    assert [wanted.rank for wanted in starts] == [0, 8], "adapters need an engine that takes them"
    fourth.close()


@pytest.mark.slow
def test_an_engine_that_was_cut_off_is_not_used_again(tied: Path) -> None:
    loaded = load(tied, "frozen")
    engine = SyncedEngine(loaded, in_process(loaded), bound=0.01)

    def stop(_done: int, _tokens: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        engine.generate(PROMPTS, Sampling(12), progress=stop)
    assert vllm_engine._running is None
    assert agrees(engine, loaded, seed=1) < 1e-3, "a new one takes its place"
    engine.close()


@pytest.mark.slow
def test_more_prompts_than_are_read_at_once_are_all_answered(tied: Path) -> None:
    loaded = load(tied, "frozen")
    engine = SyncedEngine(loaded, VllmSampler(loaded, tokens=16384, free=8 << 30), bound=0.01)
    try:
        prompts = [[3 + (7 * number + at) % 190 for at in range(200 + number)] for number in range(200)]
        said = engine.generate(prompts, Sampling(4, seed=1))
        assert len(said) == 200 and all(1 <= len(one.ids) <= 4 for one in said)
    finally:
        engine.close()


@pytest.mark.slow
def test_a_cache_too_small_for_an_answer_is_refused(tied: Path) -> None:
    with pytest.raises(UsageError, match="raise --engine-memory"):
        in_process(load(tied, "frozen"), memory=1 << 12)


@pytest.mark.parametrize("tuning", ["lora", "full", pytest.param("frozen", marks=pytest.mark.slow)])
def test_a_server_follows_the_weights_too(engine_server: Any, tied: Path, tuning: str) -> None:
    loaded = load(tied, tuning)
    engine = SyncedEngine(loaded, VllmServerSampler(loaded, InferenceServer(engine_server.address, KEYS)), bound=0.01)
    try:
        for round_ in range(3 if tuning != "frozen" else 1):
            assert agrees(engine, loaded, seed=round_) < 1e-3
            ours = engine.generate(PROMPTS, Sampling(12, temperature=0))
            theirs = TransformersEngine(loaded).generate(PROMPTS, Sampling(12, temperature=0))
            assert [c.ids for c in ours] == [c.ids for c in theirs]
            if tuning != "frozen":
                move(loaded, round_)
    finally:
        engine.close()


@pytest.mark.slow
@pytest.mark.parametrize("tuning", ["lora", "full"])
def test_a_server_that_was_restarted_unseen_is_given_the_weights_again(
    engine_server: Any, tied: Path, tuning: str
) -> None:
    loaded = load(tied, tuning)
    engine = SyncedEngine(loaded, VllmServerSampler(loaded, InferenceServer(engine_server.address, KEYS)), bound=0.01)
    try:
        move(loaded, 1)
        before = engine.generate(PROMPTS, Sampling(12, temperature=0))
        engine_server.kill()
        engine_server.start()  # back before anything is asked
        after = engine.generate(PROMPTS, Sampling(12, temperature=0))
        assert [c.ids for c in after] == [c.ids for c in before]
        theirs = TransformersEngine(loaded).generate(PROMPTS, Sampling(12, temperature=0))
        assert [c.ids for c in after] == [c.ids for c in theirs]
        base = TransformersEngine(load(tied, "frozen")).generate(PROMPTS, Sampling(12, temperature=0))
        assert [c.ids for c in base] != [c.ids for c in theirs], "it would show"
    finally:
        engine.close()


@pytest.mark.slow
def test_an_error_names_what_the_server_lacks(
    teacher_server: Any, tied: Path, make_tiny: Callable[..., Path], tmp_path: Path
) -> None:
    from tests.vllm.conftest import SHAPE

    for tuning, lacks in (("lora", "--enable-lora"), ("full", "VLLM_SERVER_DEV_MODE=1")):
        loaded = load(tied, tuning)
        engine = SyncedEngine(
            loaded, VllmServerSampler(loaded, InferenceServer(teacher_server.address, KEYS)), bound=0.01
        )
        with pytest.raises(EngineError, match=lacks):
            engine.generate(PROMPTS, Sampling(4))
        engine.close()
    frozen = load(tied, "frozen")
    engine = SyncedEngine(frozen, VllmServerSampler(frozen, InferenceServer(teacher_server.address, KEYS)), bound=0.01)
    assert agrees(engine, frozen, seed=1) < 1e-3, "what it serves needs no handing over"
    engine.close()
    other = load(make_tiny("qwen3", tmp_path / "other", seed=5, **SHAPE), "frozen")
    engine = SyncedEngine(other, VllmServerSampler(other, InferenceServer(teacher_server.address, KEYS)), bound=0.1)
    with pytest.raises(EngineError, match=r"takes no weights \(VLLM_SERVER.*does not sample from the weights"):
        engine.generate(PROMPTS, Sampling(8))
    engine.close()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["qwen3_moe", "mixtral"])
@pytest.mark.parametrize("tuning", ["full", "lora"])
def test_a_mixture_of_experts_is_followed(
    make_tiny: Callable[..., Path], tmp_path: Path, kind: str, tuning: str
) -> None:
    """vLLM packs stacked experts at its start only, and takes no adapter of them: both are handled on transfer."""
    from tests.vllm.conftest import SHAPE

    loaded = load(make_tiny(kind, tmp_path / kind, **SHAPE), tuning)
    engine = SyncedEngine(loaded, in_process(loaded), bound=0.01)
    try:
        for round_ in range(2):
            assert agrees(engine, loaded, seed=round_) < 1e-3
            move(loaded, round_)
        if tuning == "lora":
            loaded.save(tmp_path / "adapter")
            frozen = load(tmp_path / "adapter", "frozen")
            other = SyncedEngine(frozen, in_process(frozen), bound=0.01)
            assert agrees(other, frozen, seed=3) < 1e-3
            other.close()
    finally:
        engine.close()
