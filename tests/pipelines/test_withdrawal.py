"""Documents are withdrawn, the cycles trained again without them, and what is left of them is measured."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from db import decide, queries
from db.cycle_evidence import CERTIFICATE, certificate
from evals.verbatim import Beginning
from pipelines.certificate import NOT_SHOWN, SHOWN, _strings, facts_back
from pipelines.cli.main import run
from pipelines.cycle import start_cycles, start_plan
from pipelines.cycle_estimate import estimate
from pipelines.data.corpus_snapshot import load_snapshot
from pipelines.data.revisions import left_out, named
from pipelines.evaluation.stored_results import items_of, newest
from pipelines.reports.cycle_report import cycle_report
from pipelines.reports.document import Heading, Paragraph, Table, to_markdown
from pipelines.runtime.session import Session
from pipelines.withdrawal import find_withdrawal, rebuild_plan, start_without, taught
from recovery.config import CycleConfig
from recovery.errors import UsageError
from tests.pipelines.conftest import MakeCorpus

PAGE = "harbour-1.md"


@pytest.fixture
def trained(session: Session, small: CycleConfig, corpus: Path, make_corpus: MakeCorpus) -> Session:
    """Two cycles, each on four pages with questions about every page."""
    docs = (corpus, make_corpus("Orchid"))
    for folder in docs:
        pages = sorted(folder.glob("*.md"))
        records = [
            {"question": f"Who keeps the {page.stem} ferry?", "answers": [f"Keeper {page.stem}"], "source": page.name}
            for page in pages
        ]
        (folder / "probes.jsonl").write_text("".join(json.dumps(one) + "\n" for one in records))
    midtrain = replace(small.midtrain, held_out=0.0)
    distill = replace(small.distill, prompts_per_step=4)
    start_cycles(
        session,
        replace(small, docs=docs, midtrain=midtrain, knowledge_teacher="midtrained", distill=distill),
    )
    return session


def test_the_cycles_are_trained_again_without_what_is_withdrawn_and_certified(trained: Session) -> None:
    session = trained
    found = find_withdrawal(session, ["Harbour-1*"])
    assert found.documents == {1: (PAGE,)} and found.ids == [PAGE]
    assert {probe.source for probe in found.probes.values()} == {PAGE}
    facts, outcomes = taught(session, found)
    assert [(one.cycle, one.document) for one in facts] == [(1, PAGE)]
    assert [name for name, _ in outcomes] == ["base", "cycle-1/recovered", "cycle-2/recovered"]
    plan = rebuild_plan(session, found)
    assert (plan.start, plan.first, plan.last) == ("base", 3, 4)
    assert plan.config.knowledge_teacher == "midtrained" and plan.config.distill.prompts_before is None
    assert estimate(session, plan).rows[0].cycle == 3
    assert session.resolve("latest").name == "cycle-2/recovered", "nothing is changed by a look"
    shutil.rmtree(session.workspace.folder.parent / "corpus")  # the cycles' snapshots are what is trained on
    start_plan(session, plan)
    latest = session.resolve("latest")
    assert latest.name == "cycle-4/recovered" and session.trained_cycles(latest) == [3, 4]
    assert {k: one.decision for k, one in session.cycles().items()} == {
        1: "rolled_back", 2: "rolled_back", 3: None, 4: None,
    }  # fmt: skip
    before, after = (load_snapshot(session.workspace, k) for k in (1, 3))
    assert {one.id for one in before.documents} - {one.id for one in after.documents} == {PAGE}
    assert {one.id for one in before.probes} - {one.id for one in after.probes} == {key for _, key in found.probes}
    assert load_snapshot(session.workspace, 4).documents == load_snapshot(session.workspace, 2).documents
    (event,) = queries.events(session.tracker.database, session.experiment_id, kind=CERTIFICATE)
    assert event.data["documents"] == [PAGE] and event.data["verdict"] == NOT_SHOWN
    facts_part, strings, others = event.data["parts"]
    assert "fewer than 20" in facts_part["says"] and strings["runs"].keys() == {"base", "before", "after"}
    assert [one["rule"] for one in others["decision"]["verdicts"]] == [
        "instructions >= source - 3",
        "domain >= source - 3",
    ]
    measured = items_of(
        session.tracker.database, newest(session.tracker.database, latest.id or 0)["domain_knowledge/3"]
    )
    assert len(found.without(measured, 1).items) == len(measured.items) == 3
    text = to_markdown(cycle_report(session, 4)[1])
    told = certificate(event)
    blocks = cycle_report(session, 4)[1]
    assert all(Paragraph(words) in blocks for words in (told.about, told.not_proven))
    assert (
        Heading(2, told.title) in blocks and Table(("claim", "verdict", "by"), tuple(told.parts), prose=True) in blocks
    )
    assert "## Certificate of withdrawal: not shown" in text and PAGE in text and "Not proven" in text
    with pytest.raises(UsageError, match=r"withdrawn already: its certificate is in `recover report 4`"):
        find_withdrawal(session, [PAGE])
    with pytest.raises(UsageError, match="no cycle has a document called harbour-9.md: did you mean harbour-"):
        find_withdrawal(session, ["harbour-9.md"])


def test_a_cycle_that_withdraws_leaves_it_out_of_its_own_folder_and_is_certified_too(
    trained: Session, small: CycleConfig, make_corpus: MakeCorpus
) -> None:
    folder = make_corpus("Tulip")
    shutil.copy(trained.workspace.folder.parent / "corpus" / PAGE, folder)
    midtrain = replace(small.midtrain, withdrawn=(PAGE,), held_out=0.0)
    start_cycles(trained, replace(small, docs=(folder,), midtrain=midtrain))
    own = load_snapshot(trained.workspace, 3)
    assert PAGE not in {one.id for one in own.documents} and own.withdrawn == (PAGE,)
    assert own.lines[-1].startswith("left out 1 documents that are withdrawn")
    (event,) = queries.events(trained.tracker.database, trained.experiment_id, kind=CERTIFICATE)
    assert (event.data["before"], event.data["after"]) == ("cycle-2/recovered", "cycle-3/recovered")
    assert find_withdrawal(trained, [PAGE]).documents == {1: (PAGE,)}, "latest has read it"


def test_what_cannot_be_withdrawn_is_said_in_one_line(
    trained: Session, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def refused(*names: str) -> str:
        assert run(["withdraw", *names, "--workspace", str(trained.workspace.folder)]) == 1
        (line,) = capsys.readouterr().err.strip().splitlines()
        return line

    assert "did you mean harbour-1.md?" in refused("harbour-11.md")
    assert "no cycle has a document called harbour: did you mean 'harbour*' (4 documents)?" in refused("harbour")
    found = find_withdrawal(trained, ["orchid*"])
    assert start_without(trained, found)[0].name == "cycle-1/recovered"
    start = trained.resolve("cycle-1/recovered").path
    start.rename(tmp_path / "pruned")
    assert (start_without(trained, found)[0].name, start_without(trained, found)[1]) == ("base", [1, 2])
    with pytest.raises(UsageError, match="every document is withdrawn"):
        estimate(trained, rebuild_plan(trained, found))
    (tmp_path / "pruned").rename(start)
    decide(trained.tracker.database, trained.cycles()[2].id, "rolled_back", who="Ada")
    assert "latest was not trained on orchid-1.md: cycle 2, which has it, was rolled back" in refused("orchid-1.md")
    trained.workspace.corpus(1).rename(tmp_path / "moved")
    assert "cycle-1 is missing" in refused(PAGE)


def test_names_choose_what_questions_are_about_as_well(trained: Session) -> None:
    corpus = load_snapshot(trained.workspace, 1)
    probe = replace(corpus.probes[0], id="own", source="Harbour")
    corpus = replace(corpus, probes=(*corpus.probes, probe))
    assert named(corpus, ["harbour*"]) == {"Harbour", *(f"harbour-{n}.md" for n in range(4))}
    assert named(corpus, ()) == set() and left_out(corpus, ["other*"]) is corpus
    left = left_out(corpus, ["harbour-[0]*", "harbour-0*"])
    assert left.hash != corpus.hash and left.probes_hash != corpus.probes_hash and probe in left.probes


@pytest.mark.parametrize(
    ("taught_bits", "left_bits", "count", "verdict"),
    [(6.0, 0.2, 24, SHOWN), (6.0, 2.0, 24, NOT_SHOWN), (0.0, 0.0, 24, NOT_SHOWN), (6.0, 0.2, 19, NOT_SHOWN)],
)
def test_facts_are_back_at_base_if_at_most_a_quarter_may_be_left(
    taught_bits: float, left_bits: float, count: int, verdict: str
) -> None:
    draw = np.random.default_rng(0)
    noise = draw.normal(size=(2 * count, 2))
    changes = [(taught_bits + a, left_bits + b) for a, b in noise.tolist()]
    part = facts_back(changes, [f"fact {n // 2}" for n in range(2 * count)])
    assert part["verdict"] == verdict and (part["questions"], part["facts"]) == (2 * count, count)


def test_strings_are_gone_if_base_continues_as_many() -> None:
    asked = [Beginning((1,), tuple(range(10)))] * 3
    runs = {"base": [1, 2, 6], "before": [10, 9, 8], "after": [2, 7, 0]}
    part = _strings(asked, runs)
    assert part["verdict"] == SHOWN and part["continued"] == {"base": 1, "before": 3, "after": 1}
    assert "before 3 (longest run 10 tokens)" in part["says"]
    assert _strings(asked, runs | {"after": [5, 5, 0]})["verdict"] == NOT_SHOWN
    assert _strings([], {name: [] for name in runs})["verdict"] == NOT_SHOWN, "nothing was asked"
