"""Outputs of overview and live page: increments, notices for every state, bounded work."""

from __future__ import annotations

import dataclasses
import random
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from html import escape
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from sqlalchemy import delete

from dashboard.access import Access
from dashboard.charts import Figure
from dashboard.markup import Tile
from dashboard.pages import common, compare, cycle, knowledge, live, overview, samples
from dashboard.tracker_source import Source
from db import DatabaseError, Tracker, decide, queries
from db.cycle_evidence import newest_compared
from db.records import SUITE, Point, Score, Stage
from db.schema import Evaluation
from pipelines.evaluation.drift import DocumentDrift, DriftReport
from pipelines.reports import cycle_report
from pipelines.reports.document import Table
from tests.dashboard.conftest import Request, checked, newest, words

ROOT = Path(__file__).resolve().parents[2]
SKIP = {"__type__": "update"}


def drawn(outputs: list[Any]) -> list[int]:
    """Return the indices of outputs with a new figure."""
    return [index for index, output in enumerate(outputs) if isinstance(output, Figure)]


@pytest.fixture
def running(seeding: ModuleType, address: Path | str) -> Iterator[Any]:
    seeded = seeding.seed(address, cycles=1, running=True)
    yield seeded
    seeded.tracker.close()


@pytest.fixture
def stage(running: Any) -> Stage:
    """The stage that runs, as it is stored."""
    found = queries.running_stage(running.tracker.database)
    assert found is not None
    return found


def test_no_torch_in_the_dashboard() -> None:
    code = (
        "import sys; from dashboard.app import build_app; build_app('none.db')\n"
        "print(sorted({name.split('.')[0] for name in sys.modules} & {'torch', 'transformers', 'recovery'}))"
    )
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_the_overview_shows_the_cycles_then_stays_silent(seeded: Any) -> None:
    source = Source(seeded.address)
    outputs = overview._refresh(source, None, Request())
    assert "Cycle 3: knowledge +95 points" in outputs[3]
    assert len(drawn(outputs)) == 2
    assert "./corpora/q2" in outputs[7] and "accepted" in outputs[7]
    again = overview._refresh(source, outputs[0], Request())
    assert drawn(again) == []
    assert again[-1] == SKIP


def test_a_loss_that_few_prompts_cannot_show_is_not_painted_as_one(address: Path | str, seeding: ModuleType) -> None:
    seeding.seed(address, cycles=1)
    with Tracker(address) as tracker:
        found = newest(tracker.database)
    row = found.cycles[0]
    assert row.recovered is not None and found.base is not None

    def tile(n: int) -> Tile:
        def scored(step: Any, value: float) -> Any:
            score = Score(value, (value * (1 - value) / n) ** 0.5, n)
            return dataclasses.replace(step, scores=dataclasses.replace(step.scores, instruction_following=score))

        cycle = dataclasses.replace(row, recovered=scored(row.recovered, 0.073))
        seen = dataclasses.replace(found, base=scored(found.base, 0.109), cycles=(cycle,))
        return overview._tiles(seen, {})[1]

    assert (tile(55).tone, tile(55).note) == ("", "base 10.9%, n = 55")
    assert (tile(5500).tone, tile(5500).note) == ("bad", "base 10.9%, n = 5,500")


@pytest.mark.parametrize("word", ["rejected", "rolled_back"])
def test_the_overview_is_headed_by_the_last_model_that_was_kept(
    address: Path | str, seeding: ModuleType, word: str
) -> None:
    seeded = seeding.seed(address, cycles=2, items=2, steps=2)
    source = Source(address)
    assert "Cycle 2: knowledge" in overview._refresh(source, None, Request())[3]
    with Tracker(address) as tracker:
        decide(tracker.database, seeded.cycles[1], word, who="Ada")
        found = queries.overview(tracker.database, seeded.experiment)
    assert found is not None and found.cycles[0].recovered is not None
    shown = overview._refresh(source, None, Request())[3]
    assert "Cycle 1: knowledge" in shown and "Cycle 2: knowledge" not in shown
    assert f"2 cycles, cycle 2 {word.replace('_', ' ')}" in shown
    assert found.kept[-1] == found.cycles[0].recovered
    following = found.cycles[0].recovered.scores.instruction_following
    assert following is not None and overview._tiles(found, {})[0].value == f"{100 * following.value:.1f}%"
    with Tracker(address) as tracker:
        decide(tracker.database, seeded.cycles[0], word, who="Ada")
    assert "No cycle was kept." in overview._refresh(source, None, Request())[3]


