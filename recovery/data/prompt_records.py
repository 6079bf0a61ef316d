"""One prompt or conversation as a JSON value: IFEval's format, chat (``messages``, ShareGPT), plain questions.

Tools and recorded tool calls of chat records are brought into the form that chat templates take (the function format).
Rows of a table become such records.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from recovery.data.corpus.json_lines import CHAT_KEYS, json_text
from recovery.data.corpus.tables import LIST, TEXT, Table, TableError, of_source, open_hub, open_table, splits_of
from recovery.data.corpus.text import hash_of, normalise
from recovery.data.sources import TABLE_SUFFIXES, Source
from recovery.errors import UsageError
from recovery.types import Check, Message, Prompt, tools_of

SOURCE_TAG = "document:"  # begins the tag that names the document of a question
_ROLES = {
    **dict.fromkeys(("human", "prompter"), "user"),
    **dict.fromkeys(("gpt", "bot", "model", "ai", "chatgpt", "function_call", "tool_call"), "assistant"),
    **dict.fromkeys(("observation", "function", "function_response", "tool_response"), "tool"),
    "developer": "system",  # OpenAI's name of it
}
_CALLS = ("function_call", "tool_call")  # roles of LLaMA-Factory and ms-swift whose text is a call
_SYSTEM = ("system", "system_prompt")
# Fields that mark a turn as an example (OpenAI, ms-swift, axolotl), and fields that exclude it.
_TRAINED, _MASKED = ("weight", "loss", "train", "training"), ("masked", "mask")
# Fields that are read or hold no text of the conversation. Text in other fields is reported as unread.
_READ = {*"key id kind tags instruction_id_list kwargs tools history context".split(), *_SYSTEM, *CHAT_KEYS}
_READ_OF_TURN = {"role", "from", "content", "value", "tool_calls", "function_call", "tool_call_id", *_TRAINED, *_MASKED}


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
    id = str(key) if key is not None else prompt_id(messages)
    return Prompt(id, messages, kind, _checks(record), answer=answer, tags=tuple(tags), context=context)


def to_record(prompt: Prompt) -> dict[str, Any]:
    """Return the JSON object of a prompt, in IFEval's format if it is a single user turn."""
    record: dict[str, Any] = {"key": prompt.id}
    if len(prompt.messages) == 1 and prompt.messages[0]["role"] == "user":
        record["prompt"] = prompt.messages[0]["content"]
    else:
        record["messages"] = [_turn_record(message) for message in prompt.messages]
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


def _turn_record(message: Message) -> dict[str, Any]:
    turn = {key: value for key, value in message.items() if key not in ("tools", "recorded")}
    return {**turn, "weight": 0} if message.get("recorded") else turn


def unread_fields(record: Any, messages: Sequence[Message], answer: str | None) -> list[str]:
    """Return the fields of a record and of its turns with text that is neither in its conversation nor its answer."""
    if not isinstance(record, dict):
        return []
    read = "\x1f".join([*(m["content"] for m in messages), answer or "", str(record.get("context") or "")])
    unread = [key for key, value in record.items() if key not in _READ and _holds_text(value, read)]
    turns: list[Any] = next((record[key] for key in (*CHAT_KEYS, "prompt") if isinstance(record.get(key), list)), [])
    for turn in turns:
        known = _READ_OF_TURN | ({"name"} if _ROLES.get(turn.get("role"), turn.get("role")) == "tool" else set())
        unread += [f"{key} of a turn" for key, value in turn.items() if key not in known and _holds_text(value, read)]
        if isinstance(turn.get("name"), str) and "name" not in known:
            unread.append("name of a turn")
        if turn.get("weight") not in (None, 0, 1, "0", "1"):
            unread.append("weight of a turn (trained as 1)")
    return list(dict.fromkeys(unread))


def _holds_text(value: Any, read: str) -> bool:
    """Return whether a value has text that is not in ``read``. Single ASCII words are names, not text."""
    texts = (text.strip() for text in _texts(value))
    return any((" " in text or not text.isascii()) and text not in read for text in texts)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list | tuple):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _texts(item)


def prompt_id(messages: Sequence[Message]) -> str:
    """Return a short id derived from the messages, for prompts without one."""
    text = "\x1f".join(f"{m['role']}\x1e{m['content']}{signature(m)}" for m in messages)
    return hash_of(text)[:12]


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
    if tools := _functions(record.get("tools"), "tools", "parameters"):
        messages[0]["tools"] = tools
    roles = ["", *(message["role"] for message in messages)]
    if any(role == "tool" and before not in ("assistant", "tool") for before, role in pairwise(roles)):
        raise ValueError("a tool's turn that follows no assistant's")
    return messages


