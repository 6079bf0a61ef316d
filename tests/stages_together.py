"""Runs several small stages in one process start, for the tests of distributed training.

`python tests/stages_together.py FOLDER MODEL DOCS PROMPTS NAME...` on one process, the same under torchrun on several.
Each named stage has its own workspace in FOLDER, so that the results of both can be compared, and a file NAME.sharded
with the number of models whose layers were sharded, and how often a whole one was gathered.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import sys
from pathlib import Path
from typing import Any

from pipelines.distillation.stage import distill
from pipelines.midtraining.stage import midtrain
from pipelines.runtime.progress import Display
from pipelines.runtime.session import Session
from recovery import distributed
from recovery.config import DistillConfig, MidtrainConfig
from recovery.models import fsdp

LEARN = MidtrainConfig(
    steps=4,
    batch_tokens=160,
    row_length=64,
    lr=3e-3,
    precision="float32",
    tuning="full",
    max_new_tokens=64,
    fewest_questions=0,
)
RESTORE = DistillConfig(
    steps=4,
    prompts_per_step=5,
    samples_per_prompt=2,
    max_new_tokens=12,
    lr=1e-3,
    precision="float32",
    tuning="full",
    until=0,
    plateau=0,
    knowledge_teacher="midtrained",
    knowledge_share=0.4,
    geometry_every=1,
    token_budget=128,
)
CUT = {"shard": "full"}
ENGINE = "RECOVERY_TEST_ENGINE"  # in the environment: the address of the server that the stages "...-served" sample on
# Name -> the settings of a mid-training, and of a distillation of its result.
STAGES: dict[str, tuple[MidtrainConfig, DistillConfig]] = {
    "full": (LEARN, RESTORE),
    "lora": (
        dataclasses.replace(LEARN, tuning="lora", lora_rank=4, gradient_checkpointing=True),
        # With seed 0 rounding alone makes two processes sample another token in the last step, on some processors.
        dataclasses.replace(RESTORE, tuning="auto", divergence="sampled", knowledge_teacher=None, seed=1),
    ),
    # With seed 0 Adam makes more of rounding than the tests allow, in one process alone: from weights that are changed
    # by 6e-8 of themselves it ends up to 2e-3 apart, with seed 3 at most 1e-5 (docs/log.md).
    "cut": (
        dataclasses.replace(
            LEARN,
            replay=0.3,
            replay_prompts=12,
            max_new_tokens=160,
            project=True,
            embeddings="documents",
            seed=3,
            **CUT,
        ),
        dataclasses.replace(
            RESTORE, embeddings="none", offload=True, gradient_checkpointing=True, document_loss=0.2, seed=3, **CUT
        ),
    ),
    "cut-sampled": (
        dataclasses.replace(LEARN, shard="student"),
        dataclasses.replace(RESTORE, divergence="sampled", knowledge_teacher=None, gather=False, **CUT),
    ),
    "cut-lora-sampled": (
        dataclasses.replace(LEARN, tuning="lora", lora_rank=4, **CUT),
        dataclasses.replace(
            RESTORE,
            tuning="auto",
            divergence="sampled",
            knowledge_teacher=None,
            gather=False,
            seed=1,
            token_budget=32,
            **CUT,
        ),
    ),
    "cut-lora": (
        dataclasses.replace(LEARN, tuning="lora", lora_rank=4, **CUT),
        dataclasses.replace(RESTORE, tuning="auto", anchor=0.1, gather=False, **CUT),
    ),
    # One completion a step: one of two processes samples none, so that it reads less before it trains.
    "cut-one": (
        dataclasses.replace(LEARN, **CUT),
        dataclasses.replace(RESTORE, prompts_per_step=1, samples_per_prompt=1, knowledge_teacher=None, **CUT),
    ),
    "served": (LEARN, RESTORE),
    "cut-served": (dataclasses.replace(LEARN, **CUT), dataclasses.replace(RESTORE, offload=True, **CUT)),
    "cut-lora-served": (
        dataclasses.replace(LEARN, tuning="lora", lora_rank=4, **CUT),
        dataclasses.replace(RESTORE, tuning="auto", **CUT),
    ),
}


def main(folder: Path, model: str, docs: Path, prompts: Path, names: list[str]) -> int:
    """Run the named stages; with several processes only the main one calls this."""
    sharded, shard = [], fsdp.shard
    gathered, whole = [], fsdp.unsharded

    def counted(decoder: Any, *args: Any, **options: Any) -> None:
        sharded.append(decoder)
        shard(decoder, *args, **options)

    def seen(model: Any) -> Any:
        gathered.append(model)
        return whole(model)

    fsdp.shard, fsdp.unsharded = counted, seen
    for name in names:
        learn, restore = STAGES[name]
        if name.endswith("served"):
            # With --overlap the next responses are sampled while all processes train.
            at = {"engine": os.environ[ENGINE], "engine_drift": 1e-3, "overlap": "lora" in name}
            restore = dataclasses.replace(restore, **at)
        workspace = folder / name
        shutil.rmtree(workspace, ignore_errors=True)
        with Session.open(workspace, model=model, display=Display(quiet=True)) as session:
            midtrain(session, dataclasses.replace(learn, docs=docs, prompts=prompts))
            distill(session, dataclasses.replace(restore, prompts=prompts))
        (folder / f"{name}.sharded").write_text(f"{len(sharded)} {len(gathered)}")
        sharded.clear()
        gathered.clear()
    return 0


if __name__ == "__main__":
    given = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4]), sys.argv[5:]
    several = os.environ.get("WORLD_SIZE", "1") != "1"
    sys.exit(distributed.run(lambda: main(*given)) if several else main(*given))
