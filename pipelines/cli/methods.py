"""`recover methods`: the presets with their settings and explanations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from pipelines.cli import common

if TYPE_CHECKING:
    from recovery.arms import Arm
    from recovery.config import DistillConfig
    from recovery.methods import Method


@click.group(invoke_without_command=True)
@common.as_json
@click.pass_context
def command(context: click.Context, as_json: bool) -> None:
    """List and explain the methods.

    `recover methods` prints all presets with their settings; `recover methods show NAME` explains one.
    """
    if context.invoked_subcommand is not None:
        context.obj = as_json  # for the subcommand: --json may stand before its name
        return
    from recovery.config import DistillConfig, build
    from recovery.methods import METHODS

    configs = {name: build(DistillConfig, {"method": name}) for name in METHODS}
    common.emit(
        [_row(METHODS[name], config) for name, config in configs.items()], as_json, lambda: _table(METHODS, configs)
    )


@command.command()
@click.argument("name")
@common.as_json
@click.pass_obj
def show(before: bool, name: str, as_json: bool) -> None:
    """Explain one method: formula, settings, when to use it and when not, source."""
    from recovery.config import DistillConfig, build
    from recovery.methods import method_named

    method = method_named(name)
    config = build(DistillConfig, {"method": name})
    row = _row(method, config) | {"settings": dict(method.settings)}
    common.emit(row, as_json or before, lambda: _page(method, config))


@command.command(name="arms")
@common.as_json
@click.pass_obj
def list_arms(before: bool, as_json: bool) -> None:
    """List the arms: alternative settings of a whole cycle, to be compared with one another."""
    from recovery.arms import ARMS

    common.emit(list(ARMS.values()), as_json or before, lambda: "\n".join(_arm(arm) for arm in ARMS.values()))


def _arm(arm: Arm) -> str:
    trained = " ".join(f"{name}={value}" for name, value in arm.midtrain.items()) or "as given"
    second = " ".join([arm.follow, *(f"{name}={value}" for name, value in arm.settings.items())])
    return f"{arm.name:<18} {arm.title}\n    midtrain {trained}; then {second} ({arm.source})"


def _row(method: Method, config: DistillConfig) -> dict[str, Any]:
    return {
        "name": method.name,
        "title": method.title,
        "alpha": config.alpha,
        "lambda": config.lam,
        "teacher": config.teacher,
        "context": config.context,
        "answers": config.answers if config.alpha < 1 else None,
        "divergence": objective(config),
        "formula": method.formula,
        "use": method.use,
        "avoid": method.avoid,
        "measured": method.measured,
        "source": method.source,
        "expects": method.expects,
    }


def objective(config: DistillConfig) -> str:
    """Name the objective that a method minimises."""
    if config.lam == 0.0:
        return "policy gradient"
    if config.imitates:
        return "cross-entropy"
    return config.divergence if config.lam == 1.0 else f"{config.divergence} + reward"


def _table(methods: dict[str, Method], configs: dict[str, DistillConfig]) -> str:
    lines = [f"{'method':<20} {'alpha':>5} {'lambda':>6}  {'teacher':<8} {'context':<15} objective"]
    for name, config in configs.items():
        context = "" if config.context == "none" else config.context
        lines.append(
            f"{name:<20} {config.alpha:>5g} {config.lam:>6g}  {config.teacher:<8} {context:<15} {objective(config)}"
        )
    lines.append("\nalpha: share of prompts that the student answers; lambda: weight of the teacher against a reward.")
    lines.append("`recover methods show NAME` explains one; `recover train --method NAME` runs it.")
    return "\n".join(lines)


def _page(method: Method, config: DistillConfig) -> str:
    settings = " ".join(f"{name}={value}" for name, value in method.settings.items()) or "the defaults"
    lines = [
        f"{method.name}: {method.title}",
        f"  loss      {method.formula}",
        f"  in short  alpha {config.alpha:g}, lambda {config.lam:g}, teacher {config.teacher}, {objective(config)}",
        f"  use       when {method.use}" if not method.use.startswith("to ") else f"  use       {method.use}",
        f"  not       when {method.avoid}",
        *([f"  needs     {method.expects}"] if method.expects else []),
        *([f"  measured  {method.measured} (docs/studies.md)"] if method.measured else []),
        f"  settings  {settings}",
        f"  source    {method.source}",
    ]
    return "\n".join(lines)
