"""The memory model against the measured peaks of real stages.

Run: python -m benchmarks.memory [--write]

Each row is one stage in its own process: `recover midtrain` or `recover distill` as the commands run them, from
loading to the last save, on a Qwen3 model with random weights. Predicted is the value of the command's plan before any
weights are loaded. Measured is the kernel's peak (VmHWM), above the memory of the process after the same stage has run
on a tiny model, which loads every library.

The C library caches freed blocks, and oneDNN caches compiled kernels, one for each response length. Environment
variables limit both caches, so that only the stage's own memory is counted. The second table is measured without these
limits: these are the values on a CPU by default, and the reason why a plan leaves a quarter of a CPU's free memory
unused.

The weights are stored in the precision they are computed in: from a file of another one, loading maps the file beside
the converted weights, and the kernel counts its pages, although it takes them back when memory is short.

Matrix products run in the precision that --precision auto selects on this machine. A processor without bfloat16
products makes float32 copies of bfloat16 operands, which the memory model does not count; on such a processor a third
table shows their effect.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, GenerationConfig, Qwen3Config

from benchmarks import _report, _resident
from pipelines.distillation.plan import plan_distill
from pipelines.distillation.stage import distill
from pipelines.midtraining.plan import plan_midtrain
from pipelines.midtraining.stage import midtrain
from pipelines.planning.activations import Setup
from pipelines.planning.memory import parameters_of
from pipelines.runtime.progress import Display
from pipelines.runtime.session import Session
from pipelines.table import of_process, size
from recovery.config import DistillConfig, MidtrainConfig
from recovery.miniature.corpora import write_corpora
from recovery.miniature.package import materialise
from recovery.models.hardware import pick_precision

GOAL = 0.15


@dataclass(frozen=True)
class Shape:
    """A Qwen3 model."""

    name: str
    vocabulary: int
    width: int
    layers: int
    ffn: int
    heads: int
    groups: int
    tied: bool = True

    def config(self) -> Qwen3Config:
        """Return the transformers configuration."""
        return Qwen3Config(
            vocab_size=self.vocabulary,
            hidden_size=self.width,
            num_hidden_layers=self.layers,
            intermediate_size=self.ffn,
            num_attention_heads=self.heads,
            num_key_value_heads=self.groups,
            head_dim=64,
            tie_word_embeddings=self.tied,
            max_position_embeddings=2048,
        )


TINY = Shape("tiny", 2048, 64, 2, 128, 2, 1)
SHAPES = {
    shape.name: shape
    for shape in (
        Shape("wide vocabulary", 151_936, 256, 6, 768, 4, 2),
        Shape("deep", 32_000, 640, 20, 1920, 10, 5),
        Shape("untied", 8_192, 512, 8, 1536, 8, 4, tied=False),
    )
}
STAGES: dict[str, dict[str, Any]] = {
    "midtrain, full": {"tuning": "full"},
    "midtrain, full, checkpointing": {"tuning": "full", "gradient_checkpointing": True},
    "midtrain, LoRA": {"tuning": "lora"},
    "distill, full, teacher beside": {"tuning": "full"},
    "distill, full, blend, two teachers": {"tuning": "full", "blend": 0.8, "knowledge_teacher": "student/full"},
    "distill, full, answers of 512 tokens": {"tuning": "full", "max_new_tokens": 512},
    "distill, LoRA, adapter off": {"tuning": "lora"},
    "distill, LoRA, adapter off, checkpointing": {"tuning": "lora", "gradient_checkpointing": True},
    "distill, LoRA, an adapter teaches too": {"tuning": "lora", "knowledge_teacher": "student/lora"},
}
ENVIRONMENT = {
    "MALLOC_MMAP_THRESHOLD_": "262144",
    "MALLOC_TRIM_THRESHOLD_": "262144",
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "16",
    "LRU_CACHE_CAPACITY": "16",
}
MEASURED = "measured"  # prefix of the line for the parent


@dataclass(frozen=True)
class Case:
    """One stage on one model; ``returned`` is whether freed memory goes back to the system. ``stored`` is the type of
    the weights in the clean model's file, by default the precision: float16 is what a GGUF file is converted to.
    """

    shape: str
    stage: str
    precision: str
    returned: bool = True
    stored: str = ""

    @property
    def emulated(self) -> bool:
        """Whether this processor has no products in this precision."""
        return self.precision == "bfloat16" and native() != "bfloat16"


def native() -> str:
    """Return the precision that --precision auto selects on this machine."""
    return str(pick_precision("auto", torch.device("cpu"))).removeprefix("torch.")


def cases() -> list[Case]:
    """Return all cases; the other precision, and runs with default memory caching, on one model only."""
    some, own = ("midtrain, full", "distill, LoRA, adapter off"), native()
    other = "float32" if own == "bfloat16" else "bfloat16"
    return [
        *[Case(shape, stage, own) for shape in SHAPES for stage in STAGES],
        *[Case("untied", stage, other) for stage in some],
        *[Case("untied", stage, own, returned=False) for stage in (*some, "distill, full, answers of 512 tokens")],
        Case("deep", "distill, full, blend, two teachers", own, stored="float16"),
    ]


def settings(case: Case, docs: Path) -> MidtrainConfig | DistillConfig:
    """Return the stage's settings: several micro-batches per step, and two steps to allocate the optimizer's state."""
    shared = {**STAGES[case.stage], "precision": case.precision, "device": "cpu", "token_budget": 1024, "steps": 2}
    if case.stage.startswith("midtrain"):
        return MidtrainConfig(docs=docs, student="base", batch_tokens=2048, row_length=512, **shared)
    shared["student"] = f"student/{shared['tuning']}"
    shared = {"max_new_tokens": 80, **shared}
    return DistillConfig(prompts_per_step=8, samples_per_prompt=2, until=0.0, rollout_tokens=2048, **shared)


def make_model(shape: Shape, folder: Path, seed: int, precision: str) -> Path:
    """Write a model folder with random weights and the miniature's tokenizer and prompts."""
    materialise(folder)
    for name in ("model.safetensors", "recovery.toml", "provenance.json"):
        (folder / name).unlink()
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(shape.config(), dtype=torch.float32).to(getattr(torch, precision))
    model.generation_config = GenerationConfig.from_pretrained(folder)
    model.save_pretrained(folder)
    return folder


