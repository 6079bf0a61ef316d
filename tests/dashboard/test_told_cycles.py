"""The three answers about a cycle and the verdict: what the figures show, what they do not, and what the pages say."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from starlette.datastructures import QueryParams

from dashboard.access import Access
from dashboard.pages import cycle, knowledge, overview, samples
from dashboard.tracker_source import Source
from db import Tracker, cycle_answers, knowledge_answers, open_readonly
from db.cycle_answers import ACCEPT, REJECT, UNDECIDED, Judged, concluded
from db.decisions import decide
from db.records import NOT_OF_ANOTHER, Event
from pipelines.cli import status
from pipelines.reports import cycle_report
from pipelines.reports.document import Table
from recovery.workspace import Workspace
from tests.dashboard.conftest import Request, newest, words
from tests.dashboard.told_cycles import write

END = "cycle-1/recovered"
OTHERS = f"unanswerable/1/{NOT_OF_ANOTHER}"
TOLD = {
    "good": ("it learnt; it kept its manners; nothing else is shown to be broken", ACCEPT, ("good", "", "")),
    "nothing": (
        "it learnt less than 5 points; it kept its manners; nothing else is shown to be broken", REJECT, ("", "", "")
    ),
    "manners": ("it learnt; it lost its manners; nothing else is shown to be broken", REJECT, ("good", "bad", "")),
    "few": (
        "it learnt; whether it kept its manners is undecided; nothing else is shown to be broken", UNDECIDED,
        ("good", "", ""),
    ),
    "loops": ("it learnt; it kept its manners; it broke behaviour/no_loops", REJECT, ("good", "", "bad")),
    "others": (
        "it learnt; it kept its manners; its replies give more values of other subjects", REJECT, ("good", "", "bad"),
    ),
}  # fmt: skip


@pytest.fixture(scope="session")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Source]:
    """The dashboards' sources of the cases."""
    folder = tmp_path_factory.mktemp("told")
    for case in TOLD:
        write(folder / f"{case}.db", case)
    return {case: Source(folder / f"{case}.db") for case in TOLD}


def judged_of(source: Source) -> Judged:
    judged = cycle_answers.judged(source.database(), newest(source.database()).cycles[0])
    assert judged is not None
    return judged


@pytest.mark.parametrize("case", TOLD)
def test_each_case_is_told_first_on_both_pages_with_links_to_its_items(case: str, told: dict[str, Source]) -> None:
    source, (headline, verdict, tones) = told[case], TOLD[case]
    judged = judged_of(source)
    assert (judged.headline, judged.verdict.word) == (f"Cycle 1: {headline}.", verdict)
    assert tuple(one.tone for one in judged.answers) == tones
    assert all(re.search(r"\(.+ to .+\)", one.says[0]) for one in judged.answers), "each with its interval"
    assert any(
        re.fullmatch(r"By the recovery alone: .+ points \(.+ to .+\)\.", text) for text in judged.answers[1].says
    )
    shown = cycle._show(source, Access(), Request())
    front = overview._refresh(source, None, Request())[3]
    why = re.sub("`(.+?)`", r"<code>\1</code>", judged.verdict.why)
    assert f'chip {judged.verdict.tone}">{verdict}</span>' in shown[4] and why in shown[4]
    for page in (shown[2], front):
        assert judged.headline in page and page.count('<section class="told') == 3
        assert ">prompts no longer followed whole →<" in page and ("lost items" in page) == (case != "others")
        for address in re.findall(r'<a href="((?:samples|knowledge)\?[^"]+)"', page):
            name, _, query = address.replace("&amp;", "&").partition("?")
            html = _page(source, name, dict(QueryParams(query)))
            assert "Nothing matches" in html or "<article" in html or "<td" in html


def _page(source: Source, name: str, asked: dict[str, str]) -> str:
    return words({"samples": samples, "knowledge": knowledge}[name], source, **asked)


def test_the_worst_suite_leads_to_its_own_lost_items(told: dict[str, Source]) -> None:
    """no_loops fell from 93 to 78 under a headline that said that nothing was lost."""
    html = _page(told["loops"], "samples", {"suite": "behaviour/no_loops", "show": "still-lost"})
    assert "prompts of behaviour/no_loops" in html and "Prompt 1" in html and 'value="behaviour/refusal"' in html


