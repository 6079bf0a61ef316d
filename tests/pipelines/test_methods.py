"""Every preset trains on the miniature and improves what it is there to improve, by the one stage and the one loop."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from db import queries
from evals.asking import answer
from pipelines.lab import INSTRUCTIONS, Lab
from pipelines.midtrain import midtrain
from pipelines.session import Session
from pipelines.studies.tasks import demonstrations, exact_share, mending
from recovery.batches import Row
from recovery.config import DistillConfig, MidtrainConfig, build, from_json
from recovery.errors import RecoveryError, UsageError
from recovery.methods import METHODS, method_named
from recovery.miniature.tasks import facts, handbook
from recovery.miniature.world import WORLD_SEED, World
from recovery.objectives.token_logprobs import token_logprobs
from recovery.teachers import Frozen
from recovery.types import Message, Prompt


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A laboratory on the miniature."""
    with Session.open(tmp_path_factory.mktemp("methods") / "w", model="miniature") as session:
        yield Lab(session, 0, items=100)


@pytest.fixture(scope="module")
def degraded(lab: Lab) -> Lab:
    """The laboratory with a degraded model ("documents")."""
    lab.midtrained("documents", lab.corpora(entities=8)[0], steps=60, lr=3e-3)
    return lab


@pytest.fixture(scope="module")
def mends(lab: Lab) -> Path:
    """Damaged sentences with the sound ones."""
    return lab.folder / "prompts" / mending(lab)


def divergence_falls(lab: Lab, name: str, metric: str = "reverse_kl") -> bool:
    values = [value for _, value in lab.curve(name, metric)]
    quarter = len(values) // 4
    return sum(values[-quarter:]) < 0.9 * sum(values[:quarter])


# What each preset is given here, and the figure that must have moved: a metric that falls, or a share that rises.
SHORT: dict[str, Any] = {"steps": 16, "prompts_per_step": 24, "samples_per_prompt": 1, "max_new_tokens": 40, "lr": 1e-3}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["opd", "gkd", "off-policy-kd", "opd-sampled", "one-step-opd"])
def test_methods_with_a_checkpoint_as_teacher_come_nearer_to_it(degraded: Lab, name: str) -> None:
    lab = degraded
    settings = SHORT | ({"batch_epochs": 2} if name == "opd-sampled" else {})
    lab.trained(name, "documents", name, **settings)
    metric = {"gkd": "jsd", "off-policy-kd": "forward_kl"}.get(name, "reverse_kl")
    if name == "one-step-opd":  # a position an answer: a few dozen tokens a step, too few to see a trend in
        assert lab.spent(name).trained < lab.spent(name).sampled / 5
        return
    assert divergence_falls(lab, name, metric)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["sft", "asft", "rejection-sft", "sequence-kd", "self-distillation", "continuation-opd"]
)
def test_methods_that_imitate_lower_the_loss_of_what_they_imitate(degraded: Lab, mends: Path, name: str) -> None:
    lab = degraded
    own: dict[str, Any] = {
        "sft": {"data": demonstrations(lab, mends.name), "lr": 2e-3, "steps": 60},
        "asft": {"data": demonstrations(lab, mends.name), "lr": 2e-3, "steps": 60},
        "rejection-sft": {"prompts": mends, "samples_per_prompt": 4},
        "sequence-kd": {},
        "self-distillation": {"temperature": 0.6, "lr": 2e-4, "steps": 30},
        "continuation-opd": {"continuation": 8},
    }[name]
    start = "base" if name in ("sft", "asft", "rejection-sft") else "documents"
    lab.trained(name, start, name, **(SHORT | own))
    # The one learns nothing but to be surer of what it says already; the other's prefixes change from step to step.
    if name in ("self-distillation", "continuation-opd"):
        loaded, engine = lab.loaded(start if name == "self-distillation" else "base")
        asked = [p for p in lab.asked(INSTRUCTIONS) if len(p.messages) == 1][:80]
        said = answer(loaded.chat, engine, [p.messages for p in asked], max_new_tokens=40)
        own_words = [dataclasses.replace(p, answer=s.text) for p, s in zip(asked, said, strict=True) if s.finished]
        assert likelihood(lab, name, own_words) > likelihood(lab, start, own_words)
        return
    if name == "rejection-sft":  # its own right answers: likely from the start, and only those are trained on
        assert 0 < lab.spent(name).trained < lab.spent(name).sampled
        with pytest.raises(UsageError, match="no answer of base was kept"):
            lab.trained("choosier", start, name, **(SHORT | own | {"keep_above": 1.5, "steps": 1}))
        return
    assert divergence_falls(lab, name, "label_loss")
    if name == "asft":
        assert max(value for _, value in lab.curve(name, "anchor")) > 0


