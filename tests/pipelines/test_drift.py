"""Drift of a trained checkpoint from the clean miniature: measured, recorded, and completions cached."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from db import queries
from evals.drift import text_kl
from evals.knowledge import bits_per_byte
from pipelines.data.corpus_snapshot import load_snapshot
from pipelines.evaluation.drift import DriftReport, measure_drift
from pipelines.midtraining.stage import midtrain
from pipelines.runtime.model_loading import load_frozen
from pipelines.runtime.progress import Display
from pipelines.runtime.session import Session
from recovery.config import EvalConfig
from recovery.errors import UsageError
from recovery.rollouts.engine import Completion
from recovery.rollouts.transformers_engine import TransformersEngine
from tests.pipelines.conftest import six_steps, write_corpus

CONFIG = EvalConfig(limit=12, max_new_tokens=24, precision="float32")


@pytest.fixture(scope="module")
def moved(tmp_path_factory: pytest.TempPathFactory, shipped_miniature: Path) -> Iterator[tuple[Session, DriftReport]]:
    """A workspace on the miniature with a checkpoint trained on enough documents to hold some out."""
    folder = tmp_path_factory.mktemp("drift")
    docs = write_corpus(folder / "many", "Harbour", documents=40)
    with Session.open(folder / "workspace", model=str(shipped_miniature), display=Display(quiet=True)) as session:
        midtrain(session, replace(six_steps(docs, None), held_out=0.1))
        yield session, measure_drift(session, CONFIG)


def test_drift_is_measured_beside_its_null_and_recorded(moved: tuple[Session, DriftReport]) -> None:
    session, found = moved
    assert (found.checkpoint, found.reference, found.prompts) == ("cycle-1/midtrained", "base", 12)
    assert found.measures.keys() == found.null.keys()
    assert found.forward_kl.value > 0 and found.reverse_kl.value > 0
    assert found.forward_kl.value != found.reverse_kl.value
    spans = [score for _, _, score in found.reverse_kl_by_position]
    assert sum(score.n for score in spans) == found.reverse_kl.n
    assert sum(score.value * score.n for score in spans) / found.reverse_kl.n == pytest.approx(found.reverse_kl.value)
    assert "by position in the completion: 1-16 " in found.text()
    made, (documents, corpus) = session.resolve("latest"), (found.documents, load_snapshot(session.workspace, 1))
    assert (documents.corpus, documents.texts) == (1, len(corpus.held_out))
    model, clean = load_frozen(made, CONFIG), load_frozen(session.base, CONFIG)
    texts = [document.text for document in corpus.held_out]
    assert documents.forward_kl.value == pytest.approx(text_kl(clean, model, texts).value / 0.6931471805599453)
    assert documents.bits_per_byte == bits_per_byte(model, texts).score
    assert documents.bits_per_byte.value < documents.bits_per_byte_before.value, "it has learnt the documents' language"
    (row,) = queries.evaluations(session.tracker.database, made.id)
    assert (row.suite, row.name, row.value, row.n) == (
        "drift",
        "forward_kl",
        pytest.approx(found.forward_kl.value),
        found.forward_kl.n,
    )
    assert row.details["null"] == pytest.approx(found.null)
    assert row.details["measures"] == pytest.approx(found.measures)
    assert "forward KL" in found.text() and "bits per byte" in found.text()


@pytest.mark.slow
def test_measured_again_nothing_is_generated_and_the_figures_are_the_same(
    moved: tuple[Session, DriftReport], monkeypatch: pytest.MonkeyPatch
) -> None:
    session, found = moved
    real, asked = TransformersEngine.generate, []

    def counting(self: TransformersEngine, prompts: Any, *rest: Any) -> list[Completion]:
        asked.append(len(prompts))
        return real(self, prompts, *rest)

    monkeypatch.setattr(TransformersEngine, "generate", counting)
    assert measure_drift(session, CONFIG) == found
    assert asked == []
    back = measure_drift(session, replace(CONFIG, checkpoint="base"), "cycle-1/midtrained")
    assert (back.checkpoint, back.reference) == ("base", "cycle-1/midtrained")
    (row,) = queries.evaluations(session.tracker.database, session.base.id)
    assert row.suite == "drift from cycle-1/midtrained"


def test_the_same_weights_are_refused(session: Session) -> None:
    with pytest.raises(UsageError, match="base and base are the same weights: name another with --from"):
        measure_drift(session, replace(CONFIG, checkpoint="base"))
