"""Options of the commands: made from the declarations of the settings (:mod:`recovery.settings`), and common to stages.

Also what commands that run stages share: opening a workspace, and handling interrupts.
"""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import click

from pipelines.cli import common
from pipelines.cli.common import EMPTY, Decorator, FiniteRange, Function, NamedPath, WholeRange
from pipelines.cli.main import INTERRUPTED
from recovery.config import (
    SECTIONS,
    CycleConfig,
    DistillConfig,
    EvalConfig,
    MidtrainConfig,
    ModelConfig,
    Recipe,
    TrainingConfig,
    build,
    build_cycle,
    from_recipes,
    naming_recipes,
)
from recovery.config.build import RETIRED
from recovery.config.defaults import DEFAULTS
from recovery.errors import UsageError
from recovery.methods import METHODS
from recovery.settings import Setting, flag_of, settings_of, types_of
from recovery.workspace import Workspace, write_atomically

if TYPE_CHECKING:
    from pipelines.runtime.session import Session
    from recovery.config.build import Config

# Options made from the declarations of the settings (:mod:`recovery.settings`).

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
            value = " ".join(given[name]) if isinstance(given[name], tuple) else given[name]
            raise UsageError(f"{flag_of(type(config), name)} {value} {remedy}")


def _rules(config: Any) -> Iterator[_Rule]:
    if isinstance(config, CycleConfig):
        teacher = config.knowledge_teacher is not None and config.distill.scores_completions
        yield ("gate",), not config.trial, "decides nothing of a trial (--trial): omit one of them"
        yield (
            ("gate_samples", "gate_extend", "gate_alpha"),
            bool(config.gate),
            "is for a gate: give a rule with --gate",
        )
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
        yield ("samples_per_prompt",), repeated, "is about own completions, which --alpha 0 excludes: omit it"
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
    hint = "" if config.temperature == 1 else f" (at --temperature 1, not {config.temperature:g})"
    return (
        f"corrects for completions of another engine{hint}, or, with a teacher of another tokenizer, of older weights: "
        "omit it, or sample with another --engine, or with such a teacher set --batch-epochs above 1"
    )


def _adapter(*tunings: str) -> _Rule:
    remedy = "is for a LoRA adapter, which --tuning full does not make: omit one or the other"
    return ("lora_rank", "lora_alpha"), set(tunings) != {"full"}, remedy


def _responses(config: EvalConfig) -> _Rule:
    remedy = "is about IFEval's own prompts: name their file, or 'hub', with --ifeval"
    return ("ifeval_tokens",), config.ifeval is not None, remedy


def _say_retired(_context: click.Context, parameter: click.Parameter, value: Any) -> None:
    if value is not None:
        common.note(f"{parameter.opts[0]} has no effect any more: {RETIRED[str(parameter.name)]}")


def retired(flag: str) -> Decorator:
    """Accept a flag of a retired setting, and say why it has no effect."""
    return click.option(flag, default=None, hidden=True, expose_value=False, callback=_say_retired)


def _read_template_args(
    context: click.Context, parameter: click.Parameter, values: tuple[str, ...]
) -> dict[str, object]:
    """``("enable_thinking=false",)`` -> ``{"enable_thinking": False}``; a value that is not JSON is a string."""
    arguments: dict[str, object] = {}
    for value in values:
        key, equals, text = value.partition("=")
        if not equals or not key:
            raise click.BadParameter(f"'{value}' is not KEY=VALUE", context, parameter)
        try:
            arguments[key] = json.loads(text)
        except (ValueError, RecursionError):  # a number too long to read, lists within lists
            arguments[key] = text
    return arguments


