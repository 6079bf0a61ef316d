"""Records of an experiment's runs, and the page that is written from them."""

from __future__ import annotations

import json
import statistics
from dataclasses import replace
from pathlib import Path

import pytest

from evals.paired_tests import paired_difference
from pipelines.data.corpus_snapshot import load_snapshot
from pipelines.data.question_splits import Question
from pipelines.experiments.arm_cycle import Arm, arm_named
from pipelines.experiments.bounds import BEYOND, OWN, OWN_PROMPTS, of_earlier, relative
from pipelines.experiments.demo import Scenario
from pipelines.experiments.page import page
from pipelines.experiments.paired import Share, compared, share_of_base
from pipelines.experiments.records import (
    FILE,
    CleanScores,
    Measured,
    Record,
    read_clean,
    read_records,
    to_text,
    with_beyond,
)
from pipelines.experiments.run import run
from pipelines.runtime.progress import Display
from recovery.config import Recipe
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


def test_the_page_holds_means_bounds_pairs_and_answers() -> None:
    other = replace(
        RUN,
        seed=1,
        checkpoints=(*RUN.checkpoints[:2], measured("two", 1, "recovered", 0.606, 0.26, "11 1 01")),
    )
    text = page([RUN, other, replace(RUN, arm="documents", title="documents alone")], "two-teachers", "the command")
    rows = text.splitlines()
    own, asked = "recovery: own prompts, instructions strict, relative to base", "recovery: held-out facts answered,"
    assert f"| {own} | ≥ 0.98 | ≥ 0.99 | 1.000 ± 0.014 | goal in 1 of 3 |" in rows
    assert f"| {asked} relative to mid-trained | ≥ 0.95 | ≥ 1.00 | 1.000 ± 0.057 | goal in 1 of 3 |" in rows
    gained = "mid-training: asked, held-out facts, gained over base"
    assert f"| {gained} | +15 points |  | +23.0 ± 0.0 | must in 1 of 3 |" in rows
    assert "| `two-teachers` | cycle 1, recovered | 2 | 0.300 ± 0.004 | – | 0.600 ± 0.008 |" in text
    assert "| one | instruction_following, prompts | 3 | -66.7 (-93.9 to +26.9) | 2/0 | 0.5 |" in rows
    assert "    # not a heading" in rows, "answers are quoted as text"
    assert "    (nothing)" in rows
    assert "the command" in text and "1 of 3" in text
    assert "no prompt of them is trained on; their topics and nearly all their combinations of instructions are" in text


def test_base_has_a_row_for_each_result_and_the_processors_that_gave_it() -> None:
    def shown(*records: Record) -> list[str]:
        lines = page(records, RUN.arm, "the command").splitlines()
        return [line for line in lines if "asked about corpus 1 |  |" in line]

    here, there = replace(RUN, machine="Machine: One Core, 2 cores."), "Machine: Another, 4 cores."
    weaker = (measured("base", 0, "base", 0.58, 0.02, "11 1 01"), *RUN.checkpoints[1:])
    other = replace(RUN, arm="documents", title="documents alone", machine=there, checkpoints=weaker)
    assert [line.split(" | ")[:6] for line in shown(here, here, other)] == [
        ["| base, on One Core", "asked about corpus 1", "", "0.300", "–", "0.600"],
        ["| base, on Another", "asked about corpus 1", "", "0.290", "–", "0.580"],
    ]
    assert [line.split(" | ")[0] for line in shown(here, replace(other, checkpoints=RUN.checkpoints))] == ["| base"]
    later = replace(other, machine=here.machine, date="2031-05-06")  # another release on the same processor
    assert [line.split(" | ")[0] for line in shown(here, later)] == [
        f"| base, on One Core, {here.date}",
        "| base, on One Core, 2031-05-06",
    ]


def test_hours_of_a_processor_and_of_a_gpu_are_not_averaged() -> None:
    def hours(*records: Record) -> list[str]:
        row = next(line for line in page(records, RUN.arm, "it").splitlines() if "cycle 1, recovered | " in line)
        return [cell.strip() for cell in row.split("|")[-3:-1]]

    here = replace(RUN, machine="Machine: One Core, 2 cores; Python 3, torch 2.")
    last = replace(RUN.checkpoints[-1], cost={**RUN.checkpoints[-1].cost, "seconds": 36.0})
    there = replace(
        RUN,
        seed=1,
        machine="Machine: A GPU, One Core, 16 cores; Python 3, torch 2.",
        checkpoints=(*RUN.checkpoints[:-1], last),
    )
    assert hours(here, there) == ["0.50", "0.01"]
    assert hours(here) == ["0.50", "–"] and hours(there) == ["–", "0.01"]


