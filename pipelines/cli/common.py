"""Options shared by several commands, and output helpers. Imports no large library."""

from __future__ import annotations

import dataclasses
import importlib
import json
import math
import os
import re
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click

from recovery._package_guard import ROOT
from recovery.config import ModelConfig, Recipe, read_recipe
from recovery.errors import RecoveryError, UsageError
from recovery.settings import check_value
from recovery.workspace import Workspace

Function = TypeVar("Function", bound=Callable[..., Any])
Decorator = Callable[[Any], Any]

DEFAULT_WORKSPACE = Path("recovery-workspace")
DATABASE = "RECOVER_DATABASE"
REPORT_TO = "RECOVER_REPORT_TO"
BASE_MODEL = "base-model"  # in a context
EMPTY = "the name is empty."


class NamedPath(click.Path):
    """A path of pathlib. Empty text is refused: pathlib takes it for the current folder."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(path_type=Path, **attributes)

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> Any:
        """Return the path. Fails if it has no name."""
        if value == "":
            self.fail(EMPTY, parameter, context)
        return super().convert(value, parameter, context)


class WholeRange(click.IntRange):
    """A range of whole numbers, whose error says "not a whole number" instead of click's "valid integer range"."""

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> int:
        """Return the number. Fails if it is not whole, or out of range."""
        try:
            int(value)
        except ValueError:
            self.fail(f"{value!r} is not a whole number.", parameter, context)
        return int(super().convert(value, parameter, context))


class FiniteRange(click.FloatRange):
    """A range of finite numbers: for click nan is in every range, and inf in one without a bound."""

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> float:
        """Return the number. Fails if it is not finite."""
        try:
            float(value)
        except ValueError:
            self.fail(f"{value!r} is not a number.", parameter, context)
        number = float(super().convert(value, parameter, context))
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", parameter, context)
        return number


