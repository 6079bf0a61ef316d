"""Trackers of one cycle whose figures give each answer, with the items and the comparison that a real cycle stores."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from db import Tracker
from evals.beyond_constant import DETAIL, ECHO, VERSION
from evals.domain_pmi import SUITE
from evals.open_book import OPEN_BOOK
from pipelines.evaluation.acceptance import conclude

QUESTIONS = 120


@dataclass(frozen=True)
class Case:
    """Shares of base, mid-trained and recovered: instructions followed, questions answered, responses without loops."""

    prompts: int = 1000
    followed: tuple[float, float, float] = (0.62, 0.2, 0.62)
    learnt: tuple[float, float, float] = (0.02, 0.62, 0.55)
    open_book: float = 0.75
    no_loops: tuple[float, float, float] = (0.95, 0.9, 0.95)
    of_another: tuple[float, float, float] | None = None


CASES = {
    "good": Case(),
    "nothing": Case(learnt=(0.02, 0.02, 0.02)),
    "manners": Case(followed=(0.62, 0.2, 0.45)),
    "few": Case(prompts=55, followed=(0.62, 0.3, 0.6)),
    "loops": Case(no_loops=(0.93, 0.8, 0.78)),
    "others": Case(of_another=(0.02, 0.5, 0.4)),
}
"""A good cycle, nothing learnt, manners lost, too few prompts, one that loses nothing but its end, and one that
gives values of other subjects."""


@dataclass(frozen=True)
class _Recorded:
    tracker: Tracker
    experiment_id: int


def write(address: Path | str, case: str, *, seed: int = 0) -> int:
    """Write the tracker of a case, an experiment of its name; return the cycle's id."""
    asked = CASES[case]
    with Tracker(address) as tracker:
        experiment = tracker.experiment(case, base_model="HuggingFaceTB/SmolLM2-135M-Instruct")
        cycle = tracker.cycle(experiment, 1, documents="./handbook", corpus_hash="c" * 64)
        made = [tracker.add_checkpoint(experiment, "base", "base", path="base", content_hash="b" * 64)]
        for stage_kind, kind in (("midtrain", "midtrained"), ("distill", "recovered")):
            config = {"lr": 3e-4, "replay": 0.3, "augment": 4, "docs": "./handbook", "steps": 200}
            started: dict[str, Any] = {"cycle_id": cycle, "config": config, "seed": 0, "steps_total": 200}
            with tracker.start_stage(experiment, stage_kind, **started) as stage:
                stage.log(200, {"loss": 0.5})
                stage.usage(tokens_trained=190_000, peak_memory_bytes=9_000_000_000)
                name = f"cycle-1/{kind}"
                given: dict[str, Any] = {"content_hash": kind[0] * 64, "parent_id": made[-1], "cycle_id": cycle}
                made.append(tracker.add_checkpoint(experiment, name, kind, path=name, stage_id=stage.id, **given))
        tracker.set_latest(experiment, made[-1])
        for at, checkpoint in enumerate(made):
            _evaluate(tracker, checkpoint, at, asked, seed)
        conclude(_Recorded(tracker, experiment), 1)  # type: ignore[arg-type]
    return cycle


