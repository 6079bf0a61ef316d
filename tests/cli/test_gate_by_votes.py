"""A cycle whose gate asks for votes: left to people, then accepted by `recover gate` on what they voted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from db import open_database, queries, reviews
from pipelines.cli.main import run
from tests.cli.conftest import write_prompts
from tests.pipelines.conftest import write_corpus


def test_a_cycle_waits_for_votes_and_they_accept_it(
    tmp_path: Path, tiny_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    docs, workspace = write_corpus(tmp_path / "Harbour", "Harbour"), ["--workspace", str(tmp_path / "w")]
    rule = "preference(base) >= 0.45"
    small = (
        "--midtrain-steps 4 --distill-steps 1 --max-new-tokens 8 --until 0 --midtrain-lr 0.05 --embeddings all".split()
    )
    arguments = ["cycle", "--docs", docs, "--model", tiny_model, "--prompts", write_prompts(tmp_path, 80)]
    assert run([*map(str, arguments), *small, *workspace, "--gate", rule]) == 0
    printed = capsys.readouterr()
    shown = " ".join((printed.out + printed.err).split())
    assert f"gate: {rule}: no votes yet: open the dashboard's page Review" in shown
    assert f"`recover gate 1 --rule '{rule}' --enter`" in shown

    database = open_database(tmp_path / "w" / "tracker.db")
    experiment = queries.experiments(database)[0].id
    base, end = (queries.checkpoint(database, experiment, name) for name in ("base", "cycle-1/recovered"))
    assert base is not None and end is not None
    suite = "instruction_following"
    evaluations = [reviews.answered(database, experiment)[one.id][suite] for one in (base, end)]
    review = reviews.open_review(database, base.id, end.id, suite, reviews.DIFFERING)
    pairs = reviews.pairs(database, evaluations[0], evaluations[1], reviews.DIFFERING)
    for pair in pairs:
        reviews.vote(database, review, pair, "Ada", "second")
    database.close()
    assert len(pairs) > 5, "mid-training at this rate changes responses"

    assert run(["gate", "1", "--rule", rule, "--enter", "--json", *workspace]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["decision"], result["entered"]["decision"]) == ("accept", "accepted")
    assert result["verdicts"][0]["n"] == len(pairs)
    assert run(["report", "1", "--no-figures", "--json", *workspace]) == 0
    report = Path(json.loads(capsys.readouterr().out)["markdown"]).read_text()
    assert "Votes: cycle-1/recovered against base" in report and "| Ada |" in report
    assert run(["report", "1", "--bundle", str(tmp_path / "e.zip"), *workspace]) == 0
    assert run(["report", "--verify", str(tmp_path / "e.zip")]) == 0
    assert f"ok  review: {len(pairs)} votes, each on the side of its seed" in capsys.readouterr().out
