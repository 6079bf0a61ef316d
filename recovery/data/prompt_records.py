"""One prompt or conversation as a JSON value: IFEval's format, chat (``messages``, ShareGPT), plain questions."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from recovery.data.corpus.text import normalise
from recovery.data.prompt_tables import ANSWER_KEYS, QUESTION_KEYS
from recovery.data.tool_calls import read_calls, read_tools, signature
from recovery.types import Check, Message, Prompt, tools_of

_ROLES = {"human": "user", "gpt": "assistant", "bot": "assistant", "model": "assistant", "prompter": "user"}


def wording(prompt: Prompt) -> str:
    """Return the normal form of a conversation; prompts with the same wording count as the same prompt."""
    return "\x1f".join(f"{m['role']}:{normalise(m['content'])}{signature(m)}" for m in prompt.messages)


def from_record(record: Any, kind: str = "behaviour") -> Prompt:
    """Return one JSON value as a Prompt; raise ValueError with the reason if it is not one."""
    if isinstance(record, str):
        record = {"prompt": record}
    if not isinstance(record, dict):
        raise ValueError("neither an object nor a string")
    messages = _messages(record)
    answer = next((str(record[k]) for k in ANSWER_KEYS if isinstance(record.get(k), (str, int, float))), None)
    tags = record.get("tags") or ()
    if not isinstance(tags, list | tuple) or not all(isinstance(tag, str) for tag in tags):
        raise ValueError("tags is not a list of strings")
    kind = record.get("kind") or kind
    if kind not in ("behaviour", "knowledge"):
        raise ValueError(f'kind is "{kind}"; it must be "behaviour" or "knowledge"')
    context = record.get("context") or ""
    if not isinstance(context, str):
        raise ValueError("context is not a string")
    key = record.get("key", record.get("id"))
    return Prompt(
        id=str(key) if key is not None else prompt_id(messages),
        messages=messages,
        kind=kind,
        checks=_checks(record),
        answer=answer,
        tags=tuple(tags),
        context=context,
    )


def to_record(prompt: Prompt) -> dict[str, Any]:
    """Return the JSON object of a prompt, in IFEval's format if it is a single user turn."""
    record: dict[str, Any] = {"key": prompt.id}
    if len(prompt.messages) == 1 and prompt.messages[0]["role"] == "user":
        record["prompt"] = prompt.messages[0]["content"]
    else:
        record["messages"] = [{k: v for k, v in m.items() if k != "tools"} for m in prompt.messages]
    if tools := tools_of(prompt.messages):
        record["tools"] = tools
    record["instruction_id_list"] = [c.instruction for c in prompt.checks]
    record["kwargs"] = [dict(c.kwargs) for c in prompt.checks]
    record["kind"] = prompt.kind
    if prompt.answer is not None:
        record["answer"] = prompt.answer
    if prompt.tags:
        record["tags"] = list(prompt.tags)
    if prompt.context:
        record["context"] = prompt.context
    return record


def prompt_id(messages: Sequence[Message]) -> str:
    """Return a short id derived from the messages, for prompts without one."""
    text = "\x1f".join(f"{m['role']}\x1e{m['content']}{signature(m)}" for m in messages)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]


def _messages(record: dict[str, Any]) -> tuple[Message, ...]:
    """Return the conversation up to the last turn that is not the assistant's: a user's, or a tool's result."""
    messages = conversation_of(record)
    while messages and messages[-1]["role"] == "assistant":
        messages.pop()
    if not messages or messages[-1]["role"] == "system" or all(m["role"] != "user" for m in messages):
        raise ValueError("no user turn to answer")
    return tuple(messages)


def conversation_of(record: dict[str, Any]) -> list[Message]:
    """Return all turns of a record, the first with its tools; raise ValueError with the reason if it has none."""
    messages = _turns(record)
    if tools := read_tools(record.get("tools")):
        messages[0]["tools"] = tools
    roles = ["", *(message["role"] for message in messages)]
    if any(role == "tool" and before not in ("assistant", "tool") for before, role in pairwise(roles)):
        raise ValueError("a tool's turn that follows no assistant's")
    return messages


def _turns(record: dict[str, Any]) -> list[Message]:
    turns = record.get("messages") or record.get("conversations") or record.get("conversation")
    if turns is None and isinstance(record.get("prompt"), list):
        turns = record["prompt"]
    if turns is None:
        return _question(record)
    if not isinstance(turns, list) or not turns:
        raise ValueError("messages is not a list of turns")
    return [_message(turn) for turn in turns]


def _message(turn: Any) -> Message:
    if not isinstance(turn, dict):
        raise ValueError("a message is not an object")
    role, content = turn.get("role", turn.get("from")), turn.get("content", turn.get("value"))
    if isinstance(content, list):  # multi-part content: only text is supported
        parts = [p for p in content if isinstance(p, dict) and p.get("type") == "text"]
        content = "\n".join(str(p.get("text", "")) for p in parts) if len(parts) == len(content) else None
    calls = read_calls(turn.get("tool_calls"))
    if content is None and calls:
        content = ""
    if not isinstance(role, str) or not isinstance(content, str):
        raise ValueError("a message lacks a role or a text content")
    role = _ROLES.get(role, role)
    if role not in ("system", "user", "assistant", "tool"):
        raise ValueError(f'a message has the role "{role}"; supported are system, user, assistant and tool')
    if role == "user" and not content.strip():
        raise ValueError("an empty user turn")
    message = Message(role=role, content=content)
    if calls and role == "assistant":
        message["tool_calls"] = calls
    if role == "tool" and isinstance(turn.get("name"), str):
        message["name"] = turn["name"]
    if role == "tool" and isinstance(turn.get("tool_call_id"), str):
        message["tool_call_id"] = turn["tool_call_id"]
    return message


def _question(record: dict[str, Any]) -> list[Message]:
    text = next((record[k] for k in QUESTION_KEYS if isinstance(record.get(k), str)), None)
    if text is None:
        raise ValueError("no prompt, messages, conversations or question field")
    if not text.strip():
        raise ValueError("an empty prompt")
    extra = record.get("input")
    if isinstance(record.get("instruction"), str) and isinstance(extra, str) and extra.strip():
        text = f"{text}\n\n{extra}"
    messages = [Message(role="user", content=text)]
    if isinstance(system := record.get("system"), str) and system.strip():
        messages.insert(0, Message(role="system", content=system))
    return messages


def _checks(record: dict[str, Any]) -> tuple[Check, ...]:
    ids = record.get("instruction_id_list") or []
    if not isinstance(ids, list) or not all(isinstance(i, str) for i in ids):
        raise ValueError("instruction_id_list is not a list of strings")
    kwargs = record.get("kwargs") or [{} for _ in ids]
    if not isinstance(kwargs, list) or len(kwargs) != len(ids) or not all(isinstance(k, dict) for k in kwargs):
        raise ValueError(f"{len(ids)} instruction ids need {len(ids)} kwargs objects")
    return tuple(  # data sets list every argument of every checker, null if it does not apply
        Check(i, {key: v for key, v in k.items() if v is not None}) for i, k in zip(ids, kwargs, strict=True)
    )
