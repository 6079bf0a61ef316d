"""The distillation stage: routing of teachers, stopping rules, checkpoints."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from db import queries
from pipelines.data.corpus_reading import gather
from pipelines.data.corpus_snapshot import load_snapshots
from pipelines.data.document_rows import document_rows
from pipelines.data.mixing import choose
from pipelines.distillation import plan as plan_module
from pipelines.distillation.early_stopping import EarlyStopping, StoppingState, on_plateau
from pipelines.distillation.plan import make_plan, plan_distill
from pipelines.distillation.resolve import (
    EARLIER_QUESTIONS_TAG,
    _as_many_as_there_are,
    _development,
    resolve,
    resolve_planned,
)
from pipelines.distillation.stage import build_pools, distill, model_specs, teacher_metrics
from pipelines.midtraining.stage import midtrain
from pipelines.planning.tuning import teacher_footprint
from pipelines.planning.work import answer_tokens, distilling_work
from pipelines.runtime.model_group import StepInstrumentation
from pipelines.runtime.model_loading import load_frozen, load_student, self_teacher, teacher_of
from pipelines.runtime.session import Session
from recovery import distributed
from recovery.batching import Row, collate
from recovery.config import WRITER_FILE, DistillConfig, MidtrainConfig, build
from recovery.data.corpus.folder import read_corpus
from recovery.data.prompts import behaviour_prompts
from recovery.data.rewritten_texts import RewrittenText, write_texts
from recovery.errors import CheckpointError, UsageError
from recovery.inference_server import InferenceServer
from recovery.losses.config import LossConfig
from recovery.losses.objective import (
    DOCUMENTS,
    EARLIER_DOCUMENTS,
    KNOWLEDGE,
    LABEL,
    MAIN_TEACHER,
    DistillationObjective,
)
from recovery.methods import METHODS
from recovery.models.loading import load_model
from recovery.rng import RandomStream
from recovery.teacher_spec import Context
from recovery.teachers.remote import RemoteTeacher
from recovery.teachers.teacher import LocalTeacher, Teacher
from recovery.training.interfaces import TrainSettings
from recovery.types import Message, Prompt
from recovery.workspace import Checkpoint
from tests.pipelines.conftest import Bench, MakeTiny, OpenSession, StepSizes, curves_of, stages_of
from tests.torture.misbehaving import Server, serving


def test_a_student_is_taken_back_towards_its_teacher(session: Session, bench: Bench) -> None:
    bench.midtrain(lr=1e-2, steps=20)
    made = bench.distill(steps=12, lr=5e-3, max_new_tokens=16)
    assert (made.name, made.kind, made.parent) == ("cycle-1/recovered", "recovered", "cycle-1/midtrained")
    stage, curves = stages_of(session)[0], curves_of(session)
    assert sum(curves["reverse_kl"][-4:]) < 0.8 * sum(curves["reverse_kl"][:4])
    for name in ("entropy", "response_length", "end_rate", "gradient_norm", "memory_gib", "tokens_per_second"):
        assert len(curves[name]) == 12, name
    for name in ("seconds_generating", "seconds_scoring", "seconds_training", "tokens_sampled", "tokens_scored"):
        assert min(curves[name]) >= 0, name
    assert stage.tokens_sampled == stage.tokens_scored > 0
    shown = queries.token_numbers(session.tracker.database, stage.id)
    assert [row.step for row in shown if row.step in (1, 3, 12)] == [1] * 4 + [12] * 4
    for row in shown:
        view = queries.rollout(session.tracker.database, row.id)
        assert {len(entries) for entries in view.values.values()} == {len(view.tokens)}
        assert "boat" in view.prompt or "word" in view.prompt
        assert all(len(top) == 5 for top in view.values["teacher_top"])


@pytest.mark.parametrize("recovery", ["documents", pytest.param("none", marks=pytest.mark.slow)])
def test_the_documents_tokens_alone_change_their_embeddings_and_in_mid_training_alone(
    session: Session, bench: Bench, recovery: str
) -> None:
    def embedding(checkpoint: Checkpoint) -> torch.Tensor:
        return load_model(checkpoint.weights, precision="float32", device="cpu").embeddings()[0].detach()

    mixed = bench.midtraining(embeddings="documents", replay=0.3, max_new_tokens=160)
    trained = midtrain(session, mixed)
    chat = load_model(session.base.path, device="cpu").chat
    corpus = load_snapshots(session.workspace, [1])[1]
    known = {token for ids in document_rows(corpus.documents, chat.tokenizer, 64) for token in ids}
    changed = set((embedding(trained) != embedding(session.base)).any(dim=1).nonzero().flatten().tolist())
    assert len(changed) > len(known) / 2 and changed <= known, "of replayed chat none"
    made = bench.distill(embeddings=recovery, student="midtrained")
    assert torch.equal(embedding(made), embedding(trained)) and made.hash != trained.hash


def test_two_teachers_are_routed_by_prompt_and_documents_can_be_mixed_in(
    session: Session, bench: Bench, midtrained: Checkpoint
) -> None:
    knowing = {"prompts_per_step": 4, "knowledge_teacher": "midtrained", "knowledge_share": 0.5}
    made = bench.distill(**knowing, document_loss=0.3)
    stage = stages_of(session)[0]
    first = {name: values[0] for name, values in curves_of(session).items()}
    assert first["knowledge_kl"] == pytest.approx(0, abs=1e-5), "at first the student is the knowledge teacher"
    assert first["reverse_kl"] > 1e-4
    assert first["label_loss"] > 1
    shown = [row for row in queries.token_numbers(session.tracker.database, stage.id) if row.step == 1]
    assert {row.item.split(", ")[1] for row in shown} == {"base", "knowledge"}, "each row is shown with its own teacher"
    assert stage.config["knowledge_teacher"] == "cycle-1/midtrained", "names are kept resolved"
    again = bench.distill(**knowing, document_loss=0.3, student="midtrained")
    assert again.name == "cycle-1/recovered-2", "what was won before is not written over"
    assert made.path.is_dir()


def test_the_knowledge_teacher_scores_document_text_if_wanted(
    session: Session, bench: Bench, midtrained: Checkpoint
) -> None:
    alone = bench.distilling(prompts_per_step=4, knowledge_share=0.5, document_loss=0.3, document_teacher=True)
    with pytest.raises(UsageError, match="--document-teacher: a knowledge teacher scores the text: add --knowledge"):
        distill(session, alone)
    config = replace(alone, knowledge_teacher="midtrained")
    distill(session, config)
    stage = stages_of(session)[0]
    first = {name: values[0] for name, values in curves_of(session).items()}
    assert first["knowledge_kl"] == pytest.approx(0, abs=1e-5)
    assert first["document_kl"] == pytest.approx(0, abs=1e-5) and "label_loss" not in first
    shown = queries.token_numbers(session.tracker.database, stage.id)
    assert {row.item.split(", ")[1] for row in shown} == {"base", "knowledge"}, "documents are no responses"
    assert stage.tokens_trained > 1.3 * stage.tokens_sampled
    with pytest.raises(UsageError, match="--document-texts: there was no text about .* when cycle 1 began"):
        distill(session, replace(config, document_texts=True))
    with pytest.raises(UsageError, match="no text about the documents had a question when their cycles began"):
        plan_distill(session, replace(config, writer_questions=True))
    resolved = resolve(session, config, None)
    loaded = load_model(session.base.path, device="cpu")
    assert {row.teacher for row in build_pools(resolved, loaded, ()).documents} == {DOCUMENTS}
    later = replace(resolved, cycle=2, experts={EARLIER_QUESTIONS_TAG: midtrained})
    assert {row.teacher for row in build_pools(later, loaded, ()).documents} == {EARLIER_DOCUMENTS}
    settings = TrainSettings(steps=1, lr=1e-4)
    assert model_specs(later, settings).teachers[EARLIER_DOCUMENTS] == {midtrained: 1.0}
    assert EARLIER_DOCUMENTS not in model_specs(resolved, settings).teachers


def test_a_knowledge_teacher_may_score_document_text_alone(
    session: Session, bench: Bench, midtrained: Checkpoint
) -> None:
    usual = bench.distilling(prompts_per_step=4, knowledge_teacher="midtrained")
    config = replace(usual, knowledge_share=0.0, document_loss=0.5, document_teacher=True)
    resolved = resolve(session, config, None)
    assert "cycle-1/midtrained scores a share of" in make_plan(resolved).text()
    unasked = replace(resolved, asked_about={})
    assert "; cycle-1/midtrained scores document text\n" in make_plan(unasked).text()
    footprint = teacher_footprint(resolved.student, resolved.frozen)
    work = distilling_work(config, "full", footprint)
    without = distilling_work(replace(usual, knowledge_share=0.5), "full", footprint)
    answers = answer_tokens(config)
    half = replace(usual, knowledge_share=0.5, alpha=0.5, answers="teacher", prompts_per_step=4, samples_per_prompt=4)
    assert half.rows_per_step == 2 * 4 + 2, (
        "a group for each prompt that the student completes, one response for others"
    )
    mixed = replace(resolved, config=half)
    assert f"steps of {half.rows_per_step} completions" in make_plan(mixed).text()
    assert make_plan(mixed).tokens_sampled == round(answer_tokens(half) * 8 / 10)
    assert (work.trained - without.trained, work.read - without.read) == (answers, answers), "half of the tokens"


def test_document_text_includes_that_of_a_writer_if_wanted(session: Session, bench: Bench) -> None:
    document = read_corpus(bench.docs, held_out=0.05, seed=0).documents[0]
    said = f"Told in short, {' '.join(document.text.split()[3:9])}."
    written = [RewrittenText(document.id, said), RewrittenText(document.id, "No.", "Is it?")]
    write_texts(bench.docs / WRITER_FILE, written)
    bench.midtrain()
    loaded = load_model(session.base.path, device="cpu")

    def text(texts: bool) -> str:
        config = bench.distilling(document_loss=0.3, document_texts=texts)
        rows = build_pools(resolve(session, config, None), loaded, ()).documents
        assert {row.teacher for row in rows} == {LABEL}
        return "".join(loaded.tokenizer.decode(row.ids) for row in rows)

    assert said in text(True) and said not in text(False)
    assert "No." not in text(True), "an answer is no text by itself"


def test_questions_of_a_writer_are_asked_if_wanted(session: Session, bench: Bench) -> None:
    mine = [f"How is {n} told?" for n in range(3)]
    gathered = gather(bench.docs, 1, held_out=0.05, seed=0)
    probed = next(probe.question for probe in gathered.probes if probe.form == "question")
    asking, page = [*mine, probed, gathered.questions[0].text], gathered.documents[0].id
    texts = [RewrittenText(page, "It is told in plain words.", question) for question in asking]
    write_texts(bench.docs / WRITER_FILE, texts)
    bench.midtrain()
    usual = bench.distilling(knowledge_teacher="midtrained", knowledge_share=0.5)
    before = resolve(session, usual, None)
    asked = resolve(session, replace(usual, writer_questions=True), None)
    assert [p.text for p in asked.questions] == [*(p.text for p in before.questions), *mine]
    with pytest.raises(UsageError, match="--writer-questions are asked of a knowledge teacher: add --know"):
        resolve(session, bench.distilling(writer_questions=True), None)


def test_a_recovery_neither_trains_nor_stops_on_the_kinds_that_it_leaves_out(
    session: Session, bench: Bench, midtrained: Checkpoint
) -> None:
    usual = bench.distilling(prompts=Path("composer"), student="midtrained")
    config = replace(usual, without_kinds=("keywords", "punctuation:no_comma"))

    def asked(prompts: Sequence[Prompt]) -> set[str]:
        return {check.instruction for prompt in prompts for check in prompt.checks}

    before, found = resolve(session, usual, None), resolve(session, config, None)
    left = {kind for kind in asked(before.train) if not kind.startswith(("keywords:", "punctuation:"))}
    planned = resolve_planned(session, config, session.resolve("midtrained"), set())
    for prompts in (found.train, found.prompts.development, planned.train):
        assert asked(prompts) == left < asked(before.train)
    assert any("ask for none of keywords, punctuation:no_comma" in note for note in found.notes)


def test_an_adapter_is_taught_on_its_own_base_without_a_second_copy(session: Session, bench: Bench) -> None:
    student = bench.midtrain(tuning="lora")
    config = bench.distilling(tuning="auto")
    loaded = load_student(student, "lora", config)
    assert teacher_of(student, loaded, session.base, config).weights == "base"
    held = {parameter.data_ptr() for parameter in loaded.model.parameters()}
    for taught in (config, *(replace(config, teacher=name, context="rules") for name in ("start", "ema"))):
        own = taught.teacher != "base"
        teacher = self_teacher(student, loaded, taught) if own else teacher_of(student, loaded, student, config)
        assert teacher.own_weights
        new = [name for name, p in teacher.loaded.model.named_parameters() if p.data_ptr() not in held]
        assert new and all("lora_" in name for name in new)
    made = distill(session, replace(config, knowledge_teacher="midtrained", prompts_per_step=4))
    assert made.tuning == "lora"
    assert made.weights == session.base.path


def test_training_starts_from_weights_between_the_student_and_where_it_came_from(
    session: Session, bench: Bench, midtrained: Checkpoint
) -> None:
    student = bench.midtrain(student=midtrained.name, seed=1)
    still = bench.distilling(steps=1, lr=1e-12, tuning="full", student=student.name)
    # Embeddings that are not trained move too.
    made = distill(session, replace(still, blend=0.25, embeddings="none"))
    ends = [load_file(one.path / "model.safetensors") for one in (midtrained, student, made)]
    assert any(not torch.equal(ends[0][name], ends[1][name]) for name in ends[0])
    for name, tensor in ends[2].items():
        torch.testing.assert_close(tensor, 0.75 * ends[0][name] + 0.25 * ends[1][name])
    assert made.parent == student.name
    assert "starts from weights between cycle-1/midtrained and cycle-2/midtrained, 0.25 of the latter" in (
        plan_distill(session, replace(still, blend=0.25)).notes
    )


@pytest.mark.slow
def test_an_adapter_is_blended_by_its_scale_and_then_by_its_change(bench: Bench) -> None:
    student = bench.midtrain(tuning="lora")
    made = bench.distill(steps=1, lr=1e-12, tuning="auto", blend=0.5)
    before, after = (load_file(one.path / "adapter_model.safetensors") for one in (student, made))
    for name, tensor in after.items():
        torch.testing.assert_close(tensor, before[name] * (0.5 if "lora_B" in name else 1.0), atol=1e-9, rtol=0)
    # The next cycle trains the same adapter on: its changes of the weights are blended, not its matrices apart.
    later = bench.midtrain(tuning="lora", student=made.name)
    second = bench.distill(student=later.name, steps=1, lr=1e-12, tuning="auto", blend=0.25)
    start, end, found = (load_file(one.path / "adapter_model.safetensors") for one in (made, later, second))
    apart = {name: torch.lerp(start[name], end[name], 0.25) for name in found}
    for a in (name for name in found if "lora_A" in name):
        was, trained, blended, of_parts = (
            one[a.replace("lora_A", "lora_B")] @ one[a] for one in (start, end, found, apart)
        )
        wanted = torch.lerp(was, trained, 0.25)
        assert (blended - wanted).norm() <= (of_parts - wanted).norm() + 1e-6 * wanted.norm()
        assert (blended - wanted).norm() < 0.1 * (trained - was).norm()


def test_a_new_adapter_for_want_of_memory_starts_from_the_student_itself(
    session: Session, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cycle's recovery may not fit where its mid-training did: it must not end there."""
    student = bench.midtrain(tuning="full")
    config = bench.distilling(steps=1, lr=1e-12, tuning="auto", blend=0.5)
    monkeypatch.setattr("pipelines.planning.tuning.total_memory", lambda _: 10**6)
    plan = plan_distill(session, config)
    assert (plan.tuning, plan.blend) == ("lora", 1.0)
    assert any(note.startswith("starts from cycle-1/midtrained itself: --blend 0.5 moves all") for note in plan.notes)
    with pytest.raises(UsageError, match="frozen below a new LoRA adapter: use --tuning full, or omit it"):
        distill(session, replace(config, tuning="lora"))
    made = distill(session, config)
    (stage,) = stages_of(session, "distill")
    assert made.weights == student.weights and stage.config["blend"] == 1.0
    scales = [tensor.abs().max() for name, tensor in load_file(made.path / "adapter_model.safetensors").items()]
    assert min(scales) < 1e-9, "its second factors are zero: nothing was moved"


