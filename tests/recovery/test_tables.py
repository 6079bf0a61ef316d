"""Documents, prompts and conversations from real Parquet, CSV, Arrow and ``datasets`` files, good and bad ones."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import datasets
import huggingface_hub
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

from recovery.data.corpus.documents import Corpus
from recovery.data.corpus.folder import read_corpus
from recovery.data.prompt_files import load_conversations, load_prompts
from recovery.data.prompt_records import read_rows
from recovery.data.prompts import behaviour_prompts
from recovery.data.sources import beside, parse
from recovery.errors import RecoveryError

GERMAN = "Die Fähre fährt täglich über den großen See, schöne Grüße aus dem Büro."
TEXTS = ["# Ferry\n\nThe ferry leaves at seven.", "The office opens at eight."]


def table(path: Path, **columns: Any) -> Path:
    """Write a Parquet file."""
    pq.write_table(pa.table(columns), path)
    return path


def read(source: str | Path, **settings: Any) -> Corpus:
    return read_corpus(Path(source), held_out=0, **settings)


def texts(corpus: Corpus) -> list[str]:
    return [document.text for document in corpus.documents]


def refusal(source: str | Path) -> str:
    """Return the one line with which documents are refused."""
    with pytest.raises(RecoveryError) as error:
        read(source)
    assert "\n" not in str(error.value)
    return str(error.value)


def notes(corpus: Corpus) -> str:
    return "\n".join(corpus.report.lines())


# --- names -----------------------------------------------------------------------------------------------------


def test_a_name_is_a_path_with_a_column_a_split_or_a_dataset_on_the_hub(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("a.parquet").touch()
    Path("with:colon").mkdir()
    Path("corpora").mkdir()
    assert parse("a.parquet") == parse("./a.parquet")
    assert parse("a.parquet:text").names == ("text",) and parse("a.parquet:text").path == Path("a.parquet")
    assert parse("with:colon").names == () and parse("with:colon:text").names == ("text",)
    assert parse("organisation/dataset:train:text").hub == "organisation/dataset"
    assert parse("organisation/dataset:train:text").names == ("train", "text")
    for missing in ("corpora/q1", "none", "./a/b", "none/a.parquet", "/none/a"):
        assert not parse(missing).exists and not parse(missing).hub
    with pytest.raises(RecoveryError, match="a colon is followed by"):
        parse("a.parquet:")
    assert parse("a.parquet:text").lasting == f"{tmp_path.resolve()}/a.parquet:text"
    assert beside("a.parquet:text", "probes.jsonl") == Path("a.probes.jsonl")
    assert beside("corpora", "probes.jsonl") == Path("corpora/probes.jsonl")
    assert beside("organisation/dataset", "probes.jsonl") is None


# --- documents -------------------------------------------------------------------------------------------------


def test_the_same_documents_are_the_same_corpus_in_every_format(tmp_path):
    folder = tmp_path / "markdown"
    folder.mkdir()
    for number, text in enumerate(TEXTS):
        (folder / f"{number}.md").write_text(text)
    expected = read(folder).hash
    rows = pa.table({"id": [7, 8], "text": TEXTS, "stars": [1.5, 2.0]})
    pq.write_table(rows, tmp_path / "a.parquet")
    feather.write_feather(rows, tmp_path / "a.feather")
    with pa.OSFile(str(tmp_path / "a.arrow"), "wb") as file, pa.ipc.new_stream(file, rows.schema) as writer:
        writer.write_table(rows)
    cells = [text.replace('"', '""') for text in TEXTS]
    (tmp_path / "a.csv").write_text("id,text\n" + "".join(f'{i},"{cell}"\n' for i, cell in enumerate(cells)))
    (tmp_path / "a.tsv").write_text("id\ttext\n" + "".join(f'{i}\t"{cell}"\n' for i, cell in enumerate(cells)))
    dataset = datasets.Dataset(rows)
    dataset.save_to_disk(tmp_path / "dataset", num_shards=2)
    datasets.DatasetDict({"train": dataset, "test": dataset.select([0])}).save_to_disk(tmp_path / "splits")
    for name in ("a.parquet", "a.feather", "a.arrow", "a.csv", "a.tsv", "dataset", "splits:train", "splits:train:text"):
        corpus = read(tmp_path / name)
        assert corpus.hash == expected, name
        assert corpus.documents[0].title == "Ferry"
    assert read(tmp_path / "splits:test").report.documents == 1
    assert read(tmp_path / "a.parquet").documents[0].id == "a.parquet#7"


def test_titles_and_ids_come_from_their_columns(tmp_path):
    path = table(
        tmp_path / "a.parquet",
        url=["x/1", "x/2", "x/2", None],
        title=["Boats", None, "The Ferry ", "Other"],
        body=["Wooden ones.", "Two.", "The ferry is late.", "Four."],
    )
    corpus = read(path)
    assert [(d.id, d.title) for d in corpus.documents] == [
        ("a.parquet#x/1", "Boats"),
        ("a.parquet#x/2", "a"),
        ("a.parquet#row 3", "The Ferry"),
        ("a.parquet#4", "Other"),
    ]
    assert texts(corpus) == ["Boats\n\nWooden ones.", "Two.", "The ferry is late.", "Other\n\nFour."]
    assert "a.parquet: 4 of 4 rows, texts from the column body (by its name), titles from title, ids from url" in notes(
        corpus
    )


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        (["3", "2", None, "3"], ["3", "2", "row 3", "row 4"]),
        ([None, "1", "2"], ["1", "row 2", "2"]),
        (["row 2", "row 2", "row 3"], ["row 2", "row 2'", "row 3"]),
    ],
)
def test_no_two_rows_have_the_same_id(tmp_path, ids, expected):
    path = table(tmp_path / "a.parquet", id=ids, text=[f"Text {number}." for number in range(len(ids))])
    assert [document.id for document in read(path).documents] == [f"a.parquet#{part}" for part in expected]


def test_the_column_is_guessed_or_named_and_in_doubt_refused(tmp_path):
    two = table(tmp_path / "two.parquet", a=["one"], b=["two"], n=[1])
    assert f"which column holds the texts, a or b? Name it, as in {two}:a; a table of facts" in refusal(two)
    assert texts(read(f"{two}:b")) == ["two"]
    assert "there is no column 'c'; the columns are a (string), b (string), n (int64)" in refusal(f"{two}:c")
    assert "the column 'n' holds int64, not text" in refusal(f"{two}:n")
    assert "text or content" in refusal(table(tmp_path / "both.parquet", text=["one"], content=["two"]))
    only = read(table(tmp_path / "only.parquet", id=["x"], review=["one"], n=[1]))
    assert texts(only) == ["one"] and "the column review (the only one with text)" in notes(only)
    (tmp_path / "name.csv").write_text("review;stars\ngood;5\nbad;1\n")
    assert texts(read(tmp_path / "name.csv")) == ["good", "bad"]


def test_a_folder_is_read_with_its_tables_and_those_in_doubt_are_skipped(tmp_path):
    (tmp_path / "a.md").write_text("A page.")
    table(tmp_path / "b.parquet", text=["A row."])
    table(tmp_path / "c.parquet", x=["One."], y=["Two."])
    (tmp_path / "b.probes.jsonl").write_text('{"question": "never a document"}')
    inner = datasets.Dataset.from_dict({"text": ["In a dataset."]})
    inner.save_to_disk(tmp_path / "inner")
    datasets.DatasetDict({"train": inner, "test": inner}).save_to_disk(tmp_path / "splits")
    corpus = read(tmp_path)
    assert texts(corpus) == ["A page.", "A row.", "In a dataset."]
    assert corpus.report.files == 3
    skipped = {one.path: one.reason for one in corpus.report.skipped}
    assert skipped["c.parquet"].startswith(f"which column holds the texts, x or y? Name it, as in {tmp_path}:x; ")
    assert skipped["splits"].startswith("a dataset with the splits train, test: give one alone, as in")
    assert texts(read(f"{tmp_path}:y")) == ["A page.", "Two."]
    for source in (f"{tmp_path}:wrong", f"{tmp_path}/a.md:text"):
        assert "there is no table with a column" in refusal(source)


def test_splits_have_to_be_named_if_there_are_several(tmp_path):
    one = datasets.Dataset.from_dict({"text": ["One."]})
    datasets.DatasetDict({"train": one, "test": one}).save_to_disk(tmp_path / "two")
    datasets.DatasetDict({"train": one}).save_to_disk(tmp_path / "single")
    for name in ("two", "two:none"):
        assert "name one of the splits train, test, as in" in refusal(tmp_path / name)
    assert texts(read(tmp_path / "single")) == texts(read(tmp_path / "single:text")) == ["One."]


def test_unusable_rows_are_skipped_with_their_number(tmp_path):
    offsets, data = pa.array([0, 3, 6, 9], pa.int32()).buffers()[1], pa.py_buffer(b"one\xff\xfe\xfdtwo")
    broken = pa.Array.from_buffers(pa.string(), 3, [None, offsets, data])
    corpus = read(table(tmp_path / "a.parquet", text=pa.concat_arrays([broken, pa.array([None, " \n", "one"])])))
    assert texts(corpus) == ["one", "two"]
    assert [(one.path, one.reason) for one in corpus.report.skipped] == [
        ("a.parquet row 2", "invalid UTF-8"),
        ("a.parquet row 4", "no text"),
        ("a.parquet row 5", "no text"),
        ("a.parquet#6", "the same text as an earlier one of the file"),
    ]
    long = table(tmp_path / "b.parquet", text=["short", "x" * 2_000_000])
    limited = read(long, limit_file_mb=1)
    assert texts(limited) == ["short"] and "over the limit of 1 million characters" in notes(limited)


def test_files_that_are_no_tables_are_refused(tmp_path):
    whole = table(tmp_path / "a.parquet", text=[f"Text number {i}." for i in range(2000)]).read_bytes()
    (tmp_path / "cut.parquet").write_bytes(whole[: len(whole) // 2])
    assert "not parquet, or cut off" in refusal(tmp_path / "cut.parquet")
    rows = pa.table({"text": [f"Text number {i}." for i in range(5000)]})
    with pa.OSFile(str(tmp_path / "a.arrow"), "wb") as file, pa.ipc.new_stream(file, rows.schema) as writer:
        writer.write_table(rows, max_chunksize=1000)
    stream = (tmp_path / "a.arrow").read_bytes()
    (tmp_path / "cut.arrow").write_bytes(stream[: len(stream) // 2])
    assert "damaged or cut off after row 2,000" in refusal(tmp_path / "cut.arrow")
    (tmp_path / "empty.feather").touch()
    assert "empty file" in refusal(tmp_path / "empty.feather")
    assert "a table without rows" in refusal(table(tmp_path / "none.parquet", text=pa.array([], pa.string())))
    assert "none of 2 rows can be used: row 1: no text" in refusal(
        table(tmp_path / "nulls.parquet", text=pa.array([None, ""], pa.string()))
    )
    nested = table(tmp_path / "nested.parquet", text=[["a"]], image=[b"\x89PNG"])
    assert "no column holds text; the columns are text (list<element: string>), image (binary)" in refusal(nested)
    assert "the column 'image' holds binary, not text" in refusal(f"{nested}:image")
    chat = table(tmp_path / "chat.parquet", messages=[[{"role": "user", "content": "Hello"}]])
    assert "chat, not documents (use it as --prompts)" in refusal(chat)
    twice = pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], names=["text", "text"])
    pq.write_table(twice, tmp_path / "twice.parquet")
    assert "2 columns are called 'text': rename them" in refusal(f"{tmp_path / 'twice.parquet'}:text")


def test_a_dataset_reads_only_files_in_its_own_folder(tmp_path):
    datasets.Dataset.from_dict({"text": ["Open."]}).save_to_disk(tmp_path / "own")
    secret = datasets.Dataset.from_dict({"text": ["Secret."]})
    secret.save_to_disk(tmp_path / "secret")
    file = next((tmp_path / "own").glob("*.arrow"))
    state = tmp_path / "own" / "state.json"
    named = json.loads(state.read_text())
    named["_data_files"] = [{"filename": f"../secret/{file.name}"}]
    state.write_text(json.dumps(named))
    assert "outside the folder" in refusal(tmp_path / "own")
    named["_data_files"] = [{"filename": file.name}]
    state.write_text(json.dumps(named))
    file.unlink()
    assert f"the file {file.name} is missing" in refusal(tmp_path / "own")
    file.symlink_to(tmp_path / "secret" / file.name)
    assert "outside the folder" in refusal(tmp_path / "own")
    state.write_text("{}")
    assert "is not what save_to_disk writes" in refusal(tmp_path / "own")


SPLITS = [*(json.dumps({"splits": [name]}) for name in ("..", ".", "/", "../secret", "")), "{}", "[" * 100_000]


@pytest.mark.parametrize("splits", SPLITS, ids=lambda text: text[:20])
def test_a_split_is_a_folder_of_its_own_inside_the_dataset(tmp_path, splits):
    (tmp_path / "secret.txt").write_text("Secret.")
    (tmp_path / "secret").mkdir()
    (tmp_path / "docs" / "set").mkdir(parents=True)
    (tmp_path / "docs" / "ferry.md").write_text("The ferry leaves at seven.")
    (tmp_path / "docs" / "set" / "dataset_dict.json").write_text(splits)
    assert "dataset_dict.json" in refusal(tmp_path / "docs" / "set")
    found = read(tmp_path / "docs")
    assert texts(found) == ["The ferry leaves at seven."]
    assert [one.path for one in found.report.skipped] == ["set"]


# --- CSV -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "expected", "noted"),
    [
        (b'\xef\xbb\xbftext,n\r\n"two\nlines, ""A""",1\n\nplain,2\rlast,3', ['two\nlines, "A"', "plain", "last"], ""),
        (f"text;n\n{GERMAN};1\n".encode("cp1252"), [GERMAN], "not UTF-8, read as cp1252"),
        ("text\nÜber\n".encode("utf-16"), ["Über"], ""),
        ("text\nä ö ü ß\né\n".encode() + b"a \xff b\n", ["ä ö ü ß", "é", "a \ufffd b"], "damaged UTF-8"),
        (b"text,n\nok,1\nlost,2,3\n", ["ok"], "skipped a.csv row 2: more or fewer cells than columns"),
        (b"text\n" + b"x" * 3_000_000 + b"\nshort\n", ["x" * 3_000_000, "short"], ""),
    ],
    ids=["bom-newlines-quotes", "cp1252", "utf-16", "damaged", "ragged", "long-cell"],
)  # fmt: skip
def test_csv_files_as_they_occur(tmp_path, content, expected, noted):
    (tmp_path / "a.csv").write_bytes(content)
    corpus = read(tmp_path / "a.csv")
    assert texts(corpus) == expected
    assert noted in notes(corpus)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b'text\nfirst\n"never closed\nsecond\n', "row 2 (line 4) is no CSV: unexpected end of data"),
        (b'text,n\n"He said "no" twice",1\n', "row 1 (line 2) is no CSV"),
        (b'sep=;\nText;n\n"never closed;1\n', "row 1 (line 3) is no CSV"),
        (b"text\n", "a table without rows"),
        (b"\n\n", "no line of column names"),
        (bytes(range(256)) * 4, "binary, not text"),
        (b"text,text\na,b\n", "the columns are text (text), text (text)"),
        (b"a,b\nx,y\n", "which column holds the texts, a or b?"),
        (b"a,b\n1,2\n", "no column holds text; the columns are a (number), b (number)"),
    ],
)
def test_csv_files_that_cannot_be_used(tmp_path, content, reason):
    (tmp_path / "a.csv").write_bytes(content)
    assert reason in refusal(tmp_path / "a.csv")


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.csv", "sep=;\r\nTitel;Text\r\nFähre;Sie fährt, heute\r\n", [("Fähre", "Sie fährt, heute")]),
        ("a.csv", '\ufeff"sep=;"\nTitel;Text\nFähre;Ja, sie\n', [("Fähre", "Ja, sie")]),
        ("a.csv", "SEP=|||\nTitle|Text\nFerry|At a;b, c\n", [("Ferry", "At a;b, c")]),
        ("a.tsv", "sep=\t\nTITLE\tTEXT\nFerry\tNow\n", [("Ferry", "Now")]),
        ("a.tsv", "sep=;\nTitre;Contenu\nBac;Oui\n", [("Bac", "Oui")]),
        ("a.csv", "Ort, Hafen;Titel;Text, lang;Inhalt\nVorna;Fähre;kurz;Sie fährt, heute, noch\n",
         [("Fähre", "Sie fährt, heute, noch")]),
        ("a.csv", "Ort, Hafen;Inhalt\nKai, Vorna;Ja\nKai, Lund;Nein\n", [("a", "Ja"), ("a", "Nein")]),
        ("a.csv", "Text,Note;old\nNow,x;y\nThen,z\n", [("a", "Now"), ("a", "Then")]),
        ("a.csv", "text,Text\nlower,upper\n", [("a", "lower")]),
    ],
)  # fmt: skip
def test_csv_files_as_spreadsheets_write_them(tmp_path, name, content, expected):
    (tmp_path / name).write_text(content, encoding="utf-8")
    assert [(d.title, d.text.split("\n")[-1]) for d in read(tmp_path / name).documents] == expected


