"""`recover report`: a cycle's report as Markdown and HTML."""

from __future__ import annotations

from pathlib import Path

import click

from pipelines.cli import common, stage_options
from recovery.errors import UsageError
from recovery.workspace import Workspace


@click.command()
@click.argument("cycle", type=click.IntRange(min=1), required=False)
@common.workspace
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=None,
    help="The folder to write to.  [default: reports in the workspace]",
)
@click.option("--figures/--no-figures", default=True, help="Charts in the HTML file, which add 4.7 MB.")
@common.as_json
def command(cycle: int | None, workspace: Workspace, out: Path | None, figures: bool, as_json: bool) -> None:
    """Write a cycle's report: figures, tests, samples, decision.

    CYCLE defaults to the newest. Writes one Markdown file and one self-contained HTML file.
    """
    from pipelines.reports.cycle_report import cycle_report
    from pipelines.reports.document import to_html, to_markdown
    from pipelines.runtime.registry import existing
    from recovery.workspace import write_atomically

    existing(workspace)
    with stage_options.at_work(workspace, "recover report", alone=False) as session:
        number = cycle or max(session.cycles(), default=0)
        if not number:
            raise UsageError("there is no cycle to report yet: run `recover cycle --docs FOLDER`")
        title, blocks = cycle_report(session, number)
        drawn = _figures(session) if figures else []
    folder = out or workspace.folder / "reports"
    written = {"markdown": folder / f"cycle-{number}.md", "html": folder / f"cycle-{number}.html"}
    write_atomically(written["markdown"], to_markdown(blocks))
    write_atomically(written["html"], to_html(title, blocks, drawn))
    common.emit({"cycle": number, **written}, as_json, "\n".join(f"wrote {path}" for path in written.values()))


def _figures(session: object) -> list[tuple[str, str]]:
    """Return the dashboard's two charts as (caption, HTML); the first includes plotly's library."""
    from plotly.io import to_html

    from dashboard import charts
    from db import queries

    overview = queries.overview(session.tracker.database, session.experiment_id)  # type: ignore[attr-defined]
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