def test_the_status_says_in_words_what_the_overview_says(told: dict[str, Source]) -> None:
    judged = judged_of(told["loops"])
    first, *lines = status._words([judged], None).splitlines()
    assert first == judged.headline
    assert [line.partition("? ")[0].strip() + "?" for line in lines[:3]] == [one.question for one in judged.answers]
    assert lines[2].startswith("  Did anything else break? Yes. behaviour/no_loops: 94.0%")
    assert lines[3] == f"The figures say: reject. {judged.verdict.why}"


def test_the_overview_says_the_decision_in_place_of_what_the_figures_suggest(tmp_path: Path) -> None:
    number = write(tmp_path / "tracker.db", "few")
    source = Source(tmp_path / "tracker.db")
    assert "decide →" in overview._refresh(source, None, Request())[3]
    with Tracker(tmp_path / "tracker.db") as tracker:
        decide(tracker.database, number, "accepted", who="ada", why="Enough <b>for us</b>.")
    shown = overview._refresh(source, None, Request())[3]
    assert "Accepted by ada: Enough &lt;b&gt;for us&lt;/b&gt;. <a" in shown and "the decision →" in shown
    assert "undecided</span>" not in shown.split("Did it learn?")[0] and "decide →" not in shown


def test_the_status_ends_with_the_decision_about_the_cycle_that_it_tells(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A cycle that has no checkpoint yet is not the one that it tells."""
    decided = write(tmp_path / "tracker.db", "loops")
    (tmp_path / "workspace.json").write_text('{"format": 1, "model": "miniature", "experiment": "loops"}')
    with Tracker(tmp_path / "tracker.db") as tracker:
        tracker.cycle(tracker.experiment("loops"), 2)
        decide(tracker.database, decided, "rejected", who="ada", why="It loops.")
    status.show(Workspace(tmp_path), as_json=False)
    words = capsys.readouterr().out
    assert "\nRejected by ada: It loops.\n" in words and "The figures say" not in words


@pytest.mark.parametrize("case", ["good", "nothing"])
def test_the_next_step_asks_a_question_that_was_learnt(told: dict[str, Source], case: str) -> None:
    database = told[case].database()
    found = newest(database)
    asked = status._learnt_question(database, found)
    learnt = [one.text for one in knowledge_answers.questions(database, found.cycles[0], 1) if one.is_of("learnt")]
    assert asked == next(iter(learnt), None)
    assert learnt or case == "nothing"


def test_replies_to_what_no_document_holds_are_on_the_page_and_in_the_report(tmp_path: Path) -> None:
    write(tmp_path / "near.db", "good")
    source = Source(tmp_path / "near.db")
    assert "Questions that no document answers" not in _page(source, "knowledge", {})
    row = newest(source.database()).cycles[0]
    shares = {"declined": 0.3, "confabulated": 0.6, "of_another_subject": 0.2, "known/answered": 0.95}
    details = {name: {"value": value, "stderr": 0.1, "n": 10} for name, value in shares.items()}
    with Tracker(tmp_path / "near.db") as tracker:
        asked = ((row.base, "unanswerable"), (row.base, "unanswerable_open_book"), (row.end, "unanswerable"))
        for step, suite in asked:
            assert step is not None
            item = {"id": "n", "prompt": "What is `x<y`?", "score": 0.0, "response": "7"}
            given: dict[str, Any] = {"corpus": 1, "value": 0.3, "stderr": 0.1, "n": 10, "details": details}
            tracker.add_evaluation(step.checkpoint.id, suite, items=[item], **given)
    html = _page(Source(tmp_path / "near.db"), "knowledge", {})
    for cell in ('<td data-name="">Open book</td>', "30%", "60%", "10%", "20%", "95%", "–"):
        assert cell in html.partition("Questions that no document answers")[2], cell
    shown = cycle_report._unanswerable(open_readonly(tmp_path / "near.db"), row)
    (table,) = [one for one in shown if isinstance(one, Table)]
    assert [cells[:5] for cells in table.rows] == [
        (name, "10", "0.300", "0.100", "0.600") for name in ("base", "open book", "recovered")
    ]
    assert table.columns[2:5] == ("declined", "neither", "answered with a value"), "they add up"


def test_too_few_prompts_say_how_many_would_do(told: dict[str, Source]) -> None:
    verdict = judged_of(told["few"]).verdict
    assert re.fullmatch(
        rf"55 prompts are too few: `recover eval base --limit ([1-9]00)` and `recover eval {END} --limit \1`, if .+",
        verdict.why,
    )


def row(name: str, low: float, high: float, **given: Any) -> dict[str, Any]:
    """A stored comparison whose difference is the middle of its interval."""
    middle = (low + high) / 2
    found = {"name": name, "first": 0.5, "second": 0.5 + middle, "difference": middle, "low": low, "high": high}
    return found | {"n": 400, "lost": 1, "won": 1, "p_value": 0.01, "p_adjusted": 0.01} | given


ASKED = row("domain_knowledge/1", 0.2, 0.4)
KEPT = row("instruction_following", -0.01, 0.02)
REST = row("general", -0.02, 0.02)
LOOPS = "behaviour/no_loops"


def told_of(*rows: dict[str, Any], before: tuple[Any, ...] = (), known: Any = None, judgement: Any = None) -> Judged:
    recorded: dict[str, Any] = {"compared_with": {"base": {"suites": rows}, "before": {"suites": before}}}
    if known is not None:
        recorded["knowledge_figures"] = {END: {"1": known}}
    return concluded(1, END, recorded, judgement)


GAP = {"value": 0.4, "low": 0.3, "high": 0.5, "after": 0.3, "base": 0.1, "open_book": 0.6, "n": 90, "undefined": ""}
K = {"bits": 0.5, "low": 0.2, "high": 0.8, "p_value": 0.001, "first": [0.1, 0.4], "n": 90}


@pytest.mark.parametrize(
    ("asked", "known", "state", "tone"),
    [
        (ASKED, None, "good", "good"),
        (row("domain_knowledge/1", -0.02, 0.2), None, "unsure", ""),
        (row("domain_knowledge/1", -0.01, 0.01), None, "bad", ""),
        (row("domain_knowledge/1", -0.2, -0.1), None, "bad", "bad"),
        (row("domain_knowledge/1", -0.02, 0.2), {"gap_closed": GAP, "likelihood": {}}, "good", "good"),
        (ASKED, {"gap_closed": GAP | {"low": -0.1}, "likelihood": {}}, "unsure", ""),  # a change that guessing explains
        (ASKED, {"gap_closed": GAP, "likelihood": K | {"p_value": 0.3}}, "unsure", ""),
        (row("domain_knowledge/1", -0.02, 0.2), {"gap_closed": {}, "likelihood": K}, "part", ""),  # likelier alone
        (row("domain_knowledge/1", 0.0, 0.0), {"gap_closed": GAP | {"low": 0.0}, "likelihood": K}, "part", ""),
        (row("domain_knowledge/1", -0.02, 0.2), {"gap_closed": GAP, "likelihood": K}, "good", "good"),
        (ASKED, {"gap_closed": GAP, "likelihood": K | {"n": 9, "p_value": 0.9}}, "good", "good"),  # K of too few
        (ASKED, {"gap_closed": {"undefined": "why"}, "likelihood": {"undefined": "why"}}, "good", "good"),
    ],
)
def test_what_was_learnt_is_read_from_k_then_the_gap_then_the_answers(
    asked: dict[str, Any], known: Any, state: str, tone: str
) -> None:
    learnt = told_of(asked, KEPT, REST, known=known).answers[0]
    assert (learnt.state, learnt.tone) == (state, tone)


@pytest.mark.parametrize(
    ("low", "high", "state", "tone", "why"),
    [
        (-0.02, 0.02, "good", "", "No answer speaks against it."),
        (0.01, 0.05, "good", "", "No answer speaks against it."),  # above base is no green
        (-0.02, -0.002, "good", "warn", "No answer speaks against it."),
        (-0.08, -0.02, "bad", "bad", "It lost its manners."),
        (-0.16, 0.08, "unsure", "", "--limit"),
        (-0.05, -0.001, "unsure", "warn", "--limit"),
        (-0.08, 0.12, "unsure", "", "--limit"),
    ],
)
def test_manners_are_claimed_only_where_the_interval_shows_them(
    low: float, high: float, state: str, tone: str, why: str
) -> None:
    judged = told_of(ASKED, row("instruction_following", low, high), REST)
    assert (judged.answers[1].state, judged.answers[1].tone) == (state, tone)
    pattern = (
        r"400 prompts are too few: `recover eval base --limit \d+00` and .+" if why == "--limit" else re.escape(why)
    )
    assert re.fullmatch(pattern, judged.verdict.why), judged.verdict.why


def test_manners_are_those_beyond_constant_replies_where_they_were_measured() -> None:
    lost = row("instruction_following/beyond_constant", -0.3, -0.2)
    judged = told_of(ASKED, KEPT, lost, REST)
    assert judged.answers[1].state == "bad" and "beyond constant replies" in judged.answers[1].says[0]
    of_ifeval = told_of(ASKED, KEPT, lost, row("ifeval", -0.01, 0.01), REST).answers
    assert of_ifeval[1].suite == "ifeval" and of_ifeval[1].state == "good"
    assert told_of(ASKED, REST).answers[1].word == "Not measured"


@pytest.mark.parametrize(
    ("rows", "before", "state", "suite"),
    [
        ([row("general", -0.05, -0.01)], (), "bad", "general"),
        ([row("general", -0.05, -0.01, p_adjusted=0.2)], (), "good", "general"),
        ([row("arc_easy", -0.2, 0.1)], (), "unsure", "arc_easy"),
        # The largest fall, not the widest interval of few items.
        ([row("arc_easy", -0.45, 0.2), row(LOOPS, -0.42, -0.09, p_adjusted=0.07)], (), "unsure", LOOPS),
        ([row("general", -0.05, -0.01), row(LOOPS, -0.2, -0.1)], (), "bad", LOOPS),
        ([REST], (row("domain_knowledge/0", -0.4, -0.2),), "bad", "domain_knowledge/0"),
        ([REST], (row("domain_knowledge/1", -0.4, -0.2),), "good", "general"),
        ([row("bleu", -0.3, -0.1, p_adjusted=None)], (), "bad", "bleu"),
        ([row("domain_knowledge_stored/1", -0.4, -0.3)], (), "unknown", ""),
        ([row(OTHERS, -0.2, -0.1)], (), "bad", OTHERS),
        ([row(OTHERS, -0.2, -0.1, p_adjusted=0.3), REST], (), "unsure", OTHERS),
        ([row(OTHERS, -0.2, -0.1, p_adjusted=None), REST], (), "good", "general"),  # an earlier record, not corrected
        ([row(OTHERS, -0.5, 0.2, n=13), REST], (), "good", "general"),
        ([row(OTHERS, -0.5, -0.3, n=13), REST], (), "bad", OTHERS),  # few items show a large fall
        ([row(OTHERS, -0.5, 0.2, n=34), REST], (), "good", "general"),
        ([row(OTHERS, -0.5, 0.2, n=35), REST], (), "unsure", OTHERS),
        ([row(OTHERS, -0.5, 0.2, n=13)], (), "unsure", OTHERS),
        ([row(OTHERS, 0.1, 0.5, n=13)], (), "good", OTHERS),
    ],
)
def test_the_worst_other_suite_is_told(rows: list[Any], before: tuple[Any, ...], state: str, suite: str) -> None:
    judged = told_of(ASKED, KEPT, *rows, before=before)
    assert (judged.answers[2].state, judged.answers[2].suite) == (state, suite)
    assert ("it broke" in judged.headline or "its replies give" in judged.headline) == (state == "bad")


def gate(decision: str, verdict: str) -> Event:
    rules = [{"rule": "ifeval >= base - 3", "verdict": verdict, "reason": f"ifeval >= base - 3: {verdict}: 0.2"}]
    return Event(1, 1, None, "info", "gate", "judged", {"decision": decision, "verdicts": rules}, 0.0)


def test_the_gate_goes_first_and_a_broken_suite_is_told_beside_it() -> None:
    broke = row("general", -0.3, -0.2)
    assert told_of(KEPT, REST, judgement=gate("accept", "pass")).verdict.word == ACCEPT
    passed = told_of(ASKED, KEPT, broke, judgement=gate("accept", "pass")).verdict
    assert (passed.word, passed.why) == (REJECT, "The gate's rules pass. But it broke general.")
    failed = told_of(ASKED, KEPT, REST, judgement=gate("reject", "fail")).verdict
    assert failed.word == REJECT and failed.why == "The gate's rule ifeval >= base - 3: fail: 0.2"
    earlier = {"rule": "general >= base - 3", "verdict": "undecided", "reason": "general >= base - 3: undecided: 0.1"}
    judgement = gate("reject", "fail")
    both = replace(judgement, data=judgement.data | {"verdicts": [earlier, *judgement.data["verdicts"]]})
    assert told_of(ASKED, KEPT, REST, judgement=both).verdict == failed, "the rule that failed, not the first"
    undecided = told_of(ASKED, KEPT, REST, judgement=gate("undecided", "undecided")).verdict
    assert undecided.word == UNDECIDED and undecided.why == "The gate's rule ifeval >= base - 3: undecided: 0.2"


def test_what_is_not_compared_is_not_claimed(seeding: Any, address: Any) -> None:
    seeding.seed(address, cycles=1)
    judged = judged_of(Source(address))
    assert [one.word for one in judged.answers] == ["Not compared"] * 3
    assert judged.verdict.word == UNDECIDED and "recover report 1" in judged.verdict.why
    assert "no decision yet" in cycle._show(Source(address), Access(), Request())[2]


def test_questions_stand_beside_every_answer_and_are_filtered(told: dict[str, Source]) -> None:
    source = told["good"]
    every = _page(source, "knowledge", {"show": "all"})
    for column in ("Question", "Expected", "Base", "Open book", "Mid-trained", "Recovered"):
        assert f'data-name="{column}"' in every
    counts = {name: int(n) for name, n in re.findall(r">(Learnt|Lost|Never|Known|All) \((\d+)\)<", every)}
    assert counts["All"] == 120 and counts["Learnt"] > 50 and counts["Never"] > 30 and counts["Lost"] > 5
    assert sum(counts.values()) == 2 * counts["All"], "each question is in one of the others"
    assert "1 to 25 of 120" in every and "26 to 50 of 120" in _page(source, "knowledge", {"show": "all", "from": "25"})
    ports = _page(source, "knowledge", {"show": "all", "kind": "number"})
    assert "60 questions" in ports and "/etc/harbour" not in ports
    one = _page(source, "knowledge", {"show": "all", "search": "harbour/8.toml"})
    assert "1 question about corpus 1" in one and "Nothing matches" not in one
    assert "Nothing matches" in _page(source, "knowledge", {"search": "<b>no such"})
    assert "Learnt: 65 questions" in _page(source, "knowledge", {})
    assert "Never: 117 questions" in _page(told["nothing"], "knowledge", {}), "the first tab that holds a question"
    address, document = re.findall(r'<a href="knowledge\?([^"]+)">(page-[^<]+)</a> ', every)[0]
    asked = dict(QueryParams(address.replace("&amp;", "&")))
    assert (asked["show"], asked["search"], document) == ("all", "page-0.md", "page-0.md")
    assert "3 questions about corpus 1" in _page(source, "knowledge", asked)
    assert "No answers yet" in _page(source, "knowledge", {"cycle": "7"})


def test_the_report_answers_first_and_has_the_questions(told: dict[str, Source]) -> None:
    database = open_readonly(told["good"].url)
    found = newest(database)
    tables = [one for one in cycle_report._questions(database, found.cycles[0]) if isinstance(one, Table)]
    assert tables[0].columns == ("question", "expected", *knowledge_answers.SIDES)
    assert len(tables) == 4 and all(len(one.rows) <= cycle_report.QUESTIONS for one in tables)
    evidence = found.cycles[0].cycle.details["evidence"]
    told_first = cycle_report._answers_first(database, found.cycles[0], evidence)
    table = next(one for one in told_first if isinstance(one, Table))
    assert [line[1] for line in table.rows] == ["Yes", "Yes", "Nothing shown"]


def test_every_suite_that_broke_is_named_and_counted_in_the_headline() -> None:
    fallen = {"low": -0.3, "high": -0.1, "first": 0.9, "second": 0.7, "n": 100, "p_adjusted": 0.001}
    suites = {name: fallen | {"name": name, "difference": -0.2 - n / 100} for n, name in enumerate("abcd")}
    answer = cycle_answers._broken(1, "instruction_following", suites, {})
    assert [one[0] for one in answer.says] == ["d", "c", "b", "a"]
    assert cycle_answers._phrase(answer) == "it broke d and 3 more"
    assert cycle_answers._phrase(cycle_answers._broken(1, "", {"a": suites["a"]}, {})) == "it broke a"