def test_the_main_arm_is_paired_with_the_others_after_each_cycle_that_both_have() -> None:
    questions = {"domain_knowledge/1": {"a": "00", "b": "01", "c": "11"}}
    asked = [replace(one, items={**one.items, **questions}) for one in RUN.checkpoints]
    nothing = {"domain_knowledge/1": dict.fromkeys("abc", "00")}
    other = replace(RUN, arm="documents", title="documents alone",
                    checkpoints=(asked[0], replace(asked[1], items={**asked[1].items, **nothing})))  # fmt: skip
    rows = page([replace(RUN, checkpoints=tuple(asked)), other], "two-teachers", "the command").splitlines()
    begin = rows.index("## Against the other arms, item by item")
    paired = [row.split("|")[1:-1] for row in rows[begin + 6 : rows.index("## Paired tests") - 1]]
    # Strict instructions: 11 1 00 against 01 0 00. Questions: a response that contains an answer counts.
    assert [(row[3].strip(), row[4].strip(), row[6].strip()) for row in paired] == [
        ("instruction_following, instructions", "5", "0/2"),
        ("domain_knowledge/1, questions", "3", "0/2"),
    ]


def test_held_out_facts_are_counted_by_form_and_once_for_each_mid_training() -> None:
    def question(name: str, use: str, form: str, *answers: str, control: bool = False) -> Question:
        return Question(name, f"fact of {name}", "harbour", "port.md", use, form, f"{name}?", answers, control)

    asked = (
        question("a", "test", "version", "16.3.0"),
        question("b", "test", "which", "the north pier", "north pier"),
        question("c", "test", "which", "a long pier", "pier"),
        question("form", "test-form", "which", "pier"),
        question("untaught", "test", "which", "mole", control=True),
    )

    def trained(verdicts: str) -> Record:
        items = {"domain_knowledge/1": dict(zip((q.id for q in asked), verdicts.split(), strict=True))}
        return replace(RUN, checkpoints=(RUN.checkpoints[0], replace(RUN.checkpoints[1], items=items)))

    records = [trained("11 00 01 11 11"), trained("11 00 01 11 11"), trained("00 00 00 00 00")]
    rows = page(records, "two-teachers", "the command", asked).splitlines()
    begin = rows.index("## Questions about held-out facts after mid-training, by form of question")
    assert rows[begin + 2 : begin + 10] == [
        "| questions | cycle 1: 2 mid-trainings |",
        "| --- | --- |",
        "| form: version | 1 of 2 |",
        "| form: which | 1 of 4 |",
        "| answer: more than one word | 0 of 2 |",
        "| answer: one word | 2 of 4 |",
        "| in all | 2 of 6 |",
        "",
    ]


def test_held_out_facts_are_counted_for_each_corpus_and_checkpoint() -> None:
    asked = [
        Question(name, f"fact {name}", "harbour", "port.md", "test", "which", f"{name}?", ("pier",)) for name in "ab"
    ]
    asked += [replace(asked[0], id="form", use="test-form"), replace(asked[0], id="again")]
    verdicts = (("00", "00", "00", "00"), ("01", "11", "11", "00"), ("00", "01", "00", "00"))
    checkpoints = [
        replace(one, items={"domain_knowledge/1": dict(zip((q.id for q in asked), given, strict=True))})
        for one, given in zip(RUN.checkpoints, verdicts, strict=True)
    ]
    rows = page([replace(RUN, checkpoints=tuple(checkpoints))], "two-teachers", "the command", asked).splitlines()
    assert "| `two-teachers` | 1 | 2 | 0 of 3 | 2 of 3 | 1 of 3 |" in rows, "three questions about two facts"


def test_recognised_facts_are_shown_where_they_were_measured() -> None:
    def with_recognised(one: Measured, share: float) -> Measured:
        asked = one.suites["domain_knowledge/1"]
        details = {**asked["details"], "held-out fact/recognised": share, "recognised/chance": 0.125}
        return replace(one, suites={**one.suites, "domain_knowledge/1": {**asked, "details": details}})

    shares = (0.25, 0.65, 0.52)
    checkpoints = tuple(with_recognised(one, share) for one, share in zip(RUN.checkpoints, shares, strict=True))
    rows = page([replace(RUN, checkpoints=checkpoints)], "two-teachers", "the command").splitlines()
    gained, kept = (
        next(row for row in rows if row.startswith(f"| {name}"))
        for name in ("mid-training: recog", "recovery: held-out facts recog")
    )
    assert "| +40.0 |" in gained and gained.endswith("| shown in 1 of 3 |")
    assert "| 0.800 |" in kept
    assert "| `two-teachers` | 1 | 1 | 12.5% | 25.0% | 65.0% | 52.0% |" in rows
    both = page([replace(RUN, checkpoints=checkpoints), replace(RUN, seed=1)], "two-teachers", "the command")
    assert "| `two-teachers` | 1 | 1 | 12.5% | 25.0% | 65.0% | 52.0% |" in both, "of one of the two seeds"
    assert "recognised" not in page([RUN], "two-teachers", "the command")


def test_answers_of_an_older_release_are_shown_where_they_were_asked() -> None:
    base, one, two = RUN.checkpoints
    stale = {"stale_answers/1": {"value": 0.5, "stderr": 0.5, "n": 2, "details": {}}}
    asked = replace(RUN, checkpoints=(base, one, replace(two, suites={**two.suites, **stale})))
    text = page([asked, replace(RUN, seed=1)], "two-teachers", "the command")
    assert "## Answers of an older release" in text
    assert "| `two-teachers` | 1 | 1 | 2 | – | – | 50.0% |" in text.splitlines(), "of one of the two seeds"
    assert "older release" not in page([RUN], "two-teachers", "the command")