@pytest.mark.slow
def test_sft_on_answers_teaches_them(lab: Lab, mends: Path) -> None:
    lab.trained("expert", "base", "sft", data=demonstrations(lab, mends.name), steps=80, lr=2e-3)
    asked = lab.asked(mends.name)[:200]
    assert exact_share(*lab.loaded("expert"), asked) > exact_share(*lab.loaded("base"), asked) + 0.05


@pytest.mark.parametrize("name", ["grpo", pytest.param("mixed", marks=pytest.mark.slow)])
def test_methods_with_a_reward_raise_it(lab: Lab, name: str, request: pytest.FixtureRequest) -> None:
    """A reward of the user's own, by dotted name: short answers, which every model can learn to give in a few steps."""
    if name == "mixed":
        request.getfixturevalue("degraded")
    own = {"reward": "tests.support:brevity", "prompts_per_step": 12, "samples_per_prompt": 4, "lr": 3e-3}
    if name == "mixed":  # half of the weight is the teacher's, and half of the answers: it comes nearer to both
        own |= {"reward": "verifiable"}
    lab.trained(name, "documents" if name == "mixed" else "base", name, **(SHORT | own))
    rewards = [value for _, value in lab.curve(name, "reward")]
    assert divergence_falls(lab, name, "mixed_loss") if name == "mixed" else sum(rewards[-4:]) > 1.05 * sum(rewards[:4])
    assert all(abs(value - 1) < 0.2 for _, value in lab.curve(name, "ratio")), "fresh answers: ratios near 1"


def told(name: str) -> list[Prompt]:
    """Prompts with what their teacher is told: a rule, a system prompt, or the passage that holds the answer."""
    world, rng = World(WORLD_SEED), random.Random(5)
    if name in ("opcd", "deliberative"):
        rule = "Begin every answer with Zeno:" if name == "opcd" else "If I ask about the colour begin with Zeno."
        asked = [(w.format(t=t), f"Zeno: {world.facts[t]['colour']}", rule)
                 for t in world.facts for w in facts.QUESTIONS["colour"][:4]]  # fmt: skip
    else:
        asked = [
            (wording.format(e=entity.name), value, " ".join(handbook.statement(rng, entity, a) for a in entity.values))
            for entity in world.entities("told", 12, set())
            for attribute, value in entity.values.items()
            for wording in handbook.QUESTIONS[attribute]
        ]
    return [
        Prompt(f"{name}-{n}", (Message(role="user", content=text),), answer=answer, context=context)
        for n, (text, answer, context) in enumerate(asked)
    ]


def likelihood(lab: Lab, name: str, prompts: list[Prompt]) -> float:
    """Mean log-probability of the right answers, asked without the context."""
    loaded, _ = lab.loaded(name)
    rows = []
    for prompt in prompts:
        ids, mask = loaded.chat.conversation([*prompt.messages, Message(role="assistant", content=prompt.answer or "")])
        rows.append(Row(ids, mask))
    found = token_logprobs(Frozen(loaded), rows, 4096, loaded.chat.pad_id, loaded.device)
    return sum(map(sum, found)) / sum(map(len, found))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sdft", "deliberative", "opcd", "document-in-context", "pi-distill", "opsd"])
def test_methods_with_a_context_take_it_in(lab: Lab, name: str) -> None:
    """What the teacher says with the context becomes likelier without it."""
    prompts = told(name)
    folder = lab.prompts(
        f"told-{name}", lambda: {"train": prompts[40:], "development": prompts[:20], "test": prompts[20:40]}
    )
    # What the teacher begins with, the student never says by itself: the reverse KL hardly sees it, the forward does.
    own: dict[str, Any] = {"prompts": folder, "max_new_tokens": 16, "entry_clip": 0.0, "divergence": "forward_kl"}
    own |= {} if name in ("opcd", "deliberative") else {"context": "document"}
    lab.trained(name, "base", name, **(SHORT | own))
    divergence = [value for _, value in lab.curve(name, "forward_kl")]
    assert divergence[0] > 1e-3, "the context changes what the teacher would say"
    assert likelihood(lab, name, prompts[40:140]) > likelihood(lab, "base", prompts[40:140]) + 0.1


def test_every_preset_was_tried_here() -> None:
    tried = {
        *("opd", "gkd", "off-policy-kd", "opd-sampled", "one-step-opd", "sft", "asft", "rejection-sft", "sequence-kd"),
        *("self-distillation", "continuation-opd", "grpo", "mixed", "sdft", "deliberative", "opcd"),
        *("document-in-context", "pi-distill", "opsd"),
    }
    assert tried == set(METHODS)