def test_scoring_before_the_training_of_a_step_is_no_part_of_its_time() -> None:
    timer = Teacher()
    timer.seconds = 2.0  # a sampled divergence scores while the rows are made
    timed = StepInstrumentation(DistillationObjective({}, LossConfig()), [timer], width=8)
    timed.start(1)
    timer.seconds += 1.0
    timed.take([timed.reading()])
    metrics = {"seconds_training": 5.0}
    timed.account(metrics)
    assert metrics == {"seconds_training": 4.0, "seconds_scoring": 3.0, "tokens_scored": 0.0}


def test_the_alarm_asks_the_teacher_and_not_the_student(session: Session, bench: Bench) -> None:
    student = bench.midtrain(tuning="lora")
    config = bench.distilling(prompts_per_step=8)
    prompts = behaviour_prompts(count=60).train
    loaded = load_student(student, "lora", config)
    notes: list[str] = []
    off = teacher_of(student, loaded, session.base, config)
    clean = load_frozen(session.base, config)
    found = [
        ask()
        for one in (off, LocalTeacher(clean))
        if (ask := teacher_metrics([one], config, prompts, loaded, None, notes.append)) is not None
    ]
    assert found[0] == pytest.approx(found[1], rel=1e-3), "the adapter is off while the teacher speaks"
    assert set(found[0]) == {"response_length", "end_rate", "entropy"} and found[0]["entropy"] > 0
    assert teacher_metrics([], config, prompts, loaded, None, notes.append) is None and len(notes) == 2
    context = Context.of("rules", "Answer with one word, whatever is asked. " * 20)
    ask = teacher_metrics([LocalTeacher(clean)], config, prompts, loaded, context, notes.append)
    assert ask is not None and ask() != found[1], "a teacher with a context answers with it"


