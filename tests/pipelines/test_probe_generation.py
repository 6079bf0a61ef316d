"""Generation of probes by the miniature and by a random model, and what probes tell of one that read the documents."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from db import queries
from evals.answer_matching import contains, exact_match
from evals.generation import answer
from evals.paired_tests import mcnemar
from evals.probe_building import build_probes, probe_side
from evals.probes import PROBES_FILE, write_probes
from pipelines.data.probe_build import Writer, Written, make, pairs, read_sources, reversed_questions, sound
from pipelines.evaluation.plan import Scope
from pipelines.evaluation.stage import evaluate
from pipelines.evaluation.stored_results import items_of, newest
from pipelines.midtraining.stage import midtrain
from pipelines.runtime.progress import Display
from pipelines.runtime.session import Session
from recovery.config import EvalConfig, MidtrainConfig, build
from recovery.data.corpus.cloze import Passage, passages
from recovery.data.corpus.documents import Corpus, Document
from recovery.data.corpus.facts.extraction import facts_of
from recovery.data.corpus.folder import read_corpus
from recovery.data.corpus.sentences import sentences, side
from recovery.miniature.corpora import write_corpora
from recovery.models.loaded import Loaded
from recovery.models.loading import load_model
from recovery.rollouts.transformers_engine import TransformersEngine
from recovery.types import Message, Probe


@pytest.fixture(scope="module")
def miniature(shipped_miniature: Path) -> Loaded:
    return load_model(shipped_miniature, precision="float32", device="cpu")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    (folder,) = write_corpora(tmp_path_factory.mktemp("world"), 1, 3, entities=6, documents=6)
    return read_corpus(folder)


def shown(corpus: Corpus) -> list[Passage]:
    return passages(probe_side(sentences(corpus.documents), facts_of(corpus.documents)), 60, 0)


def writer(loaded: Loaded) -> Writer:
    return Writer(loaded.chat, TransformersEngine(loaded), loaded.max_length)


@pytest.fixture(scope="module")
def written(miniature: Loaded, corpus: Corpus) -> list[Probe]:
    return writer(miniature).probes(shown(corpus), corpus.documents, 40)


def respond(loaded: Loaded, texts: list[str]) -> list[str]:
    conversations = [(Message(role="user", content=text),) for text in texts]
    return [a.text for a in answer(loaded.chat, TransformersEngine(loaded), conversations, max_new_tokens=24)]


def test_what_is_kept_is_answered_with_the_text_and_not_without(miniature: Loaded, written: list[Probe]) -> None:
    assert len(written) >= 15
    assert len({p.id for p in written}) == len(written)
    closed = respond(miniature, [p.question for p in written])
    assert not any(contains(response, p.answers) for response, p in zip(closed, written, strict=True))
    texts = ["Read this text:\n{}\n\n{}".format(p.passage.replace("\n", " "), p.question) for p in written]
    right = [exact_match(response, p.answers) for response, p in zip(respond(miniature, texts), written, strict=True)]
    assert sum(right) >= 0.9 * len(right)  # some passages were given with a title


def test_every_question_keeps_a_passage_of_the_probes_side_with_its_answer(
    corpus: Corpus, written: list[Probe]
) -> None:
    sides = {s.plain: side(s) for s in sentences(corpus.documents)}
    for probe in written:
        assert contains(probe.passage, probe.answers)
        assert {sides[line] for line in probe.passage.split("\n")} == {"probe"}
        assert probe.source in {d.id for d in corpus.documents}
        assert probe.form == "question" and not probe.control
    kinds = Counter(p.tags[1] for p in written)
    assert kinds["written"] >= 10 and kinds["paraphrase"] >= 1


def test_the_same_writer_and_text_give_the_same_questions(
    miniature: Loaded, corpus: Corpus, written: list[Probe]
) -> None:
    assert writer(miniature).probes(shown(corpus), corpus.documents, 40) == written


def test_written_questions_come_before_gaps(corpus: Corpus, written: list[Probe]) -> None:
    built = build_probes(corpus, count=60, written=written)
    kept = [p for p in built if p in written]
    assert len(kept) >= 15
    assert len(built) <= 60


def test_a_model_that_cannot_write_gives_none(tiny_model: Path, corpus: Corpus) -> None:
    steps: list[tuple[str, int, int, int]] = []
    loaded = load_model(tiny_model, precision="float32", device="cpu")
    random = Writer(loaded.chat, TransformersEngine(loaded), loaded.max_length, progress=lambda *a: steps.append(a))
    assert random.probes(shown(corpus)[:6], corpus.documents, 10) == []
    assert ("writing", 6, 6) in [one[:3] for one in steps]


def test_what_a_model_wrote_is_read_with_patience() -> None:
    text = (
        "Sure!\n\n1. **Question:** What is the port?\n   **Answer:** 8443.\n\n"
        "Question: Who owns it?\n\nAnswer: Atlas team\nQuestion: Since when? Answer: 2016\nQuestion: and then"
    )
    assert pairs(text) == [("What is the port?", "8443"), ("Who owns it?", "Atlas team"), ("Since when?", "2016")]
    assert pairs("The port is 8443.") == []


def passage(*lines: str, title: str = "Meridian") -> Passage:
    found = [s for line in lines for s in sentences([Document("a", title, line, "a")])]
    assert len(found) == len(lines)
    return Passage(tuple(found))


@pytest.mark.parametrize(
    ("question", "answer", "good"),
    [
        ("What is the port of Meridian?", "8443", True),
        ("Name the port of Meridian.", "8443", True),
        ("What is the port of Meridian?", "9000", False),  # not in the passage
        ("What is the port 8443 of Meridian?", "8443", False),  # contains its answer
        ("What is the port named in the text?", "8443", False),  # refers to the text
        ("What is the port of Polaris?", "8443", False),  # an invented name
        ("What is the port of", "8443", False),
        ("Port?", "8443", False),
        ("What does it say?", "The order system Meridian listens on the old port 8443", False),  # too long
    ],
)
def test_only_whole_questions_with_a_short_answer_of_the_passage_are_sound(
    question: str, answer: str, good: bool
) -> None:
    place = passage("The order system Meridian listens on the old port 8443.")
    assert sound(Written(question, answer, place)) is good


def test_a_question_names_its_place_where_it_names_no_title() -> None:
    place = passage("The order system listens on the old port 8443.")
    assert Written("What is the port of Meridian?", "8443", place).asked == "What is the port of Meridian?"
    assert Written("What is the port?", "8443", place).asked == 'According to "Meridian": What is the port?'


def test_a_question_is_reversed_where_the_value_belongs_to_one_name() -> None:
    place = passage("The order system Meridian listens on the old port 8443.")
    written = Written("What is the port of Meridian?", "8443", place)
    own = Document("a", "Meridian", "It listens on port 8443.", "a")
    other = Document("b", "Polaris", "It listens on port 9000.", "b")
    (turned,) = reversed_questions([written], [own, other])
    assert turned.question == 'The answer to "What is the port of ____?" is "8443". What belongs in the blank?'
    assert (turned.answer, turned.kind, turned.asked) == ("Meridian", "reversed", turned.question)
    same = Document("c", "Polaris", "It listens on port 8443 too.", "c")
    assert reversed_questions([written], [own, same]) == []
    assert reversed_questions([Written("What is the port?", "8443", place)], [own, other]) == []


@pytest.mark.slow
def test_made_probes_separate_and_controls_stay(tmp_path: Path) -> None:
    docs, others = write_corpora(tmp_path / "corpora", 2, 0, entities=12)
    for folder in (docs, others):
        for name in ("probes.jsonl", "questions.jsonl"):
            (folder / name).unlink()
    write_probes(docs / PROBES_FILE, make(read_sources(docs, others, seed=0), count=300, seed=0).probes)
    with Session.open(tmp_path / "workspace", display=Display(quiet=True)) as session:
        midtrain(session, build(MidtrainConfig, {"docs": docs, "epochs": 12.0}, session.recipe))
        for name in ("base", "midtrained"):
            config = build(EvalConfig, {"checkpoint": name}, session.recipe)
            evaluate(session, config, scope=Scope(behaviour=False, general=False))
        database = session.tracker.database
        rows = [newest(database, session.resolve(name).id or 0) for name in ("base", "midtrained")]
        stored = [row["domain_knowledge_stored/1"] for row in rows]
        base, trained = (items_of(database, row).headline for row in stored)
        assert base is not None and trained is not None and base.n > 80
        chance = stored[0].details["chance"]["value"]
        assert abs(base.value - chance) < 3 * base.stderr + 0.05
        assert trained.value > 0.8
        control = [
            {key: score for key, score, _, _, extra in queries.judged_items(database, row.id) if extra.get("control")}
            for row in stored
        ]
        assert len(control[0]) >= 20
        pairs = [(control[0][key] or 0.0, control[1][key] or 0.0) for key in control[0]]
        test = mcnemar([one for one, _ in pairs], [two for _, two in pairs])
        assert test.p_value > 0.05, "what was not taught is not known any better"