def _read_tasks(context: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    """``("a,b", "c=./d.jsonl")`` -> ``("a", "b", "c=./d.jsonl")``; a file's name may hold a comma."""
    split = [[value] if "=" in value or Path(value).exists() else value.split(",") for value in values]
    return tuple(name.strip() for names in split for name in names if name.strip())


def check_documents(context: click.Context, parameter: click.Parameter, value: Any) -> Any:
    """Raise an error for documents that do not exist before torch is imported, which takes seconds."""
    from recovery.data.corpus.folder import check_source

    for source in value if isinstance(value, tuple) else (value,):
        if source is not None:
            check_source(source)
    return value


def documents(name: str, **attributes: Any) -> Decorator:
    """Return an option that names documents, which are checked when it is read."""
    made: dict[str, Any] = {"type": NamedPath(), "callback": check_documents, "metavar": "SOURCE"}
    return click.option(name, **(made | attributes))


def _check_ifeval(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """Raise an error for a file without IFEval's prompts before torch is imported, which takes seconds."""
    if value and value.strip() and value != "hub":
        from evals.instruction_following import read_ifeval

        read_ifeval(value)
    return value


seed = option_of(ModelConfig, "seed", default=ModelConfig.seed)
steps = option_of(MidtrainConfig, "steps")
lr = option_of(MidtrainConfig, "lr")
trial = option_of(TrainingConfig, "trial")
template = option_of(ModelConfig, "template_args", type=str, multiple=True, callback=_read_template_args)
model_options = several(
    options_of(ModelConfig, "precision", "device"),
    template,
    options_of(ModelConfig, "token_budget", "rollout_tokens", "engine", "engine_memory", "engine_sleep"),
    options_of(ModelConfig, "engine_drift", "engine_folder", "server_wait", "server_timeout"),
)
tuning_options = several(
    options_of(TrainingConfig, "tuning", "embeddings", "quantize", "quantized_teacher", "lora_rank", "lora_alpha"),
    options_of(TrainingConfig, "gradient_checkpointing", "compile", "shard"),
    options_of(TrainingConfig, "offload", "gather", "optimizer", "checkpoint_every"),
)
augmentation = options_of(MidtrainConfig, "augment", "augment_share", "augment_questions", "writer")
prompts = option_of(MidtrainConfig, "prompts")
max_new_tokens = option_of(EvalConfig, "max_new_tokens")
ifeval = several(
    option_of(EvalConfig, "ifeval", callback=_check_ifeval),
    option_of(EvalConfig, "ifeval_tokens"),
)
suites = several(
    option_of(EvalConfig, "behaviour"),
    option_of(EvalConfig, "tasks", "--task", "--tasks", "tasks", callback=_read_tasks),
)


def check_clean_model(workspace: Workspace, model: str | None, *names: str) -> None:
    """Raise UsageError if a command about these checkpoints would make a workspace of the miniature, with which they
    have nothing to do: a new workspace is asked for ``--model``, except about ``base`` itself. Raise ModelError for a
    path at which there is nothing.
    """
    from recovery.models.base_folder import is_path, no_model_at

    other = next((name for name in names if name != "base"), None)
    if model is None and other is not None and not workspace.exists:
        if is_path(other) and not Path(other).expanduser().exists():
            raise no_model_at(other)
        raise UsageError(
            f"{other}: there is no workspace in {workspace.folder} yet, and a new one needs the clean model to compare "
            f"with: name that with --model (--model miniature is the built-in one), or another --workspace"
        )


@contextmanager
def at_work(
    workspace: Workspace,
    purpose: str,
    *,
    model: str | None = None,
    fallback: str | None = None,
    exclusive: bool = True,
    dry_run: bool = False,
    reads: bool = False,
) -> Iterator[Session]:
    """Open a workspace and yield its session; ``exclusive`` locks it against other training stages, ``reads`` says that
    nothing is recorded in it.

    A ``dry_run`` where there is no workspace leaves none behind, only a folder with the model that it converted. An
    interrupted stage ends the command with status 130 and one line that says how to resume.
    """
    from pipelines.runtime.session import Session, StageInterrupted

    try:
        with (
            _planning_place(workspace, model) if dry_run else nullcontext(workspace) as place,
            Session.open(
                place,
                model=model,
                fallback=fallback,
                purpose=purpose if exclusive else None,
                reads=reads,
                confirm=_check_instruct,
            ) as session,
        ):
            yield session
    except StageInterrupted as stop:
        common.note(f"{stop}{common.place_of(workspace)}")
        raise click.exceptions.Exit(INTERRUPTED) from None


def _check_instruct(model: str, folder: Path) -> None:
    """Raise UsageError for a new workspace's clean model that is no instruct model, unless that was confirmed."""
    from recovery.models.folder_check import why_no_chat

    reason = why_no_chat(model, folder)
    if reason and not click.get_current_context().meta.get(common.BASE_MODEL):
        raise UsageError(
            f"{model} {reason}, so it has no behaviour to keep, and chats with it are what it was not trained on: name "
            f"its instruct version, or confirm it with --base-model"
        )


@contextmanager
def configured(session: Session, kind: type[Config], flags: Mapping[str, Any], own: Recipe) -> Iterator[Config]:
    """Yield the settings of a stage or of cycles, without options that have no effect in them. Add to an error raised
    within which recipes set what it names; also when what begins within is resumed.
    """
    session.from_recipes = from_recipes(kind, flags, own, session.recipe)
    with naming_recipes(session.from_recipes):
        make: Any = build_cycle if kind is CycleConfig else partial(build, kind)
        config: Config = make(flags, own, session.recipe)
        check_given(flags, config)
        yield config


def trial_sizes(
    session: Session, stage: str, config: Config, given: Collection[str], plan: Callable[[Session, Any], Any]
) -> Config:
    """Return the configuration of a stage at the sizes of a trial, by the estimates of its ``plan``."""
    from pipelines.cycle_estimate import fitted

    return fitted({stage: config}, given, lambda tried: plan(session, tried[stage]).rows, session.display)[stage]


@contextmanager
def _planning_place(workspace: Workspace, model: str | None) -> Iterator[Workspace]:
    """Yield the workspace; where there is none yet, one in a temporary folder, with a tracker and models of its own:
    a plan must not fix the clean model of the runs that follow it. A clean ``model`` that is a GGUF file is converted
    for both, since that takes minutes. Raise UsageError where the run could not write.
    """
    from recovery.models.gguf_files.header import is_gguf

    if (obstacle := common.unwritable(workspace.folder)) is not None:
        what = "is write-protected" if obstacle.is_dir() else "is no folder"
        place = f"its workspace {workspace.folder}: {obstacle}"
        raise UsageError(f"the run could not write {place} {what}: use --workspace")
    if workspace.exists:
        yield workspace
        return
    with TemporaryDirectory(prefix="recover-dry-run-") as folder:
        yield Workspace(Path(folder), models_elsewhere=workspace.models if model and is_gguf(model) else None)


@contextmanager
def resumable() -> Iterator[None]:
    """Run a command that skips its finished parts: an interrupt ends it with status 130 and one line."""
    from pipelines.runtime.session import StageInterrupted

    try:
        yield
    except StageInterrupted:
        common.note("interrupted: the same command resumes from here")
        raise click.exceptions.Exit(INTERRUPTED) from None


def write_page(path: Path | None, text: str) -> None:
    """Write a page of the documentation to ``path``, if one is given."""
    if path is not None:
        write_atomically(path, text)


def checkpoint_json(checkpoint: Any) -> dict[str, Any]:
    """Return a checkpoint as the commands print it as JSON."""
    return {
        "name": checkpoint.name,
        "kind": checkpoint.kind,
        "hash": checkpoint.hash,
        "parent": checkpoint.parent,
        "path": str(checkpoint.path),
        "tuning": checkpoint.tuning,
        "origin": checkpoint.origin,
    }