def test_the_alarm_asks_a_teacher_on_a_server_and_with_several_processes(
    session: Session, bench: Bench, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the teacher's figures a student that returns to its longer answers counts as collapsed."""
    config = bench.distilling(prompts_per_step=4, temperature=1e-4)
    prompts = behaviour_prompts(count=60).train
    clean = load_frozen(session.base, config)

    def figures(one: Teacher, **other: Any) -> dict[str, float] | None:
        settings = replace(config, **other)
        ask = teacher_metrics([one], settings, prompts, clean, None, lambda _note: None)
        return None if ask is None else ask()

    found = figures(LocalTeacher(clean))
    with serving(Server(tiny_model)) as address:
        server = InferenceServer(address, (), timeout=30.0, patience=5.0)
        remote = RemoteTeacher(server, clean.tokenizer, clean.chat, clean.vocabulary, 5)
        remote.check()
        assert figures(remote) == pytest.approx(found, rel=1e-2)
        server.close()
    monkeypatch.setattr(distributed, "size", lambda: 2)
    assert figures(LocalTeacher(clean)) == found, "the main process has it whole"
    off = LocalTeacher(clean, "base")
    for shard, one in (("full", LocalTeacher(clean)), ("student", off), ("full", off)):
        assert figures(one, shard=shard) is None


MORE: list[dict[str, Any]] = [{"modules_to_save": ["lm_head"]}, {"bias": "all"}, {"init_lora_weights": "pissa"}]


@pytest.mark.parametrize(
    ("odd", "more"),
    [
        *zip(("student", "teacher", "student"), MORE, strict=True),
        *(
            pytest.param(*pair, marks=pytest.mark.slow)
            for pair in zip(("teacher", "student", "teacher"), MORE, strict=True)
        ),
    ],
)
def test_an_adapter_that_is_more_than_lora_shares_nothing(
    make_tiny: MakeTiny, tmp_path: Path, distill_config: DistillConfig, odd: str, more: dict[str, Any]
) -> None:
    """It would change the others' tensors, or lose what it trains."""
    base = make_tiny("llama", tmp_path / "base", attention_bias=True)
    made = {}
    for name in ("student", "teacher"):
        torch.manual_seed(len(name) + len(odd))
        model = AutoModelForCausalLM.from_pretrained(base)
        settings = {"r": 4, "target_modules": ["q_proj"], "task_type": "CAUSAL_LM"} | (more if name == odd else {})
        adapted = get_peft_model(model, LoraConfig(**settings))
        with torch.no_grad():
            for parameter in adapted.parameters():
                if parameter.requires_grad:
                    parameter.add_(torch.randn(parameter.shape) * 0.05)
        adapted.save_pretrained(tmp_path / name)
        made[name] = Checkpoint(name, "external", tmp_path / name, "", base, tuning="lora")
    student, config = made["student"], replace(distill_config, precision="float32")
    batch = collate([Row([5, 6, 7, 8], [True] * 4)], 0)

    def logprobs(teacher: Teacher) -> torch.Tensor:
        return teacher.head.logits(teacher.hidden(batch)).detach()

    loaded = load_student(student, "lora", config)
    trained, before = loaded.trainable().keys(), logprobs(LocalTeacher(loaded, "student"))
    for teacher in (made["teacher"], Checkpoint("base", "base", base, "", base)):
        found = logprobs(teacher_of(student, loaded, teacher, config))
        torch.testing.assert_close(found, logprobs(LocalTeacher(load_frozen(teacher, config))))
    torch.testing.assert_close(logprobs(LocalTeacher(loaded, "student")), before)
    assert loaded.trainable().keys() == trained
    assert teacher_footprint(student, [made["teacher"]], copied=True).others == (2 if odd == "student" else 1)


def test_a_model_degraded_elsewhere_needs_no_mid_training_here(
    open_session: OpenSession, make_tiny: MakeTiny, tiny_model: Path, tmp_path: Path, distill_config: DistillConfig
) -> None:
    student = make_tiny("qwen3", tmp_path / "my-finetune", seed=7)
    with open_session() as session:
        made = distill(session, replace(distill_config, student=str(student), teacher=str(tiny_model)))
        assert made.name == "cycle-1/recovered"
        assert made.parent == "external/my-finetune"


def test_a_teacher_that_was_changed_is_refused(
    open_session: OpenSession,
    tiny_model: Path,
    tmp_path: Path,
    midtrain_config: MidtrainConfig,
    distill_config: DistillConfig,
) -> None:
    model = shutil.copytree(tiny_model, tmp_path / "model")
    with open_session(model) as session:
        midtrain(session, midtrain_config)
        config = json.loads((model / "config.json").read_text())
        (model / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 0.5}))
        with pytest.raises(CheckpointError, match="changed since it was registered"):
            distill(session, distill_config)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "nothing to recover"),
        ({"student": "elsewhere", "blend": 0.5}, "which is not known: omit it, or name a checkpoint of this workspace"),
        ({"student": "elsewhere", "document_loss": 0.3}, r"--document-loss 0\.3: .*/elsewhere was trained on no doc"),
    ],
)
def test_what_cannot_be_had_of_a_student_without_mid_training_is_refused(
    bench: Bench, make_tiny: MakeTiny, tmp_path: Path, settings: dict[str, Any], message: str
) -> None:
    if "student" in settings:
        settings = settings | {"student": str(make_tiny("qwen3", tmp_path / "elsewhere", seed=7))}
    with pytest.raises(UsageError, match=message):
        bench.distill(**settings)


