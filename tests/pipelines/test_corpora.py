"""A cycle's documents, frozen: the same for every later stage, whatever becomes of the folder."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from pipelines.corpora import freeze, gather, thaw, thaw_all
from recovery.errors import CorpusError
from recovery.workspace import Workspace


def test_what_is_frozen_is_read_back_unchanged(corpus: Path, tmp_path: Path) -> None:
    workspace = Workspace(tmp_path / "w")
    frozen = gather(corpus, 1, held_out=0.0, seed=0)
    freeze(workspace, frozen)
    shutil.rmtree(corpus)
    assert thaw(workspace, 1) == frozen
    assert frozen.documents
    assert frozen.probes
    assert frozen.questions
    assert thaw_all(workspace, [1, 2]) == {1: frozen}


def test_files_beside_the_documents_take_the_place_of_what_would_be_made(corpus: Path) -> None:
    probe = {"question": "Who keeps ferry 3?", "answers": ["Anna Berg"]}
    asked = {"question": "Name the keeper of ferry 7.", "answer": "Otto Finch"}
    (corpus / "probes.jsonl").write_text(json.dumps(probe) + "\n")
    (corpus / "questions.jsonl").write_text(json.dumps(asked) + "\n")
    frozen = gather(corpus, 2, held_out=0.0, seed=0)
    assert [p.question for p in frozen.probes] == ["Who keeps ferry 3?"]
    assert [q.text for q in frozen.questions] == ["Name the keeper of ferry 7."]
    assert frozen.questions[0].kind == "knowledge"
    assert any("probes.jsonl" in line for line in frozen.lines)


def test_probes_changed_after_the_cycle_began_are_refused(corpus: Path, tmp_path: Path) -> None:
    workspace = Workspace(tmp_path / "w")
    freeze(workspace, gather(corpus, 1, held_out=0.0, seed=0))
    kept = workspace.corpus(1) / "probes.jsonl"
    kept.write_text("\n".join(kept.read_text().splitlines()[1:]) + "\n")
    with pytest.raises(CorpusError, match="changed after it began"):
        thaw(workspace, 1)


def test_a_cycle_without_documents_is_named(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="documents of cycle 3 cannot be read"):
        thaw(Workspace(tmp_path), 3)
