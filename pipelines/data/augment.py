"""Data augmentation for mid-training: by rules, and by a writer model whose text is cached and counted.

The writer can be a server of chat completions; each of its replies is stored as it arrives.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Event

from evals.generation import answer
from evals.rewriting import FILTER, WAYS, WRITE_TOKENS, Rewriting, Rewritten, Say, keep_supported, rewrite
from pipelines.data.corpus_snapshot import CorpusSnapshot
from pipelines.runtime.engines import weights_hash
from pipelines.runtime.model_loading import FrozenModel
from pipelines.runtime.session import Session
from pipelines.runtime.stage import Stage
from recovery.config import WRITER_FILE, MidtrainConfig
from recovery.data.augmentation import Augmented, Conversation, augment
from recovery.data.corpus.cloze import Passage, passages
from recovery.data.corpus.documents import Document
from recovery.data.corpus.sentences import sentences
from recovery.data.document_questions import ProbeGuard
from recovery.data.rewritten_texts import probed
from recovery.engines import check_address, is_address
from recovery.errors import ServerError, UsageError
from recovery.inference_server import InferenceServer, ask_all, served_model
from recovery.rollouts.completion_cache import CachingEngine
from recovery.rollouts.engine import Progress
from recovery.rollouts.vllm_server_engine import KEYS
from recovery.types import Message, Probe
from recovery.workspace import Workspace, write_atomically

_CONCURRENT = 16  # requests
_PLAN_SECONDS = 5.0  # seconds that a plan waits for a response


def model_now(address: str) -> str:
    """Return the id of the model that a server serves, for a plan; "" if it does not respond at once."""
    with contextlib.closing(InferenceServer(address, KEYS, timeout=_PLAN_SECONDS, patience=0.0)) as server:
        try:
            return str(served_model(server)["id"])
        except ServerError:
            return ""


def model_at(address: str, config: MidtrainConfig) -> str:
    """Return the id of the model that a server serves. Raise ServerError if it does not respond in time."""
    with contextlib.closing(_server(address, config)) as server:
        return str(served_model(server)["id"])


def server_writer(address: str, model: str, config: MidtrainConfig, kept: Path, progress: Progress) -> Say:
    """Return a writer that asks a server, except for what is ``kept``: a file to which each reply is added at once."""
    server = _server(address, config)

    def ask(prompt: str, given_up: Event) -> tuple[str, str, int]:
        body = {
            "model": model,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": WRITE_TOKENS,
            "temperature": 0.0,
        }
        response = server.post("/v1/chat/completions", body, given_up=given_up)
        try:
            text = response["choices"][0]["message"]["content"] or ""
            return prompt, str(text), int(response["usage"]["completion_tokens"])
        except (KeyError, IndexError, TypeError, ValueError, OverflowError) as error:
            raise ServerError(f"{address}/v1/chat/completions returns no text: is it a chat server?") from error

    def replied(replies: Sequence[tuple[str, str, int]]) -> None:
        if replies:  # before progress, which may end the work
            with kept.open("a", encoding="utf-8") as file:
                # A line break before each ends a line that a killed process left unfinished.
                file.writelines(f"\n{json.dumps(reply)}" for reply in replies)
        progress(len(replies), sum(tokens for *_, tokens in replies))

    def say(prompts: Sequence[str]) -> list[tuple[str, int]]:
        kept.parent.mkdir(parents=True, exist_ok=True)
        known = _replies(kept)
        missing = [prompt for prompt in prompts if prompt not in known]
        if len(missing) < len(prompts):
            progress(len(prompts) - len(missing), 0)
        made = iter(ask_all(ask, missing, _CONCURRENT, replied))
        return [known[prompt] if prompt in known else next(made)[1:] for prompt in prompts]

    return say


def _server(address: str, config: MidtrainConfig) -> InferenceServer:
    return InferenceServer(address, KEYS, timeout=config.server_timeout, patience=config.server_wait)


def _replies(kept: Path) -> dict[str, tuple[str, int]]:
    """Return the texts and numbers of tokens in a file of replies, by prompt; unfinished lines are left out."""
    replies: dict[str, tuple[str, int]] = {}
    for line in kept.read_bytes().split(b"\n") if kept.is_file() else ():
        with contextlib.suppress(ValueError, TypeError):
            prompt, text, tokens = json.loads(line)
            replies[prompt] = str(text), int(tokens)
    return replies


TOGETHER = 4  # texts that came with the documents, often one sentence each, in one document
_FILE = "rewritten"  # in a stage's details: the cache file of the text that it trains on


@dataclass(frozen=True)
class Writing:
    """The task of a writer: its name and content hash, the passages, the ways to rewrite each, and the ``stem`` of
    the names of its cache files. ``model`` is the id of the model at the address of a server; "" if it is not known.
    """

    writer: str
    content: str
    passages: tuple[Passage, ...]
    ways: int
    stem: str
    model: str = ""

    @property
    def file(self) -> str:
        """The name of the cache file; another model at the same address has another one."""
        model = f"-{hashlib.sha256(self.model.encode()).hexdigest()[:8]}" if self.model else ""
        return f"{self.stem}{model}.json"

    @property
    def most_tokens(self) -> int:
        """The maximum of tokens sampled."""
        return len(self.passages) * self.ways * WRITE_TOKENS

    def line(self, workspace: Workspace) -> str:
        """Return the task as a line of the plan, with its cost."""
        before = _earlier_text(workspace, self)
        if before is not None:
            _, done = before
            return f"{self.writer} wrote {done.tokens:,} tokens about these documents before: kept, and counted again"
        return (
            f"{self.writer} rewrites {len(self.passages)} passages in {self.ways} ways before training: at most "
            f"{self.most_tokens:,} tokens sampled, counted as this stage's"
        )


def augmented(
    config: MidtrainConfig, own: CorpusSnapshot, probes: Sequence[Probe], written: Rewritten | None = None
) -> Augmented:
    """Return paraphrases and questions made by rules, and the questions that came with the documents, those among
    the texts ``written`` elsewhere included.

    Empty without ``config.augment``. ``probes`` are those of all cycles.
    """
    if not config.augment:
        return Augmented()
    made = augment(own.documents, probes, wordings=config.augment, seed=config.seed)
    if not config.augment_questions:
        return dataclasses.replace(made, conversations=())
    guard = ProbeGuard(probes)
    supplied = _supplied(own, guard) if own.questions_given else ()
    texts = [text for text in (written.kept if written else ()) if text.question]
    chats = (_chat(text) for text in texts if not probed(guard, text.question, text.text))
    return dataclasses.replace(made, conversations=_distinct([*supplied, *chats, *made.conversations]))


def _distinct(chats: Sequence[Conversation]) -> tuple[Conversation, ...]:
    """Return chats with different questions, the first of each."""
    by_question: dict[str, Conversation] = {}
    for chat in chats:
        by_question.setdefault(chat[-2]["content"], chat)
    return tuple(by_question.values())


def _supplied(own: CorpusSnapshot, guard: ProbeGuard) -> tuple[Conversation, ...]:
    """Return the questions that came with the documents and have an answer, without those that contain a probe."""
    return tuple(
        (*p.messages, Message(role="assistant", content=p.answer))
        for p in own.questions
        if p.answer and not guard.asks_the_same(p.text, p.answer)
    )


def _chat(text: Rewriting) -> Conversation:
    return (Message(role="user", content=text.question), Message(role="assistant", content=text.text))


def given_texts(config: MidtrainConfig, own: CorpusSnapshot, count: Callable[[str], int]) -> Rewritten | None:
    """Return the texts that came with the documents, filtered; None if they are not the writer.

    Those that answer a question are among them only with ``config.writer_questions``. ``count`` returns the tokens of a
    text. Raises UsageError if there are none.
    """
    if config.writer != WRITER_FILE or not config.augment:
        return None
    check_texts(config, own)
    documents = {document.id: document for document in own.documents}
    sources = {name: _source(documents[name]) for name in {text.document for text in own.texts}}
    rewritings = []
    for text in own.texts:
        if config.writer_questions or not text.question:
            tokens = count(text.text) + (count(text.question) if text.question else 0)
            rewriting = Rewriting(text.document, documents[text.document].title, text.text, text.question)
            rewritings.append((rewriting, sources[text.document], tokens))
    return keep_supported(rewritings)


def text_documents(own: CorpusSnapshot) -> tuple[Document, ...]:
    """Return the texts that came with the documents, filtered, as mid-training reads them; none if none came."""
    if all(text.question for text in own.texts):
        return ()
    done = given_texts(MidtrainConfig(writer=WRITER_FILE, augment=1), own, lambda _text: 0)
    return as_documents(done, together=TOGETHER) if done is not None else ()


def _source(document: Document) -> str:
    """Return what supports a text about a document: its title, and its text without markup and with it."""
    plain = " ".join(sentence.plain for sentence in sentences([document], alone=False))
    return f"{document.title}\n{plain}\n{document.text}"


def check_texts(config: MidtrainConfig, own: CorpusSnapshot) -> None:
    """Raise UsageError if texts that came with the documents are to be the writer, and none did."""
    used = [text for text in own.texts if config.writer_questions or not text.question]
    if config.writer == WRITER_FILE and not used:
        raise UsageError(
            f"--writer {WRITER_FILE}: cycle {own.cycle} has no texts about {own.folder}: put them into a file of that "
            f"name beside the documents before the cycle begins, or use another --workspace"
        )
    if config.writer_questions and not any(text.question for text in own.texts):
        raise UsageError(
            f"--writer-questions: no text about {own.folder} had a question when cycle {own.cycle} began: put them "
            f"into {WRITER_FILE} before, or use another --workspace"
        )


def writing(session: Session, config: MidtrainConfig, own: CorpusSnapshot) -> Writing | None:
    """Return the task of a writer model; None without one. Raise CheckpointError or UsageError for an unknown name."""
    if config.writer in (None, WRITER_FILE) or not config.augment:
        return None
    model = ""
    if is_address(config.writer):
        content = name = check_address(config.writer, "--writer")
        model = model_now(content)
    else:
        checkpoint = session.resolve(config.writer)
        content, name = checkpoint.hash, checkpoint.name
    shown = tuple(passages(sentences(own.documents, alone=False), len(own.documents) * 10_000, config.seed))
    ways = min(config.augment, len(WAYS))
    chat = (config.precision, sorted(config.template_args.items()))
    parts = (own.hash, ways, WRITE_TOKENS, FILTER, *WAYS, content, *chat)
    digest = hashlib.sha256("\x1f".join(map(str, parts)).encode()).hexdigest()[:24]
    return Writing(name, content, shown, ways, f"rewritten-{digest}", model)


def write(stage: Stage, frozen: FrozenModel, config: MidtrainConfig, task: Writing) -> Rewritten:
    """Return the rewritten passages, from the cache if possible; a resumed stage goes on with those it began with."""
    workspace = stage.session.workspace
    begun = stage.known.get(_FILE)
    if begun is not None and (text := _read(workspace, str(begun))) is not None:
        return text
    file, done = _earlier_text(workspace, task) or _write_missing(stage, frozen, config, task)
    stage.describe(**{_FILE: file})
    return done


def _write_missing(stage: Stage, frozen: FrozenModel, config: MidtrainConfig, task: Writing) -> tuple[str, Rewritten]:
    """Return the passages as the writer rewrites them, and the cache file that they are in after that."""
    workspace = stage.session.workspace
    if is_address(task.content) and not task.model:
        task = dataclasses.replace(task, model=model_at(task.content, config))
    replies = workspace.cache(f"{task.file}l")
    done = _new_text(stage, frozen, config, task, replies)
    workspace.cache("").mkdir(parents=True, exist_ok=True)
    write_atomically(workspace.cache(task.file), json.dumps(dataclasses.asdict(done), ensure_ascii=True))
    replies.unlink(missing_ok=True)
    return task.file, done


def _earlier_text(workspace: Workspace, task: Writing) -> tuple[str, Rewritten] | None:
    """Return the file and the text that a writer left before, if there is one.

    A server need not run again for it: of one that does not respond the newest text from its address counts. A file
    without a model in its name is of an earlier version, which did not ask for it.
    """
    names = [task.file, f"{task.stem}.json"]
    if is_address(task.content) and not task.model:
        paths = workspace.cache("").glob(f"{task.stem}*.json")
        names = [path.name for path in sorted(paths, key=lambda path: path.stat().st_mtime, reverse=True)]
    texts = ((name, _read(workspace, name)) for name in names)
    return next(((name, text) for name, text in texts if text is not None), None)


def count_written(stage: Stage, writer: str, done: Rewritten) -> None:
    """Count a writer's tokens as sampled by this stage, and say what was kept of its text."""
    stage.count_once("written.json", done.tokens)
    stage.session.display.say(
        f"{writer} wrote {done.sentences:,} sentences in {done.tokens:,} tokens; {done.sentences_kept:,} of them "
        f"add nothing to their passage and are trained on"
    )


