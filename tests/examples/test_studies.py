"""Studies: verdicts follow the data, finished seeds are not run again, and the page holds the stored figures."""

from __future__ import annotations

import dataclasses
import datetime
import json
import math
import shutil
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from db import Tracker, queries
from examples.studies import STUDIES, chosen
from examples.studies import horizon as many
from examples.studies.horizon import ARMS, DEFAULT, DRAWN, MEASURES, TOKENS, of, page
from examples.studies.interval_picture import interval_picture
from examples.studies.page import from_csv, joined, markdown, matrices, statements, to_csv, written, written_on
from examples.studies.page import text as report
from examples.studies.razor import method_family, others
from examples.studies.releases import write_releases
from examples.studies.runner import Runner
from examples.studies.study import FIGURES, Outcome, Part, Study, figure, interval, kept_outcome, run_study
from pipelines.cli import common
from pipelines.cli.main import run
from pipelines.runtime.progress import Display
from pipelines.runtime.session import Session
from recovery.config import DistillConfig, MidtrainConfig, build, build_cycle, model_recipe, to_json
from recovery.errors import UsageError
from recovery.workspace import Workspace

DOCS = Path(__file__).resolve().parents[2] / "docs"


def study(body: object = None, *parts: Part) -> Study:
    def nothing(_lab: Runner) -> Mapping[str, float]:
        return {"gain": 1.0}

    claim = Part("the gain is real", lambda f: f["gain"], 0.0)
    return Study("sample", "a claim", "a source", "a setting", parts or (claim,), body or nothing)  # type: ignore[arg-type]


def outcome(*gains: float, above: bool = True, bound: float = 0.0) -> Outcome:
    made = study(None, Part("gain", lambda f: f["gain"], bound, above=above))
    return Outcome(made, {seed: {"gain": gain} for seed, gain in enumerate(gains)}, 300, 1.0)


@pytest.mark.parametrize(
    ("gains", "above", "bound", "verdict"),
    [
        ((0.50, 0.51, 0.52), True, 0.0, "holds"),
        ((0.50, 0.51, 0.52), True, 0.9, "does not hold"),
        ((0.50, 0.51, 0.52), False, 0.9, "holds"),
        ((0.50, 0.51, 0.52), False, 0.0, "does not hold"),
        ((-0.3, 0.0, 0.4), True, 0.0, "undecided"),
        ((0.5,), True, 0.0, "undecided"),
    ],
)
def test_the_verdict_follows_the_interval(gains: tuple[float, ...], above: bool, bound: float, verdict: str) -> None:
    assert outcome(*gains, above=above, bound=bound).verdict == verdict


def test_one_statement_that_fails_fails_the_claim() -> None:
    parts = (Part("up", lambda f: f["gain"], 0.0), Part("far up", lambda f: f["gain"], 2.0))
    found = Outcome(study(None, *parts), {0: {"gain": 1.0}, 1: {"gain": 1.1}, 2: {"gain": 0.9}}, 300, 1.0)
    assert [word for _, word in found.parts] == ["holds", "does not hold"]
    assert found.verdict == "does not hold"


def test_a_statement_whose_condition_is_not_met_is_not_tested() -> None:
    room = Part("that there is room", lambda f: f["gain"], 0.5)
    met, unmet = (Part("up", lambda f: f["gain"], 0.0, given=replace(room, bound=bound)) for bound in (0.5, 2.0))
    below = Part("up", lambda f: f["gain"], 0.0, given=replace(room, bound=2.0, above=False))
    runs = {0: {"gain": 1.0}, 1: {"gain": 1.1}, 2: {"gain": 0.9}}
    words = [Outcome(study(None, *parts), runs, 300, 1.0) for parts in ((met,), (unmet,), (below,), (met, unmet))]
    assert [found.verdict for found in words] == ["holds", "not tested", "holds", "undecided"]
    assert Outcome(study(None, replace(met, bound=2.0), unmet), runs, 300, 1.0).verdict == "does not hold"
    page = markdown([words[1]], "recover study sample")
    assert "| up | > 0 | 1.000 | 0.752 to 1.248 | not tested: requires that there is room (> 2), is 1.000 |" in page
    (part,) = words[1].as_json()["parts"]
    assert part["given"] == {"statement": "that there is room", "bound": "> 2", "mean": 1.0, "met": False}


