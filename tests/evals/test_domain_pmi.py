"""K and centred top-1: against the formula, and what must not move them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from evals.domain_pmi import BITS, CANDIDATES, KIND, RIGHT, Block, blocks_of, gain, share_kept
from evals.statistics import Floats


def block(
    bits: Floats, right: list[int] | None = None, masked: tuple[tuple[int, int], ...] = (), kind: str = "name"
) -> Block:
    """A block of questions q0, q1 ... with the answers a0, a1 ..., two questions a page."""
    rows, columns = bits.shape
    own = list(range(rows)) if right is None else right
    wrong = np.ones(bits.shape, dtype=bool)
    wrong[np.arange(rows), own] = False
    for row, column in masked:
        wrong[row, column] = False
    keys, groups = tuple(f"{kind} {n}" for n in range(rows)), tuple(f"page {n // 2}" for n in range(rows))
    return Block(kind, keys, groups, tuple(f"a{n}" for n in range(columns)), bits, np.array(own), wrong)


def additive(rows: int, columns: int, seed: int) -> Floats:
    draw = np.random.default_rng(seed)
    return -30 + 9 * draw.normal(size=(rows, 1)) + 7 * draw.normal(size=columns)


def noise(rows: int, columns: int, seed: int) -> Floats:
    return np.random.default_rng(seed).normal(size=(rows, columns))


MASKED = ((0, 3), (4, 9), (9, 4), (11, 0), (11, 1))


@pytest.mark.parametrize(
    ("rows", "columns", "right", "masked"),
    [
        (12, 12, None, ()),
        (12, 12, None, MASKED),
        (20, 9, [n % 9 for n in range(20)], ()),
        (20, 9, [n // 7 for n in range(20)], ((3, 8), (19, 0))),
    ],
)
def test_what_is_a_sum_of_question_and_answer_is_no_knowledge(
    rows: int, columns: int, right: list[int] | None, masked: tuple[tuple[int, int], ...]
) -> None:
    before, after = (block(additive(rows, columns, seed), right, masked) for seed in (1, 2))
    assert np.abs(after.gains).max() < 1e-9
    assert not after.first.any(), "a tie is not first"
    found = gain([before], [after])
    assert found is not None
    assert abs(found.bits) < 1e-9 and found.first == (0.0, 0.0)
    assert max(map(abs, found.of_questions.values())) < 1e-9
    assert found.p_value == 1.0


def test_the_fit_is_the_formula_where_no_other_cell_is_right() -> None:
    bits = additive(9, 9, 3) + noise(9, 9, 4)
    for i, value in enumerate(block(bits).gains):
        rest = [k for k in range(9) if k != i]
        pairs = [bits[j, k] for j in rest for k in rest if j != k]
        expected = bits[i, i] - np.mean(bits[i, rest]) - np.mean(bits[rest, i]) + np.mean(pairs)
        assert value == pytest.approx(expected)


@pytest.mark.parametrize("masked", [(), MASKED])
def test_coefficients_sum_to_all_gains(masked: tuple[tuple[int, int], ...]) -> None:
    one = block(noise(12, 12, 5), masked=masked)
    assert (one.coefficients * one.bits).sum() == pytest.approx(one.gains.sum())
    # also of cells that a permutation gives to other questions
    order = np.random.default_rng(0).permutation(12)
    turned = replace(one, bits=one.bits[order])
    assert (one.coefficients * turned.bits).sum() == pytest.approx(turned.gains.sum())


def test_a_question_that_its_cells_do_not_determine_is_left_out() -> None:
    alone = tuple((0, n) for n in range(1, 12))  # every other candidate is right for the first question
    one = block(additive(12, 12, 6) + noise(12, 12, 7), masked=alone)
    assert np.isnan(one.gains[0]) and np.isfinite(one.gains[1:]).all()
    found = gain([one], [one])
    assert found is not None and found.n == 11 and found.bits == 0.0
    nobody = tuple((n, 0) for n in range(1, 12))  # right for all: its level follows from nothing
    assert np.isnan(block(one.bits, masked=nobody).gains[0])


def test_knowledge_is_found_and_none_is_not() -> None:
    before = block(additive(32, 32, 8) + noise(32, 32, 9))
    learnt = block(additive(32, 32, 10) + noise(32, 32, 9) + np.diag(np.full(32, 3.0)))
    found = gain([before], [learnt])
    assert found is not None
    assert found.bits == pytest.approx(3.0)
    assert found.low <= found.bits <= found.high and found.p_value < 0.001
    assert found.first[1] > found.first[0] + 0.4
    other = gain([before], [block(additive(32, 32, 10) + noise(32, 32, 11))])
    assert other is not None and other.p_value > 0.05
    worse = gain([learnt], [before])
    assert worse is not None and worse.bits == pytest.approx(-3.0)
    assert worse.p_value > 0.99 and worse.p_below < 0.001 and found.p_below > 0.99


def test_what_is_sharper_is_no_more_known() -> None:
    bits = additive(32, 32, 12) + noise(32, 32, 13) + np.diag(np.full(32, 2.0))
    before, sharper = block(bits), block(2 * bits + additive(32, 1, 14))
    assert (before.first == sharper.first).all()
    found = gain([before], [sharper])
    assert found is not None
    assert found.bits > 1, "in bits it is twice as much"
    assert found.standardised == pytest.approx(0.0, abs=1e-9) and found.p_value > 0.2
    learnt = bits + np.diag(np.full(32, 1.0))
    one, two = gain([before], [block(learnt)]), gain([before], [block(2 * learnt)])
    assert one is not None and two is not None
    assert (one.p_value, one.first, one.standardised) == (two.p_value, two.first, pytest.approx(two.standardised))


def test_what_is_kept_is_compared_on_the_questions_and_candidates_of_all_three() -> None:
    known = [
        additive(32, 32, seed) + noise(32, 32, seed + 40) + np.diag(np.full(32, k)) for seed, k in enumerate((0, 3, 3))
    ]
    base, taught, student = map(block, known)
    other = [block(bits, kind="number") for bits in known[:2]]  # which the student was not asked
    n, found = share_kept([base, other[0]], [other[1], taught], [student], 0.67, 0.05)
    assert n == 32 and found is not None
    assert found.value + 0.67 == pytest.approx(1.0, abs=0.15) and found.low > 0
    rows, fewer = [*range(4, 32)], [*range(4, 32)]
    part = share_kept([base.part(range(32), range(32))], [taught.part(rows, fewer)], [student], 0.67, 0.05)
    same = share_kept(*([side.part(rows, fewer)] for side in (base, taught, student)), 0.67, 0.05)
    assert part == same and part[0] == 28
    assert share_kept([base], [taught], other[:1], 0.67, 0.05) == (0, None)
    assert share_kept([base], [taught.part(range(32), range(32))], [], 0.67, 0.05) == (0, None)


def test_a_model_that_says_one_answer_more_often_has_learnt_nothing() -> None:
    bits = additive(32, 32, 15) + noise(32, 32, 16)
    louder = bits.copy()
    louder[:, 5] += 20
    before, after = block(bits), block(louder)
    assert after.gains == pytest.approx(before.gains)
    assert (after.first == before.first).all()


def test_a_cell_that_is_right_moves_nothing_else() -> None:
    bits = additive(12, 12, 17) + noise(12, 12, 18)
    moved = bits.copy()
    moved[0, 3] += 40
    assert block(moved, masked=MASKED).gains == pytest.approx(block(bits, masked=MASKED).gains)


def stored(one: Block, decimals: int = 3) -> list[tuple[str, str, dict[str, object]]]:
    rows = []
    for at, key in enumerate(one.keys):
        others = [j for j in range(len(one.candidates)) if not one.wrong[at, j] and j != one.right[at]]
        extra = {BITS: one.bits[at].round(decimals).tolist(), KIND: one.kind, RIGHT: [int(one.right[at]), *others]}
        rows.append((key, one.groups[at], extra | ({} if at else {CANDIDATES: list(one.candidates)})))
    return rows


def test_blocks_are_read_from_stored_items() -> None:
    one, two = block(noise(12, 12, 19), masked=MASKED), block(noise(9, 9, 20), kind="path")
    again = blocks_of([*stored(one)[:5], *stored(two), ("x", "", {}), *stored(one)[5:]])
    for before, after in zip((one, two), again, strict=True):
        assert (before.kind, before.keys, before.groups, before.candidates) == (
            after.kind, after.keys, after.groups, after.candidates,
        )  # fmt: skip
        assert (before.wrong == after.wrong).all() and (before.right == after.right).all()
        assert after.gains == pytest.approx(before.gains, abs=0.01)


def test_checkpoints_are_compared_on_common_questions_and_candidates() -> None:
    bits = additive(20, 20, 21) + noise(20, 20, 22)
    before = block(bits)
    rows, columns = list(range(2, 20)), [*range(19, 1, -1)]  # two questions were dropped, the rest in another order
    after = block(bits).part(rows, columns)
    found = gain([before], [after])
    assert found is not None and found.n == 18 and found.bits == pytest.approx(0.0)
    assert gain([before], [block(bits, kind="path")]) is None
    assert gain([before], [after.part([0], [columns.index(2)])]) is None, "too few candidates are common"
    assert gain([], []) is None


@pytest.mark.parametrize("questions", [40, 60, 90, 120, 180])
def test_rounding_of_the_normal_equations_leaves_no_question_out(questions: int) -> None:
    """Their zero eigenvalue was rounded to 1.5e-15 of the largest and inverted: of 60 questions none was determined."""
    bits = np.random.default_rng(questions).normal(size=(questions, 16)) - 20
    about = {KIND: "path", CANDIDATES: list("abcdefghijklmnop")}
    rows = [(f"q{n}", "", about | {BITS: bits[n].tolist(), RIGHT: [n % 16]}) for n in range(questions)]
    (block,) = blocks_of(rows)
    assert np.isfinite(block.gains).all() and np.abs(block._inverse).max() < 1


@pytest.mark.parametrize(("column", "first"), [(4, True), (6, False), (11, False), (0, False), (1, True)])
def test_an_answer_is_compared_with_the_next_seven_wrong_ones(column: int, first: bool) -> None:
    bits = 3.0 * np.eye(12)
    bits[5, column] = 9.0
    assert block(bits).first[5] == first
