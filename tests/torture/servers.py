"""Campaign: a teacher and an engine on a server that misbehaves, and a run that is ended by it and resumed.

Each request must end in the sound result, or in one line that says what is wrong and names the server, within bounded
time and memory; a run that ended so must go on to the weights of an undisturbed one.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from recovery.batching import Row, collate
from recovery.errors import RecoveryError
from recovery.inference_server import InferenceServer
from recovery.models.loading import Loaded, load_model
from recovery.rollouts.engine import Sampling
from recovery.rollouts.vllm_server_engine import VllmServerSampler
from recovery.teachers.remote import KEYS, RemoteTeacher
from tests.models import make_tiny
from tests.torture.misbehaving import CUT, EDITS, FINAL, Server, serving
from tests.torture.outcome import Outcome, numbers

COUNT = 5  # entries of the vocabulary per token
LONGEST, MOST = 90.0, 300 << 20  # seconds and bytes that a try may take; its server is given one second
ROWS = ([5, 9, 30, 12, 8, 77], [7, 11, 400])
RUN = ("--divergence", "top_k", "--top-k", str(COUNT), "--steps", "4", "--prompts-per-step", "2",
       "--samples-per-prompt", "1", "--max-new-tokens", "4", "--checkpoint-every", "1", "--until", "0",
       "--precision", "float32", "--tuning", "full", "--server-wait", "1", "--server-timeout", "5")  # fmt: skip
EXCHANGED = ("exchanged while it was away", "exchanged between two requests")  # each a try of the teacher only


def run(seed: int, seconds: float, report: Callable[[str], None], only: int | None = None) -> Outcome:
    """Try for ``seconds``; ``only`` repeats one try by its number. The last try is that of a whole run."""
    outcome = Outcome()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="servers-") as temporary:
        folder = Path(temporary).resolve()
        server = Server(make_tiny("qwen3", folder / "teacher"))
        make_tiny("qwen3", folder / "student", seed=9)
        with serving(server) as address:
            tries = tries_of(server, address, folder)
            for number in numbers(seconds, only):
                name = sorted(tries)[number % len(tries)] if number != 1 else "a run"
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
    return InferenceServer(address, KEYS, timeout=1.0, patience=3.0)


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
    if found != "same" and not found.startswith(("FAULT", "refused", "resumed")):
        found = f"FAULT: {found}"
    if took > LONGEST and not found.startswith("resumed"):
        return f"FAULT: it took {took:.0f} seconds: {found}"
    return f"FAULT: it took {grown >> 20} MiB: {found}" if grown > MOST else found


def is_line(text: str) -> bool:
    """Whether an error is one printable line that names the server."""
    return text.isprintable() and len(text) < 1000 and re.search(r"127\.0\.0\.1:\d+", text) is not None


def _memory(name: str) -> int:
    found = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="utf-8"))
    return int(found[1]) * 1024 if found else 0


def whole_run(server: Server, address: str, folder: Path, draw: random.Random) -> str:
    """End a distillation by a server that misbehaves from some request on, resume it, and compare its weights."""
    way = draw.choice(("NaN", "status 500", "reset", "status 401", "too many tokens"))
    prompts = folder / "prompts"
    prompts.mkdir(exist_ok=True)
    for split in ("train", "development", "test"):
        lines = [f'{{"key": "{split}-{n}", "prompt": "Name boat {n} of {split}."}}\n' for n in range(6)]
        (prompts / f"{split}.jsonl").write_text("".join(lines))
    one, other = folder / f"whole-{draw.random()}", folder / f"ended-{draw.random()}"
    server.misbehave("", 0)
    first = _recover(folder, one, "distill", "--model", "student", "--teacher", address, "--prompts", "prompts", *RUN)
    if first.returncode:
        return f"FAULT: the undisturbed run ended: {first.stderr[-500:]}"
    server.misbehave(way, -1, draw.randrange(2, 6))
    ended = _recover(folder, other, "distill", "--model", "student", "--teacher", address, "--prompts", "prompts", *RUN)
    if ended.returncode == 0 and server.left == -1:
        return "same"  # it asked fewer times: how often the teacher is looked at again depends on time
    errors = [line for line in ended.stderr.splitlines() if line.startswith("recover: error: ")]
    if ended.returncode != 1 or len(errors) != 1 or not is_line(errors[0]) or "Traceback" in ended.stderr:
        return f"FAULT: {way}: status {ended.returncode}: {ended.stderr[-500:]}"
    server.misbehave("", 0)
    resumed = _recover(folder, other, "resume")
    if resumed.returncode:
        return f"FAULT: {way}: it was not resumed: {resumed.stderr[-500:]}"
    same = _weights(one) == _weights(other)
    return f"resumed to the same weights after {way}: {errors[0]}" if same else f"FAULT: {way}: other weights"


def _recover(folder: Path, workspace: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "recovery", *arguments, "--workspace", str(workspace)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def _weights(workspace: Path) -> list[tuple[str, str]]:
    files = sorted(workspace.glob("checkpoints/**/*.safetensors"))
    return [(str(path.relative_to(workspace)), hashlib.sha256(path.read_bytes()).hexdigest()) for path in files]
