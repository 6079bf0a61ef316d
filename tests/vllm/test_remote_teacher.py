"""A teacher behind a real vLLM server: the scores of the model itself, and a stage that outlives the server."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from db import queries
from pipelines.distillation.stage import distill
from pipelines.runtime.progress import Display
from pipelines.runtime.session import Session
from recovery.batching import Row, collate
from recovery.config import DistillConfig
from recovery.engines import TEACHER_KEYS
from recovery.errors import ServerError, UsageError
from recovery.inference_server import InferenceServer
from recovery.models.loading import load_model
from recovery.teachers.remote import RemoteTeacher
from recovery.teachers.teacher import Identity
from tests.vllm.conftest import KEY, SHAPE

pytestmark = pytest.mark.vllm


@pytest.fixture(scope="session")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Short prompts to recover on."""
    folder = tmp_path_factory.mktemp("prompts")
    for split in ("train", "development", "test"):
        lines = [f'{{"key": "{split}-{n}", "prompt": "Name boat {n} of the {split}."}}\n' for n in range(12)]
        (folder / f"{split}.jsonl").write_text("".join(lines))
    return folder


@pytest.fixture
def config(prompts: Path, teacher_server: Any) -> DistillConfig:
    """Short steps, scored by the server."""
    return DistillConfig(
        teacher=teacher_server.address,
        divergence="top_k",
        top_k=20,
        steps=8,
        prompts_per_step=4,
        samples_per_prompt=2,
        max_new_tokens=12,
        lr=5e-3,
        precision="float32",
        tuning="full",
        checkpoint_every=2,
        prompts=prompts,
        until=0,
        plateau=0,
        alarm=False,
    )


@pytest.fixture
def student(make_tiny: Callable[..., Path], tmp_path: Path) -> Path:
    """The teacher's family, other weights."""
    return make_tiny("qwen3", tmp_path / "student", seed=9, **SHAPE)


def opened(tmp_path: Path, student: Path) -> Session:
    return Session.open(tmp_path / "workspace", model=str(student), display=Display(quiet=True))


def test_its_scores_are_the_models_own(teacher_server: Any, tied: Path) -> None:
    loaded = load_model(tied, precision="float32")
    teacher = RemoteTeacher(
        InferenceServer(teacher_server.address, TEACHER_KEYS), loaded.tokenizer, loaded.chat, loaded.head.vocabulary, 20
    )
    teacher.check()
    assert teacher.model == "clean"
    rows = [
        Row([5, 9, 30, 12, 8, 77], [False, False, True, True, False, True], teacher="base"),
        Row([7, 11, 400], [False, True, True], teacher="base"),
    ]
    batch = collate(rows, loaded.chat.pad_id)
    ids_NK, logprobs_NK = teacher.top(batch, 20)
    with torch.no_grad():
        all_NV = loaded.head.logits(batch.gather(loaded.hidden(batch))).log_softmax(-1)
    torch.testing.assert_close(logprobs_NK, all_NV.gather(-1, ids_NK), atol=1e-3, rtol=0)
    assert (ids_NK == batch.targets_N[:, None]).any(-1).all(), "the sampled token is among them"
    best_NK = all_NV.topk(19, dim=-1).indices
    for ids, best in zip(ids_NK.tolist(), best_NK.tolist(), strict=True):
        assert set(best) <= set(ids)
    wanted_N = all_NV.gather(-1, batch.targets_N[:, None])[:, 0]
    torch.testing.assert_close(teacher.logprobs(batch), wanted_N, atol=1e-3, rtol=0)


