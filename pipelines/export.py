"""Export of a checkpoint as a folder that any Hugging Face tool reads."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch

from pipelines.reports.cycle_report import model_card
from pipelines.runtime.session import Session
from recovery.models.checkpoints import CONTENT, content_hash
from recovery.models.loading import load_model
from recovery.workspace import Checkpoint


def export(session: Session, name: str, folder: Path, *, merge: bool) -> dict[str, Any]:
    """Write checkpoint ``name`` to ``folder``, with its adapter merged into the weights if ``merge``.

    Without ``merge`` an adapter stays one, and names the folder of its base. A model card is written as README.md. The
    folder is written atomically.
    """
    checkpoint = session.verified(session.resolve(name))
    folder = folder.expanduser().resolve()
    folder.parent.mkdir(parents=True, exist_ok=True)
    writing = folder.with_name(f".writing-{folder.name}")
    shutil.rmtree(writing, ignore_errors=True)
    writing.mkdir()
    merged = merge and checkpoint.adapter is not None
    if merged:
        _merge(checkpoint, writing)
    else:
        _copy(checkpoint.path, writing)
    (writing / "README.md").write_text(model_card(session, checkpoint), encoding="utf-8")
    if folder.exists():
        folder.rmdir()  # empty: the command has checked that
    writing.rename(folder)
    kind = "merged weights" if merged else "adapter" if checkpoint.adapter is not None else "weights"
    return {"name": checkpoint.name, "kind": kind, "path": str(folder), "hash": content_hash(folder)}


def _merge(checkpoint: Checkpoint, folder: Path) -> None:
    loaded = load_model(checkpoint.weights, adapter=checkpoint.adapter, precision="float32", device="cpu")
    with torch.no_grad():
        merged = loaded.model.merge_and_unload()
    # Merge in float32 and store in the base's own precision, for the smallest rounding error.
    stored = getattr(loaded.core.config, "dtype", None)
    merged.to(stored if isinstance(stored, torch.dtype) else torch.float32)
    merged.save_pretrained(folder, safe_serialization=True)
    loaded.tokenizer.save_pretrained(folder)


def _copy(source: Path, folder: Path) -> None:
    for pattern in CONTENT:
        for path in source.glob(pattern):
            if path.is_file():
                shutil.copy2(path, folder / path.name)