def _turns(record: dict[str, Any]) -> list[Message]:
    turns = next((record[key] for key in CHAT_KEYS if record.get(key)), None)
    if turns is None and isinstance(record.get("prompt"), list):
        turns = record["prompt"]
    if turns is not None and (not isinstance(turns, list) or not turns):
        raise ValueError("messages is not a list of turns")
    messages = _history(record) + (_question(record) if turns is None else [_message(turn) for turn in turns])
    system = next((record[key] for key in _SYSTEM if isinstance(record.get(key), str) and record[key].strip()), "")
    if messages[0]["role"] != "system":
        return [Message(role="system", content=system), *messages] if system else messages
    if system.strip() and system.strip() != messages[0]["content"].strip():
        messages[0]["content"] = f"{system}\n\n{messages[0]['content']}"
    return messages


def _history(record: dict[str, Any]) -> list[Message]:
    """Return earlier turns: pairs of a question and its answer (LLaMA-Factory, ms-swift), or turns."""
    history = json_text(record.get("history")) or []
    if not isinstance(history, list):
        raise ValueError("history is not a list")
    messages = []
    for entry in history:
        if isinstance(entry, dict):
            messages.append(_message(entry))
        elif isinstance(entry, list | tuple) and len(entry) == 2 and all(isinstance(text, str) for text in entry):
            messages += [Message(role="user", content=entry[0]), Message(role="assistant", content=entry[1])]
        else:
            raise ValueError("history has an entry that is neither a turn nor a pair of a question and its answer")
    return messages


def _message(turn: Any) -> Message:
    if not isinstance(turn, dict):
        raise ValueError("a message is not an object")
    sender, content = turn.get("role", turn.get("from")), turn.get("content", turn.get("value"))
    if isinstance(content, list):  # multi-part content: only text is supported
        parts = [p for p in content if isinstance(p, dict) and p.get("type") == "text"]
        content = "\n".join(str(p.get("text", "")) for p in parts) if len(parts) == len(content) else None
    call = content if sender in _CALLS and "tool_calls" not in turn else turn.get("function_call")
    calls = _functions(turn.get("tool_calls") or _listed(call), "tool_calls", "arguments")
    if calls and (content is None or sender in _CALLS):
        content = ""
    if not isinstance(sender, str) or not isinstance(content, str):
        raise ValueError("a message lacks a role or a text content")
    role = _ROLES.get(sender, sender)
    if role not in ("system", "user", "assistant", "tool"):
        raise ValueError(f'a message has the role "{role}"; supported are system, user, assistant and tool')
    if role == "user" and not content.strip():
        raise ValueError("an empty user turn")
    message = Message(role=role, content=content)
    if calls and role == "assistant":
        message["tool_calls"] = calls
    if role == "assistant" and not _is_example(turn):
        message["recorded"] = True
    if role == "tool" and isinstance(turn.get("name"), str):
        message["name"] = turn["name"]
    if role == "tool" and isinstance(turn.get("tool_call_id"), str):
        message["tool_call_id"] = turn["tool_call_id"]
    return message


def _listed(call: Any) -> Any:
    """Return the calls of a field or a text that holds one, or several."""
    call = json_text(call)
    return [call] if call and not isinstance(call, list) else call


def _is_example(turn: dict[str, Any]) -> bool:
    """Whether an assistant's turn is to be imitated; one with weight 0 is only context."""
    is_off = any(str(turn.get(name)).lower() in ("0", "0.0", "false") for name in _TRAINED)
    return not is_off and not any(str(turn.get(name)).lower() in ("1", "1.0", "true") for name in _MASKED)


def _question(record: dict[str, Any]) -> list[Message]:
    text = next((record[k] for k in QUESTION_KEYS if isinstance(record.get(k), str)), None)
    if text is None:
        raise ValueError("no prompt, messages, conversations or question field")
    if not text.strip():
        raise ValueError("an empty prompt")
    extra = record.get("input")
    if isinstance(record.get("instruction"), str) and isinstance(extra, str) and extra.strip():
        text = f"{text}\n\n{extra}"
    return [Message(role="user", content=text)]


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


def prompts_hash(prompts: Sequence[Prompt]) -> str:
    """Return the hexadecimal SHA-256 of the prompts' content and order."""
    text = "\n".join(json.dumps(to_record(p), sort_keys=True, ensure_ascii=False) for p in prompts)
    return hash_of(text)


def signature(message: Message) -> str:
    """Return the tool calls of a message and the tools of its conversation, as text."""
    parts = {"calls": message.get("tool_calls"), "tools": tools_of([message])}
    return json.dumps(parts, sort_keys=True, ensure_ascii=False) if any(parts.values()) else ""


def _functions(value: Any, field: str, part: str) -> list[dict[str, Any]]:
    """Return the functions of a list, or of JSON text, each under the key "function", as OpenAI's format has them.

    ``part`` of each, which may be JSON text, becomes an object. Raise ValueError, which names the ``field``, if they
    are none.
    """
    value = json_text(value)
    if not value:
        return []
    if not isinstance(value, list):
        raise ValueError(f"{field} is not a list")
    functions = []
    for item in map(json_text, value):
        wrapped = item if isinstance(item, dict) and "function" in item else {"type": "function", "function": item}
        function = json_text(wrapped["function"])
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise ValueError(f"{field} has an entry without the name of a function")
        functions.append({**wrapped, "function": {**function, part: json_text(function.get(part)) or {}}})
    return functions


