"""A file of questions is split into the files of a corpus; broken lines are reported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from evals.probes import load_probes
from pipelines.data.question_splits import load_questions, write_corpus_files
from recovery.data.prompt_files import load_prompts
from recovery.errors import UsageError


def line(id: str, use: str = "train", **changed: Any) -> dict[str, Any]:
    record = {
        "id": id,
        "fact": id.rsplit("-", 1)[0],
        "corpus": "harbour",
        "page": "ferries.md",
        "use": use,
        "form": "when",
        "question": f"When does ferry {id} leave?",
        "answers": ["7:15", "a quarter past seven"],
    }
    return record | changed


def write(path: Path, *lines: dict[str, Any] | str) -> Path:
    path.write_text("".join((entry if isinstance(entry, str) else json.dumps(entry)) + "\n" for entry in lines))
    return path


def test_a_corpus_gets_its_probes_and_questions(tmp_path: Path) -> None:
    path = write(
        tmp_path / "all.jsonl",
        line("f1-a"),
        line("f1-b", "test-form", form="which"),
        line("f2-a", "test", passage="Ferry 2 leaves at 7:15"),
        line("c1-a", "test", control=True, subject="ferry 9"),
        line("g1-a", corpus="market"),
    )
    assert write_corpus_files(path, "harbour", tmp_path / "new") == (3, 1)
    form, fact, control = load_probes(tmp_path / "new" / "probes.jsonl")
    assert (form.id, form.form, form.source) == ("f1-b", "question", "ferries.md")
    assert form.answers == ("7:15", "a quarter past seven")
    assert "group:held-out form" in form.tags and "group:held-out fact" in fact.tags
    assert fact.passage == "Ferry 2 leaves at 7:15"
    assert control.control and not [tag for tag in control.tags if tag.startswith("group:")]
    (prompt,) = load_prompts(tmp_path / "new" / "questions.jsonl")
    assert (prompt.text, prompt.kind, prompt.answer) == ("When does ferry f1-a leave?", "knowledge", "7:15")
    with pytest.raises(UsageError, match="nothing about the corpus 'docks': name one of harbour, market"):
        write_corpus_files(path, "docks", tmp_path)


def test_a_part_of_a_corpus_is_asked_about_its_pages_and_the_controls_alone(tmp_path: Path) -> None:
    path = write(
        tmp_path / "all.jsonl",
        line("f1-a"),
        line("f2-a", "test"),
        line("f3-a", "test", page="trams.md"),
        line("f4-a", "test", page="trains.md", control=True),
    )
    folder = tmp_path / "part"
    folder.mkdir()
    (folder / "ferries.md").write_text(
        "# Ferries\n\n"
        + "\n\n".join(
            f"The old ferry of {name} leaves from pier {pier} of the harbour at dawn, and carries {pier * 7} crates."
            for pier, name in enumerate(("Marlow", "Tessel", "Ostrava", "Quillan", "Bergen", "Lissa", "Doorn"), 11)
        )
    )
    write_corpus_files(path, "harbour", folder, pages=["ferries.md"])
    probes = load_probes(folder / "probes.jsonl")
    assert [probe.id for probe in probes if probe.form == "question"] == ["f2-a", "f4-a"]
    choices = [probe for probe in probes if probe.form == "choice"]
    assert choices, "what is stored is measured too, in the documents' own sentences"
    assert {probe.source for probe in choices} == {"ferries.md"}


def test_a_newer_version_of_the_documents_is_asked_in_the_same_words(tmp_path: Path) -> None:
    """With the same fact, use and form; else a question that is trained on would be a test of another corpus."""
    asked = {"question": "When does the ferry leave?", "fact": "f1"}
    first = line("f1-a", **asked)
    again = line("f1-b", **asked, corpus="later", answers=["8:15"])
    assert [q.answers[0] for q in load_questions(write(tmp_path / "all.jsonl", first, again))] == ["7:15", "8:15"]
    for change in ({"corpus": "harbour"}, {"fact": "f2"}, {"use": "test"}, {"form": "which"}):
        with pytest.raises(UsageError, match="line 2: an earlier line asks the same in the same words"):
            load_questions(write(tmp_path / "all.jsonl", first, again | change))
    with pytest.raises(UsageError, match="line 3: an earlier line asks the same in the same words"):
        load_questions(write(tmp_path / "all.jsonl", first, again, again | {"id": "f1-c"}))


BROKEN = {
    "not valid JSON": '{"id": ',
    "not an object": "[1]",
    'no text under "question"': line("f8-a", question=" "),
    'use is "exam"': line("f8-a", "exam"),
    "not a list of strings": line("f8-a", answers="7:15"),
    "empty once punctuation is left out": line("f8-a", answers=["**"]),
    "more than 6 words": line("f8-a", answers=["at a quarter past seven in the morning"]),
    "neither true nor false": line("f8-a", control="no"),
    'a control question has the use "test"': line("f8-a", control=True),
    'the id "f1-a" is taken': line("f1-a", question="Whose ferry?"),
    "the same in the same words": line("f8-a", question="when does the ferry F1-A leave"),
    'the fact "f1" is asked both in training and as a held-out fact': line("f1-c", "test", form="which"),
    'the fact "f2" is asked both in training and as a held-out fact': line("f2-c"),
    'trained and tested in the form "when"': line("f1-c", "test-form"),
    'no training question asks the fact "f8"': line("f8-a", "test-form"),
}


@pytest.mark.parametrize("reason", BROKEN)
def test_a_line_that_cannot_be_used_is_named(tmp_path: Path, reason: str) -> None:
    path = write(tmp_path / "all.jsonl", line("f1-a"), line("f2-a", "test"), BROKEN[reason], line("f3-a"))
    with pytest.raises(UsageError) as caught:
        load_questions(path)
    message = str(caught.value)
    assert str(path) in message and "line 3: " in message and reason in message and "\n" not in message
    assert "more such lines" not in message, "the other lines can be used"


def test_files_with_nothing_to_use_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read"):
        load_questions(tmp_path / "none.jsonl")
    with pytest.raises(UsageError, match="holds no question"):
        load_questions(write(tmp_path / "empty.jsonl", ""))
    with pytest.raises(UsageError, match=r"line 1: .* \(and 1 more such lines\)"):
        load_questions(write(tmp_path / "broken.jsonl", "{", "{"))
    (tmp_path / "taken").write_text("")
    with pytest.raises(UsageError, match=r"probes\.jsonl cannot be written"):
        write_corpus_files(write(tmp_path / "all.jsonl", line("f1-a")), "harbour", tmp_path / "taken")
