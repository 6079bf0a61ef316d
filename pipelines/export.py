"""Export of a checkpoint as a folder that any Hugging Face tool reads, or as a GGUF file for llama.cpp."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from pipelines.reports.cycle_report import card_front, model_card
from pipelines.runtime.progress import Display
from pipelines.runtime.session import Session
from recovery.disk import WRITING, written
from recovery.errors import ModelError
from recovery.models.adapters import merge_adapter
from recovery.models.checkpoints import CONTENT, content_hash
from recovery.models.folder_check import ADAPTER_CONFIG
from recovery.models.gguf_files import read_header, sha256_of
from recovery.models.gguf_files.modelfile import modelfile
from recovery.models.gguf_files.quantising import QUANTISED, check_quantiser, quantise, types_text
from recovery.models.gguf_files.writing import Source, write_gguf
from recovery.models.loaded import Loaded
from recovery.models.loading import load_model
from recovery.workspace import Checkpoint, write_atomically


def export(session: Session, name: str, folder: Path, *, merge: bool) -> dict[str, Any]:
    """Write checkpoint ``name`` to ``folder``, with its adapter merged into the weights if ``merge``.

    Without ``merge`` an adapter stays one, and names the folder of its base. A model card is written as README.md. The
    folder is written atomically.
    """
    checkpoint = session.verified(session.resolve(name))
    folder = folder.expanduser().resolve()
    merged = _merged(checkpoint) if merge and checkpoint.adapter is not None else None
    card = model_card(session, checkpoint)
    writing = folder.with_name(f"{WRITING}{folder.name}")
    shutil.rmtree(writing, ignore_errors=True)
    with written(folder, writing):
        writing.mkdir(parents=True)
        if merged is None:
            _copy(checkpoint.path, writing)
            if checkpoint.adapter is not None:
                _name_base(writing / ADAPTER_CONFIG, checkpoint.weights)
        else:
            _save(merged, writing, checkpoint.weights)
        (writing / "README.md").write_text(card, encoding="utf-8")
        if folder.exists():
            folder.rmdir()  # empty: the command has checked that
        writing.rename(folder)
    kind = "merged weights" if merged is not None else "adapter" if checkpoint.adapter is not None else "weights"
    return {"name": checkpoint.name, "kind": kind, "path": str(folder), "hash": content_hash(folder)}


def export_gguf(session: Session, name: str, target: Path, kind: str) -> dict[str, Any]:
    """Write checkpoint ``name`` to the GGUF file ``target`` as ``kind`` (recovery's TYPES, or QUANTISED by llama.cpp),
    and beside it a Modelfile for Ollama.

    An adapter is merged in memory; other weights are read one at a time. The file is written atomically.
    """
    if kind in QUANTISED:
        check_quantiser()
    checkpoint = session.verified(session.resolve(name))
    target = target.expanduser().resolve()
    target.parent.mkdir(parents=True, exist_ok=True)
    merged = None if checkpoint.adapter is None else _merged(checkpoint)
    source, card = (
        Source.of(checkpoint.name, checkpoint.weights, merged, checkpoint.hash),
        card_front(session, checkpoint),
    )
    if kind in QUANTISED:
        _write_quantised(source, target, kind, card, session.display)
    else:
        write_gguf(source, target, kind, card, session.display)
    text, templated = modelfile(target, source.chat, source.generation, source.config.max_position_embeddings)
    beside = target.with_suffix(".Modelfile")
    write_atomically(beside, text)
    if not templated:
        session.display.say(f"{beside.name} has no TEMPLATE: the chat template does more than Ollama's form can say")
    header = read_header(target)
    session.display.say(f"types of the tensors: {types_text(header, kind)}")
    return {
        "name": checkpoint.name,
        "kind": f"GGUF, {kind}",
        "path": str(target),
        "modelfile": str(beside),
        "bytes": target.stat().st_size,
        "sha256": sha256_of(target),
        "types": {name.lower(): count for name, count in header.types.items()},
    }


def _write_quantised(source: Source, target: Path, kind: str, card: Mapping[str, Any], display: Display) -> None:
    """Write the weights without rounding into a temporary file, and let llama.cpp quantise that."""
    exact, writing = (target.with_name(f".{name}-{target.name}") for name in (f"exact-{os.getpid()}", "quantised"))
    try:
        write_gguf(source, exact, source.exact, card, display)
        with display.phase(f"quantising {target.name}"):
            quantise(exact, writing, kind)
        if target.exists():
            raise ModelError(f"{target} was written by another process meanwhile: name a new file")
        writing.rename(target)
    finally:
        exact.unlink(missing_ok=True)
        writing.unlink(missing_ok=True)


def _name_base(adapter_config: Path, base: Path) -> None:
    """Write where the base is now: the workspace may have been moved since the adapter was trained."""
    config = json.loads(adapter_config.read_text(encoding="utf-8"))
    config["base_model_name_or_path"] = str(base)
    adapter_config.write_text(json.dumps(config, indent=2, sort_keys=True), encoding="utf-8")


def _save(loaded: Loaded, folder: Path, base: Path) -> None:
    """Write a merged model in the precision of ``base``; ``loaded`` and its configuration are in float32."""
    config = json.loads((base / "config.json").read_text(encoding="utf-8"))
    stored = getattr(torch, str(config.get("dtype") or config.get("torch_dtype")).removeprefix("torch."), None)
    loaded.model.to(stored if isinstance(stored, torch.dtype) else torch.float32)
    loaded.model.save_pretrained(folder, safe_serialization=True)
    loaded.tokenizer.save_pretrained(folder)


def _merged(checkpoint: Checkpoint) -> Loaded:
    """Load a checkpoint with its adapter merged in float32, for the smallest rounding error."""
    loaded = load_model(checkpoint.weights, adapter=checkpoint.adapter, precision="float32", device="cpu")
    with torch.no_grad():
        return dataclasses.replace(loaded, model=merge_adapter(loaded.model))


def _copy(source: Path, folder: Path) -> None:
    """Copy the files of a model, with the index of weights in several files: it is no content, but they need it."""
    for pattern in (*CONTENT, "*.safetensors.index.json"):
        for path in source.glob(pattern):
            if path.is_file():
                target = folder / path.relative_to(source)
                target.parent.mkdir(exist_ok=True)
                shutil.copy2(path, target)
