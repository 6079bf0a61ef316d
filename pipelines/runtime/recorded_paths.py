"""Paths in settings as plans and stages record them: the same from any current folder.

Names of checkpoints, hub ids and addresses of servers stay as they are.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pipelines.runtime.checkpoint_names import WORDS
from pipelines.runtime.registry import Registry
from recovery.config import ModelConfig, to_json
from recovery.config.build import Config
from recovery.data.sources import COMPOSERS, is_there, parse
from recovery.engines import is_address
from recovery.models.gguf_files.header import is_gguf
from recovery.settings import settings_of
from recovery.teacher_spec import TeacherSpec
from recovery.workspace import Workspace

WORKSPACE_MARK = "{workspace}"
_MODELS = ("student", "checkpoint", "origin", "knowledge_teacher", "earlier_teacher", "writer")


def recordable(config: Config, registry: Registry) -> Config:
    """Return settings with absolute paths, which name the same files from any current folder."""
    return _with_lasting_paths(config, _Places(registry.workspace, frozenset(c.name for c in registry.all())))


def recorded(config: Config, registry: Registry) -> dict[str, Any]:
    """Return settings as a plan or a stage is recorded with them: :func:`recordable`, as JSON types, and a path in the
    workspace begins with :data:`WORKSPACE_MARK`, so that the workspace can be moved. :func:`read` inverts it.
    """
    values = to_json(recordable(config, registry))
    return _with_replaced_paths(values, str(registry.workspace.folder.resolve()), WORKSPACE_MARK)


def spellings(config: Config, registry: Registry) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return settings as a stage may be recorded with them: as :func:`recorded`, or as they were given, by 0.1."""
    return recorded(config, registry), to_json(config)


def read(values: Mapping[str, Any], workspace: Workspace) -> dict[str, Any]:
    """Return recorded settings, as JSON types, with the paths of where the workspace is now."""
    return _with_replaced_paths(dict(values), WORKSPACE_MARK, str(workspace.folder.resolve()))


def matches_recorded(before: Any, wanted: Any) -> bool:
    """Whether recorded values equal the wanted ones.

    A file that no longer exists at its recorded path equals any file of its name, since a folder that holds data and
    workspace may have been moved.
    """
    if isinstance(before, Mapping) and isinstance(wanted, Mapping):
        return before.keys() == wanted.keys() and all(matches_recorded(before[key], wanted[key]) for key in wanted)
    if isinstance(before, list) and isinstance(wanted, list):
        return len(before) == len(wanted) and all(map(matches_recorded, before, wanted))
    if before == wanted or not (isinstance(before, str) and isinstance(wanted, str)):
        return bool(before == wanted)
    old, new = Path(before), Path(wanted)
    return old.is_absolute() and new.is_absolute() and old.name == new.name and not is_there(before)


def _with_replaced_paths(values: Any, before: str, now: str) -> Any:
    if isinstance(values, dict):
        return {key: _with_replaced_paths(value, before, now) for key, value in values.items()}
    if isinstance(values, list):
        return [_with_replaced_paths(value, before, now) for value in values]
    if not isinstance(values, str):
        return values
    return re.sub(rf"(?<![^=,]){re.escape(before)}(?=/|$)", lambda _: now, values)  # also in NAME=PATH


@dataclasses.dataclass(frozen=True)
class _Places:
    """The workspace, and the names of its checkpoints."""

    workspace: Workspace
    checkpoints: frozenset[str]

    def absolute(self, path: Path) -> Path:
        """Return a path, symbolic links unresolved unless it is in the workspace: files belong beside a link."""
        stored = Path(self.workspace.stored(path))
        return path.expanduser().absolute() if stored.is_absolute() else self.workspace.found(str(stored))

    def source(self, name: Path) -> Path:
        """Return the name of data (:mod:`recovery.data.sources`)."""
        source = parse(name)
        if source.hub or (str(name) in COMPOSERS and not source.exists):
            return name
        return Path(":".join((str(self.absolute(source.path)), *source.names)))

    def model(self, name: str) -> str:
        """Return the name of a model."""
        if name in WORDS or name in self.checkpoints or is_address(name):
            return name
        path = Path(name).expanduser()
        return str(self.absolute(path)) if is_gguf(name) or path.is_dir() else name

    def teacher(self, text: str) -> str:
        """Return the value of ``--teacher``: one model, or several with weights."""
        named = TeacherSpec.parse(text).weights
        if text in named:
            return self.model(text)
        weights = {self.model(name): weight for name, weight in named.items()}
        if not weights or any(mark in name for name in weights for mark in "=,"):  # it could not be read again
            return text
        return ",".join(f"{name}={weight}" for name, weight in weights.items())

    def expert(self, text: str) -> str:
        """Return an expert, TAG=NAME."""
        tag, _, name = text.partition("=")
        return f"{tag}={self.model(name)}"

    def task(self, text: str) -> str:
        """Return a task of lm-eval: its name or YAML file, or either with =PATH of its data."""
        name, equals, data = text.partition("=")
        if equals and not Path(text).is_file():
            return f"{self.task(name)}={self.absolute(Path(data))}"
        return str(self.absolute(Path(text))) if Path(text).is_file() else text


# The settings with text that can name a file or a folder, and how.
FORMS: dict[str, Callable[[_Places, str], str]] = {
    **dict.fromkeys(_MODELS, _Places.model),
    "teacher": _Places.teacher,
    "experts": _Places.expert,
    "tasks": _Places.task,
    "ifeval": lambda places, text: text if text == "hub" else str(places.absolute(Path(text))),
}


def _with_lasting_paths(config: Any, places: _Places) -> Any:
    values = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    folders = {name for name, declared in settings_of(type(config)).items() if declared.metavar == "FOLDER"}
    found = {name: _lasting(name, value, places, name in folders) for name, value in values.items()}
    changed = {name: value for name, value in found.items() if value != values[name]}
    return dataclasses.replace(config, **changed) if changed else config


def _lasting(name: str, value: Any, places: _Places, folder: bool) -> Any:
    """Return the value of a setting; ``folder`` says that a path is one to write to, not data."""
    if isinstance(value, tuple):
        return tuple(_lasting(name, item, places, folder) for item in value)
    if isinstance(value, ModelConfig):  # of a stage of whole cycles
        return _with_lasting_paths(value, places)
    if isinstance(value, Path):
        return places.absolute(value) if folder else places.source(value)
    return FORMS[name](places, value) if isinstance(value, str) and name in FORMS else value
