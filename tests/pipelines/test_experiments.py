"""Records of an experiment's runs, and the page that is written from them."""

from __future__ import annotations

import csv
import io
import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from db import Tracker, queries
from evals.paired_tests import compare, paired_difference
from pipelines.data.corpus_snapshot import load_snapshot
from pipelines.experiments.confirm import claims, judged, plan_text
from pipelines.experiments.demo import Scenario
from pipelines.experiments.page import SAME_OPERATIONS, figures, gain_cell, page
from pipelines.experiments.records import (
    BEYOND,
    BOUNDS,
    FILE,
    OWN,
    Measured,
    Record,
    beside,
    read_records,
    share_of_base,
    shares_by_run,
    suite,
    to_text,
    with_beyond,
)
from pipelines.experiments.records import judged as instructions_of
from pipelines.experiments.run import run
from pipelines.runtime.progress import Display
from pipelines.table import PlanRow
from recovery.arms import Arm, arm_named
from recovery.config import Recipe
from recovery.config.defaults import DEFAULTS, OTHERS
from recovery.errors import RecoveryError, UsageError
from recovery.workspace import Workspace


def measured(name: str, cycle: int, kind: str, own: float, fact: float, verdicts: str) -> Measured:
    """A checkpoint with one score on our own prompts, one on held-out facts, and verdicts of three prompts."""
    return Measured(
        name,
        cycle,
        kind,
        {
            "instruction_following": {"value": own, "stderr": 0.01, "n": 100, "details": {"instruction_strict": own}},
            "ifeval": {"value": own / 2, "stderr": 0.01, "n": 541, "details": {"instruction_strict": own / 2}},
            "domain_knowledge/1": {"value": 0.0, "stderr": 0.0, "n": 29, "details": {"held-out fact/contains": fact}},
        },
        {"instruction_following": {f"p{number}": word for number, word in enumerate(verdicts.split())}},
        {"trained": 1000.0, "sampled": 0.0, "scored": 0.0, "flops": 1e12, "seconds": 1800.0},
    )


OWN_PROMPTS = suite(OWN, "instruction_strict")
RUN = Record(
    "two-teachers",
    "recovery with two teachers",
    0,
    3,
    "model.gguf",
    "corpora/1-reference",
    "a machine",
    "2026-11-21",
    False,
    (
        measured("base", 0, "base", 0.60, 0.02, "11 1 01"),
        measured("one", 1, "midtrained", 0.30, 0.25, "01 0 00"),
        measured("two", 1, "recovered", 0.594, 0.24, "11 1 00"),
    ),
    ({"prompt": "Say *hi*.", "base": "hi", "one": "<b>no</b>\n# not a heading", "two": ""},),
)


def test_what_older_verdicts_say_beyond_constant_replies() -> None:
    known = {OWN: {"echo": 0.25, "trivial": {"p0": "10", "p1": "0", "p2": "11"}}}
    again = with_beyond(RUN, known)
    base, mid, end = again.checkpoints
    # verdicts 11 1 01, 01 0 00 and 11 1 00: beyond constant replies the second of a and that of b
    assert base.items[f"{OWN}/beyond_constant"] == {"p0": "1", "p1": "1"}
    assert [one.suites[OWN]["details"]["beyond_constant"] for one in (base, mid, end)] == [1.0, 0.5, 1.0]
    assert base.suites[OWN]["details"]["beyond_constant_echo"] == 0.25
    assert base.suites[OWN]["value"] == RUN.checkpoints[0].suites[OWN]["value"], "the official figure stays"
    assert with_beyond(again, {OWN: {"echo": 0.9, "trivial": {"p0": "00", "p1": "0", "p2": "00"}}}) == again


