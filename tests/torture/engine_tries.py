"""Tries of the campaign of servers: engines that are given weights, on servers that misbehave, die, are restarted.

Each ends in what the model in memory would sample, or in one line that names the server.
"""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from recovery.errors import RecoveryError
from recovery.inference_server import InferenceServer
from recovery.models.adapters import LoraSettings
from recovery.models.loaded import Loaded
from recovery.models.loading import load_model
from recovery.rollouts.engine import Sampling
from recovery.rollouts.transformers_engine import TransformersEngine
from recovery.rollouts.vllm_server_engine import KEYS, VllmServerSampler
from recovery.rollouts.weight_sync import SyncedEngine
from tests.torture.misbehaving import COMPLETIONS, CUT, DEATHS, EDITS, FINAL, TRANSFERS, Server, serving
from tests.torture.server_runs import Weights, disturbed, undisturbed

ROWS = ([5, 9, 30, 12, 8, 77], [7, 11, 400])
GREEDY = Sampling(6, temperature=0.0)
KINDS = {"vllm full": "full", "vllm lora": "lora"}
WRONG_KEY, RIGHT_KEY = "a-wrong-key-that-nobody-may-see", "the-right-key"
SHORTLY = ((1, 0), (1, 1), (1, 2), (2, 0))  # deaths, and requests missed after each: less than the engines' patience
# What a run is disturbed by, and at which requests.
IN_A_RUN = [*((death, TRANSFERS) for death in DEATHS), ("restarts", (*TRANSFERS, *COMPLETIONS)), ("NaN", COMPLETIONS),
            ("missing tokens", COMPLETIONS), ("cut in the middle", TRANSFERS), ("status 500", TRANSFERS),
            ("reset", COMPLETIONS), ("status 401", TRANSFERS)]  # fmt: skip

Try = Callable[[random.Random], str]


@dataclass
class Place:
    """An engine's server with its address, the model in memory, and another one's folder."""

    server: Server
    address: str
    loaded: Loaded
    other: Path

    def calm(self) -> None:
        """Let the server behave, as it was started first."""
        self.server.misbehave("", 0)
        self.server.key, self.server.stale, self.server.top_p = "", False, 1.0
        self.server.restart()

    @contextmanager
    def engine(self) -> Iterator[SyncedEngine]:
        """Yield a new engine; the server behaves afterwards."""
        client = InferenceServer(self.address, KEYS, timeout=1.0, patience=3.0)
        self.calm()
        engine = SyncedEngine(self.loaded, VllmServerSampler(self.loaded, client), bound=1e-3)
        try:
            yield engine
        finally:
            self.calm()
            engine.close()

    def judged(self, found: Any) -> str:
        """Return "same" for what the model in memory would sample."""
        ids, wanted = (
            [one.ids for one in rows] for rows in (found, TransformersEngine(self.loaded).generate(ROWS, GREEDY))
        )
        return "same" if ids == wanted else f"FAULT: {ids}, not {wanted}"


@contextmanager
def tries(folder: Path, teacher: str) -> Iterator[dict[str, Try]]:
    """Yield the tries by name; ``folder`` has the models "student" and "teacher", which is served at ``teacher``."""
    found: dict[str, Try] = {}
    with ExitStack() as stack:
        for kind, tuning in KINDS.items():
            server = Server(folder / "student")
            address = stack.enter_context(serving(server))
            torch.manual_seed(0)
            settings: Any = {"tuning": tuning, "lora": LoraSettings(8, 16), "precision": "float32"}
            loaded = load_model(folder / "student", **settings)
            with torch.no_grad():
                for parameter in loaded.trainable().values():
                    parameter.add_(0.1 * torch.randn_like(parameter))
            place = Place(server, address, loaded, folder / "teacher")
            found |= {f"{kind}, {name}": one for name, one in _of(place).items()}
            found[f"{kind}, a run"] = _run(place, kind, folder, teacher)
        yield found


