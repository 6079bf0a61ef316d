"""`recover report`: a cycle on one page."""

from __future__ import annotations

from pathlib import Path

import click

from recovery.cli import options, stages
from recovery.errors import UsageError
from recovery.workspace import Workspace


@click.command()
@click.argument("cycle", type=click.IntRange(min=1), required=False)
@options.workspace
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    default=None,
    help="The folder to write to.  [default: reports in the workspace]",
)
@click.option("--figures/--no-figures", default=True, help="The HTML file's charts, which are 4.7 MB of its size.")
@options.as_json
def command(cycle: int | None, workspace: Workspace, out: Path | None, figures: bool, as_json: bool) -> None:
    """Write a cycle's report: figures, tests, samples, decision.

    The newest CYCLE where none is named. One Markdown file and one HTML file that needs nothing beside it.
    """
    from pipelines.documents import to_html, to_markdown
    from pipelines.registry import existing
    from pipelines.report import cycle_report
    from recovery.workspace import write_atomically

    existing(workspace)
    with stages.at_work(workspace, "recover report", alone=False) as session:
        number = cycle or max(session.cycles(), default=0)
        if not number:
            raise UsageError("there is no cycle to report yet: run `recover cycle --docs FOLDER`")
        title, blocks = cycle_report(session, number)
        drawn = _figures(session) if figures else []
    folder = out or workspace.folder / "reports"
    written = {"markdown": folder / f"cycle-{number}.md", "html": folder / f"cycle-{number}.html"}
    write_atomically(written["markdown"], to_markdown(blocks))
    write_atomically(written["html"], to_html(title, blocks, drawn))
    options.emit({"cycle": number, **written}, as_json, "\n".join(f"wrote {path}" for path in written.values()))


def _figures(session: object) -> list[tuple[str, str]]:
    """The dashboard's two charts, with the library they need inside the first."""
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
