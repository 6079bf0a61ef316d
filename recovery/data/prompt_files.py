"""Files of prompts and conversations, read and written; unusable records are reported with their line or row."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from recovery.data.corpus.documents import counted, few_of_each
from recovery.data.corpus.json_lines import read_records, write_json_lines
from recovery.data.prompt_records import (
    Origin,
    conversation_of,
    from_record,
    is_table,
    read_rows,
    to_record,
    unread_fields,
    wording,
)
from recovery.data.sources import Source, parse
from recovery.errors import UsageError, printable
from recovery.types import Message, Prompt

logger = logging.getLogger(__name__)

REPLAY_DATA = "--replay-data"


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
    records, invalid, unit, origin = _records(source)
    name = origin.name if origin else source.path.name
    prompts: list[Prompt] = []
    seen: set[str] = set()
    ids: set[str] = set()
    count = 0
    unread: Counter[str] = Counter()
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
            invalid.append(f"{unit} {number}: {error}")
            continue
        seen.add(key)
        ids.add(prompt.id)
        prompts.append(prompt)
        unread.update(unread_fields(record, prompt.messages, prompt.answer))
    if not prompts:
        first = f" ({invalid[0]})" if invalid else ""
        raise UsageError(f"no usable prompt in {source.text}{first}: give a prompt or messages on each line or row")
    if origin:
        _report(f"{name}: {len(prompts):,} prompts of {count:,} rows, {origin.column}", problems)
    for where, problem in few_of_each((line.partition(": ")[0], line.partition(": ")[2]) for line in invalid):
        _report(f"{name} {where}: {problem}", problems)
    _report_unread(name, unread, problems)
    return prompts


def load_conversations(
    path: Path, *, option: str = "--data", notes: list[str] | None = None
) -> list[tuple[Message, ...]]:
    """Return conversations that end with an assistant turn, from chat records or prompts with an answer.

    Turns with weight 0 are ``recorded``: context that is not imitated. ``notes`` receives remarks on a table and on
    unread fields, in place of warnings. Raises UsageError naming the ``option`` of the file, and the first
    record without an answer.
    """
    source = parse(path)
    records, problems, unit, origin = _records(source)
    conversations: list[tuple[Message, ...]] = []
    untrained, unread = 0, Counter[str]()
    for number, record in records:
        try:
            if isinstance(record, ValueError):
                raise record
            prompt = from_record(record)
            messages = conversation_of(record)
        except (ValueError, AttributeError) as error:
            raise UsageError(f"{option} {source.text}, {unit} {number}: {error}") from error
        if messages[-1]["role"] != "assistant":
            if prompt.answer is None:
                place = f"{option} {source.text}, {unit} {number}"
                raise UsageError(f"{place} has no answer to imitate: end its messages with the assistant's")
            messages.append(Message(role="assistant", content=prompt.answer))
        unread.update(unread_fields(record, messages, prompt.answer))
        examples = [place for place, m in enumerate(messages) if m["role"] == "assistant" and not m.get("recorded")]
        if examples:
            conversations.append(tuple(messages[: examples[-1] + 1]))
        else:
            untrained += 1
    if problems or not conversations:
        none = "every turn of the assistant has weight 0" if untrained else "no conversation in the file"
        raise UsageError(f"{option} {source.text}: {problems[0] if problems else none}")
    if origin and notes is not None:
        notes.append(f"{origin.name}: {len(conversations):,} conversations, {origin.column}")
    if untrained:
        noun = "row" if unit == "row" else "record"
        _report(f"{source.text}: {counted(untrained, noun)} left out: every turn of the assistant has weight 0", notes)
    _report_unread(source.text, unread, notes)
    return conversations


def _report_unread(name: str, unread: Counter[str], problems: list[str] | None) -> None:
    if unread:
        fields = ", ".join(f"{field} ({count:,})" for field, count in unread.most_common())
        _report(f"{name}: fields with text that is not read, and in how many records: {fields}", problems)


def _records(source: Source) -> tuple[Iterable[tuple[int, Any]], list[str], str, Origin | None]:
    """Return numbered records (or a ValueError in place of one), the problems so far, the name of a record ("line",
    "record" or "row"), and the origin of the rows of a table.
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


def write_prompts(path: Path, prompts: Sequence[Prompt]) -> None:
    """Write prompts as JSON Lines; ``load_prompts`` restores them unchanged."""
    write_json_lines(path, map(to_record, prompts))
