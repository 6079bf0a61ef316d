"""`recover facts` on the miniature's workspace: table, JSON, CSV, filters, and its errors."""

from __future__ import annotations

import csv
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from db import Tracker, queries
from db.knowledge_answers import ABOUT_RIGHT
from evals.probes import write_probes
from pipelines.cli.main import run
from recovery.types import Probe
from recovery.workspace import Workspace

Say = Callable[..., tuple[int, str, str]]
PASSAGE = "The Harbour ferry is kept by Anna Berg."
PROBES = [
    Probe("q1", "question", "Who keeps the Harbour ferry?", ("Anna Berg",), source="ferry.md", passage=PASSAGE),
    Probe("q2", "question", "The Harbour ferry\nis kept by whom?", ("Anna Berg",), source="ferry.md", passage=PASSAGE),
    Probe("q3", "question", "What is the result of the Harbour?", ("=34",), source="ferry.md"),
    Probe("q4", "question", "Where is the lighthouse?", ("Lund",), source="light.md"),
]
# By checkpoint, the probes that it answers.
RIGHT = {"base": "q4", "cycle-1/midtrained": "q1 q3 q4", "cycle-1/recovered": "q2 q4"}


@pytest.fixture
def say(small_workspace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Say:
    """``say("--cycle", 1)``: the status of `recover facts`, what it printed, and its error."""
    shutil.copytree(small_workspace, tmp_path / "w")

    def run_it(*arguments: str) -> tuple[int, str, str]:
        status = run(["facts", *arguments, "--workspace", str(tmp_path / "w")])
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    return run_it


def _measure(workspace: Workspace) -> None:
    write_probes(workspace.corpus(1) / "probes.jsonl", PROBES)
    with Tracker(workspace.database) as tracker:
        (experiment,) = queries.experiments(tracker.database)
        cycle = tracker.cycle(experiment.id, 1)
        known = {one.name: one.id for one in queries.checkpoints(tracker.database, experiment.id)}
        about: dict[str, Any] = {"path": "r", "cycle_id": cycle, "parent_id": known["cycle-1/midtrained"]}
        known["cycle-1/recovered"] = tracker.add_checkpoint(experiment.id, "cycle-1/recovered", "recovered", **about)
        for name, right in RIGHT.items():
            items = [
                {"id": one.id, "prompt": one.question, "response": "", "score": 0.0, "group": one.source,
                 "verdicts": {"contains": one.id in right.split()}, "extra": {"answers": list(one.answers)}}
                for one in PROBES
            ]  # fmt: skip
            scores: dict[str, Any] = {"value": 0.5, "stderr": 0.1, "n": len(items)}
            tracker.add_evaluation(known[name], "domain_knowledge", corpus=1, items=items, **scores)


def test_the_ledger_of_a_workspace(say: Say, tmp_path: Path) -> None:
    status, _, error = say()
    assert (status, error.count("\n"), "`recover eval`" in error) == (1, 1, True)
    _measure(Workspace(tmp_path / "w"))
    status, table, _ = say()
    assert table.startswith("in all: 3 facts: known 1, learnt 1, lost 1\n") and "light.md" not in table
    assert table.index("=34") < table.index("Anna Berg"), "lost ones first"
    assert "shown: 2 of 2 facts that were learnt or lost; all: --only, --document, --cycle, --format csv\n" in table
    lines = say("--cycle", "1")[1].splitlines()
    assert lines[0] == "in all: 3 facts: known 1, learnt 1, lost 1"
    assert lines[1:3] == ["ferry.md: 2 facts: learnt 1, lost 1", "light.md: 1 fact: known 1"]
    assert lines[-1] == ABOUT_RIGHT, "the suite's score counts by another comparison"
    assert [line.split() for line in lines if line.strip()][-4:-1] == [
        "ferry.md 1 Who keeps the Harbour ferry? Anna Berg learnt 1".split(),
        "ferry.md 1 What is the result of the Harbour? =34 lost 1".split(),
        "light.md 1 Where is the lighthouse? Lund known 1".split(),
    ]
    (_, printed, _), (_, rows, _) = say("--format", "json", "--cycle", "1"), say("--format", "csv")
    first = json.loads(printed)[0]
    assert first["wordings"] == {"q1": PROBES[0].question, "q2": PROBES[1].question}
    assert first["fates"] == [{"cycle": 1, "checkpoint": "cycle-1/recovered", "artifact": False, "fate": "learnt"}]
    assert (first["passage"], first["base"], first["midtrained"], len(first["corpus_hash"])) == (
        PASSAGE,
        False,
        True,
        64,
    )
    read = list(csv.DictReader(io.StringIO(rows)))
    assert list(read[0]) == list(first)
    assert read[1]["expected"] == "'=34"  # no formula
    assert json.loads(read[0]["fates"]) == first["fates"]


def test_filters_and_what_there_is_not(say: Say, tmp_path: Path) -> None:
    _measure(Workspace(tmp_path / "w"))
    for arguments, expected in (
        (["--only", "lost"], ["=34"]),
        (["--only", "learnt"], ["Anna Berg"]),
        (["--only", "known"], ["Lund"]),
        (["--only", "never"], []),
        (["--document", "ferry.md"], ["Anna Berg", "=34"]),
    ):
        _, printed, _ = say("--format", "json", *arguments)
        assert [one["expected"] for one in json.loads(printed)] == expected
    assert say("--only", "never")[0] == 0
    assert "did you mean ferry.md?" in say("--document", "fery.md")[2]
    assert "lists those with facts" in say("--document", "")[2]
    assert "there is no cycle 2: the only cycle is 1" in say("--cycle", "2")[2]
