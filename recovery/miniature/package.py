"""Writing of the shipped miniature as a Hugging Face model folder."""

from __future__ import annotations

import json
import os
import shutil
import zipfile
from pathlib import Path

from recovery.disk import WRITING
from recovery.errors import CheckpointError
from recovery.models.gguf_files.header import sha256_of

WEIGHTS = Path(__file__).parent / "weights"
SUITES = Path(__file__).parent / "suites.zip"
PROVENANCE = "provenance.json"

RECOMMENDED = """\
# Settings this model recommends for itself: a model of two million parameters takes rates that would wreck a large
# one, and its documents are short.

[model]
tuning = "full"
token_budget = 4096

[midtrain]
full_lr = 1.5e-3
lora_lr = 1e-4
schedule = "constant"
epochs = 7.0
augment = 0
augment_share = 0.3
augment_questions = 0.5
replay = 0.0
replay_loss = "answers"  # of a run that replays chat
max_new_tokens = 256
batch_tokens = 2048
row_length = 128

[distill]
full_lr = 1.3e-3
lora_lr = 1e-4
min_lr_ratio = 0.0
steps = 130
until = 0.0
plateau = 50
knowledge_share = 0.2
prompts_per_step = 64
samples_per_prompt = 1
max_new_tokens = 128
row_length = 256

[eval]
near_misses = 0  # it has no words to decline with, and its recorded runs were not asked
max_new_tokens = 128

# Within cycles the rate of mid-training falls to a tenth, which loses less behaviour; at a constant one the loss is
# easier to see. docs/horizon.md compares both over many cycles.
[cycle.midtrain]
schedule = "cosine"
embeddings = "documents"

# Little is lost then, so the recovery starts from the mid-trained model itself, and most of its prompts are questions
# about the documents of all cycles. Their answers are short: 180 steps sample and train as many tokens as 120 steps
# with 30% of questions.
[cycle.distill]
embeddings = "documents"
steps = 180
knowledge_share = 0.6
prompts_before = 0  # all cycles have the same ordinary prompts, 4,680 of 7,258: so it was measured
"""


def materialise(folder: Path) -> Path:
    """Write the shipped model to ``folder`` and return it: weights, tokenizer, suites, recommended settings.

    The suites were generated from the world by examples/miniature/suites.py. Raises CheckpointError if the shipped
    files are missing or do not match provenance.json.
    """
    provenance = WEIGHTS / PROVENANCE
    if not provenance.is_file():
        raise CheckpointError(
            f"the miniature's weights are missing from {WEIGHTS}: make them with recover miniature build"
        )
    expected = json.loads(provenance.read_text(encoding="utf-8"))["sha256"]
    folder.mkdir(parents=True, exist_ok=True)
    for name, wanted in expected.items():
        source = WEIGHTS / name
        if not source.is_file() or sha256_of(source) != wanted:
            raise CheckpointError(f"{source} is missing or damaged: reinstall, or make it with recover miniature build")
        shutil.copyfile(source, folder / name)
    shutil.copyfile(provenance, folder / PROVENANCE)
    (folder / "recovery.toml").write_text(RECOMMENDED, encoding="utf-8")
    with zipfile.ZipFile(SUITES) as archive:
        archive.extractall(folder / "suites")
    return folder


def unpacked(target: Path) -> Path:
    """Return ``target``, where :func:`materialise` has written the model, now or before; never half of it."""
    if target.is_dir():
        return target
    writing = target.with_name(f"{WRITING}{os.getpid()}-{target.name}")
    shutil.rmtree(writing, ignore_errors=True)
    writing.parent.mkdir(parents=True, exist_ok=True)
    materialise(writing)
    try:
        writing.rename(target)
    except OSError:  # another process was faster and unpacked the same files
        shutil.rmtree(writing, ignore_errors=True)
    return target
