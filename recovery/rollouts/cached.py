"""Answers that were generated once and are not generated again: an engine that looks before it asks.

A greedy answer depends on the weights, the prompt and how many tokens it may take; it is kept by these. Sampled answers
also depend on their place in the request, so they are kept by the whole call. Weights are named by their content hash:
changed ones find nothing here.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import sqlite3
import zlib
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import torch

from recovery import __version__
from recovery.loading import Loaded
from recovery.rollouts.engine import Completion, Engine, Progress, Sampling

Result = TypeVar("Result")

FILE = "answers.db"
LARGEST = 1 << 30  # bytes
_KEYS_AT_ONCE = 500  # in one question to the database
_PROMPTS_AT_ONCE = 256  # enough of them to be sorted by length into full batches
_SECONDS = 30.0  # to wait for another process that is writing


@dataclass(frozen=True)
class AnswerStore:
    """Completions by key, in one SQLite file that may be deleted at any time.

    What cannot be read counts as missing, what cannot be written is not kept, and a damaged file is begun anew: a cache
    stops nobody. Beyond ``largest`` bytes the older half is dropped.
    """

    path: Path
    largest: int = LARGEST

    def read(self, keys: Sequence[str]) -> dict[str, Completion]:
        """Those of the completions that are here."""

        def work(connection: sqlite3.Connection) -> dict[str, Completion]:
            found: dict[str, Completion] = {}
            for start in range(0, len(keys), _KEYS_AT_ONCE):
                part = keys[start : start + _KEYS_AT_ONCE]
                query = f"SELECT key, value FROM answers WHERE key IN ({','.join('?' * len(part))})"
                for key, value in connection.execute(query, part):
                    if (completion := _unpacked(value)) is not None:
                        found[key] = completion
            return found

        return self._quietly(work) or {}

    def write(self, completions: Mapping[str, Completion]) -> None:
        """Keep completions, all of them or none."""
        rows = [(key, _packed(completion)) for key, completion in completions.items()]

        def work(connection: sqlite3.Connection) -> None:
            with connection:
                connection.executemany("INSERT OR REPLACE INTO answers (key, value) VALUES (?, ?)", rows)
            if self.path.stat().st_size > self.largest:
                with connection:
                    middle = "(SELECT (min(rowid) + max(rowid)) / 2 FROM answers)"
                    connection.execute(f"DELETE FROM answers WHERE rowid <= {middle}")
                connection.execute("VACUUM")

        self._quietly(work)

    def _quietly(self, work: Callable[[sqlite3.Connection], Result]) -> Result | None:
        """What ``work`` finds in the database; None where it cannot be used."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.closing(sqlite3.connect(self.path, timeout=_SECONDS)) as connection:
                connection.execute("CREATE TABLE IF NOT EXISTS answers (key TEXT PRIMARY KEY, value BLOB NOT NULL)")
                return work(connection)
        except (sqlite3.OperationalError, OSError):
            return None  # locked, full, not to be written
        except sqlite3.DatabaseError:
            self.path.unlink(missing_ok=True)
            return None


@dataclass(frozen=True)
class CachedEngine:
    """``engine`` with a memory: what ``store`` has is not generated again. ``key`` names weights and arithmetic."""

    engine: Engine
    store: AnswerStore
    key: str

    @classmethod
    def of(cls, loaded: Loaded, engine: Engine, *, content_hash: str, cache: Path) -> CachedEngine:
        """Over a frozen model in memory whose weights have this content hash; ``cache`` is a folder."""
        parts = (
            content_hash,
            loaded.precision,
            loaded.device.type,
            loaded.max_length,
            sorted(loaded.chat.end_ids),
            getattr(engine, "name", ""),  # other kernels, other last digits
            getattr(engine, "token_budget", None),  # which prompts share a batch decides the last digits of logits
            getattr(engine, "complete_loops", False),
            torch.__version__,
            __version__,
        )
        return cls(engine, AnswerStore(cache / FILE), _hash(*parts))

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        sampling: Sampling,
        progress: Progress | None = None,
    ) -> list[Completion]:
        """One completion a prompt, in order; those that are known count as finished at once."""
        keys = list(self._keys(prompts, sampling))
        found = self.store.read(keys)
        if sampling.temperature > 0 and len(found) < len(set(keys)):
            found = {}
        missing = [index for index, key in enumerate(keys) if key not in found]
        if progress is not None and len(missing) < len(keys):
            progress(len(keys) - len(missing), 0)
        # Sampled answers depend on their place in the request, and are asked in one call; greedy ones are kept as they
        # come, so that little is lost where this is stopped.
        size = len(missing) if sampling.temperature > 0 else _PROMPTS_AT_ONCE
        for start in range(0, len(missing), max(1, size)):
            part = missing[start : start + size]
            said = self.engine.generate([prompts[index] for index in part], sampling, progress)
            made = {keys[index]: completion for index, completion in zip(part, said, strict=True)}
            self.store.write(made)
            found |= made
        return [found[key] for key in keys]

    def _keys(self, prompts: Sequence[Sequence[int]], sampling: Sampling) -> Iterable[str]:
        if sampling.temperature == 0:
            greedy = replace(sampling, top_p=1.0, seed=0)  # neither matters
            return (_hash(self.key, greedy, _ids(prompt)) for prompt in prompts)
        call = _hash(self.key, sampling, *map(_ids, prompts))
        return (f"{call}/{number}" for number in range(len(prompts)))


def _ids(prompt: Sequence[int]) -> str:
    return array("q", prompt).tobytes().hex()


def _hash(*parts: object) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(f"{part}\x1f".encode())
    return digest.hexdigest()


def _packed(completion: Completion) -> bytes:
    text = json.dumps([completion.ids, completion.logprobs, completion.finished])
    return zlib.compress(text.encode())  # with a checksum


def _unpacked(value: bytes) -> Completion | None:
    """A completion as it was kept; None for one that is damaged."""
    try:
        ids, logprobs, finished = json.loads(zlib.decompress(value))
        return Completion(ids, logprobs, finished) if len(ids) == len(logprobs) else None
    except (zlib.error, ValueError, TypeError):
        return None
