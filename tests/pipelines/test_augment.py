"""Paraphrases and questions in mid-training: their shares, their writer, their cost."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evals.rewriting import Rewriting, Rewritten
from pipelines.data import augment
from pipelines.data.corpus_reading import gather
from pipelines.data.corpus_snapshot import load_snapshot
from pipelines.data.mixing import schedule
from pipelines.midtraining import material
from pipelines.midtraining import plan as plan_module
from pipelines.midtraining.material import open_cycle
from pipelines.midtraining.plan import plan_midtrain
from pipelines.midtraining.stage import midtrain
from pipelines.planning.activations import Work
from pipelines.planning.work import midtraining_work
from pipelines.runtime.session import Session
from recovery.batching import Row
from recovery.config import WRITER_FILE, MidtrainConfig
from recovery.data.corpus.folder import read_corpus
from recovery.data.rewritten_texts import RewrittenText, write_texts
from recovery.errors import RecoveryError, ServerError, UsageError
from recovery.models.chat_loading import load_chat
from recovery.types import Probe
from tests.http_json import address_of, serve_json, stop
from tests.pipelines.conftest import Bench, MakeCorpus, stages_of


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    """A folder of documents with tables of options."""
    folder = tmp_path / "tables"
    folder.mkdir()
    for n in range(4):
        rows = "".join(f"| `rope{n}{k}` | `{n * 7 + k + 30}` |\n" for k in range(6))
        (folder / f"rope{n}.md").write_text(f"# rope{n}Mode\n\n| Option | Default |\n|---|---|\n{rows}")
    return folder


Write = Callable[[Sequence[RewrittenText]], None]


@pytest.fixture
def written(midtrain_config: MidtrainConfig, make_corpus: MakeCorpus) -> tuple[MidtrainConfig, str, Write]:
    """Settings of mid-training with texts that came with the documents, the id of a document, and what writes them."""
    docs = make_corpus("Yew")
    config = replace(midtrain_config, docs=docs, augment=1, writer=WRITER_FILE, steps=2)
    document = read_corpus(docs, held_out=config.held_out, seed=config.seed).documents[0]
    return config, document.id, lambda texts: write_texts(docs / WRITER_FILE, texts)


def test_other_wordings_and_questions_are_streams_with_their_own_shares(
    session: Session, bench: Bench, tables: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    rows: list[Row] = []
    work: list[int] = []

    def noted(*given: Any) -> list[list[Row]]:
        seen.append(given[0])
        rows.extend(row for step in schedule(*given) for row in step)
        return schedule(*given)

    def worked(config: MidtrainConfig, tuning: str, tokens: int) -> Work:
        work.append(tokens)
        return midtraining_work(config, tuning, tokens)

    monkeypatch.setattr(material, "schedule", noted)
    monkeypatch.setattr(plan_module, "midtraining_work", worked)
    plain = bench.midtraining(docs=tables, row_length=32)
    config = replace(plain, augment=3, augment_share=0.5, augment_questions=0.3)
    plan = plan_midtrain(session, config)
    assert plan.length.tokens == plan_midtrain(session, plain).length.tokens, "the steps set the tokens trained"
    assert "24 facts in up to 3 other wordings and " in plan.text()
    assert "chats that tell of subjects and sections, 35% of the trained tokens" in plan.text()
    rows.clear()  # those of the plans, one of them without augmentation
    midtrain(session, config)
    shares = {stream.name: stream.share for stream in seen[0]}
    assert shares == pytest.approx({"documents": 0.5, "wordings": 0.35, "questions": 0.15})
    assert all(stream.rows for stream in seen[0])
    computed = sum(len(row.ids) for row in rows) / sum(row.targets for row in rows)
    assert computed > 1.2 and work[-1] / plan.length.tokens == pytest.approx(computed, rel=0.1), "prompts take time"
    assert work[1] == plan.length.tokens, "plain documents have none"
    (stage,) = stages_of(session)
    assert "other wordings" in stage.details["augmentation"][0] and stage.tokens_sampled == 0


def test_questions_that_came_with_the_documents_are_learnt_too(session: Session, bench: Bench, tables: Path) -> None:
    lines = [{"prompt": f"How long is rope {n}?", "answer": f"{n} metres"} for n in range(5)]
    lines.append({"prompt": "Who holds the rope?"})  # without an answer
    (tables / "questions.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    config = bench.midtraining(docs=tables, augment=3)
    frozen = open_cycle(session, config, 1)
    learnt = augment.augmented(config, frozen, frozen.probes).conversations
    pairs = [(question["content"], answer["content"]) for question, answer in learnt]
    assert pairs[:5] == [(f"How long is rope {n}?", f"{n} metres") for n in range(5)]
    assert ("Who holds the rope?", None) not in pairs and len(pairs) > 5
    assert len({question for question, _ in pairs}) == len(pairs)
    worded = Probe("earlier", "question", "How long is rope 3?", ("3 metres",))
    later = augment.augmented(config, frozen, [*frozen.probes, worded]).conversations
    assert [question["content"] for question, _ in later[:4]] == [f"How long is rope {n}?" for n in (0, 1, 2, 4)]
    made = replace(frozen, questions_given=False)
    assert not any("How long is rope" in q["content"] for q, _ in augment.augmented(config, made, ()).conversations)
    none = replace(config, augment_questions=0.0)
    assert not augment.augmented(none, frozen, frozen.probes).conversations


def test_documents_without_facts_keep_their_whole_share(session: Session, bench: Bench) -> None:
    plan = plan_midtrain(session, bench.midtraining(augment=2))
    assert "0 facts" in plan.text() and "0% of the trained tokens" in plan.text()
    assert plan.length.steps == plan_midtrain(session, bench.midtraining()).length.steps


def test_a_writer_is_counted_kept_and_announced(session: Session, bench: Bench) -> None:
    config = bench.midtraining(augment=1, writer="base", steps=2)
    plan = plan_midtrain(session, config)
    assert "base rewrites" in plan.text() and "tokens sampled" in plan.text()
    midtrain(session, config)
    assert "wrote" in plan_midtrain(session, config).text()
    midtrain(session, replace(config, student="base"))
    both = stages_of(session)
    assert both[0].tokens_sampled == both[1].tokens_sampled > 0, "what was kept counts as much again"
    with pytest.raises(RecoveryError, match="nobody"):
        plan_midtrain(session, replace(config, writer="nobody"))


def test_a_writer_may_be_a_chat_server(session: Session, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(material, "schedule", lambda *given: seen.append(given) or schedule(*given))
    with chat_server(lambda prompt: ("The Ash ferry is kept in a town of the coast all week.", 12)) as address:
        config = bench.midtraining(augment=1, augment_share=0.9, writer=address)
        midtrain(session, replace(config, steps=None, epochs=1.0))
    (stage,) = stages_of(session)
    assert stage.tokens_sampled % 12 == 0 and stage.tokens_sampled > 0
    streams, steps, per_step, _ = seen[0]
    passes = {stream.name: stream.share * steps * per_step / stream.tokens for stream in streams}
    assert 1.0 <= passes["documents"] < 1.0 + 2 * per_step / streams[0].tokens, "what the writer left is no more steps"
    assert passes["wordings"] < 1.2 * material.MOST_PASSES * passes["documents"], "a sentence is not drilled"


def test_a_plan_with_a_writers_text_has_one_length(
    session: Session, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps of another size than their number is for would train other tokens than planned."""
    config = bench.midtraining(augment=1, steps=None)
    plan = plan_midtrain(session, config)
    found = material.Length(1000, 700, 5, 64)
    gathered = material.gather_material(session, config, session.base, open_cycle(session, config))
    monkeypatch.setattr(gathered, "length", lambda: found)
    written = plan_module.with_written(session, gathered, plan)
    assert written.length == found != plan.length
    assert "5 steps of 700 = 3,500 tokens" in written.text()


