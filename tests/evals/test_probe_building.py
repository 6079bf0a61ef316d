"""Probe formats: self-contained sentences, plausible distractors, titles, endings, and contamination checks."""

from __future__ import annotations

import cProfile
import hashlib
import json
import pydoc_data.topics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evals.knowledge import ask, choose
from evals.probe_building import about, also_asked, build_probes, choosable, leaked, statement_probe, title_probe
from evals.probes import load_probes, probes_hash, review, save, write_probes
from recovery.data.corpus.cloze import Cooccurrence, Gap, Vocabulary, openings, passages
from recovery.data.corpus.documents import Corpus, Document
from recovery.data.corpus.folder import read_corpus
from recovery.data.corpus.sentences import Sentence, leans, sentences, usable
from recovery.data.corpus.text import normalise
from recovery.data.document_questions import ProbeGuard, document_questions
from recovery.errors import UsageError
from recovery.models.loaded import Loaded
from recovery.rollouts.transformers_engine import TransformersEngine
from recovery.types import Message, Probe, Prompt


@pytest.fixture(scope="module")
def topics(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """A third of Python's help topics as a folder of text files."""
    folder = tmp_path_factory.mktemp("topics")
    for name, text in list(pydoc_data.topics.topics.items())[::3]:
        (folder / f"{name}.txt").write_text(text, encoding="utf-8")
    return read_corpus(folder)


@pytest.fixture(scope="module")
def found(topics: Corpus) -> list[Sentence]:
    return sentences(topics.documents)


@pytest.fixture(scope="module")
def vocabulary(found: list[Sentence]) -> Vocabulary:
    return Vocabulary(found)


# --- sentences -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "It closes at six in the evening.",
        "In earlier versions they were kept in the cellar.",
        "If this is so, the boat waits for the tide.",
        "In both cases the keeper writes a letter.",
        "Most of them are kept in the cellar.",
        "For example, the ferry waits for the train.",
        "Some of the keepers of these boats are paid by the hour.",
        "Which way is better depends on the weather.",
    ],
)
def test_what_takes_up_an_earlier_sentence_leans_on_it(text: str) -> None:
    assert leans(text)
    assert not usable(text)


@pytest.mark.parametrize(
    "text",
    [
        "The ferry Aurelia leaves Delmora at noon.",
        "If the pier is closed, it opens again at noon.",
        "There is no limit for the length of a rope.",
        "Leave the keys with the porter of the harbour before noon.",
    ],
)
def test_what_says_what_it_is_about_stands_alone(text: str) -> None:
    assert not leans(text)
    assert usable(text)


@pytest.mark.parametrize(
    "text",
    [
        "(The porter keeps the keys of the cellar.)",
        "The porter keeps the keys (and the lamps of the cellar.",
        'The porter keeps the "keys of the cellar in a box.',
        "The rules for the keys are given below.",
        "The following rules hold for the keys of the cellar.",
        "See the guide of the harbour for a list of all keys.",
        "Start it as recover compare --seeds 3 in the harbour.",
        "the keys of the cellar are with the porter.",
    ],
)
def test_fragments_pointers_and_code_are_left_out(text: str) -> None:
    assert not usable(text)


def test_an_entry_of_a_reference_heads_its_text() -> None:
    text = (
        "Commands\n********\n\nopen(door)\n\n   Opens one of the doors of the harbour office.\n\n"
        "lamp\n   Lights the lamps along the northern pier.\n\nEvery command writes a line to the harbour log."
    )
    first, second, last = sentences([Document("a", "Commands", text, "a")])
    assert (first.heading, second.heading, last.heading) == ("open(door)", "lamp", "Commands")
    assert first.lead == "Commands\n********\n\nopen(door)\n\n"
    assert last.lead == "Commands\n********\n\n"
    assert all(s.raw in text for s in (first, second, last))


