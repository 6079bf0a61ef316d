"""The gate on what is served: it ships as accepted or what it lost is said, and the file to serve again is known."""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from dashboard.pages import cycle
from dashboard.tracker_source import Source
from db import queries
from db.artifacts import Artifact, artifacts, in_service
from db.schema import ARTIFACT
from pipelines.cli.main import run
from pipelines.cli.status import _service_lines
from pipelines.evaluation.acceptance import decide_cycle, judge_cycle, last_judgement, rules_of
from pipelines.evaluation.shipping import find_artifact, judge_artifact, put_in_service, to_serve_again
from pipelines.reports.cycle_report import cycle_report
from pipelines.reports.document import to_markdown
from pipelines.reports.gate_report import shipping_lines
from pipelines.runtime.registry import reading
from pipelines.runtime.session import Session
from recovery.errors import UsageError
from recovery.types import Item
from tests.recorded_stages import made
from tests.served import of_folder

ITEMS = 200


def checkpoint(session: Session, cycle: int, parent: int | None) -> int:
    """A recovered checkpoint of a cycle, of which only the tracker knows."""
    number = made(session, cycle, parent=parent)
    session.tracker.set_latest(session.experiment_id, number)
    return number


def artifact(session: Session, name: str, parent: int) -> int:
    """An artifact of a checkpoint."""
    about = {"file": f"/srv/{name}.gguf", "sha256": name * 16, "runtime": "llama.cpp", "quantisation": "q4_k_m"}
    return session.tracker.add_checkpoint(
        session.experiment_id,
        f"artifact/{name}@llama.cpp",
        ARTIFACT,
        path=f"/srv/{name}.gguf",
        content_hash=name,
        parent_id=parent,
        details={ARTIFACT: about},
    )


def measure(session: Session, key: int, wrong: Collection[int] = ()) -> None:
    """Record answers to questions and instructions, some of them wrong."""

    def items(what: str, verdict: str) -> list[Item]:
        right = [n not in wrong for n in range(ITEMS)]
        return [
            Item(f"{what}-{n}", f"{what} {n}?", f"said {one}", float(one), {verdict: one})
            for n, one in enumerate(right)
        ]

    score: dict[str, Any] = {"value": 1 - len(wrong) / ITEMS, "stderr": 0.01, "n": ITEMS, "name": "score"}
    add = session.tracker.add_evaluation
    add(key, "domain_knowledge", corpus=1, items=items("fact", "correct"), **score)
    add(key, "instruction_following", corpus=None, items=items("prompt", "no_comma"), **score)


@pytest.fixture
def pair(session: Session) -> tuple[int, Artifact]:
    """A cycle's checkpoint, measured, and a file that was made from it."""
    source = checkpoint(session, 1, session.base.id)
    measure(session, source)
    artifact(session, "one", source)
    return source, find_artifact(session, "one")


RULES = ("instruction_following >= source - 3", "domain >= source - 3")


def test_a_file_as_good_as_its_source_ships_as_accepted(session: Session, pair: tuple[int, Artifact]) -> None:
    measure(session, pair[1].checkpoint.id)
    shipping = judge_artifact(session, pair[1], RULES, 1, alpha=0.05)
    assert shipping.verdict == "ships as accepted" and not shipping.lost
    lines = shipping_lines(shipping)
    assert lines[0] == "artifact/one@llama.cpp (q4_k_m, llama.cpp), made from cycle-1/recovered"
    assert any(line.startswith("points    domain_knowledge/1: +0.0 (") for line in lines)
    assert any(line.startswith("K: not measured") for line in lines)
    (recorded,) = artifacts(session.tracker.database, session.experiment_id, 1)
    assert recorded.judgement is not None and recorded.judgement.data["decision"] == "accept"
    assert last_judgement(session, session.cycle_id(1)) is None, "the cycle itself was not judged"


def test_what_a_file_lost_is_listed(session: Session, pair: tuple[int, Artifact]) -> None:
    measure(session, pair[1].checkpoint.id, wrong=range(40))
    shipping = judge_artifact(session, pair[1], RULES, None, alpha=0.05)
    assert shipping.decision.decision == "reject" and shipping.verdict.startswith("does not ship: broken: ")
    text = "\n".join(shipping_lines(shipping))
    assert (
        "questions lost, domain_knowledge/1: 40\n  fact 0?\n  fact 1?\n" in text
        and "\n  and 35 more (--json)\n" in text
    )
    assert "prompts that lost an instruction, instruction_following: 40\n  prompt 0? [no_comma]\n" in text
    assert "points    domain_knowledge/1: -20.0 (" in text and "40 lost, 0 won, p = " in text
    (compared, _) = shipping.compared
    assert compared["n"] == ITEMS and compared["p_value"] < 1e-9
    (recorded,) = artifacts(session.tracker.database, session.experiment_id, 1)
    assert recorded.lost_count == 80 and len(recorded.lost) == 50, "all are counted, a part of them is kept"


