"""Drift: distances with known values, prefix states of sampled rollouts, and the KL against a direct sum."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.spatial.distance import pdist

from evals import drift as drift_module
from evals.drift import (
    Rollout,
    State,
    centroid_distance,
    directions,
    drift,
    forward_kl,
    hidden_features,
    lexical_features,
    median_distance,
    mmd2,
    prefix_states,
    rollouts,
    sliced_wasserstein,
    text_kl,
    token_jaccard,
    token_kl,
)
from evals.knowledge import text_windows
from evals.statistics import score_of
from recovery.errors import RecoveryError, UsageError
from recovery.models.loaded import Loaded
from recovery.models.loading import load_model
from recovery.rollouts.engine import Sampling
from recovery.rollouts.transformers_engine import TransformersEngine
from recovery.types import Message, Prompt

REQUESTS = ["Name a colour.", "Write two words about a river.", "Where is the ferry?", "Count to three, please."]


@pytest.fixture
def base(loaded: Loaded) -> Loaded:
    return loaded


@pytest.fixture(scope="module")
def moved(make_tiny: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    """A model of the same family and tokenizer with other weights."""
    folder = make_tiny("qwen3", tmp_path_factory.mktemp("models") / "moved", seed=1)
    return load_model(folder, precision="float32", device="cpu")


@pytest.fixture(scope="module")
def prompts() -> list[Prompt]:
    return [Prompt(f"p{i}", (Message(role="user", content=text),)) for i, text in enumerate(REQUESTS)]


def roll(loaded: Loaded, prompts: list[Prompt], *, seed: int = 0, samples: int = 1) -> list[Rollout]:
    repeated = [prompt for prompt in prompts for _ in range(samples)]
    return rollouts(loaded.chat, TransformersEngine(loaded), repeated, max_new_tokens=12, seed=seed)


def sampled(prompt: int, *response: int) -> Rollout:
    return Rollout((prompt,), response)


def gaussians(n: int, m: int, shift: float, width: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Two samples of the unit Gaussian, the second moved along the first axis."""
    draw = np.random.default_rng(seed)
    second_MF = draw.standard_normal((m, width))
    second_MF[:, 0] += shift
    return draw.standard_normal((n, width)), second_MF


# Rollouts and their states


def test_rollouts_are_sampled_at_temperature_one(base: Loaded, prompts: list[Prompt]) -> None:
    got = roll(base, prompts, samples=2, seed=5)
    prompt_ids = [base.chat.prompt_ids(prompt.messages) for prompt in prompts for _ in range(2)]
    direct = TransformersEngine(base).generate(prompt_ids, Sampling(12, temperature=1.0, seed=5))
    assert [list(rollout.prompt_ids) for rollout in got] == prompt_ids
    assert [list(rollout.response_ids) for rollout in got] == [completion.ids for completion in direct]
    assert got == roll(base, prompts, samples=2, seed=5)
    assert got != roll(base, prompts, samples=2, seed=6)


def test_a_prompt_without_room_is_left_out(base: Loaded, prompts: list[Prompt]) -> None:
    lengths = [len(base.chat.prompt_ids(prompt.messages)) for prompt in prompts]
    got = rollouts(base.chat, TransformersEngine(base), prompts, max_new_tokens=4, seed=0, window=max(lengths))
    assert len(got) == sum(length < max(lengths) for length in lengths)
    assert all(len(rollout.prompt_ids) + len(rollout.response_ids) <= max(lengths) for rollout in got)


def test_cuts_are_different_and_uniform_over_the_response() -> None:
    many = [sampled(i, *range(10)) for i in range(3000)]
    states = prefix_states(many, seed=1)
    assert states == prefix_states(many, seed=1)
    assert states != prefix_states(many, seed=2)
    cuts = np.array([state.cut for state in states]).reshape(3000, 4)
    assert (np.diff(cuts, axis=1) > 0).all()
    counts = np.bincount(cuts.ravel(), minlength=11)
    assert counts[0] == 0
    assert counts[1:] == pytest.approx(1200, abs=4 * math.sqrt(1200 * 0.6))


