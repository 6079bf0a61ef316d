"""Hostile documents, prompts and probes: a share of the cases of tests/torture, and the faults that they found."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import zipfile
import zlib
from pathlib import Path

import pytest

from evals.probes import load_probes
from pipelines.data.corpus_reading import gather
from recovery.data.corpus import readers
from recovery.data.corpus.json_lines import load_json
from recovery.data.corpus.readers import UnreadableError, read_file
from recovery.data.prompt_files import load_prompts
from recovery.errors import RecoveryError, UsageError, printable
from tests.torture.corpus import run
from tests.torture.hostile_files import GOOD, docx, pdf, text_page

ROOT = Path(__file__).resolve().parents[2]
PROBE = json.dumps({"question": "Who keeps ferry 3?", "answers": ["Anna Berg"]})


def test_prompts_that_do_not_fit_into_memory_are_one_line(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(b"a" * (64 << 20))
    # In a new process: this one may hold enough memory that earlier tests have freed, which the limit does not count.
    code = (
        "import sys; from pathlib import Path; from recovery.data.prompt_files import load_prompts; "
        "from recovery.limits import memory_limit\n"
        "with memory_limit(96 << 20): load_prompts(Path(sys.argv[1]))"
    )
    run = subprocess.run([sys.executable, "-c", code, str(path)], cwd=ROOT, capture_output=True, text=True)
    assert "UsageError" in run.stderr and "its 64 MiB need more memory than there is; split it" in run.stderr


def test_a_share_of_the_hostile_cases() -> None:
    outcome = run(0, 0.0, lambda _: None, large=False, every=97)
    assert sum(outcome.tried.values()) > 10
    assert outcome.faults == []


def test_messages_and_names_are_one_printable_line(tmp_path: Path) -> None:
    assert str(RecoveryError("a\nb\x1b[2J\u202ec\u2028d\udcff é東")) == "a\\nb\\x1b[2J\\u202ec\\u2028d\\udcff é東"
    assert len(printable("x" * 10_000)) < 2000
    (tmp_path / "a\nb\x1b[2J.md").write_text(GOOD)
    (tmp_path / os.fsdecode(b"c\xff.md")).write_bytes(b"\x00\x01")
    found = gather(tmp_path, 1, held_out=0.0, seed=0)
    assert found.documents[0].id == "a\\nb\\x1b[2J.md"
    assert "skipped c\\udcff.md: binary, not text" in found.lines


@pytest.mark.parametrize("kind", ["pipe", "folder", "link"])
@pytest.mark.parametrize("name", ["probes.jsonl", "questions.jsonl"])
def test_files_beside_documents_are_regular_and_in_their_folder(tmp_path: Path, name: str, kind: str) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "a.md").write_text(GOOD)
    (tmp_path / "outside.jsonl").write_text(PROBE)
    if kind == "pipe":
        os.mkfifo(docs / name)
    elif kind == "folder":
        (docs / name).mkdir()
    else:
        (docs / name).symlink_to(tmp_path / "outside.jsonl")
    with pytest.raises(UsageError, match="outside the folder" if kind == "link" else "not a regular file"):
        gather(docs, 1, held_out=0.0, seed=0)


def test_a_link_within_the_folder_is_used(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text(GOOD)
    (tmp_path / "mine.probes.jsonl").write_text(PROBE)
    (tmp_path / "probes.jsonl").symlink_to("mine.probes.jsonl")
    assert [p.question for p in gather(tmp_path, 1, held_out=0.0, seed=0).probes] == ["Who keeps ferry 3?"]


def test_a_pipe_is_never_waited_for(tmp_path: Path) -> None:
    for suffix in (".jsonl", ".csv", ".parquet"):
        os.mkfifo(tmp_path / f"a{suffix}")
        with pytest.raises(UsageError, match="not a regular file"):
            load_prompts(tmp_path / f"a{suffix}")
    with pytest.raises(UsageError, match="not a regular file"):
        load_probes(tmp_path / "a.jsonl")


@pytest.mark.parametrize(
    ("field", "reason"),
    [({"tags": True}, "tags is not a list"), ({"instruction_id_list": 1e308}, "instruction_id_list is not a list")],
)
def test_values_of_a_wrong_type_are_named(tmp_path: Path, field: dict[str, object], reason: str) -> None:
    (tmp_path / "a.jsonl").write_text(
        f"{json.dumps({'prompt': 'Say it.'})}\n{json.dumps({'prompt': 'Now.'} | field)}\n"
    )
    problems: list[str] = []
    assert len(load_prompts(tmp_path / "a.jsonl", problems=problems)) == 1
    assert reason in problems[0]


def test_half_of_a_surrogate_pair_is_no_text(tmp_path: Path) -> None:
    assert load_json('"\\ud83d\\ude00 \\\\ud800"') == "\U0001f600 \\ud800"
    (tmp_path / "a.jsonl").write_text('{"prompt": "a \\ud800"}\n{"prompt": "b"}\n')
    problems: list[str] = []
    assert [p.text for p in load_prompts(tmp_path / "a.jsonl", problems=problems)] == ["b"]
    assert "half of a surrogate pair" in problems[0]
    with pytest.raises(UnreadableError, match="half of a surrogate pair"):
        read_file("a.json", b'{"text": "\\udfff"}')
    with pytest.raises(json.JSONDecodeError):
        load_json("1" * 5000)


def test_files_that_explode_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "_LARGEST_XML", 100_000)
    monkeypatch.setattr(readers, "_LARGEST_UNPACKED", 1_000_000)
    assert read_file("a.docx", docx("<w:p><w:r><w:t>Short.</w:t></w:r></w:p>", {"word/a.png": b"x" * 200_000})).pieces
    for more in ({"word/a.xml": b" " * 200_000}, {"word/a.png": b" " * 2_000_000}):
        with pytest.raises(UnreadableError, match="unpacks to"):
            read_file("a.docx", docx("<w:p/>", more))
    with zipfile.ZipFile(io.BytesIO(docx("<w:p/>"))) as archive:
        assert archive.testzip() is None


def test_a_library_that_does_not_end_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    def forever(*_: object) -> str:
        while True:
            pass

    monkeypatch.setattr(readers, "_SECONDS", 0.2)
    monkeypatch.setattr(readers, "read_page", forever)
    with pytest.raises(UnreadableError, match="seconds of processor time"):
        read_file("a.pdf", pdf(text_page()))


def test_markup_that_never_ends_takes_linear_time(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("> " * 50_000 + GOOD + "[" * 100_000 + "(" * 100_000)
    assert gather(tmp_path, 1, held_out=0.0, seed=0).documents
    assert read_file("b.md", f"# Ferry{' ' * 100_000}7".encode()).pieces[0].title.endswith(" 7")


@pytest.mark.parametrize(
    ("content", "filters", "what"),
    [
        (b"BT /F1 12 Tf " + b"(a) Tj " * 50_001 + b"ET", "/FlateDecode", "50,000 objects"),
        (b"BT /F1 12 Tf " + b"[(a)] TJ " * 50_001 + b"ET", "/FlateDecode", "50,000 objects"),
        (b"BT /F1 12 Tf (" + b"a " * 300_000 + b") Tj ET", "/FlateDecode", "500,000 letters"),
        (b"BT /F1 12 Tf <" + b"61" * 2_100_000 + b"> Tj ET", "/FlateDecode", "500,000 letters"),
        (b"BT /F1 12 Tf (" + b"a " * 1_100_000 + b") Tj ET", "[/FlateDecode /FlateDecode]", "500,000 letters"),
        (b"BT /F1 12 Tf " + b"(a) Tj " * 50_001 + b"ET", "[]", "50,000 objects"),
    ],
)
def test_a_pdf_that_draws_too_much_text_is_refused_before_its_page_is_opened(
    content: bytes, filters: str, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PDFium would take gigabytes for it, and end the process where there are none."""
    monkeypatch.setattr(pytest.importorskip("pypdfium2"), "PdfDocument", None)
    data = zlib.compress(zlib.compress(content)) if filters.count("Flate") == 2 else content
    with pytest.raises(UnreadableError, match=f"a PDF page of more than {what}"):
        read_file("a.pdf", pdf(data, filters=filters))
