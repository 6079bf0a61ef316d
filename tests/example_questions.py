"""An example's folder with its written questions, and the pages that they are about."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from pipelines.data.question_splits import Question, load_questions
from pipelines.experiments.example import Pages, read_pages

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


@dataclass(frozen=True)
class Example:
    """An example's folder, its questions and corpora, and the variable that names the folders with its pages."""

    name: str

    @property
    def folder(self) -> Path:
        return EXAMPLES / self.name

    @property
    def variable(self) -> str:
        return f"RECOVER_{self.name.upper()}_DOCS"

    def questions(self) -> tuple[Question, ...]:
        return load_questions(self.folder / "questions.jsonl")

    def corpora(self) -> list[Pages]:
        return read_pages(self.folder / "corpora.toml")

    def docs(self) -> dict[str, Path]:
        """Return the folder with the pages of each corpus; one folder serves all. Skip the test if it is not given."""
        names = [corpus.name for corpus in self.corpora()]
        given = [Path(folder) for folder in os.environ.get(self.variable, "").split(os.pathsep) if folder]
        if len(given) not in (1, len(names)):
            pytest.skip(f"set {self.variable} to the folder with the pages, or to one for each corpus")
        return dict(zip(names, given * (len(names) if len(given) == 1 else 1), strict=True))


def words(text: str) -> str:
    """Return the words of a text, without link targets, so that "v16.3.0" and "`useOffline()`" can be found in it."""
    text = re.sub(r"\]\([^)]*\)", "]", text)
    return f" {' '.join(re.findall(r'[a-z0-9]+', text.lower()))} "
