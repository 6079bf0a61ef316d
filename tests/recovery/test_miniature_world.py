"""Corpora of the fictional world: the same from the same seed, new to the model, probes apart from questions."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest

from recovery.data.corpus.text import normalise
from recovery.errors import UsageError
from recovery.miniature import corpora, words
from recovery.miniature.corpora import ENTITY_ATTRIBUTES, World, random_name, write_corpora


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_every_list_is_long_enough_for_chance_to_be_small() -> None:
    lists = (*words.ATTRIBUTES.values(), words.FIRST_NAMES, words.SURNAMES, words.CITIES, words.DATABASES)
    assert min(len(options) for options in lists) >= 40


def test_entities_of_corpora_are_new_and_unique(tmp_path: Path) -> None:
    folders = write_corpora(tmp_path, 3, seed=4, entities=24, documents=2)
    taken: set[str] = set()
    World().studied(taken)
    names = [{p["source"] for p in records(f / "probes.jsonl") if not p.get("control")} for f in folders]
    assert [len(found) for found in names] == [24, 24, 24]
    assert not set.intersection(*names)
    assert not set.union(*names) & taken


def test_corpora_are_a_function_of_the_seed(tmp_path: Path) -> None:
    def content(folder: Path) -> dict[str, str]:
        return {str(p.relative_to(folder)): p.read_text() for p in sorted(folder.rglob("*")) if p.is_file()}

    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        write_corpora(tmp_path / name, 2, seed=seed, entities=4, documents=3)
    assert content(tmp_path / "a") == content(tmp_path / "b")
    assert content(tmp_path / "a") != content(tmp_path / "c")


def test_probes_and_questions_share_no_wording(tmp_path: Path) -> None:
    (folder,) = write_corpora(tmp_path, 1, entities=34, documents=3)
    probes = records(folder / "probes.jsonl")
    asked = [p for p in probes if p["form"] == "question" and not p.get("control")]
    stored = [p for p in probes if p["form"] == "choice"]
    control = [p for p in probes if p.get("control")]
    questions = {normalise(q["question"]) for q in records(folder / "questions.jsonl")}
    assert not questions & {normalise(p["question"]) for p in probes}
    assert len(asked) >= 1000
    assert len(stored) >= 1000
    assert control
    assert any("reversed" in p["tags"] for p in asked)
    assert all(len(set(p["choices"])) >= 20 and p["answers"][0] in p["choices"] for p in stored)
    mentioned = set(re.findall(r"\w+", " ".join(path.read_text() for path in folder.glob("*.md"))))
    assert not {p["source"] for p in control} & mentioned


def test_every_fact_stands_in_the_documents(tmp_path: Path) -> None:
    (folder,) = write_corpora(tmp_path, 1, entities=6, documents=12)
    for name in {p["source"] for p in records(folder / "probes.jsonl") if not p.get("control")}:
        text = "\n".join(path.read_text() for path in folder.glob(f"{name.lower()}-*.md"))
        values = {q["answer"] for q in records(folder / "questions.jsonl") if q["source"] == name} - {name}
        assert len(values) == len(ENTITY_ATTRIBUTES)
        assert all(value in text for value in values)


def test_more_entities_than_owners_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there are names for 800 services, so for 1 to "):
        write_corpora(tmp_path, 100, entities=60)


def test_names_are_composed_not_listed() -> None:
    rng = random.Random(0)
    assert len({random_name(rng, 3) for _ in range(1000)}) > 990


def test_question_wordings_are_different() -> None:
    for attribute, wordings_ in corpora.QUESTIONS.items():
        assert len(set(wordings_)) == len(wordings_) > corpora.PROBE_WORDINGS, attribute
