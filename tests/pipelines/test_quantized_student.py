"""The teacher of a student on a base in NF4, and the plan of its memory against real tensors."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from pipelines.planning.activations import Setup
from pipelines.planning.memory import Plan, TeacherFootprint, midtraining, parameters_of
from pipelines.planning.tuning import choose_tuning, teacher_footprint
from pipelines.runtime.model_loading import load_student, teacher_of
from recovery.config import MidtrainConfig
from recovery.errors import UsageError
from recovery.models.loading import load_model
from recovery.workspace import Checkpoint
from tests.models import make_tiny

CONFIG = MidtrainConfig(
    tuning="lora", quantize="nf4", precision="float32", device="cpu", lora_rank=4, fewest_questions=0
)


def test_the_teacher_is_not_quantised_unless_asked_for(tiny_wide: Path) -> None:
    base = Checkpoint("base", "clean", tiny_wide, "", tiny_wide)
    student = load_student(base, "lora", CONFIG)
    teacher = teacher_of(base, student, base, CONFIG)
    assert teacher.own_weights
    ids, clean = torch.arange(1, 33)[None], load_model(tiny_wide, precision="float32", device="cpu")
    with torch.no_grad():
        expected = clean.model(input_ids=ids).logits
        assert torch.equal(teacher.loaded.model(input_ids=ids).logits, expected)
        assert not torch.equal(student.model(input_ids=ids).logits, expected)
    asked = replace(CONFIG, quantized_teacher=True)
    assert teacher_of(base, student, base, asked).weights == "base"
    assert teacher_footprint(base, [base], unshared=CONFIG.clean_teacher).others == 1
    assert teacher_footprint(base, [base], unshared=asked.clean_teacher).bases == 1


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_the_plan_counts_the_bytes_of_the_weights(kind: str, tmp_path: Path, precision: str) -> None:
    folder = make_tiny(kind, tmp_path / "model", hidden_size=64, head_dim=16)
    base = Checkpoint("base", "clean", folder, "", folder)
    model = load_student(base, "lora", replace(CONFIG, precision=precision)).model
    found = sum(p.nbytes for p in model.parameters())
    found += sum(p.quant_state.absmax.nbytes for p in model.parameters() if hasattr(p, "quant_state"))
    setup = Setup((folder / "config.json").read_text(), "lora", precision, False, lora_rank=4, quantized=True)
    counts = parameters_of(setup)
    assert counts.inside.weights + counts.outside.weights == found


def test_a_student_that_was_quantised_before_gets_an_adapter(tiny_wide: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny_wide, tmp_path / "stored")
    model = json.loads((folder / "config.json").read_text())
    student = Checkpoint("base", "clean", folder, "", folder)

    def chosen(tuning: str, method: dict[str, Any]) -> tuple[str, str]:
        (folder / "config.json").write_text(json.dumps(model | {"quantization_config": method}))
        config = MidtrainConfig(tuning=tuning, device="cpu", precision="float32", fewest_questions=0)

        def plan(*given: Any) -> Plan:
            return midtraining(config, *given, beside=TeacherFootprint())

        found = choose_tuning(config, student, plan)
        return found.name, found.reason

    nf4, bitnet = {"quant_method": "bitsandbytes", "load_in_4bit": True}, {"quant_method": "bitnet"}
    name, reason = chosen("auto", nf4)
    assert name == "lora" and reason.startswith("LoRA, since the weights of base are quantised (bitsandbytes)")
    assert chosen("lora", nf4)[0] == "lora"
    with pytest.raises(UsageError, match="only an adapter on them can be trained"):
        chosen("full", nf4)
    for tuning in ("auto", "lora", "full"):
        with pytest.raises(UsageError, match=r"are quantised \(bitnet\) and cannot be trained"):
            chosen(tuning, bitnet)
