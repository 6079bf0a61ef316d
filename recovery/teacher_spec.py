"""What ``--teacher`` names: one type in place of a string with several meanings. No torch here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from recovery.engines import is_address
from recovery.errors import UsageError

Kind = Literal["checkpoints", "server", "self", "start", "ema", "label", "none"]
# Words that are not names of checkpoints.
RESERVED: tuple[Kind, ...] = ("self", "start", "ema", "label", "none")


@dataclass(frozen=True)
class TeacherSpec:
    """Who scores the student's completions.

    ``kind`` is "checkpoints" (frozen, one or several with ``weights`` that sum to 1), "server" (at ``address``),
    "self" (the student as it is), "start" (a copy of the student before training), "ema" (its moving average),
    "label" (the data's own next token) or "none" (only a reward).
    """

    kind: Kind
    weights: Mapping[str, float] = field(default_factory=dict)
    address: str = ""

    @classmethod
    def parse(cls, text: str) -> TeacherSpec:
        """Read the value of ``--teacher``. Raise UsageError if weights do not sum to 1."""
        for word in RESERVED:
            if text == word:
                return cls(word)
        if is_address(text):
            return cls("server", address=text)
        if "=" not in text or _is_folder(text):
            return cls("checkpoints", {text: 1.0})
        try:
            pairs = [part.rsplit("=", 1) for part in text.split(",")]
            weights = {name.strip(): float(weight) for name, weight in pairs}
        except ValueError:
            raise UsageError(f"--teacher {text!r}: give several teachers as NAME=0.5,NAME=0.5") from None
        if not (min(weights.values()) > 0 and abs(sum(weights.values()) - 1) <= 1e-6):  # so that NaN raises
            raise UsageError(f"--teacher {text!r}: the weights must be above 0 and sum to 1")
        return cls("checkpoints", weights)

    @property
    def frozen(self) -> bool:
        """Whether one or several frozen checkpoints score."""
        return self.kind == "checkpoints"

    @property
    def remote(self) -> bool:
        """Whether a server scores."""
        return self.kind == "server"

    @property
    def is_student(self) -> bool:
        """Whether the student scores itself, given an additional context."""
        return self.kind in ("self", "start", "ema")

    @property
    def is_copy(self) -> bool:
        """Whether a second copy of the student is held in memory."""
        return self.kind in ("start", "ema")


def _is_folder(text: str) -> bool:
    """Whether a folder has this name, which may hold an equals sign."""
    try:
        return Path(text).expanduser().is_dir()
    except (OSError, ValueError, RuntimeError):  # weights of many teachers are too long to be a path
        return False
