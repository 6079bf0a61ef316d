"""Drift metrics: distances between two models' rollouts on fixed prompts, and the forward KL between two models.

Rollouts are compared by their prefix states (a prompt and the response up to a cut), represented in two ways: by
hashed words, and by the hidden states of one featurising model, the same for both sides. Every distance has a null:
the same distance between two sets of rollouts of one model, sampled with two seeds. Read a distance together with its
null and with scores, since two runs with equal drift can differ greatly in ability.

Features are matrices of N prefix states (M on the second side) by F features, as in ``first_NF`` and ``second_MF``.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import pdist
from sklearn.feature_extraction.text import HashingVectorizer

from evals.generation import generate
from evals.knowledge import LONGEST_WINDOW, text_windows
from evals.loglikelihood import LOGITS_AT_ONCE
from evals.statistics import score_of
from recovery.batching import Batch, Row, micro_batches
from recovery.errors import RecoveryError, UsageError
from recovery.losses.dense import divergence
from recovery.models.chat_template import ChatFormat
from recovery.models.loaded import Loaded
from recovery.rollouts.engine import Engine, Progress, Sampling
from recovery.teachers.teacher import check_same_tokens
from recovery.types import Prompt, Score

Floats = NDArray[np.float64]
Groups = NDArray[np.int64]

LEXICAL_FEATURES = 512
# Rows compared at a time, and the maximum number of rows for the median distance: both bound the memory.
ROWS_AT_ONCE = 1024
MEDIAN_ROWS = 2048
FIRST_POSITIONS = 16  # of a response, looked at together
CUTS = 4  # prefix states of a rollout


@dataclass(frozen=True)
class Rollout:
    """A sampled response: token ids of the prompt and of the response, end token included."""

    prompt_ids: tuple[int, ...]
    response_ids: tuple[int, ...]


@dataclass(frozen=True)
class State:
    """A prefix state: the prompt of ``rollout`` and the first ``cut`` tokens of its response."""

    rollout: Rollout
    cut: int

    @property
    def ids(self) -> list[int]:
        """All tokens of the state."""
        return [*self.rollout.prompt_ids, *self.rollout.response_ids[: self.cut]]


def rollouts(
    chat: ChatFormat,
    engine: Engine,
    prompts: Sequence[Prompt],
    *,
    max_new_tokens: int,
    seed: int,
    window: int | None = None,
    progress: Progress | None = None,
) -> list[Rollout]:
    """Sample a response to each prompt at temperature 1, in order; a prompt that is given twice gets two.

    A prompt that leaves no room in ``window`` is skipped. Use different seeds for two models that are compared: an
    engine may draw the same random numbers for both, which makes their rollouts more alike than independent ones.
    """
    prompt_ids = [chat.prompt_ids(prompt.messages) for prompt in prompts]
    completions = generate(engine, prompt_ids, Sampling(max_new_tokens, seed=seed), window=window, progress=progress)
    return [
        Rollout(tuple(ids), tuple(completion.ids))
        for ids, completion in zip(prompt_ids, completions, strict=True)
        if completion is not None
    ]


def prefix_states(sampled: Sequence[Rollout], *, seed: int = 0) -> list[State]:
    """Return up to :data:`CUTS` states per rollout: distinct cuts, uniform over 1 to the response length, sorted."""
    states = []
    for index, rollout in enumerate(sampled):
        length = len(rollout.response_ids)
        cut_positions = np.random.default_rng([seed, index]).choice(length, size=min(CUTS, length), replace=False)
        states += [State(rollout, int(cut) + 1) for cut in np.sort(cut_positions)]
    return states


def lexical_features(chat: ChatFormat, states: Sequence[State]) -> Floats:
    """Return counts of words and word pairs of each state's text, hashed to 512 features, of unit norm: [N, F].

    The hash is scikit-learn's (MurmurHash3 with signs: Weinberger et al., arXiv 0902.2206). Special tokens, case and
    punctuation are ignored; a state without a word is a row of zeros.
    """
    vectorizer = HashingVectorizer(
        n_features=LEXICAL_FEATURES, ngram_range=(1, 2), norm="l2", token_pattern=r"(?u)\b\w+\b", dtype=np.float64
    )
    texts = chat.tokenizer.batch_decode([state.ids for state in states], skip_special_tokens=True)
    return np.asarray(vectorizer.transform(texts).toarray(), dtype=np.float64)


def hidden_features(featuriser: Loaded, states: Sequence[State], *, token_budget: int = 8192) -> Floats:
    """Return the mean over all positions of each state's final hidden states: [N, F].

    The model is causal, so one forward pass over a rollout's longest state serves all its states.
    """
    by_rollout: dict[Rollout, list[int]] = {}
    for index, state in enumerate(states):
        by_rollout.setdefault(state.rollout, []).append(index)
    members = list(by_rollout.values())
    longest = [max((states[index].ids for index in indices), key=len) for indices in members]
    rows = [Row(ids, [False] * len(ids)) for ids in longest]
    means: list[Floats] = [np.empty(0)] * len(states)
    with featuriser.inference():
        for batch, order in _batches(featuriser, rows, token_budget):
            hidden_BTD = featuriser.hidden(batch)
            for hidden_TD, row in zip(hidden_BTD, order, strict=True):
                for index in members[row]:
                    mean_D = hidden_TD[: len(states[index].ids)].float().mean(0)
                    means[index] = mean_D.cpu().double().numpy()
    return np.stack(means)


def median_distance(first_NF: Floats, second_MF: Floats) -> float:
    """Return the median distance between two different rows of the pooled sample (the median heuristic).

    Source: Gretton et al., "A Kernel Two-Sample Test", JMLR 13 (2012), section 8. Of more than 2,048 rows, 2,048
    evenly spaced ones are used. If the median is 0, only positive distances count; without any, the result is 1.
    """
    pooled = np.concatenate([first_NF, second_MF])
    if len(pooled) > MEDIAN_ROWS:
        pooled = pooled[np.linspace(0, len(pooled) - 1, MEDIAN_ROWS).round().astype(int)]
    distances = pdist(pooled)
    median = float(np.median(distances)) if len(distances) else 0.0
    if median > 0.0:
        return median
    positive = distances[distances > 0.0]
    return float(np.median(positive)) if len(positive) else 1.0


def mmd2(
    first_NF: Floats, second_MF: Floats, groups: tuple[Groups, Groups] | None = None, *, bandwidth: float | None = None
) -> float:
    """Return the unbiased estimate of the squared maximum mean discrepancy; it can be negative if the sides agree.

    mean_{i≠j} k(x_i, x_j) + mean_{i≠j} k(y_i, y_j) − 2 mean_{i,j} k(x_i, y_j), with k(x, y) =
    exp(−‖x − y‖² / (2 bandwidth²)); the default bandwidth is :func:`median_distance`. Source: Gretton et al., JMLR 13
    (2012), lemma 6.

    States of one prompt are not independent, which biases the plain estimate: upwards if the states of one rollout are
    alike, downwards if all states of a prompt on both sides are. With ``groups`` (the prompt of each row, [N] and [M])
    pairs within a prompt are excluded from all three means, which keeps it unbiased for prompts drawn at random;
    without, a row's pair with itself alone is.

    Raises RecoveryError if no pair is left.
    """
    _check_widths(first_NF, second_MF)
    groups_N, groups_M = groups or (np.arange(len(first_NF)), np.arange(len(first_NF), len(first_NF) + len(second_MF)))
    width = median_distance(first_NF, second_MF) if bandwidth is None else bandwidth
    within_first = _mean_kernel(first_NF, first_NF, groups_N, groups_N, width)
    within_second = _mean_kernel(second_MF, second_MF, groups_M, groups_M, width)
    return within_first + within_second - 2.0 * _mean_kernel(first_NF, second_MF, groups_N, groups_M, width)


def centroid_distance(first_NF: Floats, second_MF: Floats) -> float:
    """Return the Euclidean distance between the means of the two sides."""
    _check_widths(first_NF, second_MF)
    return float(np.linalg.norm(first_NF.mean(0) - second_MF.mean(0)))


def directions(width: int, count: int = 64, seed: int = 0) -> Floats:
    """Return unit vectors drawn uniformly from the sphere, [count, width]."""
    normal = np.random.default_rng(seed).standard_normal((count, width))
    return normal / np.linalg.norm(normal, axis=1, keepdims=True)


def sliced_wasserstein(first_NF: Floats, second_MF: Floats, *, projections: int = 64, seed: int = 0) -> float:
    """Return the sliced Wasserstein-1 distance: the mean over random directions of W1 of the projected samples.

    In one dimension W1 is ∫_0^1 |F⁻¹(u) − G⁻¹(u)| du, computed exactly for samples of any sizes. Source: Bonneel
    et al., "Sliced and Radon Wasserstein Barycenters of Measures", J. Math. Imaging Vis. 51 (2015).
    """
    _check_widths(first_NF, second_MF)
    n, m = len(first_NF), len(second_MF)
    directions_PF = directions(first_NF.shape[1], projections, seed)
    first_NP = np.sort(first_NF @ directions_PF.T, axis=0)
    second_MP = np.sort(second_MF @ directions_PF.T, axis=0)
    # Both quantile functions are constant between these levels, which are integers in units of 1/(n m) to be exact.
    levels = np.union1d(np.arange(n + 1) * m, np.arange(m + 1) * n)
    starts, widths = levels[:-1], np.diff(levels) / (n * m)
    gaps_LP = np.abs(first_NP[starts // m] - second_MP[starts // n])
    return float((widths @ gaps_LP).mean())


def token_jaccard(first: Sequence[Rollout], second: Sequence[Rollout]) -> float:
    """Return the Jaccard similarity |A ∩ B| / |A ∪ B| of the sets of response tokens per prompt; 1 is identical.

    If a prompt has several responses it is the mean over all pairs of a first and a second one; prompts have equal
    weight. Raises RecoveryError if the two sides have different prompts.
    """
    first_responses, second_responses = _by_prompt(first), _by_prompt(second)
    if first_responses.keys() != second_responses.keys():
        differ = len(first_responses.keys() ^ second_responses.keys())
        raise RecoveryError(f"the two sides have different prompts ({differ} differ): sample both on the same set")
    values = []
    for prompt, responses in first_responses.items():
        pairs = itertools.product(responses, second_responses[prompt])
        values.append(np.mean([_jaccard(set(a.response_ids), set(b.response_ids)) for a, b in pairs]))
    return float(np.mean(values))


def drift(
    first: Sequence[Rollout],
    second: Sequence[Rollout],
    featuriser: Loaded,
    *,
    seed: int = 0,
    token_budget: int = 8192,
) -> dict[str, float]:
    """Return all distances of this module between two sets of rollouts on the same prompts.

    The keys are ``lexical_`` and ``hidden_``, each with ``mmd2`` (without pairs within a prompt), ``centroid`` and
    ``sliced_wasserstein``, and ``token_jaccard``, which falls as models drift. ``featuriser``, normally the base model,
    computes the hidden states of both sides and decodes their tokens. ``seed`` fixes the cuts and the projections.

    Raises RecoveryError if the sides have different prompts, or fewer than two.
    """
    similarity = token_jaccard(first, second)
    number = {prompt: index for index, prompt in enumerate(_by_prompt(first))}
    if len(number) < 2:
        raise RecoveryError(f"drift needs at least two different prompts, not {len(number)}: give more prompts")
    sides = prefix_states(first, seed=seed), prefix_states(second, seed=seed)
    groups_N, groups_M = (np.array([number[state.rollout.prompt_ids] for state in states]) for states in sides)
    result: dict[str, float] = {}
    for name, (first_NF, second_MF) in {
        "lexical": [lexical_features(featuriser.chat, states) for states in sides],
        "hidden": [hidden_features(featuriser, states, token_budget=token_budget) for states in sides],
    }.items():
        result[f"{name}_mmd2"] = mmd2(first_NF, second_MF, (groups_N, groups_M))
        result[f"{name}_centroid"] = centroid_distance(first_NF, second_MF)
        result[f"{name}_sliced_wasserstein"] = sliced_wasserstein(first_NF, second_MF, seed=seed)
    return result | {"token_jaccard": similarity}


@dataclass(frozen=True)
class TokenKL:
    """A divergence at each of N tokens, in nats; ``clusters_N`` and ``positions_N`` are each token's cluster and its
    position in its row, from 0.
    """

    values_N: Floats
    clusters_N: Sequence[str]
    positions_N: Groups

    @property
    def score(self) -> Score:
        """The mean over tokens, its standard error by cluster."""
        return score_of(self.values_N, self.clusters_N)

    def by_position(self) -> list[tuple[int, int, Score]]:
        """Return (first, last, mean over the tokens at these positions, counted from 1): to 16, 32, 64, and so on."""
        rows, first, last = [], 1, FIRST_POSITIONS
        while first <= self.positions_N.max(initial=-1) + 1:
            at = np.flatnonzero((self.positions_N >= first - 1) & (self.positions_N < last))
            rows.append((first, last, score_of(self.values_N[at], [self.clusters_N[i] for i in at.tolist()])))
            first, last = last + 1, 2 * last
        return rows


def forward_kl(base: Loaded, other: Loaded, sampled: Sequence[Rollout], *, token_budget: int = 8192) -> Score:
    """Return the mean of :func:`token_kl`; ``n`` counts tokens, the standard error is clustered by prompt."""
    return token_kl(base, other, sampled, token_budget=token_budget).score


def token_kl(base: Loaded, other: Loaded, sampled: Sequence[Rollout], *, token_budget: int = 8192) -> TokenKL:
    """Return KL(base ‖ other) in nats at each response token, over the whole vocabulary, on rollouts sampled from base.

    Σ_v p_base(v) (log p_base(v) − log p_other(v)) at every response token, both models conditioned on base's tokens, at
    temperature 1: the forward KL(π_0 ‖ π) by which RL's Razor (arXiv 2509.04259) predicts forgetting, there on the
    prompts of the new task. Positions are those in the response, clusters the prompts.

    Both output heads are converted to float32: rounding the logits to bfloat16 alone would give a KL of about 1e-4.
    Vocabularies padded to different sizes are compared over their common entries.
    """
    number = {prompt: str(index) for index, prompt in enumerate(_by_prompt(sampled))}
    rows = [
        Row([*r.prompt_ids, *r.response_ids], [False] * len(r.prompt_ids) + [True] * len(r.response_ids))
        for r in sampled
    ]
    return _forward_kl(base, other, rows, [number[r.prompt_ids] for r in sampled], token_budget)


def text_kl(base: Loaded, other: Loaded, texts: Sequence[str], *, token_budget: int = 8192) -> Score:
    """Return KL(base ‖ other) in nats per token, over the whole vocabulary, at every token of ``texts``.

    As :func:`forward_kl`, on given texts; documents are split into windows as for
    :func:`evals.knowledge.bits_per_byte`. The standard error is clustered by text.
    """
    size = min(LONGEST_WINDOW, base.max_length, other.max_length)
    rows: list[Row] = []
    groups: list[str] = []
    for index, text in enumerate(texts):
        for context, continuation in text_windows(base, text, size):
            rows.append(Row([*context, *continuation], [False] * len(context) + [True] * len(continuation)))
            groups.append(str(index))
    if not rows:
        raise RecoveryError("there is no text to compare the models on: give at least one that is not empty")
    return _forward_kl(base, other, rows, groups, token_budget).score


def _forward_kl(base: Loaded, other: Loaded, rows: Sequence[Row], groups: Sequence[str], token_budget: int) -> TokenKL:
    """Return KL(base ‖ other) at the marked tokens of ``rows``, clustered by ``groups`` (one entry per row)."""
    if base.device != other.device:
        raise UsageError(f"the models are on {base.device} and {other.device}: load both on one device")
    check_same_tokens(other.tokenizer, base.tokenizer, student_name=other.path, teacher_name=base.path)
    vocabulary = min(base.head.vocabulary, other.head.vocabulary)
    heads = base.head.first(vocabulary).in_float32(), other.head.first(vocabulary).in_float32()
    step = max(1, LOGITS_AT_ONCE // vocabulary)
    values: list[float] = []
    row_indices: list[int] = []
    with base.inference(), other.inference():
        for batch, order in _batches(base, rows, token_budget):
            base_ND, other_ND = (batch.gather(model.hidden(batch)).float() for model in (base, other))
            for start in range(0, batch.tokens, step):
                base_NV = heads[0].logits(base_ND[start : start + step])
                other_NV = heads[1].logits(other_ND[start : start + step])
                values += divergence("forward_kl", other_NV, base_NV)[0].tolist()
            row_indices += [order[row] for row in batch.rows_N.tolist()]
    return TokenKL(np.array(values), [groups[row] for row in row_indices], _positions(row_indices))


def _positions(row_indices: Sequence[int]) -> Groups:
    """Return each token's position in its row, given the row of each; the tokens of a row are in order."""
    counts: Counter[int] = Counter()
    positions = np.empty(len(row_indices), dtype=np.int64)
    for at, row in enumerate(row_indices):
        positions[at] = counts[row]
        counts[row] += 1
    return positions


