"""A real vLLM server as what is served: it answers and scores as the checkpoint that it was made from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from db import queries
from evals.domain_pmi import BITS
from evals.suites import measure_answer_likelihood
from pipelines.evaluation.artifacts import serving
from pipelines.evaluation.stage import UNRELATED, evaluate
from pipelines.evaluation.stored_results import newest
from pipelines.runtime.progress import Display
from pipelines.runtime.session import Session
from recovery.config import EvalConfig
from recovery.models.loading import load_model
from recovery.types import Probe, SuiteResult

pytestmark = pytest.mark.vllm

_TEXT = '{"text": "The ferry leaves pier 3 at 7:45 and returns before noon."}\n'
BOATS = [
    Probe(f"boat-{n}", "question", f"Which pier has boat {n}?", (f"pier {3 * n + 1}",), source=f"page {n}")
    for n in range(10)
]


def bits(result: SuiteResult | None) -> list[float]:
    assert result is not None
    return [bit for item in result.items for bit in item.extra[BITS]]


def test_it_answers_and_scores_as_its_source(
    teacher_server: Any, tied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts, texts = tmp_path / "test.jsonl", tmp_path / "texts.jsonl"
    prompts.write_text("".join(f'{{"key": "{n}", "prompt": "Name boat {n}."}}\n' for n in range(6)))
    texts.write_text(_TEXT)
    session = Session.open(tmp_path / "workspace", model=str(tied), display=Display(quiet=True))
    lines: list[str] = []
    monkeypatch.setattr(session.display, "say", lines.append)
    config = EvalConfig(checkpoint="base", max_new_tokens=12, precision="float32", prompts=prompts, texts=texts)
    of_server = replace(config, served_at=teacher_server.address, server_wait=0.0)
    with session:
        evaluate(session, config)
        evaluate(session, of_server)
        assert not any(line.startswith(("differs", "not compared", "not measured")) for line in lines), lines
        database, base = session.tracker.database, session.base.id or 0
        artifact = next(one for one in session.registry.all() if one.kind == "artifact")
        ours, theirs = newest(database, base), newest(database, artifact.id or 0)
        assert ours.keys() == theirs.keys()
        for suite in ours:
            one, two = (queries.samples(database, of[suite].id).samples for of in (ours, theirs))
            assert {row.item: row.response for row in one} == {row.item: row.response for row in two}
        assert theirs[UNRELATED].value == pytest.approx(ours[UNRELATED].value, abs=1e-3)
        with serving(session, session.base, of_server) as served:
            found = measure_answer_likelihood(served.loaded, BOATS, BOATS, suite="K")
    wanted = measure_answer_likelihood(load_model(tied, precision="float32"), BOATS, BOATS, suite="K")
    assert bits(found) == pytest.approx(bits(wanted), abs=0.02)
