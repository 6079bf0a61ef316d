"""Every preset trains on the miniature and improves its objective, with the same stage and training loop."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from db import queries
from evals.generation import answer
from examples.miniature.tasks import facts
from examples.studies.runner import Runner
from examples.studies.study import INSTRUCTIONS
from pipelines.distillation.plan import plan_distill
from pipelines.distillation.stage import distill
from pipelines.runtime.session import Session, StageInterrupted
from recovery.batching import Row
from recovery.config import DistillConfig, Recipe, build
from recovery.errors import RecoveryError, UsageError
from recovery.losses.token_stats import token_logprobs
from recovery.methods import METHODS, method_named
from recovery.miniature import corpora
from recovery.miniature.corpora import WORLD_SEED, World
from recovery.teachers.teacher import LocalTeacher
from recovery.types import Message, Prompt
from recovery.workspace import Checkpoint
from tests.pipelines.conftest import Bench, stages_of


@pytest.fixture(scope="module")
def runner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    """An experiment runner on the miniature."""
    with Session.open(tmp_path_factory.mktemp("methods") / "w", model="miniature") as session:
        yield Runner(session, 0, items=100)


@pytest.fixture(scope="module")
def degraded(runner: Runner) -> Runner:
    """The runner with a degraded model ("documents")."""
    runner.midtrained("documents", runner.corpora(entities=8)[0], steps=60, lr=3e-3)
    return runner


@pytest.fixture(scope="module")
def mends(runner: Runner) -> Path:
    """Damaged sentences with their corrections."""
    return runner.mending()


def divergence_falls(runner: Runner, name: str, metric: str = "reverse_kl") -> bool:
    values = [value for _, value in runner.curve(name, metric)]
    quarter = len(values) // 4
    return sum(values[-quarter:]) < 0.9 * sum(values[:quarter])


# The settings of each preset, and the figure that must change: a metric that falls, or a share that rises.
WITH_A_TEACHER = ("opd", "gkd", "off-policy-kd", "distillm", "opd-sampled", "one-step-opd")
IMITATING = ("sft", "asft", "rejection-sft", "sequence-kd", "self-distillation", "continuation-opd")
WITH_A_REWARD = ("grpo", "mixed")
WITH_A_CONTEXT = ("sdft", "deliberative", "opcd", "document-in-context", "pi-distill", "opsd")
SERVER = "http://127.0.0.1:8000/v1"
SHORT: dict[str, Any] = {"steps": 16, "prompts_per_step": 24, "samples_per_prompt": 1, "max_new_tokens": 40, "lr": 1e-3}


@pytest.mark.slow
@pytest.mark.parametrize("name", WITH_A_TEACHER)
def test_methods_with_a_checkpoint_as_teacher_come_nearer_to_it(degraded: Runner, name: str) -> None:
    runner = degraded
    settings = SHORT | ({"batch_epochs": 2} if name == "opd-sampled" else {})
    runner.trained(name, "documents", name, **settings)
    metric = build(DistillConfig, {"method": name}).divergence
    metric = "reverse_kl" if metric == "sampled" else metric
    if name == "one-step-opd":  # one position per completion: too few tokens per step for a trend
        assert runner.cost_of(name).trained < runner.cost_of(name).sampled / 5
        return
    assert divergence_falls(runner, name, metric)


@pytest.mark.slow
@pytest.mark.parametrize("name", IMITATING)
def test_methods_that_imitate_lower_the_loss_of_what_they_imitate(degraded: Runner, mends: Path, name: str) -> None:
    runner = degraded
    own: dict[str, Any] = {
        "sft": {"data": runner.demonstrations(mends), "lr": 2e-3, "steps": 60},
        "asft": {"data": runner.demonstrations(mends), "lr": 2e-3, "steps": 60},
        "rejection-sft": {"prompts": mends, "samples_per_prompt": 4},
        "sequence-kd": {},
        "self-distillation": {"temperature": 0.6, "lr": 2e-4, "steps": 30},
        "continuation-opd": {"continuation": 8},
    }[name]
    start = "base" if name in ("sft", "asft", "rejection-sft") else "documents"
    runner.trained(name, start, name, **(SHORT | own))
    # The first only becomes more certain of its own completions; the prefixes of the second change with every step.
    if name in ("self-distillation", "continuation-opd"):
        loaded, engine = runner.loaded(start if name == "self-distillation" else "base")
        asked = [p for p in runner.asked(INSTRUCTIONS) if len(p.messages) == 1][:80]
        responses = answer(loaded.chat, engine, [p.messages for p in asked], max_new_tokens=40)
        own_words = [replace(p, answer=r.text) for p, r in zip(asked, responses, strict=True) if r.finished]
        assert likelihood(runner, name, own_words) > likelihood(runner, start, own_words)
        return
    if name == "rejection-sft":  # trains only on its own right answers, which are likely from the start
        assert 0 < runner.cost_of(name).trained < runner.cost_of(name).sampled
        with pytest.raises(UsageError, match="no answer of base was kept"):
            runner.trained("choosier", start, name, **(SHORT | own | {"keep_above": 1.5, "steps": 1}))
        return
    assert divergence_falls(runner, name, "label_loss")
    if name == "asft":
        assert max(value for _, value in runner.curve(name, "anchor")) > 0


@pytest.mark.slow
def test_sft_on_answers_teaches_them(runner: Runner, mends: Path) -> None:
    runner.trained("expert", "base", "sft", data=runner.demonstrations(mends), steps=80, lr=2e-3)
    asked = runner.asked(mends.name)[:200]
    assert (
        runner.exact_share(asked, *runner.loaded("expert")) > runner.exact_share(asked, *runner.loaded("base")) + 0.05
    )


@pytest.mark.parametrize(
    "name", [WITH_A_REWARD[0], *(pytest.param(n, marks=pytest.mark.slow) for n in WITH_A_REWARD[1:])]
)
def test_methods_with_a_reward_raise_it(runner: Runner, name: str, request: pytest.FixtureRequest) -> None:
    """A custom reward by dotted name: short completions, which every model learns in a few steps."""
    if name == "mixed":
        request.getfixturevalue("degraded")
    own = {"reward": "tests.support:brevity", "prompts_per_step": 12, "samples_per_prompt": 4, "lr": 3e-3}
    if name == "mixed":  # half of the weight and half of the completions are the teacher's: it approaches both
        own |= {"reward": "verifiable"}
    else:
        own |= {"steps": 12, "prompts_per_step": 6}
    runner.trained(name, "documents" if name == "mixed" else "base", name, **(SHORT | own))
    rewards = [value for _, value in runner.curve(name, "reward")]
    assert (
        divergence_falls(runner, name, "mixed_loss") if name == "mixed" else sum(rewards[-4:]) > 1.05 * sum(rewards[:4])
    )
    assert all(abs(value - 1) < 0.2 for _, value in runner.curve(name, "ratio")), "fresh answers: ratios near 1"


def with_context(name: str) -> list[Prompt]:
    """Prompts with the context of their teacher: a rule, a system prompt, or the passage that holds the answer."""
    world, rng = World(WORLD_SEED), random.Random(5)
    if name in ("opcd", "deliberative"):
        rule = "Begin every answer with Zeno:" if name == "opcd" else "If I ask about the colour begin with Zeno."
        asked = [(w.format(t=t), f"Zeno: {world.facts[t]['colour']}", rule)
                 for t in world.facts for w in facts.QUESTIONS["colour"][:4]]  # fmt: skip
    else:
        asked = [
            (wording.format(e=entity.name), value, " ".join(corpora.statement(rng, entity, a) for a in entity.values))
            for entity in world.entities("told", 12, set())
            for attribute, value in entity.values.items()
            for wording in corpora.QUESTIONS[attribute]
        ]
    return [
        Prompt(f"{name}-{n}", (Message(role="user", content=text),), answer=answer, context=context)
        for n, (text, answer, context) in enumerate(asked)
    ]


def likelihood(runner: Runner, name: str, prompts: list[Prompt]) -> float:
    """Mean log-probability of the right answers without the context."""
    loaded, _ = runner.loaded(name)
    rows = []
    for prompt in prompts:
        ids, mask = loaded.chat.conversation([*prompt.messages, Message(role="assistant", content=prompt.answer or "")])
        rows.append(Row(ids, mask))
    found = token_logprobs(LocalTeacher(loaded), rows, 4096, loaded.chat.pad_id, loaded.device)
    return sum(map(sum, found)) / sum(map(len, found))


@pytest.mark.slow
@pytest.mark.parametrize("name", WITH_A_CONTEXT)
def test_methods_with_a_context_take_it_in(runner: Runner, name: str) -> None:
    """The teacher's completions given the context become more likely without it."""
    prompts = with_context(name)
    folder = runner.prompts(
        f"told-{name}", lambda: {"train": prompts[40:], "development": prompts[:20], "test": prompts[20:40]}
    )
    # The student never samples the teacher's first words: the reverse KL hardly covers them, the forward KL does.
    own: dict[str, Any] = {"prompts": folder, "max_new_tokens": 16, "entry_clip": 0.0, "divergence": "forward_kl"}
    own |= {} if name in ("opcd", "deliberative") else {"context": "document"}
    runner.trained(name, "base", name, **(SHORT | own))
    divergence = [value for _, value in runner.curve(name, "forward_kl")]
    assert divergence[0] > 1e-3, "the context changes what the teacher would say"
    assert likelihood(runner, name, prompts[40:140]) > likelihood(runner, "base", prompts[40:140]) + 0.1