def test_two_names_of_one_teacher_count_once_with_both_weights(
    session: Session, bench: Bench, midtrained: Checkpoint
) -> None:
    config = bench.distilling(student="base", teacher="midtrained=0.25,latest=0.75")
    found = resolve(session, config, None)
    assert list(found.teachers.values()) == [1.0]
    assert found.config.teacher == "cycle-1/midtrained", "as a resumed stage reads it"


@pytest.mark.parametrize(
    ("newest", "earlier", "settings", "count"),
    [
        (100, 0, {}, 16),  # 3,200 questions are asked: each 32 times
        (99, 0, {}, 15),
        (5, 0, {}, 1),  # 0.8 a step
        (5, 0, {"steps": 10}, 16),  # the whole run asks 160
        (0, 0, {}, 16),  # nobody asks
        (10, 90, {}, 16),  # drawn from all alike
        (50, 200, {"earlier_share": 0.5}, 16),
        (10, 200, {"earlier_share": 0.5}, 3),  # half of 600 about the ten
        (200, 10, {"earlier_share": 0.5}, 3),
        (10, 0, {"earlier_share": 0.5}, 1),
        (10, 0, {"batch_epochs": 2}, 3),
    ],
)
def test_a_handful_of_questions_does_not_fill_half_of_the_prompts(
    newest: int, earlier: int, settings: dict[str, Any], count: int
) -> None:
    notes: list[str] = []
    config = DistillConfig(knowledge_teacher="midtrained", knowledge_share=0.5, **{"steps": 200, **settings})
    found = _as_many_as_there_are(config, newest, earlier, notes)
    assert found.questions_per_step == count
    assert [f"{newest + earlier} questions about" in note for note in notes] == [True] * (count < 16)
    assert _as_many_as_there_are(found, newest, earlier, []) == found, "a resumed run goes on as it began"