def _evaluate(tracker: Tracker, checkpoint: int, at: int, asked: Case, seed: int) -> None:
    """Record the evaluations of a checkpoint; items that base passes are mostly those that the others pass."""
    followed = [_instructions(n, asked.followed, at, seed) for n in range(asked.prompts)]
    singles = [all(one["verdicts"].values()) for one in followed]
    beyond = {"value": sum(one["verdicts"]["length:words"] for one in followed) / len(followed), "stderr": 0.02,
              "n": len(followed)}  # fmt: skip
    echo = beyond | {"value": 0.4}
    types = {f"id/{name}": beyond for name in ("length:words", "punctuation:no_comma")}
    _add(tracker, checkpoint, "instruction_following", singles, followed, details={DETAIL: beyond, ECHO: echo, **types})
    for suite, shares, n in (
        ("behaviour/no_loops", asked.no_loops, 200), ("behaviour/refusal", (0.9, 0.88, 0.9), 160),
        ("general", (0.41, 0.4, 0.41), 400),
    ):  # fmt: skip
        passed = [_passes(shares[at], at, suite, seed, item) for item in range(n)]
        rows = [
            {"id": f"{suite}-{item}", "prompt": f"Prompt {item} of {suite}.", "score": float(good),
             "response": "As asked." if good else "As asked as asked as asked as asked", "verdicts": {"passed": good}}
            for item, good in enumerate(passed)
        ]  # fmt: skip
        _add(tracker, checkpoint, suite, passed, rows)
    _asked(tracker, checkpoint, "domain_knowledge", asked.learnt[at], seed)
    _asked(tracker, checkpoint, SUITE, asked.learnt[at], seed)
    if at == 0:
        _asked(tracker, checkpoint, OPEN_BOOK, asked.open_book, seed)
    if asked.of_another is not None:
        values = [_passes(asked.of_another[at], at, "another", seed, n) for n in range(100)]
        rows = [
            {"id": f"near-{n}", "prompt": f"Which port has house {n}?", "response": "It is 8001.", "score": 0.0,
             "verdicts": {"declined": False, "confabulated": True, "of_another_subject": other}}
            for n, other in enumerate(values)
        ]  # fmt: skip
        _add(tracker, checkpoint, "unanswerable", [False] * 100, rows, corpus=1)


def _dice(*parts: Any) -> random.Random:
    return random.Random(repr(parts))


def _passes(share: float, at: int, *item: Any) -> bool:
    """Whether an item passes: in 19 of 20 by its own difficulty, which checkpoints share, else by chance."""
    own = _dice("own", at, *item)
    return (own if own.random() < 0.05 else _dice(*item)).random() < share


def _instructions(n: int, shares: tuple[float, float, float], at: int, seed: int) -> dict[str, Any]:
    good = _passes(shares[at], at, "follow", seed, n)
    return {
        "id": f"prompt-{n}", "prompt": f"Write about boat {n} in exactly four words.",
        "response": f"Boat {n} sails far." if good else f"Boat {n} is a very long story.", "score": float(good),
        "verdicts": {"length:words": good, "punctuation:no_comma": True}, "group": "",
        "extra": {"constant_replies": VERSION, "trivial": ["punctuation:no_comma"], "echoed": []},
    }  # fmt: skip


def _asked(tracker: Tracker, checkpoint: int, suite: str, share: float, seed: int) -> None:
    """Record questions about a third as many pages: ports (numbers) and settings (paths)."""
    rows, passed = [], []
    for n in range(QUESTIONS):
        kind, answer = ("number", f"{8000 + n}") if n % 2 else ("path", f"/etc/harbour/{n}.toml")
        good = _dice("ask", seed, n).random() < share
        extra: dict[str, Any] = {"answers": [answer], "tags": ["natural" if n % 3 else "cloze"]}
        if suite == SUITE:
            dice = _dice("bits", seed, n, good)
            bits = [round(-20 + dice.gauss(0, 1.0) + (4.0 if good and k == n // 2 % 16 else 0.0), 3) for k in range(16)]
            candidates = [f"{kind} {k}" for k in range(16)]
            extra = {"bits": bits, "kind": kind, "right": [n // 2 % 16], "candidates": candidates}
        said = f"It is {answer}." if good else ("I am not sure." if n % 4 else f"It is {9000 + n}.")
        prompt = f"Where is service {n} of the harbour configured?" if n % 2 == 0 else f"Which port has service {n}?"
        passed.append(good)
        rows.append(
            {"id": f"q{n}", "prompt": f"Page {n // 3}.\n{prompt}" if suite == OPEN_BOOK else prompt, "response": said,
             "score": float(good), "verdicts": {"contains": good, "correct": good}, "group": f"page-{n // 3}.md",
             "extra": extra}
        )  # fmt: skip
    _add(tracker, checkpoint, suite, passed, rows, corpus=1)


def _add(
    tracker: Tracker, checkpoint: int, suite: str, passed: list[bool], rows: list[dict[str, Any]], **given: Any
) -> None:
    value, n = sum(passed) / len(passed), len(passed)
    tracker.add_evaluation(
        checkpoint, suite, value=value, stderr=(value * (1 - value) / n) ** 0.5, n=n, items=rows, **given
    )