def test_the_page_says_what_the_main_arm_keeps_learns_and_misses() -> None:
    known = {OWN: {"echo": 0.25, "trivial": {"p0": "00", "p1": "0", "p2": "00"}}}
    gained = {"value": 0.4, "n": 9, "details": {"low": 0.1, "high": 0.8}}
    k = {"value": 5.0, "n": 9, "details": {"low": 3.0, "high": 7.0, "p_value": 0.2}}
    base, mid, end = with_beyond(RUN, known).checkpoints
    pooled = gained | {"value": 0.5}
    end = replace(end, suites=end.suites | {"gap_closed/1": gained, "gap_closed/pooled": pooled, "k/1": k})
    mid = replace(mid, items=mid.items | {"domain_knowledge/1": {"q1": "01", "q2": "00", "c1": "11"}})
    opened = {"value": 0.0, "n": 9, "details": {"held-out fact/contains": 0.42}}
    base = replace(base, suites=base.suites | {"open_book/1": opened})
    run = replace(RUN, checkpoints=(base, mid, end))
    rows = page([run, replace(run, arm="documents")], "two-teachers", "the command", {"q1", "q2"}, "a.svg").splitlines()
    text = "\n".join(rows)
    assert "Written by `the command` from 2 recorded runs, the newest of 2026-11-21." in rows
    assert text.count("the defaults leave 0.75 (") == 2 and "](a.svg)" in text, "the headline, and beside the picture"
    assert "| held-out facts answered | 1 of 2 | – |" in rows, "the control question is none"
    assert "| gap closed, all corpora so far | – | 0.50 (0.10 to 0.80) |" in rows
    assert (
        "| gap closed, the cycle's corpus | – | 0.40 (0.10 to 0.80) |" in rows
        and "| K, bits | – | 5.00 (3.00 to 7.00) |" in rows
    )
    shares = [one.suites["domain_knowledge/1"]["details"]["held-out fact/contains"] for one in (mid, end)]
    alone = " | ".join(f"{(share - 0.02) / 0.4:.3f}" for share in shares)
    assert f"| gap closed, held-out facts alone | {alone} |" in rows
    (kept,) = (row for row in rows if row.startswith("| gap closed: 0.30"))
    assert kept.endswith("| –, kept | –, – | –, – |")
    assert any(row.startswith("| K above 0") and "| **missed** | – | – |" in row for row in rows)
    assert "| `Say *hi*.` | `hi` | `<b>no</b> # not a heading` | (nothing) |" in rows, "responses are code, on one line"


def answering(run: Record, instructions: dict[str, str], questions: dict[str, str]) -> Record:
    """A run whose recovered model has these verdicts of instructions, and of questions about its corpus."""
    *others, end = run.checkpoints
    items = {"instruction_following/beyond_constant": instructions, "domain_knowledge/1": questions}
    return replace(run, checkpoints=(*others, replace(end, items=items)))


def test_the_page_sets_the_defaults_beside_replay_at_the_same_operations() -> None:
    asked = [f"q{number}" for number in range(20)]
    ours = answering(RUN, dict.fromkeys("abcdefgh", "11"), dict.fromkeys(asked[:12], "01") | {"x": "11"})
    theirs = answering(replace(RUN, arm=SAME_OPERATIONS), dict.fromkeys("abcdefgh", "10"), dict.fromkeys(asked, "00"))
    instructions, questions = beside(ours, theirs, 1)
    assert (instructions.first, instructions.second, instructions.n) == (0.5, 1.0, 16)
    assert (questions.first, questions.second, questions.n) == (0.0, 1.0, 12), "asked of both; any accepted answer"
    assert questions.p_value == pytest.approx(2 * 0.5**12), "McNemar's test: twelve won, none lost"
    p_values = sorted(one.p_value for one in (instructions, questions))  # type: ignore[type-var]
    assert sorted(one.p_adjusted for one in (instructions, questions)) == pytest.approx(  # type: ignore[type-var]
        [2 * p_values[0], max(2 * p_values[0], p_values[1])]
    )
    assert beside(ours, theirs, 2) == [], "neither has a second cycle"
    text = page([ours, theirs], "two-teachers", "the command")
    assert "## Beside replay at the same operations" in text
    assert "| 1 | 0 | questions answered, all corpora | 0.000 | 1.000 | +100.0 (" in text
    assert "same operations" not in page([ours, replace(theirs, seed=1)], "two-teachers", "the command")


