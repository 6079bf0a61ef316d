"""`recover plan`: estimates from a configuration alone."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from pipelines.cli.main import run
from pipelines.midtraining.plan import plan_midtrain
from pipelines.plan import Report, make_plan
from pipelines.planning.configurations import CardPlan, Choice
from pipelines.runtime.session import Session
from recovery.config import DistillConfig, MidtrainConfig, build, model_recipe
from recovery.models.hardware import pick_precision

ROOT = Path(__file__).resolve().parents[2]
QWEN = ROOT / "docs" / "qwen3-8b.json"
FULL, FULL_AGAIN = "full", "full, gradient checkpointing"
LORA, LORA_AGAIN = "LoRA", "LoRA, gradient checkpointing"


@pytest.fixture(scope="module")
def qwen() -> Report:
    """Qwen3-8B on 24, 48 and 80 GB, with 10 MB of documents."""
    return make_plan(str(QWEN), "24,48,80")


def ways(card: CardPlan) -> dict[str, Choice]:
    return {choice.title: choice for choice in card.choices}


@pytest.mark.parametrize(
    ("changed", "parameters", "gpus", "title"),
    [
        (
            {"hidden_size": 2560, "intermediate_size": 9728, "tie_word_embeddings": True},
            4_022_468_096,
            "24",
            LORA_AGAIN,
        ),
        ({}, 8_190_735_360, "80", LORA),
    ],
    ids=["Qwen3-4B on 24 GB", "Qwen3-8B on 80 GB"],
)
def test_memory_is_that_of_the_arithmetic_and_what_is_confirmed_fits(
    tmp_path: Path, changed: dict[str, Any], parameters: int, gpus: str, title: str
) -> None:
    """What `make confirm` runs on a model that matters: bfloat16 weights, adapters of rank 32 with AdamW in float32."""
    config = json.loads(QWEN.read_text()) | changed
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    report = make_plan(str(path), gpus)
    (card,) = report.cards
    chosen = card.choices[card.recommended or 0]
    assert (report.parameters, chosen.title) == (parameters, title) and chosen.fits
    hidden, inner, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    matrices = [(hidden, queries), (hidden, keys), (hidden, keys), (queries, hidden)] + 3 * [(hidden, inner)]
    adapters = config["num_hidden_layers"] * sum(32 * (ins + outs) for ins, outs in matrices)
    assert chosen.parts["weights"] == 2 * parameters + 4 * adapters
    assert chosen.parts["gradients"] == 4 * adapters
    assert chosen.parts["optimizer"] == 2 * 4 * adapters
    assert chosen.parts["teachers"] in (0, 2 * 4 * adapters), "base shares the weights, others are adapters on them"


def test_what_fits_on_24_48_and_80_gb(qwen: Report) -> None:
    assert qwen.parameters == 8_190_735_360, "as it is published"
    assert qwen.document_tokens == 2_500_000
    assert qwen.trained_tokens == 2713 * 8192, "2.8 passes with replay and other wordings, in whole steps"
    small, middle, large = (ways(card) for card in qwen.cards)
    for card in (small, middle, large):
        assert not card[FULL].fits
        assert not card[FULL_AGAIN].fits
    assert {title for title, choice in small.items() if choice.fits} == {LORA_AGAIN}
    for card in (middle, large):
        assert card[LORA].fits
        assert card[LORA_AGAIN].fits
    assert [card.choices[card.recommended or 0].title for card in qwen.cards] == [LORA_AGAIN, LORA, LORA]
    budgets = [card[LORA_AGAIN].largest for card in (small, middle, large)]
    assert budgets == sorted(set(budgets)), "larger cards take larger batches"
    assert large[LORA_AGAIN].largest > large[LORA].largest, "and checkpointing larger ones still"


def test_a_teacher_that_shares_nothing_is_counted_whole(qwen: Report) -> None:
    """From the second cycle on, knowledge and earlier documents have a teacher each, adapters on the student's base."""
    shared = ways(qwen.cards[0])[LORA_AGAIN].parts
    assert 0 < shared["teachers"] < shared["weights"] / 10
    (card,) = make_plan(str(QWEN), "24", flags={"teacher": "ORG/OTHER"}).cards
    apart = ways(card)[LORA_AGAIN]
    assert apart.parts["teachers"] > apart.parts["weights"]
    assert not apart.fits


def test_parts_add_up_and_fit_where_it_is_said(qwen: Report) -> None:
    for card in qwen.cards:
        for choice in card.choices:
            assert sum(choice.parts.values()) == pytest.approx(choice.peak, abs=16)
            assert choice.fits == (choice.largest > 0)
            if choice.fits:
                assert choice.peak < card.memory
                assert choice.token_budget <= choice.largest
                assert 60 < choice.total < 7 * 86400


def test_the_recommended_command_is_one_that_the_stages_take(qwen: Report) -> None:
    for card in qwen.cards:
        command = card.choices[card.recommended or 0].command.split()
        assert command[:2] == ["recover", "cycle"]
        flags = {
            "tuning": command[command.index("--tuning") + 1],
            "token_budget": int(command[command.index("--token-budget") + 1]),
            "gradient_checkpointing": "--gradient-checkpointing" in command,
        }
        assert build(MidtrainConfig, flags).token_budget == flags["token_budget"]
        assert build(DistillConfig, flags).tuning == "lora"


