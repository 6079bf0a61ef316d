"""The training of the miniature: its rows and tokenizer, a few steps, and a short build that learns."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from rich.console import Console

from examples.miniature.build import ROW_TOKENS, Encoder, Recipe, build, make_source, model_hashes
from examples.miniature.mixture import Mixture
from examples.miniature.score import SUITES, measure
from examples.miniature.tokenizer import train_tokenizer
from recovery.miniature.corpora import World
from recovery.miniature.package import materialise
from recovery.models.loading import load_model
from recovery.types import Message


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return materialise(tmp_path_factory.mktemp("shipped") / "model")


@pytest.mark.parametrize(("name", "least"), [("instructions", 0.9), ("facts", 0.9), ("open-book", 0.85)])
def test_shipped_weights_follow_know_and_read(shipped: Path, name: str, least: float) -> None:
    suite = next(suite for suite in SUITES if suite.name == name)
    score, wrong = measure(load_model(shipped, device="cpu"), Mixture(World()), suite, 100, seed=9)
    assert score.value >= least, wrong


def test_any_text_survives_the_tokenizer() -> None:
    tokenizer = train_tokenizer(Mixture(World()), 0)
    for text in ("The otter is teal.", "née 日本\t—  x\n\n<<A>>", '{"port": "8412"}', ""):
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    assert len(tokenizer.tokenize(" Tavuno")) == 3


def test_rows_are_what_the_chat_template_gives(shipped: Path) -> None:
    loaded = load_model(shipped, device="cpu")
    encoder, mixture, rng = Encoder(loaded.tokenizer), Mixture(World()), random.Random(0)
    seen = 0
    while seen < 100:
        example = mixture.draw(rng, 0.5)
        if example.messages:
            messages = [Message(role=role, content=content) for role, content in example.messages]
            assert encoder.encode(example) == loaded.chat.conversation(messages)
            seen += 1


def test_steps_are_a_function_of_seed_and_step() -> None:
    mixture = Mixture(World())
    tokenizer = train_tokenizer(mixture, 0)
    first, again, other = (make_source(mixture, tokenizer, seed, 1024, lambda step: step / 100) for seed in (0, 0, 1))
    assert first(7).rows == again(7).rows
    assert first(7).rows != first(8).rows
    assert first(7).rows != other(7).rows
    assert max(len(row.ids) for row in first(7).rows) <= ROW_TOKENS


def test_a_few_steps_give_a_folder_with_provenance(tmp_path: Path) -> None:
    small = Recipe(hidden=32, inner=64, layers=1, heads=2, groups=1, step_tokens=256, finish_steps=2200)
    report = build(tmp_path / "out", steps=3, items=8, console=Console(quiet=True), recipe=small)
    assert len(report.losses) == 3 + 2
    provenance = json.loads((tmp_path / "out" / "provenance.json").read_text())
    assert provenance["recipe"]["steps"] == 3
    assert provenance["sha256"] == model_hashes(tmp_path / "out")
    assert not report.reached["instructions"]


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_a_short_build_learns(tmp_path: Path) -> None:
    report = build(tmp_path / "out", steps=500, items=200, console=Console(quiet=True))
    assert sum(report.losses[-20:]) < 0.3 * sum(report.losses[:20])
    assert report.scores["refusal"].value > 0.9
    assert report.scores["instructions"].value > 0.3
    assert report.scores["facts"].value > 0.2
    assert report.scores["unseen-facts"].value <= 0.05
