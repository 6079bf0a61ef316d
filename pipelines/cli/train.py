"""`recover train`: training with any method, by its preset and its dials."""

from __future__ import annotations

import click

from pipelines.cli import method_options
from pipelines.cli.distill import run


@click.command()
@click.option(
    "--method", default=None, metavar="NAME", help="A preset: see `recover methods`.  [default: the recipe's, else opd]"
)
@method_options.distill_options
@method_options.dials
@click.pass_context
def command(context: click.Context, /, **_: object) -> None:
    """Train with any method: a preset and its dials.

    SFT, GRPO, on-policy distillation, self-distillation with a context, and combinations of them. A method is a
    setting of three dials: the share of the student's own completions (--alpha), the weight of the teacher against
    the reward (--lambda), and the teacher (--teacher, --context). A preset sets them; any flag overrides one.
    """
    run(context)