def test_what_the_gate_said_of_an_earlier_checkpoint_is_not_shown_as_of_the_last(
    address: Path | str, seeding: ModuleType
) -> None:
    seeding.seed(address, cycles=1)
    with Tracker(address) as tracker:
        seen = newest(tracker.database)
        row = seen.cycles[0]
        assert row.end is not None and row.midtrained is not None
        for step, shown in ((row.midtrained, False), (row.end, True)):
            judged = queries.evaluations(tracker.database, step.checkpoint.id)[0]
            verdict = dict.fromkeys(("student", "bound", "estimate", "low", "high"), 0.5)
            verdict |= {"rule": "ifeval >= 0.5", "verdict": "pass", "n": 9}
            data = {"verdicts": [verdict], "evaluations": {"student": {judged.suite: [judged.id]}}}
            tracker.event(seen.experiment.id, "judged", kind="gate", cycle_id=row.cycle.id, data=data)
            card = cycle._gate(Source(address), row)
            assert ("ifeval &gt;= 0.5" in card) == shown
            assert ("is about an earlier checkpoint" in card) != shown


def test_a_report_says_why_a_rule_did_not_pass_and_how_it_was_judged(address: Path | str, seeding: ModuleType) -> None:
    seeded = seeding.seed(address, cycles=1, items=2, steps=2)
    verdict = {"rule": "ifeval >= 0.9*base", "verdict": "undecided", "suite": "ifeval", "reason": "too few items"}
    verdict |= {"reference": 0.9, "estimate": 0.1, "low": -0.1, "high": 0.3, "n": 60, "paired": False}
    with Tracker(address) as tracker:
        made = queries.checkpoint(tracker.database, seeded.experiment, "cycle-1/recovered")
        assert made is not None
        used = tracker.add_evaluation(made.id, "ifeval", value=0.9, stderr=0.1, n=60)
        data = {"verdicts": [verdict], "decision": "undecided", "method": "bounds", "notes": ["some 900 prompts"]}
        data |= {"evaluations": {"student": {"ifeval": [used]}}}
        tracker.event(seeded.experiment, "judged", kind="gate", cycle_id=seeded.cycles[0], data=data)
        (judged,) = queries.events(tracker.database, seeded.experiment, kind="gate")
        _, table, note = cycle_report._judgement(tracker.database, judged)
        assert isinstance(table, Table) and table.rows == (
            ("ifeval >= 0.9*base", "undecided", "ifeval", "too few items"),
        )
        assert "some 900 prompts" in str(note)
        tracker.add_evaluation(made.id, "ifeval", value=0.2, stderr=0.1, n=60)
        assert "before the newest evaluation" in str(list(cycle_report._judgement(tracker.database, judged))[1])


def test_instruction_types_and_samples_are_of_one_suite(address: Path | str, seeding: ModuleType) -> None:
    """A tool's log of IFEval is no evaluation on the model's own prompts."""
    seeding.seed(address, cycles=1)
    with Tracker(address) as tracker:
        found = newest(tracker.database)
        assert found.base is not None
        imported = tracker.add_checkpoint(found.experiment.id, "other", "recovered", path="other")
        for checkpoint, value in ((found.base.checkpoint.id, 0.4), (imported, 0.41)):
            tracker.add_evaluation(checkpoint, "ifeval", value=value, stderr=0.01, n=541)
        rows = {one.name: one for one in queries.checkpoints(tracker.database, found.experiment.id)}
        other = dataclasses.replace(found.base, checkpoint=rows["other"])
        steps = {"base": found.base, "mid-trained": found.cycles[0].midtrained, "recovered": other}
        of = cycle.following(cycle.by_suite(Source(address), steps))
        assert {name: row.suite for name, row in of.items()} == {"base": "ifeval", "recovered": "ifeval"}
        steps["recovered"] = found.cycles[0].recovered
        of = cycle.following(cycle.by_suite(Source(address), steps))
        assert {row.suite for row in of.values()} == {"instruction_following"} and len(of) == 3


def test_scores_are_named_and_said_what_they_are_of(address: Path | str, source: Source, seeding: ModuleType) -> None:
    seeded = seeding.seed(address, cycles=2)
    table = overview._refresh(source, None, Request())[7]
    assert 'data-name="Stored knowledge"' in table and "newest corpus, by the likelihood of its own text" in table
    assert "rolled-back" not in table
    tables = compare._show(source, Request())[-1]
    for title, _, about in compare.SUITES:
        assert f'data-name="{title}"' in tables and f"{title}: {escape(about)}." in tables, title
    with Tracker(address) as tracker:
        decide(tracker.database, seeded.cycles[1], "rolled_back", who="Ada")
    assert "its corpus counts in its row only" in overview._refresh(source, None, Request())[7]


def test_a_base_that_is_only_registered_is_not_called_measured(address: Path | str) -> None:
    with Tracker(address) as tracker:
        experiment = tracker.experiment("mine")
        base = tracker.add_checkpoint(experiment, "base", "base", path="base")
        assert "Nothing measured yet" in overview._refresh(Source(address), None, Request())[3]
        tracker.add_evaluation(base, "general", value=0.5, stderr=0.1, n=9)
        assert "The base model is measured" in overview._refresh(Source(address), None, Request())[3]