def test_too_few_prompts_to_decide_are_said_in_the_plan(session: Session, bench: Bench, midtrained: Checkpoint) -> None:
    plan = plan_distill(session, bench.distilling(until=0.99, knowledge_teacher="midtrained", prompts_per_step=4))
    assert plan.development_prompts == 0
    assert any("too few to decide --until" in note for note in plan.notes)
    assert "cycle-1/midtrained scores" in plan.text()
    assert f"about {plan.tokens_sampled:,} tokens sampled in all" in plan.text()
    assert "tokens" not in replace(plan, tokens_sampled=0).text().splitlines()[1], "SFT samples none"


def test_the_plan_knows_how_large_a_step_can_be(
    session: Session, bench: Bench, tmp_path: Path, step_sizes: StepSizes
) -> None:
    for split in ("train", "development", "test"):
        lines = [json.dumps({"prompt": f"Name {'a boat, ' * n} of {split}."}) for n in range(12)]
        (tmp_path / f"{split}.jsonl").write_text("\n".join(lines))
    bench.midtrain()
    planned, trained = step_sizes(plan_module, "distilling")
    config = bench.distilling(knowledge_teacher="midtrained", prompts_per_step=6)
    plan_distill(session, config)
    assert planned.pop() is None, "one of its prompts has two turns"
    distill(session, replace(config, prompts=tmp_path))
    most = planned[0]
    assert most is not None and most / 3 < max(trained) <= most
    plan_distill(session, bench.distilling(prompts=tmp_path, continuation=4))
    assert planned[-1] is None, "the teacher's continuations are longer"


