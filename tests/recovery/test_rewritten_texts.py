"""Texts about documents, in a file beside them."""

from __future__ import annotations

from pathlib import Path

import pytest

from recovery.data.corpus.documents import Document
from recovery.data.document_questions import ProbeGuard
from recovery.data.rewritten_texts import RewrittenText, read_texts, write_texts, writer_questions
from recovery.errors import UsageError
from recovery.types import Probe

DOCUMENTS = [
    Document("a.md", "A", "A text.", "a.md"),
    Document("table.jsonl#1", "One", "The first.", "table.jsonl"),
    Document("table.jsonl#2", "Two", "The second.", "table.jsonl"),
]
HELD_OUT = [Document("late.md", "Late", "A late text.", "late.md")]


def read(path: Path, text: str) -> tuple[tuple[RewrittenText, ...], list[str]]:
    problems: list[str] = []
    path.write_text(text)
    return read_texts(path, DOCUMENTS, HELD_OUT, problems), problems


def test_a_text_names_a_document_or_the_file_that_holds_it_alone(tmp_path: Path) -> None:
    lines = [
        ("a.md", "Of the first. "),
        ("table.jsonl#2", "Of a record."),
        ("a.md", "Of the first."),
        ("late.md", "No."),
    ]
    path = tmp_path / "rewritten.jsonl"
    texts, problems = read(path, "".join(f'{{"document": "{name}", "text": "{text}"}}\n' for name, text in lines))
    assert texts == (RewrittenText("a.md", "Of the first."), RewrittenText("table.jsonl#2", "Of a record."))
    assert problems == ["rewritten.jsonl: left out 1 texts about held-out documents"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"document": "a.md"}', "line 2: text is missing or empty"),
        ('{"document": "a.md", "text": " "}', "line 2: text is missing or empty"),
        ('{"document": 3, "text": "Of a number."}', "line 2: document is missing or empty"),
        ("[]", "line 2: not an object with document and text"),
        ('{"document": "a.md", "text": "Of it again.", "question": " "}', "line 2: question is empty or not text"),
        ('{"document": "a.md", "text": "Of it again.", "question": 3}', "line 2: question is empty or not text"),
        ("no JSON", "line 2: not valid JSON"),
        ('{"document": "b.md", "text": "Of another."}', "line 2: no document is called 'b.md'"),
        ('{"document": "table.jsonl", "text": "Of which?"}', "line 2: no document is called 'table.jsonl'"),
        ('{"document": "a.md", "text": "' + "long " * 1000 + '"}', "a text of more than 4,000 characters: split it"),
    ],
)
def test_a_line_that_cannot_be_used_is_told_and_the_others_are_used(tmp_path: Path, line: str, said: str) -> None:
    texts, problems = read(tmp_path / "rewritten.jsonl", f'{{"document": "a.md", "text": "Of it."}}\n{line}\n')
    assert texts == (RewrittenText("a.md", "Of it."),)
    assert len(problems) == 1 and said in problems[0] and "\n" not in problems[0]


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not a regular file"):
        read_texts(tmp_path, DOCUMENTS, HELD_OUT, [])


def test_a_text_may_answer_a_question_which_is_asked_unless_a_probe_asks_it(tmp_path: Path) -> None:
    texts = (
        RewrittenText("a.md", "Of it."),
        RewrittenText("a.md", "The ferry of Great Marle leaves at 7:15.", "When can I leave Great Marle by ferry?"),
        RewrittenText("a.md", "The harbour closes at noon.", "WHEN does the harbour close"),
        RewrittenText("a.md", "It is Ada Stone.", "What is the name of the captain who sails the ferry?"),
        RewrittenText("a.md", "Yes, Ada Stone is the captain.", "Is Ada Stone the name of the captain of the ferry?"),
        RewrittenText("a.md", "It is blue.", "Which colour has the captain of the ferry chosen?"),
    )
    path = tmp_path / "rewritten.jsonl"
    write_texts(path, texts)
    assert path.read_text().splitlines()[0] == '{"document": "a.md", "text": "Of it."}'
    assert read(path, path.read_text()) == (texts, [])
    probes = [
        Probe("1", "question", "When does the harbour close?", ("noon",)),
        Probe("2", "question", "What is the name of the captain of the ferry?", ("Ada Stone",)),
        Probe("3", "question", "Who is the captain of the ferry?", ("Ada Stone",)),
    ]
    asked = writer_questions([*texts, texts[1]], ProbeGuard(probes))
    assert [(prompt.text, prompt.answer) for prompt in asked] == [
        (texts[1].question, texts[1].text),
        (texts[5].question, texts[5].text),
    ]
    assert {prompt.kind for prompt in asked} == {"knowledge"}
