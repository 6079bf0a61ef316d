"""The table of figures: its values from a status, and its verdicts."""

from __future__ import annotations

from typing import Any

from pipelines.experiments.results_table import FIGURES, Line, Run, Variant, markdown


def entry(value: float, n: int = 1000) -> dict[str, Any]:
    return {"value": value, "stderr": 0.01, "n": n}


def scores(following: float, asked: dict[int, float], stored: dict[int, float]) -> dict[str, Any]:
    last = max(asked)
    return {
        "instruction_following": entry(following),
        "domain_knowledge": entry(asked[last]),
        "domain_knowledge_stored": entry(stored[last]),
        "domain_knowledge_by_corpus": {str(k): entry(v) for k, v in asked.items()},
        "domain_knowledge_stored_by_corpus": {str(k): entry(v) for k, v in stored.items()},
    }


def status(drop: float = 0.7, last_asked: float = 0.93) -> dict[str, Any]:
    cycles = []
    for k in (1, 2, 3):
        asked = dict.fromkeys(range(1, k + 1), 0.95)
        if k == 3:
            asked[1] = last_asked
        stored = dict.fromkeys(range(1, k + 1), 0.98)
        cycles.append(
            {
                "cycle": k,
                "midtrained": scores(0.96 * drop, asked, stored),
                "recovered": scores(0.955, asked, stored),
                "decision": None,
            }
        )
    return {"base": scores(0.96, {1: 0.01, 2: 0.02, 3: 0.0}, {1: 0.1, 2: 0.1, 3: 0.1}), "cycles": cycles}


def lines(*statuses: dict[str, Any]) -> list[Line]:
    return Variant("v", [Run(seed, found, 60.0) for seed, found in enumerate(statuses)]).lines()


def verdicts(*statuses: dict[str, Any]) -> dict[str, str]:
    return {line.figure.name: str(line.seeds) for line in lines(*statuses)}


def test_everything_reached_reads_goal() -> None:
    found = verdicts(status(), status())
    assert set(found) == {figure.name for figure in FIGURES}
    assert found["after mid-training, relative to base"] == "goal"
    assert found["after recovery, relative to base"] == "goal"
    assert found["knowledge asked as questions, base"] == "must"
    assert found["every earlier corpus after the last cycle, share of what was first learnt"] == "goal"


def test_one_seed_that_misses_is_a_miss() -> None:
    found = verdicts(status(), status(drop=0.9, last_asked=0.5))
    assert found["after mid-training, relative to base"] == "no"
    assert found["every earlier corpus after the last cycle, share of what was first learnt"] == "no"


def test_the_means_are_judged_beside_the_seeds() -> None:
    drop = "after mid-training, relative to base"
    (line,) = [line for line in lines(status(drop=0.6), status(drop=0.9)) if line.figure.name == drop]
    assert (str(line.means), str(line.seeds)) == ("goal", "no"), "a mean of 0.75, and one seed at 0.90"
    (line,) = [line for line in lines(status(drop=0.9), status(drop=0.9)) if line.figure.name == drop]
    assert (str(line.means), str(line.seeds)) == ("no", "no")


def test_the_drop_must_show_in_two_of_three_cycles_and_the_goal_in_each() -> None:
    mixed = status()
    mixed["cycles"][0]["midtrained"]["instruction_following"] = entry(0.96 * 0.95)
    assert verdicts(mixed)["after mid-training, relative to base"] == "must"


def test_the_page_says_how_it_was_made_and_shows_mean_and_spread() -> None:
    one, two = status(), status(drop=0.6)
    page = markdown(
        [Variant("a", [Run(0, one, 60), Run(1, two, 120)]), Variant("b", [Run(0, one, 60)])], "recover demo"
    )
    assert "Made by `recover demo`" in page
    assert "0.650 ± 0.071, 0.650 ± 0.071, 0.650 ± 0.071" in page
    assert "at least 1,000 items" in page
    assert "Seeds 0, 1" in page
    assert "torch" in page
    assert "nan" not in page


def test_what_was_not_measured_is_said() -> None:
    bare = status()
    for row in bare["cycles"]:
        row["recovered"] = None
    assert verdicts(bare)["after recovery, relative to base"] == ""
