"""Behaviour prompts of a run: where they come from, and splits without a shared wording."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from recovery.data.corpus.tables import splits_of
from recovery.data.corpus.text import normalise, share
from recovery.data.prompt_files import load_prompts
from recovery.data.prompt_records import prompts_hash, wording
from recovery.data.sources import COMPOSERS, TABLE_SUFFIXES, files_state, parse
from recovery.data.synthetic_prompts import DEFAULT_COUNT, compose, compose_chat
from recovery.data.synthetic_prompts.chat import ordinary
from recovery.errors import UsageError
from recovery.types import Message, Prompt

SPLITS = ("train", "development", "test")
SHARES = (0.6, 0.2, 0.2)
# Names accepted in place of a file: the composer's full mixture, or only its ordinary chat.
COMPOSED = dict(zip(COMPOSERS, (compose, compose_chat), strict=True))
_FEW = 60


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


def without_held_out(
    conversations: Sequence[tuple[Message, ...]], prompts: PromptSplits, *, given: str, notes: list[str]
) -> list[tuple[Message, ...]]:
    """Return the conversations that answer no development or test prompt, compared by the user's turns.

    All turns of the assistant are trained on, so a held-out prompt may also be the beginning of a conversation.
    ``notes`` receives how many were removed from the file ``given``. Raises UsageError if none is left.
    """
    held_out = {tuple(_user_turns(prompt.messages)) for prompt in (*prompts.development, *prompts.test)}
    remaining = []
    for messages in conversations:
        turns = _user_turns(messages)
        if not any(tuple(turns[:end]) in held_out for end in range(1, len(turns) + 1)):
            remaining.append(messages)
    if conversations and not remaining:
        message = f"{given}: every conversation answers a development or test prompt ({prompts.source})"
        raise UsageError(f"{message}: give others, or other prompts with --prompts")
    if dropped := len(conversations) - len(remaining):
        message = f"{given}: {dropped:,} of {len(conversations):,} conversations left out"
        notes.append(f"{message}: they answer development or test prompts ({prompts.source})")
    return remaining


def without_kinds(prompts: PromptSplits, kinds: Sequence[str]) -> PromptSplits:
    """Return the splits without training and development prompts that ask for one of these kinds of instruction.

    A kind is an instruction's id or its first part. Prompts without checks may ask for anything in words: only
    ordinary chat is kept of them. Test prompts stay. Raises UsageError if no prompt has a kind, or none is left.
    """
    known = {check.instruction for prompt in prompts.train for check in prompt.checks}
    for kind in kinds:
        if not any(of_kind(instruction, (kind,)) for instruction in known):
            near = f"those of its prompts are {', '.join(sorted(known))}" if known else "its prompts have no checks"
            raise UsageError(f"--without-kind {kind}: no prompt of {prompts.source} asks for it: {near}")

    def kept(split: Sequence[Prompt]) -> tuple[Prompt, ...]:
        candidates = (prompt for prompt in split if prompt.checks or ordinary(prompt))
        return tuple(p for p in candidates if not any(of_kind(check.instruction, kinds) for check in p.checks))

    train, development = kept(prompts.train), kept(prompts.development)
    if not train:
        raise UsageError(f"--without-kind {' --without-kind '.join(kinds)}: no prompt of {prompts.source} is left")
    note = f"{len(train):,} of {len(prompts.train):,} prompts ask for none of {', '.join(kinds)}; others are left out"
    return replace(prompts, train=train, development=development, notes=(*prompts.notes, note))


def of_kind(instruction: str, kinds: Sequence[str]) -> bool:
    """Return whether an instruction's id, or its first part, is one of these kinds."""
    return any(instruction == kind or instruction.startswith(f"{kind}:") for kind in kinds)


