"""The objective: every loss setting against its formula over the models' own logits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from recovery.batching import Batch, Row, collate
from recovery.errors import ModelError, UsageError
from recovery.inference_server import InferenceServer
from recovery.losses.config import LossConfig
from recovery.losses.objective import DistillationObjective, LossOutput
from recovery.losses.terms import Outcomes, Term
from recovery.losses.token_stats import GradientStats
from recovery.models.lm_head import Head
from recovery.models.loaded import Loaded
from recovery.models.loading import load_model
from recovery.teachers.remote import RemoteTeacher
from recovery.teachers.teacher import LocalTeacher, TeacherEnsemble
from recovery.training.interfaces import Hooks, StepBatch, TrainSettings
from recovery.training.loop import train
from tests.support import plain_divergence, plain_term

CONTEXT, OTHER = [5, 6, 7], [40, 41, 42, 43, 44]
RESPONSES = ([20, 21, 22, 23], [30, 31])


@dataclass
class Models:
    """A student and two possible teachers."""

    student: Loaded
    base: Loaded
    expert: Loaded


@pytest.fixture(scope="module")
def models(make_tiny: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Models:
    folder = tmp_path_factory.mktemp("estimator")
    paths = [make_tiny("qwen3", folder / str(seed), seed=seed) for seed in range(3)]
    student = load_model(paths[0], tuning="full", precision="float32")
    with torch.no_grad():  # all tiny models have nearly the same outputs: logits near 0
        for model in (student, *(others := [load_model(path, precision="float32") for path in paths[1:]])):
            for weight in model.model.parameters():
                weight.mul_(3.0)
    return Models(student, *others)


def rows(teacher: str = "base", context: list[int] | None = None, **extra: Any) -> list[Row]:
    made = []
    for at, response in enumerate(RESPONSES):
        numbers = {name: values[: len(response)] for name, values in extra.items()}
        if "old_logprobs" in numbers:
            numbers["old_logprobs"] = [value - at for value in numbers["old_logprobs"]]
        ids, mask = [*CONTEXT, *response], [False] * len(CONTEXT) + [True] * len(response)
        seen = None if context is None else [*context, *response]
        made.append(Row(ids, mask, teacher=teacher, teacher_ids=seen, **numbers))
    return made


def batch_of(*arguments: Any, **extra: Any) -> Batch:
    return collate(rows(*arguments, **extra), 0)


ADVANTAGES = {"advantages": [1.0, -0.5, 2.0, 0.3]}
SAMPLED = {**ADVANTAGES, "old_logprobs": [-6.0, -6.2, -5.8, -6.4]}


def logits(loaded: Loaded, context: list[int] = CONTEXT) -> Tensor:
    """The model's own logits that predict the targets, [N, V]."""
    found = []
    for response in RESPONSES:
        with torch.set_grad_enabled(loaded.tuning != "frozen"):
            found.append(loaded.model(torch.tensor([[*context, *response]])).logits[0, len(context) - 1 : -1])
    return torch.cat(found)


def log_p(loaded: Loaded, context: list[int] = CONTEXT, temperature: float = 1.0) -> Tensor:
    return (logits(loaded, context) / temperature).log_softmax(-1)


def policy(models: Models, batch: Batch, clip: float | None = None, drop: float | None = None) -> Tensor:
    """The policy gradient's value at each token, through an identity head."""
    student = logits(models.student)
    term = Term(
        "policy_gradient",
        targets_N=batch.targets_N,
        advantages_N=batch.advantages_N,
        old_logprobs_N=batch.old_logprobs_N,
        clip=clip,
        drop=drop,
    )
    return plain_term(term, Head(torch.eye(student.shape[-1])), student)