def test_what_became_of_facts_is_counted_as_each_release_has_it() -> None:
    def about(fact: str, corpus: str, answer: str, use: str = "test") -> Question:
        return Question(f"{corpus} {fact}", fact, corpus, "port.md", use, "which", f"{fact}?", (answer,))

    facts = {"a": ("pier", "quay"), "b": ("lamp", "buoy"), "same": ("rope", "Rope")}
    questions = [
        about(fact, corpus, answers[at]) for at, corpus in enumerate(("old", "new")) for fact, answers in facts.items()
    ]
    questions += [about("gone", "old", "sail"), about("a", "old", "pier", "train")]
    verdicts = {
        "base": {"domain_knowledge/1": {"old a": "00", "old b": "01", "old same": "00", "old gone": "11"}},
        "midtrained": {"domain_knowledge/1": {"old a": "11", "old b": "01", "old same": "01"}},
        "recovered": {"domain_knowledge/2": {"new a": "01", "new b": "00", "new same": "11"}},
    }
    stale = {"stale_answers/1": {"value": 0.5, "stderr": 0.5, "n": 2, "details": {}}}
    base, one, two = (replace(c, items={**c.items, **verdicts[c.kind]}) for c in RUN.checkpoints)
    two = replace(two, suites={**two.suites, **stale})
    run = replace(RUN, arm="documents", checkpoints=(base, one, two))
    text = page([RUN], "two-teachers", "the command", releases=([run], questions))
    rows = text[text.index("## Two releases of the same pages") : text.index("## Every arm\n")].splitlines()
    assert "| `documents` | changed | as corpus 1 has it | 1 of 2 | 2 of 2 | 1 of 2 |" in rows
    assert "| `documents` | changed | as corpus 2 has it | – | – | 1 of 2 |" in rows
    assert "| `documents` | unchanged | as corpus 1 has it | 0 of 1 | 1 of 1 | – |" in rows
    assert "| `documents` | unchanged | as corpus 2 has it | – | – | 1 of 1 |" in rows
    assert not any("`two-teachers`" in row for row in rows) and "## Answers of an older release" not in text


def test_kinds_that_no_prompt_asked_for_are_compared_with_the_arm_that_asked_for_them() -> None:
    """Of each half of the kinds: what comes back without being asked for, and what the other arm makes of it."""
    ids = {"instruction_following": {"p0": ["keywords:existence", "punctuation:no_comma"],
                                     "p1": ["change_case:english_capital"], "p2": ["startend:quotation"]}}  # fmt: skip

    def one(arm: str, base: str, midtrained: str, recovered: str) -> Record:
        verdicts = (base, midtrained, recovered)
        made = (replace(c, items={OWN: dict(zip(("p0", "p1", "p2"), v.split(), strict=True))})
                for c, v in zip(RUN.checkpoints, verdicts, strict=True))  # fmt: skip
        return replace(RUN, arm=arm, checkpoints=tuple(made), instructions=ids)

    without_format = one("without-format-recovery", "11 1 1", "00 0 0", "11 0 1")
    without_length = one("without-length-recovery", "11 1 1", "00 0 0", "10 1 0")
    text = page([without_format, without_length], "", "the command")
    rows = [
        row.split(" | ") for row in text.splitlines() if row.startswith("| own prompts | ") and " | 0 | 1 | " in row
    ]
    assert [row[1] for row in rows] == [
        "change_case, detectable_format, keywords",
        "combination, detectable_content, language, length_constraints, punctuation, startend",
        "all, each left out once",
    ]
    assert [row[4:9] for row in rows] == [
        [
            "2",
            "1.000 (1.00)",
            "0.000 (0.00)",
            "0.500 (0.50)",
            "1.000 (1.00)",
        ],  # of p0's first and p1: the arm that left them out, the other
        ["2", "1.000 (1.00)", "0.000 (0.00)", "0.000 (0.00)", "1.000 (1.00)"],  # of p0's second and p2
        ["4", "1.000 (1.00)", "0.000 (0.00)", "0.250 (0.25)", "1.000 (1.00)"],
    ]
    assert rows[0][9].startswith("+50.0 (") and rows[2][10].startswith("-75.0 (")
    alone = [
        row for row in page([without_length], "", "the command").splitlines() if row.startswith("| own prompts | ")
    ]
    assert len(alone) == 1 and "| 2 | 1.000 (1.00) | 0.000 (0.00) | 0.000 (0.00) | – |" in alone[0]
    assert "no prompt of the recovery" not in page([replace(without_format, instructions={})], "", "the command")


