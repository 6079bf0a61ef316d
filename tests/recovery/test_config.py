"""Configurations: precedence, validation, and error messages."""

from __future__ import annotations

import datetime
import itertools
import json
import math
from pathlib import Path
from typing import Any

import pytest

from recovery.config import (
    SECTIONS,
    CycleConfig,
    DistillConfig,
    EvalConfig,
    MidtrainConfig,
    Recipe,
    build,
    build_cycle,
    from_json,
    from_recipes,
    model_recipe,
    naming_recipes,
    read_recipe,
    to_json,
)
from recovery.config.build import RETIRED
from recovery.config.defaults import DEFAULTS, LITERATURE, MINIATURE, NONE, OTHERS, REAL
from recovery.errors import Interrupted, ModelError, UsageError
from recovery.methods import METHODS
from recovery.settings import check_value, may_be_recommended, settings_of, types_of


def recipe(tmp_path: Path, text: str) -> Recipe:
    path = tmp_path / "settings.toml"
    path.write_text(text)
    return read_recipe(path)


def test_flags_override_recipe_model_and_defaults(tmp_path: Path) -> None:
    own = recipe(tmp_path, "[model]\nlora_rank = 8\n[midtrain]\nlr = 2e-4\nrow_length = 99\n")
    models = Recipe("model", {"model": {"lora_rank": 4, "seed": 9}, "midtrain": {"lr": 1.0, "replay": 0.1}})
    config = build(MidtrainConfig, {"row_length": 77, "workspace": "not ours"}, own, models)
    assert (config.row_length, config.lr, config.lora_rank, config.replay, config.seed) == (77, 2e-4, 8, 0.1, 9)
    assert config.schedule == MidtrainConfig().schedule


def test_given_steps_replace_recommended_epochs_and_vice_versa() -> None:
    def length(flags: dict[str, Any], *recipes: Recipe) -> tuple[int | None, float | None]:
        config = build(MidtrainConfig, flags, *recipes)
        return config.steps, config.epochs

    models = Recipe("model", {"midtrain": {"epochs": 5}})
    assert length({"steps": 7}, models) == length({"steps": 7}) == (7, None), "nor do the default epochs hold"
    models = Recipe("model", {"midtrain": {"steps": 5}})
    assert length({"epochs": 2.0}, models) == (None, 2.0) and length({}, models) == (5, None)


def test_a_presets_mixture_goes_with_its_divergence() -> None:
    assert build(DistillConfig, {"method": "distillm"}).beta == 0.1
    assert build(DistillConfig, {"method": "distillm", "divergence": "jsd"}).beta == 0.1
    assert build(DistillConfig, {"method": "distillm", "divergence": "forward_kl"}).beta == 0.5
    model = Recipe("model", {"distill": {"divergence": "reverse_kl"}}, recommended=True)
    config = build(DistillConfig, {"method": "distillm"}, model)
    assert (config.divergence, config.beta) == ("skew_reverse_kl", 0.1), "the preset overrides what a model recommends"