def test_the_raw_figures_write_the_same_page_again(tmp_path: Path) -> None:
    mine = STUDIES["efficiency"]
    names = ("documents", "best, opd", "best, grpo", "times as many for GRPO")
    runs = {seed: {name: 0.1 * (seed + 1) / 3 + number for number, name in enumerate(names)} for seed in range(3)}
    found = Outcome(mine, runs, 300, 1.25, 0.5, ("2026-01-01", "2026-01-02"))
    path = tmp_path / "studies.csv"
    assert from_csv(path, STUDIES) == {}
    path.write_text(to_csv([found]))
    assert from_csv(path, STUDIES) == {"efficiency": found}
    path.write_text(to_csv([found]) + "efficiency,1\n")
    with pytest.raises(UsageError, match=r"studies\.csv cannot be read"):
        from_csv(path, STUDIES)
    path.write_text(to_csv([replace(found, study=replace(mine, name="one that was removed"))]))
    assert from_csv(path, STUDIES) == {}


def test_a_study_that_is_stopped_keeps_its_figures_and_goes_on(tmp_path: Path) -> None:
    ran: list[int] = []

    def run(runner: Runner) -> Mapping[str, float]:
        ran.append(runner.seed)
        runner.record({"gain": 0.5})
        if len(ran) == 1:
            raise KeyboardInterrupt
        return {"gain": 0.5, "end": 1.0}

    mine = study(run, Part("", figure("gain"), 0.0), Part("", figure("end"), 0.0))
    with pytest.raises(KeyboardInterrupt):
        run_study(mine, Workspace(tmp_path), [0], 0.1, Display())
    stopped = kept_outcome(mine, tmp_path)
    assert stopped is not None and stopped.runs == {0: {"gain": 0.5}} and len(stopped.parts) == 1
    several = replace(stopped, runs={seed: {"gain": 0.5 + seed / 1000} for seed in range(3)})
    assert [word for _, word in several.parts] == ["holds"] and several.verdict == "undecided", "a statement is missing"
    assert run_study(mine, Workspace(tmp_path), [0], 0.1, Display()).runs == {0: {"gain": 0.5, "end": 1.0}}
    run_study(mine, Workspace(tmp_path), [0], 0.1, Display())
    assert ran == [0, 0]
    ran.clear()
    with pytest.raises(KeyboardInterrupt):
        run_study(mine, Workspace(tmp_path), [0], 0.5, Display())
    found = kept_outcome(mine, tmp_path)
    assert found is not None and found.budget == 0.1, "finished"


def test_figures_of_other_machines_are_added_by_seed_and_arm() -> None:
    mine = study(None, Part("", figure("a"), 0.0))
    first = Outcome(mine, {0: {"a": 1.0, "b": 2.0}}, 300, 5.0, 1.0, ("2026-01-02",))
    later = Outcome(mine, {0: {"b": 3.0, "c": 4.0}, 1: {"a": 5.0}}, 300, 4.0, 1.0, ("2026-01-01",))
    both = joined(first, later)
    assert both is not None and both.runs == {0: {"a": 1.0, "b": 3.0, "c": 4.0}, 1: {"a": 5.0}}
    assert (both.dates, both.minutes) == (("2026-01-01", "2026-01-02"), 5.0)
    assert joined(first, None) == first and joined(None, later) == later
    for other in (replace(later, budget=0.5), replace(later, items=100)):
        with pytest.raises(UsageError, match="the page has figures of sample at budget 1 with 300 items"):
            joined(first, other)


def test_a_page_names_its_machine_and_not_that_of_other_days() -> None:
    today = datetime.date.today().isoformat()
    assert written_on([today]).endswith(".") and "other machines" not in written_on([today])
    assert written_on(["2026-01-01", today]) == written_on([today]) + (
        " The page was written on it; runs of other days may be of other machines."
    )


def test_results_add_the_studies_of_the_page_that_were_not_run_here(tmp_path: Path) -> None:
    found = Outcome(STUDIES["efficiency"], {0: dict.fromkeys(("documents", "best, opd", "best, grpo"), 0.5)}, 300, 1.0)
    found.runs[0]["times as many for GRPO"] = 2.0  # type: ignore[index]
    page = tmp_path / "page.md"
    page.with_suffix(".csv").write_text(to_csv([found]))
    assert run(["study", "results", "--workspace", str(tmp_path / "empty"), "--write-docs", str(page)]) == 0
    assert "## efficiency" in page.read_text() and "one seed" in page.read_text()
    assert from_csv(page.with_suffix(".csv"), STUDIES) == {"efficiency": found}
    assert (
        tmp_path / "images" / "page" / "efficiency.svg"
    ).is_file() and "images/page/efficiency.svg" in page.read_text()


