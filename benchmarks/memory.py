"""The memory model against the measured peaks of real stages.

Run: python -m benchmarks.memory [--write]

Each row is a stage of its own in a process of its own: `recover midtrain` or `recover distill` as the commands run
them, from loading to the last save, on a Qwen3 model with random weights. Predicted is what the command's plan says
before any weights are loaded. Measured is the peak that the kernel counts (VmHWM), above what the process held after
the same stage had run on a tiny model, which loads every library.

The C library keeps freed blocks, and oneDNN the kernels it has compiled, one for each length of an answer, both for
later use. They are told to give them back, so that what is counted is the stage's own. The rows of the second table
are not told so: that is what the kernel counts on a CPU as things are, and why a plan leaves a quarter of a CPU's
free memory alone.

Matrix products run in the precision that --precision auto takes on this machine. A processor without products of
bfloat16 makes float32 copies of what it is given in it, which the model leaves out; where this one is such, the rows of
a third table say how much that is.
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
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, GenerationConfig, Qwen3Config

from benchmarks import _report, _resident
from pipelines.distill import distill, plan_distill
from pipelines.estimates import size
from pipelines.memory import parameters_of
from pipelines.midtrain import midtrain, plan_midtrain
from pipelines.progress import Display
from pipelines.session import Session
from pipelines.tracing import Trial
from recovery.config import DistillConfig, MidtrainConfig
from recovery.loading import pick_precision
from recovery.miniature import materialise, write_corpora

GOAL = 0.15
WEIGHTS = ("model.safetensors", "recovery.toml", "provenance.json")


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
        """As transformers has it."""
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
MEASURED = "measured"  # begins the line that the parent reads


@dataclass(frozen=True)
class Case:
    """One stage on one model; ``told`` says that freed memory is given back."""

    shape: str
    stage: str
    precision: str
    told: bool = True

    @property
    def emulated(self) -> bool:
        """Whether this processor lacks the products."""
        return self.precision == "bfloat16" and native() != "bfloat16"


def native() -> str:
    """The precision that --precision auto takes here."""
    return str(pick_precision("auto", torch.device("cpu"))).removeprefix("torch.")


def cases() -> list[Case]:
    """All of them; the other precision, and memory as it is kept, on one model."""
    some, own = ("midtrain, full", "distill, LoRA, adapter off"), native()
    other = "float32" if own == "bfloat16" else "bfloat16"
    return [
        *[Case(shape, stage, own) for shape in SHAPES for stage in STAGES],
        *[Case("untied", stage, other) for stage in some],
        *[Case("untied", stage, own, told=False) for stage in some],
    ]


def settings(case: Case, docs: Path) -> MidtrainConfig | DistillConfig:
    """The stage's settings: several micro-batches a step, and two steps, so that the optimizer's state is there."""
    shared = {**STAGES[case.stage], "precision": case.precision, "device": "cpu", "token_budget": 1024, "steps": 2}
    if case.stage.startswith("midtrain"):
        return MidtrainConfig(docs=docs, student="base", batch_tokens=2048, row_length=512, **shared)
    shared["student"] = f"student/{shared['tuning']}"
    return DistillConfig(
        prompts_per_step=8, samples_per_prompt=2, max_new_tokens=80, until=0.0, rollout_tokens=2048, **shared
    )


def make_model(shape: Shape, folder: Path, seed: int) -> Path:
    """A folder with random weights and the miniature's tokenizer and prompts."""
    materialise(folder)
    for name in ("model.safetensors", "recovery.toml", "provenance.json"):
        (folder / name).unlink()
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(shape.config(), dtype=torch.float32)
    model.generation_config = GenerationConfig.from_pretrained(folder)
    model.save_pretrained(folder)
    return folder


# --- one stage, in its own process ------------------------------------------------------------------------------


def begin(shape: Shape, folder: Path, seed: int) -> None:
    """A workspace where stages can start: documents, a clean model, and two students that were mid-trained a little."""
    docs = write_corpora(folder / "docs", 1, seed, entities=12)[0]
    model = make_model(shape, folder / "model", seed)
    with Session.open(folder / "workspace", model=str(model), display=Display(quiet=True)) as session:
        for tuning in ("full", "lora"):
            config = MidtrainConfig(
                docs=docs, student="base", tuning=tuning, steps=1, batch_tokens=64, device="cpu", seed=seed
            )
            midtrain(session, config, name=f"student/{tuning}")


