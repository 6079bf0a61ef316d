"""Greedy generation for conversations, turn by turn if there are several requests."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from recovery.models.chat_template import ChatFormat
from recovery.rollouts.engine import Completion, Engine, Progress, Sampling, tokens_only, window_with
from recovery.types import Message

# progress(suite or step, items done, items in total, tokens sampled or scored so far)
SuiteProgress = Callable[[str, int, int, int], None]


@dataclass(frozen=True)
class Answer:
    """The response to the last request of a conversation.

    ``tokens`` is the number of generated tokens, ``finished`` is True if the model emitted an end token, and ``fits``
    is False if the prompt left no room in the model's window (the text is then empty). ``asked`` is the complete
    prompt, including the model's responses to earlier requests.
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
    """Return greedy responses to ``conversations``, in order.

    If a user turn directly follows another, or a tool's result, the model responds before the second is added; given
    assistant turns are used as they are, and one at the end is dropped. ``window`` is the model's context length in
    tokens, which no response exceeds. ``progress`` receives the number of finished conversations and of all tokens.
    """
    histories: list[list[Message]] = [[] for _ in conversations]
    pending = [_turns(messages) for messages in conversations]
    answers: list[Answer] = [Answer("", 0, False, fits=False)] * len(conversations)
    while any(pending):
        # Conversations with the most turns left go first, so that the final responses form one large batch.
        turns_left = max(len(turns) for turns in pending)
        ready = [index for index, turns in enumerate(pending) if len(turns) == turns_left]
        for index in ready:
            histories[index] += pending[index].pop(0)
        prompts = [chat.prompt_ids(histories[index]) for index in ready]
        greedy = Sampling(max_new_tokens, temperature=0.0, seed=seed)
        report = progress if turns_left == 1 else tokens_only(progress)
        completions = generate(engine, prompts, greedy, window=window, progress=report)
        for index, completion in zip(ready, completions, strict=True):
            asked = tuple(histories[index])
            answers[index] = Answer("", 0, False, fits=False, asked=asked)
            if completion is not None:
                text = chat.text(completion.ids)
                answers[index] = Answer(text, len(completion.ids), completion.finished, asked=asked)
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
    """Return completions of token prompts, in order; None if a prompt leaves no room in ``window``,
    or in the engine's own.

    Prompts with the same token limit are generated together, so that the limit of one prompt does not depend on the
    lengths of the others.
    """
    window = None if window is None else window_with(engine, window)
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
        batch = [list(prompts[index]) for index in members]
        completions = engine.generate(batch, replace(sampling, max_new_tokens=room), progress)
        for index, completion in zip(members, completions, strict=True):
            results[index] = completion
    return results


def counted(progress: SuiteProgress | None, name: str, total: int) -> Progress | None:
    """Return a callback that adds up the increments reported by engines and passes on the totals, with ``name``."""
    if progress is None:
        return None
    done = sampled = 0

    def report(count: int, tokens: int) -> None:
        nonlocal done, sampled
        done, sampled = done + count, sampled + tokens
        progress(name, done, total, sampled)

    return report


def transcript(messages: Sequence[Message]) -> str:
    """Return a conversation as readable text; a single request is its text alone."""
    if len(messages) == 1:
        return messages[0]["content"]
    return "\n\n".join(f"{message['role']}: {message['content']}{_calls(message)}" for message in messages)


def _calls(message: Message) -> str:
    """Return an assistant's tool calls as text."""
    calls = [call["function"] for call in message.get("tool_calls", ())]
    return "".join(f"[{call['name']}({json.dumps(call['arguments'], ensure_ascii=False)})]" for call in calls)


def _turns(messages: Sequence[Message]) -> list[list[Message]]:
    """Split a conversation after every user turn that the model must respond to."""
    remaining = list(messages)
    while remaining and remaining[-1]["role"] == "assistant":
        remaining.pop()
    turns: list[list[Message]] = [[]]
    for message in remaining:
        if message["role"] == "user" and turns[-1] and turns[-1][-1]["role"] in ("user", "tool"):
            turns.append([])
        turns[-1].append(message)
    return turns if remaining else []
