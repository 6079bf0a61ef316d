"""The verdicts on what was learnt (K) and on what is kept of it: how often they are wrong, how often they decide."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from benchmarks._verdicts_model import ALPHA, LOOKS, Array, Noise, Rate, Table
from evals.acceptance_rules import parse_rule
from evals.domain_pmi import Block, gain, share_kept
from pipelines.evaluation.acceptance import STANDARD

NOISES: dict[str, Noise] = {
    "normal": lambda draw, shape: draw.normal(size=shape),
    "Student's t, 3 degrees": lambda draw, shape: draw.standard_t(3, size=shape) / np.sqrt(3),
    "exponential": lambda draw, shape: draw.exponential(size=shape) - 1,
}
PAGE = 3  # questions a page, unless a table says how many pages there are
CANDIDATES = 32
SHARE = next(rule.factor for rule in map(parse_rule, STANDARD) if rule.share_learnt)
# Of real cells, standardised (docs/real.md, cycle 1): K after mid-training, and how alike the noise of base and
# mid-trained, and of mid-trained and recovered, is. The noise of a gain over pages and questions follows from them.
REAL_K, ALIKE = 0.65, (0.8, 0.9)


def tables(runs: int, seed: int) -> list[Table]:
    """Return all tables of this module."""
    few = max(60, runs // 50)
    return [nothing_learnt(few, seed), power(few, seed + 1), what_is_kept(3 * few, seed + 2)]


def blocks(
    draw: np.random.Generator,
    questions: int,
    noise: Noise,
    *gains: Array,
    again: int = 1,
    alike: Sequence[float] = (0.0,),
    page: int = PAGE,
) -> list[list[Block]]:
    """Return the cells of base and of a later checkpoint for each of ``gains`` [questions], which it has more at the
    right answers than base.

    The questions are in kinds of up to 32 answers, of which each is that of ``again`` questions. Later checkpoints are
    twice as sharp. ``alike`` are the correlations of the noise of each with the one before.
    """
    sides: list[list[Block]] = [[] for _ in range(1 + len(gains))]
    size = CANDIDATES * again
    for kind, start in enumerate(range(0, questions, size)):
        here = np.arange(start, min(questions, start + size))
        right = np.arange(len(here)) // again
        columns = right[-1] + 1
        wrong = np.arange(columns) != right[:, None]
        keys, groups = tuple(map(str, here)), tuple(f"page {n // page}" for n in here)
        texts, own = tuple(map(str, range(columns))), np.zeros(wrong.shape)
        for later, side in enumerate(sides):
            like = alike[later - 1] if later else 0.0
            own = like * own + np.sqrt(1 - like**2) * noise(draw, wrong.shape)
            bits = 9 * draw.normal(size=(len(here), 1)) + 7 * draw.normal(size=columns) + own
            if later:
                bits[np.arange(len(here)), right] += gains[later - 1][here]
            side.append(Block(str(kind), keys, groups, texts, (1 + min(1, later)) * bits, right, wrong))
    return sides


def passes(p_values: Array) -> tuple[Rate, ...]:
    """Return how often the rule passes at the level of one judgement, and at that of a cycle's."""
    return tuple(Rate.of(f"passes at {level:g}", p_values < level, most=level) for level in (ALPHA, ALPHA / LOOKS))


