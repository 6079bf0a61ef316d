"""Evidence bundles: what is written can be computed again anywhere, and whatever was changed is refused in one line."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import warnings
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from sqlalchemy import update

from db import queries
from db.schema import Sample
from evals.acceptance import judge_all
from evals.acceptance_rules import parse_rule
from evals.measurement import Evidence, Measurement
from evals.statistics import score_of
from pipelines.evaluation.acceptance import GATE, enter, judge_cycle
from pipelines.reports.bundle import MANIFEST, MOST_BYTES, checks, pack, sha256, verify
from pipelines.reports.evidence import evidence_bundle
from pipelines.reports.gate_report import to_junit, to_summary
from pipelines.runtime.progress import Display
from pipelines.runtime.session import Session
from recovery.errors import UsageError
from tests.recorded_stages import made

ROOT = Path(__file__).resolve().parents[2]
RULES = ("ifeval >= 0.9*base", "domain >= 0.9*midtrained", "stored(1) >= 0.5*first", "retention(mmlu) >= 0.5*base")
UNDECIDED = ("behaviour(haiku) >= 0.9*base",)  # not measured
Edit = Callable[[dict[str, Any]], None]


def evaluate(session: Session, checkpoint: int, share: float) -> None:
    """Record items of every suite of the rules; about ``share`` of them are right."""
    suites = (("instruction_following", None), ("domain_knowledge", 1), ("domain_knowledge_stored", 1))
    for suite, corpus in (*suites, ("mmlu_law", None), ("mmlu_ferries", None)):
        right = [float((7 * n) % 10 < 10 * share) for n in range(60)]
        items: list[dict[str, Any]] = [
            {
                "id": f"p{n}",
                "prompt": f"Who keeps ferry {n} — Anna?\n\nassistant: {checkpoint}\n\nuser: Sure?",
                "response": f"<b>No</b> {n} ⛴",
                "score": score,
                "verdicts": {"correct": bool(score)},
                "group": f"ferry {n // 2}" if corpus else "",
            }
            for n, score in enumerate(right)
        ]
        control = items[0] | {"id": "control", "score": 0.0, "extra": {"headline": False}}
        score = score_of(right, [item["group"] for item in items])
        session.tracker.add_evaluation(
            checkpoint, suite, corpus=corpus, value=score.value, stderr=score.stderr, n=score.n, items=[*items, control]
        )


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Iterator[Session]:
    """A workspace with one cycle, accepted by the gate."""
    folder = tmp_path_factory.mktemp("evidence") / "workspace"
    with Session.open(folder, model=str(tiny_model), display=Display(quiet=True)) as session:
        details = {"probes_hash": "d" * 64}
        session.tracker.cycle(session.experiment_id, 1, documents="./q1", corpus_hash="c" * 64, details=details)
        parent = session.base.id
        evaluate(session, parent, 0.8)
        for kind, share in (("midtrained", 0.7), ("recovered", 0.9)):
            parent = made(session, 1, kind, parent=parent)
            evaluate(session, parent, share)
        decision = judge_cycle(session, list(map(parse_rule, RULES)), 1)
        assert decision.decision == "accept", decision.reason
        enter(session, 1, decision)
        yield session


@pytest.fixture(scope="module")
def bundle(judged: Session) -> bytes:
    return evidence_bundle(judged, 1)


def edited(data: bytes, edit: Edit) -> bytes:
    """Return a bundle whose contents were changed and whose hashes were computed anew."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        read = {name: archive.read(name).decode() for name in archive.namelist() if name != MANIFEST}
    contents: dict[str, Any] = {
        name: [json.loads(line) for line in text.splitlines()] if name.endswith("l") else json.loads(text)
        for name, text in read.items()
    }
    edit(contents)
    items = {int(Path(name).stem): contents.pop(name) for name in list(contents) if name.endswith("l")}
    return pack(contents, items)


def zipped(entries: list[tuple[str, bytes]], compression: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with warnings.catch_warnings(action="ignore"), zipfile.ZipFile(buffer, "w", compression) as archive:
        for name, content in entries:
            archive.writestr(name, content)
    return buffer.getvalue()


def manifest(**more: Any) -> bytes:
    return json.dumps({"format": "recovery-evidence", "version": 1, "recovery": "0.1.0", "files": {}} | more).encode()


def refusal(data: bytes, tmp_path: Path) -> str:
    """Return the one line that a bundle is refused with."""
    path = tmp_path / "bundle.zip"
    path.write_bytes(data)
    with pytest.raises(UsageError) as caught:
        list(verify(path))
    line = str(caught.value)
    assert line.startswith(f"{path}: ") and line.isprintable() and len(line) < 1000
    return line.removeprefix(f"{path}: ")


def test_a_bundle_is_verified_without_torch_and_without_a_workspace(bundle: bytes, tmp_path: Path) -> None:
    (tmp_path / "evidence.zip").write_bytes(bundle)
    code = """
import sys
class NoTorch:
    def find_spec(self, name, path=None, target=None):
        assert name not in ("torch", "transformers"), name
sys.meta_path.insert(0, NoTorch())
from recovery.__main__ import main
sys.argv = ["recover", "report", "--verify", "evidence.zip"]
sys.exit(main())
"""
    finished = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True,
        timeout=600, check=False,
    )  # fmt: skip
    assert (finished.returncode, finished.stderr) == (0, "")
    lines = finished.stdout.splitlines()
    assert all(line.startswith("ok  ") for line in lines) and sha256(bundle) in lines[0]
    assert "figures: 9 scores computed from 540 items" in finished.stdout
    assert [line for line in lines if "rule: " in line] == [f"ok  rule: {rule}: pass" for rule in RULES]
    assert lines[-1] == "ok  decision on cycle 1: accept: all 4 rules hold"
    assert list(tmp_path.iterdir()) == [tmp_path / "evidence.zip"]