def assert_is(output: LossOutput, expected_N: Tensor, models: Models) -> None:
    """The loss is that sum, and so is its gradient in the student's weights."""
    assert float(output.loss.detach()) == pytest.approx(float(expected_N.sum().detach()), rel=1e-4, abs=1e-5)
    weights = list(models.student.trainable().values())
    ours = torch.autograd.grad(output.loss, weights, retain_graph=True)
    theirs = torch.autograd.grad(expected_N.sum(), weights, retain_graph=True)
    scale = max(float(g.abs().max()) for g in theirs)
    for mine, plain in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, plain, atol=2e-4 * scale, rtol=1e-3)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_importance_weights_hold_the_ratios_of_sampled_tokens_that_are_not_scored(
    models: Models, temperature: float
) -> None:
    """Skipping the first tokens changes what is scored, not the weight of what follows them."""
    config = LossConfig(ratio_cap=3.0, temperature=temperature)
    objective = DistillationObjective({"base": LocalTeacher(models.base)}, config)
    old = {"old_logprobs": [-6.3, -6.2, -5.8, -6.4]}
    whole = batch_of(**old)
    shorter = []
    for row, skipped in zip(rows(**old), (2, 1), strict=True):
        mask = list(row.loss_mask)
        mask[len(CONTEXT) : len(CONTEXT) + skipped] = [False] * skipped
        kept = tuple(row.old_logprobs[skipped:])
        shorter.append(
            replace(row, loss_mask=mask, old_logprobs=kept, prefix_logprobs=tuple(row.old_logprobs[:skipped]))
        )
    student = log_p(models.student, temperature=temperature)
    sampled_N = student.gather(-1, whole.targets_N[:, None])[:, 0].detach()
    ratio_N = (sampled_N - whole.old_logprobs_N).exp()
    weight_N = torch.tensor([float(ratio_N[start:at].prod()) for start, at in ((0, 2), (0, 3), (4, 5))]).clamp(max=3.0)
    kl_N = plain_divergence("reverse_kl", student, log_p(models.base, temperature=temperature))
    output = objective(models.student, collate(shorter, 0))
    assert_is(output, kl_N[[2, 3, 5]] * weight_N, models)
    assert output.tokens == 3
    assert (weight_N - 1).abs().min() > 0.05, "the ratios are not near 1, or the test would show nothing"
    without = objective(models.student, collate([replace(row, prefix_logprobs=()) for row in shorter], 0))
    assert not torch.isclose(without.loss, output.loss, rtol=1e-3)
    with pytest.raises(UsageError, match="no context is left"):
        collate([replace(shorter[0], prefix_logprobs=(-1.0,) * 5)], 0)


def test_each_token_of_a_merged_span_has_the_ratio_of_the_whole_span_once(models: Models) -> None:
    """Its term holds the ratios of all its tokens; those before it weigh all of them alike, those of it only what
    follows.
    """
    old = (-6.9, -7.6, -7.6, -7.0)
    row = Row([*CONTEXT, *RESPONSES[0]], [False] * 3 + [True] * 4, teacher="base", old_logprobs=old)
    theirs = [*CONTEXT, 20, 31, 23]  # 21 and 22 are one token of the teacher
    row = replace(row, teacher_ids=theirs, spans=[(3, 4, 3, 4), (4, 6, 4, 5), (6, 7, 5, 6)])
    vocabulary = models.student.head.vocabulary
    same = Outcomes(torch.arange(vocabulary), torch.arange(vocabulary), vocabulary)
    objective = DistillationObjective(
        {"base": LocalTeacher(models.base)}, LossConfig(ratio_cap=100.0), outcomes={"base": same}
    )
    output = objective(models.student, collate([row], 0))

    student, teacher = (
        model.model(torch.tensor([ids])).logits[0, 2:-1].log_softmax(-1)
        for model, ids in ((models.student, row.ids), (models.base, theirs))
    )
    said = student.gather(-1, torch.tensor(row.ids[3:])[:, None])[:, 0]
    first, second, third, _ = (said.detach() - torch.tensor(old)).exp()
    assert (second - 1).abs() > 0.1 and (third - 1).abs() > 0.1, "or the test would show nothing"
    kl = plain_divergence("reverse_kl", student[[0, 3]], teacher[[0, 2]].detach())
    ratio = (said[1:3].sum() - teacher[1, 31]).detach()
    gradient = ratio * second * third * said[1:3].sum()
    merged = first * (ratio + gradient - gradient.detach())  # of the value of an estimate, not of its gradient
    assert_is(output, torch.stack([kl[0], merged, kl[1] * first * second * third]), models)