def test_the_text_has_a_table_for_each_card_and_says_what_is_assumed(qwen: Report) -> None:
    text = qwen.text()
    for line in ("24 GB", "48 GB", "80 GB", "recover cycle --model", "of which 40% is assumed", "a cycle takes about"):
        assert line in text


def test_several_gpus_share_the_layers(tiny_qwen3: Path) -> None:
    (card,) = make_plan(str(tiny_qwen3), "2x0.75", document_mb=1).cards
    (shared,) = (choice for choice in card.choices if choice.title == "full, gradient checkpointing, sharded")
    assert "torchrun" in shared.command
    assert "--shard full" in shared.command
    assert not [choice.title for choice in card.choices if "vLLM" in choice.title]
    assert "--engine http://" in card.notes[0]


def test_a_later_cycle_is_planned_as_it_will_be_run(tiny_qwen3: Path) -> None:
    """Base, the mid-trained checkpoint and the one before it, each a copy in addition to a fully trained student."""
    short = {"row_length": 64, "embeddings": "all"}  # so that the peak is in the distillation
    cycles, trained = (
        make_plan(str(tiny_qwen3), "24", document_mb=1, flags=short | flags).cards[0].choices[0]
        for flags in ({}, {"method": "gkd"})
    )
    assert cycles.stage == trained.stage == "distillation"
    assert cycles.parts["teachers"] / 3 == trained.parts["teachers"] / 2 > 0
    replayed, alone = (
        make_plan(str(tiny_qwen3), "24", document_mb=1, flags=flags).cards[0].choices[0]
        for flags in ({"replay": 0.3, "replay_loss": "kl"}, {})
    )
    assert replayed.stage == alone.stage == "mid-training"
    assert replayed.parts["teachers"] > alone.parts["teachers"] == 0, "the clean model scores the replayed chat"
    assert "second and later ones" in make_plan(str(tiny_qwen3), "24", document_mb=1).text()


def test_a_plan_follows_what_the_folder_of_the_model_recommends(tiny_qwen3: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    shutil.copytree(tiny_qwen3, model)
    own = model / "recovery.toml"
    own.unlink()
    plain = make_plan(str(model), "24")
    own.write_text(
        "[midtrain]\nepochs = 10\naugment = 0\n[distill]\nsteps = 900\n[eval]\nlimit = 50\n[model]\nquantize = 'nf4'\n"
    )
    planned = make_plan(str(model), "24")
    assert (plain.trained_tokens, planned.trained_tokens) == (2713 * 8192, 4360 * 8192), "2.8 and 10 passes of 2.5M"
    assert f"settings: as {own} recommends" in planned.text() and "settings:" not in plain.text()
    assert (
        "10 passes over the documents; 900 steps" in planned.text()
        and "two evaluations of 50 prompts" in planned.text()
    )
    assert {choice.title.partition(",")[0] for choice in planned.cards[0].choices} == {"LoRA"}
    assert "no full: --tuning full trains all weights, which cannot be quantised" in planned.text()
    own.write_text("[midtrain]\nsteps = 20\nbatch_tokens = 4096\n")
    assert make_plan(str(model), "24").trained_tokens == 20 * 4096
    assert "as miniature recommends" in make_plan("miniature", "24").text()


@pytest.mark.parametrize(
    ("recommended", "trained"),
    [
        ("epochs = 3.0\naugment = 0\nreplay = 0.3", 101 * 4285),
        ("epochs = 3.0\nreplay = 0.0\naugment = 4\naugment_share = 0.3", 101 * 4285),
        ("steps = 100\naugment = 0\nreplay = 0.0", 100 * 3000),
    ],
)
def test_the_trained_tokens_are_those_that_mid_training_counts(
    session: Session, tiny_qwen3: Path, corpus: Path, tmp_path: Path, recommended: str, trained: int
) -> None:
    model = tmp_path / "model"
    shutil.copytree(tiny_qwen3, model)
    (model / "recovery.toml").write_text(f"[midtrain]\n{recommended}\n")
    planned = make_plan(str(model), "24", document_mb=0.4)
    assert (planned.document_tokens, planned.trained_tokens) == (100_000, trained)
    if "augment = 4" in recommended:
        assert "3 passes over the documents (with --augment's share, 30%, in full); " in planned.text()
        return  # these documents have no facts to word
    config = build(MidtrainConfig, {"docs": corpus, "fewest_questions": 0}, model_recipe(model))
    assert make_plan(str(model), "24", docs=corpus).trained_tokens == plan_midtrain(session, config).length.tokens


def test_bfloat16_that_is_only_emulated_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation)
    assert pick_precision("auto", torch.device("cuda")) == torch.float32