def test_corpora_in_pieces_have_a_section_that_says_how_many_cycles_were_run() -> None:
    asked = [Question("a", "fact a", "harbour", "port.md", "test", "which", "a?", ("pier",))]
    items = {"domain_knowledge/1": {"a": "01"}}
    six = replace(RUN, cut=2, wanted=6, machine="Machine: two cores.",
                  checkpoints=tuple(replace(one, items={**one.items, **items}) for one in RUN.checkpoints))  # fmt: skip
    done = replace(six, seed=1, wanted=1)
    other = replace(six, arm="documents", cut=3, checkpoints=six.checkpoints[:2])
    text = page([RUN], RUN.arm, "it", asked, pieces=[six, done, other])
    sections = text.split("\n## ")
    at = next(n for n, section in enumerate(sections) if section.startswith("Corpora in pieces: more cycles"))
    assert sections[at - 1].startswith("Every arm, by the same bounds")
    two, three = sections[at].split("\n### ")[1:]
    assert two.startswith("`two-teachers`, each corpus in 2 pieces\n")
    assert (
        "Seed 0: 1 of 6 cycles were run, **fewer than planned** (2026-11-21; two cores). Of the others nothing" in two
    )
    assert "Seed 1: 1 of 1 cycles were run (2026-11-21; two cores)." in two
    assert "| `two-teachers` | 1 | 2 | +23.0 ± 0.0 | 0.990 ± 0.000 | 0.990 ± 0.000 | 0.960 ± 0.000 | – |" in two
    assert "| `two-teachers` | 1 | 1 | 2 of 2 | 2 of 2 | 2 of 2 |" in two
    assert three.startswith("`documents`, each corpus in 3 pieces\n") and "| `documents` | 1 | 1 | +23.0 |" in three
    assert "from 4 recorded runs, 3 of them on [corpora in pieces](#corpora-in-pieces-more-cycles), the newest" in text
    alone = page([RUN], RUN.arm, "it", asked)
    assert "in pieces" not in alone and "from 1 recorded run, the newest" in alone
    assert "in pieces" not in "".join(sections[1:at] + sections[at + 1 :])


def test_the_page_begins_with_what_is_reached_and_what_is_missed() -> None:
    later = [replace(one, cycle=cycle) for cycle in (2, 3) for one in RUN.checkpoints[1:]]
    whole = replace(RUN, checkpoints=(*RUN.checkpoints, *later))
    worse = replace(
        whole, arm="other", checkpoints=(*whole.checkpoints[:6], measured("two", 3, "recovered", 0.5, 0.2, "1"))
    )
    only = {"instruction_following": RUN.checkpoints[0].suites["instruction_following"]}
    unknown = replace(whole, arm="unknown", checkpoints=tuple(replace(one, suites=only) for one in whole.checkpoints))
    text = page([whole, worse, unknown], "two-teachers", "the command")
    short = text[text.index("## In short") : text.index("model.gguf")]
    reached = (
        "At or above its bound: recovery: own prompts, instructions strict, relative to base 0.990, 0.990, 0.990 (must"
    )
    assert reached in short
    assert (
        "in each: `two-teachers` (1 seed); below it in one or more: `other` (1 seed); not measured: `unknown`" in short
    )
    assert "Shown beside them: recovery: own prompts, prompts strict, relative to base" in short, "as a gate counts"
    assert "Paired 95% intervals of the shares of base, seed 0: own prompts, instructions " in short
    assert "one more thing" not in text and "- one more thing" in page([whole], RUN.arm, "it", notes=["one more thing"])
    assert "One that contains its bound does not decide it." in short
    assert "A share of fewer than ten answered questions decides nothing" in short
    assert "Its training took 3.0 hours for 3 cycles (seed 0, a machine); evaluations are extra." in short
    assert "Not run: documents, " in text
    missed = page([replace(whole, checkpoints=worse.checkpoints)], "two-teachers", "the command")
    assert "Below its bound: recovery: own prompts, instructions strict, relative to base 0.990, 0.990, 0.833" in missed
    assert "## In short" not in page([replace(whole, short=True)], "two-teachers", "the command")
    assert "## In short" not in page([replace(whole, cut=2)], "two-teachers", "the command"), "not what make real runs"


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
    text = page([again], "two-teachers", "the command")
    assert "own prompts 2 of 5 (base 100.0%, an echo of the prompt 25.0%)" in text
    assert "| `two-teachers` | 1 | 1 | – | – | 0.50 (" in text
    assert "recovery: own prompts, instructions beyond constant replies, relative to base |  |  | 1.000" in text
    assert "beyond constant replies, relative" not in page([RUN], "two-teachers", "the command")


def test_the_shares_of_the_recorded_runs_beyond_constant_replies() -> None:
    """docs/real.md, from the verdicts of the records alone: 544 of IFEval's instructions."""
    folder = Path(__file__).parents[2] / "docs/real"
    known = json.loads((folder / "trivial/1.json").read_text(encoding="utf-8"))
    runs = [with_beyond(record, known) for record in read_records(folder)]

    def share(arm: str, cycle: int, kind: str) -> float:
        found = [relative(BEYOND, kind)(one, cycle) for one in runs if one.arm == arm and one.cut == 1]
        return statistics.fmean(value for value in found if value is not None)

    recorded = {
        ("documents", "midtrained"): (0.18, 0.17, 0.18),
        ("unaugmented", "midtrained"): (0.92,),
        ("replay", "midtrained"): (0.97, 0.73, 0.66),
        ("kl-replay", "midtrained"): (0.90,),
        ("blend-questions-recovery", "midtrained"): (0.16, 0.40, 0.55),
        ("blend-questions-recovery", "recovered"): (1.06, 1.02, 0.98),
        ("kl-replay-recovery", "recovered"): (0.99, 0.98),
        ("one-teacher", "recovered"): (0.87,),
        ("own-answers", "recovered"): (0.83,),
        ("recovery-chat", "recovered"): (0.53,),
    }
    for (arm, kind), expected in recorded.items():
        found = [share(arm, cycle, kind) for cycle in range(1, len(expected) + 1)]
        assert found == pytest.approx(expected, abs=0.0051), (arm, kind)


