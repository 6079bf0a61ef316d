"""The written questions of every example: enough of them, about its pages, answered there, and kept out of training."""

from __future__ import annotations

from collections import Counter, defaultdict

import pytest

from evals.answer_matching import FEWEST_ANSWERS, kind_of, normalise
from pipelines.data.question_splits import load_questions, to_probe, to_prompt
from pipelines.experiments.example import read_packages
from recovery.data.document_questions import ProbeGuard
from tests.example_questions import EXAMPLES, Example, words

MOST_QUOTED = 20  # words of a page that a record may quote
LEAST_FACTS, LEAST_HELD, LEAST_HELD_OF_CORPUS = 600, 300, 70  # what a test of them can decide
# answers in the target of a link, and the second of the alternatives of a synopsis ("status=public|private")
NOT_WORD_FOR_WORD = {("npm", "chg-021"), ("npm", "chg-025"), ("npm", "chg-027")}


@pytest.fixture(params=sorted(path.parent.name for path in EXAMPLES.glob("*/questions.jsonl")))
def example(request: pytest.FixtureRequest) -> Example:
    return Example(request.param)


def test_there_are_enough_different_facts_and_held_out_ones_in_every_corpus() -> None:
    facts: dict[tuple[str, str], str] = {}
    for path in EXAMPLES.glob("*/questions.jsonl"):
        asked = [q for q in load_questions(path) if not q.control]
        facts |= {(path.parent.name, q.fact): q.use for q in asked}
        held: defaultdict[str, set[str]] = defaultdict(set)
        for q in asked:
            held[q.corpus] |= {q.fact} if q.use == "test" else set()
        assert min(map(len, held.values())) >= LEAST_HELD_OF_CORPUS, path
    assert len(facts) >= LEAST_FACTS and Counter(facts.values())["test"] >= LEAST_HELD


def test_answers_are_of_several_kinds_with_enough_of_each_to_compare(example: Example) -> None:
    answers: defaultdict[str, set[str]] = defaultdict(set)
    for q in example.questions():
        if q.use != "train" and not q.control:
            answers[kind_of(q.answers[0])].add(normalise(q.answers[0]))
    assert sum(len(found) >= FEWEST_ANSWERS for found in answers.values()) >= 5


def test_every_page_is_one_of_its_corpus_and_a_control_page_is_of_none(example: Example) -> None:
    pages = {corpus.name: corpus.pages for corpus in example.corpora()}
    asked = [q for q in example.questions() if not q.control]
    everywhere = {page for corpus in pages.values() for page in corpus}
    assert not [q.id for q in asked if q.page not in pages[q.corpus]]
    assert not [q.id for q in example.questions() if q.control and (q.page in everywhere or not q.subject)]
    assert everywhere == {q.page for q in asked}, "a page without questions"


def test_packages_are_named_and_a_short_run_has_fewer_pages(example: Example) -> None:
    packages = read_packages(example.folder / "packages.toml")
    assert {"model", *(corpus.package for corpus in example.corpora())} <= set(packages)
    assert any(corpus.short for corpus in example.corpora())
    assert all(set(corpus.short) < set(corpus.pages) for corpus in example.corpora())


def test_quotes_are_short_and_no_question_holds_its_answer(example: Example) -> None:
    questions = example.questions()
    assert not [q.id for q in questions if len(q.passage.split()) > MOST_QUOTED or not q.passage]
    given = [q.id for q in questions if any(f" {normalise(a)} " in f" {normalise(q.question)} " for a in q.answers)]
    assert not given


def test_no_training_question_asks_what_a_probe_asks(example: Example) -> None:
    guard = ProbeGuard([to_probe(q) for q in example.questions() if q.use == "test"])
    prompts = [to_prompt(q) for q in example.questions() if q.use == "train"]
    assert not [p.id for p in prompts if guard.asks_the_same(p.text, p.answer)]


def test_the_readme_counts_the_questions(example: Example) -> None:
    assert f"| {len(example.questions())} original questions" in (example.folder / "README.md").read_text()


def test_an_answer_and_its_passage_stand_in_their_page(example: Example) -> None:
    docs = example.docs()
    asked = [q for q in example.questions() if not q.control]
    text = {key: words((docs[key[0]] / key[1]).read_text()) for key in {(q.corpus, q.page) for q in asked}}
    assert not [q.id for q in asked if words(q.passage) not in text[q.corpus, q.page]]
    missing = [q for q in asked if not any(words(answer) in text[q.corpus, q.page] for answer in q.answers)]
    assert {(example.name, q.fact) for q in missing} <= NOT_WORD_FOR_WORD


def test_no_page_of_a_corpus_holds_the_subject_of_a_control_question(example: Example) -> None:
    docs = example.docs()
    for corpus in example.corpora():
        taught = "".join(words((docs[corpus.name] / page).read_text()) for page in corpus.pages)
        assert not [q.id for q in example.questions() if q.control and words(q.subject) in taught]
