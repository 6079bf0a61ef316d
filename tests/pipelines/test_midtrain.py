"""The mid-training stage: its plan, its data, its checkpoint."""

from __future__ import annotations

import gc
import json
import re
import shutil
import string
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import BPE
from transformers import AutoConfig, PreTrainedTokenizerFast

from dashboard.pages.common import flops
from evals.probes import PROBES_FILE, from_record
from pipelines.data import document_rows
from pipelines.data.mixing import schedule
from pipelines.distillation.plan import check_student
from pipelines.distillation.resolve import resolve
from pipelines.midtraining import material
from pipelines.midtraining import plan as plan_module
from pipelines.midtraining.material import gather_cycle, open_cycle
from pipelines.midtraining.plan import plan_midtrain
from pipelines.midtraining.stage import midtrain
from pipelines.runtime import model_group, model_loading
from pipelines.runtime.progress import Display
from pipelines.runtime.session import Session
from recovery.batching import Row
from recovery.config import DistillConfig, FromRecipe, MidtrainConfig
from recovery.errors import CheckpointError, ModelError, UsageError
from recovery.models.chat_loading import load_chat
from recovery.models.chat_template import ChatFormat
from recovery.models.checkpoints import INFO_FILE, content_hash
from recovery.models.loaded import Loaded
from recovery.models.loading import load_model
from recovery.types import Message
from recovery.workspace import Checkpoint
from tests.pipelines.conftest import Bench, MakeCorpus, MakeTiny, OpenSession, StepSizes, curves_of, stages_of
from tests.support import plain_divergence


def test_documents_end_up_in_a_checkpoint_with_parent_hash_and_account(session: Session, bench: Bench) -> None:
    made = bench.midtrain()
    assert (made.name, made.kind, made.parent, made.tuning) == ("cycle-1/midtrained", "midtrained", "base", "full")
    assert made.hash == content_hash(made.path) != session.base.hash
    assert json.loads((made.path / INFO_FILE).read_text())["parent"] == session.base.hash
    assert session.resolve("latest").name == made.name
    (stage,) = stages_of(session)
    assert (stage.kind, stage.status, stage.steps_done, stage.cycle) == ("midtrain", "finished", 6, 1)
    assert stage.tokens_trained > 6 * 100
    assert stage.peak_memory_bytes > 0
    assert stage.versions["torch"]
    assert stage.config["lr"] == 3e-3
    losses = curves_of(session)["loss"]
    assert len(losses) == 6 and losses[-1] < losses[0]
    assert not session.workspace.stage(stage.id, "midtrain").exists(), "states go once the checkpoint is kept"


def test_the_same_seed_gives_the_same_weights_and_another_gives_others(
    open_session: OpenSession, midtrain_config: MidtrainConfig
) -> None:
    hashes = []
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        with open_session(name=name) as session:
            hashes.append(midtrain(session, replace(midtrain_config, seed=seed, tuning="lora")).hash)
    assert hashes[0] == hashes[1] != hashes[2]


def test_an_adapter_is_carried_on_untouched_base_weights(
    session: Session, bench: Bench, make_corpus: MakeCorpus
) -> None:
    lora = bench.midtraining(tuning="lora", lora_rank=4)
    first = midtrain(session, lora)
    second = midtrain(session, replace(lora, docs=make_corpus("Orchid"), tuning="auto"))
    assert [c.tuning for c in (first, second)] == ["lora", "lora"]
    assert first.weights == second.weights == session.base.path
    assert second.parent == first.name
    assert not (second.path / "model.safetensors").exists()
    assert load_model(second.weights, adapter=second.adapter, device="cpu").tuning == "frozen"
    with pytest.raises(UsageError, match="is a LoRA adapter"):
        midtrain(session, replace(lora, tuning="full"))