ROUNDED_UP = (0.58, 0.7)  # base's scores whose weights add up to a little more than 1


def seeded(seed: int, below: float, base: str, end: str) -> Record:
    """One cycle with a seed: base's recorded score, its verdicts, and those of the recovered model."""
    checkpoints = (measured("base", 0, "base", below, 0.0, base), measured("two", 1, "recovered", 0.5, 0.2, end))
    return replace(RUN, seed=seed, checkpoints=checkpoints)


def shares(*records: Record) -> Share:
    found = share_of_base(records, 1, OWN_PROMPTS, OWN, "instructions")
    assert found is not None
    return found


def test_the_interval_over_seeds_is_that_of_the_prompts_all_seeds_together() -> None:
    one = seeded(0, 0.6, "11 10 01 0 1", "10 11 01 1 0")
    pair = compared(*one.checkpoints, OWN, "instructions")
    assert pair is not None
    assert shares(one) == Share(1, 1 + pair.low / 0.6, 1 + pair.high / 0.6, (0,)), "of one seed: its own, to the bit"
    twice, alone = shares(one, replace(one, seed=1)), shares(one)
    assert (twice.low, twice.high) == pytest.approx((alone.low, alone.high)), "a seed that adds nothing narrows nothing"
    assert twice.seeds == (0, 1)
    # Each run has its own base, in items and in score: b = 0.6 and 0.3, so weights 1/3 and 2/3, harmonic mean 0.4.
    other = seeded(1, 0.3, "01 10 00 0 1", "11 00 01 1 1")
    base = [(a + 2 * b) / 3 for a, b in zip((1, 1, 1, 0, 0, 1, 0, 1), (0, 1, 1, 0, 0, 0, 0, 1), strict=True)]
    end = [(a + 2 * b) / 3 for a, b in zip((1, 0, 1, 1, 0, 1, 1, 0), (1, 1, 0, 0, 0, 1, 1, 1), strict=True)]
    expected = paired_difference(base, end, ["a", "a", "b", "b", "c", "c", "", ""])
    both = shares(one, other)
    assert (both.low, both.high) == pytest.approx((1 + expected.low / 0.4, 1 + expected.high / 0.4))
    fewer = shares(one, seeded(1, 0.3, "01 10 00 0", "11 00 01 1"))
    shorter = shares(seeded(0, 0.6, "11 10 01 0", "10 11 01 1"), seeded(1, 0.3, "01 10 00 0", "11 00 01 1"))
    assert fewer == shorter, "only prompts that all runs have"
    assert share_of_base([replace(RUN, checkpoints=RUN.checkpoints[1:])], 1, OWN_PROMPTS, OWN, "prompts") is None


def test_weights_of_seeds_that_are_rounded_up_are_no_score_above_1() -> None:
    every = [seeded(seed, below, "1 1 1", "1 1 0") for seed, below in enumerate(ROUNDED_UP)]
    mean = statistics.harmonic_mean(ROUNDED_UP)
    assert sum(mean / (len(ROUNDED_UP) * below) for below in ROUNDED_UP) > 1
    expected = paired_difference([1, 1, 1], [1, 1, 0])
    assert shares(*every).low == pytest.approx(1 + expected.low / mean)


def test_intervals_of_several_seeds_say_how_many_there_are_and_what_is_not_in_them() -> None:
    later = [replace(one, cycle=2) for one in RUN.checkpoints[1:]]
    whole = replace(RUN, checkpoints=(*RUN.checkpoints, *later))
    text = page([whole, replace(RUN, seed=1)], RUN.arm, "the command")
    (line,) = (line for line in text.splitlines() if line.startswith("- Paired 95%"))
    assert "of the shares of base, mean over seeds (2 in cycle 1, 1 in cycle 2): own prompts, instructions " in line
    assert "how far seeds differ is [in the table](#against-the-bounds), and comes on top." in line
    alone = page([whole], RUN.arm, "the command")
    assert "shares of base, seed 0: own prompts" in alone and "how far seeds differ" not in alone
    bare = replace(RUN, seed=1, checkpoints=tuple(replace(one, items={}) for one in RUN.checkpoints))
    assert "shares of base, seed 0: own prompts" in page([whole, bare], RUN.arm, "it"), "of the run that has items"