@pytest.mark.parametrize(
    ("name", "value", "acting"),
    [
        ("entry_clip", 0.05, "gkd"),
        ("floor", -10.0, "opd"),
        ("clip", 0.2, "grpo"),
        ("drop", 2.0, "opd-sampled"),
        ("ratio_cap", 3.0, "opd"),
    ],
)
def test_what_a_model_recommends_does_not_rule_a_method_out(name: str, value: float, acting: str) -> None:
    model = Recipe("model", {"distill": {name: value}}, recommended=True)
    built = {method: build(DistillConfig, {"method": method}, model) for method in METHODS}
    assert getattr(built[acting], name) == value
    other = next(method for method, config in built.items() if getattr(config, name) != value)
    with pytest.raises(UsageError, match=f"--{name.replace('_', '-')}"):
        build(DistillConfig, {"method": other, name: value})  # what the user asks for is refused, not dropped


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[midtran]\nlr = 1", "no table .midtran.: did you mean 'midtrain'"),
        ("[distill]\nsampels_per_prompt = 4", "no setting 'sampels_per_prompt': did you mean 'samples_per_prompt'"),
        ("[midtrain]\ndocs = 'x'", "no setting 'docs': give it on the command line$"),
        ("lr = 1", r"settings.toml: lr is outside a table: put it under \[model\] or a stage's name"),
        ("[model]\nuntil = 1", r"has no setting 'until': it belongs to \[distill\]$"),
        ("[cycle.distill]\nknowledge_teacher = 'x'", r"'knowledge_teacher': it belongs to \[distill\] or \[cycle\]$"),
        ("[midtrain\nlr=1", "cannot be read"),
        ("[distill]\nteacher = ''\n", r"\[distill\] teacher is empty: give a value, or delete the line"),
        ("[[distill]]\nsteps = 7\n", r"\[\[distill\]\] is a list of tables: write \[distill\], once"),
        ("[cycle.midtrian]\nsteps = 1\n", r"no table \[cycle.midtrian\]"),
        ("[cycle.midtrain]\nstep = 1\n", r"\[cycle.midtrain\] has no setting 'step'"),
        ("[cycle]\nmidtrain = 3\n", r"\[cycle\] has no setting 'midtrain'"),
    ],
)
def test_invalid_recipes_are_refused_by_name(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        recipe(tmp_path, text)
    assert "settings.toml" in str(caught.value)
    assert "\n" not in str(caught.value).strip()


def test_a_recipe_in_another_encoding_is_to_be_saved_in_utf_8(tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_bytes("[distill]  # Größe\nsteps = 3\n".encode("latin-1"))
    with pytest.raises(UsageError, match=r"r.toml: it is .* save it as UTF-8$"):
        read_recipe(tmp_path / "r.toml")


def test_a_recipe_with_a_retired_setting_is_read_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    older = recipe(tmp_path, "[distill]\nuntil_rule = 'bound'\nmargin = 0.01\n[cycle.distill]\nuntil_rule = 'estimate'")
    assert build(DistillConfig, {}, older).margin == build_cycle({}, older).distill.margin == 0.01
    assert caplog.text.count("until_rule has no effect any more: an estimate within --margin decides") == 2


def test_a_whole_number_is_a_number(tmp_path: Path) -> None:
    assert build(DistillConfig, {}, recipe(tmp_path, "[distill]\nlr = 1")).lr == 1.0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[distill]\nsteps = 'many'", r"settings.toml: \[distill\] steps is 'many', but must be a whole number$"),
        ("[distill]\nlr = 'high'", r"\[distill\] lr is 'high', but must be a number$"),  # or left out
        ("[cycle]\nprune = 'all'", r"settings.toml: \[cycle\] prune is 'all', but must be a list of texts, as in"),
        ("[distill]\nsteps = true", r"settings.toml: \[distill\] steps is True"),
        ('[interpolate]\nalphas = ["a"]', r"alphas is \['a'\], but must be a list of numbers, as in \[0.2, 0.5\]$"),
        ("[interpolate]\nalphas = [true]", r"alphas is \[True\], but must be a list of numbers"),
        ("[eval]\nbehaviour = [1]", r"behaviour is \[1\], but must be a list of paths, as in"),
        ("[eval]\ntasks = [1]", r"tasks is \[1\], but must be a list of texts, as in"),
        ("[cycle]\ngate = [['a']]", r"gate is \[\['a'\]\], but must be a list"),
        ("[eval]\ntemplate_args = 3", "template_args is 3, but must be a table, as in"),
        (f"[distill]\nlr = 1{'0' * 400}", r"settings.toml: \[distill\] lr holds a whole number of more than 64 bits"),
        (f"[model]\nlora_rank = 0x{'f' * 5000}", r"\[model\] lora_rank holds a whole number of more than 64 bits"),
        (f"[distill]\nsteps = {'9' * 5000}", "settings.toml cannot be read: "),
        (f"[distill]\nsteps = {'[' * 5000}{']' * 5000}", "settings.toml cannot be read: "),
        ('[midtrain]\nprompts = "a\\u0000"', r"\[midtrain\] prompts holds a null character"),
        ("[eval.template_args]\nday = 2026-01-01", r"\[eval\] template_args day holds a date or a time: write"),
        ("[interpolate]\nkeep = nan", r"settings.toml: \[interpolate\] keep is nan, but must be a finite number$"),
        ("[interpolate]\nalphas = [0.5, inf]", r"\[interpolate\] alphas is inf, but must be a finite number$"),
    ],
)
def test_a_value_that_a_setting_cannot_hold_is_one_line_with_its_place(tmp_path: Path, text: str, message: str) -> None:
    section = text[1:].split("]")[0].split(".")[0].replace("model", "midtrain")

    def built() -> object:
        found = recipe(tmp_path, text)
        return build_cycle({}, found) if section == "cycle" else build(SECTIONS[section], {}, found)

    with pytest.raises(UsageError, match=message) as caught:
        built()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("[midtrain]\nsteps = -3", "[midtrain] steps is -3, but must be at least 1"),
        ("[distill]\nsteps = -3", "[distill] steps is -3, but must be at least 1"),
        ("[cycle.distill]\nknowledge_share = 2.0", "[cycle.distill] knowledge_share is 2.0, but must be between 0 and"),
        ("[model]\ntuning = 'some'", "[model] tuning 'some' is not known: use auto, lora or full"),
        ("[eval]\nlimit = 0", "[eval] limit is 0, but must be at least 1"),
        ("[cycle]\nprune = ['everything']", "[cycle] prune 'everything' is not known: use all, "),
        ("[interpolate]\nalphas = [0.5, 2]", "[interpolate] alphas is 2.0, but must be between 0 and 1"),
    ],
)
def test_a_value_of_a_recipe_that_is_out_of_range_is_refused_at_its_place(
    tmp_path: Path, text: str, place: str
) -> None:
    """It was called an option of the command line, which nobody had given."""
    with pytest.raises(UsageError) as caught:
        recipe(tmp_path, text)
    assert f"settings.toml: {place}" in str(caught.value)
    assert "--" not in str(caught.value)