def test_short_responses_have_fewer_states() -> None:
    states = prefix_states([sampled(7, 1, 2), sampled(8), sampled(9, 3)])
    assert [state.ids for state in states] == [[7, 1], [7, 1, 2], [9, 3]]


# Features


def test_lexical_features_are_hashed_words_and_pairs(base: Loaded) -> None:
    def features(*texts: str) -> np.ndarray:
        states = [State(Rollout(tuple(base.chat.control.encode(text)), ()), 0) for text in texts]
        return lexical_features(base.chat, states)

    rows = features("the small boat", "The small, boat!", "<|im_start|>the small<|im_end|> boat", "green mast", "?!")
    assert rows.shape == (5, 512)
    assert np.linalg.norm(rows, axis=1) == pytest.approx([1, 1, 1, 1, 0])
    assert np.array_equal(rows[0], rows[1])
    assert np.array_equal(rows[0], rows[2])
    # "the boat" shares two words of three features with a text of five: 2 / sqrt(3 * 5).
    assert float(features("the boat")[0] @ rows[0]) == pytest.approx(2 / math.sqrt(15))


@pytest.mark.parametrize("token_budget", [1, 100, 8192])
def test_hidden_features_are_the_models_own_means(
    tiny_contrasting: Path, prompts: list[Prompt], token_budget: int
) -> None:
    loaded = load_model(tiny_contrasting, precision="float32", device="cpu")
    states = prefix_states(roll(loaded, prompts))
    features = hidden_features(loaded, states[::-1], token_budget=token_budget)[::-1]
    for state, row in zip(states, features, strict=True):
        with torch.no_grad():
            hidden_TD = loaded.decoder(input_ids=torch.tensor([state.ids])).last_hidden_state[0]
        assert row == pytest.approx(hidden_TD.mean(0).numpy(), abs=1e-5)


# Distances with known values


def test_median_distance_is_that_of_the_pooled_pairs() -> None:
    first, second = gaussians(30, 50, 1.0, 4)
    assert median_distance(first, second) == pytest.approx(np.median(pdist(np.concatenate([first, second]))))
    assert median_distance(np.zeros((9, 2)), np.array([[3.0, 4.0]])) == 5.0
    assert median_distance(np.zeros((4, 2)), np.zeros((3, 2))) == 1.0


def test_median_distance_of_many_rows_is_close_to_that_of_all() -> None:
    first, second = gaussians(2000, 1000, 1.0, 3)
    assert median_distance(first, second) == pytest.approx(np.median(pdist(np.concatenate([first, second]))), rel=0.02)


@pytest.mark.parametrize("bandwidth", [None, 1.7])
def test_mmd_is_the_plain_double_sum_without_pairs_of_a_state_with_itself(bandwidth: float | None) -> None:
    x, y = gaussians(7, 5, 0.5, 3)
    width = bandwidth or median_distance(x, y)

    def kernel(a: np.ndarray, b: np.ndarray) -> float:
        return math.exp(-float(((a - b) ** 2).sum()) / (2 * width**2))

    wanted = (
        np.mean([kernel(x[i], x[j]) for i in range(7) for j in range(7) if i != j])
        + np.mean([kernel(y[i], y[j]) for i in range(5) for j in range(5) if i != j])
        - 2 * np.mean([kernel(a, b) for a in x for b in y])
    )
    assert mmd2(x, y, bandwidth=bandwidth) == pytest.approx(wanted, abs=1e-12)


@pytest.mark.parametrize(("of_prompts", "of_rollouts", "bias"), [(1.0, 0.1, -1), (0.3, 1.0, 1)])
def test_pairs_within_a_prompt_are_what_would_bias_the_mmd(of_prompts: float, of_rollouts: float, bias: int) -> None:
    """The same 12 prompts on both sides, four states per rollout: the null is 0 only without pairs within a prompt."""
    plain, grouped = [], []
    owners = np.repeat(np.arange(12), 4)
    for seed in range(300):
        draw = np.random.default_rng(seed)
        prompts_PF = of_prompts * draw.standard_normal((12, 2))
        sides = []
        for _ in range(2):
            rollouts_PF = prompts_PF + of_rollouts * draw.standard_normal((12, 2))
            sides.append(rollouts_PF[owners] + 0.1 * draw.standard_normal((48, 2)))
        plain.append(mmd2(*sides, bandwidth=1.0))
        grouped.append(mmd2(*sides, (owners, owners), bandwidth=1.0))
    assert abs(score_of(grouped).value) < 3 * score_of(grouped).stderr
    assert bias * score_of(plain).value > 10 * score_of(plain).stderr