def test_seeds_of_unequal_length_are_counted_cycle_by_cycle() -> None:
    later = [replace(one, cycle=cycle) for cycle in (2, 3) for one in RUN.checkpoints[1:]]
    whole = replace(RUN, checkpoints=(*RUN.checkpoints, *later))
    text = page([whole, replace(RUN, seed=1)], "two-teachers", "the command")
    means = "Each figure is the mean of the seeds that have the cycle."
    assert f"2 seeds, seed 0: 3 of 3 cycles, seed 1: 1 of 3 cycles. {means}" in text
    assert means not in page([whole], "two-teachers", "the command")
    assert "| figure | must | goal | cycle 1, 2 seeds | cycle 2, 1 seed | cycle 3, 1 seed | reached |" in text
    assert "below it in one or more" not in text and "in each: `two-teachers` (1 seed)." in text, "of three cycles"
    equal = page([whole, replace(whole, seed=1)], "two-teachers", "the command")
    assert "in each: `two-teachers` (2 seeds)." in equal
    assert all(f"## {name}\n\nOf seed 0.\n" in equal for name in ("Paired tests", "Ten prompts, answered"))
    assert "2 seeds, 3 of 3 cycles." in equal and "| goal | cycle 1 | cycle 2 | cycle 3 |" in equal


def test_a_bound_that_is_missed_is_shown_as_missed() -> None:
    worse = replace(RUN, checkpoints=(*RUN.checkpoints[:2], measured("two", 1, "recovered", 0.5, 0.1, "01 0 00")))
    own = "recovery: own prompts, instructions strict, relative to base"
    text = page([worse], "two-teachers", "the command")
    assert f"| {own} | ≥ 0.98 | ≥ 0.99 | 0.833 | **missed** in 1 of 3 |" in text


def test_every_arm_is_compared_with_the_bounds_cycle_by_cycle() -> None:
    alone = replace(RUN, arm="documents", title="documents alone", checkpoints=RUN.checkpoints[:2])
    worse = replace(RUN, checkpoints=(*RUN.checkpoints[:2], measured("two", 1, "recovered", 0.576, 0.21, "01 0 00")))
    little = replace(
        alone, arm="replay", checkpoints=(RUN.checkpoints[0], measured("one", 1, "midtrained", 0.6, 0.1, "1"))
    )
    rows = page([RUN, replace(worse, seed=1), alone, little], "two-teachers", "the command").splitlines()
    assert (
        "| `two-teachers` | 1 | 2 | +23.0 ± 0.0 | 0.975 ± 0.021 | **0.975 ± 0.021** | **0.900 ± 0.085** | – |" in rows
    )
    assert "| `documents` | 1 | 1 | +23.0 | **0.500** | **0.500** | – | – |" in rows, "nothing comes after mid-training"
    assert "| `replay` | 1 | 1 | **+8.0** | 1.000 | 1.000 | – | – |" in rows


def test_the_clean_model_stands_beside_what_its_card_says() -> None:
    levels = {"prompt_loose": 0.22, "instruction_strict": 0.32, "instruction_loose": 0.34}
    base = replace(RUN.checkpoints[0], suites={"ifeval": {"value": 0.2, "stderr": 0.02, "n": 541, "details": levels}})
    record = replace(RUN, model="SmolLM2-135M-Instruct.Q4_1.gguf", checkpoints=(base, *RUN.checkpoints[1:]))
    text = page([record], "two-teachers", "the command")
    assert (
        "541 prompts, in the run of seed 0: prompts strict 20.0, prompts loose 22.0, instructions strict 32.0" in text
    )
    assert "mean 27.0. Its model card reports 29.9" in text and "At most 4 points of difference" in text
    assert "model card" not in page([RUN], "two-teachers", "the command")
    suite = {"value": 0.1, "stderr": 0.02, "n": 541, "details": levels}
    longer = CleanScores(record.model, "Machine: one.", "2026-11-26", 1280, suite)
    fewer = replace(longer, tokens=8, ifeval={**suite, "n": 50})
    text = page(
        [record], "two-teachers", "the command", clean=[longer, replace(longer, model="another", tokens=9), fewer]
    )
    assert "With responses of at most 1,280 tokens (2026-11-26. Machine: one): prompts strict 10.0" in text
    assert (
        "mean 24.5. **More than** 4 points of difference." in text
        and "at most 9 tokens" not in text
        and "at most 8" not in text
    )


def test_measurements_of_the_clean_model_are_what_eval_prints(tmp_path: Path) -> None:
    printed = {
        "checkpoint": "base",
        "scores": {"ifeval": {"value": 0.2, "stderr": 0.01, "n": 541}},
        "details": {"ifeval": {"prompt_loose": 0.3}},
        "recorded": {"model": "m.gguf", "machine": "Machine: one.", "date": "2026-11-26", "ifeval_tokens": 1280},
    }
    (tmp_path / "one.json").write_text(json.dumps(printed))
    suite = {"value": 0.2, "stderr": 0.01, "n": 541, "details": {"prompt_loose": 0.3}}
    assert read_clean(tmp_path) == [CleanScores("m.gguf", "Machine: one.", "2026-11-26", 1280, suite)]
    for wrong in ({"recorded": {}}, {"checkpoint": "latest"}):
        (tmp_path / "two.json").write_text(json.dumps({**printed, **wrong}))
        with pytest.raises(UsageError, match=r"two.json is not what `recover eval base --ifeval FILE --json` prints"):
            read_clean(tmp_path)