def test_the_same_evidence_is_the_same_bytes_and_names_what_it_rests_on(judged: Session, bundle: bytes) -> None:
    assert evidence_bundle(judged, 1) == bundle
    assert b"Anna" not in bundle and "⛴".encode() not in bundle
    with zipfile.ZipFile(io.BytesIO(bundle)) as archive:
        text = archive.read("cycle.json").decode()
        first = json.loads(archive.read("evaluations/1.jsonl").splitlines()[0])
    about = json.loads(text)
    assert str(judged.workspace.folder.parent) not in text, "it names files, and no folder of its machine"
    assert about["base_model"] == Path(judged.workspace.settings()["model"]).name
    assert {one["hash"] for one in about["checkpoints"].values()} == {judged.base.hash, "1m" * 32, "1r" * 32}
    assert about["corpora"] == {"1": {"documents_hash": "c" * 64, "probes_hash": "d" * 64}}
    assert [(one["decision"], one["who"]) for one in about["decisions"]] == [("accepted", "gate")]
    assert (first["item"], first["score"], first["response_sha256"]) == ("p0", 1.0, sha256("<b>No</b> 0 ⛴"))


def test_texts_are_in_a_bundle_on_request_and_match_their_hashes(judged: Session, tmp_path: Path) -> None:
    data = evidence_bundle(judged, 1, responses=True)
    assert b"Anna" in data and list(checks(data))

    def other(contents: dict[str, Any]) -> None:
        contents["evaluations/1.jsonl"][3]["response"] = "Yes"

    assert refusal(edited(data, other), tmp_path).startswith("the response of item 'p3' does not have the SHA-256")


def test_every_changed_byte_and_every_cut_is_refused(bundle: bytes, tmp_path: Path) -> None:
    directory = bundle.rindex(b"PK\x01\x02", 0, -600)
    positions = [*range(80), *range(80, directory, len(bundle) // 300), *range(directory, len(bundle), 3)]
    for position in positions:
        changed = bytearray(bundle)
        changed[position] ^= 1 << position % 8
        with pytest.raises(UsageError):
            list(checks(bytes(changed)))
    for length in range(0, len(bundle), len(bundle) // 20):
        refusal(bundle[:length], tmp_path)
    assert "bytes added" in refusal(b"#!" + bundle, tmp_path)


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda c: c["evaluations/1.jsonl"][3].update(score=0.5), "the score of 'instruction_following' of 'base'"),
        (lambda c: c["evaluations/1.jsonl"].append(c["evaluations/1.jsonl"][0]), "two items share the id"),
        (lambda c: c["judgement.json"]["decision"]["verdicts"][0].update(verdict="fail"), "'fail' in the bundle"),
        (lambda c: c["judgement.json"]["decision"].update(alpha=0.01), "the verdict on 'ifeval >= 0.9*base', alpha"),
        (lambda c: c["judgement.json"]["decision"].update(decision="reject"), "the decision, decision: 'reject' in"),
        (lambda c: c["judgement.json"]["decision"]["verdicts"].pop(), "the decision"),
        (lambda c: c["judgement.json"]["decision"]["verdicts"][1].update(rule="ifeval > 1"), "gate rule 'ifeval > 1'"),
        (lambda c: c["judgement.json"].update(evaluations=[]), "of another form (AttributeError"),
        (lambda c: c.pop("evaluations/1.jsonl"), "'evaluations/1.jsonl'"),
        (lambda c: c.update({"evaluations.json": 7}), "of another form"),
        (lambda c: c["evaluations.json"]["1"]["score"].update({"\x1b[31m": 1}), "unexpected keyword argument"),
    ],
)  # fmt: skip
def test_changed_contents_with_new_hashes_do_not_give_the_stored_verdicts(
    bundle: bytes, edit: Edit, words: str, tmp_path: Path
) -> None:
    assert words in refusal(edited(bundle, edit), tmp_path)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "File is not a zip file"),
        (zipped([("manifest.json", manifest(version=2))]), "a bundle of version 2, and this Recovery"),
        (zipped([("manifest.json", manifest(format="other"))]), "a bundle of version 1"),
        (zipped([("report.json", b"{}")]), "no item named 'manifest.json'"),
        (zipped([("manifest.json", b"[" * 100_000)]), "RecursionError"),
        (zipped([("manifest.json", manifest(version=float("nan")))]), "NaN is no number"),
        (zipped([("manifest.json", manifest()), ("../../etc/passwd", b"")]), "'../../etc/passwd'"),
        (zipped([("manifest.json", manifest()), ("/tmp/x.json", b"")]), "'/tmp/x.json'"),
        (zipped([("manifest.json", manifest(files={"cycle.json": "0"}))]), "'cycle.json'"),
        (zipped([("manifest.json", manifest(files={"a.json": "0"})), ("a.json", b"{}")]), "a.json has the SHA-256"),
        (zipped([("manifest.json", manifest())] + [("a.json", b"")] * 2), "'a.json'"),
        (zipped([("manifest.json", manifest()), ("a.json", b" " * 10**7)], zipfile.ZIP_DEFLATED), "not unpacked"),
        (zipped([("manifest.json", manifest())] + [(f"a/{n}.json", b"") for n in range(10_001)]), "not unpacked"),
    ],
)  # fmt: skip
def test_files_that_no_bundle_has_are_refused(data: bytes, words: str, tmp_path: Path) -> None:
    assert words in refusal(data, tmp_path)


