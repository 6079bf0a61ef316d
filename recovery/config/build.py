"""Configurations from flags, recipes and defaults, and as JSON for the tracker.

Precedence, highest first: flags, the recipe (``--recipe FILE``), the preset of a method, the model folder's
``recovery.toml``, :mod:`recovery.config.defaults`, the defaults of the classes. A recipe is TOML with one table per
stage ([midtrain], [distill], [interpolate], [eval], [cycle]) and one for settings shared by all stages ([model]).
[cycle.midtrain], [cycle.distill] and [cycle.eval] hold settings of a stage within whole cycles. Unknown tables and keys
are errors.
"""

from __future__ import annotations

import dataclasses
import datetime
import difflib
import logging
import re
import tomllib
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from recovery.config.defaults import ORIGIN, tables
from recovery.config.distill import OF_COMPLETIONS, DistillConfig
from recovery.config.evaluation import NO_TEACHER, CycleConfig, EvalConfig, InterpolateConfig
from recovery.config.midtrain import MidtrainConfig
from recovery.config.model import ModelConfig, TrainingConfig
from recovery.errors import Interrupted, RecoveryError, UsageError, printable
from recovery.losses.config import CONDITIONAL, OF_DIVERGENCES, why_idle
from recovery.methods import method_named
from recovery.settings import check_value, flag_of, may_be_recommended, types_of
from recovery.text_files import read_text

logger = logging.getLogger(__name__)

RECIPE_NAME = "recovery.toml"
SHARED = "model"

SECTIONS: dict[str, type[Any]] = {
    "midtrain": MidtrainConfig,
    "distill": DistillConfig,
    "interpolate": InterpolateConfig,
    "eval": EvalConfig,
    "cycle": CycleConfig,
}
_RATES = ("full_lr", "lora_lr")  # lr goes before both
_STAGES_OF_A_CYCLE = ("midtrain", "distill", "eval")
# Settings of whole cycles. Some share their name with a setting of a stage.
_OF_CYCLES = {"docs", "knowledge_teacher", "gate", "gate_alpha", "gate_samples", "gate_extend", "prune"}
# Settings that no longer have an effect, and why. Recipes may still contain them, and so may the records of stages that
# were started by an earlier release and are resumed.
RETIRED = {
    "recognise": "the likelihood of answers is always measured",
    "until_rule": "an estimate within --margin decides about --until",
}
# The inputs of a run are given on the command line; a recipe holds only its settings.
_NOT_IN_RECIPES = {"docs", "student", "checkpoint", "midtrain", "distill", "eval"}

Config = TypeVar("Config", MidtrainConfig, DistillConfig, InterpolateConfig, EvalConfig, CycleConfig)


@dataclass(frozen=True)
class Recipe:
    """A parsed TOML file of settings: table → key → value, all known. ``origin`` names the file in errors.

    ``recommended`` marks the recommendations of a model folder, which a method's preset overrides.
    """

    origin: str = ""
    tables: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    recommended: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "tables", _nested(self.tables))
        for table, values in self.tables.items():
            _check_storable(f"{self.origin or 'a recipe'}: [{table}]", values)

    def settings(self, section: str) -> dict[str, Any]:
        """Return the settings of one stage: the shared table, overridden by the stage's own."""
        known = _names(SECTIONS[section])
        shared = {k: v for k, v in self.tables.get(SHARED, {}).items() if k in known}
        stage = dict(self.tables.get(section, {}))
        _drop_alternatives(shared, stage)
        return shared | stage

    def within_cycles(self) -> Recipe:
        """Return the recipe with the settings of each stage that hold within whole cycles."""
        tables = dict(self.tables)
        for stage in _STAGES_OF_A_CYCLE:
            values, inner = dict(tables.get(stage, {})), tables.get(f"cycle.{stage}", {})
            _drop_alternatives(values, inner)
            tables[stage] = {**values, **inner}
        return dataclasses.replace(self, tables=tables)

    def with_midtrain(self) -> Recipe:
        """Return the recipe with the settings of mid-training from [cycle] copied to [midtrain].

        There they override the [midtrain] of recipes that this one overrides.
        """
        shared = {key: value for key, value in self.tables.get("cycle", {}).items() if key in _names(MidtrainConfig)}
        return dataclasses.replace(
            self, tables={**self.tables, "midtrain": shared | dict(self.tables.get("midtrain", {}))}
        )


