"""Campaign: a dashboard that is attacked, on SQLite and on PostgreSQL.

No reply may be an error of the server, show a traceback or a path, or hold hostile input unescaped; no decision may be
lost or doubled; the dashboard must stay up, answer the others, and hold at most 1 GiB.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from tests.torture.attacks import ATTACKS
from tests.torture.outcome import Outcome, numbers
from tests.torture.served import Served, dashboards


def run(seed: int, seconds: float, report: Callable[[str], None], only: int | None = None) -> Outcome:
    """Try for ``seconds``; ``only`` repeats one try by its number."""
    outcome = Outcome()
    with dashboards(report) as running:
        for number in numbers(seconds, only):
            draw = random.Random(f"{seed} dashboard {number}")
            name = list(ATTACKS)[number % len(ATTACKS)]
            kind = sorted(running)[number // len(ATTACKS) % len(running)]
            faults = [*_tried(ATTACKS[name], running[kind], draw), *running[kind].faults()]
            outcome.tried[f"{name}, {kind}"] = outcome.tried.get(f"{name}, {kind}", 0) + 1
            held, most = running[kind].memory()
            sound = "; ".join(faults)[:2000] or "sound"
            report(f"dashboard {number}: {name}, {kind}, {held >> 20} MiB, peak {most >> 20}: {sound}")
            outcome.faults += [f"--seed {seed} dashboard --only {number}: {name}, {kind}: {fault}" for fault in faults]
    return outcome


def _tried(way: Callable[[Served, random.Random], list[str]], served: Served, draw: random.Random) -> list[str]:
    try:
        return way(served, draw)
    except Exception as error:  # no answer in time, no page: the try ends, the campaign goes on
        return [f"{type(error).__name__}: {error!s:.300}"]