def test_rules_about_a_source_are_of_artifacts(session: Session, pair: tuple[int, Artifact]) -> None:
    undecided = judge_artifact(session, pair[1], (), 1, alpha=0.05)
    assert undecided.decision.decision == "undecided" and undecided.decision.missing, "it was not measured"
    with pytest.raises(UsageError, match="there is no cycle 2"):
        judge_artifact(session, pair[1], RULES, 2, alpha=0.05)
    with pytest.raises(UsageError, match="source is what an artifact was made from: recover gate --artifact"):
        judge_cycle(session, rules_of(RULES, session), 1)
    with pytest.raises(UsageError, match="no artifact 'two': there are artifact/one@llama.cpp"):
        find_artifact(session, "two")
    artifact(session, "clean", session.base.id or 0)
    with pytest.raises(UsageError, match="was made from base, which no cycle ended with"):
        judge_artifact(session, find_artifact(session, "clean"), (), None, alpha=0.05)


def test_a_rollback_names_the_file_to_serve_again(session: Session, pair: tuple[int, Artifact]) -> None:
    database, experiment = session.tracker.database, session.experiment_id
    assert in_service(database, experiment) == (None, None)
    assert put_in_service(session, pair[1], who="Ada", why="it ships") is None
    source = checkpoint(session, 2, pair[0])
    artifact(session, "two", source)
    before = put_in_service(session, find_artifact(session, "two"), who="Ada", why="newer")
    assert before is not None and before.checkpoint.name == "artifact/one@llama.cpp"
    now, earlier = in_service(database, experiment)
    assert now is not None and earlier is not None and now.checkpoint.name == "artifact/two@llama.cpp"
    decide_cycle(session, 2, "rolled_back", who="Ada", why="wrong documents")
    again, none = in_service(database, experiment)
    assert none is None
    assert to_serve_again(now, again) == (
        "artifact/two@llama.cpp is no longer in service: serve /srv/one.gguf (sha256 oneoneoneoneoneo) again "
        "(artifact/one@llama.cpp)"
    )
    decide_cycle(session, 1, "rolled_back", who="Ada", why="those too")
    assert to_serve_again(again, in_service(database, experiment)[0]).endswith(
        "was before it: serve the clean model again"
    )
    with pytest.raises(UsageError, match="is of cycle 1, which was rolled back: accept the cycle first"):
        put_in_service(session, pair[1], who="Ada", why="it ships")
    decide_cycle(session, 1, "accepted", who="Ada", why="after all")
    assert in_service(database, experiment)[0] == again
    assert to_serve_again(None, again).startswith("in service again: /srv/one.gguf (sha256")
    with reading(session.workspace) as registry:
        assert _service_lines(registry) == [
            "in service: /srv/one.gguf (sha256 oneoneoneoneoneo) (artifact/one@llama.cpp)"
        ]


def test_report_and_page_show_what_is_served(session: Session, pair: tuple[int, Artifact]) -> None:
    measure(session, pair[1].checkpoint.id, wrong=range(40))
    judge_artifact(session, pair[1], RULES, None, alpha=0.05)
    put_in_service(session, pair[1], who="Ada", why="even so")
    report = to_markdown(cycle_report(session, 1)[1])
    assert "## Files and servers" in report and "### Lost by artifact/one@llama.cpp" in report
    found = queries.overview(session.tracker.database, session.experiment_id)
    page = cycle.cards(Source(session.workspace.database), found, found.cycles[0])
    card = page[page.index("Files and servers") :]
    assert "one@llama.cpp" in card and "does not ship" in card and ">in service<" in card and "fact 0?" in card


def test_the_scale_of_one_tensor_broken_in_what_is_served_is_caught(
    small_workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One matrix of four layers is 16 times too large, as if the upper four bits of its scales had been read."""
    shutil.copytree(small_workspace, tmp_path / "recovery-workspace")
    monkeypatch.chdir(tmp_path)
    limit = ("--limit", "20")
    assert run(["export", "latest", "sound"]) == 0 == run(["eval", "latest", *limit])
    shutil.copytree("sound", "broken")
    weights = load_file("sound/model.safetensors")
    weights["model.layers.1.mlp.down_proj.weight"] *= 16
    save_file(weights, "broken/model.safetensors", metadata={"format": "pt"})
    found: dict[str, Any] = {}
    for name, status in (("sound", 4), ("broken", 3)):
        with of_folder(Path(name)) as address:
            served = ["eval", "latest", "--served", address, *limit]
            if name == "broken":
                assert run(served) == 1
                assert "model.layers.1.mlp.down_proj.weight is 16 times its source's" in capsys.readouterr().err
                served.append("--despite-differences")
            assert run(served) == 0
        differs = [line for line in capsys.readouterr().err.splitlines() if line.startswith("differs: ")]
        assert len(differs) == (name == "broken"), "template and tokens are whole"
        assert run(["gate", "1", "--artifact", name]) == status
        said = capsys.readouterr().out
        assert run(["gate", "1", "--artifact", name, "--json"]) == status
        found[name] = json.loads(capsys.readouterr().out) | {"said": said}
    sound, broken = found["sound"], found["broken"]
    assert sound["lost_counts"] == {} and "@transformers: undecided: " in sound["said"]
    assert [one["verdict"] for one in broken["verdicts"]] == ["fail", "undecided", "fail"], "there is one question"
    assert "@transformers: does not ship: broken: instructions >= source - 3; general >= source - 3" in broken["said"]
    assert (
        "questions lost, general: " in broken["said"]
        and "prompts that lost an instruction, instruction_following: " in broken["said"]
    )
    assert all(count > 10 for count in broken["lost_counts"].values())
