"""The dashboard and the tracker on a large database: pages, live ticks, memory, and concurrent writers.

Run: python -m benchmarks.tracker [--write]

The database (benchmarks/large_tracker.py) is created once and cached in --cache; each run works on a copy. The
dashboard is the real `recover dashboard` process. Times of its functions are round trips over HTTP through Gradio's
queue, as in a browser: from the request to the last byte of the response, text and figures. CPU time is the kernel's
count for that process. "First shown" is the time at which a page's headline, tables and text are painted, by Chromium's
own clock; the figures follow and are reported separately. Other load on the machine adds to every time.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from sqlalchemy import update

from benchmarks import _browser, _report
from benchmarks._dashboard import ROOT, Query, Served, Visitor, dashboard, empty_page
from benchmarks.large_tracker import Size, add_sizes, make, make_facts
from db import Database, Tracker, facts, open_database, open_readonly, queries
from db.records import Stage
from db.sample_comparison import FATES
from db.schema import Stage as StageRow

CACHE = Path(tempfile.gettempdir()) / "recovery-benchmarks"
PORT = 17_600
FIGURES = ("", "live", "geometry", "compare")
SERVER_MS, TICK_MS, SHOWN_MS, DRAWN_MS, MEMORY_MB = 300.0, 50.0, 1000.0, 2000.0, 400.0
LEDGER_MS = 500.0
RATE, CURVES = 2000, 20  # points per second, number of curves
Result = dict[str, Any]

WRITER = """
import sys, time
from db import Tracker
path, seconds, rate, curves, name = sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
with Tracker(path) as tracker:
    experiment = tracker.experiment(name)
    with tracker.start_stage(experiment, "distill") as stage:
        started, step = time.monotonic(), 0
        while time.monotonic() - started < seconds:
            step += 1
            stage.log(step, {f"curve {k}": 1.0 / step for k in range(curves)})
            time.sleep(max(0.0, started + step * curves / rate - time.monotonic()))
            if name == "second writer" and step % 20 == 0:
                made = tracker.add_checkpoint(experiment, f"made {step}", "external", path="x", stage_id=stage.id)
                items = [{"id": k, "prompt": "p" * 300, "response": "r" * 600, "score": 1.0} for k in range(50)]
                tracker.add_evaluation(made, "general", value=1.0, stderr=0.0, n=50, items=items)
        took = time.monotonic() - started
print(stage.id, step * curves, took)
"""


# --- page requests ----------------------------------------------------------------------------------------------


def questions(database: Database, size: Size, rng: random.Random, each: int) -> dict[str, list[Query]]:
    """Return ``each`` queries for each page, over experiments, cycles, filters and stages; main's largest first."""
    names = [one.name for one in queries.experiments(database) if one.cycles]
    main = queries.experiment(database, "main")
    assert main is not None
    trained = [s for s in queries.stages(database, main.id, limit=500) if s.kind in ("midtrain", "distill")]
    longest = sorted(trained, key=lambda stage: -stage.steps_done)
    kinds = ("", "keywords:existence", "punctuation:no_comma", "change_case:english_capital")

    def other(**more: Callable[[], object]) -> Query:
        return [("experiment", rng.choice(names)), *((name, value()) for name, value in more.items())]

    def of(stages: Iterable[Stage]) -> list[tuple[str, object]]:
        return [("experiment", "main"), *(("stage", stage.id) for stage in stages)]

    def cycle() -> int:
        return rng.randint(1, size.cycles)

    makers: dict[str, tuple[list[Query], Callable[[], Query]]] = {
        "": ([()], other),
        "cycle": ([()], lambda: other(cycle=cycle)),
        "samples": (
            [(), [("experiment", "main"), ("show", "all"), ("search", "river house")]],
            lambda: [*other(cycle=cycle, show=lambda: rng.choice(list(FATES)), type=lambda: rng.choice(kinds))],
        ),
        "tokens": ([(), of(longest[1:2])], other),
        "live": ([of(longest[:1]), of(longest[1:2])], lambda: of([rng.choice(trained)])),
        "geometry": ([(), of(s for s in trained[:12] if s.kind == "distill")], other),
        "compare": ([(), of(longest[:8])], lambda: of(rng.sample(trained, 6))),
    }
    return {page: [*first, *(maker() for _ in range(each - len(first)))] for page, (first, maker) in makers.items()}


