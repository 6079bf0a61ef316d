"""Reads hostile documents, prompts, probes and archives, each in a process of its own with little memory and time.

What is read must be read properly, what is refused must be refused in one line that names the file; a case that ends in
any other way, or brings in text from outside its folder, is a fault. Each of more than a thousand cases is tried once,
in an order of the seed. ``python -m tests.torture.corpus SEED`` runs it.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path

from evals.probes import load_probes, write_probes
from pipelines.data.corpus_reading import gather
from pipelines.data.corpus_snapshot import load_snapshot, save_snapshot
from pipelines.data.document_rows import document_rows
from pipelines.experiments.example import _unpack
from pipelines.reports.bundle import verify
from recovery.data.prompt_files import load_prompts, write_prompts
from recovery.errors import RecoveryError
from recovery.workspace import Workspace
from tests.models import make_tokenizer
from tests.torture.hostile_archives import archives
from tests.torture.hostile_files import OUTSIDE, Case, cases
from tests.torture.hostile_sizes import sizes
from tests.torture.outcome import Outcome
from tests.torture.process import limit, waited_out

_MEMORY = 1 << 30  # bytes that a case may add to the process
_SECONDS = 60  # of processor time
# What no text of a document holds: control characters, places to break a word, ligatures, what stands for lost ones.
_NEVER = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u200b\u2060\ufb00-\ufb06\ufdd0\ufdd1\ufeff]")


def run(
    seed: int,
    seconds: float,
    report: Callable[[str], None],
    only: int | None = None,
    *,
    large: bool = True,
    every: int = 1,
    part: str = "",
) -> Outcome:
    """Try the cases for ``seconds`` at most (0: all); ``only`` is one by its number, whatever the order.

    Of the cases whose name holds ``part``, those are tried whose number ``every`` divides.
    """
    outcome, started = Outcome(), time.monotonic()
    chosen = [one for one in enumerate(all_cases(seed, large)) if part in one[1].name and one[0] % every == 0]
    if only is not None:
        chosen = [one for one in chosen if one[0] == only]
    random.Random(f"{seed} corpus").shuffle(chosen)  # in a short time, another seed tries others
    tokenizer = make_tokenizer("qwen3")
    for done, (number, case) in enumerate(chosen):
        if seconds and time.monotonic() - started > seconds and done:
            report(f"corpus: stopped after {done} of {len(chosen)} cases")
            break
        if shutil.disk_usage(tempfile.gettempdir()).free < 2 * case.room:
            report(f"corpus {number}: {case.name}: left out, the disk has no room for it")
            continue
        result = attempt(case, tokenizer)
        what = result.partition(":")[0]
        outcome.count(f"{case.kind}: {what}")
        if what not in ("read", "refused"):
            outcome.faults.append(f"--seed {seed} corpus --only {number}: {case.name!r}: {result}")
            report(outcome.faults[-1])
        elif only is not None:
            report(f"corpus {number}: {case.name!r}: {result}")
    return outcome


def all_cases(seed: int, large: bool) -> Iterator[Case]:
    """Yield all cases, the same for a seed; ``large`` ones take seconds, and up to a gigabyte."""
    yield from cases(seed, large)
    yield from sizes(large)
    yield from archives(random.Random(f"{seed} archives"), large)


def attempt(case: Case, tokenizer: object) -> str:
    """Return how a case ends: "read", "refused: REASON", or what is wrong."""
    base = Path(tempfile.mkdtemp(prefix="hostile-"))
    (base / "secret.txt").write_text(OUTSIDE)
    (base / "docs").mkdir()
    try:
        case.write(base / "docs")
        return _forked(lambda: _read(case, base, tokenizer))
    finally:
        # Folders may be closed, or nested too deeply for shutil.rmtree; neither program follows links.
        for command in (["chmod", "-R", "u+rwx"], ["rm", "-rf"]):
            subprocess.run([*command, str(base)], stderr=subprocess.DEVNULL, check=False)


def _forked(work: Callable[[], str]) -> str:
    """Do the work in a forked process with limits; return its result, or how it ended."""
    reader, writer = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        os.close(reader)
        result = "the process ended"
        try:
            limit(_MEMORY, _SECONDS)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            result = work()
        except RecoveryError as error:
            result = _refusal(str(error))
        except BaseException as error:
            place = traceback.extract_tb(error.__traceback__)[-1]
            result = f"{type(error).__name__} at {Path(place.filename).name}:{place.lineno}: {str(error)[:200]}"
        finally:
            os.write(writer, result.encode("utf-8", "backslashreplace")[:4000])
            os._exit(0)
    os.close(writer)
    return _ended(child, reader)


def _ended(child: int, reader: int) -> str:
    ended = lambda: os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None  # noqa: E731
    in_time = waited_out(child, ended)
    _, status = os.waitpid(child, 0)
    with os.fdopen(reader, "rb") as file:
        result = file.read().decode()
    if not in_time:
        return "it waits without end"
    if os.WIFSIGNALED(status):
        name = signal.Signals(os.WTERMSIG(status)).name
        return f"over {_SECONDS} seconds of processor time" if name in ("SIGXCPU", "SIGKILL") else f"signal {name}"
    return result


def _refusal(message: str) -> str:
    if problem := not_a_line(message):
        return f"the message {problem}: {message!r:.200}"
    return f"refused: {message[:200]}"


def _read(case: Case, base: Path, tokenizer: object) -> str:
    place = base / "docs" / case.target if case.target else base / "docs"
    texts: list[str] = []
    lines: list[str] = []
    if case.kind == "docs":
        found = gather(place, 1, held_out=0.1, seed=0)
        workspace = Workspace(base / "workspace")
        save_snapshot(workspace, found)
        if load_snapshot(workspace, 1) != found:
            return "the saved snapshot differs"
        list(document_rows([*found.documents[:200], *found.held_out[:20]], tokenizer, 256))
        texts, lines = [d.text for d in (*found.documents, *found.held_out)], list(found.lines)
    elif case.kind == "bundle":
        lines = list(verify(place))
    elif case.kind == "package":
        texts = _unpacked(place, base)
    elif case.kind == "prompts":
        prompts = load_prompts(place, problems=lines)
        write_prompts(base / "again.jsonl", prompts)
        if load_prompts(base / "again.jsonl", problems=[]) != prompts:
            return "the prompts that were written differ"
    else:
        probes = load_probes(place, problems=lines)
        write_probes(base / "again.jsonl", probes)
        if load_probes(base / "again.jsonl", problems=[]) != probes:
            return "the probes that were written differ"
    if case.kind == "docs" and (odd := _NEVER.search("".join(texts))):
        return f"a text holds the character {odd[0]!r}"
    if any(OUTSIDE in text for text in texts):
        return "text from outside the folder was read"
    if wrong := next((line for line in lines if not_a_line(line)), None):
        return f"a line of the report {not_a_line(wrong)}: {wrong!r:.200}"
    json.dumps(lines)
    return "read"


def _unpacked(package: Path, base: Path) -> list[str]:
    """Unpack a part of a package; return the texts of its files, and the outer one for each out of its place."""
    target = base / "unpacked" / "here"
    _unpack(package, "package", target)
    strays = [folder / "stray" for folder in (base, base / "unpacked", base.parent) if (folder / "stray").exists()]
    found = [path for path in target.rglob("*") if path.is_symlink() or path.is_file()]
    strays += [path for path in found if path.is_symlink()]
    return [OUTSIDE for _ in strays] + [path.read_text() for path in found if not path.is_symlink()]


def not_a_line(text: str) -> str:
    """Return why a text is not one line that can be printed, or ""."""
    odd = next((c for c in text if unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp") or c in "\u202e\u2066"), None)
    if odd is not None:
        return f"holds the character {odd!r}"
    return f"has {len(text):,} characters" if len(text) > 2000 else ""


if __name__ == "__main__":
    arguments = [*sys.argv[1:], "", ""][:2]
    found = run(
        int(arguments[0] or 0),
        0.0,
        print,
        large="--large" in sys.argv,
        part="" if arguments[1].startswith("--") else arguments[1],
    )
    print(dict(found.tried), len(found.faults), "faults")