def test_the_drift_card_has_every_figure_of_a_report(address: Path | str, seeding: ModuleType) -> None:
    """The details are those that `recover drift` stores."""
    kl = Score(0.25, 0.01, 400)
    measures = {"lexical_mmd2": 0.125, "token_jaccard": 0.5}
    null = {"lexical_mmd2": 0.0125, "token_jaccard": 0.75}
    positions = [(1, 16, kl), (17, 24, Score(0.0625, 0.01, 9))]
    documents = DocumentDrift(1, 4, kl, kl, Score(1.5, 0.1, 4), Score(2.75, 0.1, 4))
    report = DriftReport("cycle-1/recovered", "base", 200, measures, null, kl, kl, positions, documents)  # type: ignore[arg-type]
    seeding.seed(address, cycles=1)
    with Tracker(address) as tracker:
        found = newest(tracker.database)
        assert found.cycles[0].end is not None
        end = found.cycles[0].end.checkpoint.id
        tracker.add_evaluation(end, "drift", value=0.25, stderr=0.01, n=400, details=dataclasses.asdict(report))
    card = cycle._drift(Source(address), found.cycles[0])
    assert "None" not in card and card.count("<tr>") == 1 + 2 + 2 + 2 + 4
    for shown in ("lexical mmd2", "0.1250", "0.0125", "0.2304 to 0.2696, n = 400", "tokens 17 to 24", "0.0625"):
        assert shown in card, shown
    assert "base&#x27;s bits per byte on 4 documents of corpus 1" in card and "2.75" in card


def test_stale_answers_are_told_beside_the_knowledge(address: Path | str, seeding: ModuleType) -> None:
    seeding.seed(address, cycles=2)

    def card() -> str:
        found = newest(Source(address).database())
        return cycle._knowledge(found, found.cycles[1], {})

    assert "Outdated" not in card()
    with Tracker(address) as tracker:
        end = newest(tracker.database).cycles[1].end
        assert end is not None
        tracker.add_evaluation(end.checkpoint.id, "stale_answers", corpus=1, value=0.125, stderr=0.1, n=8)
    assert "Outdated questions that are answered as before: 12.5% of 8 about corpus 1." in card()


def test_a_page_behind_the_last_samples_is_the_last_page(address: Path | str, seeding: ModuleType) -> None:
    seeding.seed(address, cycles=1, items=12)
    html = words(samples, Source(address), **{"show": "all", "from": "16"})
    assert "9 to 12 of 12" in html and "Nothing matches" not in html and html.count("<article") == 4
    assert 'rel="prev"' in html and 'rel="next"' not in html


def test_backward_transfer_is_shown_only_of_the_cycle_itself(address: Path | str, seeding: ModuleType) -> None:
    """Recorded after the cycle was rolled back, it is that of the cycle before."""
    seeded = seeding.seed(address, cycles=2)
    with Tracker(address) as tracker:
        end = queries.checkpoint(tracker.database, seeded.experiment, "cycle-2/recovered")
        assert end is not None
        decide(tracker.database, seeded.cycles[1], "rolled_back", who="Ada")
        for cycles, shown in (([1, 2], True), ([1], False), ([], False)):
            found = {"checkpoint": end.name, "newest_evaluation": newest_compared(tracker.database, end.id)}
            found |= {"compared_with": {}, "knowledge": {"cycles": cycles, "backward_transfer": -0.031}}
            tracker.cycle(seeded.experiment, 2, details={"evidence": found})
            card = str(cycle._show(Source(address), Access(), Request())[-1])  # type: ignore[arg-type]
            assert ("Backward transfer of cycle-2/recovered: −3.1 points" in card) == shown
            assert ("Backward transfer" in card) == shown


def test_what_a_cycle_lost_before_its_recovery_is_listed(
    address: Path | str, source: Source, seeding: ModuleType
) -> None:
    seeded = seeding.seed(address, cycles=1, running=True)
    lost, still = (words(samples, source, cycle="2", show=fate) for fate in ("lost", "still-lost"))
    assert "Nothing matches" not in lost and lost.count("<article") == still.count("<article") > 0
    assert "Nothing matches" in words(samples, source, cycle="2", show="back")
    seeded.running.interrupt()
    tracker = seeded.tracker
    for name, value in (("base", 0.9), ("cycle-1/recovered", 0.4)):
        found = queries.checkpoint(tracker.database, seeded.experiment, name)
        assert found is not None
        items = [seeding.sample(at, passed=value > 0.5) for at in range(3)]
        tracker.add_evaluation(found.id, "ifeval", value=value, stderr=0.1, n=3, items=items)
    middle = queries.checkpoint(tracker.database, seeded.experiment, "cycle-1/midtrained")
    assert middle is not None
    with tracker.database.writing() as connection:
        connection.execute(delete(Evaluation).where(Evaluation.checkpoint_id == middle.id))
    shown = words(samples, source, cycle="1", show="lost")
    assert "Not measured" in shown and "Nothing matches" not in shown
    tracker.close()


