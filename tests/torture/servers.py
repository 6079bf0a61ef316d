"""Campaign: teachers and engines on servers that misbehave, and runs that are ended by them and resumed.

Each request must end in the sound result, or in one line that says what is wrong and names the server, within bounded
time and memory; a run that ended so must go on to the weights of an undisturbed one.
"""

from __future__ import annotations

import contextlib
import functools
import random
import re
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from recovery.batching import Row, collate
from recovery.engines import TEACHER_KEYS
from recovery.errors import RecoveryError
from recovery.inference_server import InferenceServer
from recovery.models.loaded import Loaded
from recovery.models.loading import load_model
from recovery.rollouts.engine import Sampling
from recovery.rollouts.vllm_server_engine import VllmServerSampler
from recovery.teachers.remote import RemoteTeacher
from tests.models import make_tiny
from tests.torture import engine_tries
from tests.torture.misbehaving import CUT, EDITS, FINAL, Server, serving
from tests.torture.outcome import Outcome, numbers
from tests.torture.server_runs import COUNT, disturbed, is_line, undisturbed

LONGEST, MOST = 90.0, 300 << 20  # seconds and bytes that a try may take; its server is given one second
ROWS = ([5, 9, 30, 12, 8, 77], [7, 11, 400])
WHOLE = ("resumed", "went on")  # how what whole runs return begins: they start processes
FIRST = {1: "a run", 2: "vllm full, a run"}  # tries that a short budget has too; the others are in the seed's order
EXCHANGED = ("exchanged while it was away", "exchanged between two requests")  # each a try of the teacher only


def run(seed: int, seconds: float, report: Callable[[str], None], only: int | None = None) -> Outcome:
    """Try for ``seconds``; ``only`` repeats one try by its number. Try 1 is a whole run: a short budget has it too."""
    outcome = Outcome()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="servers-") as temporary:
        folder = Path(temporary).resolve()
        server = Server(make_tiny("qwen3", folder / "teacher"))
        make_tiny("qwen3", folder / "student", seed=9)
        with serving(server) as address, engine_tries.tries(folder, address) as engines:
            tries = tries_of(server, address, folder) | engines
            order = sorted(tries)
            random.Random(f"{seed} servers").shuffle(order)
            for number in numbers(seconds, only):
                name = FIRST.get(number) or order[number % len(order)]
                server.misbehave("", 0)  # the teacher of an engine's run
                found = attempt(tries[name], random.Random(f"{seed} servers {number}"))
                outcome.tried[name] = outcome.tried.get(name, 0) + 1
                report(f"servers {number}: {name}: {found}")
                if found.startswith("FAULT"):
                    outcome.faults.append(f"--seed {seed} servers --only {number}: {name}: {found[7:]}")
    return outcome


Try = Callable[[random.Random], str]
"""Returns "same" for the sound result, or what is wrong; raises a RecoveryError if it was refused."""


def tries_of(server: Server, address: str, folder: Path) -> dict[str, Try]:
    loaded = load_model(folder / "teacher", precision="float32")
    teacher, engine = _teacher(loaded, address), _engine(loaded, address)
    tries: dict[str, Try] = {"a run": lambda draw: whole_run(server, address, folder, draw)}
    for way in (*EDITS, *CUT, *FINAL):
        for name, work in (("teacher", teacher), ("engine", engine)):
            tries[f"{name}: {way}"] = lambda _draw, way=way, work=work: _refused(server, way, work)
            if way in CUT:
                tries[f"{name}: {way}, then sound"] = lambda _draw, way=way, work=work: _same(server, way, work)
    away = "unavailable every other time"
    tries[f"teacher: {away}"] = lambda _draw: _same(server, away, teacher)
    for way in EXCHANGED:
        tries[f"teacher: {way}"] = lambda _draw, way=way: _exchanged(server, way, loaded, address, folder)
    return tries


def _client(address: str) -> InferenceServer:
    return InferenceServer(address, TEACHER_KEYS, timeout=1.0, patience=3.0)


