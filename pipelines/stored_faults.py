"""Stored stages that faults of earlier releases affected, detected from their stored settings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from db import queries, records
from db.schema import TRAINING
from pipelines.data.corpus_snapshot import load_snapshot
from pipelines.runtime.registry import Registry
from pipelines.runtime.session import CONTENTS, DATA_RULES
from recovery.config import SECTIONS
from recovery.config.files import changed_since
from recovery.data.corpus.holdout import PART, NearDuplicates
from recovery.data.corpus.text import paragraphs
from recovery.data.prompt_files import misread_fields
from recovery.data.sources import COMPOSERS
from recovery.errors import ModelError, RecoveryError
from recovery.models.chat_loading import load_chat
from recovery.models.chat_template import ChatFormat
from recovery.workspace import Checkpoint

_FILES = ("replay_data", "data", "prompts")  # settings of files with chats


@dataclass(frozen=True)
class Fault:
    """A stage that a fault touched: which, what it did, how sure that is ("certain" or "likely"), what to do."""

    stage: records.Stage
    fault: str
    sure: str
    advice: str


@dataclass
class FaultReport:
    """The faults found in a workspace's stages, and by stage why it could not be judged in full."""

    touched: list[Fault] = field(default_factory=list)
    unknown: dict[int, str] = field(default_factory=dict)
    stages: int = 0


def judge(registry: Registry) -> FaultReport:
    """Judge the training stages of a workspace that began before the present rules for data."""
    judged, chats = FaultReport(), dict[tuple[Path, str], ChatFormat | ModelError | None]()
    leaks: dict[int, list[str] | None] = {}
    placed = {checkpoint.id: checkpoint for checkpoint in registry.all()}
    for stage in reversed(queries.stages(registry.database, registry.experiment_id, limit=1_000_000)):
        if stage.kind not in TRAINING or stage.details.get(DATA_RULES) is not None:
            continue
        judged.stages += 1
        student = placed.get(stage.student_id)
        chat = None if student is None else _chat(student, stage.config.get("template_args") or {}, chats)
        if chat is None:
            judged.unknown[stage.id] = "the folder of its model is gone"
        if isinstance(chat, ModelError):
            advice = "complete the model's files, and train it again"
            judged.touched.append(Fault(stage, str(chat), "certain", advice))
        elif chat is not None:
            judged.touched += _empty_thoughts(stage, chat)
        judged.touched += _dropped_fields(stage, judged.unknown)
        if stage.kind == "midtrain" and stage.cycle is not None:
            if stage.cycle not in leaks:
                leaks[stage.cycle] = _held_out_trained(registry, stage.cycle)
            if (leak := leaks[stage.cycle]) is None:
                judged.unknown[stage.id] = f"the documents of cycle {stage.cycle} are gone"
            elif leak:
                fault = f"held-out text was trained on in another version: {', '.join(leak[:3])}"
                more = f" and {len(leak) - 3:,} more" if len(leak) > 3 else ""
                advice = "do not compare its held-out figures; train it again in a new workspace"
                judged.touched.append(Fault(stage, f"{fault}{more}", "certain", advice))
    return judged


def _held_out_trained(registry: Registry, cycle: int) -> list[str] | None:
    """Return the held-out documents of a cycle that near-duplicates link to its training documents; None without any
    snapshot. Of documents of which paragraphs are held out, the paragraphs are compared.
    """
    try:
        own = load_snapshot(registry.workspace, cycle)
    except RecoveryError:
        return None
    near, sides = NearDuplicates(), dict[str, tuple[str, bool]]()
    parts = any(document.id.endswith(PART) for document in own.held_out)
    for held, documents in ((False, own.documents), (True, own.held_out)):
        for document in documents:
            for number, text in enumerate(paragraphs(document.text) if parts else [document.text]):
                name = f"{document.id}\0{number}\0{held}"
                sides[name] = document.id.removesuffix(PART), held
                near.find(name, text)
    groups = near.groups()
    trained = {first for name, first in groups.items() if not sides[name][1]}
    return list(dict.fromkeys(sides[name][0] for name, first in groups.items() if sides[name][1] and first in trained))


def _chat(
    model: Checkpoint, arguments: Mapping[str, Any], known: dict[tuple[Path, str], ChatFormat | ModelError | None]
) -> ChatFormat | ModelError | None:
    """Return the chat format of a checkpoint, or the error for its tokenizer; None if its files are gone."""
    key = model.path, repr(sorted(arguments.items()))
    if key not in known:
        try:
            exists = model.weights.is_dir() and model.path.is_dir()
            known[key] = load_chat(str(model.weights), arguments, adapter=model.adapter) if exists else None
        except ModelError as error:
            known[key] = error
    return known[key]


def _empty_thoughts(stage: records.Stage, chat: ChatFormat) -> Iterator[Fault]:
    """Yield the fault that text which the template writes before an answer was a label in imitated chats."""
    config = stage.config
    imitates = stage.kind == "distill" and config.get("answers") == "given" and config.get("alpha", 1.0) != 1.0
    replayed = config.get("replay_data") is not None and (config.get("replay") or config.get("project"))
    if stage.kind == "midtrain" and config.get("augment"):
        chats, sure = f"the questions and descriptions of --augment {config['augment']}", "certain"
    elif (stage.kind == "midtrain" and replayed) or imitates:
        chats, sure = "the chats that it imitates", "likely"  # their answers may have thoughts of their own
    else:
        return
    try:
        written = chat.before_answers()
    except ModelError as error:
        yield Fault(stage, f"{error}; {chats} were dropped", "certain", "correct the template, and train it again")
        return
    if written.strip():
        fault = f"{written!r}, which the template writes before an answer, was a label in {chats}"
        yield Fault(stage, fault, sure, "train it again")


def _dropped_fields(stage: records.Stage, unknown: dict[int, str]) -> Iterator[Fault]:
    """Yield the fault that fields of chats were dropped, or that turns with weight 0 were trained on."""
    kind = SECTIONS.get(stage.kind)
    for name in _FILES:
        path = stage.config.get(name)
        if path is None or kind is None or str(path) in COMPOSERS:
            continue
        begun = stage.details.get(CONTENTS) or {}
        try:
            if changed_since(kind, {name: path}, begun):
                unknown[stage.id] = f"{path} was changed since"
                continue
            fields = misread_fields(Path(path), imitated=name != "prompts")
        except (RecoveryError, OSError):
            unknown[stage.id] = f"{path} is gone"
            continue
        if fields:
            counted = ", ".join(f"{field} ({count:,})" for field, count in fields.most_common())
            fault = f"fields of {path} were not read as they are meant, in so many records: {counted}"
            yield Fault(stage, fault, "certain" if name in begun else "likely", "train it again")