def test_replay_and_earlier_documents_take_their_shares(
    session: Session, bench: Bench, midtrained: Checkpoint, make_corpus: MakeCorpus
) -> None:
    mixed = bench.midtraining(docs=make_corpus("Orchid"), replay=0.3, replay_documents=0.5, max_new_tokens=160)
    plan = plan_midtrain(session, mixed)
    assert (plan.cycle, plan.earlier_documents, plan.earlier_share, plan.replay_share) == (2, 4, 0.5, 0.3)
    assert "30% chat" in plan.text()
    made = midtrain(session, mixed)
    assert made.name == "cycle-2/midtrained"
    stage = stages_of(session)[0]
    assert stage.details["replay"] > 0
    assert (flops(stage) or 0) >= 6 * stage.tokens_trained * plan.parameters > 0
    assert (session.workspace.folder / "cache" / "answers.db").is_file()


@pytest.fixture
def scheduled(monkeypatch: pytest.MonkeyPatch) -> list[list[list[Row]]]:
    """What fills with the rows of every step, of one mid-training after the other."""
    seen: list[list[list[Row]]] = []

    def noted(*given: Any) -> list[list[Row]]:
        seen.append(schedule(*given))
        return seen[-1]

    monkeypatch.setattr(material, "schedule", noted)
    return seen


@pytest.mark.parametrize("tuning", ["full", pytest.param("lora", marks=pytest.mark.slow)])
def test_kl_replay_is_the_forward_kl_to_the_clean_model_on_its_own_answers(
    session: Session, bench: Bench, make_tiny: MakeTiny, tmp_path: Path, scheduled: list[list[list[Row]]], tuning: str
) -> None:
    student = make_tiny("qwen3", tmp_path / "other", seed=1) if tuning == "full" else session.base.path
    config = bench.midtraining(
        student=str(student), steps=2, replay=0.5, replay_loss="kl", max_new_tokens=160, tuning=tuning
    )
    midtrain(session, config)
    (stage,) = stages_of(session)
    first = {name: values[0] for name, values in curves_of(session).items()}
    rows = [row for row in scheduled[0][0] if row.teacher == "base"]
    expected = [value for row in rows for value in _kl_by_hand(student, session.base.path, row)]
    assert first["replay_kl"] == pytest.approx(sum(expected) / len(expected), abs=1e-5)
    assert (first["replay_kl"] > 0.01) == (tuning == "full"), "a new adapter changes nothing yet"
    assert first["tokens_scored"] == len(expected)
    documents = sum(row.targets for row in scheduled[0][0] if row.teacher == "label")
    both = first["label_loss"] * documents + first["replay_kl"] * len(expected)
    assert first["loss"] == pytest.approx(both / (documents + len(expected)), rel=1e-4)
    assert stage.tokens_scored == sum(row.targets for rows in scheduled[0] for row in rows if row.teacher == "base")
    assert stage.tokens_sampled > 0, "the clean model's answers are counted"


def _kl_by_hand(student: Path, clean: Path, row: Row) -> list[float]:
    """KL(clean || student) at every target, from the models' logits, one conversation of the row at a time."""
    models = [load_model(path, precision="float32", device="cpu").model for path in (student, clean)]
    found, start = [], 0
    for length in row.segments:
        ids = torch.tensor([row.ids[start : start + length]])
        with torch.no_grad():
            log_p, log_q = (model(ids).logits[0].log_softmax(-1) for model in models)
        kl = plain_divergence("forward_kl", log_p, log_q)
        found += [float(kl[at - 1]) for at in range(1, length) if row.loss_mask[start + at]]
        start += length
    return found