class FromRecipe(NamedTuple):
    """A setting that a recipe set: its key and flag, the recipe's ``origin``, and the value."""

    key: str
    flag: str
    origin: str
    value: Any


def read_recipe(path: Path) -> Recipe:
    """Read and check a TOML recipe. Raise UsageError, naming the file and the key, if it is invalid."""
    try:
        tables = tomllib.loads(read_text(path))
    except (ValueError, RecursionError) as error:  # also raised for too long numbers and too deep lists
        raise UsageError(f"the recipe {path} cannot be read: {error}") from error
    shared = _names(ModelConfig) | _names(TrainingConfig)
    recipe = Recipe(str(path), tables)
    for table, values in recipe.tables.items():
        section = table.removeprefix("cycle.") if table.removeprefix("cycle.") in _STAGES_OF_A_CYCLE else table
        listed = isinstance(values, list) and any(isinstance(value, Mapping) for value in values)
        if not isinstance(values, Mapping) and not listed:
            raise UsageError(f"{path}: {table} is outside a table: put it under [{SHARED}] or a stage's name")
        if table != SHARED and section not in SECTIONS:
            raise UsageError(f"{path}: there is no table [{table}]{_suggestion(table, [SHARED, *SECTIONS])}")
        if listed:
            raise UsageError(f"{path}: [[{table}]] is a list of tables: write [{table}], once")
        known = (shared if table == SHARED else _names(SECTIONS[section])) - _NOT_IN_RECIPES
        known -= {"knowledge_teacher"} if table == "cycle.distill" else set()  # it is a setting of [cycle]
        for key, value in values.items():
            if key in RETIRED:
                logger.warning("%s: [%s] %s has no effect any more: %s", printable(str(path)), table, key, RETIRED[key])
                continue
            if key not in known:
                raise UsageError(f"{path}: [{table}] has no setting '{key}'{_place_of(key) or _suggestion(key, known)}")
            if isinstance(value, str) and not value.strip():  # an empty path would mean the current folder
                raise UsageError(f"{path}: [{table}] {key} is empty: give a value, or delete the line")
            kind, where = TrainingConfig if table == SHARED else SECTIONS[section], f"{path}: [{table}] {key}"
            check_value(kind, key, _fit(kind, key, value, where), where)
    return dataclasses.replace(recipe, tables={name: current(values) for name, values in recipe.tables.items()})


def model_recipe(folder: Path) -> Recipe:
    """Return the settings that a model folder recommends; an empty recipe if it has none.

    Raise UsageError if one names code, a file, a server, a model or a decision: the folder may come from a stranger.
    """
    path = folder / RECIPE_NAME
    if not path.is_file():
        return Recipe(recommended=True)
    recipe = read_recipe(path)
    for table, values in recipe.tables.items():
        kinds = tuple(SECTIONS.values()) if table == SHARED else (SECTIONS[table.removeprefix("cycle.")],)
        for key, value in values.items():
            if not all(may_be_recommended(kind, key, value) for kind in kinds if key in _names(kind)):
                raise UsageError(
                    f"{path}: a model may not recommend {key} = {value!r}: delete the line, or give the file yourself "
                    "(--recipe)"
                )
    return dataclasses.replace(recipe, recommended=True)


def build(kind: type[Config], flags: Mapping[str, Any], *recipes: Recipe) -> Config:
    """Build one stage's settings. ``flags`` are the user's; earlier ``recipes`` override later ones.

    Flags that this stage does not have are ignored.
    Raise UsageError if values do not fit their type or one another.
    """
    section = next(name for name, value in SECTIONS.items() if value is kind)
    typed = {key: value for key, value in flags.items() if key in _names(kind) and value is not None}
    for key, value in typed.items():
        if isinstance(value, str) and not value.strip():  # an empty name would mean the default, or the current folder
            raise UsageError(f"{flag_of(kind, key)} is empty: give a value, or omit it")
    if all(recipe.origin != ORIGIN for recipe in recipes):
        recipes = (*recipes, DEFAULT_RECIPE)
    try:
        if kind is DistillConfig:
            recipes = _with_preset(flags, recipes)
        values: dict[str, Any] = {}
        for recipe in (recipe for recipe in reversed(recipes) if recipe.origin != ORIGIN):
            settings = recipe.settings(section)
            _drop_alternatives(values, settings)
            values |= {key: _fit(kind, key, value, f"{recipe.origin}: {key}") for key, value in settings.items()}
        _drop_alternatives(values, typed)
        values |= {key: _fit(kind, key, value, flag_of(kind, key)) for key, value in typed.items()}
        defaults = next(recipe for recipe in recipes if recipe.origin == ORIGIN).settings(section)
        _drop_alternatives(defaults, values)
        _drop_contradicted(defaults, values)
        return kind(**(defaults | values))
    except UsageError as error:
        if not (setters := _setters(str(error), _set_by_recipes(kind, typed, recipes))):
            raise
        raise UsageError(f"{error} ({setters})") from error