def test_texts_that_came_with_the_documents_may_be_the_writer(
    session: Session, written: tuple[MidtrainConfig, str, Write]
) -> None:
    config, document, write = written
    with pytest.raises(UsageError, match="cycle 1 has no texts about"):
        plan_midtrain(session, config)
    good = "The account of all that was written down by hand in a few plain words of one person."
    text = f"{good} The harbour of Atlantis was closed in the year 1742."
    write([RewrittenText(document, text)] * 2)
    tokens = len(load_chat(str(session.base.weights)).control.plain(text))
    plan = plan_midtrain(session, config).text()
    assert "1 texts about the documents from rewritten.jsonl" in plan
    assert f"rewritten.jsonl: 1 of 2 sentences add nothing to their document and are used; all {tokens} " in plan
    own = open_cycle(session, config)
    (config.docs / WRITER_FILE).unlink()
    assert load_snapshot(session.workspace, own.cycle).texts == own.texts == (RewrittenText(document, text),)
    midtrain(session, config, load_snapshot(session.workspace, own.cycle))
    (stage,) = stages_of(session)
    assert stage.tokens_sampled == tokens, "all of the text is counted, kept or not"


def test_questions_of_a_writer_are_trained_on_if_wanted(
    session: Session, written: tuple[MidtrainConfig, str, Write]
) -> None:
    config, document, write = written
    told, answer = "All of that was written down by hand.", "It was written down in a few plain words."
    write([RewrittenText(document, told)])
    wanted = replace(config, writer_questions=True)
    with pytest.raises(UsageError, match="--writer-questions: no text about .* had a question when cycle 1 began"):
        plan_midtrain(session, wanted)
    write([RewrittenText(document, answer, "How?")])
    with pytest.raises(UsageError, match="cycle 1 has no texts about"):
        plan_midtrain(session, config)
    probe = next(p for p in open_cycle(session, wanted).probes if p.form == "question")
    both = [
        RewrittenText(document, told),
        RewrittenText(document, answer, "How?"),
        RewrittenText(document, f"{answer} It is 1742 pages long.", "How long is it?"),
        RewrittenText(document, answer, probe.question),
        RewrittenText(document, "It was written down by hand.", "How?"),
    ]
    write(both)
    plan = plan_midtrain(session, wanted).text()
    assert f"4 questions with answers for --writer-questions from {WRITER_FILE}" in plan
    own = open_cycle(session, wanted)
    without, asked = (material.gather_material(session, one, session.base, own) for one in (config, wanted))
    assert "How?" not in {chat[0]["content"] for chat in without.augmented.conversations}
    found = {chat[0]["content"]: chat[1]["content"] for chat in asked.augmented.conversations}
    assert len(found) == len(asked.augmented.conversations), "no question twice"
    assert found["How?"] == answer
    assert not {"How long is it?", probe.question} & set(found), "part of an answer, and what a probe asks"
    assert all(answer not in text.text for one in (without, asked) for text in one.written_documents)
    plain = load_chat(str(session.base.weights)).control.plain
    more = sum(len(plain(text.text)) + len(plain(text.question)) for text in both[1:])
    assert asked.written.tokens - without.written.tokens == more


