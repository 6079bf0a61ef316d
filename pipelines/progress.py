"""What a person sees while a stage works: a bar with the time left, or plain lines where there is no terminal.

Everything goes to standard error, so that standard output stays for results.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

# Where there is no terminal: seconds to a bar's first line, and between two.
_SECONDS_TO_FIRST_LINE, _SECONDS_BETWEEN_LINES = 2.0, 10.0


@dataclass
class Bar:
    """One piece of work of ``total`` units. Made by :meth:`Display.bar`."""

    display: Display
    name: str
    total: int
    done: int = 0
    task: TaskID | None = None
    tokens: int = 0
    begun: tuple[int, int] = (0, 0)
    started: float = field(default_factory=time.monotonic)
    next_line: float = field(default_factory=lambda: time.monotonic() + _SECONDS_TO_FIRST_LINE)
    first: int = field(init=False)  # what was done when it began, of work that is gone on with

    def __post_init__(self) -> None:
        self.first = self.done

    def advance(self, count: int = 1, note: str = "") -> None:
        """Count units as done; ``note`` is a short figure shown beside the bar."""
        self.update(self.done + count, note)

    def heard(self, answers: int, tokens: int) -> None:
        """Count answers and tokens as an engine reports them: a :data:`recovery.rollouts.Progress`."""
        self.at(self.done + answers, self.tokens + tokens)

    def at(self, done: int, tokens: int) -> None:
        """Set how many units are done and how many tokens that took so far; shows tokens a second."""
        self.tokens = tokens
        rate = tokens / max(1e-3, time.monotonic() - self.started)
        self.update(done, f"{tokens:,} tokens, {rate:,.0f}/s" if tokens else "")

    def within(self, answers: int, tokens: int) -> None:
        """Show what comes in the unit that was begun: answers and tokens, counted from its start."""
        self.begun = self.begun[0] + answers, self.begun[1] + tokens
        self._show(f"sampling: {self.begun[0]:,} answers, {self.begun[1]:,} tokens")

    def update(self, done: int, note: str = "") -> None:
        """Set how many units are done."""
        self.done, self.begun = done, (0, 0)
        self._show(note)

    def _show(self, note: str) -> None:
        now = time.monotonic()
        if self.display.progress is not None and self.task is not None:
            self.display.progress.update(self.task, completed=self.done, note=note)
        elif now > self.next_line:
            self.next_line = now + _SECONDS_BETWEEN_LINES
            here = self.done - self.first
            left = (now - self.started) / max(1, here) * (self.total - self.done)
            words = f"(about {duration(left)} left)" if here > 0 else ""
            self.display.say(" ".join(part for part in (f"{self.name}: {self.done}/{self.total}", note, words) if part))


class Display:
    """Where progress is shown. ``quiet`` shows nothing but what :meth:`say` is given."""

    def __init__(self, *, quiet: bool = False) -> None:
        self.console = Console(stderr=True, highlight=False, soft_wrap=True)
        self.quiet = quiet
        self.progress: Progress | None = None

    def say(self, text: str) -> None:
        """One line to the person at the terminal, printed as it is."""
        self.console.print(text, markup=False)

    @contextlib.contextmanager
    def bar(self, name: str, total: int, done: int = 0) -> Iterator[Bar]:
        """A bar while the block runs; several may be open at once."""
        if self.quiet or not self.console.is_terminal:
            bar = Bar(self, name, total, done)
            if self.quiet:
                bar.next_line = float("inf")
            yield bar
            return
        owner = self.progress is None
        if self.progress is None:
            self.progress = _bars(self.console)
            self.progress.start()
        task = self.progress.add_task(name, total=total, completed=done, note="")
        try:
            yield Bar(self, name, total, done, task)
        finally:
            self.progress.remove_task(task)
            if owner:
                self.progress.stop()
                self.progress = None


def duration(seconds: float) -> str:
    """A time span in words: 45 s, 12 min, 3 h 20 min."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60:02d} min"


def _bars(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:.0f}/{task.total:.0f}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
        console=console,
        transient=True,
    )
