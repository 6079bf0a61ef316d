"""Data augmentation for mid-training: by rules, and by a writer model whose text is cached and counted."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evals.generation import answer
from evals.rewriting import WAYS, WRITE_TOKENS, Rewriting, Rewritten, Say, rewrite
from pipelines.data.corpus_snapshot import CorpusSnapshot
from pipelines.data.writer_file import SUFFIX, WriterFile, read_writer_file
from pipelines.runtime.model_loading import FrozenModel
from pipelines.runtime.session import Session
from pipelines.runtime.stage import Stage
from recovery.config import MidtrainConfig
from recovery.data.augmentation import Augmented, Conversation, augment
from recovery.data.corpus import Document
from recovery.data.corpus.passages import Passage, passages
from recovery.data.corpus.sentences import sentences
from recovery.data.document_questions import ProbeGuard
from recovery.data.sources import given_beside
from recovery.errors import ServerError
from recovery.inference_server import InferenceServer, ask_all, served_model
from recovery.rollouts.completion_cache import CachingEngine
from recovery.rollouts.engine import Progress
from recovery.rollouts.vllm_server_engine import KEYS
from recovery.server_address import check_address, is_address
from recovery.types import Message, Probe
from recovery.workspace import Workspace, write_atomically

_AT_ONCE = 16  # requests to a writing server


@dataclass(frozen=True)
class Writing:
    """The task of a writer: its name and content hash, the passages, the ways to rewrite each, the cache file."""

    writer: str
    content: str
    passages: tuple[Passage, ...]
    ways: int
    file: str

    @property
    def most_tokens(self) -> int:
        """The maximum of tokens sampled."""
        return len(self.passages) * self.ways * WRITE_TOKENS

    def line(self, workspace: Workspace) -> str:
        """Return the task as a line of the plan, with its cost."""
        done = _read(workspace, self.file)
        if done is not None:
            return f"{self.writer} wrote {done.tokens:,} tokens about these documents before: kept, and counted again"
        return (
            f"{self.writer} rewrites {len(self.passages)} passages in {self.ways} ways before training: at most "
            f"{self.most_tokens:,} tokens sampled, counted as this stage's"
        )


def augmented(config: MidtrainConfig, own: CorpusSnapshot, probes: Sequence[Probe]) -> Augmented:
    """Return paraphrases and questions made by rules, and the questions that came with the documents.

    Empty without ``config.augment``. ``probes`` are those of all cycles.
    """
    if not config.augment:
        return Augmented()
    made = augment(own.documents, probes, wordings=config.augment, seed=config.seed)
    if not config.augment_questions:
        return dataclasses.replace(made, conversations=())
    given = _given(own, ProbeGuard(probes)) if own.questions_given else ()
    known = {chat[-2]["content"] for chat in given}
    others = tuple(chat for chat in made.conversations if chat[-2]["content"] not in known)
    return dataclasses.replace(made, conversations=(*given, *others))


def _given(own: CorpusSnapshot, guard: ProbeGuard) -> tuple[Conversation, ...]:
    """Return the questions that came with the documents and have an answer, without those that contain a probe."""
    return tuple(
        (*p.messages, Message(role="assistant", content=p.answer))
        for p in own.questions
        if p.answer and not guard.asks_the_same(p.text, p.answer)
    )


def writing(session: Session, config: MidtrainConfig, own: CorpusSnapshot) -> Writing | WriterFile | None:
    """Return the writer's task; None without a writer. Raise CheckpointError or UsageError if its name is unknown."""
    if config.writer is None or not config.augment:
        return None
    if config.writer.endswith(SUFFIX):
        bare = config.docs is not None and Path(config.writer).name == config.writer
        beside = given_beside(config.docs, config.writer) if bare else None
        return read_writer_file(beside or Path(config.writer), own.documents)
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


