"""The evaluation stage: every score with its responses in the tracker, under its public name."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from db import queries, records, schema
from db.cycle_evidence import notes
from evals.statistics import score_of
from pipelines.cli.status import _stage_line
from pipelines.cycle import base_scope
from pipelines.cycle_plan import resumable
from pipelines.data.corpus_snapshot import CorpusSnapshot, load_snapshot
from pipelines.distillation.resolve import resolve
from pipelines.evaluation.acceptance import check_rules, judge_cycle, last_judgement, newest_decision, rules_of
from pipelines.evaluation.importing import import_results, read_logs
from pipelines.evaluation.plan import EVERYTHING, TASKS, EvalPlan, Scope, _asked_corpora, gather, plan_evaluate
from pipelines.evaluation.retention import kept
from pipelines.evaluation.stage import corpus_measured, evaluate, measured
from pipelines.evaluation.stored_results import IMPORTED, record_result
from pipelines.reports.cycle_report import _spent
from pipelines.reports.evidence import evidence_bundle
from pipelines.runtime.progress import SuccessiveBars
from pipelines.runtime.session import Session, StageInterrupted
from pipelines.runtime.stage import running
from recovery.config import DistillConfig, EvalConfig, to_json
from recovery.data.corpus.documents import Document
from recovery.errors import UsageError
from recovery.rollouts.engine import Completion
from recovery.rollouts.transformers_engine import TransformersEngine
from recovery.types import Item, Probe, Score, SuiteResult
from recovery.workspace import Checkpoint
from tests.pipelines.conftest import Bench, OpenSession, stages_of
from tests.recorded_stages import leave


def planned(session: Session, config: EvalConfig, scope: Scope = EVERYTHING) -> EvalPlan:
    inputs = gather(session, config, session.resolve(config.checkpoint), scope)
    return plan_evaluate(session, config, inputs)


def test_items_of_an_evaluation_are_not_called_steps(session: Session) -> None:
    with session.tracker.start_stage(session.experiment_id, "evaluate", steps_total=40) as begun:
        begun.progress(7)
        session.tracker.flush()
        (stage,) = stages_of(session)
        assert _stage_line(stage, False) == f"running: evaluate (stage {stage.id}), 7 of 40 items of a suite"
    (stage,) = stages_of(session)
    assert _stage_line(stage, False).startswith(f"last: evaluate (stage {stage.id}), finished, ")
    assert _spent(stage)[2] == "–" and stage.at_step == ""
    trained = replace(stage, kind="distill")
    assert f"distill (stage {stage.id}), step 7 of 40" in _stage_line(trained, False) and _spent(trained)[2] == "7"
    assert trained.at_step == " at step 7"


def test_scores_and_answers_are_recorded(
    session: Session, bench: Bench, midtrained: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not measured(session, midtrained)
    shown: set[str] = set()
    monkeypatch.setattr(SuccessiveBars, "show", lambda _bars, part, *_: shown.add(part))
    results = bench.evaluate()
    assert {"instruction following", "domain knowledge/1"} <= shown
    assert {"instruction_following", "domain_knowledge/1", "domain_knowledge_stored/1"} <= {r.suite for r in results}
    scores = queries.scores(session.tracker.database, midtrained.id)
    assert scores.instruction_following.n == 4
    assert set(scores.domain_knowledge_by_corpus) == set(scores.domain_knowledge_stored_by_corpus) == {1}
    evaluation = queries.evaluations(session.tracker.database, midtrained.id)[-1]
    assert evaluation.suite == "instruction_following"
    page = queries.samples(session.tracker.database, evaluation.id)
    assert page.total == 4
    assert all(sample.verdicts for sample in page.samples)
    assert measured(session, midtrained) and measured(session, midtrained, bench.evaluating())
    assert not measured(session, midtrained, bench.evaluating(limit=5)), "other items were asked"
    assert corpus_measured(session, midtrained, load_snapshot(session.workspace, 1), bench.evaluating())
    stage = stages_of(session)[0]
    assert stage.details["recorded"]["decoding"] == "greedy"
    assert stage.config["checkpoint"] == "cycle-1/midtrained", "it keeps to the checkpoint it began with"
    (midtrained.path / "config.json").write_text((midtrained.path / "config.json").read_text() + " ")
    with pytest.raises(Exception, match="changed since it was registered"):
        bench.evaluate()


def test_what_no_document_holds_is_asked_of_base_with_and_without_a_page(
    session: Session, bench: Bench, tmp_path: Path
) -> None:
    names = [f"{one}{other}" for one in ("winch", "rope", "crane", "barge") for other in ("Speed", "Load", "Depth")]
    rows = "".join(f"| `{name}` | {1370 + 7 * n} |\n" for n, name in enumerate(names))
    (tmp_path / "docs").mkdir()
    page = f"# harbour.config\n\n| Option | Default |\n| --- | --- |\n{rows}"
    (tmp_path / "docs" / "harbour.md").write_text(page)
    made = bench.midtrain(docs=tmp_path / "docs", held_out=0.0)
    config = bench.evaluating(checkpoint="base", near_misses=2)
    assert (
        "unanswerable, corpus 1: 2 questions about what no document holds, with and without"
        in planned(session, config).text()
    )
    sizes = {one.suite: one.score.n for one in evaluate(session, config) if one.suite.startswith("unanswerable")}
    assert sizes == {"unanswerable/1": 2, "unanswerable_open_book/1": 2}
    assert queries.scores(session.tracker.database, session.base.id).unanswerable_by_corpus[1].n == 2
    assert measured(session, session.base, replace(config, near_misses=1))
    assert not measured(session, session.base, replace(config, near_misses=3))
    evaluate(session, replace(config, checkpoint=made.name))
    (verdict,) = judge_cycle(session, rules_of(["unanswerable >= base - 10"], session), 1).verdicts
    assert verdict.suite == "unanswerable/1" and (verdict.n == 2 or "not applied" in verdict.reason)
    asked = {probe.absent for probe in load_snapshot(session.workspace, 1).probes if probe.absent}
    trained = resolve(session, DistillConfig(student=made.name, near_miss_share=0.2), 1).near_misses
    assert trained and not any(f"`{name}`" in prompt.text for prompt in trained for name in asked)
    assert all(prompt.kind == "behaviour" and prompt.answer is None for prompt in trained)


def test_a_near_miss_is_not_asked_once_a_later_corpus_answers_it() -> None:
    """Searched for in later documents alone, and only those that are drawn."""

    def corpus(number: int, text: str, *absent: str) -> CorpusSnapshot:
        asked = [Probe(f"{number}-{name}", "near_miss", f"What is `{name}`?", (), absent=name) for name in absent]
        probes = (Probe(f"{number}-known", "question", "Which port?", ("1",)), *asked)
        return CorpusSnapshot(number, "", "", "", (), (Document("a.md", "A", text, "a.md"),), (), probes, (), False, 0)

    corpora = {1: corpus(1, "It names `later`.", "tide", "later"), 2: corpus(2, "Now there is a `tide`.", "gauge")}
    config = EvalConfig(near_misses=5, limit=5, earlier_limit=5)
    asked = {k: [p.absent for p in one.probes] for k, one in _asked_corpora(corpora, [1, 2], config).items()}
    assert asked == {1: ["", "later"], 2: ["", "gauge"]}
    (one,) = _asked_corpora(corpora, [1], replace(config, near_misses=1)).values()
    assert sum(bool(p.absent) for p in one.probes) <= 1 and one.probes[0].id == "1-known"


def test_a_scope_asks_only_what_is_new(session: Session, bench: Bench, midtrained: Checkpoint) -> None:
    config = bench.evaluating(checkpoint="base")
    plan = planned(session, config, Scope(behaviour=False, general=False, corpora=(1,)))
    assert (plan.instruction_prompts, plan.general_probes, set(plan.probes_by_corpus)) == (0, 0, {1})
    results = evaluate(session, config, scope=Scope(behaviour=False, general=False, corpora=(1,)))
    assert "instruction_following" not in {r.suite for r in results}
    corpus = load_snapshot(session.workspace, 1)
    assert corpus_measured(session, session.base, corpus, config)
    assert not corpus_measured(session, session.base, corpus, replace(config, limit=None)), "fewer of them"
    for other in ({"cycle": 2}, {"probes_hash": "f" * 64}, {"hash": "f" * 64}):
        assert not corpus_measured(session, session.base, replace(corpus, **other), config)  # type: ignore[arg-type]


def test_the_newest_evaluation_is_the_one_that_counts(session: Session, bench: Bench, midtrained: Checkpoint) -> None:
    """As the gate compares with the newest result of a suite, an older one with the right settings is none."""
    base = session.base
    usual = bench.evaluating(checkpoint="base")
    shorter = replace(usual, max_new_tokens=4)
    evaluate(session, usual)
    evaluate(session, shorter)
    evaluate(session, usual, scope=Scope(behaviour=False, general=False, corpora=(1,)))
    assert measured(session, base, shorter), "a corpus alone is no evaluation of the other suites"
    assert not measured(session, base, usual) and base_scope(session, usual, 1) == EVERYTHING
    evaluate(session, replace(usual, limit=5))
    assert measured(session, base, usual), "it has the four items, and one more"
    assert not measured(session, base, replace(usual, limit=None))
    assert not measured(session, base, replace(usual, earlier_limit=0))


def test_items_of_another_seed_or_release_or_of_a_changed_file_are_other_items(
    session: Session, bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cycle compared its model with one that was asked other prompts, or judged by other checkers."""
    file = tmp_path / "own.jsonl"
    file.write_text("".join(json.dumps({"prompt": f"Write {n} words.", "answer": "x"}) + "\n" for n in range(9)))
    config = bench.evaluating(prompts=None, behaviour=(file,))  # composed prompts
    again = replace(config, seed=1)
    first, second = ({p.text for p in gather(session, one, session.base).instruction} for one in (config, again))
    assert first != second
    evaluate(session, config)
    assert measured(session, session.base, config) and not measured(session, session.base, again)
    text = file.read_text()
    file.write_text(text.replace("Write", "Name"))
    assert not measured(session, session.base, config) and base_scope(session, config, 1) == EVERYTHING
    file.write_text(text)
    assert measured(session, session.base, config)
    monkeypatch.setattr("pipelines.evaluation.stage.versions", lambda: {"lm_eval": "0.0.1"})
    assert not measured(session, session.base, config)


