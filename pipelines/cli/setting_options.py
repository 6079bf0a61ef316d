"""Options made from the declarations of the settings (:mod:`recovery.settings`)."""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from pipelines.cli.common import EMPTY, FiniteRange, NamedPath, WholeRange
from recovery.config import SECTIONS, CycleConfig, DistillConfig, EvalConfig, MidtrainConfig
from recovery.config.defaults import DEFAULTS
from recovery.errors import UsageError
from recovery.methods import METHODS
from recovery.settings import Setting, flag_of, settings_of, types_of

Function = TypeVar("Function", bound=Callable[..., Any])
Decorator = Callable[[Any], Any]

_PRESET = {name for method in METHODS.values() for name in method.settings}


class DataSource(click.ParamType):
    """A path as :mod:`recovery.data.sources` names it, or one of the composer's sources of recovery.data.prompts."""

    name = "path"

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> Path:
        """Return the source's name as a path. Fails like click.Path if the file does not exist."""
        from recovery.data.sources import is_there

        if value == "":
            self.fail(EMPTY, parameter, context)
        if is_there(value):
            return Path(value)
        return Path(NamedPath(exists=True).convert(value, parameter, context))


def several(*decorators: Decorator) -> Callable[[Function], Function]:
    """Combine several options into one decorator, in the order of the help."""

    def decorate(function: Function) -> Function:
        for decorator in reversed(decorators):
            function = decorator(function)
        return function

    return decorate


def options_of(kind: type[Any], *names: str) -> Callable[[Function], Function]:
    """Return the options of several fields of a configuration class as one decorator."""
    return several(*(option_of(kind, name) for name in names))


def option_of(kind: type[Any], name: str, *flags: str, **attributes: Any) -> Decorator:
    """Return the option that sets one field of a configuration class.

    ``flags`` replace the declared one, ``attributes`` what follows from the declaration. The value of an option that is
    not given is None, or empty, so that a recipe or a preset decides; the default is shown in the help.
    """
    declared, (inner, multiple) = settings_of(kind)[name], _inner(types_of(kind)[name])
    flags = flags or (flag_of(kind, name), name)
    if inner is bool:
        flags = (f"{flags[0]}/--no-{flags[0].removeprefix('--')}", *flags[1:])
    text = attributes.pop("help", declared.help)
    shown = default_of(kind, name)
    made: dict[str, Any] = {
        "type": _type(inner, declared),
        "default": None,
        "multiple": multiple,
        "metavar": declared.metavar,
        "help": f"{text}  [default: {shown}]" if shown else text,
    }
    return click.option(*flags, **(made | attributes))


def default_of(kind: type[Any], name: str) -> str | None:
    """Return the default of a field in words, that of :mod:`recovery.config.defaults` first; None if there is none."""
    table = next((table for table, stage in SECTIONS.items() if stage is kind), "")
    listed = DEFAULTS.get(table, {}).get(name)
    default = listed.value if listed else getattr(kind, name, None)
    shown = settings_of(kind)[name].shown
    if shown is not None or default in (None, (), {}):
        return shown
    if isinstance(default, bool):
        return "on" if default else "off"
    text = f"{default:g}" if isinstance(default, float) else str(default)
    return f"{text}, or the method's" if kind is DistillConfig and name in _PRESET else text


def _inner(annotation: Any) -> tuple[Any, bool]:
    """Return the type of one value, and whether there may be several: ``tuple[str, ...]`` → ``str, True``."""
    if isinstance(annotation, types.UnionType):
        annotation = next(one for one in typing.get_args(annotation) if one is not type(None))
    several_values = typing.get_origin(annotation) is tuple
    return (typing.get_args(annotation)[0] if several_values else annotation), several_values


