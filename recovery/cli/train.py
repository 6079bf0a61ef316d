"""`recover train`: any method, by its preset and its dials."""

from __future__ import annotations

import click

from recovery.cli import dials
from recovery.cli.distill import run


@click.command()
@click.option(
    "--method", default=None, metavar="NAME", help="A preset: see `recover methods`.  [default: the recipe's, else opd]"
)
@dials.common
@dials.dials
@click.pass_context
def command(context: click.Context, /, **_: object) -> None:
    """Train by any method: a preset and its dials.

    SFT, GRPO, on-policy distillation, self-distillation with a context, and what lies between. A method is a
    setting of three dials: whose answers (--alpha), who scores them (--lambda), what teaches
    (--teacher, --context). A preset sets them; any flag moves one. One stage, one loop, one loss run them all.
    """
    run(context)
