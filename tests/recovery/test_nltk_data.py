"""IFEval's sentence data: found or written, never downloaded, without output."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from nltk.tokenize.punkt import PunktTokenizer

from recovery.data.checkers import prepare, write_stand_in

ROOT = Path(__file__).resolve().parents[2]

COUNT = """
from recovery.data.checkers import prepare
data = prepare()
from lm_eval.tasks.ifeval import instructions_util, instructions
print(data.real, instructions_util.count_sentences("Dr. Fox left, e.g. for tea. He came back! Did he?"))
print(instructions_util.nltk.word_tokenize("A RED fox.")[1])
"""


def run(code: str, home: Path, **env: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("NLTK_DATA", "XDG_CACHE_HOME")}
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**kept, "HOME": str(home), "PYTHONPATH": str(ROOT), **env},
        capture_output=True,
        text=True,
        check=True,
        timeout=600,
    )


def test_without_data_a_substitute_is_written_without_output(tmp_path: Path) -> None:
    finished = run(COUNT, tmp_path)
    assert finished.stdout.splitlines() == ["False 3", "RED"]
    assert "Downloaded" not in finished.stdout
    assert "nltk_data" not in finished.stderr
    assert (tmp_path / ".cache/recovery/nltk_data/tokenizers/punkt_tab/english/abbrev_types.txt").is_file()


@pytest.mark.slow
def test_the_users_own_data_is_preferred(tmp_path: Path) -> None:
    own = tmp_path / "own"
    folder = write_stand_in(own)
    (folder / "abbrev_types.txt").write_text("fox\n", encoding="utf-8")  # distinguishable from the substitute
    finished = run(COUNT, tmp_path, NLTK_DATA=str(own))
    assert finished.stdout.splitlines()[0] == "True 5"  # with these, "Dr." and "e.g." end a sentence
    assert not (tmp_path / ".cache" / "recovery").exists()


@pytest.mark.slow
def test_a_read_only_cache_does_not_matter(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("a file where the cache should be", encoding="utf-8")
    finished = run(COUNT, tmp_path, XDG_CACHE_HOME=str(blocked))
    assert finished.stdout.splitlines()[0] == "False 3"


def test_prepared_data_splits_sentences() -> None:
    data = prepare()
    assert data == prepare()
    assert Path(data.path).is_dir()
    found = PunktTokenizer("english").tokenize("Mr. Hill lives at St. John's. He has a dog. It barks.")
    assert len(found) == 3
