"""Behaviour prompts: reading, writing, sources, and splits without a shared wording."""

from __future__ import annotations

import functools
import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from recovery.data.corpus.documents import few_of_each
from recovery.data.corpus.json_lines import read_records, write_json_lines
from recovery.data.corpus.tables import splits_of
from recovery.data.corpus.text import normalise, share
from recovery.data.prompt_tables import ANSWER_KEYS, QUESTION_KEYS, Origin, is_table, read_rows
from recovery.data.sources import COMPOSERS, TABLE_SUFFIXES, Source, parse
from recovery.data.synthetic_prompts import DEFAULT_COUNT, compose, compose_chat
from recovery.data.tool_calls import read_calls, read_tools, signature
from recovery.errors import UsageError, printable
from recovery.types import Check, Message, Prompt, tools_of

logger = logging.getLogger(__name__)

REPLAY_DATA = "--replay-data"
SPLITS = ("train", "development", "test")
SHARES = (0.6, 0.2, 0.2)
# Names accepted in place of a file: the composer's full mixture, or only its ordinary chat.
COMPOSED = dict(zip(COMPOSERS, (compose, compose_chat), strict=True))
_FEW = 60
_ROLES = {"human": "user", "gpt": "assistant", "bot": "assistant", "model": "assistant", "prompter": "user"}


@dataclass(frozen=True)
class PromptSplits:
    """Prompts for training, early stopping and final evaluation. ``source`` describes their origin."""

    train: tuple[Prompt, ...]
    development: tuple[Prompt, ...]
    test: tuple[Prompt, ...]
    source: str = ""
    notes: tuple[str, ...] = ()

    @property
    def hash(self) -> str:
        """Hexadecimal SHA-256 of the three splits."""
        digest = hashlib.sha256()
        for name in SPLITS:
            digest.update(f"{name}\x1d{prompts_hash(getattr(self, name))}".encode())
        return digest.hexdigest()


def prompts_hash(prompts: Sequence[Prompt]) -> str:
    """Return the hexadecimal SHA-256 of the prompts' content and order."""
    text = "\n".join(json.dumps(to_record(p), sort_keys=True, ensure_ascii=False) for p in prompts)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def wording(prompt: Prompt) -> str:
    """Return the normal form of a conversation; prompts with the same wording count as the same prompt."""
    return "\x1f".join(f"{m['role']}:{normalise(m['content'])}{signature(m)}" for m in prompt.messages)


def overlap(a: Iterable[Prompt], b: Iterable[Prompt]) -> list[tuple[Prompt, Prompt]]:
    """Return the pairs of a prompt in ``a`` and one in ``b`` that have the same wording."""
    known = {wording(p): p for p in a}
    return [(known[w], p) for p in b if (w := wording(p)) in known]


# --- reading -------------------------------------------------------------------------------------------------


def load_prompts(
    path: Path,
    *,
    kind: str = "behaviour",
    problems: list[str] | None = None,
    check: Callable[[Prompt], None] = lambda _: None,
) -> list[Prompt]:
    """Return the prompts of a JSONL or JSON file, or of a table (see :mod:`recovery.data.sources`): IFEval's format,
    chat (``messages``, ShareGPT), or plain questions.

    Invalid records are skipped and reported with their line, in ``problems`` if given, else as warnings; so is what was
    read of a table. ``check`` raises ValueError with the reason for a prompt that the caller cannot use. Raises
    UsageError if no prompt is usable.
    """
    source = parse(path)
    records, found, word, origin = _records(source)
    name = origin.name if origin else source.path.name
    prompts: list[Prompt] = []
    seen: set[str] = set()
    ids: set[str] = set()
    count = 0
    for number, record in records:
        count += 1
        try:
            if isinstance(record, ValueError):
                raise record
            prompt = from_record(record, kind)
            check(prompt)
            if (key := wording(prompt)) in seen:
                raise ValueError("the same prompt as an earlier one")
            if prompt.id in ids:
                raise ValueError(f'duplicate key "{prompt.id}": responses are compared by key')
        except ValueError as error:
            found.append(f"{word} {number}: {error}")
            continue
        seen.add(key)
        ids.add(prompt.id)
        prompts.append(prompt)
    if not prompts:
        first = f" ({found[0]})" if found else ""
        raise UsageError(f"no usable prompt in {source.text}{first}: give a prompt or messages on each line or row")
    if origin:
        _report(f"{name}: {len(prompts):,} prompts of {count:,} rows, {origin.column}", problems)
    for where, problem in few_of_each((line.partition(": ")[0], line.partition(": ")[2]) for line in found):
        _report(f"{name} {where}: {problem}", problems)
    return prompts