@pytest.mark.parametrize("header", ["prompt;answer;key", "Prompt;Answer;KEY", "QUESTION;Output;Key"])
def test_prompts_of_a_csv_file_have_their_columns_in_any_case(tmp_path, header):
    (tmp_path / "a.csv").write_text(f"sep=;\n{header}\nWhen, and where?;At six, at pier 7;1\n")
    rows, _ = read_rows(parse(tmp_path / "a.csv"))
    question, answer, _ = header.lower().split(";")
    assert list(rows) == [(1, {question: "When, and where?", answer: "At six, at pier 7", "key": "1"})]


# --- size ------------------------------------------------------------------------------------------------------


def test_a_hundred_thousand_rows_are_read_and_what_is_skipped_is_counted(tmp_path):
    rows = [f"Text {i}." if i % 2 else None for i in range(100_000)]
    corpus = read(table(tmp_path / "a.parquet", text=rows))
    assert corpus.report.documents == 50_000
    assert len(corpus.report.lines()) < 15 and "skipped 49,992 more: no text" in corpus.report.lines()


@pytest.mark.parametrize("name", ["a.parquet", "a.csv"])
def test_a_large_file_is_read_in_little_memory(tmp_path, name):
    """The file is one row group (or a CSV file) of 100 MB with two columns; each batch is dropped after its use."""
    texts = pa.array([f"{i:08d}" * 625 for i in range(10_000)])
    if name == "a.csv":
        (tmp_path / name).write_text("text,more\n" + "".join(f"{text},{text}\n" for text in texts.to_pylist()))
    else:
        pq.write_table(
            pa.table({"text": texts, "more": texts}), tmp_path / name, compression="none", use_dictionary=False
        )
    assert (tmp_path / name).stat().st_size > 99e6
    code = (
        "import resource, sys; from pathlib import Path; from recovery.data.corpus.tables import open_table, pa;"
        "pa.array([1]); before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss;"
        "rows = sum(1 for _ in open_table(Path(sys.argv[1])).rows(['text']));"
        "print(rows, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024)"
    )
    done = subprocess.run([sys.executable, "-c", code, tmp_path / name], capture_output=True, text=True, check=True)
    rows, megabytes = map(float, done.stdout.split())
    assert rows == 10_000 and megabytes < 60


