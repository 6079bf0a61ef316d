"""An exported checkpoint loads anywhere."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from pipelines.export import export
from pipelines.runtime.session import Session
from recovery.models.checkpoints import content_hash
from recovery.models.loading import load_model


def test_weights_in_several_files_are_exported_with_their_index(
    session: Session, tiny_model: Path, tmp_path: Path
) -> None:
    loaded = load_model(tiny_model, precision="float32")
    loaded.model.save_pretrained(tmp_path / "shards", max_shard_size="50KB")
    loaded.tokenizer.save_pretrained(tmp_path / "shards")
    assert len([*(tmp_path / "shards").glob("*.safetensors")]) > 1
    written = export(session, str(tmp_path / "shards"), tmp_path / "out", merge=False)
    assert written["hash"] == content_hash(tmp_path / "shards")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32).state_dict()
    assert all(torch.equal(again[name], value) for name, value in loaded.model.state_dict().items())
