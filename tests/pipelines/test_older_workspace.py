"""A workspace, a tracker and an unfinished stage of release 0.1 open, and go on to the weights that 0.1 made of them.

tests/data/workspace-0.1.tar.xz was written by commit eec45ba on the miniature, whose files it does not contain:

    recover midtrain --docs corpus --steps 4 --tuning lora --lora-rank 4
    recover distill --teacher base --steps 6 --checkpoint-every 1 --prompts-per-step 4 --max-new-tokens 16 \
        --until 0 --tuning lora     # interrupted in the third step

``expected.safetensors`` is the adapter that `recover resume` of that commit made of it.
"""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from db import queries
from pipelines.cycle import resume
from pipelines.runtime.progress import Display
from pipelines.runtime.session import Session
from recovery.models import attention
from recovery.models.attention import _fused, _plain
from tests.pipelines.conftest import stages_of

ARCHIVE = Path(__file__).resolve().parents[1] / "data" / "workspace-0.1.tar.xz"


@pytest.fixture
def older(tmp_path: Path, shipped_miniature: Path) -> Path:
    """The folder with the unpacked workspace and the expected adapter."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    shutil.copytree(shipped_miniature, tmp_path / "workspace" / "models" / "miniature", dirs_exist_ok=True)
    return tmp_path


def test_an_unfinished_stage_of_an_older_release_resumes_to_its_weights(
    older: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # 0.1 trained with plain products. The gradients of this stage are as small as rounding in bfloat16, and AdamW makes
    # steps of full size of them: any other attention leads to other weights.
    monkeypatch.setattr(attention, "_implementation", lambda *_: _plain if torch.is_grad_enabled() else _fused)
    with Session.open(older / "workspace", display=Display(quiet=True)) as session:
        stages = stages_of(session)
        assert {(stage.kind, stage.status) for stage in stages} == {
            ("midtrain", "finished"),
            ("distill", "interrupted"),
        }
        resume(session)
        made = session.resolve("cycle-1/recovered")
        stage = stages_of(session, "distill")[0]
        curves = queries.series(session.tracker.database, stage.id, max_points=None)
    expected, found = load_file(older / "expected.safetensors"), load_file(made.path / "adapter_model.safetensors")
    assert expected.keys() == found.keys()
    before = load_file(older / "workspace" / "checkpoints" / "cycle-1" / "midtrained" / "adapter_model.safetensors")
    start, ours, theirs = (torch.cat([one[name].flatten() for name in expected]) for one in (before, found, expected))
    # Another processor rounds the products differently, and the signs of the smallest gradients with them: on one
    # without AMX the directions had a cosine of 0.95 and nearly all entries were within one step of AdamW.
    assert torch.cosine_similarity(ours - start, theirs - start, dim=0) > 0.85
    assert float((ours - theirs).abs().max()) < 4e-4
    for name in (
        "loss",
        "reverse_kl",
        "gradient_norm",
        "entropy",
        "tokens_trained",
        "seconds_training",
        "seconds_generating",
    ):
        assert [point.step for point in curves[name]] == [1, 2, 3, 4, 5, 6], name  # the same names before and after