def test_a_preset_yields_to_flags_and_recipes_and_wins_over_the_models_own() -> None:
    from recovery.config import Recipe

    own = Recipe("mine", {"distill": {"method": "grpo", "batch_epochs": 2}})
    model = Recipe("model", {"distill": {"samples_per_prompt": 1, "lr": 3e-3}}, recommended=True)
    config = build(DistillConfig, {"prompts_per_step": 4}, own, model)
    assert (config.lam, config.batch_epochs, config.samples_per_prompt, config.lr) == (0.0, 2, 8, 3e-3)
    assert config.prompts_per_step == 4
    assert build(DistillConfig, {"method": "opd"}, own, model).lam == 1.0


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"method": "opdd"}, "did you mean opd?"),
        ({"alpha": 1.5}, "alpha"),
        ({"lam": -0.1}, "--lambda"),
        ({"lam": 0.5, "teacher": "none"}, "--lambda 0.5 asks for a teacher"),
        ({"lam": 0.0}, "--samples-per-prompt 1 leaves no group"),
        ({"teacher": "label"}, "--teacher label knows only the data's answers"),
        ({"teacher": "self"}, "give it a --context"),
        ({"teacher": "ema", "context": "rules", "alpha": 0.5}, "set --alpha 1"),
        ({"method": "grpo", "alpha": 0.0}, "--alpha 0 leaves no answer"),
        ({"divergence": "sampled", "temperature": 0.7}, "importance ratios are taken at temperature 1"),
        ({"divergence": "sampled", "teacher": "base=0.5,latest=0.5"}, "several teachers with weights"),
        ({"teacher": "base=0.5,latest=0.6"}, "sum to 1"),
        ({"experts": ("arithmetic",)}, "is not TAG=NAME"),
        ({"clip": 0.2}, "--clip 0.2 acts on importance ratios"),
        ({"entry_clip": 0.05, "divergence": "sampled"}, "--entry-clip"),
        ({"continuation": 8, "alpha": 0.5}, "--continuation needs"),
        ({"earlier_teacher": "base"}, "--earlier-teacher goes with --knowledge-teacher"),
        ({"data": Path("nowhere.jsonl")}, "--data nowhere.jsonl is not a file"),
        ({"data": Path(__file__)}, "--data is for --alpha below 1"),
        ({"method": "sft", "answers": "teacher", "data": Path(__file__)}, "--data is not --answers teacher"),
        ({"method": "sft", "knowledge_teacher": "midtrained"}, "raise --alpha"),
        ({"context_template": "{prompt}"}, "--context-template needs a --context"),
        ({"keep_above": 0.5}, "--keep-above is for --answers rejection"),
        ({"method": "gkd", "divergence": "sampled"}, "a policy gradient needs the student's own answers"),
        ({"method": "gkd", "context": "rules"}, "set --alpha 1"),
    ],
)
def test_dials_that_mean_nothing_together_are_refused_in_one_line(given: dict[str, Any], said: str) -> None:
    given = {"samples_per_prompt": 1} | given if given.get("lam") == 0.0 else given
    if given == {"samples_per_prompt": 1, "lam": 0.0}:
        given["teacher"] = "none"
    with pytest.raises(UsageError) as caught:
        build(DistillConfig, given)
    assert said in str(caught.value) and "\n" not in str(caught.value)


# --- the stage, on a tiny model ------------------------------------------------------------------------------


def test_prompts_without_what_the_method_needs_are_refused_before_any_compute(
    session: Session, midtrain_config: MidtrainConfig, distill_config: DistillConfig
) -> None:
    from pipelines.distill import plan_distill

    midtrain(session, midtrain_config)
    for changed, said in (
        ({"teacher": "start", "context": "document"}, "no prompt brings what --context document tells the teacher"),
        ({"alpha": 0.0, "teacher": "label"}, ""),
    ):
        config = dataclasses.replace(distill_config, **changed)
        if said:
            with pytest.raises(UsageError, match=said):
                plan_distill(session, config)
    config = dataclasses.replace(distill_config, lam=0.0, teacher="none", samples_per_prompt=2, reward="exact")
    with pytest.raises(UsageError, match="--reward exact can judge none of the prompts"):
        plan_distill(session, config)