def test_mmd_in_blocks_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = gaussians(50, 40, 1.0, 3)
    owners = np.arange(50) // 3, np.arange(40) // 3
    whole = mmd2(first, second, owners)
    monkeypatch.setattr(drift_module, "ROWS_AT_ONCE", 7)
    assert mmd2(first, second, owners) == pytest.approx(whole, abs=1e-12)


def test_mmd_of_one_prompt_is_refused() -> None:
    first, second = gaussians(4, 4, 1.0, 3)
    with pytest.raises(RecoveryError, match="two different prompts"):
        mmd2(first, second, (np.zeros(4, dtype=int), np.zeros(4, dtype=int)))


def test_centroid_distance_by_hand() -> None:
    assert centroid_distance(np.array([[0.0, 0.0], [2.0, 0.0]]), np.array([[4.0, 4.0]])) == pytest.approx(5.0)


def test_sliced_wasserstein_of_a_shift() -> None:
    first = np.random.default_rng(0).standard_normal((40, 3))
    moved = first + np.array([2.5, 0.0, 0.0])
    wanted = 2.5 * np.abs(directions(3, 64, seed=4)[:, 0]).mean()
    assert sliced_wasserstein(first, moved, seed=4) == pytest.approx(wanted)
    # A coordinate of a uniform direction in three dimensions is uniform on [-1, 1]: its mean absolute value is 1/2.
    assert sliced_wasserstein(first, moved, projections=20_000) == pytest.approx(1.25, rel=0.02)
    assert sliced_wasserstein(first, first[::-1]) == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("sizes", [(10, 10), (7, 5), (6, 3), (1, 9)])
def test_sliced_wasserstein_of_any_sizes_is_exact(sizes: tuple[int, int]) -> None:
    first, second = gaussians(*sizes, 1.0, 4)
    wanted = [stats.wasserstein_distance(first @ unit, second @ unit) for unit in directions(4, 64, seed=0)]
    assert sliced_wasserstein(first, second) == pytest.approx(np.mean(wanted))


def test_directions_are_unit_and_seeded() -> None:
    drawn = directions(5, 16, seed=2)
    assert np.linalg.norm(drawn, axis=1) == pytest.approx(np.ones(16))
    assert np.array_equal(drawn, directions(5, 16, seed=2))
    assert not np.array_equal(drawn, directions(5, 16, seed=3))


def test_features_of_different_widths_are_refused() -> None:
    for measure in (mmd2, centroid_distance, sliced_wasserstein):
        with pytest.raises(RecoveryError, match=r"shapes \(2, 3\) and \(2, 4\)"):
            measure(np.zeros((2, 3)), np.zeros((2, 4)))
        with pytest.raises(RecoveryError, match="at least one row"):
            measure(np.zeros((0, 3)), np.zeros((2, 3)))


def test_jaccard_is_over_all_pairs_of_a_prompts_samples() -> None:
    first = [sampled(1, 1, 2, 2), sampled(1, 3), sampled(2, 9)]
    second = [sampled(2, 9), sampled(1, 1), sampled(1, 3, 2)]
    # Tokens form a set, so a repeated one counts once.
    # {1,2}·{1} 1/2, {1,2}·{2,3} 1/3, {3}·{1} 0, {3}·{2,3} 1/2; the other prompt 1.
    assert token_jaccard(first, second) == pytest.approx(((1 / 2 + 1 / 3 + 0 + 1 / 2) / 4 + 1) / 2)


def test_other_prompts_are_refused() -> None:
    with pytest.raises(RecoveryError, match=r"different prompts \(2 differ\)"):
        token_jaccard([sampled(1, 1), sampled(2, 1)], [sampled(1, 1), sampled(3, 1)])
    with pytest.raises(RecoveryError, match="no rollouts"):
        token_jaccard([], [])


# The complete metric


KEYS = {f"{side}_{name}" for side in ("lexical", "hidden") for name in ("mmd2", "centroid", "sliced_wasserstein")}


