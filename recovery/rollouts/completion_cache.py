"""Cache of completions, and an engine that uses it.

A greedy completion depends on the weights, the prompt and the token limit, which form its key. Sampled completions also
depend on their position in the request, so their key is the whole call. Weights are identified by their content hash,
so changed weights never match.
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
from typing import TYPE_CHECKING, TypeVar

from recovery import __version__
from recovery.lazy_import import lazily
from recovery.rollouts.engine import Completion, Engine, Progress, Sampling, window_with

if TYPE_CHECKING:
    from recovery.models.loaded import Loaded

torch = lazily("torch")

Result = TypeVar("Result")

FILE = "answers.db"
LARGEST = 1 << 30  # bytes
_KEYS_AT_ONCE = 500  # per database query
# Prompts of a request that are generated and stored together: an interruption loses all of them, and fewer would not
# fill batches that are sorted by length. An engine with batches of its own (a token budget) gets fewer prompts if
# completions may have _LONG tokens or more, which makes it some 4% slower.
_MOST_PROMPTS, _FEWER_PROMPTS, _LONG = 256, 128, 512
_SECONDS = 30.0  # to wait for a writing process


@dataclass(frozen=True)
class CompletionStore:
    """Completions by key, in one SQLite file that may be deleted at any time.

    An unreadable entry counts as missing, a failed write is ignored, and a damaged file is deleted: the cache never
    raises an error. Beyond ``largest`` bytes the older half is deleted.
    """

    path: Path
    largest: int = LARGEST

    def read(self, keys: Sequence[str]) -> dict[str, Completion]:
        """Return the completions that are in the cache."""

        def work(connection: sqlite3.Connection) -> dict[str, Completion]:
            completions: dict[str, Completion] = {}
            for start in range(0, len(keys), _KEYS_AT_ONCE):
                part = keys[start : start + _KEYS_AT_ONCE]
                query = f"SELECT key, value FROM answers WHERE key IN ({','.join('?' * len(part))})"
                for key, value in connection.execute(query, part):
                    if (completion := _unpacked(value)) is not None:
                        completions[key] = completion
            return completions

        return self._quietly(work) or {}

    def write(self, completions: Mapping[str, Completion]) -> None:
        """Store completions in one transaction."""
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
        """Return the result of ``work`` on the database; None if it cannot be used."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.closing(sqlite3.connect(self.path, timeout=_SECONDS)) as connection:
                connection.execute("CREATE TABLE IF NOT EXISTS answers (key TEXT PRIMARY KEY, value BLOB NOT NULL)")
                return work(connection)
        except (sqlite3.OperationalError, OSError):
            return None  # locked, full or read-only
        except sqlite3.DatabaseError:
            self.path.unlink(missing_ok=True)
            return None


@dataclass(frozen=True)
class CachingEngine:
    """An engine with a cache: completions in ``store`` are not generated again. ``key`` identifies weights and
    numerics.
    """

    engine: Engine
    store: CompletionStore
    key: str

    @classmethod
    def of(cls, loaded: Loaded, engine: Engine, *, content_hash: str, cache: Path) -> CachingEngine:
        """Return a caching engine of a frozen model with this content hash; ``cache`` is a folder."""
        parts = (
            content_hash,
            loaded.precision,
            loaded.device.type,
            window_with(engine, loaded.max_length),
            sorted(loaded.chat.end_ids),
            getattr(engine, "name", ""),  # other kernels round differently
            getattr(engine, "token_budget", None),  # the batch composition affects rounding
            (_MOST_PROMPTS, _FEWER_PROMPTS, _LONG),
            getattr(engine, "complete_loops", False),
            torch.__version__,
            __version__,
        )
        return cls(engine, CompletionStore(cache / FILE), _hash(*parts))

    @property
    def window(self) -> int | None:
        """The engine's own window, if it has one."""
        return getattr(self.engine, "window", None)

    def generate(
        self, prompts: Sequence[Sequence[int]], sampling: Sampling, progress: Progress | None = None
    ) -> list[Completion]:
        """Return one completion per prompt, in order; cached ones are reported as finished at once."""
        keys = list(self._keys(prompts, sampling))
        completions = self.store.read(keys)
        if sampling.temperature > 0 and len(completions) < len(set(keys)):
            completions = {}
        missing = [index for index, key in enumerate(keys) if key not in completions]
        if progress is not None and len(missing) < len(keys):
            progress(len(keys) - len(missing), 0)
        # Sampled completions depend on their position in the request and are generated in one call; greedy ones are
        # stored in parts, or as they arrive from an engine that tells of each, so that little is lost on a stop.
        arriving = sampling.temperature == 0 and getattr(self.engine, "keeps", False)

        def keep(number: int, completion: Completion) -> None:
            self.store.write({keys[missing[number]]: completion})

        more = (keep,) if arriving else ()
        size = len(missing) if arriving or sampling.temperature > 0 else self._part_size(sampling)
        for start in range(0, len(missing), max(1, size)):
            part = missing[start : start + size]
            generated = self.engine.generate([prompts[index] for index in part], sampling, progress, *more)
            generated_by_key = {keys[index]: completion for index, completion in zip(part, generated, strict=True)}
            if not arriving:
                self.store.write(generated_by_key)
            completions |= generated_by_key
        return [completions[key] for key in keys]

    def _part_size(self, sampling: Sampling) -> int:
        """Return how many greedy completions are generated and stored at once."""
        batches = getattr(self.engine, "token_budget", None) is not None
        return _FEWER_PROMPTS if batches and sampling.max_new_tokens >= _LONG else _MOST_PROMPTS

    def _keys(self, prompts: Sequence[Sequence[int]], sampling: Sampling) -> Iterable[str]:
        if sampling.temperature == 0:
            greedy = replace(sampling, top_p=1.0, seed=0)  # neither has an effect
            return (_hash(self.key, greedy, _ids(prompt)) for prompt in prompts)
        call = _hash(self.key, sampling, *map(_ids, prompts))
        return (f"{call}/{number}" for number in range(len(prompts)))


def _ids(prompt: Sequence[int]) -> str:
    return array("q", prompt).tobytes().hex()


def _hash(*parts: object) -> str:
    return hashlib.sha256("".join(f"{part}\x1f" for part in parts).encode()).hexdigest()


def _packed(completion: Completion) -> bytes:
    text = json.dumps([completion.ids, completion.logprobs, completion.finished])
    return zlib.compress(text.encode())  # zlib adds a checksum


def _unpacked(value: bytes) -> Completion | None:
    """Decode a stored completion; None if it is damaged."""
    try:
        ids, logprobs, finished = json.loads(zlib.decompress(value))
        return Completion(ids, logprobs, finished) if len(ids) == len(logprobs) else None
    except (zlib.error, ValueError, TypeError):
        return None