@contextmanager
def naming_recipes(settings: Sequence[FromRecipe], note: str = "") -> Iterator[None]:
    """Add to an error raised within the block which recipes set the settings that it names, and a ``note`` on them.

    :func:`build` does so itself; a stage may find hours later that a setting cannot be used.
    """
    try:
        yield
    except RecoveryError as error:
        setters = _setters(str(error), settings)
        if not setters or isinstance(error, Interrupted) or " is set by " in str(error):
            raise
        raise type(error)(f"{error} ({setters}{note})") from error


def from_recipes(kind: type[Config], flags: Mapping[str, Any], *recipes: Recipe) -> list[FromRecipe]:
    """Return the settings that recipes set and no flag overrides; for cycles also those of their stages."""
    found = _set_by_recipes(kind, flags, recipes)
    for stage in _STAGES_OF_A_CYCLE if kind is CycleConfig else ():
        found += _set_by_recipes(SECTIONS[stage], _flags_of(stage, flags), _within_cycles(recipes))
    return found


def _set_by_recipes(kind: type[Any], flags: Mapping[str, Any], recipes: Sequence[Recipe]) -> list[FromRecipe]:
    section = next(name for name, value in SECTIONS.items() if value is kind)
    found: dict[str, FromRecipe] = {}
    for recipe in reversed(recipes):
        for key, value in recipe.settings(section).items():
            found[key] = FromRecipe(key, flag_of(kind, key), recipe.origin, value)
    return [setting for key, setting in sorted(found.items()) if key not in flags]


def _texts(value: Any) -> list[str]:
    return [text for text in (value if isinstance(value, list | tuple) else [value]) if isinstance(text, str)]


def _setters(message: str, settings: Sequence[FromRecipe]) -> str:
    """Return which recipes set the options that an error names or the values that it quotes; "" if none did."""
    named = {flag.replace("--no-", "--") for flag in re.findall(r"--[a-z-]+", message)}
    words = [
        f"{setting.key} is set by {setting.origin}"
        for setting in settings
        if f"{setting.origin}: " not in message
        and (setting.flag in named or any(repr(text) in message for text in _texts(setting.value)))
    ]
    return ", ".join(dict.fromkeys(words))


def build_cycle(flags: Mapping[str, Any], *recipes: Recipe, alone: bool = False) -> CycleConfig:
    """Build the settings of whole cycles. A flag that several stages have is set for each of them.

    ``midtrain_lr``, ``distill_steps`` and the like set one stage. ``knowledge_teacher`` "none" means that base is the
    only teacher. Recipes and defaults give the stages their settings within cycles; with ``alone``, those outside.
    """
    cycle_flags = {k: v for k, v in flags.items() if k in _OF_CYCLES | {"replay_documents"}}
    config = build(CycleConfig, cycle_flags, *recipes)
    recipes = _within_cycles(recipes, outside_cycles=alone)
    distill = build(DistillConfig, _flags_of("distill", flags), *recipes)
    # The cycle and its distillation both have a knowledge teacher. The value with the highest precedence counts: the
    # cycle's flag, then the user's recipe, the model's and the defaults; in each of them [cycle] goes before [distill].
    sources: list[tuple[Mapping[str, Any], CycleConfig | DistillConfig]] = [(cycle_flags, config)]
    for recipe in recipes:
        sources += [(recipe.settings("cycle"), config), (recipe.settings("distill"), distill)]
    first = next((built for table, built in sources if "knowledge_teacher" in table), config)
    teacher = first.knowledge_teacher
    return dataclasses.replace(
        config,
        knowledge_teacher=None if teacher == NO_TEACHER else teacher,
        midtrain=build(MidtrainConfig, _flags_of("midtrain", flags), *recipes),
        distill=distill,
        eval=build(EvalConfig, _flags_of("eval", flags), *recipes),
    )