# --- the hub ---------------------------------------------------------------------------------------------------


def test_a_dataset_that_cannot_be_fetched_is_refused_in_one_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")  # nothing listens there
    expected = "organisation/dataset is no file or folder here, and as a dataset of the hub it cannot be fetched"
    assert refusal("organisation/dataset:train").startswith(expected)
    with pytest.raises(RecoveryError, match=expected):
        behaviour_prompts(None, Path("organisation/dataset"))


def test_a_dataset_is_fetched_by_the_datasets_library(tmp_path, monkeypatch):
    """``datasets`` reads a local folder as it reads a repository: only the download is missing here."""
    folder = tmp_path / "organisation" / "dataset"
    folder.mkdir(parents=True)
    table(folder / "train.parquet", text=TEXTS, question=["Why?", "When?"])
    table(folder / "test.parquet", text=["Held back."], question=["Who?"])
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    source = parse("organisation/dataset:train")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("recovery.data.corpus.folder.parse", lambda _: source)
    monkeypatch.setattr("recovery.data.prompt_files.parse", lambda _: source)
    corpus = read("organisation/dataset:train")
    assert texts(corpus) == TEXTS and corpus.documents[0].id == "organisation/dataset:train#1"
    assert [prompt.text for prompt in load_prompts(Path("organisation/dataset"))] == ["Why?", "When?"]