def test_turns_that_the_student_completes_are_rendered_with_a_completion_between(
    open_session: OpenSession, make_tiny: MakeTiny, tmp_path: Path, distill_config: DistillConfig
) -> None:
    base, student = (make_tiny("gemma2", tmp_path / str(seed), seed=seed) for seed in (0, 1))
    with open_session(base) as session:  # whose template refuses a user turn after another
        config = replace(distill_config, student=str(student))
        assert plan_distill(session, config).behaviour_prompts == 13
        context = Context.of("rules", "Name no boat.")
        resolved = replace(resolve(session, config, None), context=context)
        assert len(build_pools(resolved, load_model(student, device="cpu"), ()).behaviour) == 13


def test_a_dialogue_with_its_context_has_room_for_every_completion(
    session: Session, bench: Bench, make_tiny: MakeTiny, tmp_path: Path
) -> None:
    loaded = load_model(session.base.path, device="cpu")
    text = loaded.tokenizer.decode(loaded.chat.encode("Name no boat. " * 200)[:400])
    rules = tmp_path / "rules.txt"
    rules.write_text(text, encoding="utf-8")
    asked = {"student": "base", "teacher": "start", "context": "rules", "context_file": rules, "max_new_tokens": 340}
    given = resolve(session, bench.distilling(**asked), None)
    whole = build_pools(replace(given, context=None), loaded, ()).behaviour
    assert {len(p.messages) for p in whole} == {1, 2}
    assert build_pools(given, loaded, ()).behaviour == [p for p in whole if len(p.messages) == 1]
    short = load_model(make_tiny("qwen3", tmp_path / "short", max_position_embeddings=512), device="cpu")
    with pytest.raises(UsageError, match="every prompt, with its context, is longer"):
        build_pools(given, loaded, (), {MAIN_TEACHER: LocalTeacher(short)})