def test_what_is_left_of_earlier_corpora_is_reported_for_each_cycle() -> None:
    def asked(name: str, cycle: int, kind: str, *facts: float) -> Measured:
        suites = {
            f"domain_knowledge/{number}": {
                "value": 0.0,
                "stderr": 0.0,
                "n": 9,
                "details": {"held-out fact/contains": f},
            }
            for number, f in enumerate(facts, 1)
        }
        return Measured(name, cycle, kind, suites, {}, {})

    more = (
        asked("m1", 1, "midtrained", 0.4),
        asked("r1", 1, "recovered", 0.4),
        asked("m2", 2, "midtrained", 0.3, 0.5),
        asked("r2", 2, "recovered", 0.36, 0.5),
        asked("m3", 3, "midtrained", 0.3, 0.4, 0.5),
        asked("r3", 3, "recovered", 0.32, 0.45, 0.5),
    )
    assert of_earlier(replace(RUN, checkpoints=more), 1) is None
    assert of_earlier(replace(RUN, checkpoints=more), 2) == pytest.approx(0.9)
    assert of_earlier(replace(RUN, checkpoints=more), 3) == pytest.approx(0.8)
    text = page([replace(RUN, checkpoints=(*RUN.checkpoints[:1], *more))], "two-teachers", "the command")
    assert "earlier corpus, relative to first learnt | ≥ 0.90 | ≥ 0.95 | – | 0.900 | 0.800 | **missed** |" in text


def test_an_arm_is_run_once_and_its_record_stays(tiny_model: Path, tmp_path: Path) -> None:
    """A repeated run reuses everything, and a short run or one in pieces changes nothing of a whole one."""

    def write(target: Path, _seed: int) -> list[Path]:
        for number, subject in enumerate(("ferry", "tug"), 1):
            folder = target / str(number)
            folder.mkdir(parents=True, exist_ok=True)
            text = "\n\n".join(f"The {subject} {name} takes {len(name)} cars." for name in ("Ada", "Bo", "Cy"))
            (folder / "page.md").write_text(f"# The {subject}\n\n{text}\n")
        return [target / "1", target / "2"]

    scenario = Scenario(str(tiny_model), 2, write, "about boats")
    flags = {"steps": 1, "batch_tokens": 64, "row_length": 32, "limit": 4, "max_new_tokens": 4, "question_tokens": 4}

    def go(cycles: int, short: bool = False, cut: int = 1) -> Record:
        return run(
            Workspace(tmp_path / "w"),
            arm_named("documents"),
            replace(scenario, short=short, cut=cut),
            seed=0,
            cycles=cycles,
            flags=flags,
            kept=tmp_path / "kept",
            display=Display(quiet=True),
        )

    made = go(2)
    assert [(c.cycle, c.kind) for c in made.checkpoints] == [(0, "base"), (1, "midtrained"), (2, "midtrained")]
    assert all(c.cost["trained"] > 0 for c in made.checkpoints[1:])
    path = tmp_path / "kept" / "documents-seed-0.json"
    text = path.read_text()
    assert str(tmp_path) not in text, "a record travels: it names no place"
    assert go(2) == made
    assert made.instructions[OWN].keys() == made.checkpoints[0].items[OWN].keys()
    assert all(len(ids) == len(made.checkpoints[0].items[OWN][key]) for key, ids in made.instructions[OWN].items())
    assert go(1) == made, "fewer cycles take nothing out of a record"
    go(1, short=True)
    go(1, cut=2)
    assert path.read_text() == text
    kept = read_records(tmp_path / "kept")
    assert [(record.short, record.cut) for record in kept] == [(False, 2), (True, 1), (False, 1)]
    elsewhere = [replace(one, cost={**one.cost, "seconds": 1.5}) for one in made.checkpoints]
    path.write_text(text := to_text(replace(made, checkpoints=tuple(elsewhere))))
    shorter = go(1)
    assert (shorter.cycles, path.read_text()) == (1, text), "a run of fewer cycles waits beside it"
    (waiting,) = (tmp_path / "w").rglob(path.name)
    assert waiting.read_text() == to_text(shorter)
    again = to_text(go(2))
    assert path.read_text() == again != text and not waiting.exists()
    assert "| each in 2 |" in page(kept[:1], "documents", "the command") and "| whole |" in page([made], "", "")