def test_drift_of_rollouts_from_themselves_is_none(base: Loaded, prompts: list[Prompt]) -> None:
    some = roll(base, prompts)
    found = drift(some, some, base)
    assert found.keys() == KEYS | {"token_jaccard"}
    assert found.pop("token_jaccard") == 1.0
    assert list(found.values()) == pytest.approx([0.0] * 6, abs=1e-9)


def test_drift_is_made_of_the_distances(base: Loaded, moved: Loaded, prompts: list[Prompt]) -> None:
    first, second = roll(base, prompts, samples=2), roll(moved, prompts, samples=3, seed=1)
    found = drift(first, second, base, seed=3)
    sides = prefix_states(first, seed=3), prefix_states(second, seed=3)
    owners = [np.array([hash(state.rollout.prompt_ids) for state in states]) for states in sides]
    hidden = [hidden_features(base, states) for states in sides]
    lexical = [lexical_features(base.chat, states) for states in sides]
    assert found["token_jaccard"] == token_jaccard(first, second)
    for name, (one, two) in {"hidden": hidden, "lexical": lexical}.items():
        assert found[f"{name}_mmd2"] == mmd2(one, two, (owners[0], owners[1]))
        assert found[f"{name}_centroid"] == centroid_distance(one, two)
        assert found[f"{name}_sliced_wasserstein"] == sliced_wasserstein(one, two, seed=3)
    assert found == drift(first, second, base, seed=3)
    assert found != drift(first, second, base, seed=4)


def test_what_cannot_be_measured_is_refused(base: Loaded, prompts: list[Prompt]) -> None:
    one = roll(base, prompts[:1])
    with pytest.raises(RecoveryError, match="prompts, not 1"):
        drift(one, one, base)


# Forward KL


def naive_kl(base: Loaded, other: Loaded, rollout: Rollout) -> list[float]:
    """Return Σ p (log p − log q) at every response token, computed in float64 throughout."""
    ids = torch.tensor([[*rollout.prompt_ids, *rollout.response_ids]])
    shared = min(base.head.vocabulary, other.head.vocabulary)
    start = len(rollout.prompt_ids) - 1
    sides = []
    for loaded in (base, other):
        with torch.no_grad():
            logits = copy.deepcopy(loaded.model).double()(ids).logits[0, start:-1, :shared]
        assert logits.dtype == torch.float64
        sides.append(logits.log_softmax(-1))
    return (sides[0].exp() * (sides[0] - sides[1])).sum(-1).tolist()