def _batches(loaded: Loaded, rows: Sequence[Row], token_budget: int) -> Iterator[tuple[Batch, list[int]]]:
    """Yield micro-batches of ``rows``, each with the indices of its rows."""
    # Longest first, which is the order of micro_batches too, so that the batches keep this order.
    order = sorted(range(len(rows)), key=lambda i: len(rows[i].ids), reverse=True)
    done = 0
    for batch in micro_batches([rows[i] for i in order], token_budget, loaded.chat.pad_id, loaded.device):
        size = batch.ids_BT.shape[0]
        yield batch, order[done : done + size]
        done += size


def _by_prompt(sampled: Sequence[Rollout]) -> dict[tuple[int, ...], list[Rollout]]:
    prompts: dict[tuple[int, ...], list[Rollout]] = {}
    for rollout in sampled:
        prompts.setdefault(rollout.prompt_ids, []).append(rollout)
    if not prompts:
        raise RecoveryError("there are no rollouts to compare: give prompts that fit in the model's window")
    return prompts


def _jaccard(first: set[int], second: set[int]) -> float:
    return len(first & second) / len(first | second) if first or second else 1.0


def _mean_kernel(first_NF: Floats, second_MF: Floats, groups_N: Groups, groups_M: Groups, bandwidth: float) -> float:
    """Return the mean of the RBF kernel over pairs of rows from different groups."""
    total, pairs = 0.0, 0
    squares_M = np.einsum("mf,mf->m", second_MF, second_MF)
    for start in range(0, len(first_NF), ROWS_AT_ONCE):
        block_NF = first_NF[start : start + ROWS_AT_ONCE]
        squares_N = np.einsum("nf,nf->n", block_NF, block_NF)
        distance_NM = np.maximum(squares_N[:, None] + squares_M[None, :] - 2.0 * block_NF @ second_MF.T, 0.0)
        differs_NM = groups_N[start : start + ROWS_AT_ONCE, None] != groups_M[None, :]
        total += float((np.exp(distance_NM / (-2.0 * bandwidth**2)) * differs_NM).sum())
        pairs += int(differs_NM.sum())
    if not pairs:
        raise RecoveryError("a distance needs states of at least two different prompts: give more prompts")
    return total / pairs


def _check_widths(first_NF: Floats, second_MF: Floats) -> None:
    if not len(first_NF) or not len(second_MF) or first_NF.shape[1:] != second_MF.shape[1:]:
        raise RecoveryError(
            f"features of shapes {first_NF.shape} and {second_MF.shape} cannot be compared: "
            "give at least one row on each side, of equal width"
        )
