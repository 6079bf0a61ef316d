"""The folder through which a server gets weights: both sides can read it."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import torch

from recovery import distributed
from recovery.models.loaded import Loaded

WEIGHTS = "weights for an engine"


class TransferFolder:
    """A temporary folder inside ``root``, by default the system's; created at its first use."""

    def __init__(self, root: Path | None) -> None:
        self._root = root
        self._folder: Path | None = None

    @property
    def path(self) -> Path:
        """The folder."""
        if self._folder is None:
            if self._root is not None:
                self._root.mkdir(parents=True, exist_ok=True)
            self._folder = Path(tempfile.mkdtemp(prefix="recovery-weights-", dir=self._root))
        return self._folder

    def save(self, loaded: Loaded) -> None:
        """Save the weights of a model: the adapter alone, if engines take it.

        If the model is in pieces, the other processes serve their helper ``WEIGHTS``.
        """
        state: dict[str, torch.Tensor] | None = None
        if loaded.in_pieces:
            state = {}
            # Kept here: what a helper returns is sent to every process.
            distributed.ask(WEIGHTS, [()] * distributed.size(), lambda: state.update(loaded.weights_for_engines()))
        weights = loaded.model if loaded.adapts_layers else loaded.whole_weights()
        weights.save_pretrained(self.path, safe_serialization=True, state_dict=state)

    def close(self) -> None:
        """Delete the folder."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None
