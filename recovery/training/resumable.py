"""What a run remembers beyond its weights: each owner declares its own state, which the training loop stores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar


@dataclass
class Resumable:
    """State of one owner: a dataclass whose fields hold JSON-like values, stored by ``prefix`` and name.

    The names of all owners of a run are different; a stored state without one of them leaves that field unchanged.
    """

    prefix: ClassVar[str] = ""

    def state(self) -> dict[str, Any]:
        """Return the fields as they are stored."""
        return {self.prefix + f.name: getattr(self, f.name) for f in fields(self)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Set the fields from the state of all owners."""
        for f in fields(self):
            setattr(self, f.name, state.get(self.prefix + f.name, getattr(self, f.name)))