# --- prompts and conversations ---------------------------------------------------------------------------------

TOOLS = [
    {"type": "function", "function": {"name": name, "description": "", "parameters": {"type": "object", "properties": {
        argument: {"type": "string"}}}}}
    for name, argument in (("weather", "city"), ("time", "zone"))
]  # fmt: skip


def chat(number: int, name: str, **arguments: str) -> list[dict[str, Any]]:
    """Return a conversation with a system turn, a tool call and its result."""
    call = {"id": "call-1", "type": "function", "function": {"name": name, "arguments": arguments}}
    return [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": f"Question {number}?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "12 degrees", "tool_call_id": "call-1"},
        {"role": "assistant", "content": "12."},
    ]


CHATS = [chat(0, "weather", city="Lund"), chat(1, "time", zone="CET")]


def read_prompts(path: str | Path) -> tuple[list[Any], list[str]]:
    problems: list[str] = []
    return load_prompts(Path(path), problems=problems), problems


def test_recorded_tool_calls_are_the_same_from_every_form_of_a_table(tmp_path):
    lines = [json.dumps({"messages": messages, "tools": TOOLS}) for messages in CHATS]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    expected, _ = read_prompts(tmp_path / "a.jsonl")
    assert [m["role"] for m in expected[0].messages] == ["system", "user", "assistant", "tool"]
    assert expected[0].messages[0]["tools"] == TOOLS
    call = expected[0].messages[2]["tool_calls"][0]["function"]
    assert call == {"name": "weather", "arguments": {"city": "Lund"}}
    rows = [{"messages": messages, "tools": TOOLS} for messages in CHATS]
    datasets.Dataset.from_list(rows).to_parquet(tmp_path / "structs.parquet")  # every struct has all fields
    datasets.Dataset.from_list(rows, on_mixed_types="use_json").to_parquet(tmp_path / "json.parquet")
    datasets.Dataset.from_list(rows).save_to_disk(tmp_path / "dataset")
    strings = {"messages": [json.dumps(c) for c in CHATS], "tools": [json.dumps(TOOLS)] * 2}
    table(tmp_path / "strings.parquet", **strings)
    with (tmp_path / "a.csv").open("w", newline="") as file:
        csv.writer(file).writerows([[*strings], *zip(*strings.values(), strict=True)])
    for name in ("structs.parquet", "json.parquet", "dataset", "strings.parquet", "strings.parquet:messages", "a.csv"):
        assert read_prompts(tmp_path / name)[0] == expected, name
        conversations = load_conversations(tmp_path / name)
        assert conversations[1][-1]["content"] == "12." and conversations[1][0]["tools"] == TOOLS