def _of(place: Place) -> dict[str, Try]:
    found: dict[str, Try] = {
        "restarted at some request": lambda draw: _at_some_request(place, "restarts", draw),
        "exchanged at some request": lambda draw: _exchanged(place, draw),
        "stale weights": lambda _draw: _stale(place),
        "a wrong key": lambda _draw: _wrong_key(place),
        "a cut distribution": lambda draw: _cut(place, draw.choice((0.8, 0.92, 0.97, 0.99))),
    }
    for way in (*CUT, *FINAL):
        found[f"transfer: {way}"] = lambda _draw, way=way: _told(place, way, TRANSFERS)
        if way in CUT and way != "status 500":  # which is final for a transfer
            found[f"transfer: {way}, then sound"] = lambda _draw, way=way: _repeated(place, way, 2)
    for way in (*EDITS, *CUT, *FINAL):
        found[f"sampling: {way}"] = lambda _draw, way=way: _told(place, way, COMPLETIONS)
    for death in DEATHS:
        found[f"transfer: {death}"] = lambda draw, way=death: _repeated(place, way, *draw.choice(SHORTLY))
        found[f"transfer: {death}, each time"] = lambda _draw, way=death: _told(place, way, TRANSFERS)
    return found


def _told(place: Place, way: str, paths: tuple[str, ...]) -> str:
    """Sample while the server misbehaves."""
    with place.engine() as engine:
        place.server.misbehave(way, -1, 0, paths)
        found = engine.generate(ROWS, GREEDY)
        if way in EDITS:
            return f"FAULT: it was taken: {found!s:.200}"
        return place.judged(found)


def _cut(place: Place, top_p: float) -> str:
    """Sample from a server with a top-p of its own."""
    with place.engine() as engine:
        engine.bound, place.server.top_p = 0.1, top_p
        return f"FAULT: it was taken: {engine.generate(ROWS, Sampling(24))!s:.200}"


def _repeated(place: Place, way: str, left: int, away: int = 0) -> str:
    with place.engine() as engine:
        place.server.misbehave(way, left, 0, TRANSFERS, away)
        try:
            return place.judged(engine.generate(ROWS, GREEDY))
        except RecoveryError as error:
            return f"FAULT: it was not repeated: {error}"


def _at_some_request(place: Place, way: str, draw: random.Random) -> str:
    """Sample twice; before one of the requests the server is started again."""
    with place.engine() as engine:
        place.server.misbehave(way, 1, draw.randrange(11), (*TRANSFERS, *COMPLETIONS))
        engine.generate(ROWS, GREEDY)
        return place.judged(engine.generate(ROWS, GREEDY))


def _exchanged(place: Place, draw: random.Random) -> str:
    """As above, with another model: its weights are replaced, or it is refused."""
    first = place.server.started_with
    place.server.exchanged = place.other
    try:
        return _at_some_request(place, "restarts", draw)
    finally:
        place.server.exchanged, place.server.started_with = None, first
        place.calm()


def _stale(place: Place) -> str:
    with place.engine() as engine:
        place.server.stale = True
        return f"FAULT: stale weights were taken: {engine.generate(ROWS, GREEDY)!s:.200}"


def _wrong_key(place: Place) -> str:
    """Refuse a key in one line that does not show it, then take the right one."""
    with place.engine() as engine, _environment(KEYS[0], WRONG_KEY):
        place.server.key = RIGHT_KEY
        try:
            return f"FAULT: it was taken: {engine.generate(ROWS, GREEDY)!s:.200}"
        except RecoveryError as error:
            if WRONG_KEY in str(error) or KEYS[0] not in str(error):
                return f"FAULT: {error}"
        os.environ[KEYS[0]] = RIGHT_KEY
        return place.judged(engine.generate(ROWS, GREEDY))


@contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        with contextlib.suppress(KeyError):
            del os.environ[name]
        if before is not None:
            os.environ[name] = before


def _run(place: Place, kind: str, folder: Path, teacher: str) -> Try:
    known: list[Weights] = []

    def work(draw: random.Random) -> str:
        way, paths = draw.choice(IN_A_RUN)
        more = ("--teacher", teacher, "--engine", place.address, "--tuning", KINDS[kind])
        place.calm()
        if not known:
            whole = undisturbed(folder, folder / f"whole {kind}", *more)
            if isinstance(whole, str):
                return whole
            known.append(whole)
        left, sound_for = draw.choice((1, 2, -1)), draw.randrange(8)
        place.calm()
        place.server.misbehave(way, left, sound_for, paths)
        what = f"{way}, {left} times after {sound_for}"
        return disturbed(folder, folder / f"ended-{draw.random()}", known[0], place.calm, what, *more)

    return work