def test_a_file_too_large_for_a_bundle_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "large.zip"
    with path.open("wb") as stream:
        stream.truncate(MOST_BYTES + 1)
    with pytest.raises(UsageError, match="larger than 268,435,456 bytes"):
        list(verify(path))


def test_a_judgement_is_needed_and_its_items_must_still_be_those_that_were_judged(judged: Session) -> None:
    with pytest.raises(UsageError, match="there is no cycle 7: the only cycle is 1"):
        evidence_bundle(judged, 7)
    judged.tracker.cycle(judged.experiment_id, 2)
    with pytest.raises(UsageError, match="cycle 2 has no judgement .* run `recover gate 2` first"):
        evidence_bundle(judged, 2)
    with judged.tracker.database.writing() as connection:
        connection.execute(update(Sample).where(Sample.item == "p1").values(score=0.25))
    with pytest.raises(UsageError, match="do not give the recorded judgement .* in the bundle, .* computed from its"):
        evidence_bundle(judged, 1)


def test_an_undecided_judgement_is_evidence_too(judged: Session) -> None:
    """After the test above: the items changed, and the gate judges them anew."""
    for checkpoint in (one.id for one in judged.registry.all() if one.id is not None):
        judged.tracker.add_evaluation(checkpoint, "general", value=0.9, stderr=0.03, n=100)  # a score without items
    decision = judge_cycle(judged, list(map(parse_rule, (*RULES, "general >= 0.5*base", *UNDECIDED))), 1)
    lines = list(checks(evidence_bundle(judged, 1)))
    assert lines[2] == "figures: 9 scores computed from 540 items; 2 stored without items"
    assert decision.decision == "undecided" and lines[-2] == f"rule: {UNDECIDED[0]}: undecided"


def test_the_same_judgement_is_recorded_once(judged: Session) -> None:
    """As when a cycle is killed after it, and resumed; of other rules it is another one."""

    def recorded(*rules: str) -> int:
        judge_cycle(judged, list(map(parse_rule, rules)), 1)
        return len(queries.events(judged.tracker.database, judged.experiment_id, kind=GATE, limit=1000))

    first = recorded(*RULES)
    assert recorded(*RULES) == first
    assert recorded(RULES[0]) == first + 1
    assert recorded(*RULES) == first + 2


def test_junit_and_markdown_escape_and_count() -> None:
    items = {f"p{n}": float(n % 2) for n in range(40)}
    evidence = Evidence({"student": {"ifeval": Measurement(items)}})
    judged = judge_all([parse_rule(f"ifeval >= {bound}") for bound in (0.1, 0.9, 0.5)], evidence)
    hostile = '<b>&"|*\x1b[31m'
    decision = replace(judged, verdicts=(*judged.verdicts[:2], replace(judged.verdicts[2], rule=hostile)))
    suites = ElementTree.fromstring(to_junit(decision, 3))
    assert (suites.get("tests"), suites.get("failures"), suites.get("errors")) == ("3", "1", "1")
    cases = suites.findall("testsuite/testcase")
    names = ["ifeval >= 0.1", "ifeval >= 0.9", hostile.replace("\x1b", "\N{REPLACEMENT CHARACTER}")]
    assert [case.get("name") for case in cases] == names
    assert [[child.tag for child in case] for case in cases] == [["system-out"], ["failure"], ["error"]]
    failure = cases[1].find("failure")
    assert failure is not None and failure.get("message") == decision.verdicts[1].reason
    summary = to_summary(decision, 3)
    assert summary.startswith("## Cycle 3: reject\n") and "<b>" not in summary and r"\<b\>\&" in summary
    assert r"| ifeval \>= 0.1 | pass | ifeval | 50.0 (" in summary
