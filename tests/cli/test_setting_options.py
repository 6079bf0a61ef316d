"""The flags of the commands are those of the settings; one without effect is refused if it was typed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest

from pipelines.cli import common, main
from pipelines.cli.stage_options import check_given, default_of, option_of, options_of, several
from recovery.config import (
    SECTIONS,
    CycleConfig,
    DistillConfig,
    EvalConfig,
    InterpolateConfig,
    MidtrainConfig,
    ModelConfig,
    Recipe,
    build,
    build_cycle,
)
from recovery.config.defaults import DEFAULTS
from recovery.errors import UsageError
from recovery.losses.config import TEACHER_DIVERGENCES
from recovery.methods import METHODS
from recovery.settings import Setting, flag_of, settings_of
from tests.cli.conftest import Refused

COMMANDS = {"midtrain": "midtrain", "distill": "train", "interpolate": "interpolate", "eval": "eval", "cycle": "cycle"}
# Settings that only a recipe sets.
OPTIMISER = {"full_lr", "lora_lr", "warmup", "schedule", "min_lr_ratio", "weight_decay", "max_grad_norm"}
WITHOUT_FLAG = {
    "midtrain": OPTIMISER,
    "distill": OPTIMISER | {"row_length"},
    "interpolate": {"question_tokens"},
    "eval": set(),
    "cycle": {"evaluate"},
}


def options(command: str) -> dict[str, click.Option]:
    """Return the options of a command by the name of their value."""
    found = main.recover.get_command(click.Context(main.recover), command)
    return {str(option.name): option for option in found.params if isinstance(option, click.Option)}


@pytest.mark.parametrize("section", SECTIONS)
def test_every_setting_has_its_flag_unless_a_recipe_alone_sets_it(section: str) -> None:
    kind, found = SECTIONS[section], options(COMMANDS[section])
    declared = settings_of(kind)
    assert declared.keys() - found.keys() == WITHOUT_FLAG[section]
    for name in declared.keys() & found.keys():
        assert flag_of(kind, name) in found[name].opts


@pytest.mark.parametrize("section", ["midtrain", "distill", "interpolate", "eval"])
def test_flags_have_the_range_the_choices_the_default_and_the_help_of_their_settings(section: str) -> None:
    kind, found = SECTIONS[section], options(COMMANDS[section])
    for name, declared in settings_of(kind).items():
        if name not in found:
            continue
        option = found[name]
        assert (option.help or "").startswith(declared.help), name
        assert _bounds(option.type) == _bounds(declared), name
        assert tuple(getattr(option.type, "choices", ())) == declared.choices, name
        assert option.metavar == declared.metavar, name
        listed = DEFAULTS.get(section, {}).get(name)
        words = declared.shown or _words(listed.value if listed else getattr(kind, name, None))
        shown = (option.help or "").removeprefix(declared.help).replace(", or the method's]", "]")
        assert shown == (f"  [default: {words}]" if words else ""), name
        if name != "seed":  # nothing is passed on unless it is given, so that a recipe or a preset decides
            assert option.get_default(click.Context(click.Command("x"))) in (None, ()), name


def _words(default: object) -> str:
    if default in (None, (), {}):
        return ""
    if isinstance(default, bool):
        return "on" if default else "off"
    return f"{default:g}" if isinstance(default, float) else str(default)


def _bounds(of: Any) -> tuple[Any, ...]:
    """Return the lowest and the highest value and whether they are excluded, of a declaration or a type of click."""
    if isinstance(of, Setting):
        low = of.minimum if of.above is None else of.above
        high = of.maximum if of.below is None else of.below
        return (low, high, of.above is not None, of.below is not None)
    return tuple(getattr(of, name, usual) for name, usual in
                 (("min", None), ("max", None), ("min_open", False), ("max_open", False)))  # fmt: skip


def test_flags_of_one_name_accept_the_same_values_in_every_command() -> None:
    others = [
        ("plan", "knowledge_teacher"),
        ("drift", "limit"),
        ("gate", "alpha"),
        ("demo", "replay"),
    ]  # they mean something else
    declared = {
        name: one for kind in (EvalConfig, MidtrainConfig, DistillConfig) for name, one in settings_of(kind).items()
    }
    ours = ((c, o) for c in main.COMMANDS if c not in COMMANDS.values() for o in options(c).values())
    compared = []
    for command, option in ours:
        name = str(option.name)
        if name not in declared or (command, name) in others:
            continue
        assert tuple(getattr(option.type, "choices", ())) == declared[name].choices, (command, name)
        assert _bounds(option.type) == _bounds(declared[name]), (command, name)
        compared.append(name)
    assert {"precision", "steps", "epochs", "max_tokens", "limit", "seed"} <= set(compared)


@pytest.mark.parametrize(
    ("kind", "name", "words"),
    [
        (DistillConfig, "alarm", "on"),
        (DistillConfig, "overlap", "off"),
        (DistillConfig, "student", "latest"),
        (DistillConfig, "steps", "60"),
        (DistillConfig, "margin", "0.02"),
        (ModelConfig, "device", "auto"),
        (InterpolateConfig, "alphas", "0.1, 0.2 ... 1"),
        (MidtrainConfig, "epochs", "2.8"),
        (MidtrainConfig, "anchor", "0"),  # a method sets the one of a distillation
        (DistillConfig, "anchor", "0, or the method's"),
        (DistillConfig, "divergence", "reverse_kl, or the method's"),
        (DistillConfig, "data", None),
        (CycleConfig, "gate", None),
    ],
)
def test_the_default_is_shown_in_words(kind: type[Any], name: str, words: str | None) -> None:
    assert default_of(kind, name) == words


def test_no_help_shows_an_empty_default() -> None:
    for command in COMMANDS.values():
        for name, option in options(command).items():
            assert "[default: ()]" not in (option.help or "") and "[default: None]" not in (option.help or ""), name
    assert (options("train")["experts"].help or "").endswith("may be repeated.")


def test_a_file_must_exist_and_a_folder_need_not(tmp_path: Path) -> None:
    seen: dict[str, object] = {}

    @click.command()
    @options_of(DistillConfig, "data")
    @options_of(MidtrainConfig, "docs")
    @options_of(EvalConfig, "behaviour")
    def command(**given: object) -> None:
        seen.update(given)

    def run(*arguments: str | Path) -> None:
        command.main([str(argument) for argument in arguments], standalone_mode=False)

    file, folder, missing = tmp_path / "lines.jsonl", tmp_path / "folder", tmp_path / "missing"
    file.touch()
    folder.mkdir()
    with pytest.raises(click.BadParameter, match=f"File '{missing}' does not exist"):
        run("--behaviour", missing)
    with pytest.raises(click.BadParameter, match=f"File '{folder}' is a directory"):
        run("--behaviour", folder)
    for flag in ("--data", "--docs"):
        with pytest.raises(click.BadParameter, match=f"Path '{missing}' does not exist"):
            run(flag, missing)
    column, hub = Path(f"{file}:text"), Path("organisation/dataset:train")
    run("--data", column, "--behaviour", file, "--behaviour", file, "--docs", hub)
    assert seen == {"data": column, "behaviour": (file, file), "docs": hub}
    run("--docs", folder)
    assert seen == {"data": None, "behaviour": (), "docs": folder}


def test_options_stand_in_the_order_of_the_call() -> None:
    @click.command()
    @options_of(DistillConfig, "steps", "alpha", "data")
    @several(option_of(DistillConfig, "lam"), options_of(DistillConfig, "margin", "clip"))
    def command(**_: object) -> None:
        pass

    assert [option.name for option in command.params] == ["steps", "alpha", "data", "lam", "margin", "clip"]


def test_the_divergences_are_listed_once() -> None:
    for command in ("distill", "train"):
        assert tuple(options(command)["divergence"].type.choices) == TEACHER_DIVERGENCES  # type: ignore[attr-defined]


def test_the_help_says_which_defaults_a_method_sets() -> None:
    found = options("train")
    changed = {name for method in METHODS.values() for name in method.settings}
    for name in ("alpha", "divergence", "samples_per_prompt", "anchor"):
        assert name in changed
        assert ", or the method's]" in (found[name].help or "")
    assert "method" not in (found["steps"].help or "")


@pytest.mark.parametrize(
    ("command", "flag", "setting", "value"),
    [
        ("midtrain", "--replay", "replay", 0.99),
        ("midtrain", "--lr", "lr", 0),
        ("distill", "--steps", "steps", 0),
        ("train", "--lambda", "lam", 1.5),
        ("train", "--ema-decay", "ema_decay", 1.0),
        ("interpolate", "--keep", "keep", 2),
        ("eval", "--limit", "limit", 0),
        ("eval", "--precision", "precision", "float16"),
        ("cycle", "--gate-alpha", "gate_alpha", 0.5),
    ],
)
def test_a_value_out_of_range_is_one_line_from_the_flag_and_from_a_recipe(
    command: str,
    flag: str,
    setting: str,
    value: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tiny_model: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main.run([command, flag, str(value)]) == 2
    wrong = [line for line in capsys.readouterr().err.splitlines() if line.startswith("Error:")]
    assert len(wrong) == 1
    assert f"Invalid value for '{flag}'" in wrong[0]
    table = {"train": "distill"}.get(command, command)
    Path("r.toml").write_text(f"[{table}]\n{setting} = {value!r}\n")
    assert main.run([command, "--recipe", "r.toml", "--model", str(tiny_model)]) == 1
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("recover: error:")]
    assert len(lines) == 1
    assert lines[0].startswith(f"recover: error: r.toml: [{table}] {setting} "), "not as an option that nobody typed"
    assert str(value) in lines[0]


def test_an_option_follows_its_field() -> None:
    seen: dict[str, object] = {}

    @click.command()
    @option_of(DistillConfig, "lam")
    @option_of(DistillConfig, "steps", "--distill-steps", help="Steps.")
    @option_of(DistillConfig, "alarm")
    @option_of(DistillConfig, "experts")
    def command(**given: object) -> None:
        seen.update(given)

    made = [option for option in command.params if isinstance(option, click.Option)]
    assert [option.opts[0] for option in made] == ["--lambda", "--distill-steps", "--alarm", "--expert"]
    assert made[1].help == "Steps.  [default: 60]"
    command.main([], standalone_mode=False)
    assert seen == {"lam": None, "distill_steps": None, "alarm": None, "experts": ()}
    command.main(["--lambda", "0.5", "--no-alarm", "--expert", "a=b", "--expert", "c=d"], standalone_mode=False)
    assert seen == {"lam": 0.5, "distill_steps": None, "alarm": False, "experts": ("a=b", "c=d")}


def test_a_seed_that_is_named_twice_counts_once() -> None:
    seen: list[object] = []
    command = click.Command("x", callback=lambda seeds: seen.append(seeds), params=[])
    common.seeds(command)
    command.main(["--seeds", "0,2,0,1"], standalone_mode=False)
    assert seen == [(0, 2, 1)]


@pytest.mark.parametrize("seeds", ["-1", "0,99999999999"])
def test_a_seed_out_of_range_is_refused_before_a_workspace_is_made_for_it(seeds: str) -> None:
    command = click.Command("x", callback=lambda seeds: None, params=[])
    common.seeds(command)
    with pytest.raises(click.BadParameter, match="--seed is .*, but must be at least 0 and below"):
        command.main(["--seeds", seeds], standalone_mode=False)


CYCLE = {"docs": ("docs",)}
IDLE: tuple[tuple[type[Any] | None, dict[str, Any], dict[str, Any], str], ...] = (
    (None, {"gate_samples": 9}, {"gate": ("ifeval >= 0.5",)}, "--gate-samples 9 is for a gate"),
    (None, {"gate_extend": 0}, {"gate": ("ifeval >= 0.5",)}, "--gate-extend 0 is for a gate"),
    (None, {"gate_alpha": 0.1}, {"gate": ("standard",)}, "--gate-alpha 0.1 is for a gate"),
    (None, {"gate": ("standard",), "trial": True}, {"trial": False}, "--gate standard decides nothing of a trial"),
    (None, {"ifeval_tokens": 9}, {"ifeval": "hub"}, "--ifeval-tokens 9 is about IFEval's own"),
    (None, {"augment_share": 0.5, "augment": 0}, {"augment": 4}, "--augment-share 0.5 is about augmented"),
    (None, {"knowledge_teacher": "none", "knowledge_share": 0.3}, {"knowledge_teacher": "midtrained"}, "excludes one"),
    (None, {"tuning": "full", "lora_rank": 8}, {"tuning": "lora"}, "--lora-rank 8 is for"),
    (EvalConfig, {"ifeval_tokens": 9}, {"ifeval": "hub"}, "name their file, or 'hub', with --ifeval"),
    (MidtrainConfig, {"replay_prompts": 9, "replay": 0.0}, {"project": True}, "set its share, as in --replay 0.3"),
    (MidtrainConfig, {"augment_questions": 0.2, "augment": 0}, {"augment": 4}, "as in --augment 4"),
    (MidtrainConfig, {"tuning": "full", "lora_alpha": 8}, {"tuning": "auto"}, "--lora-alpha 8 is for"),
    (DistillConfig, {"knowledge_share": 0.3}, {"knowledge_teacher": "midtrained"}, "--knowledge-teacher, e.g."),
    (DistillConfig, {"earlier_share": 0.3}, {"knowledge_teacher": "midtrained"}, "--earlier-share 0.3 is about"),
    (DistillConfig, {"ema_decay": 0.9}, {"method": "sdft"}, "needs --teacher ema, not base"),
    (DistillConfig, {"ratio_cap": 3.0}, {"engine": "vllm"}, "with another --engine, or with such a teacher set"),
    (DistillConfig, {"ratio_cap": 2.0}, {"batch_epochs": 2}, "--ratio-cap 2.0 corrects for completions of another"),
    (DistillConfig, {"ratio_cap": 0.0, "samples_per_prompt": 4}, {"lam": 0.5}, "--ratio-cap 0.0 corrects"),
    (
        DistillConfig,
        {"ratio_cap": 3.0, "engine": "vllm", "temperature": 0.7},
        {"temperature": 1.0},
        "at --temperature 1",
    ),
    (DistillConfig, {"samples_per_prompt": 8, "method": "sft"}, {"method": "rejection-sft"}, "--alpha 0 excludes"),
    (DistillConfig, {"ratio_cap": 3.0, "engine": "vllm", "alpha": 0.0}, {"alpha": 0.5}, "of which there is none"),
    (DistillConfig, {"tuning": "full", "lora_rank": 8}, {"tuning": "lora"}, "--lora-rank 8 is for"),
)


@pytest.mark.parametrize(("kind", "given", "more", "words"), IDLE, ids=[", ".join(line[1]) for line in IDLE])
def test_an_option_without_effect_is_refused_if_it_was_typed(
    kind: type[Any] | None, given: dict[str, Any], more: dict[str, Any], words: str
) -> None:
    def built(flags: dict[str, Any], *recipes: Recipe) -> Any:
        return build_cycle(CYCLE | flags, *recipes) if kind is None else build(kind, flags, *recipes)

    with pytest.raises(UsageError, match=words):
        check_given(given, built(given))
    check_given(given | more, built(given | more))
    check_given({}, built(given))


def test_the_commands_refuse_them(docs: Path, tiny_model: Path, refused: Refused) -> None:
    for line in (
        "cycle --docs docs --gate-extend 2",
        "cycle --docs docs --trial --gate standard",
        "midtrain --docs docs --replay-prompts 9",
        "train --teacher base --ema-decay 0.9",
        "distill --student base --ratio-cap 3.0",
        "distill --student base --knowledge-share 0.4",
        "eval base --ifeval-tokens 9",
    ):
        assert " ".join(line.split()[-2:]) in refused(*line.split(), "--model", tiny_model, "--dry-run")
