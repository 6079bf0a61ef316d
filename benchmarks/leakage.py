"""How near the prompts and questions of the tests are to those that are trained on.

Run: python -m benchmarks.leakage [--ifeval FILE] [--corpora FOLDER] [--show N] [--write]

Prompts: the built-in composer's splits (seed 0, as `recover distill` uses them) and, with --ifeval or
RECOVER_IFEVAL_PROMPTS, IFEval's own prompts, each compared with all training prompts by the users' words in lower case
without punctuation. "the same requests" are equal texts (dialogues in which the assistant's turn differs); "8 words in
a row" share such a run with a training prompt; "near" is the largest Jaccard similarity of runs of five words. The
composer fills templates, so its test prompts share phrases with its training prompts. Those with checkable
instructions are counted a second time: a topic, and all of a prompt's instructions together, may be trained in other
prompts. IFEval's own prompts are the test of other wordings and topics; nothing of theirs is trained on.

Written questions: those of examples/nextjs that are trained on, against those of its tests. A held-out fact is asked in
no training question; a held-out form asks a trained fact in another way.

Questions of a cycle: every question probe of a folder against all that is trained on as chat there: the questions of
the recovery, the questions and descriptions that `--augment 4` makes by rules, and those of a writer. Only chats whose
answer holds an accepted answer of the probe count as near; nearness is the Jaccard similarity of the questions' words
of more than three letters. This is written without the guard that keeps probes out of training. The miniature's
corpora are always compared (34 services, seed 0); --corpora adds a folder of corpora, such as the one that `make real`
leaves in its workspace. The miniature trains and tests the same facts in other wordings, many of them near: what is
"asked" of it is whether trained questions are answered when they are put a little differently, not whether held-out
facts are.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import _report
from evals.knowledge import GROUP
from pipelines.data.corpus_reading import gather
from pipelines.data.corpus_snapshot import CorpusSnapshot
from pipelines.data.question_splits import GROUPS, load_questions
from recovery.data.augmentation import augment
from recovery.data.corpus.text import normalise
from recovery.data.prompts import behaviour_prompts
from recovery.miniature.corpora import write_corpora
from recovery.types import Probe, Prompt

QUESTIONS = Path(__file__).resolve().parent.parent / "examples" / "nextjs" / "questions.jsonl"
LONG, SHORT = 8, 5
NEAR = (0.5, 0.7, 0.9)
WORDINGS = 4  # value of --augment


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


def instructed(prompts: Sequence[Prompt], trained: Sequence[Prompt]) -> dict[str, int]:
    """Return how many prompts with checks share their topic, or all instructions together, with a training prompt."""
    mine = [(_topic(prompt), _instructions(prompt)) for prompt in prompts if prompt.checks]
    known = {(_topic(prompt), _instructions(prompt)) for prompt in trained if prompt.checks}
    topics, combined = {topic for topic, _ in known}, {instructions for _, instructions in known}
    return {
        "n": len(mine),
        "topic is trained": sum(topic in topics for topic, _ in mine),
        "instructions are trained together": sum(instructions in combined for _, instructions in mine),
        "both in one prompt": sum(one in known for one in mine),
    }


def _topic(prompt: Prompt) -> str:
    return next((tag for tag in prompt.tags if tag.startswith("topic")), "")


def _instructions(prompt: Prompt) -> tuple[str, ...]:
    return tuple(sorted(check.instruction for check in prompt.checks))


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


def of_cycle(own: CorpusSnapshot) -> tuple[dict[str, dict[str, Any]], list[tuple[float, Probe, str]]]:
    """Return a row of counts for each group of question probes, and each probe with the nearest training question."""
    made = augment(own.documents, own.probes, wordings=WORDINGS)
    asked = [(prompt.text, prompt.answer or "") for prompt in own.questions]
    asked += [(chat[-2]["content"], chat[-1]["content"]) for chat in (*made.conversations, *made.descriptions)]
    asked += [(text.question, text.text) for text in own.texts if text.question]
    chats = [(normalise(text), _words(text), f" {normalise(answer)} ") for text, answer in asked]
    nearest: list[tuple[float, Probe, str]] = []
    groups: defaultdict[str, list[tuple[float, bool]]] = defaultdict(list)
    for probe in own.probes:
        if probe.form != "question":
            continue
        mine, accepted = _words(probe.question), [f" {normalise(answer)} " for answer in probe.answers]
        found = [(_jaccard(mine, w), text) for text, w, answer in chats if any(one in answer for one in accepted)]
        near, text = max(found, default=(0.0, ""))
        nearest.append((near, probe, text))
        held = next((tag.removeprefix(GROUP) for tag in probe.tags if tag.startswith(GROUP)), "asked")
        group = "control" if probe.control else held
        groups[group].append((near, any(normalise(probe.question) == text for text, _, _ in chats)))
    rows = {
        group: {
            "n": len(values),
            "the same wording": sum(same for _, same in values),
            **{f"near: above {bound}": sum(near > bound for near, _ in values) for bound in NEAR},
            "nearest": round(max(near for near, _ in values), 2),
        }
        for group, values in sorted(groups.items())
    }
    return rows, sorted(nearest, key=lambda one: -one[0])


def _words(text: str) -> frozenset[str]:
    return frozenset(word for word in re.findall(r"\w+", normalise(text)) if len(word) > 3)


def _jaccard(first: frozenset[str], second: frozenset[str]) -> float:
    return len(first & second) / len(first | second) if first and second else 0.0


def cycles(corpora: Path | None, show: int) -> dict[str, dict[str, Any]]:
    """Return the rows of the miniature's corpora and of every corpus in the folder; print the nearest pairs."""
    rows: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as place:
        folders = [("miniature", path) for path in write_corpora(Path(place), 3)]
        folders += [(corpora.name, path) for path in sorted(corpora.iterdir()) if path.is_dir()] if corpora else []
        for number, (name, folder) in enumerate(folders, 1):
            found, nearest = of_cycle(gather(folder, number, held_out=0.0, seed=0))
            rows |= {f"{name}/{folder.name}, {group}": row for group, row in found.items()}
            for near, probe, text in nearest[:show]:
                print(f"{near:.2f} {folder.name} {probe.question!r} -> {probe.answers[0]!r}; trained: {text!r}")
    return rows