def as_documents(done: Rewritten, *, together: int = 1) -> tuple[Document, ...]:
    """Return rewritten passages, without answers to questions, as documents below their places.

    ``together`` is how many passages of a place one document holds, in an order that is shuffled but always the same:
    where each is one sentence, a title above every one would be a fifth of the tokens.
    """
    places: dict[tuple[str, str], list[str]] = defaultdict(list)
    for kept in done.kept:
        if not kept.question:
            places[kept.document, kept.place].append(kept.text)
    groups = []
    for (document, place), texts in places.items():
        if together > 1:
            random.Random(document).shuffle(texts)
        groups += [(document, place, texts[at : at + together]) for at in range(0, len(texts), together)]
    return tuple(
        Document(f"{document}#rewritten-{number}", place, "\n\n".join([place, *texts]), document)
        for number, (document, place, texts) in enumerate(groups)
    )


def _new_text(stage: Stage, frozen: FrozenModel, config: MidtrainConfig, task: Writing, replies: Path) -> Rewritten:
    session = stage.session
    with session.display.bar(f"passages rewritten by {task.writer}", len(task.passages) * task.ways) as bar:
        progress = stage.counting(bar)
        if is_address(task.content):
            ask = server_writer(task.content, task.model, config, replies, progress)
            return rewrite(task.passages, task.ways, ask)
        checkpoint = session.resolve(config.writer or "")
        with frozen.sampling(checkpoint) as (loaded, sampling):
            cache = session.workspace.folder / "cache"
            engine = CachingEngine.of(loaded, sampling, content_hash=weights_hash(checkpoint), cache=cache)

            def say(prompts: Sequence[str]) -> list[tuple[str, int]]:
                chats = [(Message(role="user", content=prompt),) for prompt in prompts]
                limit = {"max_new_tokens": WRITE_TOKENS, "window": loaded.max_length}
                responses = answer(loaded.chat, engine, chats, seed=config.seed, progress=progress, **limit)
                return [(response.text, response.tokens) for response in responses]

            return rewrite(task.passages, task.ways, say)


def _read(workspace: Workspace, file: str) -> Rewritten | None:
    """Return the cached work of a writer; None if it is missing or unreadable."""
    try:
        data = json.loads(workspace.cache(file).read_text(encoding="utf-8"))
        kept = tuple(Rewriting(**one) for one in data["kept"])
        return Rewritten(kept, int(data["sentences"]), int(data["sentences_kept"]), int(data["tokens"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None
