"""The gate end to end: a failing cycle is rejected, a borderline one is extended until decided, a good one accepted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from db import DatabaseError, queries
from pipelines.cycle import start_cycles
from pipelines.evaluation.acceptance import conclude, decide_cycle, judge_cycle, rules_of
from pipelines.prune import plan_prune, prune
from pipelines.reports.cycle_report import cycle_report
from pipelines.runtime.progress import Display
from pipelines.runtime.session import Session
from recovery.config import CycleConfig, build_cycle
from recovery.errors import CheckpointError, UsageError
from recovery.miniature.corpora import write_corpora

LIMIT = 150


@pytest.fixture(scope="module")
def docs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The documents of six services: few, and trained at such a high rate that a fifth of the behaviour is lost."""
    return write_corpora(tmp_path_factory.mktemp("corpora"), 1, 0, entities=6)[0]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, docs: Path) -> Path:
    """A workspace on the miniature with three cycles: one that fails, one borderline, one without a gate."""
    target = tmp_path_factory.mktemp("gate") / "workspace"
    with Session.open(target, display=Display(quiet=True)) as session:

        def run(**settings: Any) -> None:
            hot = {"midtrain_lr": 4e-3, "epochs": 10.0, "limit": LIMIT, "gate_samples": LIMIT, "until": 0.0}
            start_cycles(session, build_cycle({"docs": (docs,)} | hot | settings, session.recipe, alone=True))

        run(gate=("ifeval >= 0.9*base",), distill_steps=1, distill_lr=1e-7)  # as good as no recovery at all
        run(gate=("ifeval >= 0.91*base",), gate_extend=3, distill_steps=1)
        run(distill_steps=1)
    return target


@pytest.fixture
def session(folder: Path) -> Iterator[Session]:
    with Session.open(folder, display=Display(quiet=True)) as opened:
        yield opened


def decisions_of(session: Session, number: int) -> list[tuple[str, str]]:
    decisions = queries.decisions(session.tracker.database, session.cycle_id(number))
    return [(d.decision, d.who) for d in decisions]


def judgements(session: Session, number: int) -> list[str]:
    """The gate's judgements of a cycle, oldest first."""
    events = queries.events(session.tracker.database, session.experiment_id, limit=500)
    mine = [e for e in events if e.kind == "gate" and e.cycle_id == session.cycle_id(number)]
    return [e.data["decision"] for e in reversed(mine)]


@pytest.mark.slow
def test_a_cycle_that_was_not_recovered_is_rejected_and_left(session: Session) -> None:
    assert decisions_of(session, 1) == [("rejected", "gate")]
    assert judgements(session, 1)[-1] == "reject"
    evidence = queries.decisions(session.tracker.database, session.cycle_id(1))[0].evidence
    (verdict,) = evidence["verdicts"]
    assert verdict["verdict"] == "fail" and verdict["n"] == LIMIT and verdict["paired"]
    assert verdict["student"] < 0.9 * verdict["reference"]
    assert session.resolve("cycle-2/midtrained").parent == "base"  # not the rejected cycle's checkpoint
    assert session.resolve("cycle-1/recovered").path.is_dir()  # which is still there


@pytest.mark.slow
def test_a_cycle_on_the_line_goes_on_until_it_is_decided(session: Session) -> None:
    made = [c.name for c in session.registry.all() if c.cycle == 2 and c.kind == "recovered"]
    assert made[:2] == ["cycle-2/recovered", "cycle-2/recovered-2"]
    assert session.resolve("cycle-2/recovered-2").parent == "cycle-2/recovered"
    outcomes = judgements(session, 2)
    assert outcomes == ["undecided"] * (len(made) - 1) + ["accept"]
    assert decisions_of(session, 2) == [("accepted", "gate")]
    first = session.tracker.database
    scores = [queries.scores(first, c.id) for c in session.registry.all() if c.name in (made[0], made[-1]) and c.id]
    before, after = (s.instruction_following.value for s in scores if s.instruction_following)
    assert after > before  # the extension decided


@pytest.mark.slow
def test_without_a_gate_nothing_is_decided_and_what_was_learnt_is_compared(session: Session) -> None:
    assert decisions_of(session, 3) == []
    assert (session.resolve("cycle-3/midtrained").parent or "").startswith("cycle-2/recovered")
    evidence = session.cycles()[3].details["evidence"]
    suites = {c["name"]: c for c in evidence["compared_with"]["base"]["suites"]}
    assert suites["domain_knowledge/3"]["won"] > 40 and suites["domain_knowledge/3"]["p_adjusted"] < 0.01
    beyond = suites["instruction_following/beyond_constant"]
    assert beyond["n"] > 40 and beyond["p_value"] is not None and beyond["p_adjusted"] is None
    types = evidence["compared_with"]["midtrained"]["types of instruction_following"]
    assert len(types) > 15 and all(c["p_adjusted"] >= c["p_value"] for c in types)
    assert evidence["knowledge"]["cycles"] == [2, 3]  # without the rejected cycle


@pytest.mark.slow
def test_a_rejected_corpus_is_neither_rehearsed_nor_asked_later(session: Session) -> None:
    third = session.resolve("cycle-3/recovered")
    assert session.learnt_cycles(third, third.cycle) == [2, 3]
    assert session.learnt_cycles(session.resolve("cycle-1/recovered"), 1) == [1]
    scores = queries.scores(session.tracker.database, third.id or 0)
    assert sorted(scores.domain_knowledge_by_corpus) == [2, 3]


