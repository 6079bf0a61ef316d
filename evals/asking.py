"""Asking a model: conversations in, greedy answers out, turn by turn where there are several requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from recovery.chat import ChatFormat
from recovery.rollouts import Completion, Engine, Progress, Sampling
from recovery.types import Message


@dataclass(frozen=True)
class Answer:
    """The answer to the last request of a conversation.

    ``tokens`` counts what was generated for it, ``finished`` says that the model ended it by itself, and
    ``fits`` is False where the prompt left no room in the model's window (the answer is then empty). ``asked`` is the
    conversation as it stood when the answer was given, the model's own earlier answers included.
    """

    text: str
    tokens: int
    finished: bool
    fits: bool = True
    asked: tuple[Message, ...] = ()


def answer(
    chat: ChatFormat,
    engine: Engine,
    conversations: Sequence[Sequence[Message]],
    *,
    max_new_tokens: int,
    window: int | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> list[Answer]:
    """Greedy answers to ``conversations``, in order.

    A user turn directly followed by another is answered by the model itself before the next one is put;
    assistant turns that are given are kept as they are, and one at the very end is dropped. ``window`` is the
    model's context in tokens: no answer runs past it. ``progress`` hears of conversations that got their
    last answer, and of all tokens.
    """
    histories: list[list[Message]] = [[] for _ in conversations]
    pending = [_turns(messages) for messages in conversations]
    answers: list[Answer] = [Answer("", 0, False, fits=False)] * len(conversations)
    while any(pending):
        # Conversations with the most turns left go first, so that the last answers come in one large batch.
        most = max(len(turns) for turns in pending)
        now = [index for index, turns in enumerate(pending) if len(turns) == most]
        for index in now:
            histories[index] += pending[index].pop(0)
        prompts = [chat.prompt_ids(histories[index]) for index in now]
        greedy = Sampling(max_new_tokens, temperature=0.0, seed=seed)
        heard = progress if most == 1 else tokens_only(progress)
        said = generate(engine, prompts, greedy, window=window, progress=heard)
        for index, completion in zip(now, said, strict=True):
            answers[index] = replace(_answer(chat, completion), asked=tuple(histories[index]))
            histories[index].append(Message(role="assistant", content=answers[index].text))
    return answers


def generate(
    engine: Engine,
    prompts: Sequence[Sequence[int]],
    sampling: Sampling,
    *,
    window: int | None = None,
    progress: Progress | None = None,
) -> list[Completion | None]:
    """Completions of token prompts, in order; None where a prompt leaves no room in ``window``.

    Prompts with the same room are generated together, so that how far one answer may run does not depend on
    how long the other prompts are.
    """
    rooms: dict[int, list[int]] = {}
    for index, prompt in enumerate(prompts):
        limit = sampling.max_new_tokens
        room = limit if window is None else min(limit, window - len(prompt))
        rooms.setdefault(max(room, 0), []).append(index)
    results: list[Completion | None] = [None] * len(prompts)
    for room, members in sorted(rooms.items(), reverse=True):
        if room == 0:
            if progress is not None:
                progress(len(members), 0)
            continue
        asked = [list(prompts[index]) for index in members]
        said = engine.generate(asked, replace(sampling, max_new_tokens=room), progress)
        for index, completion in zip(members, said, strict=True):
            results[index] = completion
    return results


def tokens_only(progress: Progress | None) -> Progress | None:
    """The same for answers that are not the last of their conversation: only their tokens count."""
    return None if progress is None else lambda _answers, tokens: progress(0, tokens)


def transcript(messages: Sequence[Message]) -> str:
    """A conversation for a person to read; a single request is just its text."""
    if len(messages) == 1:
        return messages[0]["content"]
    return "\n\n".join(f"{message['role']}: {message['content']}" for message in messages)


def _turns(messages: Sequence[Message]) -> list[list[Message]]:
    """Cut a conversation before every user turn that the model must answer first."""
    kept = list(messages)
    while kept and kept[-1]["role"] == "assistant":
        kept.pop()
    turns: list[list[Message]] = [[]]
    for message in kept:
        if message["role"] == "user" and turns[-1] and turns[-1][-1]["role"] == "user":
            turns.append([])
        turns[-1].append(message)
    return turns if kept else []


def _answer(chat: ChatFormat, completion: Completion | None) -> Answer:
    if completion is None:
        return Answer("", 0, False, fits=False)
    return Answer(chat.text(completion.ids), len(completion.ids), completion.finished)