def test_figures_of_the_same_runs_stand_side_by_side() -> None:
    names = (
        "base",
        "score, opd",
        "score, sft, long",
        "drift, opd",
        "drift, sft, long",
        "drift, grpo",
        "lost, a",
        "lost, b",
    )
    figures = {name: {"mean": float(number), "spread": 0.5} for number, name in enumerate(names)}
    listed, runs, kinds = matrices(figures)
    assert listed == (("figure", "value"), [("base", "0.000 ± 0.500")])
    assert runs[0] == ("", "score", "drift")
    assert runs[1][0] == ("opd", "1.000 ± 0.500", "3.000 ± 0.500")
    assert runs[1][2] == ("grpo", "–", "5.000 ± 0.500")
    assert kinds[0] == ("", "lost") and [row[0] for row in kinds[1]] == ["a", "b"]


def test_a_picture_places_each_interval_beside_its_bound(tmp_path: Path) -> None:
    words = {"statement": "a < b & c", "bound": "> 0.5", "mean": 0.6, "low": 0.55, "high": 0.65, "verdict": "holds"}
    below = words | {"bound": "< 0.5", "verdict": "does not hold"}
    drawn = interval_picture([words, below, {name: words[name] for name in ("statement", "bound", "mean", "verdict")}])
    root = ElementTree.fromstring(drawn)
    space = "{http://www.w3.org/2000/svg}"
    shaded = [float(one.get("x", 0)) for one in root.findall(f".//{space}g/{space}rect")]
    circles = [float(one.get("cx", 0)) for one in root.findall(f".//{space}circle")]
    assert shaded == [100, 0, 100] and len(circles) == 2, "without an interval there is only the bound"
    assert all(100 < x < 200 for x in circles)
    assert "a < b & c" in [one.text for one in root.findall(f"{space}text")]


def test_the_interval_is_students() -> None:
    low, high = interval([1.0, 2.0, 3.0])
    assert low == pytest.approx(2 - 4.302653 / math.sqrt(3)) and high == pytest.approx(2 + 4.302653 / math.sqrt(3))


def test_seeds_that_are_done_are_kept_and_the_rest_is_run(tmp_path: Path) -> None:
    ran: list[int] = []

    def run(runner: Runner) -> Mapping[str, float]:
        ran.append(runner.seed)
        return {"gain": 1.0 + runner.seed / 100}

    mine = study(run)
    assert kept_outcome(mine, tmp_path) is None
    run_study(mine, Workspace(tmp_path), [0, 1], 0.1, Display())
    found = run_study(mine, Workspace(tmp_path), [0, 1, 2], 0.1, Display())
    assert ran == [0, 1, 2]
    assert dict(found.runs) == {0: {"gain": 1.0}, 1: {"gain": 1.01}, 2: {"gain": 1.02}}
    with Tracker(Workspace(tmp_path).database) as tracker:
        names = [row.name for row in queries.experiments(tracker.database)]
    assert {"study/sample/budget-0.1/seed-0", "study/sample/budget-0.1/seed-2"} <= set(names), (
        "one tracker holds them all"
    )
    shown = found.as_json()
    assert (shown["verdict"], shown["seeds"], shown["n"]) == ("holds", [0, 1, 2], 60)
    assert shown["figures"]["gain"]["by_seed"] == {0: 1.0, 1: 1.01, 2: 1.02}
    assert json.loads(json.dumps(shown))["criterion"].startswith(
        "with 95% confidence over seeds: the gain is real (> 0)"
    )
    page = markdown([found], "recover study sample")
    assert "| gain   | 1.010 ± 0.010 |" in page or (
        "| gain | 1.010 ± 0.010 |" in page and "**Verdict: holds.**" in page
    )
    assert "verdict: holds (3 seeds" in report(found)
    assert kept_outcome(mine, tmp_path, [0], 0.2) is None, "budgets are not mixed"
    (tmp_path / "studies" / "sample" / "budget-0.1" / "seed-1" / FIGURES).write_text("{")
    with pytest.raises(UsageError, match="cannot be read"):
        kept_outcome(mine, tmp_path)


