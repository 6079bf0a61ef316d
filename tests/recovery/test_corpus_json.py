"""JSON and JSON Lines documents: records, wrapped documents, and records that are none."""

from __future__ import annotations

import json

import pytest

from recovery.data.corpus.readers import UnreadableError, read_file
from tests.corpus_reading import read, skipped, texts


def test_deeply_nested_html_and_json_are_read(tmp_path):
    deep = "<div>" * 1000 + "The bottom is reached." + "</div>" * 1000
    nest = "[" * 500 + '"The innermost text"' + "]" * 500
    corpus = read(tmp_path, a__html=deep, b__json=nest, c__json="[" * 200_000 + "]" * 200_000)
    assert texts(corpus) == {"The bottom is reached.", "The innermost text"}
    assert "not valid JSON" in skipped(corpus)["c.json"]


def test_json_records_become_documents(tmp_path):
    lines = [
        json.dumps({"title": "One", "text": "First text."}),
        "{broken",
        json.dumps({"question": "Who?", "answer": "Mira", "no": None}),
        json.dumps("A bare string."),
        json.dumps({"messages": [{"role": "user", "content": "hi"}]}),
        json.dumps({"text": "  "}),
    ]
    whole = json.dumps({"title": "Whole", "body": "One document."})
    corpus = read(tmp_path, a__jsonl="\n".join(lines), b__json=whole, c__json='{"a": {"b": [1, 2]}}', d__json="{")
    documents = {d.id: d for d in corpus.documents}
    assert documents["a.jsonl#1"].text == "One\n\nFirst text."
    assert documents["a.jsonl#1"].title == "One"
    assert documents["a.jsonl#3"].text == "question: Who?\nanswer: Mira"
    assert documents["a.jsonl#4"].text == "A bare string."
    assert documents["b.json"].text == "Whole\n\nOne document."
    assert documents["c.json"].text == "a.b: 1\na.b: 2"
    assert skipped(corpus)["a.jsonl line 2"].startswith("not valid JSON")
    assert skipped(corpus)["a.jsonl record 5"] == "chat, not a document (use it as --prompts)"
    assert any(s.path == "d.json" and "line 1" in s.reason for s in corpus.report.skipped)


def test_documents_in_an_object_and_json_lines_in_a_json_file_are_read_one_by_one(tmp_path):
    wrapped = {"count": 2, "documents": [{"title": "One", "text": "The cat sat."}, {"title": "Two", "text": "It ran."}]}
    whole = {"title": "Whole", "text": "One text.", "parts": [{"text": "Part."}]}
    settings = {"servers": [{"body": "x", "port": 1}], "paths": {"/a": 2}}
    thread = {"title": "Press", "about": "It was built in 1921 by Ada Holm in Ulm.", "reviews": [{"body": "Loud."}]}
    lines = '{"text": "First line."}\n{broken\n{"text": "Second line."}\n'
    files = {"a__json": json.dumps(wrapped), "b__json": json.dumps(whole), "c__json": json.dumps(settings)}
    corpus = read(tmp_path, **files, d__json=lines, e__json="[\n{},\n{}\n", f__json=json.dumps(thread))
    assert {d.id: d.text for d in corpus.documents} == {
        "a.json#1": "One\n\nThe cat sat.",
        "a.json#2": "Two\n\nIt ran.",
        "b.json": "Whole\n\nOne text.",
        "c.json": "servers.body: x\nservers.port: 1\npaths./a: 2",
        "d.json#1": "First line.",
        "d.json#3": "Second line.",
        "f.json": "title: Press\nabout: It was built in 1921 by Ada Holm in Ulm.\nreviews.body: Loud.",
    }
    assert skipped(corpus)["e.json"].startswith("not valid JSON")


@pytest.mark.parametrize("empty", [{"text": ""}, {"text": None}, {"content": " \n", "text": None}])
def test_a_record_whose_text_is_empty_is_no_document(empty):
    lines = [{"title": "Ferry", "id": 1, "url": "http://x/y"} | empty, {"body": "It leaves at seven."} | empty]
    found = read_file("a.jsonl", "\n".join(map(json.dumps, lines)).encode())
    assert [piece.text for piece in found.pieces] == ["It leaves at seven."]
    assert found.skipped == [("record 1", "no text")]
    with pytest.raises(UnreadableError, match="record 1: no text"):
        read_file("a.json", json.dumps(lines[0]).encode())
    nested = {"text": {"en": "It leaves.", "de": None}, "body": ""}
    assert read_file("a.json", json.dumps(nested).encode()).pieces[0].text == "text.en: It leaves."


def test_many_skipped_records_and_lines_are_a_few_lines_of_the_summary(tmp_path):
    lines = [json.dumps({"text": f"Ferry {n} has {n * 7} seats." if n % 3 else ""}) for n in range(300)]
    corpus = read(tmp_path, a__jsonl="\n".join([*lines, *["{broken"] * 100]))
    assert len(corpus.report.lines()) == 1 + 2 * 9
    assert "skipped 92 more: no text" in corpus.report.lines()


def test_probes_under_another_name_are_no_documents(tmp_path):
    probe = {"question": "Who keeps it?", "answers": ["Mira"], "passage": "Mira keeps it."}
    lines = [json.dumps(probe), json.dumps(probe | {"text": "A text with a question."}), json.dumps({"text": "Text."})]
    thread = {"question": "How is it cleaned?", "answers": [{"text": "With vinegar."}]}
    corpus = read(
        tmp_path, draft__jsonl="\n".join(lines), probes__json=json.dumps([probe, probe]), c__json=json.dumps(thread)
    )
    asked = "question: How is it cleaned?\nanswers.text: With vinegar."
    assert texts(corpus) == {"A text with a question.", "Text.", asked}
    assert skipped(corpus)["draft.jsonl record 1"] == "a probe, not a document"
    assert skipped(corpus)["probes.json"].startswith("record 1: a probe, not a document")