def nothing_learnt(runs: int, seed: int) -> Table:
    """Questions whose right answers gained no more than wrong ones."""
    draw, rows = np.random.default_rng(seed), []
    for name, noise in NOISES.items():
        for questions, again, spread in ((24, 1, 0.0), (96, 1, 0.0), (96, 3, 0.0), (96, 1, 1.0)):
            p_values = np.empty(runs)
            for run in range(runs):
                pages = spread * draw.normal(size=questions)[np.arange(questions) // PAGE]
                found = gain(*blocks(draw, questions, noise, pages, again=again))
                assert found is not None
                p_values[run] = found.p_value
            rows.append(((name, f"{questions}", f"{again}", f"{spread:g}"), passes(p_values)))
    note = (
        "The rule `learnt` where K is 0. Each cell has noise of standard deviation 1, the later checkpoint is twice as "
        f"sharp. Pages have {PAGE} questions; in the last rows right answers gain or lose by page, 0 on average, which "
        "the permutation of questions does not account for: the interval beside K does."
    )
    labels = ("noise of a cell", "questions", "questions an answer", "spread by page")
    return Table("Learnt: nothing was", note, labels, rows)


def power(runs: int, seed: int) -> Table:
    """Right answers that gained a little."""
    draw, rows = np.random.default_rng(seed), []
    for questions, effect in ((87, 0.3), (196, 0.2), (300, 0.2), (300, 0.1)):
        found = []
        for _ in range(runs):
            # D_i after − D_i before has a standard deviation of √2 and a little, from the noise of both cells
            one = gain(*blocks(draw, questions, NOISES["normal"], np.full(questions, effect * np.sqrt(2))))
            assert one is not None
            found.append(one.p_value)
        rates = [replace(rate, most=None) for rate in passes(np.array(found))]
        rows.append(((f"{questions}", f"{effect:g}"), tuple(rates)))
    note = "Right answers gained by this share of the standard deviation of D over questions; normal noise."
    return Table("Learnt: how often it is found", note, ("questions", "K, in SD of D"), rows)


def kept_tests(
    draw: np.random.Generator,
    runs: int,
    questions: int,
    noise: Noise,
    taught: float,
    share: float,
    alpha: float,
    page: int = 6,
) -> tuple[Array, Array]:
    """Return, of ``runs`` students that keep ``share`` of what was ``taught``, whether the standard rule passes at
    level ``alpha``, and the p-value of "the rule holds".

    What a question gained is exponential, and what is kept of it uniform over pages, up to a third more or less.
    """
    passed, below = np.zeros(runs, dtype=bool), np.ones(runs)
    for run in range(runs):
        gains = taught * draw.exponential(size=questions)
        pages = draw.uniform(share - 1 / 3, share + 1 / 3, size=questions)[np.arange(questions) // page]
        base, midtrained, student = blocks(draw, questions, noise, gains, pages * gains, alike=ALIKE, page=page)
        _, contrast = share_kept(base, midtrained, student, SHARE, alpha)
        if contrast is not None:
            passed[run], below[run] = contrast.low >= 0, contrast.p_below
    return passed, below


def what_is_kept(runs: int, seed: int) -> Table:
    """Students that keep two thirds, or all, of what mid-training taught."""
    draw, rows = np.random.default_rng(seed), []
    for share in (SHARE, 1.0):
        for name, questions, page, taught in (
            *((name, 150, 6, REAL_K) for name in NOISES),
            ("normal", 150, 3, REAL_K), ("normal", 150, 12, REAL_K), ("normal", 150, 50, REAL_K),
            ("normal", 60, 6, REAL_K), ("normal", 150, 6, REAL_K / 3),
        ):  # fmt: skip
            rates: tuple[Rate, ...] = ()
            for level in (ALPHA, ALPHA / LOOKS):
                passed, below = kept_tests(draw, runs, questions, NOISES[name], taught, share, level, page)
                rates += (
                    Rate.of(f"passed at {level:g}", passed, most=level if share == SHARE else None),
                    Rate.of(f"failed at {level:g}", below <= level, most=level),
                )
            rows.append(((f"{share:.2f}", name, f"{questions}", f"{-(-questions // page)}", f"{taught:.2f}"), rates))
    note = (
        "The rule `learnt >= 0.67*midtrained` for students that keep two thirds, its bound, or all of what "
        f"mid-training taught. K and the likeness of the checkpoints' noise are those of a real cycle, {REAL_K:g} in "
        f"standard deviations of a cell, {ALIKE[0]:g} and {ALIKE[1]:g}; what a question gained is exponential, and "
        "each page keeps up to a third more or less of it."
    )
    return Table("Learnt: what is kept", note, ("kept", "noise of a cell", "questions", "pages", "K taught"), rows)