# --- measurements -----------------------------------------------------------------------------------------------


def pages(served: Served, requests: dict[str, list[Query]]) -> Result:
    """Measure round trips of every page, each in a new session, after one warm-up call per page."""
    found: Result = {}
    for page, addresses in requests.items():
        Visitor(served).load(page, addresses[0])
        visitor, before = Visitor(served), served.cpu_seconds()
        answers = []
        for query in addresses:
            visitor = Visitor(served, known=visitor.known)
            answers.append(visitor.load(page, query))
        cpu = (served.cpu_seconds() - before) / len(answers)
        times = [1000 * answer.seconds for answer in answers]
        found[page or "overview"] = {
            "n": len(times),
            "median ms": statistics.median(times),
            "p95 ms": p95(times),
            "worst ms": max(times),
            "processor ms": 1000 * cpu,
            "largest answer kB": max(answer.size for answer in answers) / 1000,
        }
    return found


def ticks(served: Served, database: Path, rounds: int) -> Result:
    """Measure ticks of Live after each new step, for a stage with 100 points and for that with the longest history."""
    with Tracker(database) as tracker:
        main = tracker.experiment("main")
        stages = queries.stages(tracker.database, main, kind="midtrain", limit=500)
        longest = max(stages, key=lambda stage: stage.steps_done)
        names = queries.metric_names(tracker.database, longest.id)
        _interrupted(tracker.database, longest.id)
        recorders = {
            "100 points": tracker.start_stage(main, "midtrain"),
            f"{longest.steps_done * len(names):,} points": tracker.resume_stage(
                longest.id, from_step=longest.steps_done
            ),
        }
        steps = {name: 100 // len(names) if name == "100 points" else longest.steps_done for name in recorders}
        for step in range(1, steps["100 points"] + 1):
            recorders["100 points"].log(step, dict.fromkeys(names, 1 / step))
        tracker.flush()
        visitors = {name: Visitor(served) for name in recorders}
        requests = {name: [("experiment", "main"), ("stage", one.id)] for name, one in recorders.items()}
        for name, visitor in visitors.items():
            visitor.load("live", requests[name])
        times: dict[str, list[float]] = {name: [] for name in recorders}
        cpu = dict.fromkeys(recorders, 0.0)
        for _ in range(rounds):
            for name, recorder in recorders.items():
                steps[name] += 1
                recorder.log(steps[name], dict.fromkeys(names, 0.5))
                tracker.flush()
                before = served.cpu_seconds()
                answer = visitors[name].tick("live", requests[name])
                cpu[name] += served.cpu_seconds() - before
                if not any(isinstance(one, dict) and one.get("panels") for one in answer.outputs):
                    raise RuntimeError(f"a tick returned no new points: {answer.outputs}")
                times[name].append(1000 * answer.seconds)
        for recorder in recorders.values():
            recorder.interrupt()
    return {
        name: {
            "n": rounds,
            "median ms": statistics.median(found),
            "p95 ms": p95(found),
            "processor ms": 1000 * cpu[name] / rounds,
        }
        for name, found in times.items()
    }


def _interrupted(database: Database, stage_id: int) -> None:
    """Mark a finished stage as interrupted, so that it can be resumed."""
    with database.writing() as connection:
        connection.execute(update(StageRow).where(StageRow.id == stage_id).values(status="interrupted"))


def first_shown(served: Served, requests: dict[str, list[Query]], visits: int) -> Result:
    """Measure when each page shows its text and its figures in Chromium, with an empty and with a filled cache."""
    from urllib.parse import urlencode

    found: Result = {}
    with empty_page(PORT + 1) as floor, _browser.chromium() as browser:
        places: dict[str, tuple[str, Sequence[Query], bool]] = {
            "an empty Gradio page": (floor.address, [()] * visits, False)
        }
        places |= {
            page or "overview": (f"{served.address}/{page}", addresses[:visits], page in FIGURES)
            for page, addresses in requests.items()
        }
        for name, (address, listed, figure) in places.items():
            found[name] = {}
            for first in (True, False):
                addresses = [f"{address}?{urlencode(list(query))}" for query in listed]
                shown = _browser.visits(browser, addresses, figure=figure, first=first)
                words = [one.words for one in shown]
                drawn = [one.figure for one in shown if one.figure is not None]
                found[name]["first visit" if first else "later"] = {
                    "words, median ms": statistics.median(words),
                    "words, worst ms": max(words),
                    "drawings, median ms": statistics.median(drawn) if drawn else None,
                    "page's processor ms": 1000 * statistics.median(one.processor for one in shown),
                }
    return found


def writers(served: Served, database: Path, requests: dict[str, list[Query]], seconds: float) -> Result:
    """Run two writing processes while every page is read; then count every point."""
    rates = {"first writer": RATE, "second writer": RATE // 10}
    running = {
        name: subprocess.Popen(
            [sys.executable, "-c", WRITER, str(database), str(seconds), str(rate), str(CURVES), name],
            cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for name, rate in rates.items()
    }  # fmt: skip
    times, troubles = [], 0
    for page, query in itertools.cycle([(page, query) for page, listed in requests.items() for query in listed[:3]]):
        if all(process.poll() is not None for process in running.values()):
            break
        answer = Visitor(served).load(page, query)
        times.append(1000 * answer.seconds)
        troubles += "cannot be read" in answer.text or "locked" in answer.text
    found: Result = {"pages read": len(times), "page, p95 ms": p95(times), "pages in trouble": troubles}
    reading = open_readonly(database)
    for name, process in running.items():
        out, error = process.communicate()
        if process.returncode:
            raise RuntimeError(f"the {name} failed: {error}")
        stage, logged, took = out.split()
        curves = queries.series(reading, int(stage), max_points=None)
        kept = sum(len(points) for points in curves.values())
        found[name] = {"logged": int(logged), "kept": kept, "points a second": int(logged) / float(took)}
        found[name]["errors"] = error.strip()
    return found


def ledger(cache: Path, rounds: int = 9) -> Result:
    """Measure how long the ledger of facts of fifty cycles with 600 questions each takes to read."""
    kept, times, work, count = cache / "facts.db", [], [], 0
    if not kept.is_file():
        make_facts(kept.with_suffix(".part"))
        kept.with_suffix(".part").rename(kept)
    database = open_readonly(kept)
    for _ in range(rounds):
        started, used = time.perf_counter(), time.process_time()
        count = len(facts.ledger(database, 1))
        times.append(1000 * (time.perf_counter() - started))
        work.append(1000 * (time.process_time() - used))
    return {"facts": count, "median ms": statistics.median(times), "processor ms": statistics.median(work)}


def p95(values: Sequence[float]) -> float:
    """Return the smallest value that at least 95% of the values do not exceed."""
    return float(np.percentile(values, 95, method="inverted_cdf"))


# --- the report -------------------------------------------------------------------------------------------------


def limits(found: Result) -> list[tuple[str, str, str, bool]]:
    """Return every limit: name, measured value, limit, whether it is met."""
    slowest = max(found["pages"], key=lambda page: found["pages"][page]["p95 ms"])
    server = found["pages"][slowest]["p95 ms"]
    busiest = max(found["pages"], key=lambda page: found["pages"][page]["processor ms"])
    work = found["pages"][busiest]["processor ms"]
    tick_work = max(one["processor ms"] for one in found["ticks"].values())
    tick = max(one["p95 ms"] for one in found["ticks"].values())
    short, long = (one["median ms"] for one in found["ticks"].values())
    lost = sum(found["writers"][name]["logged"] - found["writers"][name]["kept"] for name in WRITERS)
    errors = found["writers"]["pages in trouble"] + sum(bool(found["writers"][name]["errors"]) for name in WRITERS)
    rate = found["writers"]["first writer"]["points a second"]
    rows = [
        (f"server time of {slowest}, the slowest, p95", f"{server:.0f} ms", f"{SERVER_MS:.0f} ms", server <= SERVER_MS),
        (f"CPU time of {busiest}, the largest, mean", f"{work:.0f} ms", f"{SERVER_MS:.0f} ms", work <= SERVER_MS),
        ("live tick, p95", f"{tick:.0f} ms", f"{TICK_MS:.0f} ms", tick <= TICK_MS),
        ("live tick, CPU time, mean", f"{tick_work:.0f} ms", f"{TICK_MS:.0f} ms", tick_work <= TICK_MS),
        ("live tick, long history over short", f"{long / short:.2f}", "1.25", long / short <= 1.25),
        ("memory of the dashboard, peak", f"{found['memory']['peak MB']:.0f} MB", f"{MEMORY_MB:.0f} MB",
         found["memory"]["peak MB"] <= MEMORY_MB),
        (f"ledger of {found['ledger']['facts']:,} facts over fifty cycles, CPU time",
         f"{found['ledger']['processor ms']:.0f} ms", f"{LEDGER_MS:.0f} ms",
         found["ledger"]["processor ms"] <= LEDGER_MS),
        ("points per second written meanwhile", f"{rate:.0f}", f"{0.99 * RATE:.0f} at least", rate >= 0.99 * RATE),
        ("points lost", f"{lost:,}", "0", lost == 0),
        ("errors of writers and pages", str(errors), "0", errors == 0),
    ]  # fmt: skip
    if found["first shown"]:
        ours = {page: one for page, one in found["first shown"].items() if page in found["pages"]}
        page, when = max(
            ((page, when) for page, visit in ours.items() for when in visit),
            key=lambda one: ours[one[0]][one[1]]["words, median ms"],
        )
        shown = ours[page][when]["words, median ms"]
        what = f"slowest page first shown, median ({page}, {when})"
        rows.insert(0, (what, f"{shown:.0f} ms", f"{SHOWN_MS:.0f} ms", shown <= SHOWN_MS))
        first = ours["overview"]["first visit"]["drawings, median ms"]
        if first is not None:
            what = "drawings of the overview, first visit, median"
            rows.insert(1, (what, f"{first:.0f} ms", f"{DRAWN_MS:.0f} ms", first <= DRAWN_MS))
    return rows


WRITERS = ("first writer", "second writer")


def markdown(found: Result) -> str:
    """Return all figures as Markdown tables."""
    parts = ["## Limits", _report.table(("what", "measured", "limit", ""), _verdicts(found))]
    parts += ["## Pages, server time", _listed("page", found["pages"])]
    if found["first shown"]:
        shown = {f"{page}, {when}": one for page, visit in found["first shown"].items() for when, one in visit.items()}
        parts += ["## Pages, first shown in Chromium", _listed("page", shown)]
    parts += ["## A live tick", _listed("history", found["ticks"])]
    parts += ["## Writers", _listed("process", {name: found["writers"][name] for name in WRITERS})]
    written = found["writers"]
    parts += [f"Meanwhile {written['pages read']} pages were read, p95 {written['page, p95 ms']:.0f} ms."]
    loads = {name: {f"load {when}": f"{load:.1f}" for when, load in one.items()} for name, one in found["load"].items()}
    parts += ["## Load of the machine", _listed("part", loads)]
    memory = found["memory"]
    parts += [
        "## Memory of the dashboard",
        f"{memory['start MB']:.0f} MB after the start, {memory['end MB']:.0f} MB at the end, "
        f"{memory['peak MB']:.0f} MB at the peak; {memory['visits']:,} visits in between.",
    ]
    return "\n\n".join(parts)


def _verdicts(found: Result) -> list[tuple[str, str, str, str]]:
    return [(what, is_, limit, "met" if met else "MISSED") for what, is_, limit, met in limits(found)]


def _listed(first: str, rows: dict[str, dict[str, Any]]) -> str:
    names = list(next(iter(rows.values())))
    shown = [[name, *(_shown(row[column]) for column in names)] for name, row in rows.items()]
    return _report.table((first, *names), shown)


def _shown(value: Any) -> str:
    return "–" if value is None else f"{value:,.0f}" if isinstance(value, int | float) else str(value)


def prepare(cache: Path, size: Size, folder: Path) -> Path:
    """Create a workspace in ``folder`` with a copy of the database; create the database if ``cache`` lacks it."""
    name = "-".join(str(part) for part in vars(size).values())
    kept = cache / f"tracker-{name}.db"
    if not kept.is_file():
        cache.mkdir(parents=True, exist_ok=True)
        part = kept.with_suffix(".part")
        for stale in cache.glob(f"{part.name}*"):
            stale.unlink()
        make(part, size, progress=True)
        part.rename(kept)
    open_database(kept).close()  # migrates an older schema
    shutil.copyfile(kept, folder / "tracker.db")
    (folder / "workspace.json").write_text(json.dumps({"format": 1}), encoding="utf-8")
    return folder / "tracker.db"


def measure(options: argparse.Namespace, folder: Path) -> Result:
    """Run all measurements on one dashboard process."""
    size = Size(options.experiments, options.cycles, options.points, options.samples, options.seed)
    database = prepare(options.cache, size, folder)
    reading = open_readonly(database)
    requests = questions(reading, size, random.Random(options.seed), options.calls)
    found: Result = {"memory": {}, "first shown": {}, "load": {}}
    with dashboard(folder, PORT) as served:
        found["memory"]["start MB"] = served.memory_mb()[0]
        steps: list[tuple[str, Callable[[], Result]]] = [
            ("pages", lambda: pages(served, requests)),
            ("ticks", lambda: ticks(served, database, options.calls)),
            ("ledger", lambda: ledger(options.cache)),
        ]
        if _browser.found() and not options.no_browser:
            steps.append(("first shown", lambda: first_shown(served, requests, options.visits)))
        steps.append(("writers", lambda: writers(served, database, requests, options.seconds)))
        for name, step in steps:
            started, load = time.perf_counter(), os.getloadavg()[0]
            found[name] = step()
            took = time.perf_counter() - started
            found["load"][name] = {"before": load, "after": os.getloadavg()[0]}
            print(
                f"{name}: measured in {took:.0f} s, load {load:.1f} before, {os.getloadavg()[0]:.1f} after", flush=True
            )
        now, most = served.memory_mb()
        found["memory"] |= {"end MB": now, "peak MB": most, "visits": options.calls * (len(requests) + 2)}
        found["memory"]["visits"] += found["writers"]["pages read"]
    return found


def main() -> int:
    """Measure and print; write with --write. Return 1 if a limit was missed."""
    parser = _report.parser(__doc__, "tracker")
    add_sizes(parser)
    parser.add_argument("--cache", type=Path, default=CACHE, help="folder in which the database is cached")
    parser.add_argument("--calls", type=int, default=40, help="calls of each page's function, and number of ticks")
    parser.add_argument("--visits", type=int, default=4, help="visits of each page in Chromium, per cache state")
    parser.add_argument("--seconds", type=float, default=30.0, help="duration of the writers")
    parser.add_argument("--no-browser", action="store_true", help="skip the measurements in Chromium")
    options = parser.parse_args()
    facts = _report.machine(
        ("gradio", "sqlalchemy", "plotly"),
        seed=options.seed,
        database=f"{options.experiments} experiments of {options.cycles} cycles, {options.points:,} points, "
        f"{options.samples:,} samples",
    )
    with tempfile.TemporaryDirectory() as folder:
        found = measure(options, Path(folder))
    facts["load after"] = f"{os.getloadavg()[0]:.1f}"
    body = markdown(found)
    print(body)
    if options.write:
        text = f"{_report.note(__doc__)}\n{body}"
        print(_report.write("tracker", "The dashboard on a large tracker", text, facts, found))
    return int("MISSED" in body)


if __name__ == "__main__":
    sys.exit(main())