@pytest.mark.parametrize(
    ("kind", "text", "flags", "end"),
    [
        (DistillConfig, "[distill]\nfloor = -9.0", {"divergence": "jsd"}, "omit it (floor is set by {})"),
        (DistillConfig, "[distill]\ndevelopment = 5", {"until": 0.9}, "test off (development is set by {})"),
        (MidtrainConfig, "[midtrain]\nsteps = 2\nepochs = 1", {}, "(epochs is set by {}, steps is set by {})"),
        (MidtrainConfig, "[model]\ngather = false", {}, "add --shard full (gather is set by {})"),
        (DistillConfig, "[distill]\nmethod = 'opdd'", {}, "lists them) (method is set by {})"),
        (DistillConfig, "[distill]\nmethod = 'grpo'", {"lam": 1.0}, "--lambda 0 (teacher is set by the method grpo)"),
        (DistillConfig, "[distill]\nuntil = 0.9", {"until": 0.8, "development": 5}, "--until 0 switches the test off"),
    ],
)
def test_what_a_recipe_sets_is_said_where_settings_do_not_go_together(
    tmp_path: Path, kind: Any, text: str, flags: dict[str, Any], end: str
) -> None:
    with pytest.raises(UsageError) as caught:
        build(kind, flags, recipe(tmp_path, text))
    assert str(caught.value).endswith(end.replace("{}", str(tmp_path / "settings.toml")))


@pytest.mark.parametrize("name", ["method", "teacher", "student", "knowledge_teacher"])
def test_an_empty_flag_is_refused(name: str) -> None:
    """An empty method was on-policy distillation."""
    with pytest.raises(UsageError, match=f"^--{name.replace('_', '-')} is empty: give a value, or omit it$"):
        build(DistillConfig, {name: " "})


@pytest.mark.parametrize(
    ("kind", "flags", "message", "end"),
    [
        (CycleConfig, {}, "--blend 0.7: use --tuning full", "full (blend is set by {}, tuning is set by {})"),
        (CycleConfig, {"distill_lr": 0.1}, "--lr 0.1 is too high", "--lr 0.1 is too high"),
        (CycleConfig, {}, "there is no checkpoint 'nobody'", "'nobody' (teacher is set by {})"),
        (CycleConfig, {}, "--gate-alpha 0.2: no", "no (gate_alpha is set by {})"),
        (CycleConfig, {}, "--blend 0.7 (blend is set by another)", "(blend is set by another)"),
        (DistillConfig, {}, "use --tuning full", "use --tuning full"),
        (DistillConfig, {}, "--teacher nobody: no", "no (teacher is set by {})"),
    ],
)
def test_what_a_recipe_sets_is_said_where_a_stage_cannot_use_it(
    tmp_path: Path, kind: Any, flags: dict[str, Any], message: str, end: str
) -> None:
    """A stage of a cycle may find it hours after the recipe was read."""
    own = recipe(
        tmp_path,
        "[cycle]\ngate_alpha = 0.2\n[cycle.distill]\nblend = 0.7\ntuning = 'lora'\n"
        "[distill]\nlr = 0.2\nteacher = 'nobody'",
    )
    with pytest.raises(ModelError) as caught, naming_recipes(from_recipes(kind, flags, own)):
        raise ModelError(message)
    assert str(caught.value).endswith(end.replace("{}", str(tmp_path / "settings.toml")))
    with pytest.raises(Interrupted, match="--blend$"), naming_recipes(from_recipes(kind, flags, own)):
        raise Interrupted("--blend")


