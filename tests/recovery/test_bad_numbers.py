"""Numbers that are none: caught where they begin, named in one line, with the last sound state kept."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from evals.suites import evaluate
from recovery.errors import ModelError, RecoveryError, ServerError
from recovery.losses.config import LossConfig
from recovery.losses.objective import MAIN_TEACHER, DistillationObjective
from recovery.models.loaded import Loaded
from recovery.models.loading import load_model
from recovery.prompt_logprobs import entries
from recovery.rewards import judged
from recovery.rollouts.engine import Completion, Sampling, check_completion
from recovery.teachers.teacher import LocalTeacher
from recovery.training.interfaces import StepBatch, TrainSettings
from recovery.training.loop import train
from recovery.training.resume_state import resume_step
from recovery.types import Check, Message, Probe, Prompt
from tests.recovery.test_training import random_rows
from tests.torture.numbers import run

NAN, INF = math.nan, math.inf
PROMPT = Prompt("p7", (Message(role="user", content="Say it."),), answer="yes")


def spoil(folder: Path, value: float) -> str:
    """Write ``value`` into one weight of a checkpoint; return the weight's name."""
    [file] = folder.glob("*.safetensors")
    tensors = load_file(file)
    name = sorted(tensors)[3]
    tensors[name].view(-1)[5] = value
    save_file(tensors, file, metadata={"format": "pt"})
    return name


@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_checkpoint_with_such_weights_is_refused(make_tiny: Callable[..., Path], tmp_path: Path, value: float) -> None:
    folder = make_tiny("llama", tmp_path / "model")
    name = spoil(folder, value)
    with pytest.raises(ModelError, match="not all finite numbers") as error:
        load_model(folder)
    assert name in str(error.value) and str(folder) in str(error.value) and "\n" not in str(error.value)


def test_adapter_with_such_weights_is_refused(tiny_model: Path, tmp_path: Path) -> None:
    load_model(tiny_model, tuning="lora").model.save_pretrained(tmp_path / "adapter")
    assert load_model(tmp_path / "adapter")
    spoil(tmp_path / "adapter", NAN)
    with pytest.raises(ModelError, match=r"not all finite numbers \(.*lora_"):
        load_model(tmp_path / "adapter")


def test_teacher_that_returns_such_numbers_is_named_and_the_state_is_kept(tiny_model: Path, tmp_path: Path) -> None:
    student = load_model(tiny_model, tuning="full", precision="float32")
    teacher = load_model(tiny_model, precision="float32")
    objective = DistillationObjective({MAIN_TEACHER: LocalTeacher(teacher)}, LossConfig())
    before: list[dict[str, torch.Tensor]] = []

    def rows(step: int) -> Any:
        if step == 4:
            before.append({name: p.detach().clone() for name, p in student.trainable().items()})
            with torch.no_grad():
                next(iter(teacher.model.parameters())).fill_(NAN)
        return random_rows(step, MAIN_TEACHER)

    settings = TrainSettings(steps=6, lr=1e-3, checkpoint_every=2)
    with pytest.raises(
        RecoveryError, match=r"the loss is not finite \(reverse_kl\): the teacher 'base' is not"
    ) as error:
        train(student, rows, objective, settings, state_dir=tmp_path)
    assert "\n" not in str(error.value)
    assert resume_step(tmp_path) == 2
    assert all(torch.equal(p, before[0][name]) for name, p in student.trainable().items())


@pytest.mark.parametrize("field", ["advantages", "old_logprobs"])
def test_rows_with_such_numbers_are_named(tiny_model: Path, field: str) -> None:
    student = load_model(tiny_model, tuning="full", precision="float32")
    teachers = {MAIN_TEACHER: LocalTeacher(load_model(tiny_model, precision="float32"))}

    def rows(step: int) -> Any:
        made = []
        for row in random_rows(step, MAIN_TEACHER).rows:
            numbers = {"advantages": (0.1,) * row.targets, "old_logprobs": (-0.1,) * row.targets}
            numbers[field] = (NAN, *numbers[field][1:])
            made.append(dataclasses.replace(row, **numbers))
        return StepBatch(made)

    objective = DistillationObjective(teachers, LossConfig(divergence="sampled", clip=0.2))
    with pytest.raises(RecoveryError, match=f"the rows' {field.replace('_', ' ')} are not"):
        train(student, rows, objective, TrainSettings(steps=2, lr=1e-3))


def test_student_that_explodes_is_named(tiny_model: Path) -> None:
    student = load_model(tiny_model, tuning="full", precision="float32")
    assert student.head
    with torch.no_grad():
        for p in student.trainable().values():
            p.fill_(INF)
    with pytest.raises(RecoveryError, match=r"the student's weights are not \(.*\); lower --lr"):
        train(student, random_rows, DistillationObjective(), TrainSettings(steps=2, lr=1e-3))


def entry(logprob: Any) -> dict[str, Any]:
    return {"logprob": logprob}