def test_a_confirmation_says_before_what_refutes_it_and_judges_every_stage_by_that() -> None:
    k = {"value": 5.0, "n": 9, "details": {"low": 3.0, "high": 7.0, "p_value": 0.2}}
    base, mid, end = RUN.checkpoints
    run = replace(RUN, checkpoints=(base, mid, replace(end, suites=end.suites | {"k/1": k})))
    found = judged([run])
    assert list(found) == [bound.name for bound in BOUNDS] and all(name in claims() for name in found)
    assert found["K above 0: p below 0.05"] == [False]
    assert found["gap closed: 0.30, lower bound above 0.05"] == [None, None], "of both stages"
    assert "at 2 per hour: 6.00" in plan_text([PlanRow("all", "midtrain", 3 * 3600, 1 << 30)], 2 << 30, 2.0)


def test_short_runs_are_said_to_be_short_and_stand_in_the_table_of_all_figures() -> None:
    short, cut = replace(RUN, short=True, arm="short"), replace(RUN, cut=2)
    text = page([RUN, short, cut], "two-teachers", "it")
    assert "a part of the documents" not in text and "`short`" not in text
    assert "too coarse for the bounds" in page([short], "short", "it")
    rows = list(csv.DictReader(io.StringIO(figures([RUN, short, cut]))))
    assert len(rows) == 9 and [row["short"] for row in rows[::3]] == ["0", "1", "0"]
    assert [row["pieces"] for row in rows[::3]] == ["1", "1", "2"]
    assert [row["own prompts, instructions strict"] for row in rows[:3]] == ["0.6000", "0.3000", "0.5940"]
    assert [row["held-out facts answered"] for row in rows[:3]] == ["0.0200", "0.2500", "0.2400"]
    assert rows[1]["trained"] == "1000.0" and rows[0]["gap closed"] == ""


def test_the_shares_of_the_recorded_runs_beyond_constant_replies() -> None:
    """docs/real.md, from the verdicts of the records alone: 544 of IFEval's instructions."""
    folder = Path(__file__).parents[2] / "docs/real"
    known = json.loads((folder / "trivial/1.json").read_text(encoding="utf-8"))
    runs = [with_beyond(record, known) for record in read_records(folder)]

    def share(arm: str, cycle: int, kind: str) -> float:
        return statistics.fmean(
            shares_by_run(BEYOND, [one for one in runs if one.arm == arm and one.cut == 1], cycle, kind)
        )

    recorded = {
        ("documents", "midtrained"): (0.18, 0.17, 0.18),
        ("unaugmented", "midtrained"): (0.92,),
        ("replay", "midtrained"): (0.97, 0.73, 0.66),
        ("kl-replay", "midtrained"): (0.90,),
        ("blend-questions-recovery", "midtrained"): (0.16, 0.40, 0.55),
        ("blend-questions-recovery", "recovered"): (1.06, 1.02, 0.98),
        ("kl-replay-recovery", "recovered"): (1.00, 0.98, 0.93),
        ("one-teacher", "recovered"): (0.87,),
        ("own-answers", "recovered"): (0.83,),
        ("recovery-chat", "recovered"): (0.53,),
    }
    for (arm, kind), expected in recorded.items():
        found = [share(arm, cycle, kind) for cycle in range(1, len(expected) + 1)]
        assert found == pytest.approx(expected, abs=0.0051), (arm, kind)


