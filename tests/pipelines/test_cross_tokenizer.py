"""Distillation from a teacher with another tokenizer: from the plan to the curves, resume, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from pipelines.cycle import resume
from pipelines.distillation.plan import other_tokenizers, plan_distill
from pipelines.distillation.resolve import resolve
from pipelines.distillation.stage import distill, teacher_metrics
from pipelines.runtime.model_loading import load_frozen
from pipelines.runtime.session import Session, StageInterrupted
from recovery.batching import Row, collate
from recovery.config import DistillConfig
from recovery.data.prompts import behaviour_prompts
from recovery.errors import ModelError, UsageError
from recovery.losses.config import LossConfig
from recovery.losses.objective import DistillationObjective
from recovery.losses.terms import Outcomes
from recovery.models.chat_loading import load_chat
from recovery.models.loaded import Loaded
from recovery.models.loading import load_model
from recovery.teachers.cross_tokenizer import CrossTokenizer
from recovery.teachers.teacher import LocalTeacher
from recovery.types import Message
from recovery.workspace import Checkpoint
from tests.models import OTHER_TEXT
from tests.pipelines.conftest import MakeTiny, OpenSession, curves_of


def sharpened(folder: Path, factor: float = 4.0) -> Path:
    """A random model has nearly uniform outputs: scaled weights make some tokens likely."""
    model = AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(factor)
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def other(make_tiny: MakeTiny, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama with a tokenizer of other text: another template, other pieces, another end of a turn."""
    folder = tmp_path_factory.mktemp("other") / "other"
    return sharpened(make_tiny("llama", folder, seed=3, text=OTHER_TEXT, vocabulary=400))


@pytest.fixture
def config(distill_config: DistillConfig, other: Path) -> DistillConfig:
    return replace(distill_config, teacher=str(other), alarm=False, check_every=1)


def test_the_student_approaches_a_teacher_that_writes_other_tokens(session: Session, config: DistillConfig) -> None:
    longer = replace(
        config, steps=12, prompts_per_step=8, samples_per_prompt=4, max_new_tokens=12, lr=5e-3, checkpoint_every=12
    )
    plan = plan_distill(session, longer)
    assert "the teacher external/other has another tokenizer, with 2" in plan.text()
    assert "of the student's 448 tokens: responses are aligned" in plan.text()
    assert plan.memory.memory.held["teachers"] > 0
    distill(session, longer)
    found = curves_of(session)
    assert sum(found["reverse_kl"][-4:]) < 0.8 * sum(found["reverse_kl"][:4])
    shares = [found[f"aligned_{name}"] for name in ("one_to_one", "merged", "left_out")]
    for single, merged, left_out in zip(*shares, strict=True):
        assert single + merged + left_out == pytest.approx(1.0)
        assert single > 0.2 and merged > 0.2 and left_out == pytest.approx(0.0)
    assert all(count > 0 for count in found["tokens_scored"])


@pytest.fixture
def twice(config: DistillConfig) -> DistillConfig:
    return replace(config, batch_epochs=2)


@pytest.fixture
def stopped(open_session: OpenSession, twice: DistillConfig) -> Iterator[Session]:
    """A workspace whose stage was stopped after its third step."""
    with open_session(name="stopped") as session:

        def stop(step: int, *_: object) -> dict[str, float]:
            session.interrupts.requested = step == 3
            return {}

        with pytest.raises(StageInterrupted):
            distill(session, twice, observe=stop)
        yield session


def test_a_stopped_stage_ends_with_the_same_weights(
    stopped: Session, open_session: OpenSession, twice: DistillConfig
) -> None:
    """It was stopped between two updates on one batch, whose rows and spans are in its state."""
    resume(stopped)
    with open_session(name="whole") as session:
        whole = distill(session, twice)
        assert {"ratio", "clipped"} <= curves_of(session).keys(), "the second update weighs tokens by importance"
        assert stopped.resolve("latest").hash == whole.hash
        assert curves_of(stopped)["reverse_kl"] == curves_of(session)["reverse_kl"]


