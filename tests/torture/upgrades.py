"""Campaign: trackers of other versions: an upgrade that is killed half-way, a newer schema, a live process with an
older one, and the first release's tracker and workspace.
"""

from __future__ import annotations

import contextlib
import random
import shutil
import sqlite3
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from alembic import command
from sqlalchemy import create_engine

from db import Tracker, session
from recovery.miniature.package import materialise
from tests.db.test_leases import end, holder
from tests.torture.disks import said
from tests.torture.outcome import Outcome, numbers
from tests.torture.process import Ended, recover
from tests.torture.traps import Trap, die

ARCHIVE = Path(__file__).resolve().parents[1] / "data" / "workspace-0.1.tar.xz"
EARLIER = ("0001", "0002")  # schemas
STATUS = ("status", "--json", "--workspace", "workspace")
RESUME = ("resume", "--workspace", "workspace")


def run(seed: int, seconds: float, report: Callable[[str], None], only: int | None = None) -> Outcome:
    """Try for ``seconds``; ``only`` repeats one try by its number."""
    outcome = Outcome()
    with _older() as archive:
        whole = Trap(archive.parent / "counted" / "workspace")
        counts = recover(STATUS, Path(shutil.copytree(archive, archive.parent / "counted")), whole).counts
        for number in numbers(seconds, only):
            draw = random.Random(f"{seed} upgrades {number}")
            name = draw.choice(list(_WAYS))
            shutil.rmtree(archive.parent / "try", ignore_errors=True)
            folder = Path(shutil.copytree(archive, archive.parent / "try"))
            what, faults = _WAYS[name](folder, draw, counts)
            outcome.tried[name] = outcome.tried.get(name, 0) + 1
            report(f"upgrades {number}: {name}: {what}: {'; '.join(faults) or 'sound'}")
            outcome.faults += [f"--seed {seed} upgrades --only {number}: {name}: {what}: {fault}" for fault in faults]
    return outcome


@contextmanager
def _older() -> Iterator[Path]:
    """Yield a folder with the unpacked workspace of release 0.1."""
    with tempfile.TemporaryDirectory(prefix="torture-") as temporary:
        folder = Path(temporary).resolve() / "older"
        with tarfile.open(ARCHIVE) as archive:
            archive.extractall(folder, filter="data")
        materialise(folder / "workspace" / "models" / "miniature")
        yield folder


def _killed(folder: Path, draw: random.Random, counts: Mapping[str, int]) -> tuple[str, list[str]]:
    """Kill the upgrade of 0.1's tracker at one of its events: afterwards it opens, with all its rows."""
    tracker = folder / "workspace" / "tracker.db"
    before = _rows(tracker)
    kind = draw.choices(sorted(counts), weights=[counts[kind] for kind in sorted(counts)])[0]
    trap = Trap(folder / "workspace", kind, draw.randint(1, counts[kind]), die)
    first = recover(STATUS, folder, trap)
    again = recover(STATUS, folder)
    faults = [ended.complaint for ended in (first, again) if ended.complaint]
    faults += [again.error] if again.status else []
    after = _rows(tracker)
    lost = [name for name, count in before.items() if name != "alembic_version" and after.get(name) != count]
    faults += [f"rows lost or doubled in {lost}"] if lost else []
    faults += [f"left {left.name}" for left in tracker.parent.glob("*.bak") if not _revision(left)]
    faults += [f"schema {_revision(tracker)}"] if _revision(tracker) != session.newest() else []
    return first.sprung or "to its end", faults


def _newer(folder: Path, _draw: random.Random, _counts: Mapping[str, int]) -> tuple[str, list[str]]:
    """A newer version has upgraded the tracker: this one refuses, and leaves it as it is."""
    assert recover(STATUS, folder).status == 0
    tracker = folder / "workspace" / "tracker.db"
    with contextlib.closing(sqlite3.connect(tracker)) as database, database:
        database.execute("UPDATE alembic_version SET version_num = '9999'")
    before = _rows(tracker)
    faults = []
    for arguments in (STATUS, RESUME, ("checkpoints", "--workspace", "workspace")):
        faults += said(recover(arguments, folder), ("newer version",))
    return "9999", faults + ([] if before == _rows(tracker) else ["the refused tracker was changed"])


def _every_schema(folder: Path, draw: random.Random, _counts: Mapping[str, int]) -> tuple[str, list[str]]:
    """A tracker of any earlier schema is upgraded."""
    assert recover(STATUS, folder).status == 0
    revision = draw.choice(EARLIER)
    _downgrade(folder / "workspace" / "tracker.db", revision)
    ended = recover(STATUS, folder)
    return revision, [ended.complaint or ended.error] if ended.status else []


def _two_versions(folder: Path, draw: random.Random, _counts: Mapping[str, int]) -> tuple[str, list[str]]:
    """A live process works with an earlier schema: nobody upgrades before it has ended."""
    assert recover(STATUS, folder).status == 0
    tracker, revision = folder / "workspace" / "tracker.db", draw.choice(EARLIER)
    with Tracker(tracker) as opened:
        experiment = opened.experiment("older")
        child, _ = holder(tracker, experiment, opened.cycle(experiment, 1))
    try:
        _downgrade(tracker, revision)
        before, copies = _rows(tracker), set(tracker.parent.glob("*.bak"))
        faults = []
        for arguments in (STATUS, RESUME):
            faults += said(recover(arguments, folder), (f"process {child.pid}",))
        changed = before != _rows(tracker) or copies != set(tracker.parent.glob("*.bak"))
        faults += ["the tracker in use was changed"] if changed else []
    finally:
        end(child)
    ended = recover(STATUS, folder)
    faults += [ended.complaint or ended.error] if ended.status else []
    return revision, faults + ([] if _revision(tracker) == session.newest() else ["it was not upgraded afterwards"])


def _downgrade(tracker: Path, revision: str) -> None:
    """Give a tracker an earlier schema."""
    settings, engine = session.config(), create_engine(f"sqlite:///{tracker}")
    with engine.begin() as connection:
        settings.attributes["connection"] = connection
        command.downgrade(settings, revision)
    engine.dispose()


def _resumed(folder: Path, _draw: random.Random, _counts: Mapping[str, int]) -> tuple[str, list[str]]:
    """The stage that 0.1 left unfinished goes on."""
    ended: Ended = recover(RESUME, folder)
    return "resume", [ended.complaint or ended.error] if ended.status else []


def _rows(tracker: Path) -> dict[str, int]:
    """Return the number of rows of each table."""
    with contextlib.closing(sqlite3.connect(tracker)) as database:
        names = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {name: database.execute(f'SELECT count(*) FROM "{name}"').fetchone()[0] for name in names}


def _revision(tracker: Path) -> str:
    with contextlib.closing(sqlite3.connect(tracker)) as database:
        return str(database.execute("SELECT version_num FROM alembic_version").fetchone()[0])


_WAYS: dict[str, Callable[[Path, random.Random, Mapping[str, int]], tuple[str, list[str]]]] = {
    "an upgrade killed": _killed,
    "a newer schema": _newer,
    "an earlier schema": _every_schema,
    "a live process with an earlier schema": _two_versions,
    "0.1's unfinished stage": _resumed,
}