def test_the_evidence_of_the_defaults_is_what_the_records_say() -> None:
    """recovery/config/defaults.py quotes figures of docs/real; each is computed here again."""
    folder = Path(__file__).parents[2] / "docs/real"
    known = json.loads((folder / "trivial/1.json").read_text(encoding="utf-8"))
    whole = [with_beyond(one, known) for one in read_records(folder) if one.cut == 1 and not one.short]
    runs = [one for one in whole if one.date < "2026-11-29"]  # later ones have other questions

    def mean(arm: str, kind: str, suite_: str, detail: str, own: bool = False) -> float:
        found = [suite(suite_, detail, own)(one, 1, kind) for one in runs if one.arm == arm]
        return statistics.fmean(value for value in found if value is not None)

    def facts(arm: str) -> float:
        return mean(arm, "midtrained", "domain_knowledge", "held-out fact/contains", True)

    def beyond(arm: str, kind: str, cycle: int = 1, among: Sequence[Record] = runs) -> str:
        return f"{statistics.fmean(shares_by_run(BEYOND, [one for one in among if one.arm == arm], cycle, kind)):.2f}"

    mid, end, kept = "midtrained", "recovered", "kl-replay-recovery"
    recovery = next(one for one in runs if (one.arm, one.seed) == ("recovery", 0))
    augmented = suite("domain_knowledge", "held-out fact/contains", True)(recovery, 1, mid) or 0.0
    quoted = {
        ("midtrain", "augment"): f"{60 * augmented:.0f} of 60 questions about held-out facts are answered with it, "
        f"{60 * facts('unaugmented'):.0f} without",
        ("midtrain", "augment_questions"): f"{mean('unaugmented', mid, OWN, 'ended'):.0%} of answers end",
        ("midtrain", "replay"): f"keeps {beyond('kl-replay', mid)} of the instructions beyond constant replies "
        f"(two seeds); none {beyond('documents', mid)}",
        ("midtrain", "replay_loss"): f"keeps {beyond('kl-replay', mid)} ({beyond('replay', mid)}) and learns "
        f"{facts('kl-replay'):.0%} ({facts('replay'):.0%}) of held-out facts",
    }
    first, second, third = (beyond(kept, end, cycle, whole) for cycle in (1, 2, 3))
    quoted["distill", "steps"] = f"at {first}, {second} and {third} of base"
    for (table, name), words in quoted.items():
        assert words in DEFAULTS[table][name].reason, (name, words)
    forms = ("domain_knowledge", "held-out form/contains", True)
    both, alone = (mean(arm, end, *forms) for arm in ("recovery", "one-teacher"))
    assert f"{both:.2f} answered, {alone:.2f} with the clean model alone" in OTHERS["knowledge teacher"][2]
    base, lost, back = (mean("recovery-chat", kind, "ifeval", "instruction_strict") for kind in ("base", mid, end))
    assert f"brings back {(back - lost) / (base - lost):.0%} of the loss" in OTHERS["prompts"][2]
    lora = [one for one in whole if one.arm == "kl-replay-lora-recovery"]
    trained, recovered = (gain_cell(lora, 1, kind, "gap_closed").partition(" ")[0] for kind in (mid, end))
    assert f"closes {trained} of the gap after mid-training and {recovered} after" in OTHERS["rate of LoRA"][2]


ROUNDED_UP = (0.58, 0.7)  # base's scores whose weights add up to a little more than 1


def seeded(seed: int, below: float, base: str, end: str) -> Record:
    """One cycle with a seed: base's recorded score, its verdicts, and those of the recovered model."""
    checkpoints = (measured("base", 0, "base", below, 0.0, base), measured("two", 1, "recovered", 0.5, 0.2, end))
    return replace(RUN, seed=seed, checkpoints=checkpoints)


def shares(*records: Record) -> tuple[float, float]:
    return share_of_base(records, 1, OWN_PROMPTS, OWN)  # type: ignore[return-value]


def test_the_interval_over_seeds_is_that_of_the_prompts_all_seeds_together() -> None:
    one = seeded(0, 0.6, "11 10 01 0 1", "10 11 01 1 0")
    pair = compare("", *(instructions_of(checkpoint, OWN) for checkpoint in one.checkpoints))
    assert shares(one) == (1 + pair.low / 0.6, 1 + pair.high / 0.6), "of one seed: its own, to the bit"
    twice, alone = shares(one, replace(one, seed=1)), shares(one)
    assert twice == pytest.approx(alone), "a seed that adds nothing narrows nothing"
    # Each run has its own base, in items and in score: b = 0.6 and 0.3, so weights 1/3 and 2/3, harmonic mean 0.4.
    other = seeded(1, 0.3, "01 10 00 0 1", "11 00 01 1 1")
    base = [(a + 2 * b) / 3 for a, b in zip((1, 1, 1, 0, 0, 1, 0, 1), (0, 1, 1, 0, 0, 0, 0, 1), strict=True)]
    end = [(a + 2 * b) / 3 for a, b in zip((1, 0, 1, 1, 0, 1, 1, 0), (1, 1, 0, 0, 0, 1, 1, 1), strict=True)]
    expected = paired_difference(base, end, ["a", "a", "b", "b", "c", "c", "", ""])
    both = shares(one, other)
    assert both == pytest.approx((1 + expected.low / 0.4, 1 + expected.high / 0.4))
    fewer = shares(one, seeded(1, 0.3, "01 10 00 0", "11 00 01 1"))
    shorter = shares(seeded(0, 0.6, "11 10 01 0", "10 11 01 1"), seeded(1, 0.3, "01 10 00 0", "11 00 01 1"))
    assert fewer == shorter, "only prompts that all runs have"
    assert share_of_base([replace(RUN, checkpoints=RUN.checkpoints[1:])], 1, OWN_PROMPTS, OWN) is None


