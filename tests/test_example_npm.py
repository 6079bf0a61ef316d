"""The written questions about two releases of npm's documentation: what changed is asked in both, in the same words."""

from __future__ import annotations

import shutil
from collections import Counter, defaultdict

import pytest

from evals.answer_matching import contains, normalise
from pipelines.data.corpus_reading import gather, questions_of
from pipelines.data.corpus_snapshot import CorpusSnapshot
from pipelines.data.question_splits import Question, write_corpus_files
from pipelines.data.revisions import up_to_date
from tests.example_questions import Example

EXAMPLE = Example("npm")
FOLDER = EXAMPLE.folder
QUESTIONS = EXAMPLE.questions()
CORPORA = EXAMPLE.corpora()


def kind(question: Question) -> str:
    """Return what became of the fact: "chg", "same", "one" (of one release alone) or "ctl"."""
    return question.fact.split("-")[0]


def test_both_corpora_have_the_same_pages_of_different_packages() -> None:
    old, new = CORPORA
    assert (old.pages, old.short) == (new.pages, new.short) and old.package != new.package


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


def test_the_readme_gives_the_numbers_of_facts() -> None:
    readme = (FOLDER / "README.md").read_text()
    facts = Counter(fact.split("-")[0] for fact in {q.fact for q in QUESTIONS if q.use != "test"})
    held = Counter(fact.split("-")[0] for fact in {q.fact for q in QUESTIONS if q.use == "test"})
    assert f"| changed | {facts['chg']} | {held['chg']} |" in readme
    assert f"| unchanged | {facts['same']} | {held['same']} |" in readme
    assert f"| of one release alone | – | {held['one']} |" in readme and f"| control | – | {held['ctl']} |" in readme


@pytest.fixture(scope="module")
def snapshots(tmp_path_factory: pytest.TempPathFactory) -> dict[int, CorpusSnapshot]:
    docs = EXAMPLE.docs()
    found = {}
    for number, corpus in enumerate(CORPORA, 1):
        target = tmp_path_factory.mktemp(corpus.name)
        for page in corpus.pages:
            (target / page).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(docs[corpus.name] / page, target / page)
        write_corpus_files(FOLDER / "questions.jsonl", corpus.name, target, pages=corpus.pages)
        found[number] = gather(target, number, held_out=0.0, seed=0)
    return found


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