def test_questions_with_answers_checks_and_tags(tmp_path):
    path = table(
        tmp_path / "a.parquet",
        question=["Write, without commas.", None, "Why?", "Why?", "Say [1, 2]."],
        answer=["Fine", "x", None, None, None],
        instruction_id_list=[["punctuation:no_comma"], [], [], [], []],
        kwargs=[[{"num_bullets": None}], [], [], [], []],
        tags=[["a"], [], [], [], []],
        notes=["unused"] * 5,
    )
    prompts, problems = read_prompts(path)
    assert [prompt.text for prompt in prompts] == ["Write, without commas.", "Why?", "Say [1, 2]."]
    assert prompts[0].answer == "Fine" and prompts[0].tags == ("a",)
    assert prompts[0].checks[0].instruction == "punctuation:no_comma" and prompts[1].answer is None
    assert problems == [
        "a.parquet: 3 prompts of 5 rows, from the column question (by its name); not read: notes",
        "a.parquet row 2: nothing in the column question",
        "a.parquet row 4: the same prompt as an earlier one",
    ]
    assert [prompt.text for prompt in read_prompts(f"{path}:notes")[0]] == ["unused"]


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"prompt": ["a"], "question": ["b"]}, "which column holds the prompts, prompt or question\\? Name it, as in"),
        ({"n": [1]}, "no column holds prompts; the columns are n .int64."),
        ({"prompt": [None, ""]}, "no usable prompt in .* \\(row 1: nothing in the column prompt\\)"),
        ({"prompt": pa.array([], pa.string())}, "a table without rows"),
        ({"messages": [["not a turn"]]}, "row 1: a message is not an object"),
        ({"messages": [[{"role": "tool", "content": "x"}]]}, "row 1: a tool's turn that follows no assistant's"),
        ({"prompt": ["a"], "tools": ["oops"]}, "row 1: tools is not a list"),
        ({"prompt": ["a"], "tools": ['[{"type": "function"}]']}, "row 1: tools has an entry without the name"),
    ],
)
def test_tables_without_usable_prompts_are_refused(tmp_path, columns, reason):
    path = table(tmp_path / "a.parquet", **columns)
    with pytest.raises(RecoveryError, match=reason) as error:
        load_prompts(path)
    assert "\n" not in str(error.value)


