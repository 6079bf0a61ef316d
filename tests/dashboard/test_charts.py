"""Figures of overview and live page: points, order, intervals, axes."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import pytest

from dashboard import charts
from dashboard.charts import Figure
from dashboard.pages import overview as page
from db import Database, queries
from db.records import Experiment, Measured, Overview, Point, Score
from tests.dashboard.conftest import checked


@pytest.fixture(scope="session")
def overview(readable: Database, seeded: Any) -> Overview:
    found = queries.overview(readable, seeded.experiment)
    assert found is not None
    return found


def traces(figure: Figure) -> dict[str, Any]:
    return {trace.name: trace for trace in checked(figure).data}


def test_the_trade_has_a_point_a_checkpoint_with_intervals(overview: Overview) -> None:
    found = traces(charts.tradeoff(overview, floor=0.9))
    frontier = found.pop("frontier")
    places = list(zip(frontier.x, frontier.y, strict=True))
    assert len(places) > 1 and all(a[0] > b[0] and a[1] < b[1] for a, b in itertools.pairwise(places))
    assert {name: len(trace.x) for name, trace in found.items()} == {"base": 1, "mid-trained": 3, "recovered": 3}
    assert len({trace.marker.symbol for trace in found.values()}) == 3  # shapes as well as colours
    assert all(len(trace.error_y.array) == len(trace.y) == len(trace.error_x.array) for trace in found.values())
    recovered = overview.cycles[1].recovered
    assert recovered is not None and recovered.scores.instruction_following is not None
    assert found["recovered"].y[1] == recovered.scores.instruction_following.value
    score = recovered.scores.instruction_following
    low, high = score.interval or (0.0, 0.0)
    bars = found["recovered"].error_y
    assert (bars.arrayminus[1], bars.array[1]) == (pytest.approx(score.value - low), pytest.approx(high - score.value))


def test_the_lines_and_the_shade_of_the_trade_are_explained(overview: Overview) -> None:
    """The shade begins at the gate's bound: what lies in it is not accepted for that."""
    lines = [one for one in checked(charts.tradeoff(overview, floor=0.9)).layout.shapes if one.type == "line"]
    assert [(one.line.dash, one.line.color) for one in lines] == [("dash", charts.markup.BASE)]
    assert ("line-dash", charts.markup.BASE, "base's instruction following") in page.TRADEOFF_KEYS
    assert "dotted: Pareto frontier" in page.TRADEOFF_NOTE and "above the gate's bound" in page.TRADEOFF_NOTE


def test_a_student_from_elsewhere_has_a_point(overview: Overview) -> None:
    row = overview.cycles[-1]
    assert row.midtrained is not None
    checkpoint = dataclasses.replace(row.midtrained.checkpoint, kind="external")
    external = dataclasses.replace(row.midtrained, checkpoint=checkpoint)
    cycles = (*overview.cycles[:-1], dataclasses.replace(row, midtrained=external))
    found = traces(charts.tradeoff(dataclasses.replace(overview, cycles=cycles)))
    assert sorted(len(trace.x) for name, trace in found.items() if name != "frontier") == [1, 1, 2, 3]


def test_knowledge_grows_to_the_right_as_corpora_are_learnt(overview: Overview) -> None:
    xs = list(traces(charts.tradeoff(overview))["recovered"].x)
    assert xs == sorted(xs)
    assert xs[0] == pytest.approx((0.97 + 2 * 0.024) / 3)  # one of three corpora is learnt; two keep the base's score


def test_the_path_of_each_cycle_is_drawn_as_arrows(overview: Overview) -> None:
    arrows = [note for note in checked(charts.tradeoff(overview)).layout.annotations if note.showarrow]
    assert len(arrows) == 6
    ends = [(note.x, note.y) for note in arrows]
    starts = [(note.ax, note.ay) for note in arrows]
    assert starts[1:] == ends[:-1]
    assert [note.arrowcolor for note in arrows[:2]] == [charts.COLOURS["midtrained"], charts.COLOURS["recovered"]]