# --- one stage, in its own process ------------------------------------------------------------------------------


def place(folder: Path, shape: str, precision: str, stored: str = "") -> Path:
    """Return the folder of a shape's model and workspace."""
    return folder / f"{shape}, {precision}{stored and f' from {stored}'}"


def begin(shape: Shape, folder: Path, seed: int, precision: str) -> None:
    """Create a workspace with documents, a clean model, and two briefly mid-trained students."""
    docs = write_corpora(folder / "docs", 1, seed, entities=12)[0]
    model = make_model(shape, folder / "model", seed, precision)
    with Session.open(folder / "workspace", model=str(model), display=Display(quiet=True)) as session:
        for tuning in ("full", "lora"):
            config = MidtrainConfig(
                docs=docs, student="base", tuning=tuning, steps=1, batch_tokens=64, device="cpu", seed=seed
            )
            midtrain(session, config, name=f"student/{tuning}")


def run(case: Case, folder: Path) -> int:
    """Run the stage as its command does; return the peak bytes of its plan."""
    config = settings(case, folder / "docs" / "q1")
    with Session.open(folder / "workspace", display=Display(quiet=True)) as session:
        if isinstance(config, MidtrainConfig):
            plan = plan_midtrain(session, config).memory
            midtrain(session, config)
        else:
            plan = plan_distill(session, config).memory
            distill(session, config)
    return plan.memory.peak


def measure(case: Case, folder: Path) -> None:
    """In the child: print the predicted bytes, and the peak above the memory before the stage."""
    run(case, place(folder, TINY.name, case.precision, case.stored))
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)  # returns freed blocks, which would hide new allocations
    before = _resident.now()
    predicted = run(case, place(folder, case.shape, case.precision, case.stored))
    predicted = predicted if case.returned else of_process(predicted, gpu=False)  # the number in the plan's table
    print(MEASURED, predicted, round((_resident.peak() - before) * 1e6), flush=True)


# --- the parent -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """A case with its bytes."""

    case: Case
    predicted: int
    measured: int

    @property
    def error(self) -> float:
        """Relative error of the prediction."""
        return self.predicted / self.measured - 1


