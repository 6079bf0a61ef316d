"""Campaign: the disk is full, broken, read-only or damaged while a cycle runs, or the workspace is moved in between.

The command must end with one line that says what is wrong and where, must take nothing half-written for whole, and must
go on to the undisturbed result once there is room again.
"""

from __future__ import annotations

import errno
import os
import random
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.torture.damage import TRACKER, contents, damage, said, settle
from tests.torture.outcome import NOT_DISTURBED, Outcome, numbers
from tests.torture.process import Ended
from tests.torture.traps import GROWING, Trap, die, fails_with
from tests.torture.world import BEGIN, RESUME, WORKSPACE, World, faults_of, furnish, go_on, recover, world

STATUS = ("status", "--workspace", WORKSPACE)
# What the error line must say: one of these, in any case.
FULL = ("no space left", "disk is full", "quota", "input/output error", "disk i/o error", "read-only", "readonly")


def run(seed: int, seconds: float, report: Callable[[str], None], only: int | None = None) -> Outcome:
    """Try for ``seconds``; ``only`` repeats one try by its number."""
    outcome = Outcome()
    ways = dict(_WAYS)
    if not can_mount():
        report("disks: a file system cannot be mounted here, so no real disk is filled")
        ways = {name: way for name, way in ways.items() if way[1] not in (_really_full, _read_only)}
    with world() as made:
        for number in numbers(seconds, only):
            draw = random.Random(f"{seed} disks {number}")
            name = draw.choices(list(ways), weights=[weight for weight, _ in ways.values()])[0]
            what, faults = ways[name][1](made, made.place("try"), draw)
            outcome.count(NOT_DISTURBED if what.startswith(NOT_DISTURBED) else name)
            report(f"disks {number}: {name}: {what}: {'; '.join(faults) or 'sound'}")
            outcome.faults += [f"--seed {seed} disks --only {number}: {name}: {what}: {fault}" for fault in faults]
    return outcome


def _disturbed(made: World, trap: Trap) -> tuple[str, list[str]]:
    """Run the cycle with a trap that makes calls fail, check what it says, and go on without the trap."""
    folder = trap.folder.parent
    ended = recover(BEGIN, folder, trap)
    faults = [] if ended.status == 0 else said(ended, FULL)
    done = go_on(folder)  # also if nothing is left to do: what could not be removed is removed now
    if not ended.sprung:
        return NOT_DISTURBED, faults + faults_of(made, folder, done)
    how = "absorbed" if ended.status == 0 else ended.error or ended.err[-200:]
    return f"{ended.sprung} ({how})", faults + faults_of(made, folder, done)


def _full(made: World, folder: Path, draw: random.Random) -> tuple[str, list[str]]:
    kind = draw.choice([kind for kind in sorted(made.counts) if kind in GROWING])
    at = draw.randint(1, made.counts[kind])
    return _disturbed(made, Trap(folder / WORKSPACE, kind, at, fails_with(errno.ENOSPC), lasting=True))


def _broken_once(made: World, folder: Path, draw: random.Random) -> tuple[str, list[str]]:
    kind = draw.choice([kind for kind in sorted(made.counts) if kind != "update"])
    at = draw.randint(1, made.counts[kind])
    return _disturbed(made, Trap(folder / WORKSPACE, kind, at, fails_with(errno.EIO)))


def _really_full(made: World, folder: Path, draw: random.Random) -> tuple[str, list[str]]:
    """Fill a real file system, which safetensors' and SQLite's own code write to, too."""
    size = draw.randint(60, 2600)
    with mounted(folder / WORKSPACE, f"size={size}k") as remount:
        ended = recover(BEGIN, folder)
        faults = [] if ended.status == 0 else said(ended, FULL)
        remount("size=64m")
        done = [Ended(0, "", "")] if ended.status == 0 else go_on(folder)
        what = f"{size} KiB ({ended.error or ended.status})"
        return what, faults + faults_of(made, folder, done)


def _read_only(made: World, folder: Path, draw: random.Random) -> tuple[str, list[str]]:
    with mounted(folder / WORKSPACE, "size=64m") as remount:
        _killed(made, folder, draw)
        remount("ro")
        ended = recover(RESUME, folder)
        shown = recover(STATUS, folder)
        begun = (folder / WORKSPACE / "workspace.json").exists()
        faults = said(ended, FULL if begun else (*FULL, "no workspace"))
        faults += [shown.complaint] if shown.complaint else []
        remount("rw")
        return ended.error, faults + faults_of(made, folder, go_on(folder))


def _killed(made: World, folder: Path, draw: random.Random, kinds: tuple[str, ...] = ()) -> Trap:
    """Run the cycle until it is killed at a random moment."""
    kind = draw.choice(kinds or sorted(made.counts))
    trap = Trap(folder / WORKSPACE, kind, draw.randint(1, made.counts[kind]), die)
    recover(BEGIN, folder, trap)
    return trap


def _killed_with(
    made: World, folder: Path, draw: random.Random, pattern: str, kinds: tuple[str, ...] = ()
) -> list[Path]:
    """Run the cycle until it is killed while the workspace has files of a pattern, and return those; [] if none had."""
    for _ in range(6):  # training states, for example, are there for a part of the time
        workspace = _killed(made, made.place(folder.name), draw, kinds).folder
        if files := sorted(path for path in workspace.glob(pattern) if path.is_file() and path.stat().st_size):
            return files
    return []