def test_the_gates_bound_is_drawn_only_on_its_own_scale(
    address: Path | str, source: Source, seeding: ModuleType
) -> None:
    seeded = seeding.seed(address, cycles=1)
    seen = overview._refresh(source, None, Request())[0]
    for suite, bound, shown in (("ifeval", 0.29, False), ("instruction_following", 0.918, True)):
        verdict = {"rule": "ifeval >= 0.96*base", "suite": suite, "verdict": "undecided", "bound": bound}
        with Tracker(address) as tracker:
            data = {"verdicts": [verdict]}
            tracker.event(seeded.experiment, "judged", kind="gate", cycle_id=seeded.cycles[0], data=data)
        outputs = overview._refresh(source, seen, Request())
        assert any(isinstance(one, Figure) for one in outputs) == shown, suite


def test_types_have_no_change_before_they_are_measured(
    address: Path | str, source: Source, seeding: ModuleType
) -> None:
    seeded = seeding.seed(address, cycles=1)
    with Tracker(address) as tracker:
        cycle_id = tracker.cycle(seeded.experiment, 2, documents="q2")
        latest = queries.latest(tracker.database, seeded.experiment)
        assert latest is not None
        midtrained = tracker.add_checkpoint(
            seeded.experiment, "cycle-2/midtrained", "midtrained", path="x", parent_id=latest.id, cycle_id=cycle_id
        )
        seeding._evaluate(tracker, midtrained, random.Random(1), 30, following=0.2, known={}, corpora=2)
        tracker.add_checkpoint(
            seeded.experiment, "cycle-2/recovered", "recovered", path="x", parent_id=midtrained, cycle_id=cycle_id
        )
    found = cycle._find(source, Request())
    assert found is not None
    shown = cycle._types(source, *found, {})
    assert "−" in shown and "±0" not in shown
    clear = {"low": -0.09, "high": -0.01, "p_adjusted": 0.01}
    for end, tone, fate, tested in (
        (0.44, "bad", "still-lost", clear), (0.44, "noise", "still-lost", clear | {"p_adjusted": 0.2}),
        (0.44, "noise", "still-lost", clear | {"high": 0.02}), (0.49, "noise", "still-lost", None),
        (0.5, "noise", "all", None), (0.6, "", "all", clear | {"low": 0.04, "high": 0.16}),
    ):  # fmt: skip
        scores = {name: {"two words": {"value": value, "n": 10}} for name, value in (("base", 0.5), ("recovered", end))}
        cells = cycle._type_row(*found, "two words", scores, "recovered", tested)
        assert f'class="{tone}"' in cells[4] and f"show={fate}&amp;type=two%20words" in cells[-1]


def test_experiments_stand_side_by_side(address: Path | str, source: Source, seeding: ModuleType) -> None:
    seeding.seed(address)
    alone = overview._refresh(source, None, Request())
    assert alone[8]["visible"] is False and alone[-1] == "", "nothing to compare with"
    seeding.seed(address, name="<b>second", cycles=1, items=4, steps=5)
    name = "default"
    outputs = overview._refresh(source, None, Request({"experiment": name}))
    assert outputs[8]["visible"] is True
    assert [trace.name for trace in checked(outputs[10]).data] == [name, "&lt;b>second"]
    assert "<b>second" not in outputs[-1] and "&lt;b&gt;second" in outputs[-1]
    assert f'href="./?experiment={name}&amp;beside="' in outputs[-1], "a link to hide it"
    without = overview._refresh(source, None, Request([("experiment", name), ("beside", "")]))
    assert [trace.name for trace in checked(without[10]).data] == [name]
    assert f"experiment={name}&amp;beside=%3Cb%3Esecond" in without[-1], "and one to draw it again"


def test_what_runs_is_announced_on_the_overview(running: Any) -> None:
    outputs = overview._refresh(Source(running.address), None, Request())
    assert "Recovery, cycle 2" in outputs[3] and "34 of 80 steps" in outputs[3]
    assert "not recovered yet" in outputs[3]


def test_the_banner_leads_to_the_running_stage_of_its_experiment(running: Any) -> None:
    running.tracker.experiment("newer than it")
    name = queries.experiment(running.tracker.database, running.experiment).name
    shown = overview._refresh(Source(running.address), None, Request({"experiment": name}))[3]
    stage = queries.running_stage(running.tracker.database)
    assert stage is not None and f"live?experiment={name}&amp;stage={stage.id}" in shown


def test_evaluations_do_not_hide_what_was_trained(address: Path | str, seeding: ModuleType) -> None:
    seeded = seeding.seed(address, cycles=1)
    with Tracker(address) as tracker:
        for _ in range(live.RECENT):
            with tracker.start_stage(seeded.experiment, "evaluate"):
                pass
    assert "Nothing has been trained yet" not in live._refresh(Source(address), None, Request())[3]


def test_what_is_no_share_is_a_number() -> None:
    perplexity = Score(31.4, 0.2, 100)
    assert compare._score("lm_eval/wikitext", perplexity) == "<b>31.40</b> <small>31.01 to 31.79, n = 100</small>"
    assert "%" not in compare._score("unrelated_text", Score(0.97, 0.01, 100))
    assert "<b>50.0%</b>" in compare._score("general", Score(0.5, 0.1, 100))