def load_conversations(
    path: Path, *, option: str = "--data", notes: list[str] | None = None
) -> list[tuple[Message, ...]]:
    """Return conversations that end with an assistant turn, from chat records or prompts with an answer.

    ``notes`` receives what was read of a table. Raises UsageError naming the ``option`` of the file, and the first
    record without an answer.
    """
    source = parse(path)
    records, problems, word, origin = _records(source)
    word = "row" if word == "row" else "record"
    found: list[tuple[Message, ...]] = []
    for number, record in records:
        try:
            if isinstance(record, ValueError):
                raise record
            prompt = from_record(record)
            messages = _conversation(record)
        except (ValueError, AttributeError) as error:
            raise UsageError(f"{option} {source.text}, {word} {number}: {error}") from error
        if messages[-1]["role"] != "assistant":
            if prompt.answer is None:
                raise UsageError(
                    f"{option} {source.text}, {word} {number} has no answer to imitate: end its messages with the "
                    f"assistant's"
                )
            messages.append(Message(role="assistant", content=prompt.answer))
        found.append(tuple(messages))
    if problems or not found:
        raise UsageError(f"{option} {source.text}: {problems[0] if problems else 'no conversation in the file'}")
    if origin and notes is not None:
        notes.append(f"{origin.name}: {len(found):,} conversations, {origin.column}")
    return found


def without_held_out(
    conversations: Sequence[tuple[Message, ...]], prompts: PromptSplits, *, given: str, notes: list[str]
) -> list[tuple[Message, ...]]:
    """Return the conversations in which no development or test prompt is answered, told by the user's turns.

    All turns of the assistant are trained on, so a held-out prompt may also be the beginning of a conversation.
    ``notes`` receives how many were removed from the file ``given``. Raises UsageError if none is left.
    """
    held_out = {tuple(_user_turns(prompt.messages)) for prompt in (*prompts.development, *prompts.test)}
    kept = []
    for messages in conversations:
        turns = _user_turns(messages)
        if not any(tuple(turns[:end]) in held_out for end in range(1, len(turns) + 1)):
            kept.append(messages)
    if conversations and not kept:
        raise UsageError(
            f"{given}: every conversation answers a development or test prompt ({prompts.source}): give others, or "
            f"other prompts with --prompts"
        )
    if dropped := len(conversations) - len(kept):
        notes.append(
            f"{given}: {dropped:,} of {len(conversations):,} conversations left out: they answer development or test "
            f"prompts ({prompts.source})"
        )
    return kept


def _user_turns(messages: Sequence[Message]) -> list[str]:
    return [normalise(message["content"]) for message in messages if message["role"] == "user"]


def _records(source: Source) -> tuple[Iterable[tuple[int, Any]], list[str], str, Origin | None]:
    """Return numbered records (or a ValueError with the reason in place of one), the problems so far, what a record is
    called, and where the rows of a table come from.
    """
    if is_table(source):
        rows, origin = read_rows(source)
        return rows, [], "row", origin
    if source.names:
        raise UsageError(f"{source.text}: {source.path.name} is no table, so it has no column: omit the colon")
    records, problems = read_records(source.path)
    return records, problems, "record" if source.path.suffix.lower() == ".json" else "line", None


def _report(problem: str, problems: list[str] | None) -> None:
    if problems is None:
        logger.warning("%s", printable(problem))
    else:
        problems.append(printable(problem))


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


def write_prompts(path: Path, prompts: Sequence[Prompt]) -> None:
    """Write prompts as JSON Lines; ``load_prompts`` restores them unchanged."""
    write_json_lines(Path(path), map(to_record, prompts))


def prompt_id(messages: Sequence[Message]) -> str:
    """Return a short id derived from the messages, for prompts without one."""
    text = "\x1f".join(f"{m['role']}\x1e{m['content']}{signature(m)}" for m in messages)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]


def _messages(record: dict[str, Any]) -> tuple[Message, ...]:
    """Return the conversation up to the last turn that is not the assistant's: a user's, or a tool's result."""
    messages = _conversation(record)
    while messages and messages[-1]["role"] == "assistant":
        messages.pop()
    if not messages or messages[-1]["role"] == "system" or all(m["role"] != "user" for m in messages):
        raise ValueError("no user turn to answer")
    return tuple(messages)


def _conversation(record: dict[str, Any]) -> list[Message]:
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


# --- splitting -----------------------------------------------------------------------------------------------