def test_a_teacher_that_writes_other_tokens_does_not_score_document_text(
    session: Session, config: DistillConfig
) -> None:
    resolved = resolve(session, config, None)
    scored = replace(
        resolved,
        teachers={},
        knowledge=resolved.teacher,
        config=replace(config, knowledge_teacher=config.teacher, document_loss=0.3, document_teacher=True),
    )
    chat = load_chat(str(resolved.student.weights))
    with pytest.raises(UsageError, match="another tokenizer than the student, which --document-teacher excludes"):
        other_tokenizers(scored, chat)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"divergence": "top_k", "top_k": 5}, "which --divergence top_k cannot compare"),
        ({"divergence": "sampled"}, "which --divergence sampled cannot compare"),
        ({"alpha": 0.5, "answers": "teacher"}, "--alpha 0.5 excludes"),
        ({"continuation": 4}, "--continuation cannot use"),
        ({"temperature": 0.7}, "--temperature 0.7 excludes"),
        ({"teacher": "base=0.5,OTHER=0.5"}, "several weighted teachers cannot have"),
    ],
)
def test_settings_that_need_the_same_tokens_are_refused_in_the_plan(
    session: Session, config: DistillConfig, make_tiny: MakeTiny, tmp_path: Path, changed: dict[str, Any],
    message: str,
) -> None:  # fmt: skip
    if "teacher" in changed:
        changed = {"teacher": changed["teacher"].replace("OTHER", config.teacher)}
        config = replace(config, student=str(make_tiny("qwen3", tmp_path / "student", seed=5)))
    with pytest.raises(UsageError, match=message) as error:
        plan_distill(session, replace(config, **changed))
    assert "has another tokenizer than the student" in str(error.value) and "\n" not in str(error.value)


def test_a_template_that_cannot_read_the_prompts_is_refused_in_the_plan(
    session: Session, config: DistillConfig, make_tiny: MakeTiny, tmp_path: Path
) -> None:
    bare = make_tiny("llama", tmp_path / "bare", template=False, text=OTHER_TEXT)
    with pytest.raises(ModelError, match="the teacher external/bare has another tokenizer and no chat template"):
        plan_distill(session, replace(config, teacher=str(bare)))
    # A second turn after a response is a form of its own, which this template refuses.
    once = make_tiny("llama", tmp_path / "once", text=OTHER_TEXT)
    template = (once / "chat_template.jinja").read_text()
    refusing = "{% if messages | length > 1 %}{{ raise_exception('one message only') }}{% endif %}"
    (once / "chat_template.jinja").write_text(refusing + template)
    with pytest.raises(ModelError, match="the teacher external/once cannot read a prompt: .*one message only"):
        plan_distill(session, replace(config, teacher=str(once)))


def test_too_few_aligned_tokens_stop_the_run(session: Session, config: DistillConfig, other: Path) -> None:
    """A teacher that reads all text in capitals spells almost nothing as the student does."""
    tokenizer = json.loads((other / "tokenizer.json").read_text())
    upper = {"type": "Sequence", "normalizers": [{"type": "Replace", "pattern": {"Regex": "[a-z]"}, "content": "A"}]}
    shouting = other.parent / "shouting"
    if not shouting.is_dir():
        shouting.mkdir()
        for file in other.iterdir():
            (shouting / file.name).write_bytes(file.read_bytes())
        (shouting / "tokenizer.json").write_text(json.dumps(tokenizer | {"normalizer": upper, "truncation": None}))
        vocabulary = json.loads((shouting / "tokenizer.json").read_text())
        assert vocabulary["normalizer"] == upper
    message = "of the response tokens align with tokens of external/shouting, below --min-aligned 0.9"
    with pytest.raises(UsageError, match=message):
        distill(session, replace(config, teacher=str(shouting)))
    distill(session, replace(config, teacher=str(shouting), min_aligned=0.0, steps=1))
    assert curves_of(session)["aligned_left_out"][0] > 0.1


def rows_of(chat: Any, cross: CrossTokenizer | None) -> list[Row]:
    asked = [Message(role="user", content="Name a boat.")]
    made = []
    for text in ("The small boat is green.", "Two words"):
        response = [*chat.encode(text), chat.tokenizer.convert_tokens_to_ids("<|im_end|>")]
        context = chat.prompt_ids(asked)
        row = Row([*context, *response], [False] * len(context) + [True] * len(response), teacher="base")
        if cross is not None:
            found = cross.spelled(asked, response)
            spans = [(a + len(context), b + len(context), c, d) for a, b, c, d in found.spans]
            row = replace(row, teacher_ids=found.ids, spans=spans)
        made.append(row)
    return made