def test_chat_that_answers_held_out_prompts_is_neither_replayed_nor_imitated(
    session: Session, bench: Bench, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chats = tmp_path / "chats.jsonl"
    turns = [[{"role": "user", "content": f"Sing {n}."}, {"role": "assistant", "content": "La."}] for n in range(20)]
    chats.write_text("".join(json.dumps({"messages": messages}) + "\n" for messages in turns), encoding="utf-8")
    bench.midtrain(steps=1, replay=0.3, replay_data=chats, prompts=chats)
    left_out = f"{chats}: 8 of 20 conversations left out: they answer development or test prompts"
    assert f"--replay-data {left_out}" in capsys.readouterr().err
    imitating = bench.distilling(alpha=0.0, answers="given", data=chats, prompts=chats)
    resolved = resolve(session, imitating, None)
    trained = {prompt.text for prompt in resolved.prompts.train}
    assert {messages[0]["content"] for messages in resolved.given} == trained and len(resolved.given) == 12
    assert any(note.startswith(f"--data {left_out}") for note in resolved.notes)


@pytest.mark.parametrize(("words", "refused"), [("гавань", True), ("é", False)])
def test_what_the_tokenizer_does_not_know_of_the_documents_is_said_or_refused(
    open_session: OpenSession,
    midtrain_config: MidtrainConfig,
    tiny_model: Path,
    tmp_path: Path,
    words: str,
    refused: bool,
) -> None:
    model = shutil.copytree(tiny_model, tmp_path / "model")
    alphabet = {c: 2 + n for n, c in enumerate(string.printable)}
    core = Tokenizer(BPE({"<unk>": 0, "<|im_end|>": 1, **alphabet}, [], unk_token="<unk>"))
    PreTrainedTokenizerFast(tokenizer_object=core, unk_token="<unk>", eos_token="<|im_end|>").save_pretrained(model)
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "a.md").write_text("# Port\n\nThe office of the harbour opens at seven, every day. " + words * 3)
    config = replace(midtrain_config, docs=docs, prompts=None)
    with open_session(model=str(model)) as session:
        if refused:
            with pytest.raises(UsageError, match=r"docs: 18 of the \d+ characters .* unknown to the tokenizer of base"):
                plan_midtrain(session, config)
        else:
            text = plan_midtrain(session, config).text()
            assert re.search(r"\b3 of the \d+ characters .* unknown to the tokenizer of base, such as é: it", text)


def test_a_template_that_leaves_answers_out_is_named_before_anything_runs(
    open_session: OpenSession,
    midtrain_config: MidtrainConfig,
    distill_config: DistillConfig,
    tiny_model: Path,
    make_tiny: MakeTiny,
    tmp_path: Path,
) -> None:
    """It was "no conversation fits in the context", and with --augment chats were dropped without a word."""
    model = shutil.copytree(tiny_model, tmp_path / "model")
    asks = "{% for m in messages %}{% if m['role'] == 'user' %}[Q] {{ m['content'] }}\n[A] {% endif %}{% endfor %}"
    other = make_tiny("qwen3", tmp_path / "other", seed=1)
    for folder in (model, other):
        (folder / "chat_template.jinja").write_text(asks)
    chats = tmp_path / "chats.jsonl"
    chats.write_text('{"prompt": "Sing.", "answer": "La."}\n')
    reason = f"the chat template of {model} leaves out the assistant's answers"
    with open_session(model=str(model)) as session:
        for config in ({"replay": 0.3, "replay_data": chats}, {"augment": 2}):
            with pytest.raises(ModelError, match=reason):
                plan_midtrain(session, replace(midtrain_config, **config))
        assert plan_midtrain(session, midtrain_config)
        imitating = replace(distill_config, student=str(other), alpha=0.0, answers="given", data=chats)
        with pytest.raises(ModelError, match=f"the chat template of {other} leaves out"):
            check_student(resolve(session, imitating, None))


def test_replayed_chat_that_is_too_long_is_counted(session: Session) -> None:
    chat, notes = load_chat(str(session.base.weights)), list[str]()
    longest = AutoConfig.from_pretrained(session.base.weights).get_text_config().max_position_embeddings
    answers = ["La.", "La " * longest, "Lo."]
    turns = [(Message(role="user", content="Sing."), Message(role="assistant", content=answer)) for answer in answers]
    rows = document_rows.chat_rows(chat, session.base, turns, 64, notes=notes)
    assert notes == [f"1 of 3 conversations left out: they have more than {longest:,} tokens"]
    assert document_rows.chat_rows(chat, session.base, turns[::2], 64, notes=notes) == rows and len(notes) == 1


