"""Decisions: rows are only added, and ``latest`` is updated in the same transaction."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from db import DatabaseError, Tracker, decide, queries


@dataclass
class Line:
    """A base and two cycles, each mid-trained and recovered."""

    tracker: Tracker
    experiment: int
    cycles: list[int]

    @property
    def latest(self) -> str:
        """The name of the latest checkpoint."""
        found = queries.latest(self.tracker.database, self.experiment)
        return found.name if found else ""

    def decide(self, number: int, decision: str) -> tuple[str | None, str | None, tuple[int, ...]]:
        """Decide about a cycle by number; return latest before and after, and cycles rolled back with it."""
        found = decide(self.tracker.database, self.cycles[number - 1], decision, who="Ada", why="because")
        return found.before, found.after, found.also


@pytest.fixture
def line(tracker: Tracker, experiment: int) -> Line:
    last = tracker.add_checkpoint(experiment, "base", "base", path="base")
    cycles = []
    for number in (1, 2):
        cycle = tracker.cycle(experiment, number)
        cycles.append(cycle)
        for kind in ("midtrained", "recovered"):
            name = f"cycle-{number}/{kind}"
            last = tracker.add_checkpoint(experiment, name, kind, path=name, parent_id=last, cycle_id=cycle)
            tracker.set_latest(experiment, last)
    return Line(tracker, experiment, cycles)


def test_accepting_what_later_cycles_go_on_from_moves_nothing(line: Line) -> None:
    assert line.decide(1, "accepted") == ("cycle-2/recovered", "cycle-2/recovered", ())
    assert line.decide(2, "accepted") == ("cycle-2/recovered", "cycle-2/recovered", ())


def test_a_decision_says_which_other_one_it_replaces(line: Line) -> None:
    """Of two people who decide about one cycle the second did not learn of the first."""

    def replaced(decision: str, who: str) -> str:
        return decide(line.tracker.database, line.cycles[1], decision, who=who).replaced

    assert replaced("accepted", "Ada") == replaced("accepted", "Ben") == ""
    assert replaced("rejected", "Cid") == "accepted by Ben"
    assert replaced("accepted", "Ada") == "rejected by Cid"
    assert replaced("rolled_back", "Ben") == "accepted by Ada"
    assert replaced("accepted", "Ada") == "rolled back by Ben"


def test_what_is_accepted_is_the_checkpoint_whose_scores_are_shown(line: Line) -> None:
    """That which a kept later cycle started from, else the newest."""

    def shown(number: int) -> str:
        found = queries.overview(line.tracker.database, line.experiment)
        assert found is not None
        end = found.cycles[number - 1].end
        assert end is not None
        return end.checkpoint.name

    known = {one.name: one.id for one in queries.checkpoints(line.tracker.database, line.experiment)}
    again = line.tracker.add_checkpoint(
        line.experiment, "cycle-1/recovered-2", "recovered", path="again", parent_id=known["cycle-1/midtrained"],
        cycle_id=line.cycles[0],
    )  # fmt: skip
    assert shown(1) == "cycle-1/recovered"
    assert line.decide(1, "accepted") == ("cycle-2/recovered", "cycle-2/recovered", ())
    line.decide(2, "rolled_back")
    assert shown(1) == "cycle-1/recovered-2"
    line.tracker.set_latest(line.experiment, known["cycle-1/midtrained"])
    assert line.decide(1, "accepted")[:2] == ("cycle-1/midtrained", "cycle-1/recovered-2")
    assert again not in known.values()


def test_a_cycle_is_not_accepted_while_a_stage_changes_it(line: Line) -> None:
    with line.tracker.start_stage(line.experiment, "distill", cycle_id=line.cycles[1]) as stage:
        with pytest.raises(DatabaseError, match=f"stage {stage.id} .distill. is training and will become the latest"):
            line.decide(2, "accepted")
        assert line.decide(1, "accepted")[:2] == ("cycle-2/recovered", "cycle-2/recovered"), "that cycle is done"
        stage.finish()
    line.decide(2, "accepted")


def test_a_rejected_cycle_is_left_and_can_be_taken_up_again(line: Line) -> None:
    assert line.decide(2, "rejected") == ("cycle-2/recovered", "cycle-1/recovered", ())
    assert line.latest == "cycle-1/recovered"
    assert line.decide(2, "accepted") == ("cycle-1/recovered", "cycle-2/recovered", ())
    assert line.latest == "cycle-2/recovered"
    decisions = queries.decisions(line.tracker.database, line.cycles[1])
    assert [(d.decision, d.who) for d in decisions] == [("accepted", "Ada"), ("rejected", "Ada")]


@pytest.mark.differs
def test_a_cycle_that_others_went_on_from_is_not_rejected_but_rolled_back_with_them(line: Line) -> None:
    with pytest.raises(DatabaseError, match=r"cycle 2 builds on cycle 1: roll it back instead"):
        line.decide(1, "rejected")
    assert queries.decisions(line.tracker.database, line.cycles[0]) == []
    assert line.decide(1, "rolled_back") == ("cycle-2/recovered", "base", (2,))
    assert [c.decision for c in queries.cycles(line.tracker.database, line.experiment)] == ["rolled_back"] * 2
    assert line.latest == "base"
    (second,) = queries.decisions(line.tracker.database, line.cycles[1])
    assert second.why == "went on from cycle 1, which was rolled back: because"


def test_what_is_not_in_the_latest_cannot_be_rolled_back(line: Line) -> None:
    line.decide(2, "rolled_back")
    with pytest.raises(DatabaseError, match=r"cycle 2 is not in the latest checkpoint"):
        line.decide(2, "rolled_back")
    assert line.decide(2, "rejected") == ("cycle-1/recovered", "cycle-1/recovered", ()), "latest does not move"


def test_a_cycle_beside_the_latest_line_is_not_accepted_over_it(line: Line) -> None:
    line.decide(1, "rolled_back")
    third = line.tracker.cycle(line.experiment, 3)
    base = next(c for c in queries.checkpoints(line.tracker.database, line.experiment) if c.kind == "base")
    made = line.tracker.add_checkpoint(
        line.experiment, "cycle-3/midtrained", "midtrained", path="x", parent_id=base.id, cycle_id=third
    )
    line.tracker.set_latest(line.experiment, made)
    with pytest.raises(DatabaseError, match=r"cycle-3/midtrained, the latest, does not build on"):
        line.decide(1, "accepted")


def test_a_cycle_that_builds_on_one_that_was_left_is_not_accepted_before_it(line: Line) -> None:
    line.decide(1, "rolled_back")
    with pytest.raises(DatabaseError, match=r"cycle 2 builds on cycle 1, which was rolled back: accept cycle 1 first"):
        line.decide(2, "accepted")
    assert line.latest == "base"
    assert line.decide(1, "accepted") == ("base", "cycle-1/recovered", ())
    assert line.decide(2, "accepted") == ("cycle-1/recovered", "cycle-2/recovered", ())


def test_a_cycle_without_a_checkpoint_is_not_accepted(line: Line) -> None:
    line.cycles.append(line.tracker.cycle(line.experiment, 3))
    with pytest.raises(DatabaseError, match="cycle 3 has no checkpoint yet: there is nothing to accept"):
        line.decide(3, "accepted")
    assert line.decide(3, "rejected") == ("cycle-2/recovered", "cycle-2/recovered", ())


def test_a_decision_after_one_that_was_not_seen_is_refused(line: Line) -> None:
    database, cycle = line.tracker.database, line.cycles[0]
    first = decide(database, cycle, "accepted", who="Ada", seen=0)
    with pytest.raises(DatabaseError, match="another decision about cycle 1 was recorded meanwhile: reload the page"):
        decide(database, cycle, "rolled_back", who="Bob", seen=0)
    assert decide(database, cycle, "rolled_back", who="Bob", seen=first.id).after == "base"


@pytest.mark.differs
def test_nothing_is_deleted_and_a_refused_decision_leaves_no_trace(line: Line) -> None:
    before = [(c.name, c.path) for c in queries.checkpoints(line.tracker.database, line.experiment)]
    line.decide(1, "rolled_back")
    assert [(c.name, c.path) for c in queries.checkpoints(line.tracker.database, line.experiment)] == before
    with pytest.raises(DatabaseError, match="there is no cycle"):
        decide(line.tracker.database, 99, "accepted", who="Ada")
    with pytest.raises(DatabaseError, match="not a decision: use one of"):
        decide(line.tracker.database, line.cycles[0], "perhaps", who="Ada")
