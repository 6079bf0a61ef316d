"""Arithmetic problems with an exact answer, in three levels of difficulty."""

from __future__ import annotations

import random

from recovery.miniature.corpora import Example

ASK = ("What is {a} {op} {b}?", "Work out {a} {op} {b}.", "{a} {op} {b} =")


def problem(rng: random.Random, level: int) -> tuple[str, str]:
    """Return a question and its answer. Level 0: digits; 1: sums and differences within 99; 2: products."""
    if level == 0:
        a, b, op = rng.randint(1, 9), rng.randint(1, 9), rng.choice("+-")
    elif level == 1:
        a, op = rng.randint(10, 89), rng.choice("+-")
        b = rng.randint(10, 99 - a) if op == "+" else rng.randint(10, 99)
    else:
        a, b, op = rng.randint(12, 99), rng.randint(12, 99), "*"
    if op == "-" and a < b:
        a, b = b, a
    value = a + b if op == "+" else a - b if op == "-" else a * b
    return rng.choice(ASK).format(a=a, b=b, op=op), str(value)


def draw(rng: random.Random, world: object = None, level: int | None = None) -> Example:
    """Sample a problem of a level; by default half are of level 0, a third of level 1 and a sixth of level 2."""
    chosen = rng.choice((0, 0, 0, 1, 1, 2)) if level is None else level
    question, answer = problem(rng, chosen)
    return Example("arithmetic", messages=(("user", question), ("assistant", answer)), tags=(f"level-{chosen}",))
