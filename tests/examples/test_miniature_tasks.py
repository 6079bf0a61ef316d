"""The miniature's tasks and suites: answers that follow, splits that never meet, and what the package ships."""

from __future__ import annotations

import itertools
import json
import random
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from lm_eval.tasks import TaskManager

from examples.miniature.mixture import Mixture
from examples.miniature.score import follows
from examples.miniature.suites import write_suites
from examples.miniature.tasks import arithmetic, editing, reading, requests
from examples.miniature.tasks.instructions import COMBINATIONS, HELD_OUT_IDS, INSTRUCTIONS
from recovery.data.corpus.text import normalise
from recovery.data.prompt_files import load_prompts
from recovery.miniature import words
from recovery.miniature.corpora import WORLD_SEED, World
from recovery.miniature.package import materialise


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def world() -> World:
    return World()


@pytest.fixture(scope="module")
def suites(tmp_path_factory: pytest.TempPathFactory, world: World) -> Path:
    folder = tmp_path_factory.mktemp("suites")
    write_suites(folder, world)
    return folder


def wordings(asked: Iterable[dict[str, Any]]) -> set[str]:
    return {json.dumps(record.get("messages") or record["prompt"]) for record in asked}


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


def test_task_files_load_wherever_the_folder_stands(suites: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(suites / "lm_eval", tmp_path / "moved"))
    manager = TaskManager(include_path=str(folder), include_defaults=False)
    tasks = manager.load(["miniature_facts", "miniature_arithmetic"])["tasks"]
    facts, sums = tasks["miniature_facts"], tasks["miniature_arithmetic"]
    known = next(iter(facts.test_docs()))
    assert len(list(facts.test_docs())) == 192
    assert known["choices"][known["label"]] == facts.doc_to_choice(known)[facts.doc_to_target(known)]
    assert len(list(sums.test_docs())) == 1000
    assert sums.doc_to_text(next(iter(sums.test_docs())))


def test_any_seed_draws_damaged_sentences() -> None:
    """Slip after slip may leave no long word: whatever the seed, a draw is a damaged sentence and the sound one."""
    world = World(WORLD_SEED)
    for seed in range(4):
        rng = random.Random(seed)
        for _ in range(1500):
            example = editing.draw(rng, world, editing.MEASURED)
            asked, sound = example.messages[0][1], example.messages[-1][1]
            assert not asked.endswith(f": {sound}")
    assert editing.CORRUPTIONS["shout"](random.Random(0), "a be it.") == "a be it."


def test_the_package_ships_what_the_world_gives(suites: Path, tmp_path: Path) -> None:
    shipped = materialise(tmp_path / "model") / "suites"
    names = sorted(path.relative_to(suites) for path in suites.rglob("*") if path.is_file())
    assert names == sorted(path.relative_to(shipped) for path in shipped.rglob("*") if path.is_file())
    for name in names:
        assert (shipped / name).read_bytes() == (suites / name).read_bytes(), "python -m examples.miniature.suites"
