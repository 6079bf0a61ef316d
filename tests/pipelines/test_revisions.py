"""Documents that a later cycle has in a newer version: what is trained on and asked then."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from db import queries
from db.cycle_evidence import is_compared
from pipelines.data.corpus_reading import gather, questions_of
from pipelines.data.corpus_snapshot import CorpusSnapshot, load_snapshots, save_snapshot
from pipelines.data.revisions import check_withdrawn, revision_lines, up_to_date, withdrawn
from pipelines.distillation.resolve import resolve
from pipelines.evaluation.stage import evaluate
from pipelines.midtraining.material import gather_cycle
from pipelines.midtraining.plan import plan_in_turn
from pipelines.runtime.session import Session
from recovery.config import EvalConfig
from recovery.data.corpus.holdout import PART
from recovery.data.rewritten_texts import RewrittenText
from recovery.errors import UsageError
from recovery.workspace import Workspace
from tests.pipelines.conftest import Bench, MakeCorpus

PAGE = "harbour-0.md"
QUESTION = "How many passengers does the Harbour ferry number 1 carry?"


@pytest.fixture
def releases(make_corpus: MakeCorpus, tmp_path: Path) -> tuple[Path, Path]:
    """Two folders of four pages; in the second ferry 1 of the first page carries more passengers."""
    first = make_corpus("Harbour")
    text = (first / PAGE).read_text()
    line = re.search(r"The Harbour ferry number 1 .*? by (.*?) in the town of .*? carries (\d+) .*", text)
    asked = {QUESTION: line[2], "Who keeps the Harbour ferry number 1?": line[1]}
    records = [{"question": question, "answers": [answer], "source": PAGE} for question, answer in asked.items()]
    (first / "probes.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    second = tmp_path / "second"
    second.mkdir()
    for page in first.glob("*.md"):
        (second / page.name).write_text(page.read_text())
    (second / PAGE).write_text(text.replace(line[0], line[0].replace(f"carries {line[2]}", f"carries {line[2]}5")))
    return first, second


def snapshot(folder: Path, cycle: int) -> CorpusSnapshot:
    return gather(folder, cycle, held_out=0.0, seed=0)


def snapshots(folders: Sequence[Path]) -> dict[int, CorpusSnapshot]:
    """The snapshot of each folder by the number of its cycle."""
    return {number: snapshot(folder, number) for number, folder in enumerate(folders, 1)}


def test_the_older_version_is_left_out_and_what_changed_is_outdated(releases: tuple[Path, Path]) -> None:
    first, second = snapshots(releases).values()
    first = replace(first, texts=(RewrittenText(PAGE, "Old."), RewrittenText("harbour-1.md", "As it was.")))
    left = up_to_date({1: first, 2: second}, (1, 2))
    assert left[2] is second
    assert {d.id for d in first.documents} - {d.id for d in left[1].documents} == {PAGE}
    assert [probe.question for probe in left[1].outdated] == [QUESTION]
    assert [probe.question for probe in left[1].probes] == ["Who keeps the Harbour ferry number 1?"]
    assert first.questions and 0 < len(left[1].questions) < len(first.questions)
    assert [text.text for text in left[1].texts] == ["As it was."]
    (line,) = revision_lines({1: first, 2: second}, left)
    assert (
        line.startswith("1 of the 4 documents of cycle 1 have a newer version")
        and "1 are outdated, and 0 no longer" in line
    )
    for trained in ((1,), (), (3,)):  # a model of another line never read the second
        corpora = {1: first, 2: second}
        assert up_to_date(corpora, trained) == corpora and not revision_lines(corpora, up_to_date(corpora, trained))


def test_if_the_newer_version_comes_with_the_same_question_its_answer_decides(releases: tuple[Path, Path]) -> None:
    """The text need not show it: both answers are in both versions here."""
    asked = {"Where is it cheaper?": ("north", "south"), "Who may enter?": ("everyone", "everyone")}
    for at, folder in enumerate(releases):
        lines = [
            json.dumps({"question": question, "answers": [answers[at]], "source": PAGE, "id": f"{at}-{n}"})
            for n, (question, answers) in enumerate(asked.items())
        ]
        (folder / "probes.jsonl").write_text("\n".join(lines) + "\n")
        with (folder / PAGE).open("a") as file:
            file.write("\nWhere it is cheaper, in the north or in the south, is told there.\n")
    corpora = snapshots(releases)
    left = up_to_date(corpora, (1, 2))[1]
    assert [probe.question for probe in left.outdated] == ["Where is it cheaper?"]
    assert [probe.question for probe in left.probes] == ["Who may enter?"] and not left.gone
    third = replace(corpora[2], cycle=3, probes=())  # the newest version comes with no question
    assert not up_to_date(corpora | {3: third}, (1, 2, 3))[1].outdated


def test_a_page_that_moved_to_another_folder_is_replaced_as_well(releases: tuple[Path, Path]) -> None:
    (releases[1] / "guides").mkdir()
    (releases[1] / PAGE).rename(releases[1] / "guides" / PAGE)
    corpora = snapshots(releases)
    left = up_to_date(corpora, (1, 2))[1]
    assert {d.id for d in corpora[1].documents} - {d.id for d in left.documents} == {PAGE}
    assert [probe.question for probe in left.outdated] == [QUESTION]


def test_a_text_that_came_back_holds_again(releases: tuple[Path, Path]) -> None:
    first, second = snapshots(releases).values()
    third = snapshot(releases[0], 3)
    left = up_to_date({1: first, 2: second, 3: third}, (1, 2, 3))
    assert left[1] is first and left[3] is third
    assert {d.id for d in second.documents} - {d.id for d in left[2].documents} == {PAGE}


def test_a_newer_version_that_is_held_out_replaces_nothing(releases: tuple[Path, Path]) -> None:
    """Nobody was trained on it; a part that is held out is another matter."""
    first, second = snapshots(releases).values()
    page = next(document for document in second.documents if document.id == PAGE)
    others = tuple(document for document in second.documents if document is not page)
    whole = replace(second, documents=others, held_out=(page,))
    assert up_to_date({1: first, 2: whole}, (1, 2))[1] is first
    head, rest = page.text.split("\n\n", 1)
    kept, held = replace(page, text=rest), replace(page, id=f"{page.id}{PART}", text=head)
    part = replace(second, documents=(*others, kept), held_out=(held,))
    assert up_to_date({1: first, 2: part}, (1, 2))[1].outdated


def test_a_withdrawn_document_is_neither_trained_on_nor_asked_about_until_it_comes_back(
    releases: tuple[Path, Path], tmp_path: Path
) -> None:
    folder = tmp_path / "third"
    folder.mkdir()
    (folder / "pier.md").write_text("# Pier\n\nThe pier was opened in 1899 and is 300 metres long.\n")
    first, second = snapshots(releases).values()
    third = gather(folder, 3, held_out=0.0, seed=0, withdrawn=("harbour-1.md",))
    workspace, corpora = Workspace(tmp_path / "w"), {1: first, 2: second, 3: third}
    for corpus in corpora.values():
        save_snapshot(workspace, corpus)
    assert load_snapshots(workspace, (1, 2, 3)) == corpora
    left = up_to_date(corpora, (1, 2, 3))
    for number in (1, 2):
        assert "harbour-1.md" not in {document.id for document in left[number].documents}
        assert 0 < len(left[number].questions) < len(corpora[number].questions)
        assert {probe.source for probe in left[number].gone} == {p.source for p in corpora[number].probes} & {
            "harbour-1.md"
        }
    assert left[3] is third
    lines = revision_lines(corpora, left)
    assert lines[0].startswith(
        "1 of the 4 documents of cycle 1 have a newer version, which counts; 1 of the 4 documents"
    )
    assert lines[1].startswith("1 of the 4 documents of cycle 2 are withdrawn: they are neither rehearsed")
    assert up_to_date(corpora, (1, 2))[2] is second, "by a cycle that the model does not come from"
    again = {**corpora, 4: replace(first, cycle=4)}
    assert up_to_date(again, again)[4] is again[4]
    page = next(document for document in second.documents if document.id == "harbour-1.md")
    rest = tuple(document for document in second.documents if document is not page)
    held = {2: replace(second, documents=rest, held_out=(page,)), 3: third}
    assert not revision_lines(held, up_to_date(held, held)), "nobody was trained on it"
    for name in ("harbour-1.md", "pier.md", "HARBOUR-?.md"):
        check_withdrawn({1: first, 2: second}, replace(third, withdrawn=(name,)))
    check_withdrawn({3: third}, replace(third, documents=(), withdrawn=("harbour-1.md",)))
    for name, words in (("harbour-11.md", "did you mean harbour-1[.]md"), ("dock.md", "no document of an earlier")):
        with pytest.raises(UsageError, match=f"--withdraw {name}: .*{words}"):
            check_withdrawn(corpora, replace(third, withdrawn=(name,)))


@pytest.mark.parametrize(
    ("id", "name", "among"),
    [
        ("a/b/c.md", "a/b/c.md", True),
        ("a/b/c.md", "a/b/", True),
        ("a/b/c.md", "a", True),
        ("a/b/c.md", "a/b/c", False),
        ("a/b/c.md", "b", False),
        ("all.csv#harbour", "all.csv", True),
        ("all.csv#harbour", "all.csv#harbour", True),
        ("notes/Pier 1.md", "notes/pier*", True),
        ("notes/Pier 1.md", "pier*", False),
        ("all.csv#harbour", "all.csv#har", False),
        (f"c.md{PART}", "c.md", True),
    ],
)
def test_a_document_is_withdrawn_by_name_or_folder(
    id: str, name: str, among: bool, releases: tuple[Path, Path]
) -> None:
    corpus = snapshot(releases[0], 1)
    document = replace(corpus.documents[0], id=id)
    later = replace(corpus, cycle=2, withdrawn=(name,))
    assert withdrawn(replace(corpus, documents=(document,)), [later]) == ({id} if among else set())


def test_older_versions_are_kept_on_request_and_in_cycles_that_began_before_there_was_a_choice(
    session: Session, bench: Bench, releases: tuple[Path, Path], tmp_path: Path
) -> None:
    keeping = bench.midtraining(docs=releases[1], held_out=0.0, older_versions="keep")
    corpora = {1: snapshot(releases[0], 1), 2: gather_cycle(session, keeping, 2), 3: gather_cycle(session, keeping, 3)}
    assert up_to_date(corpora, corpora) == corpora and not revision_lines(corpora, up_to_date(corpora, corpora))
    replacing = replace(keeping, older_versions="replace")
    assert up_to_date({1: corpora[1], 2: gather_cycle(session, replacing, 2)}, (1, 2))[1].outdated
    workspace = Workspace(tmp_path / "w")
    for number, replaces in ((1, True), (2, False), (3, True)):
        save_snapshot(workspace, replace(corpora[number], cycle=number, replaces=replaces))
    about = workspace.corpus(3) / "corpus.json"
    about.write_text(json.dumps({k: v for k, v in json.loads(about.read_text()).items() if k != "replaces"}))
    assert [one.replaces for one in load_snapshots(workspace, (1, 2, 3)).values()] == [True, False, False]


@pytest.mark.parametrize("gone", [False, True])
def test_no_training_question_asks_what_a_probe_asks_that_is_outdated_or_whose_statement_is_gone(
    releases: tuple[Path, Path], gone: bool
) -> None:
    """The text may come back, and the probe with it."""
    page = releases[1] / PAGE
    if gone:
        page.write_text(re.sub(r"The Harbour ferry number 1 .*", "There is no ferry of this number.", page.read_text()))
    asked = [QUESTION, "How many ferries are there?"]
    lines = (json.dumps({"question": question, "answer": "12"}) + "\n" for question in asked)
    (releases[1] / "questions.jsonl").write_text("".join(lines))
    left = up_to_date(snapshots(releases), (1, 2))
    assert QUESTION in {probe.question for probe in (left[1].gone if gone else left[1].outdated)}
    assert not gone or not left[1].outdated
    assert [question.text for question in questions_of(left)[2]] == asked[1:]


def test_a_plan_rehearses_no_older_version_and_says_so(
    session: Session, bench: Bench, releases: tuple[Path, Path]
) -> None:
    configs = [bench.midtraining(docs=docs, replay_documents=0.5) for docs in releases]
    (first, _), (second, _) = plan_in_turn(session, configs, 1)
    assert (first.earlier_documents, second.earlier_documents) == (0, 3)
    assert "have a newer version" not in first.text() and "1 of the 4 documents of cycle 1 have" in second.text()


def test_a_checkpoint_that_knows_the_newer_version_is_asked_for_stale_answers(
    session: Session, bench: Bench, prompt_file: Path, releases: tuple[Path, Path]
) -> None:
    made = [bench.midtrain(docs=docs) for docs in releases]
    measure = EvalConfig(prompts=prompt_file, max_new_tokens=8)
    before, after = ({r.suite: r for r in evaluate(session, replace(measure, checkpoint=one.name))} for one in made)
    assert before["domain_knowledge/1"].score.n == 2 and "stale_answers/1" not in before
    assert after["domain_knowledge/1"].score.n == 1 and after["stale_answers/1"].score.n == 1
    stale = next(iter(after["stale_answers/1"].items))
    assert (stale.prompt, stale.score) == (QUESTION, float(stale.verdicts["contains"]))
    scores = queries.scores(session.tracker.database, made[1].id).to_json()
    assert scores["stale_answers/1"]["n"] == 1 and not is_compared("stale_answers/1")
    resolved = resolve(session, bench.distilling(knowledge_teacher="midtrained", knowledge_share=0.5), 2)
    assert len(resolved.corpora[1].documents) == 3
    old = {question.id for question in snapshot(releases[0], 1).questions if f"document:{PAGE}" in question.tags}
    assert old and not old & {question.id for question in resolved.earlier_questions}