def test_no_value_of_a_recipe_or_a_flag_raises_another_error() -> None:
    odd = [
        [1], ["a"], [True], [[]], [{}], {}, {"a": {"b": [1]}}, math.nan, -math.inf, [math.nan], 10**400, [10**5000],
        2**63 - 1, -1, "", "\0", ["\0"], datetime.date(2026, 1, 1), {"a": datetime.time(1)},
    ]  # fmt: skip
    others = []
    for section, kind in SECTIONS.items():
        own = set(settings_of(kind))
        for name, value in itertools.product(sorted(own), odd):
            for recipes, flags in (([{section: {name: value}}], {}), ([], {name: value})):
                try:
                    config = build(kind, flags, *(Recipe("settings.toml", tables) for tables in recipes))
                    json.dumps(to_json(config))
                except UsageError:
                    continue
                except Exception as error:  # all of them are told
                    others.append((section, name, error))
    assert not others


KNOWING = {"knowledge_teacher": "midtrained"}


@pytest.mark.parametrize(
    ("kind", "values", "message"),
    [
        (MidtrainConfig, {"steps": 5, "epochs": 2.0}, "--steps and --epochs"),
        (MidtrainConfig, {"batch_tokens": 3}, "--batch-tokens"),
        (DistillConfig, {"development": 50}, "--until 0.99 needs --development"),
        (DistillConfig, KNOWING | {"prompts_per_step": 2}, "raise --knowledge-share"),
        (DistillConfig, KNOWING | {"prompts_per_step": 5, "knowledge_share": 0.1}, "none of the 5 prompts of a step"),
        (DistillConfig, KNOWING | {"prompts_per_step": 8, "alpha": 0.25}, "2 prompts of a step that the student comp"),
        (DistillConfig, {"divergence": "kl"}, "--divergence 'kl'"),
        (EvalConfig, {"complete_loops": True, "engine": "vllm"}, "omit one of them"),
        (MidtrainConfig, {"compile": True, "shard": "full"}, "--compile does not work with sharded layers"),
        (MidtrainConfig, {"offload": True}, "add --shard full"),
    ],
)
def test_settings_that_do_not_go_together_name_their_flags(kind: type, values: dict, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        kind(**values)


def test_the_rate_follows_tuning_and_size_unless_one_is_given() -> None:
    config = MidtrainConfig()
    rates = [config.rate("full", size) for size in (70e9, 8e9, 1.7e9, 135e6, 2e6)]
    assert rates == [3.4e-5, 3.4e-5, 8.7e-5, 4e-4, 4.1e-4], "higher for smaller models, within bounds"
    assert [DistillConfig().rate("full", size) for size in (8e9, 135e6)] == [8.6e-6, 1e-4]
    assert [config.rate("lora", size) for size in (8e9, 135e6)] == [3.4e-4, 4e-3], "ten times that"
    given = MidtrainConfig(lr=0.5)
    assert given.rate("full", 8e9) == given.rate("lora", 135e6) == 0.5
    assert MidtrainConfig(full_lr=0.25).rate("full", 135e6) == 0.25


def test_a_configuration_survives_the_tracker() -> None:
    config = CycleConfig(
        docs=(Path("a"), Path("b")),
        midtrain=MidtrainConfig(template_args={"enable_thinking": False}, prompts=Path("p")),
        eval=EvalConfig(tasks=("arc_easy",)),
    )
    assert from_json(CycleConfig, to_json(config)) == config
    older = to_json(EvalConfig(limit=3)) | dict.fromkeys(RETIRED, True)
    assert from_json(EvalConfig, older) == EvalConfig(limit=3), "a stage of an earlier release goes on"
    with pytest.raises(UsageError, match="does not know: colour"):
        from_json(EvalConfig, {"colour": "red"})


def test_flags_of_a_cycle_reach_the_stages_that_have_them() -> None:
    flags = {"midtrain_lr": 1e-3, "distill_steps": 7, "limit": 5, "seed": 3, "docs": (Path("q"),)}
    config = build_cycle(flags | {"knowledge_teacher": "none"})
    assert (config.midtrain.lr, config.midtrain.steps) == (1e-3, None)
    assert (config.distill.lr, config.distill.steps) == (None, 7)
    assert (config.eval.limit, config.eval.seed, config.midtrain.seed, config.distill.seed) == (5, 3, 3, 3)
    assert (config.docs, config.knowledge_teacher, config.midtrain.docs) == ((Path("q"),), None, None)
    assert build_cycle({}).knowledge_teacher == "midtrained"


def test_what_nobody_sets_is_the_measured_recipe_in_cycles_and_in_single_stages() -> None:
    for config in (build_cycle({}), build_cycle({}, alone=True)):
        mid, recovery = config.midtrain, config.distill
        assert (mid.replay, mid.replay_loss, mid.augment, mid.augment_share, mid.epochs) == (0.3, "kl", 4, 0.55, 2.8)
        assert (recovery.steps, recovery.knowledge_share, recovery.until, recovery.blend) == (60, 0.5, 0.0, 1.0)
        assert (mid.embeddings, recovery.embeddings) == ("all", "all")
    assert (build_cycle({}).distill.earlier_share, build_cycle({}, alone=True).distill.earlier_share) == (0.5, None)
    assert build(MidtrainConfig, {}) == build_cycle({}).midtrain
    assert MidtrainConfig().replay == MidtrainConfig().augment == 0, "a class has only the defaults of its fields"


def test_a_default_gives_way_to_what_it_would_contradict(tmp_path: Path) -> None:
    (tmp_path / "chat.jsonl").write_text("{}")
    for flags in ({"replay": 0.0}, {"replay_data": tmp_path / "chat.jsonl"}):
        assert build(MidtrainConfig, flags).replay_loss == "answers", "no chat to score, or the user's own to imitate"
    assert build(MidtrainConfig, {}, Recipe("own", {"midtrain": {"replay": 0.0}})).replay_loss == "answers"
    with pytest.raises(UsageError, match="--replay-loss kl needs --replay"):
        build(MidtrainConfig, {"replay": 0.0, "replay_loss": "kl"})
    own = Recipe("own", {"midtrain": {"replay_loss": "kl"}, "distill": {"samples_per_prompt": 6}})
    assert build(MidtrainConfig, {"replay_data": tmp_path / "chat.jsonl"}, own).replay_loss == "kl", "somebody said it"
    assert build(DistillConfig, {"lam": 0.5}, own).samples_per_prompt == 6
    assert build(DistillConfig, {"lam": 0.5}).samples_per_prompt == DistillConfig().samples_per_prompt > 1
    for name in METHODS:
        assert build(DistillConfig, {"method": name}).method == name, "a method's preset goes before the defaults"
    assert build(DistillConfig, {"method": "grpo"}).samples_per_prompt == 8


def test_every_default_names_its_evidence() -> None:
    for table, found in DEFAULTS.items():
        kind = SECTIONS[table.removeprefix("cycle.")]
        for name, one in found.items():
            check_value(kind, name, one.value)
            assert one.evidence in (REAL, MINIATURE, LITERATURE, NONE) and one.reason, (table, name)
    assert all(evidence in (REAL, MINIATURE, LITERATURE, NONE) for _, evidence, _ in OTHERS.values())


def test_a_cycle_that_would_blend_a_full_model_into_a_new_adapter_is_refused_with_its_plan() -> None:
    def cycle(midtrain: str, distill: str) -> CycleConfig:
        return CycleConfig(midtrain=MidtrainConfig(tuning=midtrain), distill=DistillConfig(tuning=distill, blend=0.7))

    with pytest.raises(UsageError, match="--blend 0.7 moves all weights of the mid-trained model.*same tuning in both"):
        cycle("full", "lora")
    assert cycle("lora", "lora").distill.blend == cycle("full", "full").distill.blend == 0.7


def test_a_cycle_that_would_ask_its_knowledge_teacher_nothing_is_refused_before_mid_training() -> None:
    few = DistillConfig(prompts_per_step=2, knowledge_share=0.2)
    with pytest.raises(UsageError, match="--knowledge-teacher midtrained gets none of the 2 prompts"):
        CycleConfig(distill=few)
    assert CycleConfig(distill=few, knowledge_teacher=None).distill == few


def test_the_questions_of_a_writer_need_their_file_and_a_share() -> None:
    with pytest.raises(UsageError, match=r"--writer-questions reads rewritten.jsonl: add --writer rewritten.jsonl"):
        MidtrainConfig(augment=4, writer="base", writer_questions=True)
    flags = {"augment": 4, "writer": "rewritten.jsonl", "writer_questions": True}
    cycle = build_cycle(flags)
    assert cycle.midtrain.writer_questions and cycle.distill.writer_questions
    with pytest.raises(UsageError, match="--augment-questions 0 leaves no tokens for the --writer-questions"):
        build_cycle(flags | {"augment_questions": 0.0})


def test_a_recipe_can_hold_settings_of_a_stage_within_cycles(tmp_path: Path) -> None:
    assert not model_recipe(tmp_path).tables
    (tmp_path / "recovery.toml").write_text(
        "[midtrain]\nepochs = 7.0\nlr = 0.5\n[cycle]\nreplay_documents = 0.4\n[cycle.midtrain]\nsteps = 3\n"
        "[cycle.distill]\nsteps = 40\n"
    )
    model = model_recipe(tmp_path)
    assert build(MidtrainConfig, {}, model).epochs == 7.0 and build(DistillConfig, {}, model).steps == 60
    config = build_cycle({}, model)
    assert (config.midtrain.epochs, config.midtrain.steps, config.midtrain.lr) == (None, 3, 0.5)
    assert (config.distill.steps, config.replay_documents) == (40, 0.4)
    assert build_cycle({}, Recipe("x", {"cycle": {"midtrain": {"steps": 2}}})).midtrain.steps == 2
    assert build_cycle({}, model, alone=True).distill.steps == 60
    mine = Recipe("mine", {"midtrain": {"epochs": 2.0}})
    assert build_cycle({}, mine, model).midtrain.epochs == 2.0, "a recipe overrides all that the model recommends"


def test_what_the_user_says_of_cycles_goes_before_what_a_model_recommends_for_a_stage(tmp_path: Path) -> None:
    (tmp_path / "recovery.toml").write_text(
        "[midtrain]\nreplay_documents = 0.3\nepochs = 2.0\n[cycle]\nreplay_documents = 0.4\n[cycle.eval]\nlimit = 7\n"
        "[cycle.midtrain]\nlr = 0.5\n[cycle.distill]\nblend = 0.9\nknowledge_share = 0.3\nmethod = 'opd'\n"
    )
    model = model_recipe(tmp_path)

    def share(text: str = "", flags: dict[str, object] | None = None, alone: bool = False) -> float | None:
        return build_cycle(flags or {}, recipe(tmp_path, text), model, alone=alone).midtrain.replay_documents

    assert share() == share(alone=True) == 0.3
    assert share("[cycle]\nreplay_documents = 0.2\n") == share("[cycle]\nreplay_documents = 0.2\n", alone=True) == 0.2
    assert share("[cycle]\nreplay_documents = 0.2\n[cycle.midtrain]\nreplay_documents = 0.1\n") == 0.1
    assert share("[cycle]\nreplay_documents = 0.2\n", {"replay_documents": 0.0}) == 0.0
    own = "[model]\nlr = 0.1\n[midtrain]\nsteps = 3\n[distill]\nblend = 0.7\nknowledge_share = 0.6\n[eval]\nlimit = 9\n"
    mine = build_cycle({}, recipe(tmp_path, own), model)
    assert (mine.midtrain.lr, mine.midtrain.steps, mine.midtrain.epochs) == (0.1, 3, None)
    assert (mine.distill.lr, mine.distill.blend, mine.distill.knowledge_share, mine.eval.limit) == (0.1, 0.7, 0.6, 9)


def test_a_rate_of_one_tuning_goes_before_a_rate_of_both_that_it_overrides() -> None:
    model = Recipe("model", {"midtrain": {"lr": 1e-5}}, recommended=True)
    both = build(MidtrainConfig, {}, Recipe("own", {"midtrain": {"lora_lr": 3e-4, "full_lr": 7e-5}}), model)
    assert (both.rate("lora", 1e9), both.rate("full", 1e9)) == (3e-4, 7e-5)
    one = build(MidtrainConfig, {}, Recipe("own", {"midtrain": {"lora_lr": 3e-4}}), model)
    assert (one.rate("lora", 1e9), one.rate("full", 1e9)) == (3e-4, 1e-5), "of the other one nothing was said"
    assert build(MidtrainConfig, {"lr": 0.1}, Recipe("own", {"model": {"lora_lr": 3e-4}})).rate("lora", 1e9) == 0.1
    shared = {"model": {"lr": 1e-5}, "midtrain": {"lora_lr": 3e-4}, "cycle": {"distill": {"lora_lr": 2e-4}}}
    cycle = build_cycle({}, Recipe("own", shared))
    assert (cycle.midtrain.rate("lora", 1e9), cycle.distill.rate("lora", 1e9)) == (3e-4, 2e-4)


def test_the_knowledge_teacher_of_a_recovery_is_that_of_cycles_which_name_none() -> None:
    own = {"distill": {"knowledge_teacher": "./expert"}}
    assert build_cycle({}, Recipe("own", own)).knowledge_teacher == "./expert"
    assert build_cycle({}, Recipe("own", own | {"cycle": {"knowledge_teacher": "base"}})).knowledge_teacher == "base"
    assert build_cycle({"knowledge_teacher": "none"}, Recipe("own", own)).knowledge_teacher is None
    model = Recipe("model", {"cycle": {"knowledge_teacher": "base"}}, recommended=True)
    assert build_cycle({}, Recipe("own", own), model).knowledge_teacher == "./expert"
    assert build_cycle({}, Recipe("own", {}), model).knowledge_teacher == "base"


def test_a_recipe_of_windows_notepad_begins_with_a_mark(tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text("[distill]\nsteps = 7\n", encoding="utf-8-sig")
    assert build(DistillConfig, {}, read_recipe(tmp_path / "own.toml")).steps == 7


@pytest.mark.parametrize(
    "text",
    [
        '[distill]\nlam = 0.5\nreward = "os:system"\n',
        '[midtrain]\naugment = 2\nwriter = "http://192.0.2.1/v1"\n',
        '[model]\nengine = "http://192.0.2.1/v1"\n',
        '[eval]\ntasks = ["suites/task.yaml"]\n',
        '[distill]\nprompts = "/etc/passwd"\n',
        '[cycle.distill]\nteacher = "https://192.0.2.1"\n',
        '[cycle]\nprune = ["all"]\n',
        '[cycle]\ngate = ["ifeval >= 0.01"]\n',
        "[cycle]\ngate_alpha = 0.4\n",
    ],
)
def test_a_model_folder_recommends_no_code_file_server_or_decision(tmp_path: Path, text: str) -> None:
    path = tmp_path / "recovery.toml"
    path.write_text(text)
    with pytest.raises(UsageError, match="a model may not recommend"):
        model_recipe(tmp_path)
    assert read_recipe(path).tables, "the user's own recipe may"


def test_of_text_and_paths_a_model_folder_recommends_only_what_is_declared() -> None:
    text, paths = set(), set()
    for kind in SECTIONS.values():
        for name, one in settings_of(kind).items():
            if "Path" in str(types_of(kind)[name]):
                paths.add(name)
                assert not may_be_recommended(kind, name, "x"), name
            elif "str" in str(types_of(kind)[name]) and not one.choices and may_be_recommended(kind, name, "x"):
                text.add(name)
    assert text == {"device", "template_args", "method", "context_template", "engine"}
    assert {"prompts", "data", "texts", "behaviour"} < paths


def test_complete_loops_is_for_the_transformers_engine() -> None:
    assert build(EvalConfig, {"complete_loops": True}).complete_loops
