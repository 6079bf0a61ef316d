"""Tokens, Geometry and Compare pages: selection by address, and notices for every state."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import urlencode

import pytest
from starlette.datastructures import QueryParams

from dashboard.charts import Figure
from dashboard.pages import common, compare, geometry, tokens
from dashboard.tracker_source import Source
from db import Tracker, queries
from tests.dashboard.conftest import Request, checked
from tests.dashboard.test_markup import HOSTILE, Reader


def show_tokens(source: Source, request: Any) -> list[Any]:
    """Return the outputs of the Tokens page."""
    return common.text_outputs(tokens.NAME, source, tokens.text, request)


SHOWN = {"tokens": show_tokens, "geometry": geometry._show, "compare": compare._show}


def asked(address: str = "") -> Any:
    """Return a request for an address, as the browser would send it."""
    return Request(QueryParams(address.partition("?")[2]))  # type: ignore[arg-type]


def text(outputs: list[Any]) -> str:
    """Return all HTML of a page except its header."""
    return "".join(output for output in outputs[1:] if isinstance(output, str))


def figures(outputs: list[Any]) -> list[Any]:
    return [checked(output) for output in outputs if isinstance(output, Figure)]


def links(html: str, page: str) -> list[str]:
    """Return the addresses of a page's links."""
    return [unescape(found) for found in re.findall(rf'href="({page}\?[^"]*)"', html)]


def marked(html: str) -> str:
    """Return the id of the element that describes the selected token."""
    found = re.search(r'aria-describedby="(token-\d+)" aria-current="true"', html)
    assert found is not None
    return found.group(1)


# --- every page ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("show", SHOWN.values(), ids=SHOWN)
def test_states_that_say_what_to_do(show: Any, address: Path | str, source: Source) -> None:
    assert "recover demo" in text(show(source, asked()))  # no database yet
    with Tracker(address) as tracker:
        assert "No experiment here yet" in text(show(source, asked()))
        tracker.experiment("mine")
        html = text(show(source, asked()))
        assert 'class="notice' in html and "<code>recover " in html
    if isinstance(address, Path):
        address.write_text("not a database " * 100)
    else:
        with tracker.database.writing() as connection:
            connection.exec_driver_sql("DROP TABLE experiment CASCADE")
    assert "cannot be read" in text(show(source, asked()))


@pytest.mark.parametrize("show", SHOWN.values(), ids=SHOWN)
def test_hostile_text_stays_text(show: Any, tracker: Tracker, seeding: ModuleType, source: Source) -> None:
    experiment = tracker.experiment(HOSTILE)
    ids = [
        seeding.add_distillation(tracker, experiment, HOSTILE + name, method=HOSTILE, spoil=HOSTILE) for name in "ab"
    ]
    everything = {"experiment": HOSTILE, "search": HOSTILE, "metric": HOSTILE, "scale": HOSTILE, "item": HOSTILE}
    for more in ([("stage", ids[0]), ("stage", ids[1])], [("stage", ids[0]), ("step", 1)]):
        given = everything if "step" not in dict(more) else {"experiment": HOSTILE}
        outputs = show(source, asked("?" + urlencode([*given.items(), *more])))
        html = "".join(output for output in outputs if isinstance(output, str))
        found = Reader(html)
        assert not found.tags & {"script", "img"}
        assert not {name for name in found.attributes if name.startswith("on")}
        assert "alert(1)" in found.words
        for figure in figures(outputs):
            assert not any("<img" in (trace.hovertemplate or "") + (trace.name or "") for trace in figure.data)


# --- tokens --------------------------------------------------------------------------------------------------


@pytest.fixture
def looked_into(tracker: Tracker, seeding: ModuleType) -> int:
    """A stage with token scores at steps 1, 6 and 12."""
    return int(seeding.add_distillation(tracker, tracker.experiment("mine"), "cycle-1/recovered"))


def test_a_stage_begins_with_its_last_step_and_the_token_furthest_off(
    looked_into: int, tracker: Tracker, source: Source
) -> None:
    html = text(show_tokens(source, asked()))
    rows = queries.token_numbers(tracker.database, looked_into)
    last = next(row for row in rows if (row.step, row.item) == (12, "0, base"))
    assert marked(html) == f"token-{max(range(24), key=lambda at: last.numbers[at] or 0)}"
    means = {step: tokens._mean([row for row in rows if row.step == step]) for step in (1, 12)}
    assert f"{tokens.nats(means[1])} at step 1, {tokens.nats(means[12])} at step 12" in html
    assert "9 responses, 216 tokens" in html