def _teacher(loaded: Loaded, address: str) -> Callable[[], Any]:
    def work() -> Any:
        teacher = RemoteTeacher(_client(address), loaded.tokenizer, loaded.chat, loaded.head.vocabulary, COUNT)
        teacher.check()
        yield
        yield _scores(teacher, loaded)

    return work


def _scores(teacher: RemoteTeacher, loaded: Loaded) -> Any:
    rows = [Row(ids, [at > 0 for at in range(len(ids))], teacher="base") for ids in ROWS]
    ids_NK, logprobs_NK = teacher.top(collate(rows, loaded.chat.pad_id), COUNT)
    return ids_NK.tolist(), logprobs_NK.tolist()


def _engine(loaded: Loaded, address: str) -> Callable[[], Any]:
    def work() -> Any:
        engine = VllmServerSampler(loaded, _client(address))
        yield
        yield engine.sample(ROWS, Sampling(6, temperature=0.0))

    return work


def _done(server: Server, work: Callable[[], Any], way: str, left: int) -> Any:
    """Do the work; the server misbehaves after it was checked."""
    server.misbehave("", 0)
    steps = work()
    next(steps)
    server.misbehave(way, left)
    return next(steps)


def _refused(server: Server, way: str, work: Callable[[], Any]) -> str:
    return f"FAULT: it was taken: {_done(server, work, way, -1)!s:.200}"


def _same(server: Server, way: str, work: Callable[[], Any]) -> str:
    sound = _done(server, work, "", 0)
    try:
        found = _done(server, work, way, 2)
    except RecoveryError as error:
        return f"FAULT: it was not repeated: {error}"
    return "same" if found == sound else f"FAULT: another result: {found!s:.200}"


def _exchanged(server: Server, way: str, loaded: Loaded, address: str, folder: Path) -> str:
    """Start the server with another model under the same name, with a failed request in between or without one."""
    server.misbehave("", 0)
    teacher = RemoteTeacher(_client(address), loaded.tokenizer, loaded.chat, loaded.head.vocabulary, COUNT)
    teacher.check()
    server.load(folder / "student")
    try:
        if way == "exchanged while it was away":
            server.misbehave("status 503", 1)
        else:
            teacher._answered = 0.0  # as after a pause
        return f"FAULT: another model's scores were taken: {_scores(teacher, loaded)!s:.200}"
    finally:
        server.load(folder / "teacher")


def attempt(work: Try, draw: random.Random) -> str:
    """Return how a try ended, in a line."""
    with contextlib.suppress(OSError):  # not everyone may
        Path("/proc/self/clear_refs").write_text("5")  # the peak of memory begins anew
    before, began = _memory("VmRSS"), time.monotonic()
    try:
        found = work(draw)
    except RecoveryError as error:
        found = f"refused: {error}" if is_line(str(error)) else f"FAULT: no line of its own: {str(error)!r:.300}"
    except Exception as error:
        found = f"FAULT: {type(error).__name__}: {error!s:.200}"
    took, grown = time.monotonic() - began, _memory("VmHWM") - before
    if found != "same" and not found.startswith(("FAULT", "refused", *WHOLE)):
        found = f"FAULT: {found}"
    if took > LONGEST and not found.startswith(WHOLE):
        return f"FAULT: it took {took:.0f} seconds: {found}"
    return f"FAULT: it took {grown >> 20} MiB: {found}" if grown > MOST else found


def _memory(name: str) -> int:
    found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="utf-8"))
    return int(found[1]) * 1024 if found else 0


def whole_run(server: Server, address: str, folder: Path, draw: random.Random) -> str:
    """End a distillation by a teacher that misbehaves from some request on, resume it, and compare its weights."""
    way = draw.choice(("NaN", "status 500", "reset", "status 401", "too many tokens"))
    server.misbehave("", 0)
    whole = undisturbed(folder, folder / f"whole-{draw.random()}", "--teacher", address)
    if isinstance(whole, str):
        return whole
    server.misbehave(way, -1, draw.randrange(2, 6))
    # It may ask fewer times and end soundly: how often the teacher is looked at again depends on time.
    calm = functools.partial(server.misbehave, "", 0)
    return disturbed(folder, folder / f"ended-{draw.random()}", whole, calm, way, "--teacher", address)
