"""Reading of document folders: readable files are used, all others are reported with a reason."""

from __future__ import annotations

import os
import tempfile
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from recovery.data.corpus.documents import ReadReport, Skipped
from recovery.data.corpus.folder import read_corpus
from recovery.data.corpus.text import normalise, paragraphs, share, text_hash, tidy, word_count
from recovery.errors import CorpusError
from recovery.workspace import Workspace
from tests.corpus_reading import read, skipped, texts


def test_text_takes_its_title_from_the_name_or_an_underlined_heading(tmp_path):
    corpus = read(tmp_path, port_rules__txt="It opens at six.", b__rst="Harbour\n=======\n\nBoats come in.")
    assert [(d.id, d.title) for d in corpus.documents] == [("b.rst", "Harbour"), ("port_rules.txt", "port rules")]


def test_a_missing_folder_is_refused_in_one_line_and_a_single_file_is_read(tmp_path):
    with pytest.raises(CorpusError, match="no folder") as missing:
        read_corpus(tmp_path / "none")
    assert "\n" not in str(missing.value)
    (tmp_path / "a.txt").write_text("text")
    assert [d.id for d in read_corpus(tmp_path / "a.txt").documents] == ["a.txt"]


def test_an_empty_folder_and_one_without_readable_files_are_refused(tmp_path):
    with pytest.raises(CorpusError, match="is empty: put documents in it"):
        read_corpus(tmp_path)
    (tmp_path / "a.png").write_bytes(b"\x89PNG")
    (tmp_path / "b.txt").write_bytes(b"")
    with pytest.raises(CorpusError, match=r"a\.png: unsupported type \.png; b\.txt: empty file") as error:
        read_corpus(tmp_path)
    assert "\n" not in str(error.value)


def test_bad_files_are_reported_and_good_ones_used(tmp_path):
    good = "The harbour opens at six."
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "copy.txt").write_text("the   harbour opens at SIX!")
    (tmp_path / ".hidden").mkdir()
    with (tmp_path / "huge.txt").open("wb") as file:
        file.truncate(10**9)
    corpus = read(
        tmp_path,
        good__txt=good,
        binary__txt=bytes(range(256)) * 4,
        blank__md="  \n\n",
        picture__jpg=b"\xff\xd8",
        README=b"no suffix",
        questions__jsonl='{"question": "never a document"}',
        probes__jsonl='{"question": "never a document"}',
        rewritten__jsonl='{"document": "a.md", "text": "never a document"}',
    )
    assert texts(corpus) == {good}
    assert skipped(corpus) == {
        ".hidden": "hidden",
        "README": "unsupported type (no suffix)",
        "binary.txt": "binary, not text",
        "blank.md": "empty file",
        "huge.txt": "1,000 MB, over the limit of 100 MB a file",
        "inner/copy.txt": "the same text as good.txt",
        "picture.jpg": "unsupported type .jpg",
    }
    lines = corpus.report.lines()
    assert lines[0].startswith("read 1 file in ") and "1 document to train on, 0 held out, 25 characters" in lines[0]
    assert "skipped huge.txt: 1,000 MB, over the limit of 100 MB a file" in lines


def test_probes_and_questions_that_are_not_used_are_reported(tmp_path):
    (tmp_path / "inner").mkdir()
    for name in ("probes.jsonl", "questions.jsonl", "a.probes.jsonl", "inner/questions.jsonl"):
        (tmp_path / name).write_text('{"question": "never a document"}')
    assert skipped(read(tmp_path, a__md="Text.")) == {
        "a.probes.jsonl": "no document by its name: only probes.jsonl directly in the folder is used",
        "inner/questions.jsonl": "no document by its name: only questions.jsonl directly in the folder is used",
    }


def test_a_workspace_below_the_documents_is_not_read(tmp_path):
    workspace = Workspace(tmp_path / "recovery-workspace")
    workspace.corpus(1).mkdir(parents=True)
    (workspace.corpus(1) / "held_out.jsonl").write_text('{"text": "This text was held out."}\n')
    (tmp_path / "else").mkdir()
    (tmp_path / "else" / "workspace.json").write_text('{"version": 2, "projects": {}}')
    (tmp_path / "else" / "b.md").write_text("Of another program.")
    workspace.remember("miniature")
    corpus = read(tmp_path, a__md="Text.")
    assert {d.source for d in corpus.documents} == {"a.md", "else/b.md", "else/workspace.json"}
    assert skipped(corpus) == {"recovery-workspace": "a workspace of recover"}
    with pytest.raises(CorpusError, match="is a workspace of recover: give a folder of your documents alone"):
        read_corpus(workspace.folder)
    (workspace.folder / "workspace.json").rename(workspace.folder / "tracker.db")
    (tmp_path / "else" / "tracker.db").write_text("of another program")
    found = read_corpus(tmp_path, held_out=0)
    assert skipped(found)["recovery-workspace"] == "a workspace of recover" and "else/b.md" in {
        d.source for d in found.documents
    }