def test_weights_of_seeds_that_are_rounded_up_are_no_score_above_1() -> None:
    every = [seeded(seed, below, "1 1 1", "1 1 0") for seed, below in enumerate(ROUNDED_UP)]
    mean = statistics.harmonic_mean(ROUNDED_UP)
    assert sum(mean / (len(ROUNDED_UP) * below) for below in ROUNDED_UP) > 1
    expected = paired_difference([1, 1, 1], [1, 1, 0])
    assert shares(*every)[0] == pytest.approx(1 + expected.low / mean)


def boats(target: Path, _seed: int) -> list[Path]:
    """Write two corpora of one page each."""
    for number, subject in enumerate(("ferry", "tug"), 1):
        (target / str(number)).mkdir(parents=True, exist_ok=True)
        text = "\n\n".join(f"The {subject} {name} takes {len(name)} cars." for name in ("Ada", "Bo", "Cy"))
        (target / str(number) / "page.md").write_text(f"# The {subject}\n\n{text}\n")
    return [target / "1", target / "2"]


Go = Callable[..., Record]
SMALL = {"steps": 1, "batch_tokens": 64, "row_length": 32, "limit": 4, "max_new_tokens": 4, "question_tokens": 4}


@pytest.fixture
def go(tiny_model: Path, tmp_path: Path) -> Go:
    """``go(arm)``: the record of small cycles of an arm about boats."""

    def ran(arm: Arm | str = "documents", cycles: int = 1, home: str = "w", kept: str = "kept", **given: Any) -> Record:
        flags = given.pop("flags", SMALL)
        return run(
            Workspace(tmp_path / home),
            arm_named(arm) if isinstance(arm, str) else arm,
            replace(Scenario(str(tiny_model), 2, boats, "about boats"), **given),
            seed=0,
            cycles=cycles,
            flags=flags,
            kept=tmp_path / kept,
            display=Display(quiet=True),
        )

    return ran


def test_an_arm_is_run_once_and_its_record_stays(go: Go, tmp_path: Path) -> None:
    """A repeated run reuses everything, and a short run or one in pieces changes nothing of a whole one."""
    made = go(cycles=2)
    assert [(c.cycle, c.kind) for c in made.checkpoints] == [(0, "base"), (1, "midtrained"), (2, "midtrained")]
    assert all(c.cost["trained"] > 0 for c in made.checkpoints[1:])
    with Tracker(f"sqlite:///{tmp_path / 'w' / 'tracker.db'}", readonly=True) as tracker:
        (experiment,) = queries.experiments(tracker.database)
        overview = queries.overview(tracker.database, experiment.id)
        rows = overview.cycles if overview else ()
    judged = [row.cycle.details["evidence"]["compared_with"]["base"]["suites"] for row in rows]
    assert [bool(suites) for suites in judged] == [True, True], "each cycle is compared with base"
    path = tmp_path / "kept" / "documents-seed-0.json"
    text = path.read_text()
    assert str(tmp_path) not in text, "a record travels: it names no place"
    assert go(cycles=2) == made
    assert made.instructions[OWN].keys() == made.checkpoints[0].items[OWN].keys()
    assert all(len(ids) == len(made.checkpoints[0].items[OWN][key]) for key, ids in made.instructions[OWN].items())
    assert go() == made, "fewer cycles take nothing out of a record"
    go(short=True)
    go(cut=2)
    assert path.read_text() == text
    kept = read_records(tmp_path / "kept")
    assert [(record.short, record.cut) for record in kept] == [(False, 2), (True, 1), (False, 1)]
    elsewhere = [replace(one, cost={**one.cost, "seconds": 1.5}) for one in made.checkpoints]
    path.write_text(text := to_text(replace(made, checkpoints=tuple(elsewhere))))
    shorter = go()
    assert (shorter.cycles, path.read_text()) == (1, text), "a run of fewer cycles waits beside it"
    (waiting,) = (tmp_path / "w").rglob(path.name)
    assert waiting.read_text() == to_text(shorter)
    again = to_text(go(cycles=2))
    assert path.read_text() == again != text and not waiting.exists()
    assert {row.split(",")[3] for row in figures(kept[:1]).splitlines()[1:]} == {"2"}