def test_the_method_of_a_run_is_that_of_its_settings_not_of_its_name(tmp_path: Path) -> None:
    methods = {
        "opd-grpo": "grpo",
        "rl-teacher": "opd",
        "expert": "sft",
        "mixed-opd": "opd",
        "grpo-sft": "rejection-sft",
    }

    def record(runner: Runner) -> Mapping[str, float]:
        tracker, experiment = runner.session.tracker, runner.session.experiment_id
        for name, method in methods.items():
            config = build(
                DistillConfig, {"method": method, "data": Path(__file__)} if method == "sft" else {"method": method}
            )
            stage = tracker.start_stage(experiment, "distill", config=to_json(config))
            number = tracker.add_checkpoint(experiment, name, "recovered", path=runner.folder / name, by=stage)
            stage.finish()
            assert number
        return {name: float(method_family(runner, name, runner.session.workspace.folder) == "opd") for name in methods}

    found = run_study(study(record, Part("", lambda _: 1.0, 0.0)), Workspace(tmp_path), [0], 0.1, Display())
    assert found.runs[0] == {"opd-grpo": 0.0, "rl-teacher": 1.0, "expert": 0.0, "mixed-opd": 1.0, "grpo-sft": 0.0}
    seen: dict[str, str] = {}

    def look(runner: Runner) -> Mapping[str, float]:
        (other,) = others(runner.session.workspace.folder)
        assert other.parents[1].name == "sample"
        seen.update({name: method_family(runner, name, other) for name in methods})
        with pytest.raises(
            UsageError, match="no stage of the experiment study/sample/budget-0.1/seed-0 has made nothing"
        ):
            method_family(runner, "nothing", other)
        return {"gain": 1.0}

    run_study(dataclasses.replace(study(look), name="second"), Workspace(tmp_path), [0], 0.1, Display())
    assert seen == {"opd-grpo": "grpo", "rl-teacher": "opd", "expert": "sft", "mixed-opd": "opd", "grpo-sft": "sft"}


def test_the_default_arm_of_the_horizon_is_what_recover_cycle_does(shipped_miniature: Path) -> None:
    recipe, arm = model_recipe(shipped_miniature), ARMS[DEFAULT]
    cycle = build_cycle({}, recipe)
    assert build(MidtrainConfig, {"replay_documents": 0.5, **arm.midtrain}, recipe) == replace(
        cycle.midtrain, replay_documents=cycle.replay_documents
    )
    distill = build(DistillConfig, {"steps": arm.steps, **arm.distill}, recipe)
    assert replace(distill, embeddings="documents", prompts_before=0) == cycle.distill
    assert not distill.trains_embeddings and not arm.onward
    assert arm.recovers and arm.teachers == 3 and cycle.knowledge_teacher == "midtrained"


def test_a_statement_that_was_added_after_a_run_says_so() -> None:
    late = {of(measure, DEFAULT, 20): 0.99 for measure in MEASURES}
    lines = statements(Outcome(STUDIES["horizon"], {0: late, 1: late}, 1000, 60.0))
    added = "(added after the first runs of twenty cycles)"
    assert [line.split(" | ")[0] for line in lines if "twenty c" in line.split(" | ")[0]] == [
        f"| {DEFAULT}: instructions after twenty cycles, relative to base {added}",
        f"| {DEFAULT}: the worst of twenty corpora, kept {added}",
    ]


def test_every_study_is_complete_and_all_leaves_the_longest_out() -> None:
    wanted = (
        "recovery states teachers mitigations ceiling merge pivot contexts razor efficiency horizon slide generalise "
        "releases"
    )
    assert set(STUDIES) == set(wanted.split())
    for found in STUDIES.values():
        assert found.claim and found.source and found.setting and found.parts, found.name
    assert {s.name for s in chosen("all")} == set(STUDIES) - {"horizon", "slide"}
    with pytest.raises(UsageError, match="did you mean pivot"):
        chosen("pivto")