@pytest.mark.parametrize(
    ("position", "reason"),
    [
        ({"3": entry(NAN), "4": entry(-1.0)}, "nan is no log-probability"),
        ({"3": entry(-1.0), "4": entry(-INF)}, "-inf is no log-probability"),
        ({"3": entry(0.5), "4": entry(-1.0)}, "0.5 is no log-probability"),
        ({"3": entry(-0.1), "4": entry(-0.1)}, "sum to 1.81"),
        ({"3": entry(-1.0), "4": entry(None)}, "scores are not sound"),
        ({"3": entry("x"), "4": entry(-1.0)}, "no log-probability of token 3"),
        ({"4": entry(-1.0)}, "no log-probability of token 3"),
        (None, "no log-probability of token 3"),
        ([1, 2], "no log-probability of token 3"),
    ],
)
def test_scores_of_a_server_that_are_none(position: Any, reason: str) -> None:
    with pytest.raises(ServerError, match=reason) as error:
        entries(position, 3, 2)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("ids", "logprobs", "reason"),
    [
        ([1, 2], [-0.1, NAN], "nan is no log-probability"),
        ([1, 2], [-0.1, -INF], "-inf is no log-probability"),
        ([1, 2], [-0.1, 2.0], "2.0 is no log-probability"),
        ([1, 900], [-0.1, -0.1], "sampled token 900, the model has 448"),
        ([1, -1], [-0.1, -0.1], "sampled token -1"),
        ([1] * 9, [-0.1] * 9, "sampled 9 tokens, not at most 8"),
    ],
)
def test_completions_of_a_server_that_are_none(ids: list[int], logprobs: list[float], reason: str) -> None:
    with pytest.raises(ServerError, match=reason):
        check_completion(Completion(ids, logprobs, False), 8, 448)


def test_reward_that_ends_the_process_or_raises_much() -> None:
    def leaves(prompt: Prompt, response: str) -> float:
        raise SystemExit(3)

    def talks(prompt: Prompt, response: str) -> float:
        raise ValueError("one\ntwo\nthree")

    for reward, reason in ((leaves, "SystemExit: 3"), (talks, "ValueError: one;"), (lambda *_: NAN, "returned nan")):
        with pytest.raises(RecoveryError, match=reason) as error:
            judged(reward, PROMPT, "x", 60.0)  # type: ignore[arg-type]
        assert "'p7'" in str(error.value) and "\n" not in str(error.value)


def test_reward_that_never_returns_is_stopped() -> None:
    def sleeps(prompt: Prompt, response: str) -> float:
        time.sleep(3600)
        return 1.0

    def spins(prompt: Prompt, response: str) -> float:
        while True:
            with contextlib.suppress(Exception):
                sum(range(1000))

    for reward in (sleeps, spins):
        with pytest.raises(RecoveryError, match="returned nothing for prompt 'p7' within 0.05 seconds"):
            judged(reward, PROMPT, "x", 0.05)
    assert judged(lambda *_: 1.0, PROMPT, "x", 0.05) == judged(lambda *_: 1.0, PROMPT, "x") == 1.0


def test_limit_of_a_reward_leaves_another_alarm_running() -> None:
    former = signal.signal(signal.SIGALRM, lambda *_: None)
    before = signal.setitimer(signal.ITIMER_REAL, 1000.0)
    try:
        judged(lambda *_: 1.0, PROMPT, "x", 5.0)
        assert 900 < signal.getitimer(signal.ITIMER_REAL)[0] <= 1000
    finally:
        signal.signal(signal.SIGALRM, former)
        signal.setitimer(signal.ITIMER_REAL, *before)


class Silent:
    """An engine whose completions are empty, or only the end token."""

    def __init__(self, loaded: Loaded, ids: list[int]) -> None:
        self.ids = ids
        self.finished = bool(ids) and ids[-1] in loaded.chat.end_ids

    def generate(self, prompts: Any, sampling: Sampling, progress: Any = None) -> list[Completion]:
        return [Completion(list(self.ids), [-0.1] * len(self.ids), self.finished) for _ in prompts]


@pytest.mark.parametrize("ended", [False, True])
def test_evaluation_that_answers_nothing_scores_zero(tiny_model: Path, ended: bool) -> None:
    loaded = load_model(tiny_model, precision="float32")
    words = Check("length_constraints:number_words", {"relation": "at least", "num_words": 5})
    checks = (Check("detectable_format:title"), words)
    asked = [Prompt(f"p{i}", (Message(role="user", content=f"Line {i}."),), checks=checks) for i in range(24)]
    probes = [Probe(f"q{i}", "question", f"Where is boat {i}?", ("pier",), source=str(i)) for i in range(4)]
    results = evaluate(
        loaded,
        Silent(loaded, [loaded.tokenizer.eos_token_id] if ended else []),
        instruction=asked,
        probes_by_corpus={1: probes},
        held_out={1: ["The harbour office opens."]},
        max_new_tokens=4,
    )
    by_name = {result.suite: result for result in results}
    assert by_name["instruction_following"].score.value == by_name["domain_knowledge/1"].score.value == 0.0
    for result in results:
        assert math.isfinite(result.score.value) and math.isfinite(result.score.stderr)
        json.dumps([item.verdicts for item in result.items], allow_nan=False)


def test_spoiled_answers_of_servers() -> None:
    outcome = run(3, 0.0, lambda _: None)
    assert outcome.faults == []
    assert {"teacher: refused", "teacher: taken", "vllm: refused", "vllm: taken"} <= outcome.tried.keys()