def test_a_database_that_appears_later_fills_the_page(address: Path | str, source: Source, seeding: ModuleType) -> None:
    first = overview._refresh(source, None, Request())
    assert "recover demo" in first[3]
    assert overview._refresh(source, first[0], Request())[3] == SKIP
    seeding.seed(address, cycles=1, items=2, steps=5)
    assert "Cycle 1: knowledge" in overview._refresh(source, first[0], Request())[3]


def test_states_that_say_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "tracker.db"
    source = Source(path)
    with Tracker(path) as tracker:
        assert "No experiment here yet" in overview._refresh(source, None, Request())[3]
        experiment = tracker.experiment("mine")
        assert "Nothing measured yet" in overview._refresh(source, None, Request())[3]
        assert "Nothing has been trained yet" in live._refresh(source, None, Request())[3]
        assert "none named other" in live._refresh(source, None, Request({"experiment": "other"}))[3]
        with pytest.raises(ValueError), tracker.start_stage(experiment, "distill"):
            raise ValueError("out of memory at step 3")
        failed = live._refresh(source, None, Request())[3]
        assert "out of memory at step 3" in failed and "recover resume" in failed
    path.write_text("not a database " * 100)
    for page in (overview, live):
        assert "cannot be read" in page._refresh(source, None, Request())[3]


@pytest.mark.differs
def test_the_live_page_shows_what_runs(running: Any) -> None:
    outputs = live._refresh(Source(running.address), None, Request())
    assert "Recovery, cycle 2" in outputs[3] and 'aria-valuenow="34"' in outputs[3]
    assert re.search(r"so far, 1 min( \d+ s)? left", outputs[3])  # 46 steps of 1.7 s
    assert len(drawn(outputs)) == 9
    assert outputs[-2].count("<tr>") == 6  # the header, registering, mid-training and distillation twice


def test_the_time_left_follows_the_recent_pace(stage: Stage) -> None:
    now = time.time()
    slow = [Point(step, 1.0, 1.0, 1.0, now - 400 + 10 * step) for step in range(1, 41)]
    fast = [Point(40 + step, 1.0, 1.0, 1.0, now - 30 + step) for step in range(1, 31)]
    assert live.time_left(stage, {"loss": slow}) == pytest.approx(400, abs=2)
    assert live.time_left(stage, {"loss": slow + fast}) == pytest.approx(10 * 1.0, abs=2)
    ahead = [dataclasses.replace(point, time=point.time - 3600) for point in slow]  # by a clock that is an hour behind
    assert 380 <= (live.time_left(stage, {"loss": ahead}) or 0) <= 400
    interrupted = [dataclasses.replace(point, time=point.time - (36_000 if point.step < 25 else 0)) for point in slow]
    assert live.time_left(stage, {"loss": interrupted}) == pytest.approx(400, abs=2)
    assert live.time_left(stage, {"loss": slow[:1]}) is None
    assert live.time_left(dataclasses.replace(stage, steps_total=None), {"loss": slow}) is None


@pytest.mark.differs
def test_a_tick_sends_only_what_is_new(running: Any, source: Source) -> None:
    seen = live._refresh(source, None, Request())[0]
    silent = live._refresh(source, seen, Request())
    assert drawn(silent) == []
    assert silent[-1] == SKIP
    running.running.log(35, {"entropy": 0.3})
    running.tracker.flush()
    one = live._refresh(source, silent[0], Request())
    assert drawn(one) == []
    assert one[-1]["panels"] == {"panel-1": {"entropy": [[35], [0.3]]}}
    assert "35 of 80 steps" in one[3]
    running.running.log(35, {"end_rate": 0.9})  # the same step, later, like the score of an evaluation
    running.tracker.flush()
    late = live._refresh(source, one[0], Request())
    assert late[-1]["panels"] == {"panel-3": {"end_rate": [[35], [0.9]]}}
    running.running.log(36, {"loss": 1.0})
    running.tracker.flush()
    assert len(drawn(live._refresh(source, late[0], Request()))) > 0  # a new curve adds a panel


def test_a_stage_without_curves_does_not_keep_those_of_the_one_before(running: Any, source: Source) -> None:
    seen = live._refresh(source, None, Request())[0]
    running.running.finish("recovered")
    with running.tracker.start_stage(running.experiment, "midtrain", steps_total=9):
        running.tracker.flush()
        outputs = live._refresh(source, seen, Request())
        assert "Mid-training" in outputs[3]
        assert [column["visible"] for column in outputs[4 : 4 + live.PANELS_SHOWN]] == [False] * live.PANELS_SHOWN


