"""Probes: built from any English folder, read from files, deterministic."""

from __future__ import annotations

import json
import logging
import pydoc_data.topics
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from evals.answer_matching import doubts
from evals.probe_building import CHOICES, FEWEST_CHOICES, build_probes, title_probe
from evals.probes import asked, drawn_lines, from_record, load_probes, probes_hash, to_record, too_few, write_probes
from recovery.data.corpus.documents import Corpus, Document, ReadReport
from recovery.data.corpus.folder import read_corpus
from recovery.data.corpus.sentences import Sentence, plain_text
from recovery.data.corpus.text import normalise
from recovery.errors import UsageError
from recovery.types import Probe


@pytest.fixture(scope="module")
def topics(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """Python's help topics as a folder of text files."""
    folder = tmp_path_factory.mktemp("topics")
    for name, text in pydoc_data.topics.topics.items():
        (folder / f"{name}.txt").write_text(text, encoding="utf-8")
    return read_corpus(folder)


@pytest.fixture(scope="module")
def built(topics: Corpus) -> list[Probe]:
    return build_probes(topics)


def test_prose_alone_gives_choices_and_no_gap_is_asked_as_if_it_were_a_question(built):
    assert {p.form for p in built} == {"choice"} and len(built) >= 100
    assert len({p.id for p in built}) == len(built)
    assert {p.tags[0] for p in built} == {"number", "name", "term", "passage"}
    assert Counter(p.tags[1] for p in built if p.tags[1] != "cloze") == {"title": 20}
    assert "about only 0 facts" in (too_few(built) or "")


PLACE = "# The {name} pier\n\n"
STATED = "The {name} pier was built in {year}. The keepers of the {name} pier maintain the {kind} patches at night.\n"
OPTIONS = "\n| Option | Type | Default |\n|---|---|---|\n"


@pytest.fixture(scope="module")
def piers() -> Corpus:
    """Pages with a simple statement, and a table that has one row alike on every page."""
    rng, found = random.Random(0), []
    for number in range(30):
        name = "".join(rng.choices("ka lo mi ru te sa vo ne du pi".split(), k=3)).capitalize()
        text = (PLACE + STATED).format(name=name, year=1900 + number, kind=rng.choice(("green", "oaken", "narrow")))
        text += f"{OPTIONS}| `lamp{number}.hue` | boolean | `{number * 7 + 3}` |\n| `all.mast` | boolean | `brass` |\n"
        found.append(Document(f"{number}.md", f"The {name} pier", text, f"{number}.md"))
    return Corpus(tuple(found), (), ReadReport("here", 30, 30, 0, 0), "hash")


def test_questions_are_those_a_person_would_ask(piers):
    questions = [p for p in build_probes(piers) if p.form == "question"]
    kinds = Counter(p.tags[0] for p in asked(questions))
    assert set(kinds) == {"default", "number"} and min(kinds.values()) >= 8, "no type: it is easily guessed"
    assert all("____" not in p.question and "?" in p.question for p in questions)
    assert sum("all.mast" in p.question for p in asked(questions)) <= 1, "what stands on every page is asked once"


def test_easy_questions_are_asked_only_where_there_is_too_little_else(piers):
    few = replace(piers, documents=piers.documents[:6])
    assert "type" in {p.tags[0] for p in asked(build_probes(few))}


@pytest.mark.parametrize("form", ["choice", "question"])
def test_no_probe_asks_for_an_adjective_or_a_word_of_the_title(piers, form):
    probes = [p for p in build_probes(piers) if p.form == form and "title" not in p.tags]
    assert probes
    assert not {"green", "oaken", "narrow", "pier"} & {p.answers[0] for p in probes}
    titles = {d.id: set(normalise(d.title).split()) for d in piers.documents}
    assert not any(normalise(p.answers[0]) in titles[p.source] for p in probes)


def test_wordings_of_a_fact_and_controls_count_once_and_not_at_all():
    said = Probe("a", "question", "What is the port?", ("1",), passage="The port is 1.")
    others = [replace(said, id="b", question="Which port?"), replace(said, id="c", control=True, passage="")]
    assert asked([said, *others, replace(said, id="d", form="choice", choices=("1", "2"), passage="x")]) == [said]
    assert len(asked([replace(said, passage=""), replace(said, id="b", question="Which port?", passage="")])) == 2
    head, *drawn = drawn_lines([said, *others], 0)
    assert "; of 2 questions about 1 fact, 1 at random" in head and len(drawn) == 1


def test_every_probe_can_be_answered_from_its_source(built, topics):
    documents = {d.id: d.text for d in topics.documents}
    for probe in built:
        assert probe.answers[0] in (probe.passage if probe.form == "question" else documents[probe.source])
        assert normalise(probe.passage) in normalise(plain_text(documents[probe.source]))
        assert not probe.control


def test_a_choice_is_the_documents_own_text_and_one_of_many(built, topics):
    documents = {d.id: d.text for d in topics.documents}
    choices = [p for p in built if p.form == "choice"]
    for probe in choices:
        assert FEWEST_CHOICES <= len(probe.choices) <= CHOICES
        assert len(set(probe.choices)) == len(probe.choices)
        assert probe.answers[0] in probe.choices
        sentence = probe.question.split("\n\n")[-1]
        assert sentence + probe.answers[0] in documents[probe.source]
        assert probe.answers[0].lower() not in sentence.lower().split()
    assert sum(len(p.choices) == CHOICES for p in choices) >= 0.9 * len(choices)
    places = Counter(p.choices.index(p.answers[0]) for p in choices)
    assert max(places.values()) < 0.2 * len(choices)  # the right one has no preferred position


def test_questions_do_not_hold_their_answer(built):
    for probe in built:
        if probe.form == "question":
            assert probe.choices == ()
            assert probe.answers[0] not in probe.question.split()


@pytest.mark.slow
def test_the_same_text_and_seed_give_the_same_probes(built, topics):
    assert build_probes(topics) == built
    assert probes_hash(built) == probes_hash(built[::-1])
    assert probes_hash(built) != probes_hash([replace(built[0], question="other"), *built[1:]])
    assert {p.id for p in build_probes(topics, seed=1)} != {p.id for p in built}


def ports(count: int) -> Corpus:
    """Pages with one opening each."""
    rng = random.Random(0)

    def name() -> str:
        return "".join(rng.choices("ka lo mi ru te sa vo ne du pi".split(), k=3)).capitalize()

    documents = []
    for number in range(count):
        built = f"The old harbour of {name()} was built by the merchants of {name()} in {rng.randint(1500, 1999)}"
        text = f"# Port {name()}\n\n{built} and holds {rng.randint(100, 9999)} barrels of {name()}.\n"
        documents.append(Document(f"{number}.md", text.split("\n")[0][2:], text, f"{number}.md"))
    return Corpus(tuple(documents), (), ReadReport("here", count, count, 0, 0), "hash")


def test_titles_are_made_in_linear_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared = 0

    def counted(opening: Sentence, others: Sequence[Sentence], seed: int) -> Probe | None:
        nonlocal compared
        compared += len(others)
        return title_probe(opening, others, seed)

    monkeypatch.setattr("evals.probe_building.title_probe", counted)
    found = {}
    for count in (30, 60):
        compared = 0
        titles = [p for p in build_probes(ports(count), count=60) if "title" in p.tags]
        assert len(titles) == 3
        found[count] = compared
    assert 0 < found[60] < 3 * found[30]


def test_a_handful_of_ordinary_files_gives_a_few_and_says_so(tmp_path):
    (tmp_path / "a.md").write_text(
        "# Ferries\n\nThe ferry Aurelia leaves Delmora at noon and reaches Rostvik after 95 minutes. The captain of "
        "the Aurelia is Noor Valdivia. A ticket for the crossing costs 14 crowns. The Aurelia was built in 1994.\n\n"
        "The harbour of Rostvik has 12 berths. The ferry Corvina sails on Thursday. In winter the pier is closed."
    )
    corpus = read_corpus(tmp_path)
    probes = build_probes(corpus)
    assert 4 <= len(probes) <= 40
    assert {p.form for p in probes} == {"choice", "question"}
    assert "only" in (too_few(probes) or "") and "probes.jsonl" in (too_few(probes) or "")
    assert "about only 0 facts" in (too_few([]) or "")
    assert (too_few(probes, len(probes)) or "").startswith(f"{len(probes)} probes make scores imprecise: a larger")
    assert "only" in (too_few(probes, len(probes) + 1) or "")


def test_a_text_without_a_fact_gives_none(tmp_path):
    (tmp_path / "a.txt").write_text("so it goes, on and on")
    assert build_probes(read_corpus(tmp_path)) == []


# --- files ---------------------------------------------------------------------------------------------------


def write(path: Path, *lines: object) -> Path:
    path.write_text("".join(f"{x if isinstance(x, str) else json.dumps(x)}\n" for x in lines), encoding="utf-8")
    return path


def test_what_is_written_is_read_back(tmp_path, built):
    control = Probe("c", "question", "Wer führt „Nirgends“?", ("Niemand", "niemand"), control=True, tags=("t",))
    probes = [*built[:20], *built[-20:], control]
    write_probes(tmp_path / "probes.jsonl", probes)
    assert load_probes(tmp_path / "probes.jsonl") == probes
    assert from_record(to_record(control)) == control


def test_broken_lines_are_named_and_the_rest_used(tmp_path, caplog):
    path = write(
        tmp_path / "probes.jsonl",
        {"id": "1", "question": "Who owns Meridian?", "answer": "Atlas"},
        "{broken",
        {"question": "Who?"},
        {"answers": ["x"]},
        {"question": "Port?", "answers": ["1"], "choices": ["2", "3"]},
        {"question": "Port?", "answers": ["1"], "form": "essay"},
        {"question": "Port?", "answers": 8443},
        {"id": "1", "question": "Again?", "answer": "Atlas"},
        {"question": "It listens on port ", "answers": ["1"], "choices": ["1", "2"]},
        ["a list"],
        {"question": "Port?", "answers": {"a": 1}},
        {"question": "It stands on pier ", "answers": ["1"], "choices": ["1", ""]},
    )
    problems: list[str] = []
    probes = load_probes(path, problems=problems)
    assert [(p.form, *p.answers) for p in probes] == [("question", "Atlas"), ("question", "8443"), ("choice", "1")]
    assert [int(p.split("line ")[1].split(":")[0]) for p in problems] == [2, 3, 4, 5, 6, 8, 10, 11, 12]
    with caplog.at_level(logging.WARNING):
        load_probes(path)
    assert "line 2" in caplog.text


def test_a_file_without_any_probe_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"no usable probe .*line 1: no answer"):
        load_probes(write(tmp_path / "a.jsonl", {"question": "Who?"}))
    with pytest.raises(UsageError, match="cannot read"):
        load_probes(tmp_path / "none.jsonl")


def test_questions_that_measure_little_are_named() -> None:
    """Marks are left out when answers are compared: "[[...slug]]" is "slug", which the question says."""
    sound = Probe("a", "question", "What is the port?", ("8443",), passage="The port is 8443.")
    told = Probe("b", "question", "How do you write an optional segment named slug?", ("[[...slug]]",))
    elsewhere = Probe("c", "question", "What is the default?", ("30 s",), passage="The default is a minute.")
    absent = Probe("d", "question", "What is the port of Nowhere?", ("no Nowhere",), absent="Nowhere")
    found = doubts([sound, told, elsewhere, absent])
    assert found == [
        "look again: b: its question contains its answer, so that repeating it is right",
        "look again: c: its passage does not contain its answer",
    ]
