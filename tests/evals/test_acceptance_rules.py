"""Gate rules: parsing, required measurements, and verdicts by hand and by simulation."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from db.cycle_evidence import rule_row
from evals.acceptance import Verdict, judge_all
from evals.acceptance_rules import Need, Rule, needs, parse_rule
from evals.contrasts import paired_contrast
from evals.domain_pmi import BITS, CANDIDATES, FEWEST_FACTS, KIND, RIGHT
from evals.measurement import Evidence, Measurement, measurement, merged
from evals.statistics import score_of
from recovery.errors import UsageError
from recovery.types import Item, Score, SuiteResult


def judge(rule: Rule, evidence: Evidence, *, alpha: float = 0.05) -> Verdict:
    """Return the verdict of a single rule."""
    return judge_all([rule], evidence, alpha=alpha).verdicts[0]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ifeval >= 0.98*base", ("ifeval", "", 0.98, "base", 0.0)),
        ("domain >= 0.95*midtrained", ("domain", "", 0.95, "midtrained", 0.0)),
        ("retention(mmlu) >= 0.97*base", ("retention", "mmlu", 0.97, "base", 0.0)),
        ("stored >= 0.85", ("stored", "", 0.0, "", 0.85)),
        ("domain(2) >= 0.9*first", ("domain", "2", 0.9, "first", 0.0)),
        ("refusal>=0.95*base", ("refusal", "", 0.95, "base", 0.0)),
        ("  general   >=  previous ", ("general", "", 1.0, "previous", 0.0)),
        ("stored( 02 ) >= .9 * first", ("stored", "2", 0.9, "first", 0.0)),
        ("behaviour( two turns ) >= base - 2 points", ("behaviour", "two turns", 1.0, "base", -0.02)),
        ("ifeval >= 0.98*base - 0.5", ("ifeval", "", 0.98, "base", -0.005)),
        ("domain >= 1.1*previous + 1point", ("domain", "", 1.1, "previous", 0.01)),
        ("ifeval >= 0.9 - 2.5", ("ifeval", "", 0.0, "", 0.875)),
        ("preference(base) >= 0.45", ("preference", "base", 0.0, "", 0.45)),
        ("preference( previous )>=0.5 - 5 points", ("preference", "previous", 0.0, "", 0.45)),
        (" learnt ", ("learnt", "", 1.0, "base", 0.0)),
        ("learnt( 2)", ("learnt", "2", 1.0, "base", 0.0)),
        ("learnt >= 0.67*midtrained", ("learnt", "", 0.67, "midtrained", 0.0)),
        ("learnt(2) >= 0.8*first", ("learnt", "2", 0.8, "first", 0.0)),
    ],
)
def test_rules_are_read(text: str, expected: tuple) -> None:
    rule = parse_rule(text)
    assert (rule.name, rule.argument, rule.factor, rule.reference, rule.shift) == expected
    assert rule.text == " ".join(text.split())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "found nothing at character 1; expected ifeval, domain"),
        ("ifevl >= 0.98*base", "found 'ifevl' at character 1; expected ifeval, domain, domain(K)"),
        ("ifeval", "found nothing at character 7; expected '>='"),
        ("learnt >= base", "found 'base' at character 11; expected a share of what a checkpoint learnt, as in"),
        ("learnt >= 0.5", "found '0.5' at character 11; expected a share of what a checkpoint learnt"),
        ("learnt >= midtrained - 5", "expected a share of what a checkpoint learnt"),
        ("learnt(x)", "expected the number of a corpus, as in learnt(2)"),
        ("ifeval > 0.9", "found '>' at character 8; expected '>='"),
        ("ifeval <= 0.9*base", "found '<=' at character 8; expected '>='"),
        ("ifeval >=", "found nothing at character 10; expected base, midtrained, previous, first, source or a number"),
        ("ifeval >= bas", "found 'bas' at character 11; expected base, midtrained"),
        ("ifeval >= 0.98*", "found nothing at character 16; expected base, midtrained, previous, first"),
        ("ifeval >= 0.98 base", "found 'base' at character 16; expected '*' and a reference"),
        ("ifeval >= 98%*base", "found '%' at character 13; expected '*' and a reference"),
        ("ifeval >= 98*base", "found '98' at character 11; expected a factor above 0 and at most 10"),
        ("ifeval >= 0*base", "a factor above 0"),
        ("ifeval >= -0.5", "found '-' at character 11"),
        ("stored >= 85", "a number above 0 and below 1"),
        ("stored >= 1", "below 1"),
        ("stored >= 0.01 - 5", "above 0"),
        ("stored >= 0,9", "found ',' at"),
        ("ifeval >= base - 0.02", "found '0.02' at character 18; expected points from 0.1 to 100"),
        ("ifeval >= base -", "found nothing at character 17; expected points"),
        ("ifeval >= base - 1 2", "found '2' at character 20; expected the end"),
        ("ifeval >= 0.98*base and stored >= 0.9", "found 'and' at character 21; expected '+' or '-' and points"),
        ("ifeval(2) >= base", "found '(' at character 7; expected '>='"),
        ("domain(0) >= base", "found '0' at character 8; expected the number of a corpus"),
        ("domain(two) >= base", "found 'two' at character 8; expected the number of a corpus"),
        ("domain(2 >= base", "expected ')'"),
        ("retention >= base", "expected '(' and a task, as in retention(mmlu)"),
        ("retention() >= base", "found ')' at character 11; expected a task"),
        ("behaviour(x >= base", "expected ')'"),
        ("domain >= 0.9*first", "found 'first' at character 15; expected 'first' with domain(K) or stored(K) or"),
        ("general >= first", "expected 'first' with domain(K)"),
        ("ifeval\n>= 0.9\n!", "found '!' at"),
        ("preference >= 0.45", "expected '(' and base, midtrained or previous, as in preference(base) >= 0.45"),
        ("preference(first) >= 0.45", "found 'first' at character 12; expected base, midtrained or previous"),
        ("preference(cycle-1) >= 0.45", "found 'cycle' at character 12; expected base, midtrained"),
        ("preference(base) >= base", "found 'base' at character 21; expected a number: the share itself compares"),
        ("preference(base) >= 0.9*base", "found '0.9' at character 21; expected a number: the share itself"),
        ("preference(base) >= 45", "a number above 0 and below 1"),
    ],
)
def test_bad_rules_say_where_and_what_is_allowed(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_rule(text)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_a_rule_needs() -> None:
    instruction = ("ifeval", "instruction_following")
    assert needs(parse_rule("ifeval >= 0.98*base"), 3) == (Need("student", instruction), Need("base", instruction))
    assert needs(parse_rule("stored >= 0.85")) == (Need("student", ("domain_knowledge_stored",)),)
    assert needs(parse_rule("domain >= 0.9*midtrained"), 3)[1] == Need("midtrained", ("domain_knowledge/3",), 3)
    assert needs(parse_rule("domain(2) >= 0.9*first"), 3) == (
        Need("student", ("domain_knowledge/2",), 2),
        Need("first", ("domain_knowledge/2",), 2),
    )
    kept = [one.checkpoint for one in needs(parse_rule("learnt >= 0.67*midtrained"), 1)]
    assert kept == ["student", "midtrained", "base"], "what both learnt is measured from base"
    assert needs(parse_rule("instruction_following >= base"))[1] == Need("base", ("instruction_following",))
    assert needs(parse_rule("retention(mmlu) >= base"))[0].suites == ("mmlu",)
    assert needs(parse_rule("behaviour(refusal) >= base")) == needs(parse_rule("refusal >= base"))
    assert needs(parse_rule("general >= previous"))[1] == Need("previous", ("general",))
    assert needs(parse_rule("preference(base) >= 0.45"), 3) == (Need("student", ("preference/base",)),)
    assert [parse_rule(text).rival for text in ("preference(midtrained) >= 0.5", "behaviour(base) >= 0.5")] == [
        "midtrained", None
    ]  # fmt: skip


def items(scores: Sequence[float], groups: Sequence[str] = (), prefix: str = "") -> Measurement:
    ids = [f"{prefix}{number}" for number in range(len(scores))]
    return Measurement(dict(zip(ids, map(float, scores), strict=True)), dict(zip(ids, groups, strict=False)))


def evidence(suite: str = "ifeval", corpus: int | None = None, **sides: Measurement) -> Evidence:
    return Evidence({name: {suite: side} for name, side in sides.items()}, corpus)


def share(right: int, n: int) -> list[float]:
    return [1.0] * right + [0.0] * (n - right)


def test_pass_fail_and_undecided_by_hand() -> None:
    rule = parse_rule("ifeval >= 0.9*base")
    base = items([1.0] * 100)
    # k failures of 100, bound 0.9: z = (0.1 - k/100) / sqrt(0.9 * 0.1 / 100) = (10 - k) / 3; 1.645 -> k <= 5, k >= 15
    judged = {k: judge(rule, evidence(student=items(share(100 - k, 100)), base=base)) for k in (0, 5, 6, 10, 14, 15)}
    verdicts = ["pass", "pass", "undecided", "undecided", "undecided", "fail"]
    assert [verdict.verdict for verdict in judged.values()] == verdicts
    six = judged[6]
    assert (six.student, six.reference, six.bound) == (0.94, 1.0, pytest.approx(0.9))
    assert six.estimate == pytest.approx(0.04)
    assert six.low is not None and six.high is not None and six.low < 0 < six.high
    assert (six.n, six.paired, six.suite, six.missing) == (100, True, "ifeval", ())
    # (1.645 / 1.333 + 0.842 * sqrt(0.94 * 0.06 / 99) / 0.04)^2 = (1.2337 + 0.5022)^2 = 3.013 -> 201 or 202 more
    assert six.more in (201, 202)
    assert "undecided: +4.0 points against 0.9 * base (-" in six.reason
    assert ", 90% interval), at least 0 required: 94.0 (base: 100.0) on 100 paired items; " in six.reason
    assert f"about {six.more} more items would decide it" in six.reason
    assert judged[10].more is None
    assert "too close to the bound" in judged[10].reason
    assert "fail: -5.0 points" in judged[15].reason
    assert judged[0].more is None


@pytest.mark.parametrize(
    ("base", "student", "verdict", "words"),
    [
        (0, 0, "pass", "not applied: base declines 0 of 100: too few to lose any"),
        (10, 0, "pass", "not applied: base declines 10 of 100"),
        (40, 40, "pass", "pass: +0.0 points against base ("),
        (40, 10, "fail", "90% interval), at least -10 required: 10.0 (base: 40.0) on 100 paired items"),
        (40, 32, "undecided", "undecided: -8.0 points against base (-"),
        (None, None, "pass", "not applied: there are no near misses of this corpus, or none were asked"),
        (40, None, "undecided", "not measured: unanswerable/2 of student"),
    ],
)
def test_what_no_document_answers(base: int | None, student: int | None, verdict: str, words: str) -> None:
    sides = {"base": base, "student": student}
    asked = {name: items(share(right, 100)) for name, right in sides.items() if right is not None}
    asked = {name: replace(one, declined=sum(map(int, one.items.values()))) for name, one in asked.items()}
    rule = parse_rule("unanswerable >= base - 10")
    found = judge(rule, evidence("unanswerable/2", 2, **asked))
    assert (found.verdict, found.suite) == (verdict, "unanswerable/2") and words in found.reason
    assert rule_row(vars(found))[1] == ("not applied" if words.startswith("not applied") else verdict)
    if base is None:  # whatever else was asked
        others = Evidence({name: {"general": items(share(90, 100))} for name in sides}, 2)
        assert words in judge(rule, others).reason
    if base == 40 and student is not None:  # base repeats questions, and declines none
        asked["base"] = replace(asked["base"], declined=0)
        assert "not applied: base declines 0" in judge(rule, evidence("unanswerable/2", 2, **asked)).reason


def test_items_that_decline_are_counted() -> None:
    rows = [(str(n), float(n < 2), "", {"declined": n < 1, "confabulated": n >= 2}, {}) for n in range(4)]
    found = measurement(rows)
    assert (found.declined, found.headline and found.headline.value) == (1, 0.5)


def test_a_number_as_reference_and_a_margin() -> None:
    student = items(share(90, 100))
    # z = 0.05 / sqrt(0.85 * 0.15 / 100) = 1.40; with two points of margin 0.07 / sqrt(0.83 * 0.17 / 100) = 1.86
    alone = judge(parse_rule("stored >= 0.85"), evidence("domain_knowledge_stored", student=student))
    assert (alone.verdict, alone.reference, alone.paired) == ("undecided", None, False)
    assert alone.bound == pytest.approx(0.85)
    assert alone.reason.startswith("stored >= 0.85: undecided: 90.0 (")
    assert "90% interval), at least 85 required, on 100 items; " in alone.reason
    eased = judge(parse_rule("stored >= 0.85 - 2"), evidence("domain_knowledge_stored", student=student))
    assert (eased.verdict, eased.bound) == ("pass", pytest.approx(0.83))
    same = evidence(student=student, base=student)
    assert judge(parse_rule("ifeval >= base"), same).verdict == "undecided"  # equal scores do not show non-inferiority
    assert judge(parse_rule("ifeval >= base - 3"), same).verdict == "pass"


def test_items_are_paired_by_id_and_what_is_not_shared_is_left_out() -> None:
    rule = parse_rule("ifeval >= 0.95*base")
    base = items(share(160, 200))
    student = Measurement(dict(reversed(items(share(159, 200)).items.items())))
    verdict = judge(rule, evidence(student=student, base=base))
    assert verdict.paired and verdict.verdict == "pass"
    more = Measurement({**student.items, **items([0.0] * 100, prefix="new").items})
    assert judge(rule, evidence(student=more, base=base)).estimate == pytest.approx(verdict.estimate)
    strangers = judge(rule, evidence(student=items(share(159, 200), prefix="x"), base=base))
    assert (strangers.verdict, strangers.paired) == ("undecided", False)
    assert "unpaired items" in strangers.reason
    assert strangers.estimate == pytest.approx(verdict.estimate)


def test_groups_count() -> None:
    rule = parse_rule("domain >= 0.9*midtrained")
    scores = share(235, 250)
    groups = [str(i // 10) for i in range(250)]  # the losses are in one and a half documents
    plain = judge(rule, evidence("domain_knowledge", student=items(scores), midtrained=items([1.0] * 250)))
    clustered = evidence("domain_knowledge", student=items(scores), midtrained=items([1.0] * 250, groups))
    assert (plain.verdict, judge(rule, clustered).verdict) == ("pass", "undecided")


def test_scores_alone_can_be_judged() -> None:
    rule = parse_rule("retention(mmlu) >= 0.97*base")
    base = Measurement(score=Score(0.6, 0.004, 14000))
    for value, verdict in ((0.61, "pass"), (0.585, "undecided"), (0.55, "fail")):
        student = Measurement(score=Score(value, 0.004, 14000))
        assert judge(rule, evidence("mmlu", student=student, base=base)).verdict == verdict
    mixed = judge(rule, evidence("mmlu", student=items(share(90, 100)), base=base))
    assert (mixed.verdict, mixed.paired, mixed.n) == ("pass", False, 100)


def test_what_was_not_measured_is_named() -> None:
    rule = parse_rule("domain >= 0.9*midtrained")
    verdict = judge(rule, evidence("domain_knowledge/2", 2, student=items([1.0] * 50)))
    assert (verdict.verdict, verdict.estimate, verdict.more) == ("undecided", None, None)
    assert verdict.missing == ("domain_knowledge/2 of midtrained",)
    assert "not measured: domain_knowledge/2" in verdict.reason
    about = {"student": {"domain_knowledge/2": items([1] * 9), "domain_knowledge": items([1] * 9)}}
    about["previous"] = {"domain_knowledge/1": items([1] * 9), "domain_knowledge": items([1] * 9)}
    other = judge(parse_rule("domain >= 0.1*previous"), Evidence(about, 2))
    assert other.missing == ("domain_knowledge/2 of previous",), "its score without a number is about corpus 1"
    empty = evidence("stored", student=Measurement(score=Score(0.0, 0.0, 0)))
    assert judge(parse_rule("stored >= 0.5"), empty).missing == ("domain_knowledge_stored of student",)
    apart = Evidence({"student": {"ifeval": items([1])}, "base": {"instruction_following": items([1])}})
    assert judge(parse_rule("ifeval >= base"), apart).missing == (
        "one of ifeval, instruction_following on both student and base",
    )


def test_the_first_suite_that_both_have_is_used() -> None:
    both = {"ifeval": items([1.0] * 10), "instruction_following": items([1.0] * 400)}
    rule = parse_rule("ifeval >= 0.98*base")
    assert judge(rule, Evidence({"student": both, "base": both})).suite == "ifeval"
    only = {"instruction_following": both["instruction_following"]}
    assert judge(rule, Evidence({"student": both, "base": only})).suite == "instruction_following"
    sides = {"student": {"domain_knowledge/2": items([1.0] * 9)}, "first": {"domain_knowledge/2": items([1.0] * 9)}}
    assert judge(parse_rule("domain(2) >= 0.9*first"), Evidence(sides, 3)).n == 9


def test_scores_that_are_no_shares_cannot_be_tested() -> None:
    """An error would end a cycle after its training, and again each time that it is resumed."""
    rule = parse_rule("retention(wikitext) >= 0.97*base")
    whole = Measurement(score=Score(12, 1, 9))
    for student, base in ((items([12.0, 14.0]), items([11.0, 13.0])), (whole, items([1])), (items([0.5]), whole)):
        verdict = judge(rule, evidence("wikitext", student=student, base=base))
        assert verdict.verdict == "undecided" and "its scores are not between 0 and 1" in verdict.reason


def test_a_score_that_no_item_has_cannot_be_tested() -> None:
    """BLEU of 0.40 against 0.02: neither "equal on every item" nor a share of verdicts."""
    sides = {}
    for name, value in (("student", 0.02), ("base", 0.40)):
        rows = ((str(number), score, "", {}, {}) for number, score in enumerate((math.nan, None, math.nan)))
        sides[name] = replace(measurement(rows), score=Score(value, 0.0, 3))
    rule = parse_rule("retention(bleu) >= 0.97*base - 2")
    verdict = judge(rule, evidence("bleu", **sides))
    assert (verdict.verdict, verdict.estimate, verdict.more) == ("undecided", None, None)
    assert verdict.missing == ("bleu of student", "bleu of base")
    assert "cannot be tested, as its items have no scores of their own: bleu of student" in verdict.reason
    assert merged({"glue_cola": sides["base"], "glue_sst2": items([1, 0])}).headline is None, "not without a part"


def test_measurements_from_rows_results_and_task_groups() -> None:
    rows = [("a", 1.0, "d1", {}, {}), ("b", None, "", {}, {}), ("d", 0, "d2", {}, None)]
    rows.append(("c", 0.0, "", {}, {"headline": False}))
    assert measurement(rows) == Measurement({"a": 1.0, "d": 0.0}, {"a": "d1", "d": "d2"})
    with pytest.raises(UsageError, match="share the id 'a'"):
        measurement([*rows, ("a", 0.0, "", {}, {})])
    result = SuiteResult("s", Score(0.5, 0.5, 2), (Item("a", "", "", 1.0, group="g"), Item("b", "", "", 0.0)))
    rows = ((item.id, item.score, item.group, item.verdicts, item.extra) for item in result.items)
    assert measurement(rows) == Measurement({"a": 1.0, "b": 0.0}, {"a": "g", "b": ""})
    assert Measurement(score=result.score).headline == result.score
    mmlu = merged({"mmlu_law": items([1, 1], ["g", ""]), "mmlu_art": items([0])})
    assert mmlu.items == {"mmlu_law/0": 1.0, "mmlu_law/1": 1.0, "mmlu_art/0": 0.0}
    assert mmlu.groups == {"mmlu_law/0": "mmlu_law/g", "mmlu_law/1": ""}
    assert mmlu.headline == score_of([1, 1, 0])


RULES = [parse_rule(text) for text in ("ifeval >= 0.95*base", "domain >= 0.9*midtrained", "general >= 0.5*base")]


def cycle(ifeval: int, domain: int, general: int = 300) -> Evidence:
    """300 items per suite, all correct in the references."""
    right = {"ifeval": ifeval, "domain_knowledge": domain, "general": general}
    full = {suite: items([1.0] * 300) for suite in right}
    student = {suite: items(share(count, 300)) for suite, count in right.items()}
    return Evidence({"student": student, "base": full, "midtrained": full})


def test_accept_reject_and_undecided() -> None:
    accepted = judge_all(RULES, cycle(298, 295))
    assert (accepted.decision, accepted.reason, accepted.samples) == ("accept", "all 3 rules hold", {})
    rejected = judge_all(RULES, cycle(240, 270))
    assert (rejected.decision, rejected.reason) == ("reject", "broken: ifeval >= 0.95*base")
    assert [verdict.verdict for verdict in rejected.verdicts] == ["fail", "undecided", "pass"]
    open_ = judge_all(RULES, cycle(288, 295))
    assert open_.decision == "undecided"
    assert open_.samples == {"ifeval": open_.verdicts[0].more}
    assert open_.reason.startswith("undecided: ifeval >= ")
    assert "Holm" in open_.method
    unmeasured = judge_all([*RULES, parse_rule("refusal >= 0.95*base")], cycle(298, 295))
    assert (unmeasured.decision, unmeasured.samples) == ("undecided", {})
    assert unmeasured.missing == ("behaviour/refusal of student", "behaviour/refusal of base")
    one = judge_all(RULES[:1], cycle(298, 0))
    assert (one.decision, one.reason) == ("accept", "the rule holds")
    assert one.verdicts[0].p_adjusted == one.verdicts[0].p_value
    assert "Holm" not in one.method
    for bad in ({"rules": []}, {"rules": RULES, "looks": 0}):
        with pytest.raises(UsageError):
            judge_all(evidence=cycle(300, 300), **bad)


def test_failures_are_corrected_for_several_rules_and_passes_are_not() -> None:
    # 23 failures, 15 allowed: z = 8 / sqrt(300 * 0.95 * 0.05) = 2.12, p = 0.017: fails alone and of two (0.034)
    alone = judge_all(RULES[:1], cycle(277, 300))
    assert (alone.decision, alone.verdicts[0].p_value) == ("reject", pytest.approx(0.017, abs=5e-4))
    assert judge_all(RULES[:2], cycle(277, 300)).decision == "reject"
    three = judge_all(RULES, cycle(277, 300))
    assert three.decision == "undecided"
    assert three.verdicts[0].p_adjusted == pytest.approx(3 * 0.017, abs=2e-3)
    assert "not after the correction for several rules" in three.verdicts[0].reason
    assert three.verdicts[0].more is not None
    # 8 failures: z = 7 / 3.775 = 1.85, p = 0.032: passes with any number of rules
    assert judge_all(RULES, cycle(292, 300)).verdicts[0].verdict == "pass"


def test_looks_share_alpha() -> None:
    assert judge_all(RULES[:1], cycle(292, 300)).decision == "accept"
    twice = judge_all(RULES[:1], cycle(292, 300), looks=2)
    assert (twice.decision, twice.verdicts[0].alpha) == ("undecided", 0.025)
    assert "2 looks" in twice.method


def test_everything_is_ready_for_json() -> None:
    decision = judge_all([*RULES, parse_rule("refusal >= 0.95*base")], cycle(288, 270))
    stored = json.loads(json.dumps(decision.to_json(), allow_nan=False))
    assert stored["verdicts"][0]["rule"] == "ifeval >= 0.95*base"
    assert stored["samples"].keys() == decision.samples.keys()
    assert isinstance(RULES[0], Rule)


def test_bounds_and_p_values_say_the_same() -> None:
    draw = np.random.default_rng(1)
    rule = parse_rule("ifeval >= 0.95*base")
    for _ in range(60):
        n = int(draw.integers(5, 120))
        base = draw.random(n) < draw.uniform(0.5, 1.0)
        student = np.where(draw.random(n) < draw.uniform(0.0, 0.3), draw.random(n) < 0.4, base)
        groups = [str(g) for g in draw.integers(0, 12, n)] if n % 2 else None
        contrast = paired_contrast(student, base, groups, factor=rule.factor)
        assert (contrast.high < 0) == (contrast.p_below < 0.05)
        assert (contrast.low > 0) == (contrast.p_below > 0.95)


@pytest.mark.parametrize(("n", "least"), [(60, 34), (200, 102)])
def test_the_shares_of_votes_that_the_documentation_names(n: int, least: int) -> None:
    """docs/evidence.md: 0.45 is shown on 60 prompts by a share of 0.57, on 200 by 0.51."""
    rule = parse_rule("preference(base) >= 0.45")
    for preferred, verdict in ((least, "pass"), (least - 1, "undecided")):
        votes = items([1.0] * preferred + [0.0] * (n - preferred))
        assert judge(rule, evidence("preference/base", student=votes)).verdict == verdict


LIKELIHOOD = "domain_knowledge_likelihood/1"


def cells(count: int, known: float, seed: int, scale: float = 1.0, noise: int = 7) -> Measurement:
    """Cells of questions, each with its own answer, whose right ones have ``known`` bits more than others."""
    draw = np.random.default_rng(seed)
    bits = scale * (draw.normal(size=(count, 1)) * 9 + draw.normal(size=count) * 7 - 30)
    bits += scale * (np.random.default_rng(noise).normal(size=(count, count)) + known * np.eye(count))
    rows = []
    for at in range(count):
        extra = {KIND: "name", BITS: bits[at].tolist(), RIGHT: [at]}
        extra |= {CANDIDATES: [f"a{n}" for n in range(count)]} if not at else {}
        rows.append((f"q{at}", 0.0, f"page {at // 2}", {}, extra))
    return measurement(rows)


@pytest.mark.parametrize(
    ("base", "student", "expected"),
    [
        (cells(30, 0.5, 1), cells(30, 2.5, 2), "pass"),
        (cells(30, 0.5, 1), cells(30, 2.5, 2, scale=2.0), "pass"),
        (cells(30, 0.5, 1), cells(30, 0.5, 2), "undecided"),
        (cells(30, 1.5, 1), cells(30, 1.5, 2, scale=2.0), "undecided"),  # sharper is not more
        (cells(30, 2.5, 1), cells(30, 0.5, 2), "fail"),
    ],
)
def test_what_is_learnt_is_judged_by_k(base: Measurement, student: Measurement, expected: str) -> None:
    evidence = Evidence({"base": {LIKELIHOOD: base}, "student": {LIKELIHOOD: student}}, corpus=1)
    verdict = judge(parse_rule("learnt"), evidence)
    assert (verdict.verdict, verdict.suite, verdict.n, verdict.missing) == (expected, LIKELIHOOD, 30, ())
    assert f"learnt: {expected}: K " in verdict.reason and "first among eight" in verdict.reason
    together = judge_all([parse_rule("learnt"), parse_rule("learnt(1)")], evidence)
    assert {one.verdict for one in together.verdicts} == {expected}
    if expected == "fail":
        assert together.verdicts[0].p_adjusted == pytest.approx(2 * (verdict.p_adjusted or 0.0))


@pytest.mark.parametrize(
    ("taught", "student", "expected"),
    [
        (3.5, cells(40, 3.5, 3, noise=9), "pass"),
        (3.5, cells(40, 3.5, 3, noise=9, scale=2.0), "pass"),  # sharper or not
        (3.5, cells(40, 0.9, 3, noise=9), "fail"),
        (3.5, cells(40, 0.9, 3, noise=9, scale=2.0), "fail"),
        (3.5, cells(40, 2.5, 3, noise=8), "undecided"),
    ],
)
def test_what_is_kept_of_what_was_learnt_is_judged_by_k(taught: float, student: Measurement, expected: str) -> None:
    sides = {"base": cells(40, 0.5, 1), "midtrained": cells(40, taught, 2, noise=10), "student": student}
    rule = parse_rule("learnt >= 0.67*midtrained")
    verdict = judge(rule, Evidence({name: {LIKELIHOOD: one} for name, one in sides.items()}, corpus=1))
    assert (verdict.verdict, verdict.suite, verdict.n, verdict.missing) == (expected, LIKELIHOOD, 40, ())
    assert f"{expected}: " in verdict.reason and "% of what midtrained learnt (" in verdict.reason
    assert "at least 67% required, in K of 40 questions" in verdict.reason
    assert ("more items" in verdict.reason) is (verdict.more is not None) is (expected == "undecided")


def test_of_what_was_not_learnt_there_is_no_share() -> None:
    sides = {"base": cells(40, 0.5, 1), "midtrained": cells(40, 0.5, 2, noise=8), "student": cells(40, 0.5, 3)}
    evidence = Evidence({name: {LIKELIHOOD: one} for name, one in sides.items()}, corpus=1)
    verdict = judge(parse_rule("learnt >= 0.67*midtrained"), evidence)
    assert verdict.verdict == "undecided" and "midtrained is not shown to have learnt" in verdict.reason
    assert verdict.missing == ("a K of midtrained above 0",), "no further recovery would decide it"
    del evidence.measured["base"]  # type: ignore[attr-defined]
    missing = judge(parse_rule("learnt >= 0.67*midtrained"), evidence)
    assert missing.verdict == "undecided" and missing.missing == (f"{LIKELIHOOD} of base",)


@pytest.mark.parametrize("few", [cells(FEWEST_FACTS - 1, 3.0, 1), Measurement({"q": 1.0}), Measurement()])
def test_too_few_questions_leave_it_undecided(few: Measurement) -> None:
    evidence = Evidence({"base": {LIKELIHOOD: few}, "student": {LIKELIHOOD: few}}, corpus=1)
    verdict = judge(parse_rule("learnt"), evidence)
    assert verdict.verdict == "undecided" and "not measured" in verdict.reason and verdict.missing
    if few.items:
        sides = {"base": few, "midtrained": cells(40, 3.0, 2), "student": cells(40, 3.0, 3)}
        kept = judge(
            parse_rule("learnt >= 0.67*midtrained"), Evidence({k: {LIKELIHOOD: v} for k, v in sides.items()}, 1)
        )
        assert "questions with enough answers of their kind were put to student and midtrained and base" in kept.reason
    nothing = judge(parse_rule("learnt"), Evidence({"student": {LIKELIHOOD: few}}, corpus=1))
    assert nothing.verdict == "undecided" and "domain_knowledge_likelihood/1 of base" in nothing.reason


def test_more_questions_are_estimated_for_what_is_nearly_learnt() -> None:
    base, student = cells(30, 0.0, 1), cells(30, 0.3, 2, noise=8)
    evidence = Evidence({"base": {LIKELIHOOD: base}, "student": {LIKELIHOOD: student}}, corpus=1)
    verdict = judge(parse_rule("learnt"), evidence, alpha=0.01)
    assert verdict.verdict == "undecided" and verdict.more is not None and 10 < verdict.more < 1000
    assert f"about {verdict.more} more items" in verdict.reason
    assert judge_all([parse_rule("learnt")], evidence, alpha=0.01).samples == {LIKELIHOOD: verdict.more}


def test_a_bound_below_one_answer_of_few_near_misses_is_not_applied() -> None:
    """4 of 39 declined are 10.3%: the bound, 0.3%, is a ninth of an answer, and no student could be told from it."""
    asked = {name: replace(items(share(4, 39)), declined=4) for name in ("base", "student")}
    found = judge(parse_rule("unanswerable >= base - 10"), evidence("unanswerable/2", 2, **asked))
    assert found.verdict == "pass" and "not applied: base declines 4 of 39" in found.reason


@pytest.mark.parametrize(("value", "testable"), [(-0.01, False), (0.0, True), (1.0, True), (1.01, False)])
def test_a_share_is_between_0_and_1(value: float, testable: bool) -> None:
    assert (items([0.5, value]).untestable == "") == testable
