"""`recover report`: a cycle's report as Markdown and HTML, or its evidence as one file."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pipelines.cli import common, stage_options
from recovery.errors import UsageError
from recovery.workspace import Workspace, write_atomically

if TYPE_CHECKING:
    from pipelines.runtime.session import Session


@click.command()
@click.argument("cycle", required=False)
@common.workspace
@click.option(
    "--out",
    type=common.NamedPath(file_okay=False),
    help="The folder to write to.  [default: reports in the workspace]",
)
@click.option("--figures/--no-figures", default=True, help="Charts in the HTML file, which add 4.7 MB.")
@click.option(
    "--bundle",
    type=common.NamedPath(dir_okay=False),
    metavar="FILE",
    help="Write the evidence for the gate's last judgement to a zip file instead, with a SHA-256 of each part.",
)
@click.option("--responses", is_flag=True, help="Prompts and responses as texts in the bundle, not only their SHA-256.")
@click.option(
    "--verify",
    type=common.NamedPath(exists=True, dir_okay=False),
    metavar="FILE",
    help="Check a bundle and compute its figures and verdicts again; needs no workspace.",
)
@common.as_json
@click.pass_context
def command(
    context: click.Context,
    cycle: str | None,
    workspace: Workspace,
    out: Path | None,
    figures: bool,
    bundle: Path | None,
    responses: bool,
    verify: Path | None,
    as_json: bool,
) -> None:
    """Write a cycle's report: figures, tests, samples, decision.

    CYCLE defaults to the newest. Writes one Markdown file and one self-contained HTML file; with --bundle, one zip file
    with the evidence for its judgement. --verify exits with status 0 if everything in a bundle agrees, else with 1.
    """
    given = common.given(context)
    _exclude(given, "verify", ("cycle", "out", "figures", "bundle", "responses"))
    _exclude(given, "bundle", ("out", "figures"))
    if responses and bundle is None:
        raise UsageError("--responses is for --bundle: give --bundle FILE too")
    if verify is not None:
        _verify(verify, as_json)
        return
    from pipelines.evaluation.acceptance import cycle_number
    from pipelines.runtime.registry import existing

    existing(workspace)
    if out is None and bundle is None and workspace.write_protected:
        raise UsageError(f"{workspace.folder} is write-protected: name another folder for the report with --out FOLDER")
    with stage_options.at_work(workspace, "recover report", exclusive=False, reads=True) as session:
        number = cycle_number(session, cycle) if cycle is not None else max(session.cycles(), default=0)
        if not number:
            raise UsageError("there is no cycle to report yet: run `recover cycle --docs FOLDER`")
        if bundle is not None:
            _bundle(session, number, bundle, responses, as_json)
        else:
            _report(session, number, out or workspace.folder / "reports", figures, as_json)


def _exclude(given: dict[str, object], name: str, others: tuple[str, ...]) -> None:
    """Raise UsageError if an option is given together with others that it makes meaningless."""
    both = [other for other in others if other in given]
    if name in given and both:
        shown = "CYCLE" if both[0] == "cycle" else f"--{both[0]}"
        raise UsageError(f"--{name} and {shown} exclude each other: omit one")


def _verify(path: Path, as_json: bool) -> None:
    from pipelines.reports.bundle import verify

    lines = []
    for line in verify(path):
        lines.append(line)
        if not as_json:
            click.echo(f"ok  {line}")
    if as_json:
        common.emit({"bundle": path, "checks": lines}, as_json, "")


def _bundle(session: Session, number: int, path: Path, responses: bool, as_json: bool) -> None:
    from pipelines.reports.bundle import sha256
    from pipelines.reports.evidence import evidence_bundle

    data = evidence_bundle(session, number, responses=responses)
    write_atomically(path, data)
    value = {"cycle": number, "bundle": path, "bytes": len(data), "sha256": sha256(data)}
    common.emit(value, as_json, f"wrote {path}: {len(data):,} bytes, SHA-256 {value['sha256']}")


def _report(session: Session, number: int, folder: Path, figures: bool, as_json: bool) -> None:
    from pipelines.reports.cycle_report import cycle_report, store_report
    from pipelines.reports.document import to_html

    read_at = time.time()
    title, blocks = cycle_report(session, number)
    drawn = _figures(session) if figures else []
    written = {"markdown": folder / f"cycle-{number}.md", "html": folder / f"cycle-{number}.html"}
    store_report(written["markdown"], blocks, read_at)
    write_atomically(written["html"], to_html(title, blocks, drawn))
    common.emit({"cycle": number, **written}, as_json, "\n".join(f"wrote {path}" for path in written.values()))


def _figures(session: Session) -> list[tuple[str, str]]:
    """Return the dashboard's two charts as (caption, HTML); the first includes plotly's library."""
    from plotly.io import to_html

    from dashboard import charts
    from db import queries

    overview = queries.overview(session.tracker.database, session.experiment_id)
    if overview is None or len(overview.path) < 2:
        return []
    drawn = (
        ("Knowledge against instruction following, every cycle so far", charts.tradeoff(overview)),
        ("Both over time", charts.trajectory(overview)),
    )
    return [
        (caption, to_html(figure.to_dict(), full_html=False, include_plotlyjs=number == 0))
        for number, (caption, figure) in enumerate(drawn)
    ]
