"""Texts about documents that were written elsewhere, in a file beside them: a writer of mid-training."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recovery.data.corpus.documents import Document
from recovery.data.corpus.json_lines import read_records, write_json_lines
from recovery.data.prompt_records import question_prompt
from recovery.types import Prompt

if TYPE_CHECKING:
    from recovery.data.document_questions import ProbeGuard

_LONGEST = 4_000  # characters; filtering a text takes time quadratic in its length


@dataclass(frozen=True)
class RewrittenText:
    """One text. ``document`` is the id of the document that it is about; a text with a ``question`` answers it."""

    document: str
    text: str
    question: str = ""


def read_texts(
    path: Path, documents: Sequence[Document], held_out: Sequence[Document], problems: list[str]
) -> tuple[RewrittenText, ...]:
    """Return the texts of a JSONL file about ``documents``; each line has a ``document`` and a ``text``, which
    answers the ``question`` if there is one.

    A document is named by its id, or by its file if that holds no other. Texts about held-out documents and repeated
    ones are left out; lines that cannot be used are reported in ``problems`` by number. Raises UsageError if the file
    cannot be read.
    """
    records, found = read_records(path)
    names, hidden = _names(documents), set(_names(held_out))
    texts: dict[RewrittenText, None] = {}
    unseen = 0
    for number, record in records:
        fault = _fault(record, names.keys() | hidden)
        if fault is not None:
            found.append(f"line {number}: {fault}")
        elif record["document"] in names:
            question = (record.get("question") or "").strip()
            texts[RewrittenText(names[record["document"]], record["text"].strip(), question)] = None
        else:
            unseen += 1
    problems += [f"{path.name} {problem}" for problem in found]
    if unseen:
        problems.append(f"{path.name}: left out {unseen:,} texts about held-out documents")
    return tuple(texts)


def writer_questions(texts: Iterable[RewrittenText], guard: ProbeGuard) -> list[Prompt]:
    """Return the questions that texts answer as prompts of kind "knowledge", without those that a probe asks."""
    found: dict[str, Prompt] = {}
    for text in texts:
        if text.question and not probed(guard, text.question, text.text):
            prompt = question_prompt(text.question, text.text, "written", text.document)
            found[prompt.id] = prompt
    return list(found.values())


def probed(guard: ProbeGuard, question: str, answer: str) -> bool:
    """Return whether a probe has the wording of a question, or all its words are in it and its answer in the answer."""
    return guard.has_wording(question) or guard.tells_the_answer(question, answer, also_asked=True)


def has_questions(path: Path) -> bool:
    """Return whether a line of the file, if it exists, has a question. Raises UsageError if it cannot be read."""
    return any(record.get("question") for record in _lines(path))


def has_texts(path: Path) -> bool:
    """Return whether a line of the file, if it exists, has no question. Raises UsageError if it cannot be read."""
    return any(record.get("text") and not record.get("question") for record in _lines(path))


def _lines(path: Path) -> list[dict[str, Any]]:
    records = read_records(path)[0] if path.is_file() else []
    return [record for _, record in records if isinstance(record, dict)]


def write_texts(path: Path, texts: Iterable[RewrittenText]) -> None:
    write_json_lines(path, ({name: value for name, value in asdict(text).items() if value} for text in texts))


def _names(documents: Sequence[Document]) -> dict[str, str]:
    """Return the ids of documents by name: their own, and the file of a document that is alone in it."""
    alone: dict[str, list[str]] = {}
    for document in documents:
        alone.setdefault(document.source, []).append(document.id)
    return {source: ids[0] for source, ids in alone.items() if len(ids) == 1} | {d.id: d.id for d in documents}


def _fault(record: Any, names: Iterable[str]) -> str | None:
    if not isinstance(record, dict):
        return "not an object with document and text"
    for name in ("document", "text"):
        if not isinstance(record.get(name), str) or not record[name].strip():
            return f"{name} is missing or empty"
    question = record.get("question")
    if question is not None and (not isinstance(question, str) or not question.strip()):
        return "question is empty or not text"
    if len(record["text"]) > _LONGEST:
        return f"a text of more than {_LONGEST:,} characters: split it"
    return None if record["document"] in names else f"no document is called {record['document'][:80]!r}"
