"""`recover probes`: built from a folder, reviewed, changed; an error is one line and writes nothing."""

from __future__ import annotations

import json
import pydoc_data.topics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from evals.probes import NEAR_MISS, load_probes, probes_hash, write_probes
from pipelines.cli.main import run
from pipelines.data.corpus_reading import gather
from recovery.types import Probe

Call = Callable[..., str]


@pytest.fixture(scope="module")
def topics(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some of Python's own help topics as a folder of text files."""
    folder = tmp_path_factory.mktemp("topics")
    for name in ("compound", "debugger", "exprlists", "types", "execmodel", "calls"):
        (folder / f"{name}.txt").write_text(pydoc_data.topics.topics[name], encoding="utf-8")
    rows = "".join(f"| `sluice.gate{n}` | `{7 * n + 3}` |\n" for n in range(90))
    (folder / "gates.md").write_text(f"# Gates\n\n| Option | Default |\n|---|---|\n{rows}", encoding="utf-8")
    return folder


@pytest.fixture
def invoke(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Call:
    """``invoke("build", ...)``: run `recover probes` in an empty folder and return its output."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: object) -> str:
        capsys.readouterr()
        assert run(["probes", *map(str, arguments)]) == 0
        return capsys.readouterr().out

    return call


@pytest.fixture
def refused(refused: Call) -> Call:
    """``refused("build", ...)``: run `recover probes` in an empty folder; return the one line it was refused with."""
    return partial(refused, "probes")


# --- build ---------------------------------------------------------------------------------------------------


def test_build_writes_probes_of_every_form_and_says_how_many(invoke: Call, topics: Path, tmp_path: Path) -> None:
    result: dict[str, Any] = json.loads(invoke("build", "--docs", topics, "--out", "a.jsonl", "--count", 120, "--json"))
    probes = load_probes(tmp_path / "a.jsonl")
    known = [p for p in probes if p.form != NEAR_MISS]
    assert result["probes"] == len(probes) == len(known) + 30 and len(known) == 120
    assert result["hash"] == probes_hash(probes)
    assert {(p.form, p.tags[-1]) for p in known} == {("choice", "cloze"), ("choice", "title"), ("question", "natural")}
    assert all(p.passage and p.source for p in probes)
    text = invoke("build", "--docs", topics, "--out", "b.jsonl", "--count", 120)
    assert "150 probes (" in text and "recover probes review b.jsonl" in text
    assert (tmp_path / "b.jsonl").read_bytes() == (tmp_path / "a.jsonl").read_bytes()
    invoke("build", "--docs", topics, "--out", "c.jsonl", "--count", 120, "--seed", 1)
    assert (tmp_path / "c.jsonl").read_bytes() != (tmp_path / "a.jsonl").read_bytes()


def test_build_names_the_files_that_it_skips(
    invoke: Call, topics: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    docs, control = tmp_path / "docs", tmp_path / "control"
    for folder, names in ((docs, ("compound", "types")), (control, ("calls",))):
        folder.mkdir()
        for name in names:
            (folder / f"{name}.txt").write_bytes((topics / f"{name}.txt").read_bytes())
    (docs / "empty.md").touch()
    (docs / "photo.png").write_bytes(b"\x89PNG")
    (control / "cut.pdf").write_bytes(b"%PDF-1.4")
    assert run(["probes", "build", "--docs", str(docs), "--control", str(control), "--dry-run", "--json"]) == 0
    told = capsys.readouterr()
    assert json.loads(told.out)["documents"] == 2
    for line in ("skipped empty.md: empty file", "skipped photo.png: unsupported type .png", "skipped cut.pdf: "):
        assert line in told.err


def test_probes_beside_the_documents_are_what_a_cycle_asks(invoke: Call, topics: Path, tmp_path: Path) -> None:
    folder = tmp_path / "docs"
    folder.mkdir()
    for file in topics.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    made = gather(folder, 1, held_out=0.05, seed=0)
    assert {"cloze", "title", "natural"} == {p.tags[-1] for p in made.probes if p.form != NEAR_MISS}
    invoke("build", "--docs", folder)
    taken = gather(folder, 1, held_out=0.05, seed=0)
    assert taken.probes == made.probes
    assert taken.hash == made.hash  # probes.jsonl is no document
    assert taken.questions == made.questions


def test_control_probes_are_about_other_documents(invoke: Call, topics: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    for name in ("strings", "import", "objects", "exprlists"):  # the last one is trained on
        (other / f"{name}.txt").write_text(pydoc_data.topics.topics[name], encoding="utf-8")
    text = (topics / "gates.md").read_text(encoding="utf-8").replace("sluice", "weir")
    (other / "weirs.md").write_text(text, encoding="utf-8")
    result = json.loads(
        invoke("build", "--docs", topics, "--control", other, "--out", "a.jsonl", "--count", 100, "--json")
    )
    control = [p for p in load_probes(tmp_path / "a.jsonl") if p.control]
    assert result["control"] == len(control) == 20
    assert {p.source for p in control} <= {"strings.txt", "import.txt", "objects.txt", "weirs.md"}


def test_a_dry_run_writes_nothing(invoke: Call, topics: Path, tmp_path: Path) -> None:
    plan = json.loads(invoke("build", "--docs", topics, "--out", "a.jsonl", "--dry-run", "--json"))
    assert plan["documents"] == 7 and plan["sentences"] > 100 and plan["count"] == 400
    assert "up to 400 probes about 7 documents" in invoke("build", "--docs", topics, "--out", "a.jsonl", "--dry-run")
    assert list(tmp_path.iterdir()) == []


def test_a_writer_that_cannot_write_is_reported_and_no_gap_takes_its_place(
    invoke: Call, topics: Path, tmp_path: Path, tiny_model: Path
) -> None:
    command = ["build", "--docs", topics, "--out", "a.jsonl", "--writer", "base", "--model", tiny_model]
    dry = json.loads(invoke(*command, "--count", 10, "--dry-run", "--json"))
    assert dry["writer"] == "base" and dry["passages"] == 10
    text = invoke(*command, "--count", 10)
    assert "base wrote 0 questions" in text and "a larger model may write more" in text
    assert len(load_probes(tmp_path / "a.jsonl")) == 12, "two of them about what no document holds"


def test_what_cannot_be_built_is_said_before_any_work(
    refused: Call, topics: Path, tmp_path: Path, tiny_model: Path
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "vague").mkdir()
    (tmp_path / "vague" / "a.txt").write_text("so it goes, on and on")
    (tmp_path / "mine.jsonl").write_text("mine")
    assert "no folder or file nowhere" in refused("build", "--docs", "nowhere")
    assert "no folder or file nowhere" in refused("build", "--docs", topics, "--control", "nowhere")
    assert "empty" in refused("build", "--docs", "empty")
    assert "no probe can be made" in refused("build", "--docs", "vague")
    assert "exists already" in refused("build", "--docs", topics, "--out", "mine.jsonl")
    assert "is a folder" in refused("build", "--docs", topics, "--out", "vague")
    assert "there is no folder" in refused("build", "--docs", topics, "--out", "none/a.jsonl")
    assert "only documents of" in refused("build", "--docs", topics, "--control", topics, "--out", "a.jsonl")
    assert "no control probe" in refused("build", "--docs", topics, "--control", "vague", "--out", "a.jsonl")
    nobody = ["build", "--docs", topics, "--out", "a.jsonl", "--writer", "nobody", "--model", tiny_model]
    assert "there is no checkpoint 'nobody'" in refused(*nobody)
    assert (tmp_path / "mine.jsonl").read_text() == "mine"
    assert not (tmp_path / "a.jsonl").exists()


def test_force_replaces_the_file(invoke: Call, topics: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.jsonl").write_text("mine")
    invoke("build", "--docs", topics, "--out", "mine.jsonl", "--force", "--count", 20)
    assert len(load_probes(tmp_path / "mine.jsonl")) == 25


# --- review --------------------------------------------------------------------------------------------------

PORT = Probe("port", "question", "What is the port?", ("8443",), source="it.md", passage="The port is 8443.")
DOCK = Probe(
    "dock", "choice", "# Docks\n\nThere are ", ("18",), ("18", "24", "35"), "docks.md", tags=("number", "cloze")
)
KEYS = Probe("keys", "question", "Who has the keys?", ("Anna",), control=True)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "probes.jsonl"
    write_probes(path, [PORT, DOCK, KEYS])
    return path


def test_review_shows_what_a_person_has_to_judge(invoke: Call, file: Path, tmp_path: Path) -> None:
    text = invoke("review", file)
    for part in ("port ", "What is the port?", "8443", "it.md", "The port is 8443.", "24 | 35", "docks.md", "control"):
        assert part in text
    assert "3 probes (" in text and probes_hash([PORT, DOCK, KEYS])[:12] in text
    assert "What is the port?" in invoke("review", "--docs", tmp_path, "--show", 1)
    assert "docks.md" not in invoke("review", file, "--show", 2)
    drawn = [json.loads(invoke("review", file, "--random", "--seed", s, "--show", 1, "--json")) for s in range(8)]
    assert len({d["probes"][0]["id"] for d in drawn}) > 1
    assert load_probes(file) == [PORT, DOCK, KEYS]


def test_review_shows_questions_first(invoke: Call, tmp_path: Path) -> None:
    path = tmp_path / "probes.jsonl"
    write_probes(path, [DOCK, KEYS, PORT])
    ids = [probe["id"] for probe in json.loads(invoke("review", path, "--json"))["probes"]]
    assert ids == ["port", "keys", "dock"] and load_probes(path) == [DOCK, KEYS, PORT]


def test_probes_are_dropped_and_added_and_both_counts_reported(invoke: Call, file: Path, tmp_path: Path) -> None:
    added = tmp_path / "more.jsonl"
    added.write_text('{"question": "Where is the lamp?", "answer": "Pier 4"}\n{broken\n', encoding="utf-8")
    result = json.loads(invoke("review", file, "--drop", "port", "--add", added, "--json"))
    assert (result["before"]["probes"], result["after"]["probes"]) == (3, 3)
    assert result["before"]["hash"] == probes_hash([PORT, DOCK, KEYS])
    assert result["after"]["hash"] == probes_hash(load_probes(file)) != result["before"]["hash"]
    assert any("more.jsonl line 2" in problem for problem in result["problems"])
    assert [p.question for p in load_probes(file)] == [DOCK.question, KEYS.question, "Where is the lamp?"]
    assert "before: 3 probes" in invoke("review", file, "--drop", "keys")
    assert result["doubts"] == []
    added.write_text('{"id": "told", "question": "Is the lamp at Pier 4?", "answer": "Pier 4"}\n', encoding="utf-8")
    assert "look again: told: its question contains its answer" in invoke("review", file, "--add", added)


def test_bad_lines_are_named_and_the_rest_shown(invoke: Call, file: Path) -> None:
    file.write_text(file.read_text() + "{broken\n")
    text = invoke("review", file)
    assert "not used: probes.jsonl line 4" in text and "What is the port?" in text
    assert file.read_text().endswith("{broken\n")  # nothing was changed, so nothing is written


def test_what_cannot_be_reviewed_is_refused_and_the_file_stays(refused: Call, file: Path, tmp_path: Path) -> None:
    before = file.read_bytes()
    write_probes(tmp_path / "clash.jsonl", [Probe("port", "question", "Another?", ("1",))])
    assert "cannot read" in refused("review", "none.jsonl")
    assert "no folder or file nowhere" in refused("review", "--docs", "nowhere")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.md").touch()
    assert "there is no docs/probes.jsonl yet: `recover probes build --docs docs`" in refused(
        "review", "--docs", "docs"
    )
    assert "name one file" in refused("review")
    assert "name one file" in refused("review", file, "--docs", tmp_path)
    assert 'no probe "nope"' in refused("review", file, "--drop", "nope")
    assert 'the id "port"' in refused("review", file, "--add", tmp_path / "clash.jsonl")
    assert "nothing would be left" in refused("review", file, "--drop", "port", "--drop", "dock", "--drop", "keys")
    assert file.read_bytes() == before
