"""Models that are loaded in several threads at once."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from transformers import PreTrainedModel

from recovery.models.loading import load_model


def test_loading_in_several_threads_leaves_every_head_tied(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tie = PreTrainedModel.tie_weights
    monkeypatch.setattr(PreTrainedModel, "tie_weights", tie)  # put back, should this fail
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)  # so that without the lock two of so many loads overlap
    try:
        with ThreadPoolExecutor(3) as threads:
            found = list(threads.map(lambda _: load_model(tiny_model, precision="float32").model, range(60)))
    finally:
        sys.setswitchinterval(interval)
    assert PreTrainedModel.tie_weights is tie
    assert all(model.lm_head.weight is model.model.embed_tokens.weight for model in found)