def test_an_evaluation_has_items_of_a_suite_and_no_steps(address: Path | str, source: Source) -> None:
    with Tracker(address) as tracker:
        experiment = tracker.experiment("default")
        with tracker.start_stage(experiment, "evaluate", steps_total=40) as stage:
            stage.progress(7)
            tracker.flush()
            banner = overview._refresh(source, None, Request())[3]
            assert "7 of 40 items of a suite" in banner
            assert "A stage is running (evaluation)" in banner and "recover cycle" not in banner
            assert "recover eval" not in words(knowledge, source)
            assert "7 of 40 items of a suite, " in live._refresh(source, None, Request())[3]
            stage.describe(details={SUITE: "domain_knowledge/1"})
            assert "7 of 40 items of domain knowledge/1" in overview._refresh(source, None, Request())[3]
            assert "7 of 40 items of domain knowledge/1, " in live._refresh(source, None, Request())[3]
        found = queries.stage(tracker.database, stage.id)
        assert found is not None and found.steps_done == 7 and (found.done, found.steps) == ("", None)
        ended = live._refresh(source, None, Request({"stage": str(stage.id)}))
        assert "ended after" in ended[3] and "7 of 40" not in ended[3] and "progressbar" not in ended[3]
        assert 'data-name="Steps">–<' in ended[-2]


def test_a_long_curve_stays_bounded(address: Path | str) -> None:
    with Tracker(address) as tracker:
        stage = tracker.start_stage(tracker.experiment("long"), "midtrain", steps_total=4000)
        source, seen = Source(address), None
        for step in range(1, 4001):
            stage.log(step, {"loss": 1 / step})
            if step % 250 == 0:
                tracker.flush()
                seen = live._refresh(source, seen, Request())[0]
                assert len(seen.series["loss"]) <= live.POINTS_KEPT
        assert seen is not None and seen.steps == {"loss": 4000}


