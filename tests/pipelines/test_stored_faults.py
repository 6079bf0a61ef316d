"""Stages that faults of earlier releases touched, as `recover doctor` names them."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from pipelines.cli import doctor
from pipelines.data.corpus_reading import gather
from pipelines.data.corpus_snapshot import save_snapshot
from pipelines.runtime.session import DATA_RULES, Session
from pipelines.runtime.stage import running
from pipelines.stored_faults import judge
from recovery.config import DistillConfig, MidtrainConfig
from recovery.data.corpus.documents import Document
from recovery.data.corpus.holdout import PART
from tests.pipelines.conftest import OpenSession

THOUGHT = r"'<think>\n\n</think>\n\n', which the template writes before an answer, was a label"
CHATS = [
    {"system": "Be kind.", "conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Yes."}]},
    {"instruction": "And?", "output": "No.", "history": [["Hi", "Yes."]]},
    {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes.", "weight": 0}]},
    {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes."}]},
]


@pytest.fixture
def chats(tmp_path: Path) -> Path:
    path = tmp_path / "chats.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in CHATS))
    return path


def stored(session: Session, kind: str, config: Any, rules: int | None = None) -> None:
    """Record a stage, as a release without rules for its data did."""
    with running(session, kind, config, student=session.base) as stage:
        stage.describe(**{DATA_RULES: rules})


def found(session: Session) -> list[tuple[int, str, str]]:
    return [(one.stage.id, one.fault, one.sure) for one in judge(session.registry).touched]


def test_labels_that_were_no_answers_are_told_from_the_template_and_the_settings(session: Session, chats: Path) -> None:
    plain = chats.with_name("plain.jsonl")
    plain.write_text(json.dumps(CHATS[-1]) + "\n")
    off = {"template_args": {"enable_thinking": False}}
    given = {"answers": "given", "alpha": 0.0, "data": plain}
    for kind, config in [
        ("midtrain", MidtrainConfig(augment=4)),
        ("midtrain", MidtrainConfig(replay=0.3, replay_data=plain)),
        ("distill", DistillConfig(**given)),
        ("midtrain", MidtrainConfig()),
        ("midtrain", MidtrainConfig(replay=0.3)),  # in the clean model's own tokens
        ("midtrain", MidtrainConfig(augment=4, **off)),
        ("distill", DistillConfig()),
    ]:
        stored(session, kind, config)
    stored(session, "midtrain", MidtrainConfig(augment=4), rules=2)
    assert found(session) == [
        (1, f"{THOUGHT} in the questions and descriptions of --augment 4", "certain"),
        (2, f"{THOUGHT} in the chats that it imitates", "likely"),
        (3, f"{THOUGHT} in the chats that it imitates", "likely"),
    ]
    assert judge(session.registry).stages == 7


def test_a_model_whose_template_writes_nothing_before_an_answer_has_no_such_labels(
    open_session: OpenSession, tiny_llama: Path
) -> None:
    with open_session(model=tiny_llama) as session:
        stored(session, "midtrain", MidtrainConfig(augment=4))
        assert not found(session)


def test_misread_fields_are_counted_while_the_file_is_there(session: Session, chats: Path) -> None:
    off = {"template_args": {"enable_thinking": False}}
    stored(session, "midtrain", MidtrainConfig(replay=0.3, replay_data=chats, **off))
    stored(session, "distill", DistillConfig(prompts=chats, **off))
    said = f"fields of {chats} were not read as they are meant, in so many records: "
    assert found(session) == [
        (1, f"{said}system (1), history (1), weight 0 (1)", "certain"),
        (2, f"{said}system (1), history (1)", "certain"),
    ]
    chats.write_text(json.dumps(CHATS[-1]) + "\n")
    judged = judge(session.registry)
    assert not judged.touched and judged.unknown == dict.fromkeys((1, 2), f"{chats} was changed since")
    chats.unlink()
    assert judge(session.registry).unknown == dict.fromkeys((1, 2), f"{chats} is gone")


@pytest.mark.parametrize("part", ["", PART])
def test_held_out_text_that_was_trained_on_in_another_version_is_found(session: Session, part: str) -> None:
    """The third version is like the second alone, which is held out; the fourth is like none."""
    words = [f"pier{n}" for n in range(200)]
    versions = [" ".join([*words[:n], *(f"quay{n}-{k}" for k in range(6)), *words[n + 6 :]]) for n in (0, 60)]
    apart = " ".join(f"crane{n}" for n in range(200))
    texts = {"first": " ".join(words), "second": versions[0], "other": apart}
    documents = [Document(name, name, text, name) for name, text in texts.items()]
    third = " ".join(word if not 150 <= n < 156 else f"mole{n}" for n, word in enumerate(versions[0].split()))
    held = [Document(f"third{part}", "third", third, "third"), Document(f"alone{part}", "alone", apart[::-1], "alone")]
    own = gather(write(session, documents), 1, held_out=0.0, seed=0)
    save_snapshot(session.workspace, replace(own, documents=tuple(documents), held_out=tuple(held)))
    session.cycle_id(1)
    with running(session, "midtrain", MidtrainConfig(), cycle=1, student=session.base) as stage:
        stage.describe(**{DATA_RULES: None})
    ((_, fault, sure),) = found(session)
    assert (fault, sure) == ("held-out text was trained on in another version: third", "certain")
    shutil.rmtree(session.workspace.corpus(1))
    assert judge(session.registry).unknown == {1: "the documents of cycle 1 are gone"}


def write(session: Session, documents: list[Document]) -> Path:
    folder = session.workspace.folder.with_name("docs")
    folder.mkdir()
    for document in documents:
        (folder / f"{document.id}.txt").write_text(document.text)
    return folder


def test_the_doctor_names_stages_of_a_model_without_words_and_counts_what_it_cannot_judge(
    open_session: OpenSession, tiny_model: Path, tmp_path: Path
) -> None:
    model = shutil.copytree(tiny_model, tmp_path / "model")
    with open_session(model=model) as session:
        stored(session, "midtrain", MidtrainConfig())
        workspace = session.workspace
    core = Tokenizer(WordLevel({"<unk>": 0, "<|im_end|>": 1}, unk_token="<unk>"))
    PreTrainedTokenizerFast(tokenizer_object=core, unk_token="<unk>", eos_token="<|im_end|>").save_pretrained(model)
    stage, whole = doctor.look_at_stages(workspace)
    assert (stage.name, stage.state) == ("stage 1", "note")
    assert f"midtrain: the tokenizer in {model} makes only <unk> of ordinary text" in stage.line
    assert stage.line.endswith("(certain)") and stage.advice == "complete the model's files, and train it again"
    assert whole.line == "1 stages of earlier releases, 1 touched by faults"
    shutil.rmtree(model)
    (whole,) = doctor.look_at_stages(workspace)
    assert whole.line.endswith("1 cannot be judged in full (1: the folder of its model is gone)")