@pytest.mark.slow
def test_focused_replay_counts_the_tokens_of_both_parts_of_its_prompts(
    session: Session, bench: Bench, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = bench.midtraining(steps=1, replay=0.3, max_new_tokens=40, replay_loss="kl")

    def sampled(**settings: Any) -> int:
        midtrain(session, replace(config, **settings))
        return stages_of(session)[0].tokens_sampled

    even = sampled(replay_prompts=10)
    focused = sampled(replay_prompts=20, replay_focus=0.5)
    assert focused > even, "the first 10 prompts are the same, and 10 of the weakest kinds follow"
    assert focused != sampled(replay_prompts=20), "half of the prompts are others"
    chats = tmp_path / "chats.jsonl"
    chats.write_text('{"prompt": "Say something."}\n', encoding="utf-8")
    assert sampled(replay_focus=0.5, prompts=chats)
    assert "no prompt has checks by which answers are judged: all are replayed evenly" in capsys.readouterr().err


def test_the_beginning_of_an_answer_is_replayed_by_kl_without_an_end(
    session: Session, bench: Bench, scheduled: list[list[list[Row]]]
) -> None:
    config = bench.midtraining(steps=1, replay=0.3, max_new_tokens=2)
    with pytest.raises(UsageError, match="none of the clean model's answers ended within 2 tokens"):
        midtrain(session, config)
    midtrain(session, replace(config, replay_loss="kl"))
    rows = [row for row in scheduled[-1][0] if row.teacher == "base"]
    ends = set(load_model(session.base.path, device="cpu").chat.end_ids)
    targets = [token for row in rows for token, kept in zip(row.ids, row.loss_mask, strict=True) if kept]
    assert targets and not ends & set(targets)


def test_an_answer_that_was_cut_off_within_its_thinking_is_not_replayed(
    session: Session, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ChatFormat, "text", lambda *_: "")
    config = bench.midtraining(steps=1, replay=0.3, max_new_tokens=2, replay_loss="kl")
    with pytest.raises(UsageError, match="none of the clean model's answers began within 2 tokens"):
        midtrain(session, config)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"replay_focus": 0.5}, "--replay-focus chooses the prompts of --replay"),
        ({"replay_loss": "kl"}, "set the share of chat"),
        ({"replay": 0.3, "replay_loss": "jsd"}, "answers or kl"),
        ({"writer": "base"}, "set the number of paraphrases, as in --augment 4"),
        ({"augment": 2, "augment_share": 0.0}, "leaves no tokens for the paraphrases"),
        ({"augment": 2, "writer": "http://"}, "'http://' is not an address"),
        ({"augment": 2, "writer": "texts/mine.jsonl"}, "put them there as rewritten.jsonl"),
    ],
)
def test_settings_that_mean_nothing_together_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        MidtrainConfig(**settings)


def test_a_plan_loads_no_weights_and_writes_no_cycle(session: Session, bench: Bench) -> None:
    plan = plan_midtrain(session, bench.midtraining(steps=None, epochs=2.0))
    assert plan.documents == 4
    assert plan.length.tokens >= 2 * plan.length.documents
    wide = plan_midtrain(session, bench.midtraining(steps=None, row_length=100, batch_tokens=40))
    assert wide.length.row == wide.length.per_step == 40, "a longer row would be repeated in the next steps"
    assert session.cycles() == {}
    assert not session.workspace.corpus(1).exists()
    for embeddings, said in (("documents", "embeddings of the documents' tokens"), ("none", "without embeddings")):
        config = bench.midtraining(embeddings=embeddings, tuning="full")
        assert f"full fine-tuning, as requested; {said}" in plan_midtrain(session, config).text()
    for origin, why in (("mine.toml", "requested"), (session.recipe.origin, "the model recommends")):
        session.from_recipes = [FromRecipe("tuning", "--tuning", origin, "full")]
        assert f"full fine-tuning, as {why}; " in plan_midtrain(session, config).text()


CHINESE = "# 港口\n\n" + "\n\n".join(f"第{n}号渡轮每天运送{100 + n}名乘客，由城市在夏天建成。" for n in range(40))
PROSE = "# Piers\n\nThe keepers of the pier maintain the green patches of the boats that come in at night.\n"
ROWS = "".join(f"| `lamp.row{n}` | `{7 * n + 3}` |\n" for n in range(80))


def own_probes(folder: Path, count: int) -> None:
    lines = (json.dumps({"question": f"What is the port of pier {n}?", "answers": [str(n)]}) for n in range(count))
    (folder / PROBES_FILE).write_text("\n".join(lines))