def test_labels_with_and_without_an_anchor(models: Models) -> None:
    batch = batch_of("label")
    label_N = -log_p(models.student).gather(-1, batch.targets_N[:, None])[:, 0]
    plain = DistillationObjective()(models.student, batch)
    assert_is(plain, label_N, models)
    assert set(plain.sums) == {"label_loss", "label_entropy"}
    anchor_N = plain_divergence("reverse_kl", log_p(models.student), log_p(models.base))
    # The temperature is that of sampling: labels do not use it.
    anchored = DistillationObjective(
        loss_config=LossConfig(anchor=0.3, temperature=0.5), anchor=LocalTeacher(models.base)
    )(models.student, batch)
    assert_is(anchored, label_N + 0.3 * anchor_N, models)
    assert float(anchored.sums["anchor"]) == pytest.approx(float(anchor_N.sum().detach()), rel=1e-4)
    # What is reported as the loss of the labels is theirs alone.
    assert float(anchored.sums["label_loss"]) == pytest.approx(float(label_N.sum().detach()), rel=1e-4)
    reported = sum(weight * float(anchored.sums[name]) for name, weight in anchored.weights.items())
    assert reported == pytest.approx(float(anchored.loss.detach()), rel=1e-5)
    assert anchored.tokens == 6


@pytest.mark.parametrize(
    "config",
    [
        LossConfig(temperature=0.7),
        LossConfig(divergence="forward_kl", entry_clip=0.01),
        LossConfig(divergence="jsd", beta=0.2),
        LossConfig(divergence="reverse_kl", floor=-5.0),
    ],
)
def test_a_teacher_by_each_divergence(models: Models, config: LossConfig) -> None:
    student, teacher = (log_p(m, temperature=config.temperature) for m in (models.student, models.base))
    expected = plain_divergence(config.divergence, student, teacher, config.beta, config.entry_clip, config.floor)
    output = DistillationObjective({"base": LocalTeacher(models.base)}, config)(models.student, batch_of())
    assert_is(output, expected, models)
    assert set(output.sums) == {config.loss_metric, "entropy"}


def test_a_reward_alone_and_what_its_trust_region_did(models: Models) -> None:
    batch = batch_of("reward", **SAMPLED)
    expected = policy(models, batch, clip=0.2, drop=3.0)
    output = DistillationObjective(loss_config=LossConfig(lam=0.0, clip=0.2, drop=3.0))(models.student, batch)
    assert_is(output, expected, models)
    chosen = log_p(models.student).gather(-1, batch.targets_N[:, None])[:, 0].detach()
    assert batch.old_logprobs_N is not None
    ratio = (chosen - batch.old_logprobs_N).exp()
    assert float(output.sums["ratio"]) == pytest.approx(float(ratio.sum()), rel=1e-3)
    dropped = (ratio > 3.0) | (ratio < 1 / 3)
    assert float(output.sums["dropped"]) == float(dropped.sum()) > 0
    assert 0 < float(output.sums["clipped"]) <= 6 - float(dropped.sum())


def test_lambda_mixes_teacher_and_reward_where_rows_have_advantages(models: Models) -> None:
    batch, bare = batch_of(**ADVANTAGES), batch_of()
    teacher_N = plain_divergence("reverse_kl", log_p(models.student), log_p(models.base))
    anchor_N = plain_divergence("reverse_kl", log_p(models.student), log_p(models.expert))
    estimator = DistillationObjective(
        {"base": LocalTeacher(models.base)}, LossConfig(lam=0.7, anchor=0.1), LocalTeacher(models.expert)
    )
    output = estimator(models.student, batch)
    assert_is(output, 0.7 * teacher_N + 0.3 * policy(models, batch) + 0.1 * anchor_N, models)
    assert float(output.sums["anchor"]) == pytest.approx(float(anchor_N.sum().detach()), rel=1e-4)
    assert float(output.sums["ratio"]) == pytest.approx(6.0), "the student has not moved since"
    assert_is(estimator(models.student, bare), 0.7 * teacher_N + 0.1 * anchor_N, models)