def test_arms_are_chosen_and_later_runs_extend_earlier_ones(tmp_path: Path) -> None:
    def run(runner: Runner) -> Mapping[str, float]:
        return {f"gain, {arm}": float(runner.cycles or 1) for arm in runner.arms or ("a",)}

    mine = replace(study(run, *(Part(arm, figure(f"gain, {arm}"), 0.0) for arm in "ab")), arms=("a", "b"))
    place = Workspace(tmp_path)
    assert run_study(mine, place, [0], 0.1, Display()).runs == {0: {"gain, a": 1.0}}
    found = run_study(mine, place, [0], 0.1, Display(), arms=["b"], cycles=4)
    assert found.runs == {0: {"gain, a": 1.0, "gain, b": 4.0}}
    assert [part.statement for part, _ in found.parts] == ["a", "b"]
    later = run_study(mine, place, [0, 1], 0.1, Display())
    assert later.runs == {0: {"gain, a": 1.0, "gain, b": 4.0}, 1: {"gain, a": 1.0}}
    assert [len(later.runs_of(part)) for part, _ in later.parts] == [2, 1], "judged by the seeds that have its figure"
    assert [part.get("low") is None for part in later.as_json()["parts"]] == [False, True]
    path = tmp_path / "studies" / "sample" / "budget-0.1" / "seed-0" / FIGURES
    path.write_text(json.dumps(json.loads(path.read_text()) | {"minutes": 99.0, "date": "2026-01-02"}))
    again = run_study(mine, place, [0], 0.1, Display())
    assert (again.minutes, again.dates) == (99.0, ("2026-01-02",)), "of the runs, not of finding them"
    with pytest.raises(UsageError, match="has no arm 'c': a; b"):
        run_study(mine, place, [0], 0.1, Display(), arms=["c"])
    with pytest.raises(UsageError, match="has no arms and cycles to choose"):
        run_study(study(), place, [0], 0.1, Display(), cycles=3)


def test_a_choice_that_was_run_first_is_not_taken_for_the_study_itself(tmp_path: Path) -> None:
    def run(runner: Runner) -> Mapping[str, float]:
        return {f"gain, {arm}": 1.0 for arm in runner.arms or ("a",)}

    mine = replace(study(run, *(Part(arm, figure(f"gain, {arm}"), 0.0) for arm in "ab")), arms=("a", "b"))
    run_study(mine, Workspace(tmp_path), [0], 0.1, Display(), arms=["b"], cycles=2)
    assert run_study(mine, Workspace(tmp_path), [0], 0.1, Display()).runs == {0: {"gain, a": 1.0, "gain, b": 1.0}}


def test_corpora_that_were_written_in_part_are_written_again(tmp_path: Path) -> None:
    with Session.open(tmp_path, model="miniature", display=Display(quiet=True)) as session:
        runner = Runner(session, 0)

    def written() -> dict[Path, str]:
        folders = runner.corpora(2, entities=2, documents=2)
        return {path: path.read_text() for folder in folders for path in sorted(folder.iterdir())}

    whole = written()
    last = next(iter(whole)).parent.parent / "q2"
    for path in (max(last.glob("*.md")), last / "questions.jsonl", last / "probes.jsonl"):  # as if a stop came before
        path.unlink()
    assert written() == whole


def test_the_page_of_many_cycles_says_how_each_arm_is_configured() -> None:
    runs = {0: {of(measure, arm, 1): 1.0 for measure in MEASURES for arm in ARMS}}
    rows = page(Outcome(STUDIES["horizon"], runs, 1000, 60.0), "recover study horizon", "picture.svg").splitlines()
    begin = rows.index("## Arms")
    shown = {row.split(" | ")[0].strip("| "): row for row in rows[begin + 4 : begin + 4 + len(ARMS)]}
    assert list(shown) == list(ARMS)
    for name, arm in ARMS.items():
        assert f" | {arm.steps if arm.recovers else '–'} | " in shown[name]
    gentle = (
        "lr 0.001, replay 0.3, replay_focus 0.5, replay_loss kl, schedule cosine | 1/2 | 3 | 40 | focus 0.5, lr 0.0003"
    )
    assert shown["gentle-three-teachers"] == f"| gentle-three-teachers | {gentle} |"
    assert " | 2/3 | 3 | 100 | " in shown["rows-questions-rehearsal"]
    assert shown["rows-questions-120-steps-root"].endswith(
        "| 120 | earlier_share by root, embeddings none, knowledge_share 0.3 |"
    )