def write(
    stage: Stage, frozen: FrozenModel, config: MidtrainConfig, task: Writing | WriterFile, count: Callable[[str], int]
) -> list[Document]:
    """Return the rewritten passages as documents, from the cache if possible; their tokens count for this stage.

    ``count`` returns the number of tokens of a text, for texts that no model of this stage has sampled.
    """
    session = stage.session
    done = task.rewritten(count) if isinstance(task, WriterFile) else _kept_or_written(stage, frozen, config, task)
    stage.count_once("written.json", done.tokens)
    session.display.say(
        f"{task.writer} wrote {done.sentences:,} sentences in {done.tokens:,} tokens; {done.sentences_kept:,} of them "
        f"add nothing to their passage and are trained on"
    )
    return [
        Document(f"{kept.document}#rewritten-{number}", kept.place, f"{kept.place}\n\n{kept.text}", kept.document)
        for number, kept in enumerate(done.kept)
    ]


def _kept_or_written(stage: Stage, frozen: FrozenModel, config: MidtrainConfig, task: Writing) -> Rewritten:
    workspace = stage.session.workspace
    done = _read(workspace, task.file)
    if done is None:
        done = _written(stage, frozen, config, task)
        workspace.cache("").mkdir(parents=True, exist_ok=True)
        write_atomically(workspace.cache(task.file), json.dumps(dataclasses.asdict(done), ensure_ascii=True))
    return done


def _written(stage: Stage, frozen: FrozenModel, config: MidtrainConfig, task: Writing) -> Rewritten:
    session = stage.session
    with session.display.bar(f"passages rewritten by {task.writer}", len(task.passages) * task.ways) as bar:
        progress = stage.counting(bar)
        if is_address(task.content):
            return rewrite(task.passages, task.ways, _server(task.content, config, progress))
        checkpoint = session.resolve(config.writer or "")
        with frozen.sampling(checkpoint) as (loaded, sampling):
            cache = session.workspace.folder / "cache"
            engine = CachingEngine.of(loaded, sampling, content_hash=checkpoint.hash, cache=cache)

            def say(prompts: Sequence[str]) -> list[tuple[str, int]]:
                chats = [(Message(role="user", content=prompt),) for prompt in prompts]
                limit = {"max_new_tokens": WRITE_TOKENS, "window": loaded.max_length}
                responses = answer(loaded.chat, engine, chats, seed=config.seed, progress=progress, **limit)
                return [(response.text, response.tokens) for response in responses]

            return rewrite(task.passages, task.ways, say)


def _server(address: str, config: MidtrainConfig, progress: Progress) -> Say:
    """Return a writer that uses a server of chat completions."""
    server = InferenceServer(address, KEYS, timeout=config.server_timeout, patience=config.server_wait)
    model = str(served_model(server)["id"])

    def ask(prompt: str, given_up: Any) -> tuple[str, int]:
        body = {
            "model": model,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": WRITE_TOKENS,
            "temperature": 0.0,
        }
        response = server.post("/v1/chat/completions", body, given_up=given_up)
        try:
            text = response["choices"][0]["message"]["content"] or ""
            return str(text), int(response["usage"]["completion_tokens"])
        except (KeyError, IndexError, TypeError, ValueError, OverflowError) as error:
            raise ServerError(f"{address}/v1/chat/completions returns no text: is it a chat server?") from error

    def counted(responses: Sequence[tuple[str, int]]) -> None:
        progress(len(responses), sum(tokens for _, tokens in responses))

    return lambda prompts: ask_all(ask, prompts, _AT_ONCE, counted)


def _read(workspace: Workspace, file: str) -> Rewritten | None:
    """Return the cached work of a writer; None if it is missing or unreadable."""
    try:
        data = json.loads(workspace.cache(file).read_text(encoding="utf-8"))
        kept = tuple(Rewriting(**one) for one in data["kept"])
        return Rewritten(kept, int(data["sentences"]), int(data["sentences_kept"]), int(data["tokens"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