def test_an_arm_that_keeps_older_versions_has_snapshots_of_its_own(go: Go, tmp_path: Path) -> None:
    go()
    go(replace(arm_named("documents"), name="keeping", midtrain=arm_named("keep-older-recovery").midtrain))
    homes = [Workspace(tmp_path / "w" / "real" / "corpora" / name) for name in ("seed-0", "seed-0-keep")]
    assert [load_snapshot(home, 1).replaces for home in homes] == [True, False]
    assert len(read_records(tmp_path / "kept")) == 2


def test_arms_in_a_workspace_that_was_moved_go_on(go: Go, tmp_path: Path) -> None:
    """Their corpora are in it, and moved with it."""
    made = go(kept="w/records")
    (tmp_path / "w").rename(tmp_path / "moved")
    there = {"cycles": 2, "home": "moved", "kept": "moved/records"}
    more = go(**there)
    assert (made.cycles, more.cycles) == (1, 2)
    assert [one.cost for one in more.checkpoints[:2]] == [one.cost for one in made.checkpoints], "not done again"
    first = tmp_path / "moved" / "corpora" / "1"
    with pytest.raises(UsageError, match=r"cycle 2 of .* began with the documents in .*, not with "):
        go(**there, write=lambda *given: [boats(*given)[0], first])


def test_an_arm_of_equal_operations_takes_those_of_the_other_arms_whole_cycle(go: Go) -> None:
    flags = SMALL | {"row_length": 64, "replay_prompts": 8, "prompts_per_step": 4, "max_new_tokens": 8}

    def flops(arm: Arm) -> float:
        return sum(one.cost["flops"] for one in go(arm, flags=flags).checkpoints[1:])

    # No answer of a random model ends, so that there is nothing to replay: documents alone.
    rival_arm = replace(arm_named("replay-equal-flops"), midtrain={})
    with pytest.raises(UsageError, match="-recovery-seed-0.json does not hold cycle 1.*: run kl-replay-recovery first"):
        flops(rival_arm)
    whole, rival = flops(arm_named("kl-replay-recovery")), flops(rival_arm)
    assert whole <= rival < 2 * whole, "at least as many, and what a last step and the replay's samples add"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"teacher": "nobody"}, "there is no checkpoint 'nobody'"),
        ({"prompts": "nowhere.jsonl"}, "--prompts nowhere.jsonl: there is no such file"),
    ],
)
def test_a_wrong_name_in_the_recipe_of_arms_is_found_before_anything_is_recorded(
    go: Go, tmp_path: Path, settings: dict[str, str], message: str
) -> None:
    with pytest.raises(RecoveryError, match=message):
        go("recovery", recipe=Recipe("recipe.toml", {"distill": settings}))
    assert not list((tmp_path / "w").rglob("corpora/cycle-1")) and not (tmp_path / "kept").exists()


def test_records_travel_as_files(tmp_path: Path) -> None:
    (tmp_path / FILE.format(arm="two-teachers", seed=0, suffix="")).write_text(to_text(RUN))
    assert read_records(tmp_path) == [RUN]
    (tmp_path / "broken.json").write_text('{"arm": 1}')
    with pytest.raises(UsageError, match=r"broken.json is not a record of a run .*: delete it, or write it again"):
        read_records(tmp_path)
