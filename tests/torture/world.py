"""The small cycle that the campaigns disturb, how it is begun and continued, and what it must leave behind."""

from __future__ import annotations

import contextlib
import gc
import hashlib
import json
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import torch

from tests.models import make_tiny
from tests.torture.process import Ended, recover
from tests.torture.traps import Trap

RECIPE = """
[model]
precision = "float32"
tuning = "{tuning}"
[midtrain]
steps = 4
batch_tokens = 64
row_length = 32
checkpoint_every = 2
max_new_tokens = 4
fewest_questions = 0
[distill]
steps = 3
prompts_per_step = 4
samples_per_prompt = 1
max_new_tokens = 4
checkpoint_every = 1
until = 0
token_views = 1
[eval]
limit = 2
max_new_tokens = 4
question_tokens = 2
"""
DOCUMENT = """# The {0} ferry

The {0} ferry is kept by Anna Berg in the town of Lund and carries 34{1} passengers.

It was built in the year 193{1} by the yard of Otto Finch, who built four others.
"""
# Curves of times and memory, and columns of the tracker that differ between two runs.
VARYING = ("second", "memory", "tokens_per")
WORKSPACE = "workspace"
BEGIN = (
    *f"cycle --model model --docs corpus --recipe small.toml --prompts prompts --workspace {WORKSPACE}".split(),
    *("--gate", "ifeval >= 0.1*base", "--gate-samples", "2", "--gate-extend", "0"),
)
RESUME = ("resume", "--workspace", WORKSPACE)
NOTHING = ("nothing in", "there is no workspace")


@dataclass(frozen=True)
class World:
    """A folder for the tries, with the documents and settings; ``whole`` is what an undisturbed cycle leaves, and
    ``counts`` how often each kind of event happens in it, and ``seconds`` how long it takes; ``tuning`` is full or
    lora."""

    folder: Path
    whole: dict[str, Any]
    counts: dict[str, int]
    seconds: float
    tuning: str = "full"

    def place(self, name: str) -> Path:
        """Return a new folder with the documents and settings."""
        folder = self.folder / name
        shutil.rmtree(folder, ignore_errors=True)
        furnish(folder, self.tuning)
        return folder


@contextlib.contextmanager
def world(model: Path | None = None, tuning: str = "full") -> Iterator[World]:
    """Make a temporary world: run the cycle once in this process, to load all that is loaded on demand, and once
    watched. ``model`` is the folder of the clean model, by default a tiny one that is made."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="torture-") as temporary:
        folder = Path(temporary).resolve()
        if model is None:
            make_tiny("qwen3", folder / "model")
        else:
            (folder / "model").symlink_to(model.resolve(strict=True))
        first, second = furnish(folder / "first", tuning), furnish(folder / "whole", tuning)
        _in_this_process(first)
        gc.collect()
        gc.freeze()  # a forked process would look through all that was imported each time a stage ends
        ended = recover(BEGIN, second, Trap(second / WORKSPACE))
        if ended.status:
            raise RuntimeError(f"the undisturbed cycle ended with {ended.status}: {ended.err[-1000:]}")
        yield World(folder, left_by(second / WORKSPACE), dict(ended.counts), ended.seconds, tuning)


def furnish(folder: Path, tuning: str = "full") -> Path:
    """Write the documents and the settings into a folder."""
    (folder / "corpus").mkdir(parents=True)
    (folder / "model").symlink_to(folder.parent / "model")
    for number, name in enumerate(("Harbour", "Orchid")):
        (folder / "corpus" / f"{name.lower()}.md").write_text(DOCUMENT.format(name, number))
    (folder / "small.toml").write_text(RECIPE.format(tuning=tuning))
    (folder / "prompts").mkdir()
    for split in ("train", "development", "test"):
        checked = {"instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]}
        prompts = [{"key": f"{split}-{n}", "prompt": f"Name boat {n} of {split}."} | checked for n in range(4)]
        (folder / "prompts" / f"{split}.jsonl").write_text("".join(json.dumps(one) + "\n" for one in prompts))
    return folder


def _in_this_process(folder: Path) -> None:
    from pipelines.cli.main import run

    before = Path.cwd()
    os.chdir(folder)
    try:
        with (folder / "out").open("w") as out, contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            status = run(BEGIN)
            assert run(RESUME) == 1, "nothing is left to resume"
    finally:
        os.chdir(before)
    assert status == 0, (folder / "out").read_text()


def on(database: str) -> tuple[str, ...]:
    """Return the option that names the tracker: an address, or "" for the workspace's own."""
    return ("--database", database) if database else ()


def go_on(folder: Path, trap: Trap | None = None, database: str = "") -> list[Ended]:
    """Continue the cycle as a user would: `recover resume`, and the first command again if there is nothing to resume.

    ``trap`` is for the first command. The last one's status is 0 if the cycle came to its end.
    """
    begin, resume = (*BEGIN, *on(database)), (*RESUME, *on(database))
    done = [recover(resume, folder, trap)]
    if done[-1].status < 0:
        done.append(recover(resume, folder))
    if done[-1].error.partition("error: ")[2].startswith(NOTHING):
        done.append(Ended(0, "", "") if is_complete(folder / WORKSPACE, database) else recover(begin, folder))
    return done


