"""Queries: scores, summaries of cycles, incremental and averaged curves, samples."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from db import Database, Tracker, decide, open_readonly, queries, records
from db.sample_comparison import side_by_side


def overview_of(tracker: Tracker, experiment: int) -> records.Overview:
    found = queries.overview(tracker.database, experiment)
    assert found is not None
    return found


def name_of(step: records.Measured | None) -> str:
    return step.checkpoint.name if step is not None else ""


@pytest.fixture(scope="session")
def overview(readable: Database, seeded: Any) -> records.Overview:
    found = queries.overview(readable, seeded.experiment)
    assert found is not None
    return found


def test_the_path_goes_base_midtrained_recovered(overview: records.Overview) -> None:
    kinds = [step.checkpoint.kind for step in overview.path]
    assert kinds == ["base"] + ["midtrained", "recovered"] * 3
    assert overview.latest is not None and overview.latest.name == "cycle-3/recovered"
    assert overview.running is None


def test_a_cycle_in_words(overview: records.Overview) -> None:
    first, _, third = overview.cycles
    assert first.learnt == pytest.approx(0.97 - 0.024)
    assert first.lost is not None and 0.15 < first.lost < 0.30
    assert first.of_base.share == pytest.approx(0.991)
    lost = f"instruction following −{100 * first.lost:.0f} by mid-training"
    assert first.summary == f"cycle 1: knowledge +95 points, {lost}, ends at 99% of base"
    assert name_of(third.before) == "cycle-2/recovered"
    assert third.learnt == pytest.approx(0.97 - 0.024)  # base's score: cycle 2 was not evaluated on corpus 3


def test_knowledge_is_kept_by_corpus_and_pooled(overview: records.Overview) -> None:
    recovered = overview.cycles[2].recovered
    assert recovered is not None
    corpora = recovered.scores.domain_knowledge_by_corpus
    assert list(corpora) == [1, 2, 3]
    assert recovered.scores.domain_knowledge == corpora[3], "the newest corpus' own"
    pooled = overview.knowledge(recovered)
    assert pooled is not None
    assert pooled.n == 3000
    assert pooled.value == pytest.approx(sum(score.value for score in corpora.values()) / 3)
    assert pooled.stderr == pytest.approx(sum((score.stderr or 0) ** 2 for score in corpora.values()) ** 0.5 / 3)


def test_an_overall_score_goes_before_the_pooled_one_and_new_before_old(tracker: Tracker, experiment: int) -> None:
    checkpoint = tracker.add_checkpoint(experiment, "base", "base", path="a")
    for value, corpus in ((0.1, 1), (0.2, 1), (0.9, None)):
        tracker.add_evaluation(checkpoint, "domain_knowledge", value=value, stderr=0.0, n=10, corpus=corpus)
    tracker.add_evaluation(checkpoint, "drift", value=2.0, stderr=0.0, n=10)
    found = queries.scores(tracker.database, checkpoint)
    assert found.domain_knowledge_by_corpus[1].value == 0.2
    assert found.domain_knowledge is not None and found.domain_knowledge.value == 0.9
    assert found.others["drift"].value == 2.0
    assert found.instruction_following is None


def test_a_rejected_cycle_is_not_where_the_next_begins(tracker: Tracker, experiment: int) -> None:
    base = tracker.add_checkpoint(experiment, "base", "base", path="a")
    one, two = tracker.cycle(experiment, 1), tracker.cycle(experiment, 2)
    tracker.add_checkpoint(experiment, "cycle-1/recovered", "recovered", path="b", cycle_id=one, parent_id=base)
    decide(tracker.database, one, "rejected", who="Ada")
    found = overview_of(tracker, experiment)
    assert (name_of(found.cycles[1].before), found.cycles[1].summary) == ("base", "cycle 2: not measured yet")
    tracker.add_checkpoint(
        experiment, "cycle-2/midtrained", "midtrained", path="c", cycle_id=two,
        parent_id=tracker.add_checkpoint(experiment, "mine", "external", path="d"),
    )  # fmt: skip
    assert name_of(overview_of(tracker, experiment).cycles[1].before) == "mine"


def test_of_two_recoveries_a_cycle_shows_the_one_the_next_started_from(tracker: Tracker, experiment: int) -> None:
    one, two = tracker.cycle(experiment, 1), tracker.cycle(experiment, 2)
    first = tracker.add_checkpoint(experiment, "a", "recovered", path="a", cycle_id=one)
    tracker.add_checkpoint(experiment, "b", "recovered", path="b", cycle_id=one)
    assert name_of(overview_of(tracker, experiment).cycles[0].recovered) == "b"
    tracker.add_checkpoint(experiment, "c", "midtrained", path="c", cycle_id=two, parent_id=first)
    assert name_of(overview_of(tracker, experiment).cycles[0].recovered) == "a"


def test_a_cycles_row_holds_what_its_recovery_was_made_from(tracker: Tracker, experiment: int) -> None:
    """Several arms of an experiment share their cycles: what was lost and what came back are of one of them."""
    cycle = tracker.cycle(experiment, 1)
    parent = tracker.add_checkpoint(experiment, "base", "base", path="base")
    for name, kind in (("documents", "midtrained"), ("first", "recovered"), ("extended", "recovered")):
        parent = tracker.add_checkpoint(experiment, name, kind, path=name, cycle_id=cycle, parent_id=parent)
    tracker.add_checkpoint(experiment, "replay", "midtrained", path="replay", cycle_id=cycle)
    (row,) = overview_of(tracker, experiment).cycles
    assert (name_of(row.recovered), name_of(row.midtrained)) == ("extended", "documents")


def test_the_knowledge_of_base_is_of_the_corpora_of_what_it_is_compared_with(tracker: Tracker, experiment: int) -> None:
    base = tracker.add_checkpoint(experiment, "base", "base", path="base")
    for corpus, value in ((1, 0.3), (2, 0.02)):
        tracker.add_evaluation(base, "domain_knowledge", corpus=corpus, value=value, stderr=0.01, n=100)
    cycles = [tracker.cycle(experiment, number) for number in (1, 2)]
    end = tracker.add_checkpoint(experiment, "end", "recovered", path="x", parent_id=base, cycle_id=cycles[1])
    for corpus in (1, 2):
        tracker.add_evaluation(end, "domain_knowledge", corpus=corpus, value=0.225, stderr=0.01, n=100)
    tracker.set_latest(experiment, end)
    decide(tracker.database, cycles[1], "rejected", who="Ada")
    found = overview_of(tracker, experiment)
    checkpoint = found.path[-1].checkpoint
    known = found.known_before(checkpoint)
    assert found.corpora_of(checkpoint) == (1, 2) and known is not None and known.value == pytest.approx(0.16)
    third = tracker.cycle(experiment, 3)
    later = tracker.add_checkpoint(experiment, "later", "recovered", path="x", parent_id=base, cycle_id=third)
    tracker.add_evaluation(later, "domain_knowledge", corpus=3, value=0.9, stderr=0.01, n=100)
    again = overview_of(tracker, experiment)
    assert again.known_before(again.path[-1].checkpoint) is None, "base was not asked about one"


def test_a_cycle_that_begins_moves_no_score_of_the_model_before(tracker: Tracker, experiment: int) -> None:
    """Base is asked about the new documents first: the tile of a model that never saw them fell with its score."""
    base = tracker.add_checkpoint(experiment, "base", "base", path="base")
    cycle = tracker.cycle(experiment, 1)
    tracker.add_checkpoint(experiment, "end", "recovered", path="x", parent_id=base, cycle_id=cycle)
    for name, value in (("base", 0.1), ("end", 0.9)):
        made = queries.checkpoint(tracker.database, experiment, name)
        assert made is not None
        tracker.add_evaluation(made.id, "domain_knowledge", corpus=1, value=value, stderr=0.01, n=100)
    before = queries.overview(tracker.database, experiment)
    tracker.cycle(experiment, 2)
    tracker.add_evaluation(base, "domain_knowledge", corpus=2, value=0.0, stderr=0.01, n=100)
    after = queries.overview(tracker.database, experiment)
    assert before is not None and after is not None
    assert after.knowledge(after.path[-1]) == before.knowledge(before.path[-1])
    assert after.known_before(after.path[-1].checkpoint) == before.known_before(before.path[-1].checkpoint)


def test_knowledge_is_unknown_where_a_corpus_has_no_score(tracker: Tracker, experiment: int) -> None:
    """Its own overall score is about other questions: that of a cycle on one corpus stood beside means over all."""
    base = tracker.add_checkpoint(experiment, "base", "base", path="base")
    for number in (1, 2):
        cycle = tracker.cycle(experiment, number)
        end = tracker.add_checkpoint(experiment, f"{number}", "recovered", path="x", cycle_id=cycle)
        tracker.add_evaluation(end, "domain_knowledge", corpus=number, value=0.8, stderr=0.01, n=100)
    found = overview_of(tracker, experiment)
    assert [found.knowledge(row.recovered) is None for row in found.cycles][1]
    tracker.add_evaluation(base, "domain_knowledge", corpus=1, value=0.2, stderr=0.01, n=100)
    found = overview_of(tracker, experiment)
    known = found.knowledge(found.cycles[1].recovered)
    assert known is not None and known.value == pytest.approx(0.5)


def test_the_knowledge_of_a_checkpoint_is_about_its_newest_corpus(tracker: Tracker, experiment: int) -> None:
    """The page Compare says so; it was the mean over all corpora where an evaluation had not repeated the score."""
    made = tracker.add_checkpoint(experiment, "base", "base", path="base")
    for suite in ("domain_knowledge", "domain_knowledge_stored", "bits_per_byte"):
        for corpus, value in ((1, 0.2), (2, 0.8)):
            tracker.add_evaluation(made, suite, corpus=corpus, value=value, stderr=0.01, n=100)
    scores = queries.scores(tracker.database, made)
    assert scores.domain_knowledge is not None and scores.domain_knowledge.value == 0.8
    assert scores.domain_knowledge_stored is not None and scores.domain_knowledge_stored.value == 0.8
    assert scores.bits_per_byte is not None and scores.bits_per_byte.value == pytest.approx(0.5)


def test_a_student_degraded_elsewhere_stands_before_its_recovery(tracker: Tracker, experiment: int) -> None:
    tracker.add_checkpoint(experiment, "base", "base", path="a")
    cycle = tracker.cycle(experiment, 1)
    tracker.add_checkpoint(experiment, "external/mine", "external", path="b", cycle_id=cycle)
    tracker.add_checkpoint(experiment, "cycle-1/recovered", "recovered", path="c", cycle_id=cycle)
    (row,) = overview_of(tracker, experiment).cycles
    assert (name_of(row.midtrained), row.summary) == ("external/mine", "cycle 1: not measured yet")


@pytest.mark.differs
def test_a_corpus_that_was_rolled_back_does_not_count(tracker: Tracker, experiment: int) -> None:
    base = tracker.add_checkpoint(experiment, "base", "base", path="base")
    for corpus in (1, 2, 3):
        tracker.add_evaluation(base, "domain_knowledge", corpus=corpus, value=0.02, stderr=0.005, n=500)
    kept = base
    for number, corpora in ((1, [1]), (2, [1, 2]), (3, [1, 3])):
        cycle = tracker.cycle(experiment, number)
        end = tracker.add_checkpoint(
            experiment, f"cycle-{number}/recovered", "recovered", path="x", parent_id=kept, cycle_id=cycle
        )
        for corpus in corpora:
            tracker.add_evaluation(end, "domain_knowledge", corpus=corpus, value=0.95, stderr=0.01, n=500)
        tracker.set_latest(experiment, end)
        if number == 2:
            decide(tracker.database, cycle, "rolled_back", who="Ada", why="wrong documents")
        else:
            kept = end
    found = overview_of(tracker, experiment)
    last, gone = (found.cycles[at].recovered for at in (2, 1))
    assert last is not None and gone is not None and found.base is not None
    assert [found.corpora_of(one.checkpoint) for one in (found.base, gone, last)] == [(1, 3), (1, 2), (1, 3)]
    known = found.knowledge(last)
    assert known is not None and known.value == pytest.approx(0.95)


def test_a_checkpoint_without_knowledge_scores_does_not_have_the_bases(tracker: Tracker, experiment: int) -> None:
    base = tracker.add_checkpoint(experiment, "base", "base", path="base")
    tracker.add_evaluation(base, "domain_knowledge", corpus=1, value=0.02, stderr=0.005, n=500)
    cycle = tracker.cycle(experiment, 1)
    made = tracker.add_checkpoint(
        experiment, "cycle-1/midtrained", "midtrained", path="x", parent_id=base, cycle_id=cycle
    )
    tracker.add_evaluation(made, "general", value=0.9, stderr=0.01, n=100)  # the first suite of a running evaluation
    found = overview_of(tracker, experiment)
    assert found.cycles[0].midtrained is not None
    assert found.knowledge(found.cycles[0].midtrained) is None


def test_responses_to_different_prompts_are_not_paired(tracker: Tracker, experiment: int) -> None:
    def evaluated(name: str, prompts: list[str]) -> int:
        checkpoint = tracker.add_checkpoint(experiment, name, "base" if name == "base" else "recovered", path=name)
        items = [
            {"id": f"{at}", "prompt": prompt, "response": f"{name} {at}", "score": 1.0}
            for at, prompt in enumerate(prompts)
        ]
        return tracker.add_evaluation(checkpoint, "instruction_following", value=1, stderr=0, n=3, items=items)

    turns = "hello\n\nassistant: {}\n\nuser: and now?"
    base = evaluated("base", ["one", "another file's prompt", turns.format("from base")])
    end = evaluated("cycle-1/recovered", ["one", "two", turns.format("from the other")])
    rows = side_by_side(tracker.database, base, None, end).rows
    responses = [[None if answer is None else answer.response for answer in row.answers] for row in rows]
    assert responses == [["base 0", "cycle-1/recovered 0"], ["base 1", None], ["base 2", "cycle-1/recovered 2"]]


def test_status_json_has_the_documented_shape(readable: Database, seeded: Any) -> None:
    status = json.loads(json.dumps(queries.status_json(readable, seeded.experiment)))
    score = status["cycles"][1]["recovered"]
    assert set(score["instruction_following"]) == {"value", "stderr", "n"}
    assert set(score["domain_knowledge_by_corpus"]) == {"1", "2"}
    assert set(score) >= {"domain_knowledge", "domain_knowledge_stored", "general", "bits_per_byte"}
    assert [cycle["decision"] for cycle in status["cycles"]] == ["accepted", None, None]
    assert status["base"]["instruction_following"]["value"] == pytest.approx(0.957)


def test_paths_of_several_experiments_are_those_of_their_overviews(tmp_path: Path, seeding: ModuleType) -> None:
    first = seeding.seed(tmp_path / "tracker.db", cycles=2, items=2, steps=5)
    second = seeding.seed(tmp_path / "tracker.db", name="second", cycles=1, items=2, steps=5)
    database = open_readonly(tmp_path / "tracker.db")
    found = queries.paths(database, [second.experiment, 99, first.experiment])
    assert [one.experiment.name for one in found] == ["second", "default"]
    for one in found:
        whole = queries.overview(database, one.experiment.id)
        assert whole is not None and len(one.cycles) == len(whole.cycles)
        assert [step.checkpoint for step in one.path] == [step.checkpoint for step in whole.path]
        for quick, full in zip(one.path, whole.path, strict=True):
            assert quick.scores.instruction_following == full.scores.instruction_following
            assert one.knowledge(quick) == whole.knowledge(full)
        assert [row.cycle.decision for row in one.cycles] == [row.cycle.decision for row in whole.cycles]


def test_an_overview_can_leave_the_evidence_out(tracker: Tracker, experiment: int) -> None:
    tracker.cycle(experiment, 1, documents="q1", details={"evidence": {"checkpoint": "cycle-1/recovered"}})
    whole, quick = (queries.overview(tracker.database, experiment, details=d) for d in (True, False))
    assert whole is not None and whole.cycles[0].cycle.details["evidence"]["checkpoint"] == "cycle-1/recovered"
    assert quick is not None and quick.cycles[0].cycle.details == {} and quick.cycles[0].cycle.documents == "q1"


@pytest.mark.differs
def test_the_newest_experiment_but_for_studies(tracker: Tracker) -> None:
    assert queries.newest_experiment(tracker.database, but="study/") is None
    tracker.experiment("study/a")
    assert queries.newest_experiment(tracker.database, but="study/").name == "study/a"  # type: ignore[union-attr]
    for name in ("mine", "study/b", "studyxc", "study/d"):
        tracker.experiment(name)
    assert queries.newest_experiment(tracker.database, but="study/").name == "studyxc"  # type: ignore[union-attr]
    assert queries.experiment_names(tracker.database, limit=2) == ["study/d", "studyxc"]


def test_nothing_yet(tracker: Tracker, experiment: int) -> None:
    assert queries.overview(tracker.database, 99) is None
    empty = overview_of(tracker, experiment)
    assert empty.path == () and empty.cycles == ()
    assert queries.status_json(tracker.database, experiment)["cycles"] == []


def test_a_curve_is_fetched_in_increments(readable: Database, seeded: Any) -> None:
    stage = seeded.distill[0]
    whole = queries.series(readable, stage, ["reverse_kl"])["reverse_kl"]
    assert [point.step for point in whole] == list(range(1, 61))
    assert queries.series(readable, stage, since={"reverse_kl": 57})["reverse_kl"] == whole[57:]
    assert queries.series(readable, stage, since={"reverse_kl": 60})["reverse_kl"] == []
    assert queries.series(readable, stage, ["nothing"]) == {}
    each = queries.series(readable, stage, ["reverse_kl", "entropy"], since={"reverse_kl": 58})
    assert [point.step for point in each["reverse_kl"]] == [59, 60]
    assert len(each["entropy"]) == 60


@pytest.mark.differs
def test_the_database_thins_a_long_curve_and_keeps_its_extremes(tracker: Tracker, experiment: int) -> None:
    stage = tracker.start_stage(experiment, "midtrain")
    for step in range(1, 5001):
        stage.log(step, {"loss": 1000.0 if step == 2477 else float(step % 7)})
    stage.finish()
    thin = queries.series(tracker.database, stage.id, max_points=320)["loss"]
    assert 300 <= len(thin) <= 322
    assert max(point.high or 0 for point in thin) == 1000.0
    assert min(point.low if point.low is not None else 9 for point in thin) == 0.0
    assert thin[-1].step == 5000
    assert len(queries.series(tracker.database, stage.id, max_points=None)["loss"]) == 5000


def test_a_curve_is_thinned_as_the_database_would(tracker: Tracker, experiment: int) -> None:
    stage = tracker.start_stage(experiment, "midtrain")
    for step in range(1, 1001):
        stage.log(step, {"loss": 90.0 if step == 477 else float(step % 7), "gap": 1.0 if step < 400 else float("nan")})
    stage.finish()
    every = queries.series(tracker.database, stage.id, max_points=None)
    read = queries.series(tracker.database, stage.id, max_points=100)
    for name in ("loss", "gap"):
        once = records.thinned(every[name], 100)
        assert [(p.step, p.low, p.high, p.time) for p in once] == [(p.step, p.low, p.high, p.time) for p in read[name]]
        assert [p.value for p in once] == pytest.approx([p.value for p in read[name]], nan_ok=True)
    twice = records.thinned(records.thinned(every["loss"], 200), 50)
    assert len(twice) <= 51 and twice[-1].step == 1000
    assert (max(p.high or 0 for p in twice), min(p.low or 0 for p in twice)) == (90.0, 0.0)
    whole = sum(float(step % 7) for step in range(1, 1001) if step != 477) + 90.0
    widths = [b.step - a for a, b in zip([0, *(p.step for p in twice)], twice, strict=False)]
    assert sum(w * (p.value or 0) for w, p in zip(widths, twice, strict=True)) == pytest.approx(whole, rel=0.01)
    assert records.thinned(every["loss"][:50], 100) == every["loss"][:50]


@pytest.mark.differs
def test_the_first_samples_are_read_and_all_are_counted(readable: Database, seeded: Any) -> None:
    base = queries.checkpoint(readable, seeded.experiment, "base")
    assert base is not None
    evaluation = next(e for e in queries.evaluations(readable, base.id) if e.suite == "instruction_following")
    first = queries.samples(readable, evaluation.id, limit=10)
    assert (first.total, [sample.item for sample in first.samples]) == (30, [f"item-{n}" for n in range(10)])
    judged = queries.judged_items(readable, evaluation.id)
    assert [key.split("\x1f")[0] for key, *_ in judged] == [f"item-{n}" for n in range(30)]
    assert all(key.endswith(f"fox number {n}? Answer in capitals.") for n, (key, *_) in enumerate(judged))


def test_many_evaluations_hide_none(tracker: Tracker, experiment: int) -> None:
    base = tracker.add_checkpoint(experiment, "base", "base", path="a")
    first = tracker.add_evaluation(base, "ifeval", value=0.5, stderr=0.1, n=10)
    for corpus in range(501):
        tracker.add_evaluation(base, "domain_knowledge", corpus=corpus, value=0, stderr=0, n=1)
    assert [row.id for row in queries.evaluations(tracker.database, base, suites=("ifeval",))] == [first]


def test_lists(readable: Database, seeded: Any) -> None:
    (experiment,) = queries.experiments(readable)
    assert (experiment.name, experiment.cycles) == ("default", 3)
    stages = queries.stages(readable, experiment.id, kind="distill")
    assert [stage.cycle for stage in stages] == [3, 2, 1]
    of_first = queries.stages(readable, experiment.id, cycle_id=seeded.cycles[0])
    assert [stage.kind for stage in of_first] == ["distill", "midtrain"]
    parents = {c.name: c.parent for c in queries.checkpoints(readable, experiment.id)}
    assert parents["cycle-2/midtrained"] == "cycle-1/recovered"
    assert queries.events(readable, experiment.id)[0].message == "3 cycles finished"


@pytest.mark.differs
def test_stages_are_found_by_what_they_hold(address: Path | str, seeding: ModuleType) -> None:
    seeded = seeding.seed(address, cycles=2, items=2, steps=5)
    with Tracker(seeded.address) as tracker:
        other = tracker.experiment("100%_other/seed-0")
        made = seeding.add_distillation(tracker, other, "expert, sft")
        database = tracker.database
        assert [stage.id for stage in queries.find_stages(database, tokens=True)] == [made]
        assert [stage.id for stage in queries.find_stages(database, metric="geometry/bias")] == [made]
        assert {stage.kind for stage in queries.find_stages(database, kinds=["midtrain"])} == {"midtrain"}
        assert [stage.id for stage in queries.find_stages(database, search="EXPERT")] == [made]
        assert queries.find_stages(database, search="%") == []
        assert [stage.id for stage in queries.find_stages(database, ids=[made, 999])] == [made]
        both = queries.find_stages(database, experiment_ids=[seeded.experiment, other], kinds=["distill"])
        assert [stage.id for stage in both] == [made, *reversed(seeded.distill)]
        assert queries.find_stages(database, experiment_ids=[]) == []
        assert [one.name for one in queries.experiments(database, prefix="100%_")] == ["100%_other/seed-0"]
        assert queries.experiments(database, prefix="1_0") == []
        found = queries.made_by(database, [made, seeded.distill[0]])
        names = {made: "expert, sft", seeded.distill[0]: "cycle-1/recovered"}
        assert {number: one.name for number, one in found.items()} == names


@pytest.mark.differs
def test_tokens_that_no_database_takes_as_they_are(address: Path | str) -> None:
    with Tracker(address) as tracker, tracker.start_stage(tracker.experiment("x"), "distill") as stage:
        row = {"tokens": ["\x00", "\ud800", "ö"], "values": {"reverse_kl": [0.5, 0.1, 0.2], "top\x00": [["\x00", 1.0]]}}
        tracker.add_token_scores(stage.id, 1, [row])
        (found,) = queries.token_numbers(tracker.database, stage.id)
        assert (found.tokens, found.numbers) == (("\N{REPLACEMENT CHARACTER}", "?", "ö"), (0.5, 0.1, 0.2))


@pytest.mark.differs
def test_one_number_of_each_token_is_read_without_the_rest(address: Path | str) -> None:
    with Tracker(address) as tracker, tracker.start_stage(tracker.experiment("x"), "distill") as stage:
        values = {"reverse_kl": [0.5, float("nan"), 1.5], "top": [[["a", 1.0]]] * 3}
        for step in (7, 2):
            tracker.add_token_scores(stage.id, step, [{"item": "0", "tokens": ["a", "b", "c"], "values": values}])
        rows = queries.token_numbers(tracker.database, stage.id)
        assert [(row.step, row.tokens, row.numbers) for row in rows] == [
            (step, ("a", "b", "c"), (0.5, None, 1.5)) for step in (2, 7)
        ]
        tracker.add_token_scores(stage.id, 8, [{"item": "0", "tokens": ["a"], "values": {"entropy": [1.0]}}])
        assert queries.token_numbers(tracker.database, stage.id)[-1].numbers == ()
        whole = queries.rollout(tracker.database, rows[0].id)
        assert whole is not None and whole.values["top"][0] == [["a", 1.0]]
        assert queries.rollout(tracker.database, 999) is None


@pytest.mark.differs
def test_of_too_many_rollouts_each_step_has_as_many(address: Path | str) -> None:
    with Tracker(address) as tracker, tracker.start_stage(tracker.experiment("x"), "distill") as stage:
        for step in (1, 5, 9):
            rows = [{"item": str(n), "tokens": ["a"], "values": {"reverse_kl": [0.5]}} for n in range(4)]
            tracker.add_token_scores(stage.id, step, rows)
        found = queries.token_numbers(tracker.database, stage.id, limit=7)
        assert [(row.step, row.item) for row in found] == [(step, item) for step in (1, 5, 9) for item in "01"]
        assert queries.token_rollouts(tracker.database, stage.id) == 12


@pytest.mark.differs
def test_a_newest_result_without_a_score_hides_the_older_one(tracker: Tracker, experiment: int) -> None:
    base = tracker.add_checkpoint(experiment, "base", "base", path="a")
    for value in (0.5, float("nan")):
        tracker.add_evaluation(base, "general", value=value, stderr=0.1, n=9)
    assert queries.scores(tracker.database, base).general is None
