"""Texts about the documents that were written elsewhere: a file as the writer of mid-training."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evals.rewriting import Rewriting, Rewritten, keep_supported
from recovery.data.corpus import Document
from recovery.data.corpus.json_lines import read_records
from recovery.data.corpus.text import hash_of
from recovery.errors import UsageError
from recovery.workspace import Workspace

SUFFIX = ".jsonl"


@dataclass(frozen=True)
class WriterFile:
    """The texts of a file about these documents; ``others`` lines are about other documents."""

    writer: str
    texts: tuple[Rewriting, ...]
    sources: dict[str, str]
    others: int

    def line(self, _workspace: Workspace) -> str:
        """Return the plan's line: the texts and how their cost is counted."""
        characters = sum(len(text.text) for text in self.texts)
        others = f"; {self.others:,} about other documents are left out" if self.others else ""
        return (
            f"{self.writer} has {len(self.texts):,} texts about these documents, {characters:,} characters, counted as "
            f"if sampled in this stage{others}"
        )

    def rewritten(self, count: Callable[[str], int]) -> Rewritten:
        """Return the sentences that their document supports; ``count`` returns the tokens of a text."""
        return keep_supported([(text, self.sources[text.document], count(text.text)) for text in self.texts])


def read_writer_file(path: Path, documents: Sequence[Document]) -> WriterFile:
    """Read a JSONL file with a ``document`` (its path in the folder of documents) and a ``text`` on each line.

    Raises UsageError if a line is invalid, or if no line is about any of ``documents``.
    """
    records, problems = read_records(path)
    by_source: dict[str, list[Document]] = {}
    for document in documents:
        by_source.setdefault(document.source, []).append(document)
    texts, others = [], Counter[str]()
    for number, record in records:
        if (fault := _fault(record)) is not None:
            problems.append(f"line {number}: {fault}")
        elif record["document"] in by_source:
            first = by_source[record["document"]][0]
            texts.append(Rewriting(first.source, first.title, record["text"]))
        else:
            others[record["document"]] += 1
    if problems:
        more = f" ({len(problems) - 1} more lines like this)" if len(problems) > 1 else ""
        raise UsageError(f"--writer {path}: {problems[0]}{more}")
    if not texts:
        named = f": its first document is {next(iter(others))!r}" if others else ""
        raise UsageError(f"--writer {path} has no text about these documents{named}; give their paths below --docs")
    sources = {source: "\n".join(d.text for d in group) for source, group in by_source.items()}
    digest = hash_of("\x1e".join(f"{text.document}\x1f{text.text}" for text in texts))[:12]
    return WriterFile(f"{path.name} ({digest})", tuple(texts), sources, others.total())


def _fault(record: Any) -> str | None:
    if not isinstance(record, dict):
        return "not an object with document and text"
    for name in ("document", "text"):
        if not isinstance(record.get(name), str) or not record[name].strip():
            return f"{name} is missing or no text"
    return None