def in_process_of_its_own(
    folder: Path, *, seed: int, case: Case | None = None, shapes: Sequence[tuple[str, str, str]] = ()
) -> str:
    """Create workspaces by shape and precision, or measure a case; return the output of the process."""
    limits = ENVIRONMENT if case is not None and case.returned else {}
    request = {"folder": str(folder), "seed": seed, "shapes": shapes, "case": None if case is None else asdict(case)}
    finished = subprocess.run(
        [sys.executable, "-m", "benchmarks.memory", "--child", json.dumps(request)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", **limits},
        capture_output=True,
        text=True,
        check=False,
    )
    if finished.returncode:
        raise SystemExit(f"{case or shapes}:\n{finished.stderr[-3000:]}")
    return finished.stdout


def measured(case: Case, folder: Path, seed: int) -> Row:
    """Measure one case."""
    output = in_process_of_its_own(folder, seed=seed, case=case)
    line = next(line for line in output.splitlines() if line.startswith(MEASURED))
    _, predicted, found = line.split()
    return Row(case, int(predicted), int(found))


def answer(request: dict[str, Any]) -> None:
    """In the child: carry out the parent's request."""
    folder = Path(request["folder"])
    for shape, precision, stored in request["shapes"]:
        chosen = TINY if shape == TINY.name else SHAPES[shape]
        begin(chosen, place(folder, shape, precision, stored), request["seed"], stored or precision)
    if request["case"] is not None:
        measure(Case(**request["case"]), folder)


def markdown(rows: list[Row]) -> str:
    """Return the tables and the verdict as Markdown."""
    models = [
        (s.name, f"{s.vocabulary:,}", s.width, s.layers, s.ffn, f"{s.heads}/{s.groups}", f"{counted(s) / 1e6:.0f}M")
        for s in SHAPES.values()
    ]
    parts = [_report.table(("model", "vocabulary", "width", "layers", "ffn", "heads", "parameters"), models), ""]
    judged = [row for row in rows if row.case.returned and not row.case.emulated]
    tables = {
        "Freed memory returned to the system:": judged,
        "Freed memory cached, as by default:": [row for row in rows if not row.case.returned],
        "Freed memory returned, bfloat16 on a processor without it:": [row for row in rows if row.case.emulated],
    }
    for title, chosen in tables.items():
        cells = [
            (r.case.shape, r.case.stage, r.case.precision, size(r.predicted), size(r.measured), f"{r.error:+.1%}")
            for r in chosen
        ]
        if cells:
            head = ("model", "stage", "precision", "predicted", "measured", "error")
            parts += [f"{title}\n", _report.table(head, cells), ""]
    if judged:
        worst = max(judged, key=lambda row: abs(row.error))
        word = "met" if abs(worst.error) <= GOAL else "MISSED"
        parts.append(f"Largest error of the first table: {worst.error:+.1%}; goal {GOAL:.0%}: {word}.")
    return "\n".join(parts)


def counted(shape: Shape) -> int:
    """Return the number of parameters of a shape."""
    return parameters_of(Setup(shape.config().to_json_string(), "full", "float32", gpu=False)).total


def main() -> int:
    """Measure and print; write with --write. Return 1 if the goal was missed."""
    parser = _report.parser(__doc__, "memory", "seed")
    parser.add_argument(
        "--only",
        default="",
        help="only cases whose description contains one of these, separated by |; others keep their stored results",
    )
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        answer(json.loads(options.child))
        return 0
    facts = _report.machine(threads=1, seed=options.seed)
    chosen = [case for case in cases() if any(part in str(case) for part in options.only.split("|"))]
    rows = {} if not options.only else known()
    with tempfile.TemporaryDirectory() as name:
        shapes = sorted({(shape, case.precision, case.stored) for case in chosen for shape in (TINY.name, case.shape)})
        in_process_of_its_own(Path(name), seed=options.seed, shapes=shapes)
        for case in chosen:
            row = rows[case] = measured(case, Path(name), options.seed)
            print(f"{case}: {size(row.predicted)}, {size(row.measured)}, {row.error:+.1%}", flush=True)
            if options.write:
                write([rows[case] for case in cases() if case in rows], facts)
    body = markdown([rows[case] for case in cases() if case in rows])
    print(body)
    return int("MISSED" in body)


def known() -> dict[Case, Row]:
    """Return the stored rows."""
    path = _report.RESULTS / "memory.json"
    found = json.loads(path.read_text(encoding="utf-8"))["rows"] if path.is_file() else []
    split = [(row.pop("predicted"), row.pop("measured"), Case(**row)) for row in found]
    return {case: Row(case, predicted, measured) for predicted, measured, case in split if case in cases()}


def write(rows: list[Row], facts: dict[str, str]) -> None:
    """Write the results so far."""
    data = [asdict(row.case) | {"predicted": row.predicted, "measured": row.measured} for row in rows]
    text = f"{_report.note(__doc__)}\n{markdown(rows)}"
    _report.write("memory", "The memory model", text, facts, {"rows": data})


if __name__ == "__main__":
    sys.exit(main())
