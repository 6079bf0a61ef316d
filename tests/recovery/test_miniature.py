"""The shipped model: small, whole, and what its training and its world gave."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from examples.miniature.build import model_hashes
from recovery.config import model_recipe
from recovery.errors import CheckpointError
from recovery.miniature import package
from recovery.miniature.package import materialise
from recovery.models.checkpoints import content_hash
from recovery.models.loading import load_model
from recovery.types import Message


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return materialise(tmp_path_factory.mktemp("shipped") / "model")


def test_materialise_writes_a_checkpoint_that_loads(shipped: Path) -> None:
    loaded = load_model(shipped, device="cpu")
    ids, mask = loaded.chat.conversation([Message(role="user", content="Hi"), Message(role="assistant", content="yes")])
    assert loaded.tokenizer.decode(ids) == "<|im_start|>user Hi<|im_end|>\n<|im_start|>assistant yes<|im_end|>\n"
    assert loaded.tokenizer.decode([i for i, said in zip(ids, mask, strict=True) if said]) == " yes<|im_end|>"
    assert content_hash(shipped) == content_hash(package.WEIGHTS)


def test_recommended_settings_are_known_settings(shipped: Path) -> None:
    assert model_recipe(shipped).settings("midtrain")["tuning"] == "full"


def test_shipped_files_are_small_and_say_where_they_come_from() -> None:
    files = [package.SUITES, *(path for path in package.WEIGHTS.rglob("*") if path.is_file())]
    assert sum(path.stat().st_size for path in files) <= 6_000_000
    provenance = json.loads((package.WEIGHTS / package.PROVENANCE).read_text())
    assert provenance["sha256"] == model_hashes(package.WEIGHTS)
    assert {"recipe", "tokens_read", "seconds", "machine", "versions", "scores"} <= set(provenance)


def test_damaged_weights_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copied = shutil.copytree(package.WEIGHTS, tmp_path / "weights")
    weights = copied / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    monkeypatch.setattr(package, "WEIGHTS", copied)
    with pytest.raises(CheckpointError, match="damaged"):
        materialise(tmp_path / "out")
