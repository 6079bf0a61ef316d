"""The snapshot of a cycle's documents: the same for every later stage, even if the folder changes."""

from __future__ import annotations

import json
import os
import random
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from evals.probes import PROBES_FILE, write_probes
from pipelines.data.corpus_reading import gather, questions_of
from pipelines.data.corpus_snapshot import load_snapshot, load_snapshots, save_snapshot, saved_snapshots
from pipelines.data.probe_build import make, read_sources
from pipelines.distillation.resolve import _questions
from pipelines.experiments.arm_cycle import _hash
from pipelines.midtraining.material import open_cycle
from pipelines.runtime.session import Session
from recovery.config import DistillConfig
from recovery.data.rewritten_texts import RewrittenText
from recovery.data.sources import QUESTIONS_FILE
from recovery.errors import CorpusError
from recovery.workspace import Workspace
from tests.pipelines.conftest import Bench, MakeCorpus


def test_what_is_frozen_is_read_back_unchanged(corpus: Path, tmp_path: Path) -> None:
    workspace = Workspace(tmp_path / "w")
    frozen = gather(corpus, 1, held_out=0.0, seed=0)
    save_snapshot(workspace, frozen)
    shutil.rmtree(corpus)
    assert load_snapshot(workspace, 1) == frozen
    assert frozen.documents
    assert frozen.probes
    assert frozen.questions
    assert load_snapshots(workspace, [1, 2]) == {1: frozen}