def test_the_page_of_many_cycles_has_a_table_for_each_measure_and_curves_for_each_arm() -> None:
    arms, runs = ("documents", "three-teachers"), {}
    for seed in (0, 1):
        cycles = 10 if seed == 0 else 4
        found = {"base": 0.98}
        for at, arm in enumerate(arms):
            for number in range(1, cycles + 1):
                value = 1 - 0.1 * (2 - at) / 10 * number + 0.01 * seed
                found |= {of(measure, arm, number): value for measure in MEASURES}
                found[of(TOKENS, arm, number)] = 100_000.0 + number
        runs[seed] = found
    made = Outcome(STUDIES["horizon"], runs, 1000, 60.0)
    text = page(made, "recover study horizon", "picture.svg")
    assert "## Instructions followed after the cycle, relative to base" in text
    assert "| documents | 0.985 ± 0.007 | 0.965 ± 0.007 |" in text and "| 0.800 |" in text
    assert "| 100,001 |" in text and "three-teachers: seed 0: 10, seed 1: 4" in text
    assert "Not run: `replay`, `one-teacher`, " in text and "| one-teacher |" not in text
    row = "| three-teachers: instructions after ten cycles, relative to base | > 0.98 | 0.900 | one seed |"
    assert row in text, "seed 1 has four cycles"
    drawn = many.picture(made)
    root = ElementTree.fromstring(drawn)
    space = "{http://www.w3.org/2000/svg}"
    panels = [g for g in root.findall(f"{space}g") if g.find(f"{space}text") is not None]
    assert len(panels) == len(DRAWN)
    for panel in panels:
        paths = [one.get("d", "") for one in panel.findall(f"{space}path") if one.get("fill") == "none"]
        assert [path.count("L") for path in paths] == [9, 9]
        heights = [float(point.split()[1]) for point in paths[0][1:].split("L")]
        assert heights == sorted(heights), "what falls is drawn downwards"
    assert [one.text for one in root.findall(f"{space}text")] == list(arms)


@pytest.mark.parametrize("name", ["studies", "horizon"])
def test_published_pages_are_what_their_raw_figures_give(name: str, tmp_path: Path) -> None:
    """All but the line that names day and command, and the one that names the machine."""
    shutil.copyfile(DOCS / f"{name}.csv", tmp_path / f"{name}.csv")
    outcomes, files = written(STUDIES, [], "recover study results", tmp_path / f"{name}.md")
    assert len(files) == 2 + len(outcomes)
    for path, text in files.items():
        published, made = (DOCS / path.relative_to(tmp_path)).read_text().splitlines(), text.splitlines()
        assert len(made) == len(published)
        for old, new in zip(published, made, strict=True):
            if old.startswith("Written by "):
                assert new.partition(". ")[2] == old.partition(". ")[2]
            elif not old.startswith("Machine: "):
                assert new == old, "recover study results --write-docs writes it again"


def test_without_the_repository_one_line_says_where_the_studies_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(common, "ROOT", tmp_path)
    assert run(["study", "results", "--workspace", str(tmp_path / "w")]) == 1
    assert capsys.readouterr().err == (
        "recover: error: the studies are in the repository: clone it, and run the command there\n"
    )
    assert run(["miniature", "build", str(tmp_path / "m")]) == 1
    assert "the training of the miniature is in the repository: clone it" in capsys.readouterr().err


def records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_second_release_of_a_handbook_differs_in_the_changed_values_alone(tmp_path: Path) -> None:
    first, second = write_releases(tmp_path / "a", seed=4, entities=4, documents=6)
    again = write_releases(tmp_path / "b", seed=4, entities=4, documents=6)
    pages = sorted(path.name for path in first.glob("*.md"))
    assert [(first / name).read_text() for name in pages] == [(again[0] / name).read_text() for name in pages]
    answers = [
        {(one["source"], one["question"]): one["answers"][0] for one in records(folder / "probes.jsonl")}
        for folder in (first, second)
    ]
    changed = {key for key, answer in answers[0].items() if answers[1].get(key, answer) != answer}
    assert len({source for source, _ in changed}) == 2
    for name in pages:
        before, after = ((folder / name).read_text().split() for folder in (first, second))
        different = {(old.strip("."), new.strip(".")) for old, new in zip(before, after, strict=True) if old != new}
        assert len(different) == (2 if name in {source for source, _ in changed} else 0), "the port and the database"
    tags = {tag for one in records(second / "questions.jsonl") for tag in one["tags"]}
    assert tags == {f"document:{name}" for name in pages}