def test_the_smallest_window_decides_what_fits(session: Session, bench: Bench) -> None:
    loaded, address = load_model(session.base.path, device="cpu"), "http://127.0.0.1:9"
    config = bench.distilling(student="base", teacher=address, divergence="top_k", top_k=5)
    short, long, never = (
        (Message(role="user", content="Name a boat. " * n), Message(role="assistant", content="Yes."))
        for n in (1, 60, 400)
    )
    prompts = [Prompt(str(n), turns[:1]) for n, turns in enumerate((short, long, never))]
    resolved = replace(resolve(session, config, None), train=tuple(prompts))
    teacher = RemoteTeacher(InferenceServer(address, ()), loaded.tokenizer, loaded.chat, 512, 5)
    teachers, said = {MAIN_TEACHER: teacher}, list[str]()
    pools = build_pools(resolved, loaded, (short, long, never), teachers, None, said.append)
    assert list(pools.behaviour) == prompts[:2] and list(pools.given) == [short, long], "a server that says no window"
    assert said == [
        "1 of 3 prompts left out: they have more than 1,016 tokens",
        "1 of 3 conversations to imitate left out: they have more than 1,024 tokens",
    ]
    assert build_pools(resolved, loaded, (), {}, SimpleNamespace(window=128)).behaviour == prompts[:1]
    teacher.max_model_len = 128
    pools = build_pools(resolved, loaded, (short, long), teachers)
    assert list(pools.behaviour) == prompts[:1] and list(pools.given) == [short]
    with pytest.raises(UsageError, match="2 of 2 conversations to imitate left out: they have more than 127 tokens"):
        build_pools(resolved, loaded, (long, never), teachers)
    short_sighted = load_model(session.base.path, device="cpu")
    short_sighted.core.config.max_position_embeddings = 128
    for name in (MAIN_TEACHER, KNOWLEDGE):  # what it never saw in training it cannot score
        pools = build_pools(resolved, loaded, (short, long), {name: LocalTeacher(short_sighted)})
        assert list(pools.behaviour) == prompts[:1] and list(pools.given) == [short]
    teacher.max_model_len = 10
    with pytest.raises(UsageError, match="longer than the 1 tokens that leave room"):
        build_pools(resolved, loaded, (), teachers)