@pytest.mark.slow
def test_rules_are_judged_again_on_what_was_measured(session: Session) -> None:
    decision = judge_cycle(session, rules_of(["standard", "domain >= 0.5", "stored(2) >= 0.5*first"], session), 2)
    names = [v.rule for v in decision.verdicts]
    assert names[:3] == ["instructions >= base - 3", "learnt", "learnt >= 0.67*midtrained"]
    assert names[-2:] == ["domain >= 0.5", "stored(2) >= 0.5*first"]
    assert not [v.reason for v in decision.verdicts if not v.n and "not applied" not in v.reason]
    missing = judge_cycle(session, rules_of(["retention(mmlu) >= 0.97*base"], session), 2)
    assert (missing.decision, missing.missing) == ("undecided", ("mmlu of student", "mmlu of base"))
    with pytest.raises(UsageError, match="there is no cycle 9"):
        judge_cycle(session, rules_of(["domain(9) >= 0.9*first"], session), 2)
    with pytest.raises(UsageError, match="nothing to compare|there is no|has no checkpoint"):
        conclude(session, 9)


@pytest.mark.slow
def test_a_person_decides_with_a_reason(session: Session) -> None:
    with pytest.raises(UsageError, match="the reason is empty"):
        decide_cycle(session, 3, "accepted", who="Ada", why=" ")
    with pytest.raises(UsageError, match="there is no cycle 7"):
        decide_cycle(session, 7, "accepted", who="Ada", why="x")
    with pytest.raises(DatabaseError, match="cycle 3 builds on cycle 2: roll it back instead"):
        decide_cycle(session, 2, "rejected", who="Ada", why="a second thought")
    done = decide_cycle(session, 3, "rejected", who="Ada", why="too little")
    assert (done.before, done.moved) == ("cycle-3/recovered", True) and (done.after or "").startswith("cycle-2/rec")
    assert session.resolve("latest").name == done.after
    assert decide_cycle(session, 3, "accepted", who="Ada", why="after all").after == "cycle-3/recovered"


@pytest.mark.slow
def test_the_report_has_every_section(session: Session) -> None:
    title, blocks = cycle_report(session, 2)
    assert title.startswith("Cycle 2: it learnt; ")
    text = " ".join(str(block) for block in blocks)
    for wanted in ("Accepted by gate", "Holm", "keywords:existence", "Versions", "Settings of midtrain", "base: "):
        assert wanted in text
    with pytest.raises(UsageError, match="there is no cycle 8"):
        cycle_report(session, 8)


@pytest.mark.slow
def test_pruning_keeps_what_is_needed_and_says_first_what_goes(session: Session) -> None:
    planned = {r.name: r for r in plan_prune(session)}
    gone = {"cycle-1/midtrained", "cycle-1/recovered", "cycle-2/midtrained", "cycle-2/recovered"}
    assert gone <= set(planned)
    last = [c.name for c in session.registry.all() if c.cycle == 2][-1]
    assert session.resolve("cycle-3/midtrained").parent == last, "a rollback of cycle 3 goes back there"
    assert not {"base", "cycle-3/recovered", last} & set(planned)
    before = sum(f.stat().st_size for f in session.workspace.folder.rglob("*") if f.is_file())
    freed = prune(session, plan_prune(session, ["rejected"]))
    after = sum(f.stat().st_size for f in session.workspace.folder.rglob("*") if f.is_file())
    assert freed == planned["cycle-1/midtrained"].bytes + planned["cycle-1/recovered"].bytes
    assert 0.99 * freed < before - after < 1.01 * freed
    with pytest.raises(CheckpointError, match=r"cycle-1/recovered is missing .* pruned on 20"):
        session.resolve("cycle-1/recovered")
    assert queries.scores(session.tracker.database, 2).instruction_following is not None  # what it scored stays
    assert not {r.name for r in plan_prune(session, ["rejected"])}
    with pytest.raises(UsageError, match="there is no policy 'some'"):
        plan_prune(session, ["some"])


def test_what_a_gate_cannot_read_is_said_before_anything_is_trained(tmp_path: Path, docs: Path) -> None:
    with Session.open(tmp_path / "w", display=Display(quiet=True)) as session:
        config = replace(CycleConfig(), docs=(docs,), gate=("ifeval => 0.9",))
        with pytest.raises(UsageError, match="'>='"):
            start_cycles(session, config)
        for rule, words in {
            "domain(9) >= 0.9*first": "there is no cycle 9",
            "retention(mmlu) >= 0.9*base": "add --task mmlu",
            "behaviour(haiku) >= 0.9*base": "no such suite",
        }.items():
            with pytest.raises(UsageError, match=words):
                start_cycles(session, replace(config, gate=(rule,)))
        other = replace(config, eval=replace(config.eval, tasks=("mmlu_pro",)))
        for rule in ("retention(mmlu) >= base", "retention(mmlu_p) >= base", "retention(mmlu_pro_law) >= base"):
            with pytest.raises(UsageError, match="nothing measures mmlu"):
                start_cycles(session, replace(other, gate=(rule,)))
        for rule, words in {
            "domain >= 0.9*previous": r"as in domain\(1\), or compare with midtrained",
            "domain(2) >= 0.9*first": "it judges cycle 1, too, when there is no corpus 2 yet",
        }.items():
            with pytest.raises(UsageError, match=words):
                start_cycles(session, replace(config, docs=(docs, docs), gate=(rule,)))
        assert session.cycles() == {}
    for wrong, words in (({"gate_alpha": 0.7}, "--gate-alpha"), ({"gate_extend": -1}, "--gate-extend")):
        with pytest.raises(UsageError, match=words):
            build_cycle(wrong)