def test_a_snapshot_is_on_the_disk_before_it_takes_the_place_of_another(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace, synced = Workspace(tmp_path / "w"), set[tuple[int, bool]]()
    frozen = gather(corpus, 1, held_out=0.0, seed=0)
    save_snapshot(workspace, frozen)
    folder = workspace.corpus(1)
    old = (folder / "corpus.json").stat().st_ino
    monkeypatch.setattr(
        os,
        "fsync",
        lambda handle: synced.add((os.fstat(handle).st_ino, (folder / "corpus.json").stat().st_ino == old)),
    )
    save_snapshot(workspace, frozen)
    assert {(path.stat().st_ino, True) for path in (folder, *folder.iterdir())} <= synced
    assert (folder.parent.stat().st_ino, False) in synced
    assert [path.name for path in folder.parent.iterdir()] == ["cycle-1"]


def test_files_beside_the_documents_take_the_place_of_what_would_be_made(corpus: Path) -> None:
    probe = {"question": "Who keeps ferry 3?", "answers": ["Anna Berg"]}
    asked = {"question": "Name the keeper of ferry 7.", "answer": "Otto Finch"}
    (corpus / "probes.jsonl").write_text(json.dumps(probe) + "\n")
    (corpus / "questions.jsonl").write_text(json.dumps(asked) + "\n")
    frozen = gather(corpus, 2, held_out=0.0, seed=0)
    assert [p.question for p in frozen.probes] == ["Who keeps ferry 3?"]
    assert [q.text for q in frozen.questions] == ["Name the keeper of ferry 7."]
    assert frozen.questions[0].kind == "knowledge"
    assert "1 probes from probes.jsonl, in place of generated ones" in frozen.lines


def test_documents_in_a_table_are_the_same_corpus_with_files_beside_the_table(corpus: Path, tmp_path: Path) -> None:
    pages = gather(corpus, 1, held_out=0.2, seed=0)
    table, column = tmp_path / "pages.parquet", [path.read_text() for path in sorted(corpus.glob("*.md"))]
    pq.write_table(pa.table({"text": column}), table)
    rows = gather(Path(f"{table}:text"), 1, held_out=0.2, seed=0)
    assert (rows.hash, rows.folder) == (pages.hash, f"{table}:text")
    assert {(p.question, p.answers) for p in rows.probes} == {(p.question, p.answers) for p in pages.probes}
    (tmp_path / "pages.probes.jsonl").write_text(json.dumps({"question": "Who keeps it?", "answers": ["Anna"]}) + "\n")
    assert [p.question for p in gather(table, 1, held_out=0.2, seed=0).probes] == ["Who keeps it?"]


def test_a_probe_that_the_documents_answer_themselves_is_reported(corpus: Path) -> None:
    (corpus / "faq.md").write_text("# FAQ\n\nWho keeps the big ferry of Cork? Anna Berg keeps it on every day.\n")
    lines = [
        {"question": "Who keeps the big ferry of Cork?", "answers": ["Anna Berg"]},
        {"question": "Who paints the big ferry of Cork?", "answers": ["Otto Finch"]},
    ]
    (corpus / "probes.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    frozen = gather(corpus, 1, held_out=0.0, seed=0)
    assert len(frozen.probes) == 2
    assert "1 probes stand in the documents, question and answer: check them" in frozen.lines


def test_no_generated_probe_asks_what_a_given_question_asks(tmp_path: Path) -> None:
    rows = "".join(
        f"| `winch{name}` | {1370 + 7 * n} |\n" for n, name in enumerate(("Speed", "Load", "Depth", "Width"))
    )
    (tmp_path / "winch.md").write_text(f"# Winch\n\n| Option | Default |\n| --- | --- |\n{rows}")
    made = [p for p in gather(tmp_path, 1, held_out=0.0, seed=0).probes if p.form == "question"]
    asked = {p.question.rpartition("?")[0] + "?": p.answers[0] for p in made}  # without "Give the value only."
    lines = [json.dumps({"question": question, "answer": answer}) for question, answer in asked.items()]
    (tmp_path / "questions.jsonl").write_text("\n".join(lines))
    frozen = gather(tmp_path, 1, held_out=0.0, seed=0)
    assert len(frozen.questions) == len(asked) > 0
    assert all(probe.absent for probe in frozen.probes), "what no document holds is still asked about"
    assert f"{len(made)} probes ask what questions.jsonl asks in other words: left out" in frozen.lines
    with pytest.raises(CorpusError, match="no probe can be made"):
        make(read_sources(tmp_path, None, seed=0), count=10, seed=0)
    write_probes(tmp_path / "probes.jsonl", made)
    frozen = gather(tmp_path, 1, held_out=0.0, seed=0)
    assert frozen.probes == tuple(made)
    assert any(line.startswith(f"{len(made)} probes ask what") and "measure facts" in line for line in frozen.lines)


def test_what_an_earlier_corpus_holds_is_not_asked_about_as_absent(tmp_path: Path) -> None:
    """Generated near misses are searched for in the texts of this and every earlier cycle, those of a file too."""
    names = [f"{first}{last}" for first in ("winch", "rope", "crane", "barge") for last in ("Speed", "Load", "Depth")]
    rows = "".join(f"| `{name}` | {1370 + 7 * n} |\n" for n, name in enumerate(names))
    new, old = tmp_path / "new", tmp_path / "old"
    for folder in (new, old):
        folder.mkdir()
    (new / "winch.md").write_text(
        f"# harbour.config\n\n| Option | Default |\n| --- | --- |\n{rows}| `tideGauge` | 8 |\n"
    )

    def absent(**given: Any) -> set[str]:
        found = gather(new, 2, held_out=0.0, seed=0, **given)
        return {probe.absent for probe in found.probes if probe.absent}

    first = absent()
    held = next(name for name in sorted(first) if name.isidentifier())
    (old / "harbour.md").write_text(f"# Harbour\n\nOnce there was an option `{held}` for the old winches.\n")
    before = {1: gather(old, 1, held_out=0.0, seed=0)}
    assert held not in absent(before=before)
    write_probes(new / "probes.jsonl", gather(new, 2, held_out=0.0, seed=0).probes)
    assert absent() == first and absent(before=before) == first - {held}
    lines = gather(new, 2, held_out=0.0, seed=0, before=before).lines
    assert "left out 1 near misses of probes.jsonl: a document holds what they ask about" in lines


def test_nothing_is_asked_about_text_that_is_held_out(make_corpus: MakeCorpus) -> None:
    folder = make_corpus("Orchid")
    for number in range(30):
        text = f"The Orchid pier number {number} was built by Lena Hall and holds {300 + number} lamps of brass."
        (folder / f"pier-{number}.md").write_text(f"# Pier {number}\n\n{text}\n")
    everything = gather(folder, 1, held_out=0.0, seed=0)
    write_probes(folder / "probes.jsonl", everything.probes)
    frozen = gather(folder, 1, held_out=0.3, seed=5)
    hidden = {d.id for d in frozen.held_out}
    assert hidden & {p.source for p in everything.probes}
    assert frozen.probes and not hidden & {p.source for p in frozen.probes}
    assert any("about text that is held out" in line for line in frozen.lines)


def test_own_probes_and_questions_about_held_out_documents_are_left_out_by_their_source(tmp_path: Path) -> None:
    names = [f"city{n}.md" for n in range(40)]
    for n, name in enumerate(names):
        (tmp_path / name).write_text(f"# City {n}\n\nThe mayor of Zeppo{n} is Anna{n}, elected in {1900 + n}.\n")
    probes = [{"question": f"Who is the mayor of Zeppo{n}?", "answers": [f"Anna{n}"]} for n in range(40)]
    asked = [{"question": f"When was Anna{n} elected?", "answer": str(1900 + n)} for n in range(40)]
    control = {"question": "Who rules the moon?", "answers": ["none"], "control": True}
    rows = [probe | {"source": name} for probe, name in zip([*probes, *[control] * 40], names * 2, strict=True)]
    rows = [row | {"id": str(number)} for number, row in enumerate(rows)]
    (tmp_path / "probes.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    tagged = [line | {"tags": [f"document:{name}"]} for line, name in zip(asked, names, strict=True)]
    (tmp_path / "questions.jsonl").write_text("".join(json.dumps(line) + "\n" for line in tagged))
    frozen = gather(tmp_path, 1, held_out=0.1, seed=0)
    hidden = {document.id for document in frozen.held_out}
    assert hidden
    assert {p.source for p in frozen.probes if not p.control} == set(names) - hidden
    assert {p.source for p in frozen.probes if p.control} == set(names)
    assert {tag for q in frozen.questions for tag in q.tags} == {f"document:{n}" for n in names if n not in hidden}
    assert f"left out {len(hidden)} questions about held-out documents" in frozen.lines


def test_probes_changed_after_the_cycle_began_are_refused(corpus: Path, tmp_path: Path) -> None:
    workspace = Workspace(tmp_path / "w")
    save_snapshot(workspace, gather(corpus, 1, held_out=0.0, seed=0))
    kept = workspace.corpus(1) / "probes.jsonl"
    kept.write_text("\n".join(kept.read_text().splitlines()[1:]) + "\n")
    with pytest.raises(CorpusError, match="probes.jsonl was changed after cycle 1 began"):
        load_snapshot(workspace, 1)


@pytest.mark.parametrize("name", ["documents.jsonl", "held_out.jsonl", "questions.jsonl", "rewritten.jsonl"])
def test_a_file_changed_after_the_cycle_began_is_named(corpus: Path, tmp_path: Path, name: str) -> None:
    workspace = Workspace(tmp_path / "w")
    saved = gather(corpus, 1, held_out=0.0, seed=0)
    text = RewrittenText(saved.documents[0].id, "A ferry.")
    save_snapshot(workspace, replace(saved, held_out=saved.documents[:1], texts=(text,)))
    kept = workspace.corpus(1) / name
    whole = kept.read_bytes()
    at = len(whole) // 2
    kept.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    with pytest.raises(CorpusError, match=f"{name} was changed after cycle 1 began: restore the file"):
        load_snapshot(workspace, 1)
    kept.write_bytes(whole)
    assert load_snapshot(workspace, 1).texts == (text,)


def test_a_cycle_without_documents_is_named(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="documents of cycle 3 cannot be read"):
        load_snapshot(Workspace(tmp_path), 3)


def test_questions_of_one_cycle_are_not_the_probes_of_another(tmp_path: Path) -> None:
    text = "# Ferry\n\nThe second boat of the day carries 340 passengers to Rostvik. The crew has 19 sailors aboard.\n"
    table = "\n| Option | Default |\n| --- | --- |\n| `winchSpeed` | 1370 |\n| `cargoLimit` | 1710 |\n"
    probes = {
        "made": [{"question": "Which edition is it?", "answers": ["the 2nd"]}],
        "given": [
            {"question": "Where do the passengers of the other boat go?", "answers": ["to Rostvik"]},
            {"question": "How fast is winchSpeed set at first?", "answers": ["about 1370"]},
        ],
        "other": [{"question": "Where does it  leave", "answers": ["the quay"]}],
    }
    for name, lines in probes.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.md").write_text(text + table)
        records = [json.dumps({"form": "question", **line}) for line in lines]
        (tmp_path / name / PROBES_FILE).write_text("\n".join(records))
    given = [{"question": "Where does it leave?", "answer": "quay"}, {"question": "How many sailors?", "answer": "19"}]
    (tmp_path / "given" / QUESTIONS_FILE).write_text("\n".join(map(json.dumps, given)))
    corpora = {k: gather(tmp_path / name, k, held_out=0.0, seed=0) for k, name in enumerate(probes, 1)}
    alone = questions_of({1: corpora[1]})[1]
    assert alone == list(corpora[1].questions)
    assert {p.answer for p in alone} == {"340", "Rostvik", "1370", "1710"}
    found = questions_of(corpora)
    assert found[1] == [p for p in alone if p.answer in ("340", "1710")]
    assert [p.text for p in found[2]] == ["How many sailors?"]
    notes: list[str] = []
    assert _questions(DistillConfig(), corpora, corpora, notes)[2] == found[2]
    assert "1 of 2 questions about the documents of cycle 2 left out: probes of other cycles ask them" in notes


def test_documents_of_a_cycle_that_are_gone_are_named_once(
    session: Session, bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    """They were left out of rehearsal, questions and measures, and nothing said so."""
    open_cycle(session, bench.midtraining())
    assert saved_snapshots(session, [1, 2]).keys() == {1}
    shutil.rmtree(session.workspace.corpus(1))
    assert saved_snapshots(session, [1, 2]) == {} == saved_snapshots(session, [1])
    told = " ".join(capsys.readouterr().err.split())
    assert told.count("the documents of cycle 1 are missing in") == 1 and "cycle 2" not in told


def test_a_later_cycle_holds_out_the_newer_versions_of_what_an_earlier_one_holds_out(
    session: Session, bench: Bench, tmp_path: Path
) -> None:
    found = {}
    for number, last in enumerate(("first", "second", "third"), start=1):
        (docs := tmp_path / last).mkdir()
        for page in range(24):
            words = [f"word{random.Random(page * 200 + n).randrange(3000)}" for n in range(100)]
            (docs / f"{page}.md").write_text(" ".join([*words, last]))
        config = bench.midtraining(docs=docs, held_out=0.1, seed=number)
        own = open_cycle(session, config, number)
        found[number] = {document.id for document in own.held_out}
        assert load_snapshot(session.workspace, number).after == tuple(range(1, number))
        assert _hash(session, config, own) == own.hash
    assert found[1] and found[1] == found[2] == found[3]