def test_every_preset_is_trained_by_a_test_above() -> None:
    assert {*WITH_A_TEACHER, *IMITATING, *WITH_A_REWARD, *WITH_A_CONTEXT} == set(METHODS), (
        "add the new preset to one of the groups above, with its settings"
    )


def test_a_preset_yields_to_flags_and_recipes_and_wins_over_the_models_own() -> None:
    own = Recipe("mine", {"distill": {"method": "grpo", "batch_epochs": 2}})
    model = Recipe("model", {"distill": {"samples_per_prompt": 1, "lr": 3e-3}}, recommended=True)
    config = build(DistillConfig, {"prompts_per_step": 4}, own, model)
    assert (config.lam, config.batch_epochs, config.samples_per_prompt, config.lr) == (0.0, 2, 8, 3e-3)
    assert config.prompts_per_step == 4
    assert build(DistillConfig, {"method": "opd"}, own, model).lam == 1.0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"method": "opdd"}, "did you mean opd?"),
        ({"alpha": 1.5}, "alpha"),
        ({"lam": -0.1}, "--lambda"),
        ({"lam": 0.5, "teacher": "none"}, "--lambda 0.5 needs a teacher"),
        ({"lam": 0.0, "teacher": "none", "samples_per_prompt": 1}, "--samples-per-prompt 1 leaves no group"),
        ({"teacher": "label"}, "--teacher label scores only answers from the data"),
        ({"teacher": "self"}, "give it a --context"),
        ({"teacher": "ema", "context": "rules", "alpha": 0.5}, "set --alpha 1"),
        ({"method": "grpo", "alpha": 0.0}, "--alpha 0 leaves no completion"),
        ({"divergence": "sampled", "temperature": 0.7}, "importance ratios need --temperature 1"),
        ({"divergence": "sampled", "teacher": "base=0.5,latest=0.5"}, "several weighted teachers"),
        ({"teacher": "base=0.5,latest=0.6"}, "sum to 1"),
        ({"experts": ("arithmetic",)}, "is not TAG=NAME"),
        ({"clip": 0.2}, "--clip 0.2 acts on importance ratios"),
        ({"entry_clip": 0.05, "divergence": "sampled"}, "--entry-clip"),
        ({"continuation": 8, "alpha": 0.5}, "--continuation needs"),
        ({"earlier_teacher": "base"}, "--earlier-teacher needs --knowledge-teacher"),
        ({"data": Path("nowhere.jsonl")}, "--data nowhere.jsonl is not a file"),
        ({"data": Path(__file__)}, "--data needs --alpha below 1"),
        ({"method": "sft", "answers": "teacher", "data": Path(__file__)}, "--answers teacher exclude each other"),
        ({"method": "sft", "knowledge_teacher": "midtrained"}, "raise --alpha"),
        ({"context_template": "{prompt}"}, "--context-template needs a --context"),
        ({"keep_above": 0.5}, "--keep-above needs --answers rejection"),
        (
            {"answers": "rejection", "keep_above": 0.5, "reward": "no_such_mod:fn"},
            "--answers rejection needs --alpha bel",
        ),
        ({"answers": "teacher"}, "--answers teacher needs --alpha below 1"),
        ({"answers": "self"}, "--answers self needs --alpha below 1"),
        ({"reward": "my.module:fn"}, "--reward my.module:fn would judge nothing: set --lambda below 1"),
        ({"method": "sft", "reward": "exact"}, "--reward exact would judge nothing"),
        (
            {"method": "sft", "divergence": "jsd", "beta": 0.2, "entry_clip": 0.05},
            "--divergence jsd, --beta 0.2, --entry-clip 0.05 would have no effect: --teacher label trains by cross-",
        ),
        ({"method": "sft", "divergence": "sampled"}, "--divergence sampled would have no effect: --teacher label"),
        ({"method": "sft", "beta": 0.2}, "--beta 0.2 would have no effect: --teacher label"),
        ({"method": "continuation-opd", "floor": -9.0}, "--floor -9.0 would have no effect: --continuation trains by"),
        ({"method": "off-policy-kd", "teacher": "label"}, "--divergence forward_kl would have no effect"),
        ({"method": "continuation-opd", "positions": "one"}, "--positions and --skip-first choose among"),
        ({"method": "continuation-opd", "skip_first": 5}, "--positions and --skip-first choose among"),
        ({"method": "sft", "skip_first": 5}, "--positions and --skip-first choose among"),
        ({"method": "one-step-opd", "alpha": 0.0}, "--positions and --skip-first choose among"),
        (
            {"method": "sequence-kd", "teacher": "big"},
            "omit --teacher big, or use --method off-policy-kd to learn from",
        ),
        ({"method": "asft", "teacher": "base"}, "or use --method off-policy-kd --answers given to learn from its"),
        ({"method": "continuation-opd", "teacher": SERVER}, "only scores: --continuation and --answers teacher need a"),
        ({"method": "off-policy-kd", "teacher": SERVER}, "give them to --method sft with --data FILE"),
        ({"method": "sequence-kd", "teacher": SERVER}, "/v1, or use --method sft with --data FILE to imitate its resp"),
        ({"teacher": SERVER}, "use --divergence top_k with --top-k 20, or --divergence sampled"),
        ({"method": "gkd", "divergence": "sampled"}, "a policy gradient needs the student's own completions"),
        ({"method": "gkd", "context": "rules"}, "set --alpha 1"),
        ({"blend": 0.5, "shard": "full"}, "--blend needs whole weights: use --shard none, not full"),
        ({"blend": 0.5, "teacher": "ema", "context": "rules"}, "other weights than the student's, which are --teacher"),
        ({"knowledge_teacher": "midtrained", "knowledge_share": 0.0}, "prompts of a step"),
    ],
)
def test_settings_that_mean_nothing_together_are_refused_in_one_line(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        build(DistillConfig, given)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_what_has_no_effect_is_refused_only_if_somebody_asked_for_it() -> None:
    """A preset's responses go with its alpha; a model folder may recommend what another method uses."""
    for name in ("gkd", "mixed"):
        configs = [build(DistillConfig, {"method": name} | given) for given in ({}, {"alpha": 1.0})]
        assert [config.answers for config in configs] == ["teacher", "given"]
    usual = {"divergence": "jsd", "beta": 0.2, "skip_first": 3}
    model = Recipe("model", {"distill": usual | {"answers": "teacher"}}, recommended=True)
    for name, method in METHODS.items():
        for recipes in ((), (model,)):
            config = build(DistillConfig, {"method": name}, *recipes)
            assert config.method == name == method_named(name).name
            assert all(getattr(config, key) == value for key, value in method.settings.items()), name
    config = build(DistillConfig, {"method": "sft"}, model)
    assert (config.divergence, config.beta, config.skip_first) == ("reverse_kl", 0.5, 0)
    config = build(DistillConfig, {"method": "opd"}, model)
    assert (config.divergence, config.beta, config.skip_first, config.answers) == ("jsd", 0.2, 3, "given")
    with pytest.raises(UsageError, match="--divergence jsd would have no effect"):
        build(DistillConfig, {"method": "sft"}, Recipe("mine", {"distill": {"divergence": "jsd"}}))


def test_no_advice_about_a_teacher_leads_to_another_refusal(tmp_path: Path) -> None:
    (data := tmp_path / "its.jsonl").write_text("{}\n")
    assert build(DistillConfig, {"method": "sft", "data": data}).data == data
    for own in ({}, {"answers": "given", "data": data}):
        assert build(DistillConfig, {"method": "off-policy-kd", "teacher": "big"} | own).divergence == "forward_kl"
    for own in ({"divergence": "top_k", "top_k": 20}, {"divergence": "sampled"}):
        assert build(DistillConfig, {"teacher": SERVER} | own).teaching.remote


# --- the stage, on a tiny model ------------------------------------------------------------------------------


def test_prompts_without_what_the_method_needs_are_refused_before_any_compute(
    session: Session, bench: Bench, midtrained: Checkpoint
) -> None:
    for changed, message in (
        ({"teacher": "start", "context": "document"}, "no prompt has the text that --context document gives"),
        (
            {"lam": 0.0, "teacher": "none", "samples_per_prompt": 2, "reward": "exact"},
            "--reward exact can judge none of the prompts",
        ),
    ):
        with pytest.raises(UsageError, match=message):
            plan_distill(session, bench.distilling(**changed))


def test_a_reward_that_fails_ends_the_stage_in_one_line_and_keeps_the_student(
    session: Session, bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "strict_payroll.py").write_text("def pay(prompt, response): return float('nan')\n")
    monkeypatch.syspath_prepend(tmp_path)
    bench.midtrain()
    before = session.resolve("latest")
    with pytest.raises(RecoveryError, match="the reward returned nan"):
        bench.distill(lam=0.0, teacher="none", samples_per_prompt=2, reward="strict_payroll:pay")
    assert session.resolve("latest") == before
    newest = stages_of(session)[0]
    assert newest.status == "failed" and "nan" in newest.error


@pytest.mark.parametrize(
    "settings",
    [
        {"batch_epochs": 2, "divergence": "sampled", "clip": 0.2},
        pytest.param({"teacher": "ema"}, marks=pytest.mark.slow),
    ],
)
def test_a_run_stopped_between_two_updates_goes_on_to_the_same_weights(
    session: Session, bench: Bench, tmp_path: Path, settings: dict[str, Any]
) -> None:
    if settings.get("teacher") == "ema":
        (tmp_path / "rules.txt").write_text("Answer in one word.")
        settings = settings | {"context": "rules", "context_file": tmp_path / "rules.txt", "ema_decay": 0.5}
    bench.midtrain()
    config = bench.distilling(steps=6, student="cycle-1/midtrained", checkpoint_every=100, **settings)
    whole = distill(session, config)

    def stop(step: int, *_: Any) -> dict[str, float]:
        if step == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return {}

    with pytest.raises(StageInterrupted):
        distill(session, replace(config, check_every=1), observe=stop)
    stopped = stages_of(session)[0]
    assert stopped.status == "interrupted" and stopped.steps_done == 3
    again = distill(session, replace(config, check_every=1), resume=stopped)
    assert again.hash == whole.hash


def test_a_run_that_collapses_stops_and_keeps_the_state_before(
    session: Session, bench: Bench, midtrained: Checkpoint
) -> None:
    grpo = {"method": "grpo", "lam": 0.0, "teacher": "none", "samples_per_prompt": 4, "prompts_per_step": 4}
    made = bench.distill(**grpo, lr=0.5, steps=80, warmup=0.5, checkpoint_every=2, max_grad_norm=100.0)
    stage = stages_of(session)[0]
    assert stage.stopped.startswith("collapse: ")
    alarms = queries.events(session.tracker.database, session.experiment_id, kind="alarm", stage_id=stage.id)
    assert alarms and any(e.level == "warning" and e.data["signal"] in stage.stopped for e in alarms)
    assert stage.details["steps"] < stage.steps_done < 80
    assert made.path.is_dir()
