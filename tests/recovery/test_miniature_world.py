"""The generator: the same from the same seed, answers that follow, splits that never meet."""

from __future__ import annotations

import itertools
import json
import random
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from recovery.data.corpus.text import normalise
from recovery.data.prompt_files import load_prompts
from recovery.errors import UsageError
from recovery.miniature import words, write_corpora, write_releases
from recovery.miniature.mixture import STUDIED, Mixture
from recovery.miniature.score import follows
from recovery.miniature.suites import write_suites
from recovery.miniature.tasks import arithmetic, editing, handbook, reading, requests
from recovery.miniature.tasks.instructions import COMBINATIONS, HELD_OUT_IDS, INSTRUCTIONS
from recovery.miniature.world import ENTITY_ATTRIBUTES, World, random_name


@pytest.fixture(scope="module")
def world() -> World:
    return World()


@pytest.fixture(scope="module")
def suites(tmp_path_factory: pytest.TempPathFactory, world: World) -> Path:
    folder = tmp_path_factory.mktemp("suites")
    write_suites(folder, world)
    return folder


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def wordings(asked: Iterable[dict[str, Any]]) -> set[str]:
    return {json.dumps(record.get("messages") or record["prompt"]) for record in asked}


def test_every_list_is_long_enough_for_chance_to_be_small() -> None:
    lists = (*words.ATTRIBUTES.values(), words.FIRST_NAMES, words.SURNAMES, words.CITIES, words.DATABASES)
    assert min(len(options) for options in lists) >= 40


def test_examples_are_a_function_of_the_seed() -> None:
    drawn = [[Mixture(World()).draw(random.Random(i), i / 50) for i in range(50)] for _ in range(2)]
    assert drawn[0] == drawn[1]
    assert World(1).facts != World(2).facts


def test_every_reference_answer_passes_the_unmodified_checkers(world: World) -> None:
    """All combinations and all three styles. langdetect misjudges a rare sentence, about one in 10,000."""
    rng = random.Random(5)
    wrong = 0
    for combination, style in itertools.product(COMBINATIONS, ("plain", "system", "dialogue")):
        for _ in range(5):
            example = requests.compose(rng, world, (rng.choice(words.TOPICS), combination), style)
            wrong += not all(follows(example, example.answer))
    assert wrong <= 1


def test_an_empty_or_careless_answer_fails(world: World) -> None:
    rng = random.Random(6)
    drawn = [requests.draw(rng, world) for _ in range(300)]
    assert not any(all(follows(example, "")) for example in drawn)
    assert sum(all(follows(example, "The otter is teal.")) for example in drawn) < 90


def test_at_least_20_ids_and_some_held_out() -> None:
    ids = {instruction.id for instruction in INSTRUCTIONS}
    measured = {instruction.id for _, combination in requests.measured_cells("test") for instruction in combination}
    assert len(ids) == len(INSTRUCTIONS)
    assert len(measured) >= 20
    assert measured >= HELD_OUT_IDS


def test_splits_share_no_topic_and_combination_and_no_prompt(suites: Path) -> None:
    cells = {split: set(requests.cells(split)) for split in requests.SPLITS}
    asked = {split: records(suites / f"{split}.jsonl") for split in requests.SPLITS}
    for one, other in itertools.combinations(requests.SPLITS, 2):
        assert not cells[one] & cells[other]
        assert not wordings(asked[one]) & wordings(asked[other])
    assert min(len(asked[split]) for split in ("development", "test")) >= 1000


def test_suites_are_read_by_the_prompt_reader(suites: Path) -> None:
    for split in requests.SPLITS:
        problems: list[str] = []
        prompts = load_prompts(suites / f"{split}.jsonl", problems=problems)
        assert not problems
        assert len({prompt.id for prompt in prompts}) == len(prompts)


def test_general_probes_are_not_among_the_prompts(suites: Path) -> None:
    probes = records(suites / "general.jsonl")
    asked = {normalise(record.get("prompt", "")) for record in records(suites / "train.jsonl")}
    assert len(probes) >= 1000
    assert not asked & {normalise(probe["question"]) for probe in probes}
    assert all(probe["answers"][0] in probe["choices"] for probe in probes if probe["form"] == "choice")


def test_entities_of_corpora_are_new_and_unique(tmp_path: Path, world: World) -> None:
    folders = write_corpora(tmp_path, 3, seed=4, entities=24, documents=2)
    taken: set[str] = set()
    world.studied(STUDIED, taken)
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


def test_damage_is_always_real_and_mended_by_the_answer(world: World) -> None:
    rng = random.Random(2)
    for kind in editing.CORRUPTIONS:
        for _ in range(30):
            example = editing.draw(rng, world, (kind,))
            assert example.messages[0][1].partition(": ")[2] != example.answer
            assert ("held-out-corruption" in example.tags) == (kind in editing.HELD_OUT)


def test_arithmetic_answers_are_right() -> None:
    rng = random.Random(3)
    for level in range(3):
        for _ in range(100):
            question, answer = arithmetic.problem(rng, level)
            a, op, b = question.removeprefix("What is ").removeprefix("Work out ").rstrip("?.= ").split(" ")
            assert int(answer) == {"+": int(a) + int(b), "-": int(a) - int(b), "*": int(a) * int(b)}[op]


def test_passages_hold_their_answers() -> None:
    rng = random.Random(4)
    for _ in range(200):
        read, written = reading.open_book(rng), reading.write_question(rng)
        assert read.answer in read.messages[0][1]
        assert reading.answerable(written.messages[0][1], written.answer)
        assert not reading.answerable(read.messages[0][1], "Question: Who owns Nobody?\nAnswer: Anna Brook")


def test_names_are_composed_not_listed() -> None:
    rng = random.Random(0)
    assert len({random_name(rng, 3) for _ in range(1000)}) > 990


def test_question_wordings_are_different() -> None:
    for attribute, wordings_ in handbook.QUESTIONS.items():
        assert len(set(wordings_)) == len(wordings_) > handbook.PROBE_WORDINGS, attribute


def test_the_second_release_of_a_handbook_differs_in_the_changed_values_alone(tmp_path: Path) -> None:
    first, second = write_releases(tmp_path / "a", seed=4, entities=4, documents=6)
    again = write_releases(tmp_path / "b", seed=4, entities=4, documents=6)
    pages = sorted(page.name for page in first.glob("*.md"))
    assert [(first / page).read_text() for page in pages] == [(again[0] / page).read_text() for page in pages]
    answers = [
        {(one["source"], one["question"]): one["answers"][0] for one in records(folder / "probes.jsonl")}
        for folder in (first, second)
    ]
    changed = {key for key, answer in answers[0].items() if answers[1].get(key, answer) != answer}
    assert len({page for page, _ in changed}) == 2
    for page in pages:
        before, after = ((folder / page).read_text().split() for folder in (first, second))
        different = {(old.strip("."), new.strip(".")) for old, new in zip(before, after, strict=True) if old != new}
        assert len(different) == (2 if page in {name for name, _ in changed} else 0), "the port and the database"
    tags = {tag for one in records(second / "questions.jsonl") for tag in one["tags"]}
    assert tags == {f"document:{page}" for page in pages}