@pytest.mark.parametrize(
    ("text", "own", "enough"),
    [
        (CHINESE, 0, False),
        (PROSE, 0, False),
        (PROSE, 19, False),
        (PROSE, 20, True),
        (CHINESE, 20, True),
        (f"# Lamps\n\n| Option | Default |\n|---|---|\n{ROWS}", 0, True),
    ],
    ids=["chinese", "prose", "19 of one's own", "20 of one's own", "20 about Chinese", "a table"],
)
def test_a_cycle_whose_questions_are_too_few_stops_with_what_to_do(
    session: Session, bench: Bench, tmp_path: Path, text: str, own: int, enough: bool
) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "page.md").write_text(text)
    if own:
        own_probes(docs, own)
    config = bench.midtraining(docs=docs, fewest_questions=20)
    if enough:
        assert gather_cycle(session, config, 1).probes
        return
    with pytest.raises(UsageError, match=f"questions about {own} facts of .*docs are too few") as stop:
        open_cycle(session, config)
    assert session.cycles() == {} and not session.workspace.corpus(1).exists()
    add = f"`recover probes review {docs / PROBES_FILE} --add MORE.jsonl` (a probes.jsonl of your own replaces"
    for remedy in (add if own else str(docs / PROBES_FILE), "--writer base", f"--fewest-questions {own}"):
        assert remedy in str(stop.value)
    assert "\n" not in str(stop.value) and "--writer base`; or add yours" in str(stop.value)
    assert (", of no document, none of page.md. " in str(stop.value)) == (not own)
    example = str(stop.value).partition(".jsonl such as ")[2].partition("}")[0] + "}"
    assert from_record(json.loads(example)).form == "question"
    assert gather_cycle(session, replace(config, fewest_questions=own), 1).cycle == 1


def test_a_trial_whose_questions_are_too_few_only_warns(
    session: Session, bench: Bench, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "page.md").write_text(PROSE)
    (docs / "lamps.md").write_text(f"# Lamps\n\n| Option | Default |\n|---|---|\n{ROWS}")
    session.display = Display()
    config = bench.midtraining(docs=docs, fewest_questions=1000, trial=True)
    planned = plan_midtrain(session, config)
    assert re.search(
        r"are too few to say what is learnt \(1000 are wanted\), of lamps.md \d+, none of page.md\.",
        planned.few_questions,
    )
    both = f"`recover probes build --docs {docs}`, then `recover probes review {docs / PROBES_FILE} --add MORE.jsonl`"
    assert both in planned.few_questions
    assert open_cycle(session, config).probes
    assert f"warning: {planned.few_questions}\n" in capsys.readouterr().err


def test_ten_questions_are_shown_before_training(
    session: Session, bench: Bench, corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own_probes(corpus, 30)
    planned = plan_midtrain(session, bench.midtraining()).questions
    assert "30 probes (30 question)" in planned[0] and "of 30 questions about 30 facts, 10 at random" in planned[0]
    assert len(planned) == 11 and all(re.fullmatch(r"  What is the port of pier (\d+)\? -> \1", q) for q in planned[1:])
    assert plan_midtrain(session, bench.midtraining(seed=5)).questions[1:] != planned[1:]
    session.display = Display()
    capsys.readouterr()
    open_cycle(session, bench.midtraining())
    said = capsys.readouterr()
    assert "\n".join(planned) in said.out + said.err


def test_a_second_try_at_a_cycle_that_never_trained_takes_its_number(session: Session, bench: Bench) -> None:
    with pytest.raises(UsageError, match="none of the clean model's answers ended"):
        bench.midtrain(replay=0.5, max_new_tokens=1)
    stage = stages_of(session)[0]
    assert stage.status == "failed"
    assert "raise --max-new-tokens" in stage.error
    assert bench.midtrain().name == "cycle-1/midtrained"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"docs": None}, "--docs"),
        ({"student": "nobody"}, "nobody"),
        ({"router_loss": 0.01}, r"--router-loss 0.01: base has no experts; omit it"),
    ],
)
def test_what_cannot_be_trained_is_refused_before_a_cycle_begins(
    session: Session, bench: Bench, settings: dict[str, Any], message: str
) -> None:
    for begin in (plan_midtrain, midtrain):
        with pytest.raises(CheckpointError if "student" in settings else UsageError, match=message):
            begin(session, bench.midtraining(**settings))
    assert not session.cycles()
    assert not session.workspace.corpus(1).exists()


