"""`recover plan`: an estimate of a cycle's memory and time on given GPUs."""

from __future__ import annotations

from pathlib import Path

import click

from pipelines.cli import common
from pipelines.cli.stage_options import DataSource, option_of
from recovery.config import MidtrainConfig, TrainingConfig


@click.command()
@click.option(
    "--model",
    required=True,
    metavar="NAME",
    callback=common.check_file,
    help="The model: a folder, a GGUF file, a config.json, a hub id, or 'miniature'. Its weights are not read.",
)
@click.option(
    "--gpus",
    default="24,48,80",
    show_default=True,
    metavar="LIST",
    help="Sizes in GB or names, each with a number before it if there are several: 24,2x80GB,H100; or cpu.",
)
@click.option(
    "--docs",
    type=DataSource(),
    metavar="SOURCE",
    help="The documents, whose tokens are counted.",
)
@click.option(
    "--document-mb",
    type=common.FiniteRange(min=0, min_open=True),
    default=10.0,
    show_default=True,
    help="Megabytes of text, if there are no documents yet.",
)
@option_of(MidtrainConfig, "epochs")
@option_of(TrainingConfig, "gather")
@click.option("--method", metavar="NAME", help="Recovery method: see `recover methods`.")
@click.option("--teacher", metavar="NAME", help="Teacher, as for `recover distill`.")
@click.option(
    "--knowledge-teacher",
    type=click.Choice(["midtrained", "none"]),
    default="midtrained",
    show_default=True,
    help="Teacher for questions about the documents; 'none' for base alone.",
)
@click.option(
    "--tflops",
    type=common.FiniteRange(min=0, min_open=True),
    help="Peak bfloat16 TFLOP/s of the GPUs, instead of the published figure.",
)
@click.option(
    "--utilisation",
    type=common.FiniteRange(min=0, max=1, min_open=True),
    help="Share of the peak that training reaches.  [default: 0.4, on a CPU 0.5]",
)
@common.as_json
@click.pass_context
def command(
    context: click.Context,
    /,
    model: str,
    gpus: str,
    docs: Path | None,
    document_mb: float,
    tflops: float | None,
    utilisation: float | None,
    as_json: bool,
    **_: object,
) -> None:
    """Estimate the memory and the time of a cycle on given GPUs.

    Nothing is loaded, trained or written. Memory is counted part by part from the model's configuration; for each size
    the largest token budget that fits and the recommended command are printed.
    """
    from pipelines.plan import make_plan

    flags = common.given(context, "epochs", "method", "teacher", "knowledge_teacher", "gather")
    report = make_plan(
        model,
        gpus,
        docs=docs,
        document_mb=document_mb,
        flags=flags,
        tflops=tflops,
        utilisation=utilisation,
    )
    common.emit(report, as_json, report.text)