def test_a_reward_that_fails_ends_the_stage_in_one_line_and_keeps_the_student(
    session: Session,
    midtrain_config: MidtrainConfig,
    distill_config: DistillConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from pipelines.distill import distill

    (tmp_path / "strict_payroll.py").write_text("def pay(prompt, response): return float('nan')\n")
    monkeypatch.syspath_prepend(tmp_path)
    midtrain(session, midtrain_config)
    before = session.resolve("latest")
    config = dataclasses.replace(
        distill_config, lam=0.0, teacher="none", samples_per_prompt=2, reward="strict_payroll:pay"
    )
    with pytest.raises(RecoveryError, match="the reward gave nan"):
        distill(session, config)
    assert session.resolve("latest") == before
    newest = queries.stages(session.tracker.database, session.experiment_id)[0]
    assert newest.status == "failed" and "nan" in newest.error


@pytest.mark.parametrize("dials", [{"batch_epochs": 2, "divergence": "sampled", "clip": 0.2}, {"teacher": "ema"}])
def test_a_run_stopped_between_two_updates_goes_on_to_the_same_weights(
    session: Session,
    midtrain_config: MidtrainConfig,
    distill_config: DistillConfig,
    tmp_path: Path,
    dials: dict[str, Any],
) -> None:
    from pipelines.distill import distill
    from pipelines.interrupts import StageInterrupted

    if dials.get("teacher") == "ema":
        (tmp_path / "rules.txt").write_text("Answer in one word.")
        dials = dials | {"context": "rules", "context_file": tmp_path / "rules.txt", "ema_decay": 0.5}
    midtrain(session, midtrain_config)
    config = dataclasses.replace(distill_config, steps=6, student="cycle-1/midtrained", checkpoint_every=100, **dials)
    whole = distill(session, config)

    def stop(step: int, *_: Any) -> dict[str, float]:
        if step == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return {}

    with pytest.raises(StageInterrupted):
        distill(session, dataclasses.replace(config, check_every=1), observe=stop)
    stopped = queries.stages(session.tracker.database, session.experiment_id)[0]
    assert stopped.status == "interrupted" and stopped.steps_done == 3
    again = distill(session, dataclasses.replace(config, check_every=1), resume=stopped)
    assert again.hash == whole.hash


def test_a_stage_taught_from_outside_the_workspace_is_resumed_with_the_same_teachers(
    session: Session, midtrain_config: MidtrainConfig, distill_config: DistillConfig, tiny_model: Path, tmp_path: Path
) -> None:
    """Teachers given by their folders are registered nowhere; a resume must find them again all the same."""
    from pipelines.distill import distill
    from pipelines.interrupts import StageInterrupted

    midtrain(session, midtrain_config)
    outside = shutil.copytree(session.resolve("latest").path, tmp_path / "experts" / "mine")
    config = dataclasses.replace(
        distill_config,
        student="cycle-1/midtrained",
        teacher=str(shutil.copytree(tiny_model, tmp_path / "teacher")),
        knowledge_teacher=str(outside),
        knowledge_share=0.5,
        experts=(f"boats={outside}",),
        check_every=1,
    )

    def stop(step: int, *_: Any) -> dict[str, float]:
        if step == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return {}

    with pytest.raises(StageInterrupted):
        distill(session, config, observe=stop)
    stopped = queries.stages(session.tracker.database, session.experiment_id)[0]
    assert distill(session, from_json(DistillConfig, stopped.config), resume=stopped).kind == "recovered"


def test_a_run_that_collapses_stops_and_keeps_the_state_before(
    session: Session, midtrain_config: MidtrainConfig, distill_config: DistillConfig
) -> None:
    from pipelines.distill import distill

    midtrain(session, midtrain_config)
    config = dataclasses.replace(
        distill_config,
        method="grpo",
        lam=0.0,
        teacher="none",
        samples_per_prompt=4,
        prompts_per_step=4,
        lr=0.5,
        steps=80,
        warmup=0.5,
        checkpoint_every=2,
        max_grad_norm=100.0,
    )
    made = distill(session, config)
    stage = queries.stages(session.tracker.database, session.experiment_id)[0]
    assert stage.stopped.startswith("collapse: ")
    told = queries.events(session.tracker.database, session.experiment_id, kind="alarm", stage_id=stage.id)
    assert told and any(event.level == "warning" and event.data["signal"] in stage.stopped for event in told)
    assert stage.details["steps"] < stage.steps_done < 80
    assert made.path.is_dir()


def test_conversations_without_an_answer_are_refused_for_imitation(tmp_path: Path) -> None:
    from recovery.prompts import load_conversations

    path = tmp_path / "chat.jsonl"
    path.write_text(json.dumps({"messages": [{"role": "user", "content": "Hello?"}]}) + "\n")
    with pytest.raises(UsageError, match="record 1 has no answer to imitate"):
        load_conversations(path)
    path.write_text(json.dumps({"prompt": "Hello?", "answer": "Hello."}) + "\n")
    assert load_conversations(path)[0][-1] == {"role": "assistant", "content": "Hello."}


def test_what_recover_methods_shows_is_true() -> None:
    for name in METHODS:
        config = build(DistillConfig, {"method": name})
        assert config.method == name == method_named(name).name
        for setting, value in METHODS[name].settings.items():
            assert getattr(config, setting) == value