def check_name(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """Raise an error for an empty name, which would mean the current folder."""
    if value is not None and not value.strip():
        raise click.BadParameter(EMPTY, context, parameter)
    return value


def check_file(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """Raise an error for an empty name, which would mean the current folder or the miniature, for a path at which there
    is nothing, and for a damaged GGUF file; before torch is imported, which takes seconds.
    """
    from recovery.models.base_folder import is_path, no_model_at
    from recovery.models.gguf_files.header import is_gguf, read_header

    value = check_name(context, parameter, value)
    if value is not None and is_path(value) and not Path(value).expanduser().exists():
        raise no_model_at(value)
    if value is not None and is_gguf(value):
        read_header(value)
    return value


def _read_seeds(context: click.Context, parameter: click.Parameter, value: str | None) -> tuple[int, ...]:
    """``"0,1,2"`` -> ``(0, 1, 2)``; a seed that is named twice counts once."""
    try:
        seeds = tuple(dict.fromkeys(int(part) for part in value.split(","))) if value else ()
    except ValueError:
        raise click.BadParameter(f"'{value}' is not a list of numbers such as 0,1,2", context, parameter) from None
    for seed in seeds:
        try:
            check_value(ModelConfig, "seed", seed)  # before a workspace is made for it
        except UsageError as error:
            raise click.BadParameter(f"{error}.", context, parameter) from None
    return seeds


def _read_database(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    """Store the tracker's address in the context, not as a parameter, so that it is never recorded."""
    typed = context.get_parameter_source("database") is click.core.ParameterSource.COMMANDLINE
    if value and typed and re.match(r"[^/]*://[^/@]*:[^@]+@", value):
        note("a password on the command line can be read by everyone on this machine: use RECOVER_DATABASE")
    context.meta[DATABASE] = value or None


def place_of(workspace: Workspace) -> str:
    """Return the option that names a workspace, with a space before it; "" for the usual one."""
    usual = workspace.folder == DEFAULT_WORKSPACE
    return "" if usual else f" --workspace {shlex.quote(str(workspace.folder))}"


def _read_workspace(context: click.Context, parameter: click.Parameter, value: Path) -> Workspace:
    """Return the workspace with the address of its tracker."""
    own, elsewhere = Workspace(value.expanduser()), context.meta[DATABASE]
    named = elsewhere is not None and _is_file(elsewhere, Path(own.database))
    return Workspace(own.folder, None if named else elsewhere, context.meta.get(REPORT_TO, ()))


def _is_file(address: str, file: Path) -> bool:
    """Whether a tracker's address names this file, in any spelling of it."""
    from db import DatabaseError, database_url

    try:
        url = database_url(address)
    except DatabaseError:  # opening the tracker reports it
        return False
    return url.get_backend_name() == "sqlite" and Path(str(url.database)).resolve() == file.resolve()


def _read_report_to(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    """``"wandb,mlflow"`` -> ``("wandb", "mlflow")``, in the context, for the workspace. Checks names and packages."""
    from pipelines.forwarding.services import check_services

    names = tuple(dict.fromkeys(name.strip() for name in (value or "").split(",") if name.strip()))
    try:
        check_services(names)
    except RecoveryError as error:
        raise click.BadParameter(str(error), context, parameter) from None
    context.meta[REPORT_TO] = names


def _check_page(context: click.Context, parameter: click.Parameter, value: Path | None) -> Path | None:
    """Raise an error for a page that cannot be written before the runs that it is about, which may take hours."""
    if value is not None and (obstacle := unwritable(value)) is not None:
        raise click.BadParameter(f"{value} cannot be written below {obstacle}.", context, parameter)
    return value


def unwritable(path: Path) -> Path | None:
    """Return what prevents writing a path, itself or its nearest existing parent; None if it can be written."""
    place = nearest(path)
    return place if (place != path.absolute() and not place.is_dir()) or not os.access(place, os.W_OK) else None


def nearest(path: Path) -> Path:
    """Return a path, or the nearest folder above it that exists."""
    return next(place for place in (path.absolute(), *path.absolute().parents) if place.exists())


def workspace(function: Function) -> Function:
    """Add ``--workspace`` and ``--database``, passed as one :class:`Workspace`, ``workspace``."""
    function = click.option(
        "--database",
        metavar="URL",
        envvar=DATABASE,
        is_eager=True,  # parsed before --workspace, whose callback needs it
        expose_value=False,
        callback=_read_database,
        help="A tracker that several machines share, postgresql://USER@HOST/NAME, instead of the workspace's own "
        "(or RECOVER_DATABASE).",
    )(function)
    return click.option(
        "--workspace",
        type=NamedPath(file_okay=False),
        default=DEFAULT_WORKSPACE,
        envvar="RECOVER_WORKSPACE",
        callback=_read_workspace,
        help="Folder that holds the tracker and the checkpoints (or RECOVER_WORKSPACE).  "
        "[default: ./recovery-workspace]",  # click would put a text of its own into brackets
    )(function)


def report_to(*, required: bool = False) -> Decorator:
    """Return the option ``--report-to``, whose names are in the :class:`Workspace`."""
    return click.option(
        "--report-to",
        metavar="NAME,NAME",
        required=required,
        envvar=REPORT_TO,
        is_eager=True,  # parsed before --workspace, whose callback needs it
        expose_value=False,
        callback=_read_report_to,
        help="Other trackers that get a copy of what is recorded: wandb, mlflow, trackio, swanlab (docs/tracker.md; or "
        "RECOVER_REPORT_TO).",
    )


class ShortHelp(click.Command):
    """A command of many options: --help shows the ``common`` ones, names between spaces; --help-all every one."""

    def __init__(self, *, common: str, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.common = common.split()
        self._all = False
        self.params.append(
            click.Option(
                ["--help-all"],
                is_flag=True,
                is_eager=True,
                expose_value=False,
                callback=self._show_all,
                help=f"Show all {len(self.params)} options.",
            )
        )

    def shown_in_short(self, parameter: click.Parameter) -> bool:
        """Whether --help shows an option."""
        return parameter.name in self.common or not {"--help", "--help-all"}.isdisjoint(parameter.opts)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the common options, or all."""
        shown = [p for p in self.get_params(ctx) if self._all or self.shown_in_short(p)]
        with formatter.section("Options"):
            formatter.write_dl([row for p in shown if (row := p.get_help_record(ctx)) is not None])

    def _show_all(self, context: click.Context, _parameter: click.Parameter, value: bool) -> None:
        if value and not context.resilient_parsing:
            self._all = True
            text = context.get_help()
            self._all = False
            click.echo(text)
            context.exit()


def _model(default: str) -> Decorator:
    """Return the options ``--model`` and ``--base-model``, which is kept in the context."""
    named = click.option(
        "--model",
        metavar="NAME",
        callback=check_file,
        help=f"The clean model: a hub id, a folder, a GGUF file, or 'miniature'.  [default: {default}]",
    )
    confirmed = click.option(
        "--base-model",
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=lambda context, _parameter, value: context.meta.update({BASE_MODEL: value}),
        help="Confirm a new workspace's clean model that is no instruct model, or has no chat template.",
    )
    return lambda function: named(confirmed(function))


model = _model("the workspace's, else miniature")
own_model = _model("the workspace's; a new one asks")
seeds: Decorator = click.option(
    "--seeds",
    metavar="0,1,2",
    callback=_read_seeds,
    help="Several seeds, each in its own workspace, and a table over them.",
)
write_docs: Decorator = click.option(
    "--write-docs",
    type=NamedPath(dir_okay=False),
    metavar="FILE",
    callback=_check_page,
    help="Write the table to a file, e.g. docs/results.md.",
)
as_json: Decorator = click.option(
    "--json", "as_json", is_flag=True, help="Print the result as JSON on standard output."
)
dry_run: Decorator = click.option(
    "--dry-run",
    is_flag=True,
    help="Print the resolved plan (documents, tokens, steps, memory, time) and stop.",
)
recipe: Decorator = click.option(
    "--recipe",
    type=NamedPath(exists=True, dir_okay=False),
    callback=lambda _context, _parameter, path: read_recipe(path) if path else Recipe(),
    help="A TOML file of settings; flags override it, and it overrides the model's own defaults.",
)


def given(context: click.Context, *names: str) -> dict[str, Any]:
    """Return the parameters, all or those of ``names``, that the user set by flag or environment.

    Only these override a recipe or a preset: the default of a flag does not.
    """
    set_by_user = (click.core.ParameterSource.COMMANDLINE, click.core.ParameterSource.ENVIRONMENT)
    named = {name: value for name, value in context.params.items() if not names or name in names}
    return {name: value for name, value in named.items() if context.get_parameter_source(name) in set_by_user}


def of_examples(module: str) -> Any:
    """Import a module of examples/, "studies.page". Raises UsageError in an installation, which has no examples."""
    part = module.partition(".")[0]
    if not (ROOT / "examples" / part / "__init__.py").is_file():
        what = {"studies": "the studies are", "miniature": "the training of the miniature is"}[part]
        raise UsageError(f"{what} in the repository: clone it, and run the command there")
    return importlib.import_module(f"examples.{module}")


def emit(value: object, as_json: bool, text: str | Callable[[], str]) -> None:
    """Print ``value`` as JSON, or ``text`` (a string, or a function that returns one)."""
    if as_json:
        click.echo(json.dumps(plain(value), indent=2, ensure_ascii=False, allow_nan=False))
    else:
        click.echo(text if isinstance(text, str) else text())


def note(text: str) -> None:
    """Print a message to stderr, so that standard output holds only the result."""
    click.echo(text, err=True)


def plain(value: Any) -> Any:
    """Return ``value`` as JSON types: dataclasses as objects, paths as text, NaN and infinity as null."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, (str, int, bool)):
        return value
    return str(value)