def test_all_points_are_about_the_corpora_that_were_kept(overview: Overview) -> None:
    row = overview.cycles[2]
    gone = dataclasses.replace(row, cycle=dataclasses.replace(row.cycle, decision="rolled_back"))
    kept = dataclasses.replace(overview, cycles=(*overview.cycles[:2], gone))
    assert row.recovered is not None and kept.shared_corpora == (1, 2)
    own = row.recovered.scores.domain_knowledge_by_corpus
    expected = (own[1].value + own[2].value) / 2
    figure = checked(charts.tradeoff(kept))
    arrow = [note for note in figure.layout.annotations if note.showarrow][-1]
    assert arrow.x == pytest.approx(expected), "its own corpus counts for no other checkpoint"
    assert figure.layout.xaxis.title.text == "questions answered, all 2 corpora"
    assert traces(charts.tradeoff(kept))["recovered"].x[-1] == pytest.approx(expected)
    assert traces(charts.trajectory(kept))["domain knowledge"].y[-1] == pytest.approx(expected)
    none = [dataclasses.replace(one, cycle=dataclasses.replace(one.cycle, decision="rejected")) for one in kept.cycles]
    assert dataclasses.replace(overview, cycles=tuple(none)).shared_corpora == (1, 2, 3), "there are no others"


def test_points_are_about_the_corpora_that_all_of_them_have(overview: Overview) -> None:
    """Where base was not asked about the newest corpus, a score on that corpus alone stood beside means over all."""
    assert overview.base is not None
    known = {k: v for k, v in overview.base.scores.domain_knowledge_by_corpus.items() if k != 3}
    scores = dataclasses.replace(overview.base.scores, domain_knowledge_by_corpus=known)
    base = dataclasses.replace(overview.base, scores=scores)
    lacking = dataclasses.replace(overview, base=base)
    assert (lacking.shared_corpora, lacking.kept_corpora) == ((1, 2), (1, 2, 3))
    figure = checked(charts.tradeoff(lacking))
    assert figure.layout.xaxis.title.text == "questions answered, 2 of 3 corpora (asked at every point)"
    assert "2 of 3 corpora" in checked(charts.trajectory(lacking)).layout.yaxis.title.text
    for row in overview.cycles:
        assert row.recovered is not None
        own = known | dict(row.recovered.scores.domain_knowledge_by_corpus)
        found = lacking.shared_knowledge(row.recovered)
        assert found is not None and found.value == pytest.approx((own[1].value + own[2].value) / 2)
    never = dataclasses.replace(base, scores=dataclasses.replace(scores, domain_knowledge_by_corpus={}))
    assert dataclasses.replace(overview, base=never).shared_corpora == (1,), "base is no point then"


def test_without_common_corpora_points_are_about_those_up_to_their_cycle(overview: Overview) -> None:
    """As in a study that asks a mid-trained model about its own corpus alone and base about none: none was left."""

    def asked(measured: Measured, *corpora: int) -> Measured:
        score = Score(0.5, 0.01, 100)
        scores = dataclasses.replace(measured.scores, domain_knowledge_by_corpus=dict.fromkeys(corpora, score))
        return dataclasses.replace(measured, scores=scores)

    rows = []
    for number, row in enumerate(overview.cycles, 1):
        assert row.midtrained is not None and row.recovered is not None
        trained, recovered = asked(row.midtrained, number), asked(row.recovered, *range(1, number + 1))
        rows.append(dataclasses.replace(row, midtrained=trained, recovered=recovered))
    assert overview.base is not None
    apart = dataclasses.replace(overview, base=asked(overview.base), cycles=tuple(rows))
    assert apart.shared_corpora == () and apart.kept_corpora == (1, 2, 3)
    known = [[apart.shared_knowledge(step) for step in (row.midtrained, row.recovered) if step] for row in rows]
    assert [[one is not None for one in of] for of in known] == [[True, True], [False, True], [False, True]]
    for chart, axis in ((charts.tradeoff, "xaxis"), (charts.trajectory, "yaxis")):
        assert "the corpora up to each point's cycle" in getattr(checked(chart(apart)).layout, axis).title.text