@pytest.mark.slow
def test_a_mixture_of_experts_keeps_its_routers_loss(
    open_session: OpenSession, midtrain_config: MidtrainConfig, tiny_mixtral: Path
) -> None:
    made = {}
    for name, weight in (("own", None), ("again", None), ("more", 1.0), ("off", 0.0)):
        with open_session(tiny_mixtral, name) as session:
            config = replace(midtrain_config, router_loss=weight)
            said = plan_midtrain(session, config).text()
            made[name] = midtrain(session, config).hash
            curve = curves_of(session).get("router_loss", [])
        shown = "no router loss" if weight == 0.0 else f"router loss {0.001 if weight is None else weight:g}"
        assert f"each token takes 2 of 4; {shown}" in said
        assert len(curve) == (0 if weight == 0.0 else 6)
        assert all(1.5 < value < 2.5 for value in curve), "two experts a token: 2 if they are used evenly"
    assert made["own"] == made["again"]
    assert len(set(made.values())) == 3


def test_a_new_adapter_says_what_it_adapts(
    open_session: OpenSession, midtrain_config: MidtrainConfig, tiny_model: Path, tiny_mixtral: Path
) -> None:
    experts = "experts.down_proj, experts.gate_up_proj, gate.weight, k_proj, o_proj, q_proj, v_proj"
    dense = "q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj"
    for name, model, names in (("dense", tiny_model, dense), ("experts", tiny_mixtral, experts)):
        with open_session(model, name) as session:
            config = replace(midtrain_config, tuning="lora")
            assert f"LoRA, as requested; rank 32 on {names}" in plan_midtrain(session, config).text()


def test_the_clean_model_is_read_once_and_documents_are_packed_once(
    session: Session, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its answers are replayed, it writes, teaches and anchors; without a use in training it is released before."""
    read: list[Any] = []
    held: list[int] = []
    packed: list[int] = []
    load, pack, run = model_loading.load_model, document_rows.document_rows, model_group.train

    def counted(*given: Any, **named: Any) -> Any:
        read.append(named["tuning"])
        return load(*given, **named)

    def noted(*given: Any) -> Any:
        packed.append(len(given[0]))
        return pack(*given)

    def trained(*given: Any, **named: Any) -> Any:
        held.append(_frozen_models())
        return run(*given, **named)

    monkeypatch.setattr(model_loading, "load_model", counted)
    monkeypatch.setattr(document_rows, "document_rows", noted)
    monkeypatch.setattr(model_group, "train", trained)
    before = _frozen_models()
    config = bench.midtraining(steps=1, replay=0.3, augment=2, writer="base", max_new_tokens=96)
    midtrain(session, replace(config, replay_loss="kl", anchor=0.1))
    assert (read, held) == (["frozen", "full"], [before + 1])
    assert packed.count(4) == 1, "the documents of this cycle"
    read.clear()
    midtrain(session, replace(config, student="base"))
    assert (read, held[1]) == (["frozen", "full"], before)


def _frozen_models() -> int:
    """Count the frozen models in memory, without the outlines that planning makes."""
    gc.collect()
    found = [one for one in gc.get_objects() if type(one) is Loaded]
    return sum(one.tuning == "frozen" and one.tokenizer is not None for one in found)


@pytest.mark.parametrize("changes", [{}, {"augment": 2, "row_length": 48}], ids=["documents", "augmented"])
def test_the_plan_knows_the_largest_step(
    session: Session, bench: Bench, step_sizes: StepSizes, changes: dict[str, Any]
) -> None:
    """A micro-batch is padded to its widest row: the memory of a plan is that of the largest, and no larger."""
    planned, trained = step_sizes(plan_module, "midtraining")
    config = bench.midtraining(**changes)
    midtrain(session, config)
    assert planned[0] == max(trained) < config.token_budget
    for unknown in ({"replay": 0.3}, {"project": True}):
        plan_midtrain(session, replace(config, **unknown))
        assert planned[-1] is None, "the clean model has not answered yet"
