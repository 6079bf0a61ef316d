"""The written questions about two releases of npm's documentation: what changed is asked in both, in the same words."""

from __future__ import annotations

import os
import re
import shutil
import tomllib
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from evals.answer_matching import contains, normalise
from pipelines.data.corpus_snapshot import CorpusSnapshot, gather, questions_of
from pipelines.data.question_splits import Question, load_questions, to_probe, to_prompt, write_corpus_files
from pipelines.data.revisions import up_to_date
from pipelines.experiments.example import read_pages
from recovery.data.document_questions import ProbeGuard

FOLDER = Path(__file__).resolve().parent.parent / "examples" / "npm"
QUESTIONS = load_questions(FOLDER / "questions.jsonl")
CORPORA = read_pages(FOLDER / "corpora.toml")
MOST_QUOTED = 20  # words of a page that a record may quote


def kind(question: Question) -> str:
    """Return what became of the fact: "chg", "same", "one" (of one release alone) or "ctl"."""
    return question.fact.split("-")[0]


def words(text: str) -> str:
    text = re.sub(r"\]\([^)]*\)", "]", text)
    return f" {' '.join(re.findall(r'[a-z0-9]+', text.lower()))} "


def test_both_corpora_have_the_same_pages_of_packages_that_are_there() -> None:
    old, new = CORPORA
    assert (old.pages, old.short) == (new.pages, new.short) and set(old.short) < set(old.pages)
    assert {old.package, new.package} < set(tomllib.loads((FOLDER / "packages.toml").read_text()))
    assert not [q.id for q in QUESTIONS if (q.page in old.pages) == q.control]
    assert {q.page for q in QUESTIONS if not q.control} >= set(old.short)


def test_a_fact_that_changed_has_two_answers_to_the_same_questions_and_no_other_has() -> None:
    asked: defaultdict[str, list[Question]] = defaultdict(list)
    for q in QUESTIONS:
        asked[normalise(q.question)].append(q)
    for found in asked.values():
        assert [q.corpus for q in found] == (["old", "new"] if kind(found[0]) != "one" else [found[0].corpus])
        assert len({(q.fact, q.use, q.form, q.page) for q in found}) == 1
        if kind(found[0]) == "chg":
            old, new = (q.answers for q in found)
            assert not any(contains(one, new) for one in old) and not any(contains(one, old) for one in new), found
        elif len(found) == 2:
            assert found[0].answers == found[1].answers


def test_answers_and_quotes_are_short_and_no_question_holds_its_answer() -> None:
    assert not [q.id for q in QUESTIONS if len(q.passage.split()) > MOST_QUOTED or not q.passage]
    given = [q.id for q in QUESTIONS if any(f" {normalise(a)} " in f" {normalise(q.question)} " for a in q.answers)]
    assert not given


def test_no_training_question_asks_what_a_probe_asks() -> None:
    guard = ProbeGuard([to_probe(q) for q in QUESTIONS if q.use == "test"])
    prompts = [to_prompt(q) for q in QUESTIONS if q.use == "train"]
    assert not [p.id for p in prompts if guard.asks_the_same(p.text, p.answer)]


def test_the_readme_gives_the_numbers_of_the_file() -> None:
    readme = (FOLDER / "README.md").read_text()
    assert f"| {len(QUESTIONS)} original questions" in readme
    facts = Counter(fact.split("-")[0] for fact in {q.fact for q in QUESTIONS if q.use != "test"})
    held = Counter(fact.split("-")[0] for fact in {q.fact for q in QUESTIONS if q.use == "test"})
    assert f"| changed | {facts['chg']} | {held['chg']} |" in readme
    assert f"| unchanged | {facts['same']} | {held['same']} |" in readme
    assert f"| of one release alone | – | {held['one']} |" in readme and f"| control | – | {held['ctl']} |" in readme


@pytest.fixture(scope="module")
def snapshots(tmp_path_factory: pytest.TempPathFactory) -> dict[int, CorpusSnapshot]:
    folders = os.environ.get("RECOVER_NPM_DOCS", "").split(os.pathsep)
    if len(folders) != len(CORPORA):
        pytest.skip("set RECOVER_NPM_DOCS to the folders package/docs/content of both releases, older:newer")
    found = {}
    for number, (corpus, docs) in enumerate(zip(CORPORA, folders, strict=True), 1):
        target = tmp_path_factory.mktemp(corpus.name)
        for page in corpus.pages:
            (target / page).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(Path(docs) / page, target / page)
        write_corpus_files(FOLDER / "questions.jsonl", corpus.name, target, pages=corpus.pages)
        found[number] = gather(target, number, held_out=0.0, seed=0)
    return found


def test_a_passage_stands_in_its_page_and_the_subject_of_a_control_on_none(
    snapshots: dict[int, CorpusSnapshot],
) -> None:
    for corpus, snapshot in zip(CORPORA, snapshots.values(), strict=True):
        text = {document.id: words(document.text) for document in snapshot.documents}
        mine = [q for q in QUESTIONS if q.corpus == corpus.name]
        assert not [q.id for q in mine if not q.control and words(q.passage) not in text[q.page]]
        assert not [q.id for q in mine if q.control and any(words(q.subject) in page for page in text.values())]


def test_probes_about_what_changed_are_outdated_and_those_about_the_rest_are_not(
    snapshots: dict[int, CorpusSnapshot],
) -> None:
    current = up_to_date(snapshots, snapshots)
    left = current[1]
    written = {q.id: kind(q) for q in QUESTIONS}
    fates = {
        fate: Counter(written[probe.id] for probe in probes if probe.form == "question")
        for fate, probes in (("outdated", left.outdated), ("current", left.probes), ("gone", left.gone))
    }
    test = Counter(kind(q) for q in QUESTIONS if q.corpus == "old" and q.use != "train")
    assert fates["outdated"] == {"chg": test["chg"]} and fates["gone"] == {"one": test["one"]}
    assert fates["current"] == {"same": test["same"], "ctl": test["ctl"]}
    trained = [q for q in QUESTIONS if q.corpus == "new" and q.use == "train"]
    assert not left.questions and len(questions_of(current)[2]) == len(trained), "no question is lost to a probe"