def test_words_are_distinguished_by_the_company_they_keep() -> None:
    usage = Cooccurrence()
    for word, before, after in (("boat", "the ", " is"), ("ferry", "the ", " is"), ("green", "the ", " boat")):
        usage.add(word, before, after)
    usage.add("green", "boat is ", ".")
    assert usage.alike("boat", "ferry") == pytest.approx(1.0)
    assert usage.alike("boat", "green") < 0.6
    assert usage.modifies("green") == 0.5
    assert usage.modifies("boat") == 0.0
    assert usage.can_follow("green", "the boat was ")
    assert not usage.can_follow("ferry", "the boat was ")


def test_wrong_answers_agree_in_number(topics: Corpus) -> None:
    for probe in build_probes(topics):
        if probe.tags == ("term", "cloze") and probe.form == "choice":
            plural = {c.endswith("s") and not c.endswith(("ss", "us", "is", "as", "os")) for c in probe.choices}
            assert len(plural) == 1, probe.choices


# --- forms ---------------------------------------------------------------------------------------------------


def gap(before: str, answer: str, after: str, kind: str = "term") -> Gap:
    (one,) = sentences([Document("a", "Harbour", f"{before}{answer}{after}", "a")])
    return Gap(one, kind, answer, before, after)


def test_a_choice_needs_enough_before_the_gap_and_no_noun_after_it() -> None:
    assert choosable(gap("Every boat that leaves the harbour before noon carries a ", "lantern", "."))
    assert not choosable(gap("Every boat that leaves the harbour before noon carries a ", "green", " lantern."))
    assert not choosable(gap("Every boat that leaves the harbour before noon carries (", "rusty", ") lanterns."))
    assert not choosable(gap("Every boat carries a ", "lantern", " from the harbour office."))
    assert choosable(gap("Every boat must carry ", "24", " lanterns.", "number"))


def test_a_title_is_matched_with_what_stands_under_it(found: list[Sentence], vocabulary: Vocabulary) -> None:
    opened = openings(found, vocabulary)
    made = [p for s in opened if (p := title_probe(s, opened, 0))]
    assert len(made) >= 10
    under = {s.raw: s.lead for s in opened}
    titles = {s.raw: s.title for s in opened}
    for probe in made:
        right = probe.answers[0]
        assert probe.question == under[right]
        assert [c for c in probe.choices if under[c] == probe.question] == [right]
        assert all(titles[c] != titles[right] for c in probe.choices if c != right)
        words = {w for w in normalise(titles[right]).split() if len(w) > 3}
        assert not words & set(normalise(right).split())
    assert title_probe(opened[0], opened[:3], 0) is None


def test_both_forms_can_be_scored(loaded: Loaded, found: list[Sentence], vocabulary: Vocabulary) -> None:
    opened = openings(found, vocabulary)[:8]
    stored = choose(loaded, [p for s in opened if (p := title_probe(s, opened, 0))][:4])
    assert stored.score.n == 4
    assert all(item.response in {s.raw for s in opened} for item in stored.items)
    probe = statement_probe(gap("The old harbour crane was built in ", "1987", ".", "number"))
    assert probe is not None
    reached = ask(loaded.chat, TransformersEngine(loaded), [probe], max_new_tokens=8, window=loaded.max_length)
    assert reached.score.n == 1 == reached.details["natural"].n and "gap" not in reached.details
    assert 0 <= reached.details["f1"].value <= 1


def test_passages_are_neighbours_of_bounded_length(found: list[Sentence]) -> None:
    made = passages(found, 1000, 0)
    assert sum(len(p.sentences) for p in made) == len(found)
    for passage in made:
        assert len({s.lead for s in passage.sentences}) == 1
        assert len(passage.sentences) == 1 or len(passage.line.split()) <= 60
        assert passage.text.split("\n") == [s.plain for s in passage.sentences]


# --- two sides -----------------------------------------------------------------------------------------------


