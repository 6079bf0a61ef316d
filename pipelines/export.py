"""Export of a checkpoint as a folder that any Hugging Face tool reads, or as a GGUF file for llama.cpp."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import GenerationConfig

from pipelines.reports.cycle_report import card_front, model_card
from pipelines.runtime.progress import Display
from pipelines.runtime.session import Session
from recovery.disk import WRITING, written
from recovery.errors import ModelError
from recovery.models.chat_template import ChatFormat
from recovery.models.checkpoints import CONTENT, content_hash
from recovery.models.control_tokens import adds_bos
from recovery.models.folder_check import ADAPTER_CONFIG
from recovery.models.gguf_files import read_header, sha256_of
from recovery.models.gguf_files.header import SAMPLING, Header
from recovery.models.gguf_files.writing import Source, write_gguf
from recovery.models.loaded import Loaded
from recovery.models.loading import load_merged
from recovery.types import Message
from recovery.workspace import write_atomically


def export(session: Session, name: str, folder: Path, *, merge: bool) -> dict[str, Any]:
    """Write checkpoint ``name`` to ``folder``, with its adapter merged into the weights if ``merge``.

    Without ``merge`` an adapter stays one, and names the folder of its base. A model card is written as README.md. The
    folder is written atomically.
    """
    checkpoint = session.verified(session.resolve(name))
    folder = folder.expanduser().resolve()
    merged = load_merged(checkpoint.weights, checkpoint.adapter) if merge and checkpoint.adapter is not None else None
    card = model_card(session, checkpoint)
    writing = folder.with_name(f"{WRITING}{folder.name}")
    shutil.rmtree(writing, ignore_errors=True)
    with written(folder, writing):
        writing.mkdir(parents=True)
        if merged is None:
            _copy(checkpoint.path, writing)
            if checkpoint.adapter is not None:
                _name_base(writing / ADAPTER_CONFIG, checkpoint.weights)
        else:
            _save(merged, writing, checkpoint.weights)
        (writing / "README.md").write_text(card, encoding="utf-8")
        if folder.exists():
            folder.rmdir()  # empty: the command has checked that
        writing.rename(folder)
    kind = "merged weights" if merged is not None else "weights"
    if merged is None and checkpoint.adapter is not None:
        kind = "adapter"
    return {"name": checkpoint.name, "kind": kind, "path": str(folder), "hash": content_hash(folder)}


def export_gguf(session: Session, name: str, target: Path, kind: str) -> dict[str, Any]:
    """Write checkpoint ``name`` to the GGUF file ``target`` as ``kind`` (recovery's TYPES, or QUANTISED by llama.cpp),
    and beside it a Modelfile for Ollama.

    An adapter is merged in memory; other weights are read one at a time. The file is written atomically.
    """
    if kind in QUANTISED:
        check_quantiser()
    checkpoint = session.verified(session.resolve(name))
    target = target.expanduser().resolve()
    target.parent.mkdir(parents=True, exist_ok=True)
    source = Source.of(checkpoint.name, checkpoint.weights, checkpoint.adapter, checkpoint.hash)
    card = card_front(session, checkpoint)
    if kind in QUANTISED:
        _write_quantised(source, target, kind, card, session.display)
    else:
        write_gguf(source, target, kind, card, session.display)
    text, templated = modelfile(target, source.chat, source.generation, source.config.max_position_embeddings)
    beside = target.with_suffix(".Modelfile")
    write_atomically(beside, text)
    if not templated:
        session.display.say(f"{beside.name} has no TEMPLATE: the chat template does more than Ollama's form can say")
    header = read_header(target)
    session.display.say(f"types of the tensors: {types_text(header, kind)}")
    return {
        "name": checkpoint.name,
        "kind": f"GGUF, {kind}",
        "path": str(target),
        "modelfile": str(beside),
        "bytes": target.stat().st_size,
        "sha256": sha256_of(target),
        "types": {name.lower(): count for name, count in header.types.items()},
    }


def _write_quantised(source: Source, target: Path, kind: str, card: Mapping[str, Any], display: Display) -> None:
    """Write the weights without rounding into a temporary file, and let llama.cpp quantise that."""
    exact, writing = (target.with_name(f".{name}-{target.name}") for name in (f"exact-{os.getpid()}", "quantised"))
    try:
        write_gguf(source, exact, source.exact, card, display)
        with display.phase(f"quantising {target.name}"):
            quantise(exact, writing, kind)
        if target.exists():
            raise ModelError(f"{target} was written by another process meanwhile: name a new file")
        writing.rename(target)
    finally:
        exact.unlink(missing_ok=True)
        writing.unlink(missing_ok=True)


def _name_base(adapter_config: Path, base: Path) -> None:
    """Write where the base is now: the workspace may have been moved since the adapter was trained."""
    config = json.loads(adapter_config.read_text(encoding="utf-8"))
    config["base_model_name_or_path"] = str(base)
    adapter_config.write_text(json.dumps(config, indent=2, sort_keys=True), encoding="utf-8")


def _save(loaded: Loaded, folder: Path, base: Path) -> None:
    """Write a merged model in the precision of ``base``; ``loaded`` and its configuration are in float32."""
    config = json.loads((base / "config.json").read_text(encoding="utf-8"))
    stored = getattr(torch, str(config.get("dtype") or config.get("torch_dtype")).removeprefix("torch."), None)
    loaded.model.to(stored if isinstance(stored, torch.dtype) else torch.float32)
    loaded.model.save_pretrained(folder, safe_serialization=True)
    loaded.tokenizer.save_pretrained(folder)


def _copy(source: Path, folder: Path) -> None:
    """Copy the files of a model, with the index of weights in several files: it is no content, but they need it."""
    for pattern in (*CONTENT, "*.safetensors.index.json"):
        for path in source.glob(pattern):
            if path.is_file():
                target = folder / path.relative_to(source)
                target.parent.mkdir(exist_ok=True)
                shutil.copy2(path, target)


# Ollama's Modelfile for a GGUF file: template, ends of a turn and sampling settings.
#
# Format: https://docs.ollama.com/modelfile. Its template is Go's text/template. Jinja is not translated: what a chat
# template writes around each role is read off conversations that it renders, and a template that cannot be rebuilt
# from these parts gets none.

_LONGEST_CONTEXT = 8192  # tokens: Ollama's own default cuts prompts at 4,096, and a model's whole window takes memory
_SYSTEM, _ASKED, _ANSWERED, _AGAIN = "Sbegin", "Ubegin", "Abegin", "Uagain"
_PROBE_TURNS = (
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
        if f" {_ASKED}" not in chat.render([Message(role="user", content=f" {_ASKED}")]):
            lines.append("# The chat template removes spaces around a message. Ollama's cannot: send none.")
        lines.append(f'TEMPLATE """{template}"""')
    ends = sorted(str(chat.tokenizer.convert_ids_to_tokens(token)) for token in chat.end_ids)
    lines += [f"PARAMETER stop {_quoted(end)}" for end in ends]
    lines.append(f"PARAMETER num_ctx {min(window, _LONGEST_CONTEXT)}")
    if generation.do_sample:
        named = {"temperature": "temperature"} | {name: field for name, field in SAMPLING.items() if name != "temp"}
        values = {name: getattr(generation, field, None) for name, field in named.items()}
        lines += [f"PARAMETER {name} {value}" for name, value in values.items() if value is not None]
    return "\n".join(lines) + "\n", template is not None


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


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
        messages = [Message(role=role, content=text) for role, text in turns]
        return chat.render(messages, generation_prompt=opened).removeprefix(begin)  # Ollama adds it

    single, dialogue = rendered(_PROBE_TURNS[0]), rendered(_PROBE_TURNS[3])
    closed = rendered(_PROBE_TURNS[0], opened=False)
    after = {"user": _between(closed, _ASKED, None)}
    opening = _cut(single, closed, front=True)
    after["assistant"] = _between(rendered(_PROBE_TURNS[2][:2], opened=False), _ANSWERED, None)
    before = {"assistant": _cut(_between(dialogue, _ASKED, _ANSWERED), after["user"], front=True)}
    before["user"] = _cut(_between(dialogue, _ANSWERED, _AGAIN), after["assistant"], front=True)
    before["system"] = _between(dialogue, None, _SYSTEM)
    after["system"] = _cut(_between(dialogue, _SYSTEM, _ASKED), before["user"], front=False)
    default = _cut(_between(single, None, _ASKED), before["user"], front=False)
    for turns in _PROBE_TURNS:
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


# Quantisation of a GGUF file by llama.cpp itself, in a process of its own, since a failed assertion ends the process.
#
# cyllama has ``llama_model_quantize``. xllamacpp, whose server is used elsewhere, is linked without it.

QUANTISED = {"q4_k_m": 15, "q5_k_m": 17, "q6_k": 18}
"""Types of files that llama.cpp mixes from several types of tensors, with its numbers (``llama_ftype``)."""
BLOCK = 256
"""Values that a k-quant stores together: rows of another width get another type."""
_NEEDS = "quantising a GGUF file needs: pip install 'recovery[llama]'"


def check_quantiser() -> None:
    """Raise ModelError if the quantiser is not installed."""
    try:
        import cyllama  # noqa: F401
    except ImportError:
        raise ModelError(_NEEDS) from None


def quantise(source: Path, target: Path, kind: str) -> Header:
    """Write ``source``, a file of 16 or 32 bits, to ``target`` as ``kind``, one of :data:`QUANTISED`.

    Return the header of what was written. Raise ModelError with llama.cpp's reason if it refuses.
    """
    command = [sys.executable, "-m", __name__, str(source), str(target), str(QUANTISED[kind])]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    if done.returncode:
        lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        named = next((line for line in lines if "failed" in line or "rror" in line), lines[-1] if lines else "")
        why = " ".join(named.split())[:300] or done.returncode
        raise ModelError(f"llama.cpp cannot write {kind}: {why}; f16 and q8_0 are written without it")
    return read_header(target)


def types_text(header: Header, kind: str) -> str:
    """Return which types the tensors of a quantised file have, and which matrices k-quants do not fit."""
    text = ", ".join(f"{count} {name.lower()}" for name, count in header.types.items())
    matrices = [tensor for tensor in header.tensors if len(tensor.shape) > 1]
    uneven = Counter(tensor.type.lower() for tensor in matrices if tensor.shape[-1] % BLOCK)
    if kind not in QUANTISED or not uneven:
        return text
    instead = ", ".join(f"{count} {name}" for name, count in uneven.items())
    return (
        f"{text}; the rows of {uneven.total()} of {len(matrices)} matrices are no multiple of {BLOCK} wide, so "
        f"llama.cpp gave them another type than {kind} has: {instead}"
    )


def _main(source: str, target: str, number: str) -> None:
    from cyllama.llama.llama_cpp import LlamaModelQuantizeParams, model_quantize

    params = LlamaModelQuantizeParams()
    params.ftype = int(number)
    model_quantize(source, target, params)


if __name__ == "__main__":
    _main(*sys.argv[1:])