def test_a_model_folder_brings_its_own_general_probes_and_tasks_can_be_added(
    open_session: OpenSession, tiny_model: Path, tmp_path: Path, eval_config: EvalConfig
) -> None:
    model = shutil.copytree(tiny_model, tmp_path / "model")
    (model / "suites").mkdir()
    probe = {"question": "A boat is", "answers": ["green"], "choices": ["green", "seven"], "form": "choice"}
    (model / "suites" / "general.jsonl").write_text(json.dumps(probe) + "\n")
    with open_session(model) as session:
        results = evaluate(session, replace(eval_config, checkpoint="base"))
        assert {r.suite for r in results} == {"instruction_following", "behaviour/no_loops", "general"}


@pytest.fixture
def generated(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of prompts in each call of the real engine."""
    real, counts = TransformersEngine.generate, []

    def counting(self: TransformersEngine, prompts: Any, *rest: Any) -> list[Completion]:
        counts.append(len(prompts))
        return real(self, prompts, *rest)

    monkeypatch.setattr(TransformersEngine, "generate", counting)
    return counts


def test_asking_again_generates_nothing_and_gives_the_same_scores(
    session: Session, bench: Bench, midtrained: Checkpoint, generated: list[int]
) -> None:
    base = bench.evaluating(checkpoint="base")
    first = evaluate(session, base)
    asked, opened = sum(generated), sum(len(one.items) for one in first if one.suite == "open_book/1")
    assert asked >= 4 + opened and opened
    assert evaluate(session, base) == first
    assert sum(generated) == asked
    bench.evaluate(checkpoint=midtrained.name)
    assert sum(generated) == 2 * asked - opened, "other weights are asked themselves, and not with the passage"
    shutil.rmtree(session.workspace.folder / "cache")
    assert evaluate(session, base) == first, "the cache may go at any time"
    assert sum(generated) == 3 * asked - opened


def test_a_suite_of_ones_own_is_recorded_and_its_broken_and_too_long_lines_are_reported(
    session: Session, bench: Bench, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [{"key": f"k{i}", "prompt": f"Name boat {i}.", "answer": "green"} for i in range(3)]
    path = tmp_path / "2024.jsonl"  # a numeric name is not a corpus
    path.write_text("".join(json.dumps(row) + "\n" for row in [*rows, {"prompt": "Anything."}]))
    long = [{"prompt": f"Name a boat.{' Name a boat.' * times}", "answer": "green"} for times in (0, 20_000)]
    (tmp_path / "long.jsonl").write_text("".join(json.dumps(row) + "\n" for row in long))
    config = bench.evaluating(checkpoint="base", behaviour=(path, tmp_path / "long.jsonl"))
    plan = planned(session, config)
    assert (plan.behaviour, plan.further_prompts) == ({"no_loops": 4, "2024": 3, "long": 2}, 5)
    assert "behaviour suites: no_loops 4, 2024 3, long 2" in plan.text()
    assert "with 3 prompts you can see a difference of 81 points in behaviour/2024" in plan.text()
    evaluate(session, config)
    said = capsys.readouterr().err
    assert "2024.jsonl line 4: the prompt cannot be judged" in said
    (line,) = [line for line in said.splitlines() if "no room" in line]
    assert line.startswith("behaviour/long: 1 of 2 prompts leave no room to answer in the model's window of ")
    found = {row.suite: row for row in queries.evaluations(session.tracker.database, session.base.id)}
    assert (found["behaviour/2024"].n, found["behaviour/2024"].corpus) == (3, None)
    assert queries.samples(session.tracker.database, found["behaviour/2024"].id).total == 3


@pytest.mark.parametrize(
    "wrong",
    [
        # To suggest another name, all of lm-eval's task files are parsed.
        pytest.param({"tasks": ("harbour_quizz",)}, marks=pytest.mark.slow),
        {"ifeval": "none.jsonl"},
    ],
)
def test_a_task_that_cannot_be_had_stops_before_anything_begins(
    session: Session, bench: Bench, generated: list[int], wrong: dict[str, Any]
) -> None:
    with pytest.raises(UsageError, match="harbour_quizz|none.jsonl"):
        bench.evaluate(checkpoint="base", **wrong)
    assert generated == []
    assert stages_of(session) == []


def answered(suite: str, *scores: float) -> SuiteResult:
    items = tuple(Item(str(i), "asked", "said", score) for i, score in enumerate(scores))
    return SuiteResult(suite, score_of(scores), items)


def test_a_score_of_the_whole_corpus_is_recorded_without_scores_of_items(
    session: Session, midtrained: Checkpoint
) -> None:
    items = tuple(Item(str(number), "asked", "said", math.nan) for number in range(2))
    before, now = (SuiteResult("wikitext", Score(value, 0.0, 2), items) for value in (9.0, 99.0))
    for checkpoint, result in ((session.base, before), (midtrained, now)):
        with running(session, "evaluate", EvalConfig(), student=checkpoint) as stage:
            record_result(session, stage.recorder, checkpoint, result)
    (row,) = queries.evaluations(session.tracker.database, midtrained.id)
    page = queries.samples(session.tracker.database, row.id)
    assert (row.value, [sample.score for sample in page.samples]) == (99, [None, None])
    assert kept(session, midtrained, [now]) == {}, "no loss of 0 points"
    decision = judge_cycle(session, rules_of(["retention(wikitext) >= 0.97*base - 2"], session), 1)
    assert decision.decision == "undecided" and "cannot be tested" in decision.verdicts[0].reason
    assert evidence_bundle(session, 1)


def test_a_rule_about_a_group_of_tasks_leaves_out_another_group_of_that_prefix(
    session: Session, midtrained: Checkpoint
) -> None:
    for checkpoint, law in ((session.base, (1, 1, 0, 0)), (midtrained, (1, 1, 0, 0))):
        with running(session, "evaluate", EvalConfig(tasks=("mmlu", "mmlu_pro")), student=checkpoint) as stage:
            for name, scores in (("mmlu_law", law), ("mmlu_pro_law", (0, 0, 0, 0)), ("mmlu_pro_art", (1, 0, 0, 0))):
                record_result(session, stage.recorder, checkpoint, answered(name, *map(float, scores)))

    def items(rule: str) -> int:
        return judge_cycle(session, rules_of([rule], session), 1).verdicts[0].n

    assert items("retention(mmlu) >= 0.5*base") == 4
    assert items("retention(mmlu_pro) >= 0.5*base") == 8
    assert items("retention(mmlu_pro_art) >= 0.5*base") == 4
    with running(session, "evaluate", EvalConfig(tasks=("mmlu_art",)), student=midtrained) as stage:
        record_result(session, stage.recorder, midtrained, answered("mmlu_art", 1.0, 0.0))
    with running(session, "evaluate", EvalConfig(tasks=("mmlu", "mmlu_art")), student=session.base) as stage:
        record_result(session, stage.recorder, session.base, answered("mmlu_art", 1.0, 0.0))
    assert items("retention(mmlu) >= 0.5*base") == 6, "a member that was asked for by its own name belongs to it"
    for checkpoint in (session.base, midtrained):
        with running(session, "evaluate", EvalConfig(tasks=("ifeval_es",)), student=checkpoint) as stage:
            record_result(session, stage.recorder, checkpoint, answered("ifeval_es", 1.0))
            record_result(session, stage.recorder, checkpoint, answered("instruction_following", 1.0, 1.0, 0.0))
    assert items("ifeval >= 0.5*base") == 3, "only a task that a rule names may be a group"


def test_a_judgement_says_that_another_release_judged_what_it_compares_with(
    session: Session, midtrained: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Base is asked again by `recover cycle`; other checkpoints were compared silently."""

    def lines(rule: str, of_base: str, of_student: str) -> list[str]:
        for checkpoint, lm_eval in ((session.base, of_base), (midtrained, of_student)):
            with monkeypatch.context() as patched:
                patched.setattr("pipelines.runtime.stage.versions", lambda lm_eval=lm_eval: {"lm_eval": lm_eval})
                with running(session, "evaluate", EvalConfig(), student=checkpoint) as stage:
                    for suite in ("ifeval", "general"):
                        record_result(session, stage.recorder, checkpoint, answered(suite, 1.0, 0.0))
        decision = judge_cycle(session, rules_of([rule], session), 1)
        assert "1.0" not in decision.verdicts[0].reason, "it is computed again from a bundle's items"
        judged = last_judgement(session, session.cycle_id(1))
        return [line for line in notes(judged) if "two releases" in line]

    apart = ["ifeval of base and of the student are of two releases: lm_eval 1.0 and 1.1"]
    assert lines("ifeval >= 0.5*base", "1.0", "1.1") == apart
    assert lines("general >= 0.5*base", "1.0", "1.1") == [], "questions of general knowledge are not lm_eval's"
    assert lines("ifeval >= 0.5*base", "1.1", "1.1") == []


@pytest.mark.parametrize(
    ("limits", "suite", "words"),
    [
        ((None, None), "general", ", and there are 30: the decision is yours"),
        ((30, 30), "general", ", then `recover gate 1` again"),
        ((30, 60), "general", ", then `recover gate 1` again"),  # base was asked fewer: that is no end of the suite
        ((30, 30), "retention(arc_easy)", ""),  # --limit alone does not ask it
    ],
)
def test_a_judgement_says_how_more_items_are_asked(
    session: Session, midtrained: Checkpoint, limits: tuple[int | None, ...], suite: str, words: str
) -> None:
    for checkpoint, wrong, limit in zip((session.base, midtrained), (0, 2), limits, strict=True):
        config = EvalConfig(limit=limit, max_new_tokens=64)
        with running(session, "evaluate", config, student=checkpoint) as stage:
            scores = [0.0] * wrong + [1.0] * ((limit or 30) - wrong)
            record_result(
                session, stage.recorder, checkpoint, answered("arc_easy" if "arc" in suite else suite, *scores)
            )
    (verdict,) = judge_cycle(session, rules_of([f"{suite} >= base - 10"], session), 1).verdicts
    judged = last_judgement(session, session.cycle_id(1))
    assert verdict.more is not None and judged is not None
    if not words:
        assert not notes(judged)
        return
    (note,) = notes(judged)
    wanted = 30 + verdict.more
    assert note.startswith(f"{suite} >= base - 10: that takes some {wanted} questions") and note.endswith(words)
    commands = [f"recover eval {name} --limit {wanted} --max-new-tokens 64" for name in ("cycle-1/midtrained", "base")]
    assert all(one in note for one in commands) == (limits != (None, None))


def test_lines_of_an_earlier_judgement_are_shown() -> None:
    earlier = records.Event(1, 1, None, "info", "gate", "", {"releases": ["of two releases"]}, 0.0)
    assert list(notes(earlier)) == ["of two releases"]


@pytest.mark.parametrize("suffix", ["yaml", "yml"])
def test_a_rule_names_a_task_of_a_yaml_file_by_either_name(session: Session, tmp_path: Path, suffix: str) -> None:
    (tmp_path / f"own.{suffix}").write_text("task: 'my_own'\n")
    config = EvalConfig(tasks=(str(tmp_path / f"own.{suffix}"), "arc=x.jsonl"))
    rules = [f"retention({name}) >= base" for name in ("own", "my_own", "arc", "their_own")]
    check_rules(session, rules_of(rules[:3], session), config, 1, 1)
    with pytest.raises(UsageError, match="nothing measures their_own"):
        check_rules(session, rules_of(rules[3:], session), config, 1, 1)


def test_a_rule_about_a_corpus_that_was_rolled_back_is_refused(session: Session, midtrained: Checkpoint) -> None:
    """Nobody asks a later model about it: the rule left every cycle to a person."""
    rules = rules_of(["domain(1) >= 0.9*first"], session)
    check_rules(session, rules, EvalConfig(), 2, 2)
    leave(session, 1, "rolled_back")
    with pytest.raises(UsageError, match="cycle 1 was rejected or rolled back"):
        check_rules(session, rules, EvalConfig(), 2, 2)


def test_a_cycle_that_is_not_there_is_not_made_by_judging_it(session: Session) -> None:
    for judge in (newest_decision, lambda *of: judge_cycle(of[0], rules_of(["standard"], session), of[1])):
        with pytest.raises(UsageError, match="no cycle 7, nor any other yet: `recover cycle --docs FOLDER` runs"):
            judge(session, 7)
    assert session.cycles() == {}


def test_a_rule_about_a_group_of_imported_tasks_leaves_out_another_group_of_that_prefix(
    session: Session, midtrained: Checkpoint, tmp_path: Path
) -> None:
    members = {"mmlu": ["mmlu_stem"], "mmlu_stem": ["mmlu_law"], "mmlu_pro": ["mmlu_pro_law", "mmlu_pro_art"]}
    sample = {"doc_id": 0, "doc": {}, "target": "x", "arguments": {"gen_args_0": {"arg_0": "Q"}}, "resps": [["x"]]}
    sample |= {"filtered_resps": ["x"], "filter": "none", "metrics": ["acc"], "acc": 1.0}
    leaves = [name for names in members.values() for name in names if name not in members]
    results = {name: {"alias": name, "acc,none": 1.0, "acc_stderr,none": 0.0} for name in leaves}
    log = {"results": results, "groups": {}, "group_subtasks": {**members, "arc_easy": []}, "model_name": "theirs"}
    (tmp_path / "results_1.json").write_text(json.dumps(log))
    for name in leaves:
        (tmp_path / f"samples_{name}_1.jsonl").write_text(json.dumps(sample) + "\n")
    imported = read_logs(tmp_path)
    assert [one.groups for one in imported.logs] == [("mmlu", "mmlu_pro")], "those that were asked for"
    for checkpoint in (session.base, midtrained):
        import_results(session, checkpoint.name, tmp_path, imported)
    for task, items in (("mmlu", 1), ("mmlu_pro", 2), ("mmlu_pro_art", 1)):
        rules = rules_of([f"retention({task}) >= 0.5*base"], session)
        assert judge_cycle(session, rules, 1).verdicts[0].n == items, task


def configure(session: Session, stage_id: int, config: Any) -> None:
    """Give a stage the configuration of another one: of imported results, or of an evaluation of our own."""
    with session.tracker.database.writing() as connection:
        connection.execute(update(schema.Stage).where(schema.Stage.id == stage_id).values(config=config))


def test_an_interrupted_evaluation_is_resumed_although_results_were_imported_since(session: Session) -> None:
    with pytest.raises(StageInterrupted), running(session, "evaluate", EvalConfig(), student=session.base):
        raise StageInterrupted("here")
    with running(session, "evaluate", EvalConfig(), student=session.base) as stage:
        configure(session, stage.recorder.id, {IMPORTED: "logs"})
    killed = {IMPORTED: "logs", "logs": []}  # whose settings are none of an evaluation
    session.tracker.start_stage(session.experiment_id, "evaluate", config=killed).interrupt()
    stopped = resumable(session)
    assert stopped is not None and stopped.id == stage.recorder.id - 1


def test_an_own_result_that_an_imported_one_replaced_is_measured_again(session: Session) -> None:
    """The gate reads the newest result of a suite: another tool's would be compared with what is measured here."""
    config = EvalConfig()

    def recorded(settings: Any, suite: str) -> None:
        with running(session, "evaluate", config, student=session.base) as stage:
            configure(session, stage.recorder.id, settings)
            record_result(session, stage.recorder, session.base, answered(suite, 1.0, 0.0))
            stage.details = {"suites": [suite]}

    recorded(to_json(config), "ifeval")
    assert measured(session, session.base, config)
    recorded({IMPORTED: "logs"}, "mmlu")
    assert measured(session, session.base, config), "of another suite"
    recorded({IMPORTED: "logs"}, "ifeval")
    assert not measured(session, session.base, config) and measured(session, session.base)
    recorded(to_json(config), "ifeval")
    assert measured(session, session.base, config)


def test_tasks_in_a_model_folder_run_no_code_unless_they_are_named(
    open_session: OpenSession, tiny_model: Path, tmp_path: Path, eval_config: EvalConfig
) -> None:
    model = shutil.copytree(tiny_model, tmp_path / "model")
    folder = model / TASKS
    folder.mkdir(parents=True)
    ran = tmp_path / "ran"
    (folder / "trap.py").write_text(f"open({str(ran)!r}, 'w').close()\n\ndef question(doc):\n    return 'x'\n")
    (folder / "gsm8k.yaml").write_text(
        f"task: 'gsm8k'\ndataset_path: json\ndataset_kwargs: {{data_files: {{test: {folder}/q.jsonl}}}}\n"
        "test_split: test\noutput_type: generate_until\ndoc_to_text: !function trap.question\ndoc_to_target: x\n"
        "metric_list: [{metric: exact_match}]\n"
    )
    (folder / "q.jsonl").write_text('{"question": "x"}\n')
    with open_session(model) as session:
        for name in ("gsm8k", f"gsm8k={folder / 'q.jsonl'}"):
            with pytest.raises(UsageError, match=r"a task runs code: if you trust it, give its file, --task .*yaml"):
                gather(session, replace(eval_config, tasks=(name,)), session.base)
        assert not ran.exists()
        given = replace(eval_config, tasks=(str(folder / "gsm8k.yaml"),))
        assert gather(session, given, session.base).tasks.keys() == {"gsm8k"} and ran.exists()


def test_what_is_left_of_the_scores_before_is_reported(session: Session, bench: Bench) -> None:
    first = bench.midtrain()
    second = bench.midtrain()
    assert [one.name for one in session.registry.ancestors(second)] == [first.name, "base"]
    before = {
        session.base: [answered("length", 1, 1, 0, 0), answered("domain_knowledge/1", 0, 0, 0, 1)],
        first: [answered("length", 1, 1, 1, 0), answered("domain_knowledge/1", 1, 1, 1, 1)],
    }
    for checkpoint, results in before.items():
        with running(session, "evaluate", EvalConfig(), student=checkpoint) as stage:
            for result in results:
                record_result(session, stage.recorder, checkpoint, result)
    now = [answered("length", 1, 0, 0, 0), answered("domain_knowledge/1", 1, 1, 0, 0), answered("new", 1)]
    found = kept(session, second, now)
    assert set(found) == {"length", "domain_knowledge/1"}
    assert (found["length"].retention.value, found["length"].since) == (0.5, first.name)
    assert found["length"].forgetting.value == pytest.approx(0.5)
    assert found["length"].text().startswith("50% of base (")
    assert f"-50.0 points against {first.name} (" in found["length"].text()
    assert found["domain_knowledge/1"].retention is None, "what base never knew is no share of it"
    assert found["domain_knowledge/1"].forgetting.value == pytest.approx(0.5)
    assert kept(session, session.base, now) == {}, "the clean model has nobody before it"