def test_the_file_size_limit_can_be_set(tmp_path):
    (tmp_path / "b.txt").write_text("A much longer text than the limit allows.")
    (tmp_path / "a.txt").write_text("Short text.")
    corpus = read_corpus(tmp_path, limit_file_mb=2e-5)
    assert texts(corpus) == {"Short text."}


def test_links_are_not_followed(tmp_path):
    outside = tmp_path / "outside"
    folder = tmp_path / "docs"
    for path in (outside, folder, folder / "sub"):
        path.mkdir()
    (outside / "secret.txt").write_text("Secret.")
    (folder / "sub" / "a.txt").write_text("Open text.")
    (folder / "link.txt").symlink_to(outside / "secret.txt")
    (folder / "tree").symlink_to(outside)
    (folder / "again.txt").symlink_to(folder / "sub" / "a.txt")
    (folder / "sub" / "loop").symlink_to(folder)
    (folder / "self").symlink_to(folder / "self")
    (folder / "gone.txt").symlink_to(folder / "nothing.txt")
    corpus = read_corpus(folder)
    assert texts(corpus) == {"Open text."}
    within = "symbolic link to a path inside the folder, which is read directly"
    assert skipped(corpus) == {
        "again.txt": within,
        "gone.txt": "broken symbolic link",
        "link.txt": "symbolic link to a path outside the folder",
        "self": "broken symbolic link",
        "sub/loop": within,
        "tree": "symbolic link to a path outside the folder",
    }
    (tmp_path / "alias").symlink_to(folder)
    assert texts(read_corpus(tmp_path / "alias")) == {"Open text."}


def test_a_named_pipe_is_skipped_without_blocking(tmp_path):
    os.mkfifo(tmp_path / "pipe.txt")
    corpus = read(tmp_path, a__txt="Text.")
    assert skipped(corpus) == {"pipe.txt": "not a regular file"}


@pytest.fixture
def public_folder() -> Iterator[Path]:
    """A folder that other users can enter, unlike pytest's temporary folders."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder


@contextmanager
def nobody() -> Iterator[None]:
    """Drop root privileges temporarily, since root can read every file."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_files_and_folders_without_permission_are_reported(public_folder):
    (public_folder / "open.txt").write_text("Open text.")
    (public_folder / "shut.txt").write_text("Shut text.")
    (public_folder / "closed").mkdir()
    (public_folder / "shut.txt").chmod(0)
    (public_folder / "closed").chmod(0)
    with nobody():
        corpus = read_corpus(public_folder)
    (public_folder / "closed").chmod(0o755)
    assert texts(corpus) == {"Open text."}
    assert skipped(corpus) == {
        "closed": "cannot be opened (Permission denied)",
        "shut.txt": "cannot be read (Permission denied)",
    }


def test_many_skips_with_the_same_reason_are_summarised():
    report = ReadReport("x", 1, 1, 0, 5, tuple(Skipped(f"{i}.png", "unsupported type .png") for i in range(40)))
    lines = report.lines()
    assert len(lines) == 10
    assert lines[-1] == "skipped 32 more: unsupported type .png"


def test_normal_form():
    assert normalise("  “Hello”,\n  WORLD – it’s 5 * 3. ") == "hello world - it s 5 * 3"
    assert normalise("2 + 3") != normalise("2 * 3")
    assert text_hash("A b") == text_hash("a  B!") != text_hash("a c")
    assert 0 <= share("a", "x") < 1
    assert share("a", "x") == share("A", "x") != share("a", "y")


def test_words_are_counted_where_none_are_divided_by_spaces():
    assert word_count("The port - it's open.") == 5
    assert word_count("我") == 1
    assert word_count("使用 npm 安装服务器") == 4
    assert word_count("항구는 여섯 시에 엽니다.") == 4


def test_tidy_and_paragraphs():
    assert tidy(unicodedata.normalize("NFD", "Café Müller")) == "Café Müller"
    assert tidy("\ufeffa \r\nb\r\n\n\n\nc\f") == "a\nb\n\nc"
    assert paragraphs("a\nb\n  \n\nc\n") == ["a\nb", "c"]