def test_no_training_question_is_made_of_what_a_probe_asks(topics: Corpus, tmp_path: Path) -> None:
    probes = build_probes(topics)
    assert {"title", "cloze"} <= {p.tags[-1] for p in probes}
    probed = {normalise(line) for p in probes for line in p.passage.split("\n")}
    for prompt in document_questions(tmp_path, topics, exclude=probes):
        assert prompt.answer is not None
        stretch = max(prompt.text.split('"')[1::2], key=len)  # a quoted sentence, its answer blanked
        assert normalise(stretch.replace("____", prompt.answer)) not in probed


def test_a_question_that_the_documents_answer_themselves_is_found() -> None:
    text = "Q: What is the port of the order system?\nA: 8443.\n\nWho keeps the keys of the cellar? Nobody knows."
    port = Probe("p", "question", 'According to "FAQ", what is the port of the order system? Be brief.', ("8443",))
    keys = Probe("k", "question", "Who keeps the keys of the cellar?", ("Anna Berg",))
    other = Probe("o", "question", "What is the port of the mail system?", ("8443",))
    choice = Probe("c", "choice", "What is the port of the order system?", ("8443",), ("8443", "1"))
    assert leaked([port, keys, other, choice], [text]) == [port]
    assert leaked([port], []) == []


def test_a_question_with_a_full_stop_in_it_is_found() -> None:
    text = "It rained. Q: Who is the patron of the parish of St. Kilda Town? A: Maria."
    town = Probe("t", "question", "Who is the patron of the parish of St. Kilda Town?", ("Maria",))
    within = Probe("w", "question", "ho is the patron of the parish of St. Kilda Town?", ("Maria",))  # half a word
    assert leaked([town, within], [text]) == [town]


def test_a_short_question_and_one_without_spaces_are_found() -> None:
    dracula = Probe("d", "question", 'In "Books", who wrote Dracula? Give the name only.', ("Bram Stoker",))
    capital = Probe("c", "question", "中国的首都是哪座城市？", ("北京",))
    other = Probe("o", "question", "日本的首都是哪座城市？", ("北京",))
    texts = ["Who wrote Dracula? Bram Stoker.", "问：中国的首都是哪座城市？ 北京。"]
    assert leaked([dracula, capital, other], texts) == [dracula, capital]


def test_a_probe_that_a_training_question_asks_is_found() -> None:
    asked = ("Where was the writer Dracula born?", "In Dublin."), ("When did the old ferry of Cork sink?", "1904")
    questions = [Prompt(q, (Message(role="user", content=q),), "knowledge", answer=answer) for q, answer in asked]
    same = Probe("s", "question", 'In "Bram", where was the writer born? Give the name only.', ("Dublin",))
    longer = Probe("l", "question", 'According to "Cork", when did the old ferry of Cork sink? Be brief.', ("1904",))
    choice = Probe("c", "choice", "# Ferry\n\nThe old ferry of Cork did sink in ", ("1904",), ("1904", "1905"))
    other = Probe("o", "question", "Which year did the council of Cork pick?", ("1904",))
    wrong = Probe("w", "question", "When did the old ferry of Cork sink at the pier?", ("1905",))
    assert also_asked([same, longer, choice, other, wrong], questions) == [same, longer, choice]
    assert also_asked([same], []) == []


@pytest.mark.parametrize("count", [20, 40])
def test_a_probe_is_not_compared_with_every_question_that_shares_its_answer(count: int) -> None:
    probes = [Probe(f"p{n}", "question", f"Which town is home to service{n}?", ("Lund",)) for n in range(count)]
    texts = [f"Tell me the town that is home to service{n}." for n in range(count)]
    asked = [Prompt(q, (Message(role="user", content=q),), "knowledge", answer="Lund") for q in texts]
    counted = cProfile.Profile()
    assert counted.runcall(also_asked, probes, asked) == probes
    compared = [called for called in counted.getstats() if called.code is ProbeGuard.tells_the_answer.__code__]
    assert sum(called.callcount for called in compared) <= count


