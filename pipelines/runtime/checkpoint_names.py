"""Names of checkpoints: a registered name, a folder, a GGUF file or a hub id, resolved in one place."""

from __future__ import annotations

import difflib
import itertools
import re
from dataclasses import replace
from pathlib import Path

from db.schema import ARTIFACT
from pipelines.runtime.progress import Display
from pipelines.runtime.registry import Registry
from recovery.errors import CheckpointError
from recovery.models.base_folder import is_path, no_model_at, resolve_base
from recovery.models.checkpoints import content_hash
from recovery.models.gguf_files.header import is_gguf, origin_of, origin_text
from recovery.workspace import Checkpoint, Workspace

# Words for a checkpoint, which there may not be yet; a folder of such a name is given as ./recovered.
WORDS = frozenset({"base", "latest", "start", "midtrained", "recovered"})


def resolve(registry: Registry, name: str, display: Display | None = None) -> Checkpoint:
    """Return the checkpoint of a name, a folder, a GGUF file or a hub id; external models are not registered.

    A GGUF file is converted into the workspace, once; ``display`` shows the progress. Raise CheckpointError, with the
    known names, if there is none.
    """
    registered = check(registry, name)
    if registered is not None:
        return registered
    model = external(name, registry.workspace, display)
    known = find(str(model.path), registry) if is_gguf(name) else None
    if known is not None:
        return _existing(known, registry.workspace)
    return replace(model, name=free_name(model.name, registry, model.hash))


def check(registry: Registry, name: str) -> Checkpoint | None:
    """Return the registered checkpoint of a name; None for a folder, a GGUF file or a hub id, which are not read.

    Raise CheckpointError, with the known names, for any other name, or if a registered checkpoint has no weights here;
    ModelError for a path that does not exist.
    """
    if not name.strip():  # as a path it would be the current folder
        raise unknown_name(name, registry)
    registered = find(name, registry)
    if registered is not None:
        return _existing(registered, registry.workspace)
    if is_path(name) and not is_here(name):
        raise no_model_at(name)
    if not is_elsewhere(name) or (not is_here(name) and _suggestion(name, registry)):
        raise unknown_name(name, registry)
    return None


def is_here(name: str) -> bool:
    """Return whether a name is that of a folder or of a GGUF file."""
    return Path(name).expanduser().is_dir() or is_gguf(name)


def find(name: str, registry: Registry) -> Checkpoint | None:
    """Return the registered checkpoint called ``name``; ``midtrained`` and ``recovered`` mean the newest of that kind.

    None if nothing of that name is registered (it may still be a path or a hub id).
    """
    if name == "latest":
        return registry.latest()
    registered = registry.all()
    for checkpoint in registered:
        if checkpoint.name == name:
            return checkpoint
    if name in ("midtrained", "recovered"):
        return next((c for c in reversed(registered) if c.kind == name), None)
    folder = Path(name).expanduser()
    if folder.is_dir():
        return next((c for c in registered if c.path.resolve() == folder.resolve()), None)
    return None


def free_name(name: str, registry: Registry, content: str | None = None) -> str:
    """Return ``name``, or ``name-2`` and so on if it is in use by weights of another hash than ``content``.

    No checkpoint is overwritten: two models from outside may have folders of one name.
    """
    taken = {checkpoint.name for checkpoint in registry.all() if checkpoint.hash != content}
    candidates = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
    return next(candidate for candidate in candidates if candidate not in taken)


def external(name: str, workspace: Workspace, display: Display | None = None) -> Checkpoint:
    """Return a model from outside the workspace, by folder, GGUF file or hub id; an adapter keeps the base it names."""
    weights, adapter = resolve_base(name, workspace.models, display or Display())
    path = adapter or Path(weights)
    return Checkpoint(
        name=f"external/{path.name if is_gguf(name) else _title(name)}",
        kind="external",
        path=path,
        hash=content_hash(path),
        weights=Path(weights),
        tuning="full" if adapter is None else "lora",
        origin=origin_text(origin_of(Path(weights))),
    )


def _title(name: str) -> str:
    """Return the last part of a folder or a hub id; of a folder given as "." or "..", its own name."""
    folder = Path(name).expanduser()
    if not folder.is_dir():
        return Path(name).name
    return folder.resolve().name if folder.name in ("", "..") else folder.name


def _existing(checkpoint: Checkpoint, workspace: Workspace) -> Checkpoint:
    if checkpoint.kind == ARTIFACT:
        raise CheckpointError(
            f"{checkpoint.name} is an artifact, which can only be served: name the checkpoint that it was made from, "
            f"{checkpoint.parent}"
        )
    if not checkpoint.path.is_dir():
        if checkpoint.kind == "external" and not checkpoint.hash:
            raise CheckpointError(f"{checkpoint.name} has results that were imported, and no weights here")
        remedy = "restore it"
        if checkpoint.pruned:
            remedy = f"its weights were pruned on {checkpoint.pruned}"
        elif checkpoint.name == "base":
            remedy += ", or give --model with the folder where it is now"
        elif workspace.tracker is not None:
            remedy = "if another machine made it, share that workspace folder (--workspace on a shared file system)"
        raise CheckpointError(
            f"the folder of the checkpoint {checkpoint.name} is missing ({checkpoint.path}): {remedy}"
        )
    return checkpoint


def is_elsewhere(name: str) -> bool:
    """Return whether ``name`` can be a model outside of every workspace: a path, a folder, a hub id or a GGUF file."""
    return name not in WORDS and (is_path(name) or is_here(name) or is_hub_id(name))


def is_hub_id(name: str) -> bool:
    """Return whether ``name`` can be a model on the hub: ORG/MODEL, but not in the form of this tool's own names."""
    return (
        not is_gguf(name)
        and not is_path(name)
        and name.count("/") == 1
        and all(name.split("/"))
        and not re.match(r"cycle-\d+/|external/", name)
    )


def _suggestion(name: str, registry: Registry) -> str:
    """Return a question that suggests the checkpoint with the most similar name; "" if no name is similar."""
    names = [checkpoint.name for checkpoint in registry.all()]
    return "".join(f"; did you mean {one}?" for one in difflib.get_close_matches(name, names, 1, 0.8))


def unknown_name(name: str, registry: Registry) -> CheckpointError:
    """Return the error for an unknown checkpoint name; it lists the known ones."""
    if re.fullmatch(r"[\w.-]+:\d+(/.*)?", name):
        return CheckpointError(f"{name} is no checkpoint; the address of a server begins with http://: http://{name}")
    names = ["latest", *(checkpoint.name for checkpoint in registry.all())]
    return CheckpointError(
        f"there is no checkpoint {name!r}: use {', '.join(names)}, a folder with a model, a GGUF file, or a hub id "
        f"(ORG/MODEL){_suggestion(name, registry)}"
    )