def _moved(made: World, folder: Path, draw: random.Random) -> tuple[str, list[str]]:
    """Move the workspace after a kill; the documents stay where they were."""
    trap = _killed(made, folder, draw)
    shutil.rmtree(made.folder / "elsewhere", ignore_errors=True)
    elsewhere = furnish(made.folder / "elsewhere")
    if trap.folder.exists():
        trap.folder.rename(elsewhere / WORKSPACE)
    return f"{trap.kind} {trap.at}", faults_of(made, elsewhere, go_on(elsewhere))


def _damaged(made: World, folder: Path, draw: random.Random, *patterns: str) -> tuple[str, list[str]]:
    """Damage one of the files of a killed cycle: it must be noticed, or make no difference."""
    files = _killed_with(made, folder, draw, draw.choice(patterns), ("update", "sync", "statement"))
    if not files:
        return f"{NOT_DISTURBED}, no such file yet", faults_of(made, folder, go_on(folder))
    path = draw.choice(files)
    whole = path.read_bytes()
    how = damage(path, draw)
    done = go_on(folder)
    what = f"{how} of {path.relative_to(folder)} ({done[-1].error or done[-1].status})"
    if done[-1].status == 0:
        return what, faults_of(made, folder, done)
    faults = said(done[-1], ("",))
    if path.suffix != ".db":  # a tracker that was damaged and written to is not the one before
        path.write_bytes(whole)
        faults += faults_of(made, folder, go_on(folder))
    return what, faults


def _damaged_tracker(made: World, folder: Path, draw: random.Random) -> tuple[str, list[str]]:
    """Damage the tracker's file: it must be refused, or the damage make no difference."""
    files = _killed_with(made, folder, draw, "tracker.db")
    if not files:
        return f"{NOT_DISTURBED}, no tracker yet", faults_of(made, folder, go_on(folder))
    tracker = files[0]
    settle(tracker)
    before = contents(tracker)
    how = damage(tracker, draw)
    after = contents(tracker)
    done, shown = go_on(folder), recover(STATUS, folder)
    if after not in (None, before):  # another value, which SQLite cannot notice: it has no checksums
        what, faults = f"{how}, which changed a value", [one.complaint for one in (*done, shown) if one.complaint]
    else:
        what, faults = how, _unnoticed(made, folder, done, shown)
    return f"{what} ({_told(done[-1])}; status: {_told(shown)})", faults


def _damaged_log(made: World, folder: Path, draw: random.Random) -> tuple[str, list[str]]:
    """Damage the tracker's log: SQLite drops what is behind the damage without an error, as after a power failure; what
    is left must be a tracker that every command can go on with, or refuses for a reason that is known.
    """
    files = _killed_with(made, folder, draw, "tracker.db-wal")
    if not files:
        return f"{NOT_DISTURBED}, no log yet", faults_of(made, folder, go_on(folder))
    log, tracker = files[0], files[0].with_name("tracker.db")
    before = contents(tracker)
    how = damage(log, draw)
    same = contents(tracker) == before
    done = go_on(folder)
    what = f"{how}, {'no entry' if same else 'entries'} lost ({_told(done[-1])})"
    if same:
        return what, faults_of(made, folder, done)
    faults = [one.complaint for one in done if one.complaint]
    return what, faults + (said(done[-1], TRACKER) if done[-1].status else [])


def _unnoticed(made: World, folder: Path, done: list[Ended], shown: Ended) -> list[str]:
    """Return what is wrong after a damaged tracker was gone on with, and shown: each command must refuse it for a
    reason that is known, or end as if it were whole."""
    faults = faults_of(made, folder, done) if done[-1].status == 0 else said(done[-1], TRACKER)
    return faults + (said(shown, TRACKER) if shown.status else [])


def _told(ended: Ended) -> str:
    return ended.error.removeprefix("recover: error: ") or f"status {ended.status}"


def _left_over(made: World, folder: Path, draw: random.Random) -> tuple[str, list[str]]:
    """Locks and temporary files of processes that are gone."""
    trap = _killed(made, folder, draw)
    trap.folder.mkdir(exist_ok=True)
    (trap.folder / "lock").write_text("recover cycle (process 1)")
    return f"{trap.kind} {trap.at}", faults_of(made, folder, go_on(folder))


def can_mount() -> bool:
    """Whether this process may mount a file system."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        return False
    folder = Path("/tmp") / f".torture-{os.getpid()}"
    try:
        with mounted(folder, "size=64k"):
            return True
    except subprocess.CalledProcessError:
        return False
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def mounted(folder: Path, options: str) -> Iterator[Callable[[str], None]]:
    """Mount a file system in memory on a folder; yield a function that changes its options."""
    folder.mkdir(parents=True, exist_ok=True)

    def call(*words: str | Path) -> None:
        subprocess.run([str(word) for word in words], check=True, capture_output=True)

    call("mount", "-t", "tmpfs", "-o", options, "tmpfs", folder)
    try:
        yield lambda new: call("mount", "-o", f"remount,{new}", folder)
    finally:
        call("umount", folder)


_WAYS: dict[str, tuple[float, Callable[[World, Path, random.Random], tuple[str, list[str]]]]] = {
    "full from a moment on": (6, _full),
    "one call fails": (4, _broken_once),
    "a small file system": (5, _really_full),
    "read-only": (1, _read_only),
    "moved": (1, _moved),
    "a damaged checkpoint": (2, lambda *given: _damaged(*given, "checkpoints/**/*")),
    "a damaged training state": (2, lambda *given: _damaged(*given, "stages/**/*")),
    "a damaged tracker": (2, _damaged_tracker),
    "a damaged log": (2, _damaged_log),
    "another damaged file": (2, lambda *given: _damaged(*given, "cache/*", "corpora/**/*", "*.json")),
    "a lock left over": (1, _left_over),
}
