"""Arithmetic with an exact answer, in three levels, so that there is room to improve."""

from __future__ import annotations

import random

from recovery.miniature.world import Example

ASK = ("What is {a} {op} {b}?", "Work out {a} {op} {b}.", "{a} {op} {b} =")


def problem(rng: random.Random, level: int) -> tuple[str, str]:
    """A question and its answer. Level 0: sums of digits; 1: sums and differences to 99; 2: products of two digits."""
    if level == 0:
        a, b, op = rng.randint(1, 9), rng.randint(1, 9), rng.choice("+-")
    elif level == 1:
        a, b, op = rng.randint(10, 99), rng.randint(10, 99), rng.choice("+-")
    else:
        a, b, op = rng.randint(12, 99), rng.randint(12, 99), "*"
    if op == "-" and a < b:
        a, b = b, a
    value = a + b if op == "+" else a - b if op == "-" else a * b
    return rng.choice(ASK).format(a=a, b=b, op=op), str(value)


def draw(rng: random.Random, world: object = None, level: int | None = None) -> Example:
    """A problem of a level, drawn evenly when None."""
    chosen = rng.randrange(3) if level is None else level
    question, answer = problem(rng, chosen)
    return Example("arithmetic", messages=(("user", question), ("assistant", answer)), tags=(f"level-{chosen}",))
