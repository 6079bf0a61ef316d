"""Campaign: hostile model folders, adapters and GGUF files, each loaded by real commands in a process of its own.

`recover plan --model` and `recover ask --checkpoint` must load a model, or refuse it in one line that names it, within
30 seconds of processor time and 2 GiB of memory; nothing is executed, nothing from outside the folder is read. By turns
a known case is tried, in an order of the seed, and one whose file, field, size or place of damage the seed draws.
``python -m tests.torture.models PART`` tries the cases whose name holds PART.
"""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from pipelines.runtime.session import Session
from tests.models import make_tiny
from tests.torture.corpus import not_a_line
from tests.torture.hostile_models import OUTSIDE, Case, cases
from tests.torture.hostile_models.drawn import drawn
from tests.torture.outcome import Outcome, numbers
from tests.torture.process import Ended, limit, start, waited_out

MEMORY = 2 << 30  # bytes that a case may add to the process
SECONDS = 30  # of processor time
COMMANDS = {
    "plan": ("plan", "--gpus", "24GB", "--model"),
    "ask": ("ask", "Hello", "--max-new-tokens", "2", "--device", "cpu", "--checkpoint"),
}


def run(
    seed: int,
    seconds: float,
    report: Callable[[str], None],
    only: int | None = None,
    *,
    large: bool = True,
    part: str = "",
) -> Outcome:
    """Try cases for ``seconds`` (0: each known case, and as many that are drawn); ``only`` is one by its number.

    Those are tried whose name holds ``part``.
    """
    outcome = Outcome()
    known = list(cases(large))
    random.Random(f"{seed} models").shuffle(known)  # in a short time, another seed tries others
    with tempfile.TemporaryDirectory(prefix="hostile-") as folder:
        place = Path(folder)
        make_tiny("qwen3", place / "sound")
        make_tiny("qwen3", place / "outside", seed=1)
        (place / "outside" / "secret.txt").write_text(OUTSIDE)
        Session.open(place / "workspace", model=str(place / "sound")).__exit__(None, None, None)
        for number in range(2 * len(known)) if seconds <= 0 and only is None else numbers(seconds, only):
            case = case_of(seed, number, known)
            if part in case.name:
                _try(case, f"--seed {seed} models --only {number}", place, outcome, report, told=only is not None)
    return outcome


def case_of(seed: int, number: int, known: Sequence[Case]) -> Case:
    """Return the case of a number: by turns a known one and one that is drawn, and drawn ones when all are through."""
    return drawn(f"{seed} {number}") if number % 2 or number // 2 >= len(known) else known[number // 2]


def _try(case: Case, again: str, place: Path, outcome: Outcome, report: Callable[[str], None], *, told: bool) -> None:
    """Try a case with each command; ``again`` are the arguments that repeat it."""
    for name, command in COMMANDS.items():
        what = attempt(case, command, place)
        ending = what.partition(":")[0]
        outcome.count(f"{name}: {ending}")
        if ending not in ("loaded", "refused"):
            outcome.faults.append(f"{again} ({name}, {case.name}): {what}")
            report(outcome.faults[-1])
        elif told or "--verbose" in sys.argv:
            report(f"{again} ({name}, {case.name}): {what}")


def attempt(case: Case, command: Sequence[str], place: Path) -> str:
    """Return how a command ends on a case: "loaded", "refused: REASON", or what is wrong."""
    base = place / "case"
    base.mkdir()
    try:
        shutil.copytree(place / "sound", base / "model")
        shutil.copytree(place / "sound", base / "base")
        (base / "outside").symlink_to(place / "outside", target_is_directory=True)
        how = case.write(base / "model")
        target = base / case.target
        more = ["--workspace", str(place / "workspace")] if command[0] == "ask" else []
        child = start([*command, target, *more], base / "run", before=lambda: limit(MEMORY, SECONDS))
        if not waited_out(child.pid, lambda: child.wait(0)):
            child.wait()
            return "it waits without end"
        found = _judged(case, command[0], child.ended(), base, target)
        return f"{found}: {how}" if isinstance(how, str) else found
    finally:
        for remove in (["chmod", "-R", "u+rwx"], ["rm", "-rf"]):  # neither follows links
            subprocess.run([*remove, str(base)], stderr=subprocess.DEVNULL, check=False)


def _judged(case: Case, command: str, ended: Ended, base: Path, target: Path) -> str:
    if (base / "executed").exists() or (base.parent / "executed").exists():
        return "code of the model was executed"
    if OUTSIDE in ended.out + ended.err:
        return "text from outside the folder is shown"
    if ended.status in (-signal.SIGXCPU, -signal.SIGKILL):
        return f"over {SECONDS} seconds of processor time"
    if ended.complaint:
        return ended.complaint
    if ended.status == 0:
        # A plan reads no weights, no tokenizer and no template.
        return "loaded" if case.fine is not False or command == "plan" else "it was loaded"
    error = ended.error.removeprefix("recover: error: ")
    if case.fine:
        return f"a sound model was refused: {error}"
    if problem := not_a_line(error):
        return f"the message {problem}: {error!r:.300}"
    # What only a conversation brings to light is said of the template or the checkpoint.
    known = (target, base / "base", base / "other", "external/model", "chat template", "a prompt has 0 tokens")
    if not any(str(name) in error for name in known):
        return f"the message does not name the model: {error[:300]}"
    return f"refused: {error[:300]}"


if __name__ == "__main__":
    chosen = next((a for a in sys.argv[1:] if not a.startswith("--")), "")
    found = run(0, 0.0, lambda line: print(line, flush=True), large="--large" in sys.argv, part=chosen)
    print(dict(found.tried), len(found.faults), "faults")
    os._exit(bool(found.faults))
