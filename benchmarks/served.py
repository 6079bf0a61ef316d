"""An evaluation of the file that is served, against its server's own time for the same prompts.

Run: python -m benchmarks.served --model FILE.gguf [--limit N] [--write]

The model is exported, and `recover eval EXPORTED --runtime llama.cpp` is started and killed (SIGKILL) when its first
answers are kept. The same command is then run in this process and measured: it goes on with the other prompts, and
after each block of them its llama.cpp server answers the same tokens, as many at once and as long, for the smallest
client, a connection for each slot to `/completion`. Fewer prompts are scaled to 1,000. Load on the machine distorts
wall time: exits with status 1 if the command takes longer than the limit in wall or in processor time.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import _report

LIMIT, GOAL, PROMPTS = 1.3, 1.1, 1000
KEPT = 8  # answers that are kept when the first run is killed
START, COMPARISON, ANSWERS, CHECKS, WRITING = PARTS = (
    "start: imports, settings, the server",
    "comparing template, tokens and weights",
    "answers",
    "checking and keeping the answers",
    "writing to the tracker, end",
)
FLOOR = "the server alone"
RECOVER = [sys.executable, "-m", "recovery"]


@dataclass
class Meter:
    """Wall seconds, our processor seconds and the server's, by part of a run."""

    block: int  # prompts that one side answers before the other does
    spent: dict[str, list[float]] = field(default_factory=lambda: {part: [0.0] * 3 for part in (*PARTS, FLOOR)})
    part: str = START
    last: list[float] = field(default_factory=lambda: [time.perf_counter(), time.process_time(), 0.0])
    server: Path = Path("/proc/none")
    waiting: list[tuple[Sequence[int], int]] = field(default_factory=list)  # prompts and limits that FLOOR lacks
    tokens: dict[str, int] = field(default_factory=lambda: dict.fromkeys((ANSWERS, FLOOR), 0))
    asked: int = 0

    def enter(self, part: str) -> None:
        """Count what follows for a part."""
        now = [time.perf_counter(), time.process_time(), self.last[2]]
        if self.server.exists():
            ticks = (self.server / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()[11:13]
            now[2] = sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")
        self.spent[self.part] = [a + b - c for a, b, c in zip(self.spent[self.part], now, self.last, strict=True)]
        self.part, self.last = part, now

    def answer_again(self, address: str, slots: int) -> None:
        """Have the server answer what waits, for a client that does nothing else."""
        self.enter(FLOOR)
        items, counts = iter(self.waiting), list[int]()

        def work() -> None:
            connection = http.client.HTTPConnection(address.removeprefix("http://"))
            for prompt, limit in items:
                body = {"prompt": prompt, "n_predict": limit, "temperature": 0.0, "cache_prompt": False}
                connection.request("POST", "/completion", json.dumps(body), {"Content-Type": "application/json"})
                counts.append(json.loads(connection.getresponse().read())["tokens_predicted"])
            connection.close()

        threads = [threading.Thread(target=work) for _ in range(slots)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(counts) == len(self.waiting)
        self.tokens[FLOOR] += sum(counts)
        self.waiting = []

    def watch(self) -> None:
        """Have the functions of an evaluation tell which part of it begins."""
        from pipelines.evaluation import artifacts, stage
        from recovery.rollouts.served_engine import SLOTS, ServedEngine

        generate, started, record = ServedEngine.generate, artifacts.started, stage.record_result

        def generating(engine: Any, prompts: Sequence[Any], sampling: Any, progress: Any, keep: Any) -> list[Any]:
            completions: list[Any] = []
            for first in range(0, len(prompts), self.block):
                self.enter(ANSWERS)
                part = prompts[first : first + self.block]
                completions += generate(engine, part, sampling, progress, partial(_after, keep, first))
                self.waiting += [(prompt, sampling.max_new_tokens) for prompt in part]
                if len(self.waiting) >= self.block:
                    self.answer_again(engine.server.address, SLOTS)
            self.enter(CHECKS)
            self.asked += len(prompts)
            self.tokens[ANSWERS] += sum(len(completion.ids) for completion in completions)
            return completions

        @contextlib.contextmanager
        def starting(*arguments: Any) -> Iterator[Any]:
            with started(*arguments) as (address, process):
                self.server = Path("/proc") / str(process.pid)
                self.enter(COMPARISON)
                yield address, process
                self.answer_again(address, SLOTS)
                self.enter(WRITING)

        def recording(*arguments: Any) -> Any:
            self.enter(WRITING)
            return record(*arguments)

        for owner, name, function in (
            (ServedEngine, "generate", generating),
            (artifacts, "started", starting),
            (stage, "record_result", recording),
        ):
            setattr(owner, name, function)


def _after(keep: Callable[[int, Any], None], first: int, number: int, completion: Any) -> None:
    keep(first + number, completion)


def kept(store: str) -> int:
    """Return how many answers are kept."""
    with contextlib.suppress(sqlite3.Error), contextlib.closing(sqlite3.connect(f"{store}?mode=ro", uri=True)) as db:
        return int(db.execute("SELECT count(*) FROM answers").fetchone()[0])
    return 0


def killed(command: Sequence[str], store: str) -> int:
    """Kill a command when its first answers are kept; return their number."""
    process, others = subprocess.Popen([*RECOVER, *command]), kept(store)
    while kept(store) < others + KEPT:
        if process.poll() is not None:
            raise RuntimeError(f"it ended with {process.returncode} before it kept {KEPT} answers: raise --limit")
        time.sleep(0.1)
    process.kill()
    process.wait()
    return kept(store) - others


def ratios(spent: Mapping[str, Sequence[float]], times: float = 1.0) -> tuple[float, float]:
    """Return the evaluation's time over the server's own, wall and processor, for ``times`` as many prompts."""
    factors = {part: times if part in (ANSWERS, CHECKS, FLOOR) else 1.0 for part in spent}
    ours = [sum(factors[part] * spent[part][column] for part in PARTS) for column in range(3)]
    floor = [times * seconds for seconds in spent[FLOOR]]
    return ours[0] / floor[0], sum(ours[1:]) / sum(floor[1:])


def body(spent: Mapping[str, Sequence[float]], tokens: Mapping[str, int], prompts: int, before: int) -> str:
    """Return the page."""
    rows = [(part, *(f"{value:.1f}" for value in values)) for part, values in spent.items()]
    (wall, processor), many = ratios(spent), ratios(spent, PROMPTS / prompts)
    limit, goal = ("met" if max(many) <= most else "MISSED" for most in (LIMIT, GOAL))
    return (
        f"{_report.table(('part', 'seconds', 'our processor seconds', 'of the server'), rows)}\n\n"
        f"The evaluation's time over the server's alone, for the same {prompts:,} prompts: {wall:.2f} in wall time, "
        f"{processor:.2f} in processor time. For {PROMPTS:,}, with start, comparison and end as they are and the rest "
        f"in proportion: {many[0]:.2f} and {many[1]:.2f}; limit {LIMIT}: {limit}; goal {GOAL}: {goal}.\n\n"
        f"Answers: {tokens[ANSWERS]:,} tokens, of the server alone {tokens[FLOOR]:,}. Killed when {before} were kept, "
        f"the command asked for the other {prompts} alone."
    )


def main() -> int:
    """Measure, print, and return the exit status."""
    parser = _report.parser(__doc__, "served")
    parser.add_argument("--model", required=True)
    parser.add_argument("--limit", type=int, default=PROMPTS)
    parser.add_argument("--block", type=int, default=128, help="prompts that one side answers before the other does")
    parser.add_argument("--type", default="q8_0")
    options = parser.parse_args()
    facts = _report.machine(("torch", "transformers", "xllamacpp"))
    facts |= {"model": f"{Path(options.model).stem}, {options.type}", "prompts in a block": str(options.block)}
    with tempfile.TemporaryDirectory() as name:
        workspace, file = ("--workspace", f"{name}/workspace"), f"{name}/{options.type}.gguf"
        first = ("eval", "base", "--model", options.model, "--limit", "1", "--max-new-tokens", "1")
        for command in (first, ("export", "base", file, "--type", options.type)):
            subprocess.run([*RECOVER, *command, *workspace], check=True)
        command = ("eval", file, "--runtime", "llama.cpp", "--limit", str(options.limit), *workspace)
        before = killed(command, Path(name, "workspace", "cache", "answers.db").as_uri())
        meter = Meter(options.block)
        meter.watch()
        from pipelines.cli.main import run

        if status := run(command):
            return status
        meter.enter(FLOOR)
    text = body(meter.spent, meter.tokens, meter.asked, before)
    print(text)
    if options.write:
        data = {"parts": meter.spent, "tokens": meter.tokens, "prompts": meter.asked, "kept": before}
        print(_report.write("served", "Evaluation of a served model", text, facts, data))
    return int(max(ratios(meter.spent, PROMPTS / meter.asked)) > LIMIT)


if __name__ == "__main__":
    sys.exit(main())