@pytest.mark.differs
def test_the_largest_divergences_of_the_stage_lead_to_their_tokens(
    looked_into: int, tracker: Tracker, source: Source
) -> None:
    html = text(show_tokens(source, asked()))
    table = html.split('class="card furthest"')[1]
    rows = queries.token_numbers(tracker.database, looked_into)
    ranked = sorted((number or 0 for row in rows for number in row.numbers), reverse=True)
    shown = re.findall(r"<b>([\d.]+)</b>", table)
    assert shown == [tokens.nats(value) for value in ranked[: tokens.WORST]]
    for address in links(table, "tokens")[:5]:
        there = text(show_tokens(source, asked(address)))
        about = there.split('class="chosen-token"')[1].split("</section>")[0]
        value = shown[links(table, "tokens").index(address)]
        assert f"<b>{value} nats</b>" in about
        assert there.split('class="card furthest"')[1].count('aria-current="true"') == 1


def test_steps_and_answers_are_links(looked_into: int, source: Source) -> None:
    html = text(show_tokens(source, asked()))
    steps = [address for address in links(html, "tokens") if "item=" not in address]
    assert [re.search(r"step=(\d+)", address).group(1) for address in steps] == ["1", "6", "12"]  # type: ignore[union-attr]
    first = text(show_tokens(source, asked(steps[0])))
    assert "Step 1, 24 tokens" in first and ">first, step 1" in first
    other = next(address for address in links(first, "tokens") if "item=2" in address)
    assert "Response 2, base" in text(show_tokens(source, asked(other)))


def test_a_long_answer_is_stepped_through(tracker: Tracker, seeding: ModuleType, source: Source) -> None:
    seeding.add_distillation(tracker, tracker.experiment("mine"), "long", answers=1, length=650)
    there = text(show_tokens(source, asked("?step=1&item=0, base&token=400")))
    assert marked(there) == "token-399" and "tokens 301 to 600 of 650" in there
    assert there.count('role="tooltip"') == tokens.WINDOW
    ways = dict(re.findall(r'<a rel="(prev|next)" href="([^"]+)"', there))
    assert "tokens 1 to 300" in text(show_tokens(source, asked(unescape(ways["prev"]))))
    assert "tokens 601 to 650" in text(show_tokens(source, asked(unescape(ways["next"]))))


@pytest.mark.parametrize("asking", ["?step=5", "?step=1&item=9, base", "?item=none"])
def test_an_answer_that_was_not_kept_is_said(asking: str, looked_into: int, source: Source) -> None:
    html = text(show_tokens(source, asked(asking)))
    assert "No such response" in html and links(html, "tokens")


def test_other_places_with_token_scores_are_named(looked_into: int, tracker: Tracker, source: Source) -> None:
    tracker.experiment("newer")
    html = text(show_tokens(source, asked()))
    assert "--token-views" in html and f"tokens?experiment=mine&stage={looked_into}" in links(html, "tokens")
    wrong = text(show_tokens(source, asked("?experiment=mine&stage=999")))
    assert "Stage 999" in wrong and "cycle-1/recovered" in wrong


# --- geometry ------------------------------------------------------------------------------------------------


@pytest.fixture
def methods(tracker: Tracker, seeding: ModuleType) -> dict[str, int]:
    """Three methods in one experiment."""
    experiment, names = tracker.experiment("mine"), ("opd", "sft", "grpo")
    return {m: seeding.add_distillation(tracker, experiment, m, method=m, seed=k) for k, m in enumerate(names)}


def test_method_against_method_on_equal_axes(methods: dict[str, int], source: Source) -> None:
    outputs = geometry._show(source, asked(f"?stage={methods['sft']}&stage={methods['opd']}"))
    drawn = figures(outputs)
    assert len(drawn) == 2 + len(geometry.MEASURES) + 1
    assert drawn[0].layout.xaxis.range == drawn[1].layout.yaxis.range
    assert "sft against opd" in text(outputs)
    bias = drawn[3]
    assert [trace.name for trace in bias.data] == ["sft", "sft, random signs", "opd", "opd, random signs"]
    assert [len(trace.y) for trace in bias.data] == [12] * 4


def test_stages_are_added_and_taken_away_by_links(methods: dict[str, int], source: Source) -> None:
    one = text(geometry._show(source, asked(f"?stage={methods['sft']}")))
    more = next(address for address in links(one, "geometry") if address.endswith(f"stage={methods['grpo']}"))
    both = geometry._show(source, asked(more))
    assert len(figures(both)) == 2 + len(geometry.MEASURES) + 1 and "sft against grpo" in text(both)
    fewer = [a for a in links(text(both), "geometry") if a.count("stage=") == 1]
    assert sorted(a.rpartition("=")[2] for a in fewer) == sorted(str(methods[m]) for m in ("sft", "grpo"))
    linear = next(a for a in links(text(both), "geometry") if a.endswith("scale=linear"))
    assert figures(geometry._show(source, asked(linear)))[0].layout.xaxis.range[1] < 2  # linear lengths