def test_both_over_time_with_shaded_phases(overview: Overview) -> None:
    figure = charts.trajectory(overview)
    found, layout = traces(figure), checked(figure).layout
    assert list(found["instruction following"].x) == list(range(7)) == list(found["domain knowledge"].x)
    assert [shape.fillcolor for shape in layout.shapes] == [
        charts.COLOURS["midtrained"],
        charts.COLOURS["recovered"],
    ] * 3
    assert list(layout.xaxis.ticktext) == ["base", "", "cycle 1", "", "cycle 2", "", "cycle 3"]
    assert found["instruction following"].line.dash != found["domain knowledge"].line.dash


def test_an_experiment_without_scores_still_has_figures() -> None:
    empty = Overview(Experiment(1, "x", "", {}, 0.0), None, (), None, None)
    for draw in (charts.tradeoff, charts.trajectory):
        checked(draw(empty))


def test_a_curve_shows_its_gaps_and_its_range() -> None:
    points = [Point(1, 0.5, 0.5, 0.5, 0.0), Point(2, None, None, None, 0.0), Point(9, 0.3, 0.1, 0.8, 0.0)]
    figure = checked(charts.curve({"reverse_kl": points}, {}, total=10, log=True))
    band, line = figure.data
    assert list(band.y) == [0.5, 0.8, 0.1, 0.5]
    assert list(line.y) == [0.5, None, 0.3]
    assert figure.layout.yaxis.type == "log"
    assert tuple(figure.layout.xaxis.range) == (0, 10)


def test_a_logarithm_is_taken_of_positive_values_only() -> None:
    points = [Point(1, 0.0, 0.0, 0.0, 0.0), Point(2, 1.0, 1.0, 1.0, 0.0)]
    assert checked(charts.curve({"reverse_kl": points}, {}, log=True)).layout.yaxis.type is None


def test_names_cannot_be_templates() -> None:
    points = [Point(1, 1.0, 1.0, 1.0, 0.0), Point(2, 1.0, 1.0, 1.0, 0.0)]
    figure = checked(charts.curve({"<b>%{x}": points}, {}))
    assert "&lt;b>% {x}" in figure.data[0].hovertemplate and figure.data[0].name == "&lt;b>% {x}"
    assert charts.plain("\u202ea") == "\u202ea\u202c"


@pytest.mark.parametrize(("floor", "drawn"), [(0.9, True), (0.0, True), (1.0, True), (-0.1, False), (1.2, False)])
def test_the_gates_region_is_drawn_only_within_0_and_1(overview: Overview, floor: float, drawn: bool) -> None:
    found = [one for one in checked(charts.tradeoff(overview, floor=floor)).layout.shapes if one.type == "rect"]
    assert bool(found) == drawn and all(0 <= one.y0 <= one.y1 <= 1 for one in found)


def test_an_axis_of_shares_ends_at_0_and_1(overview: Overview) -> None:
    for figure in (charts.tradeoff(overview), charts.trajectory(overview), charts.beside([overview])):
        layout = checked(figure).layout
        assert layout.yaxis.range[0] >= 0 and layout.yaxis.range[1] < 1.05
    assert charts._shares([0.0, 0.02]) == [0.0, pytest.approx(0.12)] and charts._shares([]) == [0.0, 1.0]


def test_labels_of_points_in_one_place_do_not_overprint(overview: Overview) -> None:
    """Five points in one place have four sides: labels that have no room are left to the hover."""
    (row, *_), base = overview.cycles, overview.base
    assert base is not None and row.recovered is not None
    for steps in ([row.recovered] * 12, list(overview.path)):
        labels = charts._labels(overview, steps)
        shown = [place for text, place in labels if text]
        assert shown and len(labels) == len(steps)
    assert len(shown) == len(overview.path), "each has room here"
    crowded = [place for text, place in charts._labels(overview, [row.recovered] * 12) if text]
    assert len(crowded) == len(set(crowded)) < 12
