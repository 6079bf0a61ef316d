"""Sampling of conversations turn by turn, and cached completions of the clean model."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipelines.runtime.engines import engine_of, weights_hash
from pipelines.runtime.model_loading import FrozenModel
from pipelines.runtime.session import Session
from pipelines.runtime.stage import Stage
from recovery.config import ModelConfig
from recovery.models.chat_template import ChatFormat
from recovery.models.loaded import Loaded
from recovery.rng import RandomStream, derive_seed
from recovery.rollouts.completion_cache import CachingEngine
from recovery.rollouts.engine import CHUNK, Completion, Engine, Progress, Sampling, tokens_only, window_with
from recovery.types import Message, Prompt, Sampled
from recovery.workspace import Checkpoint


@dataclass(frozen=True)
class SampledTurn:
    """One sampled turn: the context's ids and the completion; ``messages`` is the conversation up to and with it.

    ``outcome`` is the last response of the whole conversation, to which a prompt's checks apply.
    """

    prompt: Prompt
    context: list[int]
    completion: Completion
    messages: tuple[Message, ...]
    outcome: str = ""


def sample_turns(
    chat: ChatFormat,
    engine: Engine,
    prompts: Sequence[Prompt],
    sampling: Sampling,
    progress: Progress | None = None,
) -> list[SampledTurn]:
    """Sample a completion of every open turn of ``prompts``, in order of turn, then of prompt.

    A user turn that directly follows another, or a tool's result, is added after the model has completed that one.
    ``progress`` receives the count of finished conversations and of all tokens.
    """
    pending = [open_turns(prompt.messages) for prompt in prompts]
    histories: list[list[Message]] = [[] for _ in prompts]
    sampled: list[tuple[int, SampledTurn]] = []
    turn = 0
    while any(pending):
        now = [i for i, turns in enumerate(pending) if turns]
        for i in now:
            histories[i] += pending[i].pop(0)
        contexts = [chat.prompt_ids(histories[i]) for i in now]
        drawn = dataclasses.replace(sampling, seed=derive_seed(sampling.seed, turn, RandomStream.TURN))
        last = sum(not pending[i] for i in now)
        reported = progress if last == len(now) else tokens_only(progress)
        completions = engine.generate(contexts, drawn, reported)
        if progress is not None and reported is not progress and last:
            progress(last, 0)
        for i, context, completion in zip(now, contexts, completions, strict=True):
            histories[i].append(Message(role="assistant", content=chat.text(completion.ids)))
            sampled.append((i, SampledTurn(prompts[i], context, completion, tuple(histories[i]))))
        turn += 1
    return [dataclasses.replace(one, outcome=histories[i][-1]["content"]) for i, one in sampled]


def open_turns(messages: Sequence[Message]) -> list[list[Message]]:
    """Cut a conversation after each turn of the user, or of a tool, that the model has to complete.

    Recorded turns of the assistant stay as they are, with their tool calls.
    """
    turns: list[list[Message]] = []
    current: list[Message] = []
    for index, message in enumerate(messages):
        current.append(message)
        following = messages[index + 1]["role"] if index + 1 < len(messages) else None
        if message["role"] in ("user", "tool") and following in (None, "user"):
            turns.append(current)
            current = []
    return turns


def fitting(chat: ChatFormat, prompts: Sequence[Prompt], room: int, answer: int) -> list[Prompt]:
    """Return the prompts of at most ``room`` tokens; longer ones leave no room for a completion.

    A conversation whose turns the model completes one by one counts ``answer`` tokens for each completion but the last.
    """

    def most_tokens(prompt: Prompt) -> int:
        messages, before = last_request(prompt.messages)
        return len(chat.prompt_ids(messages)) + answer * before

    return [p for p in prompts if most_tokens(p) <= room]


def last_request(messages: Sequence[Message]) -> tuple[list[Message], int]:
    """Return a conversation up to its last requested turn, earlier completions empty, and the number of these."""
    turns = open_turns(messages)
    if len(turns) < 2:
        return list(messages), 0
    history: list[Message] = []
    for turn in turns[:-1]:
        history += [*turn, Message(role="assistant", content="")]
    return [*history, *turns[-1]], len(turns) - 1


@dataclass(frozen=True)
class CompletedConversation:
    """A prompt and the conversation with the model's completions; the last one was cut off unless ``finished``, the
    others are whole.
    """

    prompt: Prompt
    messages: tuple[Message, ...]
    finished: bool = True

    @property
    def answer(self) -> str:
        """The last message of the conversation."""
        return self.messages[-1]["content"]


def conversations(
    loaded: Loaded,
    engine: Engine,
    prompts: Sequence[Prompt],
    *,
    content_hash: str,
    sampling: Sampling,
    cache: Path,
    unfinished: bool = False,
    most: int | None = None,
    progress: Progress | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> tuple[list[CompletedConversation], int]:
    """Return a frozen model's conversations on ``prompts``, without those of which a completion was cut off; with
    ``unfinished`` the last one may be, unless it was before the answer began, within thinking. Also return the number
    of tokens of all completions, those left out included.

    With ``most``, prompts are left out as soon as another completion could exceed that many tokens, but never all.
    ``content_hash`` is the model's. Completions are cached in ``cache`` chunk by chunk: an interruption loses at most
    one chunk, and no completion is sampled twice. ``say`` is called with the number of those left out.
    """
    engine = CachingEngine.of(loaded, engine, content_hash=content_hash, cache=cache)
    completed: list[CompletedConversation] = []
    tokens = 0
    number = start = 0
    while start < len(prompts) and (not start or most is None or tokens + sampling.max_new_tokens <= most):
        # Chunks become smaller towards the end of a budget. What was sampled before decides, so they repeat exactly.
        size = CHUNK if most is None else min(CHUNK, max(1, (most - tokens) // sampling.max_new_tokens))
        chunk = prompts[start : start + size]
        drawn = dataclasses.replace(sampling, seed=derive_seed(sampling.seed, number, RandomStream.REPLAY))
        numbered = [dataclasses.replace(p, id=str(i)) for i, p in enumerate(chunk)]
        sampled = sample_turns(loaded.chat, engine, numbered, drawn, progress)
        tokens += sum(len(turn.completion.ids) for turn in sampled)
        by_prompt: dict[int, list[SampledTurn]] = {}
        for turn in sampled:
            by_prompt.setdefault(int(turn.prompt.id), []).append(turn)
        completed += [
            CompletedConversation(chunk[i], _example(loaded.chat, chunk[i], turns), turns[-1].completion.finished)
            for i, turns in sorted(by_prompt.items())
            if _is_example(turns, unfinished)
        ]
        number, start = number + 1, start + size
    asked = min(start, len(prompts))
    if len(completed) < asked:
        say(
            f"{asked - len(completed):,} of {asked:,} answers left out: they do not end within "
            f"{sampling.max_new_tokens:,} tokens (--max-new-tokens)"
        )
    return completed, tokens


def _example(chat: ChatFormat, prompt: Prompt, turns: Sequence[SampledTurn]) -> tuple[Message, ...]:
    """Return a completed conversation; turns of the assistant that the prompt holds are marked as recorded.

    A response with reasoning keeps its sampled tokens: the template would render its answer without the reasoning. A
    response with special tokens, such as the mark of a tool call, keeps them too: its text lacks them.
    """
    last = turns[-1]
    sampled = set(itertools.accumulate(len(turn) + 1 for turn in open_turns(prompt.messages)))
    messages: list[Message] = [
        {**message, "recorded": True} if message["role"] == "assistant" and number not in sampled else message
        for number, message in enumerate(last.messages, 1)
    ]
    ids = last.completion.ids
    special = any(token in chat.control for token in ids[: len(ids) - last.completion.finished])
    if special or any(chat.reasons(turn.completion.ids) for turn in turns):
        original = Sampled(context=last.context, ids=ids, text=chat.raw_text(ids), finished=last.completion.finished)
        messages[-1] = {**messages[-1], "sampled": original}
    return tuple(messages)


def _is_example(turns: Sequence[SampledTurn], unfinished: bool) -> bool:
    """Whether a conversation can be an example: one that goes on after a cut would teach to end in mid-sentence."""
    *before, last = turns
    last_is_usable = last.completion.finished or (unfinished and bool(last.messages[-1]["content"]))
    return last_is_usable and all(turn.completion.finished for turn in before)


def answered_before(
    stage: Stage,
    frozen: FrozenModel,
    checkpoint: Checkpoint,
    prompts: Sequence[Prompt],
    sampling: Sampling,
    *,
    count: int,
    each: int = 1,
    most: int | None = None,
    unfinished: bool = False,
    counted: str = "spoken.json",
) -> tuple[list[CompletedConversation], int]:
    """Return a checkpoint's conversations, sampled before a stage's training and cached, and all tokens sampled.

    They are ``each`` on the first ``count`` prompts that leave half of the context for a completion, and of about
    ``most`` tokens in all. The tokens, also those of conversations left out, are recorded only once even if the stage
    is resumed: ``counted`` is the file of the stage that says so.
    """
    session = stage.session
    with frozen.sampling(checkpoint) as (loaded, engine):
        room = window_with(engine, loaded.max_length) // 2
        fit = fitting(loaded.chat, prompts, room, sampling.max_new_tokens)[:count]
        repeated = [prompt for prompt in fit for _ in range(each)]
        with session.display.bar(f"completions of {checkpoint.name}", len(repeated)) as bar:
            completed, tokens = conversations(
                loaded,
                engine,
                repeated,
                content_hash=weights_hash(checkpoint),
                sampling=sampling,
                cache=session.workspace.folder / "cache",
                unfinished=unfinished,
                most=most,
                progress=stage.counting(bar),
                say=session.display.say,
            )
    stage.count_once(counted, tokens)
    return completed, tokens


@contextlib.contextmanager
def cached_engine(
    session: Session, checkpoint: Checkpoint, loaded: Loaded, config: ModelConfig, *, complete_loops: bool = False
) -> Iterator[CachingEngine]:
    """Yield an engine of a frozen checkpoint that caches its completions in the workspace."""
    cache, weights = session.workspace.folder / "cache", weights_hash(checkpoint)
    with engine_of(loaded, config, complete_loops=complete_loops) as engine:
        yield CachingEngine.of(loaded, engine, content_hash=weights, cache=cache)