class RecordingTeacher(LocalTeacher):
    """A teacher that records the batches it reads."""

    def __init__(self, loaded: Loaded) -> None:
        super().__init__(loaded)
        self.batches: list[Batch] = []

    def hidden(self, batch: Batch) -> Tensor:
        self.batches.append(batch)
        return super().hidden(batch)


def test_a_teacher_without_weight_or_in_the_sampled_form_is_not_run(models: Models) -> None:
    batch = batch_of(**ADVANTAGES)
    for config in (LossConfig(lam=0.0), LossConfig(divergence="sampled"), LossConfig(lam=0.4, divergence="sampled")):
        recorder = RecordingTeacher(models.base)
        output = DistillationObjective({"base": recorder}, config)(models.student, batch)
        assert recorder.batches == []
        assert_is(output, policy(models, batch), models)


def test_kept_entries_of_a_teacher(models: Models) -> None:
    student, teacher = log_p(models.student), log_p(models.base)
    top = teacher.topk(5, -1)
    p, q = student.exp().gather(-1, top.indices), top.values.exp()
    p, q = (torch.cat([side, 1 - side.sum(-1, keepdim=True)], -1) for side in (p, q))
    estimator = DistillationObjective({"base": LocalTeacher(models.base)}, LossConfig(divergence="top_k", top_k=5))
    assert_is(estimator(models.student, batch_of()), (p * (p / q).log()).sum(-1), models)
    every = DistillationObjective(
        {"base": LocalTeacher(models.base)}, LossConfig(divergence="top_k", top_k=teacher.shape[-1])
    )
    assert_is(every(models.student, batch_of()), plain_divergence("reverse_kl", student, teacher), models)


@pytest.mark.parametrize("config", [LossConfig(), LossConfig(divergence="top_k", top_k=512)])
def test_several_teachers_share_the_weight(models: Models, config: LossConfig) -> None:
    several = TeacherEnsemble((LocalTeacher(models.base), LocalTeacher(models.expert)), (0.75, 0.25))
    one, other = (plain_divergence("reverse_kl", log_p(models.student), log_p(m)) for m in (models.base, models.expert))
    output = DistillationObjective({"both": several}, config)(models.student, batch_of("both"))
    assert_is(output, 0.75 * one + 0.25 * other, models)


