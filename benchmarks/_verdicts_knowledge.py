"""The verdict on what was learnt (K): how often it is wrong where nothing was, and how often it finds what was."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from benchmarks._verdicts_model import ALPHA, LOOKS, Array, Noise, Rate, Table
from evals.domain_pmi import Block, gain

NOISES: dict[str, Noise] = {
    "normal": lambda draw, shape: draw.normal(size=shape),
    "Student's t, 3 degrees": lambda draw, shape: draw.standard_t(3, size=shape) / np.sqrt(3),
    "exponential": lambda draw, shape: draw.exponential(size=shape) - 1,
}
PAGE = 3  # questions a page
CANDIDATES = 32


def tables(runs: int, seed: int) -> list[Table]:
    """Return all tables of this module."""
    few = max(60, runs // 50)
    return [nothing_learnt(few, seed), power(few, seed + 1)]


def blocks(draw: np.random.Generator, questions: int, noise: Noise, own: Array, again: int = 1) -> list[list[Block]]:
    """Return both checkpoints' cells of questions in kinds of up to 32 answers, of which each is that of ``again``
    questions; the later one has ``own`` [questions] more at the right ones, and is twice as sharp.
    """
    sides: list[list[Block]] = [[], []]
    size = CANDIDATES * again
    for kind, start in enumerate(range(0, questions, size)):
        here = np.arange(start, min(questions, start + size))
        right = np.arange(len(here)) // again
        columns = right[-1] + 1
        wrong = np.arange(columns) != right[:, None]
        keys, groups = tuple(map(str, here)), tuple(f"page {n // PAGE}" for n in here)
        for later, side in enumerate(sides):
            bits = 9 * draw.normal(size=(len(here), 1)) + 7 * draw.normal(size=columns) + noise(draw, wrong.shape)
            bits[np.arange(len(here)), right] += own[here] * later
            texts = tuple(map(str, range(columns)))
            side.append(Block(str(kind), keys, groups, texts, (1 + later) * bits, right, wrong))
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
                found = gain(*blocks(draw, questions, noise, pages, again))
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