def test_a_stage_without_a_sample_has_curves(methods: dict[str, int], tracker: Tracker, source: Source) -> None:
    with tracker.start_stage(tracker.experiment("mine"), "distill", steps_total=5) as stage:
        stage.log(1, {geometry.DENSITY: 0.1})
        stage.finish(details={"geometry": [[1.0, None, 0], "?", [1.0, 2.0]]})
    outputs = geometry._show(source, asked(f"?stage={stage.id}"))
    assert len(figures(outputs)) == 2 and "none stored" in text(outputs)  # its density, and the updates of the others
    assert "There is no stage 999" in text(geometry._show(source, asked("?stage=999")))


def test_stages_without_curves_are_named_with_the_setting(
    methods: dict[str, int], tracker: Tracker, source: Source
) -> None:
    setting = "every --geometry-every steps, with 0 never"
    before = text(geometry._show(source, asked()))
    assert setting in before and "Without any" not in before
    with tracker.start_stage(tracker.experiment("mine"), "distill", config={"geometry_every": 0}) as off:
        off.log(1, {"loss": 1.0})
        off.finish(details={"moved": {"length": 9.0, "relative": 0.4}})
    with tracker.start_stage(tracker.experiment("mine"), "distill", config={"geometry_every": 10}) as early:
        early.finish()
    outputs = geometry._show(source, asked())
    line = f"Without any: Recovery (stage {early.id}), Recovery (stage {off.id}) (--geometry-every 0)."
    assert setting in text(outputs) and line in text(outputs)
    assert sorted(figures(outputs)[-1].data[0].x) == pytest.approx([0.1, 0.2, 0.3, 0.4]), "it moved the weights, too"
    for _ in range(geometry.NAMED):
        with tracker.start_stage(tracker.experiment("mine"), "distill") as stage:
            stage.finish()
    assert " and 2 more." in text(geometry._show(source, asked()))


def test_the_safe_radius_is_that_of_the_runs_that_stayed_stable(
    methods: dict[str, int], tracker: Tracker, source: Source
) -> None:
    with tracker.start_stage(tracker.experiment("mine"), "distill", steps_total=5) as stage:
        stage.log(1, {geometry.DENSITY: 0.1})
        stage.finish("collapse: entropy fell", details={"moved": {"length": 9.0, "relative": 0.9}})
    outputs = geometry._show(source, asked())
    figure = figures(outputs)[-1]
    assert sorted(figure.data[0].x) == pytest.approx([0.1, 0.2, 0.3]) and list(figure.data[1].x) == [0.9]
    assert "stayed stable: 0.3000" in text(outputs)
    assert figure.layout.shapes[0].x0 == pytest.approx(0.3)


def test_the_geometry_of_the_newest_stages_is_shown_first(methods: dict[str, int], source: Source) -> None:
    table = text(geometry._show(source, asked())).split("<tbody>")[1]
    assert re.findall(r"stage=(\d+)", table) == [str(number) for number in methods.values()]


# --- compare -------------------------------------------------------------------------------------------------


def test_stages_of_several_experiments_share_axes(tracker: Tracker, seeding: ModuleType, source: Source) -> None:
    ids = [
        seeding.add_distillation(tracker, tracker.experiment(f"compare/ab12/seed-{k}"), method, method=method, seed=k)
        for k in (0, 1)
        for method in ("opd", "sft")
    ]
    outputs = compare._show(source, asked())
    (figure,) = figures(outputs)
    names = ["seed-0: opd", "seed-0: sft", "seed-1: opd", "seed-1: sft"]
    assert [trace.name for trace in figure.data if trace.name] == names
    points = queries.series(tracker.database, ids[2], ["reverse_kl"])["reverse_kl"]
    assert list(figure.data[2].y) == [point.value for point in points]
    html = text(outputs)
    assert '<option value="compare/ab12" selected>' in html  # seeds form one choice
    assert html.count('type="checkbox"') == 4 == html.count(" checked>")
    chosen = compare._show(source, asked(f"?experiment=compare/ab12&stage={ids[3]}&stage={ids[0]}&metric=entropy"))
    assert [trace.name for trace in figures(chosen)[0].data] == ["seed-1: sft", "seed-0: opd"]
    assert "Student's entropy" in chosen[3] or "entropy" in chosen[3]
    assert text(chosen).count(" checked>") == 2