def _flags_of(stage: str, flags: Mapping[str, Any]) -> dict[str, Any]:
    """Return the flags of a stage of a cycle: those that all stages share, and ``STAGE_lr`` as ``lr``."""
    prefix = f"{stage}_"
    shared = {key: value for key, value in flags.items() if key not in _OF_CYCLES}
    return shared | {key.removeprefix(prefix): value for key, value in shared.items() if key.startswith(prefix)}


def _within_cycles(recipes: Sequence[Recipe], *, outside_cycles: bool = False) -> tuple[Recipe, ...]:
    """Return the recipes and the defaults as they apply to the stages within or outside of cycles."""
    all_recipes = (*recipes, DEFAULT_RECIPE)
    return tuple((recipe if outside_cycles else recipe.within_cycles()).with_midtrain() for recipe in all_recipes)


def to_json(config: Any) -> dict[str, Any]:
    """Return a configuration as JSON types, for the tracker."""
    return {f.name: _plain(getattr(config, f.name)) for f in dataclasses.fields(config)}


def current(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that are not :data:`RETIRED`."""
    return {key: value for key, value in values.items() if key not in RETIRED}


def from_json(kind: type[Config], values: Mapping[str, Any]) -> Config:
    """Invert :func:`to_json`. Raise UsageError if a setting is unknown to this version."""
    kept = current(values)
    if unknown := sorted(kept.keys() - _names(kind)):
        raise UsageError(f"the stage was started with settings this version does not know: {', '.join(unknown)}")
    return kind(**{key: _fit(kind, key, value, f"the tracker: {key}") for key, value in kept.items()})


def _with_preset(flags: Mapping[str, Any], recipes: tuple[Recipe, ...]) -> tuple[Recipe, ...]:
    """Return the recipes with the preset of the selected method inserted before a model's recommendations."""
    users, recommended = ([r for r in recipes if r.recommended is model] for model in (False, True))
    over = [flags, *(recipe.settings("distill") for recipe in users)]
    under = [recipe.settings("distill") for recipe in recommended]
    given = (values.get("method") for values in (*over, *under))
    name = next((method for method in given if method and isinstance(method, str)), "opd")
    preset = Recipe(f"the method {name}", {"distill": preset_settings(name, over, under)})
    return (*users, preset, *recommended)


def preset_settings(
    method: str, over: Sequence[Mapping[str, Any]], under: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Return the settings of a method's preset. Those in ``over`` override it, it overrides those in ``under``.

    Of each list the first table that has a setting counts. Settings without an effect in this combination are set to
    their defaults. Those in ``over`` are kept, so that they are refused later: the user asked for them.
    """
    settings = dict(method_named(method).settings)

    def chosen(name: str) -> Any:
        values_set = (values[name] for values in (*over, settings, *under) if values.get(name) is not None)
        return next(values_set, getattr(DistillConfig, name))

    idle = ["answers"] if chosen("alpha") == 1.0 else []
    divergence, lam = chosen("divergence"), chosen("lam")  # not checked yet: any value is possible
    lam = lam if isinstance(lam, int | float) else 1.0
    divergence = divergence if isinstance(divergence, str) else ""
    idle += [name for name in CONDITIONAL if why_idle(name, divergence, lam)]
    settings |= {name: getattr(DistillConfig, name) for name in idle}
    continued = bool(chosen("continuation"))
    idle_recommended = [*OF_DIVERGENCES] if continued or chosen("teacher") == "label" else []
    idle_recommended += OF_COMPLETIONS if continued or chosen("alpha") == 0.0 else ()
    return {name: getattr(DistillConfig, name) for name in idle_recommended} | settings


def _nested(tables: Mapping[str, Any]) -> dict[str, Any]:
    """Return tables with [cycle.STAGE] as tables of their own."""
    nested = dict(tables)
    if isinstance(cycle := nested.get("cycle"), Mapping):
        inner = {key: value for key, value in cycle.items() if isinstance(value, Mapping)}
        nested["cycle"] = {key: value for key, value in cycle.items() if key not in inner}
        nested |= {f"cycle.{key}": value for key, value in inner.items()}
    return nested


def _drop_alternatives(values: dict[str, Any], over: Mapping[str, Any]) -> None:
    """Remove from ``values`` the settings for which ``over``, which overrides them, sets an alternative."""
    if "steps" in over and "epochs" not in over:
        values.pop("epochs", None)
    if "epochs" in over and "steps" not in over:
        values.pop("steps", None)
    if "lr" in values and "lr" not in over and not over.keys().isdisjoint(_RATES):
        values |= dict.fromkeys(_RATES, values.pop("lr"))  # lr stands for both, of which over may set one


def _drop_contradicted(defaults: dict[str, Any], selected: Mapping[str, Any]) -> None:
    """Remove the ``defaults`` that contradict ``selected`` settings. Any other contradiction raises an error later."""
    if selected.get("lam", 1.0) != 1.0:
        defaults.pop("samples_per_prompt", None)  # rewards are compared within a group
    if selected.get("replay") == 0 or selected.get("replay_data"):
        defaults.pop("replay_loss", None)  # there is no chat to score, or the user's own is to be imitated


def _names(kind: type[Any]) -> set[str]:
    return {f.name for f in dataclasses.fields(kind)}


def _check_storable(where: str, value: Any) -> None:
    """Raise UsageError if a value, or one within it, cannot be stored by every tracker and library."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            _check_storable(f"{where} {printable(str(key))}", inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            _check_storable(where, inner)
    elif isinstance(value, int) and not -(2**63) <= value < 2**63:  # its digits may be too many to show
        raise UsageError(f"{where} holds a whole number of more than 64 bits: give a smaller one")
    elif isinstance(value, str | Path) and "\0" in str(value):
        raise UsageError(f"{where} holds a null character: remove it")
    elif isinstance(value, datetime.date | datetime.time):
        raise UsageError(f"{where} holds a date or a time: write it as a text, in quotes")


_WORDS: Mapping[Any, str] = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a text",
    Path: "a path",
    tuple: 'a list, as in ["one", "two"]',
    tuple[float, ...]: "a list of numbers, as in [0.2, 0.5]",
    tuple[str, ...]: 'a list of texts, as in ["one", "two"]',
    tuple[Path, ...]: 'a list of paths, as in ["one", "two"]',
    Mapping: "a table, as in {key = true}",
}
_UNFIT = object()


def _fit(kind: type[Any], key: str, value: Any, where: str) -> Any:
    """Convert ``value``, given at ``where``, to the type of the field, or raise UsageError; TOML and JSON have no paths
    and no tuples.
    """
    _check_storable(where, value)
    field_type = types_of(kind)[key]
    options = typing.get_args(field_type) if isinstance(field_type, types.UnionType) else (field_type,)
    for option in options:
        if (converted := _converted(option, value)) is not _UNFIT:
            return converted
    words = [_word(option) for option in options if option is not type(None)]
    raise UsageError(f"{where} is {value!r}, but must be {' or '.join(words)}")


def _word(option: Any) -> str:
    origin = typing.get_origin(option) or option
    return _WORDS.get(option) or _WORDS.get(origin, str(origin))


def _converted(option: Any, value: Any) -> Any:
    """Return a value in one type that a field may have; :data:`_UNFIT` if it does not fit."""
    origin = typing.get_origin(option)
    if option in (MidtrainConfig, DistillConfig, EvalConfig) and isinstance(value, Mapping):
        return from_json(option, value)
    if origin is tuple:
        items = value if isinstance(value, list | tuple) else (_UNFIT,)
        converted = tuple(_converted(typing.get_args(option)[0], item) for item in items)
        return _UNFIT if any(item is _UNFIT for item in converted) else converted
    if origin is not None:
        return dict(value) if isinstance(value, Mapping) else _UNFIT
    accepted = {Path: str | Path, float: int | float}.get(option, option)
    if not isinstance(value, accepted) or (isinstance(value, bool) and option is not bool):
        return _UNFIT
    return option(value) if option in (Path, float) else value


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return to_json(value)
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return dict(value) if isinstance(value, Mapping) else value


def _place_of(key: str) -> str:
    """Return where a setting that a recipe's table does not have belongs; "" if no setting has that name."""
    if key in _NOT_IN_RECIPES - set(SECTIONS):
        return ": give it on the command line"
    tables = [f"[{section}]" for section, kind in SECTIONS.items() if key in _names(kind)]
    return f": it belongs to {' or '.join(tables)}" if tables else ""


def _suggestion(word: str, known: Any) -> str:
    close = difflib.get_close_matches(word, sorted(known), n=1)
    return f": did you mean '{close[0]}'?" if close else f" (known: {', '.join(sorted(known))})"


DEFAULT_RECIPE = Recipe(ORIGIN, tables(), recommended=True)
