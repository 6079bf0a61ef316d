"""K: how much likelier the right answer to a question became, beyond effects of the question and the answer alone.

Domain-conditional pointwise mutual information (arXiv 2104.08315) with distractors of the same kind
(:mod:`evals.answer_matching`). S_ij = log2 p(a_j, end of turn | q_i). The cells of candidates that are wrong for their
question are fitted by f(q) + g(a), by least squares over all questions of the kind, and

    D_i = S_ii − f(q_i) − g(a_i)
        = S_ii − mean_{j≠i} S_ij − mean_{k≠i} S_ki + mean_{j≠k; j,k≠i} S_jk    where no other cell is right,
    K   = mean_i (D_i after − D_i before), in bits.

D_i is 0 for any S = f(question) + g(answer): format, length and frequency of answers do not move it. In bits it grows
with the sharpness of a model, so the test and the standardised K divide each checkpoint's cells by the standard
deviation of its residuals at wrong answers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from evals.answer_matching import FEWEST_ANSWERS
from evals.contrasts import Contrast, ratio_contrast
from evals.statistics import SEED, Floats, interval, quantile, resampled_means

SUITE = "domain_knowledge_likelihood"
"""Suite of the stored cells; its score is the share of questions with the right answer first (centred top-1)."""
BITS, KIND, RIGHT, CANDIDATES = CELLS = "bits", "kind", "right", "candidates"
PERMUTATIONS = 9999
FEWEST_FACTS = 20
"""Minimum number of questions: a test of K on fewer has almost no power."""
_RANK = 1e-10  # eigenvalues below this share of the largest are 0: NumPy's 1e-15 kept a rounded one
_TINY = 1e-6  # differences of bits below this are rounding


@dataclass(frozen=True)
class Block:
    """The cells of one kind: ``bits`` [questions n, candidates m], ``right`` [n] the own answers' columns, ``wrong``
    [n, m] the cells that are fitted, ``keys`` and ``groups`` [n] the questions and their pages.
    """

    kind: str
    keys: tuple[str, ...]
    groups: tuple[str, ...]
    candidates: tuple[str, ...]
    bits: Floats
    right: NDArray[np.int64]
    wrong: NDArray[np.bool_]

    @cached_property
    def residuals(self) -> Floats:
        """S − f − g [n, m] in bits; D_i at the own answers."""
        answers = self._inverse @ (self._total.sum(0) - self.wrong.T @ (self._total.sum(1) / self._counts))
        questions = (self._total.sum(1) - self.wrong @ answers) / self._counts
        return self.bits - questions[:, None] - answers

    @property
    def gains(self) -> Floats:
        """D_i [n] in bits; nan where the wrong cells do not determine it."""
        return np.where(self._determined, self.residuals[np.arange(len(self.keys)), self.right], np.nan)

    @cached_property
    def coefficients(self) -> Floats:
        """c [n, m] with Σ_i D_i = Σ_ij c_ij S_ij, over the determined D_i.

        With f and g of the least-squares fit written out: c_ij = d_i 1[j = r_i] − w_ij (d_i/n_i + u_j − Σ_k w_ik u_k /
        n_i), u = N⁺ Σ_i d_i (e_{r_i} − w_i/n_i), n_i = Σ_j w_ij and N the normal equations of g.
        """
        counted = self._determined.astype(np.float64)
        levels = self._inverse @ (counted @ self._places)
        fitted = (counted - self.wrong @ levels) / self._counts
        coefficients: Floats = np.where(self.wrong, -(fitted[:, None] + levels), 0.0)
        coefficients[np.arange(len(self.keys)), self.right] += counted
        return coefficients

    @cached_property
    def first(self) -> NDArray[np.bool_]:
        """Centred top-1 [n]: whether the own answer is first among eight of its kind, after g is subtracted.

        g is fitted without the question's own row, so that it does not depend on the cells that are compared. The other
        seven are the next wrong ones, in the order of the draw. A tie is not first.
        """
        normal = np.diag(self.wrong.sum(0)) - self.wrong.T @ self._rows
        own_normal = self.wrong[:, :, None] * (np.eye(self.bits.shape[1]) - self._rows[:, None, :])
        target = self._total - self.wrong * (self._total.sum(1) / self._counts)[:, None]
        inverses = np.linalg.pinv(normal - own_normal, rcond=_RANK, hermitian=True)
        centred = self.bits - np.einsum("ijk,ik->ij", inverses, target.sum(0) - target)
        is_first = np.zeros(len(self.keys), dtype=bool)
        for at, right in enumerate(self.right):
            next_candidates = (np.arange(1, len(self.candidates)) + right) % len(self.candidates)
            rivals = next_candidates[self.wrong[at, next_candidates]][: FEWEST_ANSWERS - 1]
            is_first[at] = len(rivals) > 0 and centred[at, right] > centred[at, rivals].max() + _TINY
        return is_first

    def part(self, rows: Sequence[int], columns: Sequence[int]) -> Block:
        """Return some of the questions with some of the candidates, their own among them."""
        places = {column: at for at, column in enumerate(columns)}
        return Block(
            self.kind,
            tuple(self.keys[row] for row in rows),
            tuple(self.groups[row] for row in rows),
            tuple(self.candidates[column] for column in columns),
            self.bits[np.ix_(rows, columns)],
            np.array([places[int(self.right[row])] for row in rows], dtype=np.int64),
            self.wrong[np.ix_(rows, columns)],
        )

    @cached_property
    def _counts(self) -> Floats:
        return np.maximum(self.wrong.sum(1), 1).astype(np.float64)

    @cached_property
    def _rows(self) -> Floats:
        return self.wrong / self._counts[:, None]

    @cached_property
    def _total(self) -> Floats:
        return np.where(self.wrong, self.bits, 0.0)

    @cached_property
    def _inverse(self) -> Floats:
        """Pseudo-inverse of the normal equations of g [m, m], with f eliminated."""
        normal: Floats = np.diag(self.wrong.sum(0)) - self.wrong.T @ self._rows
        return np.asarray(np.linalg.pinv(normal, rcond=_RANK, hermitian=True), dtype=np.float64)

    @cached_property
    def _places(self) -> Floats:
        """e_{r_i} − w_i/n_i [n, m]: the weights of g in f(q_i) + g(a_i)."""
        places: Floats = -self._rows
        places[np.arange(len(self.keys)), self.right] += 1.0
        return places

    @cached_property
    def _determined(self) -> NDArray[np.bool_]:
        """Whether the wrong cells determine f(q_i) + g(a_i) [n], since they connect the question with its answer."""
        normal = np.diag(self.wrong.sum(0)) - self.wrong.T @ self._rows
        missed = np.abs(self._places @ self._inverse @ normal - self._places).max(1)
        return (missed < _TINY) & self.wrong.any(1)


@dataclass(frozen=True)
class Gain:
    """K of a checkpoint over another, on the ``n`` questions of which both have the cells.

    ``bits`` is K with its 95% interval by page, ``standardised`` the same with each checkpoint's cells divided by the
    standard deviation of its residuals. ``p_value`` is that of a one-sided permutation test of answers within kinds, on
    the standardised cells, and ``p_below`` that of the other side. ``first`` is centred top-1 before and
    after. ``of_questions`` are D_i after − before, in bits.
    """

    bits: float
    low: float
    high: float
    standardised: float
    p_value: float
    p_below: float
    first: tuple[float, float]
    n: int
    pages: int
    kinds: Mapping[str, int]
    of_questions: Mapping[str, float]
    groups: Mapping[str, str]

    def more(self, alpha: float, power: float = 0.8, most: float = 1000.0) -> int | None:
        """Return how many more questions would make K significant at level ``alpha``, if the estimate is true.

        n grows by the factor ((z_α + z_power) / z)², z the normal quantile of the p-value; None if above ``most``.
        """
        reached = quantile(1 - self.p_value)
        factor = ((quantile(1 - alpha) + quantile(power)) / reached) ** 2 if reached > 0 else math.inf
        return max(1, math.ceil(self.n * (factor - 1))) if factor <= most else None


def blocks_of(rows: Iterable[tuple[str, str, Mapping[str, Any]]]) -> list[Block]:
    """Return the blocks of stored items, given as (key, group, extra) in order; items without cells are skipped.

    The first item of a kind holds its candidates.
    """
    by_kind: dict[str, list[tuple[str, str, Mapping[str, Any]]]] = {}
    for key, group, extra in rows:
        if BITS in extra:
            by_kind.setdefault(extra[KIND], []).append((key, group, extra))
    blocks = []
    for kind, members in by_kind.items():
        bits = np.array([extra[BITS] for _, _, extra in members], dtype=np.float64)
        wrong = np.ones(bits.shape, dtype=bool)
        for at, (_, _, extra) in enumerate(members):
            wrong[at, extra[RIGHT]] = False
        right = np.array([extra[RIGHT][0] for _, _, extra in members], dtype=np.int64)
        keys, groups = tuple(key for key, _, _ in members), tuple(group for _, group, _ in members)
        blocks.append(Block(kind, keys, groups, tuple(members[0][2][CANDIDATES]), bits, right, wrong))
    return blocks


def gain(before: Sequence[Block], after: Sequence[Block]) -> Gain | None:
    """Return K of ``after`` over ``before`` on their common questions and candidates; None if there are none."""
    pairs = [pair for block in before for other in after if (pair := _common(block, other)) is not None]
    pairs = [(old, new) for old, new in pairs if np.isfinite(old.gains).any()]
    if not pairs:
        return None
    scales = (_scale([old for old, _ in pairs]), _scale([new for _, new in pairs]))
    kept = [np.isfinite(old.gains) for old, _ in pairs]
    change = np.concatenate([(new.gains - old.gains)[k] for (old, new), k in zip(pairs, kept, strict=True)])
    keys = [key for (old, _), k in zip(pairs, kept, strict=True) for key in np.array(old.keys, dtype=object)[k]]
    groups = [group for (old, _), k in zip(pairs, kept, strict=True) for group in np.array(old.groups, dtype=object)[k]]
    low, high = interval(resampled_means(change[None, :, None], groups)[:, 0])
    observed, p_value, p_below = _permuted([(old, new.bits / scales[1] - old.bits / scales[0]) for old, new in pairs])
    first = [
        float(np.concatenate([side.first[k] for side, k in zip(sides, kept, strict=True)]).mean())
        for sides in zip(*pairs, strict=True)
    ]
    return Gain(
        bits=float(change.mean()),
        low=low,
        high=high,
        standardised=observed / len(change),
        p_value=p_value,
        p_below=p_below,
        first=(first[0], first[1]),
        n=len(change),
        pages=len({group or key for group, key in zip(groups, keys, strict=True)}),
        kinds={old.kind: int(k.sum()) for (old, _), k in zip(pairs, kept, strict=True)},
        of_questions=dict(zip(keys, change.tolist(), strict=True)),
        groups=dict(zip(keys, groups, strict=True)),
    )


def share_kept(
    base: Sequence[Block], reference: Sequence[Block], student: Sequence[Block], factor: float, alpha: float
) -> tuple[int, Contrast | None]:
    """Return the number of questions that all three have, and the test of K(student) / K(reference) − ``factor``.

    Both are standardised, over ``base``, and clustered by page. The contrast is None if the reference's K is not above
    0 at level ``alpha``, or there are no such questions.
    """
    by_kind = [{block.kind: block for block in side} for side in (base, reference, student)]
    kinds = [[side[kind] for side in by_kind] for kind in by_kind[0] if all(kind in side for side in by_kind)]
    sides = [blocks for found in kinds if (blocks := _common_of_all(found)) and np.isfinite(blocks[0].gains).any()]
    if not sides:
        return 0, None
    before, taught, after = (
        np.concatenate([block.gains for block in blocks]) / _scale(blocks) for blocks in zip(*sides, strict=True)
    )
    known = np.isfinite(before)
    groups = np.array([group for blocks in sides for group in blocks[0].groups], dtype=object)[known].tolist()
    gains = (after - before)[known], (taught - before)[known]
    return len(groups), ratio_contrast(*gains, groups, factor=factor, alpha=alpha)


def _common_of_all(blocks: Sequence[Block]) -> list[Block]:
    """Return all blocks on their common questions and candidates; an empty list if there are too few."""
    first, *rest = blocks
    for other in rest:
        if (pair := _common(first, other)) is None:
            return []
        first = pair[0]
    pairs = [_common(first, other) for other in rest]
    return [first, *(pair[1] for pair in pairs if pair is not None)]


def _common(before: Block, after: Block) -> tuple[Block, Block] | None:
    """Return both blocks on their common questions and candidates; None if fewer than eight candidates are common."""
    if before.kind != after.kind:
        return None
    places = {text: at for at, text in enumerate(after.candidates)}
    columns = [at for at, text in enumerate(before.candidates) if text in places]
    after_columns = [places[before.candidates[at]] for at in columns]
    if len(columns) < FEWEST_ANSWERS:
        return None
    rows_after = {key: row for row, key in enumerate(after.keys)}
    rows = [
        row
        for row, key in enumerate(before.keys)
        if key in rows_after
        and int(before.right[row]) in columns
        and places[before.candidates[int(before.right[row])]] == int(after.right[rows_after[key]])
    ]
    if not rows:
        return None
    old, new = before.part(rows, columns), after.part([rows_after[before.keys[row]] for row in rows], after_columns)
    return old, replace(new, wrong=old.wrong)


def _scale(blocks: Sequence[Block]) -> float:
    """Return the standard deviation of the residuals at wrong answers; 1 if they are all 0."""
    squares = sum(float((block.residuals[block.wrong] ** 2).sum()) for block in blocks)
    free = sum(int(block.wrong.sum()) - sum(block.wrong.shape) + 1 for block in blocks)
    deviation = math.sqrt(squares / max(1, free))
    return deviation if deviation > _TINY else 1.0


def _permuted(changes: Sequence[tuple[Block, Floats]]) -> tuple[float, float, float]:
    """Return Σ D_i of changes of cells [n, m], and the shares of permutations within kinds with at least, and with at
    most, this sum.

    A permutation gives question i the answers and the mask of question π(i). The fit is unchanged, so Σ D_i is
    Σ_i Σ_j c_π(i)j S_ij.
    """
    generator = np.random.default_rng(SEED)
    observed, permuted = 0.0, np.zeros(PERMUTATIONS)
    for block, change in changes:
        products = block.coefficients @ change.T  # [answers of, question]
        indices = np.arange(len(block.keys))
        observed += float(products[indices, indices].sum())
        for start in range(0, PERMUTATIONS, 1000):
            size = min(1000, PERMUTATIONS - start)
            orders = generator.permuted(np.tile(indices, (size, 1)), axis=1)
            permuted[start : start + size] += products[orders, indices].sum(1)
    above, below = (permuted >= observed - _TINY).sum(), (permuted <= observed + _TINY).sum()
    return observed, (1 + int(above)) / (1 + PERMUTATIONS), (1 + int(below)) / (1 + PERMUTATIONS)