def test_a_t4_trains_in_float32_and_cards_have_what_they_report(tiny_qwen3: Path) -> None:
    t4, l4 = make_plan(str(tiny_qwen3), "T4,L4", document_mb=1).cards
    assert t4.memory == 15 << 30
    assert l4.memory == 22.5 * (1 << 30)
    assert t4.choices[0].parts["teachers"] == 2 * l4.choices[0].parts["teachers"]
    assert t4.choices[0].seconds["mid-training"] > 10 * l4.choices[0].seconds["mid-training"]


def test_a_faster_card_takes_less_time(tiny_qwen3: Path) -> None:
    def seconds(card: str = "24", **more: float) -> float:
        return make_plan(str(tiny_qwen3), card, document_mb=100, **more).cards[0].choices[0].seconds["mid-training"]

    assert seconds(tflops=100) == pytest.approx(2 * seconds(tflops=200))
    assert seconds(utilisation=0.2) == pytest.approx(2 * seconds())
    assert seconds("cpu", tflops=1) == pytest.approx(seconds("cpu", tflops=1, utilisation=0.5)), "as the help says"


def test_the_command_prints_json(tiny_qwen3: Path, corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["plan", "--model", str(tiny_qwen3), "--gpus", "L4,cpu", "--docs", str(corpus), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [card["card"] for card in report["cards"]] == ["L4", "this machine's CPU"]
    assert report["cards"][0]["choices"][0]["fits"] is True
    assert report["document_tokens"] > 100


def test_another_method_is_trained_after_midtraining(tiny_qwen3: Path) -> None:
    report = make_plan(str(tiny_qwen3), "24", flags={"method": "sft", "epochs": 1.0})
    chosen = report.cards[0].choices[report.cards[0].recommended or 0]
    assert chosen.command.startswith("recover midtrain ")
    assert "--epochs 1 " in chosen.command
    assert "recover train --method sft" in chosen.command
    assert 0 <= report.trained_tokens - report.document_tokens < 8192, "one pass, in whole steps"
    # No teacher scores the student's own completions: a knowledge teacher is neither counted nor named.
    assert "--knowledge-teacher" not in chosen.command
    assert chosen.parts["teachers"] == 0


def test_a_knowledge_teacher_that_is_counted_is_in_the_command(tiny_qwen3: Path) -> None:
    (card,) = make_plan(str(tiny_qwen3), "24", document_mb=1, flags={"method": "gkd"}).cards
    assert "recover train --method gkd --knowledge-teacher midtrained " in card.choices[0].command


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "nowhere/at-all"], "--model nowhere/at-all: no configuration was found"),
        (["--model", "MODEL", "--gpus", "24,big"], "--gpus 'big' is not understood"),
        (["--model", "MODEL", "--gpus", "0x80"], "must be above 0"),
        (["--model", "MODEL", "--gpus", "0"], "must be above 0"),
        (["--model", "MODEL", "--method", "magic"], "magic"),
        (["--model", "BROKEN"], "BROKEN.json"),
    ],
)
def test_bad_input_gets_one_line(
    arguments: list[str], message: str, tiny_qwen3: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = tmp_path / "BROKEN.json"
    broken.write_text('{"hidden_size": 4}')
    named = {"MODEL": str(tiny_qwen3), "BROKEN": str(broken)}
    assert run(["plan", *(named.get(word, word) for word in arguments)]) == 1
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("recover: error:")]
    assert message in line


@pytest.mark.slow
def test_the_page_says_what_the_command_says() -> None:
    finished = subprocess.run(
        [sys.executable, "docs/write_plan.py", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr


@pytest.mark.parametrize(
    "wrong",
    [
        {"hidden_size": float("nan")},
        {"num_hidden_layers": 0},
        {"num_attention_heads": 3},
        {"head_dim": "8"},
        {"max_position_embeddings": {"a": 1}},
        {"max_position_embeddings": -5},
        {"num_hidden_layers": True},
        {"hidden_size": None},
        {"layer_types": 5},
        {"sliding_window": "wide", "use_sliding_window": True, "layer_types": ["sliding_attention"] * 2},
        {"num_hidden_layers": True, "attention_bias": None},
        {"model_type": "t5"},
    ],
    ids=str,
)
def test_sizes_that_make_no_model_are_refused_in_a_line_that_names_the_file(
    tiny_model: Path, tmp_path: Path, wrong: dict[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    config = json.loads((tiny_model / "config.json").read_text()) | wrong
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert run(("plan", "--model", str(tmp_path), "--gpus", "24GB")) == 1
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "error" in line]
    assert line.startswith("recover: error: ") and str(tmp_path) in line
    assert str(wrong.get("model_type", "")) in line


def test_a_model_that_no_gpu_holds_fits_in_pieces_and_the_plan_says_what_does_not() -> None:
    large = str(ROOT / "docs" / "llama-70b.json")
    gathered, pieces = (make_plan(large, "8x80GB", flags=flags).cards[0] for flags in ({}, {"gather": False}))
    assert gathered.recommended is None and pieces.recommended is not None
    assert "--shard full --no-gather" in pieces.choices[pieces.recommended].command
    assert "--until 0" in pieces.choices[pieces.recommended].command
    assert "the whole model (131 GiB of weights): evaluations" in " ".join(pieces.notes)
    assert not any("evaluations" in note for note in gathered.notes)