def slopes(student: Loaded, teacher: LocalTeacher, rows: list[Row], outcomes: Outcomes | None, name: str) -> list[Any]:
    given = {} if outcomes is None else {"base": outcomes}
    objective = DistillationObjective({"base": teacher}, LossConfig(divergence=name), outcomes=given)
    output = objective(student, collate(rows, student.chat.pad_id))
    weights = list(student.trainable().values())
    return [output.loss.detach(), *torch.autograd.grad(output.loss, weights)]


@pytest.mark.parametrize("name", ["reverse_kl", "forward_kl", "jsd"])
def test_equal_tokenizers_give_the_ordinary_loss(make_tiny: MakeTiny, tmp_path: Path, name: str) -> None:
    """Through the alignment, and with heads padded to another size, as far as the padding is improbable."""
    folders = [sharpened(make_tiny("qwen3", tmp_path / str(seed), seed=seed, vocab_size=448)) for seed in (1, 2)]
    student, base = (
        load_model(folders[0], tuning="full", precision="float32"),
        load_model(folders[1], precision="float32"),
    )
    cross = CrossTokenizer(student.chat, base.chat, "itself", 512)
    first, second, count = cross.outcomes(448, 448)
    outcomes = Outcomes(torch.tensor(first), torch.tensor(second), count)
    ordinary = slopes(student, LocalTeacher(base), rows_of(student.chat, None), None, name)
    aligned = slopes(student, LocalTeacher(base), rows_of(student.chat, cross), outcomes, name)
    for ours, theirs in zip(aligned, ordinary, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4 * float(theirs.abs().max()))


@pytest.mark.parametrize(
    ("student", "changed"),
    [
        (512, {"teacher": "640=0.5,704=0.5"}),
        (448, {"teacher": "640", "anchor": 0.1, "divergence": "top_k", "top_k": 5}),
        pytest.param(512, {"teacher": "640"}, marks=pytest.mark.slow),
        pytest.param(512, {"teacher": "640", "divergence": "top_k", "top_k": 5}, marks=pytest.mark.slow),
        pytest.param(448, {"teacher": "640", "anchor": 0.1}, marks=pytest.mark.slow),
        pytest.param(448, {"teacher": "base", "divergence": "top_k", "top_k": 5}, marks=pytest.mark.slow),
    ],
)
def test_heads_of_one_tokenizer_may_be_padded_differently(
    session: Session, config: DistillConfig, make_tiny: MakeTiny, tmp_path: Path, student: int, changed: dict[str, Any]
) -> None:
    """As Qwen's 151,936 and 152,064 entries; base has 512."""
    paths = {
        size: sharpened(make_tiny("qwen3", tmp_path / str(size), seed=seed, vocab_size=size))
        for seed, size in ((4, 640), (6, 704), (7, 448))
    }
    teacher = changed["teacher"]
    for size, path in paths.items():
        teacher = teacher.replace(str(size), str(path))
    own = str(paths[student]) if student in paths else "base"
    config = replace(config, **(changed | {"teacher": teacher, "student": own, "token_views": 1, "steps": 1}))
    assert "another tokenizer" not in plan_distill(session, config).text()
    distill(session, config)
    found = curves_of(session)
    assert len(found[config.divergence]) == 1 and not [name for name in found if name.startswith("aligned")]


def test_the_alarm_compares_figures_in_the_students_tokens(
    session: Session, config: DistillConfig, other: Path
) -> None:
    loaded = load_frozen(session.base, config)
    teacher = load_frozen(Checkpoint("other", "external", other, "", other), config)
    prompts = behaviour_prompts(count=10).train
    ask = teacher_metrics([LocalTeacher(teacher)], config, prompts, loaded, None, lambda _text: None)
    found = ask()
    assert set(found) == {"response_length", "end_rate", "entropy"} and min(found.values()) >= 0
    assert found["response_length"] > config.max_new_tokens, "the teacher's tokens are longer than the student's"
