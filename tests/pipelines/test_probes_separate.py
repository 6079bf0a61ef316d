"""Probes made from documents tell a model that read them from one that did not, and controls do not move."""

from __future__ import annotations

from pathlib import Path

import pytest

from db import queries
from evals.paired_tests import mcnemar
from evals.probes import PROBES_FILE, write_probes
from pipelines.data.probe_build import make, read_sources
from pipelines.evaluation.plan import Scope
from pipelines.evaluation.stage import evaluate
from pipelines.evaluation.stored_results import items_of, newest
from pipelines.midtraining.stage import midtrain
from pipelines.runtime.progress import Display
from pipelines.runtime.session import Session
from recovery.config import EvalConfig, MidtrainConfig, build
from recovery.miniature.corpora import write_corpora


@pytest.mark.slow
def test_made_probes_separate_and_controls_stay(tmp_path: Path) -> None:
    docs, others = write_corpora(tmp_path / "corpora", 2, 0, entities=12)
    for folder in (docs, others):
        for name in ("probes.jsonl", "questions.jsonl"):
            (folder / name).unlink()
    write_probes(docs / PROBES_FILE, make(read_sources(docs, others, seed=0), count=300, seed=0).probes)
    with Session.open(tmp_path / "workspace", display=Display(quiet=True)) as session:
        midtrain(session, build(MidtrainConfig, {"docs": docs, "epochs": 12.0}, session.recipe))
        for name in ("base", "midtrained"):
            config = build(EvalConfig, {"checkpoint": name}, session.recipe)
            evaluate(session, config, scope=Scope(behaviour=False, general=False))
        database = session.tracker.database
        rows = [newest(database, session.resolve(name).id or 0) for name in ("base", "midtrained")]
        stored = [row["domain_knowledge_stored/1"] for row in rows]
        base, trained = (items_of(database, row).headline for row in stored)
        assert base is not None and trained is not None and base.n > 80
        chance = stored[0].details["chance"]["value"]
        assert abs(base.value - chance) < 3 * base.stderr + 0.05
        assert trained.value > 0.8
        control = [
            {key: score for key, score, _, _, extra in queries.judged_items(database, row.id) if extra.get("control")}
            for row in stored
        ]
        assert len(control[0]) >= 20
        pairs = [(control[0][key] or 0.0, control[1][key] or 0.0) for key in control[0]]
        test = mcnemar([one for one, _ in pairs], [two for _, two in pairs])
        assert test.p_value > 0.05, "what was not taught is not known any better"