def faults_of(world: World, folder: Path, done: list[Ended], database: str = "") -> list[str]:
    """Return what is wrong after commands that must have brought the cycle to its end."""
    faults = [ended.complaint for ended in done if ended.complaint]
    if done[-1].status:
        return [*faults, f"the cycle did not go on: status {done[-1].status}: {done[-1].error or done[-1].err[-300:]}"]
    try:
        return faults + differences(world.whole, left_by(folder / WORKSPACE, database))
    except sqlite3.Error as error:
        return [*faults, f"the cycle came to its end with status 0, and its tracker cannot be read: {error}"]


def is_complete(workspace: Path, database: str = "") -> bool:
    """Whether the tracker has a decision about the cycle, made or left to a person, and no plan is left."""
    decisions = "SELECT count(*) FROM event WHERE kind IN ('decision', 'gate_left')"
    try:
        with _tracker(workspace, database) as tracker:
            decided = tracker.execute(decisions).fetchone()[0]
    except (sqlite3.Error, psycopg.Error):
        return False
    return bool(decided) and not (workspace / "plan.json").exists()


def left_by(workspace: Path, database: str = "") -> dict[str, Any]:
    """Return all that two runs of one cycle must have in common: weights, files, points, scores, samples, events."""
    with _tracker(workspace, database) as tracker:
        rows = {name: tracker.execute(query).fetchall() for name, query in _QUERIES.items()}
        rows["integrity"] = [] if database else tracker.execute("PRAGMA integrity_check").fetchall()
    rows["points"] = [row for row in rows["points"] if not any(word in row[1] for word in VARYING)]
    rows["files"] = sorted(
        str(path.relative_to(workspace))
        for path in workspace.rglob("*")
        if not path.name.endswith(("-wal", "-shm")) and path.parent.name != "cache"
    )
    rows["cache"] = sorted(path.name for path in (workspace / "cache").iterdir() if not path.name.startswith("answers"))
    rows["weights"] = [
        (str(path.relative_to(workspace)), hashlib.sha256(path.read_bytes()).hexdigest())
        for path in sorted(workspace.rglob("*.safetensors"))
    ]
    return rows


def differences(whole: dict[str, Any], found: dict[str, Any]) -> list[str]:
    """Return one line for each part in which two results differ."""
    lines = []
    for name in whole:
        if whole[name] == found.get(name):
            continue
        one, other = (list(map(_text, side)) for side in (whole[name], found.get(name, [])))
        lost = [row for row in one if one.count(row) > other.count(row)]
        more = [row for row in other if other.count(row) > one.count(row)]
        lines.append(f"{name}: lost {lost[:3]}, more {more[:3]}"[:600])
    return lines


def _tracker(workspace: Path, database: str) -> contextlib.closing[Any]:
    """Open the tracker: the workspace's own, or the one at an address of PostgreSQL."""
    return contextlib.closing(psycopg.connect(database) if database else sqlite3.connect(workspace / "tracker.db"))


def _text(value: object) -> str:
    return json.dumps(value, default=str)[:160]


# Stages and cycles are numbered in their order: PostgreSQL leaves out the ids of transactions that failed.
_NUMBER = "(SELECT count(*) FROM {0} t WHERE t.id <= {1}.{0}_id)"
_QUERIES = {
    "stages": "SELECT kind, status, steps_done, steps_total, stopped, error, tokens_sampled, tokens_scored, "
    "tokens_trained FROM stage ORDER BY id",
    "checkpoints": "SELECT name, kind, content_hash, path, tuning FROM checkpoint ORDER BY name",
    "latest": "SELECT c.name FROM latest l JOIN checkpoint c ON c.id = l.checkpoint_id",
    "points": f"SELECT {_NUMBER.format('stage', 's')}, s.name, p.step, p.value FROM metric_point p "
    "JOIN metric_series s ON s.id = p.series_id ORDER BY 1, 2, 3",
    "series": f"SELECT {_NUMBER.format('stage', 's')}, s.name, s.last_step FROM metric_series s ORDER BY 1, 2",
    "evaluations": "SELECT c.name, e.suite, e.name, e.corpus, e.value, e.n FROM evaluation e JOIN checkpoint c "
    "ON c.id = e.checkpoint_id ORDER BY 1, 2, 3, 4",
    "samples": "SELECT c.name, e.suite, e.corpus, s.item, s.prompt, s.response, s.score FROM sample s JOIN evaluation "
    "e ON e.id = s.evaluation_id JOIN checkpoint c ON c.id = e.checkpoint_id ORDER BY 1, 2, 3, 4",
    "tokens": f"SELECT {_NUMBER.format('stage', 's')}, step, item, prompt, tokens FROM token_scores s ORDER BY 1, 2, 3",
    "decisions": f"SELECT decision, {_NUMBER.format('cycle', 'd')} FROM decision d ORDER BY id",
    "events": "SELECT kind, level, message FROM event ORDER BY id",
    "cycles": "SELECT number, corpus_hash FROM cycle ORDER BY 1",
    "work": "SELECT purpose FROM work",
}