@pytest.mark.slow
def test_what_does_not_fit_is_refused_before_anything_is_sampled(
    teacher_server: Any, tied: Path, untied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def teacher(folder: Path, count: int) -> RemoteTeacher:
        loaded = load_model(folder, precision="float32")
        server = InferenceServer(teacher_server.address, TEACHER_KEYS, patience=0)
        return RemoteTeacher(server, loaded.tokenizer, loaded.chat, loaded.head.vocabulary, count)

    with pytest.raises(UsageError, match="tokenizers differ"):
        teacher(untied, 20).check()
    with pytest.raises(UsageError, match=r"--max-logprobs 200, or lower --top-k"):
        teacher(tied, 200).check()
    monkeypatch.setenv("RECOVER_TEACHER_KEY", "another")
    with pytest.raises(ServerError, match="refuses the key: set RECOVER_TEACHER_KEY or VLLM_API_KEY") as refused:
        teacher(tied, 20).check()
    assert "another" not in str(refused.value) and KEY not in str(refused.value)


@pytest.mark.slow
def test_another_model_by_the_same_name_is_known_by_its_scores(teacher_server: Any, tied: Path) -> None:
    loaded = load_model(tied, precision="float32")
    server = InferenceServer(teacher_server.address, TEACHER_KEYS)
    teacher = RemoteTeacher(server, loaded.tokenizer, loaded.chat, loaded.head.vocabulary, 20)
    teacher.check()
    teacher.check_again()
    teacher.check_same(teacher.identity)
    scores = teacher.identity.scores
    assert len(scores) == 7 and all(score < 0 for score in scores)
    with pytest.raises(ServerError, match="now serves a different model under the name 'clean'"):
        teacher.check_same(Identity("clean", [scores[0] + 0.5, *scores[1:]]))
    with pytest.raises(ServerError, match="now serves the model 'clean' instead of 'dirty'"):
        teacher.check_same(Identity("dirty", scores))


@pytest.mark.parametrize("divergence", [pytest.param("top_k", marks=pytest.mark.slow), "sampled"])
def test_a_stage_outlives_a_teacher_that_is_killed_and_started_again(
    teacher_server: Any, config: DistillConfig, student: Path, tied: Path, tmp_path: Path, divergence: str
) -> None:
    config = dataclasses.replace(config, divergence=divergence, top_k=20 if divergence == "top_k" else 0)
    killed = []

    def observe(step: int, *_: object) -> dict[str, float]:
        if step == 4 and divergence == "top_k":
            teacher_server.kill()
            again = threading.Timer(2.0, teacher_server.start, kwargs={"wait": False})
            again.start()
            killed.append(step)
        return {}

    with opened(tmp_path, student) as session:
        made = distill(session, dataclasses.replace(config, check_every=4), observe=observe)
        stage = queries.stages(session.tracker.database, session.experiment_id)[0]
        curves = queries.series(session.tracker.database, stage.id)
        assert stage.status == "finished" and stage.steps_done == 8
        assert stage.config["teacher"] == teacher_server.address
        assert stage.details["teacher"] == f"{teacher_server.address} (clean)"
        assert sum(point.value for point in curves["tokens_scored"]) > 0
        falls = [point.value for point in curves["top_k" if divergence == "top_k" else "reverse_kl"]]
        assert len(falls) == 8 and stage.details["moved"]["relative"] > 0
        if divergence == "top_k":  # an estimate from one sampled token each says little over so few steps
            assert sum(falls[-2:]) < 0.9 * sum(falls[:2]), "the student comes nearer to what the server says"
        database = session.workspace.database
    assert made.name == "cycle-1/recovered"
    assert killed or divergence == "sampled"
    for file in (tmp_path / "workspace").rglob("*"):
        assert not (file.is_file() and KEY.encode() in file.read_bytes()), f"the key stands in {file}"
    assert database


@pytest.mark.slow
def test_a_teacher_that_stays_away_ends_the_stage_and_resume_goes_on(
    teacher_server: Any, config: DistillConfig, student: Path, tmp_path: Path
) -> None:
    from pipelines.cycle import resume

    def observe(step: int, *_: object) -> dict[str, float]:
        if step == 4:
            teacher_server.kill()
        return {}

    with opened(tmp_path, student) as session:
        with pytest.raises(ServerError, match="`recover resume`"):
            distill(session, dataclasses.replace(config, check_every=4, server_wait=1.0), observe=observe)
        teacher_server.start()
        resume(session)
        stage = queries.stages(session.tracker.database, session.experiment_id)[0]
        assert stage.status == "finished" and stage.steps_done == 8 and stage.attempts == 2
        assert session.resolve("latest").name == "cycle-1/recovered"
