"""`recover train`: training with any method, by its preset and its settings."""

from __future__ import annotations

import click

from pipelines.cli import method_options
from pipelines.cli.common import ShortHelp
from pipelines.cli.distill import run
from pipelines.cli.setting_options import option_of
from recovery.config import DistillConfig


@click.command(
    cls=ShortHelp,
    common="method teacher student model workspace recipe prompts data reward steps lr tuning engine dry_run",
)
@option_of(DistillConfig, "method")
@method_options.distill_options
@method_options.method_settings
@click.pass_context
def command(context: click.Context, /, **_: object) -> None:
    """Train with any method: a preset and its settings.

    SFT, GRPO, on-policy distillation, self-distillation with a context, and combinations of them. A method is a
    choice of three settings: the share of the student's own completions (--alpha), the weight of the teacher against
    the reward (--lambda), and the teacher (--teacher, --context). A preset sets them; any flag overrides one.
    """
    run(context)