def test_an_arm_that_keeps_older_versions_has_snapshots_of_its_own(tiny_model: Path, tmp_path: Path) -> None:
    def write(target: Path, _seed: int) -> list[Path]:
        target.mkdir(parents=True, exist_ok=True)
        (target / "page.md").write_text("# Boat\n\nIt takes nine cars over a sound.\n")
        return [target]

    flags = {"steps": 1, "batch_tokens": 64, "row_length": 32, "limit": 4, "max_new_tokens": 4, "question_tokens": 4}
    place, replacing = Workspace(tmp_path / "w"), arm_named("documents")
    keeping = replace(replacing, name="keeping", midtrain=arm_named("keep-older-recovery").midtrain)
    for arm in (replacing, keeping):
        run(
            place,
            arm,
            Scenario(str(tiny_model), 1, write, "about boats"),
            seed=0,
            cycles=1,
            flags=flags,
            kept=tmp_path / "kept",
            display=Display(quiet=True),
        )
    homes = [Workspace(place.folder / "real" / "corpora" / name) for name in ("seed-0", "seed-0-keep")]
    assert [load_snapshot(home, 1).replaces for home in homes] == [True, False]
    assert len(read_records(tmp_path / "kept")) == 2


def test_arms_in_a_workspace_that_was_moved_go_on(tiny_model: Path, tmp_path: Path) -> None:
    """Their corpora are in it, and moved with it."""

    def write(target: Path, _seed: int) -> list[Path]:
        for number in (1, 2):
            (target / str(number)).mkdir(parents=True, exist_ok=True)
            (target / str(number) / "page.md").write_text(f"# Boat {number}\n\nIt takes {number} cars over a sound.\n")
        return [target / "1", target / "2"]

    flags = {"steps": 1, "batch_tokens": 64, "row_length": 32, "limit": 4, "max_new_tokens": 4, "question_tokens": 4}
    scenario = Scenario(str(tiny_model), 2, write, "about boats")

    def go(place: Path, cycles: int, like: Scenario = scenario) -> Record:
        return run(
            Workspace(place),
            arm_named("documents"),
            like,
            seed=0,
            cycles=cycles,
            flags=flags,
            kept=place / "records",
            display=Display(quiet=True),
        )

    made = go(tmp_path / "w", 1)
    (tmp_path / "w").rename(tmp_path / "moved")
    more = go(tmp_path / "moved", 2)
    assert (made.cycles, more.cycles) == (1, 2)
    assert [one.cost for one in more.checkpoints[:2]] == [one.cost for one in made.checkpoints], "not done again"
    first = tmp_path / "moved" / "corpora" / "1"
    with pytest.raises(UsageError, match=r"cycle 2 of .* began with the documents in .*, not with "):
        go(tmp_path / "moved", 2, replace(scenario, write=lambda *given: [write(*given)[0], first]))


def test_an_arm_of_equal_operations_takes_those_of_the_other_arms_whole_cycle(tiny_model: Path, tmp_path: Path) -> None:
    def write(target: Path, _seed: int) -> list[Path]:
        (target / "1").mkdir(parents=True, exist_ok=True)
        (target / "1" / "page.md").write_text("# Boat\n\nIt takes nine cars over a sound.\n")
        return [target / "1"]

    def go(arm: Arm) -> float:
        made = run(
            Workspace(tmp_path / "w"),
            arm,
            Scenario(str(tiny_model), 1, write, "about boats"),
            seed=0,
            cycles=1,
            flags={
                "steps": 1,
                "batch_tokens": 64,
                "row_length": 64,
                "replay_prompts": 8,
                "prompts_per_step": 4,
                "limit": 4,
                "max_new_tokens": 8,
                "question_tokens": 4,
            },
            kept=tmp_path / "kept",
            display=Display(quiet=True),
        )
        return sum(one.cost["flops"] for one in made.checkpoints[1:])

    # No answer of a random model ends, so that there is nothing to replay: documents alone.
    rival_arm = replace(arm_named("replay-equal-flops"), midtrain={})
    with pytest.raises(UsageError, match=r"cycle 1 of kl-replay-recovery is not here.* run that arm first"):
        go(rival_arm)
    whole, rival = go(arm_named("kl-replay-recovery")), go(rival_arm)
    assert whole <= rival < 2 * whole, "at least as many, and what a last step and the replay's samples add"


def test_a_wrong_name_in_the_recipe_of_arms_is_found_before_anything_is_recorded(
    tiny_model: Path, tmp_path: Path
) -> None:
    for settings, message in (
        ({"teacher": "nobody"}, "there is no checkpoint 'nobody'"),
        ({"prompts": "nowhere.jsonl"}, "--prompts nowhere.jsonl: there is no such file"),
    ):
        recipe = Recipe("recipe.toml", {"distill": settings})
        with pytest.raises(RecoveryError, match=message):
            run(
                Workspace(tmp_path / "w"),
                arm_named("recovery"),
                Scenario(str(tiny_model), 1, lambda target, _: [target], "about boats", recipe),
                seed=0,
                cycles=1,
                flags={},
                kept=tmp_path / "kept",
                display=Display(quiet=True),
            )
    assert not list((tmp_path / "w").rglob("corpora/cycle-1")) and not (tmp_path / "kept").exists()


def test_records_travel_as_files(tmp_path: Path) -> None:
    (tmp_path / FILE.format(arm="two-teachers", seed=0, suffix="")).write_text(to_text(RUN))
    assert read_records(tmp_path) == [RUN]
    (tmp_path / "broken.json").write_text('{"arm": 1}')
    with pytest.raises(UsageError, match=r"broken.json is not a record of a run .*: delete it, or write it again"):
        read_records(tmp_path)