def split_prompts(prompts: Sequence[Prompt], *, source: str = "", notes: Sequence[str] = ()) -> PromptSplits:
    """Split prompts into train, development and test by a hash of the wording, so that splits are stable across runs.

    The same wording is never in two splits, whatever its id. Fewer than 60 prompts are split by rank of the hash, so
    that no split is empty if there are at least three prompts.
    """
    unique = list({wording(p): p for p in reversed(prompts)}.values())[::-1]
    sides: dict[str, list[Prompt]] = {name: [] for name in SPLITS}
    if len(unique) >= _FEW:
        for prompt in unique:
            sides[_side(share(wording(prompt), "split"))].append(prompt)
    else:
        ranked = sorted(unique, key=lambda p: share(wording(p), "split"))
        held = min(max(1, round(SHARES[1] * len(ranked))), len(ranked) // 3)
        sides["development"], sides["test"] = ranked[:held], ranked[held : 2 * held]
        sides["train"] = ranked[2 * held :]
    train, development, test = (tuple(sides[name]) for name in SPLITS)
    return PromptSplits(train, development, test, source, tuple(notes))


def _side(position: float) -> str:
    return SPLITS[0] if position < SHARES[0] else SPLITS[1] if position < SHARES[0] + SHARES[1] else SPLITS[2]


# --- choosing ------------------------------------------------------------------------------------------------


def behaviour_prompts(
    model_folder: Path | None = None, user_file: Path | None = None, seed: int = 0, *, count: int = DEFAULT_COUNT
) -> PromptSplits:
    """Return the behaviour prompts of a run from the first available source: the user's file (or a folder with
    train.jsonl, development.jsonl and test.jsonl, or a name in :data:`COMPOSED`), the model folder's ``suites/``, or
    the built-in composer (``count`` prompts by ``seed``)."""
    if user_file is not None:
        user_file = Path(user_file)
        if str(user_file) in COMPOSED and not user_file.exists():
            return _composed(str(user_file), count, seed)
        source = parse(user_file)
        if source.path.is_dir() and splits_of(source.path) is None:
            splits = _from_folder(source.path, str(user_file), source.names)
            if splits is None:
                raise UsageError(
                    f"no train.jsonl in {source.path}: give a file of prompts or a folder that has it, or one of "
                    f"train{', train'.join(sorted(TABLE_SUFFIXES))}"
                )
            return splits
        if not source.exists:
            raise UsageError(
                f"no file {user_file}: give JSON Lines with a prompt or messages on each line, a table, or one of "
                f"{', '.join(COMPOSED)}"
            )
        problems: list[str] = []
        prompts = load_prompts(user_file, problems=problems)
        return split_prompts(prompts, source=str(user_file), notes=problems)
    if model_folder is not None:
        splits = _from_folder(Path(model_folder) / "suites", "the model's own suites")
        if splits is not None:
            return splits
    return _composed("composer", count, seed)


@functools.lru_cache(maxsize=2)  # a cycle's stages ask for the same ones again and again, which take seconds
def _composed(name: str, count: int, seed: int) -> PromptSplits:
    """Return the splits of a built-in composer's prompts. Shared by all who ask: nobody may change a prompt."""
    return split_prompts(COMPOSED[name](count, seed), source=f"the built-in {name}, seed {seed}")


def _from_folder(folder: Path, source: str, names: Sequence[str] = ()) -> PromptSplits | None:
    """Return the disjoint splits of a folder, missing ones taken from the file "train"; None without one.

    ``names`` name the column of tables.
    """
    files = {name: file for name in SPLITS if (file := _split_file(folder, name, names))}
    if "train" not in files:
        return None
    notes: list[str] = []
    given = {name: load_prompts(file, problems=notes) for name, file in files.items()}
    if len(given) < len(SPLITS):
        split = split_prompts(given["train"])
        missing = [name for name in SPLITS if name not in given]
        moved = {wording(p) for name in missing for p in getattr(split, name)}
        given.update({name: list(getattr(split, name)) for name in missing})
        given["train"] = [p for p in given["train"] if wording(p) not in moved]
        name = files["train"].name.partition(":")[0]
        notes.append(f"no {' or '.join(missing)}{Path(name).suffix}: taken from {name}")
    return _disjoint(given, source, notes)


def _split_file(folder: Path, name: str, names: Sequence[str]) -> Path | None:
    """Return the file of a split in a folder, a table with the column that is named for it."""
    for suffix in (".jsonl", *sorted(TABLE_SUFFIXES)):
        if (folder / f"{name}{suffix}").is_file():
            return folder / ":".join((f"{name}{suffix}", *(names if suffix in TABLE_SUFFIXES else ())))
    return None


def _disjoint(given: dict[str, list[Prompt]], source: str, notes: list[str]) -> PromptSplits:
    """Remove shared wordings: test takes precedence over development, and development over training."""
    seen: set[str] = set()
    kept: dict[str, tuple[Prompt, ...]] = {}
    for name in reversed(SPLITS):
        worded = [(wording(p), p) for p in given[name]]
        kept[name] = tuple(p for w, p in worded if w not in seen)
        if dropped := len(worded) - len(kept[name]):
            notes.append(f"{dropped} {name} prompts removed: their wording is also in a held-out split")
        seen.update(w for w, _ in worded)
    return PromptSplits(kept["train"], kept["development"], kept["test"], source, tuple(notes))