def main() -> None:
    """Compare and print; write with --write."""
    parser = _report.parser(__doc__, "leakage")
    parser.add_argument("--ifeval", type=Path, default=os.environ.get("RECOVER_IFEVAL_PROMPTS"))
    parser.add_argument("--corpora", type=Path, help="a folder of corpora, each with its probes and questions")
    parser.add_argument("--show", type=int, default=0, help="print so many of the nearest questions of each corpus")
    options = parser.parse_args()
    splits = behaviour_prompts(seed=0)
    trained = Trained([requests(prompt) for prompt in splits.train])
    rows = {name: trained.compare([requests(p) for p in getattr(splits, name)]) for name in ("development", "test")}
    if options.ifeval:
        lines = Path(options.ifeval).read_text(encoding="utf-8").splitlines()
        rows["IFEval's own"] = trained.compare([normalise(json.loads(line)["prompt"]) for line in lines])
    shared = {name: instructed(getattr(splits, name), splits.train) for name in ("development", "test")}
    asked = facts()
    parts = [f"Prompts, against {len(splits.train):,} training prompts:\n", _table(rows), ""]
    parts += ["Prompts with checkable instructions, against the training prompts that have some:\n", _table(shared), ""]
    parts += [f"Written questions of {QUESTIONS.parent.name}, against its training questions:\n", _table(asked), ""]
    taught = cycles(options.corpora, options.show)
    parts += ["Questions of a cycle, against all chats that are trained on:\n", _table(taught)]
    body = "\n".join(parts)
    print(body)
    if options.write:
        text = f"{_report.note(__doc__)}\n{body}"
        data = {"prompts": rows, "instructed": shared, "questions": asked, "cycles": taught}
        _report.write("leakage", "Tests against training data", text, _report.machine((), seed=0), data)


def _table(rows: dict[str, dict[str, Any]]) -> str:
    header = ["", *next(iter(rows.values()))]
    return _report.table(header, [[name, *row.values()] for name, row in rows.items()])


if __name__ == "__main__":
    main()
