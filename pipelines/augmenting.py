"""Augmented text for mid-training: by rules, and by a writer whose work is kept in the workspace and counted."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from evals.asking import answer
from evals.rewriting import WAYS, WRITE_TOKENS, Rewriting, Rewritten, Say, rewrite
from pipelines.corpora import FrozenCorpus
from pipelines.models import engine_of, load_frozen
from pipelines.progress import Bar
from pipelines.session import Session
from pipelines.stage import Stage
from recovery.augmentation import Augmented, Conversation, augment
from recovery.config import MidtrainConfig
from recovery.corpus import Document
from recovery.corpus.passages import Passage, passages
from recovery.corpus.sentences import sentences
from recovery.errors import ServerError
from recovery.questions import ProbeGuard
from recovery.rollouts import CachedEngine
from recovery.rollouts.server_engine import KEYS
from recovery.server import VllmServer, ask_all, check_address, is_address, served_model
from recovery.types import Message, Probe
from recovery.workspace import Workspace, write_atomically

_AT_ONCE = 16  # requests to a writing server


@dataclass(frozen=True)
class Writing:
    """What a writer is to do, and what is known of it: who, which passages in how many ways, where that is kept."""

    writer: str
    content: str
    passages: tuple[Passage, ...]
    ways: int
    file: str

    @property
    def most_tokens(self) -> int:
        """The most that it can sample."""
        return len(self.passages) * self.ways * WRITE_TOKENS

    def line(self, workspace: Workspace) -> str:
        """The plan of it for a person, with what it costs."""
        done = _read(workspace, self.file)
        if done is not None:
            return f"{self.writer} wrote {done.tokens:,} tokens about these documents before: kept, and counted again"
        return (
            f"{self.writer} rewrites {len(self.passages)} passages in {self.ways} ways before training: at most "
            f"{self.most_tokens:,} tokens sampled, counted as this stage's"
        )


def augmented(config: MidtrainConfig, own: FrozenCorpus, probes: Sequence[Probe]) -> Augmented:
    """Wordings and questions by rules, and the questions that came with the documents; nothing where the dial is off.
    ``probes`` are all that any cycle is asked.
    """
    if not config.augment:
        return Augmented()
    made = augment(own.documents, probes, wordings=config.augment, seed=config.seed)
    if not config.augment_questions:
        return dataclasses.replace(made, conversations=())
    theirs = _given(own, ProbeGuard(probes)) if own.questions_given else ()
    asked = {chat[-2]["content"] for chat in theirs}
    others = tuple(chat for chat in made.conversations if chat[-2]["content"] not in asked)
    return dataclasses.replace(made, conversations=(*theirs, *others))


def _given(own: FrozenCorpus, guard: ProbeGuard) -> tuple[Conversation, ...]:
    """The questions that came with the documents, where their answer is known; none holds a whole probe."""
    return tuple(
        (*p.messages, Message(role="assistant", content=p.answer))
        for p in own.questions
        if p.answer and not guard.asks_the_same(p.text, p.answer)
    )


def writing(session: Session, config: MidtrainConfig, own: FrozenCorpus) -> Writing | None:
    """What the writer is to do, or None without one. Raises CheckpointError or UsageError where its name is nothing."""
    if config.writer is None or not config.augment:
        return None
    if is_address(config.writer):
        content = name = check_address(config.writer, "--writer")
    else:
        checkpoint = session.resolve(config.writer)
        content, name = checkpoint.hash, checkpoint.name
    shown = tuple(passages(sentences(own.documents, alone=False), len(own.documents) * 10_000, config.seed))
    ways = min(config.augment, len(WAYS))
    parts = (own.hash, ways, WRITE_TOKENS, *WAYS, content, config.precision, sorted(config.template_args.items()))
    digest = hashlib.sha256("\x1f".join(map(str, parts)).encode()).hexdigest()[:24]
    return Writing(name, content, shown, ways, f"rewritten-{digest}.json")


def write(session: Session, stage: Stage, config: MidtrainConfig, task: Writing) -> list[Document]:
    """What the writer makes of the passages, as documents: from the cache where it is, and counted as this stage's."""
    done = _read(session.workspace, task.file)
    if done is None:
        done = _written(session, stage, config, task)
        session.workspace.cache("").mkdir(parents=True, exist_ok=True)
        write_atomically(session.workspace.cache(task.file), json.dumps(dataclasses.asdict(done), ensure_ascii=True))
    counted = stage.folder / "written.json"
    if not counted.is_file():  # once, however often the stage is resumed
        stage.recorder.usage(tokens_sampled=done.tokens)
        write_atomically(counted, json.dumps(done.tokens))
    session.display.say(
        f"{task.writer} wrote {done.sentences:,} sentences in {done.tokens:,} tokens; {done.sentences_kept:,} say only "
        f"what their passage says and are trained on"
    )
    return [
        Document(f"{kept.document}#rewritten-{number}", kept.place, f"{kept.place}\n\n{kept.text}", kept.document)
        for number, kept in enumerate(done.kept)
    ]


def _written(session: Session, stage: Stage, config: MidtrainConfig, task: Writing) -> Rewritten:
    with session.display.bar(f"passages rewritten by {task.writer}", len(task.passages) * task.ways) as bar:

        def heard(answers: int, tokens: int) -> None:
            bar.heard(answers, tokens)
            stage.interrupts.check()

        if is_address(task.content):
            return rewrite(task.passages, task.ways, _server(task.content, config, bar, stage))
        checkpoint = session.verified(session.resolve(config.writer or ""))
        loaded = load_frozen(checkpoint, config)
        with engine_of(loaded, config) as sampling:
            cache = session.workspace.folder / "cache"
            engine = CachedEngine.of(loaded, sampling, content_hash=checkpoint.hash, cache=cache)

            def say(prompts: Sequence[str]) -> list[tuple[str, int]]:
                asked = [(Message(role="user", content=prompt),) for prompt in prompts]
                limit = {"max_new_tokens": WRITE_TOKENS, "window": loaded.max_length}
                said = answer(loaded.chat, engine, asked, seed=config.seed, progress=heard, **limit)
                return [(one.text, one.tokens) for one in said]

            return rewrite(task.passages, task.ways, say)


def _server(address: str, config: MidtrainConfig, bar: Bar, stage: Stage) -> Say:
    """A model behind a server of chat completions as the writer."""
    server = VllmServer(address, KEYS, timeout=config.server_timeout, patience=config.server_wait)
    model = str(served_model(server)["id"])

    def ask(prompt: str, given_up: Any) -> tuple[str, int]:
        body = {
            "model": model,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": WRITE_TOKENS,
            "temperature": 0.0,
        }
        said = server.post("/v1/chat/completions", body, given_up=given_up)
        try:
            text = said["choices"][0]["message"]["content"] or ""
            return str(text), int(said["usage"]["completion_tokens"])
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise ServerError(f"{address}/v1/chat/completions answers no text: is it a chat server?") from error

    def heard(answers: Sequence[tuple[str, int]]) -> None:
        bar.heard(len(answers), sum(tokens for _, tokens in answers))
        stage.interrupts.check()

    return lambda prompts: ask_all(ask, prompts, _AT_ONCE, heard)


def _read(workspace: Workspace, file: str) -> Rewritten | None:
    """What was kept of a writer's work; None where there is none that reads."""
    try:
        data = json.loads(workspace.cache(file).read_text(encoding="utf-8"))
        kept = tuple(Rewriting(**one) for one in data["kept"])
        return Rewritten(kept, int(data["sentences"]), int(data["sentences_kept"]), int(data["tokens"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