def test_prompts_come_from_a_folder_of_tables_and_from_a_dataset_with_splits(tmp_path):
    table(tmp_path / "train.parquet", a=[f"Question {i}?" for i in range(30)], b=["x"] * 30)
    table(tmp_path / "test.parquet", a=["Question 5?"], b=["x"])
    splits = behaviour_prompts(None, Path(f"{tmp_path}:a"))
    assert [prompt.text for prompt in splits.test] == ["Question 5?"]
    assert len(splits.train) + len(splits.development) == 29
    dataset = datasets.Dataset.from_dict({"prompt": [f"Question {i}?" for i in range(70)]})
    datasets.DatasetDict({"train": dataset, "test": dataset}).save_to_disk(tmp_path / "splits")
    found = behaviour_prompts(None, tmp_path / "splits:train")
    assert sum(map(len, (found.train, found.development, found.test))) == 70
    assert "splits:train: 70 prompts of 70 rows, from the column prompt (by its name)" in "\n".join(found.notes)
    with pytest.raises(RecoveryError, match="name one of the splits train, test"):
        behaviour_prompts(None, tmp_path / "splits")


def test_conversations_to_imitate_name_the_row_that_has_no_answer(tmp_path):
    good = {"messages": [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Yes?"}]}
    pq.write_table(pa.Table.from_pylist([good, {"messages": good["messages"][:1]}]), tmp_path / "a.parquet")
    with pytest.raises(RecoveryError, match=r"--data .*a\.parquet, row 2 has no answer to imitate"):
        load_conversations(tmp_path / "a.parquet")
    pq.write_table(pa.Table.from_pylist([good]), tmp_path / "b.parquet")
    read: list[str] = []
    assert len(load_conversations(tmp_path / "b.parquet", notes=read)) == 1
    assert read == ["b.parquet: 1 conversations, from the column messages (by its name)"]
    (tmp_path / "a.jsonl").touch()
    with pytest.raises(RecoveryError, match="is no table, so it has no column"):
        load_prompts(tmp_path / "a.jsonl:prompt")