@pytest.fixture(scope="module")
def wider(make_tiny: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    """A model of the same tokenizer whose head is padded to 640 entries instead of 512."""
    folder = make_tiny("qwen3", tmp_path_factory.mktemp("wider") / "w", seed=5, vocab_size=640)
    return load_model(folder, precision="float32")  # "auto" is bfloat16 where the processor multiplies it


def test_heads_padded_to_several_sizes_are_compared_over_what_they_share(models: Models, wider: Loaded) -> None:
    """As Qwen's 151,936 and 152,064 entries: beside another teacher, as an anchor, and by the likeliest tokens."""
    tokens, sizes = 448, (512, 640)
    padded = {640: Outcomes.padded(tokens, *sizes, torch.device("cpu"))}
    student, base = log_p(models.student), log_p(models.base)
    theirs = log_p(wider).detach()
    rest = [side[:, tokens:].logsumexp(-1, keepdim=True) for side in (student, theirs)]
    shared = [torch.cat([side[:, :tokens], one], -1) for side, one in zip((student, theirs), rest, strict=True)]
    one, other = plain_divergence("reverse_kl", student, base), plain_divergence("reverse_kl", *shared)
    both = TeacherEnsemble((LocalTeacher(models.base), LocalTeacher(wider)), (0.75, 0.25))
    output = DistillationObjective({"both": both}, LossConfig(), padded=padded)(models.student, batch_of("both"))
    assert_is(output, 0.75 * one + 0.25 * other, models)
    base_too = {"base": LocalTeacher(models.base)}
    anchored = DistillationObjective(base_too, LossConfig(anchor=0.2), LocalTeacher(wider), padded=padded)
    assert_is(anchored(models.student, batch_of()), one + 0.2 * other, models)
    config = LossConfig(divergence="top_k", top_k=512)
    likely = DistillationObjective({"base": LocalTeacher(wider)}, config, padded=padded)
    cut = theirs[:, :512].log_softmax(-1)
    assert_is(likely(models.student, batch_of()), plain_divergence("reverse_kl", student, cut), models)


def test_a_teacher_reads_its_context_and_the_anchor_the_students(models: Models) -> None:
    batch = batch_of(context=OTHER)
    teacher, anchor = RecordingTeacher(models.base), RecordingTeacher(models.expert)
    output = DistillationObjective({"base": teacher}, LossConfig(anchor=0.2), anchor)(models.student, batch)
    student = log_p(models.student)
    expected = plain_divergence("reverse_kl", student, log_p(models.base, OTHER))
    assert_is(output, expected + 0.2 * plain_divergence("reverse_kl", student, log_p(models.expert)), models)
    assert teacher.batches == [batch.seen_by_teacher]
    assert anchor.batches == [batch]


def test_the_geometry_is_fed_with_every_batch(models: Models) -> None:
    width = models.student.head.width
    estimator = DistillationObjective({"base": LocalTeacher(models.base)})
    estimator(models.student, batch_of())
    estimator.geometry = GradientStats(width, seed=0)
    estimator(models.student, batch_of())
    estimator(models.student, batch_of("label"))
    assert len(estimator.geometry.sample()) == 12
    assert {row for _, _, row in estimator.geometry.sample()} == {0, 1, 2, 3}
    assert 0.0 < estimator.geometry.summary()["density"] <= 1.0


def test_what_rows_or_dials_lack_is_refused(models: Models) -> None:
    base = {"base": LocalTeacher(models.base)}
    bare, sampled = batch_of(), batch_of(**ADVANTAGES)

    def by(**config: Any) -> DistillationObjective:
        return DistillationObjective(base, LossConfig(**config))

    refusals: list[tuple[str, Callable[[], object]]] = [
        ("--anchor 0.1 needs a model as anchor", lambda: DistillationObjective(base, LossConfig(anchor=0.1))),
        ("cannot be called 'reward'", lambda: DistillationObjective({"reward": LocalTeacher(models.base)})),
        ("'base', which is not given .given: none", lambda: DistillationObjective()(models.student, bare)),
        ("rows of 'reward' .* have no advantages", lambda: DistillationObjective()(models.student, batch_of("reward"))),
        ("--lambda 0.0. and have no", lambda: by(lam=0.0)(models.student, bare)),
        ("--divergence sampled", lambda: by(divergence="sampled")(models.student, bare)),
        ("--clip 0.2 needs the log", lambda: by(lam=0.5, clip=0.2)(models.student, sampled)),
        ("--top-k 9999", lambda: by(divergence="top_k", top_k=9999)(models.student, bare)),
    ]
    for words, call in refusals:
        with pytest.raises(UsageError, match=words) as caught:
            call()
        assert "\n" not in str(caught.value)


def test_a_server_reads_the_documents_of_a_packed_row_as_one(models: Models) -> None:
    server = RemoteTeacher(InferenceServer("http://127.0.0.1:9", ()), None, models.base.chat, 512, 5)
    objective = DistillationObjective({"base": server, "expert": LocalTeacher(models.expert)})
    assert [objective.separates_documents(name) for name in ("base", "expert", "label")] == [False, True, True]


def test_a_teacher_of_another_vocabulary_is_refused_in_every_form(models: Models) -> None:
    class Cut(LocalTeacher):
        @property
        def head(self) -> Head:
            return super().head.first(100)

    for config in (LossConfig(), LossConfig(divergence="top_k", top_k=3)):
        with pytest.raises(ModelError, match="Head.first"):
            DistillationObjective({"base": Cut(models.base)}, config)(models.student, batch_of())


def test_weights_of_several_teachers_are_checked(models: Models) -> None:
    one = LocalTeacher(models.base)
    for teachers, weights, words in (
        ((), (), "0 teachers have the weights none"),
        ((one, one), (1.0,), "give each teacher one weight"),
        ((one, one), (0.5, 0.6), "0.5, 0.6 must all be above 0 and sum to 1"),
        ((one, one), (1.5, -0.5), "must all be above 0"),
    ):
        with pytest.raises(UsageError, match=words):
            TeacherEnsemble(teachers, weights)


def trained(model: Path, rows: list[Row], config: LossConfig) -> list[dict[str, float]]:
    """Train an adapter, with its base as teacher and anchor; return each step's metrics."""
    loaded = load_model(model, tuning="lora", precision="float32")
    base = LocalTeacher(loaded, "base")
    objective = DistillationObjective({"base": base}, config, base if config.anchor else None)
    log: list[dict[str, float]] = []
    hooks = Hooks(log=lambda _, metrics: log.append(metrics))
    train(loaded, lambda _step: StepBatch(rows), objective, TrainSettings(steps=3, lr=1e-2), hooks=hooks)
    return log


@pytest.mark.parametrize(
    ("name", "config", "extra"),
    [
        ("label", LossConfig(anchor=0.1), {}),
        ("reward", LossConfig(lam=0.0, clip=0.2, anchor=0.1), SAMPLED),
        ("base", LossConfig(lam=0.5, divergence="jsd", entry_clip=0.05, anchor=0.1), ADVANTAGES),
        ("base", LossConfig(divergence="sampled", clip=0.2, drop=8.0), SAMPLED),
        ("base", LossConfig(divergence="top_k", top_k=16), {}),
    ],
)
def test_the_one_loop_trains_every_setting(
    tiny_model: Path, name: str, config: LossConfig, extra: dict[str, list[float]]
) -> None:
    log = trained(tiny_model, [replace(row, teacher=name) for row in rows(**extra)], config)
    assert all(value == value for metrics in log for value in metrics.values())
    metric = {"label": "label_loss", "reward": "policy_loss", "base": config.loss_metric}[name]
    for metrics in log:
        assert metrics["loss"] == pytest.approx(metrics[metric] + config.anchor * metrics.get("anchor", 0.0))
    if config.anchor:
        assert log[0]["anchor"] == pytest.approx(0.0, abs=1e-5)
        assert log[-1]["anchor"] > log[0]["anchor"]
    if config.divergence == "sampled":
        assert {"ratio", "clipped", "dropped"} <= set(log[0])


def test_rows_of_several_kinds_share_one_anchor_curve(tiny_model: Path) -> None:
    made = [replace(row, teacher=name) for name in ("base", "label") for row in rows()]
    last = trained(tiny_model, made, LossConfig(anchor=0.1))[-1]
    count = {name: sum(row.targets for row in made if row.teacher == name) for name in ("base", "label")}
    parts = last["reverse_kl"] * count["base"] + last["label_loss"] * count["label"]
    assert last["loss"] == pytest.approx(parts / sum(count.values()) + 0.1 * last["anchor"], rel=1e-5)
    assert last["anchor"] > 0 and not [name for name in last if "/" in name]


def test_the_gradient_of_a_trained_head_is_not_rounded_to_the_precision_of_products(tiny_llama: Path) -> None:
    student = load_model(tiny_llama, tuning="full", precision="bfloat16")
    loss = DistillationObjective({"base": LocalTeacher(load_model(tiny_llama))})(student, batch_of("label")).loss
    (loss / 3).backward()
    gradient = student.head_in_training.weight_VD.grad
    assert gradient is not None and gradient.dtype == torch.float32
    assert not torch.equal(gradient, gradient.bfloat16().float())