def test_answers_to_imitate_are_those_to_the_prompts_that_steps_draw(
    session: Session, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first ones of a file may all be of one kind."""
    asked: list[str] = []

    def answered(
        stage: object, frozen: object, checkpoint: object, prompts: list[Prompt], *_: object, **__: int
    ) -> Any:
        asked.extend(prompt.id for prompt in prompts)
        raise UsageError("enough")

    monkeypatch.setattr("pipelines.distillation.stage.answered_before", answered)
    own = METHODS["self-distillation"].settings | {"method": "self-distillation", "samples_per_prompt": 1}
    config = bench.distilling(student="base", **own)
    with pytest.raises(UsageError, match="enough"):
        distill(session, config)
    train = behaviour_prompts(session.base.path, config.prompts, config.seed).train
    drawn = [choose(train, 2, step, config.seed, stream=RandomStream.BEHAVIOUR_PROMPTS) for step in (1, 2)]
    assert asked[:4] == [prompt.id for step in drawn for prompt in step]
    assert asked != sorted(asked) and sorted(asked) == sorted(prompt.id for prompt in train)


def test_prompts_of_a_step_depend_on_seed_and_step_alone() -> None:
    items = list(range(10))
    first = [choose(items, 4, step, 1, stream=0) for step in range(1, 6)]
    assert first == [choose(items, 4, step, 1, stream=0) for step in range(1, 6)]
    flat = [item for chosen in first for item in chosen]
    assert sorted(flat[:10]) == items
    assert sorted(flat[10:]) == items
    assert choose(items, 4, 1, 2, stream=0) != first[0]
    assert choose(items, 0, 3, 1, stream=0) == []


def test_a_plateau_is_two_windows_that_hardly_differ() -> None:
    assert not on_plateau([1.0] * 9, 5)
    assert on_plateau([1.0] * 10, 5)
    assert not on_plateau([1.0] * 5 + [0.5] * 5, 5)
    assert not on_plateau([1.0] * 10, 0)


def test_a_plateau_ends_the_stage_but_not_one_that_imitates_responses(
    session: Session, bench: Bench, capsys: pytest.CaptureFixture[str]
) -> None:
    """A cross-entropy falls to an unknown entropy, so little of it may be left to fall."""
    bench.midtrain(steps=2)
    standing = bench.distilling(steps=6, lr=1e-9, plateau=2, student="cycle-1/midtrained")
    for config, stopped in ((standing, "plateau"), (replace(standing, continuation=4), "finished")):
        capsys.readouterr()
        distill(session, config)
        stage = stages_of(session)[0]
        assert (stage.stopped, stage.steps_done) == (stopped, 4 if stopped == "plateau" else 6)
        said = capsys.readouterr().err
        assert ("stopped at step 4 of 6: plateau" in said) == ("stopped" in said) == (stopped == "plateau")


@pytest.mark.parametrize("name", METHODS)
def test_only_a_divergence_from_another_model_has_a_plateau(name: str) -> None:
    """The others are estimates, a reward, a divergence from itself, or cross-entropy."""
    config = build(DistillConfig, {"method": name})
    falling = {"opd", "gkd", "off-policy-kd", "distillm", "one-step-opd"}
    falls = EarlyStopping(Any, config, Any, None, StoppingState()).falls
    assert falls == (name in falling), f"if --plateau is right for {name}, add it to `falling`; else turn it off"


def test_development_prompts_that_cannot_be_had_are_reported() -> None:
    notes: list[str] = []
    prompts = behaviour_prompts(seed=0)
    found = _development(DistillConfig(development=5000), prompts, notes)
    assert len(found) == sum(bool(prompt.checks) for prompt in prompts.development) > 1000
    assert notes == [f"--development 5,000: only {len(found):,} prompts can be verified"]
    notes.clear()
    few = replace(prompts, development=prompts.development[:400])
    assert _development(DistillConfig(), few, notes) == ()
    assert "too few to decide --until 0.99 (1000 are needed)" in notes[0]
    assert _development(DistillConfig(until=0.0), few, []) == ()


@pytest.mark.parametrize(
    ("settings", "asked"),
    [
        ({"steps": 25}, True),
        ({"steps": 24}, False),
        ({"steps": 6, "check_every": 6}, True),
        ({"steps": 6, "check_every": 7}, False),
        ({"steps": 200, "until": 0.0}, False),
    ],
)
def test_development_prompts_are_asked_only_if_a_test_is_reached(
    settings: dict[str, Any], asked: bool, session: Session
) -> None:
    prompts, notes = behaviour_prompts(seed=0), list[str]()
    config = DistillConfig(**settings)
    assert bool(_development(config, prompts, notes)) == asked
    assert notes == ([] if asked or not config.until else [notes[0]])
    if notes:
        assert notes[0].endswith(f"and there are {config.steps}: base is asked no development prompts")
    resolved = resolve_planned(session, config, session.base, set())
    planned = make_plan(replace(resolved, development=_development(config, prompts, [])))
    parts = [row.part for row in planned.rows]
    assert ("base's development prompts" in parts) == (f"development prompts, {config.planned_tests} times" in parts)
    assert ("base's development prompts" in parts) == asked
    assert planned.seconds == sum(row.seconds for row in planned.rows)
