"""Human review in the gate, the report and the evidence: votes and labels in, verdicts and texts out."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from db import Tracker, open_database, queries, reviews
from evals.acceptance import Decision
from pipelines.cli.main import run
from pipelines.evaluation.acceptance import judge_cycle, rules_of
from pipelines.evaluation.stored_results import items_of, newest
from pipelines.reports.bundle import checks, pack
from pipelines.reports.cycle_report import cycle_report
from pipelines.reports.document import to_html, to_markdown
from pipelines.reports.evidence import evidence_bundle
from pipelines.runtime.progress import Display
from pipelines.runtime.session import Session
from recovery.errors import UsageError
from tests.recorded_stages import made

SUITE, ITEMS = "instruction_following", 60
HOSTILE = "<script>alert(1)</script> | *bold*"
RULE = "preference(base) >= 0.45"


def evaluate(tracker: Tracker, checkpoint: int, name: str, wrong: int) -> None:
    """Record an evaluation in which the first ``wrong`` items fail."""
    items = [
        {"id": f"p{n}", "prompt": f"Describe ferry {n}.", "response": f"{name} {n} {HOSTILE}",
         "score": float(n >= wrong), "verdicts": {"punctuation:no_comma": n >= wrong}}
        for n in range(ITEMS)
    ]  # fmt: skip
    value = 1 - wrong / ITEMS
    tracker.add_evaluation(checkpoint, SUITE, value=value, stderr=0.05, n=ITEMS, items=items)


@pytest.fixture
def workspace(tmp_path: Path, tiny_model: Path) -> Path:
    """A workspace with one cycle, evaluated; nobody has reviewed it."""
    folder = tmp_path / "workspace"
    with Session.open(folder, model=str(tiny_model), display=Display(quiet=True)) as session:
        session.tracker.cycle(session.experiment_id, 1, documents="./q1", corpus_hash="c" * 64)
        parent = session.base.id
        evaluate(session.tracker, parent, "base", 0)
        for kind, wrong in (("midtrained", 20), ("recovered", 3)):
            parent = made(session, 1, kind, parent=parent)
            evaluate(session.tracker, parent, kind, wrong)
    return folder


class Reviewers:
    """Votes and labels on the recovered checkpoint, as the dashboard records them."""

    def __init__(self, workspace: Path, against: str = "base") -> None:
        self.database = open_database(workspace / "tracker.db")
        experiment = queries.experiments(self.database)[0].id
        self.first, self.second = (
            queries.checkpoint(self.database, experiment, name) for name in (against, "cycle-1/recovered")
        )
        assert self.first is not None and self.second is not None
        self.ids = (self.first.id, self.second.id)
        answered = reviews.answered(self.database, experiment)
        self.evaluations = tuple(answered[number][SUITE] for number in self.ids)

    def vote(self, reviewer: str, choices: list[str], scope: str = reviews.DIFFERING) -> None:
        review = reviews.open_review(self.database, *self.ids, SUITE, scope)
        pairs = reviews.pairs(self.database, *self.evaluations, scope)
        for pair, choice in zip(reviews.in_order(pairs, review.seed), choices, strict=False):
            reviews.vote(self.database, review, pair, reviewer, choice)

    def label(self, reviewer: str, label: str, note: str) -> None:
        pair = reviews.pairs(self.database, *self.evaluations, reviews.LOST)[0]
        reviews.add_label(self.database, pair, reviewer, label, note)


def judge(workspace: Path, *rules: str) -> Decision:
    with Session.open(workspace, display=Display(quiet=True)) as session:
        return judge_cycle(session, rules_of(rules, session), 1)


def test_without_votes_the_rule_is_not_met_and_names_the_page(
    workspace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    decision = judge(workspace, RULE)
    (verdict,) = decision.verdicts
    assert (decision.decision, verdict.verdict) == ("undecided", "undecided")
    assert verdict.reason.startswith(f"{RULE}: no votes yet: open the dashboard's page Review (recover dashboard)")
    capsys.readouterr()
    assert run(["gate", "1", "--rule", RULE, "--enter", "--workspace", str(workspace)]) == 4
    printed = capsys.readouterr().out
    assert "no votes yet: open the dashboard's page Review" in printed and "entered" not in printed


def test_votes_decide_the_rule_with_an_interval(workspace: Path) -> None:
    reviewers = Reviewers(workspace)
    reviewers.vote("Ada", ["second", "tie", "first"])
    few = judge(workspace, RULE).verdicts[0]
    assert (few.verdict, few.n, few.student) == ("undecided", 3, 0.5)
    assert few.low is not None and few.high is not None and few.low < 0 < few.high
    assert "votes on about" in few.reason
    reviewers.vote("Ada", ["second"] * 40 + ["tie"] * 20)
    good = judge(workspace, RULE).verdicts[0]
    assert (good.verdict, good.n) == ("pass", ITEMS) and good.student == pytest.approx(50 / 60)
    reviewers.vote("Bo", ["first"] * ITEMS)  # a second reviewer, of another opinion
    both = judge(workspace, RULE).verdicts[0]
    assert both.n == ITEMS and both.student == pytest.approx(25 / 60)
    reviewers.vote("Ada", ["first"] * ITEMS)
    assert judge(workspace, RULE).decision == "reject"


def test_a_judgement_rests_on_the_votes_of_its_time(workspace: Path) -> None:
    reviewers = Reviewers(workspace)
    reviewers.vote("Ada", ["second"] * ITEMS)
    with Session.open(workspace, display=Display(quiet=True)) as session:
        database, end = session.tracker.database, reviewers.ids[1]
        for _ in range(2):
            assert judge_cycle(session, rules_of([RULE], session), 1).decision == "accept"
        stored = [row for row in queries.evaluations(database, end) if row.suite == "preference/base"]
        assert len(stored) == 1, "the same votes are recorded once"
        reviewers.vote("Ada", ["first"] * ITEMS)
        assert list(checks(evidence_bundle(session, 1)))[-1] == "decision on cycle 1: accept: the rule holds"
        assert judge_cycle(session, rules_of([RULE], session), 1).decision == "reject"
        reviewers.vote("Ada", ["skip"] * ITEMS)
        assert judge_cycle(session, rules_of([RULE], session), 1).missing == ("preference/base of student",)
        assert not items_of(database, newest(database, end)["preference/base"]).items


def test_votes_on_chosen_prompts_do_not_count(workspace: Path) -> None:
    Reviewers(workspace).vote("Ada", ["first"] * ITEMS, reviews.ONE_SIDED)
    assert "no votes yet" in judge(workspace, RULE).verdicts[0].reason


def test_votes_against_another_checkpoint_are_another_rule(workspace: Path) -> None:
    Reviewers(workspace, "cycle-1/midtrained").vote("Ada", ["second"] * ITEMS)
    first, second = judge(workspace, "preference(midtrained) >= 0.6", RULE).verdicts
    assert (first.verdict, second.verdict) == ("pass", "undecided")


def test_the_report_has_votes_agreement_and_labels_as_text(workspace: Path) -> None:
    reviewers = Reviewers(workspace)
    reviewers.vote("Ada", ["second"] * 10 + ["first"] * 10)
    reviewers.vote("Bo", ["second"] * 10 + ["first"] * 9 + ["tie"])
    reviewers.vote("Bo", ["first"], reviews.ONE_SIDED)
    reviewers.label("Ada", "content", f"not a ferry {HOSTILE}")
    with Session.open(workspace, display=Display(quiet=True)) as session:
        title, blocks = cycle_report(session, 1)
    markdown, html = to_markdown(blocks), to_html(title, blocks)
    tally = reviews.tally(reviews.votes(reviewers.database, *reviewers.ids))
    low, high = tally.interval or (0.0, 0.0)
    row = f"| {SUITE} | 0.512 | {low:.3f} to {high:.3f} | 20 | 20 | 1 | 19 | 0 | {tally.alpha:.2f} | Ada, Bo |"
    assert row in markdown and "prompts that only one of the two has solved" in markdown
    assert "Ada: Wrong or invented content: not a ferry" in markdown
    assert "| Wrong or invented content | 1 |" in markdown
    assert "not a ferry &lt;script&gt;" in html and "<script>alert" not in html


def test_a_bundle_has_the_votes_and_is_refused_if_they_were_turned(workspace: Path) -> None:
    reviewers = Reviewers(workspace)
    reviewers.vote("Ada", ["second"] * 30)
    reviewers.label("Ada", "other", "odd")
    with Session.open(workspace, display=Display(quiet=True)) as session:
        judge_cycle(session, rules_of([RULE], session), 1)
        data = evidence_bundle(session, 1)
    lines = list(checks(data))
    assert "review: 30 votes, each on the side of its seed, and 1 labels; reviewers: 1" in lines
    assert f"rule: {RULE}: pass" in lines
    contents = _contents(data)
    assert {vote["choice"] for vote in contents["cycle.json"]["votes"]} == {"second"}
    assert contents["cycle.json"]["labels"][0]["note"] == "odd" and b"Describe ferry" not in data
    vote = contents["cycle.json"]["votes"][3]
    vote["on_left"] = "first" if vote["on_left"] == "second" else "second"
    with pytest.raises(UsageError, match="the vote of 'Ada' on 'p[0-9]+' is not on the side of its seed"):
        list(checks(_packed(contents)))
    contents = _contents(data)
    (name,) = (name for name in contents if name.endswith("l"))
    contents[name][0]["votes"] = {"Ada": "rival"}
    with pytest.raises(UsageError, match="is not the mean of its votes"):
        list(checks(_packed(contents)))


def _contents(data: bytes) -> dict[str, Any]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        read = {name: archive.read(name).decode() for name in archive.namelist() if name != "manifest.json"}
    return {
        name: [json.loads(line) for line in text.splitlines()] if name.endswith("l") else json.loads(text)
        for name, text in read.items()
    }


def _packed(contents: dict[str, Any]) -> bytes:
    items = {int(Path(name).stem): rows for name, rows in contents.items() if name.endswith("l")}
    return pack({name: value for name, value in contents.items() if not name.endswith("l")}, items)
