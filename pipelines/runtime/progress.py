"""Progress bars with the remaining time, or plain lines without a terminal.

All output goes to standard error; standard output is for results.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskID, TextColumn
from rich.text import Text

from pipelines.table import duration

# Without a terminal: seconds until a bar's first line, and between two lines.
_SECONDS_TO_FIRST_LINE, _SECONDS_BETWEEN_LINES = 2.0, 10.0
# Without a terminal: seconds after which a phase says that it goes on.
_SECONDS_OF_SILENCE = 12.0
# Seconds before a rate is shown: of tokens, and of remaining units, since the first units may be short ones.
_SECONDS_OF_RATE, _SECONDS_OF_LEFT = 1.0, 10.0


def _left(elapsed: float, moved: float, done: float, remaining: float) -> float:
    """Estimate the remaining seconds, moved / done · remaining − (elapsed − moved); 0 if unknown or below a second.

    ``done`` units took ``moved`` of the ``elapsed`` seconds. Units come in groups: while the next group runs, the
    estimate made after the last one counts down.
    """
    if done <= 0 or elapsed < _SECONDS_OF_LEFT:
        return 0.0
    seconds = moved / done * remaining - (elapsed - moved)
    return seconds if seconds >= 1 else 0.0


@dataclass
class Bar:
    """Progress of work of ``total`` units. Created by :meth:`Display.bar`."""

    display: Display
    name: str
    total: int
    done: int = 0
    task: TaskID | None = None
    tokens: int = 0
    note: str = ""
    sampled: tuple[int, int] = (0, 0)  # completions and tokens of the current unit
    started: float = field(default_factory=lambda: time.monotonic())  # looked up at each call: tests set it
    moved: float = 0.0  # seconds from the start to the last unit that was done
    next_line: float = field(default_factory=lambda: time.monotonic() + _SECONDS_TO_FIRST_LINE)
    first: int = field(init=False)  # units that were done before this bar
    earlier_tokens: int = 0  # tokens that came before this bar

    def __post_init__(self) -> None:
        self.first = self.done

    def advance(self, count: int = 1, note: str = "") -> None:
        """Count units as done; ``note`` is a short text shown next to the bar."""
        self.update(self.done + count, note)

    def add_completions(self, completions: int, tokens: int) -> None:
        """Count completions as units, with their tokens; a :data:`recovery.rollouts.engine.Progress`."""
        self.update_tokens(self.done + completions, self.tokens + tokens)

    def update_tokens(self, done: int, tokens: int) -> None:
        """Set the units done and the tokens so far; shows the tokens per second since the bar began."""
        self.tokens = tokens
        seconds, here = time.monotonic() - self.started, tokens - self.earlier_tokens
        rate = f", {here / seconds:,.0f}/s" if here and seconds >= _SECONDS_OF_RATE else ""
        self.update(done, f"{tokens:,} tokens{rate}" if tokens else "")

    def add_sampled(self, completions: int, tokens: int) -> None:
        """Show the completions and tokens sampled so far in the current unit."""
        self.sampled = self.sampled[0] + completions, self.sampled[1] + tokens
        self._show(f"sampling: {self.sampled[0]:,} completions, {self.sampled[1]:,} tokens")

    def line(self) -> str:
        """Return the progress as a line: the units done and the remaining time, or only the time of a phase so far."""
        now = time.monotonic()
        if not self.total:
            return f"{self.name}: {duration(now - self.started)}"
        left = _left(now - self.started, self.moved, self.done - self.first, self.total - self.done)
        time_left = f"(about {duration(left)} left)" if left else ""
        time_left = "(finishing)" if self.done >= self.total else time_left
        return " ".join(part for part in (f"{self.name}: {self.done}/{self.total}", self.note, time_left) if part)

    def update(self, done: int, note: str = "") -> None:
        """Set the number of units done."""
        if done != self.done:
            self.moved = time.monotonic() - self.started
        self.done, self.sampled = done, (0, 0)
        self._show(note)

    def _show(self, note: str) -> None:
        self.note = note
        now = time.monotonic()
        if self.display.progress is not None and self.task is not None:
            self.display.progress.update(self.task, completed=self.done, note=note, moved=self.moved)
        elif now > self.next_line:
            self.next_line = now + _SECONDS_BETWEEN_LINES
            self.display.say(self.line())


class Display:
    """Shows progress and messages. ``quiet`` shows only the messages of :meth:`say`."""

    def __init__(self, *, quiet: bool = False) -> None:
        self.console = Console(stderr=True, highlight=False, soft_wrap=True, emoji=False)
        self.quiet = quiet
        self.progress: Progress | None = None
        self._said: set[str] = set()
        self._open: list[Bar] = []  # the innermost last
        self._spoke = time.monotonic()

    def beat(self) -> None:
        """Print the progress if nothing was printed for a while."""
        silent = time.monotonic() - self._spoke
        for bar in self._open[-1:] if silent >= _SECONDS_OF_SILENCE else ():
            self.say(bar.line())

    def phase(self, name: str) -> contextlib.AbstractContextManager[Bar]:
        """Name what runs in the block and counts nothing, such as loading a model."""
        return self.bar(name, 0)

    def say(self, text: str) -> None:
        """Print a message for the user as it is: names in it may look like markup or emoji codes."""
        self._spoke = time.monotonic()
        self.console.print(text, markup=False)

    def say_once(self, text: str) -> None:
        """Print a message unless it was printed before."""
        if text not in self._said:
            self._said.add(text)
            self.say(text)

    @contextlib.contextmanager
    def bar(self, name: str, total: int, done: int = 0) -> Iterator[Bar]:
        """Show a bar while the block runs; several may be open at once."""
        if self.quiet:
            yield Bar(self, name, total, done, next_line=float("inf"))
            return
        if not self.console.is_terminal:
            bar = Bar(self, name, total, done)
            with self._beating(bar):
                yield bar
            return
        owner = self.progress is None
        if self.progress is None:
            self.progress = _bars(self.console)
            self.progress.start()
        task = self.progress.add_task(name, total=total or None, completed=done, note="", first=done)
        try:
            yield Bar(self, name, total, done, task)
        finally:
            self.progress.remove_task(task)
            if owner:
                self.progress.stop()
                self.progress = None

    @contextlib.contextmanager
    def _beating(self, bar: Bar) -> Iterator[None]:
        """Keep a bar open in the block; the outermost calls :meth:`beat` every second."""
        ended = threading.Event()
        self._open = [*self._open, bar]

        def beat() -> None:
            while not ended.wait(1.0):
                self.beat()

        thread = threading.Thread(target=beat, name="progress", daemon=True) if len(self._open) == 1 else None
        if thread is not None:
            thread.start()
        try:
            yield
        finally:
            self._open = [one for one in self._open if one is not bar]
            ended.set()
            if thread is not None:
                thread.join()


@dataclass
class SuccessiveBars:
    """One bar at a time for the parts of a task, named ``title: part``. Used as a context; the end closes the bar."""

    display: Display
    title: str
    _stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    _shown: tuple[str, int] = ("", 0)
    _bar: Bar | None = None

    def __enter__(self) -> SuccessiveBars:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def show(self, part: str, done: int, total: int, tokens: int = 0) -> None:
        """Show how many of a part's items are done, and the tokens generated for them."""
        if (part, total) != self._shown or self._bar is None:
            self._stack.close()
            bar = self.display.bar(f"{self.title}: {part}", total, done)
            self._shown, self._bar = (part, total), self._stack.enter_context(bar)
            self._bar.earlier_tokens = tokens  # the part is known only once some of it is done
        self._bar.update_tokens(done, tokens)


class _Count(ProgressColumn):
    """How many of a bar's units are done; nothing for a phase without units."""

    def render(self, task: Task) -> Text:
        return Text("" if task.total is None else f"{task.completed:.0f}/{task.total:.0f}")


class _Time(ProgressColumn):
    """How long a bar has been open and, once some of it is done, how long the rest may take."""

    def render(self, task: Task) -> Text:
        elapsed = task.elapsed or 0.0
        shown = f"{timedelta(seconds=int(elapsed))} so far"
        if task.total is not None:
            here, moved = task.completed - task.fields["first"], task.fields.get("moved", 0.0)
            left = _left(elapsed, moved, here, task.total - task.completed)
            finishing = ", finishing" if task.completed >= task.total else ""
            shown += f", {timedelta(seconds=round(left))} left" if left else finishing
        return Text(shown)


def _bars(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        _Count(),
        _Time(),
        TextColumn("{task.fields[note]}", markup=False),
        console=console,
        transient=True,
    )
