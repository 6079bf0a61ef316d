"""A checkpoint as the writer of questions about documents."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field

from evals.writing import Writer
from pipelines.models import engine_of, load_frozen
from pipelines.probing import Ask, question_passages
from pipelines.progress import Bar, Display
from pipelines.session import Session
from recovery.config import ModelConfig
from recovery.corpus import Corpus
from recovery.types import Probe
from recovery.workspace import Checkpoint


def writer_of(session: Session, checkpoint: Checkpoint, config: ModelConfig) -> Ask:
    """What asks that checkpoint for questions; it is loaded when it is asked, so that errors come before."""

    def ask(corpus: Corpus, count: int) -> list[Probe]:
        loaded = load_frozen(session.verified(checkpoint), config)
        found = question_passages(corpus, count, config.seed)
        with engine_of(loaded, config) as engine, contextlib.ExitStack() as shown:
            bars = _Bars(session.display, f"questions by {checkpoint.name}", shown)
            writer = Writer(loaded.chat, engine, loaded.max_length, config.seed, bars.show)
            return writer.probes(found, corpus.documents, count)

    return ask


@dataclass
class _Bars:
    """One bar after another, as the work goes from writing to answering with the book open and closed."""

    display: Display
    title: str
    stack: contextlib.ExitStack
    current: tuple[str, int] = ("", 0)
    bar: Bar | None = field(default=None)

    def show(self, what: str, done: int, total: int, tokens: int) -> None:
        """The progress callback of evals.writing."""
        if (what, total) != self.current or self.bar is None:
            self.stack.close()
            self.current, self.bar = (
                (what, total),
                self.stack.enter_context(self.display.bar(f"{self.title}: {what}", total)),
            )
        self.bar.at(done, tokens)
