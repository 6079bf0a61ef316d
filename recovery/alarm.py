"""A collapse alarm: the signals that turn before a run is lost, watched against what they were when it began.

No torch here. The alarm looks at the metrics of every step. A signal is in breach while its median over the last few
steps lies outside what the first steps allow; a breach that lasts stops the run. No training state is saved while any
signal is in breach, so that the newest one is always a good one.

    entropy          fell under a tenth, or rose over four times, of what it was at first
    response length  over three times what it was, or under a quarter of it
    end-token rate   fell by half
    concentration    the gradient's density (participation ratio) fell to a twentieth: few tokens carry all of it
    ratio drift      the mean importance ratio left [1/2, 2]

Where a student moves towards a frozen teacher, what the teacher's own answers are like is no collapse either: a model
that mid-training has made brief becomes as long as its teacher again, and ends as seldom. The teacher is asked once,
and only when one of these signals would break.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

WINDOW = 5
PATIENCE = 3


# Below this an entropy (nats) or a rate is as good as zero, and its multiples mean nothing.
_FLOOR = 0.02


@dataclass(frozen=True)
class Signal:
    """A metric and the range it must stay in: factors of its first median, or absolute bounds.

    ``settles`` marks those that a frozen teacher may rightly pull down, ``spoken`` those that answers of its own have
    too; multiples of less than ``floor`` mean nothing; where what is usual is under ``least`` there is nothing to lose.
    """

    metric: str
    name: str
    low: float
    high: float
    relative: bool = True
    settles: bool = False
    spoken: bool = False
    floor: float = _FLOOR
    least: float = 0.0


SIGNALS = (
    Signal("entropy", "entropy", 0.1, 4.0, settles=True, spoken=True),
    Signal("response_length", "response length", 0.25, 3.0, settles=True, spoken=True),
    Signal("end_rate", "end-token rate", 0.5, float("inf"), spoken=True, least=0.5),
    Signal("geometry/density", "gradient density", 0.05, float("inf"), settles=True, floor=1e-3),
    Signal("ratio", "importance ratio", 0.5, 2.0, relative=False),
)


@dataclass
class Alarm:
    """Watches one run. ``memory`` is JSON-like, may hold others' entries, and outlives a resume.

    ``settling`` says that the student moves towards a frozen teacher: its entropy and its answers may then come down
    as far as the teacher's, and only their growth is a bad sign. ``teacher`` tells those metrics of the teacher's own
    answers, where it can be asked.
    """

    memory: dict[str, Any] = field(default_factory=dict)
    settling: bool = False
    teacher: Callable[[], Mapping[str, float]] | None = None

    def look(self, metrics: Mapping[str, float]) -> str | None:
        """Take a step's metrics; the reason to stop where a breach has lasted, else None."""
        reason = None
        for signal in SIGNALS:
            if signal.metric in metrics:
                broken = self._breach(signal, metrics[signal.metric])
                lasted = self._streaks()
                lasted[signal.metric] = lasted.get(signal.metric, 0) + 1 if broken else 0
                if broken:
                    self.breaches[signal.name] = broken
                else:
                    self.breaches.pop(signal.name, None)
                if broken and lasted[signal.metric] >= PATIENCE:
                    reason = reason or f"collapse: {broken}"
        return reason

    @property
    def breaches(self) -> dict[str, str]:
        """The signals that are in breach now, by name, each in words."""
        found: dict[str, str] = self.memory.setdefault("alarm/breaches", {})
        return found

    @property
    def sound(self) -> bool:
        """Whether no signal is in breach."""
        return not self.breaches

    def _streaks(self) -> dict[str, int]:
        streaks: dict[str, int] = self.memory.setdefault("alarm/streaks", {})
        return streaks

    def _breach(self, signal: Signal, value: float) -> str | None:
        """What is wrong in words, or None. The first window of values sets what is usual."""
        first = self.memory.setdefault("alarm/first", {}).setdefault(signal.metric, [])
        recent = self.memory.setdefault("alarm/recent", {}).setdefault(signal.metric, [])
        recent.append(value)
        if len(first) < WINDOW:
            first.append(value)
            return None
        del recent[:-WINDOW]
        now, usual = statistics.median(recent), statistics.median(first) if signal.relative else 1.0
        said = self._outside(signal, now, usual, usual)
        if said and signal.spoken and (theirs := self._teachers(signal.metric)) is not None:
            return said if self._outside(signal, now, min(usual, theirs), max(usual, theirs)) else None
        return said

    def _outside(self, signal: Signal, now: float, least: float, most: float) -> str | None:
        """What is wrong, in words, with a value where ``least`` to ``most`` is usual; None where nothing is."""
        if signal.relative and least < signal.least:
            return None
        least, most = (max(value, signal.floor) if signal.relative else value for value in (least, most))
        low = 0.0 if self.settling and signal.settles else signal.low * least
        if low <= now <= signal.high * most or min(abs(now - least), abs(now - most)) < signal.floor:
            return None
        turned = "fell" if now < least else "rose"
        return f"{signal.name} {turned} to {now:.3g} (at first {least:.3g})"

    def _teachers(self, metric: str) -> float | None:
        """The metric of the teacher's own answers, asked for once in a run; None where that is not known."""
        if self.teacher is None:
            return None
        if "alarm/teacher" not in self.memory:
            self.memory["alarm/teacher"] = dict(self.teacher())
        found: dict[str, float] = self.memory["alarm/teacher"]
        return found.get(metric)