def test_only_settings_that_differ_are_reported(tracker: Tracker, seeding: ModuleType, source: Source) -> None:
    experiment = tracker.experiment("mine")
    for name, temperature in (("one", 1.0), ("two", 0.7)):
        seeding.add_distillation(tracker, experiment, name, temperature=temperature, batch=64)
    table = compare._show(source, asked())[-1].partition("Settings that differ")[2]
    assert re.findall(r"<code>(\w+)</code>", table) == ["temperature"]
    assert ">0.7<" in table and "5 are the same" in table
    alone = queries.find_stages(tracker.database, limit=1)[0].id
    assert "Settings that differ" not in text(compare._show(source, asked(f"?stage={alone}")))


def test_cost_and_final_scores_stand_beside(tracker: Tracker, seeding: ModuleType, source: Source) -> None:
    seeding.add_distillation(tracker, tracker.experiment("mine"), "one")
    html = text(compare._show(source, asked()))
    assert "<b>90.0%</b> <small>87.9 to 91.8, n = 300</small>" in html
    flops = 2_000_000 * (2 * 8000 + 6 * 3900)
    assert f"{flops:.1e}" in html and "4.0k" in html


def test_a_stage_without_the_curve_is_reported(seeded: Any) -> None:
    source = Source(seeded.address)
    trained = queries.find_stages(source.database(), kinds=("midtrain", "distill"), limit=2)
    chosen = "&".join(f"stage={stage.id}" for stage in trained)
    outputs = compare._show(source, asked(f"?{chosen}&metric=reverse_kl"))
    assert len(figures(outputs)[0].data) == 1 and "1 of 2 stages have this curve" in text(outputs)
    other = compare._show(source, asked(f"?{chosen}&metric=gradient_norm"))
    assert len(figures(other)[0].data) == 2


@pytest.mark.differs
def test_the_list_of_stages_is_searched_and_what_is_chosen_stays(seeded: Any) -> None:
    source = Source(seeded.address)
    first = queries.find_stages(source.database(), kinds=("distill",))[-1]
    html = text(compare._show(source, asked(f"?stage={first.id}&search=midtrained")))
    assert html.count('type="checkbox"') == 3 + 1 and html.count(" checked>") == 1
    none = text(compare._show(source, asked("?search=nowhere")))
    assert "No such stage" in none and "nowhere" in none
    many = "&".join(f"stage={number}" for number in range(1, 90))
    assert text(compare._show(source, asked(f"?{many}"))).count(" checked>") <= compare.CHOSEN


# --- names and addresses -------------------------------------------------------------------------------------


def test_repeated_and_listed_stages_are_read_alike() -> None:
    assert common.asked_stages(asked("?stage=4&stage=9&stage=4"), 6) == [4, 9]
    assert common.asked_stages(asked("?stage=4,9"), 6) == [4, 9]
    assert common.asked_stages(Request({"stage": "4"}), 6) == [4]
    assert common.asked_stages(asked("?stage=x&stage=-1&stage=99999999999999999999&stage="), 6) == []
    assert common.asked_stages(asked("?" + "&".join(f"stage={k}" for k in range(50))), 6) == [0, 1, 2, 3, 4, 5]


def test_labels_tell_stages_apart(tracker: Tracker, seeding: ModuleType) -> None:
    made = [seeding.add_distillation(tracker, tracker.experiment(name), "opd") for name in ("c/a/seed-0", "c/a/seed-1")]
    with tracker.start_stage(tracker.experiment("c/a/seed-1"), "distill") as stage:
        stage.log(1, {"loss": 1.0})
    found = common.by_id(tracker.database, [made[1], stage.id, made[0], 999])
    named = common.named(tracker.database, found)
    assert common.labels(named) == ["seed-1: opd", f"seed-1: Recovery (stage {stage.id})", "seed-0: opd"]
    assert common.labels(named[:1]) == ["opd"]
    assert common.labels([named[0], named[0]]) == [f"opd (stage {made[1]})"] * 2


def test_seeds_of_a_method_share_a_colour_and_methods_of_a_seed_the_dashes(
    tracker: Tracker, seeding: ModuleType
) -> None:
    made = [
        seeding.add_distillation(tracker, tracker.experiment(f"c/seed-{seed}"), method)
        for seed in (0, 1)
        for method in ("opd", "sft")
    ]
    named = common.named(tracker.database, common.by_id(tracker.database, made))
    assert common.looks(named) == [(0, 0), (1, 0), (0, 1), (1, 1)]
    assert common.looks(named[:2]) == [(0, 0), (1, 1)]  # one experiment: both differ
    assert common.looks([named[0], named[3]]) == [(0, 0), (1, 1)]
    assert len(set(common.looks([*named, named[0]]))) == 5
