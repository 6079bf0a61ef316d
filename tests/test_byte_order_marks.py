"""Byte-order marks: what a command reads as text is the same with one, with two, and where files were joined."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dashboard.access import Users, add_user
from evals.instruction_following import judge_file, read_ifeval
from evals.probes import load_probes, review, save
from pipelines.cli.ask import _text_of
from pipelines.distillation.inputs import context_of
from pipelines.evaluation.acceptance import _names_of
from pipelines.evaluation.importing import lm_eval_results
from pipelines.evaluation.plan import TASKS, _own_tasks
from pipelines.experiments.example import read_tables
from recovery.config import DistillConfig, read_recipe
from recovery.data.corpus.folder import read_corpus
from recovery.data.prompt_files import load_prompts
from recovery.errors import UsageError
from recovery.text_files import MARK, read_text

_TEXT = "The ferry of Vorna leaves pier 7 at six."
_IFEVAL = {"prompt": "Write a word.", "instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]}
_LETTER = f"Subject: The ferry\nContent-Type: text/plain\n\n{_TEXT}\n"
_BOOK = {"cells": [{"cell_type": "markdown", "source": _TEXT}], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
_LM_EVAL = {"results": {}, "model_name": "m"}


def _lines(*records: dict[str, Any]) -> tuple[str, ...]:
    return tuple(f"{json.dumps(record)}\n" for record in records)


def _documents(path: Path) -> Any:
    return [(document.title, document.text) for document in read_corpus(path, held_out=0).documents]


def _after_review(path: Path) -> Any:
    save(review(path, show=0, drawn=False, seed=0, drop=["b"]))
    return path.read_text()


def _task_is_refused(path: Path) -> Any:
    (path.parent / TASKS).mkdir(parents=True)
    path.rename(path.parent / TASKS / path.name)
    model = SimpleNamespace(path=path.parent)
    session: Any = SimpleNamespace(base=model, workspace=SimpleNamespace(models=path.parent / "models"))
    with pytest.raises(UsageError, match="the task mine is defined in the model's folder"):
        _own_tasks(session, ["mine"])


# What is read, the file's name, and its parts, between which a mark may stand.
READ: dict[str, tuple[Callable[[Path], Any], str, tuple[str, ...]]] = {
    "--docs of text": (_documents, "a.txt", (f"{_TEXT}\n", "A ticket costs 12 crowns.\n")),
    "--docs of Markdown": (_documents, "a.md", ("---\ntitle: Ferry\n---\nOne.\n", "# Next\n\nTwo.\n")),
    "--docs of MDX": (_documents, "a.mdx", ("import A from 'a'\n\n# Ferry\n", "import B from 'b'\n\nTwo.\n")),
    "--docs of HTML": (_documents, "a.html", ("<h1>Ferry</h1>\n", f"<p>{_TEXT}</p>\n")),
    "--docs of JSON Lines": (_documents, "a.jsonl", _lines({"text": "One."}, {"text": "Two."})),
    "--docs of JSON": (_documents, "a.json", (json.dumps([{"text": "One."}]),)),
    "--docs of CSV": (_documents, "a.csv", ("text,n\nOne long text.,1\n", "Another text.,2\n")),
    "--docs of TSV": (_documents, "a.tsv", ("text\tn\nOne long text.\t1\n", "Another text.\t2\n")),
    "--docs of reStructuredText": (_documents, "a.rst", ("Ferry\n=====\n\n", ".. note:: Two.\n")),
    "--docs of AsciiDoc": (_documents, "a.adoc", ("= Ferry\n\n", "== Next\n\nTwo.\n")),
    "--docs of a letter": (_documents, "a.eml", (_LETTER,)),
    "--docs of a notebook": (_documents, "a.ipynb", (json.dumps(_BOOK),)),
    "--prompts": (load_prompts, "p.jsonl", _lines({"prompt": "One?"}, {"prompt": "Two?"})),
    "--behaviour of CSV": (load_prompts, "p.csv", ("prompt,answer\nOne?,a\n", "Two?,b\n")),
    "--data of JSON": (load_prompts, "p.json", (json.dumps([{"prompt": "One?"}], indent=1),)),
    "probes.jsonl": (load_probes, "p.jsonl", _lines(*({"question": q, "answers": ["a"]} for q in ("Who?", "Where?")))),
    "reviewed probes": (_after_review, "p.jsonl", _lines(*({"id": i, "question": i, "answers": ["x"]} for i in "abc"))),
    "--ifeval": (read_ifeval, "i.jsonl", _lines({"key": 1, **_IFEVAL}, {"key": 2, **_IFEVAL})),
    "--context-file": (lambda path: context_of(_config(path)), "c.md", ("The pier is 7.\n", "The boat is green.\n")),
    "a recipe": (
        lambda path: read_recipe(path).tables,
        "r.toml",
        ("[midtrain]\nsteps = 3\n", "[distill]\nsteps = 4\n"),
    ),
    "corpora.toml": (read_tables, "c.toml", ("[one]\na = 1\n", "[two]\na = 2\n")),
    "a task by its name": (lambda path: _names_of(str(path)), "t.yaml", ("task: mine\n",)),
    "a task of the model's": (_task_is_refused, "t.yaml", ("task: mine\n",)),
    "lm-eval's results": (lambda path: list(lm_eval_results([path])), "results_1.json", (json.dumps(_LM_EVAL),)),
    "users": (lambda path: dict(Users(path)), "users", ("ada:scrypt$00$00\n", "bob:scrypt$11$11\n")),
}


def _config(path: Path) -> DistillConfig:
    return DistillConfig(context="system", context_file=path)


@pytest.mark.parametrize("what", READ)
def test_a_byte_order_mark_changes_nothing(what: str, tmp_path: Path) -> None:
    reader, name, parts = READ[what]
    found = []
    for number, mark in enumerate(("", MARK, MARK * 2)):
        path = tmp_path / str(number) / name
        path.parent.mkdir()
        path.write_text("".join(mark + part for part in parts), encoding="utf-8")
        found.append(reader(path))
    if "lm-eval" in what:  # which holds its path
        found = [repr(one).replace(f"/{number}/", "/") for number, one in enumerate(found)]
    assert found[0] == found[1] == found[2]


def test_ifeval_scores_are_those_of_the_files_without_marks(tmp_path: Path) -> None:
    found = []
    for mark in ("", MARK):
        for name, records in {
            "p": _lines(*({"key": key, **_IFEVAL, "prompt": f"Write {key}."} for key in (1, 2))),
            "r": _lines(*({"prompt": f"Write {key}.", "response": f"{'a, ' * key}b"} for key in (0, 1, 2))),
        }.items():
            (tmp_path / f"{name}.jsonl").write_text("".join(mark + line for line in records), encoding="utf-8")
        judged = judge_file(tmp_path / "p.jsonl", tmp_path / "r.jsonl")
        found.append((judged.result.score, [item.score for item in judged.result.items], judged.unanswered))
    assert found[0] == found[1] and found[0][0].n == 2


def test_a_prompt_on_standard_input_may_begin_with_a_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(f"{MARK}Say it.".encode())))
    assert _text_of("-") == "Say it."


def test_a_mark_within_a_string_stays_so_that_records_match_their_escaped_form(tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text(f'{{"prompt": "a{MARK}b"}}\n{{"prompt": "a\\ufeffb c"}}\n', encoding="utf-8")
    assert [prompt.text for prompt in load_prompts(tmp_path / "p.jsonl")] == [f"a{MARK}b", f"a{MARK}b c"]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be", "utf-32"])
def test_records_are_read_in_utf_16_and_other_text_is_to_be_saved_as_utf_8(encoding: str, tmp_path: Path) -> None:
    (tmp_path / "i.jsonl").write_bytes("".join(_lines({"key": 1, **_IFEVAL})).encode(encoding))
    (tmp_path / "a.toml").write_bytes("[midtrain]\nsteps = 3\n".encode(encoding))
    assert len(read_ifeval(tmp_path / "i.jsonl")) == 1
    for read in (read_recipe, read_tables, read_text, lambda path: context_of(_config(path))):
        with pytest.raises(UsageError, match=r"^cannot read .*a\.toml: .*: save it as UTF-8$") as raised:
            read(tmp_path / "a.toml")
        assert "\n" not in str(raised.value)


def test_a_user_is_added_to_a_file_that_begins_with_a_mark(tmp_path: Path) -> None:
    (tmp_path / "users").write_text(f"{MARK}ada:scrypt$00$00\n", encoding="utf-8")
    add_user(tmp_path / "users", "ada", "correct horse")
    assert list(Users(tmp_path / "users")) == ["ada"]