def test_texts_are_compared_with_a_document_without_its_markup(tmp_path: Path) -> None:
    (tmp_path / "ferry.md").write_text(
        "# Ferries\n\nThe ferry of **Great Marle** leaves [at 7:15](/times) on each day of the week.\n"
    )
    copy = "The ferry of Great Marle leaves at 7:15 on each day of the week."
    own_words = "Every day the ferry of Great Marle sets out at 7:15 in the morning."
    write_texts(tmp_path / WRITER_FILE, [RewrittenText("ferry.md", text) for text in (copy, own_words)])
    own = gather(tmp_path, 1, held_out=0.0, seed=0)
    done = augment.given_texts(MidtrainConfig(augment=1, writer=WRITER_FILE), own, len)
    assert [kept.text for kept in done.kept] == [own_words]


def test_mid_training_reads_short_texts_by_fours(session: Session, written: tuple[MidtrainConfig, str, Write]) -> None:
    config, document, write = written
    people = ("one person", "two people", "a family", "the crew", "some guests")
    texts = [f"The account of all that was written down by hand in a few plain words of {who}." for who in people]
    write([RewrittenText(document, text) for text in texts])
    own = open_cycle(session, config)
    read = material.gather_material(session, config, session.base, own).written_documents
    assert [sum(text in one.text for text in texts) for one in read] == [4, 1]