@pytest.mark.parametrize("kind", ["qwen3", "llama", "gemma2", "gemma3"])
def test_kl_is_the_plain_double_sum(
    kind: str, request: pytest.FixtureRequest, make_tiny: Callable[..., Path], tmp_path: Path, prompts: list[Prompt]
) -> None:
    base = load_model(request.getfixturevalue(f"tiny_{kind}"), precision="float32", device="cpu")
    other = load_model(make_tiny(kind, tmp_path / kind, seed=1), precision="float32", device="cpu")
    some = roll(base, prompts, samples=2)
    values = [naive_kl(base, other, rollout) for rollout in some]
    groups = [str(i // 2) for i, row in enumerate(values) for _ in row]
    wanted = score_of([value for row in values for value in row], groups)
    assert wanted.value > 1e-3
    for token_budget in (1, 8192):
        score = forward_kl(base, other, some, token_budget=token_budget)
        assert score.value == pytest.approx(wanted.value, rel=1e-4)
        assert score.stderr == pytest.approx(wanted.stderr, rel=1e-3)
        assert score.n == wanted.n
    assert forward_kl(other, base, some).value != pytest.approx(wanted.value, rel=1e-4)
    assert (forward_kl(base, base, some).value, forward_kl(base, base, some).stderr) == (0.0, 0.0)


def test_kl_by_position_is_the_mean_of_each_span(
    base: Loaded, moved: Loaded, prompts: list[Prompt], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drift_module, "FIRST_POSITIONS", 2)
    some = [replace(r, response_ids=r.response_ids[: 5 + n]) for n, r in enumerate(roll(base, prompts, samples=2))]
    rows = [naive_kl(base, moved, rollout) for rollout in some]
    longest = max(map(len, rows))
    assert longest > 4 and len({len(row) for row in rows}) > 1
    for token_budget in (1, 8192):  # the batches are in another order than the rollouts
        found = token_kl(base, moved, some, token_budget=token_budget).by_position()
        assert [span[:2] for span in found][:3] == [(1, 2), (3, 4), (5, 8)] and found[-1][0] <= longest <= found[-1][1]
        for first, last, score in found:
            there = [value for row in rows for value in row[first - 1 : last]]
            assert (score.value, score.n) == (pytest.approx(np.mean(there), rel=1e-3), len(there))


def test_kl_in_chunks_over_the_shared_vocabulary(
    base: Loaded, make_tiny: Callable[..., Path], tmp_path: Path, prompts: list[Prompt], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other model's vocabulary is padded to a larger size than the base's."""
    folder = make_tiny("qwen3", tmp_path / "padded", seed=2, vocab_size=base.head.vocabulary + 64)
    padded = load_model(folder, precision="float32", device="cpu")
    some = roll(base, prompts)
    wanted = float(np.mean([value for rollout in some for value in naive_kl(base, padded, rollout)]))
    assert forward_kl(base, padded, some).value == pytest.approx(wanted, rel=1e-4)
    monkeypatch.setattr(drift_module, "LOGITS_AT_ONCE", 3 * base.head.vocabulary)
    assert forward_kl(base, padded, some).value == pytest.approx(wanted, rel=1e-4)


def test_kl_in_bfloat16_is_close(base: Loaded, tiny_model: Path, moved: Loaded, prompts: list[Prompt]) -> None:
    some = roll(base, prompts)
    lower = [load_model(path, precision="bfloat16", device="cpu") for path in (tiny_model, moved.path)]
    wanted = forward_kl(base, moved, some).value
    assert forward_kl(lower[0], lower[1], some).value == pytest.approx(wanted, rel=0.05)
    assert forward_kl(lower[0], lower[0], some).value == 0.0


def test_kl_of_other_tokenizers_is_refused(base: Loaded, tiny_llama: Path, prompts: list[Prompt]) -> None:
    with pytest.raises(UsageError, match="tokenizers differ"):
        forward_kl(base, load_model(tiny_llama, precision="float32", device="cpu"), roll(base, prompts))
    with pytest.raises(RecoveryError, match="no rollouts"):
        forward_kl(base, base, [])


def test_kl_on_texts_counts_every_token_once(tiny_llama: Path, make_tiny: Callable[..., Path], tmp_path: Path) -> None:
    base = load_model(tiny_llama, precision="float32", device="cpu")
    other = load_model(make_tiny("llama", tmp_path / "moved", seed=1), precision="float32", device="cpu")
    texts = ["The ferry leaves at seven.", "The small boat is green, and its mast is white. " * 3]
    start = [base.tokenizer.bos_token_id]
    values, groups = [], []
    for index, text in enumerate(texts):
        row = naive_kl(base, other, Rollout(tuple(start), tuple(base.chat.encode(text))))
        values += row
        groups += [str(index)] * len(row)
    wanted, found = score_of(values, groups), text_kl(base, other, texts)
    assert found.n == wanted.n == sum(len(base.chat.encode(text)) for text in texts)
    assert found.value == pytest.approx(wanted.value, rel=1e-4)
    assert found.stderr == pytest.approx(wanted.stderr, rel=1e-3)
    with pytest.raises(RecoveryError, match="no text"):
        text_kl(base, other, [""])


def test_kl_on_a_long_text_is_read_in_windows(base: Loaded, moved: Loaded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drift_module, "LONGEST_WINDOW", 16)
    text = "The small boat is green, and its mast is white. " * 4
    tokens = base.chat.encode(text)
    assert len(tokens) > 40
    values = [
        value
        for context, continuation in text_windows(base, text, 16)
        for value in naive_kl(base, moved, Rollout(tuple(context), tuple(continuation)))
    ]
    found = text_kl(base, moved, [text])
    assert found.n == len(values) == len(tokens)
    assert found.value == pytest.approx(float(np.mean(values)), rel=1e-4)