def test_a_tick_reads_what_is_new_however_long_the_curve(
    running: Any, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = live._refresh(source, None, Request())[0]
    read: list[int] = []
    whole = queries.series

    def counted(*arguments: Any, **settings: Any) -> dict[str, list[Point]]:
        found = whole(*arguments, **settings)
        read.append(sum(len(points) for points in found.values()))
        return found

    monkeypatch.setattr(queries, "series", counted)
    for step in range(35, 35 + 2 * live.POINTS_KEPT):
        running.running.log(step, {"reverse_kl": 1 / step})
        if step % 100 == 0:
            running.tracker.flush()
            seen = live._refresh(source, seen, Request())[0]
    assert max(read) <= 100 and len(read) == 2 * live.POINTS_KEPT // 100
    assert len(seen.series["reverse_kl"]) <= live.POINTS_KEPT


def test_a_stage_resumed_from_an_earlier_step_is_drawn_anew(running: Any, source: Source) -> None:
    seen = live._refresh(source, None, Request())[0]
    running.running.interrupt()
    again = running.tracker.resume_stage(running.running.id, from_step=10)
    outputs = live._refresh(source, seen, Request())
    figure = outputs[drawn(outputs)[0]]
    assert max(checked(figure).data[0].x) == 10
    assert "attempt 2" in outputs[3]
    again.interrupt()
    assert "recover resume" in live._refresh(source, outputs[0], Request())[3]


def test_alarms_are_reported_while_they_last(running: Any) -> None:
    source, tracker, stage = Source(running.address), running.tracker, running.running
    experiment = queries.running_stage(tracker.database).experiment_id
    seen = live._refresh(source, None, Request())[0]

    def shown_after(message: str, level: str, step: int) -> str:
        data = {"signal": "entropy", "step": step}
        tracker.event(experiment, message, kind="alarm", level=level, stage_id=stage.id, data=data)
        return live._refresh(source, seen, Request())[3]

    assert "Alarm" not in live._refresh(source, seen, Request())[3]
    began = shown_after("entropy fell to 0.01 <b>", "warning", 31)
    assert "entropy fell to 0.01 &lt;b&gt;, since step 31" in began and "notice bad" in began
    over = shown_after("entropy is back in its range", "info", 33)
    assert "since step 31" not in over and "back in its range (step 33)" in over
    tracker.event(experiment, "elsewhere", kind="alarm", level="warning", stage_id=running.distill[0])
    assert "elsewhere" not in live._refresh(source, seen, Request())[3]


def test_a_stage_that_has_gone_silent_is_reported(stage: Stage) -> None:
    assert live._alarms(stage, []) == ""
    silent = dataclasses.replace(stage, silent_seconds=95.0)
    assert "No heartbeat" in live._alarms(silent, []) and "recover resume" in live._alarms(silent, [])
    assert live._alarms(dataclasses.replace(silent, status="interrupted"), []) == ""


def test_an_address_may_name_a_stage_of_its_experiment(running: Any, source: Source) -> None:
    first = running.distill[0]
    shown = live._refresh(source, None, Request({"stage": str(first)}))
    assert "Recovery, cycle 1" in shown[3] and "60 of 60 steps" in shown[3]
    other = running.tracker.experiment("other")
    assert "Nothing has been trained yet" in live._refresh(source, None, Request({"experiment": "other"}))[3]
    assert queries.stages(running.tracker.database, other) == []


def test_unknown_metrics_have_panels_of_their_own(running: Any) -> None:
    panels = live._panels({"reverse_kl": [], "drift_rbf": [Point(1, 1.0, 1.0, 1.0, 0.0)]})
    assert [panel.title for panel in panels] == ["drift rbf"]


def test_a_declared_figure_has_its_title_on_the_compare_page(stage: Stage) -> None:
    declared = {"figures": {"skew": {"title": "Skewed", "unit": "nats"}}}
    panels = live.declared_panels(dataclasses.replace(stage, details=declared))
    assert compare._curve_name("skew", panels) == ("Skewed", "nats")
    assert compare._curve_name("skew", live.PANELS) == ("skew", "")


def test_a_stage_declares_the_figure_of_its_divergence(stage: Stage) -> None:
    points = {name: [Point(1, 1.0, 1.0, 1.0, 0.0)] for name in ("skew", "jsd", "reverse_kl", "loss")}

    def titles(**changed: Any) -> list[str]:
        declared = live.declared_panels(dataclasses.replace(stage, **changed))
        return [panel.title for panel in live._panels(points, declared)]

    declared = {"figures": {"skew": {"title": "Skewed", "unit": "nats"}, "reverse_kl": {"title": "R", "unit": ""}}}
    assert titles(details=declared) == ["Skewed", "Reverse KL to the teacher", "Loss", "jsd"]
    older = titles(details={}, config={"divergence": "jsd"})
    assert older == ["Divergence to the teacher", "Reverse KL to the teacher", "Loss", "skew"]


def test_every_panel_has_a_place_on_the_page(stage: Stage) -> None:
    series = {name: [Point(1, 1.0, 1.0, 1.0, 0.0)] for panel in live.PANELS for name in panel.names}
    assert live._panels(series) == list(live.PANELS) and len(live.PANELS) < live.PANELS_SHOWN
    more = live._panels({"own_<b>": series["loss"]})
    assert "not drawn here (own &lt;b&gt;)" in live._summary(stage, series, [], more)
    assert "not drawn here" not in live._summary(stage, series, [])


def test_a_reward_has_a_panel_and_curves_of_the_geometry_page_none() -> None:
    """Six curves of the geometry took the places in which the reward of a GRPO run would have been."""
    names = ("policy_loss", "reward", "ratio", "clipped", *(f"geometry/{name}" for name in "abcdef"))
    panels = live._panels({name: [Point(1, 1.0, 1.0, 1.0, 0.0)] for name in names})
    titles = ["Loss", "Reward", "Importance ratio", "Tokens clipped, capped or dropped"]
    assert [panel.title for panel in panels] == titles


def test_a_number_in_an_address_that_no_id_can_be_is_ignored(seeded: Any) -> None:
    assert common.parse_number("7") == 7
    odd = ("²", "٣", "9" * 30, "9" * 5000, "-1", "1.5", "")
    assert [common.parse_number(number) for number in odd] == [None] * len(odd)
    source = Source(seeded.address)
    for number in odd:
        assert "cycle 3" in live._refresh(source, None, Request({"stage": number}))[3], number[:9]
        assert "<article" in words(samples, source, **{"from": number}), number[:9]


def shown_cycle(source: Source, query: dict[str, str] | None = None) -> str:
    """Return what the page Cycle names as shown."""
    outputs = cycle._show(source, Access(), Request(query or {}))  # type: ignore[arg-type]
    found = re.search(r'data-cycle="([^"]+)"', outputs[2])
    assert found is not None
    return found[1]


def accept(source: Source, token: Any, why: str = "sound") -> str:
    """Accept a cycle on its page; return all that the page then says."""
    outputs = cycle._enter(source, Access(), Request(), "accepted", token, "Ada", why)  # type: ignore[arg-type]
    return "".join(output for output in outputs if isinstance(output, str))


def test_a_decision_that_is_too_long_is_not_recorded(seeded: Any) -> None:
    source = Source(seeded.address)
    token = shown_cycle(source)
    for who, why in (("a" * 81, "sound"), ("Ada", "a" * 2001), ("Ada", None)):
        said = cycle._enter(source, Access(), Request(), "accepted", token, who, why)[0]  # type: ignore[arg-type]
        assert "Not recorded" in said and ("at most" in said or why is None)
    kept = [one.why for number in seeded.cycles for one in queries.decisions(source.database(), number)]
    assert kept == ["knowledge kept, behaviour back"]


def test_a_decision_is_about_the_cycle_that_was_shown(one_cycle: Any, seeding: ModuleType) -> None:
    source, address = Source(one_cycle.address), one_cycle.address
    token = shown_cycle(source)
    with Tracker(address) as tracker:
        second = tracker.cycle(one_cycle.experiment, 2)
    other = seeding.seed(address, cycles=1, items=2, steps=2, name="newer")
    said = accept(source, token)
    assert "Cycle 1 accepted" in said and "The latest checkpoint is cycle-1/recovered, unchanged." in said
    assert "Ada" in said and "Cycle 2" in said, "the cycle that was decided is still shown"
    made = [queries.decisions(source.database(), number) for number in (*one_cycle.cycles, second, *other.cycles)]
    assert [[one.why for one in decisions] for decisions in made] == [["sound"], [], []]


def test_a_decision_about_what_has_changed_since_it_was_shown_is_refused(one_cycle: Any) -> None:
    source, (first,) = Source(one_cycle.address), one_cycle.cycles
    token = shown_cycle(source)
    accept(source, token)
    for old in (token, "", None, "1", token.replace("-", "-9", 1), "9" * 5000):
        said = accept(source, old, "again")
        assert "Not recorded" in said and "reload the page" in said and "<table" not in said
    token = shown_cycle(source)
    with Tracker(one_cycle.address) as tracker:
        tracker.add_checkpoint(one_cycle.experiment, "cycle-1/recovered-2", "recovered", path="x", cycle_id=first)
    assert "reload the page" in accept(source, token, "of another checkpoint")
    assert [one.why for one in queries.decisions(source.database(), first)] == ["sound"]


def test_a_dashboard_that_only_reads_offers_no_report(
    one_cycle: Any, source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Source, "own", "default")

    def summary(access: Access) -> str:
        return str(cycle._show(source, access, Request())[2])  # type: ignore[arg-type]

    assert "download/report/1.html" in summary(Access())
    assert "download/report" not in summary(Access(read_only=True))


def test_tests_and_stored_scores_are_of_the_checkpoint_that_is_shown(one_cycle: Any) -> None:
    source, (first,), tested = Source(one_cycle.address), one_cycle.cycles, "cycle-1/recovered"
    row = {"name": "general", "first": 0.957, "second": 0.951, "difference": -0.006, "low": -0.02, "high": 0.01,
           "lost": 9, "won": 2, "p_value": 0.2, "p_adjusted": 0.2, "n": 1000}  # fmt: skip

    def cards() -> str:
        return str(cycle._show(source, Access(), Request())[-1])  # type: ignore[arg-type]

    with Tracker(one_cycle.address) as tracker:
        made = {one.name: one.id for one in queries.checkpoints(tracker.database, one_cycle.experiment)}
        found = {"checkpoint": tested, "compared_with": {"base": {"suites": [row]}}}
        found["newest_evaluation"] = newest_compared(tracker.database, made[tested])
        tracker.cycle(one_cycle.experiment, 1, details={"evidence": found})
        tracker.add_evaluation(made[tested], "drift", value=0.1, stderr=0.01, n=9)  # never part of the tests
        assert f"Of {tested}" in cards() and "95.1%" in cards()
        accept(source, shown_cycle(source))
        tracker.add_evaluation(made[tested], "general", value=0.7, stderr=0.01, n=1000)
        assert f"not known to cover the newest evaluation of {tested}" in cards() and "95.1%" not in cards()
        again = tracker.add_checkpoint(
            one_cycle.experiment, f"{tested}-2", "recovered", path="x", parent_id=made[tested], cycle_id=first
        )
        tracker.add_evaluation(again, "general", value=0.4, stderr=0.015, n=1000)
        assert f"are of {tested}, not of {tested}-2" in cards() and "recover report 1" not in cards()
        accept(source, shown_cycle(source))
    newer, older = (one.evidence for one in queries.decisions(source.database(), first))
    assert (older["checkpoint"], older["compared_with"], set(older["scores"])) == (
        tested, found["compared_with"], {"base", tested},
    )  # fmt: skip
    assert newer["checkpoint"] == f"{tested}-2" and "compared_with" not in newer
    assert newer["scores"][f"{tested}-2"]["general"]["value"] == 0.4
    assert newer["scores"]["base"]["general"]["value"] == 0.981


def test_buttons_refuse_what_the_command_line_refuses_and_a_trial_is_named(address: Path | str, source: Source) -> None:
    with Tracker(address) as tracker:
        experiment = tracker.experiment("default")
        base = tracker.add_checkpoint(experiment, "base", "base", path="base", content_hash="a", tuning="full")
        tracker.set_latest(experiment, base)
        number = tracker.cycle(experiment, 1)
        with tracker.start_stage(experiment, "midtrain", cycle_id=number, config={"trial": True}):
            tracker.flush()
            shown = cycle._show(source, Access(), Request())  # type: ignore[arg-type]
        assert "It is a trial: its figures decide nothing." in shown[2]
        assert [button["interactive"] for button in shown[5:8]] == [False, False, False]
        assert "Accept: cycle 1 is a trial: its figures decide nothing; run it without --trial" in shown[4]
        assert "Reject: stage 1 (midtrain) is training and will become the latest" in shown[4]
        with pytest.raises(DatabaseError, match="cycle 1 is a trial: its figures decide nothing; run it without"):
            decide(tracker.database, number, "accepted", who="Ada", why="sound")
    shown = cycle._show(source, Access(), Request())  # type: ignore[arg-type]
    assert [button["interactive"] for button in shown[5:8]] == [False, True, False], "it can be rejected now"


def test_every_button_is_there_for_a_measured_cycle(seeded: Any) -> None:
    shown = cycle._show(Source(seeded.address), Access(), Request())  # type: ignore[arg-type]
    assert [button["interactive"] for button in shown[5:8]] == [True, True, True]