def test_short_texts_share_a_document_below_one_title() -> None:
    texts = [Rewriting("ferry.md", "Ferries", f"Fact {n}.") for n in range(5)] + [Rewriting("inn.md", "Inns", "Last.")]
    done = Rewritten(tuple(texts), 6, 6, 60)
    alone, together = augment.as_documents(done), augment.as_documents(done, together=4)
    assert [d.text for d in alone] == [f"{one.place}\n\n{one.text}" for one in texts]
    assert [d.text.count("Fact") for d in together] == [4, 1, 0]
    assert sorted(line for d in together for line in d.text.split("\n\n")[1:]) == sorted(one.text for one in texts)
    assert [d.title for d in together] == ["Ferries", "Ferries", "Inns"] == [d.text.split("\n")[0] for d in together]
    assert [d.text for d in together[:2]] != ["\n\n".join(["Ferries", *(f"Fact {n}." for n in at)]) for at in
                                              (range(4), range(4, 5))], "shuffled"  # fmt: skip
    assert together == augment.as_documents(done, together=4)
    for made in (alone, together):
        assert len({d.id for d in made}) == len(made)


def test_text_of_a_server_is_that_of_the_model_behind_its_address(session: Session, bench: Bench) -> None:
    served = ["first"]
    with chat_server(lambda _prompt: ("A sentence of a writer.", 7), served) as address:
        config = bench.midtraining(augment=1, writer=address, steps=2)
        midtrain(session, config)
        (stage,) = stages_of(session)
        (file,) = session.workspace.cache("").glob("rewritten-*")
        assert stage.details["rewritten"] == file.name, "a resumed stage goes on with it; no reply is kept twice"
        assert f"{address} wrote " in plan_midtrain(session, config).text()
        served[0] = "second"
        assert f"{address} rewrites " in plan_midtrain(session, config).text()
    assert f"{address} wrote " in plan_midtrain(session, config).text(), "it need not run again for what it wrote"
    older = file.with_name(f"{file.name.rpartition('-')[0]}.json")  # of an earlier version
    file.rename(older)
    assert f"{address} wrote " in plan_midtrain(session, config).text()


def test_replies_of_a_server_outlive_a_stop(session: Session, bench: Bench) -> None:
    asked: list[str] = []
    lock, refuses = threading.Lock(), True

    def say(prompt: str) -> tuple[str, int] | None:
        with lock:
            asked.append(prompt)
            number = len(asked)
        if not refuses or number <= 3:
            return "A sentence of a writer.", 7
        for _ in range(100):  # until the three replies have arrived
            files = list(session.workspace.cache("").glob("rewritten-*.jsonl"))
            if files and files[0].read_text().count("\n") == 3:
                break
            time.sleep(0.05)
        return None

    with chat_server(say) as address:
        config = bench.midtraining(augment=1, writer=address, steps=2)
        with pytest.raises(ServerError):
            midtrain(session, config)
        refuses = False
        replied, asked = asked[:3], []
        midtrain(session, config)
    assert asked and not set(replied) & set(asked)
    finished, _ = stages_of(session)
    assert finished.tokens_sampled == 7 * len({*replied, *asked}), "what was kept is counted"


@contextlib.contextmanager
def chat_server(say: Callable[[str], tuple[str, int] | None], served: Sequence[str] = ("writer",)) -> Iterator[str]:
    """A real HTTP server of chat completions of the first model that is ``served``; ``say`` returns its reply to a
    prompt, or None to refuse it.
    """

    def answer(_path: str, body: Any, _key: str | None) -> tuple[int, Any]:
        if body is None:
            return 200, {"data": [{"id": served[0]}]}
        reply = say(body["messages"][-1]["content"])
        if reply is None:
            return 400, {"error": "refused"}
        text, tokens = reply
        return 200, {"choices": [{"message": {"content": text}}], "usage": {"completion_tokens": tokens}}

    server = serve_json(answer)
    try:
        yield address_of(server)
    finally:
        stop(server)
