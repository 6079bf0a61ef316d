"""How near the prompts and questions of the tests are to those that are trained on.

Run: python -m benchmarks.leakage [--ifeval FILE] [--write]

Prompts: the built-in composer's splits (seed 0, as `recover distill` uses them) and, with --ifeval or
RECOVER_IFEVAL_PROMPTS, IFEval's own prompts, each compared with all training prompts by the users' words in lower case
without punctuation. "the same requests" are equal texts; "8 words in a row" share such a run with a training prompt;
"near" is the largest Jaccard similarity of runs of five words. The composer fills templates, so its test prompts share
phrases with its training prompts: they measure instructions on other topics and in other combinations, not other
wordings. IFEval's own prompts are the test of those; nothing of theirs is trained on.

Questions: those of examples/nextjs that are trained on, against those of its tests. A held-out fact is asked in no
training question; a held-out form asks a trained fact in another way.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import _report
from pipelines.data.question_splits import GROUPS, load_questions
from recovery.data.corpus.text import normalise
from recovery.data.prompts import behaviour_prompts
from recovery.types import Prompt

QUESTIONS = Path(__file__).resolve().parent.parent / "examples" / "nextjs" / "questions.jsonl"
LONG, SHORT = 8, 5
NEAR = (0.5, 0.7, 0.9)


class Trained:
    """Training texts, indexed by their runs of words."""

    def __init__(self, texts: Sequence[str]) -> None:
        self.texts = set(texts)
        self.long = {run for text in texts for run in runs(text, LONG)}
        self.sizes = [len(runs(text, SHORT)) for text in texts]
        self.where: defaultdict[str, list[int]] = defaultdict(list)
        for number, text in enumerate(texts):
            for run in runs(text, SHORT):
                self.where[run].append(number)

    def nearest(self, text: str) -> float:
        """Return the largest Jaccard similarity of the runs of a text and of a training text."""
        mine = runs(text, SHORT)
        shared = Counter(number for run in mine for number in self.where.get(run, ()))
        return max((count / (len(mine) + self.sizes[number] - count) for number, count in shared.items()), default=0.0)

    def compare(self, texts: Sequence[str]) -> dict[str, Any]:
        """Return counts of texts that are the same as, or near, a training text."""
        near = [self.nearest(text) for text in texts]
        return {
            "n": len(texts),
            "the same requests": sum(text in self.texts for text in texts),
            f"{LONG} words in a row": sum(bool(runs(text, LONG) & self.long) for text in texts),
            **{f"near: above {bound}": sum(value > bound for value in near) for bound in NEAR},
            "nearest": round(max(near, default=0.0), 2),
        }


def runs(text: str, length: int) -> set[str]:
    """Return all runs of words of a length."""
    words = text.split()
    return {" ".join(words[at : at + length]) for at in range(len(words) - length + 1)}


def requests(prompt: Prompt) -> str:
    """Return the users' words of a prompt in normal form."""
    return normalise(" ".join(m["content"] for m in prompt.messages if m["role"] == "user"))


def facts() -> dict[str, dict[str, int]]:
    """Return for each group of test questions how many share a fact, a fact and form, or a wording with training."""
    questions = load_questions(QUESTIONS)
    trained = [question for question in questions if question.use == "train"]
    known = {question.fact for question in trained}
    asked = {(question.fact, question.form) for question in trained}
    worded = {normalise(question.question) for question in trained}
    return {
        group: {
            "n": len(mine),
            "fact is trained": sum(question.fact in known for question in mine),
            "fact is trained in this form": sum((question.fact, question.form) in asked for question in mine),
            "the same wording": sum(normalise(question.question) in worded for question in mine),
        }
        for use, group in GROUPS.items()
        if (mine := [question for question in questions if question.use == use])
    }


def main() -> int:
    """Compare and print; write with --write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ifeval", type=Path, default=os.environ.get("RECOVER_IFEVAL_PROMPTS"))
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/leakage.md and .json")
    options = parser.parse_args()
    splits = behaviour_prompts(seed=0)
    trained = Trained([requests(prompt) for prompt in splits.train])
    rows = {name: trained.compare([requests(p) for p in getattr(splits, name)]) for name in ("development", "test")}
    if options.ifeval:
        lines = Path(options.ifeval).read_text(encoding="utf-8").splitlines()
        rows["IFEval's own"] = trained.compare([normalise(json.loads(line)["prompt"]) for line in lines])
    asked = facts()
    parts = [f"Prompts, against {len(splits.train):,} training prompts:\n", _table(rows), ""]
    parts += [f"Questions of {QUESTIONS.parent.name}, against its training questions:\n", _table(asked)]
    body = "\n".join(parts)
    print(body)
    if options.write:
        note = (__doc__ or "").split("\n\n", 2)[2]
        machine = _report.machine(()) | {"seed": "0"}
        _report.write(
            "leakage", "Tests against training data", f"{note}\n{body}", machine, {"prompts": rows, "questions": asked}
        )
    return 0


def _table(rows: dict[str, dict[str, Any]]) -> str:
    header = ["", *next(iter(rows.values()))]
    return _report.table(header, [[name, *row.values()] for name, row in rows.items()])


if __name__ == "__main__":
    sys.exit(main())