def _user_turns(messages: Sequence[Message]) -> list[str]:
    return [normalise(message["content"]) for message in messages if message["role"] == "user"]


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
            position = share(wording(prompt), "split")
            sides[SPLITS[(position >= SHARES[0]) + (position >= SHARES[0] + SHARES[1])]].append(prompt)
    else:
        ranked = sorted(unique, key=lambda p: share(wording(p), "split"))
        held_count = min(max(1, round(SHARES[1] * len(ranked))), len(ranked) // 3)
        sides["development"], sides["test"] = ranked[:held_count], ranked[held_count : 2 * held_count]
        sides["train"] = ranked[2 * held_count :]
    train, development, test = (tuple(sides[name]) for name in SPLITS)
    return PromptSplits(train, development, test, source, tuple(notes))


# --- choosing ------------------------------------------------------------------------------------------------


def behaviour_prompts(
    model_folder: Path | None = None, user_file: Path | None = None, seed: int = 0, *, count: int = DEFAULT_COUNT
) -> PromptSplits:
    """Return the behaviour prompts of a run from the first available source: the user's file (or a folder with
    train.jsonl, development.jsonl and test.jsonl, or a name in :data:`COMPOSED`), the model folder's ``suites/``, or
    the built-in composer (``count`` prompts by ``seed``)."""
    if user_file is not None:
        if str(user_file) in COMPOSED and not user_file.exists():
            return _composed(str(user_file), count, seed)
        source = parse(user_file)
        if source.path.is_dir() and splits_of(source.path) is None:
            splits = _from_folder(source.path, str(user_file), source.names)
            if splits is None:
                tables = f"train{', train'.join(sorted(TABLE_SUFFIXES))}"
                message = f"no train.jsonl in {source.path}: give a file of prompts or a folder that has it"
                raise UsageError(f"{message}, or one of {tables}")
            return splits
        if not source.exists:
            message = f"no file {user_file}: give JSON Lines with a prompt or messages on each line, a table"
            raise UsageError(f"{message}, or one of {', '.join(COMPOSED)}")
        problems: list[str] = []
        prompts = load_prompts(user_file, problems=problems)
        return split_prompts(prompts, source=str(user_file), notes=problems)
    if model_folder is not None:
        splits = _of_model(folder := model_folder / "suites", files_state(folder))
        if splits is not None:
            return splits
    return _composed("composer", count, seed)


@functools.lru_cache(maxsize=2)  # a cycle's stages ask for the same ones again and again, which take seconds
def _of_model(folder: Path, state: tuple[tuple[str, int, int], ...]) -> PromptSplits | None:
    """Return the splits of a model's suites in the :func:`files_state` of their folder. Nobody may change a prompt."""
    return _from_folder(folder, "the model's own suites")


@functools.lru_cache(maxsize=2)
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
    prompts = {name: load_prompts(file, problems=notes) for name, file in files.items()}
    if len(prompts) < len(SPLITS):
        split = split_prompts(prompts["train"])
        missing = [name for name in SPLITS if name not in prompts]
        moved = {wording(p) for name in missing for p in getattr(split, name)}
        prompts.update({name: list(getattr(split, name)) for name in missing})
        prompts["train"] = [p for p in prompts["train"] if wording(p) not in moved]
        name = files["train"].name.partition(":")[0]
        notes.append(f"no {' or '.join(missing)}{Path(name).suffix}: taken from {name}")
    return _disjoint(prompts, source, notes)


def _split_file(folder: Path, name: str, names: Sequence[str]) -> Path | None:
    """Return the file of a split in a folder, a table with the column that is named for it."""
    for suffix in (".jsonl", *sorted(TABLE_SUFFIXES)):
        if (folder / f"{name}{suffix}").is_file():
            return folder / ":".join((f"{name}{suffix}", *(names if suffix in TABLE_SUFFIXES else ())))
    return None


def _disjoint(prompts: dict[str, list[Prompt]], source: str, notes: list[str]) -> PromptSplits:
    """Remove shared wordings: test takes precedence over development, and development over training."""
    seen: set[str] = set()
    kept: dict[str, tuple[Prompt, ...]] = {}
    for name in reversed(SPLITS):
        by_wording = [(wording(p), p) for p in prompts[name]]
        kept[name] = tuple(p for w, p in by_wording if w not in seen)
        if dropped := len(by_wording) - len(kept[name]):
            notes.append(f"{dropped} {name} prompts removed: their wording is also in a held-out split")
        seen.update(w for w, _ in by_wording)
    return PromptSplits(kept["train"], kept["development"], kept["test"], source, tuple(notes))