def test_probes_about_held_out_text_are_found() -> None:
    held = [Document("h", "Held", "The **lamp** of the pier\nburns all night. Boats wait.", "h")]
    probe = Probe("a", "question", "?", ("lamp",), passage="Doors open at six.\nThe lamp of the pier burns all night.")
    elsewhere = Probe("c", "question", "?", ("x",), passage="Anna keeps the ferry.\n")  # its last line is empty
    assert about([probe, Probe("b", "question", "?", ("x",)), elsewhere], held) == [probe]
    assert about([probe], []) == []


def test_a_probe_that_shares_a_heading_or_trained_text_with_held_out_text_stays() -> None:
    notice, capital = "All prices in this handbook are given in euros.", "北京是中国的首都"
    text = f"# H\n\nAn overview: port 8080, also for testing.\n\n{notice}\n\n{capital}。"
    held = [Document("h", "H", text, "h")]
    trained = [Document("t", "T", "# T\n\n**All prices** in this handbook are given in euros.", "t")]
    passages = "Overview\nThe Zeppo widget is painted red in Ulm.", "Port 80", f"Prices\n{notice}", capital
    probes = [Probe(str(n), "question", "?", ("x",), passage=text) for n, text in enumerate(passages)]
    assert about(probes, held, trained) == probes[3:]
    assert about(probes, held) == probes[2:]


def test_a_file_without_passages_keeps_its_hash() -> None:
    line = '{"id": "a", "form": "question", "question": "Port?", "answers": ["8443"], "source": "s"}'
    probe = Probe("a", "question", "Port?", ("8443",), source="s")
    assert probes_hash([probe]) == hashlib.sha256(line.encode()).hexdigest()


def test_half_a_character_in_a_file_is_refused(tmp_path: Path) -> None:
    write_probes(tmp_path / "probes.jsonl", [Probe("p", "question", "What is \ud83d?", ("Anna",))])
    with pytest.raises(UsageError, match=r"line 1: not valid JSON \(half of a surrogate pair"):
        load_probes(tmp_path / "probes.jsonl")


def test_a_review_leaves_alone_what_it_does_not_change(tmp_path: Path) -> None:
    path = tmp_path / "probes.jsonl"
    kept = '{"id": "a", "question": "Who?", "answer": "Anna", "note": "mine"}\n{broken\n'
    path.write_text(kept + '{"id": "b", "question": "When?", "answer": "now"}\n')
    save(review(path, show=1, drawn=False, seed=0, drop=["b"]))
    assert path.read_text() == kept


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("wrap", [lambda found: found, lambda found: {"made": "by hand", "probes": found}])
def test_a_review_of_a_json_list_keeps_it_a_list(
    tmp_path: Path, indent: int | None, wrap: Callable[[list[Any]], Any]
) -> None:
    path, other = tmp_path / "probes.json", tmp_path / "other.jsonl"
    first, second = {"id": "a", "question": "Who?", "answer": "Anna"}, {"id": "b", "question": "When?", "answer": "now"}
    path.write_text(json.dumps(wrap([first | {"note": "mine"}, {"no": "probe"}, second]), indent=indent))
    other.write_text('{"id": "c", "question": "Where?", "answers": ["Ulm"]}')
    save(review(path, show=1, drawn=False, seed=0, drop=["b"], add=[other]))
    third = {"id": "c", "form": "question", "question": "Where?", "answers": ["Ulm"]}
    assert json.loads(path.read_text()) == wrap([first | {"note": "mine"}, {"no": "probe"}, third])
    path.write_text(json.dumps(first, indent=indent))
    save(review(path, show=1, drawn=False, seed=0, add=[other]))
    assert [p.id for p in load_probes(path)] == ["a", "c"]
