"""Snapshots of a cycle's documents, probes and questions, saved in the workspace when the cycle begins.

Training, evaluation and held-out data are then the same for all stages of the cycle and for later cycles, even if the
source folder changes.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from evals.probes import PROBES_FILE, load_probes, probes_hash, write_probes
from recovery.config import WRITER_FILE
from recovery.data.corpus.documents import Document
from recovery.data.prompt_files import load_prompts, write_prompts
from recovery.data.rewritten_texts import RewrittenText, write_texts
from recovery.data.sources import QUESTIONS_FILE
from recovery.disk import WRITING, replace_folder, written
from recovery.errors import CorpusError
from recovery.types import Probe, Prompt
from recovery.workspace import Workspace

if TYPE_CHECKING:
    from pipelines.runtime.session import Session

ABOUT = "corpus.json"


@dataclass(frozen=True)
class CorpusSnapshot:
    """The data of one cycle. ``lines`` report what was read and what was skipped, with reasons.

    ``questions_given`` is set if the questions came with the documents instead of being made from them. ``seed`` is
    that of the split into documents and held-out texts; None in the snapshots of version 0.1. ``texts`` came with the
    documents, for mid-training with them as its writer. ``outdated`` are probes of which a later cycle's documents
    give another answer, ``gone`` those that they answer no longer (:mod:`pipelines.data.revisions`). With ``replaces``
    its documents replace older versions. ``after`` are the cycles whose choice of held-out texts counts here as well.
    ``withdrawn`` names what is left out here, and of earlier cycles from here on.
    """

    cycle: int
    folder: str
    hash: str
    probes_hash: str
    lines: tuple[str, ...]
    documents: tuple[Document, ...]
    held_out: tuple[Document, ...]
    probes: tuple[Probe, ...]
    questions: tuple[Prompt, ...]
    questions_given: bool = False
    seed: int | None = None
    texts: tuple[RewrittenText, ...] = ()
    outdated: tuple[Probe, ...] = ()
    gone: tuple[Probe, ...] = ()
    replaces: bool = True
    withdrawn: tuple[str, ...] = ()
    after: tuple[int, ...] = ()

    @property
    def split(self) -> tuple[tuple[Document, ...], tuple[Document, ...]]:
        """The documents that are trained on, and those that are held out."""
        return self.documents, self.held_out

    @property
    def every_probe(self) -> tuple[Probe, ...]:
        """All probes, which no training question may ask."""
        return (*self.probes, *self.outdated, *self.gone)


def save_snapshot(workspace: Workspace, corpus: CorpusSnapshot) -> None:
    """Save a snapshot in the workspace, atomically; one of a cycle that never trained is replaced."""
    folder = workspace.corpus(corpus.cycle)
    writing = folder.with_name(f"{WRITING}{folder.name}")
    shutil.rmtree(writing, ignore_errors=True)
    about = {"cycle": corpus.cycle, "folder": corpus.folder, "hash": corpus.hash, "lines": list(corpus.lines)}
    about |= {"probes_hash": corpus.probes_hash, "questions_given": corpus.questions_given, "seed": corpus.seed}
    about |= {"replaces": corpus.replaces, "withdrawn": list(corpus.withdrawn), "after": list(corpus.after)}
    with written(folder, writing):
        writing.mkdir(parents=True)
        _write_documents(writing / "documents.jsonl", corpus.documents)
        _write_documents(writing / "held_out.jsonl", corpus.held_out)
        write_probes(writing / PROBES_FILE, corpus.probes)
        write_prompts(writing / QUESTIONS_FILE, corpus.questions)
        write_texts(writing / WRITER_FILE, corpus.texts)
        about["files"] = {path.name: _digest(path) for path in sorted(writing.iterdir())}
        text = json.dumps(about, indent=2, ensure_ascii=False)
        (writing / ABOUT).write_text(text + "\n", encoding="utf-8", errors="surrogatepass")  # of the folder's name
        replace_folder(writing, folder)


def load_snapshot(workspace: Workspace, cycle: int) -> CorpusSnapshot:
    """Return the snapshot of a cycle. Raise CorpusError if it is missing, damaged or changed."""
    folder = workspace.corpus(cycle)
    try:
        about = json.loads((folder / ABOUT).read_text(encoding="utf-8", errors="surrogatepass"))
        for name, digest in about.get("files", {}).items():  # snapshots of version 0.1 list none
            if _digest(folder / name) != digest:
                raise CorpusError(f"{folder / name} was changed after cycle {cycle} began: restore the file")
        corpus = CorpusSnapshot(
            cycle,
            about["folder"],
            about["hash"],
            about["probes_hash"],
            tuple(about["lines"]),
            _read_documents(folder / "documents.jsonl"),
            _read_documents(folder / "held_out.jsonl"),
            tuple(load_probes(folder / PROBES_FILE)) if _has_content(folder / PROBES_FILE) else (),
            tuple(load_prompts(folder / QUESTIONS_FILE)) if _has_content(folder / QUESTIONS_FILE) else (),
            about.get("questions_given", False),
            about.get("seed"),
            _read_texts(folder / WRITER_FILE),
            replaces=about.get("replaces", False),  # a cycle that began before there was this ends as it began
            withdrawn=tuple(about.get("withdrawn", ())),
            after=tuple(about.get("after", ())),
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CorpusError(
            f"the documents of cycle {cycle} cannot be read in {folder} ({error}): run its `recover midtrain` again"
        ) from error
    if probes_hash(corpus.probes) != corpus.probes_hash:
        raise CorpusError(f"the probes of cycle {cycle} in {folder} were changed after it began: restore the file")
    return corpus


def cycle_of(workspace: Workspace, docs: Path) -> int | None:
    """Return the cycle whose snapshot a folder is; None if it is not a snapshot of this workspace."""
    number = docs.name.removeprefix("cycle-")
    if not number.isdecimal() or docs.resolve() != workspace.corpus(int(number)).resolve():
        return None
    return int(number) if (docs / ABOUT).is_file() else None


def _digest(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def load_snapshots(workspace: Workspace, cycles: Iterable[int]) -> dict[int, CorpusSnapshot]:
    """Return the snapshots of those cycles that have documents."""
    return {k: load_snapshot(workspace, k) for k in cycles if (workspace.corpus(k) / ABOUT).is_file()}


def saved_snapshots(session: Session, cycles: Iterable[int]) -> dict[int, CorpusSnapshot]:
    """Return the snapshots of cycles, and tell the user, once, which are missing although their documents were read."""
    recorded, cycles = session.cycles(), list(cycles)
    snapshots = load_snapshots(session.workspace, cycles)
    for number in cycles:
        if number not in snapshots and number in recorded and recorded[number].corpus_hash:
            session.display.say_once(
                f"the documents of cycle {number} are missing in {session.workspace.corpus(number)}: they are neither "
                f"rehearsed nor asked about, and not measured; put the folder back if that is not intended"
            )
    return snapshots


def _has_content(path: Path) -> bool:
    return path.is_file() and path.stat().st_size > 0


def _read_texts(path: Path) -> tuple[RewrittenText, ...]:
    if not path.is_file():  # an older snapshot
        return ()
    return tuple(RewrittenText(**json.loads(line)) for line in path.read_text(encoding="utf-8").split("\n") if line)


def _write_documents(path: Path, documents: Iterable[Document]) -> None:
    lines = (json.dumps(dataclasses.asdict(d), ensure_ascii=False) + "\n" for d in documents)
    path.write_text("".join(lines), encoding="utf-8", errors="surrogatepass")


def _read_documents(path: Path) -> tuple[Document, ...]:
    # One document per line; str.splitlines would also split at separators that JSON strings may contain.
    lines = path.read_text(encoding="utf-8", errors="surrogatepass").split("\n")
    return tuple(Document(**json.loads(line)) for line in lines if line)
