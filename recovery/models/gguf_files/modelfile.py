"""Ollama's Modelfile for a GGUF file: template, ends of a turn and sampling settings.

Format: https://docs.ollama.com/modelfile. Its template is Go's text/template. Jinja is not translated: what a chat
template writes around each role is read off conversations that it renders, and a template that cannot be rebuilt from
these parts gets none.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from transformers import GenerationConfig

from recovery.errors import ModelError
from recovery.models.chat_template import ChatFormat
from recovery.models.control_tokens import adds_bos
from recovery.models.gguf_files.header import SAMPLING
from recovery.types import Message

_LONGEST_CONTEXT = 8192  # tokens: Ollama's own default cuts prompts at 4,096, and a model's whole window takes memory
_SYSTEM, _ASKED, _ANSWERED, _AGAIN = "Sbegin", "Ubegin", "Abegin", "Uagain"
_PROBED = (
    [("user", _ASKED)],
    [("system", _SYSTEM), ("user", _ASKED)],
    [("user", _ASKED), ("assistant", _ANSWERED), ("user", _AGAIN)],
    [("system", _SYSTEM), ("user", _ASKED), ("assistant", _ANSWERED), ("user", _AGAIN)],
)


def modelfile(file: Path, chat: ChatFormat, generation: GenerationConfig, window: int) -> tuple[str, bool]:
    """Return the Modelfile of a GGUF file in the same folder, and whether it has a template of its own."""
    lines = [f"FROM ./{file.name}"]
    template = _go_template(chat)
    if template is not None:
        lines.append(f'TEMPLATE """{template}"""')
    ends = sorted(str(chat.tokenizer.convert_ids_to_tokens(token)) for token in chat.end_ids)
    lines += [f"PARAMETER stop {_quoted(end)}" for end in ends]
    lines.append(f"PARAMETER num_ctx {min(window, _LONGEST_CONTEXT)}")
    if generation.do_sample:
        named = {"temperature": "temperature"} | {name: ours for name, ours in SAMPLING.items() if name != "temp"}
        values = {name: getattr(generation, ours, None) for name, ours in named.items()}
        lines += [f"PARAMETER {name} {value}" for name, value in values.items() if value is not None]
    return "\n".join(lines) + "\n", template is not None


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def _messages(turns: Sequence[tuple[str, str]]) -> list[Message]:
    return [Message(role=role, content=text) for role, text in turns]


def _go_template(chat: ChatFormat) -> str | None:
    """Return the chat template as Ollama's; None if it does more than to write texts around each turn."""
    try:
        parts = _parts(chat)
    except (ModelError, ValueError):  # it refuses a conversation, or writes none of these parts
        return None
    before, after, default, opening = parts
    if any(mark in text for text in (*before.values(), *after.values(), default, opening) for mark in ("{{", '"""')):
        return None
    turns = "".join(
        f'{{{{ {"if" if role == "system" else "else if"} eq $m.Role "{role}" }}}}'
        f"{before[role]}{{{{ $m.Content }}}}{after[role]}"
        for role in ("system", "user", "assistant")
    )
    first = f'{{{{ if and (eq $i 0) (ne $m.Role "system") }}}}{default}{{{{ end }}}}' if default else ""
    return f"{{{{ range $i, $m := .Messages }}}}{first}{turns}{{{{ end }}}}{{{{ end }}}}{opening}"


def _parts(chat: ChatFormat) -> tuple[dict[str, str], dict[str, str], str, str]:
    """Return what is written before and after the text of each role, instead of a system turn, and before an answer.

    Raise ValueError if conversations are not made of them.
    """
    begin = str(chat.tokenizer.bos_token) if adds_bos(chat.tokenizer) else ""

    def rendered(turns: Sequence[tuple[str, str]], opened: bool = True) -> str:
        return chat.render(_messages(turns), generation_prompt=opened).removeprefix(begin)  # Ollama adds it

    alone, whole = rendered(_PROBED[0]), rendered(_PROBED[3])
    closed = rendered(_PROBED[0], opened=False)
    after = {"user": _between(closed, _ASKED, None)}
    opening = _cut(alone, closed, front=True)
    after["assistant"] = _between(rendered(_PROBED[2][:2], opened=False), _ANSWERED, None)
    before = {"assistant": _cut(_between(whole, _ASKED, _ANSWERED), after["user"], front=True)}
    before["user"] = _cut(_between(whole, _ANSWERED, _AGAIN), after["assistant"], front=True)
    before["system"] = _between(whole, None, _SYSTEM)
    after["system"] = _cut(_between(whole, _SYSTEM, _ASKED), before["user"], front=False)
    default = _cut(_between(alone, None, _ASKED), before["user"], front=False)
    for turns in _PROBED:
        made = "".join(f"{before[role]}{text}{after[role]}" for role, text in turns) + opening
        if ("" if turns[0][0] == "system" else default) + made != rendered(turns):
            raise ValueError(turns)
    return before, after, default, opening


def _between(text: str, first: str | None, last: str | None) -> str:
    begin = 0 if first is None else text.index(first) + len(first)
    return text[begin : len(text) if last is None else text.index(last)]


def _cut(text: str, part: str, *, front: bool) -> str:
    """Return a text without a part at its front or its end. Raise ValueError if it is not there."""
    if not (text.startswith(part) if front else text.endswith(part)):
        raise ValueError(part)
    return text[len(part) :] if front else text[: len(text) - len(part)]