def question_prompt(text: str, answer: str, kind: str, document: str) -> Prompt:
    """Return a question about a document; ``kind`` is how it came about."""
    messages = (Message(role="user", content=text),)
    tags = (kind, f"{SOURCE_TAG}{document}")
    return Prompt(f"question-{prompt_id(messages)}", messages, "knowledge", answer=answer, tags=tags)


def documents_of(prompt: Prompt) -> set[str]:
    """Return the documents that a question is about, by its tags."""
    return {tag.removeprefix(SOURCE_TAG) for tag in prompt.tags if tag.startswith(SOURCE_TAG)}


# Prompts and conversations from the rows of a table, as records of the forms above.

QUESTION_KEYS = ("prompt", "question", "instruction", "query", "input")
ANSWER_KEYS = ("answer", "output", "response", "completion")
# Further fields of a record; those of the second line are lists, in CSV files as JSON text.
_FIELDS = ("key", "id", "kind", "context", "system", "system_prompt", "input", *ANSWER_KEYS)
_LISTS = ("tags", "instruction_id_list", "kwargs", "tools", "history")


def is_table(source: Source) -> bool:
    """Whether a source is a table: by its suffix, a folder of ``datasets``, or on the hub."""
    path = source.path
    return bool(source.hub) or path.suffix.lower() in TABLE_SUFFIXES or (path.is_dir() and splits_of(path) is not None)


@dataclass(frozen=True)
class Origin:
    """A table, and in words which column of it holds the prompts, for reports."""

    name: str
    column: str


def read_rows(source: Source) -> tuple[Iterator[tuple[int, Any]], Origin]:
    """Return the rows of a table as numbered records, and where they come from.

    In place of a row that cannot be used there is a ValueError with the reason. Raises UsageError if the table cannot
    be read, or if several columns may hold the prompts.
    """
    try:
        if source.hub:
            table, place, column = open_hub(source)
        else:
            path, place, column = of_source(source)
            table = open_table(path)
        chosen, how = (table.require(column, TEXT, LIST), "") if column else _guess(table, place)
    except TableError as error:
        raise UsageError(f"{source.text}: {error}") from error
    known = ("title", "url", *_FIELDS, *_LISTS)
    rest = [name for name in table.of_kind(TEXT) if name != chosen and name.casefold() not in known]
    note = f"; {table.note}" if table.note else ""
    note += f"; not read: {', '.join(rest)}" if rest else ""
    return _records(source, table, chosen), Origin(Path(place).name, f"from the column {chosen}{how}{note}")


def _guess(table: Table, place: str) -> tuple[str, str]:
    """Return the column of the prompts, and why it is this one."""
    named = table.called(CHAT_KEYS, TEXT, LIST)[:1] or table.called(QUESTION_KEYS, TEXT, LIST)
    if named and named[0].casefold() == "instruction":
        named = named[:1]  # its input belongs to it
    others = (*_FIELDS, *_LISTS, "title", "url")
    found = named or [name for name in table.of_kind(TEXT) if name.casefold() not in others]
    if len(found) == 1:
        return found[0], " (by its name)" if named else " (the only one with text)"
    if found:
        raise TableError(f"which column holds the prompts, {' or '.join(found)}? Name it, as in {place}:{found[0]}")
    raise TableError(f"no column holds prompts; the columns are {table.text()}")


def _records(source: Source, table: Table, column: str) -> Iterator[tuple[int, Any]]:
    others = [name for name in table.called((*_FIELDS, *_LISTS)) if name != column]
    number = 0
    try:
        for number, row in table.rows([column, *others]):
            yield number, ValueError(row) if isinstance(row, str) else _record(row, column)
    except TableError as error:
        raise UsageError(f"{source.text}: {error}") from error
    if not number:
        raise UsageError(f"{source.text}: a table without rows")


def _record(row: dict[str, Any], column: str) -> Any:
    value = row.pop(column, None)
    record = {name.casefold(): cell for name, cell in row.items() if cell is not None}
    record |= {name: json_text(record[name]) for name in _LISTS if name in record}
    if not value:
        return ValueError(f"nothing in the column {column}")
    turns = _turns_of_cell(value)
    if turns is not None:
        return record | {"messages": turns}
    return record | {column.casefold() if column.casefold() in QUESTION_KEYS else "prompt": value}


def _turns_of_cell(value: Any) -> list[Any] | None:
    """Return the turns of a conversation, also of one that is written as JSON text; None for any other text."""
    if isinstance(value, list):
        return [json_text(turn) for turn in value]
    found = json_text(value)
    if isinstance(found, list) and found and all(isinstance(t, dict) and {"role", "from"} & t.keys() for t in found):
        return found
    return None