def _type(inner: Any, declared: Setting) -> Any:
    if declared.choices:
        return click.Choice(declared.choices)
    if inner is Path and declared.metavar == "SOURCE":
        return DataSource()
    if inner is Path:
        known = declared.metavar == "FILE"
        return NamedPath(exists=known, dir_okay=not known, file_okay=known)
    low = declared.minimum if declared.above is None else declared.above
    high = declared.maximum if declared.below is None else declared.below
    if inner not in (int, float) or (low is None and high is None):
        return inner if inner in (int, float, bool) else str
    made: Any = WholeRange if inner is int else FiniteRange
    return made(low, high, min_open=declared.above is not None, max_open=declared.below is not None)


# Options that would have no effect beside the other settings. Only what a user typed is refused: recipes and model
# folders may hold settings that wait for others.


# Names of settings, whether they act, and what to do if they do not, to follow the flag and its value.
_Rule = tuple[tuple[str, ...], bool, str]


def check_given(given: Mapping[str, Any], config: Any) -> None:
    """Raise UsageError for the first option ``given`` that has no effect in the configuration made from it."""
    for names, acts, remedy in _rules(config):
        idle = () if acts else [name for name in names if name in given]
        for name in idle:
            raise UsageError(f"{flag_of(type(config), name)} {given[name]} {remedy}")


def _rules(config: Any) -> Iterator[_Rule]:
    if isinstance(config, CycleConfig):
        teacher = config.knowledge_teacher is not None and config.distill.scores_completions
        yield ("gate_samples", "gate_extend", "gate_alpha"), bool(config.gate), "is of a gate: give it a rule (--gate)"
        yield _augmented(config.midtrain)
        yield _asked(teacher, "the method, or --knowledge-teacher none, excludes one: omit either")
        yield _adapter(config.midtrain.tuning, config.distill.tuning)
        yield _responses(config.eval)
    elif isinstance(config, MidtrainConfig):
        remedy = "is about chat that base answers: set its share, as in --replay 0.3, and omit --replay-data"
        yield ("replay_prompts",), config.samples_replay, remedy
        yield _augmented(config)
        yield _adapter(config.tuning)
    elif isinstance(config, DistillConfig):
        yield _asked(config.knowledge_teacher is not None, "name one with --knowledge-teacher, e.g. midtrained")
        yield ("ema_decay",), config.teaching.kind == "ema", f"needs --teacher ema, not {config.teacher}"
        yield ("ratio_cap",), config.uses_importance_weights, _uncorrected(config)
        repeated = config.alpha > 0 or config.answers == "rejection"
        yield ("samples_per_prompt",), repeated, "is of the student's own completions, and --alpha 0 has none: omit it"
        yield _adapter(config.tuning)
    elif isinstance(config, EvalConfig):
        yield _responses(config)


def _augmented(config: MidtrainConfig) -> _Rule:
    remedy = "is about augmented text: set the number of paraphrases, as in --augment 4"
    return ("augment_share", "augment_questions"), config.augment > 0, remedy


def _asked(teacher: bool, remedy: str) -> _Rule:
    return ("knowledge_share", "earlier_share"), teacher, f"is about questions of a knowledge teacher: {remedy}"


def _uncorrected(config: DistillConfig) -> str:
    if not config.scores_completions or config.divergence == "sampled":
        return "bounds the weights of own completions in a teacher's divergence, of which there is none: omit it"
    hot = "" if config.temperature == 1 else f" (at --temperature 1, not {config.temperature:g})"
    return (
        f"corrects for completions of another engine{hot}, or, with a teacher of another tokenizer, of older weights: "
        "omit it, or sample with another --engine, or with such a teacher set --batch-epochs above 1"
    )


def _adapter(*tunings: str) -> _Rule:
    remedy = "is of a LoRA adapter, which --tuning full does not make: omit one or the other"
    return ("lora_rank", "lora_alpha"), set(tunings) != {"full"}, remedy


def _responses(config: EvalConfig) -> _Rule:
    remedy = "is about IFEval's own prompts: name their file, or 'hub', with --ifeval"
    return ("ifeval_tokens",), config.ifeval is not None, remedy
