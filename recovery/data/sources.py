"""Names of the user's data: a file, a folder or a dataset on the hub; after colons, a split and a column of it.

``reviews.parquet``, ``reviews.parquet:text``, ``FOLDER:train:text``, ``ORG/DATASET:train``. Imports no large library.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from recovery.errors import UsageError

TABLE_SUFFIXES = frozenset({".parquet", ".csv", ".tsv", ".arrow", ".feather"})
ZIP = ".zip"  # archives of documents, read as folders
SPLITS_FILE = "dataset_dict.json"  # in a folder written by DatasetDict.save_to_disk, above one for each split
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
QUESTIONS_FILE = "questions.jsonl"  # beside documents: questions about them
COMPOSERS = ("composer", "composer:chat")  # built-in prompts, named in place of a file (recovery.data.prompts)
_DOCUMENTS = ".md .markdown .mdx .txt .rst .adoc .html .htm .pdf .docx .odt .pptx .xlsx .ipynb .epub .eml .gz"
_NO_HUB_ID = TABLE_SUFFIXES | {".json", ".jsonl", ZIP, *_DOCUMENTS.split()}


@dataclass(frozen=True)
class Source:
    """A parsed name. ``hub`` is a dataset's id, or empty if ``path`` is meant; ``names`` are the parts after it."""

    path: Path
    names: tuple[str, ...] = ()
    hub: str = ""

    @property
    def text(self) -> str:
        """The name as the user writes it, with the path as it is."""
        return ":".join((self.hub or str(self.path), *self.names))

    @property
    def lasting(self) -> str:
        """The name with an absolute path: the same from any folder."""
        return ":".join((self.hub or str(self.path.resolve()), *self.names))

    @property
    def exists(self) -> bool:
        """Whether the data is on the hub (which is not asked here), or the file or folder exists."""
        return bool(self.hub) or self.path.exists()

    def split_and_column(self, splits: Sequence[str]) -> tuple[str, str]:
        """Return the split, empty if the data has none, and the column, empty if none is named.

        Raise UsageError if there are several splits and none is named.
        """
        if self.names and self.names[0] in splits:
            return self.names[0], ":".join(self.names[1:])
        if len(splits) > 1:
            place = self.hub or str(self.path)
            raise UsageError(f"{self.text}: name one of the splits {', '.join(splits)}, as in {place}:{splits[0]}")
        return "".join(splits), ":".join(self.names)


def parse(name: str | Path) -> Source:
    """Return the source of a name; a path that exists as it is written has neither split nor column.

    What does not exist and looks like ORG/DATASET is on the hub, unless ORG is a folder here; anything else is a
    missing path. Raise UsageError if a name after a colon is empty.
    """
    text = str(name)
    path_as_written = Path(text).expanduser()
    if path_as_written.exists():
        return Source(path_as_written)
    parts = text.split(":")
    for at in range(len(parts) - 1, 0, -1):
        path = Path(":".join(parts[:at])).expanduser()
        if parts[at - 1] and path.exists():
            return Source(path, _checked_names(text, parts[at:]))
    place = parts[0]
    hub_path = Path(place)
    if _HUB_ID.fullmatch(place) and hub_path.suffix.lower() not in _NO_HUB_ID and not hub_path.parent.is_dir():
        return Source(hub_path, _checked_names(text, parts[1:]), place)
    return Source(path_as_written)


def is_there(name: str | Path) -> bool:
    """Return whether the data of a name exists or is built in; the hub is not asked."""
    return str(name) in COMPOSERS or parse(name).exists


def beside(docs: str | Path, name: str) -> Path | None:
    """Return where a file called ``name`` belongs to documents: in their folder; next to a single file, with its name
    first (``reviews.probes.jsonl``). None for a dataset on the hub, which has no place for it.
    """
    source = parse(docs)
    if source.hub:
        return None
    return source.path.with_name(f"{source.path.stem}.{name}") if source.path.is_file() else source.path / name


def files_state(docs: str | Path) -> tuple[tuple[str, int, int], ...]:
    """Return the names, sizes and times of the files of documents and beside them; empty for a dataset on the hub."""
    source = parse(docs)
    if source.hub:
        return ()
    paths = source.path.rglob("*") if source.path.is_dir() else source.path.parent.glob(f"{source.path.stem}*")
    states = ((str(path), path.stat()) for path in sorted(paths) if path.is_file())
    return tuple((name, state.st_size, state.st_mtime_ns) for name, state in states)


def given_beside(docs: str | Path, name: str) -> Path | None:
    """Return the file called ``name`` beside documents, None if there is none.

    Raise UsageError if it is something else, or a link that leads out of the folder: documents may come from others.
    """
    path = beside(docs, name)
    if path is None or not (path.exists() or path.is_symlink()):
        return None
    if not path.is_file():
        raise UsageError(f"{path} is not a regular file: remove it, or put the {name} of these documents there")
    if path.is_symlink() and not path.resolve().is_relative_to(path.parent.resolve()):
        raise UsageError(f"{path} is a symbolic link to a path outside the folder: copy the file in its place")
    return path


def _checked_names(text: str, names: Sequence[str]) -> tuple[str, ...]:
    if not all(names):
        raise UsageError(f"{text}: a colon is followed by the name of a split or a column: add it, or omit the colon")
    return tuple(names)