def run(case: Case, folder: Path) -> int:
    """The stage as its command runs it; returns the bytes that its plan said beforehand."""
    config = settings(case, folder / "docs" / "q1")
    with Session.open(folder / "workspace", display=Display(quiet=True)) as session:
        if isinstance(config, MidtrainConfig):
            said = plan_midtrain(session, config).memory
            midtrain(session, config)
        else:
            said = plan_distill(session, config).memory
            distill(session, config)
    return said.memory.peak


def measure(case: Case, folder: Path) -> None:
    """In the child: print the bytes predicted, and those at the peak above what was held before."""
    run(case, folder / TINY.name)
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)  # freed blocks go back, so that none of them hides what is taken now
    before = _resident.now()
    said = run(case, folder / case.shape)
    print(MEASURED, said, round((_resident.peak() - before) * 1e6), flush=True)


# --- the parent -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """A case with its bytes."""

    case: Case
    predicted: int
    measured: int

    @property
    def error(self) -> float:
        """How far the prediction is from the measurement, as a share of that."""
        return self.predicted / self.measured - 1


def in_process_of_its_own(folder: Path, *, seed: int, case: Case | None = None, shapes: str = "") -> str:
    """Make the workspaces of some shapes, or measure a case: what the process printed."""
    told = ENVIRONMENT if case is not None and case.told else {}
    request = {"folder": str(folder), "seed": seed, "shapes": shapes, "case": None if case is None else asdict(case)}
    finished = subprocess.run(
        [sys.executable, "-m", "benchmarks.memory", "--child", json.dumps(request)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", **told},
        capture_output=True,
        text=True,
        check=False,
    )
    if finished.returncode:
        raise SystemExit(f"{case or shapes}:\n{finished.stderr[-3000:]}")
    return finished.stdout


def measured(case: Case, folder: Path, seed: int) -> Row:
    """One case, measured."""
    said = in_process_of_its_own(folder, seed=seed, case=case)
    line = next(line for line in said.splitlines() if line.startswith(MEASURED))
    _, predicted, found = line.split()
    return Row(case, int(predicted), int(found))


def answer(request: dict[str, Any]) -> None:
    """In the child: do what is asked of it."""
    folder, shapes = Path(request["folder"]), request["shapes"]
    for shape in shapes.split(",") if shapes else ():
        begin(TINY if shape == TINY.name else SHAPES[shape], folder / shape, request["seed"])
    if request["case"] is not None:
        measure(Case(**request["case"]), folder)


def markdown(rows: list[Row]) -> str:
    """The tables and the verdict."""
    models = [
        (s.name, f"{s.vocabulary:,}", s.width, s.layers, s.ffn, f"{s.heads}/{s.groups}", f"{counted(s) / 1e6:.0f}M")
        for s in SHAPES.values()
    ]
    parts = [_report.table(("model", "vocabulary", "width", "layers", "ffn", "heads", "parameters"), models), ""]
    judged = [row for row in rows if row.case.told and not row.case.emulated]
    tables = {
        "Freed memory given back:": judged,
        "Freed memory kept, as the C library does by itself:": [row for row in rows if not row.case.told],
        "Freed memory given back, bfloat16 on a processor without it:": [row for row in rows if row.case.emulated],
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
    """Parameters of a shape."""
    return parameters_of(Trial(shape.config().to_json_string(), "full", "float32", gpu=False)).total


def main() -> int:
    """Measure, print, write where asked; status 1 where the goal was missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--only",
        default="",
        help="only cases whose description has one of these, split at |; the others keep what was written",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/memory.md and .json")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        answer(json.loads(options.child))
        return 0
    facts = _report.machine() | {"threads": "1", "seed": str(options.seed)}
    chosen = [case for case in cases() if any(part in str(case) for part in options.only.split("|"))]
    rows = {} if not options.only else known()
    with tempfile.TemporaryDirectory() as name:
        shapes = ",".join(dict.fromkeys([TINY.name, *(case.shape for case in chosen)]))
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
    """The rows that were written before."""
    path = _report.RESULTS / "memory.json"
    found = json.loads(path.read_text(encoding="utf-8"))["rows"] if path.is_file() else []
    split = [(row.pop("predicted"), row.pop("measured"), Case(**row)) for row in found]
    return {case: Row(case, predicted, measured) for predicted, measured, case in split if case in cases()}


def write(rows: list[Row], facts: dict[str, str]) -> None:
    """Write the results as far as they are there."""
    data = [asdict(row.case) | {"predicted": row.predicted, "measured": row.measured} for row in rows]
    note = (__doc__ or "").split("\n\n", 2)[2]
    _report.write("memory", "The memory model", f"{note}\n{markdown(rows)}", facts, {"rows": data})


if __name__ == "__main__":
    sys.exit(main())
